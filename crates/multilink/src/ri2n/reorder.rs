//! Putting one peer's frames back into order (paper §4.5, §4.6, §5.5).
//!
//! Order is restored for speed, not promised: a frame is handed up out of order rather than waited
//! for beyond [`FAST_TOUT_NS`], and retransmission is TCP's business.
//!
//! ```text
//!            ┌─ the next one ───────────────▶ up, then whatever is in order behind it
//!  arrival ──┼─ beyond a gap ──▶ list ──┬───▶ up, when the gap fills            (§5.5)
//!            └─ behind `last`: up       ├───▶ up, when every NIC is past the gap (§4.6)
//!                                       ├───▶ up, after FAST_TOUT               (§4.5)
//!                                       └───▶ up, all of it, when MAXBUF wait   (§5.5)
//! ```

#[cfg(test)]
mod tests;

use crate::seq::extend;
use std::collections::VecDeque;

/// `FAST_TOUT`: how long a frame may wait for those before it (§4.5, table 2).
pub const FAST_TOUT_NS: u64 = 20_000_000;

/// `MAXBUF`: how many frames of one peer may wait (§5.5, table 2). 300 full frames are 1.8 ms at
/// 2 Gb/s; the paper saw 12 waiting in steady state.
pub const MAXBUF: usize = 300;

/// A step in the sequence as long as this is a sender that started anew, or one that was out of
/// reach: no link holds frames back that long (0.4 s of full frames at 2 Gb/s). The paper is
/// silent on restarts.
const RESTART_DISTANCE: u64 = 65_536;

/// What the list did, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReorderCounts {
    /// Arrived beyond a gap and had to wait.
    pub held: u64,
    /// Gaps' frames given up because every NIC was past them (§4.6).
    pub lost_early: u64,
    /// Gaps' frames given up after `FAST_TOUT` (§4.5).
    pub lost_timeout: u64,
    /// Gaps' frames given up when `MAXBUF` was reached (§5.5).
    pub lost_overrun: u64,
    /// Times `MAXBUF` was reached.
    pub overruns: u64,
    /// Came after they had been given up.
    pub late: u64,
    /// Most that ever waited.
    pub held_max: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    number: u64,
    arrived_ns: u64,
    item: T,
}

/// One peer's list.
#[derive(Debug)]
pub struct Reorder<T> {
    /// Greatest number dealt with; `None` before the first arrival.
    last: Option<u64>,
    /// Greatest number each NIC has received.
    newest: Vec<Option<u64>>,
    /// By number, ascending.
    waiting: VecDeque<Waiting<T>>,
    /// No later than the arrival of the oldest that waits.
    oldest_ns: u64,
    counts: ReorderCounts,
}

impl<T> Reorder<T> {
    /// A list for frames that arrive on `links` NICs.
    pub fn new(links: usize) -> Self {
        Self {
            last: None,
            newest: vec![None; links],
            waiting: VecDeque::new(),
            oldest_ns: 0,
            counts: ReorderCounts::default(),
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> ReorderCounts {
        self.counts
    }

    /// How many frames wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a frame that NIC `link` has received; what is to be handed up goes to `up`, in order.
    /// `working` says for each NIC whether the peer can be expected to be heard on it.
    pub fn arrive(
        &mut self,
        sequence: u32,
        link: usize,
        item: T,
        working: impl Fn(usize) -> bool,
        now_ns: u64,
        up: &mut VecDeque<T>,
    ) {
        let number = self.locate(sequence, up);
        let last = self.last.expect("locate found a place");
        self.newest[link] = self.newest[link].max(Some(number));
        if number <= last {
            // Its successors are gone up already: nothing is won by keeping it.
            self.counts.late += 1;
            up.push_back(item);
            return;
        }
        if number == last + 1 {
            self.last = Some(number);
            up.push_back(item);
            self.release_in_order(up);
            self.release_expired(now_ns, up);
        } else {
            self.store(number, item, now_ns, up);
        }
        self.release_past_loss(working, up);
    }

    /// The 64-bit place of a sequence number. Starts over when it is out of any reach.
    fn locate(&mut self, sequence: u32, up: &mut VecDeque<T>) -> u64 {
        // Far from zero, so that numbers before the first have a place too.
        let first = 1 << 32 | u64::from(sequence);
        let Some(last) = self.last else {
            self.last = Some(first - 1);
            return first;
        };
        let number = extend(sequence, last);
        if number.abs_diff(last) < RESTART_DISTANCE {
            return number;
        }
        self.flush(up);
        self.newest.fill(None);
        self.last = Some(first - 1);
        first
    }

    fn store(&mut self, number: u64, item: T, now_ns: u64, up: &mut VecDeque<T>) {
        let is_full = self.waiting.len() == MAXBUF;
        if self.waiting.is_empty() {
            self.oldest_ns = now_ns;
        }
        // Most arrivals go to the end.
        let after = self.waiting.iter().rev();
        let behind = after.take_while(|other| other.number > number).count();
        let arrived_ns = now_ns;
        self.waiting.insert(
            self.waiting.len() - behind,
            Waiting {
                number,
                arrived_ns,
                item,
            },
        );
        self.counts.held += 1;
        self.counts.held_max = self.counts.held_max.max(self.waiting.len());
        if is_full {
            self.counts.overruns += 1;
            self.counts.lost_overrun += self.flush(up);
        }
    }

    /// Hands up all that waits; gives how many numbers were missing among them.
    fn flush(&mut self, up: &mut VecDeque<T>) -> u64 {
        self.waiting
            .back()
            .map(|newest| newest.number)
            .map_or(0, |number| self.release_through(number, up))
    }

    /// Hands up what waits with numbers up to `number`, and gives up what is missing before it.
    fn release_through(&mut self, number: u64, up: &mut VecDeque<T>) -> u64 {
        let mut missing = number.saturating_sub(self.last.unwrap_or(number));
        while let Some(first) = self.pop_through(number) {
            missing = missing.saturating_sub(1);
            up.push_back(first.item);
        }
        self.last = self.last.max(Some(number));
        missing
    }

    fn release_in_order(&mut self, up: &mut VecDeque<T>) {
        while let Some(first) = self.pop_through(self.last.map_or(0, |last| last + 1)) {
            self.last = self.last.max(Some(first.number));
            up.push_back(first.item);
        }
    }

    fn pop_through(&mut self, number: u64) -> Option<Waiting<T>> {
        let first = self.waiting.front()?;
        (first.number <= number).then(|| self.waiting.pop_front())?
    }

    /// Early detection (§4.6, figure 6): frames of one link never overtake each other, so what is
    /// missing and older than the newest of *every* NIC cannot come any more.
    fn release_past_loss(&mut self, working: impl Fn(usize) -> bool, up: &mut VecDeque<T>) {
        if self.waiting.is_empty() {
            return;
        }
        let newest = self.newest.iter().enumerate();
        let heard = newest.filter(|(link, _)| working(*link));
        // `None`, of a NIC that has received nothing yet, is the least of all.
        if let Some(past) = heard.map(|(_, newest)| *newest).min().flatten()
            && self.last.is_some_and(|last| past > last)
        {
            self.counts.lost_early += self.release_through(past, up);
            self.release_in_order(up);
        }
    }

    /// Hands up what has waited for `FAST_TOUT`, with all before it, in order or not (§5.5). Due
    /// after an in-order arrival, and every `FAST_TOUT` by a timer.
    pub fn release_expired(&mut self, now_ns: u64, up: &mut VecDeque<T>) {
        if self.waiting.is_empty() || now_ns.saturating_sub(self.oldest_ns) < FAST_TOUT_NS {
            return;
        }
        let is_due = |item: &&Waiting<T>| now_ns.saturating_sub(item.arrived_ns) >= FAST_TOUT_NS;
        if let Some(number) = self.waiting.iter().rev().find(is_due).map(|due| due.number) {
            self.counts.lost_timeout += self.release_through(number, up);
            self.release_in_order(up);
        }
        let arrivals = self.waiting.iter().map(|item| item.arrived_ns);
        self.oldest_ns = arrivals.min().unwrap_or(now_ns);
    }
}
