//! Unmodified iperf3, with readings of the kernel's counters before and after.

use super::{Context, Measurement};
use crate::ceiling::ceilings;
use crate::counters::Counters;
use crate::hosts::background::Background;
use crate::sample::Figures;
use crate::variant::Variant;
use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

/// Port of measured streams.
const PORT: &str = "5201";

/// Port of streams that only fill the links.
const LOAD_PORT: &str = "5202";

/// Payload of a full TCP segment, in bytes. It gives the number of all segments, of which some
/// arrive out of order.
const SEGMENT_BYTES: f64 = 1448.0;

/// One iperf3 run.
pub struct Stream {
    /// Measured seconds, after one that is not measured.
    pub seconds: u32,
    /// Number of parallel streams.
    pub streams: u32,
    /// Share of the ceiling at which UDP is sent, instead of TCP.
    pub udp_share: Option<f64>,
}

impl Stream {
    /// Runs iperf3 and returns its figures.
    pub fn measure(&self, context: &Context<'_>) -> anyhow::Result<Measurement> {
        let running = context.running;
        let hosts = running.hosts;
        let (client, server) = (running.client(), running.server());
        let _server = listen(context, PORT, self.seconds + 10)?;
        let before = (
            Counters::read(hosts, client)?,
            Counters::read(hosts, server)?,
        );
        let report = self.iperf3(context)?;
        let after = (
            Counters::read(hosts, client)?,
            Counters::read(hosts, server)?,
        );

        let mut figures = goodput(&report, running.congestion_control)?;
        if let Some(datagrams) = report["end"]["sum"]["packets"].as_f64() {
            tell_apart(
                &mut figures,
                after.1.growth(&before.1, "RcvbufErrors"),
                datagrams,
            );
        }
        let omitted_s = u32::from(!figures.contains_key("lost_ratio"));
        let bytes = figures["goodput_bps"] / 8.0 * f64::from(self.seconds + omitted_s);
        let growth =
            |name: &str| (after.0.growth(&before.0, name) + after.1.growth(&before.1, name)) as f64;
        figures.insert("retransmits".into(), growth("RetransSegs"));
        figures.insert("tcp_timeouts".into(), growth("TCPTimeouts"));
        figures.insert(
            "reorder_seen".into(),
            growth("TCPSACKReorder") + growth("TCPTSReorder"),
        );
        figures.insert(
            "out_of_order_ratio".into(),
            growth("TCPOFOQueue") / (bytes / SEGMENT_BYTES),
        );
        // Hosts of a lab share a machine, whose processor time must not be counted twice.
        let mut cpu_s = after.0.cpu_s(&before.0);
        if hosts.kind() == "ssh" {
            cpu_s += after.1.cpu_s(&before.1);
        }
        figures.insert("cpu_ns_per_byte".into(), cpu_s * 1e9 / bytes);
        Ok(Measurement {
            figures,
            ..Measurement::default()
        })
    }

    fn iperf3(&self, context: &Context<'_>) -> anyhow::Result<Value> {
        let running = context.running;
        let (seconds, streams) = (self.seconds.to_string(), self.streams.to_string());
        let mut argv = vec!["iperf3", "-J", "-c", &running.server_address, "-p", PORT];
        argv.extend(["-t", &seconds, "-P", &streams, "-i", "1"]);
        let rate = self.udp_rate(context).map(|bps| format!("{bps:.0}"));
        if rate.is_none() {
            argv.extend(["-O", "1"]); // slow start
        }
        match &rate {
            // The length fits an inner MTU of 1400, so that no datagram is fragmented.
            Some(rate) => argv.extend(["-u", "-b", rate, "-l", "1350"]),
            // `kumi run` selects the control itself, when the connection is established.
            None if running.wraps_ranks() => {}
            None => argv.extend(["-C", running.congestion_control]),
        }
        let text = running
            .hosts
            .run(running.client(), &running.wrapped(&argv))?;
        serde_json::from_str(&text).context("iperf3 -J did not print JSON")
    }

    fn udp_rate(&self, context: &Context<'_>) -> Option<f64> {
        let running = context.running;
        let rates = running.hosts.rates_bps();
        let link_count = if running.variant == Variant::Single {
            1
        } else {
            rates.len()
        };
        let figures = ceilings(&rates[..link_count.min(rates.len())], running.framing);
        let ceiling = figures.get("ceiling_framing_bps").copied().unwrap_or(5e9);
        self.udp_share
            .map(|share| share * ceiling / f64::from(self.streams))
    }
}

/// UDP of others on one link, past the device, in the direction of the measured data.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cross {
    /// NIC of the link, at both hosts.
    pub link: String,
    /// Rate at which it is sent, payload only, in Mb/s.
    pub rate_mbps: f64,
}

impl Cross {
    /// Checks the rate. iperf3 takes 0 for no limit.
    pub fn check(&self) -> Result<(), String> {
        if self.rate_mbps > 0.0 && self.rate_mbps.is_finite() {
            return Ok(());
        }
        let rate = self.rate_mbps;
        Err(format!(
            "invalid rate_mbps = {rate}: expected a number above 0"
        ))
    }

    /// Starts it. It runs until it is dropped, at most as long as any command may.
    pub fn start(&self, context: &Context<'_>) -> anyhow::Result<[Background; 2]> {
        let running = context.running;
        let seconds_max = crate::hosts::COMMAND_SECONDS_MAX;
        let to = running.hosts.address(running.server(), &self.link)?;
        let rate = format!("{:.0}", self.rate_mbps * 1e6);
        let server = listen(context, LOAD_PORT, seconds_max)?;
        let mut argv = vec!["iperf3", "-c", &to, "-p", LOAD_PORT, "-t", "0"];
        argv.extend(["-u", "-b", &rate, "-l", "1350"]);
        let client = Background::start(running.hosts, running.client(), &argv, seconds_max)?;
        Ok([client, server])
    }
}

/// Starts a stream that runs until it is dropped, at most as long as any command may.
pub fn load(context: &Context<'_>) -> anyhow::Result<[Background; 2]> {
    let running = context.running;
    let seconds_max = crate::hosts::COMMAND_SECONDS_MAX;
    let server = listen(context, LOAD_PORT, seconds_max)?;
    let argv = [
        "iperf3",
        "-c",
        &running.server_address,
        "-p",
        LOAD_PORT,
        "-t",
        "0",
        "-C",
        "cubic",
    ];
    let client = Background::start(
        running.hosts,
        running.client(),
        &running.wrapped(&argv),
        seconds_max,
    )?;
    // A round trip under load must not include slow start and the filling of the queues.
    kumi_command::interrupt::sleep(std::time::Duration::from_secs(1))?;
    Ok([client, server])
}

/// Starts an iperf3 server for one client. It listens when this function returns.
fn listen(context: &Context<'_>, port: &str, seconds_max: u32) -> anyhow::Result<Background> {
    let running = context.running;
    let argv = ["iperf3", "-s", "-1", "-p", port, "--forceflush"];
    let argv = running.wrapped(&argv);
    let mut server = Background::start(running.hosts, running.server(), &argv, seconds_max)?;
    // The banner has three lines. The second one says that the server listens.
    while !server.line()?.contains("listening") {}
    Ok(server)
}

/// Returns the goodput at the receiver.
fn goodput(report: &Value, expected: &str) -> anyhow::Result<Figures> {
    if let Some(error) = report["error"].as_str() {
        anyhow::bail!("iperf3: {error}");
    }
    let end = &report["end"];
    let used = end["sender_tcp_congestion"].as_str().unwrap_or(expected);
    anyhow::ensure!(
        used == expected,
        "the stream used congestion control `{used}`: expected `{expected}`, the variant's"
    );
    let received = end["sum_received"]["bits_per_second"].as_f64();
    let udp = end["sum"]["lost_percent"].as_f64();
    let mut figures = Figures::new();
    let goodput = match (received, udp) {
        // For UDP, releases differ in the meaning of "received". `lost_percent` has always meant
        // losses.
        (_, Some(lost_percent)) => {
            figures.insert("lost_ratio".into(), lost_percent / 100.0);
            let sent_bps = end["sum"]["bits_per_second"].as_f64().unwrap_or(f64::NAN);
            sent_bps * (1.0 - lost_percent / 100.0)
        }
        (Some(received), None) => received,
        (None, None) => anyhow::bail!("iperf3 reported no goodput: {end}"),
    };
    figures.insert("goodput_bps".into(), goodput);
    Ok(figures)
}

/// Tells the datagrams that the receiver's kernel dropped, since the program did not read them in
/// time, from those that were lost on the way.
fn tell_apart(figures: &mut Figures, unread: u64, datagrams: f64) {
    if let Some(lost) = figures.get_mut("lost_ratio") {
        let unread_ratio = unread as f64 / datagrams.max(1.0);
        *lost = (*lost - unread_ratio).max(0.0);
        figures.insert("unread_ratio".into(), unread_ratio);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lost__datagrams_that_were_not_read__are_told_apart() {
        let report = json!({"end": {"sum": {"bits_per_second": 1e9, "lost_percent": 25.0}}});
        let mut figures = goodput(&report, "cubic").expect("is there");
        tell_apart(&mut figures, 20, 100.0);
        let near = |name: &str, value: f64| (figures[name] - value).abs() < 1e-9;
        assert!(near("lost_ratio", 0.05), "{figures:?}");
        assert!(near("unread_ratio", 0.2), "{figures:?}");
        assert_eq!(figures["goodput_bps"], 7.5e8);
        let report = json!({"end": {"sum_received": {"bits_per_second": 9.5e8}}});
        let mut figures = goodput(&report, "cubic").expect("is there");
        tell_apart(&mut figures, 20, 100.0);
        assert!(!figures.contains_key("unread_ratio"), "no UDP");
    }

    #[test]
    fn cross__rate_that_is_no_limit__is_refused() {
        for (rate_mbps, message) in [
            (0.0, "invalid rate_mbps = 0: expected a number above 0"),
            (-1.5, "invalid rate_mbps = -1.5: expected a number above 0"),
        ] {
            let link = "eth2".to_owned();
            let cross = Cross { link, rate_mbps };
            assert_eq!(cross.check(), Err(message.to_owned()));
        }
    }

    #[test]
    fn goodput__tcp_report__is_the_received_rate() {
        let report = json!({"end": {"sum_received": {"bits_per_second": 9.5e8}}});
        assert_eq!(
            goodput(&report, "cubic").expect("is there")["goodput_bps"],
            9.5e8
        );
    }

    #[test]
    fn goodput__udp_report__excludes_lost_datagrams() {
        let report = json!({"end": {"sum": {"bits_per_second": 1e9, "lost_percent": 25.0}}});
        let figures = goodput(&report, "cubic").expect("is there");
        assert_eq!(
            (figures["goodput_bps"], figures["lost_ratio"]),
            (7.5e8, 0.25)
        );
    }

    #[test]
    fn goodput__report_of_a_failure__is_refused_with_the_reason() {
        let other = json!({"sender_tcp_congestion": "reno"});
        for (report, message) in [
            (
                json!({"error": "unable to connect"}),
                "iperf3: unable to connect",
            ),
            (
                json!({"end": other}),
                "the stream used congestion control `reno`: expected `cubic`, the variant's",
            ),
            (
                json!({"end": {"streams": []}}),
                r#"iperf3 reported no goodput: {"streams":[]}"#,
            ),
        ] {
            let error = goodput(&report, "cubic").unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
