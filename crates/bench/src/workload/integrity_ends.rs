//! The ends of a datagram stream whose every byte is checked, and a stranger that forges the
//! device's own datagrams.
//!
//! TCP would hide a replay and most bad bytes. A datagram carries a number, and bytes that are
//! derived from it.

use anyhow::Context;
use kumi_command::outln;
use kumi_multilink::wire::{Kind, lead};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Payload of a datagram, in bytes. It fits an inner MTU of 1400.
const DATAGRAM_BYTES: usize = 1200;

/// Time without a datagram after which the sink takes the stream as ended.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Interval between batches of datagrams. A sleep for each datagram would limit the rate.
const TICK: Duration = Duration::from_millis(1);

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
    /// Rate of the payload, in bit/s.
    rate_bps: f64,
}

/// Arguments of the checking end.
#[derive(Debug, clap::Args)]
pub struct SinkArgs {
    /// Port to listen on.
    port: u16,
}

/// Arguments of the stranger.
#[derive(Debug, clap::Args)]
pub struct ForgeArgs {
    /// Address of the device's socket, such as `[fe80::1%3]:7700`.
    to: SocketAddr,
    /// Duration, in seconds.
    #[arg(value_parser = super::parse_duration_s)]
    seconds: f64,
    /// Datagrams per second.
    per_s: u32,
    /// Seed of the datagrams' contents.
    seed: u64,
}

/// Findings of the sink.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Datagrams that arrived intact and for the first time.
    pub good: u64,
    /// Datagrams with a wrong byte or length.
    pub bad: u64,
    /// Datagrams that had arrived before.
    pub replayed: u64,
    /// Seconds from the first datagram to the last.
    pub seconds: f64,
}

/// Sends numbered datagrams at a steady rate.
pub fn source(args: &SourceArgs) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((args.address, args.port))?;
    let datagrams_per_s = args.rate_bps / 8.0 / DATAGRAM_BYTES as f64;
    let mut number = 0;
    send_paced(args.seconds, datagrams_per_s, || {
        // A datagram that a full queue refuses is lost. The sink does not count it.
        let _ = socket.send(&datagram(number));
        number += 1;
    });
    Ok(())
}

/// Checks datagrams until they cease, and prints its [`Findings`].
pub fn sink(args: &SinkArgs) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", args.port))?;
    outln!("listening");
    let mut buffer = vec![0_u8; 65536];
    let mut received = Vec::new();
    let mut findings = Findings::default();
    let (mut first, mut last) = (None, Instant::now());
    // The first datagram may take longer. The others may not.
    socket.set_read_timeout(Some(3 * TIMEOUT))?;
    while let Ok(length) = socket.recv(&mut buffer) {
        if first.is_none() {
            socket.set_read_timeout(Some(TIMEOUT))?;
        }
        last = Instant::now();
        first.get_or_insert(last);
        findings.note(&buffer[..length], &mut received);
    }
    findings.seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    outln!("{}", serde_json::to_string(&findings)?);
    Ok(())
}

/// Sends forged datagrams that resemble the device's, with every length and every first byte.
pub fn forge(args: &ForgeArgs) -> anyhow::Result<()> {
    let local = if args.to.is_ipv6() {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(local)?;
    let mut state = args.seed;
    let mut bytes = vec![0_u8; 1452];
    send_paced(args.seconds, f64::from(args.per_s), || {
        state = next_random(state);
        let length = (state % 1453) as usize;
        for chunk in bytes[..length].chunks_mut(8) {
            state = next_random(state);
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        // Half of the datagrams pass the socket's filter, because they begin like one of the kinds.
        if state % 2 == 0 && length > 0 {
            bytes[0] = lead(Kind::ALL[(state >> 8) as usize % Kind::ALL.len()]);
        }
        let _ = socket.send_to(&bytes[..length], args.to);
    });
    socket.local_addr().context("socket of forged datagrams")?;
    Ok(())
}

/// Calls `send` at a steady rate, `per_s` times per second.
fn send_paced(seconds: f64, per_s: f64, mut send: impl FnMut()) {
    let start = Instant::now();
    let mut sent_count = 0_u64;
    while start.elapsed().as_secs_f64() < seconds {
        let due = (start.elapsed().as_secs_f64() * per_s) as u64;
        while sent_count < due {
            send();
            sent_count += 1;
        }
        std::thread::sleep(TICK);
    }
}

/// Returns the datagram with this number: the number, then bytes that are derived from it.
fn datagram(number: u64) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    let mut state = number;
    while bytes.len() < DATAGRAM_BYTES {
        state = next_random(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(DATAGRAM_BYTES);
    bytes
}

impl Findings {
    fn note(&mut self, bytes: &[u8], received: &mut Vec<bool>) {
        let Some(head) = bytes.first_chunk() else {
            self.bad += 1;
            return;
        };
        let number = u64::from_be_bytes(*head);
        if bytes != datagram(number) {
            self.bad += 1;
            return;
        }
        let index = number as usize;
        if received.len() <= index {
            received.resize(index + 1, false);
        }
        if std::mem::replace(&mut received[index], true) {
            self.replayed += 1;
        } else {
            self.good += 1;
        }
    }

    /// Returns the rate at which intact payload arrived, in bit/s.
    pub fn goodput_bps(&self) -> f64 {
        self.good as f64 * DATAGRAM_BYTES as f64 * 8.0 / self.seconds
    }
}

/// Returns the next SplitMix64 value. Every seed gives its own sequence.
fn next_random(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found__good_damaged_and_replayed_datagrams__are_counted_separately() {
        let (mut findings, mut received) = (Findings::default(), Vec::new());
        let mut damaged = datagram(7);
        damaged[600] ^= 1;
        let truncated = &datagram(8)[..900];
        for bytes in [
            &datagram(1)[..],
            &datagram(0),
            &datagram(1),
            &damaged,
            truncated,
            b"short",
        ] {
            findings.note(bytes, &mut received);
        }
        assert_eq!((findings.good, findings.bad, findings.replayed), (2, 3, 1));
    }
}
