//! Congestion on simulated links: overflow, random loss, and both.

use super::world::{Faults, World};
use super::{MS, SECOND, plain};
use crate::protocol::endpoint::{Config, Event};
use crate::protocol::model::Class;

/// 32 senders of 200 KB each, or more, through a port of 64 KB at 1 Gb/s. Returns the share of the
/// link, and that of the datagrams which were lost.
fn incast(message_bytes: usize, set: impl Fn(&mut Config)) -> (f64, f64) {
    let mut world = World::new(33, 8, Faults::NONE, set);
    (world.rate, world.port_bytes) = (0.125, 64 << 10);
    for from in 1..33 {
        let peer = world.endpoints[from].connect(0, 0).unwrap();
        world.endpoints[from]
            .send(peer, plain(Class::Unordered, vec![0; message_bytes]))
            .unwrap();
    }
    let mut left = 32;
    let is_done = world.run_until(100 * SECOND, |_, _, event| {
        left -= usize::from(matches!(event, Event::Message(..)));
        left == 0
    });
    assert!(is_done, "{left} messages are missing");
    // A datagram of 1452 bytes has 1414 bytes of a message, and 1518 on the wire.
    let ideal_ns = (32 * message_bytes) as f64 / 0.125 * 1518.0 / 1414.0;
    let share = ideal_ns / world.now_ns as f64;
    (share, world.dropped as f64 / world.sent as f64)
}

#[test]
fn incast__budget_of_the_port__loses_almost_nothing_and_fills_the_link() {
    let (share, lost) = incast(200_000, |config| {
        config.first_bytes = 1_000;
        config.budget_bytes = 16 << 10;
    });
    assert!(
        share > 0.95 && lost < 0.001,
        "{share:.3} of the link, {lost:.4} lost"
    );
}

#[test]
fn incast__budget_far_above_the_port__finds_it() {
    let (share, lost) = incast(2_000_000, |_| {});
    assert!(
        share > 0.97 && lost < 0.001,
        "{share:.3} of the link, {lost:.4} lost"
    );
}

/// Senders that begin one after the other, when the first ones have filled the port.
#[test]
fn incast__senders_that_join_later__overflow_the_port_rarely() {
    for (rate, pause_ns) in [(0.025, 3 * MS), (0.125, MS), (1.25, 3 * MS)] {
        let mut world = World::new(33, 8, Faults::NONE, |_| {});
        (world.rate, world.port_bytes) = (rate, 64 << 10);
        // Two seconds of the link, in messages of 64 KiB.
        let messages = (rate * 2e9) as usize / 32 / 65_536;
        for from in 1..33 {
            let peer = world.endpoints[from].connect(0, world.now_ns).unwrap();
            for _ in 0..messages {
                let message = plain(Class::Unordered, vec![0; 65_536]);
                world.endpoints[from].send(peer, message).unwrap();
            }
            world.run_until(world.now_ns + pause_ns, |_, _, _| false);
        }
        world.run_until(world.now_ns + SECOND, |_, _, _| false);
        let share = world.dropped as f64 / world.sent as f64;
        assert!(share < 0.003, "{rate}: {} of {}", world.dropped, world.sent);
    }
}

/// A link in front of receiver 0.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// Bytes per ns.
    rate: f64,
    /// One-way time, in ns.
    delay_ns: u64,
    port_bytes: u64,
    loss: f64,
}

/// Result of streams through a link.
#[derive(Debug)]
struct Share {
    /// Of the link's time, per sender.
    senders: Vec<f64>,
    /// Datagrams that the port dropped, of those sent.
    dropped: f64,
}

impl Share {
    fn total(&self) -> f64 {
        self.senders.iter().sum()
    }
}

/// Streams of `senders` through one link for `rounds` round trips; the first half does not count.
fn streams(link: Link, senders: usize, rounds: u64) -> Share {
    const BYTES: usize = 16 << 10;
    let faults = Faults {
        loss: link.loss,
        ..Faults::NONE
    };
    let mut world = World::new(senders + 1, 8, faults, |_| {});
    (world.rate, world.delay_ns, world.port_bytes) = (link.rate, link.delay_ns, link.port_bytes);
    // The port's bytes beyond 3 ms at the link's rate are never used.
    let queue_bytes = (link.port_bytes as f64).min(link.rate * 3e6);
    let in_pipe_bytes = link.rate * 2.0 * link.delay_ns as f64 + queue_bytes;
    let open = 4 + (2.0 * in_pipe_bytes) as usize / BYTES;
    let mut peers = vec![None];
    for from in 1..=senders {
        let peer = world.endpoints[from].connect(0, 0).unwrap();
        peers.push(Some(peer));
        for _ in 0..open {
            let message = plain(Class::Unordered, vec![0; BYTES]);
            world.endpoints[from].send(peer, message).unwrap();
        }
    }
    let end_ns = rounds * 2 * link.delay_ns;
    let mut arrived = vec![0_u64; senders + 1];
    let mut before = (0, 0);
    while world.step(end_ns) {
        if world.now_ns < end_ns / 2 {
            before = (world.dropped, world.sent);
        }
        while let Some(event) = world.endpoints[0].poll_event() {
            let Event::Message(peer, message) = event else {
                continue;
            };
            let from = world.endpoints[0].address(peer).unwrap();
            if world.now_ns >= end_ns / 2 {
                arrived[from] += message.data.len() as u64;
            }
            let next = plain(Class::Unordered, vec![0; BYTES]);
            world.endpoints[from]
                .send(peers[from].unwrap(), next)
                .unwrap();
        }
    }
    // A datagram of 1452 bytes has 1414 bytes of a message, and 1518 on the wire.
    let whole = link.rate * (end_ns / 2) as f64 * 1414.0 / 1518.0;
    Share {
        senders: arrived[1..]
            .iter()
            .map(|bytes| *bytes as f64 / whole)
            .collect(),
        dropped: (world.dropped - before.0) as f64 / (world.sent - before.1) as f64,
    }
}

/// Links of all speeds: rate in Gb/s, round trip in µs, bytes of the port.
const LINKS: [(f64, u64, u64); 7] = [
    (0.2, 1_000, 1 << 20),
    (0.2, 1_000, 32 << 10),
    (1.0, 50, 64 << 10),
    (10.0, 30, 64 << 10),
    (10.0, 30, 1 << 20),
    (100.0, 20, 1 << 20),
    (100.0, 20, 64 << 10),
];

fn link((gbps, rtt_us, port_bytes): (f64, u64, u64), loss: f64) -> Link {
    Link {
        rate: gbps / 8.0,
        delay_ns: rtt_us * 500,
        port_bytes,
        loss,
    }
}

#[test]
fn stream__link_without_loss__fills_it_and_overflows_the_port_rarely() {
    for named in LINKS {
        let share = streams(link(named, 0.0), 1, 600);
        assert!(
            share.total() > 0.95 && share.dropped < 0.02,
            "{named:?} {share:?}"
        );
    }
}

#[test]
fn stream__random_loss__does_not_stop_it() {
    for named in LINKS {
        for (loss, least) in [(0.001, 0.8), (0.01, 0.75), (0.05, 0.5)] {
            let share = streams(link(named, loss), 1, 600);
            assert!(share.total() > least, "{named:?} {loss} {share:?}");
        }
    }
    for named in &LINKS[..5] {
        let share = streams(link(*named, 0.2), 1, 600);
        assert!(share.total() > 0.5, "{named:?} {share:?}");
    }
}

#[test]
fn streams__that_began_in_each_others_queue__share_the_link() {
    for named in &LINKS[..2] {
        let share = streams(link(*named, 0.0), 3, 15_000);
        assert!(
            share.senders.iter().all(|sender| *sender > 0.2),
            "{named:?} {share:?}"
        );
    }
}

/// The handshake repeats its first message before the answer can be there.
#[test]
fn stream__path_longer_than_the_handshakes_timer__fills_it() {
    let share = streams(link((0.1, 30_000, 1 << 20), 0.0), 1, 100);
    assert!(share.total() > 0.9, "{share:?}");
}
