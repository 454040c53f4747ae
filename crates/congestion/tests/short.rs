//! A path with fewer packets in flight than a train has: the rate that is held can grow.

use kumi_congestion::control::{Acknowledgement, Control, RateSample};
use kumi_congestion::kumi::Kumi;

/// Packets of a burst: 170 KB.
const BURST: u64 = 120;
/// Round trips in µs and rates in packets per second: of 100, 20 and 5 Mb/s with eight packets in
/// flight, and of 10 Mb/s with four and 14.
const PATHS: [(u64, u64); 5] = [
    (1_000, 8_130),
    (5_000, 1_626),
    (20_000, 407),
    (5_000, 813),
    (17_000, 813),
];

/// Sends a burst after a pause over a path of this round trip in µs and this rate in packets per
/// second. Returns its last pace, in packets per second.
fn burst(
    control: &mut Kumi,
    (rtt_us, rate_pps): (u64, u64),
    now_us: &mut u64,
    delivered: &mut u64,
) -> u64 {
    *now_us += 2_000_000;
    let began = *delivered;
    control.start(*now_us);
    *now_us += rtt_us;
    for _ in 0..BURST / 2 {
        let pace_pps = control.pace_pps().unwrap_or(u64::MAX).min(rate_pps);
        *now_us += 2 * 1_000_000 / pace_pps;
        *delivered += 2;
        let in_flight = pace_pps * rtt_us / 1_000_000;
        let delivered_before = began.max(delivered.saturating_sub(in_flight));
        control.acknowledge(&Acknowledgement {
            now_us: *now_us,
            rtt_us: Some(rtt_us),
            sent_us: *now_us - rtt_us,
            rtt_min_us: rtt_us,
            srtt_us: rtt_us,
            acked: 2,
            lost: 0,
            lost_by_timer: 0,
            delivered: *delivered,
            in_flight: in_flight as u32,
            in_flight_before: in_flight as u32,
            rate: Some(RateSample {
                packets: (*delivered - delivered_before) as u32,
                interval_us: rtt_us,
                sent_us: rtt_us,
                is_app_limited: true,
                delivered_before,
            }),
            is_repairing: false,
            sent_in_repair: 0,
        });
    }
    control.pace_pps().unwrap_or(u64::MAX)
}

#[test]
fn rate_held__few_packets_in_flight_and_a_faster_path__grows() {
    for path in PATHS {
        // It starts at half of the route's rate: three fifths of what the path has.
        let mut control = Kumi::with_route(2 * (path.1 * 3 / 5));
        let (mut now_us, mut delivered) = (1_000_000, 0);
        let paces: Vec<u64> = (0..4)
            .map(|_| burst(&mut control, path, &mut now_us, &mut delivered))
            .collect();
        assert!(paces[3] > path.1 * 9 / 10, "{path:?}: {paces:?}");
    }
}
