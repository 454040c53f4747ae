//! Number of queues that a device needs: the rate that the links claim, divided by the rate that
//! one core can carry (ADR 012).

use crate::config::{QUEUES_MAX, Queues};
use kumi_multilink::secure::{PacketKey, Seal};
use std::time::{Duration, Instant};

/// Duration of the measurement.
const MEASURE_FOR: Duration = Duration::from_millis(4);
/// Bytes of a burst as the device seals it, of the payload of one datagram, and of its header.
const BURST_BYTES: usize = 64_000;
const UNIT_BYTES: usize = 1420;
const HEADER_BYTES: usize = 16;
/// Share of sealing and one copy in the time that a core spends on a byte.
///
/// The rest is the kernel's: the TAP's copy, a send with `UDP_SEGMENT` down to the NIC, and the
/// wake-ups. Chosen by judgement from the rate that the device carried on the development machine
/// (`docs/perf-log.md`, 2026-11-22: several queues). It errs towards fewer queues.
const SEALING_SHARE: f64 = 0.2;

/// Number of queues, and the reason for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizing {
    /// Queues, at least one.
    pub queues: u8,
    /// Estimated rate that one core can carry, in bits per second.
    pub core_bps: f64,
    /// Line for the log, if one core is too slow.
    pub note: Option<String>,
}

/// Measures the rate that one core can carry with `seal`, in bits per second.
pub fn core_bps(seal: Seal) -> f64 {
    let key = PacketKey::new(&[1; 32], seal);
    let source = vec![0x5a; BURST_BYTES];
    let (mut burst, mut sealed) = (vec![0; BURST_BYTES], Vec::with_capacity(2 * BURST_BYTES));
    let (measurement_start, mut sequence, mut best) = (Instant::now(), 0, Duration::MAX);
    while measurement_start.elapsed() < MEASURE_FOR {
        let start = Instant::now();
        burst.copy_from_slice(std::hint::black_box(&source));
        sealed.clear();
        for payload in burst.chunks(UNIT_BYTES) {
            key.seal(0, sequence, &[0; HEADER_BYTES], payload, &mut sealed);
            sequence += 1;
        }
        std::hint::black_box(&sealed);
        best = best.min(start.elapsed());
    }
    let best_s = best.max(Duration::from_nanos(1)).as_secs_f64();
    BURST_BYTES as f64 * 8.0 / best_s * SEALING_SHARE
}

/// Chooses the number of queues for links with these names and rates, on a host with `cores`.
///
/// `configured` is the number in the configuration. `single_queue_reason` is the reason why the
/// device cannot have more than one queue, if there is one.
pub fn decide(
    configured: Queues,
    links: &[(&str, u64)],
    core_bps: f64,
    cores: usize,
    single_queue_reason: Option<&str>,
) -> Sizing {
    let claimed_bps: f64 = links.iter().map(|(_, rate_bps)| *rate_bps as f64).sum();
    let demand = (claimed_bps / core_bps).ceil().max(1.0);
    let limit = (cores / 2).clamp(1, usize::from(QUEUES_MAX)) as u8;
    let queues = match configured {
        Queues::Exactly(count) => count,
        Queues::Auto if single_queue_reason.is_some() => 1,
        Queues::Auto => demand.min(f64::from(limit)) as u8,
    };
    let names: Vec<&str> = links.iter().map(|(name, _)| *name).collect();
    let (claim, together) = match links.len() {
        1 => ("claims", ""),
        _ => ("claim", " together"),
    };
    let plural = if queues == 1 { "" } else { "s" };
    let outcome = match (configured, single_queue_reason) {
        (Queues::Exactly(_), _) => format!(": using {queues} queue{plural}, as configured"),
        (Queues::Auto, Some(reason)) => format!("; {reason}"),
        (Queues::Auto, None) if queues == 1 => {
            "; this host has too few cores for more queues".to_owned()
        }
        (Queues::Auto, None) => format!(": using {queues} queues"),
    };
    let note = format!(
        "{} {claim} {:.3} Gb/s{together}, one core carries about {:.1}{outcome}",
        names.join(", "),
        Trimmed(claimed_bps / 1e9),
        core_bps / 1e9,
    );
    Sizing {
        queues,
        core_bps,
        note: (demand > 1.0).then_some(note),
    }
}

/// A number that is printed without trailing zeros.
struct Trimmed(f64);

impl std::fmt::Display for Trimmed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.*}", f.precision().unwrap_or(0), self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: [(&str, u64); 2] = [("eth1", 10_000_000_000), ("eth2", 10_000_000_000)];
    const SLOW: [(&str, u64); 2] = [("eth1", 1_000_000_000), ("eth2", 1_000_000_000)];

    fn auto(links: &[(&str, u64)], cores: usize) -> (u8, Option<String>) {
        let sizing = decide(Queues::Auto, links, 4.6e9, cores, None);
        (sizing.queues, sizing.note)
    }

    #[test]
    fn sizing__links_that_one_core_can_carry__use_one_queue_without_a_note() {
        assert_eq!(auto(&SLOW, 64), (1, None));
    }

    #[test]
    fn sizing__faster_links__use_the_queues_needed_up_to_half_the_cores() {
        let (queues, note) = auto(&FAST, 16);
        assert_eq!(queues, 5);
        assert_eq!(
            note.as_deref(),
            Some("eth1, eth2 claim 20 Gb/s together, one core carries about 4.6: using 5 queues")
        );
        assert_eq!(auto(&FAST, 6).0, 3);
        assert_eq!(auto(&[("eth1", 400_000_000_000)], 256).0, QUEUES_MAX);
        for cores in [1, 2, 3] {
            let (queues, note) = auto(&FAST[..1], cores);
            assert_eq!(queues, 1);
            let note = note.unwrap();
            assert!(
                note.starts_with("eth1 claims 10 Gb/s, one core carries"),
                "{note}"
            );
            assert!(note.ends_with("; this host has too few cores for more queues"));
        }
    }

    #[test]
    fn sizing__configured_count__is_used() {
        let sizing = decide(Queues::Exactly(2), &SLOW, 4.6e9, 2, None);
        assert_eq!((sizing.queues, sizing.note), (2, None));
        let sizing = decide(Queues::Exactly(1), &FAST, 4.6e9, 64, None);
        assert_eq!(sizing.queues, 1);
        assert!(
            sizing
                .note
                .unwrap()
                .ends_with("using 1 queue, as configured")
        );
    }

    #[test]
    fn sizing__core_rate__exceeds_1_mbps_for_every_seal() {
        for seal in [Seal::Encrypt, Seal::Authenticate, Seal::Plain] {
            assert!(core_bps(seal) > 1e6, "{seal:?}");
        }
    }
}
