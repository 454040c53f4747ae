//! Chunks that are queued for a rank, and those that have arrived from it.

use super::ring::{Inlet, Outlet};
use crate::group::frame::{HEADER_BYTES, Header, Kind};
use crate::work::CallerStep;
use kumi_wind::{MessageId, PeerId, Place, Transfer};
use std::collections::VecDeque;

/// Most bytes of one peer's chunks that wait for their collective. The plan's windows are far
/// below.
const ARRIVED_BYTES_MAX: usize = 256 << 20;

/// Least landing memory of a peer: four chunks of a short plan. With more ranks, chunks are
/// messages.
pub const RING_BYTES_MIN: usize = 64 << 10;

/// A chunk that has arrived.
pub struct Chunk {
    /// Header of its frame.
    pub header: Header,
    pub(super) place: ChunkPlace,
}

/// Place of a chunk that has arrived.
pub enum ChunkPlace {
    /// In a message.
    Message(Vec<u8>),
    /// Offset in the landing memory, and end for [`Inlet::free`].
    Landed(usize, u64),
}

impl Chunk {
    /// Returns whether the sender waits for an acknowledgement. It knows of a put by itself.
    pub fn needs_ack(&self) -> bool {
        matches!(self.place, ChunkPlace::Message(_))
    }
}

/// A chunk that is being put.
pub struct Flight {
    pub header: Header,
    pub transfer: Transfer,
    pub is_put: bool,
    /// The message after it, if it has one.
    pub told: Option<MessageId>,
}

/// State of the exchange with one rank.
#[derive(Default)]
pub struct Link {
    /// The rank at the node, once it is known.
    pub id: Option<PeerId>,
    /// Chunks that wait.
    pub unsent: VecDeque<(Header, CallerStep)>,
    /// Chunks that have arrived, and the bytes of those in messages.
    pub arrived: VecDeque<Chunk>,
    pub arrived_bytes: usize,
    /// Ring at the peer.
    pub outlet: Option<Outlet>,
    /// Chunks that are being put there, in order.
    pub flights: VecDeque<Flight>,
    /// Header of the last chunk that was put.
    pub last_put: Option<Header>,
    /// Ring of this rank, once it was offered to the peer.
    pub inlet: Option<Inlet>,
    /// Messages about the rings that wait.
    pub notes: VecDeque<(Header, Vec<u8>)>,
}

/// Returns the header of a message about rings.
pub fn note(kind: Kind, number: u64, body: &[u8]) -> Header {
    Header {
        kind,
        term: 0,
        sequence: 0,
        number,
        bytes: body.len() as u64,
    }
}

/// Returns the message about chunks of the given lengths that have been put, of the collective of
/// `header`.
pub fn landed(header: Header, lengths: &[u32]) -> (Header, Vec<u8>) {
    let body: Vec<u8> = lengths
        .iter()
        .flat_map(|bytes| bytes.to_le_bytes())
        .collect();
    let header = Header {
        term: header.term,
        sequence: header.sequence,
        ..note(Kind::Landed, 0, &body)
    };
    (header, body)
}

impl Link {
    /// Queues a message about the chunks that have been put. Returns false without one.
    pub fn tell(&mut self) -> bool {
        let (Some(outlet), Some(header)) = (&mut self.outlet, self.last_put) else {
            return false;
        };
        let untold = outlet.take_untold();
        if !untold.is_empty() {
            self.notes.push_back(landed(header, &untold));
        }
        !untold.is_empty()
    }

    /// Takes a message of the rank.
    ///
    /// # Errors
    /// No rank sends such a message, or too much is early.
    pub fn take(&mut self, header: &[u8], data: Vec<u8>) -> Result<(), String> {
        let header: Option<&[u8; HEADER_BYTES]> = header.try_into().ok();
        let header = header.and_then(Header::parse_wind);
        let header = header.filter(|header| header.bytes == data.len() as u64);
        let taken = header.and_then(|header| match header.kind {
            Kind::Landing => self.take_landing(&header, &data),
            Kind::Landed => self.take_landed(&header, &data),
            Kind::Freed => self.outlet.as_mut()?.free(header.number).then_some(()),
            _ => {
                self.arrived_bytes += data.len();
                let place = ChunkPlace::Message(data);
                self.arrived.push_back(Chunk { header, place });
                Some(())
            }
        });
        taken.ok_or("it sent an invalid frame")?;
        if self.arrived_bytes > ARRIVED_BYTES_MAX {
            return Err(format!(
                "more than {ARRIVED_BYTES_MAX} bytes of it are early"
            ));
        }
        Ok(())
    }

    fn take_landing(&mut self, header: &Header, body: &[u8]) -> Option<()> {
        let (region, rest) = body.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let place = Place {
            region: u32::from_le_bytes(*region),
            key: *key,
            offset: u64::from_le_bytes(rest.try_into().ok()?),
        };
        let is_new = self.outlet.is_none() && header.number >= RING_BYTES_MIN as u64;
        self.outlet = Some(Outlet::new(place, header.number)).filter(|_| is_new);
        is_new.then_some(())
    }

    fn take_landed(&mut self, header: &Header, body: &[u8]) -> Option<()> {
        let inlet = self.inlet.as_mut()?;
        let mut lengths = body.chunks_exact(4);
        for bytes in lengths.by_ref() {
            let bytes = u32::from_le_bytes(bytes.try_into().ok()?);
            let (offset, end) = inlet.land(bytes.into())?;
            let header = Header {
                kind: Kind::Chunk,
                bytes: bytes.into(),
                ..*header
            };
            let place = ChunkPlace::Landed(offset, end);
            self.arrived.push_back(Chunk { header, place });
        }
        lengths.remainder().is_empty().then_some(())
    }
}
