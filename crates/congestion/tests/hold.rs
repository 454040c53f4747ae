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

/// A connection over a path whose packets arrive at its rate, whatever their pace.
struct Connection {
    control: Kumi,
    now_us: u64,
    delivered: u64,
}

impl Connection {
    fn new(control: Kumi) -> Self {
        Self {
            control,
            now_us: 1_000_000,
            delivered: 0,
        }
    }

    /// Sends for some round trips, after half a second. If one is named, the host pauses in its
    /// middle, and packets are lost there. Returns the highest pace of each round trip.
    fn send(&mut self, round_trips: u64, paused: Option<u64>, lost: u32) -> Vec<u64> {
        self.now_us += 500_000;
        let began = self.delivered;
        let pause_at = paused.map(|round| began + (2 * round + 1) * FLYING / 2);
        let mut paces = vec![0; round_trips as usize];
        self.control.start(self.now_us);
        self.now_us += RTT_US;
        while self.delivered + 2 <= began + round_trips * FLYING {
            self.now_us += 2 * 1_000_000 / RATE_PPS;
            self.delivered += 2;
            let has_paused = pause_at.is_some_and(|at| (at..at + 2).contains(&self.delivered));
            self.now_us += if has_paused { STOLEN_US } else { 0 };
            let delivered_before = began.max(self.delivered.saturating_sub(FLYING));
            self.control.acknowledge(&Acknowledgement {
                now_us: self.now_us,
                rtt_us: Some(RTT_US),
                sent_us: self.now_us - RTT_US,
                rtt_min_us: RTT_US,
                srtt_us: RTT_US,
                acked: 2,
                lost: if has_paused { lost } else { 0 },
                lost_by_timer: 0,
                delivered: self.delivered,
                in_flight: FLYING as u32,
                in_flight_before: FLYING as u32,
                rate: Some(RateSample {
                    packets: (self.delivered - delivered_before) as u32,
                    interval_us: RTT_US,
                    sent_us: RTT_US,
                    is_app_limited: false,
                    delivered_before,
                }),
                is_repairing: false,
                sent_in_repair: 0,
            });
            let pace = &mut paces[((self.delivered - began - 1) / FLYING) as usize];
            *pace = (*pace).max(self.control.pace_pps().unwrap_or(0));
        }
        paces
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

/// Runs until this many messages have arrived, to the millisecond.
fn run_messages(world: &mut World, connection: usize, messages: usize) {
    while world.took_ns(connection).len() < messages {
        world.run(world.now_ns + 1_000_000);
    }
}

/// Sends messages of some round trips after pauses of two seconds, and changes the path's rate
/// before each one. Returns the time of each message, in times of the ideal one.
fn send_over_changing(before: Path, rates_bps: &[f64], round_trips: f64) -> Vec<f64> {
    let mut world = World::new(before, 1);
    let load = Load {
        begin_ns: 0,
        packets: (round_trips * before.bdp_packets()) as u64,
        messages: rates_bps.len(),
        pause_ns: 2_000_000_000,
    };
    let connection = world.add(Box::new(Kumi::default()), load);
    let mut at_ns = 0;
    for (sent, bits_ps) in rates_bps.iter().enumerate().skip(1) {
        while world.took_ns(connection).len() < sent {
            at_ns += 10_000_000;
            world.run(at_ns);
        }
        world.change(at_ns + 1_000_000_000, *bits_ps);
    }
    world.run(u64::MAX);
    let took_ns = world.took_ns(connection).iter().zip(rates_bps);
    let times = took_ns.map(|(took_ns, bits_ps)| {
        let path = Path {
            bits_ps: *bits_ps,
            ..before
        };
        *took_ns as f64 / (path.rtt_ns as f64 / 2.0 + load.packets as f64 * path.packet_ns())
    });
    times.collect()
}

#[test]
fn held_rate__host_pauses_in_a_round_with_losses__is_held_further() {
    let mut connection = Connection::new(Kumi::with_route(2 * RATE_PPS));
    // The second message is sent at a rate that the connection has had.
    connection.send(5, Some(3), LOST);
    connection.send(5, Some(3), LOST);
    // Without a rate that is held, the window would have been cut to less than the path holds.
    let window = u64::from(connection.control.window());
    assert!(window > 3 * FLYING / 2, "{window}");
}

#[test]
fn probe__host_pauses_while_it_is_judged__is_repeated_in_the_same_message() {
    let mut connection = Connection::new(Kumi::with_route(2 * RATE_PPS));
    connection.send(5, None, 0);
    let paces = connection.send(8, Some(0), 0);
    let probed_pps = RATE_PPS + RATE_PPS / 64;
    assert!(
        paces[1..].iter().any(|pace| *pace > probed_pps),
        "{paces:?}"
    );
    // Without a pause, it fails.
    let paces = connection.send(8, None, 0);
    assert!(
        paces[1..].iter().all(|pace| *pace < probed_pps),
        "{paces:?}"
    );
}

#[test]
fn probe__at_a_restart__leaves_for_one_round_trip() {
    let path = path(200e6, 100_000_000, 1_000.0);
    let mut world = World::new(path, 1);
    let load = Load {
        begin_ns: 0,
        packets: 12_000,
        messages: 2,
        pause_ns: 1_000_000_000,
    };
    let connection = world.add(Box::new(Kumi::default()), load);
    run_messages(&mut world, connection, 1);
    let mut at_ns = world.now_ns;
    let rate_pps = (1e9 / path.packet_ns()) as u64;
    let mut probing_ms = 0;
    while world.took_ns(connection).len() < 2 {
        at_ns += 1_000_000;
        world.run(at_ns);
        let pace_pps = world.window(connection).1.unwrap_or(0);
        let is_sending = world.delivered(connection) < 2 * load.packets;
        probing_ms += u64::from(is_sending && pace_pps > rate_pps + rate_pps / 64);
    }
    assert!((95..=110).contains(&probing_ms), "{probing_ms} ms");
}

#[test]
fn probe__overflows_the_port__leaves_the_rate_that_arrived() {
    let times = send_over_changing(path(300e6, 20_000_000, 83.0), &[300e6, 500e6, 500e6], 12.0);
    assert!(times[2] < 1.02, "{times:?}");
}

#[test]
fn held_rate__a_little_too_high__drains_its_queue_and_is_held() {
    // The port has room for an eighth of what is in flight.
    let rates_bps = [500e6, 500e6, 480e6];
    let times = send_over_changing(path(500e6, 20_000_000, 100.0), &rates_bps, 28.0);
    assert!(times[2] < 1.03, "{times:?}");
}

#[test]
fn held_rate__much_too_high_at_a_restart__is_lowered_to_what_arrives() {
    let rates_bps = [500e6, 500e6, 430e6];
    let times = send_over_changing(path(500e6, 20_000_000, 83.0), &rates_bps, 12.0);
    assert!(times[2] < 1.1, "{times:?}");
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

#[test]
fn repair__after_a_burst_that_overflows__takes_a_few_round_trips() {
    // 100 Mb/s, 40 ms. In some runs, the third message leaves at once, and a third of it is lost.
    let path = Path {
        host_bits_ps: 1e9,
        ..path(100e6, 40_000_000, 100.0)
    };
    let load = Load {
        begin_ns: 0,
        packets: 176,
        messages: 3,
        pause_ns: 1_000_000_000,
    };
    let mut repairs = 0;
    for seed in 0..10 {
        let mut world = World::new(path, seed);
        let connection = world.add(Box::new(Kumi::default()), load);
        world.run(u64::MAX);
        repairs = repairs.max(world.repairs(connection).0);
        let took_ns = world.took_ns(connection)[2];
        assert!(took_ns < 3 * path.rtt_ns, "{took_ns} ns");
    }
    assert!(
        repairs > 50,
        "{repairs} packets sent again: no burst overflowed"
    );
}

#[test]
fn restart__the_kernel_sends_the_second_clump_early__leaves_room_for_a_probe() {
    // 500 Mb/s, 20 ms. A clump has 40 packets, which arrive at 1 Gb/s, and the port holds 50.
    let path = Path {
        host_bits_ps: 1e9,
        ..path(500e6, RTT_US * 1000, 50.0)
    };
    let mut world = World::new(path, 1);
    let load = Load {
        begin_ns: 0,
        packets: 725,
        messages: 20,
        pause_ns: 1_000_000_000,
    };
    let connection = world.add(Box::new(Kumi::default()), load);
    run_messages(&mut world, connection, 4);
    let before = world.repairs(connection);
    world.run(u64::MAX);
    assert_eq!(world.repairs(connection), before);
}
