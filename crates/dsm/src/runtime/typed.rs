//! Shared memory as elements of a type, between two synchronisations.
//!
//! A [`Slice`] borrows the [`Epoch`] in which it was made, and a barrier or a lock ends the epoch.
//! So a program that would use what it has read before a barrier after it does not compile:
//!
//! ```compile_fail,E0502
//! # fn example(mut epoch: kumi_dsm::runtime::Epoch, region: kumi_dsm::runtime::SharedRegion) {
//! let numbers = epoch.slice::<f64>(&region).unwrap();
//! epoch.barrier().unwrap();
//! numbers.get(0);
//! # }
//! ```
//!
//! ```no_run
//! # fn example(
//! #     mut epoch: kumi_dsm::runtime::Epoch,
//! #     region: kumi_dsm::runtime::SharedRegion,
//! # ) -> Result<(), kumi_dsm::coherence::DsmError> {
//! let node = epoch.node();
//! epoch.slice::<f64>(&region)?.set(node, 0.5);
//! epoch.barrier()?;
//! let sum: f64 = epoch.slice::<f64>(&region)?.iter().sum();
//! let mut locked = epoch.lock(1)?;
//! let total = locked.slice::<f64>(&region)?;
//! total.set(9, total.get(9) + sum);
//! locked.unlock()?;
//! # Ok(())
//! # }
//! ```

use super::{Dsm, Recovery, SharedRegion};
use crate::coherence::DsmError;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

/// Number that shared memory holds in this machine's byte order, so all nodes have the same one.
pub trait Element: Copy + private::Sealed {
    /// Length in bytes.
    const BYTES: usize;

    /// Reads it from the first bytes of a buffer.
    fn from_bytes(bytes: [u8; 8]) -> Self;

    /// Writes it to the first bytes of a buffer.
    fn to_bytes(self) -> [u8; 8];
}

mod private {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($number:ident),*) => {$(
        impl private::Sealed for $number {}

        impl Element for $number {
            const BYTES: usize = size_of::<Self>();

            fn from_bytes(bytes: [u8; 8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(&bytes[..size_of::<Self>()]);
                Self::from_ne_bytes(own)
            }

            fn to_bytes(self) -> [u8; 8] {
                let mut bytes = [0; 8];
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_ne_bytes());
                bytes
            }
        }
    )*};
}

elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Time between two synchronisations of this node. One thread has it.
pub struct Epoch {
    dsm: Dsm,
}

impl Epoch {
    pub(super) fn new(dsm: Dsm) -> Self {
        Self { dsm }
    }

    /// Returns the number of this node.
    pub fn node(&self) -> usize {
        self.dsm.node()
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.dsm.nodes()
    }

    /// Returns the elements of a region, until the next synchronisation.
    ///
    /// # Errors
    /// The region's length is no multiple of an element's.
    pub fn slice<T: Element>(&self, region: &SharedRegion) -> Result<Slice<'_, T>, DsmError> {
        if region.bytes() % T::BYTES != 0 {
            return Err(DsmError::Argument(format!(
                "a region of {} bytes as elements of {}: expected a multiple",
                region.bytes(),
                T::BYTES
            )));
        }
        Ok(Slice {
            region: region.clone(),
            elements: 0..region.bytes() / T::BYTES,
            epoch: PhantomData,
        })
    }

    /// Waits until all nodes have called it, and begins the next epoch.
    ///
    /// # Errors
    /// As [`Dsm::barrier`].
    pub fn barrier(&mut self) -> Result<(), DsmError> {
        self.dsm.barrier()
    }

    /// Goes on without lost nodes, and begins the next epoch.
    ///
    /// # Errors
    /// As [`Dsm::recover`].
    pub fn recover(&mut self) -> Result<Recovery, DsmError> {
        self.dsm.recover()
    }

    /// Returns the nodes that are left, in order: all, until a recovery.
    pub fn left(&self) -> Vec<usize> {
        self.dsm.left()
    }

    /// Takes a lock, until the guard is dropped or [`Locked::unlock`] is called.
    ///
    /// # Errors
    /// As [`Dsm::lock`].
    pub fn lock(&mut self, lock: u32) -> Result<Locked<'_>, DsmError> {
        self.dsm.lock(lock)?;
        Ok(Locked {
            epoch: self,
            lock: Some(lock),
        })
    }
}

/// A lock that this node holds.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Locked<'e> {
    epoch: &'e mut Epoch,
    lock: Option<u32>,
}

impl Locked<'_> {
    /// Releases the lock.
    ///
    /// # Errors
    /// As [`Dsm::unlock`].
    pub fn unlock(mut self) -> Result<(), DsmError> {
        match self.lock.take() {
            Some(lock) => self.epoch.dsm.unlock(lock),
            None => Ok(()),
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take() {
            // The next call of this node reports a node that is lost.
            let _ = self.epoch.dsm.unlock(lock);
        }
    }
}

impl Deref for Locked<'_> {
    type Target = Epoch;

    fn deref(&self) -> &Epoch {
        self.epoch
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Epoch {
        self.epoch
    }
}

/// Elements of a region in an epoch. An access makes its page valid.
///
/// Different nodes may set different elements in the same epoch. If one sets an element that
/// another one uses in the same epoch, and no lock orders them, either value may be seen.
pub struct Slice<'e, T> {
    region: SharedRegion,
    /// Elements of the region.
    elements: Range<usize>,
    epoch: PhantomData<(&'e Epoch, T)>,
}

impl<'e, T: Element> Slice<'e, T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    fn offset(&self, index: usize) -> usize {
        assert!(
            index < self.len(),
            "element {index} of {}: out of range",
            self.len()
        );
        (self.elements.start + index) * T::BYTES
    }

    /// Returns an element.
    ///
    /// # Panics
    /// Panics if it is out of range.
    pub fn get(&self, index: usize) -> T {
        let mut bytes = [0; 8];
        let offset = self.offset(index);
        self.region.memory().read(offset, &mut bytes[..T::BYTES]);
        T::from_bytes(bytes)
    }

    /// Sets an element.
    ///
    /// # Panics
    /// Panics if it is out of range.
    pub fn set(&self, index: usize, value: T) {
        let offset = self.offset(index);
        let bytes = value.to_bytes();
        self.region.memory().write(offset, &bytes[..T::BYTES]);
    }

    /// Returns the elements in turn.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Returns a part of the elements.
    ///
    /// # Panics
    /// Panics if it is out of range.
    pub fn part(&self, elements: Range<usize>) -> Slice<'e, T> {
        let (start, end) = (elements.start, elements.end);
        assert!(
            start <= end && end <= self.len(),
            "elements {start} to {end} of {}: out of range",
            self.len()
        );
        Slice {
            region: self.region.clone(),
            elements: self.elements.start + start..self.elements.start + end,
            epoch: PhantomData,
        }
    }

    /// Makes the elements' pages valid, with fewer messages than accesses would need.
    ///
    /// # Errors
    /// A node is lost.
    pub fn prefetch(&self) -> Result<(), DsmError> {
        let bytes = self.elements.start * T::BYTES..self.elements.end * T::BYTES;
        self.region.prefetch(bytes)
    }
}
