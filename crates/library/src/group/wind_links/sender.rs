//! Sends what is queued for a rank.

use super::link::{Flight, Link, landed};
use super::ring::Outlet;
use crate::group::frame::Header;
use crate::work::CallerStep;
use kumi_wind::{Class, LocalMemory, Message, MessageId, Mode, Node, PeerId, Transfer, WindError};
use std::collections::VecDeque;

/// Bytes to a peer that wait or are in flight, above which no more are put. A transfer of a chunk
/// then starts as a whole.
const UNSENT_BYTES_MAX: u64 = 8 << 20;

/// Bytes of a chunk, which a transfer reads at once.
pub struct Source<'a>(pub &'a [u8]);

impl LocalMemory for Source<'_> {
    fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.0[offset..offset + bytes].to_vec()
    }

    fn write(&mut self, _: usize, _: &[u8]) {}
}

/// Sends what is queued for a rank.
pub struct Sender<'a> {
    pub node: &'a Node,
    /// The rank at the node.
    pub id: PeerId,
    /// Chunks are put into the peer's ring.
    pub puts: bool,
}

impl Sender<'_> {
    /// Sends as far as Wind takes it. `read` returns the bytes of a chunk.
    ///
    /// # Errors
    /// The rank is lost.
    pub fn send<'b>(
        &self,
        link: &mut Link,
        read: impl Fn(&CallerStep) -> Option<&'b [u8]>,
    ) -> Result<(), WindError> {
        while let Some((header, body)) = link.notes.front() {
            if self
                .try_send(Class::Ordered, header, body.clone())?
                .is_none()
            {
                return Ok(());
            }
            link.notes.pop_front();
        }
        while let Some((header, step)) = link.unsent.front().copied() {
            let data = read(&step).unwrap_or_default();
            let puts = |outlet: &&mut Outlet| self.puts && outlet.takes(data.len() as u64);
            let is_sent = match link.outlet.as_mut().filter(puts) {
                Some(outlet) => {
                    let is_put = self.put(outlet, &mut link.flights, header, &step, data)?;
                    link.last_put = Some(header).filter(|_| is_put).or(link.last_put);
                    is_put
                }
                None => {
                    // The order of the chunks is that of the plan.
                    self.tell(link)?
                        && self
                            .try_send(Class::Ordered, &header, data.to_vec())?
                            .is_some()
                }
            };
            if !is_sent {
                return Ok(());
            }
            link.unsent.pop_front();
        }
        Ok(())
    }

    fn try_send(
        &self,
        class: Class,
        header: &Header,
        body: Vec<u8>,
    ) -> Result<Option<MessageId>, WindError> {
        let message = Message {
            class,
            mode: Mode::MessageThrough,
            header: header.bytes().to_vec(),
            data: vec![body],
            place: None,
        };
        self.node.try_send(self.id, message)
    }

    /// Puts a chunk, and tells the receiver if it is due. Returns false if the ring or Wind has no
    /// room.
    fn put(
        &self,
        outlet: &mut Outlet,
        flights: &mut VecDeque<Flight>,
        header: Header,
        step: &CallerStep,
        data: &[u8],
    ) -> Result<bool, WindError> {
        if self.node.unsent_bytes(self.id) > UNSENT_BYTES_MAX {
            return Ok(false);
        }
        let Some(place) = outlet.reserve(data.len() as u64) else {
            if let Some(last) = flights.back_mut() {
                self.tell_flight(outlet, last)?;
            }
            return Ok(false);
        };
        let mut transfer = Transfer::put(self.id, place, data.len());
        let is_put = self.node.advance(&mut transfer, &mut Source(data))?;
        let mut flight = Flight {
            header,
            transfer,
            is_put,
            told: None,
        };
        if step.is_due || outlet.is_half_full() {
            self.tell_flight(outlet, &mut flight)?;
        }
        flights.push_back(flight);
        Ok(true)
    }

    /// Tells the receiver of all chunks up to `flight`, the last one.
    fn tell_flight(&self, outlet: &mut Outlet, flight: &mut Flight) -> Result<(), WindError> {
        if outlet.untold().is_empty() {
            return Ok(());
        }
        let (header, body) = landed(flight.header, outlet.untold());
        let told = self.try_send(Class::Synchronous, &header, body)?;
        if told.is_some() {
            outlet.take_untold();
            flight.told = told;
        }
        Ok(())
    }

    /// Tells the receiver of all chunks that have been put. Returns false if Wind has no room.
    fn tell(&self, link: &mut Link) -> Result<bool, WindError> {
        let (Some(outlet), Some(last)) = (&mut link.outlet, link.flights.back_mut()) else {
            return Ok(true);
        };
        self.tell_flight(outlet, last)?;
        Ok(outlet.untold().is_empty())
    }
}
