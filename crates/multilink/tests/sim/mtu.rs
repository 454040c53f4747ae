//! Switches that pass smaller frames than the NICs send, and links of different MTUs that are added
//! and removed.

use crate::frames::Shape;
use crate::station::Pace;
use crate::world::{LinkPlan, MS, Plan, S, World};

fn jumbo(rate_mbps: u64) -> LinkPlan {
    LinkPlan {
        mtu: 9000,
        ..LinkPlan::new(rate_mbps)
    }
}

/// Returns whether every path of `host` carries datagrams of `bytes` to `bytes + 31` bytes.
fn carries(world: &World, host: usize, bytes: usize) -> bool {
    let paths =
        (0..world.plan.links.len()).filter_map(|nic| world.sim.node(host).path(1 - host, nic));
    let sizes: Vec<usize> = paths.map(|path| path.datagram_bytes.0).collect();
    sizes.iter().all(|size| (bytes..bytes + 32).contains(size))
}

fn delivered_bytes(world: &mut World, ns: u64) -> f64 {
    let bytes_before = world.account.borrow().delivered_bytes();
    world.run_for(ns);
    (world.account.borrow().delivered_bytes() - bytes_before) as f64
}

#[test]
fn switch__limited_to_1500_between_jumbo_nics__carries_the_full_rate_of_1500() {
    for clamped in [&[0, 1][..], &[1]] {
        let mut world = World::new(Plan::two_hosts(vec![jumbo(200); 2]));
        for link in clamped {
            world.clamp(*link, 1500);
        }
        world.run_until_connected(2 * S);
        world.start_sized(0, 1, Shape::Tcp, Pace::Backlogged, None, 60_000..=60_000);
        world.run_for(S);
        let bytes = delivered_bytes(&mut world, S);
        let ceiling = 2.0 * 200e6 / 8.0 * 1420.0 / 1538.0;
        assert!(
            bytes > 0.95 * ceiling,
            "{bytes} of {ceiling}{}",
            world.paths()
        );
        let begin_ns = world.now_ns();
        world.run_for(S);
        world.stop();
        world.assert_all_arrived(begin_ns);
    }
}

#[test]
fn switch__starts_to_drop_jumbo_frames__traffic_resumes_within_one_second() {
    for pace in [Pace::Every(50 * MS), Pace::Backlogged] {
        let mut world = World::pair(vec![jumbo(100); 2]);
        assert!(carries(&world, 0, 8952));
        world.start_sized(0, 1, Shape::Tcp, pace, None, 20_000..=20_000);
        world.start(1, 0, Shape::Udp, Pace::Every(5 * MS), None);
        world.run_for(500 * MS);
        for link in 0..2 {
            world.clamp(link, 1500);
        }
        world.run_for(S);
        let (begin_ns, delivered_before) = (world.now_ns(), world.account.borrow().delivered);
        world.run_for(S);
        assert!(world.account.borrow().delivered > delivered_before + 200);
        world.run_for(5 * S);
        let is_connected = (0..2).all(|host| world.sim.node(host).is_connected(2));
        assert!(is_connected, "{}", world.paths());
        assert!(carries(&world, 0, 1452), "{}", world.paths());
        for link in 0..2 {
            world.clamp(link, 9000);
        }
        world.run_for(65 * S);
        assert!(
            carries(&world, 0, 8952),
            "larger frames are not tried again"
        );
        world.stop();
        world.assert_all_arrived(begin_ns);
    }
}

#[test]
fn link__smaller_mtu_added_and_removed_under_load__causes_no_oversized_datagram() {
    let mut world = World::new(Plan::two_hosts(vec![
        jumbo(100),
        jumbo(100),
        LinkPlan::new(100),
    ]));
    let now_ns = world.now_ns();
    for host in 0..2 {
        world.sim.node_mut(host).remove_link(2, now_ns);
    }
    world.run_until_connected(5 * S);
    world.run_for(500 * MS);
    assert!(carries(&world, 0, 8952), "{}", world.paths());
    world.start_sized(0, 1, Shape::Tcp, Pace::Every(5 * MS), None, 60_000..=60_000);
    world.start_sized(1, 0, Shape::Tcp, Pace::Every(9 * MS), None, 9_000..=60_000);
    for round in 0..3 {
        // The stations assert that no datagram exceeds the MTU of its NIC.
        for host in [round % 2, 1 - round % 2] {
            world.run_for(300 * MS);
            let now_ns = world.now_ns();
            world.sim.node_mut(host).add_link(2, now_ns);
        }
        world.run_for(S);
        let begin_ns = world.now_ns();
        world.run_for(S);
        assert!(
            (0..2).all(|host| world.sim.node(host).is_connected(2)),
            "{}",
            world.paths()
        );
        let used = world
            .sim
            .node(0)
            .path(1, 2)
            .map(|path| path.counters.tx_bytes);
        assert!(
            used.is_some_and(|bytes| bytes > 1_000_000),
            "the new link carries {used:?}"
        );
        let now_ns = world.now_ns();
        for host in 0..2 {
            world.sim.node_mut(host).remove_link(2, now_ns);
        }
        world.run_for(2 * S);
        assert!(carries(&world, 0, 8952), "{}", world.paths());
        let until_ns = world.now_ns() - 100 * MS;
        let missing = world.account.borrow().missing(begin_ns, until_ns, 2);
        assert!(missing.is_empty(), "{missing:?}{}", world.paths());
    }
}
