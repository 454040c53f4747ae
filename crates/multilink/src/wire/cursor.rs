//! Reader of received bytes that cannot run past their end.

/// Error: fewer bytes were left than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short;

/// Takes fields from the front of a byte slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Creates a reader at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Short> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(Short)?;
        self.0 = tail;
        Ok(head)
    }

    /// Returns the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Short)?;
        self.0 = tail;
        Ok(*head)
    }

    /// Returns the next byte.
    pub fn u8(&mut self) -> Result<u8, Short> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Returns the next two bytes as a big-endian number.
    pub fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_be_bytes)
    }

    /// Returns the next four bytes as a big-endian number.
    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_be_bytes)
    }

    /// Returns the next eight bytes as a big-endian number.
    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_be_bytes)
    }

    /// Returns the next six bytes as a MAC address.
    pub fn mac(&mut self) -> Result<[u8; 6], Short> {
        self.array()
    }

    /// Returns the bytes not yet read.
    pub fn remaining(&self) -> &'a [u8] {
        self.0
    }
}
