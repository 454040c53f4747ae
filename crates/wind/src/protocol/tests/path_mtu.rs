//! Paths that carry longer datagrams than all must, and that stop to.

use super::world::{Faults, World};
use crate::protocol::{Class, Event, Message};

const MESSAGES: u64 = 400;
const BYTES: usize = 20_000;

/// Sends messages; after half of them the network carries `later_bytes`. Returns the datagrams that
/// the sender's packets took.
fn send_all(mtu_bytes: usize, later_bytes: usize, faults: Faults) -> u64 {
    let mut world = World::new(2, 5, faults, |_| ());
    world.mtu_bytes = mtu_bytes;
    let peer = world.endpoints[0].connect(1, 0).expect("a peer");
    let mut sent = 0;
    let mut delivered = 0;
    while delivered < MESSAGES {
        while sent < MESSAGES && world.endpoints[0].unsent_bytes(peer) < 1 << 20 {
            let data = vec![sent as u8; BYTES];
            let message = Message::through(Class::Ordered, data);
            world.endpoints[0].send(peer, message).expect("is sent");
            sent += 1;
            if sent == MESSAGES / 2 {
                world.mtu_bytes = later_bytes;
            }
        }
        world.transmit();
        world.step(u64::MAX);
        while let Some(event) = world.endpoints[1].poll_event() {
            if let Event::Message(_, message) = event {
                assert!(message.data.len() == BYTES);
                assert!(message.data.iter().all(|byte| *byte == delivered as u8));
                delivered += 1;
            }
        }
        assert!(world.now_ns < 20_000_000_000, "{delivered} of {MESSAGES}");
    }
    let status = world.endpoints[0].status(peer).expect("a session");
    status.messages.counts.packets
}

#[test]
fn path__that_carries_jumbo_frames__takes_a_fourth_of_the_packets() {
    let short = send_all(1452, 1452, Faults::NONE);
    let long = send_all(8972, 8972, Faults::NONE);
    assert!(4 * long < short, "{long} packets, {short} short ones");
}

#[test]
fn path__that_carries_less_and_less__delivers_everything() {
    let lossy = Faults {
        loss: 0.01,
        ..Faults::NONE
    };
    for faults in [Faults::NONE, lossy] {
        for (first, later) in [
            (8972, 1452),
            (1472, 1452),
            (8972, 4000),
            (2000, 9000),
            (4044, 8900),
        ] {
            send_all(first, later, faults);
        }
    }
}
