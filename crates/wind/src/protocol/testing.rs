//! Memory for tests.

use crate::protocol::model::{Atomic, RegionKey, Regions};

/// Key of region 0.
pub const KEY: RegionKey = [7; 16];

/// A region, number 0.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Memory {
    /// Creates a region of zeros.
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes],
        }
    }
}

impl Regions for Memory {
    fn length(&self, region: u32, key: &RegionKey) -> Option<u64> {
        (region == 0 && *key == KEY).then_some(self.bytes.len() as u64)
    }

    fn write(&mut self, _: u32, offset: u64, bytes: &[u8]) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, _: u32, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[offset as usize..][..out.len()]);
    }

    fn update(&mut self, _: u32, offset: u64, atomic: Atomic) -> u64 {
        let place = &mut self.bytes[offset as usize..][..8];
        let word = u64::from_ne_bytes((&*place).try_into().expect("eight bytes"));
        place.copy_from_slice(&atomic.apply(word).to_ne_bytes());
        word
    }
}
