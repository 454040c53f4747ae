//! The proof that every directed link has room for all that may pass it at once.
//!
//! This shares the network and the data types of a plan with the planner, and nothing else. For each link, the transfers that
//! pass it are covered by chains. Each takes its rate from capacity that is still free, or from transfers that it stands behind:
//! they are complete when it begins, its own sender has sent them, or a bounded part of them is missing. It follows that
//!
//! 1. transfers in flight, less early remainders, ask together for at most capacity / [`ENOUGH`];
//! 2. early remainders, less what the link carries while a grant and the first byte travel, sum to at most
//!    [`Plan::port_bytes`], as each slot holds at most its share of them.
//!
//! A link is first in, first out: a transfer that has begun to arrive has pushed out what stood before it. So a chain is followed
//! back to the first transfer that is known to have begun. A link that neither of these covers may have a collision.
//!
//! Two things are not proved. A port that is slower than its sender's own link fills with one transfer alone, whatever the
//! order is: windows bound what stands there at run time (`narrow.rs`). And whether a link is busy while a grant travels depends
//! on times, which a plan does not have: simulation and measurements show it.

use super::CheckError;
use super::order::Order;
use crate::plan::Plan;
use kumi_topo::{DirectedLink, Network, Paths};
use std::collections::{HashMap, VecDeque};

/// The part of its rate that is enough for a transfer: rates are measured, and equal links never measure equal.
const ENOUGH: f64 = 0.95;

/// Most transfers on a link for which other chains are sought if the frugal ones fail: flow takes the square of it.
const EXACT_MAX: usize = 512;

/// Orders of slots that are drawn and tried, for each [`Choice`].
const SHUFFLES: u64 = 60;

/// Bytes that a sender with a ramp begins with (`engine.rs`): a ramp delays only what is beyond.
const RAMP_BYTES: f64 = (16 << 10) as f64;

/// Bytes by which a transfer has surely begun: one chunk.
const BEGUN_BYTES: u64 = 8 << 10;

/// A transfer on a link.
struct Passing {
    transfer: usize,
    /// Whether the link is the sender's own.
    is_own_link: bool,
    /// Of the slowest link on its path.
    bytes_per_s: f64,
}

/// A part of a link's capacity, and the last of the transfers that used it, by its place on the link.
struct Slot {
    bytes_per_s: f64,
    last: usize,
}

/// How transfers choose among slots. Every way keeps both claims; a plan that one of them covers is right.
#[derive(Clone, Copy)]
struct Choice {
    /// The part of a port that is used for early remainders.
    port_part: f64,
    /// Waits count only for what does not fit in the port.
    is_lazy: bool,
    /// The slots that the plan names come first.
    is_handed_first: bool,
    /// What the order of slots is drawn from; 0 for longest idle first.
    seed: u64,
}

/// The frugal way first: a transfer that stands behind others without need takes a slot that a later one needs. Its part of the
/// port is for paths with a slower port; the rest is for others.
const CHOICES: [Choice; 6] = [
    Choice {
        port_part: 0.25,
        is_lazy: true,
        is_handed_first: false,
        seed: 0,
    },
    Choice {
        port_part: 1.0,
        is_lazy: true,
        is_handed_first: false,
        seed: 0,
    },
    Choice {
        port_part: 1.0,
        is_lazy: false,
        is_handed_first: false,
        seed: 0,
    },
    Choice {
        port_part: 0.25,
        is_lazy: true,
        is_handed_first: true,
        seed: 0,
    },
    Choice {
        port_part: 1.0,
        is_lazy: true,
        is_handed_first: true,
        seed: 0,
    },
    Choice {
        port_part: 1.0,
        is_lazy: false,
        is_handed_first: true,
        seed: 0,
    },
];

/// A link with all that passes it, in the plan's order.
struct Link<'a> {
    plan: &'a Plan,
    paths: &'a Paths,
    order: &'a Order<'a>,
    bytes_per_s: f64,
    passing: &'a [Passing],
    /// By place on the link, the transfers from which the plan says that one has its rate.
    handed: HashMap<usize, Vec<usize>>,
}

/// Proves that the transfers of a plan fit on every directed link at every time.
///
/// # Errors
/// Two transfers that may ask for more than a link carries.
pub(super) fn check(
    network: &Network,
    plan: &Plan,
    feeds: &[Vec<usize>],
) -> Result<(), CheckError> {
    let paths = Paths::new(network);
    let order = Order::new(plan, feeds);
    let mut by_link: Vec<Vec<Passing>> = Vec::new();
    by_link.resize_with(paths.directed_links(), Vec::new);
    for (transfer, one) in plan.transfers.iter().enumerate() {
        let bytes_per_s = paths.bytes_per_s(one.from, one.to);
        for (place, link) in paths.links(one.from, one.to).into_iter().enumerate() {
            by_link[link.0 as usize].push(Passing {
                transfer,
                is_own_link: place == 0,
                bytes_per_s,
            });
        }
    }
    for (at, passing) in by_link.iter().enumerate() {
        let directed = DirectedLink(at as u32);
        let link = Link {
            plan,
            paths: &paths,
            order: &order,
            bytes_per_s: paths.link_bytes_per_s(directed),
            passing,
            handed: handed(plan, at as u32, passing),
        };
        let Err(second) = link.cover() else {
            continue;
        };
        let [first, second] = [link.met(second), second].map(|one| passing[one].transfer);
        if let Some((host, _)) = paths.limited(directed) {
            return Err(CheckError::BothWays {
                first,
                second,
                host: network.hosts[host].name.clone(),
            });
        }
        let ends = network.links[directed.link()].ends;
        let way = [directed.way(), 1 - directed.way()];
        let [from, to] = way.map(|end| network.name_of(ends[end]).to_owned());
        return Err(CheckError::Collision {
            first,
            second,
            from,
            to,
        });
    }
    Ok(())
}

fn handed(plan: &Plan, link: u32, passing: &[Passing]) -> HashMap<usize, Vec<usize>> {
    let mut handed: HashMap<usize, Vec<usize>> = HashMap::new();
    for one in plan.handed.iter().filter(|one| one.link == link) {
        let at = passing.binary_search_by_key(&(one.transfer as usize), |one| one.transfer);
        if let Ok(at) = at {
            handed.entry(at).or_default().push(one.from as usize);
        }
    }
    handed
}

impl Link<'_> {
    /// Seeks chains: by dealing the link out in the plan's order, in several ways, or else by maximum flow.
    ///
    /// # Errors
    /// The first transfer that has no room, of the way that came furthest.
    fn cover(&self) -> Result<(), usize> {
        let seeds = match self.passing.len() {
            0..=EXACT_MAX => SHUFFLES,
            _ => 0,
        };
        let mut furthest = 0;
        for seed in 0..=seeds {
            for choice in CHOICES {
                match self.deal(Choice { seed, ..choice }) {
                    Ok(()) => return Ok(()),
                    Err(second) => furthest = furthest.max(second),
                }
            }
        }
        if self.passing.len() > EXACT_MAX {
            return Err(furthest);
        }
        self.flow().map_err(|second| second.max(furthest))
    }

    fn deal(&self, choice: Choice) -> Result<(), usize> {
        let mut free = self.bytes_per_s;
        let mut slots: Vec<Slot> = Vec::new();
        // Of each transfer, those whose slots it took.
        let mut ahead: Vec<Vec<usize>> = Vec::with_capacity(self.passing.len());
        for (at, one) in self.passing.iter().enumerate() {
            let rate = one.bytes_per_s;
            let mut missing = rate * ENOUGH - free;
            let mut chosen: Vec<usize> = Vec::new();
            let handed = self.handed.get(&at).filter(|_| choice.is_handed_first);
            for from in handed.into_iter().flatten() {
                let is_his = |slot: &Slot| self.passing[slot.last].transfer == *from;
                let index = slots.iter().position(is_his);
                let index = index.filter(|index| !chosen.contains(index));
                let Some(index) = index.filter(|_| missing > rate * 1e-9) else {
                    continue;
                };
                if self.is_behind(&slots[index], at, &ahead, choice, false) {
                    chosen.push(index);
                    missing -= slots[index].bytes_per_s;
                }
            }
            // What it waits for itself comes first, for what it follows by way of others may be all that they have.
            for is_direct in [true, false] {
                for index in Self::slot_order(slots.len(), at, choice.seed) {
                    let slot = &slots[index];
                    if missing > rate * 1e-9
                        && !chosen.contains(&index)
                        && self.is_behind(slot, at, &ahead, choice, is_direct)
                    {
                        chosen.push(index);
                        missing -= slot.bytes_per_s;
                    }
                }
            }
            if missing > rate * 1e-9 {
                return Err(at);
            }
            chosen.sort_unstable();
            let mut taken = free.min(rate);
            free -= taken;
            let mut behind = Vec::new();
            for index in chosen {
                let part = slots[index].bytes_per_s.min(rate - taken);
                slots[index].bytes_per_s -= part;
                taken += part;
                behind.push(slots[index].last);
            }
            slots.retain(|slot| slot.bytes_per_s > 0.0);
            slots.push(Slot {
                bytes_per_s: taken,
                last: at,
            });
            ahead.push(behind);
        }
        Ok(())
    }

    /// Whether a transfer may take over a slot: what is missing of its chain by then is within the slot's share of the port,
    /// beyond what the link carries meanwhile. `is_direct`: only waits of its own count.
    fn is_behind(
        &self,
        slot: &Slot,
        second: usize,
        ahead: &[Vec<usize>],
        choice: Choice,
        is_direct: bool,
    ) -> bool {
        let next = self.passing[second].transfer;
        let missing_of = |transfer| match is_direct {
            true => self.order.waited(transfer, next),
            false => self.order.missing(transfer, next),
        };
        let last = self.passing[slot.last].transfer;
        if self.order.is_sequel(last, next) {
            return true;
        }
        if self.plan.transfers[last].from == self.plan.transfers[next].from {
            return !is_direct && missing_of(last) == Some(0);
        }
        let share = (slot.bytes_per_s / self.bytes_per_s).min(1.0);
        let is_frugal = choice.port_part < 1.0;
        let mut early_bytes = 0;
        let mut open = vec![slot.last];
        let mut seen: Vec<usize> = Vec::new();
        while let Some(first) = open.pop() {
            if seen.contains(&first) {
                continue;
            }
            seen.push(first);
            let transfer = self.passing[first].transfer;
            let bytes = self.order.bytes(transfer);
            let carried = match is_frugal {
                true => share * self.frugal_bytes(first, second),
                false => self.carried_bytes(first, second),
            };
            let is_room = |early_bytes, carried| {
                let port_part = match is_frugal && !self.is_narrow(first, second) {
                    true => 1.0 - choice.port_part,
                    false => choice.port_part,
                };
                self.is_room(early_bytes, carried, share * port_part, second)
            };
            let standing = if is_frugal { 0.0 } else { carried };
            let fits = choice.is_lazy && ahead[first].len() < 2;
            let missing = match fits && is_room(early_bytes + bytes, standing) {
                true => None,
                false => match missing_of(transfer) {
                    None if choice.is_lazy => return false,
                    Some(missing)
                        if choice.is_lazy
                            && !fits
                            && missing > bytes.saturating_sub(BEGUN_BYTES) =>
                    {
                        return false;
                    }
                    missing => missing,
                },
            };
            early_bytes += missing.unwrap_or(bytes);
            match missing {
                Some(0) => {}
                _ if !is_room(early_bytes, carried) => return false,
                Some(_) => {}
                None => open.extend(&ahead[first]),
            }
        }
        true
    }

    /// Whether that much may be missing. Nothing may on the sender's own link: what it sends first shall go first.
    fn is_room(&self, early_bytes: u64, carried: f64, share: f64, second: usize) -> bool {
        let room_bytes = self.plan.port_bytes as f64 * share + carried;
        early_bytes == 0 || !self.passing[second].is_own_link && early_bytes as f64 <= room_bytes
    }

    /// Bytes of a transfer that pass while its receiver's grant travels to the sender of the next, and that one's first byte to
    /// the link: rate × latency there and back. A ramp takes one more round trip.
    fn carried_bytes(&self, first: usize, second: usize) -> f64 {
        let transfer = |at: usize| &self.plan.transfers[self.passing[at].transfer];
        let (one, next) = (transfer(first), transfer(second));
        let round_trip_s =
            self.paths.latency_s(one.to, next.from) + self.paths.latency_s(next.from, one.to);
        let carried = round_trip_s * self.passing[first].bytes_per_s;
        match self.plan.operation.is_ramped() {
            true => {
                carried
                    + (carried.min(self.order.bytes(self.passing[first].transfer) as f64)
                        - RAMP_BYTES)
                        .max(0.0)
            }
            false => carried,
        }
    }

    /// The part of [`Link::carried_bytes`] that passes even if a sender is held up: all of it in a gather, but into a port that is
    /// slower than the sender's link.
    fn frugal_bytes(&self, first: usize, second: usize) -> f64 {
        let chunks = match (
            self.plan.operation.is_ramped(),
            self.is_narrow(first, second),
        ) {
            (true, false) => f64::INFINITY,
            (true, true) => 1.0,
            (false, _) => 0.0,
        };
        (self.carried_bytes(first, second) * 0.92).min(chunks * BEGUN_BYTES as f64)
    }

    /// Whether one of two transfers is slower than its sender's own link.
    fn is_narrow(&self, first: usize, second: usize) -> bool {
        [first, second].into_iter().any(|at| {
            let from = self.plan.transfers[self.passing[at].transfer].from;
            let own = self.paths.sending_bytes_per_s(from);
            own.is_some_and(|own| self.passing[at].bytes_per_s < own * 0.99)
        })
    }

    /// Seeks chains by maximum flow: each transfer hands its rate on to those that may stand right behind it. Of a whole order
    /// this finds chains if there are any (Dilworth's theorem).
    fn flow(&self) -> Result<(), usize> {
        let count = self.passing.len();
        let rate = |at: usize| self.passing[at].bytes_per_s * ENOUGH;
        let mut free = self.bytes_per_s;
        let mut left: Vec<f64> = (0..count).map(rate).collect();
        let mut given = vec![vec![0.0_f64; count]; count];
        let may_follow = |second: usize| {
            let firsts = (0..second).filter(move |first| self.may_follow(*first, second));
            firsts.collect::<Vec<usize>>()
        };
        let may_follow: Vec<Vec<usize>> = (0..count).map(may_follow).collect();
        for at in 0..count {
            let mut missing = rate(at) - free.min(rate(at));
            free -= rate(at) - missing;
            while missing > rate(at) * 1e-9 {
                // Breadth first from the taker: a giver that has something left, or one that another taker can do without.
                let mut taker_of: Vec<Option<usize>> = vec![None; count];
                let mut giver_of: Vec<Option<usize>> = vec![None; count];
                let mut open = VecDeque::from([at]);
                let mut end = None;
                while let (Some(taker), None) = (open.pop_front(), end) {
                    for giver in may_follow[taker].iter().copied() {
                        if taker_of[giver].is_some() {
                            continue;
                        }
                        taker_of[giver] = Some(taker);
                        if left[giver] > rate(giver) * 1e-9 {
                            end = Some(giver);
                            break;
                        }
                        for other in 0..at {
                            if given[giver][other] > 0.0 && giver_of[other].is_none() {
                                giver_of[other] = Some(giver);
                                open.push_back(other);
                            }
                        }
                    }
                }
                let end = end.ok_or(at)?;
                let mut way = Vec::new();
                let mut giver = Some(end);
                while let Some((one, taker)) = giver.and_then(|one| Some((one, taker_of[one]?))) {
                    giver = giver_of[taker];
                    way.push((one, taker, giver));
                }
                let least = way
                    .iter()
                    .fold(missing.min(left[end]), |least, step| match *step {
                        (_, taker, Some(before)) => least.min(given[before][taker]),
                        _ => least,
                    });
                for (giver, taker, before) in way {
                    given[giver][taker] += least;
                    if let Some(before) = before {
                        given[before][taker] -= least;
                    }
                }
                left[end] -= least;
                missing -= least;
            }
        }
        Ok(())
    }

    /// Whether a transfer may stand right behind another, whatever was before that.
    fn may_follow(&self, first: usize, second: usize) -> bool {
        let [one, next] = [first, second].map(|at| self.passing[at].transfer);
        let carried = self.carried_bytes(first, second);
        let missing = self.order.missing(one, next);
        self.order.is_sequel(one, next)
            || missing.is_some_and(|bytes| self.is_room(bytes, carried, 0.0, second))
    }

    /// The slots, longest idle first, or shuffled by the seed.
    fn slot_order(slots: usize, at: usize, seed: u64) -> Vec<usize> {
        let mut all: Vec<usize> = (0..slots).collect();
        if seed > 0 {
            all.sort_by_key(|index| {
                let one = seed << 40 | (at as u64) << 20 | *index as u64;
                (one ^ one >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
            });
        }
        all
    }

    /// The latest transfer that one may meet.
    fn met(&self, second: usize) -> usize {
        let is_met = |first: &usize| {
            let [one, next] = [*first, second].map(|at| self.passing[at].transfer);
            !self.order.is_sequel(one, next) && self.order.missing(one, next).is_none()
        };
        (0..second).rev().find(is_met).unwrap_or(second)
    }
}
