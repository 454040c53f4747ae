//! Operations of any length that a program starts, and polls until they are complete.

use super::waiting::Presence;
use super::{Node, UNSENT_BYTES_MAX, WindError};
use crate::protocol::{Atomic, Class, Message, Operation, PeerId, Place};
use std::collections::VecDeque;
use std::time::Duration;

/// Most parts of one transfer that are in flight. Parts of 1.3 KB make 2.7 MB, which is more than
/// a receiver grants (`budget_bytes`).
const OPEN_PARTS_MAX: usize = 2048;

/// Parts that are started before they are sent together: a third of what one system call takes, so
/// that the target works while the next ones are prepared.
const PARTS_PER_CALL: usize = 15;

/// Memory of the program that a transfer reads or writes.
pub trait LocalMemory {
    /// Returns the `bytes` bytes at `offset`.
    fn read(&self, offset: usize, bytes: usize) -> Vec<u8>;
    /// Writes bytes at `offset`.
    fn write(&mut self, offset: usize, bytes: &[u8]);
}

/// Kind of a transfer.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Put,
    Get,
    Atomic(Atomic),
}

/// A put, a get or an atomic operation in parts of one datagram. [`Node::advance`] starts the parts
/// and takes their results.
#[derive(Debug)]
pub struct Transfer {
    peer: PeerId,
    place: Place,
    kind: Kind,
    bytes: usize,
    started_bytes: usize,
    /// Number and offset of each part that is in flight.
    open: VecDeque<(u64, usize)>,
    /// First error. No further part is started, and the results of the others are taken.
    error: Option<WindError>,
}

impl Transfer {
    fn new(peer: PeerId, place: Place, kind: Kind, bytes: usize) -> Self {
        Self {
            peer,
            place,
            kind,
            bytes,
            started_bytes: 0,
            open: VecDeque::new(),
            error: None,
        }
    }

    /// Returns a transfer that writes `bytes` bytes at `place`.
    pub fn put(peer: PeerId, place: Place, bytes: usize) -> Self {
        Self::new(peer, place, Kind::Put, bytes)
    }

    /// Returns a transfer that reads `bytes` bytes at `place`.
    pub fn get(peer: PeerId, place: Place, bytes: usize) -> Self {
        Self::new(peer, place, Kind::Get, bytes)
    }

    /// Returns a transfer that changes the word at `place`. It writes the word of before to the
    /// program's memory, in this machine's byte order.
    pub fn atomic(peer: PeerId, place: Place, atomic: Atomic) -> Self {
        Self::new(peer, place, Kind::Atomic(atomic), size_of::<u64>())
    }

    fn fail(&mut self, error: WindError) {
        self.started_bytes = self.bytes;
        self.error = self.error.take().or(Some(error));
    }

    /// Writes the result of a part to the program's memory.
    fn finish(&self, offset: usize, result: &[u8], memory: &mut dyn LocalMemory) {
        match self.kind {
            Kind::Put => {}
            Kind::Get => memory.write(offset, result),
            Kind::Atomic(_) => {
                let word: [u8; 8] = result.try_into().unwrap_or_default();
                memory.write(0, &u64::from_be_bytes(word).to_ne_bytes());
            }
        }
    }
}

impl Node {
    /// Executes the parts of an operation that is longer than a datagram, and returns the bytes of
    /// their results. Every result is taken, also after an error, so none stays behind.
    pub(super) fn execute(
        &self,
        peer: PeerId,
        parts: impl Iterator<Item = (Place, Operation)>,
    ) -> Result<Vec<u8>, WindError> {
        self.execute_and_send(peer, parts, None)
    }

    /// As [`Self::execute`], and sends a message after the last part, before it waits for results.
    fn execute_and_send(
        &self,
        peer: PeerId,
        parts: impl Iterator<Item = (Place, Operation)>,
        message: Option<Message>,
    ) -> Result<Vec<u8>, WindError> {
        let _presence = Presence::new(&self.shared);
        let mut parts = parts.peekable();
        let mut started = Vec::new();
        let mut outcome = Ok(Vec::new());
        while parts.peek().is_some() && outcome.is_ok() {
            let batch = parts.by_ref().take(PARTS_PER_CALL);
            outcome = self
                .start_batch(peer, batch, &mut started)
                .map(|()| Vec::new());
        }
        if let Some(message) = message.filter(|_| outcome.is_ok()) {
            outcome = self.send(peer, message).map(|_| Vec::new());
        }
        for operation in started {
            let result = self.wait_result(peer, operation, None);
            outcome = outcome.and_then(|mut bytes| {
                bytes.extend(result?);
                Ok(bytes)
            });
        }
        outcome
    }

    /// Writes `bytes` at `place`, and sends `notice` to the peer's program, which gets it when they
    /// are there. Where the peer's kernel executes operations, only the notice wakes the program.
    /// Waits until the bytes are in the peer's memory. The notice of a put that is refused is
    /// delivered all the same.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_and_notify(
        &self,
        peer: PeerId,
        place: Place,
        bytes: &[u8],
        notice: impl Into<Vec<u8>>,
    ) -> Result<(), WindError> {
        let message = Message::through(Class::Ordered, notice.into());
        let parts = self.put_parts(place, bytes);
        self.execute_and_send(peer, parts, Some(message)).map(drop)
    }

    /// Returns the parts of a put.
    pub(super) fn put_parts<'a>(
        &self,
        place: Place,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (Place, Operation)> + use<'a> {
        let part_bytes = self.state().endpoint.operation_bytes_max();
        let parts = bytes.chunks(part_bytes).enumerate();
        parts.map(move |(index, part)| {
            let at = place.plus((index * part_bytes) as u64);
            (at, Operation::Put(part.to_vec()))
        })
    }

    /// Starts operations of at most a datagram each, and returns their numbers, for
    /// [`Node::wait_result`].
    ///
    /// # Errors
    /// As [`Node::start`]. Those that were started are complete then.
    pub fn start_all(
        &self,
        peer: PeerId,
        operations: impl Iterator<Item = (Place, Operation)>,
    ) -> Result<Vec<u64>, WindError> {
        let _presence = Presence::new(&self.shared);
        let mut operations = operations.peekable();
        let mut started = Vec::new();
        while operations.peek().is_some() {
            let batch = operations.by_ref().take(PARTS_PER_CALL);
            if let Err(error) = self.start_batch(peer, batch, &mut started) {
                for operation in started {
                    let _ = self.wait_result(peer, operation, None);
                }
                return Err(error);
            }
        }
        Ok(started)
    }

    /// Writes `bytes` at `place`, and does not wait until they are there: [`Node::flush`] does. If
    /// too much waits for the peer, this waits for it.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn post_put(&self, peer: PeerId, place: Place, bytes: &[u8]) -> Result<(), WindError> {
        let mut parts = self.put_parts(place, bytes).peekable();
        while let Some((place, operation)) = parts.next() {
            if parts.peek().is_none() {
                return self.post(peer, place, operation);
            }
            let mut state = self.state_with_room(peer)?;
            state.endpoint.operate(peer, place, operation)?;
            for (place, operation) in parts.by_ref().take(PARTS_PER_CALL - 1) {
                state.endpoint.operate(peer, place, operation)?;
            }
            self.receive_as_present(&mut state);
            state.transmit(&self.shared.socket);
        }
        Ok(())
    }

    /// Returns the most bytes of a put or of an encoded diff in one operation.
    pub fn operation_bytes_max(&self) -> usize {
        self.state().endpoint.operation_bytes_max()
    }

    /// Starts operations, whose numbers it adds to `started`, and sends them together.
    pub(super) fn start_batch(
        &self,
        peer: PeerId,
        batch: impl Iterator<Item = (Place, Operation)>,
        started: &mut Vec<u64>,
    ) -> Result<(), WindError> {
        let mut state = self.state_with_room(peer)?;
        let mut outcome = Ok(());
        for (place, operation) in batch {
            match state.start(peer, place, operation) {
                Ok(number) => started.push(number),
                Err(error) => {
                    outcome = Err(error.into());
                    break;
                }
            }
        }
        self.receive_as_present(&mut state);
        state.transmit(&self.shared.socket);
        outcome
    }

    /// Starts parts of a transfer for which there is room, and takes results. Returns whether the
    /// transfer is complete. It does not wait.
    ///
    /// # Errors
    /// The peer refused the transfer or is lost. The transfer is complete then.
    pub fn advance(
        &self,
        transfer: &mut Transfer,
        memory: &mut dyn LocalMemory,
    ) -> Result<bool, WindError> {
        let mut state = self.state();
        let part_bytes = state.endpoint.operation_bytes_max();
        if let Err(lost) = state.check(transfer.peer) {
            transfer.fail(lost);
        }
        while let Some((number, offset)) = transfer.open.front().copied() {
            match state.take_result(transfer.peer, number) {
                Ok(None) => break,
                Ok(Some(result)) => transfer.finish(offset, &result, memory),
                Err(error) => transfer.fail(error),
            }
            transfer.open.pop_front();
        }
        let mut has_started = false;
        while transfer.started_bytes < transfer.bytes
            && transfer.open.len() < OPEN_PARTS_MAX
            && state.endpoint.unsent_bytes(transfer.peer) < UNSENT_BYTES_MAX
        {
            let offset = transfer.started_bytes;
            let length = part_bytes.min(transfer.bytes - offset);
            let operation = match transfer.kind {
                Kind::Put => Operation::Put(memory.read(offset, length)),
                Kind::Get => Operation::Get(length as u16),
                Kind::Atomic(atomic) => Operation::Atomic(atomic),
            };
            let place = transfer.place.plus(offset as u64);
            match state.start(transfer.peer, place, operation) {
                Ok(number) => {
                    transfer.open.push_back((number, offset));
                    transfer.started_bytes += length;
                    has_started = true;
                }
                Err(error) => transfer.fail(error.into()),
            }
        }
        if has_started {
            self.send_and_ring(&mut state);
        }
        let is_complete = transfer.open.is_empty() && transfer.started_bytes == transfer.bytes;
        match transfer.error.take_if(|_| is_complete) {
            Some(error) => Err(error),
            None => Ok(is_complete),
        }
    }

    /// Waits until every message and operation to a peer has arrived.
    ///
    /// # Errors
    /// The peer is lost, or the limit has passed.
    pub fn flush(&self, peer: PeerId, limit: Option<Duration>) -> Result<(), WindError> {
        self.drain(peer, 0, limit)
    }

    /// Waits until at most `bytes` bytes of messages and operations to a peer wait or are in
    /// flight.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn drain(
        &self,
        peer: PeerId,
        bytes: u64,
        limit: Option<Duration>,
    ) -> Result<(), WindError> {
        self.wait(limit, |state| {
            state.check(peer)?;
            let is_drained = state.endpoint.unsent_bytes(peer) <= bytes;
            if !is_drained && state.endpoint.ask_for_held(peer) {
                state.transmit(&self.shared.socket);
            }
            Ok(is_drained.then_some(()))
        })
    }
}
