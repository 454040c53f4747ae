//! A rate that is held: what ends it, and how far its probes go.

use kumi_congestion::control::{Acknowledgement, Control, RateSample};
use kumi_congestion::kumi::Kumi;
use kumi_congestion::simulation::path::Path;
use kumi_congestion::simulation::world::{Load, World};

const RTT_US: u64 = 20_000;
/// Rate of the path, in packets per second: 500 Mb/s.
const RATE_PPS: u64 = 40_660;
/// Packets in flight.
const FLYING: u64 = RATE_PPS * RTT_US / 1_000_000;
/// Packets that a port loses at once, and time for which the host does nothing then, in µs.
const LOST: u32 = 60;
const STOLEN_US: u64 = 5_000;

/// Sends for some round trips. The host pauses in the middle of the last but one, in which packets
/// are lost.
fn send(control: &mut Kumi, round_trips: u64, now_us: &mut u64, delivered: &mut u64) {
    let began = *delivered;
    let pause_at = began + (2 * round_trips - 3) * FLYING / 2;
    control.start(*now_us);
    *now_us += RTT_US;
    while *delivered < began + round_trips * FLYING {
        *now_us += 2 * 1_000_000 / RATE_PPS;
        *delivered += 2;
        let has_paused = (pause_at..pause_at + 2).contains(delivered);
        *now_us += if has_paused { STOLEN_US } else { 0 };
        let delivered_before = began.max(delivered.saturating_sub(FLYING));
        control.acknowledge(&Acknowledgement {
            now_us: *now_us,
            rtt_us: Some(RTT_US),
            sent_us: *now_us - RTT_US,
            rtt_min_us: RTT_US,
            srtt_us: RTT_US,
            acked: 2,
            lost: if has_paused { LOST } else { 0 },
            lost_by_timer: 0,
            delivered: *delivered,
            in_flight: FLYING as u32,
            in_flight_before: FLYING as u32,
            rate: Some(RateSample {
                packets: (*delivered - delivered_before) as u32,
                interval_us: RTT_US,
                sent_us: RTT_US,
                is_app_limited: false,
                delivered_before,
            }),
            is_repairing: false,
            sent_in_repair: 0,
        });
    }
}

/// Returns a path that loses nothing but what its port has no room for. The hosts send at five
/// times its rate.
fn path(bits_ps: f64, rtt_ns: u64, buffer_packets: f64) -> Path {
    Path {
        bits_ps,
        host_bits_ps: 5.0 * bits_ps,
        rtt_ns,
        buffer_packets,
        loss: 0.0,
        late: 0.0,
        hold_acks_ns: 0,
    }
}

#[test]
fn held_rate__host_pauses_in_a_round_with_losses__is_held_further() {
    let mut control = Kumi::with_route(2 * RATE_PPS);
    let (mut now_us, mut delivered) = (1_000_000, 0);
    // The second message is sent at a rate that the connection has had.
    send(&mut control, 5, &mut now_us, &mut delivered);
    now_us += 500_000;
    send(&mut control, 5, &mut now_us, &mut delivered);
    // Without a rate that is held, the window would have been cut to less than the path holds.
    let window = u64::from(control.window());
    assert!(window > 3 * FLYING / 2, "{window}");
}

#[test]
fn probe__of_which_a_part_arrives__is_followed_by_a_short_one() {
    let path = path(500e6, RTT_US * 1000, 2.0 * FLYING as f64);
    let mut world = World::new(path, 1);
    let load = Load {
        begin_ns: 0,
        packets: 40 * FLYING,
        messages: 2,
        pause_ns: 3_000_000_000,
    };
    let connection = world.add(Box::new(Kumi::default()), load);
    // A fifth more than before: a probe of an eighth arrives in part.
    world.change(3_000_000_000, 600e6);
    let mut fastest_pps = 0;
    for at_ms in (3_000..8_000).step_by(5) {
        world.run(at_ms * 1_000_000);
        fastest_pps = fastest_pps.max(world.window(connection).1.unwrap_or(0));
    }
    assert_eq!(world.took_ns(connection).len(), 2);
    let now_pps = RATE_PPS * 6 / 5;
    assert!(fastest_pps > now_pps * 31 / 32, "{fastest_pps}");
    assert!(fastest_pps < now_pps * 17 / 16, "{fastest_pps}");
}

#[test]
fn first_restart__trains_have_shown_the_limit__overflows_no_short_port() {
    // 200 Mb/s, 100 ms, and a port of 125 KB, which a probe of a quarter overflows.
    let path = path(200e6, 100_000_000, 83.0);
    let mut world = World::new(path, 1);
    let load = Load {
        begin_ns: 0,
        packets: 725,
        messages: 4,
        pause_ns: 1_000_000_000,
    };
    let connection = world.add(Box::new(Kumi::default()), load);
    world.run(u64::MAX);
    // 94.6 ms are ideal.
    assert!(world.took_ns(connection)[3] < 100_000_000);
    assert_eq!(world.repairs(connection), (0, 0));
}

#[test]
fn rate__messages_without_a_restart__is_not_taken_from_what_was_sent() {
    // 200 Mb/s, 20 ms, 125 KB.
    let path = Path {
        hold_acks_ns: 1_000_000,
        ..path(200e6, 20_000_000, 83.0)
    };
    let mut world = World::new(path, 1);
    let load = Load {
        begin_ns: 0,
        packets: 182,
        messages: 12,
        pause_ns: 4_000_000,
    };
    let connection = world.add(Box::new(Kumi::default()), load);
    let mut fastest_pps = 0;
    for at_ms in 0.. {
        world.run(at_ms * 1_000_000);
        let sent = world.took_ns(connection).len();
        if sent == load.messages {
            break;
        }
        if sent >= load.messages - 2 {
            fastest_pps = fastest_pps.max(world.window(connection).1.unwrap_or(0));
        }
    }
    // The last two leave at the path's rate, or more.
    let rate_pps = (1e9 / path.packet_ns()) as u64;
    assert!(fastest_pps > rate_pps * 7 / 8, "{fastest_pps}");
    assert!(fastest_pps < rate_pps * 5 / 4, "{fastest_pps}");
}
