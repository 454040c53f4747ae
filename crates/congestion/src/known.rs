//! Knowledge of a path, in packets per second.

pub const SECOND_US: u64 = 1_000_000;

/// A span of the highest rate: twice that is how long a rate is remembered while others are seen.
const SPAN_US: u64 = 10_000_000;

/// Returns the packets that `pps` carries in `us`.
pub fn packets_of(pps: u64, us: u64) -> u64 {
    pps * us / SECOND_US
}

/// Knowledge of a path in one phase.
#[derive(Debug, Clone, Copy, Default)]
pub struct Path {
    /// Highest rate of the running span.
    pub best_pps: u64,
    /// Highest rate of the span before.
    pub last_pps: u64,
    span_us: u64,
    /// True if something has shown the limit: a train that arrived slower than it left, or a loss.
    pub is_bounded: bool,
    /// Highest rate of a train that arrived slower than it left, until one agrees.
    top_pps: u64,
    /// Highest rate at which packets arrived slower than they had left, or one that a loss, a queue
    /// or a probe has shown to be the limit.
    pub limit_pps: u64,
}

impl Path {
    /// Returns the path's rate.
    pub fn rate(&self) -> u64 {
        self.best_pps.max(self.last_pps)
    }

    /// Counts a rate that the path has shown.
    pub fn note(&mut self, pps: u64, now_us: u64) {
        if now_us > self.span_us + SPAN_US {
            (self.last_pps, self.best_pps, self.span_us) = (self.best_pps, 0, now_us);
        }
        self.best_pps = self.best_pps.max(pps);
    }

    /// Takes a rate at which packets arrived slower than they had left for the path's limit.
    pub fn note_limit(&mut self, pps: u64) {
        self.limit_pps = self.limit_pps.max(pps);
    }

    /// Returns whether something has shown that the rate is the path's limit, and not what was
    /// sent.
    pub fn is_limited(&self) -> bool {
        let rate = self.rate();
        self.limit_pps.abs_diff(rate) <= rate / 8
    }

    /// Takes the rate of a train that arrived slower than it left for the path's limit, if another
    /// one agrees: on a busy host, the times of a single one show as much about the processor.
    pub fn agree(&mut self, pps: u64, now_us: u64) {
        if pps > self.top_pps + self.top_pps / 8 {
            self.top_pps = pps;
        } else if pps >= self.top_pps - self.top_pps / 8 {
            self.is_bounded = true;
            self.note(self.top_pps, now_us);
        }
    }
}
