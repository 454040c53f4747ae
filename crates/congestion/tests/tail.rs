//! A burst whose end is lost: RACK's timer finds it, and the acknowledgements tell of no loss.

use kumi_congestion::control::{Acknowledgement, Control, RateSample};
use kumi_congestion::kumi::Kumi;

const RTT_US: u64 = 20_000;
/// Packets of a burst: 256 KiB.
const BURST: u64 = 182;
/// Rate at which the path delivers, in packets per second: 500 Mb/s.
const RATE_PPS: u64 = 40_660;
/// Packets lost before the last two of a burst.
const LOST: u32 = 6;

/// A connection whose bursts arrive at the path's rate.
struct Connection {
    control: Kumi,
    now_us: u64,
    delivered: u64,
}

impl Connection {
    fn acknowledge(&mut self, acked: u64, lost_by_timer: u32, delivered_before: u64) {
        self.delivered += acked;
        let sent_us = self.now_us - RTT_US;
        let rate = RateSample {
            packets: (self.delivered - delivered_before) as u32,
            interval_us: RTT_US,
            sent_us: RTT_US,
            is_app_limited: true,
            delivered_before,
        };
        self.control.acknowledge(&Acknowledgement {
            now_us: self.now_us,
            rtt_us: Some(RTT_US),
            sent_us,
            rtt_min_us: RTT_US,
            srtt_us: RTT_US,
            acked: acked as u32,
            lost: 0,
            lost_by_timer,
            delivered: self.delivered,
            in_flight: 0,
            in_flight_before: BURST as u32,
            rate: Some(rate),
            is_repairing: false,
            sent_in_repair: 0,
        });
    }

    /// Sends a burst after a pause. Returns its pace, in packets per second.
    fn burst(&mut self) -> u64 {
        self.now_us += 500_000;
        let began = self.delivered;
        self.control.start(self.now_us);
        let pace_pps = self.control.pace_pps().expect("a known rate is paced");
        self.now_us += RTT_US;
        for _ in 0..(BURST - u64::from(LOST)) / 2 {
            self.now_us += 2 * 1_000_000 / RATE_PPS;
            self.acknowledge(2, 0, began);
        }
        // The timer, and a round trip later the end, which was sent again.
        self.now_us += 10_000 + RTT_US;
        self.acknowledge(LOST.into(), LOST, self.delivered);
        pace_pps
    }
}

#[test]
fn burst_after_a_pause__whose_end_the_timer_finds_lost__makes_the_next_one_slower() {
    // It starts at half of the route's rate: a fifth more than the path has.
    let too_high_pps = RATE_PPS * 6 / 5;
    let mut connection = Connection {
        control: Kumi::with_route(2 * too_high_pps),
        now_us: 1_000_000,
        delivered: 0,
    };
    let paces: Vec<u64> = (0..4).map(|_| connection.burst()).collect();
    assert_eq!(paces[0], too_high_pps);
    // A probe may add a part.
    assert!(paces[3] <= RATE_PPS + RATE_PPS / 16, "{paces:?}");
}
