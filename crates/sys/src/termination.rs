//! Receives the signals that ask the process to end, through a handler. Blocking the signals would
//! block them in started programs too.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// The pipe to which the handler writes a signal's number.
static NOTES: AtomicI32 = AtomicI32::new(-1);

/// Records `number` for [`Termination::next`].
extern "C" fn note(number: libc::c_int) {
    let byte = number as u8;
    // SAFETY: write(2) is async-signal-safe and reads one byte of this frame. errno is restored,
    // because the interrupted code may be about to read it.
    unsafe {
        let errno = libc::__errno_location();
        let saved_errno = *errno;
        libc::write(NOTES.load(Ordering::Relaxed), (&raw const byte).cast(), 1);
        *errno = saved_errno;
    }
}

/// SIGINT, SIGTERM and SIGHUP, received as values.
#[derive(Debug)]
pub struct Termination {
    notes: OwnedFd,
}

impl Termination {
    /// Records the three signals instead of letting them end the process. SIGHUP stays ignored if
    /// it was, as under nohup. To be called once per process.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn watch() -> io::Result<Self> {
        let (notes, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        // The handler must never block. A full pipe holds enough signals.
        nix::fcntl::fcntl(
            &writer,
            nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
        )?;
        let writer: RawFd = std::os::fd::IntoRawFd::into_raw_fd(writer);
        NOTES.store(writer, Ordering::Relaxed);
        let action = SigAction::new(
            SigHandler::Handler(note),
            SaFlags::SA_RESTART,
            SigSet::empty(),
        );
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // SAFETY: the handler calls nothing but write(2) on a descriptor that stays open.
            let previous = unsafe { sigaction(signal, &action) }?;
            if signal == Signal::SIGHUP && matches!(previous.handler(), SigHandler::SigIgn) {
                // SAFETY: the previous action is not a handler of this process.
                unsafe { sigaction(signal, &previous) }?;
            }
        }
        Ok(Self { notes })
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    /// The pipe cannot be read.
    pub fn next(&self) -> io::Result<Signal> {
        let mut byte = [0];
        loop {
            match nix::unistd::read(&self.notes, &mut byte) {
                Ok(1) => return Ok(Signal::try_from(i32::from(byte[0]))?),
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Sends `signal` to the process of a pidfd, which cannot be confused with another process of the
/// same number.
///
/// # Errors
/// The process has ended.
pub fn send(process: &OwnedFd, signal: Signal) -> io::Result<()> {
    // SAFETY: pidfd_send_signal takes integers and, here, no memory of this process.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal as libc::c_int,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if sent == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn termination__signal_to_this_process__is_reported_and_a_child_still_dies_by_a_signal() {
        let termination = Termination::watch().unwrap();
        nix::sys::signal::raise(Signal::SIGTERM).unwrap();
        assert_eq!(termination.next().unwrap(), Signal::SIGTERM);
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        send(&crate::process::pidfd(child.id()).unwrap(), Signal::SIGINT).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(2)
        );
    }
}
