//! The two ends of the burst generator: so many bytes, an answer of one, a pause, and again.
//!
//! What the GridMPI paper's figures 2 and 5 were drawn with: a program that computes and then sends.

use anyhow::Context;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Arguments of the sending end.
#[derive(Debug, clap::Args)]
pub struct SourceArgs {
    /// The sink's address.
    address: IpAddr,
    /// The sink's port.
    port: u16,
    /// Pauses before bursts, in milliseconds: one a burst, in this order.
    #[arg(long, value_delimiter = ',', required = true)]
    pauses_ms: Vec<u64>,
    /// Before the bursts that count, as many without pause as this takes, so that the path is known.
    #[arg(long, value_name = "MS", default_value_t = 1500)]
    warm_up_ms: u64,
    /// Writes each burst in two halves, and lets Nagle's algorithm be.
    #[arg(long)]
    in_two_writes: bool,
    /// Bytes of a burst; each size has a connection of its own.
    #[arg(required = true, value_parser = clap::value_parser!(u64).range(1..))]
    sizes_bytes: Vec<u64>,
}

/// Arguments of the receiving end.
#[derive(Debug, clap::Args)]
pub struct SinkArgs {
    /// Port to listen on.
    port: u16,
    /// A fixed receive buffer, instead of one that grows.
    #[arg(long, value_name = "BYTES")]
    receive_buffer_bytes: Option<usize>,
}

/// What the bursts of one size took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bursts {
    /// Bytes of a burst.
    pub size_bytes: u64,
    /// From the first byte written to the answer, for each burst after a pause.
    pub took_us: Vec<f64>,
    /// The first burst of the connection, which knows nothing of the path.
    pub first_us: f64,
    /// Segments sent again, warming up included.
    pub retransmits: u32,
    /// Of these, after the warming up.
    pub retransmits_after_pauses: u32,
}

/// Sends the bursts and prints, a line a size, what they took.
pub fn source(args: &SourceArgs) -> anyhow::Result<()> {
    let to = SocketAddr::new(args.address, args.port);
    for size in &args.sizes_bytes {
        let mut stream = TcpStream::connect(to).with_context(|| format!("connecting to {to}"))?;
        stream.set_nodelay(!args.in_two_writes)?;
        stream.write_all(&size.to_be_bytes())?;
        let message = vec![0x5a_u8; *size as usize];
        let middle = if args.in_two_writes {
            message.len() / 2
        } else {
            0
        };
        let mut burst = || timed(&mut stream, message.split_at(middle));
        let first_us = burst()?;
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(args.warm_up_ms) {
            burst()?;
        }
        let warm = kumi_sys::tcp::standing(stream.as_fd())?.retransmits;
        let mut burst = || timed(&mut stream, message.split_at(middle));
        let mut took_us = Vec::new();
        for pause_ms in &args.pauses_ms {
            std::thread::sleep(Duration::from_millis(*pause_ms));
            took_us.push(burst()?);
        }
        let retransmits = kumi_sys::tcp::standing(stream.as_fd())?.retransmits;
        let bursts = Bursts {
            size_bytes: *size,
            took_us,
            first_us,
            retransmits,
            retransmits_after_pauses: retransmits - warm,
        };
        outln!("{}", serde_json::to_string(&bursts)?);
    }
    Ok(())
}

/// One burst, in two parts, of which the first may be empty.
fn timed(stream: &mut TcpStream, parts: (&[u8], &[u8])) -> anyhow::Result<f64> {
    let began = Instant::now();
    if !parts.0.is_empty() {
        stream.write_all(parts.0)?;
    }
    stream.write_all(parts.1)?;
    stream.read_exact(&mut [0])?;
    Ok(began.elapsed().as_secs_f64() * 1e6)
}

/// Takes connections one after the other, and answers each burst with a byte.
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
        let mut announced = [0; 8];
        stream.read_exact(&mut announced)?;
        let size = u64::from_be_bytes(announced);
        let mut left = size;
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            left = left.saturating_sub(count as u64);
            if left == 0 {
                stream.write_all(b"x")?;
                left = size;
            }
        }
    }
    Ok(())
}
