//! Packets in flight, and the detection of lost ones by time (RACK, RFC 8985, and RFC 9002).
//!
//! ```text
//!   A packet is lost when a later one has been acknowledged, and
//!       now ≥ sent + max(s, l) + W          s  smoothed, l  latest round trip
//!       W = w · max(s, l) / 8               w  1, doubled up to 16 at each wrong detection
//!
//!   Probe: now ≥ last sent + p · 2ⁿ         p  probe timeout (`Rtt::probe_timeout_ns`)
//!                                           n  probes without an answer
//! ```
//!
//! A packet is never sent again. Its records are, in another packet.

use crate::protocol::rtt::{GRANULARITY_NS, Rtt};
use crate::protocol::sequence::Sequence;
use crate::protocol::wire::Ack;
use std::ops::Range;

/// Longest reordering margin, in eighths of a round trip.
const MARGIN_EIGHTHS_MAX: u64 = 16;
/// Doublings of the probe timeout. Later probes follow at the same interval.
const BACKOFF_MAX: u32 = 6;
/// Packets that were detected as lost are remembered for this number of round trips, to notice a
/// wrong detection.
const REMEMBERED_ROUND_TRIPS: u64 = 4;

/// A record of a packet in flight that must arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Bytes of a message, by the sender's number for it.
    Segment {
        /// Number of the message at the sender.
        message: u64,
        /// Bytes of header and data.
        range: Range<u32>,
    },
    /// An operation, by its number.
    Operation(u64),
    /// An answer, by the number of the operation.
    Answer(u64),
    /// Rejection of a message: whether it has a place in the order, and its number.
    Rejection(bool, u64),
    /// A record that states a current value. After a loss the value of that time is sent.
    State,
}

#[derive(Debug)]
struct Sent {
    at_ns: u64,
    bytes: u64,
    parts: Vec<Part>,
    is_lost: bool,
    /// The acknowledgement may be held for an answer, so it measures no round trip.
    is_held: bool,
}

/// Result of an acknowledgement or a timeout.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Records that arrived.
    pub arrived: Vec<Part>,
    /// Records that were lost.
    pub lost: Vec<Part>,
    /// Bytes of the packets that arrived.
    pub arrived_bytes: u64,
    /// Number of the highest packet that arrived.
    pub highest: Option<u64>,
    /// Bytes of the packets that were lost.
    pub lost_bytes: u64,
    /// Number of the highest packet that was lost.
    pub highest_lost: Option<u64>,
}

/// Packets of one session that have been sent.
#[derive(Debug)]
pub struct Recovery {
    packets: Sequence<Sent>,
    in_flight_bytes: u64,
    /// The highest packet that was acknowledged.
    highest: Option<u64>,
    /// Time at which the last packet that elicits an acknowledgement was sent.
    eliciting_at_ns: u64,
    /// Time for which the peer may hold the acknowledgement of that packet, beyond the usual one.
    hold_ns: u64,
    probes: u32,
    /// Time of the first packet that asked since the last acknowledgement.
    asked_at_ns: Option<u64>,
    margin_eighths: u64,
    ack_delay_ns: u64,
    counts: Counts,
    /// Round trips of the path.
    pub rtt: Rtt,
}

/// Totals of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that asked for an acknowledgement.
    pub packets: u64,
    /// Packets that were detected as lost.
    pub lost: u64,
    /// Probes: the acknowledgements of a whole round trip were missing.
    pub probes: u64,
    /// Timeouts: a probe had no answer, and the window began anew.
    pub timeouts: u64,
}

impl Recovery {
    /// Creates the state of a session whose peer holds acknowledgements for at most `ack_delay_ns`.
    pub fn new(rtt: Rtt, ack_delay_ns: u64) -> Self {
        Self {
            packets: Sequence::default(),
            in_flight_bytes: 0,
            highest: None,
            eliciting_at_ns: 0,
            hold_ns: 0,
            probes: 0,
            asked_at_ns: None,
            margin_eighths: 1,
            ack_delay_ns,
            counts: Counts::default(),
            rtt,
        }
    }

    /// Returns the totals.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of the next packet.
    pub fn next(&self) -> u64 {
        self.packets.next()
    }

    /// Returns the time of the last packet that asked for an acknowledgement, in ns.
    pub fn eliciting_at_ns(&self) -> u64 {
        self.eliciting_at_ns
    }

    /// Returns whether three probes, and everything else for `limit_ns`, had no answer.
    pub fn is_unanswered(&self, now_ns: u64, limit_ns: u64) -> bool {
        let asked_at_ns = self.asked_at_ns.unwrap_or(now_ns);
        self.probes > 2 && now_ns.saturating_sub(asked_at_ns) >= limit_ns
    }

    /// Returns the bytes of packets in flight.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Returns the probes without an answer.
    pub fn probes(&self) -> u32 {
        self.probes
    }

    /// Records a packet. One that elicits no acknowledgement has `bytes` 0 and no parts.
    pub fn on_sent(&mut self, now_ns: u64, bytes: u64, parts: Vec<Part>) {
        if bytes > 0 {
            self.eliciting_at_ns = now_ns;
            self.asked_at_ns.get_or_insert(now_ns);
            self.in_flight_bytes += bytes;
            self.counts.packets += 1;
            let sent = Sent {
                at_ns: now_ns,
                bytes,
                parts,
                is_lost: false,
                is_held: false,
            };
            self.hold_ns = 0;
            self.packets.push(sent);
        } else {
            self.packets.skip();
        }
    }

    /// States that the peer may hold the acknowledgement of the packet that was just sent, for
    /// `hold_ns`.
    pub fn expect_hold(&mut self, hold_ns: u64) {
        self.hold_ns = hold_ns;
        let last = self.packets.next().checked_sub(1);
        if let Some(sent) = last.and_then(|last| self.packets.get_mut(last)) {
            sent.is_held = true;
        }
    }

    /// Returns whether the peer may hold the acknowledgement of the last packet that elicits one.
    pub fn is_held(&self) -> bool {
        self.hold_ns > 0
    }

    /// Takes an acknowledgement. `None` for one of a packet that was never sent.
    pub fn on_ack(&mut self, ack: &Ack, now_ns: u64) -> Option<Outcome> {
        let highest = ack.ranges.first()?.end - 1;
        if highest >= self.next() {
            return None;
        }
        let mut outcome = Outcome::default();
        self.rtt.begin_ack();
        for range in &ack.ranges {
            for number in self.packets.clip(range) {
                let Some(sent) = self.packets.remove(number) else {
                    continue;
                };
                if number == highest && !sent.is_lost && !sent.is_held {
                    let rtt_ns = now_ns.saturating_sub(sent.at_ns);
                    self.rtt
                        .sample(rtt_ns, u64::from(ack.delay_us) * 1000, now_ns);
                }
                if sent.is_lost {
                    self.margin_eighths = (self.margin_eighths * 2).min(MARGIN_EIGHTHS_MAX);
                } else {
                    self.in_flight_bytes -= sent.bytes;
                    outcome.arrived_bytes += sent.bytes;
                }
                outcome.highest = outcome.highest.max(Some(number));
                outcome.arrived.extend(sent.parts);
            }
        }
        if outcome.highest.is_some() {
            self.probes = 0;
            self.asked_at_ns = (self.in_flight_bytes > 0).then_some(now_ns);
        }
        self.highest = self.highest.max(Some(highest));
        self.detect(now_ns, &mut outcome);
        Some(outcome)
    }

    /// Returns the time from a packet's departure to its loss, in ns.
    fn loss_delay_ns(&self) -> u64 {
        let round_ns = self.rtt.smoothed_ns().max(self.rtt.latest_ns());
        round_ns + (self.margin_eighths * round_ns / 8).max(GRANULARITY_NS)
    }

    fn detect(&mut self, now_ns: u64, outcome: &mut Outcome) {
        let Some(highest) = self.highest else { return };
        let delay_ns = self.loss_delay_ns();
        let forget_ns = delay_ns + REMEMBERED_ROUND_TRIPS * self.rtt.smoothed_ns();
        let mut forgotten = Vec::new();
        for (number, sent) in self.packets.iter_mut() {
            let age_ns = now_ns.saturating_sub(sent.at_ns);
            // Those after it were sent later.
            if number >= highest || age_ns < delay_ns {
                break;
            }
            if sent.is_lost {
                if age_ns > forget_ns {
                    forgotten.push(number);
                }
            } else {
                sent.is_lost = true;
                self.counts.lost += 1;
                self.in_flight_bytes -= sent.bytes;
                outcome.lost.extend(sent.parts.iter().cloned());
                outcome.lost_bytes += sent.bytes;
                outcome.highest_lost = Some(number);
            }
        }
        for number in forgotten {
            self.packets.remove(number);
        }
    }

    /// Returns the time of the next loss that is already decided unless an acknowledgement comes.
    fn loss_at_ns(&self) -> Option<u64> {
        let highest = self.highest?;
        let mut packets = self.packets.iter();
        let (number, sent) = packets.find(|(_, sent)| !sent.is_lost)?;
        (number < highest).then(|| sent.at_ns + self.loss_delay_ns())
    }

    fn probe_at_ns(&self) -> Option<u64> {
        if self.in_flight_bytes == 0 {
            return None;
        }
        let ack_delay_ns = self.ack_delay_ns + self.hold_ns;
        let timeout_ns = self.rtt.probe_timeout_ns(ack_delay_ns);
        Some(self.eliciting_at_ns + (timeout_ns << self.probes.min(BACKOFF_MAX)))
    }

    /// Returns the time of the next timeout; `None` without packets in flight.
    pub fn timeout_ns(&self) -> Option<u64> {
        match (self.loss_at_ns(), self.probe_at_ns()) {
            (Some(loss_ns), Some(probe_ns)) => Some(loss_ns.min(probe_ns)),
            (loss_ns, probe_ns) => loss_ns.or(probe_ns),
        }
    }

    /// Handles a timeout. Returns lost records, and whether a probe is due: the parts of the oldest
    /// packet in flight are then sent again without counting as lost.
    pub fn on_timeout(&mut self, now_ns: u64) -> (Outcome, Option<Vec<Part>>) {
        let mut outcome = Outcome::default();
        self.detect(now_ns, &mut outcome);
        if outcome.highest_lost.is_some() {
            return (outcome, None);
        }
        let is_due = self.probe_at_ns().is_some_and(|at_ns| now_ns >= at_ns);
        if !is_due {
            return (outcome, None);
        }
        self.probes += 1;
        self.counts.probes += 1;
        self.counts.timeouts += u64::from(self.probes == 2);
        (self.eliciting_at_ns, self.hold_ns) = (now_ns, 0);
        let oldest = self.packets.iter().find(|(_, sent)| !sent.is_lost);
        let parts = oldest.map(|(_, sent)| sent.parts.clone());
        (outcome, Some(parts.unwrap_or_default()))
    }

    /// Frees what the collection keeps beyond its entries.
    pub fn release(&mut self) {
        self.packets.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn recovery(packets: u64) -> Recovery {
        let mut recovery = Recovery::new(Rtt::new(MS), 0);
        for number in 0..packets {
            recovery.on_sent(number * 1000, 1000, vec![Part::Operation(number)]);
        }
        recovery
    }

    fn ack(range: Range<u64>) -> Ack {
        Ack {
            delay_us: 0,
            ranges: Vec::from([range]),
        }
    }

    #[test]
    fn packet__overtaken__is_lost_after_a_round_trip_and_a_margin_only() {
        let mut recovery = recovery(3);
        let outcome = recovery.on_ack(&ack(1..3), MS).unwrap();
        assert_eq!(outcome.arrived, [Part::Operation(1), Part::Operation(2)]);
        assert!(outcome.lost.is_empty(), "it may be reordered");
        let at_ns = recovery.timeout_ns().unwrap();
        assert!((MS..2 * MS).contains(&at_ns), "{at_ns}");
        let (outcome, probe) = recovery.on_timeout(at_ns);
        assert_eq!((outcome.lost, probe), (vec![Part::Operation(0)], None));
        assert_eq!(
            (recovery.in_flight_bytes(), recovery.timeout_ns()),
            (0, None)
        );
    }

    #[test]
    fn packet__arriving_after_its_detection__widens_the_margin() {
        let mut recovery = recovery(2);
        recovery.on_ack(&ack(1..2), MS).unwrap();
        let delay_ns = recovery.loss_delay_ns();
        recovery.on_timeout(3 * MS);
        let outcome = recovery.on_ack(&ack(0..2), 3 * MS).unwrap();
        assert_eq!(
            outcome.arrived,
            [Part::Operation(0)],
            "it need not be sent again"
        );
        assert!(recovery.loss_delay_ns() > delay_ns);
    }

    #[test]
    fn tail__lost__is_probed_with_a_doubled_interval() {
        let mut recovery = recovery(1);
        let first_ns = recovery.timeout_ns().unwrap();
        let (outcome, probe) = recovery.on_timeout(first_ns);
        assert!(outcome.lost.is_empty());
        assert_eq!(probe, Some(vec![Part::Operation(0)]));
        let second_ns = recovery.timeout_ns().unwrap();
        assert_eq!(second_ns - first_ns, 2 * first_ns);
        recovery.on_ack(&ack(0..1), second_ns).unwrap();
        assert_eq!((recovery.probes(), recovery.timeout_ns()), (0, None));
    }

    #[test]
    fn ack__of_a_packet_that_was_never_sent__is_refused() {
        let mut recovery = recovery(2);
        assert!(recovery.on_ack(&ack(0..3), MS).is_none());
        assert_eq!(recovery.in_flight_bytes(), 2000);
    }
}
