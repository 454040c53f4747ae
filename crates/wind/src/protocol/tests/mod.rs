//! Endpoints on a simulated network, under seeds.

mod congestion;
mod conversation;
mod history;
mod path_mtu;
mod presence;
mod requests;
mod sharing;
mod world;

use crate::protocol::endpoint::{Event, MessageId, PeerId};
use crate::protocol::model::{Atomic, Class, Mode, Operation, Place};
use crate::protocol::outgoing::Message;
use crate::protocol::testing::KEY;
use history::{History, Submitted};
use kumi_multilink::secure::Seal;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use world::{DELAY_NS, Faults, World};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn plain(class: Class, data: Vec<u8>) -> Message {
    Message::through(class, data)
}

fn at(offset: u64) -> Place {
    Place {
        region: 0,
        key: KEY,
        offset,
    }
}

/// Connects endpoint 0 to endpoint 1 and returns its name for it.
fn connected(world: &mut World) -> PeerId {
    let peer = world.endpoints[0].connect(1, 0).unwrap();
    let is_up =
        |_: &World, index: usize, event: Event| index == 1 && matches!(event, Event::Connected(_));
    assert!(world.run_until(SECOND, is_up), "no session");
    peer
}

/// `count` random and damaged datagrams of a peer and of strangers. None has an effect on memory,
/// and no stranger gets an answer that is longer than its datagram.
fn hostile(seed: u64, count: u64) {
    let mut world = World::new(2, seed, Faults::NONE, |config| {
        config.seal = [Seal::Plain, Seal::Encrypt][seed as usize % 2];
    });
    let peer = connected(&mut world);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut real = Vec::new();
    for _ in 0..50 {
        let class = Class::ALL[rng.usize(..3)];
        world.endpoints[0]
            .send(peer, plain(class, vec![1; rng.usize(..3_000)]))
            .unwrap();
        let get = Operation::Get(rng.u16(..100));
        world.endpoints[0].operate(peer, at(0), get).unwrap();
        let mut out = Vec::new();
        while world.endpoints[0]
            .poll_transmit(world.now_ns, &mut out)
            .is_some()
        {
            real.push(std::mem::take(&mut out));
        }
    }
    let mut out = Vec::new();
    for _ in 0..count {
        let bytes = rng.usize(..200);
        let mut datagram = match rng.u8(..3) {
            0 => std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect(),
            _ => real[rng.usize(..real.len())].clone(),
        };
        for _ in 0..rng.usize(1..4) {
            if let Some(byte) = datagram.get_mut(rng.usize(..100)) {
                *byte = rng.u8(..);
            }
        }
        let from = rng.usize(..3);
        let memory = &mut world.memories[1];
        world.endpoints[1].handle_datagram(from, &mut datagram, memory, world.now_ns);
        world.endpoints[1].handle_timeout(&mut world.memories[1], world.now_ns);
        while world.endpoints[1].poll_event().is_some() {}
        out.clear();
        let to = world.endpoints[1].poll_transmit(world.now_ns, &mut out);
        assert!(
            to.is_none_or(|to| to == 0 || out.len() <= datagram.len()),
            "seed {seed}"
        );
    }
    let memory = &world.memories[1].bytes;
    assert!(memory.iter().all(|byte| *byte == 0), "seed {seed}");
}

/// A random program: messages of all classes and modes between all endpoints. Returns the number of
/// messages.
fn mixed_messages(seed: u64, faults: Faults, count: usize) -> usize {
    let hosts = 2 + (seed % 2) as usize;
    let mut world = World::new(hosts, seed, faults, |config| {
        config.first_bytes = 16 << 10;
        config.budget_bytes = 64 << 10;
    });
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut histories: BTreeMap<(usize, usize), History> = BTreeMap::new();
    let mut names: HashMap<(usize, PeerId, MessageId), usize> = HashMap::new();
    let (mut submitted, mut finished) = (0, 0);
    // Each endpoint's peers by its own names for them.
    let mut peers: BTreeMap<(usize, usize), PeerId> = BTreeMap::new();
    for from in 0..hosts {
        for to in (0..hosts).filter(|to| *to != from) {
            peers.insert((from, to), world.endpoints[from].connect(to, 0).unwrap());
        }
    }
    let mut next_ns = 0;
    loop {
        if submitted < count && world.now_ns >= next_ns {
            for _ in 0..rng.usize(1..6).min(count - submitted) {
                let from = rng.usize(..hosts);
                let to = (from + rng.usize(1..hosts)) % hosts;
                let peer = peers[&(from, to)];
                let history = histories.entry((from, to)).or_default();
                let index = history.submitted.len();
                let class = Class::ALL[rng.usize(..3)];
                let bytes = [0, 1, 64, 500, 3_000, 20_000][rng.usize(..6)];
                let header = (index as u64).to_be_bytes().to_vec();
                let data: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect();
                let contents = [&header[..], &data].concat();
                let message = Message {
                    header,
                    ..plain(class, data)
                };
                let name = world.endpoints[from].send(peer, message).unwrap();
                history.submitted.push(Submitted { class, contents });
                names.insert((from, peer, name), index);
                submitted += 1;
            }
            next_ns = world.now_ns + rng.u64(..300_000);
        }
        for index in 0..hosts {
            while let Some(event) = world.endpoints[index].poll_event() {
                match event {
                    Event::Message(peer, message) => {
                        let from = world.endpoints[index].address(peer).unwrap();
                        let number = u64::from_be_bytes(message.header[..].try_into().unwrap());
                        let contents = [&message.header[..], &message.data].concat();
                        let history = histories.get_mut(&(from, index)).unwrap();
                        history.delivered.push((number as usize, contents));
                        finished += 1;
                    }
                    Event::Placed(peer, name) => {
                        let to = world.endpoints[index].address(peer).unwrap();
                        let history = histories.get_mut(&(index, to)).unwrap();
                        let deliveries = history.delivered.len();
                        history
                            .placed
                            .push((names[&(index, peer, name)], deliveries));
                    }
                    Event::Connected(_) => {}
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        }
        let end_ns = if submitted < count {
            next_ns.max(world.now_ns)
        } else {
            world.now_ns + SECOND
        };
        if !world.step(end_ns) {
            if submitted == count {
                break;
            }
            world.now_ns = next_ns;
        }
    }
    assert_eq!(finished, count, "seed {seed} {faults:?}");
    for (pair, history) in &histories {
        history
            .check(true)
            .unwrap_or_else(|error| panic!("seed {seed} {pair:?}: {error}"));
    }
    count
}

#[test]
fn messages__all_classes_under_faults__keep_the_order_and_arrive_once() {
    let reordering = Faults {
        reordering: 0.3,
        late_ns: 400_000,
        ..Faults::NONE
    };
    let loss = |loss| Faults {
        loss,
        ..Faults::NONE
    };
    let all = Faults {
        loss: 0.05,
        duplication: 0.2,
        ..reordering
    };
    for seed in 0..30 {
        for faults in [Faults::NONE, loss(0.01), loss(0.2), reordering, all] {
            mixed_messages(seed, faults, 150);
        }
    }
}

#[test]
fn synchronous_message__on_an_idle_path__takes_one_round_trip() {
    let mut world = World::new(2, 1, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    world.run_until(world.now_ns + 10 * MS, |_, _, _| false);
    let began_ns = world.now_ns;
    world.endpoints[0]
        .send(peer, plain(Class::Synchronous, vec![1]))
        .unwrap();
    let is_placed = |_: &World, _: usize, event: Event| matches!(event, Event::Placed(..));
    assert!(world.run_until(began_ns + SECOND, is_placed));
    let took_ns = world.now_ns - began_ns;
    assert!(took_ns < 2 * DELAY_NS + 2_000, "{took_ns} ns");
}

#[test]
fn direct_modes__each_mode__writes_to_the_region_and_notifies_as_it_says() {
    for mode in Mode::ALL.into_iter().filter(|mode| mode.is_direct()) {
        for class in Class::ALL {
            let mut world = World::new(2, 2, Faults::NONE, |_| {});
            let peer = connected(&mut world);
            let twin = vec![0; 5_000];
            let mut now = twin.clone();
            now[10..20].fill(5);
            now[4_000..4_999].fill(6);
            let data = match mode.is_diff() {
                true => world.endpoints[0].diff_parts(&twin, &now, class, mode),
                false => vec![now.clone()],
            };
            let message = Message {
                class,
                mode,
                header: b"head".to_vec(),
                data,
                place: Some(at(100)),
            };
            world.endpoints[0].send(peer, message).unwrap();
            let mut headers = Vec::new();
            world.run_until(world.now_ns + 100 * MS, |_, index, event| {
                if let (1, Event::Message(_, message)) = (index, event) {
                    assert_eq!((message.mode, message.place), (mode, Some(at(100))));
                    headers.push((message.header, message.data));
                }
                false
            });
            assert_eq!(
                world.memories[1].bytes[100..5_100],
                now,
                "{mode:?} {class:?}"
            );
            let expected = if mode.notifies() {
                vec![(b"head".to_vec(), vec![])]
            } else {
                vec![]
            };
            assert_eq!(headers, expected, "{mode:?} {class:?}");
        }
    }
}

#[test]
fn ordered_direct_messages__to_one_place_under_loss__leave_the_last_ones_data() {
    let faults = Faults {
        loss: 0.2,
        reordering: 0.5,
        late_ns: 300_000,
        duplication: 0.1,
    };
    for seed in 0..20 {
        let mut world = World::new(2, seed, faults, |_| {});
        let peer = world.endpoints[0].connect(1, 0).unwrap();
        for value in 1..=30 {
            let message = Message {
                mode: Mode::DirectMap,
                place: Some(at(0)),
                ..plain(Class::Ordered, vec![value; 3_000])
            };
            world.endpoints[0].send(peer, message).unwrap();
        }
        world.run_until(5 * SECOND, |_, _, _| false);
        assert!(
            world.memories[1].bytes[..3_000]
                .iter()
                .all(|byte| *byte == 30),
            "seed {seed}"
        );
    }
}

/// A network that loses, repeats and delays datagrams.
const BAD: Faults = Faults {
    loss: 0.1,
    duplication: 0.3,
    reordering: 0.3,
    late_ns: 500_000,
};

#[test]
fn operations__under_faults__are_executed_exactly_once() {
    for seed in 0..10 {
        let mut world = World::new(3, seed, BAD, |_| {});
        execute_exactly_once(&mut world, seed);
    }
}

/// Endpoints 0 and 2 execute operations on the memory of endpoint 1.
fn execute_exactly_once(world: &mut World, seed: u64) {
    let mut open = BTreeSet::new();
    for from in [0, 2] {
        let peer = world.endpoints[from].connect(1, world.now_ns).unwrap();
        for _ in 0..200 {
            let add = Operation::Atomic(Atomic::FetchAdd(1));
            let number = world.endpoints[from].operate(peer, at(8), add).unwrap();
            open.insert((from, number));
        }
        let put = Operation::Put(vec![from as u8 + 1; 1_000]);
        open.insert((
            from,
            world.endpoints[from]
                .operate(peer, at(2_000 * from as u64 + 64), put)
                .unwrap(),
        ));
        let get = Operation::Get(8);
        open.insert((
            from,
            world.endpoints[from].operate(peer, at(8), get).unwrap(),
        ));
    }
    let mut words = BTreeSet::new();
    let is_done = world.run_until(20 * SECOND, |_, index, event| {
        if let Event::Answered(_, number, result) = event {
            assert!(open.remove(&(index, number)), "seed {seed}: answered twice");
            let bytes = result.unwrap();
            if number >> 1 < 200 {
                let word = u64::from_be_bytes(bytes.try_into().unwrap());
                assert!(words.insert(word), "seed {seed}: {word} twice");
            }
        }
        open.is_empty()
    });
    assert!(is_done, "seed {seed}: {open:?}");
    assert_eq!(
        words.into_iter().collect::<Vec<_>>(),
        (0..400).collect::<Vec<u64>>()
    );
    let memory = &world.memories[1].bytes;
    assert_eq!(u64::from_ne_bytes(memory[8..16].try_into().unwrap()), 400);
    assert!(memory[4_064..5_064].iter().all(|byte| *byte == 3));
}

#[test]
fn message__to_a_region_without_its_key__is_rejected_and_changes_nothing() {
    let mut world = World::new(2, 5, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    let place = Place {
        key: [0; 16],
        ..at(0)
    };
    let message = Message {
        mode: Mode::HeaderThrough,
        place: Some(place),
        ..plain(Class::Synchronous, vec![9; 10])
    };
    let name = world.endpoints[0].send(peer, message).unwrap();
    let mut events = Vec::new();
    world.run_until(world.now_ns + 100 * MS, |_, index, event| {
        events.push((index, event));
        false
    });
    let rejected = (
        0,
        Event::Rejected(peer, name, crate::protocol::model::Refused::Region),
    );
    assert!(events.contains(&rejected), "{events:?}");
    assert!(
        !events
            .iter()
            .any(|(_, event)| matches!(event, Event::Message(..) | Event::Placed(..)))
    );
    assert!(world.memories[1].bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn program__that_does_not_read__stops_its_senders_within_the_credit() {
    let mut world = World::new(2, 6, Faults::NONE, |config| {
        config.first_bytes = 4 << 10;
        config.budget_bytes = 32 << 10;
    });
    let peer = connected(&mut world);
    for _ in 0..200 {
        world.endpoints[0]
            .send(peer, plain(Class::Ordered, vec![1; 1_000]))
            .unwrap();
    }
    while world.step(2 * SECOND) {}
    let waiting = world.endpoints[0].unsent_bytes(peer);
    assert!(
        waiting > 200_000 - 40_000,
        "{waiting} bytes wait at the sender"
    );
    let mut received = 0;
    world.run_until(10 * SECOND, |_, _, event| {
        received += usize::from(matches!(event, Event::Message(..)));
        received == 200
    });
    assert_eq!(received, 200);
}

/// Inits of strangers, and replays of a recorded one from 9000 addresses.
#[test]
fn inits__forged_and_replayed_in_numbers__leave_no_peers_and_do_not_keep_a_peer_out() {
    let mut world = World::new(2, 9, Faults::NONE, |_| {});
    let mut config = crate::protocol::endpoint::Config::new([3; 32], 77);
    config.seal = Seal::Plain;
    let mut recorded = crate::protocol::endpoint::Endpoint::new(config);
    recorded.connect(1_usize, 0).unwrap();
    let mut init = Vec::new();
    recorded.poll_transmit(0, &mut init);
    let mut forged = init.clone();
    forged[20] ^= 1;
    let mut memory = world.memories[1].clone();
    for number in 0..9_000 {
        for datagram in [&init, &forged] {
            let mut copy = datagram.clone();
            world.endpoints[1].handle_datagram(100 + number, &mut copy, &mut memory, 0);
        }
    }
    assert!(
        world.endpoints[1].peers() <= 5_000,
        "{}",
        world.endpoints[1].peers()
    );
    world.now_ns = SECOND;
    let peer = world.endpoints[0].connect(1, world.now_ns).unwrap();
    let sent = plain(Class::Synchronous, vec![1]);
    world.endpoints[0].send(peer, sent).unwrap();
    let is_placed =
        |_: &World, index: usize, event: Event| index == 0 && matches!(event, Event::Placed(..));
    assert!(world.run_until(2 * SECOND, is_placed));
    world.run_until(8 * SECOND, |_, _, _| false);
    assert_eq!(world.endpoints[1].peers(), 1, "replayed ones are forgotten");
}

/// Random datagrams, and damaged copies of real ones, in the plain and in the sealed setting.
#[test]
fn datagrams__random_or_damaged__never_panic_and_write_only_with_the_key() {
    (0..20).for_each(|seed| hostile(seed, 5_000));
}

/// A hundred million: `cargo test -p kumi-wind --release -- --ignored`.
#[test]
#[ignore = "soak: half a minute"]
fn datagrams__a_hundred_million_hostile__never_panic_and_write_only_with_the_key() {
    (0..1_000).for_each(|seed| hostile(seed, 100_000));
}

/// A million messages: `cargo test -p kumi-wind --release -- --ignored`.
#[test]
#[ignore = "soak: a minute"]
fn messages__a_million_under_faults__keep_the_order_and_arrive_once() {
    let mut messages = 0;
    for seed in 1_000.. {
        let faults = Faults {
            loss: [0.0, 0.01, 0.05, 0.2][seed as usize % 4],
            duplication: [0.0, 0.1][seed as usize / 4 % 2],
            reordering: [0.0, 0.3][seed as usize / 8 % 2],
            late_ns: 400_000,
        };
        messages += mixed_messages(seed, faults, 500);
        if messages >= 1_000_000 {
            break;
        }
    }
}

#[test]
fn synchronous_message__receiver_closes_after_its_answer_is_lost__is_placed() {
    let mut world = World::new(2, 4, Faults::NONE, |_| {});
    let peer = connected(&mut world);
    let message = plain(Class::Synchronous, vec![1]);
    let name = world.endpoints[0].send(peer, message).unwrap();
    let mut other = None;
    world.run_until(SECOND, |_, index, event| {
        if let (1, Event::Message(from, _)) = (index, event) {
            other = Some(from);
        }
        other.is_some()
    });
    let mut lost = Vec::new();
    while world.endpoints[1]
        .poll_transmit(world.now_ns, &mut lost)
        .is_some()
    {}
    world.endpoints[1].close(other.unwrap());
    let mut events = Vec::new();
    world.run_until(world.now_ns + SECOND, |_, index, event| {
        if index == 0 {
            events.push(event);
        }
        matches!(events.last(), Some(Event::Lost(..)))
    });
    assert!(events.contains(&Event::Placed(peer, name)), "{events:?}");
}
