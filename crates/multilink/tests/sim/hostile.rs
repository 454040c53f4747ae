//! Datagrams that no member of the cluster sent, and recorded datagrams that are sent again.

use crate::frames::Shape;
use crate::station::{Pace, Station};
use crate::world::{Layout, LinkPlan, MS, Plan, S, World};
use fastrand::Rng;
use kumi_lab::topology::{Direction, Faults, LinkChange, Probability};
use kumi_multilink::handshake::Initiator;
use kumi_multilink::secure::{ClusterKey, Seal};
use kumi_multilink::wire::{Hello, Kind, Params, kind_of};

/// A received datagram: its NIC, its sender and its bytes.
type Captured = (usize, std::net::SocketAddr, Vec<u8>);

fn params(node: u64) -> Params {
    Params {
        node,
        instance: 5,
        sent_at_ns: 5,
        knows: 0,
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

/// Returns the datagrams that h1 received during traffic in both directions.
fn capture(world: &mut World) -> Vec<Captured> {
    world.sim.node_mut(1).is_capturing = true;
    world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
    world.start(1, 0, Shape::Tcp, Pace::Every(10 * MS), None);
    world.run_for(2 * S);
    world.sim.node_mut(1).is_capturing = false;
    world.sim.node_mut(1).captured.drain(..).collect()
}

#[test]
fn datagrams__replayed_forged_or_truncated__deliver_nothing_and_disturb_nothing() {
    let mut world = World::pair(vec![LinkPlan::new(100); 2]);
    let begin_ns = world.now_ns();
    let captured = capture(&mut world);
    let rng = &mut Rng::with_seed(1);
    for _ in 0..20 {
        for (nic, from, datagram) in &captured {
            let now_ns = world.now_ns();
            let mut hostile = datagram.clone();
            match rng.u8(0..4) {
                0 => {}
                1 => hostile.truncate(rng.usize(..hostile.len())),
                2 => {
                    let offset = rng.usize(..hostile.len());
                    hostile[offset] ^= 1 << rng.u8(0..8);
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
    world.assert_all_arrived(begin_ns); // a frame delivered twice panics in the account
    let counters = world.sim.node(1).core.counters();
    assert!(
        counters.replayed > 1000 && counters.forged > 100,
        "{counters:?}"
    );
    assert!(
        world.sim.node(1).is_connected(2) && world.sim.node(0).is_connected(2),
        "{}",
        world.paths()
    );
    assert_eq!(world.sim.node(1).core.peers().count(), 1);
}

/// Returns the handshake messages and hellos that `host` receives while `peer` restarts `times`
/// times.
fn record(world: &mut World, host: usize, peer: usize, times: u32) -> Vec<Captured> {
    world.sim.node_mut(host).is_capturing = true;
    for _ in 0..times {
        let now_ns = world.now_ns();
        world.sim.node_mut(peer).restart(now_ns);
        world.run_for(2 * S);
        world
            .sim
            .node_mut(host)
            .captured
            .retain(|(_, _, datagram)| {
                matches!(
                    kind_of(datagram),
                    Ok(Kind::Init | Kind::Reply | Kind::Hello)
                )
            });
    }
    world.sim.node_mut(host).is_capturing = false;
    world.sim.node_mut(host).captured.drain(..).collect()
}

/// Asserts that frames sent from now on arrive at the pace of a program that sends every
/// millisecond.
fn assert_flows(world: &mut World) {
    let delivered_before = world.account.borrow().delivered;
    world.run_for(200 * MS);
    let delivered = world.account.borrow().delivered - delivered_before;
    assert!(delivered > 150, "{delivered} frames{}", world.paths());
}

#[test]
fn init__duplicated_by_the_network__still_connects_a_restarted_peer() {
    for host in 0..2 {
        let mut world = World::pair(vec![LinkPlan::new(100); 2]);
        world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
        for nic in ["h0:eth0", "h0:eth1"] {
            let faults = Faults {
                duplicate: Probability::new(1.0).unwrap(),
                ..Faults::default()
            };
            world.change(
                nic,
                LinkChange {
                    direction: Direction::Both,
                    faults: Some(faults),
                    ..LinkChange::default()
                },
            );
        }
        world.run_for(100 * MS);
        let now_ns = world.now_ns();
        world.sim.node_mut(host).restart(now_ns);
        world.run_for(2 * S);
        assert_flows(&mut world);
    }
}

#[test]
fn init__replayed_within_the_round_trip_of_a_genuine_init__does_not_displace_it() {
    let remote = LinkPlan {
        delay_us: 2_000,
        ..LinkPlan::new(100)
    };
    let mut world = World::pair(vec![remote; 2]);
    world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
    let recordings = record(&mut world, 1, 0, 3);
    assert!(
        recordings
            .iter()
            .any(|(_, _, d)| kind_of(d) == Ok(Kind::Init))
    );
    let now_ns = world.now_ns();
    world.sim.node_mut(0).restart(now_ns);
    for _ in 0..2000 {
        world.run_for(MS);
        let now_ns = world.now_ns();
        for (nic, from, datagram) in &recordings {
            let mut copy = datagram.clone();
            world
                .sim
                .node_mut(1)
                .receive(*nic, *from, &mut copy, now_ns);
        }
    }
    assert_flows(&mut world);
}

#[test]
fn hello__replayed_from_a_past_instance__triggers_at_most_one_dial() {
    let mut world = World::pair(vec![LinkPlan::new(100); 2]);
    world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
    let recordings = record(&mut world, 0, 1, 3);
    let hellos = recordings
        .iter()
        .filter(|(_, _, datagram)| kind_of(datagram) == Ok(Kind::Hello));
    let hellos: Vec<&Captured> = hellos.collect();
    let keyed_at_ns = |world: &World| {
        let mut peers = world.sim.node(0).core.peers();
        peers.find_map(|peer| peer.keyed_at_ns())
    };
    let replay = |world: &mut World, seconds: u64| {
        for _ in 0..seconds * 100 {
            world.run_for(10 * MS);
            let now_ns = world.now_ns();
            for (nic, from, datagram) in &hellos {
                let mut copy = datagram.clone();
                world
                    .sim
                    .node_mut(0)
                    .receive(*nic, *from, &mut copy, now_ns);
            }
        }
    };
    replay(&mut world, 8);
    let before = keyed_at_ns(&world);
    replay(&mut world, 5);
    assert_eq!(
        keyed_at_ns(&world),
        before,
        "old hellos had it dialled again"
    );
    assert_flows(&mut world);
}

/// An attacker on the path. It sends recorded datagrams unchanged, altered or from other addresses,
/// and random ones.
struct Attacker {
    recordings: Vec<Captured>,
    rng: Rng,
}

impl Attacker {
    /// Sends ten datagrams per millisecond to each of `hosts`, for `ns`.
    fn flood(&mut self, world: &mut World, hosts: &[usize], ns: u64) {
        for _ in 0..ns / MS {
            world.run_for(MS);
            let now_ns = world.now_ns();
            for host in hosts {
                for _ in 0..10 {
                    let (nic, from, mut datagram) = self.datagram();
                    world
                        .sim
                        .node_mut(*host)
                        .receive(nic, from, &mut datagram, now_ns);
                }
            }
        }
    }

    fn datagram(&mut self) -> Captured {
        let (nic, from, datagram) = &self.recordings[self.rng.usize(..self.recordings.len())];
        let (mut from, mut datagram) = (*from, datagram.clone());
        match self.rng.u8(..10) {
            0 => self.rng.fill(&mut datagram[4..]),
            1 => datagram[self.rng.usize(4..60)] ^= 1,
            2 => from = Station::stranger(*nic),
            _ => {}
        }
        (*nic, from, datagram)
    }
}

/// Returns three hosts and an attacker. The last host is still cut off and unknown to the others.
/// The attacker has recorded handshakes of the first two hosts, with 5000 Inits of past instances.
fn hosts_under_attack() -> (World, Attacker) {
    let plan = Plan {
        hosts: 3,
        layout: Layout::Separate,
        keys: vec![7; 3],
        ..Plan::two_hosts(vec![LinkPlan::new(100); 2])
    };
    let mut world = World::new(plan);
    for nic in 0..2 {
        let blackhole = LinkChange::blackhole(Direction::Both);
        world.change(&format!("h2:eth{nic}"), blackhole);
    }
    world.run_for(2 * S);
    world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
    let mut recordings = record(&mut world, 1, 0, 2);
    let (nic, from, _) = recordings[0];
    let key = ClusterKey::from_bytes([7; 32]);
    // More Inits than an endpoint remembers.
    recordings.extend((0..5000).map(|instance| {
        let params = Params {
            instance,
            ..params(1 + instance % 2)
        };
        (nic, from, Initiator::start(&key, &params).1)
    }));
    let rng = Rng::with_seed(1);
    (world, Attacker { recordings, rng })
}

#[test]
fn handshakes__10000_junk_messages_per_second__do_not_keep_a_peer_out() {
    let (mut world, mut attacker) = hosts_under_attack();
    attacker.flood(&mut world, &[0, 1], 3 * S);
    for nic in 0..2 {
        world.change(&format!("h2:eth{nic}"), LinkChange::heal());
    }
    attacker.flood(&mut world, &[0, 1, 2], 2 * S);
    assert!(
        (0..3).all(|host| world.sim.node(host).is_connected(3)),
        "{}",
        world.paths()
    );
    for host in 0..3 {
        let now_ns = world.now_ns();
        world.sim.node_mut(host).restart(now_ns);
        attacker.flood(&mut world, &[0, 1, 2], 2 * S);
        assert!(
            (0..3).all(|host| world.sim.node(host).is_connected(3)),
            "{}",
            world.paths()
        );
    }
    let counters = world.sim.node(1).core.counters();
    assert!(
        counters.handshakes_challenged > 1000 && counters.wrong_key > 1000,
        "{counters:?}"
    );
    assert_eq!(world.sim.node(1).core.peers().count(), 2);
}

#[test]
fn handshakes__10000_junk_messages_per_second__do_not_prevent_rekeying() {
    let (mut world, mut attacker) = hosts_under_attack();
    let keyed_ns = |world: &World| {
        let station = world.sim.node(0);
        let mut peers = station.core.peers();
        let keyed = peers.find_map(|peer| (peer.node() == 2).then(|| peer.keyed_at_ns())?);
        (keyed.unwrap(), station.clock_ns(world.now_ns()))
    };
    let (before_ns, now_ns) = keyed_ns(&world);
    world.run_for(before_ns + 119 * S - now_ns);
    attacker.flood(&mut world, &[0, 1], 3 * S);
    let (after_ns, now_ns) = keyed_ns(&world);
    assert!(after_ns > before_ns && now_ns - after_ns < 2 * S + 100 * MS);
    assert_flows(&mut world);
}

#[test]
fn cluster_key__wrong_key__is_counted_and_never_answered() {
    let mut plan = Plan::two_hosts(vec![LinkPlan::new(100); 2]);
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
fn handshake_reply__fresh_or_replayed_init__never_amplifies() {
    let mut world = World::pair(vec![LinkPlan::new(100); 2]);
    world.run_for(S);
    let (_, init) = Initiator::start(&ClusterKey::from_bytes([7; 32]), &params(9));
    let (init_bytes, sent_before) = (init.len() as u64, world.sim.node(0).sent_bytes);
    let (now_ns, from) = (world.now_ns(), Station::stranger(0));
    world
        .sim
        .node_mut(0)
        .receive(0, from, &mut init.clone(), now_ns);
    world.run_for(0);
    let answer = world.sim.node(0).sent_bytes - sent_before;
    assert!(
        answer > 0 && answer <= init_bytes,
        "{answer} B answer {init_bytes} B"
    );
    // The same Init again is a replay and gets no answer.
    let sent_before = world.sim.node(0).sent_bytes;
    world
        .sim
        .node_mut(0)
        .receive(0, from, &mut init.clone(), now_ns);
    world.run_for(0);
    assert_eq!(world.sim.node(0).sent_bytes, sent_before);
}
