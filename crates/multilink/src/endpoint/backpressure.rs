//! Backpressure on the host: when frames must wait, and the rate at which the links drain.
//!
//! Frames wait in the host's own queue, where TCP notices them (ADR 007). The endpoint therefore
//! takes no frame while every usable link is full, or while one of them has a backlog of more than
//! [`BACKLOG_WORST_NS`].

use super::Endpoint;
use crate::link::{BACKLOG_MAX_NS, BACKLOG_WORST_NS};

impl Endpoint {
    /// Returns the time at which the links will accept frames again, or `None` if they do now.
    /// Frames should wait in the host's queue, where TCP notices them, and not here.
    pub fn frames_wait_until(&self, now_ns: u64) -> Option<u64> {
        let (mut least_ns, mut most_ns, mut most_usable_ns) = (f64::INFINITY, 0f64, 0f64);
        for (number, link) in self.links.iter().enumerate() {
            let Some(link) = link.as_ref().filter(|link| link.has_carrier) else {
                continue;
            };
            let backlog_ns = link.backlog_ns(now_ns);
            most_ns = most_ns.max(backlog_ns);
            if self.is_in_use(number) {
                least_ns = least_ns.min(link.full_for_ns(now_ns));
                most_usable_ns = most_usable_ns.max(backlog_ns);
            }
        }
        // A NIC may hold probes for as long as its neighbours are unknown, as after a plug. No
        // frame goes there while another link is usable, so its backlog limits nothing.
        if least_ns.is_finite() {
            most_ns = most_usable_ns;
        }
        let worst_ns = BACKLOG_WORST_NS as f64;
        if least_ns.is_finite() && least_ns > 0.0 {
            Some(now_ns + least_ns as u64)
        } else if most_ns > worst_ns {
            Some(now_ns + (most_ns - worst_ns) as u64 + BACKLOG_MAX_NS / 2)
        } else {
            None
        }
    }

    pub(super) fn is_in_use(&self, number: usize) -> bool {
        self.peers.iter().any(|peer| peer.paths[number].is_usable())
    }

    /// Returns the rate of the links together, in bits per second, and the time that their backlog
    /// takes, in ns. `waiting_bytes` that wait elsewhere count as backlog.
    ///
    /// The rate is infinite before the first measurement, because the NICs' claims are not trusted.
    pub fn load(&self, now_ns: u64, waiting_bytes: usize) -> (f64, f64) {
        let (mut capacity_bps, mut backlog_bytes) = (0.0, waiting_bytes as f64);
        let mut is_measured = false;
        for (number, link) in self.links.iter().enumerate() {
            let Some(link) = link
                .as_ref()
                .filter(|link| link.has_carrier && link.is_used)
            else {
                continue;
            };
            // A link that delivers later than the longest hold is not waited for.
            let mut peers = self.peers.iter();
            if !peers.any(|peer| peer.is_worth_waiting_for(number)) {
                continue;
            }
            let link_bps = link.capacity.rate_bps();
            let active = self
                .peers
                .iter()
                .filter(|peer| peer.is_active_on(number, now_ns));
            let reach_bps: f64 = active
                .map(|peer| {
                    peer.paths[number]
                        .bottleneck
                        .limit_bps()
                        .unwrap_or(link_bps)
                })
                .sum();
            capacity_bps += if reach_bps > 0.0 {
                reach_bps.min(link_bps)
            } else {
                link_bps
            };
            backlog_bytes += link.backlog_bytes(now_ns);
            is_measured |= link.capacity.is_measured() || reach_bps > 0.0 && reach_bps < link_bps;
        }
        if is_measured && capacity_bps > 0.0 {
            (capacity_bps, backlog_bytes * 8e9 / capacity_bps)
        } else {
            (f64::INFINITY, 0.0)
        }
    }
}
