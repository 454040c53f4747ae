//! Choice of the data path for long streams: the programs in the kernel, or the daemon.
//!
//! The programs restore no order. On paths that are alike this costs a stream little, however many
//! there are. On unlike ones each burst on a slow path is overtaken by several on the fast ones.
//! The daemon restores the order and repairs losses, and needs twice the processor time for a byte
//! (5.5 and 2.6 ns, `link-cpu` and `link-kernel`). So it gets the long streams where paths are
//! unlike or one loses frames, if it can carry them.

/// Share of the fastest path's rate that each path must have for the kernel, and for a change back
/// to the kernel. On 1000 + 300 and 1000 + 500 Mb/s one stream was faster through the daemon, and
/// on equal links through the kernel (`docs/perf-log.md`, 2026-11-28).
const SHARE_LEAST: f64 = 0.6;
const SHARE_BACK: f64 = 0.75;
/// Rate of all paths together up to which the daemon carries long streams, in bit/s. Without a seal
/// it carried 2.7 and 3.9 Gb/s in two runs of `link-cpu`, on two processors with both ends.
const DAEMON_BPS: f64 = 3e9;

/// Returns whether the daemon should carry the long streams to a peer whose paths have these rates
/// in bit/s. `is_lossy` tells whether one of them loses frames, and `has` whether it does already.
pub fn daemon_should(rates_bps: &[f64], is_lossy: bool, has: bool) -> bool {
    let sum_bps: f64 = rates_bps.iter().sum();
    let fastest_bps = rates_bps.iter().copied().fold(0.0, f64::max);
    let share = if has { SHARE_BACK } else { SHARE_LEAST };
    let is_unlike = rates_bps.iter().any(|rate| *rate < fastest_bps * share);
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
    }

    #[test]
    fn bulk__paths_faster_than_the_daemon__is_the_kernels() {
        assert!(!daemon_should_mbps(&[9_500.0, 950.0], true));
    }
}
