//! C interface of plans, for callers that transport the bytes themselves. `bindings/c/kumi_coll.h`
//! documents the functions.

use super::{index, text, write_message};
use crate::equal_blocks::{EqualBlocks, OwnBytes};
use crate::ranks::{Ranks, network_digest};
use crate::request::{Request, RequestedOperation, WorkError};
use crate::work::Work;
use std::borrow::Cow;
use std::ffi::{CStr, OsStr, c_char, c_double, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// C layout of `struct kumi_coll_step`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CStep {
    action: i32,
    peer: i32,
    block: u64,
    offset: u64,
    bytes: u64,
}

const _: () = assert!(size_of::<CStep>() == 32);

/// C layout of `struct kumi_coll_fair_share`.
#[repr(C)]
#[derive(Debug)]
pub struct CFairShare {
    bytes_per_s: f64,
    burst_bytes: u64,
}

const _: () = assert!(size_of::<CFairShare>() == 16);

/// C layout of `struct kumi_coll_request`: a request.
#[repr(C)]
#[derive(Debug)]
pub struct CRequest {
    operation: i32,
    root: i32,
    bytes: *const u64,
    blocks: usize,
    element_bytes: u64,
}

const _: () = assert!(size_of::<CRequest>() == 32);

/// C layout of `struct kumi_coll_equal`: a request of a rank that knows only its own lengths.
#[repr(C)]
#[derive(Debug)]
pub struct CEqual {
    operation: i32,
    root: i32,
    block_bytes: u64,
    out_bytes: *const u64,
    in_bytes: *const u64,
}

const _: () = assert!(size_of::<CEqual>() == 32);

/// # Safety
/// `file` is null or a string; `digest` has room for one digest; `error` is null or has room for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_network_digest(
    file: *const c_char,
    digest: *mut u64,
    error: *mut c_char,
    error_bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let file = unsafe { text(file) };
    let file = file.map(|file| Path::new(OsStr::from_bytes(file.to_bytes())));
    match network_digest(file) {
        Ok(value) => {
            // SAFETY: the caller guarantees it.
            unsafe { digest.write(value) };
            0
        }
        Err(problem) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&problem, error, error_bytes) };
            -1
        }
    }
}

/// # Safety
/// `file` is null or a string; `hosts` holds `count` strings; `error` is null or has room for
/// `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_ranks_new(
    file: *const c_char,
    hosts: *const *const c_char,
    count: c_int,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Ranks {
    // SAFETY: the caller guarantees it.
    unsafe { kumi_coll_ranks_in_job(file, hosts, count, hosts, count, error, error_bytes) }
}

/// # Safety
/// `file` is null or a string; `hosts` holds `count` strings, and `job_hosts` holds `job_count`;
/// `error` is null or has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_ranks_in_job(
    file: *const c_char,
    hosts: *const *const c_char,
    count: c_int,
    job_hosts: *const *const c_char,
    job_count: c_int,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Ranks {
    // SAFETY: the caller guarantees it.
    let (file, hosts, job_hosts) =
        unsafe { (text(file), names(hosts, count), names(job_hosts, job_count)) };
    let file = file.map(|file| Path::new(OsStr::from_bytes(file.to_bytes())));
    let hosts: Vec<&str> = hosts.iter().map(AsRef::as_ref).collect();
    let job_hosts: Vec<&str> = job_hosts.iter().map(AsRef::as_ref).collect();
    match Ranks::in_job(file, &hosts, &job_hosts) {
        Ok(ranks) => Box::into_raw(Box::new(ranks)),
        Err(problem) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&problem, error, error_bytes) };
            ptr::null_mut()
        }
    }
}

/// # Safety
/// `hosts` holds `count` strings.
unsafe fn names<'a>(hosts: *const *const c_char, count: c_int) -> Vec<Cow<'a, str>> {
    let all = 0..usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller guarantees it.
    all.map(|index| unsafe { CStr::from_ptr(*hosts.add(index)) }.to_string_lossy())
        .collect()
}

/// # Safety
/// `ranks` is null, or comes from `kumi_coll_ranks_new` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_ranks_free(ranks: *mut Ranks) {
    if !ranks.is_null() {
        // SAFETY: the caller guarantees that `Box::into_raw` made it.
        drop(unsafe { Box::from_raw(ranks) });
    }
}

/// # Safety
/// `ranks` comes from `kumi_coll_ranks_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_ranks_is_single_switch(ranks: *const Ranks) -> c_int {
    // SAFETY: the caller guarantees it.
    c_int::from(unsafe { &*ranks }.is_single_switch())
}

/// # Safety
/// `ranks` comes from `kumi_coll_ranks_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_ranks_is_multi_site(ranks: *const Ranks) -> c_int {
    // SAFETY: the caller guarantees it.
    c_int::from(unsafe { &*ranks }.is_multi_site())
}

/// # Safety
/// `ranks` comes from `kumi_coll_ranks_new`; `share` has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_ranks_fair_share(
    ranks: *const Ranks,
    share: *mut CFairShare,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(found) = unsafe { &*ranks }.fair_share() else {
        return -1;
    };
    let found = CFairShare {
        bytes_per_s: found.bytes_per_s,
        burst_bytes: found.burst_bytes,
    };
    // SAFETY: the caller guarantees it.
    unsafe { share.write(found) };
    0
}

/// # Safety
/// `ranks` comes from `kumi_coll_ranks_new`; `rank` is one of them; `others` has room for all of
/// them but one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_ranks_sending_order(
    ranks: *const Ranks,
    rank: c_int,
    others: *mut c_int,
) {
    // SAFETY: the caller guarantees it.
    let order = unsafe { &*ranks }.sending_order(rank as usize);
    for (at, other) in order.into_iter().enumerate() {
        // SAFETY: the caller guarantees the room.
        unsafe { others.add(at).write(other as c_int) };
    }
}

/// # Safety
/// `ranks` comes from `kumi_coll_ranks_new`; the `bytes` of `asked` point to `blocks` numbers;
/// `error` is null or has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_work_new(
    ranks: *const Ranks,
    rank: c_int,
    asked: *const CRequest,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Work {
    // SAFETY: the caller guarantees it.
    let (ranks, request, bytes) = unsafe {
        let request = &*asked;
        let bytes = std::slice::from_raw_parts(request.bytes, request.blocks);
        (&*ranks, request, bytes.to_vec())
    };
    let work = || {
        let operation = RequestedOperation::from_number(request.operation)
            .ok_or(WorkError::Operation(request.operation))?;
        let request = Request {
            operation,
            root: index(request.root),
            bytes,
            element_bytes: request.element_bytes,
        };
        Work::new(ranks, index(rank), request)
    };
    // SAFETY: the caller guarantees it.
    unsafe { into_pointer(work(), error, error_bytes) }
}

/// # Safety
/// `ranks` comes from `kumi_coll_ranks_new`; the lengths in `like` are as many as it has ranks;
/// `error` is null or has room for `error_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_work_equal(
    ranks: *const Ranks,
    rank: c_int,
    like: *const CEqual,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Work {
    // SAFETY: the caller guarantees it.
    let (ranks, like) = unsafe { (&*ranks, &*like) };
    let count = ranks.network().hosts.len();
    // SAFETY: the caller guarantees it.
    let numbers = |table: *const u64| unsafe { std::slice::from_raw_parts(table, count) }.to_vec();
    let work = || {
        let operation = RequestedOperation::from_number(like.operation)
            .ok_or(WorkError::Operation(like.operation))?;
        let own = OwnBytes {
            out_bytes: numbers(like.out_bytes),
            in_bytes: match operation {
                RequestedOperation::AllToAll => numbers(like.in_bytes),
                _ => Vec::new(),
            },
        };
        let request = EqualBlocks {
            operation,
            root: index(like.root),
            block_bytes: like.block_bytes,
        };
        Work::with_equal_blocks(ranks, index(rank), request, &own)
    };
    // SAFETY: the caller guarantees it.
    unsafe { into_pointer(work(), error, error_bytes) }
}

/// Returns a pointer to the boxed work, or writes the error and returns null.
///
/// # Safety
/// `error` is null or has room for `error_bytes`.
unsafe fn into_pointer(
    work: Result<Work, WorkError>,
    error: *mut c_char,
    error_bytes: usize,
) -> *mut Work {
    match work {
        Ok(work) => Box::into_raw(Box::new(work)),
        Err(problem) => {
            // SAFETY: the caller guarantees it.
            unsafe { write_message(&problem, error, error_bytes) };
            ptr::null_mut()
        }
    }
}

/// # Safety
/// `work` comes from `kumi_coll_work_new`; `step` has room for one step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_work_begin(work: *mut Work, step: *mut CStep) -> i64 {
    // SAFETY: the caller guarantees it.
    let work = unsafe { &mut *work };
    let Some((index, caller_step)) = work.begin() else {
        return -1;
    };
    let c_step = CStep {
        action: caller_step.action as i32,
        peer: caller_step.peer as i32,
        block: caller_step.block,
        offset: caller_step.offset,
        bytes: caller_step.bytes,
    };
    // SAFETY: the caller guarantees it.
    unsafe { step.write(c_step) };
    index as i64
}

/// # Safety
/// `work` comes from `kumi_coll_work_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_work_complete(work: *mut Work, step: i64) {
    // SAFETY: the caller guarantees it.
    let work = unsafe { &mut *work };
    work.complete(usize::try_from(step).unwrap_or(usize::MAX));
}

/// # Safety
/// `work` comes from `kumi_coll_work_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_work_is_complete(work: *const Work) -> c_int {
    // SAFETY: the caller guarantees it.
    c_int::from(unsafe { &*work }.is_complete())
}

/// # Safety
/// `work` comes from `kumi_coll_work_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_work_predicted_s(work: *const Work) -> c_double {
    // SAFETY: the caller guarantees it.
    unsafe { &*work }.predicted_s()
}

/// # Safety
/// `work` is null, or comes from `kumi_coll_work_new` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kumi_coll_work_free(work: *mut Work) {
    if !work.is_null() {
        // SAFETY: the caller guarantees that `Box::into_raw` made it.
        drop(unsafe { Box::from_raw(work) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c::message_of;

    #[test]
    fn sending_order__one_switch__begins_with_the_next_rank() {
        let hosts = [c"a".as_ptr(), c"b".as_ptr(), c"c".as_ptr()];
        let mut others = [-1; 3];
        // SAFETY: the table has three strings, and no message is requested.
        let ranks =
            unsafe { kumi_coll_ranks_new(ptr::null(), hosts.as_ptr(), 3, ptr::null_mut(), 0) };
        // SAFETY: `others` has room for two ranks.
        unsafe { kumi_coll_ranks_sending_order(ranks, 1, others.as_mut_ptr()) };
        assert_eq!(others, [2, 0, -1]);
        // SAFETY: no work of the ranks exists.
        unsafe { kumi_coll_ranks_free(ranks) };
    }

    #[test]
    fn ranks__invalid_hosts_or_file__are_refused_with_the_reason() {
        let hosts = [c"a".as_ptr(), c"b".as_ptr()];
        let file = c"/no/such/file".as_ptr();
        for (file, count, message) in [
            (
                ptr::null(),
                0,
                "no hosts given: expected the host of each rank, at least one",
            ),
            (
                ptr::null(),
                -1,
                "no hosts given: expected the host of each rank, at least one",
            ),
            (
                file,
                2,
                "/no/such/file: cannot be read: No such file or directory (os error 2)",
            ),
        ] {
            let text = message_of(|error, error_bytes| {
                // SAFETY: the table has two strings.
                let ranks =
                    unsafe { kumi_coll_ranks_new(file, hosts.as_ptr(), count, error, error_bytes) };
                assert!(ranks.is_null());
            });
            assert_eq!(text, message);
        }
        let text = message_of(|error, error_bytes| {
            let mut digest = 0;
            // SAFETY: `file` is a string.
            let outcome =
                unsafe { kumi_coll_network_digest(file, &mut digest, error, error_bytes) };
            assert_eq!(outcome, -1);
        });
        assert_eq!(
            text,
            "/no/such/file: cannot be read: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn work__invalid_request__is_refused_with_what_is_accepted() {
        let hosts = [c"a".as_ptr(), c"b".as_ptr()];
        // SAFETY: the table has two strings, and no message is requested.
        let ranks =
            unsafe { kumi_coll_ranks_new(ptr::null(), hosts.as_ptr(), 2, ptr::null_mut(), 0) };
        let bytes = [6_u64, 6];
        let request = |operation, root, element_bytes| CRequest {
            operation,
            root,
            bytes: bytes.as_ptr(),
            blocks: bytes.len(),
            element_bytes,
        };
        for (rank, request, message) in [
            (0, request(8, 0, 1), "operation 8 out of range (0–7)"),
            (0, request(-1, 0, 1), "operation -1 out of range (0–7)"),
            (2, request(0, 0, 1), "rank 2 out of range (0–1)"),
            (0, request(0, 2, 1), "root 2 out of range (0–1)"),
            (
                0,
                request(2, 0, 1),
                "2 block sizes given: expected 1, one for each block",
            ),
            (
                0,
                request(0, 0, 4),
                "6 bytes are not a whole number of elements of 4 bytes",
            ),
        ] {
            let text = message_of(|error, error_bytes| {
                // SAFETY: `ranks` exists, and the table has as many sizes as the request says.
                let work = unsafe { kumi_coll_work_new(ranks, rank, &request, error, error_bytes) };
                assert!(work.is_null());
            });
            assert_eq!(text, message);
        }
        for (operation, message) in [
            (8, "operation 8 out of range (0–7)"),
            (
                2,
                "Broadcast cannot be planned for blocks of one length: \
                 expected Gather, Scatter or AllToAll",
            ),
        ] {
            let request = CEqual {
                operation,
                root: 0,
                block_bytes: 6,
                out_bytes: bytes.as_ptr(),
                in_bytes: ptr::null(),
            };
            let text = message_of(|error, error_bytes| {
                // SAFETY: `ranks` exists, and the table has a size for each of its ranks.
                let work = unsafe { kumi_coll_work_equal(ranks, 0, &request, error, error_bytes) };
                assert!(work.is_null());
            });
            assert_eq!(text, message);
        }
        // SAFETY: `kumi_coll_ranks_new` made it, and it is not used again.
        unsafe { kumi_coll_ranks_free(ranks) };
    }
}
