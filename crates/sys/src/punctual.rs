//! A thread that must wake on time.

use std::io;

/// Puts the calling thread under SCHED_FIFO with `priority` (1 to 99). It must sleep often: the
/// kernel stops real-time threads that do not for 50 ms of every second.
///
/// # Errors
/// Without CAP_SYS_NICE; the thread stays as it was.
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

/// What `sched_setattr` takes (linux/sched/types.h, first version).
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

/// Gives the calling thread, under the ordinary scheduler, the weight of `nice` and turns of `slice_ns`
/// (100 us to 100 ms; Linux 6.12 and later, ignored before): who asks for short turns gets them soon.
///
/// # Errors
/// Without CAP_SYS_NICE for a negative `nice`; the thread stays as it was.
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

/// Lets the calling thread's timers run to the nanosecond instead of 50 us late.
pub fn forgo_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory. It cannot fail for 1 ns, and
    // if it did the thread would only be less punctual, which is measured.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}
