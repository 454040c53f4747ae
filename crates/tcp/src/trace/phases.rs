//! Names of the phases of `kumi run` processes.

use crate::layout::to_printable;
use crate::processes::NAMES_OFFSET;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::sync::Arc;

/// Size of a name in the page, with its NUL, in bytes (`KUMI_PHASE_NAME_BYTES`).
const NAME_BYTES: usize = 64;
/// Most phases of a page (`KUMI_PHASES_MAX`).
const PHASES_MAX: u32 = 32;

/// Most connections whose names are kept. Beyond that, all names are looked up again.
const CONNECTIONS_MAX: usize = 65_536;

/// Phase names, each looked up once per connection. The process may have ended before its last
/// event is read.
#[derive(Debug)]
pub struct Names {
    pages: MapHandle,
    /// By connection, then by phase; `None` for a phase without a name.
    cache: HashMap<u64, HashMap<u32, Option<Arc<str>>>>,
}

impl Names {
    /// Reads the names from the pages in this map of maps.
    pub fn new(pages: MapHandle) -> Self {
        Self {
            pages,
            cache: HashMap::new(),
        }
    }

    /// Returns the name of phase `phase` of process `rank`, for connection `cookie`.
    pub fn name(&mut self, cookie: u64, rank: u32, phase: u32) -> Option<Arc<str>> {
        if rank == 0 {
            return None;
        }
        // The program writes the number, which can be any value.
        let phase = phase.min(PHASES_MAX - 1);
        if let Some(name) = self.cache.get(&cookie).and_then(|names| names.get(&phase)) {
            return name.clone();
        }
        if self.cache.len() >= CONNECTIONS_MAX {
            self.cache.clear();
        }
        let name = self.look_up(rank, phase);
        let names = self.cache.entry(cookie).or_default();
        names.insert(phase, name.clone());
        name
    }

    /// Forgets a closed connection.
    pub fn forget(&mut self, cookie: u64) {
        self.cache.remove(&cookie);
    }

    fn look_up(&self, rank: u32, phase: u32) -> Option<Arc<str>> {
        let id = self
            .pages
            .lookup(&rank.to_ne_bytes(), MapFlags::ANY)
            .ok()??;
        let id = u32::from_ne_bytes(id.try_into().ok()?);
        let page = MapHandle::from_map_id(id).ok()?;
        let page = page.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        name_in(&page, phase)
    }
}

/// Returns the name of a phase in a page, if it has one.
fn name_in(page: &[u8], phase: u32) -> Option<Arc<str>> {
    let offset = NAMES_OFFSET + phase as usize * NAME_BYTES;
    let name = page
        .get(offset..offset + NAME_BYTES)?
        .split(|byte| *byte == 0)
        .next()?;
    let name = to_printable(name);
    (!name.is_empty()).then(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_in__padded_name__ends_at_the_nul() {
        let mut page = vec![0; 4096];
        page[NAMES_OFFSET + NAME_BYTES..][..12].copy_from_slice(b"MPI_Alltoall");
        assert_eq!(name_in(&page, 1).as_deref(), Some("MPI_Alltoall"));
        assert_eq!(name_in(&page, 2), None);
        // A number beyond the page's phases, and a page of the wrong size.
        assert_eq!(name_in(&page, 64), None);
        assert_eq!(name_in(&page[..100], 1), None);
    }
}
