//! The two ends of a timed stream, which run on the hosts.
//!
//! The sink records arrivals to the microsecond. A fail-over within 20 ms is invisible in iperf3's
//! bins of 100 ms.

use anyhow::Context;
use kumi_command::outln;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Width of a bin of [`Arrivals::bins_bytes`]. Figure 15 of the RI2N/DRV paper has 100 ms.
pub const BIN: Duration = Duration::from_millis(10);

/// Shortest gap between arrivals that is recorded. A stream that shares two CPUs has thousands of
/// shorter gaps.
const GAP_MIN: Duration = Duration::from_millis(2);

/// Largest number of recorded gaps. Later gaps are dropped.
const GAPS_MAX: usize = 4096;

/// Arguments of the sending end.
#[derive(Debug, clap::Args)]
pub struct SourceArgs {
    /// The sink's address.
    address: IpAddr,
    /// The sink's port.
    port: u16,
    /// Duration, in seconds.
    #[arg(value_parser = super::parse_duration_s)]
    seconds: f64,
    /// Congestion control to use, whatever the host's default is.
    #[arg(long)]
    congestion_control: Option<String>,
    /// Fixed send buffer, instead of one that grows.
    #[arg(long, value_name = "BYTES")]
    send_buffer_bytes: Option<usize>,
    /// Records retransmissions, and prints them as JSON at the end.
    #[arg(long)]
    notes_retransmits: bool,
}

/// Arguments of the receiving end.
#[derive(Debug, clap::Args)]
pub struct SinkArgs {
    /// Port to listen on.
    port: u16,
    /// Fixed receive buffer, instead of one that grows.
    #[arg(long, value_name = "BYTES")]
    receive_buffer_bytes: Option<usize>,
}

/// Arrivals of a stream's bytes. Times count from the first byte.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Time of the first byte, in nanoseconds since 1970, by the receiver's clock.
    pub first_unix_ns: u64,
    /// Bytes that arrived in each bin of [`BIN`].
    pub bins_bytes: Vec<u64>,
    /// Gaps between arrivals: start and length of each, in milliseconds.
    pub gaps_ms: Vec<(f64, f64)>,
}

/// Retransmissions of a sender over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Retransmissions {
    /// Times in nanoseconds since 1970, each with the number of segments retransmitted by then.
    pub by_unix_ns: Vec<(u64, u32)>,
    /// Longest smoothed round-trip time, in nanoseconds.
    pub round_trip_max_ns: u64,
}

/// Interval at which a sender samples its retransmissions.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

impl Retransmissions {
    fn note(&mut self, stream: &TcpStream) -> anyhow::Result<()> {
        let info = kumi_sys::tcp::standing(stream.as_fd())?;
        self.by_unix_ns.push((unix_ns(), info.retransmits));
        let round_trip_ns = u64::from(info.round_trip_us) * 1000;
        self.round_trip_max_ns = self.round_trip_max_ns.max(round_trip_ns);
        Ok(())
    }

    /// Returns the number of segments retransmitted between two times.
    pub fn count_between(&self, from_unix_ns: u64, to_unix_ns: u64) -> u32 {
        let count_until = |unix_ns| {
            let sample = self.by_unix_ns.iter().rev().find(|(ns, _)| *ns <= unix_ns);
            sample.map_or(0, |(_, count)| *count)
        };
        count_until(to_unix_ns).saturating_sub(count_until(from_unix_ns))
    }
}

/// Sends as fast as TCP accepts data.
pub fn source(args: &SourceArgs) -> anyhow::Result<()> {
    let sink = SocketAddr::new(args.address, args.port);
    let mut stream = super::connect(sink, "flow-sink")?;
    if let Some(bytes) = args.send_buffer_bytes {
        setsockopt(&stream, sockopt::SndBuf, &bytes)?;
    }
    if let Some(name) = &args.congestion_control {
        // Set after the connection is established: a route's own choice would override it before.
        kumi_sys::tcp::set_congestion_control(stream.as_fd(), name).with_context(|| {
            let file = "/proc/sys/net/ipv4/tcp_available_congestion_control";
            let available = std::fs::read_to_string(file).unwrap_or_default();
            let available = available.trim();
            format!("cannot use congestion control `{name}`; available: {available}")
        })?;
    }
    let chunk = vec![0x5a_u8; 128 * 1024];
    let end = Instant::now() + Duration::from_secs_f64(args.seconds);
    let mut retransmissions = Retransmissions::default();
    let mut sample_at = Instant::now();
    while Instant::now() < end {
        stream.write_all(&chunk)?;
        if args.notes_retransmits && Instant::now() >= sample_at {
            retransmissions.note(&stream)?;
            sample_at = Instant::now() + SAMPLE_INTERVAL;
        }
    }
    if args.notes_retransmits {
        outln!("{}", serde_json::to_string(&retransmissions)?);
    }
    Ok(())
}

/// Receives one stream to its end and prints its [`Arrivals`].
pub fn sink(args: &SinkArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", args.port))?;
    if let Some(bytes) = args.receive_buffer_bytes {
        setsockopt(&listener, sockopt::RcvBuf, &bytes)?;
    }
    outln!("listening");
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0_u8; 1024 * 1024];
    let mut arrivals = Arrivals::default();
    let mut first: Option<Instant> = None;
    let mut last = Duration::ZERO;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        let now = Instant::now();
        if first.is_none() {
            arrivals.first_unix_ns = unix_ns();
        }
        let arrival = now - *first.get_or_insert(now);
        arrivals.note(arrival, last, count as u64);
        last = arrival;
    }
    outln!("{}", serde_json::to_string(&arrivals)?);
    Ok(())
}

impl Arrivals {
    /// Records `bytes` that arrived at `arrival`. The previous arrival was at `previous`.
    pub fn note(&mut self, arrival: Duration, previous: Duration, bytes: u64) {
        let bin = (arrival.as_nanos() / BIN.as_nanos()) as usize;
        if self.bins_bytes.len() <= bin {
            self.bins_bytes.resize(bin + 1, 0);
        }
        self.bins_bytes[bin] += bytes;
        let gap = arrival - previous;
        if gap >= GAP_MIN && self.gaps_ms.len() < GAPS_MAX {
            self.gaps_ms
                .push((previous.as_secs_f64() * 1e3, gap.as_secs_f64() * 1e3));
        }
    }

    /// Returns the longest gap that overlaps the period from `from_ms` to `to_ms`, in milliseconds.
    pub fn gap_max_ms(&self, from_ms: f64, to_ms: f64) -> f64 {
        self.gaps_ms
            .iter()
            .filter(|(start, length)| *start <= to_ms && start + length >= from_ms)
            .map(|(_, length)| *length)
            .fold(0.0, f64::max)
    }

    /// Returns the goodput from `from_s` to `to_s`, by whole bins, in bits per second.
    pub fn goodput_bps(&self, from_s: f64, to_s: f64) -> f64 {
        let bin = |time_s: f64| (time_s / BIN.as_secs_f64()).round() as usize;
        let (first, end) = (bin(from_s), bin(to_s));
        let bytes: u64 = self.bins_bytes.iter().skip(first).take(end - first).sum();
        bytes as f64 * 8.0 / (to_s - from_s)
    }
}

/// Returns the time in nanoseconds since 1970, from the only clock that two hosts share.
pub fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals__silence_around_an_event__is_measured_in_full() {
        let mut arrivals = Arrivals::default();
        let ms = Duration::from_millis;
        for (previous, arrival) in [(0, 0), (0, 1), (1, 900), (900, 950)] {
            arrivals.note(ms(arrival), ms(previous), 1000);
        }
        assert_eq!(arrivals.gap_max_ms(500.0, 600.0), 899.0);
        assert_eq!(arrivals.gap_max_ms(910.0, 920.0), 50.0);
        assert_eq!(arrivals.gap_max_ms(1000.0, 2000.0), 0.0);
    }

    #[test]
    fn resent__between_two_moments__is_the_increase_between_them() {
        let counts = Retransmissions {
            by_unix_ns: vec![(10, 1), (20, 4), (30, 9)],
            round_trip_max_ns: 0,
        };
        assert_eq!(
            (counts.count_between(0, 10), counts.count_between(10, 25)),
            (1, 3)
        );
        assert_eq!(
            (counts.count_between(20, 99), counts.count_between(30, 10)),
            (5, 0)
        );
    }

    #[test]
    fn arrivals__time_window__counts_only_its_bins() {
        let arrivals = Arrivals {
            bins_bytes: vec![100; 300],
            ..Arrivals::default()
        };
        assert_eq!(arrivals.goodput_bps(1.0, 2.0), 100.0 * 100.0 * 8.0);
        assert_eq!(arrivals.goodput_bps(2.9, 3.9), 100.0 * 10.0 * 8.0);
    }
}
