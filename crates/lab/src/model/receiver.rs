//! A NIC's receive side: interrupts that keep a distance.
//!
//! The multilink paper (§3.1) names this as the main reason why frames sent round robin arrive out
//! of order: each NIC hands up a batch of its own, 101, 103, 105 before 102, 104.
//!
//! The rule is that of interrupt throttling (e1000's `InterruptThrottleRate`, and Linux's
//! `gro_flush_timeout` with `napi_defer_hard_irqs`, which the cluster in a box uses): a frame that
//! finds the NIC at rest is delivered at once; the next interrupt comes no sooner than the delay
//! after the last, with everything that arrived meanwhile.

use super::frame::Frame;

/// The receive ring of a NIC and its interrupt moderation.
#[derive(Debug)]
pub struct Receiver {
    delay_ns: u64,
    batch_frames: usize,
    waiting: Vec<Frame>,
    /// Earliest time of the next interrupt, in nanoseconds.
    open_at_ns: u64,
    /// Counts interrupts, so that a timer of an earlier one is known for stale.
    pub generation: u64,
}

/// What a received frame leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// Everything that waits is delivered now.
    Now,
    /// It is delivered at this time, in nanoseconds.
    At(u64),
    /// A timer is running already.
    Pending,
}

impl Receiver {
    /// A receiver whose interrupts are `delay_ns` apart, unless `batch_frames` wait.
    pub fn new(delay_ns: u64, batch_frames: u32) -> Self {
        let batch_frames = batch_frames as usize;
        Self {
            delay_ns,
            batch_frames,
            waiting: Vec::new(),
            open_at_ns: 0,
            generation: 0,
        }
    }

    /// A frame has arrived at `now_ns`.
    pub fn push(&mut self, now_ns: u64, frame: Frame) -> Interrupt {
        self.waiting.push(frame);
        if now_ns >= self.open_at_ns || self.waiting.len() >= self.batch_frames {
            Interrupt::Now
        } else if self.waiting.len() == 1 {
            Interrupt::At(self.open_at_ns)
        } else {
            Interrupt::Pending
        }
    }

    /// The interrupt, at `now_ns`: everything that waits, in order of arrival.
    pub fn drain(&mut self, now_ns: u64) -> std::vec::Drain<'_, Frame> {
        self.generation += 1;
        self.open_at_ns = now_ns + self.delay_ns;
        self.waiting.drain(..)
    }
}
