//! C interface of shared memory. `bindings/c/kumi_dsm.h` documents the functions.

use super::group::{CConfig, config};
use super::ranks::{copied_cards, kumi_ranks_listen};
use super::version::SizedStruct;
use super::write_message;
use crate::group::{CARD_BYTES, Environment, GroupError, Listening, RANKS_MAX};
use crate::shared_memory::{JoinError, from_environment, join};
use kumi_dsm::coherence::DsmError;
use kumi_dsm::protocol::{Placement, Updates};
use kumi_dsm::runtime::{Dsm, SharedRegion};
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// A node with its regions.
pub struct CDsm {
    dsm: Dsm,
    regions: Mutex<Vec<SharedRegion>>,
}

impl CDsm {
    fn into_pointer(dsm: Dsm) -> *mut Self {
        Box::into_raw(Box::new(Self {
            dsm,
            regions: Mutex::new(Vec::new()),
        }))
    }
}

/// Returns the `enum kumi_dsm_outcome`.
fn number(error: &DsmError) -> c_int {
    match error {
        DsmError::Lost { .. } => 1,
        DsmError::Mismatch(_) => 2,
        DsmError::Violation(_) | DsmError::Argument(_) => 3,
        DsmError::System { .. } => 4,
        DsmError::PagesLost { .. } | DsmError::Minority { .. } => 5,
    }
}

/// # Safety
/// The requirements of [`write_message`] hold.
unsafe fn finish(result: Result<(), DsmError>, error: *mut c_char, error_bytes: usize) -> c_int {
    match result {
        Ok(()) => 0,
        Err(failure) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&failure, error, error_bytes) };
            number(&failure)
        }
    }
}

/// # Safety
/// The requirements of [`write_message`] hold.
unsafe fn into_pointer(
    dsm: Result<Dsm, JoinError>,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut CDsm {
    match dsm {
        Ok(dsm) => CDsm::into_pointer(dsm),
        Err(failure) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&failure, error, error_bytes) };
            ptr::null_mut()
        }
    }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `settings` is as `kumi_group.h` requires. The requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_from_environment(
    settings: *const CConfig,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut CDsm {
    let start = || {
        // SAFETY: the caller guarantees it.
        let config = unsafe { config(settings) }?;
        let environment = Environment::read(|name| std::env::var(name).ok());
        from_environment(config, &environment.map_err(GroupError::Argument)?)
    };
    // SAFETY: the caller guarantees it.
    unsafe { into_pointer(start(), error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// As [`kumi_dsm_from_environment`], and `card` has room for `KUMI_CARD_BYTES`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_listen(
    settings: *const CConfig,
    card: *mut [u8; CARD_BYTES],
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Listening {
    // SAFETY: the requirements are the same.
    unsafe { kumi_ranks_listen(settings, card, error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `listening` comes from [`kumi_dsm_listen`] and is not used again. `cards` has `nodes` cards. The
/// requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_join(
    listening: *mut Listening,
    node: c_int,
    nodes: c_int,
    cards: *const [u8; CARD_BYTES],
    error: *mut c_char,
    error_bytes: usize,
) -> *mut CDsm {
    // SAFETY: the caller guarantees it.
    let listening = *unsafe { Box::from_raw(listening) };
    let count = usize::try_from(nodes)
        .ok()
        .filter(|count| *count <= RANKS_MAX);
    let dsm = match (usize::try_from(node), count) {
        (Ok(node), Some(count)) if node < count => {
            // SAFETY: the caller guarantees the cards.
            let cards = unsafe { copied_cards(cards, count) };
            join(listening, node, &cards)
        }
        _ => Err(JoinError::Dsm(DsmError::Argument(format!(
            "node {node} of {nodes}: expected a number below the number of nodes, which is at most {RANKS_MAX}"
        )))),
    };
    // SAFETY: the caller guarantees it.
    unsafe { into_pointer(dsm, error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` is null, or comes from a function above and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_free(dsm: *mut CDsm) {
    if !dsm.is_null() {
        // SAFETY: the caller guarantees that `Box::into_raw` made it.
        drop(unsafe { Box::from_raw(dsm) });
    }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` comes from a function above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_node(dsm: *const CDsm) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { &*dsm }.dsm.node() as c_int
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` comes from a function above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_nodes(dsm: *const CDsm) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { &*dsm }.dsm.nodes() as c_int
}

/// C layout of `struct kumi_dsm_recovery`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CRecovery {
    size: usize,
    barriers: u64,
    left: c_int,
    place: c_int,
}

const _: () = assert!(size_of::<CRecovery>() == 24);

// SAFETY: its first member is its size, and all members may be zero.
unsafe impl SizedStruct for CRecovery {
    const NAME: &'static str = "kumi_dsm_recovery";
    const SIZE_MIN: usize = 24;
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` comes from a function above. The requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_keep_replicas(
    dsm: *const CDsm,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees both.
    unsafe { finish((*dsm).dsm.keep_replicas(), error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` comes from a function above. `recovery` is null or valid for its `size`. The requirements
/// of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_recover(
    dsm: *const CDsm,
    recovery: *mut CRecovery,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let dsm = unsafe { &(*dsm).dsm };
    let recover = || {
        if !recovery.is_null() {
            // SAFETY: the caller guarantees it.
            let read = unsafe { CRecovery::read(recovery) };
            read.map_err(|error| DsmError::Argument(error.to_string()))?;
        }
        let recovered = dsm.recover()?;
        if !recovery.is_null() {
            let place = recovered.left.iter().position(|node| *node == dsm.node());
            // SAFETY: its size, which was checked, includes these members.
            unsafe {
                (*recovery).barriers = recovered.barriers;
                (*recovery).left = recovered.left.len() as c_int;
                (*recovery).place = place.map_or(-1, |place| place as c_int);
            }
        }
        Ok(())
    };
    // SAFETY: the caller guarantees it.
    unsafe { finish(recover(), error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` comes from a function above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_is_left(dsm: *const CDsm, node: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    let left = unsafe { &*dsm }.dsm.left();
    c_int::from(usize::try_from(node).is_ok_and(|node| left.contains(&node)))
}

/// Keeps an allocated region, and returns its address.
///
/// # Safety
/// The requirements of [`write_message`] hold.
unsafe fn keep(
    dsm: &CDsm,
    allocated: Result<SharedRegion, DsmError>,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut c_void {
    match allocated {
        Ok(region) => {
            let at = region.memory().as_ptr();
            let mut regions = dsm.regions.lock().unwrap_or_else(PoisonError::into_inner);
            regions.push(region);
            at.cast()
        }
        Err(failure) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&failure, error, error_bytes) };
            ptr::null_mut()
        }
    }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` comes from a function above. The requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_alloc(
    dsm: *const CDsm,
    bytes: usize,
    placement: c_int,
    parameter: u32,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut c_void {
    // SAFETY: the caller guarantees it.
    let dsm = unsafe { &*dsm };
    let rule = u8::try_from(placement).ok();
    let rule = rule.and_then(|number| Placement::from_wire(number, parameter));
    let invalid = || {
        DsmError::Argument(format!(
            "invalid placement {placement} with parameter {parameter}: expected 0 (blocks), 1 (cyclic) or 2 (on a node)"
        ))
    };
    let allocated = rule.ok_or_else(invalid);
    let allocated = allocated.and_then(|placement| dsm.dsm.alloc(bytes, placement));
    // SAFETY: the caller guarantees it.
    unsafe { keep(dsm, allocated, error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// As [`kumi_dsm_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_alloc_updated(
    dsm: *const CDsm,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut c_void {
    // SAFETY: the caller guarantees it.
    let dsm = unsafe { &*dsm };
    let allocated = dsm
        .dsm
        .alloc_with(bytes, Placement::Blocks, Updates::AtBarriers);
    // SAFETY: the caller guarantees it.
    unsafe { keep(dsm, allocated, error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` comes from a function above. The requirements of [`write_message`] hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_barrier(
    dsm: *const CDsm,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees both.
    unsafe { finish((*dsm).dsm.barrier(), error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// As [`kumi_dsm_barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_lock(
    dsm: *const CDsm,
    lock: u32,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees both.
    unsafe { finish((*dsm).dsm.lock(lock), error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// As [`kumi_dsm_barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_unlock(
    dsm: *const CDsm,
    lock: u32,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees both.
    unsafe { finish((*dsm).dsm.unlock(lock), error, error_bytes) }
}

/// Calls `with` with the region and the bytes that `at` and `bytes` mean.
///
/// # Safety
/// As [`kumi_dsm_barrier`].
unsafe fn with_bytes(
    dsm: *const CDsm,
    at: *const c_void,
    bytes: usize,
    (error, error_bytes): (*mut c_char, usize),
    with: impl Fn(&SharedRegion, Range<usize>) -> Result<(), DsmError>,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let regions = unsafe { &*dsm }.regions.lock();
    let regions = regions.unwrap_or_else(PoisonError::into_inner).clone();
    let found = regions.iter().find_map(|region| {
        let offset = at.addr().checked_sub(region.address())?;
        (offset < region.bytes()).then_some((region, offset))
    });
    let result = match found {
        Some((region, offset)) => with(region, offset..offset.saturating_add(bytes)),
        None => Err(DsmError::Argument(format!(
            "{at:p} is not in shared memory"
        ))),
    };
    // SAFETY: the caller guarantees it.
    unsafe { finish(result, error, error_bytes) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// As [`kumi_dsm_barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_prefetch(
    dsm: *const CDsm,
    at: *const c_void,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { with_bytes(dsm, at, bytes, (error, error_bytes), SharedRegion::prefetch) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// As [`kumi_dsm_barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_pin(
    dsm: *const CDsm,
    at: *const c_void,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { with_bytes(dsm, at, bytes, (error, error_bytes), SharedRegion::pin) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// As [`kumi_dsm_barrier`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_unpin(
    dsm: *const CDsm,
    at: *const c_void,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { with_bytes(dsm, at, bytes, (error, error_bytes), SharedRegion::unpin) }
}

/// See `kumi_dsm.h`.
///
/// # Safety
/// `dsm` is a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_dsm_total(dsm: *const CDsm, total: c_int) -> u64 {
    // SAFETY: the caller guarantees it.
    let counts = unsafe { &*dsm }.dsm.counts();
    match total {
        0 => counts.misses,
        1 => counts.fetched_pages,
        2 => counts.diffed_pages,
        3 => counts.changed_bytes,
        4 => counts.diff_bytes,
        5 => counts.pushed_bytes,
        6 => counts.barriers,
        7 => counts.locks,
        8 => counts.messages,
        9 => counts.message_bytes,
        10 => counts.refreshed_pages,
        _ => 0,
    }
}
