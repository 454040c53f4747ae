//! Tests of 64 hosts in the lab's simulated network: the time to join, and the memory per peer.
//!
//! This is a test program of its own because it reads the memory of its process.

// This program uses a part of the simulated world of `sim`.
#[allow(dead_code)]
#[path = "sim/account.rs"]
mod account;
#[allow(dead_code)]
#[path = "sim/frames.rs"]
mod frames;
#[allow(dead_code)]
#[path = "sim/station.rs"]
mod station;
#[allow(dead_code)]
#[path = "sim/world.rs"]
mod world;

use frames::Shape;
use station::Pace;
use world::{Layout, LinkPlan, MS, Plan, S, World};

const HOSTS: usize = 64;

/// Memory that an idle peer may take, in bytes. `PEERS_MAX` states 25 KB. The measurement includes
/// the queues of the simulated network.
const PEER_BYTES_MAX: usize = 40_000;

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split_whitespace().nth(1).expect("resident pages");
    pages.parse::<usize>().expect("a number") * 4096
}

#[test]
fn cluster__64_hosts__form_a_full_mesh_in_bounded_time_and_memory() {
    let before_bytes = resident_bytes();
    let mut world = World::new(Plan {
        hosts: HOSTS,
        links: vec![LinkPlan::new(1000)],
        layout: Layout::Shared,
        keys: vec![7; HOSTS],
        ..Plan::two_hosts(Vec::new())
    });
    world.run_until_connected(5 * S);
    let joined_ns = world.now_ns();
    assert!(joined_ns < 3 * S, "joined after {} ms", joined_ns / MS);
    world.run_for(200 * MS);
    for host in 0..HOSTS {
        let core = &world.sim.node(host).core;
        assert_eq!(core.peers().filter(|peer| peer.is_up()).count(), HOSTS - 1);
        let counters = core.counters();
        assert_eq!((counters.malformed, counters.forged), (0, 0), "host {host}");
    }
    let memory_bytes = resident_bytes().saturating_sub(before_bytes);
    let peer_bytes = memory_bytes / (HOSTS * (HOSTS - 1));
    println!(
        "joined after {} ms, {peer_bytes} B per peer",
        joined_ns / MS
    );
    assert!(peer_bytes <= PEER_BYTES_MAX, "{peer_bytes} B per peer");
    // Each host sends to the host that is half the cluster away.
    let from_ns = world.now_ns();
    for host in 0..HOSTS {
        let to = (host + HOSTS / 2) % HOSTS;
        world.start(host, to, Shape::Udp, Pace::Every(10 * MS), Some(10));
    }
    world.run_for(300 * MS);
    world.stop();
    world.assert_all_arrived(from_ns);
}

#[test]
fn cluster__one_of_16_hosts_restarted__reaches_all_others_within_one_second() {
    let mut world = World::new(Plan {
        hosts: 16,
        links: vec![LinkPlan::new(1000)],
        layout: Layout::Shared,
        keys: vec![7; 16],
        ..Plan::two_hosts(Vec::new())
    });
    world.run_until_connected(5 * S);
    let start_ns = world.now_ns();
    world.sim.node_mut(5).restart(start_ns);
    world.run_until_connected(5 * S);
    let duration_ms = (world.now_ns() - start_ns) / MS;
    println!("up again after {duration_ms} ms");
    assert!(duration_ms < 1000, "up again after {duration_ms} ms");
}
