//! Output of the command.
//!
//! Writes to standard output can fail: the disk is full, or the reader of a pipe has ended. The
//! command must not ignore that. It must also not end in the middle of its work, with a lab up or a
//! key in a file. So the first failure is kept, and later output is dropped. When everything has
//! been undone, [`end`] turns the failure into the exit status. Failures of standard error are
//! ignored.

use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// Prints to standard output, as `print!` does.
#[macro_export]
macro_rules! out {
    ($($argument:tt)*) => { $crate::output::print(format_args!($($argument)*)) };
}

/// Prints a line to standard output, as `println!` does.
#[macro_export]
macro_rules! outln {
    () => { $crate::output::print(format_args!("\n")) };
    ($($argument:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($argument)*))) };
}

/// Prints to standard error, as `eprint!` does.
#[macro_export]
macro_rules! err {
    ($($argument:tt)*) => { $crate::output::complain(format_args!($($argument)*)) };
}

/// Prints a line to standard error, as `eprintln!` does.
#[macro_export]
macro_rules! errln {
    ($($argument:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($argument)*))) };
}

/// First failure of standard output.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Standard output as a writer. It returns the errors of writes, so that a command that prints
/// without end can stop.
#[derive(Debug, Clone, Copy)]
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        note(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        note(io::stdout().flush())
    }
}

/// Prints the text of `out!` and `outln!` in one write.
pub fn print(arguments: fmt::Arguments<'_>) {
    if has_failed() {
        return;
    }
    let text = arguments.to_string();
    let _ = Output.write_all(text.as_bytes());
}

/// Prints the text of `err!` and `errln!` in one write, because other processes write to the same
/// terminal.
pub fn complain(arguments: fmt::Arguments<'_>) {
    let mut text = String::new();
    let _ = text.write_fmt(arguments);
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Returns whether a write to standard output has failed.
pub fn has_failed() -> bool {
    failure().is_some()
}

fn failure() -> std::sync::MutexGuard<'static, Option<io::Error>> {
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the error of a failed write to standard output, and returns `outcome` unchanged.
pub fn note<T>(outcome: io::Result<T>) -> io::Result<T> {
    outcome.inspect_err(|error| {
        if error.kind() != ErrorKind::Interrupted {
            let copy = error
                .raw_os_error()
                .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            failure().get_or_insert(copy);
        }
    })
}

/// Returns the exit status of a command that ended with `outcome`, and prints its error.
pub fn end(
    outcome: anyhow::Result<ExitCode>,
    failure_code: impl Fn(&anyhow::Error) -> ExitCode,
) -> ExitCode {
    let _ = Output.flush();
    let write_error = failure().take();
    let is_output_error = |error: &anyhow::Error| {
        let kind = error.root_cause().downcast_ref().map(io::Error::kind);
        write_error
            .as_ref()
            .is_some_and(|write_error| kind == Some(write_error.kind()))
    };
    let code = match &outcome {
        Ok(code) => *code,
        Err(error) if is_output_error(error) => ExitCode::FAILURE,
        Err(error) => {
            errln!("kumi: {error:#}");
            failure_code(error)
        }
    };
    match write_error {
        None => code,
        Some(error) if error.kind() == ErrorKind::BrokenPipe => {
            // SIGPIPE ends the process without a message, as for every program that does not handle
            // it. A shell reports 141.
            kumi_sys::process::end_by_broken_pipe();
            ExitCode::FAILURE
        }
        Some(error) => {
            errln!("kumi: standard output cannot be written to: {error}");
            ExitCode::FAILURE
        }
    }
}
