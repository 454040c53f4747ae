//! Acknowledgements of the peer's packets: when they are due, and what they state.

use super::Session;
use super::conversation::ANSWER_HOLD_NS;
use crate::protocol::wire::{ACK_RANGES_MAX, Ack, Header, Record};

/// Longest time for which this side holds an acknowledgement, in ns. It is below the least margin
/// of the loss detection, so a held acknowledgement is no loss.
const ACK_DELAY_NS: u64 = 50_000;

/// Longest time that the peer is told, in ns: a program that was just given something may carry the
/// acknowledgement with its answer, and the node's thread sends it after 200 µs otherwise.
pub const ACK_DELAY_STATED_NS: u64 = ACK_DELAY_NS + 200_000;

/// Packets after which an acknowledgement is due at once.
const ACK_EVERY: u32 = 8;

impl Session {
    /// Asks the peer for the acknowledgement that it may hold. Returns whether there is one.
    pub fn ask_for_held(&mut self) -> bool {
        let is_held = self.recovery.is_held();
        self.is_probe_due |= is_held;
        is_held
    }

    /// Records a packet of the peer, and when its acknowledgement is due.
    pub(super) fn note_packet(&mut self, header: &Header, is_new: bool, now_ns: u64) {
        let highest = self
            .received
            .descending()
            .next()
            .map_or(0, |range| range.end - 1);
        if header.number >= highest {
            self.highest_at_ns = now_ns;
        }
        self.unacked += 1;
        let is_in_order = self.received.count() <= 1 && header.number >= highest;
        let is_due = header.flags.wants_ack || !is_in_order || !is_new || self.unacked >= ACK_EVERY;
        if header.flags.wants_ack || header.flags.may_hold_ack {
            self.conversation.on_data(now_ns);
        }
        let at_ns = match header.flags.may_hold_ack {
            _ if is_due => now_ns,
            true => now_ns + ANSWER_HOLD_NS,
            false => now_ns + ACK_DELAY_NS,
        };
        self.ack_at_ns = Some(self.ack_at_ns.map_or(at_ns, |earlier| earlier.min(at_ns)));
    }

    /// Appends the acknowledgement of everything that has arrived.
    pub(super) fn emit_ack(&mut self, now_ns: u64, body: &mut Vec<u8>) {
        let held_us = now_ns.saturating_sub(self.highest_at_ns) / 1000;
        let ack = Ack {
            delay_us: u32::try_from(held_us).unwrap_or(u32::MAX),
            ranges: self.received.descending().take(ACK_RANGES_MAX).collect(),
        };
        if !ack.ranges.is_empty() {
            Record::Ack(ack).emit(body);
        }
        (self.ack_at_ns, self.unacked) = (None, 0);
    }
}
