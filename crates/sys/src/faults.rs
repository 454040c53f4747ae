//! Accesses that the kernel refuses, handled on the thread that made them.
//!
//! [`handle`] installs one handler for SIGBUS and SIGSEGV. An address that it does not know goes to
//! the handler of before, so that a real fault ends the process as it would have.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::io;
use std::sync::OnceLock;

/// Handles an access to an address. Returns whether the access may be tried again.
///
/// It runs within a signal handler, between two instructions of the program. It may take only locks
/// that no thread holds while it accesses such memory.
pub type Handler = fn(address: usize) -> bool;

static HANDLER: OnceLock<Handler> = OnceLock::new();
static BEFORE: OnceLock<[SigAction; 2]> = OnceLock::new();

const SIGNALS: [Signal; 2] = [Signal::SIGBUS, Signal::SIGSEGV];

/// Installs the handler of this process. A second call changes nothing.
///
/// # Errors
/// The kernel's error.
pub fn handle(handler: Handler) -> io::Result<()> {
    if HANDLER.set(handler).is_err() {
        return Ok(());
    }
    // The thread's own stack is used: an alternative one may be too short. Other signals may
    // arrive meanwhile.
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_NODEFER;
    let action = SigAction::new(SigHandler::SigAction(on_signal), flags, SigSet::empty());
    let mut before = [action; 2];
    for (signal, before) in SIGNALS.into_iter().zip(&mut before) {
        // SAFETY: `on_signal` is a handler for as long as the process runs, and restores errno.
        *before = unsafe { sigaction(signal, &action) }?;
    }
    let _ = BEFORE.set(before);
    Ok(())
}

extern "C" fn on_signal(
    number: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: errno belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes valid information. Both signals have an address in it; for one that
    // a process has sent, the address is some number that no handler knows.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    // A positive code is the kernel's own.
    let is_handled = code > 0 && HANDLER.get().is_some_and(|handler| handler(address));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !is_handled {
        pass_on(number, info, context);
    }
}

/// Calls the handler of before. The default one ends the process when the access is tried again.
fn pass_on(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let index = SIGNALS.iter().position(|signal| *signal as i32 == number);
    let before = index.and_then(|index| Some(&BEFORE.get()?[index]));
    match before.map(SigAction::handler) {
        Some(SigHandler::SigAction(handler)) => handler(number, info, context),
        Some(SigHandler::Handler(handler)) => handler(number),
        _ => {
            let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            if let Some(index) = index {
                // SAFETY: the default action needs no code.
                let _ = unsafe { sigaction(SIGNALS[index], &action) };
            }
        }
    }
}
