//! What goes over the connections of a group: `docs/spec/group.md`.

/// Bytes of a hello, which every connection begins with.
pub const HELLO_BYTES: usize = 64;

/// Bytes of what every frame begins with.
pub const HEADER_BYTES: usize = 32;

/// Longest text or set that follows a word: a set of [`crate::group::RANKS_MAX`] ranks is 2 KiB.
pub const BODY_BYTES_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"KUMIGRP2";

/// What a connection carries, one way only: from the one who made it, or to it if that was a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Lane {
    /// Words, which must not wait behind data.
    Words = 0,
    /// Pieces of collectives.
    Pieces = 1,
    /// Messages of one rank to another.
    Messages = 2,
}

impl Lane {
    /// The lane of a number.
    pub fn of_number(number: u64) -> Option<Self> {
        let lanes = [Self::Words, Self::Pieces, Self::Messages];
        lanes.into_iter().find(|lane| *lane as u64 == number)
    }
}

/// Who begins a connection, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// For what.
    pub lane: Lane,
    /// Whether it is for the other end to send on, which could not make one.
    pub is_call: bool,
    /// The rank that begins it, as it was numbered when the group began.
    pub from: u32,
    /// The membership it belongs to, by its number of lost ranks.
    pub term: u32,
    /// What [`Secret::hello`](super::secret::Secret::hello) makes of the key of who listens: known only to those who have its
    /// card and the job's secret.
    pub key: [u8; 16],
}

impl Hello {
    /// As it goes over the wire.
    pub fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = self.lane as u8;
        bytes[9] = u8::from(self.is_call);
        bytes[12..16].copy_from_slice(&self.from.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.term.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.key);
        bytes
    }

    /// What was said; `None` if it is no hello.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let hello = Self {
            lane: Lane::of_number(u64::from(bytes[8]))?,
            is_call: bytes[9] != 0,
            from: u32_at(bytes, 12),
            term: u32_at(bytes, 16),
            key: array_at(bytes, 24),
        };
        // The magic, and what is reserved.
        (hello.bytes() == *bytes).then_some(hello)
    }
}

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The sender runs.
    Alive = 1,
    /// The peer may go on, `number` times.
    Tell = 2,
    /// So many of the peer's pieces have been received.
    Got = 3,
    /// What the sender asks its group for; text follows.
    Asked = 4,
    /// Ranks ask for different things; text follows.
    Disagree = 5,
    /// Rank `number` is lost; text follows.
    Lost = 6,
    /// The ranks that the sender would go on without; a set follows.
    Vote = 7,
    /// A message waits to be taken: `number` is its name, `sequence` its tag; how long it is follows.
    Offer = 8,
    /// A message is wanted now, by its name.
    Take = 9,
    /// A message cannot be taken, by its name; text follows.
    Refuse = 10,
    /// The sender leaves: it asks for no more.
    Bye = 11,
    /// The sender has something to send on lane `number`, and cannot connect: the peer shall.
    Call = 12,
    /// There is no room for an offer, by its name: it is to be kept back.
    Hold = 13,
    /// A message with tag `sequence` is wanted beyond the window; `number` is 1, or 0 if it is not any more.
    Want = 14,
    /// The sender has begun collective `sequence`; to the member before it.
    Begun = 15,
    /// A piece of a collective follows.
    Piece = 16,
    /// A message follows, by its name.
    Message = 17,
}

/// The beginning of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What it says.
    pub kind: Kind,
    /// The membership it belongs to.
    pub term: u32,
    /// The collective it belongs to, counted from the membership's beginning.
    pub sequence: u64,
    /// As the kind says.
    pub number: u64,
    /// Bytes that follow.
    pub bytes: u64,
}

impl Header {
    /// As it goes over the wire.
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.term.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// What was said on a lane; `None` if it does not belong there, or more follows than may.
    pub fn parse(bytes: &[u8; HEADER_BYTES], lane: Lane) -> Option<Self> {
        let kind = match (lane, bytes[0]) {
            (Lane::Pieces, 16) => Kind::Piece,
            (Lane::Messages, 17) => Kind::Message,
            (Lane::Words, kind) => word(kind)?,
            _ => return None,
        };
        let header = Self {
            kind,
            term: u32_at(bytes, 4),
            sequence: u64::from_le_bytes(array_at(bytes, 8)),
            number: u64::from_le_bytes(array_at(bytes, 16)),
            bytes: u64::from_le_bytes(array_at(bytes, 24)),
        };
        let has_body = matches!(
            kind,
            Kind::Asked | Kind::Disagree | Kind::Lost | Kind::Vote | Kind::Offer | Kind::Refuse
        );
        let is_right = match lane {
            Lane::Words => match has_body {
                true => header.bytes <= BODY_BYTES_MAX as u64,
                false => header.bytes == 0,
            },
            Lane::Pieces | Lane::Messages => true,
        };
        (is_right && bytes[1..4] == [0; 3]).then_some(header)
    }
}

fn word(kind: u8) -> Option<Kind> {
    let kinds = [
        Kind::Alive,
        Kind::Tell,
        Kind::Got,
        Kind::Asked,
        Kind::Disagree,
        Kind::Lost,
        Kind::Vote,
        Kind::Offer,
        Kind::Take,
        Kind::Refuse,
        Kind::Bye,
        Kind::Call,
        Kind::Hold,
        Kind::Want,
        Kind::Begun,
    ];
    kinds.into_iter().find(|one| *one as u8 == kind)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hello__as_it_is_specified() {
        let hello = Hello {
            lane: Lane::Pieces,
            is_call: false,
            from: 258,
            term: 3,
            key: [7; 16],
        };
        let mut bytes = hello.bytes();
        assert_eq!(&bytes[..20], b"KUMIGRP2\x01\0\0\0\x02\x01\0\0\x03\0\0\0");
        assert_eq!(Hello::parse(&bytes), Some(hello));
        let call = Hello {
            is_call: true,
            ..hello
        };
        assert_eq!(call.bytes()[8..10], [1, 1]);
        assert_eq!(Hello::parse(&call.bytes()), Some(call));
        for at in [9, 63] {
            bytes[at] = 2;
            assert_eq!(Hello::parse(&bytes), None);
        }
    }

    #[test]
    fn header__as_it_is_specified() {
        let header = Header {
            kind: Kind::Piece,
            term: 1,
            sequence: 2,
            number: 0,
            bytes: 8192,
        };
        let bytes = header.bytes();
        assert_eq!(
            bytes[..16],
            [16, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[24..], [0, 32, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Header::parse(&bytes, Lane::Pieces), Some(header));
        assert_eq!(Header::parse(&bytes, Lane::Words), None);
    }

    proptest! {
        #[test]
        fn frame__of_any_bytes__is_itself_again_or_none(bytes: [u8; HEADER_BYTES], hello: [u8; 32]) {
            for lane in [Lane::Words, Lane::Pieces, Lane::Messages] {
                if let Some(header) = Header::parse(&bytes, lane) {
                    prop_assert_eq!(header.bytes(), bytes);
                    prop_assert!(lane != Lane::Words || header.bytes <= BODY_BYTES_MAX as u64);
                }
            }
            let mut whole = [0; HELLO_BYTES];
            whole[8..40].copy_from_slice(&hello);
            prop_assert!(Hello::parse(&whole).is_none());
        }
    }
}
