//! Messages of one rank to another: a sender offers, and sends when the receiver has a place for it.
//!
//! ```text
//!   sender                                      receiver
//!     offer ───────────────────────────────►    has a place: take, or refuse if it is too small
//!                                               has none: the offer waits, one of at most WINDOW of this sender
//!     holds back what is beyond the window ◄─── hold: the window was full
//!     offers one beyond it               ◄───── want a tag: a place waits, and the window is full of others
//! ```
//!
//! A sender may be any number of messages ahead, and a receiver may want any of them first.

use crate::group::memory::Memory;
use crate::group::ticket::Promise;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Offers of one member that may wait at a receiver: 40 bytes each, 40 MiB of [`super::RANKS_MAX`] members. More than
/// programs have on their way to one rank at a time; beyond it a message costs half a round trip more.
pub const WINDOW: usize = 256;

/// Places that may wait on a rank, which bounds the tags that it may want of others.
const PLACES_MAX: usize = 1 << 16;

/// Messages of a rank that may wait to be received: 200 bytes each.
const SENDS_MAX: usize = 1 << 20;

/// A message that is to be sent, or a place for one.
pub struct Parcel {
    /// To or from which member; from any, if `None`.
    pub peer: Option<usize>,
    /// What tells it from others of the same peer.
    pub tag: u64,
    /// Its bytes, or its place's.
    pub bytes: u64,
    /// Where it is: block 0.
    pub memory: Box<dyn Memory>,
    /// Who waits for it.
    pub ticket: Promise,
}

#[derive(Debug, Clone, Copy)]
struct Offer {
    from: usize,
    name: u64,
    tag: u64,
    bytes: u64,
}

/// What a member is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A message waits.
    Offer { name: u64, tag: u64, bytes: u64 },
    /// A message of the member is wanted now.
    Take { name: u64 },
    /// A message of the member is longer than its place.
    Refuse {
        name: u64,
        bytes: u64,
        place_bytes: u64,
    },
    /// There is no room for an offer of the member's: it is to keep it back.
    Hold { name: u64 },
    /// A message with this tag is wanted beyond the window, or no more.
    Want { tag: u64, is_on: bool },
}

/// What a peer said that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// What is on its way to one member.
#[derive(Debug, Default)]
struct Outbox {
    /// Messages offered, and neither taken nor refused.
    offered: usize,
    /// Messages to be offered when the window has room: names in order, and of each tag.
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

    /// The oldest message with a tag that is held.
    fn oldest(&self, tag: u64) -> Option<u64> {
        self.held_of_tag.get(&tag)?.first().copied()
    }
}

struct Outgoing {
    parcel: Parcel,
    is_offered: bool,
}

/// All messages of one rank.
#[derive(Default)]
pub struct Messages {
    names: u64,
    /// Neither sent nor refused, by name.
    outgoing: HashMap<u64, Outgoing>,
    outboxes: HashMap<usize, Outbox>,
    offers: VecDeque<Offer>,
    /// Offers that wait, by member.
    known: HashMap<usize, usize>,
    /// Tags that members were told are wanted, and of which they have not offered one since.
    asked: BTreeSet<(usize, u64)>,
    places: VecDeque<Parcel>,
    /// Taken and on their way, by sender and name.
    incoming: HashMap<(usize, u64), Parcel>,
    acts: Vec<(usize, Act)>,
}

impl Messages {
    /// What members are to be told since this was called last, in order.
    pub fn acts(&mut self) -> Vec<(usize, Act)> {
        std::mem::take(&mut self.acts)
    }

    /// Offers a message to the member that it is for, now or when there is room. The parcel comes back if too many wait.
    pub fn send(&mut self, parcel: Parcel) -> Result<(), (Parcel, String)> {
        let Some(to) = parcel.peer else {
            return Ok(());
        };
        if self.outgoing.len() >= SENDS_MAX {
            return Err((
                parcel,
                format!(
                    "{SENDS_MAX} messages of this rank wait to be received; receive some first"
                ),
            ));
        }
        self.names += 1;
        let (name, tag) = (self.names, parcel.tag);
        let is_offered = false;
        self.outgoing.insert(name, Outgoing { parcel, is_offered });
        let outbox = self.outboxes.entry(to).or_default();
        // Of one tag they keep their order: none is offered while an earlier one is held.
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

    /// An offer is answered: there may be room for the next.
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

    /// A member wants a message that it was offered. Returns how long that is.
    pub fn taken(&mut self, by: usize, name: u64) -> Result<u64, Malformed> {
        match self.answered(by, name) {
            true => Ok(self.outgoing.get(&name).map_or(0, |one| one.parcel.bytes)),
            false => Err(Malformed),
        }
    }

    /// A member has no place that is long enough for a message that it was offered. Returns the message.
    pub fn refused(&mut self, by: usize, name: u64) -> Result<Option<Parcel>, Malformed> {
        match self.answered(by, name) {
            true => Ok(self.sent(name)),
            false => Err(Malformed),
        }
    }

    /// A member has no room for an offer.
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

    /// A member has a place for a message with this tag and a window full of others; or has not any more.
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

    /// A message that was taken, while it is being sent.
    pub fn outgoing(&self, name: u64) -> Option<&Parcel> {
        self.outgoing.get(&name).map(|outgoing| &outgoing.parcel)
    }

    /// Forgets a message that was sent, or is not.
    pub fn sent(&mut self, name: u64) -> Option<Parcel> {
        self.outgoing.remove(&name).map(|outgoing| outgoing.parcel)
    }

    /// A message that was taken.
    pub fn incoming(&mut self, from: usize, name: u64) -> Option<&mut Parcel> {
        self.incoming.get_mut(&(from, name))
    }

    /// Forgets a message that has been received, or was refused.
    pub fn received(&mut self, from: usize, name: u64) -> Option<Parcel> {
        self.incoming.remove(&(from, name))
    }

    /// Has a place for a message; of members `others` if it is for any. The place comes back if too many wait.
    pub fn receive(
        &mut self,
        place: Parcel,
        others: impl Iterator<Item = usize>,
    ) -> Result<(), (Parcel, String)> {
        if self.places.len() >= PLACES_MAX {
            return Err((
                place,
                format!("{PLACES_MAX} places for messages wait already on this rank"),
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

    /// Asks a member for a tag, if its window is full and it was not asked yet.
    fn ask(&mut self, from: usize, tag: u64) {
        if self.is_full(from) && self.asked.insert((from, tag)) {
            let is_on = true;
            self.acts.push((from, Act::Want { tag, is_on }));
        }
    }

    fn is_full(&self, from: usize) -> bool {
        self.known.get(&from).is_some_and(|known| *known >= WINDOW)
    }

    /// A member offers a message.
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

    /// A place for any member's message with this tag has one: others that were asked need not offer theirs, unless
    /// another place waits.
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
            // The place is kept, so that it is told as any other is.
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

    /// Whether anything is under way with a member.
    pub fn needs(&self, member: usize) -> bool {
        let with = |parcel: &Parcel| parcel.peer == Some(member);
        let outgoing = self.outgoing.values().map(|outgoing| &outgoing.parcel);
        let mut parcels = outgoing.chain(self.incoming.values());
        parcels.any(with) || self.places.iter().any(with)
    }

    /// Gives everything up; who waits is to be told.
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
