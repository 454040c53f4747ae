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

/// The host's link: slow enough for two cores, with a queue that [`STREAMS`] overflow. Thirty full
/// frames take 3.7 ms, so that the emulator's own tens of microseconds are within what is allowed.
const LINK: &str = "rate = \"100Mbit\"\nnic_queue = 30\ngso_max_segs = 1";

/// Streams at once: TCP's small queues alone would keep fewer from ever filling the NIC's.
const STREAMS: &str = "8";

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

/// CUBIC streams from h1 to h2.
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
            "-P",
            STREAMS,
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
        rtt_us: mean_rtt_us(&report),
        local_drops: dropped(&String::from_utf8_lossy(&queue.stdout)),
    })
}

/// The mean of the streams' mean round trips, in microseconds.
fn mean_rtt_us(report: &Value) -> f64 {
    let streams = report.pointer("/end/streams").and_then(Value::as_array);
    let rtts: Vec<f64> = streams
        .into_iter()
        .flatten()
        .filter_map(|stream| stream.pointer("/sender/mean_rtt")?.as_f64())
        .collect();
    rtts.iter().sum::<f64>() / rtts.len() as f64
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
