//! Makes a thread wake on time.

use std::io;

/// Puts the calling thread under SCHED_FIFO with `priority` (1 to 99). It must sleep often: the
/// kernel suspends a real-time thread that does not sleep, for 50 ms of every second.
///
/// # Errors
/// Without CAP_SYS_NICE; the thread stays unchanged.
pub fn become_realtime(priority: i32) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sched_param.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = priority;
    // SAFETY: `parameter` is alive; thread 0 is the caller.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Argument of `sched_setattr` (linux/sched/types.h, first version).
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Gives the calling thread, under the ordinary scheduler, the weight of `nice` and time slices of
/// `slice_ns`. Slices may be 100 µs to 100 ms (Linux 6.12; ignored before). A thread with short
/// slices is scheduled sooner.
///
/// # Errors
/// Without CAP_SYS_NICE for a negative `nice`; the thread stays unchanged.
pub fn become_brisk(nice: i32, slice_ns: u64) -> io::Result<()> {
    let attributes = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime: slice_ns,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the call reads `size` bytes of `attributes`, which live until it returns.
    let status = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets the calling thread's timer slack to 1 ns, instead of 50 µs.
pub fn forgo_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory. It cannot fail for 1 ns. A
    // failure would only make the thread less punctual, which is measured.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}
