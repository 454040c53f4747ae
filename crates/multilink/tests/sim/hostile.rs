//! Datagrams that nobody of the cluster sent, or that somebody sends again.

use crate::frames::Shape;
use crate::station::{Pace, Station};
use crate::world::{LinkPlan, MS, Plan, S, World};
use fastrand::Rng;
use kumi_multilink::handshake::Initiator;
use kumi_multilink::secure::{ClusterKey, Seal};
use kumi_multilink::wire::{Hello, Params};

fn params(node: u64) -> Params {
    Params {
        node,
        instance: 5,
        sent_at_ns: 5,
        session: 5,
        link: 0,
        seal: Seal::Encrypt,
        unit_bytes_max: 1420,
        lane: kumi_multilink::lane::Lane::ONLY,
        links: 2,
        mac: [2, 0, 0, 0, 9, 9],
        name: "stranger".into(),
    }
}

/// Datagrams h1 has received, while traffic ran both ways.
fn captured(world: &mut World) -> Vec<(usize, std::net::SocketAddr, Vec<u8>)> {
    world.sim.node_mut(1).captures = true;
    world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
    world.start(1, 0, Shape::Tcp, Pace::Every(10 * MS), None);
    world.run_for(2 * S);
    world.sim.node_mut(1).captures = false;
    world.sim.node_mut(1).captured.drain(..).collect()
}

#[test]
fn datagrams__replayed_forged_and_cut_short__deliver_nothing_and_disturb_nothing() {
    let mut world = World::pair(vec![LinkPlan::of(100); 2]);
    let begin_ns = world.now_ns();
    let captured = captured(&mut world);
    let rng = &mut Rng::with_seed(1);
    for _ in 0..20 {
        for (nic, from, datagram) in &captured {
            let now_ns = world.now_ns();
            let mut hostile = datagram.clone();
            match rng.u8(0..4) {
                0 => {}
                1 => hostile.truncate(rng.usize(..hostile.len())),
                2 => {
                    let at = rng.usize(..hostile.len());
                    hostile[at] ^= 1 << rng.u8(0..8);
                }
                _ => hostile.extend([0; 7]),
            }
            let from = if rng.bool() {
                *from
            } else {
                Station::stranger(*nic)
            };
            world
                .sim
                .node_mut(1)
                .receive(*nic, from, &mut hostile, now_ns);
        }
        world.run_for(50 * MS);
    }
    world.stop();
    world.assert_all_arrived(begin_ns); // and nothing twice: the account panics at that
    let counters = world.sim.node(1).core.counters();
    assert!(
        counters.replayed > 1000 && counters.forged > 100,
        "{counters:?}"
    );
    assert!(
        world.sim.node(1).is_whole(2) && world.sim.node(0).is_whole(2),
        "{}",
        world.paths()
    );
    assert_eq!(world.sim.node(1).core.peers().count(), 1);
}

#[test]
fn handshakes__flooding__are_limited_and_the_session_carries_on() {
    let mut world = World::pair(vec![LinkPlan::of(100); 2]);
    let begin_ns = world.now_ns();
    world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
    world.start(1, 0, Shape::Tcp, Pace::Every(10 * MS), None);
    let (_, forged) = Initiator::start(&ClusterKey::from_bytes([8; 32]), &params(9));
    let answered = world.sim.node(1).sent_bytes;
    for _ in 0..200 {
        let now_ns = world.now_ns();
        for _ in 0..20 {
            let from = Station::stranger(0);
            world
                .sim
                .node_mut(1)
                .receive(0, from, &mut forged.clone(), now_ns);
        }
        world.run_for(5 * MS);
    }
    assert!(world.sim.node(1).sent_bytes > answered);
    world.stop();
    world.assert_all_arrived(begin_ns);
    let counters = world.sim.node(1).core.counters();
    assert!(counters.handshakes_refused > 2000, "{counters:?}");
    assert_eq!(world.sim.node(1).core.peers().count(), 1);
}

#[test]
fn cluster_key__another__is_counted_and_never_answered() {
    let mut plan = Plan::two_hosts(vec![LinkPlan::of(100); 2]);
    plan.keys = vec![7, 8];
    let mut world = World::new(plan);
    world.run_for(5 * S);
    for host in 0..2 {
        let station = world.sim.node(host);
        assert_eq!(
            (station.core.peers().count(), station.sent_datagrams),
            (0, 0)
        );
        assert!(
            station.core.counters().wrong_key >= 5,
            "{:?}",
            station.core.counters()
        );
    }
    let (_, init) = Initiator::start(&ClusterKey::from_bytes([9; 32]), &params(9));
    let hello = Hello { params: params(9) }.emit(&ClusterKey::from_bytes([9; 32]));
    for datagram in [init, hello] {
        let now_ns = world.now_ns();
        let from = Station::stranger(0);
        world
            .sim
            .node_mut(0)
            .receive(0, from, &mut datagram.clone(), now_ns);
    }
    world.run_for(S);
    assert_eq!(world.sim.node(0).sent_datagrams, 0);
}

#[test]
fn answer__to_any_handshake__is_no_larger_than_the_question() {
    let mut world = World::pair(vec![LinkPlan::of(100); 2]);
    world.run_for(S);
    let (_, init) = Initiator::start(&ClusterKey::from_bytes([7; 32]), &params(9));
    let (asked, before) = (init.len() as u64, world.sim.node(0).sent_bytes);
    let (now_ns, from) = (world.now_ns(), Station::stranger(0));
    world
        .sim
        .node_mut(0)
        .receive(0, from, &mut init.clone(), now_ns);
    world.run_for(0);
    let answer = world.sim.node(0).sent_bytes - before;
    assert!(answer > 0 && answer <= asked, "{answer} B answer {asked} B");
    // The same question again is a replay, and is left without an answer.
    let before = world.sim.node(0).sent_bytes;
    world
        .sim
        .node_mut(0)
        .receive(0, from, &mut init.clone(), now_ns);
    world.run_for(0);
    assert_eq!(world.sim.node(0).sent_bytes, before);
}
