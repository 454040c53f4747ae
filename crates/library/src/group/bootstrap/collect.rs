//! Rank 0's part. It serves all connections at once, each with its own deadline. A peer that has
//! not proven the job's secret is sent nothing.

use super::{
    CARD_LIMIT, CARD_MESSAGE_BYTES, CARDS, CARDS_PER_MESSAGE, Environment, FIRST_BYTES, MAGIC,
    REFUSED,
};
use crate::group::card::{CARD_BYTES, Card};
use crate::group::channel::{ReadOutcome, read_available};
use crate::group::secret::{HANDSHAKE_BYTES, Secret, TAG_BYTES};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use snow::TransportState;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Maximum number of connections that have not sent their card, in addition to one per rank. A new
/// connection evicts the oldest of them. A rank sends its card within two round trips, so a crowd
/// of strangers would have to reconnect as fast. The first message may be a replay, so it does not
/// identify a rank.
const STRANGERS_MAX: usize = 64;

/// Maximum number of connections accepted in one turn. The rest wait, so a flood of strangers
/// cannot prolong a turn.
const ACCEPTS_MAX: usize = STRANGERS_MAX / 2;

/// Maximum time in which a rank accepts none of the bytes that it is sent.
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// Pause in accepting connections after `accept` has failed, for instance because the process has
/// no free descriptor. The listener stays readable then, so each turn would fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Maximum time between two checks of the deadlines, in milliseconds.
const TICK_MS: u16 = 50;

/// State of a connection.
enum Stage {
    /// The proof of the secret is awaited.
    Hello,
    /// The card is awaited.
    Card(Box<TransportState>),
    /// The card of this rank has arrived, and other cards are missing.
    Waiting(Box<TransportState>, usize),
    /// Cards are being sent, from this one on.
    Sending(Box<TransportState>, usize),
    /// A refusal is being sent.
    Closing,
}

struct Candidate {
    stream: TcpStream,
    address: SocketAddr,
    stage: Stage,
    /// Time at which it connected or last accepted bytes.
    progress_at: Instant,
    input: [u8; CARD_MESSAGE_BYTES],
    input_bytes: usize,
    output: Vec<u8>,
}

impl Candidate {
    /// Writes as much as the kernel accepts. Returns false if the connection is broken.
    fn write(&mut self, now: Instant) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return false,
                Ok(bytes) => {
                    self.output.drain(..bytes);
                    self.progress_at = now;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Queues the answer to the first message. Returns `None` if that message does not prove the
    /// secret.
    fn answer(&mut self, secret: &Secret) -> Option<Box<TransportState>> {
        let sealed = self.input[..FIRST_BYTES].strip_prefix(&MAGIC)?;
        let mut noise = secret.responder().ok()?;
        noise.read_message(sealed, &mut [0; HANDSHAKE_BYTES]).ok()?;
        let mut answer = [0; HANDSHAKE_BYTES];
        let bytes = noise.write_message(&[], &mut answer).ok()?;
        self.output.extend_from_slice(&answer[..bytes]);
        noise.into_transport_mode().ok().map(Box::new)
    }

    /// Returns whether the deadline of the current state has passed.
    fn is_late(&self, now: Instant) -> bool {
        let limit = match self.stage {
            Stage::Hello | Stage::Card(_) | Stage::Closing => CARD_LIMIT,
            Stage::Sending(..) => STALL_LIMIT,
            Stage::Waiting(..) => return false,
        };
        now.saturating_duration_since(self.progress_at) > limit
    }

    fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Hello | Stage::Card(_))
    }
}

/// Appends a message to `output`, sealed and preceded by its length.
fn seal(transport: &mut TransportState, message: &[u8], output: &mut Vec<u8>) {
    let mut sealed = vec![0; message.len() + TAG_BYTES];
    // Messages are shorter than Noise's limit, and fewer than its nonces.
    let bytes = transport.write_message(message, &mut sealed).unwrap_or(0);
    output.extend_from_slice(&(bytes as u16).to_le_bytes());
    output.extend_from_slice(&sealed[..bytes]);
}

fn refusal(reason: &str) -> Vec<u8> {
    let mut message = vec![REFUSED];
    message.extend_from_slice(reason.as_bytes());
    message
}

struct Collector<'a> {
    environment: &'a Environment,
    secret: &'a Secret,
    cards: Vec<Option<Vec<u8>>>,
    candidates: Vec<Candidate>,
    /// Number of connections that failed to prove the secret.
    strangers: usize,
    /// End of the pause in accepting connections that follows a failed `accept`.
    accept_pause_end: Option<Instant>,
}

pub fn collect(
    environment: &Environment,
    secret: &Secret,
    card: &[u8; CARD_BYTES],
    deadline: Instant,
) -> io::Result<Vec<Vec<u8>>> {
    let address = &environment.address;
    let listener = TcpListener::bind(address).map_err(|error| {
        let text = format!("rank 0 cannot listen at {address} (MASTER_ADDR, MASTER_PORT): {error}");
        io::Error::new(error.kind(), text)
    })?;
    listener.set_nonblocking(true)?;
    let mut collector = Collector::new(environment, secret);
    collector.cards[0] = Some(card.to_vec());
    while let Some(absent) = collector.cards.iter().position(Option::is_none) {
        if Instant::now() > deadline {
            let error = collector.timeout_error(absent);
            collector.refuse_all(&error.to_string())?;
            return Err(error);
        }
        collector.turn(Some(&listener))?;
    }
    let remaining = deadline.saturating_duration_since(Instant::now());
    collector.distribute(Instant::now() + remaining.max(STALL_LIMIT))?;
    Ok(collector.cards.into_iter().flatten().collect())
}

impl<'a> Collector<'a> {
    fn new(environment: &'a Environment, secret: &'a Secret) -> Self {
        Self {
            environment,
            secret,
            cards: vec![None; environment.ranks],
            candidates: Vec::new(),
            strangers: 0,
            accept_pause_end: None,
        }
    }

    fn timeout_error(&self, absent: usize) -> io::Error {
        let Environment { address, ranks, .. } = self.environment;
        let mut text = format!("rank {absent} of {ranks} has not connected to {address}");
        if self.strangers > 0 {
            let origin = self.secret.origin();
            let refused = match self.strangers {
                1 => "1 connection was refused: it".to_owned(),
                count => format!("{count} connections were refused: they"),
            };
            text += &format!("; {refused} did not prove the job secret (here: {origin})");
        }
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    /// Sends all cards to all waiting ranks. A rank that disconnects is noticed when the group is
    /// joined.
    fn distribute(&mut self, deadline: Instant) -> io::Result<()> {
        let now = Instant::now();
        self.candidates
            .retain(|candidate| matches!(candidate.stage, Stage::Waiting(..)));
        for candidate in &mut self.candidates {
            candidate.progress_at = now;
            candidate.stage = match std::mem::replace(&mut candidate.stage, Stage::Closing) {
                Stage::Waiting(transport, _) => Stage::Sending(transport, 0),
                stage => stage,
            };
        }
        self.serve_ready(&[]);
        while !self.candidates.is_empty() && Instant::now() < deadline {
            self.turn(None)?;
        }
        Ok(())
    }

    /// Tells all ranks that have sent their card why they do not get the others'.
    fn refuse_all(&mut self, reason: &str) -> io::Result<()> {
        let now = Instant::now();
        self.candidates
            .retain(|candidate| matches!(candidate.stage, Stage::Waiting(..)));
        for candidate in &mut self.candidates {
            candidate.progress_at = now;
            let stage = std::mem::replace(&mut candidate.stage, Stage::Closing);
            if let Stage::Waiting(mut transport, _) = stage {
                seal(&mut transport, &refusal(reason), &mut candidate.output);
            }
        }
        self.serve_ready(&[]);
        while !self.candidates.is_empty() && now.elapsed() < CARD_LIMIT {
            self.turn(None)?;
        }
        Ok(())
    }

    /// Waits for events, for a tick at most, and handles them.
    fn turn(&mut self, listener: Option<&TcpListener>) -> io::Result<()> {
        self.accept_pause_end.take_if(|end| Instant::now() >= *end);
        let listener = listener.filter(|_| self.accept_pause_end.is_none());
        let flags = |candidate: &Candidate| match candidate.output.is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLIN | PollFlags::POLLOUT,
        };
        let candidates = self.candidates.iter();
        let mut polled: Vec<PollFd<'_>> = candidates
            .map(|candidate| PollFd::new(candidate.stream.as_fd(), flags(candidate)))
            .collect();
        polled.extend(listener.map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
        match poll(&mut polled, PollTimeout::from(TICK_MS)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        self.serve_ready(&ready);
        if let Some(listener) = listener {
            self.accept(listener);
        }
        Ok(())
    }

    fn accept(&mut self, listener: &TcpListener) {
        for _ in 0..ACCEPTS_MAX {
            let (stream, address) = match listener.accept() {
                Ok(connection) => connection,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.accept_pause_end = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.make_room();
            let now = Instant::now();
            self.candidates.push(Candidate {
                stream,
                address,
                stage: Stage::Hello,
                progress_at: now,
                input: [0; CARD_MESSAGE_BYTES],
                input_bytes: 0,
                output: Vec::new(),
            });
            // A rank's first message has usually arrived. It is read now, so that the next
            // connection does not evict this one.
            if !self.serve(self.candidates.len() - 1, now) {
                self.candidates.pop();
            }
        }
    }

    /// Closes a connection for a new one if there are too many. It is the oldest that has proven
    /// nothing, or else the oldest that has not sent its card.
    fn make_room(&mut self) {
        let strangers = self
            .candidates
            .iter()
            .filter(|candidate| candidate.is_stranger());
        if strangers.count() < STRANGERS_MAX + self.cards.len() {
            return;
        }
        let is_unproven = |candidate: &Candidate| matches!(candidate.stage, Stage::Hello);
        let unproven = self.candidates.iter().position(is_unproven);
        let oldest = unproven.or_else(|| self.candidates.iter().position(Candidate::is_stranger));
        oldest.map(|oldest| self.candidates.remove(oldest));
    }

    /// Serves the connections that are ready and closes those that are late. `ready` is indexed by
    /// position. A connection beyond its end counts as ready.
    fn serve_ready(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let mut index = 0;
        let mut position = 0;
        while index < self.candidates.len() {
            let is_ready = ready.get(position).copied().unwrap_or(true);
            position += 1;
            let is_open =
                !self.candidates[index].is_late(now) && (!is_ready || self.serve(index, now));
            match is_open {
                true => index += 1,
                false => {
                    self.candidates.remove(index);
                }
            }
        }
    }

    /// Does everything that is possible on a connection. Returns false if the connection is to be
    /// closed.
    fn serve(&mut self, index: usize, now: Instant) -> bool {
        loop {
            if !self.candidates[index].write(now) || !self.fill(index) {
                return false;
            }
            let candidate = &mut self.candidates[index];
            let expected_bytes = match candidate.stage {
                Stage::Hello => FIRST_BYTES,
                Stage::Card(_) => CARD_MESSAGE_BYTES,
                // Only the end of the connection is expected.
                _ => 1,
            };
            let buffer = &mut candidate.input[candidate.input_bytes..expected_bytes];
            match read_available(&mut candidate.stream, buffer) {
                ReadOutcome::WouldBlock => return true,
                ReadOutcome::End => return false,
                ReadOutcome::Bytes(bytes) => candidate.input_bytes += bytes,
            }
            if candidate.input_bytes < expected_bytes {
                continue;
            }
            candidate.input_bytes = 0;
            match std::mem::replace(&mut candidate.stage, Stage::Closing) {
                Stage::Hello => match candidate.answer(self.secret) {
                    Some(transport) => candidate.stage = Stage::Card(transport),
                    None => {
                        self.strangers += 1;
                        return false;
                    }
                },
                Stage::Card(transport) => {
                    if !self.handle_card(index, transport) {
                        return false;
                    }
                }
                _ => return false,
            }
        }
    }

    /// Handles the card of a rank that has proven the secret. Returns false if it is malformed.
    fn handle_card(&mut self, index: usize, mut transport: Box<TransportState>) -> bool {
        let mut message = [0; CARD_MESSAGE_BYTES];
        let result = transport.read_message(&self.candidates[index].input, &mut message);
        let card = &message[8..8 + CARD_BYTES];
        if result.is_err() || Card::parse(card).is_none() {
            return false;
        }
        let number = |offset: usize| {
            let bytes = [
                message[offset],
                message[offset + 1],
                message[offset + 2],
                message[offset + 3],
            ];
            u32::from_le_bytes(bytes) as usize
        };
        let (rank, ranks) = (number(0), number(4));
        match self.find_refusal(rank, ranks) {
            Some(reason) => {
                let output = &mut self.candidates[index].output;
                seal(&mut transport, &refusal(&reason), output);
            }
            None => {
                self.cards[rank] = Some(card.to_vec());
                self.candidates[index].stage = Stage::Waiting(transport, rank);
            }
        }
        true
    }

    fn find_refusal(&self, rank: usize, ranks: usize) -> Option<String> {
        let own = self.cards.len();
        if ranks != own || rank >= own {
            return Some(format!(
                "it has rank {rank} of {ranks} (RANK, WORLD_SIZE), and rank 0 expects {own} ranks"
            ));
        }
        let has_rank = |candidate: &&Candidate| matches!(candidate.stage, Stage::Waiting(_, peer) if peer == rank);
        if let Some(candidate) = self.candidates.iter().find(has_rank) {
            let address = candidate.address;
            return Some(format!("rank {rank} already joined from {address} (RANK)"));
        }
        // A rank that has disconnected may connect again.
        (rank == 0).then(|| "rank 0 is the process at this address (RANK)".to_owned())
    }

    /// Queues the next cards after the earlier ones are written. Returns false if nothing is left
    /// to send.
    fn fill(&mut self, index: usize) -> bool {
        let Self {
            candidates, cards, ..
        } = self;
        let Candidate { stage, output, .. } = &mut candidates[index];
        match stage {
            Stage::Sending(transport, next) if output.is_empty() => {
                if *next == cards.len() {
                    return false;
                }
                let end = (*next + CARDS_PER_MESSAGE).min(cards.len());
                let mut message = vec![CARDS];
                message.extend(cards[*next..end].iter().flatten().flatten());
                seal(transport, &message, output);
                *next = end;
                true
            }
            Stage::Closing => !output.is_empty(),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test with a collector for two ranks, its listener, and the first message of a rank.
    fn collecting(test: impl FnOnce(&mut Collector<'_>, &TcpListener, &[u8])) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let environment = Environment {
            address: address.to_string(),
            rank: 0,
            ranks: 2,
            launcher: Secret::none(),
        };
        let secret = Secret::from_bytes(b"what the job knows", "a test").unwrap();
        let mut first = [0; FIRST_BYTES];
        first[..MAGIC.len()].copy_from_slice(&MAGIC);
        let mut noise = secret.initiator().unwrap();
        noise.write_message(&[], &mut first[MAGIC.len()..]).unwrap();
        test(
            &mut Collector::new(&environment, &secret),
            &listener,
            &first,
        );
    }

    fn is_verified(collector: &Collector<'_>, address: SocketAddr) -> bool {
        let is_match = |candidate: &Candidate| {
            candidate.address == address && matches!(candidate.stage, Stage::Card(_))
        };
        collector.candidates.iter().any(is_match)
    }

    #[test]
    fn connections__replaying_the_first_message__stay_within_the_limit() {
        collecting(|collector, listener, first| {
            let address = listener.local_addr().unwrap();
            let max = STRANGERS_MAX + collector.cards.len();
            let mut replays = Vec::new();
            for _ in 0..max + 8 {
                let mut replay = TcpStream::connect(address).unwrap();
                replay.write_all(first).unwrap();
                let local_address = replay.local_addr().unwrap();
                replays.push(replay);
                while !is_verified(collector, local_address) {
                    collector.turn(Some(listener)).unwrap();
                }
            }
            let count = collector.candidates.len();
            assert!(count <= max, "{count} of {max}");
        });
    }

    #[test]
    fn strangers__connecting_after_a_rank__do_not_displace_it() {
        collecting(|collector, listener, first| {
            let address = listener.local_addr().unwrap();
            let mut rank = TcpStream::connect(address).unwrap();
            rank.write_all(first).unwrap();
            let local_address = rank.local_addr().unwrap();
            let connect = |_| TcpStream::connect(address).unwrap();
            let _strangers: Vec<TcpStream> = (0..2 * STRANGERS_MAX).map(connect).collect();
            for _ in 0..8 {
                collector.turn(Some(listener)).unwrap();
            }
            assert!(is_verified(collector, local_address));
        });
    }
}
