//! Datagrams whose every byte is checked, while the network or a stranger on it is hostile.

use super::flow::apply_events;
use super::integrity_ends::Findings;
use super::{Context, Measurement};
use crate::ceiling::ceilings;
use crate::hosts::background::Background;
use crate::sample::Figures;
use crate::variant::Running;
use crate::variant::kumi::PORT as DEVICE_PORT;
use anyhow::Context as _;

const PORT: &str = "5501";

/// Discard port, which no host of the lab serves.
const DISCARD_PORT: u16 = 9;

/// Share of the ceiling that is offered: enough for a load, too little for a port overflow.
const OFFERED_SHARE: f64 = 0.5;

/// Duration of the undisturbed stream that precedes the measured one, in seconds. Buffers that the
/// daemon allocates for it do not count as memory that the hostile network took.
const WARM_UP_S: u32 = 2;

/// Rate that is offered if no link has a limit, in bit/s.
const OFFERED_UNSHAPED_BPS: f64 = 1e9;

/// Runs the stream, the events and the stranger.
pub fn measure(
    context: &Context<'_>,
    seconds: u32,
    stranger: Option<Stranger>,
) -> anyhow::Result<Measurement> {
    let running = context.running;
    let warm_up = Stream::begin(running, WARM_UP_S)?.end()?;
    anyhow::ensure!(
        warm_up.good > 0,
        "no datagram of the first {WARM_UP_S} s arrived intact"
    );
    let memory_before = running.device_memory_bytes();
    let _stranger = stranger
        .map(|stranger| stranger.begin(running, seconds))
        .transpose()
        .context("the sender of forged datagrams")?;
    let stream = Stream::begin(running, seconds)?;
    apply_events(context)?;
    let findings = stream.end()?;
    let mut figures = Figures::from([
        ("goodput_bps".into(), findings.goodput_bps()),
        ("bad_datagrams".into(), findings.bad as f64),
        ("replayed_datagrams".into(), findings.replayed as f64),
    ]);
    if let (Some(before), Some(after)) = (memory_before, running.device_memory_bytes()) {
        figures.insert("memory_growth_bytes".into(), after - before);
    }
    Ok(Measurement {
        figures,
        ..Measurement::default()
    })
}

/// Numbered datagrams from the first host to the second.
struct Stream {
    source: Background,
    sink: Background,
}

impl Stream {
    fn begin(running: &Running<'_>, seconds: u32) -> anyhow::Result<Self> {
        let hosts = running.hosts;
        let kumi = hosts.kumi();
        let seconds_max = seconds + 30;
        let sink = [kumi, "workload", "integrity-sink", PORT];
        let mut sink = Background::start(hosts, running.server(), &sink, seconds_max)?;
        sink.line()?;
        let (length, rate) = (seconds.to_string(), format!("{:.0}", offered_bps(running)));
        let source = [
            kumi,
            "workload",
            "integrity-source",
            &running.server_address,
            PORT,
            &length,
            &rate,
        ];
        let source = Background::start(hosts, running.client(), &source, seconds_max)?;
        Ok(Self { source, sink })
    }

    fn end(self) -> anyhow::Result<Findings> {
        self.source.finish().context("the datagrams' sender")?;
        let findings = self.sink.finish().context("the datagrams' receiver")?;
        Ok(serde_json::from_str(&findings)?)
    }
}

fn offered_bps(running: &Running<'_>) -> f64 {
    ceilings(&running.hosts.rates_bps(), running.framing)
        .get("ceiling_framing_bps")
        .map_or(OFFERED_UNSHAPED_BPS, |ceiling| ceiling * OFFERED_SHARE)
}

/// Sender of forged datagrams, from the first host to the second.
#[derive(Debug, Clone, Copy)]
pub struct Stranger {
    /// Datagrams per second.
    pub per_s: u32,
    /// True if they go to a port without a socket, instead of the device's port.
    pub is_to_unused_port: bool,
}

impl Stranger {
    fn begin(self, running: &Running<'_>, seconds: u32) -> anyhow::Result<Background> {
        let hosts = running.hosts;
        let device = hosts
            .devices(running.client())
            .first()
            .cloned()
            .context("the sending host has no link")?;
        let index = hosts.ifindex(running.client(), &device)?;
        let remote_device = hosts
            .devices(running.server())
            .first()
            .cloned()
            .context("the receiving host has no link")?;
        let address = hosts.link_local(running.server(), &remote_device)?;
        let port = match self.is_to_unused_port {
            true => DISCARD_PORT,
            false => DEVICE_PORT,
        };
        let target = format!("[{address}%{index}]:{port}");
        let (length, per_s) = (seconds.to_string(), self.per_s.to_string());
        let argv = [
            hosts.kumi(),
            "workload",
            "forge",
            &target,
            &length,
            &per_s,
            "7",
        ];
        Background::start(hosts, running.client(), &argv, seconds + 10)
    }
}
