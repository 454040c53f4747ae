//! What is to be done: transfers, and what each waits for.

/// What the hosts do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The root comes to have every host's block.
    Gather {
        /// Index of the host.
        root: usize,
    },
    /// Every host comes to have its block, of those that the root has.
    Scatter {
        /// Index of the host.
        root: usize,
    },
    /// Every host comes to have the root's blocks: parts of one vector.
    Broadcast {
        /// Index of the host.
        root: usize,
    },
    /// The root comes to have each block combined of every host's: parts of one vector.
    Reduce {
        /// Index of the host.
        root: usize,
    },
    /// Every host comes to have every host's block.
    AllGather,
    /// Every host comes to have its block, combined of every host's.
    ReduceScatter,
    /// Every host comes to have each block, combined of every host's: parts of one vector.
    AllReduce,
    /// Every host comes to have the block that each of the others has for it: block `from × hosts + to`, by index.
    AllToAll,
}

impl Operation {
    /// The host that the operation is about, where it is about one.
    pub fn root(self) -> Option<usize> {
        match self {
            Self::Gather { root }
            | Self::Scatter { root }
            | Self::Broadcast { root }
            | Self::Reduce { root } => Some(root),
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll => None,
        }
    }

    /// Whether each host sends to one other, so that who is told from afar to begin begins with a ramp (`engine.rs`). Who sends
    /// to several by turns would be held up by one ramp after another.
    pub(crate) fn is_ramped(self) -> bool {
        matches!(self, Self::Gather { .. })
    }

    /// Whether its blocks are parts of one vector: those that follow each other lie side by side.
    pub fn is_on_a_vector(self) -> bool {
        matches!(
            self,
            Self::Broadcast { .. } | Self::Reduce { .. } | Self::AllReduce
        )
    }

    /// Whether blocks are combined where they meet.
    pub fn combines(self) -> bool {
        matches!(
            self,
            Self::Reduce { .. } | Self::ReduceScatter | Self::AllReduce
        )
    }
}

/// A set of blocks, by number: ascending runs that do not touch. What a chain of hosts carries is one run,
/// however the hosts are numbered, for a block's number is a place in [`Plan::order`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks(Vec<(u32, u32)>);

impl Blocks {
    /// One block.
    pub fn one(block: usize) -> Self {
        Self::run(block, 1)
    }

    /// So many from one on.
    pub fn run(first: usize, count: usize) -> Self {
        Self(vec![(first as u32, (first + count) as u32)])
    }

    /// These and those.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut ours, mut theirs) = (self.0.as_slice(), other.0.as_slice());
        loop {
            let next = match (ours.split_first(), theirs.split_first()) {
                (Some((run, rest)), Some((other, _))) if run <= other => {
                    ours = rest;
                    run
                }
                (_, Some((run, rest))) => {
                    theirs = rest;
                    run
                }
                (Some((run, rest)), None) => {
                    ours = rest;
                    run
                }
                (None, None) => return Self(runs),
            };
            match runs.last_mut() {
                Some((_, end)) if *end >= next.0 => *end = (*end).max(next.1),
                _ => runs.push(*next),
            }
        }
    }

    /// The runs, ascending: the first number of each and the one behind its last.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let runs = self.0.iter();
        runs.map(|(from, to)| (*from as usize, *to as usize))
    }

    /// Their numbers, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.runs().flat_map(|(from, to)| from..to)
    }

    /// The greatest number.
    pub fn last(&self) -> Option<usize> {
        self.0.last().map(|(_, to)| *to as usize - 1)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(from, to)| (to - from) as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One host sends blocks to another, in ascending order; those that it relays, as they come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Who sends.
    pub from: usize,
    /// Who receives.
    pub to: usize,
    /// Which blocks.
    pub blocks: Blocks,
    /// The receiver combines them with what it has, instead of putting them in their place.
    pub combines: bool,
    /// What this one's begin waits for.
    pub after: Vec<After>,
}

/// A transfer that another waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct After {
    /// The transfer's index.
    pub transfer: usize,
    /// How far it has to be.
    pub until: Until,
}

/// How far a transfer has to be before one that waits for it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    /// It has been received. If another host than the one that waits receives it, that host tells the sender by a message of its
    /// own (the paper's synchronisation, section 4.2.1).
    Come {
        /// Bytes of it that may still be missing.
        missing_bytes: u64,
        /// Whether all transfers to the same host that stand before it in the plan have to be received whole besides.
        with_earlier: bool,
    },
    /// It has been sent, by the host that waits.
    Sent,
}

impl After {
    /// Waits for all of a transfer.
    pub fn whole(transfer: usize) -> Self {
        Self::but_for(transfer, 0)
    }

    /// Waits until at most this many bytes are missing.
    pub fn but_for(transfer: usize, missing_bytes: u64) -> Self {
        let until = Until::Come {
            missing_bytes,
            with_earlier: false,
        };
        Self { transfer, until }
    }

    /// Waits until a transfer has been sent by the host that waits.
    pub fn sent(transfer: usize) -> Self {
        let until = Until::Sent;
        Self { transfer, until }
    }

    /// The same, and all transfers to the same receiver that stand before.
    #[must_use]
    pub fn with_earlier(self) -> Self {
        let until = match self.until {
            Until::Come { missing_bytes, .. } => Until::Come {
                missing_bytes,
                with_earlier: true,
            },
            Until::Sent => Until::Sent,
        };
        Self { until, ..self }
    }

    /// Whether `other` waits for the same transfer, and for at least as much of it.
    pub fn is_within(self, other: Self) -> bool {
        self.transfer == other.transfer && self.and(other).until == other.until
    }

    /// Waits for what both ask of one transfer.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let until = match (self.until, other.until) {
            (
                Until::Come {
                    missing_bytes: ours,
                    with_earlier: are_ours_earlier,
                },
                Until::Come {
                    missing_bytes: theirs,
                    with_earlier: are_theirs_earlier,
                },
            ) => Until::Come {
                missing_bytes: ours.min(theirs),
                with_earlier: are_ours_earlier || are_theirs_earlier,
            },
            (come @ Until::Come { .. }, Until::Sent) | (Until::Sent, come) => come,
        };
        Self { until, ..self }
    }
}

/// Transfers that together do an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What it does.
    pub operation: Operation,
    /// The hosts that take part, in the planner's order: a block that is one host's is named by its place here.
    pub order: Vec<usize>,
    /// Bytes of each block, by number.
    pub block_bytes: Vec<u64>,
    /// Transfers, each behind all that it waits for and all that bring its sender what it sends.
    pub transfers: Vec<Transfer>,
    /// What is let into a link before what is ahead of it has passed: what a switch's port has to hold at most.
    pub port_bytes: u64,
    /// How long it takes by the planner's own reckoning, in seconds.
    pub predicted_s: f64,
    /// Capacity that transfers take over from earlier ones, in plan order: a hint for the check, which proves it. Empty in long
    /// plans.
    pub handed: Vec<Handed>,
}

/// Capacity of one directed link that a transfer takes over from an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    /// The directed link's number.
    pub link: u32,
    /// Index of the transfer.
    pub transfer: u32,
    /// Index of the earlier transfer.
    pub from: u32,
}

impl Plan {
    /// Bytes that a transfer carries.
    pub fn bytes_of(&self, transfer: &Transfer) -> u64 {
        let blocks = transfer.blocks.numbers();
        blocks.map(|block| self.block_bytes[block]).sum()
    }

    /// The place of each host in [`Plan::order`].
    pub fn places(&self) -> Vec<usize> {
        places(&self.order)
    }
}

/// What planned transfers are let into a port at most: of 32 KiB, the shallowest that Gigabit switches have, all; in
/// 0.26 ms, more than a word and a first byte take.
pub const PORT_BYTES: u64 = 32 << 10;

/// The inverse of an order.
pub(crate) fn places(order: &[usize]) -> Vec<usize> {
    let mut places = vec![0; order.len()];
    for (place, host) in order.iter().enumerate() {
        places[*host] = place;
    }
    places
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The root is none of the hosts.
    #[error("root {root} is no host; there are {hosts}, from 0")]
    Root {
        /// What was asked for.
        root: usize,
        /// How many hosts there are.
        hosts: usize,
    },
    /// Sizes were given for another number of blocks.
    #[error("{given} sizes were given, and the operation has {blocks} blocks")]
    Sizes {
        /// Sizes there are.
        given: usize,
        /// Sizes there should be.
        blocks: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks__joined_in_any_order__are_runs() {
        let places = [3, 1, 2, 7, 3].map(Blocks::one);
        let blocks = places
            .iter()
            .fold(Blocks::default(), |sum, one| sum.union(one));
        assert_eq!(blocks.numbers().collect::<Vec<_>>(), [1, 2, 3, 7]);
        assert_eq!((blocks.len(), blocks.0.len()), (4, 2));
        assert!(Blocks::default().is_empty());
    }
}
