//! Acknowledgements that wait for the answer of the program.

use super::world::{Faults, World};
use super::{SECOND, connected, plain};
use crate::protocol::endpoint::{Event, PeerId};
use crate::protocol::model::Class;

const MESSAGES: u64 = 320;

/// Exchanges messages one after the other, each of which the peer answers. Returns the datagrams
/// that this took.
fn converse(world: &mut World, peer: PeerId) -> u64 {
    let sent_before = world.sent;
    for round in 0..MESSAGES {
        let message = plain(Class::Ordered, round.to_be_bytes().to_vec());
        world.endpoints[0].send(peer, message).unwrap();
        let end_ns = world.now_ns + SECOND;
        let mut is_answered = false;
        while !is_answered {
            assert!(world.step(end_ns), "message {round} has no answer");
            while let Some(event) = world.endpoints[1].poll_event() {
                if let Event::Message(from, delivery) = event {
                    let answer = plain(Class::Ordered, delivery.data);
                    world.endpoints[1].send(from, answer).unwrap();
                }
            }
            while let Some(event) = world.endpoints[0].poll_event() {
                is_answered |= matches!(event, Event::Message(..));
            }
        }
    }
    world.sent - sent_before
}

#[test]
fn conversation__of_two_programs__needs_hardly_more_datagrams_than_messages() {
    let mut world = World::new(2, 3, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    let datagrams = converse(&mut world, peer);
    assert!(datagrams < 2 * MESSAGES * 9 / 8, "{datagrams}");
}

#[test]
fn conversation__with_losses__goes_on_within_milliseconds() {
    let faults = Faults {
        loss: 0.05,
        ..Faults::NONE
    };
    let mut world = World::new(2, 4, faults, |_| {});
    let peer = connected(&mut world);
    let began_ns = world.now_ns;
    converse(&mut world, peer);
    let mean_ns = (world.now_ns - began_ns) / MESSAGES;
    assert!(mean_ns < 1_000_000, "{mean_ns} ns");
}

/// The peer's program stops answering. Its acknowledgement comes by itself.
#[test]
fn conversation__that_ends__is_acknowledged_after_the_hold() {
    let mut world = World::new(2, 5, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    converse(&mut world, peer);
    for _ in 0..3 {
        let message = plain(Class::Ordered, vec![1]);
        world.endpoints[0].send(peer, message).unwrap();
        let began_ns = world.now_ns;
        while world.endpoints[0].unsent_bytes(peer) > 0 {
            assert!(world.step(began_ns + SECOND));
        }
        let took_ns = world.now_ns - began_ns;
        assert!(took_ns < 3_000_000, "{took_ns} ns");
    }
    let counts = world.endpoints[0].status(peer).unwrap().messages.counts;
    assert_eq!(counts.probes, 0);
}

#[test]
fn conversation__whose_sender_waits_for_the_acknowledgement__is_asked_for_it() {
    let mut world = World::new(2, 6, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    converse(&mut world, peer);
    let message = plain(Class::Ordered, vec![1]);
    world.endpoints[0].send(peer, message).unwrap();
    world.transmit();
    world.endpoints[0].ask_for_held(peer);
    let began_ns = world.now_ns;
    while world.endpoints[0].unsent_bytes(peer) > 0 {
        assert!(world.step(began_ns + SECOND));
    }
    let took_ns = world.now_ns - began_ns;
    assert!(took_ns < 200_000, "{took_ns} ns");
}
