//! One connection of a group, which carries bytes one way.

use crate::group::frame::{HEADER_BYTES, Header, Lane};
use crate::work::Named;
use kumi_sys::fork::Private;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// Words are put before data where the host queues both (`TC_PRIO_INTERACTIVE`, band 0 of `pfifo_fast`).
const WORDS_PRIORITY: i32 = 6;

/// Low delay, for switches that look (CS6 is for networks' own control; AF41 is what an application may ask for).
const WORDS_TOS: u32 = 0x88;

/// A lost word is sent again after so long where nobody says otherwise: 200 ms is longer than most collectives.
const RTO_MIN_US: u32 = 10_000;

/// A connection of this process alone: a forked child has none.
pub type Stream = Private<TcpStream>;

/// What frames carry, and where it is.
#[derive(Debug, Clone, Copy)]
pub enum Payload {
    /// A piece of the collective under way.
    Piece(Named),
    /// A message, by name.
    Message(u64, u64),
}

impl Payload {
    fn bytes(&self) -> usize {
        match self {
            Self::Piece(named) => named.bytes as usize,
            Self::Message(_, bytes) => *bytes as usize,
        }
    }
}

#[derive(Debug)]
struct Chunk {
    head: Vec<u8>,
    payload: Option<Payload>,
    done: usize,
}

impl Chunk {
    fn bytes(&self) -> usize {
        self.head.len() + self.payload.map_or(0, |payload| payload.bytes())
    }
}

/// A connection that this rank sends on.
#[derive(Debug)]
pub struct Out {
    /// None until the peer has made it.
    stream: Option<Stream>,
    /// Whether the first of what waits is the hello.
    is_new: bool,
    chunks: VecDeque<Chunk>,
    /// Whether the poll has been asked to say when it is writable.
    pub is_watched: bool,
}

impl Out {
    /// Begins to connect; a hello goes first.
    pub fn connect(to: SocketAddr, lane: Lane, hello: &[u8]) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        set_options(&socket, lane);
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let mut out = Self {
            stream: Some(Stream::new(socket.into())),
            is_new: true,
            ..Self::awaited()
        };
        out.push(hello.to_vec(), None);
        Ok(out)
    }

    /// One that the peer is to make.
    pub fn awaited() -> Self {
        Self {
            stream: None,
            is_new: false,
            chunks: VecDeque::new(),
            is_watched: false,
        }
    }

    /// Goes on with what waits on a connection that the peer has made.
    pub fn adopt(&mut self, stream: Stream, lane: Lane) {
        set_options(&SockRef::from(&*stream), lane);
        if std::mem::take(&mut self.is_new) {
            self.chunks.pop_front();
        }
        self.stream = Some(stream);
    }

    /// The connection, if there is one.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// The same, of one that nothing more is to be sent on.
    pub fn into_stream(self) -> Option<Stream> {
        self.stream
    }

    /// Whether the peer has been reached.
    pub fn has_begun(&self) -> bool {
        self.stream.is_some() && !self.is_new
    }

    /// Adds a frame.
    pub fn push(&mut self, head: Vec<u8>, payload: Option<Payload>) {
        self.chunks.push_back(Chunk {
            head,
            payload,
            done: 0,
        });
    }

    /// What waits to be written, of words.
    pub fn waiting_bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::bytes).sum()
    }

    /// Whether nothing waits.
    pub fn is_idle(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Whether the peer's kernel has all.
    pub fn is_acknowledged(&self) -> bool {
        let Some(stream) = &self.stream else {
            return false;
        };
        let standing = kumi_sys::tcp::standing(stream.as_fd());
        self.is_idle() && standing.is_ok_and(|standing| standing.unacked == 0)
    }

    /// Writes what the kernel takes. Messages that are wholly written, by name.
    pub fn flush<'a>(
        &mut self,
        read: impl Fn(&Payload) -> Option<&'a [u8]>,
    ) -> io::Result<Vec<u64>> {
        let mut sent = Vec::new();
        let Some(stream) = &mut self.stream else {
            return Ok(sent);
        };
        while let Some(chunk) = self.chunks.front_mut() {
            let payload = match &chunk.payload {
                Some(payload) => read(payload).unwrap_or_default(),
                None => &[],
            };
            let head = chunk.head.get(chunk.done..).unwrap_or_default();
            let rest = payload.get(chunk.done.saturating_sub(chunk.head.len())..);
            let parts = [IoSlice::new(head), IoSlice::new(rest.unwrap_or_default())];
            match stream.write_vectored(&parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(wrote) => chunk.done += wrote,
                Err(error) if is_later(&error) => break,
                Err(error) => return Err(error),
            }
            if chunk.done == chunk.bytes() {
                if let Some(Payload::Message(name, _)) = chunk.payload {
                    sent.push(name);
                }
                self.is_new = false;
                self.chunks.pop_front();
            }
        }
        Ok(sent)
    }

    /// Forgets pieces of a collective that is over; what has begun to go is filled up with zeros.
    pub fn forget_pieces(&mut self) {
        let is_piece = |chunk: &Chunk| matches!(chunk.payload, Some(Payload::Piece(_)));
        self.chunks
            .retain(|chunk| !is_piece(chunk) || chunk.done > 0);
        for chunk in self.chunks.iter_mut().filter(|chunk| is_piece(chunk)) {
            let bytes = chunk.bytes();
            chunk.head.resize(bytes, 0);
            chunk.payload = None;
        }
    }

    /// Whether the peer has closed its end. It never sends anything.
    pub fn is_closed(&mut self) -> bool {
        let stream = self.stream.as_mut();
        stream.is_some_and(|stream| take(stream, &mut [0]) != Took::Nothing)
    }

    /// A packet is sent no sooner than the path's slowest link has passed the one before.
    pub fn set_pace(&self, bytes_per_s: u64) {
        // Without it bursts are what the window lets go.
        if let Some(stream) = &self.stream {
            let _ = kumi_sys::tcp::set_pacing_rate_max(stream.as_fd(), bytes_per_s);
        }
    }
}

/// What a lane asks of the kernel, as far as it grants it.
fn set_options(socket: &Socket, lane: Lane) {
    let _ = socket.set_tcp_nodelay(true);
    let _ = kumi_sys::tcp::set_rto_min_us(socket.as_fd(), RTO_MIN_US);
    if lane == Lane::Words {
        let _ = socket.set_tos_v4(WORDS_TOS);
        let _ = nix::sys::socket::setsockopt(
            socket,
            nix::sys::socket::sockopt::Priority,
            &WORDS_PRIORITY,
        );
    }
}

/// Whether there is nothing to do for now.
fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected | io::ErrorKind::Interrupted
    )
}

/// What has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// So many bytes.
    Bytes(usize),
    /// None, for now.
    Nothing,
    /// The peer has closed it, or it broke.
    End,
}

/// A connection that another rank sends on.
#[derive(Debug)]
pub struct In {
    stream: Stream,
    /// What it carries.
    pub lane: Lane,
    /// The membership it belongs to.
    pub term: u32,
    head: [u8; HEADER_BYTES],
    have: usize,
    /// The frame that is being read.
    pub header: Option<Header>,
    /// Of what follows it, what has been read.
    pub done: usize,
    /// What is read that has no place.
    pub scratch: Vec<u8>,
    /// Whether it waits for a place, and is not polled.
    pub is_paused: bool,
    /// Bytes from which on the kernel calls it readable.
    enough: u32,
}

/// Half of what a connection's buffer has room for from the beginning.
const ENOUGH_BYTES_MAX: u64 = 32 << 10;

impl In {
    pub fn new(stream: Stream, lane: Lane, term: u32) -> Self {
        // Answers go by other connections.
        let _ = SockRef::from(&*stream).set_tcp_nodelay(true);
        Self {
            stream,
            lane,
            term,
            head: [0; HEADER_BYTES],
            have: 0,
            header: None,
            done: 0,
            scratch: Vec::new(),
            is_paused: false,
            enough: 1,
        }
    }

    /// Reads on in a header. `Err` if it is none.
    pub fn read_header(&mut self) -> Result<Took, [u8; HEADER_BYTES]> {
        let took = take(&mut self.stream, &mut self.head[self.have..]);
        if let Took::Bytes(bytes) = took {
            self.have += bytes;
        }
        if self.have == HEADER_BYTES {
            self.have = 0;
            self.done = 0;
            self.header = Some(Header::parse(&self.head, self.lane).ok_or(self.head)?);
        }
        Ok(took)
    }

    /// Is readable when the rest of the frame has come that has begun to, or a frame of so many bytes if it is known to be
    /// the next: or this thread would be woken for each packet.
    pub fn wait_for(&mut self, next_bytes: Option<u64>) {
        let rest = match (&self.header, next_bytes) {
            (Some(header), _) => header.bytes - self.done as u64,
            (None, Some(bytes)) => (HEADER_BYTES - self.have) as u64 + bytes,
            (None, None) => 1,
        };
        let enough = rest.clamp(1, ENOUGH_BYTES_MAX) as u32;
        if enough != self.enough {
            let set = kumi_sys::tcp::set_receive_low_water(self.stream.as_fd(), enough);
            self.enough = if set.is_ok() { enough } else { 0 };
        }
    }

    /// Reads on in what follows, to its place.
    pub fn read_into(&mut self, place: &mut [u8]) -> Took {
        let took = take(&mut self.stream, &mut place[self.done..]);
        if let Took::Bytes(bytes) = took {
            self.done += bytes;
        }
        took
    }

    /// Reads on in what follows, to scratch.
    pub fn read_scratch(&mut self, bytes: usize) -> Took {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(bytes, 0);
        let took = self.read_into(&mut scratch);
        self.scratch = scratch;
        took
    }

    /// Reads on in what follows, to nowhere.
    pub fn discard(&mut self, bytes: u64) -> Took {
        let mut nowhere = [0; 16 << 10];
        let left = (bytes - self.done as u64).min(nowhere.len() as u64) as usize;
        let took = take(&mut self.stream, &mut nowhere[..left]);
        if let Took::Bytes(bytes) = took {
            self.done += bytes;
        }
        took
    }
}

impl AsFd for In {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Reads what there is.
pub fn take(stream: &mut TcpStream, place: &mut [u8]) -> Took {
    if place.is_empty() {
        return Took::Bytes(0);
    }
    match stream.read(place) {
        Ok(0) => Took::End,
        Ok(bytes) => Took::Bytes(bytes),
        Err(error) if is_later(&error) => Took::Nothing,
        Err(_) => Took::End,
    }
}
