//! Devices that have the program at their ingress, by clsact.

use crate::error::PlacementError;
use libbpf_rs::{TC_INGRESS, TcHook};
use nix::net::if_::if_nametoindex;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

/// Handle and priority of the filter, so that it is found again: `ku`.
const HANDLE: u32 = 0x6b75;
const PRIORITY: u32 = 0x6b75;

fn hook(program: BorrowedFd<'_>, device: &str) -> Result<TcHook, PlacementError> {
    // Otherwise libbpf prints what the kernel says when a device has no program yet.
    libbpf_rs::set_print(None);
    let index = if_nametoindex(device).map_err(|_| PlacementError::Device(device.to_owned()))?;
    let mut hook = TcHook::new(program);
    hook.ifindex(index as i32)
        .attach_point(TC_INGRESS)
        .handle(HANDLE)
        .priority(PRIORITY)
        .replace(true);
    Ok(hook)
}

/// Attaches the program to a device of the thread's network namespace, in place of an earlier one.
///
/// # Errors
/// No such device, or the kernel refuses.
pub fn attach(program: BorrowedFd<'_>, device: &str) -> Result<(), PlacementError> {
    let failed = |error| PlacementError::Attach {
        device: device.to_owned(),
        error,
    };
    let mut hook = hook(program, device)?;
    hook.create().map_err(failed)?;
    hook.attach().map_err(failed)?;
    Ok(())
}

/// Returns whether a device has the program.
///
/// # Errors
/// No such device.
pub fn is_attached(device: &str) -> Result<bool, PlacementError> {
    let nothing = nothing()?;
    Ok(hook(nothing.as_fd(), device)?.query().is_ok())
}

/// Removes the program from a device.
///
/// # Errors
/// No such device, or it has no program of ours.
pub fn detach(device: &str) -> Result<(), PlacementError> {
    let nothing = nothing()?;
    let mut hook = hook(nothing.as_fd(), device)?;
    hook.replace(false);
    hook.detach().map_err(|error| PlacementError::Attach {
        device: device.to_owned(),
        error,
    })
}

/// Opens a file for operations that take a descriptor and do not use it.
fn nothing() -> Result<File, PlacementError> {
    let opened = File::open("/dev/null");
    opened.map_err(|error| PlacementError::Request(format!("/dev/null: {error}")))
}
