//! Restores the order of one peer's frames (paper §4.5, §4.6, §5.5).
//!
//! Order serves throughput and is not guaranteed. A frame that has waited for [`FAST_TOUT_NS`] is
//! delivered out of order. Retransmission is left to TCP.
//!
//! ```text
//!            ┌─ next number ────▶ deliver, then the consecutive frames of the list
//!  arrival ──┼─ beyond a gap ──▶ list ──┬──▶ deliver when the gap fills             (§5.5)
//!            └─ ≤ `last`: deliver       ├──▶ deliver when every NIC is past the gap (§4.6)
//!                                       ├──▶ deliver after FAST_TOUT                (§4.5)
//!                                       └──▶ deliver all when MAXBUF is exceeded    (§5.5)
//! ```

#[cfg(test)]
mod tests;

use kumi_multilink::seq::extend;
use std::collections::VecDeque;

/// `FAST_TOUT`: longest time for which a frame waits for earlier frames, in nanoseconds (§4.5,
/// table 2).
pub const FAST_TOUT_NS: u64 = 20_000_000;

/// `MAXBUF`: most frames of one peer that may wait (§5.5, table 2). 300 full frames are 1.8 ms at
/// 2 Gb/s. The paper reports 12 waiting frames in steady state.
pub const MAXBUF: usize = 300;

/// Distance in sequence numbers from which the sender counts as restarted, or as having been
/// unreachable. No link holds frames back for this long: 65 536 full frames are 0.4 s at 2 Gb/s.
/// The paper does not treat restarts.
const RESTART_DISTANCE: u64 = 65_536;

/// Counters of a reorder list, in frames unless noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReorderCounts {
    /// Frames that arrived beyond a gap and had to wait.
    pub held: u64,
    /// Missing frames given up because every working NIC had received a later one (§4.6).
    pub lost_early: u64,
    /// Missing frames given up after `FAST_TOUT` (§4.5).
    pub lost_timeout: u64,
    /// Missing frames given up when `MAXBUF` was exceeded (§5.5).
    pub lost_overrun: u64,
    /// Number of times that `MAXBUF` was exceeded.
    pub overruns: u64,
    /// Frames that arrived after the list had moved past their number.
    pub late: u64,
    /// Largest number of frames that waited at a time.
    pub held_max: usize,
}

#[derive(Debug)]
struct WaitingFrame<T> {
    number: u64,
    arrived_ns: u64,
    item: T,
}

/// Reorder list of one peer.
#[derive(Debug)]
pub struct Reorder<T> {
    /// Greatest number that was delivered or given up; `None` before the first arrival.
    last: Option<u64>,
    /// Greatest number received on each NIC.
    newest: Vec<Option<u64>>,
    /// Waiting frames in ascending order of their numbers.
    waiting: VecDeque<WaitingFrame<T>>,
    /// Lower bound of the arrival times of the waiting frames.
    oldest_ns: u64,
    counts: ReorderCounts,
}

impl<T> Reorder<T> {
    /// Creates a list for frames that arrive on `links` NICs.
    pub fn new(links: usize) -> Self {
        Self {
            last: None,
            newest: vec![None; links],
            waiting: VecDeque::new(),
            oldest_ns: 0,
            counts: ReorderCounts::default(),
        }
    }

    /// Returns the counters.
    pub fn counts(&self) -> ReorderCounts {
        self.counts
    }

    /// Returns the number of frames that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Processes a frame that NIC `link` has received. Appends the frames that can be delivered to
    /// `out`, in order. `is_working` returns for each NIC whether early detection must consider it.
    pub fn arrive(
        &mut self,
        sequence: u32,
        link: usize,
        item: T,
        is_working: impl Fn(usize) -> bool,
        now_ns: u64,
        out: &mut VecDeque<T>,
    ) {
        let number = self.locate(sequence, out);
        let last = self.last.expect("locate found a place");
        self.newest[link] = self.newest[link].max(Some(number));
        if number <= last {
            // Later frames have already been delivered, so nothing is gained by holding this one.
            self.counts.late += 1;
            out.push_back(item);
            return;
        }
        if number == last + 1 {
            self.last = Some(number);
            out.push_back(item);
            self.release_in_order(out);
            self.release_expired(now_ns, out);
        } else {
            self.store(number, item, now_ns, out);
        }
        self.release_past_loss(is_working, out);
    }

    /// Returns the 64-bit number of a sequence number. Delivers all waiting frames and starts a new
    /// sequence if the distance to `last` is [`RESTART_DISTANCE`] or more.
    fn locate(&mut self, sequence: u32, out: &mut VecDeque<T>) -> u64 {
        // Starts far from zero, so that numbers before the first one are also valid.
        let first = 1 << 32 | u64::from(sequence);
        let Some(last) = self.last else {
            self.last = Some(first - 1);
            return first;
        };
        let number = extend(sequence, last);
        if number.abs_diff(last) < RESTART_DISTANCE {
            return number;
        }
        self.flush(out);
        self.newest.fill(None);
        self.last = Some(first - 1);
        first
    }

    fn store(&mut self, number: u64, item: T, now_ns: u64, out: &mut VecDeque<T>) {
        let is_full = self.waiting.len() == MAXBUF;
        if self.waiting.is_empty() {
            self.oldest_ns = now_ns;
        }
        // Searches from the end, where most arrivals belong.
        let descending = self.waiting.iter().rev();
        let newer_count = descending.take_while(|frame| frame.number > number).count();
        let arrived_ns = now_ns;
        self.waiting.insert(
            self.waiting.len() - newer_count,
            WaitingFrame {
                number,
                arrived_ns,
                item,
            },
        );
        self.counts.held += 1;
        self.counts.held_max = self.counts.held_max.max(self.waiting.len());
        if is_full {
            self.counts.overruns += 1;
            self.counts.lost_overrun += self.flush(out);
        }
    }

    /// Delivers all waiting frames. Returns the count of numbers that were missing among them.
    fn flush(&mut self, out: &mut VecDeque<T>) -> u64 {
        self.waiting
            .back()
            .map(|newest| newest.number)
            .map_or(0, |number| self.release_through(number, out))
    }

    /// Delivers the waiting frames up to `number` and gives up the missing ones. Returns their
    /// count.
    fn release_through(&mut self, number: u64, out: &mut VecDeque<T>) -> u64 {
        let mut missing = number.saturating_sub(self.last.unwrap_or(number));
        while let Some(first) = self.pop_through(number) {
            missing = missing.saturating_sub(1);
            out.push_back(first.item);
        }
        self.last = self.last.max(Some(number));
        missing
    }

    fn release_in_order(&mut self, out: &mut VecDeque<T>) {
        while let Some(first) = self.pop_through(self.last.map_or(0, |last| last + 1)) {
            self.last = self.last.max(Some(first.number));
            out.push_back(first.item);
        }
    }

    fn pop_through(&mut self, number: u64) -> Option<WaitingFrame<T>> {
        let first = self.waiting.front()?;
        (first.number <= number).then(|| self.waiting.pop_front())?
    }

    /// Detects losses early (§4.6, figure 6). Frames of one link never overtake each other. A
    /// missing number that is older than the newest number of *every* working NIC can therefore no
    /// longer arrive.
    fn release_past_loss(&mut self, is_working: impl Fn(usize) -> bool, out: &mut VecDeque<T>) {
        if self.waiting.is_empty() {
            return;
        }
        let newest = self.newest.iter().enumerate();
        let working_links = newest.filter(|(link, _)| is_working(*link));
        // `None`, for a NIC that has received nothing yet, sorts before all numbers.
        if let Some(proven) = working_links.map(|(_, newest)| *newest).min().flatten()
            && self.last.is_some_and(|last| proven > last)
        {
            self.counts.lost_early += self.release_through(proven, out);
            self.release_in_order(out);
        }
    }

    /// Delivers the frames that have waited for `FAST_TOUT`, and all frames before them, in order
    /// or not (§5.5). Call it after an in-order arrival, and every `FAST_TOUT` from a timer.
    pub fn release_expired(&mut self, now_ns: u64, out: &mut VecDeque<T>) {
        if self.waiting.is_empty() || now_ns.saturating_sub(self.oldest_ns) < FAST_TOUT_NS {
            return;
        }
        let is_due =
            |item: &&WaitingFrame<T>| now_ns.saturating_sub(item.arrived_ns) >= FAST_TOUT_NS;
        if let Some(number) = self.waiting.iter().rev().find(is_due).map(|due| due.number) {
            self.counts.lost_timeout += self.release_through(number, out);
            self.release_in_order(out);
        }
        let arrivals = self.waiting.iter().map(|item| item.arrived_ns);
        self.oldest_ns = arrivals.min().unwrap_or(now_ns);
    }
}
