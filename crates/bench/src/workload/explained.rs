//! A program with a known cause of slowness, and the report of `kumi tcp explain` about it.

use super::{Context, Measurement};
use crate::hosts::background::Background;
use crate::sample::Figures;
use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

const PORT: &str = "5701";

/// Cause that makes the program slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ailment {
    /// Bursts after pauses longer than the retransmission timeout.
    IdleCollapse,
    /// A receive buffer smaller than the path's bandwidth-delay product.
    ReceiverWindow,
    /// A send buffer smaller than the path's bandwidth-delay product.
    SenderBuffer,
    /// Two small writes, then a wait for the answer. The second write waits for the acknowledgement
    /// of the first.
    DelayedAck,
    /// A queue of the sender's host that bursts of other datagrams fill. It refuses TCP's packets.
    SendStall,
    /// Messages of one packet over a lossy link.
    Timeout,
    /// Two causes at once: small writes that wait for each other, over a lossy link.
    DelayedAckAndTimeout,
    /// Two causes at once: bursts after pauses, into a small receive buffer.
    IdleCollapseAndReceiverWindow,
}

impl Ailment {
    /// Returns the right causes, by their names in `kumi tcp explain -j`.
    fn causes(self) -> &'static [&'static str] {
        match self {
            Self::IdleCollapse => &["idle_collapse"],
            Self::ReceiverWindow => &["receiver_window"],
            Self::SenderBuffer => &["senders_buffer"],
            Self::DelayedAck => &["delayed_acknowledgement"],
            Self::SendStall => &["send_stall"],
            // The kernel decides which of the two timers is shorter.
            Self::Timeout => &["retransmission_timeout", "tail_loss_probe"],
            Self::DelayedAckAndTimeout => &[
                "delayed_acknowledgement",
                "retransmission_timeout",
                "tail_loss_probe",
            ],
            Self::IdleCollapseAndReceiverWindow => &["idle_collapse", "receiver_window"],
        }
    }

    /// Returns the commands of the program's two ends, the sink first.
    fn commands<'a>(self, kumi: &'a str, address: &'a str, seconds: &'a str) -> [Vec<&'a str>; 2] {
        let flow_sink = vec![kumi, "workload", "flow-sink", PORT];
        let flow_source = vec![kumi, "workload", "flow-source", address, PORT, seconds];
        let burst_sink = vec![kumi, "workload", "burst-sink", PORT];
        let burst = |options: &[&'a str]| {
            let mut source = vec![kumi, "workload", "burst-source", address, PORT];
            source.extend_from_slice(options);
            source
        };
        // Twenty pauses make the slow start of the first burst a small part. Its cause is named
        // rightly, too.
        let pauses =
            "700,700,700,700,700,700,700,700,700,700,700,700,700,700,700,700,700,700,700,700";
        let brief =
            "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1";
        match self {
            Self::IdleCollapse => [
                burst_sink,
                burst(&["--warm-up-ms", "0", "--pauses-ms", pauses, "65536"]),
            ],
            Self::DelayedAck | Self::DelayedAckAndTimeout => [
                burst_sink,
                burst(&[
                    "--warm-up-ms",
                    "0",
                    "--in-two-writes",
                    "--pauses-ms",
                    brief,
                    "200",
                ]),
            ],
            Self::IdleCollapseAndReceiverWindow => [
                [&burst_sink[..], &["--receive-buffer-bytes", "131072"]].concat(),
                burst(&["--warm-up-ms", "0", "--pauses-ms", pauses, "1048576"]),
            ],
            Self::Timeout => [
                burst_sink,
                burst(&["--warm-up-ms", "2000", "--pauses-ms", brief, "1000"]),
            ],
            Self::ReceiverWindow => [
                [&flow_sink[..], &["--receive-buffer-bytes", "131072"]].concat(),
                flow_source,
            ],
            Self::SenderBuffer => [
                flow_sink,
                [&flow_source[..], &["--send-buffer-bytes", "65536"]].concat(),
            ],
            // The window is a little wider than the path. A wider one would keep a standing queue
            // in the network, and that queue would make up for each cut of the window
            // (`docs/perf-log.md`, 2026-11-22).
            Self::SendStall => [
                [&flow_sink[..], &["--receive-buffer-bytes", "524288"]].concat(),
                flow_source,
            ],
        }
    }
}

/// Time for `kumi tcp explain` to load its programs.
const LOAD_TIME: Duration = Duration::from_secs(1);

/// Starts `kumi tcp explain` for both ends.
pub fn watch(context: &Context<'_>) -> anyhow::Result<Background> {
    let running = context.running;
    // In a lab, all processes of the bench are in the bench's own cgroup, on either host.
    let group = kumi_tcp::cgroup_folder(std::process::id())?;
    let group = group.to_str().context("the cgroup's path is not UTF-8")?;
    let explain = [
        running.hosts.kumi(),
        "tcp",
        "explain",
        "-j",
        "--cgroup",
        group,
    ];
    let seconds_max = crate::hosts::COMMAND_SECONDS_MAX;
    let explain = Background::start(running.hosts, running.client(), &explain, seconds_max)?;
    kumi_command::interrupt::sleep(LOAD_TIME)?;
    Ok(explain)
}

/// Runs the program while `kumi tcp explain` observes both its ends.
pub fn measure(
    context: &Context<'_>,
    ailment: Ailment,
    seconds: u32,
) -> anyhow::Result<Measurement> {
    let running = context.running;
    let hosts = running.hosts;
    let kumi = hosts.kumi();
    let length = seconds.to_string();
    let [sink, source] = ailment.commands(kumi, &running.server_address, &length);
    let seconds_max = crate::hosts::COMMAND_SECONDS_MAX;
    let explain = watch(context)?;
    let sink = running.wrapped(&sink);
    let mut sink = Background::start(hosts, running.server(), &sink, seconds_max)?;
    sink.line()?;
    let bursts = (ailment == Ailment::SendStall)
        .then(|| burst(context, seconds))
        .transpose()?;
    hosts.run(running.client(), &running.wrapped(&source))?;
    drop(bursts);
    let report = explain.stop()?;
    anyhow::ensure!(!report.is_empty(), "kumi tcp explain printed no report");
    Ok(Measurement {
        figures: figures(&serde_json::from_str(&report)?, ailment),
        ..Measurement::default()
    })
}

/// Datagrams per burst: more than the topology's queue holds, which is then full for a millisecond.
const BURST_DATAGRAMS: u32 = 24;

fn burst(context: &Context<'_>, seconds: u32) -> anyhow::Result<Background> {
    super::pattern::bursts(context, BURST_DATAGRAMS, f64::from(seconds))
}

fn figures(report: &Value, ailment: Ailment) -> Figures {
    let losses = report["losses"].as_array().into_iter().flatten();
    let right_losses = losses.filter(|loss| {
        let cause = loss["cause"].as_str().unwrap_or_default();
        ailment.causes().contains(&cause)
    });
    let right_lost_s: Vec<f64> = right_losses
        .filter_map(|loss| loss["lost_s"].as_f64())
        .collect();
    let right_s: f64 = right_lost_s.iter().sum();
    let lost_s = report["lost_s"].as_f64().unwrap_or(f64::NAN);
    Figures::from([
        ("lost_s".into(), lost_s),
        ("right_cause_ratio".into(), right_s / lost_s),
        // With two causes at once, this shows that neither is taken for the other.
        (
            "largest_cause_ratio".into(),
            right_lost_s.iter().fold(0.0_f64, |a, b| a.max(*b)) / lost_s,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures__report__gives_the_share_of_the_right_cause() {
        let report = json!({"lost_s": 2.0, "losses": [
            {"cause": "retransmission_timeout", "lost_s": 1.0},
            {"cause": "tail_loss_probe", "lost_s": 0.5},
            {"cause": "slow_start", "lost_s": 0.5},
        ]});
        assert_eq!(
            figures(&report, Ailment::Timeout)["right_cause_ratio"],
            0.75
        );
        assert_eq!(
            figures(&report, Ailment::DelayedAck)["right_cause_ratio"],
            0.0
        );
    }
}
