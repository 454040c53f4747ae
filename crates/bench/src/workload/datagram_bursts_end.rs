//! Bursts of datagrams into a host's own queue. They act as neighbours that make a short queue
//! refuse TCP's packets.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Payload that fills a frame of 1514 bytes, in bytes.
const DATAGRAM_BYTES: usize = 1472;

/// Time between the starts of two bursts.
const INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of the sender. The datagrams have no receiver.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Destination address.
    address: IpAddr,
    /// Destination port.
    port: u16,
    /// Datagrams per burst, sent as fast as the host accepts them.
    datagrams: u32,
    /// Duration, in seconds.
    #[arg(value_parser = super::parse_duration_s)]
    seconds: f64,
}

/// Sends the bursts, one every tenth of a second.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((args.address, args.port))?;
    let datagram = [0; DATAGRAM_BYTES];
    let start = Instant::now();
    let mut due = Duration::ZERO;
    while due.as_secs_f64() < args.seconds {
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        for _ in 0..args.datagrams {
            // A burst is meant to be refused. An error because the port has no receiver does not
            // matter either.
            let _ = socket.send(&datagram);
        }
        due += INTERVAL;
    }
    Ok(())
}
