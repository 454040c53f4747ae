//! Pages whose accesses the kernel reports through userfaultfd, and whose writes it notes itself
//! (`include/uapi/linux/userfaultfd.h`, `include/uapi/linux/fs.h` of Linux 6.7).

use super::{PAGE_BYTES, View};
use crate::shared_memory::SharedMemory;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xaa;

/// An access to a page that is not there raises SIGBUS instead of waiting for a handler thread.
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
/// The kernel lifts a write protection by itself.
const FEATURE_WP_ASYNC: u64 = 1 << 15;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const REGISTER_MINOR: u64 = 4;
const CONTINUE_WRITE_PROTECTED: u64 = 2;

/// Request numbers, as `_IOWR` composes them: direction, length, type, number.
const fn request(length: usize, kind: u64, number: u64) -> u64 {
    (3 << 30) | ((length as u64) << 16) | (kind << 8) | number
}

#[repr(C)]
struct ApiArguments {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterArguments {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct ContinueArguments {
    start: u64,
    bytes: u64,
    mode: u64,
    mapped: i64,
}

#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_max: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct FoundRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const SCAN_PROTECT_MATCHING: u64 = 1;
const SCAN_CHECK_ASYNC: u64 = 2;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;

/// Regions that one call returns.
const REGIONS_PER_CALL: usize = 256;

/// A view that is registered with userfaultfd.
#[derive(Debug)]
pub struct Userfault {
    file: OwnedFd,
    pagemap: File,
    /// Pages may be moved out: the kernel then forgets that they were written.
    has_swap: bool,
}

impl Userfault {
    pub fn new(view: &View) -> io::Result<Self> {
        // SAFETY: the call takes flags and returns a descriptor, which nothing else owns.
        let file = unsafe {
            let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
            let fd = libc::syscall(libc::SYS_userfaultfd, flags);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd as i32)
        };
        let mut api = ApiArguments {
            api: API,
            features: FEATURE_SIGBUS | FEATURE_MINOR_SHMEM | FEATURE_WP_SHMEM | FEATURE_WP_ASYNC,
            ioctls: 0,
        };
        control(
            &file,
            request(size_of::<ApiArguments>(), API, 0x3f),
            &mut api,
        )?;
        let mut register = RegisterArguments {
            start: view.start.addr().get() as u64,
            bytes: view.bytes as u64,
            mode: REGISTER_MISSING | REGISTER_WP | REGISTER_MINOR,
            ioctls: 0,
        };
        let number = request(size_of::<RegisterArguments>(), API, 0);
        control(&file, number, &mut register)?;
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        let userfault = Self {
            file,
            pagemap: File::open("/proc/self/pagemap")?,
            has_swap: swaps.lines().count() > 1,
        };
        // A kernel may have the features and not the scan.
        userfault.scan(view.addresses(&(0..1)), PAGE_IS_WRITTEN, 0, 0, |_| ())?;
        Ok(userfault)
    }

    pub fn open(&self, view: &View, own: &SharedMemory, pages: Range<usize>) -> io::Result<()> {
        // The kernel maps pages that the file has. An access through the other mapping makes them.
        for page in pages.clone() {
            own.word(page * PAGE_BYTES).load(Ordering::Relaxed);
        }
        let mut at = view.addresses(&pages);
        while at.start < at.end {
            let mut arguments = ContinueArguments {
                start: at.start,
                bytes: at.end - at.start,
                mode: CONTINUE_WRITE_PROTECTED,
                mapped: 0,
            };
            let number = request(size_of::<ContinueArguments>(), API, 7);
            let outcome = control(&self.file, number, &mut arguments);
            let mapped_bytes = arguments.mapped.max(0) as u64;
            at.start += mapped_bytes;
            match outcome {
                Ok(_) => {}
                // The next page is open.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    at.start += PAGE_BYTES as u64;
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub fn take_written(
        &self,
        view: &View,
        pages: Range<usize>,
        runs: &mut Vec<Range<usize>>,
    ) -> io::Result<()> {
        let base = view.start.addr().get() as u64;
        let found = |region: FoundRegion| {
            let page = |at: u64| ((at - base) / PAGE_BYTES as u64) as usize;
            runs.push(page(region.start)..page(region.end));
        };
        let flags = SCAN_PROTECT_MATCHING | SCAN_CHECK_ASYNC;
        // A page that is not in the page table counts as written.
        let wanted = PAGE_IS_WRITTEN | PAGE_IS_PRESENT;
        self.scan(view.addresses(&pages), wanted, 0, flags, found)?;
        if self.has_swap {
            // Pages that are not there may have been written before they were moved out.
            let found = |region: FoundRegion| {
                let page = |at: u64| ((at - base) / PAGE_BYTES as u64) as usize;
                runs.push(page(region.start)..page(region.end));
            };
            let absent = PAGE_IS_PRESENT;
            self.scan(view.addresses(&pages), absent, absent, 0, found)?;
            runs.sort_by_key(|run| run.start);
        }
        Ok(())
    }

    fn scan(
        &self,
        at: Range<u64>,
        category_mask: u64,
        category_inverted: u64,
        flags: u64,
        mut found: impl FnMut(FoundRegion),
    ) -> io::Result<()> {
        let mut start = at.start;
        while start < at.end {
            let mut regions = [MaybeUninit::<FoundRegion>::uninit(); REGIONS_PER_CALL];
            let mut arguments = ScanArguments {
                size: size_of::<ScanArguments>() as u64,
                flags,
                start,
                end: at.end,
                walk_end: 0,
                regions: regions.as_mut_ptr().addr() as u64,
                regions_max: REGIONS_PER_CALL as u64,
                pages_max: 0,
                category_inverted,
                category_mask,
                category_any_of_mask: 0,
                return_mask: category_mask,
            };
            let number = request(size_of::<ScanArguments>(), u64::from(b'f'), 16);
            // The address of the regions goes to the kernel as a number.
            let _ = regions.as_mut_ptr().expose_provenance();
            let count = control(&self.pagemap, number, &mut arguments)?;
            for region in &regions[..count as usize] {
                // SAFETY: the kernel has written `count` regions.
                found(unsafe { region.assume_init() });
            }
            start = arguments.walk_end;
        }
        Ok(())
    }
}

/// Calls `ioctl(2)` and returns its result.
fn control<T>(file: &impl AsRawFd, number: u64, arguments: &mut T) -> io::Result<i32> {
    // SAFETY: each request number above has the length of its arguments in it. The kernel writes
    // to nothing else but the regions of a scan, whose room it is told.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), number as _, arguments) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(outcome)
}
