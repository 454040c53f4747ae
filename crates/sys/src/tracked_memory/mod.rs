//! Memory of which the kernel tells what a program reads and writes, page by page.
//!
//! The memory is a file without a name, with two mappings. The library reads and writes the first
//! one at any time. The program uses the second one, the view, whose pages are closed, or open and
//! watched for writes:
//!
//! ```text
//!              open                       write
//!   closed ───────────► open, unwritten ─────────► open, written
//!      ▲ close               ▲ take_written             │
//!      └─────────────────────┴──────────────────────────┘
//! ```
//!
//! An access to a closed page calls the handler of [`super::faults`] on the thread that made it.
//!
//! | tier | closed page | first write | needs |
//! |---|---|---|---|
//! | [`Tier::Userfault`] | SIGBUS | the kernel notes it in the page table: 1 µs | Linux 6.7 |
//! | [`Tier::Protection`] | SIGSEGV | SIGSEGV, `mprotect`: 7 µs | nothing |

mod protection;
mod userfault;

use crate::shared_memory::SharedMemory;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use protection::Protection;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use userfault::Userfault;

/// Length of a page, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Way in which accesses of the program are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Page tables with write protection that the kernel lifts by itself (`UFFD_FEATURE_WP_ASYNC`),
    /// read by `PAGEMAP_SCAN`.
    Userfault,
    /// Protection of the mapping, changed page by page.
    Protection,
}

impl fmt::Display for Tier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Userfault => "userfaultfd",
            Self::Protection => "mprotect",
        })
    }
}

/// Step that an access to a page waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The page is closed, or was: the owner makes its content valid and opens it.
    Content,
    /// The page was open and is written for the first time. Nothing is left to do.
    Nothing,
    /// The kernel refuses to let the write through: the process has too many mappings
    /// (`vm.max_map_count`).
    Mappings,
}

/// Memory with a view for the program. All pages are closed at first.
#[derive(Debug)]
pub struct TrackedMemory {
    file: OwnedFd,
    /// Mapping of the library.
    own: SharedMemory,
    /// The bytes of the view.
    program: SharedMemory,
    view: View,
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    Userfault(Userfault),
    Protection(Protection),
}

impl TrackedMemory {
    /// Creates memory of `pages` pages of zeros, with its view at `address`, or at one that the
    /// kernel chooses.
    ///
    /// # Errors
    /// `AlreadyExists` if something is mapped at `address`, or the kernel's error.
    pub fn new(pages: usize, address: Option<usize>, tier: Option<Tier>) -> io::Result<Self> {
        let bytes = pages
            .checked_mul(PAGE_BYTES)
            .filter(|bytes| *bytes > 0 && *bytes <= isize::MAX as usize)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let file = memfd_create("kumi-dsm", MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&file, bytes as i64)?;
        let own = SharedMemory::map(file.as_fd(), bytes)?;
        let view = View::map(&file, bytes, address)?;
        let watch = match tier {
            Some(Tier::Userfault) => Watch::Userfault(Userfault::new(&view)?),
            Some(Tier::Protection) => Watch::Protection(Protection::new(&view)?),
            None => match Userfault::new(&view) {
                Ok(userfault) => Watch::Userfault(userfault),
                Err(_) => Watch::Protection(Protection::new(&view)?),
            },
        };
        // SAFETY: the view is mapped for as long as the value lives, and all accesses through this
        // are atomic.
        let program = unsafe { SharedMemory::borrowed(view.start, bytes) };
        Ok(Self {
            file,
            own,
            program,
            view,
            watch,
        })
    }

    /// Returns the library's mapping. Its bytes are those of the view.
    pub fn own(&self) -> &SharedMemory {
        &self.own
    }

    /// Maps the bytes once more, for a part of the program that keeps the mapping.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn map_again(&self) -> io::Result<SharedMemory> {
        SharedMemory::map(self.file.as_fd(), self.view.bytes)
    }

    /// Returns the program's mapping. An access to a closed page calls the handler of
    /// [`super::faults`].
    pub fn view(&self) -> &SharedMemory {
        &self.program
    }

    /// Returns the address of the view.
    pub fn address(&self) -> usize {
        self.view.start.addr().get()
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.view.bytes / PAGE_BYTES
    }

    /// Returns how accesses are found.
    pub fn tier(&self) -> Tier {
        match &self.watch {
            Watch::Userfault(_) => Tier::Userfault,
            Watch::Protection(_) => Tier::Protection,
        }
    }

    /// Returns the page of the view that has `address`.
    pub fn page_of(&self, address: usize) -> Option<usize> {
        let offset = address.checked_sub(self.address())?;
        (offset < self.view.bytes).then_some(offset / PAGE_BYTES)
    }

    /// Opens pages, as unwritten ones. A page that is open stays as it is.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Panics
    /// Panics if the pages are out of range.
    pub fn open(&self, pages: Range<usize>) -> io::Result<()> {
        self.check(&pages);
        match &self.watch {
            Watch::Userfault(userfault) => userfault.open(&self.view, &self.own, pages),
            Watch::Protection(protection) => protection.open(&self.view, pages),
        }
    }

    /// Closes pages. Bytes that were written stay.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Panics
    /// Panics if the pages are out of range.
    pub fn close(&self, pages: Range<usize>) -> io::Result<()> {
        self.check(&pages);
        match &self.watch {
            Watch::Userfault(_) => self.view.drop_table_entries(pages),
            Watch::Protection(protection) => protection.close(&self.view, pages),
        }
    }

    /// Appends the runs of written pages in `pages`, in order, and makes them unwritten. A write
    /// after that marks its page again.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Panics
    /// Panics if the pages are out of range.
    pub fn take_written(
        &self,
        pages: Range<usize>,
        runs: &mut Vec<Range<usize>>,
    ) -> io::Result<()> {
        self.check(&pages);
        match &self.watch {
            Watch::Userfault(userfault) => userfault.take_written(&self.view, pages, runs),
            Watch::Protection(protection) => protection.take_written(&self.view, pages, runs),
        }
    }

    /// Handles an access to a page that the view has not let through. The handler of
    /// [`super::faults`] calls it first.
    pub fn on_fault(&self, page: usize) -> Need {
        match &self.watch {
            Watch::Userfault(_) => Need::Content,
            Watch::Protection(protection) => protection.on_fault(&self.view, page),
        }
    }

    fn check(&self, pages: &Range<usize>) {
        assert!(
            pages.start <= pages.end && pages.end <= self.pages(),
            "pages {pages:?} of {} are out of range",
            self.pages()
        );
    }
}

/// Mapping of the program, unmapped on drop.
#[derive(Debug)]
struct View {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the value never touches the bytes; it changes the mapping by system calls.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    fn map(file: &OwnedFd, bytes: usize, address: Option<usize>) -> io::Result<Self> {
        let mut flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        if address.is_some() {
            flags |= libc::MAP_FIXED_NOREPLACE;
        }
        let wish = address.unwrap_or_default() as *mut libc::c_void;
        // SAFETY: the flag prevents that a mapping at a fixed address replaces another one.
        let start = unsafe {
            libc::mmap(
                wish,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let view = Self { start, bytes };
        match address {
            // Kernels before 4.17 take the address as a hint.
            Some(wish) if start.addr().get() != wish => Err(io::ErrorKind::AlreadyExists.into()),
            _ => Ok(view),
        }
    }

    /// Returns the addresses of pages.
    fn addresses(&self, pages: &Range<usize>) -> Range<u64> {
        let start = self.start.addr().get() as u64;
        let at = |page: usize| start + (page * PAGE_BYTES) as u64;
        at(pages.start)..at(pages.end)
    }

    /// Removes the pages from the page table. The bytes stay in the file.
    fn drop_table_entries(&self, pages: Range<usize>) -> io::Result<()> {
        let at = self.addresses(&pages);
        let (start, bytes) = (at.start as *mut libc::c_void, (at.end - at.start) as usize);
        // SAFETY: the range is of this mapping of a file, which keeps the bytes.
        let outcome = unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED) };
        if outcome == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the value mapped these bytes. That no program uses them any more is the caller's
        // promise, as with any memory that is freed.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests;
