//! Effects of a faulty wire on frames, drawn from a seed.

use super::frame::Frame;
use crate::topology::{Faults, Probability};

/// Effect of the wire on one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The frame is lost.
    Lost,
    /// The frame arrives `copies` times, each `extra_ns` later than on a fault-free wire. If
    /// `overtaken_ns` is set, later frames may overtake it.
    Arrives {
        /// The frame, with one bit flipped if `corrupted`.
        frame: Frame,
        /// True if a bit was flipped.
        corrupted: bool,
        /// Number of copies that arrive: 1, or 2 for a duplicate.
        copies: u32,
        /// Jitter, in nanoseconds.
        extra_ns: u64,
        /// Time, in nanoseconds, by which the frame is held back so that later frames overtake it.
        /// `None` keeps the order.
        overtaken_ns: Option<u64>,
    },
}

/// Random choices of one direction of a link.
#[derive(Debug)]
pub struct Dice {
    rng: fastrand::Rng,
    /// Gilbert–Elliott state: true during a burst of losses.
    in_burst: bool,
}

impl Dice {
    /// Creates choices that depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            in_burst: false,
        }
    }

    fn roll(&mut self, p: Probability) -> bool {
        p > Probability::ZERO && self.rng.f64() < p.get()
    }

    fn is_lost(&mut self, faults: &Faults) -> bool {
        let mut lost = self.roll(faults.loss);
        if let Some(burst) = faults.burst_loss {
            let transition = if self.in_burst {
                burst.leave
            } else {
                burst.enter
            };
            if self.roll(transition) {
                self.in_burst = !self.in_burst;
            }
            lost |= self.in_burst && self.roll(burst.loss);
        }
        lost
    }

    /// Draws the fate of `frame` under `faults`.
    pub fn draw(&mut self, faults: &Faults, frame: Frame) -> Fate {
        if faults.is_none() {
            let fate = Fate::Arrives {
                frame,
                corrupted: false,
                copies: 1,
                extra_ns: 0,
                overtaken_ns: None,
            };
            return fate;
        }
        if self.is_lost(faults) {
            return Fate::Lost;
        }
        let corrupted = self.roll(faults.corrupt);
        let frame = if corrupted {
            let bit = self.rng.usize(..);
            frame.with_flipped_bit(bit)
        } else {
            frame
        };
        let copies = 1 + u32::from(self.roll(faults.duplicate));
        let jitter_ns = faults.jitter.ns();
        let extra_ns = if jitter_ns == 0 {
            0
        } else {
            self.rng.u64(0..=jitter_ns)
        };
        let overtaken_ns = self
            .roll(faults.reorder)
            .then_some(faults.reorder_delay.ns());
        Fate::Arrives {
            frame,
            corrupted,
            copies,
            extra_ns,
            overtaken_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::BurstLoss;

    fn losses(faults: Faults, frames: usize) -> Vec<bool> {
        let mut dice = Dice::new(7);
        let frame = Frame::from(vec![0; 60]);
        (0..frames)
            .map(|_| dice.draw(&faults, frame.clone()) == Fate::Lost)
            .collect()
    }

    #[test]
    fn fate__loss_of_one_percent__loses_one_in_a_hundred() {
        let faults = Faults {
            loss: Probability::new(0.01).unwrap(),
            ..Faults::default()
        };
        let lost = losses(faults, 100_000).iter().filter(|lost| **lost).count();
        assert!((900..1100).contains(&lost), "{lost} of 100000");
    }

    #[test]
    fn fate__burst_loss__has_a_mean_burst_of_one_over_the_leave_probability() {
        let p = |p| Probability::new(p).unwrap();
        let burst = BurstLoss {
            enter: p(0.01),
            leave: p(0.1),
            loss: p(1.0),
        };
        let lost = losses(
            Faults {
                burst_loss: Some(burst),
                ..Faults::default()
            },
            200_000,
        );
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let mean = lost.iter().filter(|lost| **lost).count() as f64 / bursts as f64;
        assert!((9.0..11.0).contains(&mean), "mean burst {mean} frames");
    }

    #[test]
    fn fate__corrupted_frame__differs_in_one_bit_after_the_addresses() {
        let faults = Faults {
            corrupt: Probability::new(1.0).unwrap(),
            ..Faults::default()
        };
        let frame = Frame::from(vec![0; 100]);
        let Fate::Arrives { frame: damaged, .. } = Dice::new(1).draw(&faults, frame) else {
            panic!("lost")
        };
        assert_eq!(
            damaged.bytes().iter().map(|b| b.count_ones()).sum::<u32>(),
            1
        );
        assert_eq!(damaged.bytes()[..12], [0; 12]);
    }
}
