//! Seeded fuzzing on stable Rust of every parser and of the endpoint's operation sequences.
//!
//! Each test runs `KUMI_FUZZ_SECONDS` (5) from the seed it prints; `KUMI_FUZZ_SEED=n` repeats one.

use fastrand::Rng;
use kumi_multilink::endpoint::{Config, Endpoint, LinkConfig};
use kumi_multilink::frame::{FRAME_BYTES_MAX, Frame, FramePool, VNET_BYTES};
use kumi_multilink::handshake::{Initiator, Responder};
use kumi_multilink::reorder::{Reorder, Unit};
use kumi_multilink::secure::{ClusterKey, Seal};
use kumi_multilink::wire::{
    CONTROL_HEADER_BYTES, ControlHeader, DATA_HEADER_BYTES, DataHeader, Hello, LINKS_MAX,
    LinkReport, Missing, Params, Report, kind_of,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const MS: u64 = 1_000_000;
/// Bytes an endpoint may keep for a peer, as in the simulation.
const PEER_BYTES_MAX: usize = 80_000_000;
/// Steps of one operation sequence.
const STEPS: u32 = 2_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}: `{text}` is not a number")),
    )
}

/// Runs `one` with one seed after the other until the time is up.
fn fuzz(test: &str, mut one: impl FnMut(&mut Rng)) {
    let seconds = number("KUMI_FUZZ_SECONDS").unwrap_or(5);
    let until = Instant::now() + Duration::from_secs(seconds);
    let given = number("KUMI_FUZZ_SEED");
    let first = given.unwrap_or(1);
    for seed in first.. {
        let run = std::panic::AssertUnwindSafe(|| one(&mut Rng::with_seed(seed)));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!(
                "seed {seed} failed; replay: \
                 KUMI_FUZZ_SEED={seed} cargo test -p kumi-multilink --test fuzz {test}"
            );
            std::panic::resume_unwind(panic);
        }
        if given.is_some() || Instant::now() >= until {
            println!("{test}: seeds {first} to {seed}");
            return;
        }
    }
}

fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let count = rng.usize(..=most);
    (0..count).map(|_| rng.u8(..)).collect()
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(0..4) {
        let at = rng.usize(..=bytes.len());
        match rng.u8(0..5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.u8(..)),
            2 => bytes.extend((0..at % 40).map(|_| rng.u8(..))),
            _ if at < bytes.len() => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)]
            }
            _ => {}
        }
    }
}

fn params(rng: &mut Rng) -> Params {
    Params {
        node: rng.u64(..4),
        instance: rng.u64(..3),
        sent_at_ns: rng.u64(..),
        session: rng.u16(..),
        link: rng.u8(..LINKS_MAX as u8),
        seal: Seal::Encrypt,
        unit_bytes_max: rng.u16(512..),
        lane: rng.u8(..2),
        links: rng.u8(..=LINKS_MAX as u8),
        mac: [2, 0, 0, 0, 0, rng.u8(..4)],
        name: "x".repeat(rng.usize(..=64)),
    }
}

#[test]
fn parsers__any_bytes__refuse_or_give_what_reads_back() {
    let key = ClusterKey::from_bytes([7; 32]);
    fuzz("parsers", |rng| {
        let mut input = match rng.u8(0..5) {
            0 => {
                let mut out = [0; DATA_HEADER_BYTES];
                let last = rng.u8(..);
                let header = DataHeader {
                    link: rng.u8(..16),
                    flags: rng.u8(..4),
                    session: rng.u16(..),
                    link_seq: rng.u32(..),
                    unit_seq: rng.u32(..),
                    index: rng.u8(..=last),
                    last,
                    aux: rng.u16(1..),
                };
                header.emit(&mut out);
                assert_eq!(DataHeader::parse(&out), Ok(header));
                out.to_vec()
            }
            1 => {
                let mut report = Report {
                    seq: rng.u32(..),
                    session: rng.u16(..),
                    ..Report::default()
                };
                report.links = (0..rng.usize(..=16))
                    .map(|link| LinkReport {
                        link: link as u8 % 16,
                        highest: rng.u32(..),
                        received: rng.u32(..),
                        held_us: rng.u32(..),
                    })
                    .collect();
                report.missing = (0..rng.usize(..=24))
                    .map(|_| Missing {
                        link: rng.u8(..16),
                        first: rng.u32(..),
                        count: rng.u16(1..),
                    })
                    .collect();
                let mut out = Vec::new();
                report.emit(&mut out);
                let mut read = Report::default();
                assert_eq!(read.parse(&out), Ok(()));
                assert_eq!(read, report);
                out
            }
            2 => {
                let mut out = Vec::new();
                params(rng).emit(&mut out);
                [&[0x31, 0, 0, 0], &out[..]].concat()
            }
            3 => Initiator::start(&key, &params(rng)).1,
            _ => bytes(rng, 200),
        };
        mutate(rng, &mut input);
        let _ = kind_of(&input);
        if let Ok(header) = DataHeader::parse(&input) {
            let mut out = [0; DATA_HEADER_BYTES];
            header.emit(&mut out);
            assert_eq!(out, input[..DATA_HEADER_BYTES]);
        }
        if let Ok(header) = ControlHeader::parse(&input) {
            let mut out = [0; CONTROL_HEADER_BYTES];
            header.emit(&mut out);
            assert_eq!(out, input[..CONTROL_HEADER_BYTES]);
        }
        let mut report = Report::default();
        if report.parse(&input).is_ok() {
            let mut out = Vec::new();
            report.emit(&mut out);
            assert_eq!(out, input);
        }
        // Signed as a node of the cluster would: otherwise nothing behind the code is reached.
        let signed = [&input[..], &key.hello_mac(&input)].concat();
        if let Ok(Some(hello)) = Hello::parse(&signed, &key) {
            assert_eq!(Hello::parse(&hello.emit(&key), &key), Ok(Some(hello)));
        }
        let _ = Hello::parse(&input, &key);
        let _ = Responder::read(&key, &input);
        let (mut initiator, _) = Initiator::start(&key, &params(rng));
        let _ = initiator.finish(&input);
    });
}

/// A TCP or other burst with headers that are often wrong.
fn burst(rng: &mut Rng) -> Vec<u8> {
    let v6 = rng.bool();
    let mut frame = vec![1, if v6 { 4 } else { 1 }, 0, 0, 0xa8, 5, 34, 0, 16, 0];
    frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    for _ in 0..rng.usize(..3) {
        frame.extend([0x81, 0, 0, 5]);
    }
    let payload = rng.usize(..8000);
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(((20 + payload) as u16).to_be_bytes());
        frame.extend([6, 64]);
        frame.extend([0; 32]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(((40 + payload) as u16).to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend([
        0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0,
    ]);
    frame.resize(frame.len() + payload, 0xab);
    for _ in 0..rng.usize(0..4) {
        let at = rng.usize(..frame.len().min(90));
        frame[at] = rng.u8(..);
    }
    frame
}

#[test]
fn reorder__any_units__neither_panics_nor_grows_and_salvages_within_the_frame() {
    fuzz("reorder", |rng| {
        let (mut reorder, mut pool) = (Reorder::default(), FramePool::default());
        let mut out: VecDeque<Frame> = VecDeque::new();
        let (mut now_ns, mut next) = (0, if rng.bool() { 0 } else { rng.u32(..) });
        for _ in 0..rng.usize(1..100) {
            now_ns += rng.u64(..3 * MS);
            let frame = burst(rng);
            let unit_bytes = rng.usize(50..1500);
            let units = frame.len().div_ceil(unit_bytes).clamp(1, 256);
            for index in 0..units {
                if rng.u8(..) < 20 {
                    continue;
                }
                let end = frame.len().min((index + 1) * unit_bytes);
                let is_wild = rng.u8(..) < 4;
                let unit = Unit {
                    seq: if is_wild {
                        rng.u32(..)
                    } else {
                        next.wrapping_add(index as u32)
                    },
                    index: index as u8,
                    last: if is_wild {
                        rng.u8(index as u8..)
                    } else {
                        (units - 1) as u8
                    },
                    aux: if index > 0 {
                        unit_bytes as u16
                    } else {
                        rng.u16(..4)
                    },
                    has_vnet: !is_wild || rng.bool(),
                    payload: &frame[index * unit_bytes..end],
                };
                reorder.push(
                    now_ns,
                    rng.u8(..4),
                    rng.u8(..) < 20,
                    &unit,
                    &mut pool,
                    &mut out,
                );
            }
            next = next.wrapping_add(units as u32);
            reorder.handle_timeout(now_ns, rng.u64(..5 * MS), &mut pool, &mut out);
            assert!(reorder.held_bytes() < 26_000_000);
            for frame in out.drain(..) {
                assert!(frame.as_slice().len() >= VNET_BYTES);
                assert!(frame.as_slice().len() <= FRAME_BYTES_MAX);
                pool.give(frame);
            }
        }
        reorder.handle_timeout(now_ns + 100 * MS, 0, &mut pool, &mut out);
        reorder.handle_timeout(now_ns + 200 * MS, 0, &mut pool, &mut out);
        assert_eq!(reorder.held_bytes(), 0, "nothing is held for ever");
    });
}

fn link_config(rng: &mut Rng, number: u8) -> LinkConfig {
    LinkConfig {
        name: format!("eth{number}"),
        datagram_bytes_max: rng.choice([1232, 1452, 8952]).unwrap_or(1452),
        hello_to: Some(SocketAddr::from(([224, 0, 0, 1], 7000))),
        rate_bps: rng.u64(1_000_000..10_000_000_000),
        is_rate_fixed: rng.bool(),
    }
}

fn address(end: usize, link: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, link, end as u8 + 1], 7000))
}

#[test]
fn endpoint__any_sequence_of_operations__neither_panics_nor_grows() {
    fuzz("endpoint", |rng| {
        let make = |node: u64, rng: &mut Rng, now_ns: u64| {
            let config = Config {
                node,
                instance: rng.u64(..),
                name: format!("h{node}"),
                mac: [2, 0, 0, 0, 0, node as u8],
                lane: 0,
                seal: Seal::Encrypt,
                key: ClusterKey::from_bytes([7; 32]),
                static_peers: if rng.u8(..) < 50 {
                    vec![vec![(0, address(2 - node as usize, 0))]]
                } else {
                    Vec::new()
                },
            };
            let mut endpoint = Endpoint::new(config, now_ns);
            for number in 0..rng.u8(1..4) {
                let config = link_config(rng, number);
                endpoint.add_link(number, config, now_ns);
            }
            endpoint
        };
        let mut now_ns = rng.u64(..1 << 40);
        let mut ends = [make(1, rng, now_ns), make(2, rng, now_ns)];
        let mut seen: Vec<Vec<u8>> = Vec::new();
        for _ in 0..STEPS {
            let end = rng.usize(..2);
            let link = rng.u8(..4);
            match rng.u8(..100) {
                0 => ends[end].handle_carrier(link, rng.bool(), now_ns),
                1 if ends[end].link(link).is_some() => ends[end].remove_link(link, now_ns),
                2 | 3 if ends[end].link(link).is_none() => {
                    let config = link_config(rng, link);
                    ends[end].add_link(link, config, now_ns);
                }
                4 if rng.u8(..) < 20 => ends[end] = make(end as u64 + 1, rng, now_ns),
                5..=14 => {
                    let mut datagram = match seen.len() {
                        0 => bytes(rng, 100),
                        some => seen[rng.usize(..some)].clone(),
                    };
                    mutate(rng, &mut datagram);
                    let from = address(rng.usize(..3), rng.u8(..4));
                    if ends[end].link(link).is_some() {
                        let _ = ends[end].handle_datagram(link, from, &mut datagram, now_ns);
                    }
                }
                15..=39 => {
                    let mut frame = if rng.bool() {
                        burst(rng)
                    } else {
                        bytes(rng, 200)
                    };
                    frame.resize(frame.len().max(VNET_BYTES), 0);
                    if frame.len() >= VNET_BYTES + 6 && rng.u8(..) > 20 {
                        frame[VNET_BYTES..VNET_BYTES + 6].copy_from_slice(&[
                            2,
                            0,
                            0,
                            0,
                            0,
                            2 - end as u8,
                        ]);
                    }
                    let mut buffer = ends[end].take_buffer(frame.len());
                    buffer.buffer()[..frame.len()].copy_from_slice(&frame);
                    ends[end].handle_frame(buffer, now_ns);
                }
                40..=44 => ends[end].observe_unsent(link, rng.u64(..1 << 20), now_ns),
                45..=59 => now_ns += rng.u64(..5 * MS),
                60 => now_ns += rng.u64(..2_000 * MS),
                61 if rng.u8(..) < 10 => now_ns += rng.u64(..300_000 * MS),
                _ => {
                    if ends[end].poll_timeout(now_ns) <= now_ns {
                        ends[end].handle_timeout(now_ns);
                    }
                    let _ = ends[end].frames_wait_until(now_ns);
                    for link in 0..4 {
                        while let Some(batch) = ends[end].poll_transmit(link) {
                            let (sent, segment) = (batch.bytes.clone(), batch.segment_bytes);
                            ends[end].transmitted(link);
                            for datagram in sent.chunks(segment) {
                                if seen.len() < 500 {
                                    seen.push(datagram.to_vec());
                                } else if rng.u8(..) < 10 {
                                    seen[rng.usize(..500)] = datagram.to_vec();
                                }
                                if rng.u8(..) > 10 && ends[1 - end].link(link).is_some() {
                                    let from = address(end, link);
                                    let mut datagram = datagram.to_vec();
                                    let _ = ends[1 - end].handle_datagram(
                                        link,
                                        from,
                                        &mut datagram,
                                        now_ns,
                                    );
                                }
                            }
                        }
                    }
                }
            }
            for end in &mut ends {
                while let Some(frame) = end.poll_frame() {
                    end.give_buffer(frame);
                }
                while end.poll_event().is_some() {}
                for peer in end.peers() {
                    assert!(
                        peer.memory().bytes() < PEER_BYTES_MAX,
                        "{:?}",
                        peer.memory()
                    );
                    let _ = (peer.paths().count(), peer.framing());
                }
            }
        }
    });
}
