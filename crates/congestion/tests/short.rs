//! A path with fewer packets in flight than a train has: the rate that is held can grow.

use kumi_congestion::control::{Acknowledgement, Control, RateSample};
use kumi_congestion::kumi::Kumi;

const RTT_US: u64 = 1_000;
/// Packets of a burst: 170 KB.
const BURST: u64 = 120;
/// Rate of the path, in packets per second: 100 Mb/s, so eight packets are in flight.
const RATE_PPS: u64 = 8_130;

/// Sends a burst after a pause. It arrives at its pace, and at most at the path's rate. Returns its
/// last pace, in packets per second.
fn burst(control: &mut Kumi, now_us: &mut u64, delivered: &mut u64) -> u64 {
    *now_us += 500_000;
    let began = *delivered;
    control.start(*now_us);
    *now_us += RTT_US;
    for _ in 0..BURST / 2 {
        let pace_pps = control.pace_pps().unwrap_or(u64::MAX).min(RATE_PPS);
        *now_us += 2 * 1_000_000 / pace_pps;
        *delivered += 2;
        let in_flight = pace_pps * RTT_US / 1_000_000;
        let delivered_before = began.max(delivered.saturating_sub(in_flight));
        control.acknowledge(&Acknowledgement {
            now_us: *now_us,
            rtt_us: Some(RTT_US),
            sent_us: *now_us - RTT_US,
            rtt_min_us: RTT_US,
            srtt_us: RTT_US,
            acked: 2,
            lost: 0,
            lost_by_timer: 0,
            delivered: *delivered,
            in_flight: in_flight as u32,
            in_flight_before: in_flight as u32,
            rate: Some(RateSample {
                packets: (*delivered - delivered_before) as u32,
                interval_us: RTT_US,
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
    // It starts at half of the route's rate: three fifths of what the path has.
    let slow_pps = RATE_PPS * 3 / 5;
    let mut control = Kumi::with_route(2 * slow_pps);
    let (mut now_us, mut delivered) = (1_000_000, 0);
    let paces: Vec<u64> = (0..4)
        .map(|_| burst(&mut control, &mut now_us, &mut delivered))
        .collect();
    assert!(paces[3] > RATE_PPS * 9 / 10, "{paces:?}");
}
