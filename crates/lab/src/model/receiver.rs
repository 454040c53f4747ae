//! Receive side of a NIC, with interrupt moderation.
//!
//! The multilink paper (RI2N/DRV, §3.1) names interrupt moderation as the main reason why frames
//! sent round robin arrive out of order. Each NIC hands up a batch of its own: 101, 103, 105 before
//! 102, 104.
//!
//! The rule is that of interrupt throttling. Examples are e1000's `InterruptThrottleRate` and
//! Linux's `gro_flush_timeout` with `napi_defer_hard_irqs`, which the lab's hosts use:
//!
//! - A frame that finds the NIC idle is delivered at once.
//! - The next interrupt comes no sooner than the delay after the last one, unless a batch is full.
//!   It delivers every frame received meanwhile.

use super::frame::Frame;

/// Receive ring of a NIC and its interrupt moderation.
#[derive(Debug)]
pub struct Receiver {
    delay_ns: u64,
    batch_frames: usize,
    waiting: Vec<Frame>,
    /// Earliest time of the next interrupt, in nanoseconds.
    open_at_ns: u64,
    /// Number of interrupts so far. A timer of an earlier generation is stale.
    pub generation: u64,
}

/// Interrupt that a received frame leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// The interrupt is due now and delivers every waiting frame.
    Now,
    /// The interrupt is due at this time, in nanoseconds.
    Later(u64),
    /// A timer for the interrupt is already running.
    Pending,
}

impl Receiver {
    /// Creates a receiver whose interrupts are at least `delay_ns` nanoseconds apart, unless
    /// `batch_frames` frames wait.
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

    /// Stores a frame that arrives at `now_ns` and returns the interrupt that it leads to.
    pub fn push(&mut self, now_ns: u64, frame: Frame) -> Interrupt {
        self.waiting.push(frame);
        if now_ns >= self.open_at_ns || self.waiting.len() >= self.batch_frames {
            Interrupt::Now
        } else if self.waiting.len() == 1 {
            Interrupt::Later(self.open_at_ns)
        } else {
            Interrupt::Pending
        }
    }

    /// Executes the interrupt at `now_ns`. Returns every waiting frame, in order of arrival.
    pub fn drain(&mut self, now_ns: u64) -> std::vec::Drain<'_, Frame> {
        self.generation += 1;
        self.open_at_ns = now_ns + self.delay_ns;
        self.waiting.drain(..)
    }
}
