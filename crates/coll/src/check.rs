//! Proves that a plan is correct. It shares only the network and the data types of a plan with the
//! planners, and it uses no clock.
//!
//! The proof has three parts:
//!
//! 1. *Blocks* (`check/blocks.rs`): every sender has the blocks that it sends, and every host ends
//!    with the blocks that the operation gives it.
//! 2. *Order* (`check/order.rs`): for any two transfers t and u, the most bytes of t that are
//!    missing when u starts, by the waits of the plan alone.
//! 3. *Links* (`check/links.rs`): the following invariant.
//!
//! # Invariant
//!
//! For each directed link and the port in front of it, at every moment:
//!
//! ```text
//!   (1)  Σ r(t) over A                                ≤  C / 0.95
//!   (2)  Σ max(0, m(s) − c(s)) over the slots s       ≤  P
//!
//!   C     rate of the link, in bytes per second
//!   r(t)  bottleneck rate of the path of transfer t, in bytes per second
//!   s     slot: a part of C that one transfer after another uses
//!   A     transfers in flight over the link that hold all of their slots. The others in flight are
//!         early remainders: a transfer that has started has taken over a slot of theirs.
//!   m(s)  bytes of early remainders in s that are missing at their receivers when the latest
//!         transfer in s starts
//!   c(s)  bytes of them that cross the link until the first byte of that transfer arrives
//!   P     depth of the port in bytes, as the plan claims it: `Plan::port_bytes`
//! ```
//!
//! By (1), the transfers in A bring no more bytes to the port than the link carries. By (2), early
//! remainders leave at most P bytes in the port.
//!
//! Transfers of one sender that follow each other in a slot count as one transfer, because a host
//! sends in starting order. An access link carries only transfers of its host, so m(s) is 0 there
//! in the sending direction.
//!
//! A host's duplex limit counts as a directed link ([`kumi_topo::Paths::limited`]).
//!
//! # Assumptions
//!
//! - Ports are first in, first out.
//! - A transfer t enters the link at r(t) at most. No plan ensures this: a port that is slower than
//!   the sender's access link fills with a single transfer. Windows bound the bytes that stand
//!   there at run time (`narrow.rs`).
//! - The link carries all of A. The factor 0.95 allows for equal links whose measured rates differ.
//!   If A really exceeds C, a queue grows for as long as it runs (docs/perf-log.md, 2026-11-24).
//! - The link is busy while a grant travels, as c(s) counts it. That depends on times, which a plan
//!   does not have. Simulation and measurements show it.

mod blocks;
mod links;
mod order;

use crate::plan::{After, Operation, Plan, Progress};
use kumi_topo::Network;

/// A fault of a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The index of a host or a block is out of range.
    #[error("transfer {transfer}: {kind} {index} out of range (0–{})", .count.saturating_sub(1))]
    Index {
        /// The transfer.
        transfer: usize,
        /// Kind of the index.
        kind: &'static str,
        /// The index.
        index: usize,
        /// Number of valid indices.
        count: usize,
    },
    /// The order does not contain every host once.
    #[error("the plan's order does not contain every host of the network exactly once")]
    Order,
    /// A host sends a block that it does not have yet.
    #[error("transfer {transfer} sends block {block} before its sender has it")]
    Absent {
        /// The transfer.
        transfer: usize,
        /// Number of the block.
        block: usize,
    },
    /// A host receives a block, or a part of a block's sum, a second time.
    #[error(
        "transfer {transfer} sends block {block} to a host that already has it or a part of its sum"
    )]
    Twice {
        /// The transfer.
        transfer: usize,
        /// Number of the block.
        block: usize,
    },
    /// A transfer waits for a later one in the list, or for itself.
    #[error(
        "transfer {transfer} waits for transfer {predecessor}, which is not before it in the plan"
    )]
    Late {
        /// The transfer that waits.
        transfer: usize,
        /// The transfer that it waits for.
        predecessor: usize,
    },
    /// A transfer waits until another host has sent data, which its own sender cannot know.
    #[error(
        "transfer {transfer} waits until transfer {predecessor} is sent, which only the sender of {predecessor} knows"
    )]
    Unknown {
        /// The transfer that waits.
        transfer: usize,
        /// The transfer that it waits for.
        predecessor: usize,
    },
    /// The number of blocks is not that of the operation.
    #[error("the plan has {count} blocks; the operation has {blocks}")]
    Sizes {
        /// Number of blocks of the plan.
        count: usize,
        /// Number of blocks of the operation.
        blocks: usize,
    },
    /// A transfer combines in an operation that does not.
    #[error("transfer {transfer} combines blocks; the operation does not combine")]
    Combines {
        /// The transfer.
        transfer: usize,
    },
    /// The plan does not complete the operation.
    #[error("after the last transfer, {host} lacks {blocks} of its blocks")]
    Undone {
        /// Name of the host that lacks blocks.
        host: String,
        /// Number of missing blocks.
        blocks: usize,
    },
    /// Two messages may exceed a link's capacity together.
    #[error("transfers {first} and {second} may exceed the link from {from} to {to} together")]
    Collision {
        /// Index of a transfer.
        first: usize,
        /// Index of the other.
        second: usize,
        /// Name of the link's sending end.
        from: String,
        /// Name of the link's receiving end.
        to: String,
    },
    /// A host may have to send and receive more than its duplex limit.
    #[error(
        "transfers {first} and {second} may exceed together the rate at which {host} sends and receives at once"
    )]
    BothWays {
        /// Index of a transfer.
        first: usize,
        /// Index of the other.
        second: usize,
        /// Name of the host.
        host: String,
    },
}

/// Proves that a plan performs its operation, and that its messages fit every directed link at all
/// times.
///
/// # Errors
/// The first fault.
pub fn check(network: &Network, plan: &Plan) -> Result<(), CheckError> {
    check_shape(network, plan)?;
    let feeds = blocks::feeds(network, plan)?;
    links::check(network, plan, &feeds)
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
    let count = plan.block_bytes.len();
    let blocks = match plan.operation {
        Operation::AllToAll => hosts * hosts,
        Operation::Broadcast { .. } | Operation::Reduce { .. } | Operation::AllReduce => count,
        _ => hosts,
    };
    if count != blocks {
        return Err(CheckError::Sizes { count, blocks });
    }
    for (index, transfer) in plan.transfers.iter().enumerate() {
        let indices = [
            ("host", transfer.from, hosts),
            ("host", transfer.to, hosts),
            ("block", transfer.blocks.last().unwrap_or(0), blocks.max(1)),
        ];
        if let Some((kind, value, count)) =
            indices.into_iter().find(|(_, value, count)| value >= count)
        {
            return Err(CheckError::Index {
                transfer: index,
                kind,
                index: value,
                count,
            });
        }
        let waits = transfer.after.iter().map(|wait| wait.transfer);
        if let Some(predecessor) = waits.into_iter().find(|wait| *wait >= index) {
            return Err(CheckError::Late {
                transfer: index,
                predecessor,
            });
        }
        let is_known = |wait: &&After| {
            plan.transfers[wait.transfer].from == transfer.from || wait.until != Progress::Sent
        };
        if let Some(wait) = transfer.after.iter().find(|wait| !is_known(wait)) {
            return Err(CheckError::Unknown {
                transfer: index,
                predecessor: wait.transfer,
            });
        }
        if transfer.combines && !plan.operation.combines() {
            return Err(CheckError::Combines { transfer: index });
        }
    }
    Ok(())
}

/// A set of transfers or hosts, one bit each.
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

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod spoiled;
