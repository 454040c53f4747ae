//! A NIC's receive side: frames wait for an interrupt that is put off on purpose.
//!
//! The multilink paper (§3.1) names this as the main reason why frames sent round robin arrive out
//! of order: each NIC hands up a batch of its own, 101, 103, 105 before 102, 104.

use super::frame::Frame;

/// The receive ring of a NIC and its interrupt moderation.
#[derive(Debug)]
pub struct Receiver {
    delay_ns: u64,
    batch_frames: usize,
    waiting: Vec<Frame>,
    /// Counts interrupts, so that a timer of an earlier one is known for stale.
    pub generation: u64,
}

/// What a received frame leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// Everything that waits is delivered now.
    Now,
    /// It is delivered after so many nanoseconds.
    In(u64),
    /// A timer is running already.
    Pending,
}

impl Receiver {
    /// A receiver whose interrupt comes `delay_ns` after the first frame, or with the
    /// `batch_frames`th.
    pub fn new(delay_ns: u64, batch_frames: u32) -> Self {
        Self {
            delay_ns,
            batch_frames: batch_frames as usize,
            waiting: Vec::new(),
            generation: 0,
        }
    }

    /// A frame has arrived.
    pub fn push(&mut self, frame: Frame) -> Interrupt {
        self.waiting.push(frame);
        if self.delay_ns == 0 || self.waiting.len() >= self.batch_frames {
            Interrupt::Now
        } else if self.waiting.len() == 1 {
            Interrupt::In(self.delay_ns)
        } else {
            Interrupt::Pending
        }
    }

    /// The interrupt: everything that waits, in order of arrival.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Frame> {
        self.generation += 1;
        self.waiting.drain(..)
    }
}
