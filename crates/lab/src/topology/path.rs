//! Paths between two hosts, for plans that measure the same workload on many paths.

use super::{Bytes, Delay, Rate, Topology, TopologyError};
use std::fmt::Write as _;

/// Lowest rate of the hosts' links, in bits per second.
const HOST_BPS_MIN: u64 = 1_000_000_000;

impl Topology {
    /// Returns two hosts with one slow link between them. `name` is `path-RATE-RTT-QUEUE`, or
    /// `path-RATE-RTT-QUEUE-LOSS`: rate, round trip and drop-tail buffer of that link, and the
    /// probability that it loses a frame, as in `path-500Mbit-20ms-128KB-0.001`. The hosts' links
    /// have 1 Gb/s, or twice the slow link's rate if that is more.
    ///
    /// Returns `None` if `name` does not have this form.
    pub fn single_path(name: &str) -> Option<Result<Self, TopologyError>> {
        let mut parts = name.strip_prefix("path-")?.split('-');
        let rate: Rate = parts.next()?.parse().ok()?;
        let round_trip: Delay = parts.next()?.parse().ok()?;
        let queue: Bytes = parts.next()?.parse().ok()?;
        let loss = parts.next();
        if parts.next().is_some() {
            return None;
        }
        let text = text(name, rate, round_trip, queue, loss.unwrap_or("0"));
        Some(Self::parse(name, &text))
    }
}

fn text(name: &str, rate: Rate, round_trip: Delay, queue: Bytes, loss: &str) -> String {
    let host_bps = HOST_BPS_MIN.max(2 * rate.bps());
    let delay_ns = round_trip.ns() / 2;
    let mut text = format!("name = \"{name}\"\nfabric = \"emulator\"\n");
    // Writing into a string cannot fail.
    for (host, switch) in [("h1", "a"), ("h2", "b")] {
        let _ = write!(
            text,
            "[[host]]\nname = \"{host}\"\n\
             [[switch]]\nname = \"{switch}\"\nport_queue = \"1MiB\"\n\
             [[link]]\nbetween = [\"{host}:eth1\", \"{switch}\"]\nrate = \"{host_bps}bit\"\n"
        );
    }
    let _ = write!(
        text,
        "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"{rate}\"\ndelay = \"{delay_ns}ns\"\n\
         port_queue = \"{queue}\"\nloss = \"{loss}\"\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_path__name__gives_the_slow_link() {
        let path = Topology::single_path("path-2.5Gbit-5ms-64KB-0.001")
            .unwrap()
            .unwrap();
        let middle = &path.links[2];
        assert_eq!(path.hosts.len(), 2);
        assert_eq!(middle.rate.map(Rate::bps), Some(2_500_000_000));
        assert_eq!(middle.delay, Delay::from_ns(2_500_000));
        assert_eq!(path.links[0].rate.map(Rate::bps), Some(5_000_000_000));
        let path = Topology::single_path("path-10Mbit-100ms-125KB")
            .unwrap()
            .unwrap();
        assert_eq!(path.links[0].rate.map(Rate::bps), Some(1_000_000_000));
    }

    #[test]
    fn single_path__other_names__are_none_or_name_the_wrong_value() {
        for name in [
            "wan",
            "path-",
            "path-fast-20ms-1MB",
            "path-1Gbit-20ms",
            "path-1Gbit-20ms-1MB-0-0",
        ] {
            assert!(Topology::single_path(name).is_none(), "{name}");
        }
        let error = Topology::single_path("path-1Gbit-20ms-1MB-2")
            .unwrap()
            .unwrap_err();
        assert!(error.to_string().contains("loss"), "{error}");
    }
}
