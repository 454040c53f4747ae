//! Two Wind endpoints with any sequence of operations, on a network that loses, repeats, delays and
//! damages datagrams.

use crate::choices::Choices;
use kumi_wind::protocol::wire::parse_records;
use kumi_wind::protocol::{Endpoint, Regions, SLOT_WORDS};
use kumi_wind::{Atomic, Class, Config, Message, Mode, Operation, Place, RegionKey, Seal};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const MS: u64 = 1_000_000;
const STEPS_MAX: u32 = 600;
/// Most datagrams that are kept for repetitions.
const KEPT_MAX: usize = 200;
const REGION_BYTES: usize = 4_096;
const KEY: RegionKey = [5; 16];

/// A region, number 0. An access out of its bounds panics.
struct Memory(Vec<u8>);

impl Regions for Memory {
    fn length(&self, region: u32, key: &RegionKey) -> Option<u64> {
        (region == 0 && *key == KEY).then_some(self.0.len() as u64)
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

fn place(choices: &mut Choices) -> Place {
    let is_wild = choices.u8(..) < 20;
    Place {
        region: if is_wild { choices.u32(..) } else { 0 },
        key: if choices.u8(..) < 10 { [0; 16] } else { KEY },
        offset: if is_wild {
            choices.u64(..)
        } else {
            choices.u64(..REGION_BYTES as u64)
        },
    }
}

fn message(choices: &mut Choices) -> Message {
    let mode = choices.pick(&Mode::ALL);
    let bytes = choices.usize(..6_000);
    Message {
        class: choices.pick(&Class::ALL),
        mode,
        header: vec![1; choices.usize(..40)],
        // As the data of a diff, these are damaged runs.
        data: vec![vec![
            choices.u8(..);
            if mode.is_diff() { bytes % 900 } else { bytes }
        ]],
        place: mode.is_direct().then(|| place(choices)),
    }
}

fn operation(choices: &mut Choices) -> Operation {
    match choices.u8(..5) {
        0 => Operation::Put(vec![2; choices.usize(..1_000)]),
        1 => Operation::PutDiff(vec![choices.u8(..); choices.usize(..100)]),
        2 => Operation::Get(choices.u16(..1_000)),
        3 => Operation::Atomic(Atomic::FetchAdd(choices.u64(..))),
        _ => Operation::Atomic(Atomic::CompareSwap {
            expected: choices.u64(..3),
            new: choices.u64(..3),
        }),
    }
}

fn endpoint(choices: &mut Choices, seal: Seal) -> Endpoint<usize> {
    let mut config = Config::new([9; 32], choices.u64(..));
    config.seal = seal;
    config.budget_bytes = choices.u64(1_000..100_000);
    config.first_bytes = choices.u64(..20_000);
    config.message_bytes_max = 5_000;
    Endpoint::new(config)
}

/// Runs the choices. Nothing may panic.
pub fn run(choices: &mut Choices) {
    let seal = choices.pick(&[Seal::Plain, Seal::Encrypt]);
    let mut ends = [endpoint(choices, seal), endpoint(choices, seal)];
    let mut memories = [(); 2].map(|()| Memory(vec![0; REGION_BYTES]));
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut now_ns = 0;
    for _ in 0..choices.u32(1..STEPS_MAX) {
        let end = choices.usize(..2);
        let peer = ends[end].connect(1 - end, now_ns);
        match (choices.u8(..64), peer) {
            (0, _) if choices.u8(..) < 40 => ends[end] = endpoint(choices, seal),
            (1, Ok(peer)) if choices.u8(..) < 40 => ends[end].close(peer),
            (2..12, Ok(peer)) => drop(ends[end].send(peer, message(choices))),
            (12..22, Ok(peer)) if choices.u8(..) < 60 => {
                let slots: Vec<AtomicU64> = std::iter::repeat_with(AtomicU64::default)
                    .take(SLOT_WORDS)
                    .collect();
                ends[end].serve_requests(peer, Arc::new(slots));
            }
            (12..22, Ok(peer)) => drop(ends[end].operate(peer, place(choices), operation(choices))),
            (22..30, _) => while ends[end].poll_event().is_some() {},
            (30..40, _) => now_ns += choices.u64(..5 * MS),
            (40, _) => now_ns += choices.u64(..5_000 * MS),
            (41..46, _) if !kept.is_empty() => {
                let mut datagram = kept[choices.usize(..kept.len())].clone();
                for _ in 0..choices.u8(..3) {
                    let at = choices.usize(..datagram.len());
                    datagram[at] = choices.u8(..);
                }
                ends[end].handle_datagram(1 - end, &mut datagram, &mut memories[end], now_ns);
            }
            _ => {}
        }
        ends[end].handle_timeout(&mut memories[end], now_ns);
        let mut out = Vec::new();
        for _ in 0..choices.u8(..20) {
            out.clear();
            let Some(to) = ends[end].poll_transmit(now_ns, &mut out) else {
                break;
            };
            if kept.len() < KEPT_MAX {
                kept.push(out.clone());
            }
            if choices.u8(..) > 25 {
                ends[to].handle_datagram(end, &mut out, &mut memories[to], now_ns);
            }
        }
    }
    let bytes = kept.pop().unwrap_or_default();
    let _ = parse_records(bytes.get(16..).unwrap_or_default());
}
