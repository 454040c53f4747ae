//! Token buckets that behave like a wire of a given rate.
//!
//! TBF counts 1514 bytes for a frame that takes 1538 on a wire, and has no overhead option that
//! works per segment of a super-frame. The bucket's rate is therefore
//!
//! ```text
//! TBF rate = link rate × counted / (counted + 24)     counted = MTU + 14 bytes
//! ```
//!
//! Full-size frames then take exactly their wire time, with or without segmentation offload.
//! Smaller frames are undercounted by up to 24 bytes each. The simulation has no such error.

use crate::topology::{
    Delay, ETHERNET_HEADER_BYTES, Link, Nic, NicQueue, Rate, WIRE_OVERHEAD_BYTES,
};

/// Returns the bytes that TBF counts for a full-size frame.
fn counted_bytes(mtu: u32) -> u64 {
    u64::from(mtu) + ETHERNET_HEADER_BYTES
}

/// Returns the rate to give to TBF, in bits per second.
pub fn tbf_rate_bps(rate: Rate, mtu: u32) -> u64 {
    let counted = counted_bytes(mtu);
    (u128::from(rate.bps()) * u128::from(counted) / u128::from(counted + WIRE_OVERHEAD_BYTES))
        as u64
}

/// Returns the bucket's depth in bytes: `burst` at the rate, at least two frames.
fn burst_bytes(rate: Rate, mtu: u32, burst: Delay) -> u64 {
    let time_bytes = (u128::from(rate.bps()) * u128::from(burst.ns()) / 8_000_000_000) as u64;
    time_bytes.max(2 * counted_bytes(mtu))
}

/// Returns `tbf …` for a queue of `queue_bytes` in front of the wire `link`.
fn tbf(link: &Link, rate: Rate, queue_bytes: u64) -> String {
    let mtu = link.mtu;
    format!(
        "tbf rate {}bit burst {}b limit {}b",
        tbf_rate_bps(rate, mtu),
        burst_bytes(rate, mtu, link.burst),
        queue_bytes.max(counted_bytes(mtu))
    )
}

/// Returns the `tc` lines that give `nic`, an end of `link`, its rate and transmit queue. They
/// apply on the host's side, so that TCP sees small-queue back-pressure and local drops as on a
/// real NIC.
pub fn nic_lines(nic: &Nic, link: &Link) -> Vec<String> {
    let Some(rate) = link.rate else {
        return Vec::new();
    };
    let device = &nic.device;
    match nic.queue {
        NicQueue::Bytes(bytes) => {
            vec![format!(
                "qdisc replace dev {device} root handle 1: {}",
                tbf(link, rate, bytes)
            )]
        }
        NicQueue::Packets(packets) => vec![
            format!(
                "qdisc replace dev {device} root handle 1: {}",
                tbf(link, rate, u64::from(packets) * counted_bytes(link.mtu))
            ),
            if nic.bands {
                // Its length is the device's `txqueuelen` when the queue is created.
                format!("qdisc replace dev {device} parent 1:1 handle 10: pfifo_fast")
            } else {
                format!("qdisc replace dev {device} parent 1:1 handle 10: pfifo limit {packets}")
            },
        ],
    }
}

/// Returns the `tc` line that makes `device`, on the fabric's side of `link`, a switch port with
/// `queue_bytes` of drop-tail queue. A link without a rate has none.
pub fn port_line(device: &str, link: &Link, queue_bytes: u64) -> Option<String> {
    let rate = link.rate?;
    Some(format!(
        "qdisc replace dev {device} root handle 1: {}",
        tbf(link, rate, queue_bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tbf_rate__full_size_frame__takes_its_wire_time() {
        let rate = Rate::from_bps(1_000_000_000).unwrap();
        let counted_ns = 1514.0 * 8.0 / tbf_rate_bps(rate, 1500) as f64 * 1e9;
        assert!((counted_ns - rate.time_ns(1538) as f64).abs() < 1.0);
    }

    #[test]
    fn burst__slow_link__holds_two_frames() {
        let bytes = |mbps: u64, us: u64| {
            let rate = Rate::from_bps(mbps * 1_000_000).unwrap();
            burst_bytes(rate, 1500, Delay::from_ns(us * 1000))
        };
        assert_eq!(bytes(10, 250), 3028);
        assert_eq!(bytes(1000, 250), 31_250);
        assert_eq!(bytes(1000, 520), 65_000);
    }
}
