//! Structures of `bpf/multilink/intf.h`, in the host's byte order except for [`Question`].

use kumi_multilink::wire::{LINKS_MAX, Mac, QuestionKey};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most peers: `KUMI_PEERS_MAX`.
pub const PEERS_MAX: usize = 1024;

/// `struct kumi_mac`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoBytes, Immutable)]
#[repr(C)]
pub struct Key {
    /// The address.
    pub mac: Mac,
    /// Always 0.
    pub zero: u16,
}

impl From<Mac> for Key {
    fn from(mac: Mac) -> Self {
        Self { mac, zero: 0 }
    }
}

/// `struct kumi_way`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Way {
    /// Destination address.
    pub to: Mac,
    /// Source address.
    pub from: Mac,
}

/// `struct kumi_peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Peer {
    /// Links that may carry frames, as bits.
    pub links: u32,
    /// Number of the peer.
    pub number: u32,
    /// 1 if the daemon carries long streams, otherwise 0.
    pub daemon_has_bulk: u32,
    /// Bit of the link that carries all frames for a moment, so that its rate shows; 0 for none.
    pub tried: u32,
    /// Links of whose paths the rate is a guess, as bits.
    pub guessed: u32,
    /// Addresses by link.
    pub ways: [Way; LINKS_MAX],
}

/// `struct kumi_sender`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Sender {
    /// Number of the local link.
    pub link: u32,
    /// Number of the peer.
    pub number: u32,
    /// MAC address of the sender's device.
    pub mac: Mac,
    /// Always 0.
    pub zero: u16,
    /// Key of its questions.
    pub key: QuestionKey,
}

/// `struct kumi_link`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Link {
    /// Interface, 0 for none.
    pub index: u32,
    /// Always 0.
    pub zero: u32,
    /// Time that a byte takes, in 1/1024 ns.
    pub byte_time: u64,
    /// Key of the own questions.
    pub key: QuestionKey,
}

/// `struct kumi_path`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub struct Path {
    /// Time that a byte takes on the whole way, in 1/1024 ns.
    pub byte_time: u64,
    /// Time that a frame takes besides its length, in ns.
    pub latency_ns: u64,
    /// Bytes sent that had left the path at `left_at_ns`.
    pub left_bytes: u64,
    /// Time at which they had, in the kernel's time, in ns.
    pub left_at_ns: u64,
    /// Time of a question without an answer, in ns; 0 for none.
    pub asked_at_ns: u64,
}

/// `struct kumi_count`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Count {
    /// Bytes sent, as on the wire.
    pub sent_bytes: u64,
    /// Bytes received, as on the wire.
    pub received_bytes: u64,
    /// Bytes sent before the path's busy period.
    pub start_bytes: u64,
    /// Time at which the busy period began, in ns.
    pub start_at_ns: u64,
}

/// `struct kumi_question`, with its numbers in network order.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub struct Question {
    /// 1: a question.
    pub kind: u8,
    /// Always 0.
    pub zero: [u8; 7],
    /// Time of the question, in ns.
    pub asked_at_ns: [u8; 8],
    /// Bytes sent on the path before it.
    pub sent_bytes: [u8; 8],
    /// The answer's fields: 0 in a question.
    pub received_bytes: [u8; 8],
    pub answered_at_ns: [u8; 8],
    /// SipHash-2-4 of the fields before, as a little-endian number.
    pub tag: [u8; 8],
}

impl Question {
    /// Returns the question of this time, after `sent_bytes` were sent, with a tag by `key`.
    pub fn new(at_ns: u64, sent_bytes: u64, key: &QuestionKey) -> Self {
        let mut question = Self {
            kind: QUESTION,
            zero: [0; 7],
            asked_at_ns: at_ns.to_be_bytes(),
            sent_bytes: sent_bytes.to_be_bytes(),
            received_bytes: [0; 8],
            answered_at_ns: [0; 8],
            tag: [0; 8],
        };
        question.tag = tag(&question.as_bytes()[..TAGGED_BYTES], key);
        question
    }
}

/// Returns the tag of what a question has before it.
pub fn tag(bytes: &[u8], key: &QuestionKey) -> [u8; 8] {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(bytes);
    hasher.finish().to_le_bytes()
}

/// Bytes of a question before its tag.
const TAGGED_BYTES: usize = 40;

/// `KUMI_QUESTION_TYPE` and `KUMI_QUESTION`.
pub const QUESTION_TYPE: u16 = 0x88b5;
pub const QUESTION: u8 = 1;

/// `struct kumi_answer`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Answer {
    /// Time of the question, in ns.
    pub asked_at_ns: u64,
    /// Bytes that this side had sent before it.
    pub sent_bytes: u64,
    /// Bytes of them that the peer had received when it answered.
    pub received_bytes: u64,
    /// Time of the answer by the peer's clock, in ns.
    pub answered_at_ns: u64,
    /// Time at which it arrived, in ns.
    pub arrived_at_ns: u64,
    /// The other fields by XOR.
    pub check: u64,
}

impl Answer {
    /// Returns whether the program has written all fields.
    pub fn is_whole(&self) -> bool {
        let fields = self.asked_at_ns
            ^ self.sent_bytes
            ^ self.received_bytes
            ^ self.answered_at_ns
            ^ self.arrived_at_ns;
        self.arrived_at_ns > 0 && fields == self.check
    }
}

/// `struct kumi_device`.
#[derive(Debug, Clone, Copy, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct Device {
    /// Number of its interface.
    pub index: u32,
    /// MAC address.
    pub mac: Mac,
    /// Always 0.
    pub zero: [u8; 6],
    /// Time at which the daemon ran last, in ns.
    pub alive_at_ns: u64,
    /// Layout of the maps, [`LAYOUT`]. The program does not read it.
    pub layout: u64,
}

impl Device {
    /// Returns a device whose daemon runs at this time, in ns.
    pub fn new(index: u32, mac: Mac, alive_at_ns: u64) -> Self {
        Self {
            index,
            mac,
            zero: [0; 6],
            alive_at_ns,
            layout: LAYOUT,
        }
    }
}

/// Hash of the files that lay out the maps. Daemons with the same one can share maps.
pub const LAYOUT: u64 = decimal(env!("KUMI_MULTILINK_LAYOUT"));

/// Returns the number that a text of digits writes.
const fn decimal(text: &str) -> u64 {
    let (digits, mut value, mut at) = (text.as_bytes(), 0, 0);
    while at < digits.len() {
        value = value * 10 + (digits[at] - b'0') as u64;
        at += 1;
    }
    value
}
