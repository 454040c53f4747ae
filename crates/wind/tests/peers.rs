//! Memory of an endpoint with thousands of idle peers.

use kumi_wind::protocol::{Endpoint, Event, Regions};
use kumi_wind::{Atomic, Class, Config, Message, Mode, RegionKey};

/// No region.
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

/// Returns this process's resident memory, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Exchanges datagrams between the hub and the peer at `address` until both have nothing to send.
fn exchange(hub: &mut Endpoint<usize>, peer: &mut Endpoint<usize>, address: usize, now_ns: u64) {
    loop {
        let (mut to_hub, mut to_peer) = (Vec::new(), Vec::new());
        let from_peer = peer.poll_transmit(now_ns, &mut to_hub).is_some();
        if from_peer {
            hub.handle_datagram(address, &mut to_hub, &mut Nothing, now_ns);
        }
        let from_hub = hub.poll_transmit(now_ns, &mut to_peer).is_some();
        if from_hub {
            peer.handle_datagram(0, &mut to_peer, &mut Nothing, now_ns);
        }
        if !from_peer && !from_hub {
            return;
        }
    }
}

#[test]
fn endpoint__4096_idle_peers__has_less_than_four_kibibytes_for_each() {
    const PEERS: usize = 4096;
    let mut hub = Endpoint::new(Config::new([1; 32], 1));
    let mut before = 0;
    let mut received = 0;
    for address in 1..=PEERS {
        // A hundred peers first, so that what is allocated once does not count.
        if address == 100 {
            before = resident_bytes();
        }
        let now_ns = address as u64 * 1_000_000;
        let mut peer = Endpoint::new(Config::new([1; 32], 1000 + address as u64));
        let hub_there = peer.connect(0, now_ns).unwrap();
        let message = Message {
            class: Class::Ordered,
            mode: Mode::MessageThrough,
            header: Vec::new(),
            data: vec![vec![7; 3_000]],
            place: None,
        };
        peer.send(hub_there, message).unwrap();
        exchange(&mut hub, &mut peer, address, now_ns);
        while let Some(event) = hub.poll_event() {
            received += usize::from(matches!(event, Event::Message(..)));
        }
        exchange(&mut hub, &mut peer, address, now_ns + 100_000);
    }
    assert_eq!((hub.peers(), received), (PEERS, PEERS));
    let each = (resident_bytes() - before) / (PEERS - 100);
    println!("{each} bytes for each idle peer");
    assert!(each < 4096, "{each} bytes for each idle peer");
}
