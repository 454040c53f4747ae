//! The C interface: `bindings/c/kumi_coll.h` of plans, `bindings/c/kumi_group.h` of groups that carry them out.

#![allow(unsafe_code)]

mod group;
mod plans;
mod spans;
mod version;

pub use version::SizeError;

use std::ffi::{CStr, c_char};
use std::ptr;

/// Writes a message, cut to fit, with its zero.
///
/// # Safety
/// `error` is null, or has room for `error_bytes`.
unsafe fn say(message: &dyn std::fmt::Display, error: *mut c_char, error_bytes: usize) {
    if error.is_null() || error_bytes == 0 {
        return;
    }
    let message = message.to_string();
    let bytes = &message.as_bytes()[..message.len().min(error_bytes - 1)];
    // SAFETY: the caller says that there is room for `error_bytes`, of which this takes at most all.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), error.cast(), bytes.len());
        error.add(bytes.len()).write(0);
    }
}

/// A string, if there is one.
///
/// # Safety
/// `text` is null or a string.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as the caller says.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// A rank's number; what is negative is beyond all.
fn index(number: i32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
