//! The plan of an operation: its transfers, and the predecessors of each. `lib.rs` describes the
//! planner.

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The root receives the block of every host.
    Gather {
        /// Index of the root.
        root: usize,
    },
    /// Every host receives its block from the root.
    Scatter {
        /// Index of the root.
        root: usize,
    },
    /// Every host receives the root's blocks, which are parts of one vector.
    Broadcast {
        /// Index of the root.
        root: usize,
    },
    /// The root receives each block combined over all hosts. The blocks are parts of one vector.
    Reduce {
        /// Index of the root.
        root: usize,
    },
    /// Every host receives the block of every host.
    AllGather,
    /// Every host receives its own block, combined over all hosts.
    ReduceScatter,
    /// Every host receives each block, combined over all hosts. The blocks are parts of one vector.
    AllReduce,
    /// Every host receives a block from each other host: block `from × hosts + to`, by index.
    AllToAll,
}

impl Operation {
    /// Returns the root, for an operation that has one.
    pub fn root(self) -> Option<usize> {
        match self {
            Self::Gather { root }
            | Self::Scatter { root }
            | Self::Broadcast { root }
            | Self::Reduce { root } => Some(root),
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll => None,
        }
    }

    /// Returns whether a sender with a distant receiver starts with a ramp (`engine.rs`). In a
    /// gather, each host sends to one other host. A host that sends to several in turn would have
    /// to ramp for each.
    pub(crate) fn is_ramped(self) -> bool {
        matches!(self, Self::Gather { .. })
    }

    /// Returns whether the blocks are parts of one vector: consecutive blocks are adjacent in
    /// memory.
    pub fn is_on_a_vector(self) -> bool {
        matches!(
            self,
            Self::Broadcast { .. } | Self::Reduce { .. } | Self::AllReduce
        )
    }

    /// Returns whether blocks are combined.
    pub fn combines(self) -> bool {
        matches!(
            self,
            Self::Reduce { .. } | Self::ReduceScatter | Self::AllReduce
        )
    }
}

/// A set of blocks, by number: ascending runs that do not touch. A host's block has the number of
/// the host's place in [`Plan::order`]. The blocks of a chain of hosts are therefore one run,
/// regardless of the hosts' indices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks(Vec<(u32, u32)>);

impl Blocks {
    /// Returns a set of one block.
    pub fn one(block: usize) -> Self {
        Self::run(block, 1)
    }

    /// Returns a set of `count` consecutive blocks.
    pub fn run(first: usize, count: usize) -> Self {
        Self(vec![(first as u32, (first + count) as u32)])
    }

    /// Returns the union of two sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut ours, mut theirs) = (self.0.as_slice(), other.0.as_slice());
        loop {
            let next = match (ours.split_first(), theirs.split_first()) {
                (Some((run, tail)), Some((other, _))) if run <= other => {
                    ours = tail;
                    run
                }
                (_, Some((run, tail))) => {
                    theirs = tail;
                    run
                }
                (Some((run, tail)), None) => {
                    ours = tail;
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

    /// Iterates over the runs, ascending: the first number of each, and the number after its last.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let runs = self.0.iter();
        runs.map(|(from, to)| (*from as usize, *to as usize))
    }

    /// Iterates over the numbers, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.runs().flat_map(|(from, to)| from..to)
    }

    /// Returns the highest number.
    pub fn last(&self) -> Option<usize> {
        self.0.last().map(|(_, to)| *to as usize - 1)
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(from, to)| (to - from) as usize).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One host sends blocks to another, in ascending order. A relay sends blocks on as they arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Index of the sender.
    pub from: usize,
    /// Index of the receiver.
    pub to: usize,
    /// Blocks that it carries.
    pub blocks: Blocks,
    /// The receiver combines the blocks with its own, instead of storing them.
    pub combines: bool,
    /// Predecessors: transfers that must have progressed before this one starts.
    pub after: Vec<After>,
}

/// A predecessor, with its required progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct After {
    /// Index of the transfer.
    pub transfer: usize,
    /// Required progress.
    pub until: Progress,
}

/// Progress of a transfer that lets another one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Its bytes have been received, except for `missing_bytes`. If the host that awaits this is
    /// not the receiver, the receiver sends it a control message (section 4.2.1 of the
    /// contention-free gather paper).
    Received {
        /// Bytes that may still be missing.
        missing_bytes: u64,
        /// All earlier transfers to the same receiver must be complete too.
        with_earlier: bool,
    },
    /// The host that awaits this has sent it.
    Sent,
}

impl After {
    /// Awaits the completion of a transfer.
    pub fn complete(transfer: usize) -> Self {
        Self::received(transfer, 0)
    }

    /// Awaits a transfer except for this many bytes.
    pub fn received(transfer: usize, missing_bytes: u64) -> Self {
        let until = Progress::Received {
            missing_bytes,
            with_earlier: false,
        };
        Self { transfer, until }
    }

    /// Awaits the end of a transfer's sending. Only its own sender may await that.
    pub fn sent(transfer: usize) -> Self {
        let until = Progress::Sent;
        Self { transfer, until }
    }

    /// Awaits all earlier transfers to the same receiver as well.
    #[must_use]
    pub fn with_earlier(self) -> Self {
        let until = match self.until {
            Progress::Received { missing_bytes, .. } => Progress::Received {
                missing_bytes,
                with_earlier: true,
            },
            Progress::Sent => Progress::Sent,
        };
        Self { until, ..self }
    }

    /// Returns whether `other` awaits the same transfer, and at least as much of it.
    pub fn is_within(self, other: Self) -> bool {
        self.transfer == other.transfer && self.and(other).until == other.until
    }

    /// Returns a wait that satisfies both of two waits for one transfer.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let until = match (self.until, other.until) {
            (
                Progress::Received {
                    missing_bytes: ours,
                    with_earlier: are_ours_earlier,
                },
                Progress::Received {
                    missing_bytes: theirs,
                    with_earlier: are_theirs_earlier,
                },
            ) => Progress::Received {
                missing_bytes: ours.min(theirs),
                with_earlier: are_ours_earlier || are_theirs_earlier,
            },
            (received @ Progress::Received { .. }, Progress::Sent) | (Progress::Sent, received) => {
                received
            }
        };
        Self { until, ..self }
    }
}

/// Transfers that together perform an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The operation.
    pub operation: Operation,
    /// The hosts that take part, in the planner's order. A block that belongs to a host is numbered
    /// by the host's place here.
    pub order: Vec<usize>,
    /// Size of each block in bytes, by number.
    pub block_bytes: Vec<u64>,
    /// Transfers. Each comes after its predecessors and after the transfers that bring its sender
    /// its data.
    pub transfers: Vec<Transfer>,
    /// Most bytes that may enter a link before earlier bytes have left it: the depth that a
    /// switch's port needs.
    pub port_bytes: u64,
    /// Predicted time by the planner's model, in seconds.
    pub predicted_s: f64,
    /// Capacity that transfers take over from earlier ones, in plan order. It is a hint for the
    /// checker, which proves it. It is empty in long plans.
    pub handed: Vec<Handed>,
}

/// Capacity of one directed link that a transfer takes over from an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    /// Number of the directed link.
    pub link: u32,
    /// Index of the transfer.
    pub transfer: u32,
    /// Index of the earlier transfer.
    pub from: u32,
}

impl Plan {
    /// Returns the size of a transfer in bytes.
    pub fn bytes_of(&self, transfer: &Transfer) -> u64 {
        let blocks = transfer.blocks.numbers();
        blocks.map(|block| self.block_bytes[block]).sum()
    }

    /// Returns the place of each host in [`Plan::order`].
    pub fn places(&self) -> Vec<usize> {
        places(&self.order)
    }
}

/// Most bytes of planned transfers in a port at once: 32 KiB, the depth of the shallowest ports of
/// Gigabit switches (ADR 033). A link of 1 Gb/s carries them in 0.26 ms, longer than a control
/// message and a first byte take.
pub const PORT_BYTES: u64 = 32 << 10;

/// Returns the inverse of an order.
pub(crate) fn places(order: &[usize]) -> Vec<usize> {
    let mut places = vec![0; order.len()];
    for (place, host) in order.iter().enumerate() {
        places[*host] = place;
    }
    places
}

/// Reason for which there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The root is out of range.
    #[error("root {root} out of range (0–{})", .hosts.saturating_sub(1))]
    Root {
        /// Index that was given.
        root: usize,
        /// Number of hosts.
        hosts: usize,
    },
    /// The number of sizes is not the number of blocks.
    #[error("{given} block sizes given: expected {blocks}, one for each block")]
    Sizes {
        /// Number of sizes that were given.
        given: usize,
        /// Number of blocks.
        blocks: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks__joined_in_any_order__are_stored_as_runs() {
        let places = [3, 1, 2, 7, 3].map(Blocks::one);
        let blocks = places
            .iter()
            .fold(Blocks::default(), |sum, block| sum.union(block));
        assert_eq!(blocks.numbers().collect::<Vec<_>>(), [1, 2, 3, 7]);
        assert_eq!((blocks.len(), blocks.0.len()), (4, 2));
        assert!(Blocks::default().is_empty());
    }
}
