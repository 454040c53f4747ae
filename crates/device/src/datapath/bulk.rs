//! Choice of the data path for long streams: the programs in the kernel, or the daemon.
//!
//! The programs restore no order. On paths that are alike this costs a stream little, however many
//! there are. On unlike ones each burst on a slow path is overtaken by several on the fast ones.
//! The daemon restores the order and repairs losses, and needs 2.4 times the processor time for a
//! byte (5.6 and 2.3 ns, case `stream` of `link-kernel`). So it gets the long streams where paths
//! are unlike or one loses frames, if it can carry them.

/// Share of the fastest path's rate that each path must have for the kernel, and for a change back
/// to the kernel. On 1000 + 300 and 1000 + 500 Mb/s one stream was faster through the daemon, and
/// on equal links through the kernel (`docs/perf-log.md`, 2026-11-28).
const SHARE_LEAST: f64 = 0.6;
const SHARE_BACK: f64 = 0.75;
/// Least share of the fastest path's rate at which the daemon gains from a path, and below which it
/// gives one up. On 1000 + 100 Mb/s a stream had 1.06 of the fast link through the daemon, and on
/// 1000 + 50 it had 0.93 to 0.97 (`docs/perf-log.md`, 2026-11-30). Both shares are between these.
const SHARE_WORTH: f64 = 0.07;
const SHARE_WORTH_BACK: f64 = 0.06;
/// Rate of all paths together up to which the daemon carries long streams, in bit/s. Without a seal
/// it carried 2.7 and 3.9 Gb/s in two runs of `link-cpu`, on two processors with both ends.
const DAEMON_BPS: f64 = 3e9;
/// Time for which the kernel must be the better carrier before it gets the long streams back, in
/// ns. Chosen by judgement. While one of two unlike paths is suspected, one path is left, and no
/// path is unlike. Bursts that the kernel then sends overtake bytes that wait in the daemon
/// (`docs/perf-log.md`, 2026-11-29).
const BACK_NS: u64 = 1_000_000_000;

/// Carrier of the long streams to a peer.
#[derive(Debug, Default)]
pub struct Carrier {
    /// The daemon carries them; otherwise the kernel does.
    is_daemon: bool,
    /// Time since which the kernel would be the better carrier, in ns.
    kernel_since_ns: Option<u64>,
}

impl Carrier {
    /// Returns whether it is the daemon.
    pub fn is_daemon(&self) -> bool {
        self.is_daemon
    }

    /// Lets the kernel have the streams at once.
    pub fn use_kernel(&mut self) {
        *self = Self::default();
    }

    /// Chooses for paths of these rates in bit/s. `is_lossy` tells whether one loses frames.
    pub fn choose(&mut self, rates_bps: &[f64], is_lossy: bool, now_ns: u64) {
        if daemon_should(rates_bps, is_lossy, self.is_daemon) {
            self.is_daemon = true;
            self.kernel_since_ns = None;
        } else if self.is_daemon {
            let since_ns = *self.kernel_since_ns.get_or_insert(now_ns);
            self.is_daemon = now_ns < since_ns + BACK_NS;
        }
    }
}

/// Returns whether the daemon should carry the long streams to a peer whose paths have these rates
/// in bit/s. `is_lossy` tells whether one of them loses frames, and `has` whether it does already.
fn daemon_should(rates_bps: &[f64], is_lossy: bool, has: bool) -> bool {
    let sum_bps: f64 = rates_bps.iter().sum();
    let fastest_bps = rates_bps.iter().copied().fold(0.0, f64::max);
    let (worth, share) = match has {
        true => (SHARE_WORTH_BACK, SHARE_BACK),
        false => (SHARE_WORTH, SHARE_LEAST),
    };
    let unlike = fastest_bps * worth..fastest_bps * share;
    let is_unlike = rates_bps.iter().any(|rate| unlike.contains(rate));
    sum_bps <= DAEMON_BPS && (is_unlike || is_lossy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon_should_mbps(rates: &[f64], has: bool) -> bool {
        let rates: Vec<_> = rates.iter().map(|mbps| mbps * 1e6).collect();
        daemon_should(&rates, false, has)
    }

    #[test]
    fn bulk__paths_that_are_alike__is_the_kernels() {
        assert!(!daemon_should_mbps(&[950.0, 900.0], true));
        assert!(!daemon_should_mbps(&[240.0; 8], true));
        assert!(!daemon_should_mbps(&[], true));
    }

    #[test]
    fn bulk__unlike_paths__is_the_daemons() {
        assert!(daemon_should_mbps(&[950.0, 450.0], false));
        assert!(daemon_should_mbps(&[950.0, 95.0], false));
        assert!(
            !daemon_should_mbps(&[950.0, 47.0], false),
            "it would gain nothing"
        );
        assert!(daemon_should_mbps(&[950.0, 450.0, 47.0], false));
    }

    #[test]
    fn bulk__path_that_loses_frames__is_the_daemons_if_it_carries_them() {
        assert!(daemon_should(&[1e9; 2], true, false));
        assert!(!daemon_should(&[1e10; 2], true, false));
    }

    #[test]
    fn bulk__rates_that_vary__do_not_change_it_each_time() {
        assert!(!daemon_should_mbps(&[950.0, 650.0], false));
        assert!(daemon_should_mbps(&[950.0, 650.0], true));
        assert!(!daemon_should_mbps(&[950.0, 62.0], false));
        assert!(daemon_should_mbps(&[950.0, 62.0], true));
    }

    #[test]
    fn carrier__path_that_is_suspected_for_a_moment__does_not_give_streams_to_the_kernel() {
        let mut carrier = Carrier::default();
        carrier.choose(&[200e6, 70e6], false, 0);
        for at_ns in (0..10 * BACK_NS).step_by(BACK_NS as usize / 2) {
            carrier.choose(&[200e6], false, at_ns);
            assert!(carrier.is_daemon());
            carrier.choose(&[200e6, 70e6], false, at_ns + 1_000_000);
            assert!(carrier.is_daemon());
        }
    }

    #[test]
    fn carrier__kernel_is_better_for_a_second__gets_the_streams_back() {
        let mut carrier = Carrier::default();
        carrier.choose(&[200e6, 70e6], false, 0);
        carrier.choose(&[200e6; 2], false, 5);
        carrier.choose(&[200e6; 2], false, 4 + BACK_NS);
        assert!(carrier.is_daemon());
        carrier.choose(&[200e6; 2], false, 5 + BACK_NS);
        assert!(!carrier.is_daemon());
        // The next time starts anew.
        carrier.choose(&[200e6, 70e6], false, 6 + BACK_NS);
        carrier.choose(&[200e6; 2], false, 7 + BACK_NS);
        assert!(carrier.is_daemon());
    }

    #[test]
    fn bulk__paths_faster_than_the_daemon__is_the_kernels() {
        assert!(!daemon_should_mbps(&[9_500.0, 950.0], true));
    }
}
