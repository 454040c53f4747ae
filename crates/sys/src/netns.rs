//! Runs a program inside the namespaces of another process.
//!
//! `ip netns exec` would mount a fresh `/sys`, which hides bpffs and cgroup2. Here the namespaces
//! of a holder process are entered unchanged, between `fork` and `exec`.

use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, setns};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The network, UTS and mount namespaces of one process, kept open. The namespaces exist as long as
/// this value, even if the process ends.
#[derive(Debug, Clone)]
pub struct Namespaces {
    spaces: Arc<Vec<(CloneFlags, OwnedFd)>>,
}

impl Namespaces {
    /// Opens the namespaces of process `pid`.
    ///
    /// # Errors
    /// The process has ended, or the caller may not enter its namespaces.
    pub fn of(pid: u32) -> io::Result<Self> {
        let mut spaces = Vec::new();
        // The mount namespace comes last, because entering it changes the meaning of paths.
        for (flag, name) in [
            (CloneFlags::CLONE_NEWNET, "net"),
            (CloneFlags::CLONE_NEWUTS, "uts"),
            (CloneFlags::CLONE_NEWNS, "mnt"),
        ] {
            let path = format!("/proc/{pid}/ns/{name}");
            spaces.push((flag, File::open(Path::new(&path))?.into()));
        }
        Ok(Self {
            spaces: Arc::new(spaces),
        })
    }

    /// Makes `command`'s program start inside these namespaces, in the caller's working directory
    /// if that exists there.
    pub fn enter_on_exec(&self, command: &mut Command) {
        let spaces = Arc::clone(&self.spaces);
        let enter = move || {
            let mut cwd = [0_u8; libc::PATH_MAX as usize];
            // SAFETY: `cwd` is writable for the length that is passed; `getcwd` writes a
            // NUL-terminated path into it or fails, and takes no lock.
            let has_cwd = !unsafe { libc::getcwd(cwd.as_mut_ptr().cast(), cwd.len()) }.is_null();
            for (flag, space) in spaces.iter() {
                setns(space.as_fd(), *flag)?;
            }
            if has_cwd {
                // SAFETY: `getcwd` succeeded, so `cwd` holds a NUL-terminated path. If the new
                // mount namespace lacks the directory, `/` stays the working directory.
                unsafe { libc::chdir(cwd.as_ptr().cast()) };
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes only async-signal-safe system calls
        // (getcwd, setns, chdir) on memory and descriptors that the parent made; it allocates
        // nothing and takes no lock.
        unsafe { command.pre_exec(enter) };
    }

    /// Moves the calling thread into the network namespace permanently. Sockets that it opens
    /// afterwards belong there.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN over the namespace.
    pub fn enter_net_on_thread(&self) -> io::Result<()> {
        Ok(setns(self.spaces[0].1.as_fd(), CloneFlags::CLONE_NEWNET)?)
    }
}

/// Makes `command`'s program and its descendants avoid the processor with this number, if they may
/// use another one.
pub fn avoid_processor_on_exec(command: &mut Command, processor: usize) {
    let avoid = move || {
        let this_thread = nix::unistd::Pid::from_raw(0);
        let mut usable = sched_getaffinity(this_thread)?;
        usable.unset(processor)?;
        let is_any_left = (0..CpuSet::count()).any(|cpu| usable.is_set(cpu).unwrap_or(false));
        if is_any_left {
            sched_setaffinity(this_thread, &usable)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls on a value of its own; it
    // allocates nothing and takes no lock.
    unsafe { command.pre_exec(avoid) };
}

/// Makes `command`'s program lead a session of its own, so that the terminal's Ctrl-C does not
/// reach it.
pub fn new_session_on_exec(command: &mut Command) {
    let detach = || {
        nix::unistd::setsid()?;
        Ok(())
    };
    // SAFETY: setsid is async-signal-safe, and the closure does nothing else.
    unsafe { command.pre_exec(detach) };
}
