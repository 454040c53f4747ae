//! Ends with many peers: idle ones, and targets of one put.

use super::wind_ends::Common;
use anyhow::Context;
use kumi_command::outln;
use kumi_wind::protocol::{Atomic, Endpoint, Event, RegionKey, Regions};
use kumi_wind::{Config, Multicast, Node, PeerId, Place, Rung, perf, random_epoch};
use serde_json::json;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Time limit of the connections.
const LIMIT: Duration = Duration::from_secs(60);

/// Arguments of the end that has idle peers.
#[derive(Debug, clap::Args)]
pub struct IdleArgs {
    /// Address of the other end.
    address: IpAddr,
    /// Its UDP port.
    port: u16,
    #[command(flatten)]
    common: Common,
    /// Number of peers.
    peers: usize,
}

/// A peer without memory.
struct Nothing;

impl Regions for Nothing {
    fn length(&self, _: u32, _: &RegionKey) -> Option<u64> {
        None
    }

    fn write(&mut self, _: u32, _: u64, _: &[u8]) {}

    fn read(&self, _: u32, _: u64, _: &mut [u8]) {}

    fn update(&mut self, _: u32, _: u64, _: Atomic) -> u64 {
        0
    }
}

/// A peer: a socket, and the protocol without a thread.
struct Peer {
    socket: UdpSocket,
    endpoint: Endpoint<SocketAddr>,
    is_connected: bool,
}

impl Peer {
    fn turn(&mut self, bytes: &mut Vec<u8>, now_ns: u64) {
        bytes.resize(2048, 0);
        while let Ok((length, from)) = self.socket.recv_from(bytes) {
            let datagram = &mut bytes[..length];
            self.endpoint
                .handle_datagram(from, datagram, &mut Nothing, now_ns);
        }
        if self
            .endpoint
            .timeout_ns()
            .is_some_and(|at_ns| at_ns <= now_ns)
        {
            self.endpoint.handle_timeout(&mut Nothing, now_ns);
        }
        while let Some(event) = self.endpoint.poll_event() {
            self.is_connected |= matches!(event, Event::Connected(_));
        }
        bytes.clear();
        while let Some(to) = self.endpoint.poll_transmit(now_ns, bytes) {
            // A datagram that the socket refuses is lost.
            let _ = self.socket.send_to(bytes, to);
            bytes.clear();
        }
    }
}

/// Connects the peers, prints `connected`, and answers for them until the process is ended.
pub fn idle(args: &IdleArgs) -> anyhow::Result<()> {
    kumi_sys::process::raise_descriptor_limit();
    let target = SocketAddr::new(args.address, args.port);
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    let mut peers = Vec::with_capacity(args.peers);
    for _ in 0..args.peers {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).context("no socket for a further peer")?;
        socket.set_nonblocking(true)?;
        let mut config: Config = args.common.config()?;
        config.epoch = random_epoch()?;
        let mut endpoint = Endpoint::new(config);
        endpoint.connect(target, now_ns())?;
        peers.push(Peer {
            socket,
            endpoint,
            is_connected: false,
        });
    }
    let mut bytes = Vec::new();
    let mut is_told = false;
    loop {
        for peer in &mut peers {
            peer.turn(&mut bytes, now_ns());
        }
        let connected = peers.iter().filter(|peer| peer.is_connected).count();
        if connected == peers.len() && !is_told {
            outln!("connected");
            is_told = true;
        }
        anyhow::ensure!(
            is_told || start.elapsed() < LIMIT,
            "{connected} of {} peers have connected",
            peers.len()
        );
        if is_told {
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Arguments of the end that puts to many peers.
#[derive(Debug, clap::Args)]
pub struct SpreadArgs {
    /// UDP port of the others.
    port: u16,
    #[command(flatten)]
    common: Common,
    /// Length of the data, in bytes.
    bytes: usize,
    /// Addresses of the others.
    #[arg(required = true)]
    addresses: Vec<IpAddr>,
}

/// Puts the data to the first peer, and to all of them by each way, and prints the rates.
pub fn spread(args: &SpreadArgs) -> anyhow::Result<()> {
    let data: Vec<u8> = (0..args.bytes).map(|at| ((at * 13) >> 3) as u8).collect();
    let sender = Sender::new(args, Multicast::Auto)?;
    let one_bps = sender.rate_bps(&sender.targets[..1], &data, 1)?;
    // The first two puts measure the ways.
    let auto_bps = sender.rate_bps(&sender.targets, &data, 2)?;
    drop(sender);
    let mut row = json!({
        "targets": args.addresses.len(),
        "one_copy_bps": one_bps,
        "goodput_bps": auto_bps,
    });
    for (name, multicast) in [
        ("relay_bps", Multicast::Relay),
        ("network_bps", Multicast::Network),
    ] {
        let sender = Sender::new(args, multicast)?;
        row[name] = json!(sender.rate_bps(&sender.targets, &data, 1)?);
    }
    outln!("{row}");
    Ok(())
}

/// The root of a put to many peers.
struct Sender {
    node: Node,
    targets: Vec<(PeerId, Place)>,
}

impl Sender {
    fn new(args: &SpreadArgs, multicast: Multicast) -> anyhow::Result<Self> {
        let mut config = args.common.config()?;
        config.rung = Rung::User;
        config.multicast = multicast;
        let node = Node::bind((Ipv6Addr::UNSPECIFIED, 0).into(), config)?;
        let mut targets = Vec::new();
        for address in &args.addresses {
            let peer = node.connect((*address, args.port).into())?;
            let place =
                perf::place(&node, peer).with_context(|| format!("no answer of {address}"))?;
            targets.push((peer, place));
        }
        Ok(Self { node, targets })
    }

    /// Returns the rate of one put after `before` others, which find windows and ways.
    fn rate_bps(
        &self,
        targets: &[(PeerId, Place)],
        data: &[u8],
        before: u32,
    ) -> anyhow::Result<f64> {
        for _ in 0..before {
            self.node.put_to_all(targets, data)?;
        }
        // The bytes of the measured put are not there yet.
        for (peer, place) in targets {
            self.node
                .put(*peer, place.plus(data.len() as u64 - 8), &[0; 8])?;
        }
        let began = Instant::now();
        self.node.put_to_all(targets, data)?;
        let rate = data.len() as f64 * 8.0 / began.elapsed().as_secs_f64();
        for (peer, place) in targets {
            let last = self
                .node
                .get(*peer, place.plus(data.len() as u64 - 1_000), 1_000)?;
            anyhow::ensure!(last == data[data.len() - 1_000..], "a peer has other bytes");
        }
        Ok(rate)
    }
}
