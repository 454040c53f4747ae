//! The proof that a plan is right.
//!
//! Nothing here knows a time, and nothing is shared with the planner but the network and the data types of a plan. Two transfers
//! are *ordered* if one is complete before the other begins, by what the plan says alone: the one waits for the other, or for
//! something that cannot be complete before the other is (`order.rs`). Of every directed link, the transfers that may be in flight
//! at once never ask for more than the link carries (`links.rs`). A plan may say how many bytes are let into a port early; at most
//! that many may stand there beyond.

mod blocks;
mod links;
mod order;

use crate::plan::{After, Operation, Plan, Until};
use kumi_topo::Network;

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

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod spoiled;
