//! Hosts whose processors others use: pauses of milliseconds in which a host does nothing.

use kumi_congestion::control::Control;
use kumi_congestion::kumi::Kumi;
use kumi_congestion::rivals::cubic::Cubic;
use kumi_congestion::simulation::path::Path;
use kumi_congestion::simulation::world::{Load, World};

/// Runs of each path, which differ in when the hosts pause.
const RUNS: u64 = 20;
const MESSAGES: usize = 8;
/// Messages in which a rate is found.
const FIRST: usize = 3;

/// Returns the time below which nine of ten messages after the first ones stayed, in times of the
/// ideal one.
fn ninth_decile(path: Path, packets: u64, control: fn() -> Box<dyn Control>) -> f64 {
    let ideal_ns = path.rtt_ns as f64 / 2.0 + packets as f64 * path.packet_ns();
    let mut times = Vec::new();
    for seed in 0..RUNS {
        let mut world = World::new(path, seed);
        world.steal(0.03, 4_000_000);
        let load = Load {
            begin_ns: 0,
            packets,
            messages: MESSAGES,
            pause_ns: 1_000_000_000,
        };
        let connection = world.add(control(), load);
        world.run(u64::MAX);
        let took_ns = &world.took_ns(connection)[FIRST..];
        times.extend(took_ns.iter().map(|took_ns| *took_ns as f64 / ideal_ns));
    }
    times.sort_by(f64::total_cmp);
    times[times.len() * 9 / 10]
}

#[test]
fn message_after_a_pause__hosts_stand_still_at_times__is_seldom_late() {
    // Megabits per second, milliseconds, packets of the port, and packets of a message.
    let paths = [
        (200.0, 100, 1_000.0, 1_400),
        (200.0, 100, 83.0, 700),
        (500.0, 20, 83.0, 700),
        (100.0, 40, 100.0, 180),
        (1_000.0, 5, 200.0, 700),
    ];
    for (mbits_ps, rtt_ms, buffer_packets, packets) in paths {
        let path = Path {
            bits_ps: mbits_ps * 1e6,
            host_bits_ps: f64::max(1e9, 2e6 * mbits_ps),
            rtt_ns: rtt_ms * 1_000_000,
            buffer_packets,
            loss: 0.0,
            late: 0.0,
            hold_acks_ns: 0,
        };
        let time = ninth_decile(path, packets, || Box::new(Kumi::default()));
        let time_of_cubic = ninth_decile(path, packets, || Box::new(Cubic::default()));
        assert!(time <= 1.3, "{time:.2} of the ideal time: {path:?}");
        assert!(
            time < time_of_cubic / 2.0,
            "{time:.2}, {time_of_cubic:.2} by CUBIC: {path:?}"
        );
    }
}
