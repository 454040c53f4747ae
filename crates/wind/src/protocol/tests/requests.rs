//! Requests on a simulated network.

use super::world::{Faults, World};
use super::{BAD, MS, SECOND, at, connected, execute_exactly_once, plain};
use crate::protocol::endpoint::{Event, PeerId};
use crate::protocol::model::{Atomic, Class, Operation};
use crate::protocol::{SLOT_WORDS, SlotMemory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn slots() -> Arc<dyn SlotMemory> {
    let words: Vec<AtomicU64> = std::iter::repeat_with(AtomicU64::default)
        .take(SLOT_WORDS)
        .collect();
    Arc::new(words)
}

/// Connects the endpoints `from` to endpoint 1, which executes their requests.
fn connect_with_requests(world: &mut World, from: &[usize]) -> Vec<PeerId> {
    let peers: Vec<PeerId> = from
        .iter()
        .map(|from| world.endpoints[*from].connect(1, world.now_ns).unwrap())
        .collect();
    let mut joined = Vec::new();
    while joined.len() < from.len() {
        world.run_until(world.now_ns + SECOND, |_, index, event| {
            if let (1, Event::Connected(peer)) = (index, event) {
                joined.push(peer);
                return true;
            }
            false
        });
    }
    for peer in joined {
        world.endpoints[1].serve_requests(peer, slots());
    }
    let end_ns = world.now_ns + SECOND;
    let is_told = |world: &World| {
        let mut pairs = from.iter().zip(&peers);
        pairs.all(|(from, peer)| world.endpoints[*from].sends_requests(*peer))
    };
    while !is_told(world) {
        assert!(
            world.step(end_ns),
            "the peers do not learn that requests are served"
        );
    }
    peers
}

#[test]
fn requests__under_faults__are_executed_exactly_once() {
    for seed in 0..10 {
        let mut world = World::new(3, seed, BAD, |_| {});
        connect_with_requests(&mut world, &[0, 2]);
        execute_exactly_once(&mut world, seed);
    }
}

#[test]
fn puts__many_at_once__are_answered_together_and_sent_again_if_lost() {
    const PUTS: u64 = 400;
    for (loss, datagrams_max) in [(0.0, PUTS + PUTS / 4), (0.02, 2 * PUTS)] {
        let faults = Faults {
            loss,
            ..Faults::NONE
        };
        let mut world = World::new(2, 5, faults, |_| {});
        let peer = connect_with_requests(&mut world, &[0])[0];
        let before = world.sent;
        for number in 0..PUTS {
            let put = Operation::Put(vec![number as u8 | 1; 8]);
            world.endpoints[0]
                .operate(peer, at(8 * number), put)
                .unwrap();
        }
        let mut answered = 0;
        world.run_until(world.now_ns + SECOND, |_, _, event| {
            answered += u64::from(matches!(event, Event::Answered(_, _, Ok(_))));
            answered == PUTS
        });
        assert_eq!(answered, PUTS, "loss {loss}");
        for number in 0..PUTS as usize {
            assert_eq!(world.memories[1].bytes[8 * number], number as u8 | 1);
        }
        let datagrams = world.sent - before;
        assert!(
            datagrams <= datagrams_max,
            "loss {loss}: {datagrams} datagrams"
        );
    }
}

/// The response to an addition may be lost while a summary names the addition.
#[test]
fn additions__between_quiet_puts_under_loss__are_all_answered() {
    const PAIRS: u64 = 300;
    for seed in 0..20 {
        let faults = Faults {
            loss: 0.05,
            ..Faults::NONE
        };
        let mut world = World::new(2, seed, faults, |_| {});
        let peer = connect_with_requests(&mut world, &[0])[0];
        for number in 0..PAIRS {
            let put = Operation::Put(vec![1; 8]);
            let add = Operation::Atomic(Atomic::FetchAdd(1));
            for (place, operation) in [(at(8 + 8 * number), put), (at(0), add)] {
                world.endpoints[0].operate(peer, place, operation).unwrap();
            }
        }
        let mut answered = 0;
        world.run_until(world.now_ns + 5 * SECOND, |_, _, event| {
            answered += u64::from(matches!(event, Event::Answered(_, _, Ok(_))));
            answered == 2 * PAIRS
        });
        assert_eq!(answered, 2 * PAIRS, "seed {seed}");
    }
}

#[test]
fn ordered_message__after_requests__is_delivered_after_their_execution() {
    for seed in 0..20 {
        let faults = Faults {
            loss: 0.2,
            reordering: 0.5,
            late_ns: 400_000,
            ..Faults::NONE
        };
        let mut world = World::new(2, seed, faults, |_| {});
        let peer = connect_with_requests(&mut world, &[0])[0];
        for value in 1..=50_u8 {
            let put = Operation::Put(vec![value; 700]);
            world.endpoints[0]
                .operate(peer, at(1_000 * u64::from(value)), put)
                .unwrap();
            let message = plain(Class::Ordered, vec![value]);
            world.endpoints[0].send(peer, message).unwrap();
        }
        let mut next = 1;
        world.run_until(20 * SECOND, |world, index, event| {
            if let (1, Event::Message(_, message)) = (index, event) {
                assert_eq!(message.data, [next], "seed {seed}");
                let at = 1_000 * usize::from(next);
                let written = &world.memories[1].bytes[at..at + 700];
                assert!(written.iter().all(|byte| *byte == next), "seed {seed}");
                next += 1;
            }
            next > 50
        });
        assert_eq!(next, 51, "seed {seed}: a message was not delivered");
    }
}

/// Slots whose first request the kernel executes at the given access, as it may at any moment.
struct Racing {
    words: Arc<dyn SlotMemory>,
    left: AtomicU64,
}

impl SlotMemory for Racing {
    fn word(&self, index: usize) -> &AtomicU64 {
        if index == 0 && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.words.word(0).store(1 << 8, Ordering::Release);
        }
        self.words.word(index)
    }
}

/// Sends an ordered message after a request that reaches only the kernel, whose slots are `shared`.
/// Returns the network and the requester's name of the request.
fn message_after_request(shared: Arc<dyn SlotMemory>) -> (World, u64) {
    let mut world = World::new(2, 3, Faults::NONE, |_| {});
    connected(&mut world);
    let peer = world.endpoints[1].connect(0, world.now_ns).unwrap();
    world.endpoints[1].serve_requests(peer, shared);
    let from = world.endpoints[0].connect(1, world.now_ns).unwrap();
    let end_ns = world.now_ns + SECOND;
    while !world.endpoints[0].sends_requests(from) {
        assert!(world.step(end_ns));
    }
    let name = world.endpoints[0]
        .operate(from, at(0), Operation::Put(vec![1]))
        .unwrap();
    let mut request = Vec::new();
    world.endpoints[0].poll_transmit(world.now_ns, &mut request);
    world.endpoints[0]
        .send(from, plain(Class::Ordered, vec![7]))
        .unwrap();
    (world, name)
}

fn is_delivered(_: &World, index: usize, event: Event) -> bool {
    index == 1 && matches!(event, Event::Message(..))
}

#[test]
fn ordered_message__after_a_request_that_only_the_kernel_sees__is_delivered_soon() {
    let shared = slots();
    let (mut world, name) = message_after_request(Arc::clone(&shared));
    // Meanwhile the requester's probe must not reach the program.
    let before_ns = world.now_ns + MS / 10;
    let is_early = world.run_until(before_ns, is_delivered);
    assert!(!is_early, "delivered too early");
    let state = shared.word(0);
    state.store(1 << 8, Ordering::Release);
    let is_soon = world.run_until(before_ns + MS, is_delivered);
    assert!(is_soon, "not delivered");
    assert_eq!(name & 1, 1, "the operation was a request");
}

/// Within a time in which no other packet arrives: the requester's probes would hide a message that
/// is forgotten.
#[test]
fn ordered_message__whose_request_is_executed_during_a_look__is_delivered_soon() {
    let mut raced = 0;
    for access in 1..60 {
        let shared = Arc::new(Racing {
            words: slots(),
            left: AtomicU64::new(access),
        });
        let is_executed = || shared.words.word(0).load(Ordering::Relaxed) != 0;
        let (mut world, _) = message_after_request(Arc::clone(&shared) as Arc<dyn SlotMemory>);
        let began_ns = world.now_ns;
        let was_early = is_executed();
        while !is_executed() && world.now_ns < began_ns + MS / 10 {
            world.step(u64::MAX);
        }
        if !was_early && is_executed() {
            raced += 1;
            let end_ns = world.now_ns + MS / 20;
            assert!(world.run_until(end_ns, is_delivered), "access {access}");
        }
    }
    assert!(raced > 3, "{raced} executions while the message waited");
}

#[test]
fn requests__of_a_restarted_target__are_lost_with_the_session() {
    let mut world = World::new(2, 9, Faults::NONE, |_| {});
    let peer = connect_with_requests(&mut world, &[0])[0];
    let config = crate::protocol::Config::new([3; 32], 77);
    let config = crate::protocol::Config {
        seal: kumi_multilink::secure::Seal::Plain,
        ..config
    };
    world.restart(1, config);
    world.endpoints[0]
        .operate(peer, at(0), Operation::Get(8))
        .unwrap();
    let is_lost = |_: &World, index: usize, event: Event| {
        index == 0 && matches!(event, Event::Lost(lost, _) if lost == peer)
    };
    assert!(world.run_until(world.now_ns + 5 * SECOND, is_lost));
}
