//! When the kernel gathers a link's datagrams into bursts (`UDP_GRO`), and when it had better not.
//!
//! Gathering saves a system call and a walk through the stack for each datagram but the first:
//! 64 KB over two links took 344 us with it and 442 without. But the kernel cannot know that a datagram is the
//! message's last, and waits for the next one until the NIC's `gro_flush_timeout` has passed, where
//! that is set: 64 bytes took 127 us instead of 53 behind a NIC that holds back for 50 us. TCP has a
//! push flag for this; UDP has none. So datagrams are gathered while they come in numbers.

/// How often datagrams are counted.
const WINDOW_NS: u64 = 10_000_000;
/// Datagrams of a link in a window from which on they are gathered: 20 000 a second.
const MANY: u32 = 200;
/// The same below which they no longer are, after [`CALM_WINDOWS`] such windows.
const FEW: u32 = 100;
/// Switching off may cost a burst that comes at that moment: not often, therefore.
const CALM_WINDOWS: u32 = 10;

/// Whether a link's datagrams are gathered.
#[derive(Debug, Default)]
pub struct Gathering {
    is_on: bool,
    window_began_ns: u64,
    datagrams: u32,
    calm_windows: u32,
}

impl Gathering {
    /// Whether datagrams are gathered now.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// So many datagrams came at once.
    pub fn note(&mut self, datagrams: usize) {
        self.datagrams = self.datagrams.saturating_add(datagrams as u32);
    }

    /// What to change, if anything, at `now_ns`. It ends only where nothing is left to read
    /// (`is_drained`): a burst read later would be taken for one datagram.
    pub fn decide(&mut self, now_ns: u64, is_drained: bool) -> Option<bool> {
        let window_ns = now_ns.saturating_sub(self.window_began_ns);
        if window_ns < WINDOW_NS {
            return None;
        }
        let in_window = u64::from(self.datagrams) * WINDOW_NS / window_ns;
        let windows = (window_ns / WINDOW_NS).min(u64::from(CALM_WINDOWS)) as u32;
        (self.window_began_ns, self.datagrams) = (now_ns, 0);
        if in_window > u64::from(FEW) {
            self.calm_windows = 0;
        } else {
            self.calm_windows = (self.calm_windows + windows).min(CALM_WINDOWS);
        }
        let wants = if self.is_on {
            self.calm_windows < CALM_WINDOWS
        } else {
            in_window > u64::from(MANY)
        };
        if wants == self.is_on || !wants && !is_drained {
            return None;
        }
        self.is_on = wants;
        Some(wants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `datagrams` in each of `windows` and returns what was changed, with the window's number.
    fn run(
        gathering: &mut Gathering,
        from: u64,
        windows: u64,
        datagrams: usize,
    ) -> Vec<(u64, bool)> {
        let mut changes = Vec::new();
        for window in from..from + windows {
            gathering.note(datagrams);
            if let Some(on) = gathering.decide(window * WINDOW_NS, true) {
                changes.push((window, on));
            }
        }
        changes
    }

    #[test]
    fn gathering__load__is_on_at_once_and_off_after_a_calm() {
        let mut gathering = Gathering::default();
        assert_eq!(
            run(&mut gathering, 1, 50, 60),
            [],
            "a few messages are left alone"
        );
        assert_eq!(run(&mut gathering, 51, 50, 800), [(51, true)]);
        assert_eq!(
            run(&mut gathering, 101, 5, 0),
            [],
            "a short pause is no calm"
        );
        assert_eq!(run(&mut gathering, 106, 5, 150), []);
        assert_eq!(run(&mut gathering, 111, 50, 10), [(120, false)]);
    }

    #[test]
    fn gathering__long_silence__counts_as_many_calm_windows() {
        let mut gathering = Gathering::default();
        run(&mut gathering, 1, 5, 800);
        assert_eq!(
            gathering.decide(100 * WINDOW_NS, false),
            None,
            "a burst may be waiting"
        );
        assert_eq!(gathering.decide(101 * WINDOW_NS, true), Some(false));
    }
}
