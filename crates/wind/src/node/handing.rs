//! Messages that a function of the program handles, on the thread that received them.

use super::{Node, Received, Shared, WindError, lock};
use crate::protocol::{Message, MessageId, PeerId};
use std::time::Duration;

/// Messages that are handed over in a row, after which their answers are sent.
const HANDED_PER_SEND: u32 = 32;

/// Function that handles messages.
pub type Handler = Box<dyn Fn(Received) + Send + Sync>;

impl Node {
    /// Hands every message to `handler`, one at a time and in order, instead of keeping it for
    /// [`Self::receive`]. The thread that received the message calls it: the node's own, or one of
    /// the program that waits for something, so that a request is answered while the program
    /// computes, and a program that waits is not woken for it. The handler may send. A second
    /// handler is ignored.
    pub fn hand_messages_to(&self, handler: Handler) {
        let _ = self.shared.handler.set(handler);
        hand_over(&self.shared);
        self.send_waiting();
    }

    /// Submits a message, which [`Self::send_waiting`] sends. It never waits, however much waits
    /// for the peer: a handler that waited on the thread that receives would wait for itself.
    ///
    /// # Errors
    /// The message is invalid, or the peer is lost.
    pub fn submit(&self, peer: PeerId, message: Message) -> Result<MessageId, WindError> {
        let mut state = self.state();
        state.check(peer)?;
        state.actions += 1;
        Ok(state.endpoint.send(peer, message)?)
    }

    /// Waits until `is_done` returns true, which is called after each arrival, with the node
    /// locked: it must not use the node. Returns whether it did so within `limit`.
    pub fn wait_until(&self, limit: Option<Duration>, mut is_done: impl FnMut() -> bool) -> bool {
        let waited = self.wait(limit, |_| Ok::<_, WindError>(is_done().then_some(())));
        waited.is_ok()
    }
}

/// Wakes the threads that wait, after the handler has run: the condition of one that sleeps on the
/// socket may hold now, although nothing arrives there.
fn wake_waiting(shared: &Shared) {
    // With the lock, so that none is between its look at the condition and its sleep.
    let _state = lock(shared);
    if shared.waiters.is_leader_asleep() {
        let _ = shared.call.write(1);
    }
    shared.changed.notify_all();
}

/// Returns the next message to hand over. Behind the last one, and now and then in a long row, it
/// sends what the handler has submitted: the answers to many peers, each with its acknowledgement.
fn next_to_hand(shared: &Shared) -> Option<Received> {
    let mut state = lock(shared);
    let next = state.next_message();
    state.handed = if next.is_some() { state.handed + 1 } else { 0 };
    if state.handed % HANDED_PER_SEND == 0 {
        state.transmit_all(&shared.socket);
    }
    next
}

/// Hands the messages that have arrived to the handler, if there is one. Returns whether there were
/// any.
pub(super) fn hand_over(shared: &Shared) -> bool {
    let Some(handler) = shared.handler.get() else {
        return false;
    };
    let mut has_handed = false;
    loop {
        // Another thread hands them over, or this one does so further up.
        let Ok(turn) = shared.handing.try_lock() else {
            return has_handed;
        };
        while let Some(received) = next_to_hand(shared) {
            has_handed = true;
            handler(received);
        }
        drop(turn);
        if has_handed {
            wake_waiting(shared);
        }
        // One may have arrived for which another thread could not take the turn.
        if !lock(shared).has_message() {
            return has_handed;
        }
    }
}
