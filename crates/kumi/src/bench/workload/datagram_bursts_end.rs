//! Bursts of datagrams into a host's own queue: neighbours that make a short queue refuse TCP's packets.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Payload that fills a frame of 1514 bytes.
const DATAGRAM_BYTES: usize = 1472;

/// Between the beginnings of two bursts.
const EVERY: Duration = Duration::from_millis(100);

/// Arguments of the sender; nobody receives.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to.
    address: IpAddr,
    /// Which port.
    port: u16,
    /// Datagrams of a burst, sent as fast as the host takes them.
    datagrams: u32,
    /// How long to send.
    seconds: f64,
}

/// Sends the bursts, a tenth of a second apart.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((args.address, args.port))?;
    let datagram = [0; DATAGRAM_BYTES];
    let began = Instant::now();
    let mut due = Duration::ZERO;
    while due.as_secs_f64() < args.seconds {
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        for _ in 0..args.datagrams {
            // A refusal is what a burst is for; that nobody listens is no concern either.
            let _ = socket.send(&datagram);
        }
        due += EVERY;
    }
    Ok(())
}
