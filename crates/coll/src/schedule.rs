//! Orders transfers so that each starts when all links on its path have capacity for it.
//!
//! A planner chooses the transfers and their order. This module derives each transfer's
//! predecessors from the links. The order affects only the time: a bad one leaves links idle, but
//! no port overflows.
//!
//! # Capacity shares
//!
//! On each link of its path, a transfer with bottleneck rate r needs 0.95 · r of free capacity and
//! shares of earlier transfers (`lanes.rs`). If the free capacity suffices, it waits for no
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
//! In a multi-site network ([`is_far`]), S is larger in a port, and F is 0 (ADR 021, ADR 022):
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
//!   sent(t)  = max( begin(t) + b/r,  come(u) + c/r over all u that feed t )
//!   first(t) = max( begin(t), passed(t) − λ ) + c/r + λ
//!   come(t)  = max( sent(t) + λ,  passed(t) + b/r,  B(ℓ)/C(ℓ) over the links ℓ of t )
//!   known(w) = come(P) + λ(P, t) − m/r(P), or sent(P) if w awaits that
//!
//!   b, c       bytes of t, and of its first chunk
//!   r          bottleneck rate of t's path, in bytes per second
//!   λ          latency of t's path, in seconds
//!   λ(P, t)    latency from P's receiver to t's sender, in seconds
//!   passed(t)  earliest completion of a transfer that t follows on a link; the latest such time
//!              over the links of t
//!   B(ℓ)       bytes of all transfers on ℓ up to t
//! ```

use crate::grain::PIECE_BYTES;
use crate::lanes::{ENOUGH, Lane, Lanes};
use crate::narrow::{STANDING_BYTES, carried_bytes_per_s, is_narrow, own_bytes_per_s};
use crate::plan::{After, Blocks, Handed, Operation, PORT_BYTES, Plan, Transfer, Until};
use crate::program::RAMP_BYTES;
use kumi_topo::{DirectedLink, Network, Paths};
use std::cell::Cell;

/// The transfers so far, and the state of links and hosts.
pub(crate) struct Schedule<'a> {
    paths: &'a Paths,
    early: Early<'a>,
    lanes: Vec<Lanes>,
    passed_bytes: Vec<u64>,
    transfers: Vec<Transfer>,
    handed: Vec<Handed>,
    reckoned: Vec<Reckoned>,
}

/// Most hints that are kept for the checker, enough for some ten thousand transfers.
const HANDED_MAX: usize = 1 << 17;

/// Predicted times of a transfer, adjacent in memory because every capacity share looks them up.
#[derive(Clone, Copy)]
struct Reckoned {
    to: u32,
    /// Sending rate, in bytes per second.
    bytes_per_s: f64,
    /// Times at which it has been sent, at which its first chunk has been received, and at which it
    /// is complete, in seconds.
    sent_s: f64,
    begins_come_s: f64,
    come_s: f64,
}

impl<'a> Schedule<'a> {
    pub fn new(paths: &'a Paths) -> Self {
        let links = 0..paths.directed_links();
        let capacity = |link| paths.link_bytes_per_s(DirectedLink(link as u32));
        Self {
            paths,
            early: Early::new(paths, PORT_BYTES),
            passed_bytes: vec![0; paths.directed_links()],
            lanes: links.map(|link| Lanes::new(capacity(link))).collect(),
            transfers: Vec::new(),
            handed: Vec::new(),
            reckoned: Vec::new(),
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
        for (at, link) in links.iter().enumerate() {
            let lanes = &self.lanes[link.0 as usize];
            let mut of_link = Vec::new();
            if lanes.free() < rate * ENOUGH {
                let link_bytes_per_s = self.paths.link_bytes_per_s(*link);
                of_link.extend(lanes.used().map(|lane| {
                    self.early
                        .wait(lane, &self.transfers, (from, to), at, link_bytes_per_s)
                }));
                self.follow(from, rate, lanes, &of_link, &mut after);
            }
            waits.push(of_link);
        }
        // Bytes that stand in a port leave it before those of this transfer.
        let (mut passed_s, mut least_s) = (0.0_f64, 0.0_f64);
        let mut behind: Vec<bool> = Vec::new();
        for (link, waits) in links.iter().zip(waits) {
            let lanes = &self.lanes[link.0 as usize];
            behind.clear();
            behind.extend(waits.into_iter().map(|needed| is_behind(&after, needed)));
            let followed = lanes
                .used()
                .zip(&behind)
                .filter(|(_, is_behind)| **is_behind);
            let come_s = followed
                .filter_map(|(lane, _)| lane.last())
                .map(|last| self.reckoned[last].come_s);
            if let Some(over_s) = come_s.reduce(f64::min) {
                passed_s = passed_s.max(over_s);
            }
            let kept_bytes = self.early.most(self.paths.link_bytes_per_s(*link));
            let lanes = &mut self.lanes[link.0 as usize];
            let mut behind = behind.iter();
            let followed = lanes.take((index, bytes), rate, kept_bytes, |_| {
                behind.next().copied().unwrap_or(true)
            });
            if self.handed.len() < HANDED_MAX {
                let handed = followed.into_iter().flatten().map(|from| Handed {
                    link: link.0,
                    transfer: index as u32,
                    from: from as u32,
                });
                self.handed.extend(handed);
            }
            // A transfer that starts early does not end before its link has carried all bytes.
            let all = &mut self.passed_bytes[link.0 as usize];
            *all += bytes;
            least_s = least_s.max(*all as f64 / self.paths.link_bytes_per_s(*link));
        }
        after.sort_unstable();
        let known = after.iter().map(|wait| self.known_s(*wait, from));
        let mut begins_s = known.fold(0.0, f64::max);
        // A relay sends data on chunk by chunk.
        let piece_s = bytes.min(PIECE_BYTES) as f64 / rate;
        let mut fed_s = 0.0_f64;
        for needed in needs {
            begins_s = begins_s.max(self.reckoned[*needed].begins_come_s);
            fed_s = fed_s.max(self.reckoned[*needed].come_s);
        }
        let sent_s = (begins_s + bytes as f64 / rate).max(fed_s + piece_s);
        let latency_s = self.paths.latency_s(from, to);
        let come_s = (sent_s + latency_s).max(passed_s + bytes as f64 / rate);
        self.reckoned.push(Reckoned {
            to: to as u32,
            bytes_per_s: rate,
            sent_s,
            begins_come_s: begins_s.max(passed_s - latency_s) + piece_s + latency_s,
            come_s: come_s.max(least_s),
        });
        self.early
            .sendings
            .push(Sending::over(self.paths, (from, to)));
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
        lanes: &Lanes,
        waits: &[Option<After>],
        after: &mut Vec<After>,
    ) {
        let needed = rate * ENOUGH;
        let mut free = lanes.free();
        // Shares that require a further wait, with the time at which the sender learns of its end.
        let mut open: Vec<(f64, f64, After)> = Vec::new();
        for (lane, wait) in lanes.used().zip(waits) {
            match wait.filter(|_| !is_behind(after, *wait)) {
                Some(wait) => open.push((self.known_s(wait, from), lane.part, wait)),
                None => free += lane.part,
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
            open.retain(|(_, part, wait)| {
                let is_behind = is_behind(after, Some(*wait));
                free += if is_behind { *part } else { 0.0 };
                !is_behind
            });
        }
    }

    /// Returns the time at which a host learns that a wait has ended, because it sent or received
    /// the data, or by a control message.
    fn known_s(&self, wait: After, host: usize) -> f64 {
        let of = &self.reckoned[wait.transfer];
        let Until::Come { missing_bytes, .. } = wait.until else {
            return of.sent_s;
        };
        let missing_s = missing_bytes as f64 / of.bytes_per_s;
        of.come_s + self.paths.latency_s(of.to as usize, host) - missing_s
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
        let come_s = self.reckoned.iter().map(|one| one.come_s);
        come_s.fold(0.0, f64::max)
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

/// Payload of the previous transfer that may stand in a port when the next one arrives, in bytes:
/// one chunk, a quarter of [`PORT_BYTES`]. Without a narrow port, [`STANDING_BYTES`] are added
/// (ADR 033).
const EARLY_BYTES: u64 = 8 << 10;

/// Share of a busy link's rate that is at least payload: [`kumi_topo::ethernet::PLAIN_TCP`] less
/// 2 % for acknowledgements.
const BUSY_SHARE: f64 = 0.92;

/// Round-trip time up to which hosts are close together, in seconds: ranks of one host, or hosts on
/// one floor. It is chosen by judgement.
const FAR_S: f64 = 1e-3;

/// Properties of the path of a transfer.
#[derive(Debug, Clone, Copy)]
struct Sending {
    /// Rate of one transfer on the path, in bytes per second.
    bytes_per_s: f64,
    /// The path has a port that is slower than the sender's access link.
    is_narrow: bool,
}

impl Sending {
    fn over(paths: &Paths, (from, to): (usize, usize)) -> Self {
        let own_bytes_per_s = own_bytes_per_s(paths, from, to);
        let path_bytes_per_s = paths.bytes_per_s(from, to);
        let round_trip_s = paths.latency_s(from, to) * 2.0;
        Self {
            bytes_per_s: carried_bytes_per_s(own_bytes_per_s, path_bytes_per_s, round_trip_s),
            is_narrow: is_narrow(own_bytes_per_s, path_bytes_per_s),
        }
    }
}

/// Computes the bytes of a transfer that may still be in flight when a transfer that awaits it
/// starts.
struct Early<'a> {
    paths: &'a Paths,
    port_bytes: u64,
    /// Round-trip time between the hosts that are furthest apart, in seconds; 0 if the network is
    /// not multi-site ([`is_far`]).
    round_trip_s: f64,
    /// Round-trip time between the hosts that are furthest apart, in seconds, in any network.
    furthest_s: f64,
    is_ramped: bool,
    /// Paths of the transfers, in the order in which they were added.
    sendings: Vec<Sending>,
    last_asked: Cell<Option<((usize, usize), bool)>>,
}

impl<'a> Early<'a> {
    pub fn new(paths: &'a Paths, port_bytes: u64) -> Self {
        let (a, b) = paths.furthest();
        let round_trip_s = paths.latency_s(a, b) + paths.latency_s(b, a);
        let is_far = port_bytes > 0
            && round_trip_s > FAR_S
            && round_trip_s * paths.bytes_per_s(a, b) > PORT_BYTES as f64;
        Self {
            paths,
            port_bytes,
            round_trip_s: if is_far { round_trip_s } else { 0.0 },
            furthest_s: round_trip_s,
            is_ramped: false,
            sendings: Vec::new(),
            last_asked: Cell::new(None),
        }
    }

    /// Sets whether the operation is ramped ([`Operation::is_ramped`]).
    pub fn ramped(self, is_ramped: bool) -> Self {
        Self { is_ramped, ..self }
    }

    /// Returns whether the network is multi-site.
    pub fn is_far(&self) -> bool {
        self.round_trip_s > 0.0
    }

    /// Returns the wait of the next transfer in a capacity share; `place_on_path` is the link's
    /// place on its path.
    ///
    /// If the previous transfer has the same sender, the next one may follow as soon as that is
    /// sent: it has the same room in the port. If transfers of other senders are in between, even a
    /// transfer of the same sender must be complete. Otherwise the transfers in a share, each
    /// behind one of its own sender only, would run in parallel (docs/perf-log.md, 2026-11-23).
    ///
    /// If the share is the whole link and both transfers have the same receiver, the wait includes
    /// all earlier transfers to that receiver (ADR 033).
    pub fn wait(
        &self,
        lane: &Lane,
        transfers: &[Transfer],
        (from, to): (usize, usize),
        place_on_path: usize,
        link_bytes_per_s: f64,
    ) -> Option<After> {
        match lane.last() {
            Some(last) if transfers[last].from == from => Some(After::sent(last)),
            _ => {
                let share = (lane.part / link_bytes_per_s).min(1.0);
                let wait = lane.wait(|waited, bytes| {
                    self.bytes(
                        place_on_path,
                        (from, to),
                        (waited, &transfers[waited]),
                        bytes,
                        share,
                    )
                })?;
                let is_last =
                    place_on_path > 0 && transfers[wait.transfer].to == to && share >= ENOUGH;
                Some(if is_last { wait.with_earlier() } else { wait })
            }
        }
    }

    /// Returns q/C · S and q/C · min(F, M) of the module's comment, for a transfer `waited` of
    /// `bytes`. `share` is q/C. On the sender's access link both are 0, so that earlier transfers
    /// leave its queue first.
    ///
    /// In a multi-site network, a sender that awaits a distant transfer starts with a ramp: it
    /// sends [`RAMP_BYTES`], and more when these have arrived (`engine.rs`). To keep the link busy,
    /// it starts one round trip earlier. In its first round trip the link then carries the ramp and
    /// the rest of `waited` (ADR 022). A `waited` shorter than a ramp allows no earlier start,
    /// because several senders that await it would ramp at once.
    fn bytes(
        &self,
        place_on_path: usize,
        (from, to): (usize, usize),
        (index, waited): (usize, &Transfer),
        bytes: u64,
        share: f64,
    ) -> (u64, u64) {
        if place_on_path == 0 {
            return (0, 0);
        }
        if self.round_trip_s == 0.0 {
            return self.near_bytes((from, to), (index, waited), share);
        }
        let there_and_back_s =
            self.paths.latency_s(waited.to, from) + self.paths.latency_s(from, waited.to);
        let bytes_per_s = self.paths.bytes_per_s(waited.from, waited.to);
        let flight_bytes = (there_and_back_s * bytes_per_s) as u64;
        let ramp_bytes = match flight_bytes.min(bytes) {
            ramped if self.is_ramped && ramped > RAMP_BYTES => ramped - RAMP_BYTES,
            _ => 0,
        };
        let standing_bytes = (self.port_bytes as f64 * share) as u64;
        (standing_bytes + flight_bytes + ramp_bytes, 0)
    }

    /// Returns q/C · S and q/C · min(F, M) for hosts that are close together. In a gather, all data
    /// at the root's port is for the root. Each sender has one transfer, so the link stays busy
    /// until the next byte arrives. In other operations another transfer may delay a sender, so F
    /// does not count.
    fn near_bytes(
        &self,
        next: (usize, usize),
        (index, waited): (usize, &Transfer),
        share: f64,
    ) -> (u64, u64) {
        let sending = match self.sendings.get(index) {
            Some(sending) => *sending,
            None => Sending::over(self.paths, (waited.from, waited.to)),
        };
        let there_and_back_s = self.paths.latency_s(waited.to, next.0) * 2.0;
        let flight_bytes = (there_and_back_s * sending.bytes_per_s * BUSY_SHARE) as u64;
        let is_on_narrow_path = sending.is_narrow || self.is_narrow(next);
        // Without a narrow port on either path, the bytes reserved for one are free.
        let standing_bytes = match is_on_narrow_path {
            true => EARLY_BYTES,
            false => EARLY_BYTES + STANDING_BYTES,
        };
        let most_bytes = match (self.is_ramped, is_on_narrow_path) {
            (true, false) => u64::MAX,
            (true, true) => EARLY_BYTES,
            (false, _) => 0,
        };
        let of_share = |bytes: u64| (bytes as f64 * share) as u64;
        (
            of_share(standing_bytes),
            of_share(flight_bytes.min(most_bytes)),
        )
    }

    /// Returns whether a path has a narrow port. The latest result is cached.
    fn is_narrow(&self, ends: (usize, usize)) -> bool {
        match self.last_asked.get() {
            Some((asked, is_narrow)) if asked == ends => is_narrow,
            _ => {
                let is_narrow = Sending::over(self.paths, ends).is_narrow;
                self.last_asked.set(Some((ends, is_narrow)));
                is_narrow
            }
        }
    }

    /// Returns the most bytes that may be in flight over a link of this rate: a port, and the
    /// content of the longest path once, or twice with a ramp.
    pub fn most(&self, bytes_per_s: f64) -> u64 {
        let round_trips = if self.is_ramped { 2.0 } else { 1.0 };
        self.port_bytes + (round_trips * self.furthest_s * bytes_per_s) as u64
    }
}

/// Returns whether a network is multi-site: between the hosts that are furthest apart, the round
/// trip takes more than 1 ms, and more than [`PORT_BYTES`] are in flight.
pub fn is_far(network: &Network) -> bool {
    Early::new(&Paths::new(network), PORT_BYTES).is_far()
}

/// Returns whether the waits in `after` include `needed`, if there is one.
fn is_behind(after: &[After], needed: Option<After>) -> bool {
    needed.is_none_or(|needed| after.iter().any(|wait| needed.is_within(*wait)))
}
