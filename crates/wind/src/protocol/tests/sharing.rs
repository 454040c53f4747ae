//! Short messages that share packets and records.

use super::world::{Faults, World};
use super::{BAD, MS, SECOND, connected, plain};
use crate::protocol::endpoint::Event;
use crate::protocol::model::Class;

#[test]
fn message__while_others_are_in_flight__waits_for_them_only_in_a_burst() {
    let mut world = World::new(2, 6, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    world.run_until(world.now_ns + MS, |_, _, _| false);
    let send = |world: &mut World| {
        let message = plain(Class::Ordered, vec![1; 100]);
        world.endpoints[0].send(peer, message).unwrap();
    };
    send(&mut world);
    assert!(world.endpoints[0].is_worth_sending(peer, false, world.now_ns));
    world.transmit();
    send(&mut world);
    let soon_ns = world.now_ns + 10_000;
    assert!(!world.endpoints[0].is_worth_sending(peer, false, soon_ns));
    let later_ns = world.now_ns + 60_000;
    assert!(world.endpoints[0].is_worth_sending(peer, false, later_ns));
}

#[test]
fn short_messages__many_under_loss__share_records_and_are_delivered_once() {
    const MESSAGES: u64 = 30_000;
    for (class, faults) in [
        (Class::Unordered, BAD),
        (Class::Ordered, BAD),
        (Class::Ordered, Faults::NONE),
    ] {
        let mut world = World::new(2, 6, faults, |_| {});
        let peer = connected(&mut world);
        let before = world.sent;
        for number in 0..MESSAGES {
            let data = number.to_be_bytes()[8 - (number % 9) as usize..].to_vec();
            world.endpoints[0].send(peer, plain(class, data)).unwrap();
        }
        let mut counts = [0_u64; 9];
        let mut sum = 0;
        world.run_until(world.now_ns + 20 * SECOND, |_, _, event| {
            if let Event::Message(_, message) = event {
                counts[message.data.len()] += 1;
                if message.data.len() == 8 {
                    sum += u64::from_be_bytes(message.data.try_into().unwrap());
                }
            }
            counts.iter().sum::<u64>() == MESSAGES
        });
        let expected: u64 = (0..MESSAGES).filter(|number| number % 9 == 8).sum();
        assert_eq!(
            (counts.iter().sum::<u64>(), sum),
            (MESSAGES, expected),
            "{class:?}"
        );
        let datagrams = world.sent - before;
        let is_shared = datagrams < MESSAGES / 20;
        assert!(is_shared || faults.loss > 0.0, "{datagrams} datagrams");
    }
}

/// Each message beyond the credit once sent a packet that only announced it.
#[test]
fn short_messages__beyond_the_credit__are_announced_together() {
    let mut world = World::new(2, 6, Faults::NONE, |config| {
        config.first_bytes = 4_000;
        config.budget_bytes = 4_000;
    });
    let peer = connected(&mut world);
    world.run_until(world.now_ns + MS, |_, _, _| false);
    let before = world.sent;
    for _ in 0..2_000 {
        let message = plain(Class::Ordered, vec![1; 64]);
        world.endpoints[0].send(peer, message).unwrap();
        world.transmit();
    }
    let datagrams = world.sent - before;
    // 31 messages of the first grant, and 250 kB in steps of 64.
    assert!(datagrams < 40, "{datagrams} datagrams");
}

/// One datagram of each peer in turn would need a system call each.
#[test]
fn datagrams__for_several_peers__leave_in_rows_of_one_peer() {
    let mut world = World::new(4, 6, Faults::NONE, |_| {});
    let peers: Vec<_> = (1..4)
        .map(|index| world.endpoints[0].connect(index, 0).unwrap())
        .collect();
    world.run_until(world.now_ns + 100 * MS, |_, _, _| false);
    for peer in &peers {
        let message = plain(Class::Ordered, vec![1; 10_000]);
        world.endpoints[0].send(*peer, message).unwrap();
    }
    let (mut targets, mut out) = (Vec::new(), Vec::new());
    while let Some(target) = world.endpoints[0].poll_transmit(world.now_ns, &mut out) {
        targets.push(target);
    }
    assert!(targets.len() >= 3 * 4, "{targets:?}");
    targets.dedup();
    assert_eq!(targets.len(), 3, "{targets:?}");
}
