//! A session in the kernel, the same one in Rust, and frames to it.

#![allow(dead_code, reason = "each test uses a part")]

use kumi_placement::{Name, Program, Region, Session};
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::kernel::{KERNEL_REGION, WINDOW_BYTES};
use kumi_wind::protocol::wire::{Authenticator, Flags, Header, Kind, emit_response, parse_request};
use kumi_wind::protocol::{Regions, SLOT_WORDS, SlotMemory, diff, execute_request, respond};
use kumi_wind::{Atomic, Operation, Place, RegionKey, Seal};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

pub const KEY: RegionKey = *b"0123456789abcdef";
pub const REGION: u32 = 5;
/// Not a multiple of the page.
pub const REGION_BYTES: usize = 3 * 4096 + 100;
pub const INDEX: u32 = 0x1234_5678;
pub const PEER_INDEX: u32 = 0x9abc_def0;
pub const PORT: u16 = 24_890;
pub const PEER_PORT: u16 = 5_000;
/// `TC_ACT_UNSPEC`, `TC_ACT_SHOT` and `TC_ACT_REDIRECT` of linux/pkt_cls.h.
pub const UNSPEC: u32 = u32::MAX;
pub const SHOT: u32 = 2;
pub const REDIRECT: u32 = 7;

/// The model's memory: the region, and nothing else.
pub struct Memory(pub Vec<u8>);

impl Regions for Memory {
    fn length(&self, region: u32, key: &RegionKey) -> Option<u64> {
        (region == REGION | KERNEL_REGION && *key == KEY).then_some(self.0.len() as u64)
    }

    fn write(&mut self, _: u32, offset: u64, bytes: &[u8]) {
        self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, _: u32, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
    }

    fn update(&mut self, _: u32, offset: u64, atomic: Atomic) -> u64 {
        let place = &mut self.0[offset as usize..][..8];
        let word = u64::from_ne_bytes((&*place).try_into().expect("eight bytes"));
        place.copy_from_slice(&atomic.apply(word).to_ne_bytes());
        word
    }
}

/// Shape of a frame around a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    Ipv4,
    Ipv4Options,
    Ipv6,
    Vlan,
    /// Shorter than a frame may be, so it is padded.
    Padded,
}

pub const SHAPES: [Shape; 5] = [
    Shape::Ipv4,
    Shape::Ipv4Options,
    Shape::Ipv6,
    Shape::Vlan,
    Shape::Padded,
];

pub fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns a frame with `payload`, from one side to the other.
pub fn frame(shape: Shape, payload: &[u8], is_answer: bool) -> Vec<u8> {
    let (mut source, mut target) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (mut from, mut to) = (1_u8, 2_u8);
    let (mut from_port, mut to_port) = (PEER_PORT, PORT);
    if is_answer {
        std::mem::swap(&mut source, &mut target);
        std::mem::swap(&mut from, &mut to);
        std::mem::swap(&mut from_port, &mut to_port);
    }
    let mut out = [&target[..], &source[..]].concat();
    if shape == Shape::Vlan {
        // The outer tag is beside the packet; two are in it.
        out.extend([0x88, 0xa8, 0, 7, 0x81, 0, 0, 9]);
    }
    let udp_bytes = 8 + payload.len() as u16;
    if shape == Shape::Ipv6 {
        out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        out.extend(udp_bytes.to_be_bytes());
        out.extend([17, 64]);
        for last in [from, to] {
            out.extend([0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
    } else {
        let options: &[u8] = match shape {
            // No operation, three times, and the end.
            Shape::Ipv4Options => &[1, 1, 1, 0],
            _ => &[],
        };
        let head_bytes = 20 + options.len();
        let mut head = vec![0x40 | (head_bytes / 4) as u8, 0];
        head.extend((head_bytes as u16 + udp_bytes).to_be_bytes());
        head.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, from, 10, 9, 0, to]);
        head.extend(options);
        let sum = checksum(&head).to_be_bytes();
        head[10..12].copy_from_slice(&sum);
        out.extend([8, 0]);
        out.extend(head);
    }
    out.extend(from_port.to_be_bytes());
    out.extend(to_port.to_be_bytes());
    out.extend(udp_bytes.to_be_bytes());
    out.extend([0, 0]);
    out.extend(payload);
    if shape == Shape::Padded && !is_answer {
        out.extend([0xee; 17]);
    }
    out
}

pub fn peer(shape: Shape) -> [u8; 16] {
    match shape {
        Shape::Ipv6 => [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        _ => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1],
    }
}

/// A session in the kernel, and the same one in the model.
pub struct Pair {
    pub program: Program,
    pub memory: SharedMemory,
    windows: SharedMemory,
    model: Memory,
    slots: Vec<AtomicU64>,
    pub requests: Authenticator,
    pub responses: Authenticator,
}

impl Pair {
    pub fn new(shape: Shape, seal: Seal) -> Self {
        let program = Program::load().expect("the kernel takes the program");
        let region = Region {
            key: KEY,
            bytes: REGION_BYTES as u64,
            owner: 3,
            reserved: 0,
        };
        let memory = program.create_region(REGION, &region).unwrap();
        let memory = SharedMemory::map(memory.as_fd(), REGION_BYTES).unwrap();
        let windows = program.create_windows(3, 4).unwrap();
        let (requests, responses) = (
            Authenticator::new(&[1; 32], seal),
            Authenticator::new(&[2; 32], seal),
        );
        let session = Session {
            peer: peer(shape),
            request_key: requests.key().unwrap_or_default(),
            response_key: responses.key().unwrap_or_default(),
            peer_index: PEER_INDEX,
            owner: 3,
            window: 2,
            peer_port: PEER_PORT,
            has_tags: u16::from(seal != Seal::Plain),
        };
        let name = Name {
            index: INDEX,
            port: PORT,
            reserved: 0,
        };
        program.open_session(&name, &session, &windows).unwrap();
        let windows = SharedMemory::map(windows.as_fd(), 4 * WINDOW_BYTES).unwrap();
        let slots = std::iter::repeat_with(AtomicU64::default);
        Self {
            program,
            memory,
            windows,
            model: Memory(vec![0; REGION_BYTES]),
            slots: slots.take(SLOT_WORDS).collect(),
            requests,
            responses,
        }
    }

    /// Returns what the model answers: `None` for nothing.
    pub fn answer(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let header = Header::parse(packet).ok()?;
        let request = parse_request(packet, &self.requests)?;
        let result = execute_request(&request, &self.slots, &mut self.model)?;
        let response = respond(header.flags, &request, &result, &self.slots)?;
        let header = Header {
            kind: Kind::Response,
            flags: Flags::default(),
            receiver: PEER_INDEX,
            number: header.number,
        };
        let mut out = Vec::new();
        emit_response(header, response, &self.responses, &mut out);
        Some(out)
    }

    pub fn check_equal(&self, what: &dyn std::fmt::Debug) {
        let mut bytes = vec![0; REGION_BYTES];
        self.memory.read(0, &mut bytes);
        let differs = bytes.iter().zip(&self.model.0).position(|(a, b)| a != b);
        assert_eq!(differs, None, "memory differs after {what:?}");
        for index in 0..SLOT_WORDS {
            let word = self.windows.word(2 * WINDOW_BYTES + 8 * index);
            let word = word.load(Ordering::Relaxed);
            let expected = self.slots.word(index).load(Ordering::Relaxed);
            assert_eq!(word, expected, "slot word {index} after {what:?}");
        }
    }
}

pub fn random_place(rng: &mut fastrand::Rng) -> Place {
    let offset = match rng.u8(..8) {
        0 => REGION_BYTES as u64 - rng.u64(..32),
        1 => 4096 - rng.u64(..32),
        2 => rng.u64(..),
        _ => rng.u64(..REGION_BYTES as u64),
    };
    let aligned = rng.bool();
    Place {
        region: if rng.u8(..40) == 0 { 9 } else { REGION } | KERNEL_REGION,
        key: if rng.u8(..40) == 0 { [0; 16] } else { KEY },
        offset: if aligned { offset & !7 } else { offset },
    }
}

pub fn random_bytes(rng: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect()
}

pub fn random_operation(rng: &mut fastrand::Rng) -> Operation {
    let bytes = [0, 1, 7, 8, 64, 255, 1000, 1344][rng.usize(..8)];
    match rng.u8(..8) {
        0 | 1 => Operation::Put(random_bytes(rng, bytes)),
        2 => {
            let mut runs = Vec::new();
            for _ in 0..rng.usize(..12) {
                let span = if rng.u8(..20) == 0 { u32::MAX } else { 3_000 };
                let offset = rng.u32(..span);
                let bytes = rng.usize(..60);
                diff::push_run(offset, &random_bytes(rng, bytes), &mut runs);
            }
            if rng.u8(..10) == 0 {
                runs.truncate(runs.len() - runs.len().min(3));
            }
            Operation::PutDiff(runs)
        }
        3 => Operation::Get(bytes as u16),
        4 => Operation::Atomic(Atomic::FetchAdd(rng.u64(..))),
        5 => Operation::Atomic(Atomic::CompareSwap {
            expected: 0,
            new: rng.u64(..),
        }),
        6 => Operation::Atomic(Atomic::Swap(rng.u64(..))),
        _ => Operation::Atomic(Atomic::MaskedStore {
            mask: rng.u64(..),
            value: rng.u64(..),
        }),
    }
}

pub fn random_flags(rng: &mut fastrand::Rng) -> Flags {
    Flags {
        may_hold_ack: false,
        wants_ack: false,
        is_quiet: rng.u8(..4) == 0,
        wants_summary: rng.u8(..4) == 0,
    }
}
