//! Point-to-point messages. A sender offers a message, and sends it when the receiver has a buffer
//! for it.
//!
//! ```text
//!  sender                                      receiver
//!    offer ───────────────────────────────►    has a buffer: take, or refuse if it is too small
//!                                              has none: keeps the offer, WINDOW a sender at most
//!    keeps offers beyond the window back  ◄─── hold: the window was full
//!    offers one beyond the window      ◄────── want a tag: a buffer waits, others fill the window
//! ```
//!
//! A sender may be any number of messages ahead, and a receiver may take them in any order.

use crate::group::memory::Memory;
use crate::group::ticket::Promise;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Maximum number of offers of one member that may wait at a receiver. An offer takes 32 bytes, so
/// those of [`super::RANKS_MAX`] members take 32 MiB. Programs have fewer messages in flight to one
/// rank. Beyond the window, a message costs half a round trip more.
pub const WINDOW: usize = 256;

/// Maximum number of buffers that may wait on a rank. It also bounds the tags that the rank may
/// want from others.
const BUFFERS_MAX: usize = 1 << 16;

/// Maximum number of messages of a rank that may wait to be received, at about 200 bytes each.
const SENDS_MAX: usize = 1 << 20;

/// Message to send, or buffer for a message to receive.
pub struct Parcel {
    /// Member to send to or to receive from; `None` to receive from any member.
    pub peer: Option<usize>,
    /// Tag that distinguishes messages of the same peer.
    pub tag: u64,
    /// Length of the message or of the buffer, in bytes.
    pub bytes: u64,
    /// Memory of the message or the buffer, as block 0.
    pub memory: Box<dyn Memory>,
    /// Settled when the message has been sent or received, or has failed.
    pub ticket: Promise,
}

#[derive(Debug, Clone, Copy)]
struct Offer {
    from: usize,
    name: u64,
    tag: u64,
    bytes: u64,
}

/// Control message that is due to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlMessage {
    /// A message of this rank is ready to send.
    Offer { name: u64, tag: u64, bytes: u64 },
    /// The member is to send an offered message now.
    Take { name: u64 },
    /// An offered message of the member is longer than its buffer.
    Refuse {
        name: u64,
        bytes: u64,
        buffer_bytes: u64,
    },
    /// There is no room for the member's offer. The member keeps it back.
    Hold { name: u64 },
    /// A message with this tag is wanted beyond the window, or no longer wanted if `is_on` is
    /// false.
    Want { tag: u64, is_on: bool },
}

/// Error of a control message that contradicts the state or exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// State of the messages to one member.
#[derive(Debug, Default)]
struct Outbox {
    /// Number of messages offered and not answered yet.
    offer_count: usize,
    /// Names of the messages to offer when the window has room, in order; and the same for each
    /// tag.
    held_names: BTreeSet<u64>,
    held_by_tag: HashMap<u64, BTreeSet<u64>>,
    /// Tags that the member wants beyond the window.
    wanted_tags: BTreeSet<u64>,
}

impl Outbox {
    fn hold(&mut self, name: u64, tag: u64) {
        self.held_names.insert(name);
        self.held_by_tag.entry(tag).or_default().insert(name);
    }

    fn release(&mut self, name: u64, tag: u64) {
        self.held_names.remove(&name);
        if let Some(names) = self.held_by_tag.get_mut(&tag) {
            names.remove(&name);
            if names.is_empty() {
                self.held_by_tag.remove(&tag);
            }
        }
    }

    /// Returns the oldest held message with a tag.
    fn oldest(&self, tag: u64) -> Option<u64> {
        self.held_by_tag.get(&tag)?.first().copied()
    }
}

struct Outgoing {
    parcel: Parcel,
    is_offered: bool,
}

/// State of all messages of one rank.
#[derive(Default)]
pub struct Messages {
    last_name: u64,
    /// Messages neither sent nor refused yet, by name.
    outgoing: HashMap<u64, Outgoing>,
    outboxes: HashMap<usize, Outbox>,
    offers: VecDeque<Offer>,
    /// Number of waiting offers, by member.
    offer_counts: HashMap<usize, usize>,
    /// Members and tags for which a want is pending: the member has not offered such a message
    /// since.
    pending_wants: BTreeSet<(usize, u64)>,
    buffers: VecDeque<Parcel>,
    /// Buffers of messages that were taken and are in flight, by sender and name.
    incoming: HashMap<(usize, u64), Parcel>,
    control_messages: Vec<(usize, ControlMessage)>,
}

impl Messages {
    /// Returns the control messages that became due since the last call, in order.
    pub fn drain_control_messages(&mut self) -> Vec<(usize, ControlMessage)> {
        std::mem::take(&mut self.control_messages)
    }

    /// Offers a message to its member, now or when there is room. Returns the parcel if too many
    /// wait.
    pub fn send(&mut self, parcel: Parcel) -> Result<(), (Parcel, String)> {
        let Some(to) = parcel.peer else {
            return Ok(());
        };
        if self.outgoing.len() >= SENDS_MAX {
            return Err((
                parcel,
                format!(
                    "{SENDS_MAX} messages of this rank wait to be received, the limit; wait until other ranks receive some"
                ),
            ));
        }
        self.last_name += 1;
        let (name, tag) = (self.last_name, parcel.tag);
        let is_offered = false;
        self.outgoing.insert(name, Outgoing { parcel, is_offered });
        let outbox = self.outboxes.entry(to).or_default();
        // Messages with the same tag stay in order: none is offered while an earlier one is held.
        match outbox.offer_count < WINDOW && outbox.held_names.is_empty()
            || outbox.wanted_tags.contains(&tag)
        {
            true => self.offer(to, name),
            false => outbox.hold(name, tag),
        }
        Ok(())
    }

    fn offer(&mut self, to: usize, name: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&name) else {
            return;
        };
        outgoing.is_offered = true;
        let (tag, bytes) = (outgoing.parcel.tag, outgoing.parcel.bytes);
        let outbox = self.outboxes.entry(to).or_default();
        outbox.offer_count += 1;
        outbox.release(name, tag);
        outbox.wanted_tags.remove(&tag);
        self.control_messages
            .push((to, ControlMessage::Offer { name, tag, bytes }));
    }

    /// Handles an answer to an offer, which may make room for the next one. Returns false if there
    /// is no such offer.
    fn handle_answer(&mut self, to: usize, name: u64) -> bool {
        let is_pending =
            |outgoing: &&mut Outgoing| outgoing.parcel.peer == Some(to) && outgoing.is_offered;
        let Some(outgoing) = self.outgoing.get_mut(&name).filter(is_pending) else {
            return false;
        };
        outgoing.is_offered = false;
        if let Some(outbox) = self.outboxes.get_mut(&to) {
            outbox.offer_count -= 1;
            let next = outbox
                .held_names
                .first()
                .filter(|_| outbox.offer_count < WINDOW);
            if let Some(next) = next.copied() {
                self.offer(to, next);
            }
        }
        true
    }

    /// Handles a take of an offered message. Returns the length of the message, in bytes.
    pub fn handle_take(&mut self, member: usize, name: u64) -> Result<u64, Malformed> {
        match self.handle_answer(member, name) {
            true => Ok(self
                .outgoing
                .get(&name)
                .map_or(0, |outgoing| outgoing.parcel.bytes)),
            false => Err(Malformed),
        }
    }

    /// Handles a refusal of an offered message, whose buffer is too short. Returns the message.
    pub fn handle_refuse(&mut self, member: usize, name: u64) -> Result<Option<Parcel>, Malformed> {
        match self.handle_answer(member, name) {
            true => Ok(self.remove_outgoing(name)),
            false => Err(Malformed),
        }
    }

    /// Handles a hold of an offered message, for which the member has no room.
    pub fn handle_hold(&mut self, member: usize, name: u64) -> Result<(), Malformed> {
        let is_pending =
            |outgoing: &&mut Outgoing| outgoing.parcel.peer == Some(member) && outgoing.is_offered;
        let outgoing = self
            .outgoing
            .get_mut(&name)
            .filter(is_pending)
            .ok_or(Malformed)?;
        outgoing.is_offered = false;
        let tag = outgoing.parcel.tag;
        let outbox = self.outboxes.entry(member).or_default();
        outbox.offer_count -= 1;
        outbox.hold(name, tag);
        Ok(())
    }

    /// Handles a want. If `is_on`, the member has a buffer for this tag, and other offers fill its
    /// window. Otherwise it no longer has such a buffer.
    pub fn handle_want(&mut self, member: usize, tag: u64, is_on: bool) -> Result<(), Malformed> {
        let outbox = self.outboxes.entry(member).or_default();
        if !is_on {
            outbox.wanted_tags.remove(&tag);
            return Ok(());
        }
        match outbox.oldest(tag) {
            Some(name) => self.offer(member, name),
            None if outbox.wanted_tags.len() >= BUFFERS_MAX => return Err(Malformed),
            None => {
                outbox.wanted_tags.insert(tag);
            }
        }
        Ok(())
    }

    /// Returns a message that was taken and is being sent.
    pub fn outgoing(&self, name: u64) -> Option<&Parcel> {
        self.outgoing.get(&name).map(|outgoing| &outgoing.parcel)
    }

    /// Removes a message that was sent or refused.
    pub fn remove_outgoing(&mut self, name: u64) -> Option<Parcel> {
        self.outgoing.remove(&name).map(|outgoing| outgoing.parcel)
    }

    /// Returns the buffer of a message that this rank has taken.
    pub fn incoming(&mut self, from: usize, name: u64) -> Option<&mut Parcel> {
        self.incoming.get_mut(&(from, name))
    }

    /// Removes the buffer of a message that was received or refused.
    pub fn remove_incoming(&mut self, from: usize, name: u64) -> Option<Parcel> {
        self.incoming.remove(&(from, name))
    }

    /// Adds a buffer for a message. If it is for any member, the message may come from `members`.
    /// Returns the buffer if too many wait.
    pub fn receive(
        &mut self,
        buffer: Parcel,
        members: impl Iterator<Item = usize>,
    ) -> Result<(), (Parcel, String)> {
        if self.buffers.len() >= BUFFERS_MAX {
            return Err((
                buffer,
                format!(
                    "{BUFFERS_MAX} receives of this rank are pending, the limit; wait until some are complete"
                ),
            ));
        }
        let fits = |offer: &Offer| is_match(offer, &buffer);
        let index = self.offers.iter().position(fits);
        if let Some(offer) = index.and_then(|index| self.offers.remove(index)) {
            if let Some(count) = self.offer_counts.get_mut(&offer.from) {
                *count -= 1;
            }
            self.answer(offer, buffer);
            return Ok(());
        }
        let (from, tag) = (buffer.peer, buffer.tag);
        self.buffers.push_back(buffer);
        match from {
            Some(from) => self.queue_want(from, tag),
            None => members.for_each(|from| self.queue_want(from, tag)),
        }
        Ok(())
    }

    /// Sends a want for a tag to a member whose window is full, unless one is pending.
    fn queue_want(&mut self, from: usize, tag: u64) {
        if self.is_full(from) && self.pending_wants.insert((from, tag)) {
            let is_on = true;
            self.control_messages
                .push((from, ControlMessage::Want { tag, is_on }));
        }
    }

    fn is_full(&self, from: usize) -> bool {
        self.offer_counts
            .get(&from)
            .is_some_and(|count| *count >= WINDOW)
    }

    /// Handles a member's offer.
    pub fn handle_offer(&mut self, from: usize, name: u64, tag: u64, bytes: u64) {
        let offer = Offer {
            from,
            name,
            tag,
            bytes,
        };
        self.pending_wants.remove(&(from, tag));
        let index = self
            .buffers
            .iter()
            .position(|buffer| is_match(&offer, buffer));
        if let Some(buffer) = index.and_then(|index| self.buffers.remove(index)) {
            let is_for_any = buffer.peer.is_none();
            self.answer(offer, buffer);
            if self.buffers.iter().any(|buffer| is_match(&offer, buffer)) {
                self.queue_want(from, tag);
            }
            if is_for_any {
                self.withdraw_wants(tag);
            }
            return;
        }
        if self.is_full(from) {
            self.control_messages
                .push((from, ControlMessage::Hold { name }));
            return;
        }
        self.offers.push_back(offer);
        *self.offer_counts.entry(from).or_default() += 1;
        if self.is_full(from) {
            let candidates = self
                .buffers
                .iter()
                .filter(|buffer| buffer.peer.is_none_or(|peer| peer == from));
            let tags: BTreeSet<u64> = candidates.map(|buffer| buffer.tag).collect();
            tags.into_iter().for_each(|tag| self.queue_want(from, tag));
        }
    }

    /// Withdraws the wants for a tag after a buffer for any member was used. Wants for which
    /// another buffer waits stay.
    fn withdraw_wants(&mut self, tag: u64) {
        let buffers = &self.buffers;
        let is_needless = |(from, wanted_tag): &(usize, u64)| {
            let is_candidate =
                |buffer: &Parcel| buffer.tag == tag && buffer.peer.is_none_or(|peer| peer == *from);
            *wanted_tag == tag && !buffers.iter().any(is_candidate)
        };
        let needless: Vec<(usize, u64)> = self
            .pending_wants
            .iter()
            .filter(|want| is_needless(want))
            .copied()
            .collect();
        for (from, tag) in needless {
            self.pending_wants.remove(&(from, tag));
            let is_on = false;
            self.control_messages
                .push((from, ControlMessage::Want { tag, is_on }));
        }
    }

    fn answer(&mut self, offer: Offer, mut buffer: Parcel) {
        let Offer {
            from, name, bytes, ..
        } = offer;
        buffer.peer = Some(from);
        let buffer_bytes = buffer.bytes;
        let message = match bytes > buffer_bytes {
            // The buffer is kept until the refusal is sent, so that its ticket is settled like any
            // other.
            true => ControlMessage::Refuse {
                name,
                bytes,
                buffer_bytes,
            },
            false => {
                buffer.bytes = bytes;
                ControlMessage::Take { name }
            }
        };
        self.incoming.insert((from, name), buffer);
        self.control_messages.push((from, message));
    }

    /// Returns whether a message from or to a member is pending.
    pub fn needs(&self, member: usize) -> bool {
        let has_peer = |parcel: &Parcel| parcel.peer == Some(member);
        let outgoing = self.outgoing.values().map(|outgoing| &outgoing.parcel);
        let mut parcels = outgoing.chain(self.incoming.values());
        parcels.any(has_peer) || self.buffers.iter().any(has_peer)
    }

    /// Drops all messages and returns them, so that their tickets can be settled.
    pub fn abandon(&mut self) -> Vec<Parcel> {
        let last_name = self.last_name;
        let old = std::mem::replace(
            self,
            Self {
                last_name,
                ..Self::default()
            },
        );
        let outgoing = old.outgoing.into_values().map(|outgoing| outgoing.parcel);
        outgoing
            .chain(old.incoming.into_values())
            .chain(old.buffers)
            .collect()
    }
}

fn is_match(offer: &Offer, buffer: &Parcel) -> bool {
    offer.tag == buffer.tag && buffer.peer.is_none_or(|peer| peer == offer.from)
}

#[cfg(test)]
mod tests;
