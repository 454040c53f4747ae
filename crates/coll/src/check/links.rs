//! Proves that every directed link has capacity for all transfers that may use it at once: the
//! invariant of `check.rs`, with the symbols that are defined there.
//!
//! The capacity C of a link is dealt out in slots, in the plan's order of transfers. A transfer u
//! of rate r takes free capacity first. It then takes over slots, in whole or in part, until it has
//! at least 0.95 · r ([`ENOUGH`]), and at most r. Free capacity and slots always sum to C, which
//! proves (1).
//!
//! Let t₁ be the latest transfer in a slot of rate q, and t₂, t₃, … those from which t₁ took the
//! slot, and so on. Let m(t, u) be the bytes of t that may be missing when u starts (`order.rs`).
//! Then u may take over the slot in three cases:
//!
//! - t₁ has the same sender as u, and u awaits it.
//! - t₁ has the same sender as u, and m(t₁, u) = 0.
//! - t₁ has another sender, and early remainders are within bounds, up to the first transfer tⱼ
//!   that has begun:
//!
//!   ```text
//!     m₁ + … + mⱼ  ≤  q/C · φ · P + cⱼ
//!
//!     mᵢ  m(tᵢ, u), or all bytes of tᵢ if it may not have begun
//!     φ   part of the port that the rule uses: `Choice::port_part`
//!     cⱼ  bytes of tⱼ that cross the link meanwhile: `Link::carried_bytes`
//!   ```
//!
//! The rates q of all slots sum to at most C, so the third case proves (2). A link is first in,
//! first out. A transfer that has begun to arrive has pushed out all bytes before it. The search
//! for early remainders therefore ends at the first transfer that has begun.
//!
//! The order of slots affects the result. Several rules ([`CHOICES`]) and shuffled orders are
//! tried, and then maximum flow. In the flow, each transfer hands on its rate only to those for
//! which m₁ ≤ c₁. A link without a cover by any of these may have a collision.

use super::CheckError;
use super::order::Order;
use crate::plan::Plan;
use kumi_topo::{DirectedLink, Network, Paths};
use std::collections::{HashMap, VecDeque};

/// Part of a rate that suffices for a transfer: measured rates of equal links differ.
const ENOUGH: f64 = 0.95;

/// Most transfers on a link for which shuffled slot orders and maximum flow are tried. The flow
/// takes memory, and at least as much time, proportional to the square of their number.
const EXACT_MAX: usize = 512;

/// Number of shuffled slot orders that are tried for each [`Choice`].
const SHUFFLES: u64 = 60;

/// Bytes with which a ramped sender begins (`engine.rs`). A ramp delays only bytes beyond these.
const RAMP_BYTES: f64 = (16 << 10) as f64;

/// Bytes by which a transfer has certainly begun: one chunk.
const BEGUN_BYTES: u64 = 8 << 10;

/// A transfer on a link.
struct Passing {
    transfer: usize,
    /// The link is the sender's access link.
    is_own_link: bool,
    /// Bottleneck rate of its path.
    bytes_per_s: f64,
}

/// A part of a link's capacity, and the latest transfer that used it, by its place on the link.
struct Slot {
    bytes_per_s: f64,
    last: usize,
}

/// A rule by which transfers choose slots. Every rule keeps both parts of the invariant, so a plan
/// that any of them covers is correct.
#[derive(Clone, Copy)]
struct Choice {
    /// Part of the port that is used for early remainders. Below 1, the rule is frugal: this part
    /// is for paths with a narrow port, other paths use the rest, and [`Link::frugal_bytes`] count
    /// as carried.
    port_part: f64,
    /// A transfer that fits the port in full counts in full, and earlier ones count as well. Waits
    /// count only for transfers that do not fit.
    is_lazy: bool,
    /// Slots that the plan names ([`Plan::handed`]) come first.
    is_handed_first: bool,
    /// Seed of the order of slots; 0 for the longest idle first.
    seed: u64,
}

/// Rules in the order in which they are tried. The frugal ones come first: a transfer that follows
/// others without need takes a slot that a later one needs.
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

/// A link with all its transfers, in the plan's order.
struct Link<'a> {
    plan: &'a Plan,
    paths: &'a Paths,
    order: &'a Order<'a>,
    bytes_per_s: f64,
    passing: &'a [Passing],
    /// For each place on the link, the transfers from which its transfer takes its rate, as the
    /// plan states.
    handed: HashMap<usize, Vec<usize>>,
}

/// Proves that the transfers of a plan fit every directed link at all times.
///
/// # Errors
/// Two transfers that may exceed a link's capacity.
pub(super) fn check(
    network: &Network,
    plan: &Plan,
    feeds: &[Vec<usize>],
) -> Result<(), CheckError> {
    let paths = Paths::new(network);
    let order = Order::new(plan, feeds);
    let mut by_link: Vec<Vec<Passing>> = Vec::new();
    by_link.resize_with(paths.directed_links(), Vec::new);
    for (index, transfer) in plan.transfers.iter().enumerate() {
        let bytes_per_s = paths.bytes_per_s(transfer.from, transfer.to);
        for (place, link) in paths
            .links(transfer.from, transfer.to)
            .into_iter()
            .enumerate()
        {
            by_link[link.0 as usize].push(Passing {
                transfer: index,
                is_own_link: place == 0,
                bytes_per_s,
            });
        }
    }
    for (index, passing) in by_link.iter().enumerate() {
        let directed = DirectedLink(index as u32);
        let link = Link {
            plan,
            paths: &paths,
            order: &order,
            bytes_per_s: paths.link_bytes_per_s(directed),
            passing,
            handed: handed(plan, index as u32, passing),
        };
        let Err(second) = link.cover() else {
            continue;
        };
        let [first, second] = [link.rival(second), second].map(|place| passing[place].transfer);
        if let Some((host, _)) = paths.limited(directed) {
            return Err(CheckError::BothWays {
                first,
                second,
                host: network.hosts[host].name.clone(),
            });
        }
        let ends = network.links[directed.link()].ends;
        let directions = [directed.direction(), 1 - directed.direction()];
        let [from, to] = directions.map(|end| network.name_of(ends[end]).to_owned());
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
    for entry in plan.handed.iter().filter(|entry| entry.link == link) {
        let place = passing.binary_search_by_key(&(entry.transfer as usize), |item| item.transfer);
        if let Ok(place) = place {
            handed.entry(place).or_default().push(entry.from as usize);
        }
    }
    handed
}

impl Link<'_> {
    /// Searches for a cover: by dealing out the link in the plan's order, by several rules, or else
    /// by maximum flow.
    ///
    /// # Errors
    /// The first transfer without capacity, in the attempt that came furthest.
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
        // For each transfer, those whose slots it took.
        let mut predecessors: Vec<Vec<usize>> = Vec::with_capacity(self.passing.len());
        for (place, passing) in self.passing.iter().enumerate() {
            let rate = passing.bytes_per_s;
            let mut missing = rate * ENOUGH - free;
            let mut indices: Vec<usize> = Vec::new();
            let handed = self.handed.get(&place).filter(|_| choice.is_handed_first);
            for from in handed.into_iter().flatten() {
                let is_named = |slot: &Slot| self.passing[slot.last].transfer == *from;
                let index = slots.iter().position(is_named);
                let index = index.filter(|index| !indices.contains(index));
                let Some(index) = index.filter(|_| missing > rate * 1e-9) else {
                    continue;
                };
                if self.may_take(&slots[index], place, &predecessors, choice, false) {
                    indices.push(index);
                    missing -= slots[index].bytes_per_s;
                }
            }
            // Slots of its own waits come first, because slots that it follows indirectly may be
            // all that later transfers have.
            for is_direct in [true, false] {
                for index in Self::slot_order(slots.len(), place, choice.seed) {
                    let slot = &slots[index];
                    if missing > rate * 1e-9
                        && !indices.contains(&index)
                        && self.may_take(slot, place, &predecessors, choice, is_direct)
                    {
                        indices.push(index);
                        missing -= slot.bytes_per_s;
                    }
                }
            }
            if missing > rate * 1e-9 {
                return Err(place);
            }
            indices.sort_unstable();
            let mut sum = free.min(rate);
            free -= sum;
            let mut previous = Vec::new();
            for index in indices {
                let part = slots[index].bytes_per_s.min(rate - sum);
                slots[index].bytes_per_s -= part;
                sum += part;
                previous.push(slots[index].last);
            }
            slots.retain(|slot| slot.bytes_per_s > 0.0);
            slots.push(Slot {
                bytes_per_s: sum,
                last: place,
            });
            predecessors.push(previous);
        }
        Ok(())
    }

    /// Returns whether a transfer may take over a slot, by the cases of the module's comment. With
    /// `is_direct`, only the transfer's own waits count.
    fn may_take(
        &self,
        slot: &Slot,
        second: usize,
        predecessors: &[Vec<usize>],
        choice: Choice,
        is_direct: bool,
    ) -> bool {
        let next = self.passing[second].transfer;
        let missing_of = |transfer| match is_direct {
            true => self.order.own_missing(transfer, next),
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
        let mut visited: Vec<usize> = Vec::new();
        while let Some(first) = open.pop() {
            if visited.contains(&first) {
                continue;
            }
            visited.push(first);
            let transfer = self.passing[first].transfer;
            let bytes = self.order.bytes(transfer);
            let carried = match is_frugal {
                true => share * self.frugal_bytes(first, second),
                false => self.carried_bytes(first, second),
            };
            let has_room = |early_bytes, carried| {
                let port_part = match is_frugal && !self.is_narrow(first, second) {
                    true => 1.0 - choice.port_part,
                    false => choice.port_part,
                };
                self.has_room(early_bytes, carried, share * port_part, second)
            };
            let allowance = if is_frugal { 0.0 } else { carried };
            let fits = choice.is_lazy && predecessors[first].len() < 2;
            let missing = match fits && has_room(early_bytes + bytes, allowance) {
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
                _ if !has_room(early_bytes, carried) => return false,
                Some(_) => {}
                None => open.extend(&predecessors[first]),
            }
        }
        true
    }

    /// Returns whether that many bytes may be missing. On the sender's access link none may, so
    /// that earlier transfers leave it first.
    fn has_room(&self, early_bytes: u64, carried: f64, share: f64, second: usize) -> bool {
        let room_bytes = self.plan.port_bytes as f64 * share + carried;
        early_bytes == 0 || !self.passing[second].is_own_link && early_bytes as f64 <= room_bytes
    }

    /// Returns the bytes of a transfer that cross the link while its receiver's grant travels to
    /// the next sender, and that sender's first byte to the link: RTT · r. RTT is the round-trip
    /// time between these two hosts, and r the transfer's rate. A ramp takes one more round trip,
    /// so the bytes beyond [`RAMP_BYTES`] count again.
    fn carried_bytes(&self, first: usize, second: usize) -> f64 {
        let transfer = |place: usize| &self.plan.transfers[self.passing[place].transfer];
        let (last, next) = (transfer(first), transfer(second));
        let round_trip_s =
            self.paths.latency_s(last.to, next.from) + self.paths.latency_s(next.from, last.to);
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

    /// Returns the part of [`Link::carried_bytes`] that is sure to cross the link even if a sender
    /// is delayed. In a gather, that is the payload, and at most one chunk if one of the paths has
    /// a narrow port. In other operations it is 0.
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

    /// Returns whether the path of one of two transfers has a port that is slower than its sender's
    /// access link.
    fn is_narrow(&self, first: usize, second: usize) -> bool {
        [first, second].into_iter().any(|place| {
            let from = self.plan.transfers[self.passing[place].transfer].from;
            let own = self.paths.sending_bytes_per_s(from);
            own.is_some_and(|own| self.passing[place].bytes_per_s < own * 0.99)
        })
    }

    /// Searches for a cover by maximum flow: each transfer hands its rate on to those that may
    /// directly follow it. If the order is complete, this finds a cover whenever one exists
    /// (Dilworth's theorem).
    fn flow(&self) -> Result<(), usize> {
        let count = self.passing.len();
        let rate = |place: usize| self.passing[place].bytes_per_s * ENOUGH;
        let mut free = self.bytes_per_s;
        let mut remaining: Vec<f64> = (0..count).map(rate).collect();
        let mut flow = vec![vec![0.0_f64; count]; count];
        let may_follow = |second: usize| {
            let firsts = (0..second).filter(move |first| self.may_follow(*first, second));
            firsts.collect::<Vec<usize>>()
        };
        let may_follow: Vec<Vec<usize>> = (0..count).map(may_follow).collect();
        for place in 0..count {
            let mut missing = rate(place) - free.min(rate(place));
            free -= rate(place) - missing;
            while missing > rate(place) * 1e-9 {
                // Breadth-first from the taker: find a giver with capacity left, or one that
                // another taker can do without.
                let mut taker_of: Vec<Option<usize>> = vec![None; count];
                let mut giver_of: Vec<Option<usize>> = vec![None; count];
                let mut open = VecDeque::from([place]);
                let mut end = None;
                while let (Some(taker), None) = (open.pop_front(), end) {
                    for giver in may_follow[taker].iter().copied() {
                        if taker_of[giver].is_some() {
                            continue;
                        }
                        taker_of[giver] = Some(taker);
                        if remaining[giver] > rate(giver) * 1e-9 {
                            end = Some(giver);
                            break;
                        }
                        for holder in 0..place {
                            if flow[giver][holder] > 0.0 && giver_of[holder].is_none() {
                                giver_of[holder] = Some(giver);
                                open.push_back(holder);
                            }
                        }
                    }
                }
                let end = end.ok_or(place)?;
                let mut path = Vec::new();
                let mut giver = Some(end);
                while let Some((source, taker)) =
                    giver.and_then(|giver| Some((giver, taker_of[giver]?)))
                {
                    giver = giver_of[taker];
                    path.push((source, taker, giver));
                }
                let least =
                    path.iter()
                        .fold(missing.min(remaining[end]), |least, step| match *step {
                            (_, taker, Some(previous)) => least.min(flow[previous][taker]),
                            _ => least,
                        });
                for (giver, taker, previous) in path {
                    flow[giver][taker] += least;
                    if let Some(previous) = previous {
                        flow[previous][taker] -= least;
                    }
                }
                remaining[end] -= least;
                missing -= least;
            }
        }
        Ok(())
    }

    /// Returns whether a transfer may directly follow another, regardless of those before.
    fn may_follow(&self, first: usize, second: usize) -> bool {
        let [last, next] = [first, second].map(|place| self.passing[place].transfer);
        let carried = self.carried_bytes(first, second);
        let missing = self.order.missing(last, next);
        self.order.is_sequel(last, next)
            || missing.is_some_and(|bytes| self.has_room(bytes, carried, 0.0, second))
    }

    /// Returns the slots, the longest idle first, or shuffled by the seed.
    fn slot_order(slots: usize, place: usize, seed: u64) -> Vec<usize> {
        let mut indices: Vec<usize> = (0..slots).collect();
        if seed > 0 {
            indices.sort_by_key(|index| {
                let key = seed << 40 | (place as u64) << 20 | *index as u64;
                (key ^ key >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
            });
        }
        indices
    }

    /// Returns the latest transfer that a transfer may meet.
    fn rival(&self, second: usize) -> usize {
        let is_rival = |first: &usize| {
            let [last, next] = [*first, second].map(|place| self.passing[place].transfer);
            !self.order.is_sequel(last, next) && self.order.missing(last, next).is_none()
        };
        (0..second).rev().find(is_rival).unwrap_or(second)
    }
}
