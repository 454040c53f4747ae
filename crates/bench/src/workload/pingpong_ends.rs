//! The two ends of a ping-pong, run on the hosts.

use kumi_command::outln;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Largest number of round trips for one size. The 99th percentile needs 100 or more.
const ROUNDS_MAX: usize = 4000;

/// Smallest number of round trips for one size, however long they take.
const ROUNDS_MIN: usize = 8;

/// Arguments of the end that measures.
#[derive(Debug, clap::Args)]
pub struct PingArgs {
    /// The other end's address.
    address: IpAddr,
    /// The other end's port.
    port: u16,
    /// Time for each size, in milliseconds, after a warm-up of a quarter of it.
    time_ms: u64,
    /// Message sizes, in bytes, at least 1.
    #[arg(required = true, value_parser = clap::value_parser!(u64).range(1..))]
    sizes_bytes: Vec<u64>,
}

/// Arguments of the end that returns messages.
#[derive(Debug, clap::Args)]
pub struct PongArgs {
    /// Port to listen on.
    port: u16,
}

/// Round-trip times of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Message size, in bytes.
    pub size_bytes: u64,
    /// Number of round trips.
    pub rounds: usize,
    /// Half the round-trip time, in microseconds: median.
    pub half_round_trip_median_us: f64,
    /// Half the round-trip time, in microseconds: 99th percentile.
    pub half_round_trip_p99_us: f64,
}

/// Sends messages of each size and prints their round-trip times, one line per size.
pub fn ping(args: &PingArgs) -> anyhow::Result<()> {
    let pong = SocketAddr::new(args.address, args.port);
    let mut stream = super::connect(pong, "pong")?;
    stream.set_nodelay(true)?;
    let time = Duration::from_millis(args.time_ms);
    for size in &args.sizes_bytes {
        let mut message = vec![0x5a_u8; *size as usize];
        stream.write_all(&size.to_be_bytes())?;
        rounds(&mut stream, &mut message, time / 4)?;
        let times = rounds(&mut stream, &mut message, time)?;
        message[0] = LAST;
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        outln!("{}", serde_json::to_string(&summarize(*size, times))?);
    }
    Ok(())
}

/// Returns messages until the other end closes the connection. For each size, 8 bytes announce it.
/// Messages of that size follow, up to one that begins with [`LAST`].
pub fn pong(args: &PongArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", args.port))?;
    outln!("listening");
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut size = [0_u8; 8];
    while stream.read_exact(&mut size).is_ok() {
        let mut message = vec![0_u8; u64::from_be_bytes(size) as usize];
        loop {
            stream.read_exact(&mut message)?;
            let is_last = message.first() == Some(&LAST);
            stream.write_all(&message)?;
            if is_last {
                break;
            }
        }
    }
    Ok(())
}

/// First byte of the last message of a size.
const LAST: u8 = 0xa5;

fn rounds(
    stream: &mut TcpStream,
    message: &mut [u8],
    time: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let end = Instant::now() + time;
    let mut times = Vec::new();
    while times.len() < ROUNDS_MIN || (times.len() < ROUNDS_MAX && Instant::now() < end) {
        let start = Instant::now();
        stream.write_all(message)?;
        stream.read_exact(message)?;
        times.push(start.elapsed());
    }
    Ok(times)
}

fn summarize(size_bytes: u64, mut times: Vec<Duration>) -> RoundTrips {
    times.sort();
    let half_us = |index: usize| times[index].as_secs_f64() * 1e6 / 2.0;
    RoundTrips {
        size_bytes,
        rounds: times.len(),
        half_round_trip_median_us: half_us(times.len() / 2),
        half_round_trip_p99_us: half_us(times.len() * 99 / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timed__round_trips__are_halved_and_ranked() {
        let times = (1..=100).map(|ms| Duration::from_micros(ms * 2)).collect();
        let trips = summarize(64, times);
        assert_eq!(
            (
                trips.half_round_trip_median_us,
                trips.half_round_trip_p99_us
            ),
            (51.0, 100.0)
        );
    }
}
