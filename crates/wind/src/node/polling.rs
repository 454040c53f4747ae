//! Calls that never wait, for a program that polls: a library below MPI does, and one with an event
//! loop.

use super::state::Sleeper;
use super::{
    Class, Message, MessageId, Node, PeerId, Received, UNSENT_BYTES_MAX, WindError, waiting,
};
use crate::protocol::RegionKey;
use crate::{Region, Secret};
use kumi_multilink::secure::region_key;
use kumi_sys::shared_memory::SharedMemory;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The socket, which is readable when something has arrived.
impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }
}

impl Node {
    /// Returns the next message of any peer, if there is one. Otherwise it receives. It sends what
    /// is due, but not within `ANSWER` of the first message that was taken since it last sent.
    pub fn poll(&self) -> Option<Received> {
        let now_ns = self.shared.waiters.now_ns();
        let mut state = self.state();
        let mut received = state.next_message();
        state.in_a_row = 0;
        if received.is_none() {
            waiting::note_poll(&self.shared);
            if state.receive(&self.shared.socket) {
                self.shared.changed.notify_all();
            }
            received = state.next_message();
        }
        let is_deferred = match received {
            Some(_) => state.is_answered_soon(now_ns),
            None => state.is_still_answered_soon(now_ns),
        };
        if !is_deferred {
            state.transmit(&self.shared.socket);
        }
        received
    }

    /// Receives, handles timeouts and sends: a turn of the event loop of a program.
    pub fn turn(&self) {
        if self.state().turn(&self.shared.socket) {
            self.shared.changed.notify_all();
        }
    }

    /// Sends what was submitted, or waits to share a datagram with later messages. In a handler it
    /// does nothing: that is sent behind the last message that is handed over.
    pub fn send_waiting(&self) {
        let mut state = self.state();
        if state.handed == 0 {
            self.send_and_ring(&mut state);
        }
    }

    /// Returns the next message that has arrived, and receives nothing.
    pub fn next(&self) -> Option<Received> {
        self.state().next_message()
    }

    /// Returns the time until the next [`Self::turn`] is due; `None` if only an arrival makes one
    /// due.
    pub fn time_to_timeout(&self) -> Option<Duration> {
        self.state().time_to_timeout(Sleeper::Thread)
    }

    /// Sends a message, or returns `None` if too much waits for the peer.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn try_send(&self, peer: PeerId, message: Message) -> Result<Option<MessageId>, WindError> {
        let mut state = self.state();
        state.check(peer)?;
        if state.endpoint.unsent_bytes(peer) >= UNSENT_BYTES_MAX {
            return Ok(None);
        }
        let sent = state.endpoint.send(peer, message)?;
        self.send_submitted(&mut state, peer);
        Ok(Some(sent))
    }

    /// Returns the bytes to a peer that wait or are in flight.
    pub fn unsent_bytes(&self, peer: PeerId) -> u64 {
        self.state().endpoint.unsent_bytes(peer)
    }

    /// Returns whether a synchronous message has been placed in the peer's memory. It returns true
    /// once.
    ///
    /// # Errors
    /// As [`Self::wait_placed`].
    pub fn is_placed(&self, peer: PeerId, number: u64) -> Result<bool, WindError> {
        let message = MessageId {
            is_ordered: Class::Synchronous.is_ordered(),
            number,
        };
        let mut state = self.state();
        match state.placed.remove(&(peer, message)) {
            Some(result) => Ok(result.map(|()| true)?),
            None => state.check(peer).map(|()| false),
        }
    }

    /// Returns an error if the peer is lost.
    ///
    /// # Errors
    /// The peer is lost.
    pub fn check(&self, peer: PeerId) -> Result<(), WindError> {
        self.state().check(peer)
    }

    /// Ends the session with a peer: it is lost for this node, and this node for the peer.
    pub fn disconnect(&self, peer: PeerId) {
        let mut state = self.state();
        state.endpoint.close(peer);
        state.transmit(&self.shared.socket);
        // The peer may not hear of it, and nothing of it has an effect from now on all the same.
        state.abandon(peer);
        drop(state);
        self.wake();
    }

    /// Returns the address of a peer that is not lost.
    pub fn peer_address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.state().endpoint.address(peer)
    }

    /// Waits until something has happened since the number of changes was `seen`: a datagram
    /// arrived, a timeout passed, or [`Self::wake`] was called. Returns the number of changes.
    pub fn wait_change(&self, seen: u64, limit: Option<Duration>) -> u64 {
        let changed = self.wait(limit, |state| {
            Ok((state.changes != seen).then_some(state.changes))
        });
        changed.unwrap_or(seen)
    }

    /// Wakes the programs that wait in [`Self::wait_change`].
    pub fn wake(&self) {
        let mut state = self.state();
        state.changes += 1;
        waiting::wake_leader(&self.shared);
        self.shared.changed.notify_all();
    }

    /// Registers memory for access by peers, under a number and key of the program's choice.
    /// Returns `None` if the number is in use.
    pub fn register_as(&self, number: u32, key: RegionKey, memory: SharedMemory) -> Option<Region> {
        let regions = &mut self.state().regions;
        regions.register_as(number, Arc::new(memory), key)
    }

    /// Returns the key of a region that all processes of the job can derive from `number`.
    pub fn derived_key(secret: &Secret, number: u64) -> RegionKey {
        region_key(secret, number)
    }
}
