//! Shortest times that are forgotten after a while.

/// Shortest time of the last one to two `WINDOW_NS`.
#[derive(Debug)]
pub struct Least<const WINDOW_NS: u64> {
    since_ns: u64,
    before_ns: i64,
    present_ns: i64,
}

impl<const WINDOW_NS: u64> Default for Least<WINDOW_NS> {
    fn default() -> Self {
        Self {
            since_ns: 0,
            before_ns: i64::MAX,
            present_ns: i64::MAX,
        }
    }
}

impl<const WINDOW_NS: u64> Least<WINDOW_NS> {
    /// Records a time. Returns by how much it exceeds the shortest.
    pub fn note(&mut self, time_ns: i64, now_ns: u64) -> u64 {
        if now_ns >= self.since_ns + WINDOW_NS {
            self.since_ns = now_ns;
            self.before_ns = std::mem::replace(&mut self.present_ns, time_ns);
        }
        self.present_ns = self.present_ns.min(time_ns);
        let excess_ns = time_ns.wrapping_sub(self.least_ns());
        excess_ns.max(0).unsigned_abs()
    }

    /// Returns the shortest time.
    pub fn least_ns(&self) -> i64 {
        self.present_ns.min(self.before_ns)
    }
}
