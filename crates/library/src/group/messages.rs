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
const PLACES_MAX: usize = 1 << 16;

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
pub enum Act {
    /// A message of this rank is ready to send.
    Offer { name: u64, tag: u64, bytes: u64 },
    /// The member is to send an offered message now.
    Take { name: u64 },
    /// An offered message of the member is longer than its buffer.
    Refuse {
        name: u64,
        bytes: u64,
        place_bytes: u64,
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
    offered: usize,
    /// Names of the messages to offer when the window has room, in order; and the same for each
    /// tag.
    held: BTreeSet<u64>,
    held_of_tag: HashMap<u64, BTreeSet<u64>>,
    /// Tags that the member wants beyond the window.
    wanted: BTreeSet<u64>,
}

impl Outbox {
    fn hold(&mut self, name: u64, tag: u64) {
        self.held.insert(name);
        self.held_of_tag.entry(tag).or_default().insert(name);
    }

    fn release(&mut self, name: u64, tag: u64) {
        self.held.remove(&name);
        if let Some(of_tag) = self.held_of_tag.get_mut(&tag) {
            of_tag.remove(&name);
            if of_tag.is_empty() {
                self.held_of_tag.remove(&tag);
            }
        }
    }

    /// Returns the oldest held message with a tag.
    fn oldest(&self, tag: u64) -> Option<u64> {
        self.held_of_tag.get(&tag)?.first().copied()
    }
}

struct Outgoing {
    parcel: Parcel,
    is_offered: bool,
}

/// State of all messages of one rank.
#[derive(Default)]
pub struct Messages {
    names: u64,
    /// Messages neither sent nor refused yet, by name.
    outgoing: HashMap<u64, Outgoing>,
    outboxes: HashMap<usize, Outbox>,
    offers: VecDeque<Offer>,
    /// Number of waiting offers, by member.
    known: HashMap<usize, usize>,
    /// Members and tags for which a want is pending: the member has not offered such a message
    /// since.
    asked: BTreeSet<(usize, u64)>,
    places: VecDeque<Parcel>,
    /// Buffers of messages that were taken and are in flight, by sender and name.
    incoming: HashMap<(usize, u64), Parcel>,
    acts: Vec<(usize, Act)>,
}

impl Messages {
    /// Returns the control messages that became due since the last call, in order.
    pub fn acts(&mut self) -> Vec<(usize, Act)> {
        std::mem::take(&mut self.acts)
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
        self.names += 1;
        let (name, tag) = (self.names, parcel.tag);
        let is_offered = false;
        self.outgoing.insert(name, Outgoing { parcel, is_offered });
        let outbox = self.outboxes.entry(to).or_default();
        // Messages with the same tag stay in order: none is offered while an earlier one is held.
        match outbox.offered < WINDOW && outbox.held.is_empty() || outbox.wanted.contains(&tag) {
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
        outbox.offered += 1;
        outbox.release(name, tag);
        outbox.wanted.remove(&tag);
        self.acts.push((to, Act::Offer { name, tag, bytes }));
    }

    /// Handles an answer to an offer, which may make room for the next one. Returns false if there
    /// is no such offer.
    fn answered(&mut self, to: usize, name: u64) -> bool {
        let is_its =
            |outgoing: &&mut Outgoing| outgoing.parcel.peer == Some(to) && outgoing.is_offered;
        let Some(outgoing) = self.outgoing.get_mut(&name).filter(is_its) else {
            return false;
        };
        outgoing.is_offered = false;
        if let Some(outbox) = self.outboxes.get_mut(&to) {
            outbox.offered -= 1;
            let next = outbox.held.first().filter(|_| outbox.offered < WINDOW);
            if let Some(next) = next.copied() {
                self.offer(to, next);
            }
        }
        true
    }

    /// Handles a take of an offered message. Returns the length of the message, in bytes.
    pub fn taken(&mut self, by: usize, name: u64) -> Result<u64, Malformed> {
        match self.answered(by, name) {
            true => Ok(self.outgoing.get(&name).map_or(0, |one| one.parcel.bytes)),
            false => Err(Malformed),
        }
    }

    /// Handles a refusal of an offered message, whose buffer is too short. Returns the message.
    pub fn refused(&mut self, by: usize, name: u64) -> Result<Option<Parcel>, Malformed> {
        match self.answered(by, name) {
            true => Ok(self.sent(name)),
            false => Err(Malformed),
        }
    }

    /// Handles a hold of an offered message, for which the member has no room.
    pub fn held(&mut self, by: usize, name: u64) -> Result<(), Malformed> {
        let is_its =
            |outgoing: &&mut Outgoing| outgoing.parcel.peer == Some(by) && outgoing.is_offered;
        let outgoing = self
            .outgoing
            .get_mut(&name)
            .filter(is_its)
            .ok_or(Malformed)?;
        outgoing.is_offered = false;
        let tag = outgoing.parcel.tag;
        let outbox = self.outboxes.entry(by).or_default();
        outbox.offered -= 1;
        outbox.hold(name, tag);
        Ok(())
    }

    /// Handles a want. If `is_on`, the member has a buffer for this tag, and other offers fill its
    /// window. Otherwise it no longer has such a buffer.
    pub fn wanted(&mut self, by: usize, tag: u64, is_on: bool) -> Result<(), Malformed> {
        let outbox = self.outboxes.entry(by).or_default();
        if !is_on {
            outbox.wanted.remove(&tag);
            return Ok(());
        }
        match outbox.oldest(tag) {
            Some(name) => self.offer(by, name),
            None if outbox.wanted.len() >= PLACES_MAX => return Err(Malformed),
            None => {
                outbox.wanted.insert(tag);
            }
        }
        Ok(())
    }

    /// Returns a message that was taken and is being sent.
    pub fn outgoing(&self, name: u64) -> Option<&Parcel> {
        self.outgoing.get(&name).map(|outgoing| &outgoing.parcel)
    }

    /// Removes a message that was sent or refused.
    pub fn sent(&mut self, name: u64) -> Option<Parcel> {
        self.outgoing.remove(&name).map(|outgoing| outgoing.parcel)
    }

    /// Returns the buffer of a message that this rank has taken.
    pub fn incoming(&mut self, from: usize, name: u64) -> Option<&mut Parcel> {
        self.incoming.get_mut(&(from, name))
    }

    /// Removes the buffer of a message that was received or refused.
    pub fn received(&mut self, from: usize, name: u64) -> Option<Parcel> {
        self.incoming.remove(&(from, name))
    }

    /// Adds a buffer for a message. If it is for any member, the message may come from `others`.
    /// Returns the buffer if too many wait.
    pub fn receive(
        &mut self,
        place: Parcel,
        others: impl Iterator<Item = usize>,
    ) -> Result<(), (Parcel, String)> {
        if self.places.len() >= PLACES_MAX {
            return Err((
                place,
                format!("{PLACES_MAX} receives are already pending on this rank, the limit"),
            ));
        }
        let fits = |offer: &Offer| is_for(offer, &place);
        let at = self.offers.iter().position(fits);
        if let Some(offer) = at.and_then(|at| self.offers.remove(at)) {
            if let Some(known) = self.known.get_mut(&offer.from) {
                *known -= 1;
            }
            self.answer(offer, place);
            return Ok(());
        }
        let (from, tag) = (place.peer, place.tag);
        self.places.push_back(place);
        match from {
            Some(from) => self.ask(from, tag),
            None => others.for_each(|from| self.ask(from, tag)),
        }
        Ok(())
    }

    /// Sends a want for a tag to a member whose window is full, unless one is pending.
    fn ask(&mut self, from: usize, tag: u64) {
        if self.is_full(from) && self.asked.insert((from, tag)) {
            let is_on = true;
            self.acts.push((from, Act::Want { tag, is_on }));
        }
    }

    fn is_full(&self, from: usize) -> bool {
        self.known.get(&from).is_some_and(|known| *known >= WINDOW)
    }

    /// Handles a member's offer.
    pub fn offered(&mut self, from: usize, name: u64, tag: u64, bytes: u64) {
        let offer = Offer {
            from,
            name,
            tag,
            bytes,
        };
        self.asked.remove(&(from, tag));
        let at = self.places.iter().position(|place| is_for(&offer, place));
        if let Some(place) = at.and_then(|at| self.places.remove(at)) {
            let is_for_any = place.peer.is_none();
            self.answer(offer, place);
            if self.places.iter().any(|place| is_for(&offer, place)) {
                self.ask(from, tag);
            }
            if is_for_any {
                self.ask_no_more(tag);
            }
            return;
        }
        if self.is_full(from) {
            self.acts.push((from, Act::Hold { name }));
            return;
        }
        self.offers.push_back(offer);
        *self.known.entry(from).or_default() += 1;
        if self.is_full(from) {
            let may_come = self
                .places
                .iter()
                .filter(|place| place.peer.is_none_or(|peer| peer == from));
            let tags: BTreeSet<u64> = may_come.map(|place| place.tag).collect();
            tags.into_iter().for_each(|tag| self.ask(from, tag));
        }
    }

    /// Withdraws the wants for a tag after a buffer for any member was used. Wants for which
    /// another buffer waits stay.
    fn ask_no_more(&mut self, tag: u64) {
        let places = &self.places;
        let is_needless = |(from, of): &(usize, u64)| {
            let may_come =
                |place: &Parcel| place.tag == tag && place.peer.is_none_or(|peer| peer == *from);
            *of == tag && !places.iter().any(may_come)
        };
        let needless: Vec<(usize, u64)> = self
            .asked
            .iter()
            .filter(|one| is_needless(one))
            .copied()
            .collect();
        for (from, tag) in needless {
            self.asked.remove(&(from, tag));
            let is_on = false;
            self.acts.push((from, Act::Want { tag, is_on }));
        }
    }

    fn answer(&mut self, offer: Offer, mut place: Parcel) {
        let Offer {
            from, name, bytes, ..
        } = offer;
        place.peer = Some(from);
        let place_bytes = place.bytes;
        let act = match bytes > place_bytes {
            // The buffer is kept until the refusal is sent, so that its ticket is settled like any
            // other.
            true => Act::Refuse {
                name,
                bytes,
                place_bytes,
            },
            false => {
                place.bytes = bytes;
                Act::Take { name }
            }
        };
        self.incoming.insert((from, name), place);
        self.acts.push((from, act));
    }

    /// Returns whether a message from or to a member is pending.
    pub fn needs(&self, member: usize) -> bool {
        let with = |parcel: &Parcel| parcel.peer == Some(member);
        let outgoing = self.outgoing.values().map(|outgoing| &outgoing.parcel);
        let mut parcels = outgoing.chain(self.incoming.values());
        parcels.any(with) || self.places.iter().any(with)
    }

    /// Drops all messages and returns them, so that their tickets can be settled.
    pub fn abandon(&mut self) -> Vec<Parcel> {
        let names = self.names;
        let old = std::mem::replace(
            self,
            Self {
                names,
                ..Self::default()
            },
        );
        let outgoing = old.outgoing.into_values().map(|outgoing| outgoing.parcel);
        outgoing
            .chain(old.incoming.into_values())
            .chain(old.places)
            .collect()
    }
}

fn is_for(offer: &Offer, place: &Parcel) -> bool {
    offer.tag == place.tag && place.peer.is_none_or(|peer| peer == offer.from)
}

#[cfg(test)]
mod tests;
