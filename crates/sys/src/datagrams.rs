//! The datagrams of one receive system call.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most bytes of one receive, the limit of `UDP_GRO`.
pub const RECEIVE_BYTES_MAX: usize = 65_536;
/// Places of one receive. A message of 4 KB arrives as three datagrams; 16 places of 2 KB fit a
/// first-level cache.
pub const PLACES_MAX: usize = 16;

/// Size of the control message that `UDP_GRO` fills: a header and an int, in words of 8 bytes.
const CONTROL_WORDS: usize = 3;

/// One entry of a receive: one datagram, or several of equal length that the kernel coalesced.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// Length in bytes.
    pub bytes: usize,
    /// Length of each datagram except the last; equal to `bytes` for a single one.
    pub segment_bytes: usize,
    /// The sender.
    pub sender: SocketAddr,
}

/// A receive buffer, with the entries of the last receive.
#[derive(Debug)]
pub struct Datagrams {
    buffer: Vec<u8>,
    place_bytes: usize,
    places: usize,
    /// Most places of a receive after one that had coalesced datagrams.
    coalesced_places_max: usize,
    received: Vec<Option<Received>>,
}

impl Default for Datagrams {
    fn default() -> Self {
        Self::with_longest(1)
    }
}

impl Datagrams {
    /// Creates a buffer for `count` entries of [`RECEIVE_BYTES_MAX`], or for more that are shorter.
    /// Memory is used where datagrams are written.
    pub fn with_longest(count: usize) -> Self {
        Self {
            buffer: vec![0; count.max(1) * RECEIVE_BYTES_MAX],
            place_bytes: RECEIVE_BYTES_MAX,
            places: 1,
            coalesced_places_max: PLACES_MAX,
            received: Vec::with_capacity(PLACES_MAX),
        }
    }

    /// Limits a receive to `places` after one that had coalesced datagrams. Each place may hold
    /// 64 KB then, and datagrams of other sockets wait until they are handled.
    pub fn limit_coalesced(self, places: usize) -> Self {
        Self {
            coalesced_places_max: places,
            ..self
        }
    }

    /// Receives into places of `place_bytes`, as many as the buffer has, at most [`PLACES_MAX`].
    /// Returns `WouldBlock` if no datagram is available.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, place_bytes: usize) -> io::Result<()> {
        let is_coalesced = |entry: &Received| entry.segment_bytes < entry.bytes;
        let most = match self.received.iter().flatten().any(is_coalesced) {
            true => self.coalesced_places_max,
            false => PLACES_MAX,
        };
        self.received.clear();
        self.place_bytes = place_bytes.clamp(1, RECEIVE_BYTES_MAX);
        self.places = (self.buffer.len() / self.place_bytes).min(most);
        // SAFETY: all-zero bytes are a valid value of each of these C structures.
        let mut names: [libc::sockaddr_in6; PLACES_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut parts: [libc::iovec; PLACES_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; PLACES_MAX] = unsafe { std::mem::zeroed() };
        let mut controls = [[0u64; CONTROL_WORDS]; PLACES_MAX];
        let buffers = self.buffer.chunks_exact_mut(self.place_bytes);
        for (index, buffer) in buffers.take(self.places).enumerate() {
            parts[index].iov_base = buffer.as_mut_ptr().cast();
            parts[index].iov_len = buffer.len();
            let header = &mut messages[index].msg_hdr;
            header.msg_iov = &raw mut parts[index];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut names[index]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            header.msg_control = controls[index].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&controls[index]) as _;
        }
        // SAFETY: `places` messages are filled in. Each points at its own name, control buffer and
        // part. Each part points at its own range of `self.buffer`, with its length. All outlive
        // the call, and no other code touches them during it.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                messages.as_mut_ptr(),
                self.places as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        let filled = messages.iter().zip(&names).take(count as usize);
        self.received.extend(filled.map(|(message, name)| {
            // A datagram longer than its place is not from kumi.
            let is_complete = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let bytes = message.msg_len as usize;
            is_complete.then(|| Received {
                bytes,
                segment_bytes: coalesced_bytes(&message.msg_hdr).unwrap_or(bytes.max(1)),
                sender: sender(name),
            })
        }));
        Ok(())
    }

    /// Returns whether every place was filled, so that more datagrams may be available.
    pub fn is_full(&self) -> bool {
        self.received.len() == self.places
    }

    /// Iterates over the entries of the last receive, in order, each with its bytes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&mut [u8], Received)> {
        let places = self.buffer.chunks_exact_mut(self.place_bytes);
        let filled = places.zip(&self.received);
        filled.filter_map(|(place, received)| {
            received.map(|received| (&mut place[..received.bytes], received))
        })
    }
}

/// Returns the segment length in the control message of `UDP_GRO`, if there is one.
fn coalesced_bytes(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled in the header, and its control buffer is still there.
    let control = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    if (control.cmsg_level, control.cmsg_type) != (libc::SOL_UDP, libc::UDP_GRO) {
        return None;
    }
    // SAFETY: a message of this kind carries an int, which may be unaligned.
    let bytes = unsafe {
        libc::CMSG_DATA(control)
            .cast::<libc::c_int>()
            .read_unaligned()
    };
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

fn sender(name: &libc::sockaddr_in6) -> SocketAddr {
    let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
    SocketAddrV6::new(ip, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into()
}
