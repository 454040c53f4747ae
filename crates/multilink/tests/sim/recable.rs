//! Cables that are swapped, and links that fail at different ends of the same switch.

use crate::frames::Shape;
use crate::station::Pace;
use crate::world::{Layout, LinkPlan, MS, Plan, S, World};
use kumi_lab::topology::{Direction, LinkChange};

fn world(layout: Layout, hosts: usize) -> World {
    let plan = Plan {
        hosts,
        layout,
        keys: vec![7; hosts],
        ..Plan::two_hosts(vec![LinkPlan::new(100); 2])
    };
    let mut world = World::new(plan);
    world.run_until_connected(5 * S);
    world
}

fn load_both_ways(world: &mut World) {
    world.start_sized(0, 1, Shape::Tcp, Pace::Every(4 * MS), None, 20_000..=20_000);
    world.start(1, 0, Shape::Udp, Pace::Every(MS), None);
    world.run_for(200 * MS);
}

/// Asserts that frames sent from now on arrive at the pace of the programs.
fn assert_flows(world: &mut World) {
    let from_ns = world.now_ns();
    let delivered_before = world.account.borrow().delivered;
    world.run_for(200 * MS);
    let delivered = world.account.borrow().delivered - delivered_before;
    assert!(delivered > 150, "{delivered} frames{}", world.paths());
    let until_ns = world.now_ns();
    world.run_for(50 * MS);
    let hosts = world.plan.hosts;
    let missing = world.account.borrow().missing(from_ns, until_ns, hosts);
    assert!(missing.is_empty(), "{:?}{}", missing.first(), world.paths());
}

fn assert_connected(world: &World) {
    let hosts = world.plan.hosts;
    let is_connected = (0..hosts).all(|host| world.sim.node(host).is_connected(hosts));
    assert!(is_connected, "{}", world.paths());
}

#[test]
fn cables__swapped_under_load__all_paths_recover_within_two_seconds() {
    for (layout, hosts) in [(Layout::Cables, 2), (Layout::Separate, 3)] {
        let mut world = world(layout, hosts);
        load_both_ways(&mut world);
        for _ in 0..2 {
            let now_ns = world.now_ns();
            world.sim.node_mut(1).cross(0, 1, now_ns);
            world.run_for(2 * S);
            assert_connected(&world);
            assert_flows(&mut world);
        }
    }
}

#[test]
fn cables__swapped_while_unplugged_and_idle__all_paths_recover_within_two_seconds() {
    let mut world = world(Layout::Cables, 2);
    for nic in 0..2 {
        world.change(&format!("h0:eth{nic}"), LinkChange::carrier(false));
    }
    world.run_for(20 * S);
    let now_ns = world.now_ns();
    world.sim.node_mut(1).cross(0, 1, now_ns);
    for nic in 0..2 {
        world.change(&format!("h0:eth{nic}"), LinkChange::carrier(true));
    }
    world.run_for(2 * S);
    assert_connected(&world);
}

/// Returns the addresses to which `host`'s paths to `peer` send.
fn partners(world: &World, host: usize, peer: usize) -> Vec<std::net::IpAddr> {
    let address = |nic| world.sim.node(host).path(peer, nic)?.to;
    (0..2).filter_map(|nic| Some(address(nic)?.ip())).collect()
}

#[test]
fn switch__one_link_dead_at_each_end__traffic_continues_and_links_pair_again_after_healing() {
    let blackhole = LinkChange::blackhole(Direction::Both);
    for (change, heal) in [
        (blackhole, LinkChange::heal()),
        (LinkChange::carrier(false), LinkChange::carrier(true)),
    ] {
        let mut world = world(Layout::Shared, 2);
        load_both_ways(&mut world);
        world.change("h0:eth0", change.clone());
        world.change("h1:eth1", change);
        world.run_for(S);
        assert_flows(&mut world);
        world.change("h0:eth0", heal.clone());
        world.run_for(3 * S);
        world.change("h1:eth1", heal);
        world.run_for(3 * S);
        assert_connected(&world);
        assert_flows(&mut world);
        for (host, peer) in [(0, 1), (1, 0)] {
            let mut addresses = partners(&world, host, peer);
            addresses.sort();
            addresses.dedup();
            assert_eq!(addresses.len(), 2, "two paths of h{host} share a partner");
        }
    }
}

#[test]
fn switch__link_dead_at_one_end__its_path_does_not_take_the_partner_of_another() {
    let mut world = world(Layout::Shared, 2);
    load_both_ways(&mut world);
    world.change("h0:eth0", LinkChange::blackhole(Direction::Both));
    world.run_for(2 * S);
    assert_flows(&mut world);
    let state = |nic| world.sim.node(1).path(0, nic).map(|path| path.state.name());
    assert_eq!((state(0), state(1)), (Some("down"), Some("up")));
}

#[test]
fn links__all_flapping_together__are_used_whenever_they_answer() {
    let mut world = world(Layout::Cables, 2);
    world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
    for _ in 0..12 {
        for has_carrier in [false, true] {
            for nic in 0..2 {
                world.change(&format!("h0:eth{nic}"), LinkChange::carrier(has_carrier));
            }
            world.run_for(300 * MS);
        }
        assert_flows(&mut world);
    }
}

#[test]
fn peer__crashing_repeatedly__is_reached_within_two_seconds_each_time() {
    let mut world = world(Layout::Cables, 2);
    world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
    for _ in 0..8 {
        for nic in 0..2 {
            world.change(
                &format!("h1:eth{nic}"),
                LinkChange::blackhole(Direction::Both),
            );
        }
        world.run_for(700 * MS);
        let now_ns = world.now_ns();
        world.sim.node_mut(1).restart(now_ns);
        for nic in 0..2 {
            world.change(&format!("h1:eth{nic}"), LinkChange::heal());
        }
        world.run_for(2 * S);
        assert_flows(&mut world);
    }
}
