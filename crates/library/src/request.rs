//! Requests for collectives.

use kumi_coll::PlanError;

/// Request for a collective. All ranks make the same request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// Operation to perform.
    pub operation: RequestedOperation,
    /// Rank that holds all input or gets the whole result; 0 in operations without a root.
    pub root: usize,
    /// Length of each rank's block in bytes, or of block `from × ranks + to` in an all-to-all.
    /// Operations on a vector have one entry, the length of the whole vector.
    pub bytes: Vec<u64>,
    /// Bytes of an element. A plan never splits an element.
    pub element_bytes: u64,
}

/// Collective operation, without its root. The numbers are those of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum RequestedOperation {
    /// Corresponds to [`Operation::Gather`].
    Gather = 0,
    /// Corresponds to [`Operation::Scatter`].
    Scatter = 1,
    /// Corresponds to [`Operation::Broadcast`].
    Broadcast = 2,
    /// Corresponds to [`Operation::Reduce`].
    Reduce = 3,
    /// Corresponds to [`Operation::AllGather`].
    AllGather = 4,
    /// Corresponds to [`Operation::ReduceScatter`].
    ReduceScatter = 5,
    /// Corresponds to [`Operation::AllReduce`].
    AllReduce = 6,
    /// Corresponds to [`Operation::AllToAll`].
    AllToAll = 7,
}

impl RequestedOperation {
    /// Returns the operation that has this number in the C interface.
    pub fn from_number(number: i32) -> Option<Self> {
        let operations = [
            Self::Gather,
            Self::Scatter,
            Self::Broadcast,
            Self::Reduce,
            Self::AllGather,
            Self::ReduceScatter,
            Self::AllReduce,
            Self::AllToAll,
        ];
        operations
            .into_iter()
            .find(|operation| *operation as i32 == number)
    }
}

/// Reason that a collective cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// The planner rejects the request.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The rank is out of range.
    #[error("rank {rank} out of range (0–{})", .ranks.saturating_sub(1))]
    Rank {
        /// Requested rank.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// The element size is 0, or a block is not a whole number of elements.
    #[error("{bytes} bytes are not a whole number of elements of {element_bytes} bytes")]
    Element {
        /// Length of the block, in bytes.
        bytes: u64,
        /// Length of an element, in bytes.
        element_bytes: u64,
    },
    /// The operation relays blocks of other ranks, so it cannot be planned for blocks of one
    /// length.
    #[error(
        "{0:?} cannot be planned for blocks of one length: expected Gather, Scatter or AllToAll"
    )]
    Relayed(RequestedOperation),
    /// The C interface has no operation of this number.
    #[error("operation {0} out of range (0–7)")]
    Operation(i32),
}
