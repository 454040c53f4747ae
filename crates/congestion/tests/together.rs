//! Short messages of many connections at once, as in an all-to-all between two sites.

use kumi_congestion::control::Control;
use kumi_congestion::kumi::Kumi;
use kumi_congestion::rivals::cubic::Cubic;
use kumi_congestion::simulation::path::Path;
use kumi_congestion::simulation::world::{Load, World};

/// Messages of each connection.
const MESSAGES: usize = 12;

/// Returns the repairs of `connections` that send messages of `packets` packets at once.
fn repairs(path: Path, own: impl Fn() -> Box<dyn Control>, connections: u64, packets: u64) -> u64 {
    let mut world = World::new(path, 1);
    // Hosts do not begin at the same time: those of an all-to-all differ by some milliseconds.
    let spread_ns = path.rtt_ns / 2;
    let added: Vec<usize> = (0..connections)
        .map(|at| {
            let load = Load {
                begin_ns: at % 8 * spread_ns / 8,
                packets,
                messages: MESSAGES,
                pause_ns: 3 * path.rtt_ns,
            };
            world.add(own(), load)
        })
        .collect();
    world.run(u64::MAX);
    added.iter().map(|at| world.repairs(*at).0).sum()
}

#[test]
fn messages__of_many_connections_at_once__lose_less_than_by_cubic() {
    // Rate in Mb/s, round trip in ms, buffer in packets, connections, packets of a message. The
    // first is FT of the NAS benchmarks on the path of the GridMPI paper.
    let cases = [
        (500.0, 20.0, 87.0, 64, 23),
        (500.0, 10.0, 87.0, 32, 23),
        (200.0, 40.0, 87.0, 32, 45),
        (1000.0, 20.0, 350.0, 64, 45),
        (100.0, 20.0, 87.0, 16, 23),
    ];
    let (mut own, mut by_cubic) = (0, 0);
    for (mbps, ms, buffer_packets, connections, packets) in cases {
        let path = Path {
            bits_ps: mbps * 1e6,
            host_bits_ps: mbps * 16e6,
            rtt_ns: (ms * 1e6) as u64,
            buffer_packets,
            loss: 0.0,
            late: 0.0,
            hold_acks_ns: 0,
        };
        own += repairs(
            path,
            || Box::new(Kumi::default().in_all_to_all()),
            connections,
            packets,
        );
        by_cubic += repairs(path, || Box::new(Cubic::default()), connections, packets);
    }
    // 1099 and 1674; 1687 if what does not fill the window leaves at once, as in other phases.
    assert!(own * 5 < by_cubic * 4, "{own} repairs, CUBIC {by_cubic}");
}

#[test]
fn messages__through_a_port_shallower_than_a_packet_of_each__lose_little_at_the_fair_share() {
    // The trunk of two switches of eight hosts each, with 32 KB: 21 packets for 64 connections.
    let path = Path {
        bits_ps: 100e6,
        host_bits_ps: 100e6,
        rtt_ns: 100_000,
        buffer_packets: 21.0,
        loss: 0.0,
        late: 0.0,
        hold_acks_ns: 0,
    };
    for packets in [23, 181] {
        let kumi = || Kumi::default().in_all_to_all();
        // 100 Mb/s of frames of 1538 bytes, less one acknowledgement of 90 bytes for two of them.
        let share_pps = (100e6 / 8.0 / 1583.0 / 64.0) as u64;
        let at_share = repairs(
            path,
            || Box::new(kumi().with_fair_share(share_pps)),
            64,
            packets,
        );
        let without = repairs(path, || Box::new(kumi()), 64, packets);
        let by_cubic = repairs(path, || Box::new(Cubic::default()), 64, packets);
        println!("{packets} packets: {at_share} at the share, {without} without, CUBIC {by_cubic}");
        assert!(
            at_share * 3 < without.min(by_cubic),
            "{at_share} repairs, {without} without, CUBIC {by_cubic}"
        );
    }
}

#[test]
fn messages__that_meet_fewer_and_fewer_others__are_not_held_at_the_first_rate() {
    // Sixteen hosts on one switch: together at first, and then further and further apart.
    let path = Path {
        bits_ps: 25e6,
        host_bits_ps: 25e6,
        rtt_ns: 2_000_000,
        buffer_packets: 43.0,
        loss: 0.0,
        late: 0.0,
        hold_acks_ns: 0,
    };
    let took_s = |own: fn() -> Box<dyn Control>| {
        let mut world = World::new(path, 1);
        let added: Vec<usize> = (0..15)
            .map(|at| {
                let load = Load {
                    begin_ns: at * 2_000_000,
                    packets: 45,
                    messages: MESSAGES,
                    pause_ns: 50_000_000 + at * 40_000_000,
                };
                world.add(own(), load)
            })
            .collect();
        world.run(u64::MAX);
        let all = added.iter().flat_map(|at| world.took_ns(*at));
        all.sum::<u64>() as f64 / 1e9
    };
    let own_s = took_s(|| Box::new(Kumi::default().in_all_to_all()));
    let by_cubic_s = took_s(|| Box::new(Cubic::default()));
    println!("{own_s:.2} s, CUBIC {by_cubic_s:.2} s");
    // 15.77 and 14.17 s; 21.20 s if the rate of the first messages is the pace.
    assert!(
        own_s < 1.2 * by_cubic_s,
        "{own_s:.2} s, CUBIC {by_cubic_s:.2} s"
    );
}
