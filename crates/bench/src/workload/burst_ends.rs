//! The two ends of the burst generator: a burst, an answer of one byte, a pause, and again. A burst
//! begins with its length.
//!
//! Such traffic underlies figures 2 and 5 of the GridMPI paper: a program computes and then sends.

use kumi_command::outln;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Size of the length at the start of a burst, in bytes.
const LENGTH_BYTES: u64 = 8;

/// Bursts that count between bursts of another length.
const BURSTS_PER_ROUND: usize = 4;

/// Arguments of the sending end.
#[derive(Debug, clap::Args)]
pub struct SourceArgs {
    /// The sink's address.
    address: IpAddr,
    /// The sink's port.
    port: u16,
    /// Pauses before bursts, in milliseconds: one per burst, in this order.
    #[arg(long, value_delimiter = ',', required = true)]
    pauses_ms: Vec<u64>,
    /// Time for bursts without pauses before those that count, so that the path is known.
    #[arg(long, value_name = "MS", default_value_t = 1500)]
    warm_up_ms: u64,
    /// Sends bursts of this length, each after the first pause, before every four bursts that
    /// count. They replace the bursts without pauses, and show less of the path than the longer
    /// bursts need.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(LENGTH_BYTES..))]
    before_bytes: Option<u64>,
    /// Number of bursts of that length.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    before_count: u32,
    /// Writes each burst in two halves, with Nagle's algorithm on.
    #[arg(long)]
    in_two_writes: bool,
    /// Bytes of a burst; each size has its own connection.
    #[arg(required = true, value_parser = clap::value_parser!(u64).range(LENGTH_BYTES..))]
    sizes_bytes: Vec<u64>,
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

/// Times of the bursts of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bursts {
    /// Size of a burst, in bytes.
    pub size_bytes: u64,
    /// Time from the first byte written to the answer, in microseconds, for each burst after a
    /// pause.
    #[serde(rename = "took_us")]
    pub times_us: Vec<f64>,
    /// Time of the connection's first burst, in microseconds. TCP knows nothing of the path yet.
    pub first_us: f64,
    /// Segments retransmitted, warm-up included.
    pub retransmits: u32,
    /// Segments retransmitted after the warm-up.
    pub retransmits_after_pauses: u32,
}

/// Returns a burst of `bytes` bytes.
fn message(bytes: u64) -> Vec<u8> {
    let mut message = vec![0x5a_u8; bytes as usize];
    message[..LENGTH_BYTES as usize].copy_from_slice(&bytes.to_be_bytes());
    message
}

/// Sends the bursts and prints their times, one line per size.
pub fn source(args: &SourceArgs) -> anyhow::Result<()> {
    let sink = SocketAddr::new(args.address, args.port);
    for size in &args.sizes_bytes {
        let stream = super::connect(sink, "burst-sink")?;
        stream.set_nodelay(!args.in_two_writes)?;
        outln!(
            "{}",
            serde_json::to_string(&run_bursts(args, stream, *size)?)?
        );
    }
    Ok(())
}

fn run_bursts(args: &SourceArgs, mut stream: TcpStream, size_bytes: u64) -> anyhow::Result<Bursts> {
    let pause = |ms: &u64| std::thread::sleep(Duration::from_millis(*ms));
    let retransmits = |stream: &TcpStream| {
        let info = kumi_sys::tcp::standing(stream.as_fd());
        info.map(|info| info.retransmits)
    };
    let long = message(size_bytes);
    let short = args.before_bytes.map(message);
    let burst = |stream: &mut TcpStream, message: &[u8]| {
        let middle = match args.in_two_writes {
            true => message.len() / 2,
            false => 0,
        };
        send_burst(stream, message.split_at(middle))
    };
    let first_us = burst(&mut stream, short.as_ref().unwrap_or(&long))?;
    let start = Instant::now();
    while short.is_none() && start.elapsed() < Duration::from_millis(args.warm_up_ms) {
        burst(&mut stream, &long)?;
    }
    let warm_up_retransmits = retransmits(&stream)?;
    let mut times_us = Vec::new();
    for (index, pause_ms) in args.pauses_ms.iter().enumerate() {
        if let (0, Some(short)) = (index % BURSTS_PER_ROUND, &short) {
            for _ in 0..args.before_count {
                pause(&args.pauses_ms[0]);
                burst(&mut stream, short)?;
            }
        }
        pause(pause_ms);
        times_us.push(burst(&mut stream, &long)?);
    }
    let retransmits = retransmits(&stream)?;
    Ok(Bursts {
        size_bytes,
        times_us,
        first_us,
        retransmits,
        retransmits_after_pauses: retransmits - warm_up_retransmits,
    })
}

/// Sends one burst in two parts, of which the first may be empty. Returns the time to the answer,
/// in microseconds.
fn send_burst(stream: &mut TcpStream, parts: (&[u8], &[u8])) -> anyhow::Result<f64> {
    let start = Instant::now();
    if !parts.0.is_empty() {
        stream.write_all(parts.0)?;
    }
    stream.write_all(parts.1)?;
    stream.read_exact(&mut [0])?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Accepts connections one after the other, and answers each burst with a byte.
pub fn sink(args: &SinkArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", args.port))?;
    if let Some(bytes) = args.receive_buffer_bytes {
        setsockopt(&listener, sockopt::RcvBuf, &bytes)?;
    }
    outln!("listening");
    let mut buffer = vec![0_u8; 1 << 20];
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_nodelay(true)?;
        answer(&mut stream, &mut buffer)?;
    }
    Ok(())
}

/// Answers bursts until the connection ends.
fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<()> {
    let mut length = [0; LENGTH_BYTES as usize];
    while stream.read_exact(&mut length).is_ok() {
        let mut remaining = u64::from_be_bytes(length).saturating_sub(LENGTH_BYTES);
        while remaining > 0 {
            let count_max = buffer
                .len()
                .min(usize::try_from(remaining).unwrap_or(usize::MAX));
            match stream.read(&mut buffer[..count_max])? {
                0 => return Ok(()),
                count => remaining -= count as u64,
            }
        }
        stream.write_all(b"x")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts__two_lengths_on_one_connection__are_answered_one_by_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let sink = scope.spawn(|| answer(&mut listener.accept().unwrap().0, &mut [0; 4096]));
            let args = SourceArgs {
                address: address.ip(),
                port: address.port(),
                pauses_ms: vec![1; 5],
                warm_up_ms: 0,
                before_bytes: Some(8),
                before_count: 3,
                in_two_writes: false,
                sizes_bytes: vec![100_000],
            };
            let stream = TcpStream::connect(address).unwrap();
            let bursts = run_bursts(&args, stream, 100_000).unwrap();
            assert_eq!(bursts.times_us.len(), 5);
            sink.join().unwrap().unwrap();
        });
    }
}
