//! Five scenarios that run in the simulation and in the lab, and must give the same figures.

use super::traffic::{Arrivals, DatagramStream, FULL_PAYLOAD_BYTES};
use super::{cable, funnel};
use kumi_lab::Topology;
use kumi_lab::topology::FabricChoice;

/// A scenario: a network, traffic, and the one figure that is compared.
pub struct Scenario {
    /// Name of the scenario, used in the names of its checks.
    pub name: &'static str,
    /// Network of the scenario.
    pub topology: Topology,
    /// Fabric of the lab.
    pub fabric: FabricChoice,
    /// Traffic, all started together.
    pub streams: Vec<DatagramStream>,
    /// Figure that is compared.
    pub figure: fn(&[Arrivals]) -> f64,
}

/// Returns a stream of full-size frames, paced at `mbps` Mb/s on the wire.
fn stream(from: usize, to: usize, frames: u32, mbps: u64) -> DatagramStream {
    let gap_ns = 1538 * 8 * 1000 / mbps;
    DatagramStream {
        from,
        to,
        frames,
        payload_bytes: FULL_PAYLOAD_BYTES,
        gap_ns,
    }
}

/// Returns all scenarios.
///
/// # Errors
/// A topology in this file is wrong.
pub fn all() -> anyhow::Result<[Scenario; 5]> {
    Ok([
        Scenario {
            name: "overloaded_port_delivers_its_rate",
            topology: funnel(2, "port_queue = \"128KiB\"", "rate = \"100Mbit\"")?,
            fabric: FabricChoice::Kernel,
            streams: vec![stream(0, 2, 6_000, 80), stream(1, 2, 6_000, 80)],
            figure: |arrivals| arrivals.iter().map(Arrivals::frames).sum(),
        },
        Scenario {
            name: "burst_into_a_shallow_port",
            topology: funnel(2, "port_queue = \"96KiB\"", "rate = \"10Mbit\"")?,
            fabric: FabricChoice::Emulator,
            // The port drains only five frames during the burst. So the senders' punctuality, which
            // depends on the scheduler, hardly affects the number of frames that the queue keeps.
            streams: vec![stream(0, 2, 400, 900), stream(1, 2, 400, 900)],
            figure: |arrivals| arrivals.iter().map(Arrivals::frames).sum(),
        },
        Scenario {
            name: "queueing_delay_of_a_full_port",
            topology: funnel(
                1,
                "port_queue = \"128KiB\"",
                "rate = \"50Mbit\"\ndelay = \"5ms\"",
            )?,
            fabric: FabricChoice::Emulator,
            streams: vec![stream(0, 1, 6_000, 60)],
            figure: |arrivals| arrivals[0].one_way_us(0.9),
        },
        Scenario {
            name: "lossy_wire_delivers_the_rest",
            topology: cable("rate = \"100Mbit\"\nloss = 0.1")?,
            fabric: FabricChoice::Auto,
            streams: vec![stream(0, 1, 8_000, 50)],
            figure: |arrivals| arrivals[0].frames(),
        },
        Scenario {
            name: "bursts_of_loss_on_a_long_wire",
            topology: cable(
                "rate = \"100Mbit\"\ndelay = \"20ms\"\nburst_loss = { enter = 0.02, leave = 0.2, loss = 1.0 }",
            )?,
            fabric: FabricChoice::Auto,
            streams: vec![stream(0, 1, 16_000, 80)],
            figure: |arrivals| arrivals[0].frames(),
        },
    ])
}
