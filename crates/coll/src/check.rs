//! The proof that a plan is right.
//!
//! Nothing here knows a rate or a time. Two transfers are *ordered* if one has come whole before the other
//! begins, by what the plan says alone: the one waits for the other, or for something that cannot be
//! complete before the other is. Messages cannot meet on a directed link if all that pass it are ordered.

use crate::plan::{Operation, Plan, Transfer};
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
    /// A host sends what it never has.
    #[error("transfer {transfer} sends the block of {host}, which its sender never has")]
    Absent {
        /// The transfer.
        transfer: usize,
        /// Whose block.
        host: String,
    },
    /// A host gets a block a second time.
    #[error("transfer {transfer} brings the block of {host} a second time")]
    Twice {
        /// The transfer.
        transfer: usize,
        /// Whose block.
        host: String,
    },
    /// Transfers that wait for each other.
    #[error("transfer {transfer} waits for itself, through what feeds it or what it comes after")]
    Circle {
        /// One of them.
        transfer: usize,
    },
    /// A grant by somebody who cannot know.
    #[error("transfer {transfer} waits for {after}, which does not come to its receiver")]
    Grant {
        /// The transfer that waits.
        transfer: usize,
        /// The one it waits for.
        after: usize,
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
}

/// Proves that a plan does its operation, and that no two of its messages meet on a directed link.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(network: &Network, plan: &Plan) -> Result<(), CheckError> {
    let feeds = check_blocks(network, plan)?;
    let ordered = Ordered::new(&plan.transfers, &feeds)?;
    check_links(network, plan, &ordered)
}

/// Every block is where it is sent from, comes once, and ends where the operation wants it. Returns what feeds
/// each transfer: those that bring its sender what it relays.
fn check_blocks(network: &Network, plan: &Plan) -> Result<Vec<Vec<usize>>, CheckError> {
    let hosts = network.hosts.len();
    let mut place_of = vec![None; hosts];
    for (place, host) in plan.order.iter().enumerate() {
        match place_of.get_mut(*host) {
            Some(free @ None) => *free = Some(place),
            _ => return Err(CheckError::Order),
        }
    }
    if plan.order.len() != hosts {
        return Err(CheckError::Order);
    }
    check_indices(hosts, plan)?;
    let name = |place: usize| network.hosts[plan.order[place]].name.clone();
    // By whom each block comes to each host: only of the host at hand, or memory grows with the square.
    let mut arriving: Vec<Vec<usize>> = vec![Vec::new(); hosts];
    for (at, transfer) in plan.transfers.iter().enumerate() {
        arriving[transfer.to].push(at);
    }
    let mut leaving: Vec<Vec<usize>> = vec![Vec::new(); hosts];
    for (at, transfer) in plan.transfers.iter().enumerate() {
        leaving[transfer.from].push(at);
    }
    let mut feeds = vec![Vec::new(); plan.transfers.len()];
    let mut comes_by: Vec<Option<usize>> = vec![None; hosts];
    for host in 0..hosts {
        comes_by.fill(None);
        let own = place_of[host].ok_or(CheckError::Order)?;
        for at in arriving[host].iter().copied() {
            for place in plan.transfers[at].blocks.places() {
                if place == own || comes_by[place].replace(at).is_some() {
                    let host = name(place);
                    return Err(CheckError::Twice { transfer: at, host });
                }
            }
        }
        for at in leaving[host].iter().copied() {
            for place in plan.transfers[at].blocks.places() {
                match comes_by[place] {
                    Some(by) if feeds[at].last() != Some(&by) => feeds[at].push(by),
                    Some(_) => {}
                    None if place == own => {}
                    None => {
                        let host = name(place);
                        return Err(CheckError::Absent { transfer: at, host });
                    }
                }
            }
            feeds[at].sort_unstable();
            feeds[at].dedup();
        }
        let Operation::Gather { root } = plan.operation;
        let lacks = comes_by.iter().filter(|by| by.is_none()).count() - 1;
        if host == root && lacks > 0 {
            return Err(CheckError::Undone {
                host: name(own),
                blocks: lacks,
            });
        }
    }
    Ok(feeds)
}

fn check_indices(hosts: usize, plan: &Plan) -> Result<(), CheckError> {
    for (at, transfer) in plan.transfers.iter().enumerate() {
        let last_place = transfer.blocks.places().last().unwrap_or(0);
        let named = [
            ("host", transfer.from, hosts),
            ("host", transfer.to, hosts),
            ("block", last_place, hosts),
            (
                "transfer",
                transfer.after.unwrap_or(0),
                plan.transfers.len(),
            ),
        ];
        for (what, index, count) in named {
            if index >= count {
                return Err(CheckError::Index {
                    transfer: at,
                    what,
                    index,
                    count,
                });
            }
        }
        if let Some(after) = transfer.after {
            if plan.transfers[after].to != transfer.to {
                return Err(CheckError::Grant {
                    transfer: at,
                    after,
                });
            }
        }
    }
    Ok(())
}

/// A set of transfers, a bit each.
#[derive(Clone)]
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
}

/// For each transfer, those that have come whole when it begins.
struct Ordered(Vec<Set>);

impl Ordered {
    fn new(transfers: &[Transfer], feeds: &[Vec<usize>]) -> Result<Self, CheckError> {
        let empty = Set::new(transfers.len());
        let mut before = vec![empty.clone(); transfers.len()];
        // Complete when this one is: itself, what feeds it, and what came before it began.
        let mut with = vec![empty; transfers.len()];
        for at in by_what_they_need(transfers, feeds)? {
            if let Some(after) = transfers[at].after {
                before[at] = with[after].clone();
            }
            let mut complete = before[at].clone();
            complete.add(at);
            for fed_by in &feeds[at] {
                complete.add_all(&with[*fed_by]);
            }
            with[at] = complete;
        }
        Ok(Self(before))
    }

    fn are(&self, a: usize, b: usize) -> bool {
        self.0[a].has(b) || self.0[b].has(a)
    }
}

/// The transfers, each behind those that it needs: what it waits for, and what feeds it.
fn by_what_they_need(
    transfers: &[Transfer],
    feeds: &[Vec<usize>],
) -> Result<Vec<usize>, CheckError> {
    let needs = |at: usize| feeds[at].iter().copied().chain(transfers[at].after);
    let mut missing: Vec<usize> = (0..transfers.len()).map(|at| needs(at).count()).collect();
    let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); transfers.len()];
    for at in 0..transfers.len() {
        for needed in needs(at) {
            needed_by[needed].push(at);
        }
    }
    let mut order: Vec<usize> = (0..transfers.len())
        .filter(|at| missing[*at] == 0)
        .collect();
    let mut next = 0;
    while let Some(at) = order.get(next).copied() {
        next += 1;
        for waiting in &needed_by[at] {
            missing[*waiting] -= 1;
            if missing[*waiting] == 0 {
                order.push(*waiting);
            }
        }
    }
    match missing.iter().position(|missing| *missing > 0) {
        Some(transfer) => Err(CheckError::Circle { transfer }),
        None => Ok(order),
    }
}

fn check_links(network: &Network, plan: &Plan, ordered: &Ordered) -> Result<(), CheckError> {
    let paths = Paths::new(network);
    let mut passing: Vec<Vec<usize>> = vec![Vec::new(); paths.directed_links()];
    for (at, transfer) in plan.transfers.iter().enumerate() {
        for link in paths.links(transfer.from, transfer.to) {
            passing[link.0 as usize].push(at);
        }
    }
    for (link, passing) in passing.iter().enumerate() {
        for (at, first) in passing.iter().copied().enumerate() {
            let meets = passing[at + 1..]
                .iter()
                .find(|other| !ordered.are(first, **other));
            let Some(second) = meets.copied() else {
                continue;
            };
            let link = DirectedLink(link as u32);
            let ends = network.links[link.link()].ends;
            let [from, to] = [link.way(), 1 - link.way()].map(|end| network.name_of(ends[end]));
            return Err(CheckError::Collision {
                first,
                second,
                from: from.to_owned(),
                to: to.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
