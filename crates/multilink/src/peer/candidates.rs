//! The paths that may carry data now, for the split of a frame ([`crate::stripe`]).

use super::{Links, Peer};
use crate::capacity::Capacity;
use crate::liveness::State;
use crate::stripe::Candidate;
use crate::wire::LINKS_MAX;

/// Differences between the delays of paths that are ignored, in ns. Receive coalescing and
/// scheduling cause as much.
const DELAY_NOISE_NS: u64 = 300_000;
/// Largest extra delay of a path that the split counts while all links are full, in ns. The backlog
/// of a later link is kept shorter by as much: frames that arrive early are put on hold, and the
/// hold is limited.
const LEAN_NS: f64 = 1_500_000.0;
/// Share of their rate from which on links count as saturated.
const SATURATED_SHARE: f64 = 0.7;
/// Reduction of a path's rate in the split per share of packets lost: 4 % at a loss of 1 %, and at
/// most 80 %.
const LOSS_AVERSION: f64 = 4.0;

impl Peer {
    /// Finds the paths that may carry data now. Suspect, new and quarantined paths serve only when
    /// there is no better one, and a full link only when the others of its state are full.
    pub(super) fn candidates(
        &self,
        now_ns: u64,
        links: &Links,
        candidates: &mut [Candidate; LINKS_MAX],
    ) -> usize {
        for accept in [
            &[State::Up][..],
            &[State::Suspect],
            &[State::New],
            &[State::Quarantined],
        ] {
            for takes_full in [false, true] {
                let count = self.candidates_in(accept, takes_full, now_ns, links, candidates);
                if count > 0 {
                    return count;
                }
            }
        }
        0
    }

    fn candidates_in(
        &self,
        accept: &[State],
        takes_full: bool,
        now_ns: u64,
        links: &Links,
        candidates: &mut [Candidate; LINKS_MAX],
    ) -> usize {
        let open = self
            .paths
            .iter()
            .zip(links)
            .enumerate()
            .filter_map(|(number, (path, link))| {
                let link = link
                    .as_ref()
                    .filter(|link| link.has_carrier && path.destination.is_some())?;
                accept
                    .contains(&path.liveness.state())
                    .then_some((number, path, link))
            });
        let mut count = 0;
        let mut delay_min_ns = u64::MAX;
        for (number, path, link) in open {
            if !takes_full && link.full_for_ns(now_ns) > 0.0 {
                continue;
            }
            let delay_ns = path.rtt.min_ns();
            delay_min_ns = delay_min_ns.min(delay_ns);
            let link_bps = link.capacity.rate_bps();
            let rate_bps = path
                .bottleneck
                .limit_bps()
                .unwrap_or(link_bps)
                .min(link_bps);
            let factor = (1.0 - LOSS_AVERSION * path.loss.share()).max(0.2);
            candidates[count] = Candidate {
                link: number as u8,
                ready_ns: link.backlog_ns(now_ns) + delay_ns as f64,
                rate: rate_bps / 8e9 * factor,
            };
            count += 1;
        }
        // Only differences of delay matter, and small ones are measurement noise. The whole round
        // trip is compared, because reports return by the quickest path, whichever path they are
        // about.
        let base_ns = delay_min_ns.saturating_add(DELAY_NOISE_NS) as f64;
        for candidate in &mut candidates[..count] {
            let link = usize::from(candidate.link);
            let delay_ns = self.paths[link].rtt.min_ns() as f64;
            candidate.ready_ns += (delay_ns - base_ns).max(0.0) - delay_ns;
        }
        count
    }

    /// Returns whether the links have nearly as much to carry as they can.
    pub(super) fn is_saturated(&self, links: &Links, candidates: &[Candidate]) -> bool {
        let capacities = || {
            let local_link = |candidate: &Candidate| links[usize::from(candidate.link)].as_ref();
            candidates
                .iter()
                .filter_map(local_link)
                .map(|link| &link.capacity)
        };
        let carried_bps: f64 = capacities().map(Capacity::carried_bps).sum();
        let rate_bps: f64 = capacities().map(Capacity::rate_bps).sum();
        carried_bps >= SATURATED_SHARE * rate_bps
    }

    /// Lets the backlog decide about the split, and the delay only up to `LEAN_NS`. A slower link
    /// that is idle while the others have a backlog is lost capacity, however late its data
    /// arrives.
    pub(super) fn level(&self, now_ns: u64, links: &Links, candidates: &mut [Candidate]) {
        for candidate in candidates {
            let link = usize::from(candidate.link);
            if self.is_worth_waiting_for(link) {
                let backlog_ns = links[link].as_ref().map_or(0.0, |l| l.backlog_ns(now_ns));
                let later_ns = candidate.ready_ns - backlog_ns;
                candidate.ready_ns = backlog_ns + later_ns.min(LEAN_NS);
            }
        }
    }
}
