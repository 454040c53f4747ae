//! C interface of Wind: regions and one-sided operations.

use super::super::write_message;
use super::{Failure, borrowed, copied, finish};
use kumi_wind::{Atomic, Node, PeerId, Place, Region};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// C layout of `struct kumi_wind_place`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CPlace {
    offset: u64,
    region: u32,
    reserved: u32,
    key: [u8; 16],
}

const _: () = assert!(size_of::<CPlace>() == 32);

impl From<Place> for CPlace {
    fn from(place: Place) -> Self {
        Self {
            offset: place.offset,
            region: place.region,
            reserved: 0,
            key: place.key,
        }
    }
}

impl From<CPlace> for Place {
    fn from(place: CPlace) -> Self {
        Self {
            region: place.region,
            key: place.key,
            offset: place.offset,
        }
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` writable, and `error` has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_region_new(
    node: *const Node,
    bytes: usize,
    place: *mut CPlace,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Region {
    // SAFETY: the caller guarantees it.
    match unsafe { &*node }.register(bytes) {
        Ok(region) => {
            // SAFETY: the caller guarantees it.
            unsafe { place.write(region.place(0).into()) };
            Box::into_raw(Box::new(region))
        }
        Err(failure) => {
            // SAFETY: the caller guarantees the room.
            unsafe { write_message(&failure, error, error_bytes) };
            ptr::null_mut()
        }
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `region` is a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_region_memory(region: *const Region) -> *mut c_void {
    // SAFETY: the caller guarantees it.
    unsafe { &*region }.memory().as_ptr().cast()
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is the region's node, and `region` null or a region, which is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_region_free(node: *const Node, region: *mut Region) {
    if region.is_null() {
        return;
    }
    // SAFETY: the caller guarantees both.
    let (node, region) = unsafe { (&*node, Box::from_raw(region)) };
    node.deregister(&region);
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` a place, `data` has `bytes` bytes, and `error` room for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_put(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    data: *const u8,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees all of them.
    let (node, place, data) = unsafe { (&*node, (*place).into(), copied(data, bytes)) };
    let result = node.put(PeerId(peer), place, &data).map_err(Failure::from);
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result, error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` a place, `data` and `notice` have their lengths, and `error` has room
/// for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_put_and_notify(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    data: *const u8,
    bytes: usize,
    notice: *const u8,
    notice_bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees all of them.
    let (node, place, data) = unsafe { (&*node, (*place).into(), copied(data, bytes)) };
    // SAFETY: the caller guarantees it.
    let notice = unsafe { copied(notice, notice_bytes) };
    let result = node.put_and_notify(PeerId(peer), place, &data, notice);
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result.map_err(Failure::from), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `peers` and `places` have `count` entries, `data` has `bytes` bytes, and
/// `error` room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_put_to_all(
    node: *const Node,
    peers: *const u32,
    places: *const CPlace,
    count: usize,
    data: *const u8,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees all of them.
    let (node, data) = unsafe { (&*node, copied(data, bytes)) };
    let targets: Vec<(PeerId, Place)> = (0..count)
        // SAFETY: the caller guarantees `count` entries of both.
        .map(|index| unsafe { (PeerId(*peers.add(index)), (*places.add(index)).into()) })
        .collect();
    let result = node.put_to_all(&targets, &data).map_err(Failure::from);
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result, error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` a place, `twin` and `now` have `bytes` bytes, and `error` room for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_put_diff(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    twin: *const u8,
    now: *const u8,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees all of them.
    let (node, place, twin, now) = unsafe {
        let (twin, now) = (borrowed(twin, bytes), borrowed(now, bytes));
        (&*node, (*place).into(), twin, now)
    };
    let result = node.put_diff(PeerId(peer), place, twin, now);
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result.map_err(Failure::from), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` a place, `data` has room for `bytes` bytes, and `error` for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_get(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    data: *mut u8,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees both.
    let (node, place) = unsafe { (&*node, (*place).into()) };
    let result = node.get(PeerId(peer), place, bytes).map(|read| {
        // SAFETY: the caller guarantees room for `bytes`, which is the length of the result.
        unsafe { ptr::copy_nonoverlapping(read.as_ptr(), data, read.len().min(bytes)) };
    });
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result.map_err(Failure::from), error, error_bytes) }
}

/// # Safety
/// `node` is a node, `place` a place, `before` null or writable, and `error` has room for
/// `error_bytes`.
unsafe fn atomic(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    atomic: Atomic,
    before: *mut u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees both.
    let (node, place) = unsafe { (&*node, (*place).into()) };
    let result = node.atomic(PeerId(peer), place, atomic).map(|word| {
        // SAFETY: the caller guarantees it.
        if let Some(before) = unsafe { before.as_mut() } {
            *before = word;
        }
    });
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result.map_err(Failure::from), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// As [`atomic`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_fetch_add(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    value: u64,
    before: *mut u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let add = Atomic::FetchAdd(value);
    // SAFETY: the caller guarantees what `atomic` requires.
    unsafe { atomic(node, peer, place, add, before, error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// As [`atomic`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_compare_swap(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    expected: u64,
    value: u64,
    before: *mut u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let swap = Atomic::CompareSwap {
        expected,
        new: value,
    };
    // SAFETY: the caller guarantees what `atomic` requires.
    unsafe { atomic(node, peer, place, swap, before, error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// As [`atomic`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_swap(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    value: u64,
    before: *mut u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let swap = Atomic::Swap(value);
    // SAFETY: the caller guarantees what `atomic` requires.
    unsafe { atomic(node, peer, place, swap, before, error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// As [`atomic`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_masked_store(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    mask: u64,
    value: u64,
    before: *mut u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let store = Atomic::MaskedStore { mask, value };
    // SAFETY: the caller guarantees what `atomic` requires.
    unsafe { atomic(node, peer, place, store, before, error, error_bytes) }
}
