//! Descriptors that a forked child does not inherit.
//!
//! `O_CLOEXEC` closes a descriptor when another program is executed. A child that continues with
//! the same program keeps it. A connection then outlives its owner, and two processes may read one
//! stream. The descriptors in this module are closed in the child.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;

/// Private descriptors of this process, by a number that is never used again.
struct Table {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    last_name: UnsafeCell<u64>,
    open: UnsafeCell<BTreeMap<u64, RawFd>>,
}

// SAFETY: `last_name` and `open` are touched only with `lock` held.
unsafe impl Sync for Table {}

static TABLE: Table = Table {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    last_name: UnsafeCell::new(0),
    open: UnsafeCell::new(BTreeMap::new()),
};

static HANDLERS: Once = Once::new();

extern "C" fn lock() {
    // SAFETY: the mutex is initialised and never moves; no thread locks it twice.
    unsafe { libc::pthread_mutex_lock(TABLE.lock.get()) };
}

extern "C" fn unlock() {
    // SAFETY: as above; the thread that forks has locked it, and is the child's only one.
    unsafe { libc::pthread_mutex_unlock(TABLE.lock.get()) };
}

extern "C" fn close_all() {
    // SAFETY: `lock` ran before the fork, so the lock is held. The map is not freed, because that
    // might need a lock of the allocator.
    unsafe {
        let open = std::mem::take(&mut *TABLE.open.get());
        for fd in open.values() {
            libc::close(*fd);
        }
        std::mem::forget(open);
    }
    unlock();
}

/// Runs `action` with the table locked, so that no other thread forks meanwhile.
fn access<T>(action: impl FnOnce(&mut u64, &mut BTreeMap<u64, RawFd>) -> T) -> T {
    lock();
    // SAFETY: the lock is held, and `action` does not call this function.
    let result = unsafe { action(&mut *TABLE.last_name.get(), &mut *TABLE.open.get()) };
    unlock();
    result
}

/// A value with a descriptor that a forked child does not inherit. In the child the descriptor is
/// closed, and dropping the value has no effect.
#[derive(Debug)]
pub struct Private<T> {
    inner: ManuallyDrop<T>,
    name: u64,
}

impl<T: AsRawFd> Private<T> {
    /// Makes a value's descriptor private to this process.
    pub fn new(inner: T) -> Self {
        let fd = inner.as_raw_fd();
        Self::of(inner, fd)
    }
}

impl<T> Private<T> {
    /// Makes a value private whose descriptor is passed separately.
    pub fn of(inner: T, fd: RawFd) -> Self {
        HANDLERS.call_once(|| {
            // SAFETY: the handlers are functions that exist as long as the library, and none of
            // them forks.
            unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(close_all)) };
        });
        let name = access(|last_name, open| {
            *last_name += 1;
            open.insert(*last_name, fd);
            *last_name
        });
        Self {
            inner: ManuallyDrop::new(inner),
            name,
        }
    }
}

impl<T> Drop for Private<T> {
    fn drop(&mut self) {
        let inner = &mut self.inner;
        access(|_, open| {
            // In a forked child the table is empty. The descriptor is closed there, and its number
            // may belong to another file.
            if open.remove(&self.name).is_some() {
                // SAFETY: it is dropped only here and not used afterwards.
                unsafe { ManuallyDrop::drop(inner) };
            }
        });
    }
}

impl<T> Deref for Private<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Private<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: AsFd> AsFd for Private<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Returns whether a descriptor is open, without allocating.
    fn is_open(fd: RawFd) -> bool {
        // SAFETY: F_GETFD changes nothing, for any descriptor.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn private_descriptor__after_fork__is_closed_in_the_child() {
        let null = || File::open("/dev/null").unwrap();
        let (shared, private) = (null(), Private::new(null()));
        let (shared_fd, private_fd) = (shared.as_raw_fd(), private.as_raw_fd());
        // SAFETY: the child makes only calls that are safe after a fork, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut failures = i32::from(!is_open(shared_fd)) + 2 * i32::from(is_open(private_fd));
            // The number is reused for another descriptor before its former owner is dropped.
            // SAFETY: as above.
            unsafe {
                libc::dup2(shared_fd, private_fd);
                drop(private);
                failures += 4 * i32::from(!is_open(private_fd));
                libc::_exit(failures);
            }
        }
        let mut status = -1;
        // SAFETY: `status` is a live integer, which the kernel writes.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
        assert!(is_open(private_fd));
        drop(private);
        assert!(!access(|_, open| open.values().any(|fd| *fd == private_fd)));
    }
}
