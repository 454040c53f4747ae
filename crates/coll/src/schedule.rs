//! Puts transfers one behind another, so that each passes links that have room for it.
//!
//! Who plans an operation says which transfers it takes, in which order; what each has to wait for follows from
//! the links. The order is a planner's art, not the promise: in a bad one links idle, and nothing collides.

use crate::grain::PIECE_BYTES;
use crate::lanes::{ENOUGH, Lane, Lanes};
use crate::narrow::{STANDING_BYTES, carried_bytes_per_s, is_narrow, own_bytes_per_s};
use crate::plan::{After, Blocks, Handed, Operation, PORT_BYTES, Plan, Transfer, Until};
use crate::program::RAMP_BYTES;
use kumi_topo::{DirectedLink, Network, Paths};
use std::cell::Cell;

/// Transfers so far, and what the links and hosts do meanwhile.
pub(crate) struct Schedule<'a> {
    paths: &'a Paths,
    early: Early<'a>,
    lanes: Vec<Lanes>,
    passed_bytes: Vec<u64>,
    transfers: Vec<Transfer>,
    handed: Vec<Handed>,
    reckoned: Vec<Reckoned>,
}

/// What is kept for a check: of some ten thousand transfers all.
const HANDED_MAX: usize = 1 << 17;

/// What is known of a transfer, together in memory: of each lane somebody asks for it.
#[derive(Clone, Copy)]
struct Reckoned {
    to: u32,
    /// What it is sent at.
    bytes_per_s: f64,
    /// When it has been sent, when its first piece has come and when all, in seconds.
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

    /// The same for an operation that is ramped, or not ([`Operation::is_ramped`]).
    pub fn ramped(self, is_ramped: bool) -> Self {
        let early = self.early.ramped(is_ramped);
        Self { early, ..self }
    }

    /// Adds a transfer of so many bytes. It begins when the transfers `needs` have brought its sender what it
    /// sends, and those before it on its links have passed. Returns its index.
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
        // By link, what each of its lanes would have to be waited for; of one that has room nothing is asked.
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
        // What stands in a port before it has to pass first.
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
            let over_s = come_s.fold(f64::INFINITY, f64::min);
            if !behind.is_empty() {
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
            // However early it is let in, all before it takes its time.
            let all = &mut self.passed_bytes[link.0 as usize];
            *all += bytes;
            least_s = least_s.max(*all as f64 / self.paths.link_bytes_per_s(*link));
        }
        after.sort_unstable();
        let known = after.iter().map(|wait| self.known_s(*wait, from));
        let mut begins_s = known.fold(0.0, f64::max);
        // What comes is sent on piece by piece.
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

    /// Adds to `after` what has to be over on a link before `rate` is free there: nothing more than what is
    /// waited for already, if that will do, or else those that a sender at `from` knows to be over soonest. `waits` are of the lanes.
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
        // Lanes that it would have to wait for, with when it would know.
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

    /// When a host knows that as much of a transfer as it waits for is over: has sent it, has it, or is told.
    fn known_s(&self, wait: After, host: usize) -> f64 {
        let of = &self.reckoned[wait.transfer];
        let Until::Come { missing_bytes, .. } = wait.until else {
            return of.sent_s;
        };
        let missing_s = missing_bytes as f64 / of.bytes_per_s;
        of.come_s + self.paths.latency_s(of.to as usize, host) - missing_s
    }

    /// How long the busiest link takes for all that passes it, in seconds.
    pub fn links_s(&self) -> f64 {
        let links = self.passed_bytes.iter().enumerate();
        let times = links.map(|(link, bytes)| {
            *bytes as f64 / self.paths.link_bytes_per_s(DirectedLink(link as u32))
        });
        times.fold(0.0, f64::max)
    }

    /// When the last transfer has come, in seconds.
    pub fn end_s(&self) -> f64 {
        let come_s = self.reckoned.iter().map(|one| one.come_s);
        come_s.fold(0.0, f64::max)
    }

    /// The transfers as the plan of an operation.
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

/// Payload of the transfer before that may stand in a port when the next one arrives: a quarter of what a port holds
/// ([`PORT_BYTES`]), and one chunk.
const EARLY_BYTES: u64 = 8 << 10;

/// The share of its rate that a busy link surely carries of payload: [`kumi_topo::ethernet::PLAIN_TCP`] less 2 % for acknowledgements.
const BUSY_SHARE: f64 = 0.92;

/// Between ranks of one host, or on one floor, all is said sooner.
const FAR_S: f64 = 1e-3;

/// What is known of a path that a transfer takes.
#[derive(Debug, Clone, Copy)]
struct Sending {
    /// What the path carries of one transfer, in bytes a second.
    bytes_per_s: f64,
    /// Whether it becomes slower behind the sender's own link.
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

/// How much of a transfer may still be on its way when one begins that waits for it.
struct Early<'a> {
    paths: &'a Paths,
    port_bytes: u64,
    /// There and back between the hosts that are furthest apart, in seconds; 0 where no more is under way meanwhile than
    /// stands in a port.
    round_trip_s: f64,
    /// The same wherever they are.
    furthest_s: f64,
    is_ramped: bool,
    /// By transfer, as they were added.
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

    /// The same for an operation that is ramped, or not ([`Operation::is_ramped`]).
    pub fn ramped(self, is_ramped: bool) -> Self {
        Self { is_ramped, ..self }
    }

    /// Whether hosts are so far apart that what is on its way between them counts.
    pub fn is_far(&self) -> bool {
        self.round_trip_s > 0.0
    }

    /// What a transfer of `from` has to wait for that follows in a lane, by the link's place on its path. Behind one of its own
    /// that is to be sent first it may follow at once: what that one was let in behind has no less room meanwhile. If others
    /// stand between, even one of its own must have come: a lane's transfers, each behind one of its own sender only, would go
    /// side by side.
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

    /// What may stand before a link, by its place on the path: nothing in the sender's own queue, where what is to be sent
    /// first shall go first; in a port as much as the plan says. What more may be missing at the one who tells, passes the
    /// link before the first byte of `from` can be there: while the word is on its way to it, and the byte to the link.
    ///
    /// With a ramp, who is told so from afar sends [`RAMP_BYTES`] at first, and more when they have come (`engine.rs`): so
    /// that the link is not idle meanwhile, that much is let in one round trip earlier, of what the port may hold. `waited`
    /// is of so many `bytes`: one of less than a ramp would have all that wait for it ramp at once.
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

    /// The same where hosts are near. In a gather all that passes the root's port is bound for it, and each sender has nothing
    /// else to do, so the link is busy until the next byte arrives. Elsewhere a sender may be held up by another of its transfers,
    /// so only what may stand counts.
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
        // Where no path has a narrow port, the share of one is free.
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

    /// Whether a path has a narrow port; the last one that was asked for is kept.
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

    /// The most that may be on its way over a link of that rate.
    pub fn most(&self, bytes_per_s: f64) -> u64 {
        let round_trips = if self.is_ramped { 2.0 } else { 1.0 };
        self.port_bytes + (round_trips * self.furthest_s * bytes_per_s) as u64
    }
}

/// Whether hosts are so far apart that more is on its way between them than stands in a port: between sites.
pub fn is_far(network: &Network) -> bool {
    Early::new(&Paths::new(network), PORT_BYTES).is_far()
}

/// Whether one that waits for these waits for as much as is needed, if something is.
fn is_behind(after: &[After], needed: Option<After>) -> bool {
    needed.is_none_or(|needed| after.iter().any(|wait| needed.is_within(*wait)))
}
