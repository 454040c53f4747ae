//! Messages with the times of their departure over TCP: the two ends.

use super::wind_check_ends::now_ns;
use kumi_command::outln;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
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
    /// Messages per second; 0 for as many as pass.
    per_s: f64,
    /// Length of a message, in bytes, at least 16.
    #[arg(value_parser = clap::value_parser!(u64).range(16..))]
    bytes: u64,
    /// Number of messages.
    count: u64,
}

/// Receives one connection, and prints the times of its messages. Each begins with its length and
/// its time, 8 bytes each.
pub fn sink(args: &SinkArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", args.port))?;
    outln!("listening");
    let (mut stream, _) = listener.accept()?;
    let began = Instant::now();
    let mut times_us = Vec::new();
    let (mut head, mut message, mut bytes) = ([0; 16], Vec::new(), 0_u64);
    while stream.read_exact(&mut head).is_ok() {
        let (length, sent_ns) = head.split_at(8);
        let length = u64::from_be_bytes(length.try_into()?);
        let sent_ns = u64::from_be_bytes(sent_ns.try_into()?);
        message.resize(length.clamp(16, 1 << 26) as usize - 16, 0);
        stream.read_exact(&mut message)?;
        bytes += length;
        times_us.push(now_ns().saturating_sub(sent_ns) as f64 / 1e3);
    }
    anyhow::ensure!(!times_us.is_empty(), "no message arrived");
    times_us.sort_by(f64::total_cmp);
    let at = |share: f64| times_us[((times_us.len() - 1) as f64 * share) as usize];
    let row = json!({
        "received": times_us.len(),
        "ordered_median_us": at(0.5),
        "ordered_p99_us": at(0.99),
        "ordered_p999_us": at(0.999),
        "goodput_bps": bytes as f64 * 8.0 / began.elapsed().as_secs_f64(),
    });
    outln!("{row}");
    Ok(())
}

/// Sends the messages.
pub fn source(args: &SourceArgs) -> anyhow::Result<()> {
    let mut stream = super::connect((args.address, args.port).into(), "raw-stamp-sink")?;
    stream.set_nodelay(true)?;
    let mut message = vec![0x5a; args.bytes as usize];
    message[..8].copy_from_slice(&args.bytes.to_be_bytes());
    let began = Instant::now();
    for index in 0..args.count {
        if args.per_s > 0.0 {
            let due = Duration::from_secs_f64(index as f64 / args.per_s);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        message[8..16].copy_from_slice(&now_ns().to_be_bytes());
        stream.write_all(&message)?;
    }
    Ok(())
}
