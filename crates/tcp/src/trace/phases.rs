//! Names of the phases that processes of `kumi run` are in.

use crate::layout::printable;
use crate::ranks::NAMES_AT;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a name in the page, its NUL with it (`KUMI_PHASE_NAME_BYTES`).
const NAME_BYTES: usize = 64;
/// Phases a page has room for (`KUMI_PHASES_MAX`).
const PHASES_MAX: u32 = 32;

/// Connections whose names are kept; beyond, all are looked up again.
const CONNECTIONS_MAX: usize = 65_536;

/// The names, each looked up once for a connection: its process may be gone before its last event is read.
#[derive(Debug)]
pub struct Names {
    pages: MapHandle,
    /// By connection, then by phase; none where the phase has no name.
    known: HashMap<u64, HashMap<u32, Option<Arc<str>>>>,
}

impl Names {
    /// Of the pages in this map of maps.
    pub fn of(pages: MapHandle) -> Self {
        Self {
            pages,
            known: HashMap::new(),
        }
    }

    /// The name of phase `phase` of process `rank`, as connection `cookie` met it.
    pub fn name(&mut self, cookie: u64, rank: u32, phase: u32) -> Option<Arc<str>> {
        if rank == 0 {
            return None;
        }
        // The number is the program's own, and may be nonsense.
        let phase = phase.min(PHASES_MAX - 1);
        if let Some(known) = self.known.get(&cookie).and_then(|of| of.get(&phase)) {
            return known.clone();
        }
        if self.known.len() >= CONNECTIONS_MAX {
            self.known.clear();
        }
        let name = self.look_up(rank, phase);
        let of_connection = self.known.entry(cookie).or_default();
        of_connection.insert(phase, name.clone());
        name
    }

    /// Forgets a connection: it is closed.
    pub fn forget(&mut self, cookie: u64) {
        self.known.remove(&cookie);
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

/// The name of a phase in a page's bytes, if it has one.
fn name_in(page: &[u8], phase: u32) -> Option<Arc<str>> {
    let at = NAMES_AT + phase as usize * NAME_BYTES;
    let name = page
        .get(at..at + NAME_BYTES)?
        .split(|byte| *byte == 0)
        .next()?;
    let name = printable(name);
    (!name.is_empty()).then(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_in__page__ends_at_its_nul() {
        let mut page = vec![0; 4096];
        page[NAMES_AT + NAME_BYTES..][..12].copy_from_slice(b"MPI_Alltoall");
        assert_eq!(name_in(&page, 1).as_deref(), Some("MPI_Alltoall"));
        assert_eq!(name_in(&page, 2), None);
        // A number that the page has no room for, and a page that is none.
        assert_eq!(name_in(&page, 64), None);
        assert_eq!(name_in(&page[..100], 1), None);
    }
}
