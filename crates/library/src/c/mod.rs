//! The C interface: `bindings/c/kumi_coll.h` for plans, `bindings/c/kumi_group.h` for groups that
//! execute them, `bindings/c/kumi_wind.h` for Wind, `bindings/c/kumi_ranks.h` for ranks that it
//! connects, and `bindings/c/kumi_dsm.h` for shared memory.

#![allow(unsafe_code)]

mod dsm;
mod group;
mod plans;
mod ranks;
mod spans;
mod version;
mod wind;

pub use version::SizeError;

use std::ffi::{CStr, c_char};
use std::ptr;

/// Writes a message and its terminating zero, cut to fit.
///
/// # Safety
/// `error` is null or has room for `error_bytes`.
unsafe fn write_message(message: &dyn std::fmt::Display, error: *mut c_char, error_bytes: usize) {
    if error.is_null() || error_bytes == 0 {
        return;
    }
    let message = message.to_string();
    let bytes = &message.as_bytes()[..message.len().min(error_bytes - 1)];
    // SAFETY: the caller guarantees room for `error_bytes`, and no more are written.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), error.cast(), bytes.len());
        error.add(bytes.len()).write(0);
    }
}

/// Returns a string, or `None` for a null pointer.
///
/// # Safety
/// `text` is null or a string.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller guarantees it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Returns the message that `call` writes into the buffer that it gets.
#[cfg(test)]
fn message_of(call: impl FnOnce(*mut c_char, usize)) -> String {
    let mut error = [0; 512];
    call(error.as_mut_ptr(), error.len());
    // SAFETY: `write_message` ends a message with a zero, and the buffer begins with one.
    let message = unsafe { CStr::from_ptr(error.as_ptr()) };
    message.to_string_lossy().into_owned()
}

/// Converts a rank. A negative number becomes `usize::MAX`, which is out of range.
fn index(number: i32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
