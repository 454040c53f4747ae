//! TCP socket options that the standard library lacks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets the congestion control of a socket.
///
/// # Errors
/// The name is unknown, or only privileged users may choose it.
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

/// Limits the sending rate to `bytes_per_s` (`SO_MAX_PACING_RATE`).
///
/// # Errors
/// The descriptor is not a socket.
pub fn set_pacing_rate_max(socket: BorrowedFd<'_>, bytes_per_s: u64) -> io::Result<()> {
    set_option(
        socket,
        libc::SOL_SOCKET,
        libc::SO_MAX_PACING_RATE,
        bytes_per_s,
    )
}

/// Option number of `linux/tcp.h` since 6.15 (kernel commit f38805c5d26f).
const TCP_RTO_MIN_US: libc::c_int = 45;

/// Sets the floor of the retransmission timeout, in microseconds.
///
/// # Errors
/// The kernel is older than 6.15.
pub fn set_rto_min_us(socket: BorrowedFd<'_>, us: u32) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, TCP_RTO_MIN_US, us)
}

/// Makes a socket readable only when `bytes` have arrived, or at its end (`SO_RCVLOWAT`). `epoll`
/// honours it for TCP since Linux 4.17.
///
/// # Errors
/// The descriptor is not a socket.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: `value` is readable for its size, and the kernel copies it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// State of a connection, from `TCP_INFO`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Segments retransmitted since the connection began (`tcpi_total_retrans`).
    pub retransmits: u32,
    /// Segments sent and not acknowledged (`tcpi_unacked`).
    pub unacked: u32,
    /// Bytes acknowledged since the connection began (`tcpi_bytes_acked`).
    pub acked_bytes: u64,
    /// Smoothed round-trip time, in microseconds (`tcpi_rtt`).
    pub round_trip_us: u32,
}

/// Size of `struct tcp_info` up to `tcpi_bytes_acked`, in bytes. Its offsets are kernel ABI, and it
/// only grows.
const INFO_BYTES: usize = 128;

/// Reads the state of a connection.
///
/// # Errors
/// The descriptor is not a TCP socket.
pub fn standing(socket: BorrowedFd<'_>) -> io::Result<Standing> {
    let mut info = [0_u8; INFO_BYTES];
    let mut length = INFO_BYTES as libc::socklen_t;
    // SAFETY: `info` is writable for `length` bytes, and the kernel writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let u32_at = |offset| u32::from_ne_bytes(bytes_at(&info, offset));
    Ok(Standing {
        unacked: u32_at(24),
        round_trip_us: u32_at(68),
        retransmits: u32_at(100),
        acked_bytes: u64::from_ne_bytes(bytes_at(&info, 120)),
    })
}

fn bytes_at<const N: usize>(info: &[u8; INFO_BYTES], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&info[offset..offset + N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn standing__answered_message__is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has one");
        let mut client = TcpStream::connect(address).expect("it listens");
        let (mut server, _) = listener.accept().expect("somebody comes");
        client.write_all(&[1; 1000]).expect("there is room");
        server.read_exact(&mut [0; 1000]).expect("they were sent");
        server.write_all(b"x").expect("there is room");
        client.read_exact(&mut [0]).expect("it was sent");
        let standing = standing(client.as_fd()).expect("it is TCP");
        // The kernel counts the SYN too.
        assert!(
            (1000..=1001).contains(&standing.acked_bytes),
            "{standing:?}"
        );
        assert_eq!((standing.unacked, standing.retransmits), (0, 0));
        assert!(standing.round_trip_us > 0);
    }
}
