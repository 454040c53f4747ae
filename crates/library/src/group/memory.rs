//! Where the blocks of a collective are.

/// Memory that pieces are read from and written to. A piece that makes no sense is a bug of ours, and panics.
pub trait Memory: Send {
    /// What is sent.
    fn out(&self, block: u64, offset: u64, bytes: usize) -> &[u8];
    /// Where it is received, or combined.
    fn place(&mut self, block: u64, offset: u64, bytes: usize) -> &mut [u8];
    /// All has come.
    fn finish(&mut self) {}
}
