//! Prints the times of messages after pauses, in times of the ideal one, for CUBIC, BBR and kumi.
//!
//! ```text
//! cargo run --release -p kumi-congestion --example restart -- MBPS RTT_MS BUFFER LOSS MB PAUSE_MS
//! ```
//!
//! `BUFFER` is in bandwidth-delay products, and `LOSS` is a probability.

use kumi_congestion::control::Control;
use kumi_congestion::kumi::Kumi;
use kumi_congestion::rivals::bbr::Bbr;
use kumi_congestion::rivals::cubic::Cubic;
use kumi_congestion::simulation::path::Path;
use kumi_congestion::simulation::world::{Load, World};

/// Payload of a packet.
const PAYLOAD_BYTES: f64 = 1448.0;
const MESSAGES: usize = 11;

fn main() {
    let mut values = [500.0, 20.0, 0.1, 0.0, 10.0, 1000.0];
    for (value, text) in values.iter_mut().zip(std::env::args().skip(1)) {
        *value = text.parse().expect("a number");
    }
    let [mbps, rtt_ms, buffer, loss, megabytes, pause_ms] = values;
    let mut path = Path {
        bits_ps: mbps * 1e6,
        host_bits_ps: (2.0 * mbps * 1e6).max(1e9),
        rtt_ns: (rtt_ms * 1e6) as u64,
        buffer_packets: 0.0,
        loss,
        late: 0.0,
        hold_acks_ns: 0,
    };
    path.buffer_packets = buffer * path.bdp_packets();
    let packets = (megabytes * 1e6 / PAYLOAD_BYTES) as u64;
    let ideal_ns = path.rtt_ns as f64 / 2.0 + packets as f64 * path.packet_ns();
    let controls: [(&str, Box<dyn Control>); 4] = [
        ("cubic", Box::new(Cubic::default())),
        ("bbr", Box::new(Bbr::default())),
        ("kumi", Box::new(Kumi::default())),
        (
            "known",
            Box::new(Kumi::with_route((1e9 / path.packet_ns()) as u64)),
        ),
    ];
    for (name, control) in controls {
        let mut world = World::new(path, 7);
        let connection = world.add(
            control,
            Load {
                begin_ns: 0,
                packets,
                messages: MESSAGES,
                pause_ns: (pause_ms * 1e6) as u64,
            },
        );
        world.run(u64::MAX);
        let times = world.took_ns(connection).iter();
        let times: Vec<String> = times
            .map(|took_ns| format!("{:.2}", *took_ns as f64 / ideal_ns))
            .collect();
        let (repairs, timeouts) = world.repairs(connection);
        println!(
            "{name:5} {}  {repairs} sent again, {timeouts} timeouts",
            times.join(" ")
        );
    }
}
