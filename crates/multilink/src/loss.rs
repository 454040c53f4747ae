//! Share of a path's packets that are lost.

/// A window of the loss measurement lasts at least this long, in ns, and has at least this many
/// packets.
const LOSS_WINDOW_NS: u64 = 200_000_000;
const LOSS_WINDOW_PACKETS: u64 = 64;

/// Share of packets lost, over windows that are long enough to be significant.
#[derive(Debug, Clone, Default)]
pub struct LossMeter {
    arrived: u64,
    lost: u64,
    start_ns: u64,
    share: f64,
}

impl LossMeter {
    /// Counts one packet. Returns the smoothed share at the end of a window.
    pub fn count(&mut self, now_ns: u64, lost: bool) -> Option<f64> {
        if self.arrived + self.lost == 0 {
            self.start_ns = now_ns;
        }
        if lost {
            self.lost += 1;
        } else {
            self.arrived += 1;
        }
        let packets = self.arrived + self.lost;
        if packets < LOSS_WINDOW_PACKETS || now_ns.saturating_sub(self.start_ns) < LOSS_WINDOW_NS {
            return None;
        }
        let share = self.lost as f64 / packets as f64;
        self.share += (share - self.share) / 2.0;
        (self.arrived, self.lost) = (0, 0);
        Some(self.share)
    }

    /// Takes a share that was measured elsewhere, and begins a new window.
    pub fn assume(&mut self, share: f64) {
        *self = Self {
            share,
            ..Self::default()
        };
    }

    /// Returns the smoothed share (0–1).
    pub fn share(&self) -> f64 {
        self.share
    }
}
