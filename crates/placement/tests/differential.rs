//! The program of `bpf/wind` and the Rust executor of requests, with the same random packets: both
//! answer with the same bytes, and leave the same memory and slots.

use kumi_placement::{Name, Program, Region, Session};
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::kernel::{KERNEL_REGION, WINDOW_BYTES};
use kumi_wind::protocol::wire::{
    Authenticator, Flags, Header, Kind, Request, emit_request, emit_response, parse_request,
    parse_response,
};
use kumi_wind::protocol::{Regions, SLOT_WORDS, SlotMemory, diff, execute_request, respond};
use kumi_wind::{Atomic, Operation, Place, RegionKey, Seal};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

const KEY: RegionKey = *b"0123456789abcdef";
const REGION: u32 = 5;
/// Not a multiple of the page.
const REGION_BYTES: usize = 3 * 4096 + 100;
const INDEX: u32 = 0x1234_5678;
const PEER_INDEX: u32 = 0x9abc_def0;
const PORT: u16 = 24_890;
const PEER_PORT: u16 = 5_000;
/// `TC_ACT_UNSPEC`, `TC_ACT_SHOT` and `TC_ACT_REDIRECT` of linux/pkt_cls.h.
const UNSPEC: u32 = u32::MAX;
const SHOT: u32 = 2;
const REDIRECT: u32 = 7;

/// The model's memory: the region, and nothing else.
struct Memory(Vec<u8>);

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
enum Shape {
    Ipv4,
    Ipv4Options,
    Ipv6,
    Vlan,
    /// Shorter than a frame may be, so it is padded.
    Padded,
}

const SHAPES: [Shape; 5] = [
    Shape::Ipv4,
    Shape::Ipv4Options,
    Shape::Ipv6,
    Shape::Vlan,
    Shape::Padded,
];

fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns a frame with `payload`, from one side to the other.
fn frame(shape: Shape, payload: &[u8], is_answer: bool) -> Vec<u8> {
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

fn peer(shape: Shape) -> [u8; 16] {
    match shape {
        Shape::Ipv6 => [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        _ => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1],
    }
}

/// A session in the kernel, and the same one in the model.
struct Pair {
    program: Program,
    memory: SharedMemory,
    windows: SharedMemory,
    model: Memory,
    slots: Vec<AtomicU64>,
    requests: Authenticator,
    responses: Authenticator,
}

impl Pair {
    fn new(shape: Shape, seal: Seal) -> Self {
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
    fn answer(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
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

    fn check_equal(&self, what: &dyn std::fmt::Debug) {
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

fn random_place(rng: &mut fastrand::Rng) -> Place {
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

fn random_bytes(rng: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect()
}

fn random_operation(rng: &mut fastrand::Rng) -> Operation {
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

fn random_flags(rng: &mut fastrand::Rng) -> Flags {
    Flags {
        wants_ack: false,
        is_quiet: rng.u8(..4) == 0,
        wants_summary: rng.u8(..4) == 0,
    }
}

/// Sends `count` packets, some of them again, old ones, and damaged ones.
fn compare(shape: Shape, seal: Seal, seed: u64, count: usize) {
    let mut pair = Pair::new(shape, seal);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut sent: Vec<Vec<u8>> = Vec::new();
    let (mut next, mut answered) = (0, 0);
    for number in 0..count {
        let mut packet = Vec::new();
        if !sent.is_empty() && rng.u8(..5) == 0 {
            let recent = sent.len().saturating_sub(200);
            packet = sent[rng.usize(recent..sent.len())].clone();
        } else {
            let request = Request {
                number: next + rng.u64(..3),
                place: random_place(&mut rng),
                operation: random_operation(&mut rng),
            };
            next += u64::from(rng.bool());
            let header = Header {
                kind: Kind::Request,
                flags: random_flags(&mut rng),
                receiver: INDEX,
                number: number as u64,
            };
            emit_request(header, &request, &pair.requests, &mut packet);
            sent.push(packet.clone());
        }
        // The model does not know the session's name and the header, so these are not damaged.
        let is_damaged = rng.u8(..10) == 0;
        if is_damaged && rng.bool() {
            let at = rng.usize(16..packet.len());
            packet[at] ^= 1 << rng.u8(..8);
        } else if is_damaged {
            packet.truncate(rng.usize(16..packet.len()));
        }
        let what = (
            shape,
            seal,
            seed,
            number,
            packet.get(16..20).map(<[u8]>::to_vec),
        );
        let input = frame(shape, &packet, false);
        let (action, output) = pair.program.test_run(&input).expect("the kernel runs it");
        let is_own = packet.get(28).is_none_or(|byte| byte & 0x80 != 0);
        let expected = match is_own {
            true => pair.answer(&packet),
            // Damaged so that the region is one of the program.
            false => None,
        };
        match expected {
            Some(response) => {
                assert_eq!(action, REDIRECT, "{what:?}");
                let mut expected = frame(shape, &response, true);
                if output.len() > expected.len() {
                    // The test's device pads short frames.
                    expected.resize(output.len(), 0);
                }
                assert_eq!(output, expected, "{what:?}");
                answered += 1;
            }
            None => assert!(action == SHOT || action == UNSPEC, "{action} {what:?}"),
        }
        if number % 64 == 0 {
            pair.check_equal(&what);
        }
    }
    pair.check_equal(&"all");
    assert!(answered > count / 4, "{answered} of {count} answered");
}

#[test]
#[ignore = "needs root, bpf"]
fn program__random_requests__answers_and_writes_as_the_rust_executor() {
    for shape in SHAPES {
        for seal in [Seal::Authenticate, Seal::Plain] {
            for seed in 0..3 {
                compare(shape, seal, seed, 2_000);
            }
        }
    }
}

#[test]
#[ignore = "needs root, bpf"]
fn program__other_traffic__is_left_alone() {
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    let request = Request {
        number: 0,
        place: Place {
            region: REGION | KERNEL_REGION,
            key: KEY,
            offset: 0,
        },
        operation: Operation::Put(vec![9; 100]),
    };
    let header = |receiver: u32| Header {
        kind: Kind::Request,
        flags: Flags::default(),
        receiver,
        number: 0,
    };
    let requests = pair.requests;
    let packet = |receiver: u32, request: &Request| {
        let mut out = Vec::new();
        emit_request(header(receiver), request, &requests, &mut out);
        out
    };
    let good = frame(Shape::Ipv4, &packet(INDEX, &request), false);
    let change = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let of_program = Request {
        place: Place {
            region: REGION,
            ..request.place
        },
        ..request.clone()
    };
    let cases = [
        (
            "another session",
            frame(Shape::Ipv4, &packet(INDEX + 1, &request), false),
        ),
        ("another address", change(14 + 15, 7)),
        ("another peer port", change(14 + 20 + 1, 7)),
        ("another port", change(14 + 20 + 3, 7)),
        ("a Data packet", change(14 + 28, 0x31)),
        ("another version", change(14 + 28, 0x52)),
        ("TCP", change(14 + 9, 6)),
        ("first fragment", change(14 + 6, 0x20)),
        ("later fragment", change(14 + 7, 1)),
        ("ARP", change(13, 6)),
        (
            "a region of the program",
            frame(Shape::Ipv4, &packet(INDEX, &of_program), false),
        ),
        ("a UDP length beyond the frame", change(14 + 24, 0xff)),
    ];
    for (name, bytes) in cases {
        let (action, output) = pair.program.test_run(&bytes).unwrap();
        assert_eq!(
            (action, &output[..bytes.len()]),
            (UNSPEC, &bytes[..]),
            "{name}"
        );
    }
    // The kernel refuses test frames that end within the headers.
    for length in 14 + 20..good.len() {
        let (action, _) = pair.program.test_run(&good[..length]).unwrap();
        assert!(
            action == UNSPEC || action == SHOT,
            "{length} bytes: {action}"
        );
    }
    pair.check_equal(&"other traffic");
    assert_eq!(pair.program.test_run(&good).unwrap().0, REDIRECT);
}

/// Sends eight puts as one super-packet, to the kernel and the model. Returns the kernel's action
/// and what it sends.
fn send_super_packet(pair: &mut Pair, flags: fn(u64) -> Flags) -> (u32, Vec<u8>) {
    let mut payload = Vec::new();
    let mut segment = 0;
    for number in 0..8_u64 {
        let bytes = if number == 7 { 100 } else { 300 };
        let request = Request {
            number,
            place: Place {
                region: REGION | KERNEL_REGION,
                key: KEY,
                offset: number * 300,
            },
            operation: Operation::Put(vec![number as u8 + 1; bytes]),
        };
        let header = Header {
            kind: Kind::Request,
            flags: flags(number),
            receiver: INDEX,
            number: 70 + number,
        };
        let mut packet = Vec::new();
        emit_request(header, &request, &pair.requests, &mut packet);
        segment = segment.max(packet.len());
        payload.extend(&packet);
        pair.answer(&packet);
    }
    let input = frame(Shape::Ipv4, &payload, false);
    let run = pair
        .program
        .test_run_segmented(&input, segment as u32, 8)
        .expect("the kernel runs it");
    pair.check_equal(&"a super-packet");
    run
}

#[test]
#[ignore = "needs root, bpf"]
fn program__super_packet_of_gets__is_left_to_the_program() {
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    let mut payload = Vec::new();
    for number in 0..4 {
        let header = Header {
            kind: Kind::Request,
            flags: Flags::default(),
            receiver: INDEX,
            number,
        };
        let request = Request {
            number,
            place: Place {
                region: REGION | KERNEL_REGION,
                key: KEY,
                offset: 0,
            },
            operation: Operation::Get(1_000),
        };
        emit_request(header, &request, &pair.requests, &mut payload);
    }
    let input = frame(Shape::Ipv4, &payload, false);
    let segment_bytes = payload.len() as u32 / 4;
    let run = pair.program.test_run_segmented(&input, segment_bytes, 4);
    let (action, output) = run.expect("the kernel runs it");
    assert_eq!((action, &output[..]), (UNSPEC, &input[..]));
    pair.check_equal(&"gets");
}

/// Returns the packet number of the response in a frame, the requests that it answers, and those in
/// its summary.
fn answered(pair: &Pair, output: &[u8]) -> (u64, Vec<u64>, Option<Vec<u64>>) {
    let packet = &output[14 + 28..];
    let response = parse_response(packet, &pair.responses).expect("authentic");
    let answers = response.answers.iter();
    assert!(answers.clone().all(|answer| answer.result == Ok(&[])));
    (
        Header::parse(packet).unwrap().number,
        answers.map(|answer| answer.operation).collect(),
        response.summary.map(|summary| summary.numbers().collect()),
    )
}

#[test]
#[ignore = "needs root, bpf"]
fn program__super_packet__answers_all_of_its_requests_at_once() {
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    let (action, output) = send_super_packet(&mut pair, |_| Flags::default());
    assert_eq!(action, REDIRECT);
    assert_eq!(answered(&pair, &output), (77, (0..8).collect(), None));
}

#[test]
#[ignore = "needs root, bpf"]
fn program__super_packet_of_quiet_puts__answers_the_others_with_a_summary_or_nothing() {
    let quiet = |number: u64| Flags {
        is_quiet: number != 2 && number != 6,
        wants_summary: number == 6,
        ..Flags::default()
    };
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    let (action, output) = send_super_packet(&mut pair, quiet);
    assert_eq!(action, REDIRECT);
    let of_summary = Some((0..7).collect());
    assert_eq!(answered(&pair, &output), (76, vec![2, 6], of_summary));
    let all = |_| Flags {
        is_quiet: true,
        ..Flags::default()
    };
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    assert_eq!(send_super_packet(&mut pair, all).0, SHOT);
}
