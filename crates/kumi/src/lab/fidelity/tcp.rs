//! TCP must not be able to tell the emulator from veth and qdisc: small queues, local drops and
//! round trips under load are the host's own affair, on its own side of the wire.

use super::{Run, cable};
use anyhow::Context;
use kumi_lab::Cluster;
use kumi_lab::topology::FabricChoice;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;

/// Length of one transfer, in seconds.
const TRANSFER_S: u32 = 4;

/// The host's link: slow enough for two cores, with a queue that TCP can overflow.
const LINK: &str = "rate = \"200Mbit\"\nnic_queue = 200\ngso_max_segs = 1";

/// What a transfer showed.
#[derive(Debug, Clone, Copy, Default)]
struct Transfer {
    goodput_bps: f64,
    rtt_us: f64,
    local_drops: f64,
}

/// Ratios, emulator over kernel, of the medians of `rounds` interleaved transfers.
pub fn compare(run: &mut Run, rounds: usize) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let mut found: [Vec<Transfer>; 2] = Default::default();
    for _ in 0..rounds {
        for (index, fabric) in [FabricChoice::Kernel, FabricChoice::Emulator]
            .into_iter()
            .enumerate()
        {
            let cluster = run.up(&cable(LINK)?, fabric)?;
            let transfer = transfer(&cluster)?;
            run.watch("tcp", &cluster);
            run.row(json!({"figure": "tcp", "fabric": super::name_of(fabric),
                "goodput_bps": transfer.goodput_bps, "rtt_us": transfer.rtt_us,
                "local_drops": transfer.local_drops}));
            found[index].push(transfer);
        }
    }
    let ratio =
        |figure: fn(&Transfer) -> f64| median(&found[1], figure) / median(&found[0], figure);
    let mut ratios = vec![
        ("goodput", ratio(|t| t.goodput_bps)),
        ("rtt", ratio(|t| t.rtt_us)),
    ];
    // Small queues may well avoid every drop, on both; then there is nothing to divide.
    if median(&found[0], |t| t.local_drops) > 20.0 {
        ratios.push(("local_drops", ratio(|t| t.local_drops)));
    }
    Ok(ratios)
}

fn median(transfers: &[Transfer], figure: fn(&Transfer) -> f64) -> f64 {
    let mut values: Vec<f64> = transfers.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One CUBIC stream from h1 to h2.
fn transfer(cluster: &Cluster) -> anyhow::Result<Transfer> {
    let mut server = cluster
        .command("h2", "iperf3")?
        .args(["-s", "-1"])
        .stdout(Stdio::null())
        .spawn()
        .context("starting iperf3 (`apt-get install iperf3`)")?;
    std::thread::sleep(Duration::from_millis(200));
    let client = cluster
        .command("h1", "iperf3")?
        .args([
            "-c",
            "h2",
            "-C",
            "cubic",
            "-J",
            "-O",
            "1",
            "-t",
            &TRANSFER_S.to_string(),
        ])
        .output();
    // It serves one client; if none came, it would wait for ever.
    let _ = server.kill();
    let _ = server.wait();
    let report: Value =
        serde_json::from_slice(&client?.stdout).context("reading iperf3's report")?;
    let figure = |pointer: &str| {
        report
            .pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or(f64::NAN)
    };
    let queue = cluster
        .command("h1", "tc")?
        .args(["-s", "qdisc", "show", "dev", "eth1"])
        .output()?;
    Ok(Transfer {
        goodput_bps: figure("/end/sum_received/bits_per_second"),
        rtt_us: figure("/end/streams/0/sender/mean_rtt"),
        local_drops: dropped(&String::from_utf8_lossy(&queue.stdout)),
    })
}

/// The root qdisc's drops in the output of `tc -s qdisc`.
fn dropped(text: &str) -> f64 {
    text.split_once("dropped ")
        .and_then(|(_, rest)| {
            rest.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        })
        .unwrap_or(0.0)
}
