//! Socket options of TCP that the standard library has not.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Names the congestion control of a socket.
///
/// # Errors
/// There is none of that name, or it is not for everybody.
pub fn set_congestion_control(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: `name` is readable for the length passed; the kernel copies it and needs no NUL.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Segments that a connection has sent again since it began (`tcpi_total_retrans`).
///
/// # Errors
/// It is no TCP socket.
pub fn retransmits(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: `tcp_info` is a structure of integers: zeroes are a value of it.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is writable for `length` bytes, of which the kernel writes no more than it knows.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            std::ptr::from_mut(&mut info).cast(),
            &mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info.tcpi_total_retrans)
}
