//! Orders transfers so that each starts when all links on its path have capacity for it.
//!
//! A planner chooses the transfers and their order. This module derives each transfer's
//! predecessors from the links. The order affects only the time: a bad one leaves links idle, but
//! no port overflows.
//!
//! # Capacity shares
//!
//! On each link of its path, a transfer with bottleneck rate r needs 0.95 · r of free capacity and
//! shares of earlier transfers (`shares.rs`). If the free capacity suffices, it waits for no
//! transfer there. Otherwise it takes over shares: those whose waits its other predecessors imply,
//! and then those whose end its sender learns of first.
//!
//! # Early start bytes
//!
//! Let P₁, P₂, … be the transfers in a share of rate q on a link of rate C, the latest first. The
//! next transfer in the share, t, awaits Pₖ until at most m of its bytes are missing:
//!
//! ```text
//!   Rₖ = q/C · S − (b₁ + … + bₖ₋₁)                     k: the least number with bₖ > Rₖ
//!   m  = min( Rₖ + q/C · min(F, M),  max(bₖ − 8 KiB, Rₖ) )
//!   F  = RTT · ρ · 0.92
//!
//!   bᵢ   bytes of Pᵢ
//!   S    payload that may stand in the port in front of the link:
//!          0        on the access link of t's sender
//!          8 KiB    if the path of Pₖ or of t has a narrow port
//!          24 KiB   otherwise
//!   Rₖ   the rest of S that the transfers after Pₖ leave
//!   F    payload that the link carries until t's first byte arrives
//!   RTT  round-trip time between Pₖ's receiver and t's sender, in seconds
//!   ρ    rate of one transfer on Pₖ's path, in bytes per second (`narrow.rs`)
//!   M    most of F that counts:
//!          0        on the access link of t's sender, and in every operation except a gather
//!          8 KiB    in a gather, if one of the two paths has a narrow port
//!          ∞        in a gather otherwise
//! ```
//!
//! Three cases differ. If P₁ has the same sender as t, t waits only until P₁ is sent. If no Pₖ has
//! more than Rₖ bytes, t awaits the completion of the transfer before those that are recorded. If
//! Pₖ took several shares, the search ends there, because the share has the history of only one of
//! them.
//!
//! The second term of m keeps the wait until Pₖ's first chunk has been received. Only then is it
//! certain that the link is busy for the time of F (ADR 033).
//!
//! In a multi-site network ([`crate::is_multi_site`]), S is larger in a port, and F is 0 (ADR 021,
//! ADR 022):
//!
//! ```text
//!   q/C · S = q/C · 32 KiB + G + max(0, min(G, bₖ) − 16 KiB)     G = RTT · r(Pₖ)
//! ```
//!
//! G is the number of bytes that the link carries in one RTT at r(Pₖ), the bottleneck rate of Pₖ's
//! path. The last term is for a ramp: it applies only in a gather.
//!
//! # Predicted times
//!
//! ```text
//!   begin(t) = max( known(w) over the waits w of t,  first(u) over all u that feed t )
//!   sent(t)  = max( begin(t) + b/r,  end(u) + c/r over all u that feed t )
//!   first(t) = max( begin(t), passed(t) − λ ) + c/r + λ
//!   end(t)   = max( sent(t) + λ,  passed(t) + b/r,  B(ℓ)/C(ℓ) over the links ℓ of t )
//!   known(w) = end(P) + λ(P, t) − m/r(P), or sent(P) if w awaits that
//!
//!   b, c       bytes of t, and of its first chunk
//!   r          bottleneck rate of t's path, in bytes per second
//!   λ          latency of t's path, in seconds
//!   λ(P, t)    latency from P's receiver to t's sender, in seconds
//!   passed(t)  earliest completion of a transfer that t follows on a link; the latest such time
//!              over the links of t
//!   B(ℓ)       bytes of all transfers on ℓ up to t
//! ```

use crate::early::{Early, SendPath};
use crate::grain::CHUNK_BYTES;
use crate::plan::{After, Blocks, Handed, Operation, PORT_BYTES, Plan, Progress, Transfer};
use crate::shares::{ENOUGH, Shares};
use kumi_topo::{DirectedLink, Paths};

/// The transfers so far, and the state of links and hosts.
pub(crate) struct Schedule<'a> {
    paths: &'a Paths,
    early: Early<'a>,
    shares: Vec<Shares>,
    passed_bytes: Vec<u64>,
    transfers: Vec<Transfer>,
    handed: Vec<Handed>,
    timings: Vec<Timing>,
}

/// Most hints that are kept for the checker, enough for some ten thousand transfers.
const HANDED_MAX: usize = 1 << 17;

/// Predicted times of a transfer, adjacent in memory because every capacity share looks them up.
#[derive(Clone, Copy)]
struct Timing {
    to: u32,
    /// Sending rate, in bytes per second.
    bytes_per_s: f64,
    /// Times at which it has been sent, at which its first chunk has been received, and at which it
    /// is complete, in seconds.
    sent_s: f64,
    first_received_s: f64,
    complete_s: f64,
}

impl<'a> Schedule<'a> {
    pub fn new(paths: &'a Paths) -> Self {
        let links = 0..paths.directed_links();
        let capacity = |link| paths.link_bytes_per_s(DirectedLink(link as u32));
        Self {
            paths,
            early: Early::new(paths, PORT_BYTES),
            passed_bytes: vec![0; paths.directed_links()],
            shares: links.map(|link| Shares::new(capacity(link))).collect(),
            transfers: Vec::new(),
            handed: Vec::new(),
            timings: Vec::new(),
        }
    }

    /// Sets whether the operation is ramped ([`Operation::is_ramped`]).
    pub fn ramped(self, is_ramped: bool) -> Self {
        let early = self.early.ramped(is_ramped);
        Self { early, ..self }
    }

    /// Adds a transfer of `bytes` and returns its index. It starts when the transfers `needs` have
    /// brought its sender the data, and the transfers before it on its links have passed.
    pub fn add(
        &mut self,
        (from, to): (usize, usize),
        blocks: Blocks,
        bytes: u64,
        combines: bool,
        needs: &[usize],
    ) -> usize {
        let index = self.transfers.len();
        let links = self.paths.links(from, to);
        let rates = links.iter().map(|link| self.paths.link_bytes_per_s(*link));
        let rate = rates.fold(f64::INFINITY, f64::min);
        let mut after: Vec<After> = Vec::new();
        // For each link, the wait that each capacity share would require. A link with free capacity
        // requires none.
        let mut waits: Vec<Vec<Option<After>>> = Vec::with_capacity(links.len());
        for (place, link) in links.iter().enumerate() {
            let shares = &self.shares[link.0 as usize];
            let mut link_waits = Vec::new();
            if shares.free() < rate * ENOUGH {
                let link_bytes_per_s = self.paths.link_bytes_per_s(*link);
                link_waits.extend(shares.active().map(|share| {
                    self.early
                        .wait(share, &self.transfers, (from, to), place, link_bytes_per_s)
                }));
                self.follow(from, rate, shares, &link_waits, &mut after);
            }
            waits.push(link_waits);
        }
        // Bytes that stand in a port leave it before those of this transfer.
        let (mut passed_s, mut least_s) = (0.0_f64, 0.0_f64);
        let mut implied: Vec<bool> = Vec::new();
        for (link, waits) in links.iter().zip(waits) {
            let shares = &self.shares[link.0 as usize];
            implied.clear();
            implied.extend(waits.into_iter().map(|needed| is_implied(&after, needed)));
            let followed_shares = shares
                .active()
                .zip(&implied)
                .filter(|(_, is_implied)| **is_implied);
            let complete_s = followed_shares
                .filter_map(|(share, _)| share.last())
                .map(|last| self.timings[last].complete_s);
            if let Some(earliest_s) = complete_s.reduce(f64::min) {
                passed_s = passed_s.max(earliest_s);
            }
            let flight_max_bytes = self.early.max_bytes(self.paths.link_bytes_per_s(*link));
            let shares = &mut self.shares[link.0 as usize];
            let mut implied = implied.iter();
            let predecessors = shares.take((index, bytes), rate, flight_max_bytes, |_| {
                implied.next().copied().unwrap_or(true)
            });
            if self.handed.len() < HANDED_MAX {
                let handed = predecessors.into_iter().flatten().map(|from| Handed {
                    link: link.0,
                    transfer: index as u32,
                    from: from as u32,
                });
                self.handed.extend(handed);
            }
            // A transfer that starts early does not end before its link has carried all bytes.
            let link_bytes = &mut self.passed_bytes[link.0 as usize];
            *link_bytes += bytes;
            least_s = least_s.max(*link_bytes as f64 / self.paths.link_bytes_per_s(*link));
        }
        after.sort_unstable();
        let times = after.iter().map(|wait| self.known_s(*wait, from));
        let mut begin_s = times.fold(0.0, f64::max);
        // A relay sends data on chunk by chunk.
        let chunk_s = bytes.min(CHUNK_BYTES) as f64 / rate;
        let mut fed_s = 0.0_f64;
        for needed in needs {
            begin_s = begin_s.max(self.timings[*needed].first_received_s);
            fed_s = fed_s.max(self.timings[*needed].complete_s);
        }
        let sent_s = (begin_s + bytes as f64 / rate).max(fed_s + chunk_s);
        let latency_s = self.paths.latency_s(from, to);
        let complete_s = (sent_s + latency_s).max(passed_s + bytes as f64 / rate);
        self.timings.push(Timing {
            to: to as u32,
            bytes_per_s: rate,
            sent_s,
            first_received_s: begin_s.max(passed_s - latency_s) + chunk_s + latency_s,
            complete_s: complete_s.max(least_s),
        });
        self.early
            .send_paths
            .push(SendPath::new(self.paths, (from, to)));
        self.transfers.push(Transfer {
            from,
            to,
            blocks,
            combines,
            after,
        });
        index
    }

    /// Adds to `after` the waits that free `rate` on a link. If the present waits suffice, it adds
    /// none. Otherwise it adds those that the sender `from` learns of first. `waits` holds the wait
    /// of each capacity share.
    fn follow(
        &self,
        from: usize,
        rate: f64,
        shares: &Shares,
        waits: &[Option<After>],
        after: &mut Vec<After>,
    ) {
        let needed = rate * ENOUGH;
        let mut free = shares.free();
        // Shares that require a further wait, with the time at which the sender learns of its end.
        let mut open: Vec<(f64, f64, After)> = Vec::new();
        for (share, wait) in shares.active().zip(waits) {
            match wait.filter(|_| !is_implied(after, *wait)) {
                Some(wait) => open.push((self.known_s(wait, from), share.rate_bytes_per_s, wait)),
                None => free += share.rate_bytes_per_s,
            }
        }
        while free < needed {
            let soonest = open.iter().min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((_, _, soonest)) = soonest.copied() else {
                return;
            };
            match after
                .iter_mut()
                .find(|wait| wait.transfer == soonest.transfer)
            {
                Some(wait) => *wait = wait.and(soonest),
                None => after.push(soonest),
            }
            open.retain(|(_, share_rate, wait)| {
                let is_implied = is_implied(after, Some(*wait));
                free += if is_implied { *share_rate } else { 0.0 };
                !is_implied
            });
        }
    }

    /// Returns the time at which a host learns that a wait has ended, because it sent or received
    /// the data, or by a control message.
    fn known_s(&self, wait: After, host: usize) -> f64 {
        let timing = &self.timings[wait.transfer];
        let Progress::Received { missing_bytes, .. } = wait.until else {
            return timing.sent_s;
        };
        let missing_s = missing_bytes as f64 / timing.bytes_per_s;
        timing.complete_s + self.paths.latency_s(timing.to as usize, host) - missing_s
    }

    /// Returns the time that the busiest link needs for all its bytes, in seconds.
    pub fn links_s(&self) -> f64 {
        let links = self.passed_bytes.iter().enumerate();
        let times = links.map(|(link, bytes)| {
            *bytes as f64 / self.paths.link_bytes_per_s(DirectedLink(link as u32))
        });
        times.fold(0.0, f64::max)
    }

    /// Returns the time at which the last transfer is complete, in seconds.
    pub fn end_s(&self) -> f64 {
        let complete_s = self.timings.iter().map(|timing| timing.complete_s);
        complete_s.fold(0.0, f64::max)
    }

    /// Returns the transfers as the plan of an operation.
    pub fn into_plan(self, operation: Operation, order: Vec<usize>, block_bytes: Vec<u64>) -> Plan {
        Plan {
            operation,
            order,
            block_bytes,
            predicted_s: self.end_s(),
            transfers: self.transfers,
            port_bytes: PORT_BYTES,
            handed: match self.handed.len() {
                0..HANDED_MAX => self.handed,
                _ => Vec::new(),
            },
        }
    }
}

/// Returns whether the waits in `after` include `needed`, if there is one.
fn is_implied(after: &[After], needed: Option<After>) -> bool {
    needed.is_none_or(|needed| after.iter().any(|wait| needed.is_within(*wait)))
}
