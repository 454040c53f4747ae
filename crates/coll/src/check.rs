//! The proof that a plan is right.
//!
//! Nothing here knows a time. Two transfers are *ordered* if one is over before the other
//! begins, by what the plan says alone: the one waits for the other, or for something that cannot be
//! complete before the other is. A directed link's capacity is dealt out to those that pass it, every part to one
//! behind another, all ordered: what is under way at once never asks for more than the link carries. A plan may say
//! that so many bytes are let into a port early; then as many, of each part, may be under way beyond that.

mod blocks;

use crate::lanes::{Lane, Lanes};
use crate::plan::{After, Operation, Plan, Transfer, Until};
use crate::schedule::{Early, is_behind};
use kumi_topo::{DirectedLink, Network, Paths};

/// What is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A host, a place or a transfer that is none.
    #[error("transfer {transfer} names {what} {index}, of which there are {count}")]
    Index {
        /// The transfer.
        transfer: usize,
        /// What it names.
        what: &'static str,
        /// The index.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The order is not every host once.
    #[error("the plan's order does not have every host of the network once")]
    Order,
    /// A host sends what it does not have yet.
    #[error("transfer {transfer} sends block {block}, which its sender does not have by then")]
    Absent {
        /// The transfer.
        transfer: usize,
        /// The block's number.
        block: usize,
    },
    /// A host gets a block a second time.
    #[error("transfer {transfer} brings block {block} where it, or a part of its sum, already is")]
    Twice {
        /// The transfer.
        transfer: usize,
        /// The block's number.
        block: usize,
    },
    /// A transfer that waits for one behind it in the list, or for itself.
    #[error("transfer {transfer} waits for {after}, which does not stand before it")]
    Late {
        /// The transfer that waits.
        transfer: usize,
        /// The one it waits for.
        after: usize,
    },
    /// A transfer that waits until another host has sent something.
    #[error("transfer {transfer} waits until {after} is sent, which only that one's sender knows")]
    Unknown {
        /// The transfer that waits.
        transfer: usize,
        /// The one it waits for.
        after: usize,
    },
    /// Another number of blocks than the operation has.
    #[error("the plan has {given} blocks; the operation has {blocks}")]
    Sizes {
        /// Blocks of the plan.
        given: usize,
        /// Blocks there should be.
        blocks: usize,
    },
    /// A transfer that combines in an operation that does not.
    #[error("transfer {transfer} combines blocks, which the operation does not")]
    Combines {
        /// The transfer.
        transfer: usize,
    },
    /// The operation is not done in the end.
    #[error("in the end {host} lacks {blocks} blocks")]
    Undone {
        /// Who lacks them.
        host: String,
        /// How many.
        blocks: usize,
    },
    /// Two messages may meet.
    #[error("transfers {first} and {second} may meet on the link from {from} to {to}")]
    Collision {
        /// A transfer.
        first: usize,
        /// Another.
        second: usize,
        /// The link's end that both leave.
        from: String,
        /// The end that both go to.
        to: String,
    },
    /// A host may have to send and receive more than it can at once.
    #[error(
        "transfers {first} and {second} may ask more of {host} than it sends and receives at once"
    )]
    BothWays {
        /// A transfer.
        first: usize,
        /// Another.
        second: usize,
        /// The host.
        host: String,
    },
}

/// Proves that a plan does its operation, and that its messages fit on every directed link at every time.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(network: &Network, plan: &Plan) -> Result<(), CheckError> {
    check_shape(network, plan)?;
    let feeds = blocks::feeds(network, plan)?;
    let mut ordered = Ordered::new(&plan.transfers, &feeds);
    check_links(network, plan, &mut ordered)
}

fn check_shape(network: &Network, plan: &Plan) -> Result<(), CheckError> {
    let hosts = network.hosts.len();
    let mut is_placed = vec![false; hosts];
    for host in &plan.order {
        match is_placed.get_mut(*host) {
            Some(free @ false) => *free = true,
            _ => return Err(CheckError::Order),
        }
    }
    if plan.order.len() != hosts {
        return Err(CheckError::Order);
    }
    let given = plan.block_bytes.len();
    let blocks = match plan.operation {
        Operation::AllToAll => hosts * hosts,
        Operation::Broadcast { .. } | Operation::Reduce { .. } | Operation::AllReduce => given,
        _ => hosts,
    };
    if given != blocks {
        return Err(CheckError::Sizes { given, blocks });
    }
    for (at, transfer) in plan.transfers.iter().enumerate() {
        let named = [
            ("host", transfer.from, hosts),
            ("host", transfer.to, hosts),
            ("block", transfer.blocks.last().unwrap_or(0), blocks.max(1)),
        ];
        if let Some((what, index, count)) = named.into_iter().find(|(_, at, of)| at >= of) {
            return Err(CheckError::Index {
                transfer: at,
                what,
                index,
                count,
            });
        }
        let waits = transfer.after.iter().map(|wait| wait.transfer);
        if let Some(after) = waits.into_iter().find(|after| *after >= at) {
            return Err(CheckError::Late {
                transfer: at,
                after,
            });
        }
        let is_known = |wait: &&After| {
            plan.transfers[wait.transfer].from == transfer.from || wait.until != Until::Sent
        };
        if let Some(wait) = transfer.after.iter().find(|wait| !is_known(wait)) {
            return Err(CheckError::Unknown {
                transfer: at,
                after: wait.transfer,
            });
        }
        if transfer.combines && !plan.operation.combines() {
            return Err(CheckError::Combines { transfer: at });
        }
    }
    Ok(())
}

/// A set of transfers or of hosts, a bit each.
#[derive(Clone, Default)]
struct Set(Vec<u64>);

impl Set {
    fn new(transfers: usize) -> Self {
        Self(vec![0; transfers.div_ceil(64)])
    }

    fn add(&mut self, transfer: usize) {
        self.0[transfer / 64] |= 1 << (transfer % 64);
    }

    fn add_all(&mut self, other: &Self) {
        for (ours, theirs) in self.0.iter_mut().zip(&other.0) {
            *ours |= theirs;
        }
    }

    fn has(&self, transfer: usize) -> bool {
        self.0[transfer / 64] & (1 << (transfer % 64)) != 0
    }

    fn meets(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(&other.0)
            .any(|(ours, theirs)| ours & theirs != 0)
    }

    fn len(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }
}

/// Most transfers of which the whole order is worked out, two bits for each pair: 64 MB. Of more, each must wait
/// by itself for those that it follows on a link, as it does in an all-to-all.
const ORDERED_MAX: usize = 16_384;

/// Which transfers are over when another begins.
struct Ordered<'a> {
    transfers: &'a [Transfer],
    feeds: &'a [Vec<usize>],
    /// For each transfer, those that have come whole when it begins: worked out when first asked for.
    before: Vec<Set>,
}

impl<'a> Ordered<'a> {
    fn new(transfers: &'a [Transfer], feeds: &'a [Vec<usize>]) -> Self {
        Self {
            transfers,
            feeds,
            before: Vec::new(),
        }
    }

    /// Whether `first` has passed the links that it shares with `second` before that begins, by something that
    /// comes between.
    fn are(&mut self, first: usize, second: usize) -> bool {
        if self.before.is_empty() && self.transfers.len() <= ORDERED_MAX {
            self.before = before(self.transfers, self.feeds);
        }
        let before = self.before.get(second);
        before.is_some_and(|before| before.has(first))
    }
}

fn before(transfers: &[Transfer], feeds: &[Vec<usize>]) -> Vec<Set> {
    let empty = Set::new(transfers.len());
    let mut before = vec![empty.clone(); transfers.len()];
    // Complete when this one is: itself, what feeds it, and what came before it began.
    let mut with = vec![empty; transfers.len()];
    for (at, transfer) in transfers.iter().enumerate() {
        let mut begins = std::mem::take(&mut before[at]);
        for wait in &transfer.after {
            // Sent is not yet come, and what may miss something is not yet over.
            let after = wait.transfer;
            let is_over = *wait == After::whole(after);
            begins.add_all(if is_over {
                &with[after]
            } else {
                &before[after]
            });
        }
        let mut complete = begins.clone();
        complete.add(at);
        for fed_by in &feeds[at] {
            complete.add_all(&with[*fed_by]);
        }
        before[at] = begins;
        with[at] = complete;
    }
    before
}

/// Deals out every link to those that pass it, each behind transfers that are over by then.
fn check_links(
    network: &Network,
    plan: &Plan,
    ordered: &mut Ordered<'_>,
) -> Result<(), CheckError> {
    let paths = Paths::new(network);
    let early = Early::new(&paths, plan.port_bytes).ramped(plan.operation.is_ramped());
    let capacity = |link: usize| paths.link_bytes_per_s(DirectedLink(link as u32));
    let mut lanes: Vec<Lanes> = (0..paths.directed_links())
        .map(|link| Lanes::new(capacity(link)))
        .collect();
    let mut passed: Vec<Vec<usize>> = vec![Vec::new(); paths.directed_links()];
    for (at, transfer) in plan.transfers.iter().enumerate() {
        let links = paths.links(transfer.from, transfer.to);
        let rates = links.iter().map(|link| paths.link_bytes_per_s(*link));
        let rate = rates.fold(f64::INFINITY, f64::min);
        let bytes = plan.bytes_of(transfer);
        for (place, link) in links.into_iter().enumerate() {
            let passed = &mut passed[link.0 as usize];
            let lanes = &mut lanes[link.0 as usize];
            let needed = |lane: &Lane| {
                early.wait(
                    lane,
                    &plan.transfers,
                    (transfer.from, transfer.to),
                    place,
                    paths.link_bytes_per_s(link),
                )
            };
            let kept_bytes = early.most(paths.link_bytes_per_s(link));
            let waits = |lane: &Lane| is_behind(&transfer.after, needed(lane));
            let is_given = lanes.take((at, bytes), rate, kept_bytes, waits)
                || lanes.take((at, bytes), rate, kept_bytes, |lane| {
                    waits(lane) || needed(lane).is_none_or(|one| ordered.are(one.transfer, at))
                });
            if !is_given {
                let mut first = passed.iter().rev();
                let met = first.find(|first| {
                    let waits = transfer.after.iter().any(|wait| wait.transfer == **first);
                    !waits && !ordered.are(**first, at)
                });
                let (first, second) = (met.copied().unwrap_or(at), at);
                if let Some((host, _)) = paths.limited(link) {
                    return Err(CheckError::BothWays {
                        first,
                        second,
                        host: network.hosts[host].name.clone(),
                    });
                }
                let ends = network.links[link.link()].ends;
                let [from, to] = [link.way(), 1 - link.way()].map(|end| network.name_of(ends[end]));
                return Err(CheckError::Collision {
                    first,
                    second,
                    from: from.to_owned(),
                    to: to.to_owned(),
                });
            }
            passed.push(at);
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
