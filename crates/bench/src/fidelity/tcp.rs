//! Compares TCP on the emulator with TCP on veth and qdisc. TCP must not see a difference: TCP's
//! small queues, local drops and round trips under load depend on the host's own queue, before the
//! wire.

use super::traffic::FULL_PAYLOAD_BYTES;
use super::{Run, cable};
use anyhow::Context;
use kumi_lab::Cluster;
use kumi_lab::topology::FabricChoice;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::Duration;

/// Length of one transfer, in seconds.
const TRANSFER_S: u32 = 4;

/// Keys of the host's link for a transfer. Its queue is longer than TCP's small queues can fill.
const LINK: &str = "rate = \"100Mbit\"\nnic_queue = 1000";

/// Keys of the host's link for an overrun.
const SHALLOW_LINK: &str = "rate = \"100Mbit\"\nnic_queue = 30";

/// Datagrams sent into the shallow queue. Nearly all of them are dropped.
const OVERRUN_FRAMES: u32 = 5_000;

/// Result of a transfer.
#[derive(Debug, Clone, Copy, Default)]
struct Transfer {
    goodput_bps: f64,
    rtt_us: f64,
}

/// Returns ratios of the emulator to the kernel fabric: of the medians of `rounds` interleaved
/// transfers, and of the local drops in one overrun.
pub fn compare(run: &mut Run, rounds: usize) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let fabrics = [FabricChoice::Kernel, FabricChoice::Emulator];
    let mut transfers: [Vec<Transfer>; 2] = Default::default();
    let mut drops = [0.0; 2];
    for _ in 0..rounds {
        for (index, fabric) in fabrics.into_iter().enumerate() {
            let cluster = run.up(&cable(LINK)?, fabric)?;
            let transfer = transfer(&cluster)?;
            run.watch("tcp", &cluster);
            run.row(json!({"figure": "tcp", "fabric": super::name_of(fabric),
                "goodput_bps": transfer.goodput_bps, "rtt_us": transfer.rtt_us}));
            transfers[index].push(transfer);
        }
    }
    for (index, fabric) in fabrics.into_iter().enumerate() {
        drops[index] = overrun(&run.up(&cable(SHALLOW_LINK)?, fabric)?)?;
        run.row(
            json!({"figure": "overrun", "fabric": super::name_of(fabric),
            "sent": OVERRUN_FRAMES, "local_drops": drops[index]}),
        );
    }
    let ratio = |figure: fn(&Transfer) -> f64| {
        median(&transfers[1], figure) / median(&transfers[0], figure)
    };
    Ok(vec![
        ("goodput", ratio(|t| t.goodput_bps)),
        ("rtt", ratio(|t| t.rtt_us)),
        ("local_drops", drops[1] / drops[0]),
    ])
}

/// Sends faster than the NIC, and returns the drops of the NIC's queue. The socket's send buffer is
/// large enough that it never blocks the sender.
fn overrun(cluster: &Cluster) -> anyhow::Result<f64> {
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> anyhow::Result<()> {
            cluster.enter_thread("h1")?;
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            setsockopt(&socket, sockopt::SndBufForce, &(32 << 20))?;
            socket.connect("10.1.0.2:9")?;
            // The first datagram resolves the address. Nothing listens on the port, so later calls
            // may return an error.
            let _ = socket.send(&[0; 16]);
            std::thread::sleep(Duration::from_millis(50));
            for _ in 0..OVERRUN_FRAMES {
                let _ = socket.send(&[0; FULL_PAYLOAD_BYTES]);
            }
            Ok(())
        });
        sender
            .join()
            .map_err(|_| anyhow::anyhow!("the sender panicked"))?
    })?;
    let queue = cluster
        .command("h1", "tc")?
        .args(["-s", "qdisc", "show", "dev", "eth1"])
        .output()?;
    Ok(drop_count(&String::from_utf8_lossy(&queue.stdout)))
}

fn median(transfers: &[Transfer], figure: fn(&Transfer) -> f64) -> f64 {
    let mut values: Vec<f64> = transfers.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs one CUBIC stream from h1 to h2.
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
    // The server serves one client. It would wait forever if none connected.
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
    Ok(Transfer {
        goodput_bps: figure("/end/sum_received/bits_per_second"),
        rtt_us: figure("/end/streams/0/sender/mean_rtt"),
    })
}

/// Returns the root qdisc's drops in the output of `tc -s qdisc`.
fn drop_count(text: &str) -> f64 {
    text.split_once("dropped ")
        .and_then(|(_, tail)| {
            tail.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        })
        .unwrap_or(0.0)
}
