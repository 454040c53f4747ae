//! The share of packets that a link loses whatever the window: the loss that is not congestion.
//!
//! ```text
//!   s  lost bytes of an epoch: 4 rounds and 256 datagrams, or more
//!   f  least s of the last 64 epochs
//!
//!   s > 1.5 f + 0.02:  s − f is congestion, in a port too short to show a queue
//!   f is 64 epochs old and s > 0.02:  an epoch with half the window finds f anew
//!   more than 2 f + 1/4 of a round is lost, or 1/8 before f is known:  congestion at once
//! ```

const EPOCH_ROUNDS: u32 = 4;
const EPOCH_DATAGRAMS: u64 = 256;
const EPOCHS_VALID: u32 = 64;
const SHARE_MIN: f64 = 0.02;
const UNKNOWN_SHARE_MAX: f64 = 0.125;
const KNOWN_SHARE_MAX: f64 = 0.25;

/// Result of an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Finding {
    /// The window loses this share of its packets.
    Excess(f64),
    /// The next epoch shall have half the window.
    Probe,
}

/// Losses of a path.
#[derive(Debug, Clone, Default)]
pub struct LossFloor {
    acked_bytes: u64,
    lost_bytes: u64,
    rounds: u32,
    /// Least share, and the epochs since it was found.
    floor: Option<(f64, u32)>,
}

impl LossFloor {
    /// Returns the share of a round above which its losses are congestion: the minimum of the round
    /// trips may be that of a full queue.
    pub fn share_max(&self) -> f64 {
        match self.floor {
            Some((floor, _)) => 2.0 * floor + KNOWN_SHARE_MAX,
            None => UNKNOWN_SHARE_MAX,
        }
    }

    /// Takes the sums of a round. Returns what an epoch that ends with it has found.
    pub fn end_round(
        &mut self,
        acked_bytes: u64,
        lost_bytes: u64,
        unit_bytes: u64,
    ) -> Option<Finding> {
        self.acked_bytes += acked_bytes;
        self.lost_bytes += lost_bytes;
        self.rounds += 1;
        let bytes = self.acked_bytes + self.lost_bytes;
        if self.rounds < EPOCH_ROUNDS || bytes < EPOCH_DATAGRAMS * unit_bytes {
            return None;
        }
        let share = self.lost_bytes as f64 / bytes as f64;
        (self.acked_bytes, self.lost_bytes, self.rounds) = (0, 0, 0);
        let (floor, age) = self.floor.unwrap_or((share, 0));
        if share <= floor {
            self.floor = Some((share, 0));
            return None;
        }
        if age >= EPOCHS_VALID && share > SHARE_MIN {
            self.floor = None;
            return Some(Finding::Probe);
        }
        self.floor = Some((floor, age + 1));
        (share > 1.5 * floor + SHARE_MIN).then_some(Finding::Excess(share - floor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 1_000;

    /// An epoch in which `lost` of 400 datagrams are lost.
    fn epoch(floor: &mut LossFloor, lost: u64) -> Option<Finding> {
        let mut found = None;
        for _ in 0..4 {
            found = floor.end_round((400 - lost) * UNIT / 4, lost * UNIT / 4, UNIT);
        }
        found
    }

    #[test]
    fn loss__the_same_in_every_epoch__is_the_links() {
        let mut floor = LossFloor::default();
        for at in 0..200 {
            assert_eq!(epoch(&mut floor, 76 + at % 8), None);
        }
    }

    #[test]
    fn loss__more_than_with_a_smaller_window__is_congestion() {
        let mut floor = LossFloor::default();
        assert_eq!(epoch(&mut floor, 8), None);
        assert_eq!(epoch(&mut floor, 14), None);
        assert_eq!(epoch(&mut floor, 48), Some(Finding::Excess(0.12 - 0.02)));
    }

    #[test]
    fn loss__that_has_begun_to_stay__is_the_links_after_a_probe() {
        let mut floor = LossFloor::default();
        assert_eq!(epoch(&mut floor, 0), None);
        for _ in 0..EPOCHS_VALID {
            assert_eq!(epoch(&mut floor, 40), Some(Finding::Excess(0.1)));
        }
        assert_eq!(epoch(&mut floor, 40), Some(Finding::Probe));
        for _ in 0..100 {
            assert_eq!(epoch(&mut floor, 40), None);
        }
    }
}
