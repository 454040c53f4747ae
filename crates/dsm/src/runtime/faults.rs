//! Accesses to closed pages: which region has the address, and who makes the page valid.

use super::Shared;
use crate::coherence::DsmError;
use kumi_sys::faults::handle;
use kumi_sys::tracked_memory::Need;
use std::io;
use std::sync::{PoisonError, RwLock, Weak};

/// Regions of this process. The lock is held for moments in which no thread accesses a page.
static REGIONS: RwLock<Vec<Weak<Shared>>> = RwLock::new(Vec::new());

/// Handles accesses to the region from now on, until it is dropped.
pub fn watch(region: Weak<Shared>) -> io::Result<()> {
    handle(on_access)?;
    let mut regions = REGIONS.write().unwrap_or_else(PoisonError::into_inner);
    regions.retain(|known| known.strong_count() > 0);
    regions.push(region);
    Ok(())
}

/// Runs in a signal handler, on the thread that made the access.
fn on_access(address: usize) -> bool {
    let regions = REGIONS.read().unwrap_or_else(PoisonError::into_inner);
    let found = regions.iter().find_map(|region| {
        let region = region.upgrade()?;
        let page = region.region.view().page_of(address)?;
        Some((region, page))
    });
    drop(regions);
    let Some((shared, page)) = found else {
        return false;
    };
    let outcome = match shared.region.view().on_fault(page) {
        Need::Nothing => Ok(()),
        Need::Content => shared.job.member.fault(&shared.region, page),
        Need::Mappings => Err(DsmError::Argument(
            "too many pages in different states for this kernel: raise vm.max_map_count".to_owned(),
        )),
    };
    if let Err(error) = outcome {
        // The access can neither go on nor return an error. Standard error may be locked.
        let text = format!("kumi: cannot read page {page} of shared memory: {error}\n");
        let _ = nix::unistd::write(io::stderr(), text.as_bytes());
        std::process::abort();
    }
    true
}
