//! Location of the blocks of a collective.

/// Memory from which chunks are read and into which they are written. An out-of-range chunk is a
/// bug of the library and panics.
pub trait Memory: Send {
    /// Returns the part of a block that is to be sent.
    fn source(&self, block: u64, offset: u64, bytes: usize) -> &[u8];
    /// Returns the part of a block that is to be received or combined.
    fn destination(&mut self, block: u64, offset: u64, bytes: usize) -> &mut [u8];
    /// Called when the collective is complete on this rank.
    fn finish(&mut self) {}
}
