//! Watching a process that is not our child, and descriptors that pass between processes.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// A descriptor that becomes readable when process `pid` ends (Linux 5.3).
///
/// # Errors
/// There is no such process.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; a descriptor fits a C int.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) })
}

/// Owns a descriptor that another process sent over a UNIX socket.
pub fn received(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the kernel made this descriptor for us when the message was received; the caller, who
    // read the number from that message, is the only one who knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Lets `descriptor` live through `exec`, and gives its number.
///
/// # Errors
/// The kernel's.
pub fn keep_on_exec(descriptor: OwnedFd) -> io::Result<RawFd> {
    // dup() does not copy the close-on-exec flag.
    let kept = nix::unistd::dup(&descriptor)?;
    Ok(kept.into_raw_fd())
}
