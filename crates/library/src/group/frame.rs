//! Wire format of a group's connections, as specified in `docs/spec/group.md`.

/// Bytes of the hello, which is first on every connection.
pub const HELLO_BYTES: usize = 64;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 32;

/// Maximum body of a control message, in bytes. A set of [`crate::group::RANKS_MAX`] ranks takes
/// 512 bytes.
pub const BODY_BYTES_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"KUMIGRP2";

/// Kind of a connection. Only its maker sends on it. In a reverse connection ([`Hello::is_call`])
/// only the other end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Channel {
    /// Control messages, which must not wait behind data.
    Control = 0,
    /// Chunks of collectives.
    Chunks = 1,
    /// Point-to-point messages.
    Messages = 2,
}

impl Channel {
    /// Returns the kind that has this number.
    pub fn from_number(number: u64) -> Option<Self> {
        let channels = [Self::Control, Self::Chunks, Self::Messages];
        channels
            .into_iter()
            .find(|channel| *channel as u64 == number)
    }
}

/// First bytes of a connection. They identify its maker and its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Kind of the connection.
    pub channel: Channel,
    /// True in a reverse connection: the other end sends on it, because it could not connect
    /// itself.
    pub is_call: bool,
    /// Initial rank of the connection's maker.
    pub from: u32,
    /// Term to which the connection belongs: the number of lost ranks.
    pub term: u32,
    /// [`Secret::hello`](super::secret::Secret::hello) of the listener's key. Only a process that
    /// has the listener's card and the job's secret can compute it.
    pub key: [u8; 16],
}

impl Hello {
    /// Returns the hello as it is sent.
    pub fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = self.channel as u8;
        bytes[9] = u8::from(self.is_call);
        bytes[12..16].copy_from_slice(&self.from.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.term.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.key);
        bytes
    }

    /// Parses a hello. Returns `None` if it is malformed.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let hello = Self {
            channel: Channel::from_number(u64::from(bytes[8]))?,
            is_call: bytes[9] != 0,
            from: u32_at(bytes, 12),
            term: u32_at(bytes, 16),
            key: array_at(bytes, 24),
        };
        // Compares the magic and the reserved bytes.
        (hello.bytes() == *bytes).then_some(hello)
    }
}

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Heartbeat: the sender runs.
    Alive = 1,
    /// Grants to the peer, `number` of them.
    Grant = 2,
    /// Acknowledgement of `number` more chunks of the peer.
    Ack = 3,
    /// Request that the sender makes for a collective. Its description follows.
    Request = 4,
    /// Report that ranks made different requests. A text follows.
    Disagree = 5,
    /// Report that the initial rank `number` is lost. A text follows.
    Lost = 6,
    /// Vote to continue without a set of ranks. The set follows.
    Vote = 7,
    /// Offer of a message. `number` is its name and `sequence` its tag. Its length follows.
    Offer = 8,
    /// Request to send the offered message `number` now.
    Take = 9,
    /// Refusal of the offered message `number`. A text follows.
    Refuse = 10,
    /// The sender leaves the group and starts no more operations.
    Bye = 11,
    /// Request for a reverse connection of kind `number`: the sender has data and cannot connect.
    Call = 12,
    /// Order to keep the offer `number` back, because there is no room for it.
    Hold = 13,
    /// A message with tag `sequence` is wanted beyond the window if `number` is 1, and no longer if
    /// it is 0.
    Want = 14,
    /// The sender has begun collective `sequence`. It is sent to the previous member of the ring.
    Begun = 15,
    /// Chunk of a collective.
    Chunk = 16,
    /// Point-to-point message `number`.
    Message = 17,
    /// Over Wind: the peer may put chunks into a ring of `number` bytes. Its place follows.
    Landing = 18,
    /// Over Wind: chunks have been put into the ring. Their lengths follow.
    Landed = 19,
    /// Over Wind: chunks up to position `number` of the ring have been taken.
    Freed = 20,
}

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Term to which the frame belongs.
    pub term: u32,
    /// Collective to which the frame belongs, counted from 0 in each term.
    pub sequence: u64,
    /// Argument of the kind.
    pub number: u64,
    /// Length of the body, in bytes.
    pub bytes: u64,
}

impl Header {
    /// Returns the header as it is sent.
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.term.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Parses a header of a message of Wind.
    pub fn parse_wind(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let kinds = [Kind::Chunk, Kind::Landing, Kind::Landed, Kind::Freed];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == bytes[0])?;
        Self::with_kind(kind, bytes)
    }

    fn with_kind(kind: Kind, bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let header = Self {
            kind,
            term: u32_at(bytes, 4),
            sequence: u64::from_le_bytes(array_at(bytes, 8)),
            number: u64::from_le_bytes(array_at(bytes, 16)),
            bytes: u64::from_le_bytes(array_at(bytes, 24)),
        };
        (bytes[1..4] == [0; 3]).then_some(header)
    }

    /// Parses a header of a connection. Returns `None` if its kind does not belong there or its
    /// body is too long.
    pub fn parse(bytes: &[u8; HEADER_BYTES], channel: Channel) -> Option<Self> {
        let kind = match (channel, bytes[0]) {
            (Channel::Chunks, 16) => Kind::Chunk,
            (Channel::Messages, 17) => Kind::Message,
            (Channel::Control, number) => control_kind(number)?,
            _ => return None,
        };
        let header = Self::with_kind(kind, bytes)?;
        let has_body = matches!(
            kind,
            Kind::Request | Kind::Disagree | Kind::Lost | Kind::Vote | Kind::Offer | Kind::Refuse
        );
        let is_valid = match channel {
            Channel::Control => match has_body {
                true => header.bytes <= BODY_BYTES_MAX as u64,
                false => header.bytes == 0,
            },
            Channel::Chunks | Channel::Messages => true,
        };
        is_valid.then_some(header)
    }
}

fn control_kind(number: u8) -> Option<Kind> {
    let kinds = [
        Kind::Alive,
        Kind::Grant,
        Kind::Ack,
        Kind::Request,
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
    kinds.into_iter().find(|kind| *kind as u8 == number)
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[offset..offset + N]);
    array
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hello__encoded__matches_the_specification() {
        let hello = Hello {
            channel: Channel::Chunks,
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
        for offset in [9, 63] {
            bytes[offset] = 2;
            assert_eq!(Hello::parse(&bytes), None);
        }
    }

    #[test]
    fn header__encoded__matches_the_specification() {
        let header = Header {
            kind: Kind::Chunk,
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
        assert_eq!(Header::parse(&bytes, Channel::Chunks), Some(header));
        assert_eq!(Header::parse(&bytes, Channel::Control), None);
    }

    proptest! {
        #[test]
        fn frame__any_bytes__are_refused_or_round_trip(bytes: [u8; HEADER_BYTES], hello: [u8; 32]) {
            for channel in [Channel::Control, Channel::Chunks, Channel::Messages] {
                if let Some(header) = Header::parse(&bytes, channel) {
                    prop_assert_eq!(header.bytes(), bytes);
                    prop_assert!(
                        channel != Channel::Control || header.bytes <= BODY_BYTES_MAX as u64
                    );
                }
            }
            let mut hello_bytes = [0; HELLO_BYTES];
            hello_bytes[8..40].copy_from_slice(&hello);
            prop_assert!(Hello::parse(&hello_bytes).is_none());
        }
    }
}
