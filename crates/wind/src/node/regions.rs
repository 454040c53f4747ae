//! Regions: memory of this process that peers may access.

use crate::kernel::KERNEL_REGION;
use crate::protocol::{Atomic, Place, RegionKey, Regions};
use kumi_sys::shared_memory::SharedMemory;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A region. Peers that have its place may read and write it at any time.
#[derive(Debug, Clone)]
pub struct Region {
    number: u32,
    key: RegionKey,
    memory: Arc<SharedMemory>,
}

impl Region {
    /// Returns the memory.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns the number by which peers name the region.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether the kernel accesses the region for peers.
    pub fn is_in_kernel(&self) -> bool {
        self.number & KERNEL_REGION != 0
    }

    /// Returns the place at `offset`, with the key: whoever has it may access the region.
    pub fn place(&self, offset: u64) -> Place {
        Place {
            region: self.number,
            key: self.key,
            offset,
        }
    }
}

/// The regions of a node.
#[derive(Debug, Default)]
pub struct RegionTable {
    regions: HashMap<u32, (RegionKey, Arc<SharedMemory>)>,
    next: u32,
}

impl RegionTable {
    /// Registers `memory` under a random key.
    pub fn register(&mut self, memory: Arc<SharedMemory>, key: RegionKey) -> Region {
        while self.regions.contains_key(&self.next) {
            self.next = (self.next + 1) % KERNEL_REGION;
        }
        let number = self.next;
        // Numbers above are those of the kernel.
        self.next = (self.next + 1) % KERNEL_REGION;
        self.insert(number, memory, key)
    }

    /// Registers `memory` under a number and key of the program's choice. Returns `None` if the
    /// number is in use.
    pub fn register_as(
        &mut self,
        number: u32,
        memory: Arc<SharedMemory>,
        key: RegionKey,
    ) -> Option<Region> {
        match self.regions.contains_key(&number) {
            true => None,
            false => Some(self.insert(number, memory, key)),
        }
    }

    /// Registers `memory` as region `number`.
    pub fn insert(&mut self, number: u32, memory: Arc<SharedMemory>, key: RegionKey) -> Region {
        self.regions.insert(number, (key, Arc::clone(&memory)));
        Region {
            number,
            key,
            memory,
        }
    }

    /// Returns the number of regions.
    pub fn count(&self) -> usize {
        self.regions.len()
    }

    /// Ends the access of peers to a region. Returns false for one that is not registered.
    pub fn remove(&mut self, number: u32) -> bool {
        self.regions.remove(&number).is_some()
    }
}

/// Compares two keys in a time that does not depend on where they differ.
fn is_equal(a: &RegionKey, b: &RegionKey) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

impl Regions for RegionTable {
    fn length(&self, region: u32, key: &RegionKey) -> Option<u64> {
        let (own, memory) = self.regions.get(&region)?;
        is_equal(own, key).then_some(memory.bytes() as u64)
    }

    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        if let Some((_, memory)) = self.regions.get(&region) {
            memory.write(offset as usize, bytes);
        }
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) {
        if let Some((_, memory)) = self.regions.get(&region) {
            memory.read(offset as usize, out);
        }
    }

    fn update(&mut self, region: u32, offset: u64, atomic: Atomic) -> u64 {
        let Some((_, memory)) = self.regions.get(&region) else {
            return 0;
        };
        // The program may change the word meanwhile.
        let word = memory.word(offset as usize);
        let apply = |before| Some(atomic.apply(before));
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, apply)
            .unwrap_or_else(|before| before)
    }
}
