//! Record of the datagrams that were sent on one path and not reported yet.

use crate::link::OVERHEAD_BYTES;
use crate::retain::UnitRef;
use crate::wire::{CONTROL_HEADER_BYTES, TAG_BYTES};
use std::collections::VecDeque;

/// Largest number of entries: 100 ms of full frames at 10 Gb/s. Beyond it the oldest are forgotten,
/// and TCP repairs their loss.
pub const LEDGER_MAX: usize = 1 << 16;

/// Wire bytes of a ping without padding: control header, tag, and the headers around a datagram.
const PING_BYTES_MAX: usize = CONTROL_HEADER_BYTES + TAG_BYTES + OVERHEAD_BYTES;

/// A datagram that was sent.
#[derive(Debug, Clone, Copy)]
pub struct SentDatagram {
    /// Time at which it was given to the link.
    pub queued_at_ns: u64,
    /// Time at which it was expected to leave the host, after the bytes queued before it.
    pub departure_ns: u64,
    /// Its size in wire bytes, as counted for rates.
    pub bytes: u32,
    /// True if the receiver reports it. A report itself is not reported.
    pub eliciting: bool,
    /// The unit that it carried, if the unit can be sent again.
    pub unit: Option<UnitRef>,
}

impl SentDatagram {
    /// Returns whether it is a padded ping, whose loss indicates the path's MTU.
    pub fn is_probe(&self) -> bool {
        self.eliciting && self.unit.is_none() && self.bytes as usize > PING_BYTES_MAX
    }
}

/// Datagrams of one path, by link sequence number.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Link sequence number of the front entry.
    base: u64,
    entries: VecDeque<SentDatagram>,
}

/// Run of link sequence numbers that were lost.
pub type LostRun = std::ops::Range<u64>;

impl Ledger {
    /// Records a datagram, whose link sequence number is [`Ledger::next_seq`]. Beyond the limit the
    /// oldest datagram is forgotten. Its unit is returned, because no report will settle it later.
    pub fn record(&mut self, sent: SentDatagram) -> Option<UnitRef> {
        self.entries.push_back(sent);
        if self.entries.len() <= LEDGER_MAX {
            return None;
        }
        self.base += 1;
        self.entries.pop_front()?.unit
    }

    /// Returns the link sequence number of the next datagram.
    pub fn next_seq(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Returns the number of open datagrams.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns datagram `seq`, if it is still open.
    pub fn get(&self, seq: u64) -> Option<&SentDatagram> {
        let index = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        self.entries.get(index)
    }

    /// Closes all entries up to `highest`. Each was received unless one of `lost` contains it.
    pub fn settle(
        &mut self,
        highest: u64,
        lost: &[LostRun],
        mut visit: impl FnMut(SentDatagram, /* lost: */ bool),
    ) {
        while self.base <= highest {
            let Some(sent) = self.entries.pop_front() else {
                break;
            };
            visit(sent, lost.iter().any(|run| run.contains(&self.base)));
            self.base += 1;
        }
    }

    /// Returns the oldest datagram that the receiver should have reported.
    pub fn oldest_open(&self) -> Option<&SentDatagram> {
        self.entries.iter().find(|sent| sent.eliciting)
    }

    /// Removes the units from all open entries, to send them on other paths.
    pub fn take_units(&mut self) -> impl Iterator<Item = UnitRef> {
        self.entries.iter_mut().filter_map(|sent| sent.unit.take())
    }

    /// Closes all entries and returns the units that were open. The numbers continue: under one key
    /// no number may be used twice.
    pub fn abandon(&mut self) -> Vec<UnitRef> {
        let units = self.take_units().collect();
        self.base = self.next_seq();
        self.entries.clear();
        units
    }

    /// Does the same as [`Ledger::abandon`], but the numbers start at 0, for a new key.
    pub fn restart(&mut self) -> Vec<UnitRef> {
        let units = self.abandon();
        self.base = 0;
        units
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // a slice of one range is intended
mod tests {
    use super::*;

    fn datagram(queued_at_ns: u64, eliciting: bool) -> SentDatagram {
        SentDatagram {
            queued_at_ns,
            departure_ns: queued_at_ns,
            bytes: 100,
            eliciting,
            unit: None,
        }
    }

    #[test]
    fn ledger__report_with_a_hole__separates_received_from_lost() {
        let mut ledger = Ledger::default();
        for queued_at_ns in 0..10 {
            ledger.record(datagram(queued_at_ns, true));
        }
        let mut fates = Vec::new();
        ledger.settle(6, &[2..4], |sent, lost| {
            fates.push((sent.queued_at_ns, lost))
        });
        let lost: Vec<u64> = fates
            .iter()
            .filter(|(_, lost)| *lost)
            .map(|(queued_at_ns, _)| *queued_at_ns)
            .collect();
        assert_eq!((fates.len(), lost), (7, vec![2, 3]));
        assert_eq!(ledger.oldest_open().unwrap().queued_at_ns, 7);
        assert_eq!(ledger.get(9).map(|sent| sent.queued_at_ns), Some(9));
        assert!(ledger.get(3).is_none());
    }

    #[test]
    fn ledger__datagram_that_elicits_no_report__is_never_open() {
        let mut ledger = Ledger::default();
        ledger.record(datagram(0, false));
        assert!(ledger.oldest_open().is_none());
    }

    #[test]
    fn ledger__without_reports__stays_bounded() {
        let mut ledger = Ledger::default();
        for queued_at_ns in 0..LEDGER_MAX as u64 + 10 {
            ledger.record(datagram(queued_at_ns, true));
        }
        assert_eq!(ledger.oldest_open().unwrap().queued_at_ns, 10);
        assert_eq!(ledger.next_seq(), LEDGER_MAX as u64 + 10);
    }
}
