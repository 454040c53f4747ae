//! Peers that are restarted, silent or gone.

use super::world::{Faults, World};
use super::{SECOND, at, connected, plain};
use crate::protocol::endpoint::{Config, Event, Lost};
use crate::protocol::model::{Class, Operation};
use kumi_multilink::secure::Seal;

#[test]
fn peer__restarted_or_silent__is_reported_and_can_be_reached_again() {
    let mut world = World::new(2, 7, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    let mut config = Config::new([3; 32], 99);
    config.seal = Seal::Plain;
    world.restart(1, config);
    world.endpoints[0]
        .send(peer, plain(Class::Ordered, vec![1]))
        .unwrap();
    let mut events = Vec::new();
    world.run_until(world.now_ns + SECOND, |_, index, event| {
        events.push((index, event));
        false
    });
    let has = |event| events.contains(&(0, event));
    assert!(has(Event::Lost(peer, Lost::Restarted)), "{events:?}");
    let again = world.endpoints[0].connect(1, world.now_ns).unwrap();
    assert!(again != peer && has(Event::Connected(again)), "{events:?}");
    let peer = again;
    world.faults.loss = 1.0;
    world.endpoints[0]
        .send(peer, plain(Class::Ordered, vec![2]))
        .unwrap();
    let began_ns = world.now_ns;
    let is_lost = |_: &World, index: usize, event: Event| {
        (index, event) == (0, Event::Lost(peer, Lost::Silent))
    };
    assert!(world.run_until(began_ns + 10 * SECOND, is_lost));
    assert!(
        world.now_ns - began_ns <= 4 * SECOND,
        "{} ns",
        world.now_ns - began_ns
    );
}

/// The requests were acknowledged with the first answers, so nothing of this side is in flight.
#[test]
fn peer__gone_between_the_request_and_its_answer__is_lost_within_seconds() {
    const GETS: usize = 60;
    let mut world = World::new(2, 7, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    for _ in 0..GETS {
        let get = Operation::Get(1000);
        world.endpoints[0].operate(peer, at(0), get).unwrap();
    }
    let mut answers = 0;
    let is_first = |_: &World, index: usize, event: Event| {
        answers += usize::from(index == 0 && matches!(event, Event::Answered(..)));
        answers == 1
    };
    assert!(world.run_until(world.now_ns + SECOND, is_first));
    world.faults.loss = 1.0;
    let began_ns = world.now_ns;
    let is_lost = |_: &World, index: usize, event: Event| {
        answers += usize::from(index == 0 && matches!(event, Event::Answered(..)));
        (index, event) == (0, Event::Lost(peer, Lost::Silent))
    };
    assert!(world.run_until(began_ns + 4 * SECOND, is_lost));
    assert!(answers < GETS, "all have answers");
}

/// The silence before a question is no answer to it.
#[test]
fn peer__absent_for_a_moment_after_a_long_pause__is_not_lost() {
    let mut world = World::new(2, 7, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    world.run_until(world.now_ns + SECOND, |_, _, _| false);
    world.now_ns += 10 * SECOND;
    world.faults.loss = 1.0;
    world.endpoints[0]
        .send(peer, plain(Class::Ordered, vec![1]))
        .unwrap();
    let mut note = |_: &World, index: usize, event: Event| {
        assert!(!matches!(event, Event::Lost(..)), "{event:?}");
        index == 1 && matches!(event, Event::Message(..))
    };
    assert!(!world.run_until(world.now_ns + SECOND, &mut note));
    world.faults.loss = 0.0;
    assert!(world.run_until(world.now_ns + SECOND, &mut note));
}

#[test]
fn peer__gone_without_a_word__is_forgotten_after_minutes_and_a_quiet_one_is_not() {
    let mut world = World::new(3, 7, Faults::NONE, |_| {});
    let gone = connected(&mut world);
    let quiet = world.endpoints[0].connect(2, world.now_ns).unwrap();
    world.run_until(world.now_ns + SECOND, |_, _, _| false);
    world.restart(1, Config::new([5; 32], 77));
    let before = world.sent;
    let mut lost = Vec::new();
    world.run_until(3_600 * SECOND, |_, index, event| {
        if let (0, Event::Lost(peer, reason)) = (index, event) {
            lost.push((peer, reason));
        }
        false
    });
    assert_eq!(lost, [(gone, Lost::Silent)]);
    assert!(world.now_ns < 3_600 * SECOND && world.endpoints[0].address(quiet).is_some());
    let datagrams = world.sent - before;
    assert!(datagrams < 500, "{datagrams} datagrams in an hour");
}
