//! Terms of the interface: classes, modes, places, operations and their outcomes.

/// Delivery class of a message (Wind, Hayashi et al., §2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// Asynchronous, ordered: delivered after every earlier message to the peer, ordered or not.
    Ordered = 0,
    /// Asynchronous, unordered: delivered as soon as it is complete.
    Unordered = 1,
    /// Synchronous, ordered: as [`Class::Ordered`], and the sender learns when the message has been
    /// placed in the receiver's memory.
    Synchronous = 2,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Ordered, Self::Unordered, Self::Synchronous];

    /// Returns whether messages of the class have a place in the order of the peer.
    pub fn is_ordered(self) -> bool {
        self != Self::Unordered
    }

    pub(crate) fn from_wire(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| *class as u8 == value)
    }
}

/// Delivery mode of a message (Wind, Hayashi et al., §2.2): which parts the receiving program gets,
/// and which go to a region of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Header and data go to the program.
    MessageThrough = 0,
    /// The data goes to a region, the header to the program.
    HeaderThrough = 1,
    /// The data goes to a region. The program is not notified.
    DirectMap = 2,
    /// As [`Mode::HeaderThrough`], but the data is a diff ([`crate::protocol::diff`]).
    HeaderThroughDiff = 3,
    /// As [`Mode::DirectMap`], but the data is a diff.
    DirectDiff = 4,
    /// Header and data go to the node, which passes them on. Programs do not send this mode.
    Relay = 5,
}

impl Mode {
    /// The modes of programs.
    pub const ALL: [Self; 5] = [
        Self::MessageThrough,
        Self::HeaderThrough,
        Self::DirectMap,
        Self::HeaderThroughDiff,
        Self::DirectDiff,
    ];

    /// Returns whether the data goes to a region.
    pub fn is_direct(self) -> bool {
        !matches!(self, Self::MessageThrough | Self::Relay)
    }

    /// Returns whether the data is a diff.
    pub fn is_diff(self) -> bool {
        matches!(self, Self::HeaderThroughDiff | Self::DirectDiff)
    }

    /// Returns whether the program gets the header.
    pub fn notifies(self) -> bool {
        !matches!(self, Self::DirectMap | Self::DirectDiff)
    }

    pub(crate) fn from_wire(value: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter().chain([Self::Relay]);
        all.find(|mode| *mode as u8 == value)
    }
}

/// Secret of a region: 128 random bits. Whoever has it may read and write the region.
pub type RegionKey = [u8; 16];

/// A place in a region of the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the region at the peer.
    pub region: u32,
    /// Key of the region.
    pub key: RegionKey,
    /// Offset in the region, in bytes.
    pub offset: u64,
}

impl Place {
    /// Returns the place `bytes` further on.
    pub fn plus(self, bytes: u64) -> Self {
        Self {
            offset: self.offset.saturating_add(bytes),
            ..self
        }
    }
}

/// An atomic operation on a 64-bit word in the byte order of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds to the word, with wrap-around.
    FetchAdd(u64),
    /// Stores `new` if the word is `expected`.
    CompareSwap {
        /// Value that the word must have.
        expected: u64,
        /// Value to store.
        new: u64,
    },
    /// Stores a value.
    Swap(u64),
    /// Stores the bits of `value` that are set in `mask`.
    MaskedStore {
        /// Bits to change.
        mask: u64,
        /// Their values.
        value: u64,
    },
}

impl Atomic {
    /// Returns the word after the operation on `word`.
    pub fn apply(self, word: u64) -> u64 {
        match self {
            Self::FetchAdd(value) => word.wrapping_add(value),
            Self::CompareSwap { expected, new } if word == expected => new,
            Self::CompareSwap { .. } => word,
            Self::Swap(value) => value,
            Self::MaskedStore { mask, value } => word & !mask | value & mask,
        }
    }
}

/// A one-sided operation on a place of the peer's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Writes bytes.
    Put(Vec<u8>),
    /// Applies a diff ([`crate::protocol::diff`]).
    PutDiff(Vec<u8>),
    /// Reads this number of bytes.
    Get(u16),
    /// Changes a word. Its offset must be a multiple of eight.
    Atomic(Atomic),
}

impl Operation {
    /// Returns whether the operation only writes: its answer has no bytes.
    pub(crate) fn is_put(&self) -> bool {
        matches!(self, Self::Put(_) | Self::PutDiff(_))
    }

    /// Returns the bytes of its payload or operands.
    pub(crate) fn payload_bytes(&self) -> usize {
        match self {
            Self::Put(bytes) | Self::PutDiff(bytes) => bytes.len(),
            Self::Get(_) => 0,
            Self::Atomic(_) => 16,
        }
    }
}

/// Reason why the peer refused a message or an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Refused {
    /// The peer has no region of this number, or it has another key.
    #[error("no such region at the peer, or another key")]
    Region = 1,
    /// The place lies outside the region.
    #[error("the place lies outside the region")]
    Bounds = 2,
    /// The offset of an atomic operation is not a multiple of eight.
    #[error("the offset of an atomic operation is not a multiple of 8")]
    Alignment = 3,
    /// The diff ends within a run.
    #[error("the diff ends within a run")]
    Diff = 4,
}

impl Refused {
    pub(crate) fn from_wire(value: u8) -> Option<Self> {
        [Self::Region, Self::Bounds, Self::Alignment, Self::Diff]
            .into_iter()
            .find(|reason| *reason as u8 == value)
    }
}

/// Memory of this side that peers may access.
///
/// The core checks keys, bounds and alignment before it calls a method that accesses memory.
pub trait Regions {
    /// Returns the length of a region in bytes, if `key` is its key.
    fn length(&self, region: u32, key: &RegionKey) -> Option<u64>;
    /// Writes `bytes` at `offset`.
    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]);
    /// Reads `out.len()` bytes at `offset`.
    fn read(&self, region: u32, offset: u64, out: &mut [u8]);
    /// Executes an atomic operation at `offset`, and returns the word before it.
    fn update(&mut self, region: u32, offset: u64, atomic: Atomic) -> u64;
}

/// Checks that `bytes` bytes at `place` are in one of the `regions`.
///
/// # Errors
/// There is no such region, its key is another one, or it is shorter.
pub fn check_place(regions: &dyn Regions, place: &Place, bytes: u64) -> Result<(), Refused> {
    let length = regions
        .length(place.region, &place.key)
        .ok_or(Refused::Region)?;
    let end = place.offset.checked_add(bytes).ok_or(Refused::Bounds)?;
    if end > length {
        return Err(Refused::Bounds);
    }
    Ok(())
}

/// Writes `data` at `place`.
///
/// # Errors
/// The place is not in a region, or not all of the data fits it.
pub fn place_bytes(regions: &mut dyn Regions, at: &Place, data: &[u8]) -> Result<(), Refused> {
    place(regions, at, data, false)
}

/// Writes plain data or a diff at `place`. A diff is checked as a whole before its first byte is
/// written.
pub(crate) fn place(
    regions: &mut dyn Regions,
    place: &Place,
    data: &[u8],
    is_diff: bool,
) -> Result<(), Refused> {
    if !is_diff {
        check_place(regions, place, data.len() as u64)?;
        regions.write(place.region, place.offset, data);
        return Ok(());
    }
    check_place(regions, place, 0)?;
    for run in crate::protocol::diff::runs(data) {
        let (offset, bytes) = run.map_err(|_| Refused::Diff)?;
        check_place(regions, &place.plus(offset.into()), bytes.len() as u64)?;
    }
    for (offset, bytes) in crate::protocol::diff::runs(data).flatten() {
        regions.write(place.region, place.offset + u64::from(offset), bytes);
    }
    Ok(())
}
