//! Token buckets that behave as a wire of a given rate.
//!
//! TBF counts 1514 bytes for a frame that takes 1538 on a wire, and has no overhead option that
//! works per segment of a super-frame. So the bucket's rate is the link's, scaled by what a
//! full-size frame counts for over what it takes: full-size frames then take exactly their wire
//! time, with or without segmentation offload. Smaller frames are undercounted by 24 bytes each;
//! the emulator and the simulation have no such error.

use crate::topology::{ETHERNET_HEADER_BYTES, NicQueue, Rate, WIRE_OVERHEAD_BYTES};

/// The bucket's depth in time: long enough that a timer 200 us late loses no rate (on a busy machine 120 us
/// lost 1.8 %), short enough
/// that a burst out of an idle bucket (31 KB at 1 Gb/s) stays a small part of any port's queue.
const BURST_US: u64 = 250;

/// What TBF counts for a full-size frame.
fn counted_bytes(mtu: u32) -> u64 {
    u64::from(mtu) + ETHERNET_HEADER_BYTES
}

/// The rate to give TBF, in bits a second.
pub fn tbf_rate_bps(rate: Rate, mtu: u32) -> u64 {
    let counted = counted_bytes(mtu);
    (u128::from(rate.bps()) * u128::from(counted) / u128::from(counted + WIRE_OVERHEAD_BYTES))
        as u64
}

/// The bucket's depth in bytes: [`BURST_US`] of the rate, at least two frames.
fn burst_bytes(rate: Rate, mtu: u32) -> u64 {
    let of_time = (u128::from(rate.bps()) * u128::from(BURST_US) / 8_000_000) as u64;
    of_time.max(2 * counted_bytes(mtu))
}

/// `tbf …` for a queue of `queue_bytes` in front of a wire.
fn tbf(rate: Rate, mtu: u32, queue_bytes: u64) -> String {
    format!(
        "tbf rate {}bit burst {}b limit {}b",
        tbf_rate_bps(rate, mtu),
        burst_bytes(rate, mtu),
        queue_bytes.max(counted_bytes(mtu))
    )
}

/// `tc` lines that put a NIC's rate and transmit queue on the host's side of `device`, so that TCP
/// feels them: small-queue back-pressure and local drops, as on a real NIC.
pub fn nic_lines(device: &str, rate: Option<Rate>, mtu: u32, queue: NicQueue) -> Vec<String> {
    let Some(rate) = rate else { return Vec::new() };
    match queue {
        NicQueue::Bytes(bytes) => {
            vec![format!(
                "qdisc replace dev {device} root handle 1: {}",
                tbf(rate, mtu, bytes)
            )]
        }
        NicQueue::Packets(packets) => vec![
            format!(
                "qdisc replace dev {device} root handle 1: {}",
                tbf(rate, mtu, u64::from(packets) * counted_bytes(mtu))
            ),
            format!("qdisc replace dev {device} parent 1:1 handle 10: pfifo limit {packets}"),
        ],
    }
}

/// The `tc` line that makes `device`, on the fabric's side, a switch port with `queue_bytes` of
/// drop-tail queue.
pub fn port_line(device: &str, rate: Option<Rate>, mtu: u32, queue_bytes: u64) -> Option<String> {
    rate.map(|rate| {
        format!(
            "qdisc replace dev {device} root handle 1: {}",
            tbf(rate, mtu, queue_bytes)
        )
    })
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
        assert_eq!(burst_bytes(Rate::from_bps(10_000_000).unwrap(), 1500), 3028);
        assert_eq!(
            burst_bytes(Rate::from_bps(1_000_000_000).unwrap(), 1500),
            31_250
        );
    }
}
