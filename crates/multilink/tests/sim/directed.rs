//! Scenarios with numeric limits of their own.

use crate::frames::Shape;
use crate::station::{Pace, Station};
use crate::world::{LinkPlan, MS, S, US, World};
use kumi_lab::topology::{Direction, LinkChange, Probability};
use kumi_multilink::endpoint::Event;
use kumi_multilink::liveness::State;

const BURST: std::ops::RangeInclusive<usize> = 60_000..=60_000;

/// Returns two links of `rate_mbps` that have carried one stream from h0 to h1 for 200 ms.
fn pair_under_load(rate_mbps: u64) -> World {
    let mut world = World::pair(vec![LinkPlan::new(rate_mbps); 2]);
    world.start_sized(0, 1, Shape::Tcp, Pace::Backlogged, None, BURST);
    world.run_for(200 * MS);
    world.account.borrow_mut().gaps_start_ns = world.now_ns();
    world
}

/// Returns the time at which h0's path over `link` first changed to `state` after `from_ns`.
fn change_ns(world: &World, link: u8, state: State, from_ns: u64) -> Option<u64> {
    let station: &Station = world.sim.node(0);
    let change = station.events.iter().find(|(at_ns, event)| {
        let is_match = |event: &Event| {
            matches!(event, Event::Path { link: l, change, .. } if *l == link && change.to == state)
        };
        *at_ns >= from_ns && is_match(event)
    });
    change.map(|(at_ns, _)| *at_ns)
}

fn tx_bytes(world: &World, link: usize) -> u64 {
    world
        .sim
        .node(0)
        .path(1, link)
        .map_or(0, |path| path.counters.tx_bytes)
}

#[test]
fn load__two_healthy_links__is_delivered_at_the_sum_of_both_rates() {
    let mut world = World::pair(vec![LinkPlan::new(200); 2]);
    let begin_ns = world.now_ns();
    world.start_sized(0, 1, Shape::Tcp, Pace::Backlogged, None, BURST);
    world.run_for(S);
    let bytes = world.account.borrow().delivered_bytes();
    world.stop();
    world.assert_all_arrived(begin_ns);
    world.assert_order();
    // 1420 B of payload take 1538 B on the wire.
    let ceiling = 2.0 * 200e6 / 8.0 * 1420.0 / 1538.0;
    assert!(
        bytes as f64 > 0.97 * ceiling,
        "{bytes} B of {ceiling} in a second"
    );
}

#[test]
fn blackhole__one_way_under_load__is_detected_within_50_ms_and_loses_no_frame() {
    let mut world = pair_under_load(200);
    let cut_ns = world.now_ns();
    world.change("h0:eth0", LinkChange::blackhole(Direction::Tx));
    world.run_for(500 * MS);
    world.stop();
    let down_ns = change_ns(&world, 0, State::Down, cut_ns).expect("it is down") - cut_ns;
    assert!(down_ns <= 50 * MS, "down after {down_ns} ns");
    let gap_ns = world.account.borrow().gap_max_ns();
    assert!(gap_ns <= 100 * MS, "nothing delivered for {gap_ns} ns");
    world.assert_all_arrived(0);
    world.assert_order();
}

#[test]
fn carrier__lost_under_load__loses_no_frame_and_interrupts_at_most_20_ms() {
    let mut world = pair_under_load(200);
    let cut_ns = world.now_ns();
    world.change("h0:eth0", LinkChange::carrier(false));
    world.run_for(500 * MS);
    world.change("h0:eth0", LinkChange::carrier(true));
    world.run_for(1500 * MS);
    world.stop();
    let gap_ns = world.account.borrow().gap_max_ns();
    assert!(gap_ns <= 20 * MS, "nothing delivered for {gap_ns} ns");
    world.assert_all_arrived(0);
    let healed_ns = cut_ns + 500 * MS;
    let up_ns = change_ns(&world, 0, State::Up, healed_ns).expect("it is used again") - healed_ns;
    assert!(up_ns <= S, "in use again after {up_ns} ns");
}

#[test]
fn loss__one_percent_on_one_link__is_repaired_without_a_flap() {
    let mut world = World::pair(vec![LinkPlan::new(50); 2]);
    let begin_ns = world.now_ns();
    world.change("h0:eth0", LinkChange::loss(Probability::new(0.01).unwrap()));
    world.start_sized(0, 1, Shape::Tcp, Pace::Every(10 * MS), None, BURST);
    world.run_for(60 * S);
    let used = [tx_bytes(&world, 0), tx_bytes(&world, 1)];
    world.stop();
    world.assert_all_arrived(begin_ns);
    for host in 0..2 {
        let events = &world.sim.node(host).events;
        let flaps = events
            .iter()
            .filter(|(at_ns, event)| *at_ns > begin_ns && matches!(event, Event::Path { .. }));
        assert_eq!(flaps.count(), 0);
    }
    let share = used[0] as f64 / (used[0] + used[1]) as f64;
    assert!(share > 0.4, "the link that loses 1 % carries {share}");
}

#[test]
fn link__flapping_at_1_hz__is_rarely_used_and_does_not_slow_the_other_link() {
    let mut world = World::pair(vec![LinkPlan::new(20); 2]);
    let begin_ns = world.now_ns();
    world.start_sized(0, 1, Shape::Tcp, Pace::Backlogged, None, 20_000..=20_000);
    for second in 0..30 {
        let at_ns = begin_ns + second * S;
        world
            .sim
            .change_at(at_ns, "h0:eth0", LinkChange::carrier(false));
        world
            .sim
            .change_at(at_ns + 500 * MS, "h0:eth0", LinkChange::carrier(true));
    }
    let mut used_ms = 0;
    for _ in 0..3000 {
        world.run_for(10 * MS);
        let is_up = world
            .sim
            .node(0)
            .path(1, 0)
            .is_some_and(|path| path.state == State::Up);
        used_ms += if is_up { 10 } else { 0 };
    }
    let bytes = world.account.borrow().delivered_bytes() as f64;
    assert!(used_ms <= 1000, "used for {used_ms} ms of 30 s");
    let link_bytes = 30.0 * 20e6 / 8.0 * 1420.0 / 1538.0;
    assert!(bytes > 0.95 * link_bytes, "{bytes} B of {link_bytes}");
    world.stop();
    world.assert_all_arrived(begin_ns);
}

#[test]
fn links__1000_and_300_mbps__each_carry_at_least_90_percent_of_their_rate() {
    for claimed_mbps in [300, 1000] {
        let slow = LinkPlan {
            claimed_mbps,
            ..LinkPlan::new(300)
        };
        let mut world = World::pair(vec![LinkPlan::new(1000), slow]);
        world.start_sized(0, 1, Shape::Tcp, Pace::Backlogged, None, BURST);
        world.run_for(300 * MS);
        let before = (tx_bytes(&world, 0), tx_bytes(&world, 1));
        world.run_for(500 * MS);
        let bits = |after: u64, before: u64| (after - before) as f64 * 8.0 / 0.5;
        let rates = (
            bits(tx_bytes(&world, 0), before.0),
            bits(tx_bytes(&world, 1), before.1),
        );
        // The sender counts 1514 of the 1538 B that a full datagram takes on the wire.
        assert!(
            rates.0 > 0.9e9 * 1514.0 / 1538.0,
            "claimed {claimed_mbps}: {rates:?}"
        );
        assert!(
            rates.1 > 0.27e9 * 1514.0 / 1538.0,
            "claimed {claimed_mbps}: {rates:?}"
        );
        world.stop();
        world.assert_all_arrived(0);
    }
}

#[test]
fn peer__restarted__frames_flow_again_within_two_seconds() {
    for host in 0..2 {
        let mut world = World::pair(vec![LinkPlan::new(100); 2]);
        world.start(0, 1, Shape::Udp, Pace::Every(MS), None);
        world.start(1, 0, Shape::Tcp, Pace::Every(5 * MS), None);
        world.run_for(500 * MS);
        let now_ns = world.now_ns();
        world.sim.node_mut(host).restart(now_ns);
        world.run_for(2 * S);
        let resume_ns = world.now_ns();
        world.run_for(S);
        world.stop();
        world.assert_all_arrived(resume_ns);
    }
}

#[test]
fn rekey__after_120_s__loses_nothing() {
    let mut world = World::pair(vec![LinkPlan::new(20); 2]);
    let begin_ns = world.now_ns();
    world.start(0, 1, Shape::Udp, Pace::Every(2 * MS), None);
    world.start_sized(
        1,
        0,
        Shape::Tcp,
        Pace::Every(20 * MS),
        None,
        20_000..=20_000,
    );
    world.run_for(125 * S);
    world.stop();
    world.assert_all_arrived(begin_ns);
    assert_eq!(world.account.borrow().parts, 0);
    let overtaken = world.account.borrow().overtaken(1, 0) + world.account.borrow().overtaken(0, 1);
    assert_eq!(overtaken, 0);
}

#[test]
fn links__unequal_delays__deliver_everything_in_order_after_idle_periods() {
    let remote = LinkPlan {
        delay_us: 9_000,
        ..LinkPlan::new(100)
    };
    let mut world = World::pair(vec![LinkPlan::new(100), remote]);
    let begin_ns = world.now_ns();
    world.start_sized(
        0,
        1,
        Shape::UdpBurst,
        Pace::Every(700 * MS),
        None,
        30_000..=60_000,
    );
    world.start(0, 1, Shape::Udp, Pace::Every(900 * US), None);
    world.run_for(5 * S);
    world.stop();
    world.assert_all_arrived(begin_ns);
    world.assert_order();
}
