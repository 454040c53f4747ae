//! C interface of Wind: calls that do not wait, memory that the caller owns, and the secret.

use super::memory::CPlace;
use super::{Failure, borrowed, class, copied, finish, limit};
use crate::c::{text, write_message};
use kumi_multilink::secure::{ClusterKey, parse_key_text};
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::{
    Atomic, LocalMemory, Message, Mode, Node, Operation, PeerId, Place, Region, Transfer,
};
use nix::libc::iovec;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

/// Outcome of a call that has to be repeated, `KUMI_WIND_BUSY`.
const BUSY: c_int = 6;

/// Longest number of parts of a message, as `IOV_MAX` of the kernel.
const PARTS_MAX: usize = 1024;

/// Returns the outcome of a call that may have to be repeated: `false` means busy.
///
/// # Safety
/// `error` is null or has room for `error_bytes`.
unsafe fn finish_poll(
    result: Result<bool, Failure>,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    match result {
        Ok(false) => BUSY,
        // SAFETY: the caller guarantees the room.
        result => unsafe { finish(result.map(|_| ()), error, error_bytes) },
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `path` is null or a string, `secret` has room for 32 bytes, and `error` for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_secret_read(
    path: *const c_char,
    secret: *mut [u8; 32],
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let read = || -> Result<(), Failure> {
        // SAFETY: the caller guarantees it.
        let path = unsafe { text(path) }.map_or("", |text| text.to_str().unwrap_or("?"));
        let contents = std::fs::read_to_string(path).map_err(|error| {
            Failure::Argument(format!(
                "cannot read cluster key {path}: {error}; create one with `kumi link keygen {path}` \
                 and copy it to every node"
            ))
        })?;
        let key = parse_key_text(contents.trim()).map_err(|reason| {
            Failure::Argument(format!(
                "invalid cluster key {path}: {reason}; expected 64 hexadecimal digits, as written \
                 by `kumi link keygen`"
            ))
        })?;
        // SAFETY: the caller guarantees the room.
        unsafe { secret.write(ClusterKey::from_bytes(key).wind_secret()) };
        Ok(())
    };
    // SAFETY: the caller guarantees the room.
    unsafe { finish(read(), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `secret` has 32 bytes, and `key` room for 16.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_region_key(
    secret: *const [u8; 32],
    number: u64,
    key: *mut [u8; 16],
) {
    // SAFETY: the caller guarantees both.
    unsafe { key.write(Node::derived_key(&*secret, number)) };
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `memory` has `bytes` bytes that stay until the region is freed, `place` is a
/// place, and `error` has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_region_borrow(
    node: *const Node,
    memory: *mut c_void,
    bytes: usize,
    place: *mut CPlace,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Region {
    // SAFETY: the caller guarantees both.
    let (node, wanted) = unsafe { (&*node, Place::from(*place)) };
    let borrow = || -> Result<Region, Failure> {
        let memory = memory.cast::<u8>();
        let before = memory.addr() % 8;
        let start = NonNull::new(memory.wrapping_sub(before));
        let start = start.ok_or_else(|| Failure::Argument("memory is NULL".into()))?;
        let bytes = bytes
            .checked_add(before)
            .filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes
            .ok_or_else(|| Failure::Argument("more bytes than an address space has".into()))?;
        // SAFETY: the caller guarantees the bytes. The few before them lie on the same page, and
        // no place that is made from this one has them.
        let memory = unsafe { SharedMemory::borrowed(start, bytes) };
        let number = wanted.region;
        let region = node.register_as(number, wanted.key, memory);
        let region = region.ok_or_else(|| {
            Failure::Argument(format!(
                "region {number} exists: expected a number that is not in use"
            ))
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { place.write(region.place(before as u64).into()) };
        Ok(region)
    };
    match borrow() {
        Ok(region) => Box::into_raw(Box::new(region)),
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
/// `node` is a node, `place` null or a place, `header` has `header_bytes`, `parts` has `count`
/// entries that describe readable memory, `message` is null or writable, and `error` has room for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_try_send(
    node: *const Node,
    peer: u32,
    class_number: c_int,
    place: *const CPlace,
    header: *const u8,
    header_bytes: usize,
    parts: *const iovec,
    count: usize,
    message: *mut u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let act = || -> Result<bool, Failure> {
        if count > PARTS_MAX {
            return Err(Failure::Argument(format!(
                "a message of {count} parts: expected at most {PARTS_MAX}"
            )));
        }
        // SAFETY: the caller guarantees all of them.
        let (node, place, header, data) = unsafe {
            let data = (0..count)
                .map(|at| {
                    let part = &*parts.add(at);
                    copied(part.iov_base.cast_const().cast(), part.iov_len)
                })
                .collect();
            let place = place.as_ref().map(|place| Place::from(*place));
            (&*node, place, copied(header, header_bytes), data)
        };
        let mode = match place {
            None => Mode::MessageThrough,
            Some(_) => Mode::HeaderThrough,
        };
        let sent = node.try_send(
            PeerId(peer),
            Message {
                class: class(class_number)?,
                mode,
                header,
                data,
                place,
            },
        )?;
        // SAFETY: the caller guarantees it.
        if let (Some(sent), Some(message)) = (sent, unsafe { message.as_mut() }) {
            *message = sent.number;
        }
        Ok(sent.is_some())
    };
    // SAFETY: the caller guarantees the room.
    unsafe { finish_poll(act(), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, and `error` has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_test_placed(
    node: *const Node,
    peer: u32,
    message: u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let result = unsafe { &*node }.is_placed(PeerId(peer), message);
    // SAFETY: the caller guarantees the room.
    unsafe { finish_poll(result.map_err(Failure::from), error, error_bytes) }
}

/// A transfer and the program's memory.
#[derive(Debug)]
pub struct CTransfer {
    transfer: Transfer,
    memory: *mut u8,
}

/// Memory of a transfer, for the time of a call.
struct Memory(*mut u8);

impl LocalMemory for Memory {
    fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: whoever started the transfer guarantees that its bytes are readable.
        unsafe { borrowed(self.0.wrapping_add(offset), bytes) }.to_vec()
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        // SAFETY: whoever started the transfer guarantees that its bytes are writable. A result has
        // the length of its part.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.wrapping_add(offset), bytes.len());
        }
    }
}

fn boxed(transfer: Transfer, memory: *mut u8) -> *mut CTransfer {
    Box::into_raw(Box::new(CTransfer { transfer, memory }))
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `place` is a place, and `data` has `bytes` bytes that stay until the transfer is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_start_put(
    peer: u32,
    place: *const CPlace,
    data: *const c_void,
    bytes: usize,
) -> *mut CTransfer {
    // SAFETY: the caller guarantees it.
    let place = unsafe { *place }.into();
    let transfer = Transfer::put(PeerId(peer), place, bytes);
    boxed(transfer, data.cast_mut().cast())
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `place` is a place, and `data` has room for `bytes` bytes that stays until the transfer is
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_start_get(
    peer: u32,
    place: *const CPlace,
    data: *mut c_void,
    bytes: usize,
) -> *mut CTransfer {
    // SAFETY: the caller guarantees it.
    let place = unsafe { *place }.into();
    let transfer = Transfer::get(PeerId(peer), place, bytes);
    boxed(transfer, data.cast())
}

/// Returns the operation of an `enum kumi_wind_atomic`.
fn atomic(operation: c_int, first: u64, second: u64) -> Option<Atomic> {
    match operation {
        0 => Some(Atomic::FetchAdd(first)),
        1 => Some(Atomic::CompareSwap {
            expected: first,
            new: second,
        }),
        2 => Some(Atomic::Swap(first)),
        3 => Some(Atomic::MaskedStore {
            mask: first,
            value: second,
        }),
        _ => None,
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` a place, `data` has `bytes` bytes, and `error` room for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_post_put(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    data: *const u8,
    bytes: usize,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees all of them.
    let (node, place, data) = unsafe { (&*node, (*place).into(), borrowed(data, bytes)) };
    let result = node.post_put(PeerId(peer), place, data);
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result.map_err(Failure::from), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `place` a place, and `error` has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_post_atomic(
    node: *const Node,
    peer: u32,
    place: *const CPlace,
    operation: c_int,
    first: u64,
    second: u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    let post = || -> Result<(), Failure> {
        let atomic = atomic(operation, first, second)
            .ok_or_else(|| Failure::Argument(format!("unknown atomic operation {operation}")))?;
        // SAFETY: the caller guarantees both.
        let (node, place) = unsafe { (&*node, (*place).into()) };
        Ok(node.post(PeerId(peer), place, Operation::Atomic(atomic))?)
    };
    // SAFETY: the caller guarantees the room.
    unsafe { finish(post(), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `place` is a place, and `before` writable until the transfer is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_start_atomic(
    peer: u32,
    place: *const CPlace,
    operation: c_int,
    first: u64,
    second: u64,
    before: *mut u64,
) -> *mut CTransfer {
    let Some(atomic) = atomic(operation, first, second) else {
        return ptr::null_mut();
    };
    // SAFETY: the caller guarantees it.
    let place = unsafe { *place }.into();
    let transfer = Transfer::atomic(PeerId(peer), place, atomic);
    boxed(transfer, before.cast())
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, `transfer` a transfer that no other thread uses, and `error` has room for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_test(
    node: *const Node,
    transfer: *mut CTransfer,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees both.
    let (node, transfer) = unsafe { (&*node, &mut *transfer) };
    let mut memory = Memory(transfer.memory);
    let result = node.advance(&mut transfer.transfer, &mut memory);
    // SAFETY: the caller guarantees the room.
    unsafe { finish_poll(result.map_err(Failure::from), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `transfer` is null or a transfer, which is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_transfer_free(transfer: *mut CTransfer) {
    if !transfer.is_null() {
        // SAFETY: the caller guarantees it.
        drop(unsafe { Box::from_raw(transfer) });
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, and `error` has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_check(
    node: *const Node,
    peer: u32,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let result = unsafe { &*node }.check(PeerId(peer));
    // SAFETY: the caller guarantees the room.
    unsafe { finish(result.map_err(Failure::from), error, error_bytes) }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_unsent(node: *const Node, peer: u32) -> u64 {
    // SAFETY: the caller guarantees it.
    unsafe { &*node }.unsent_bytes(PeerId(peer))
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node, and `out` has room for `out_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_peer_address(
    node: *const Node,
    peer: u32,
    out: *mut c_char,
    out_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    match unsafe { &*node }.peer_address(PeerId(peer)) {
        Some(address) => {
            // SAFETY: the caller guarantees the room.
            unsafe { write_message(&address, out, out_bytes) };
            0
        }
        None => 2,
    }
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_wait(node: *const Node, seen: u64, limit_ms: i64) -> u64 {
    // SAFETY: the caller guarantees it.
    unsafe { &*node }.wait_change(seen, limit(limit_ms))
}

/// See `kumi_wind.h`.
///
/// # Safety
/// `node` is a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_wind_wake(node: *const Node) {
    // SAFETY: the caller guarantees it.
    unsafe { &*node }.wake();
}
