//! The network, as the pages need it.

use super::error::DsmError;

/// Memory of a region into which other nodes put bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The node's copy of the pages, or what waits for a barrier in regions that are updated at
    /// barriers.
    Pages,
    /// Pages of other homes, as they will be behind the next barrier.
    Replica,
}

/// Changed bytes of a region, for one home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedDiff {
    /// Node that is the home of all pages in it.
    pub home: usize,
    /// Number of the region.
    pub region: usize,
    /// Memory of the region.
    pub memory: Memory,
    /// Offset in the region from which the runs count, in bytes.
    pub offset: u64,
    /// Runs, as [`diff`] encodes them.
    pub runs: Vec<u8>,
}

/// Changed bytes of a region, for all other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// Number of the region.
    pub region: usize,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Means by which nodes reach each other.
pub trait Fabric: Send + Sync {
    /// Reads bytes of a memory of a region, which `place` numbers, at `node`.
    ///
    /// # Errors
    /// The node is lost.
    fn get(
        &self,
        node: usize,
        place: (usize, Memory),
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), DsmError>;

    /// Puts that were started and may be under way.
    type Puts: Default;

    /// Begins to apply diffs at their homes.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn start_puts(&self, diffs: Vec<EncodedDiff>, puts: &mut Self::Puts) -> Result<(), DsmError>;

    /// Waits until the diffs have been applied.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn finish_puts(&self, puts: Self::Puts) -> Result<(), DsmError>;

    /// Writes bytes to the copies of all other nodes. They are there when this returns.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn push(&self, updates: &[Update]) -> Result<(), DsmError>;

    /// Returns whether a message to each node has the updates sooner than [`Self::push`].
    fn prefers_messages(&self, updates: &[Update]) -> bool;

    /// Notes that all nodes have the updates about which [`Self::prefers_messages`] was asked last.
    fn end_exchange(&self) {}

    /// Returns the most bytes of the runs of a diff.
    fn diff_bytes_max(&self) -> usize;

    /// Returns an error if a node is lost that was not given up: no call can succeed then.
    ///
    /// # Errors
    /// A node is lost.
    fn check(&self) -> Result<(), DsmError>;

    /// Submits a message, which [`Self::transmit`] sends. Messages to a node arrive in order.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn send(&self, to: usize, message: Vec<u8>) -> Result<(), DsmError>;

    /// Sends what was submitted: messages to one node share datagrams.
    fn transmit(&self);

    /// Statement that this thread waits soon.
    type Expectation<'a>
    where
        Self: 'a;

    /// States that this thread sends messages now, and then waits for their answers. The statement
    /// holds until it is dropped.
    fn expect_wait(&self) -> Self::Expectation<'_>;

    /// Waits until `is_done` returns true. It is called again after each message that was handled.
    ///
    /// # Errors
    /// A node is lost.
    fn wait(&self, is_done: &dyn Fn() -> bool) -> Result<(), DsmError>;

    /// As [`Self::wait`]. A loss ends no wait.
    fn wait_despite_losses(&self, is_done: &dyn Fn() -> bool);

    /// Returns all nodes that are lost, in order.
    fn lost(&self) -> Vec<usize>;

    /// Notes that a node is lost, unless it was before.
    fn lose(&self, node: usize, reason: &str);

    /// Ends the sessions with lost nodes: what they have sent arrives no more, and the other calls
    /// succeed without them. Waits until everything has arrived that this node has sent to others.
    ///
    /// # Errors
    /// Another node is lost.
    fn give_up(&self, nodes: &[usize]) -> Result<(), DsmError>;

    /// Takes back the other nodes' access to all regions from this number on.
    fn drop_regions(&self, first: usize);
}
