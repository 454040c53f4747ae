//! Decides when the kernel coalesces the received datagrams of a link (`UDP_GRO`).
//!
//! Receive coalescing saves a system call and a pass through the network stack for each datagram
//! but the first. 64 KB over two links took 344 µs with it and 442 µs without (`docs/perf-log.md`,
//! 2026-11-22).
//!
//! But the kernel cannot know that a datagram is the last of a message. It waits for the next one
//! until the NIC's `gro_flush_timeout` has passed, where that is set. Behind a NIC that holds
//! datagrams back for 50 µs, half a round trip of 64 bytes took 127 µs instead of 53 µs. TCP has a
//! push flag for this; UDP has none. So datagrams are coalesced only while many arrive.

/// Length of a window in which datagrams are counted, in ns.
const WINDOW_NS: u64 = 10_000_000;
/// Datagrams of a link per window above which coalescing begins: 20 000 a second.
const BUSY_WINDOW_DATAGRAMS: u32 = 200;
/// Datagrams of a link per window up to which the window is calm. Coalescing ends after
/// [`CALM_WINDOWS`] calm windows.
const CALM_WINDOW_DATAGRAMS: u32 = 100;
/// Calm windows in a row before coalescing ends. The end may cost a burst that arrives at that
/// moment, so it must be rare.
const CALM_WINDOWS: u32 = 10;

/// State of receive coalescing on a link.
#[derive(Debug, Default)]
pub struct Coalescing {
    is_on: bool,
    window_start_ns: u64,
    datagrams: u32,
    calm_windows: u32,
}

impl Coalescing {
    /// Returns whether datagrams are coalesced now.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Counts datagrams that were received at once.
    pub fn note(&mut self, datagrams: usize) {
        self.datagrams = self.datagrams.saturating_add(datagrams as u32);
    }

    /// Returns the new setting if it changes at `now_ns`.
    ///
    /// Coalescing ends only when nothing is left to read (`is_drained`). A coalesced burst that is
    /// read later would be taken for one datagram.
    pub fn decide(&mut self, now_ns: u64, is_drained: bool) -> Option<bool> {
        let window_ns = now_ns.saturating_sub(self.window_start_ns);
        if window_ns < WINDOW_NS {
            return None;
        }
        let window_datagrams = u64::from(self.datagrams) * WINDOW_NS / window_ns;
        let windows = (window_ns / WINDOW_NS).min(u64::from(CALM_WINDOWS)) as u32;
        (self.window_start_ns, self.datagrams) = (now_ns, 0);
        if window_datagrams > u64::from(CALM_WINDOW_DATAGRAMS) {
            self.calm_windows = 0;
        } else {
            self.calm_windows = (self.calm_windows + windows).min(CALM_WINDOWS);
        }
        let is_wanted = if self.is_on {
            self.calm_windows < CALM_WINDOWS
        } else {
            window_datagrams > u64::from(BUSY_WINDOW_DATAGRAMS)
        };
        if is_wanted == self.is_on || !is_wanted && !is_drained {
            return None;
        }
        self.is_on = is_wanted;
        Some(is_wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `datagrams` in each of `windows` windows. Returns the changes, with the number of
    /// the window.
    fn run(
        coalescing: &mut Coalescing,
        start: u64,
        windows: u64,
        datagrams: usize,
    ) -> Vec<(u64, bool)> {
        let mut changes = Vec::new();
        for window in start..start + windows {
            coalescing.note(datagrams);
            if let Some(is_on) = coalescing.decide(window * WINDOW_NS, true) {
                changes.push((window, is_on));
            }
        }
        changes
    }

    #[test]
    fn coalescing__under_load__turns_on_at_once_and_off_after_a_quiet_period() {
        let mut coalescing = Coalescing::default();
        assert_eq!(
            run(&mut coalescing, 1, 50, 60),
            [],
            "a few messages are left alone"
        );
        assert_eq!(run(&mut coalescing, 51, 50, 800), [(51, true)]);
        assert_eq!(
            run(&mut coalescing, 101, 5, 0),
            [],
            "a short pause is no calm"
        );
        assert_eq!(run(&mut coalescing, 106, 5, 150), []);
        assert_eq!(run(&mut coalescing, 111, 50, 10), [(120, false)]);
    }

    #[test]
    fn coalescing__long_pause__counts_as_several_quiet_windows() {
        let mut coalescing = Coalescing::default();
        run(&mut coalescing, 1, 5, 800);
        assert_eq!(
            coalescing.decide(100 * WINDOW_NS, false),
            None,
            "a burst may be waiting"
        );
        assert_eq!(coalescing.decide(101 * WINDOW_NS, true), Some(false));
    }
}
