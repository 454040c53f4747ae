//! Messages of one rank to another: a sender offers, and sends when the receiver has a place for it.

use crate::group::memory::Memory;
use crate::group::ticket::Promise;
use std::collections::{HashMap, VecDeque};

/// Offers that may wait for a receiver: 40 bytes each.
const OFFERS_MAX: usize = 1 << 16;

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

/// What a receiver does about an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Take it, from this member by this name.
    Take(usize, u64),
    /// It is longer than its place.
    Refuse {
        from: usize,
        name: u64,
        bytes: u64,
        place_bytes: u64,
    },
}

/// All messages of one rank.
#[derive(Default)]
pub struct Messages {
    names: u64,
    /// Offered and not yet over, by name.
    outgoing: HashMap<u64, Parcel>,
    offers: VecDeque<Offer>,
    places: VecDeque<Parcel>,
    /// Taken and on their way, by sender and name.
    incoming: HashMap<(usize, u64), Parcel>,
}

impl Messages {
    /// The name of a message to offer.
    pub fn offer(&mut self, parcel: Parcel) -> u64 {
        self.names += 1;
        self.outgoing.insert(self.names, parcel);
        self.names
    }

    /// A message that this rank has offered.
    pub fn outgoing(&self, name: u64) -> Option<&Parcel> {
        self.outgoing.get(&name)
    }

    /// It is over.
    pub fn sent(&mut self, name: u64) -> Option<Parcel> {
        self.outgoing.remove(&name)
    }

    /// A message that was taken.
    pub fn incoming(&mut self, from: usize, name: u64) -> Option<&mut Parcel> {
        self.incoming.get_mut(&(from, name))
    }

    /// It has come.
    pub fn received(&mut self, from: usize, name: u64) -> Option<Parcel> {
        self.incoming.remove(&(from, name))
    }

    /// There is a place for a message.
    pub fn receive(&mut self, place: Parcel) -> Option<Answer> {
        let fits = |offer: &Offer| is_for(offer, &place);
        let Some(at) = self.offers.iter().position(fits) else {
            self.places.push_back(place);
            return None;
        };
        let offer = self.offers.remove(at)?;
        Some(self.answer(offer, place))
    }

    /// A member offers a message. False if too many wait already.
    pub fn offered(
        &mut self,
        from: usize,
        name: u64,
        tag: u64,
        bytes: u64,
    ) -> Result<Option<Answer>, usize> {
        let offer = Offer {
            from,
            name,
            tag,
            bytes,
        };
        let at = self.places.iter().position(|place| is_for(&offer, place));
        if let Some(place) = at.and_then(|at| self.places.remove(at)) {
            return Ok(Some(self.answer(offer, place)));
        }
        if self.offers.len() >= OFFERS_MAX {
            return Err(OFFERS_MAX);
        }
        self.offers.push_back(offer);
        Ok(None)
    }

    fn answer(&mut self, offer: Offer, mut place: Parcel) -> Answer {
        let Offer {
            from, name, bytes, ..
        } = offer;
        if bytes > place.bytes {
            let place_bytes = place.bytes;
            // Kept, so that it is told as any other is.
            place.peer = Some(from);
            self.incoming.insert((from, name), place);
            return Answer::Refuse {
                from,
                name,
                bytes,
                place_bytes,
            };
        }
        place.peer = Some(from);
        place.bytes = bytes;
        self.incoming.insert((from, name), place);
        Answer::Take(from, name)
    }

    /// Whether anything is under way with a member.
    pub fn needs(&self, member: usize) -> bool {
        let with = |parcel: &Parcel| parcel.peer == Some(member);
        let mut parcels = self.outgoing.values().chain(self.incoming.values());
        parcels.any(with) || self.places.iter().any(with)
    }

    /// Gives everything up; who waits is to be told.
    pub fn abandon(&mut self) -> Vec<Parcel> {
        self.offers.clear();
        let outgoing = self.outgoing.drain().map(|(_, parcel)| parcel);
        let mut all: Vec<Parcel> = outgoing.collect();
        all.extend(self.incoming.drain().map(|(_, parcel)| parcel));
        all.extend(self.places.drain(..));
        all
    }
}

fn is_for(offer: &Offer, place: &Parcel) -> bool {
    offer.tag == place.tag && place.peer.is_none_or(|peer| peer == offer.from)
}
