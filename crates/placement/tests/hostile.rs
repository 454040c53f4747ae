//! Hostile frames to the program of `bpf/wind`: nothing is written outside a region, and nothing is
//! answered that has no tag of the session.
//!
//! `KUMI_HOSTILE_FRAMES` is the number of frames, one million by default.

mod support;

use kumi_placement::Region;
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::Seal;
use kumi_wind::protocol::wire::{Header, Kind, Request, emit_request};
use std::os::fd::AsFd;
use support::{
    INDEX, KEY, Pair, REDIRECT, REGION, REGION_BYTES, SHAPES, Shape, frame, random_flags,
    random_operation, random_place,
};

/// Length of what a frame has before its UDP payload, at most.
const HEADERS_BYTES_MAX: usize = 14 + 8 + 40 + 8;

/// Longest response, in bytes (`docs/spec/wind.md`).
const RESPONSE_BYTES_MAX: usize = 1480;

fn frames() -> u64 {
    let text = std::env::var("KUMI_HOSTILE_FRAMES");
    text.map_or(1_000_000, |text| text.parse().expect("a number of frames"))
}

/// Regions of the same and of another process, before and after the attacked one.
fn neighbours(pair: &Pair) -> Vec<SharedMemory> {
    let create = |(number, owner)| {
        let region = Region {
            key: KEY,
            bytes: REGION_BYTES as u64,
            owner,
            reserved: 0,
        };
        let file = pair.program.create_region(number, &region).unwrap();
        SharedMemory::map(file.as_fd(), REGION_BYTES).unwrap()
    };
    let neighbours: Vec<SharedMemory> = [(REGION - 1, 4), (REGION + 1, 4), (REGION + 2, 8)]
        .map(create)
        .into();
    for memory in &neighbours {
        memory.write(0, &[0xa5; REGION_BYTES]);
    }
    neighbours
}

fn is_all(memory: &SharedMemory, byte: u8) -> bool {
    let mut bytes = vec![0; REGION_BYTES];
    memory.read(0, &mut bytes);
    bytes.iter().all(|other| *other == byte)
}

/// Damages a frame: bits, lengths, or bytes that another one has.
fn damage(frame: &mut Vec<u8>, other: &[u8], rng: &mut fastrand::Rng) {
    for _ in 0..=rng.usize(..3) {
        let at = rng.usize(..frame.len());
        match rng.u8(..6) {
            0 => frame.truncate(at.max(34)),
            1 => frame.extend(std::iter::repeat_n(rng.u8(..), rng.usize(..100))),
            2 => {
                let from = at.min(other.len());
                let end = other.len().min(frame.len());
                frame[from.min(end)..end].copy_from_slice(&other[from.min(end)..end]);
            }
            3 => frame[at] = rng.u8(..),
            _ => frame[at] ^= 1 << rng.u8(..8),
        }
    }
}

fn attack(shape: Shape, seal: Seal, seed: u64, count: u64) {
    let mut pair = Pair::new(shape, seal);
    let neighbours = neighbours(&pair);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut last = frame(shape, &[0; 60], false);
    for number in 0..count {
        let request = Request {
            number: rng.u64(..) >> rng.u32(..64),
            place: random_place(&mut rng),
            operation: random_operation(&mut rng),
        };
        let header = Header {
            kind: Kind::Request,
            flags: random_flags(&mut rng),
            receiver: INDEX,
            number,
        };
        let mut packet = Vec::new();
        emit_request(header, &request, &pair.requests, &mut packet);
        if seal == Seal::Authenticate {
            // Without the key, a stranger can only guess the tag.
            let tag = packet.len() - 8;
            packet[tag..].fill(rng.u8(..));
        }
        let mut bytes = frame(shape, &packet, false);
        if rng.bool() {
            damage(&mut bytes, &last, &mut rng);
        }
        let run = match rng.u8(..4) {
            0 => {
                let segments = rng.u32(1..9);
                let segment = (bytes.len() as u32 / segments).max(1);
                pair.program.test_run_segmented(&bytes, segment, segments)
            }
            _ => pair.program.test_run(&bytes),
        };
        // The kernel refuses to run frames that are no frames.
        let Ok((action, output)) = run else { continue };
        if seal == Seal::Authenticate {
            assert_ne!(action, REDIRECT, "{shape:?} {seed} {number}");
        }
        if action == REDIRECT {
            assert!(output.len() <= HEADERS_BYTES_MAX + RESPONSE_BYTES_MAX);
        }
        if number % 65_536 == 0 || number + 1 == count {
            let are_whole = neighbours.iter().all(|memory| is_all(memory, 0xa5));
            assert!(are_whole, "{shape:?} {seal:?} {seed} {number}");
            assert!(seal == Seal::Plain || is_all(&pair.memory, 0));
        }
        last = bytes;
    }
    if seal == Seal::Plain {
        assert!(
            !is_all(&pair.memory, 0),
            "no frame was good enough to write"
        );
    }
}

#[test]
#[ignore = "needs root, bpf"]
fn program__hostile_frames__write_in_no_other_region_and_answer_no_stranger() {
    let count = frames() / (2 * SHAPES.len() as u64);
    for (seed, shape) in (0..).zip(SHAPES) {
        for seal in [Seal::Authenticate, Seal::Plain] {
            attack(shape, seal, seed, count);
        }
    }
}
