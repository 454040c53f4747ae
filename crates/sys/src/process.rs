//! Observes processes that are not children of this one, and passes descriptors between processes.

use nix::sys::signal::{SigHandler, SigSet, Signal, raise, signal};
use std::fs::DirEntry;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Ends the process by SIGPIPE, as a program ends whose output is no longer read. Rust ignores
/// SIGPIPE by default. Returns only if the signal is blocked.
pub fn end_by_broken_pipe() {
    // SAFETY: the default action is no handler, so none of our code runs in it.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    let _ = raise(Signal::SIGPIPE);
}

/// Returns a descriptor that becomes readable when process `pid` ends (Linux 5.3).
///
/// # Errors
/// The process does not exist.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor for this process; a descriptor fits a C
    // int.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) })
}

/// Raises the limit of open descriptors to the hard limit.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a whole `rlimit`, which the kernel writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a whole `rlimit`, which the kernel reads.
    let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}

/// Hides the descriptors that this process inherited, except the standard three, from its children.
pub fn keep_descriptors_from_children() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|number: &RawFd| *number > 2) {
        // SAFETY: F_SETFD sets a flag of a descriptor and touches no memory. For a number that is
        // not open, it does nothing.
        let _ = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Owns a descriptor that another process sent over a UNIX socket.
pub fn own_descriptor(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the kernel created this descriptor for this process when the message was received.
    // Only the caller, who read the number from that message, knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Lets `descriptor` survive `exec`, and returns its number.
///
/// # Errors
/// The kernel's error.
pub fn keep_on_exec(descriptor: OwnedFd) -> io::Result<RawFd> {
    // dup() does not copy the close-on-exec flag.
    let copy = nix::unistd::dup(&descriptor)?;
    Ok(copy.into_raw_fd())
}

/// Unblocks all signals in the program that `command` starts. A child inherits the signals that its
/// parent blocked.
pub fn unblock_signals_in(command: &mut Command) {
    let unblock = || Ok(SigSet::all().thread_unblock()?);
    // SAFETY: between fork and exec, one system call changes the signal mask. It allocates nothing
    // and takes no lock.
    unsafe { command.pre_exec(unblock) };
}

/// Ends the program that `command` starts when the thread that starts it ends.
pub fn end_with_parent(command: &mut Command) {
    let follow = || Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: between fork and exec, one system call. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(follow) };
}

/// Returns copies of the sockets that process `pid` has open. Sockets that may not be inspected are
/// left out.
pub fn sockets(pid: u32) -> Vec<OwnedFd> {
    let (Ok(process), Ok(entries)) = (pidfd(pid), std::fs::read_dir(format!("/proc/{pid}/fd")))
    else {
        return Vec::new();
    };
    let is_socket = |entry: &DirEntry| {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        target.to_string_lossy().starts_with("socket:")
    };
    let numbers = entries
        .flatten()
        .filter(is_socket)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|number: RawFd| {
            // SAFETY: pidfd_getfd takes three integers and touches no memory of ours.
            let copy =
                unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
            Some(own_descriptor(
                RawFd::try_from(copy).ok().filter(|copy| *copy >= 0)?,
            ))
        })
        .collect()
}

/// Returns the process `pid` and its descendants.
pub fn family(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = entries
        .filter_map(|entry| {
            let child = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (_, fields) = stat.rsplit_once(')')?;
            let parent = fields.split_whitespace().nth(1)?.parse().ok()?;
            Some((child, parent))
        })
        .collect();
    let mut family = vec![pid];
    let mut index = 0;
    while let Some(parent) = family.get(index).copied() {
        let children = parents.iter().filter(|(_, ppid)| *ppid == parent);
        let children: Vec<u32> = children.map(|(child, _)| *child).collect();
        family.extend(children.into_iter().filter(|child| *child != parent));
        index += 1;
    }
    family
}
