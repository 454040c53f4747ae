//! One unidirectional connection of a group.

use crate::group::frame::{Channel, HEADER_BYTES, Header};
use crate::work::CallerStep;
use kumi_sys::fork::Private;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// Queueing priority of control messages on the host (`TC_PRIO_INTERACTIVE`, band 0 of
/// `pfifo_fast`). They overtake data.
const CONTROL_PRIORITY: i32 = 6;

/// TOS of control messages (AF41), for switches that honour it. CS6 is for the networks' own
/// control traffic; AF41 is open to applications.
const CONTROL_TOS: u32 = 0x88;

/// Floor of the retransmission timeout, in microseconds. A lost control message would otherwise
/// wait for Linux's default of 200 ms, which is longer than most collectives.
const RTO_MIN_US: u32 = 10_000;

/// Connection that a forked child does not inherit.
pub type Stream = Private<TcpStream>;

/// Payload of a frame, by reference.
#[derive(Debug, Clone, Copy)]
pub enum Payload {
    /// Chunk of the active collective.
    Chunk(CallerStep),
    /// Point-to-point message, by its name and its length in bytes.
    Message(u64, u64),
}

impl Payload {
    fn bytes(&self) -> usize {
        match self {
            Self::Chunk(step) => step.bytes as usize,
            Self::Message(_, bytes) => *bytes as usize,
        }
    }
}

#[derive(Debug)]
struct QueuedFrame {
    head: Vec<u8>,
    payload: Option<Payload>,
    written_bytes: usize,
}

impl QueuedFrame {
    fn bytes(&self) -> usize {
        self.head.len() + self.payload.map_or(0, |payload| payload.bytes())
    }
}

/// Connection on which this rank sends.
#[derive(Debug)]
pub struct OutConnection {
    /// `None` until the peer has made the connection.
    stream: Option<Stream>,
    /// True while the first queued frame is the hello.
    is_new: bool,
    frames: VecDeque<QueuedFrame>,
    /// True if epoll reports when the connection is writable.
    pub is_watched: bool,
}

impl OutConnection {
    /// Starts to connect. The hello is the first frame.
    pub fn connect(address: SocketAddr, channel: Channel, hello: &[u8]) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_nonblocking(true)?;
        set_options(&socket, channel);
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let mut connection = Self {
            stream: Some(Stream::new(socket.into())),
            is_new: true,
            ..Self::pending()
        };
        connection.push(hello.to_vec(), None);
        Ok(connection)
    }

    /// Returns a connection that the peer is to make.
    pub fn pending() -> Self {
        Self {
            stream: None,
            is_new: false,
            frames: VecDeque::new(),
            is_watched: false,
        }
    }

    /// Sends the queued frames on a connection that the peer has made. A queued hello is dropped.
    pub fn adopt(&mut self, stream: Stream, channel: Channel) {
        set_options(&SockRef::from(&*stream), channel);
        if std::mem::take(&mut self.is_new) {
            self.frames.pop_front();
        }
        self.stream = Some(stream);
    }

    /// Returns the connection, or `None` before the peer has made it.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// Returns the connection for another use. Queued frames are dropped.
    pub fn into_stream(self) -> Option<Stream> {
        self.stream
    }

    /// Returns whether the peer has been reached.
    pub fn is_established(&self) -> bool {
        self.stream.is_some() && !self.is_new
    }

    /// Queues a frame.
    pub fn push(&mut self, head: Vec<u8>, payload: Option<Payload>) {
        self.frames.push_back(QueuedFrame {
            head,
            payload,
            written_bytes: 0,
        });
    }

    /// Returns the length of the queued frames, in bytes. It is used for control messages only.
    pub fn queued_bytes(&self) -> usize {
        self.frames.iter().map(QueuedFrame::bytes).sum()
    }

    /// Returns whether no frame is queued.
    pub fn is_idle(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns whether the peer's kernel has acknowledged all bytes.
    pub fn is_acknowledged(&self) -> bool {
        let Some(stream) = &self.stream else {
            return false;
        };
        let state = kumi_sys::tcp::standing(stream.as_fd());
        self.is_idle() && state.is_ok_and(|state| state.unacked == 0)
    }

    /// Writes as much as the kernel accepts. Returns the names of the messages that are written
    /// completely.
    pub fn flush<'a>(
        &mut self,
        read: impl Fn(&Payload) -> Option<&'a [u8]>,
    ) -> io::Result<Vec<u64>> {
        let mut names = Vec::new();
        let Some(stream) = &mut self.stream else {
            return Ok(names);
        };
        while let Some(frame) = self.frames.front_mut() {
            let payload = match &frame.payload {
                Some(payload) => read(payload).unwrap_or_default(),
                None => &[],
            };
            let head = frame.head.get(frame.written_bytes..).unwrap_or_default();
            let body = payload.get(frame.written_bytes.saturating_sub(frame.head.len())..);
            let parts = [IoSlice::new(head), IoSlice::new(body.unwrap_or_default())];
            match stream.write_vectored(&parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => frame.written_bytes += bytes,
                Err(error) if is_retryable(&error) => break,
                Err(error) => return Err(error),
            }
            if frame.written_bytes == frame.bytes() {
                if let Some(Payload::Message(name, _)) = frame.payload {
                    names.push(name);
                }
                self.is_new = false;
                self.frames.pop_front();
            }
        }
        Ok(names)
    }

    /// Drops the queued chunks of a collective that has ended. The rest of a chunk that is partly
    /// written becomes zeros, which keeps the framing.
    pub fn drop_chunks(&mut self) {
        let is_chunk = |frame: &QueuedFrame| matches!(frame.payload, Some(Payload::Chunk(_)));
        self.frames
            .retain(|frame| !is_chunk(frame) || frame.written_bytes > 0);
        for frame in self.frames.iter_mut().filter(|frame| is_chunk(frame)) {
            let bytes = frame.bytes();
            frame.head.resize(bytes, 0);
            frame.payload = None;
        }
    }

    /// Returns whether the peer has closed its end. A peer never sends on this connection.
    pub fn is_closed(&mut self) -> bool {
        let stream = self.stream.as_mut();
        stream.is_some_and(|stream| read_available(stream, &mut [0]) != ReadOutcome::WouldBlock)
    }

    /// Limits the sending rate, so that packets leave no faster than the path's slowest link passes
    /// them.
    pub fn set_pace(&self, bytes_per_s: u64) {
        // If the kernel refuses, the window alone limits bursts.
        if let Some(stream) = &self.stream {
            let _ = kumi_sys::tcp::set_pacing_rate_max(stream.as_fd(), bytes_per_s);
        }
    }
}

/// Sets the socket options of a connection. Options that the kernel refuses are left out.
fn set_options(socket: &Socket, channel: Channel) {
    let _ = socket.set_tcp_nodelay(true);
    let _ = kumi_sys::tcp::set_rto_min_us(socket.as_fd(), RTO_MIN_US);
    if channel == Channel::Control {
        let _ = socket.set_tos_v4(CONTROL_TOS);
        let _ = nix::sys::socket::setsockopt(
            socket,
            nix::sys::socket::sockopt::Priority,
            &CONTROL_PRIORITY,
        );
    }
}

/// Returns whether an error only means that the call must be repeated later.
fn is_retryable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected | io::ErrorKind::Interrupted
    )
}

/// Outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Number of bytes read.
    Bytes(usize),
    /// No bytes are available now.
    WouldBlock,
    /// The peer has closed the connection, or it failed.
    End,
}

/// Connection on which another rank sends.
#[derive(Debug)]
pub struct InConnection {
    stream: Stream,
    /// Kind of the frames that it carries.
    pub channel: Channel,
    /// Term to which it belongs.
    pub term: u32,
    head: [u8; HEADER_BYTES],
    head_bytes: usize,
    /// Header of the frame that is being read.
    pub header: Option<Header>,
    /// Bytes of the current body that have been read.
    pub read_bytes: usize,
    /// Buffer for bodies that have no destination of their own.
    pub scratch: Vec<u8>,
    /// True if it waits for a destination. It is not polled meanwhile.
    pub is_paused: bool,
    /// Value of `SO_RCVLOWAT`, in bytes; 0 if it is unknown.
    low_water_bytes: u32,
}

/// Maximum of `SO_RCVLOWAT`, in bytes: half of a connection's initial buffer.
const LOW_WATER_BYTES_MAX: u64 = 32 << 10;

impl InConnection {
    pub fn new(stream: Stream, channel: Channel, term: u32) -> Self {
        // Replies use other connections.
        let _ = SockRef::from(&*stream).set_tcp_nodelay(true);
        Self {
            stream,
            channel,
            term,
            head: [0; HEADER_BYTES],
            head_bytes: 0,
            header: None,
            read_bytes: 0,
            scratch: Vec::new(),
            is_paused: false,
            low_water_bytes: 1,
        }
    }

    /// Reads more of a header. Returns the bytes as an error if they are not a valid header.
    pub fn read_header(&mut self) -> Result<ReadOutcome, [u8; HEADER_BYTES]> {
        let outcome = read_available(&mut self.stream, &mut self.head[self.head_bytes..]);
        if let ReadOutcome::Bytes(bytes) = outcome {
            self.head_bytes += bytes;
        }
        if self.head_bytes == HEADER_BYTES {
            self.head_bytes = 0;
            self.read_bytes = 0;
            self.header = Some(Header::parse(&self.head, self.channel).ok_or(self.head)?);
        }
        Ok(outcome)
    }

    /// Sets `SO_RCVLOWAT` so that epoll wakes the thread once per frame, not per packet
    /// (`docs/perf-log.md`, 2026-11-23). It waits for the rest of the current frame, or for the
    /// next frame if `next_bytes` gives its body.
    pub fn set_low_water(&mut self, next_bytes: Option<u64>) {
        let missing_bytes = match (&self.header, next_bytes) {
            (Some(header), _) => header.bytes - self.read_bytes as u64,
            (None, Some(bytes)) => (HEADER_BYTES - self.head_bytes) as u64 + bytes,
            (None, None) => 1,
        };
        let low_water_bytes = missing_bytes.clamp(1, LOW_WATER_BYTES_MAX) as u32;
        if low_water_bytes != self.low_water_bytes {
            let result = kumi_sys::tcp::set_receive_low_water(self.stream.as_fd(), low_water_bytes);
            self.low_water_bytes = if result.is_ok() { low_water_bytes } else { 0 };
        }
    }

    /// Reads more of a body into its destination.
    pub fn read_into(&mut self, buffer: &mut [u8]) -> ReadOutcome {
        let outcome = read_available(&mut self.stream, &mut buffer[self.read_bytes..]);
        if let ReadOutcome::Bytes(bytes) = outcome {
            self.read_bytes += bytes;
        }
        outcome
    }

    /// Reads more of a body into `scratch`.
    pub fn read_scratch(&mut self, bytes: usize) -> ReadOutcome {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(bytes, 0);
        let outcome = self.read_into(&mut scratch);
        self.scratch = scratch;
        outcome
    }

    /// Reads and drops more of a body.
    pub fn discard(&mut self, bytes: u64) -> ReadOutcome {
        let mut sink = [0; 16 << 10];
        let remaining = (bytes - self.read_bytes as u64).min(sink.len() as u64) as usize;
        let outcome = read_available(&mut self.stream, &mut sink[..remaining]);
        if let ReadOutcome::Bytes(bytes) = outcome {
            self.read_bytes += bytes;
        }
        outcome
    }
}

impl AsFd for InConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Reads the bytes that are available.
pub fn read_available(stream: &mut TcpStream, buffer: &mut [u8]) -> ReadOutcome {
    if buffer.is_empty() {
        return ReadOutcome::Bytes(0);
    }
    match stream.read(buffer) {
        Ok(0) => ReadOutcome::End,
        Ok(bytes) => ReadOutcome::Bytes(bytes),
        Err(error) if is_retryable(&error) => ReadOutcome::WouldBlock,
        Err(_) => ReadOutcome::End,
    }
}
