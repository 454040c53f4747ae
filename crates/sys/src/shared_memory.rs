//! Memory that several threads read and write at the same time.

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Length of a word, in bytes.
const WORD: usize = size_of::<u64>();

/// Memory whose bytes may change at any time. Aligned words are read and written as a whole. A
/// longer access that meets another one sees some bytes of before and some of after.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    bytes: usize,
    /// The value mapped the memory, and unmaps it.
    is_own: bool,
}

// SAFETY: all access goes through atomic operations, and the memory lives as long as the value.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps `bytes` bytes of zeros.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes, `OutOfMemory` for more than the machine has.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::map_pages(bytes, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps `bytes` bytes of zeros twice: both values have the same bytes.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn new_twice(bytes: usize) -> io::Result<(Self, Self)> {
        let file = memfd_create("kumi-memory", MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&file, bytes as i64)?;
        let map = || Self::map(file.as_fd(), bytes);
        Ok((map()?, map()?))
    }

    /// Maps the first `bytes` bytes of a file, or of a BPF array that allows it.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes, or the kernel's error.
    pub fn map(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Self::map_pages(bytes, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map_pages(bytes: usize, flags: libc::c_int, file: libc::c_int) -> io::Result<Self> {
        if bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a mapping at an address of the kernel's choice changes no other memory. Its bytes
        // are accessed by atomic operations only, so others may change them.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                file,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            bytes,
            is_own: true,
        })
    }

    /// Borrows memory of the caller.
    ///
    /// # Panics
    /// Panics if the address is not a multiple of eight.
    ///
    /// # Safety
    /// The `bytes` bytes from `start` on are readable and writable for as long as the value lives,
    /// and no Rust reference to them is used meanwhile.
    pub unsafe fn borrowed(start: NonNull<u8>, bytes: usize) -> Self {
        let address = start.addr().get();
        assert!(
            address % WORD == 0,
            "address {address:#x} is not a multiple of 8"
        );
        Self {
            start,
            bytes,
            is_own: false,
        }
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the first byte, for programs in other languages.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn check(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "bytes {offset} + {bytes} of {} are out of range",
            self.bytes
        );
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: the caller has checked that the byte is in the memory.
        unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(offset)) }
    }

    /// Returns the word at `offset`.
    ///
    /// # Panics
    /// Panics if the word is out of range, or `offset` is not a multiple of eight.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, WORD);
        assert!(offset % WORD == 0, "offset {offset} is not a multiple of 8");
        // SAFETY: the word is in the memory, whose start is a multiple of eight.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Writes `from` at `offset`.
    ///
    /// # Panics
    /// Panics if the bytes are out of range.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let head = (offset.next_multiple_of(WORD) - offset).min(from.len());
        let (head, rest) = from.split_at(head);
        let words = rest.chunks_exact(WORD);
        let tail = words.remainder();
        let mut at = offset;
        for byte in head {
            self.byte(at).store(*byte, Ordering::Relaxed);
            at += 1;
        }
        for word in words {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(word);
            self.word(at)
                .store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            at += WORD;
        }
        for byte in tail {
            self.byte(at).store(*byte, Ordering::Relaxed);
            at += 1;
        }
        // A later load that acquires sees all bytes above.
        std::sync::atomic::fence(Ordering::Release);
    }

    /// Reads `to.len()` bytes at `offset`.
    ///
    /// # Panics
    /// Panics if the bytes are out of range.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        std::sync::atomic::fence(Ordering::Acquire);
        let head = (offset.next_multiple_of(WORD) - offset).min(to.len());
        let (head, rest) = to.split_at_mut(head);
        let mut at = offset;
        for byte in head {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
        let mut words = rest.chunks_exact_mut(WORD);
        for word in &mut words {
            word.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
            at += WORD;
        }
        for byte in words.into_remainder() {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: `new` mapped these bytes, and nothing borrows them any more.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory__any_offset_and_length__reads_back_what_was_written() {
        let memory = SharedMemory::new(100).unwrap();
        let bytes: Vec<u8> = (1..=60).collect();
        for offset in 0..20 {
            for length in 0..60 {
                memory.write(0, &[0; 100]);
                memory.write(offset, &bytes[..length]);
                let mut all = [0; 100];
                memory.read(0, &mut all);
                let mut expected = [0; 100];
                expected[offset..offset + length].copy_from_slice(&bytes[..length]);
                assert_eq!(all, expected);
                let mut part = vec![0; length];
                memory.read(offset, &mut part);
                assert_eq!(part, bytes[..length]);
            }
        }
    }

    #[test]
    fn memory__twice__has_the_same_bytes_in_both() {
        let (one, two) = SharedMemory::new_twice(5000).unwrap();
        one.write(4000, b"both");
        drop(one);
        let mut bytes = [0; 5];
        two.read(3999, &mut bytes);
        assert_eq!(&bytes, b"\0both");
        assert!(SharedMemory::new_twice(0).is_err());
    }

    #[test]
    fn memory__borrowed__is_changed_in_place_and_stays() {
        let mut words = [0_u64; 4];
        let start = NonNull::from(&mut words).cast();
        // SAFETY: the array outlives the value, and is not used before the value's end.
        let memory = unsafe { SharedMemory::borrowed(start, 20) };
        memory.write(7, &[1, 2]);
        memory.word(8).fetch_add(1 << 8, Ordering::Relaxed);
        assert_eq!(memory.bytes(), 20);
        drop(memory);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes[7], 1);
        assert_eq!(words[1], 2 + (1 << 8));
    }

    #[test]
    fn memory__zero_bytes_or_out_of_range__is_refused() {
        let error = SharedMemory::new(0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let memory = SharedMemory::new(16).unwrap();
        let write = || memory.write(usize::MAX, b"a");
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err());
        let word = || memory.word(12);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(word)).is_err());
    }
}
