//! Measures the path to a node that runs [`serve`]: round trips and goodput.

use crate::node::{Node, WindError};
use crate::protocol::{Atomic, Class, Operation, PeerId, Place};
use std::time::{Duration, Instant};

/// Length of the region that [`serve`] registers for a peer that asks, in bytes.
pub const REGION_BYTES: usize = 16 << 20;

/// First byte of a message to [`serve`].
const ASK_PLACE: u8 = b'?';
const ECHO: u8 = b'e';
const DISCARD: u8 = b'd';

/// Bytes that a sender of messages lets wait.
const BACKLOG_BYTES: u64 = 1 << 20;

/// Time after which a program that waits for an answer looks whether the peer is lost.
const LOOK: Duration = Duration::from_millis(20);

/// Time limit of one answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Answers measurements until `is_ended` returns true.
///
/// # Errors
/// The region cannot be registered.
pub fn serve(node: &Node, is_ended: impl Fn() -> bool) -> Result<(), WindError> {
    let region = node.register(REGION_BYTES)?;
    while !is_ended() {
        let Some(received) = node.receive(Some(Duration::from_millis(100))) else {
            continue;
        };
        let peer = received.peer;
        // A peer that is lost meanwhile needs no answer.
        let _ = match received.message.data.first() {
            Some(&ASK_PLACE) => offer(node, peer, region.place(0)),
            Some(&ECHO) => {
                let sent = node.send_bytes(peer, Class::Ordered, received.message.data);
                sent.map(drop)
            }
            _ => continue,
        };
    }
    Ok(())
}

/// Sends a place to a peer that asks with [`place`].
///
/// # Errors
/// The peer is lost.
pub fn offer(node: &Node, peer: PeerId, place: Place) -> Result<(), WindError> {
    node.send_bytes(peer, Class::Ordered, to_bytes(&place))?;
    Ok(())
}

fn to_bytes(place: &Place) -> Vec<u8> {
    let region = place.region.to_be_bytes();
    [&region[..], &place.key, &place.offset.to_be_bytes()].concat()
}

fn parse_place(bytes: &[u8]) -> Option<Place> {
    let (region, rest) = bytes.split_first_chunk()?;
    let (key, rest) = rest.split_first_chunk()?;
    Some(Place {
        region: u32::from_be_bytes(*region),
        key: *key,
        offset: u64::from_be_bytes(rest.try_into().ok()?),
    })
}

/// Asks a server for the place of its region.
///
/// # Errors
/// The peer is lost, or is no server.
pub fn place(node: &Node, peer: PeerId) -> Result<Place, WindError> {
    node.send_bytes(peer, Class::Ordered, vec![ASK_PLACE])?;
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        if let Some(answer) = node.receive(Some(LOOK)) {
            return parse_place(&answer.message.data).ok_or(WindError::Late(LIMIT));
        }
        // No message of a lost peer arrives any more.
        node.check(peer)?;
    }
    Err(WindError::Late(LIMIT))
}

/// An exchange whose time is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// A synchronous message: the time until it is placed in the peer's memory.
    Synchronous,
    /// A message to the peer's program, and its answer.
    Echo,
    /// A put, until it is in the peer's memory.
    Put,
    /// A get.
    Get,
    /// A fetch and add. The length has no meaning.
    FetchAdd,
}

impl Exchange {
    /// All exchanges.
    pub const ALL: [Self; 5] = [
        Self::Synchronous,
        Self::Echo,
        Self::Put,
        Self::Get,
        Self::FetchAdd,
    ];

    /// Returns the name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous",
            Self::Echo => "echo",
            Self::Put => "put",
            Self::Get => "get",
            Self::FetchAdd => "fetch-add",
        }
    }

    fn once(self, node: &Node, peer: PeerId, place: Place, bytes: usize) -> Result<(), WindError> {
        match self {
            Self::Synchronous => {
                let sent = node.send_bytes(peer, Class::Synchronous, vec![DISCARD; bytes])?;
                node.wait_placed(peer, sent, Some(LIMIT))
            }
            Self::Echo => {
                node.send_bytes(peer, Class::Ordered, vec![ECHO; bytes])?;
                node.receive(Some(LIMIT))
                    .map(drop)
                    .ok_or(WindError::Late(LIMIT))
            }
            Self::Put => node.put(peer, place, &vec![1; bytes]),
            Self::Get => node.get(peer, place, bytes).map(drop),
            Self::FetchAdd => node.atomic(peer, place, Atomic::FetchAdd(1)).map(drop),
        }
    }
}

/// Times of an exchange.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Median of the measured times.
    pub median: Duration,
    /// 99th percentile of the measured times.
    pub p99: Duration,
}

/// Measures an exchange of `bytes` bytes, at least one, `count` times after a tenth of that for
/// warming up.
///
/// # Errors
/// The peer is lost, or refuses the place.
pub fn latency(
    node: &Node,
    peer: PeerId,
    place: Place,
    exchange: Exchange,
    bytes: usize,
    count: usize,
) -> Result<Times, WindError> {
    let bytes = bytes.clamp(1, REGION_BYTES);
    for _ in 0..count / 10 {
        exchange.once(node, peer, place, bytes)?;
    }
    let mut times = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        let began = Instant::now();
        exchange.once(node, peer, place, bytes)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(Times {
        median: times[times.len() / 2],
        p99: times[times.len() * 99 / 100],
    })
}

/// Traffic whose goodput is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Messages of a class.
    Messages(Class),
    /// Puts, of at most one datagram each.
    Puts,
}

/// Sends messages or puts of `bytes` bytes for `time`. Returns the goodput, in bytes per second,
/// until the last one has arrived.
///
/// # Errors
/// The peer is lost, or refuses the place.
pub fn goodput(
    node: &Node,
    peer: PeerId,
    place: Place,
    stream: Stream,
    bytes: usize,
    time: Duration,
) -> Result<f64, WindError> {
    let bytes_max = match stream {
        Stream::Messages(_) => usize::MAX,
        Stream::Puts => REGION_BYTES,
    };
    let bytes = bytes.clamp(1, bytes_max);
    let limit = Some(LIMIT.max(time));
    let began = Instant::now();
    let mut sent = 0_u64;
    while began.elapsed() < time {
        // The clock is read once for several short ones.
        for _ in 0..(16_384 / bytes).max(1) {
            match stream {
                Stream::Messages(class) => {
                    let message = node.send_bytes(peer, class, vec![DISCARD; bytes])?;
                    if class == Class::Synchronous {
                        node.wait_placed(peer, message, limit)?;
                    }
                }
                Stream::Puts => {
                    let put = Operation::Put(vec![1; bytes]);
                    node.post(peer, place, put)?;
                }
            }
            sent += bytes as u64;
        }
        // What waits at the end must not take longer than what was measured.
        node.drain(peer, BACKLOG_BYTES.max(4 * bytes as u64), limit)?;
    }
    node.flush(peer, limit)?;
    Ok(sent as f64 / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Config;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn measurements__of_a_local_server__give_times_and_rates() {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Arc::new(Node::bind(local, Config::new([4; 32], 1)).unwrap());
        let is_ended = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (server, is_ended) = (Arc::clone(&server), Arc::clone(&is_ended));
            move || serve(&server, || is_ended.load(Ordering::Relaxed))
        });
        let client = Node::bind(local, Config::new([4; 32], 2)).unwrap();
        let peer = client.connect(server.local_address().unwrap()).unwrap();
        let target = place(&client, peer).unwrap();
        for exchange in Exchange::ALL {
            let times = latency(&client, peer, target, exchange, 5_000, 20).unwrap();
            assert!(times.median > Duration::ZERO && times.median <= times.p99);
        }
        for stream in [Stream::Messages(Class::Unordered), Stream::Puts] {
            let time = Duration::from_millis(50);
            let rate = goodput(&client, peer, target, stream, 1_000, time).unwrap();
            assert!(rate > 1e6, "{rate} B/s");
        }
        is_ended.store(true, Ordering::Relaxed);
        thread.join().unwrap().unwrap();
    }
}
