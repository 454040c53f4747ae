//! The two ends of messages in one direction over TCP, each message with one write.

use anyhow::Context;
use kumi_command::outln;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Arguments of the end that receives.
#[derive(Debug, clap::Args)]
pub struct SinkArgs {
    /// Port to listen on.
    port: u16,
}

/// Arguments of the end that sends.
#[derive(Debug, clap::Args)]
pub struct SourceArgs {
    /// The other end's address.
    address: IpAddr,
    /// The other end's port.
    port: u16,
    /// Time for each size, in milliseconds.
    time_ms: u64,
    /// Message sizes, in bytes, at least 1.
    #[arg(required = true, value_parser = clap::value_parser!(u64).range(1..))]
    sizes_bytes: Vec<u64>,
}

/// Receives connections, and answers each with one byte at its end.
pub fn sink(args: &SinkArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", args.port))?;
    outln!("listening");
    loop {
        let (mut stream, _) = listener.accept()?;
        std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 20];
            while stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
            // A sender that is gone needs no answer.
            let _ = stream.write_all(b"x");
        });
    }
}

/// Sends messages of each size, and prints the goodput, one line per size.
pub fn source(args: &SourceArgs) -> anyhow::Result<()> {
    for size in &args.sizes_bytes {
        let mut stream = super::connect((args.address, args.port).into(), "raw-sink")?;
        let message = vec![0x5a; *size as usize];
        let began = Instant::now();
        let mut sent = 0_u64;
        while began.elapsed() < Duration::from_millis(args.time_ms) {
            // The clock is read once for several short ones.
            for _ in 0..(16_384 / size).max(1) {
                stream.write_all(&message)?;
                sent += size;
            }
        }
        let seconds = finish(&mut stream, began)?;
        let row = json!({
            "size_bytes": size,
            "ordered_goodput_bps": sent as f64 * 8.0 / seconds,
            "ordered_per_s": sent as f64 / *size as f64 / seconds,
        });
        outln!("{row}");
    }
    Ok(())
}

/// Waits until everything has arrived. Returns the seconds since `began`.
fn finish(stream: &mut TcpStream, began: Instant) -> anyhow::Result<f64> {
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = [0];
    stream
        .read_exact(&mut answer)
        .context("the other end ended before everything arrived")?;
    Ok(began.elapsed().as_secs_f64())
}
