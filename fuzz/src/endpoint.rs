//! Fuzzes two endpoints of the multilink device with any sequence of operations.

use crate::choices::Choices;
use crate::frames::{burst, bytes, mutate};
use kumi_multilink::endpoint::{Config, DirectLink, Endpoint, LinkConfig};
use kumi_multilink::frame::VNET_BYTES;
use kumi_multilink::secure::{ClusterKey, Seal};
use std::net::SocketAddr;

const MS: u64 = 1_000_000;
/// Most bytes that an endpoint may keep for a peer, as in the simulation.
const PEER_BYTES_MAX: usize = 80_000_000;
/// Most steps of one sequence.
const STEPS_MAX: u32 = 2_000;

fn link_config(choices: &mut Choices, number: u8) -> LinkConfig {
    LinkConfig {
        name: format!("eth{number}"),
        datagram_bytes_max: choices.pick(&[1232, 1452, 8952]),
        hello_to: Some(SocketAddr::from(([224, 0, 0, 1], 7000))),
        rate_bps: choices.u64(1_000_000..10_000_000_000),
        is_rate_fixed: choices.bool(),
        direct: choices.bool().then_some(DirectLink {
            address: [2, 0, 0, 1, 0, number],
            alias: [2, 0, 0, 2, choices.u8(..), number],
            key: [number; 16],
        }),
    }
}

fn address(end: usize, link: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, link, end as u8 + 1], 7000))
}

/// Checks that neither endpoint panics or exceeds its memory limit.
pub fn run(choices: &mut Choices) {
    let make = |node: u64, choices: &mut Choices, now_ns: u64| {
        let config = Config {
            node,
            instance: choices.u64(..),
            name: format!("h{node}"),
            mac: [2, 0, 0, 0, 0, node as u8],
            lane: kumi_multilink::lane::Lane::ONLY,
            coalesces_udp: true,
            seal: Seal::Encrypt,
            key: ClusterKey::from_bytes([7; 32]),
            static_peers: if choices.u8(..) < 50 {
                vec![vec![(0, address(2 - node as usize, 0))]]
            } else {
                Vec::new()
            },
        };
        let mut endpoint = Endpoint::new(config, now_ns);
        for number in 0..choices.u8(1..4) {
            let config = link_config(choices, number);
            endpoint.add_link(number, config, now_ns);
        }
        endpoint
    };
    let mut now_ns = choices.u64(..1 << 40);
    let mut ends = [make(1, choices, now_ns), make(2, choices, now_ns)];
    let mut history: Vec<Vec<u8>> = Vec::new();
    for _ in 0..STEPS_MAX {
        let end = choices.usize(..2);
        let link = choices.u8(..4);
        match choices.u8(..100) {
            0 => ends[end].handle_carrier(link, choices.bool(), now_ns),
            1 if ends[end].link(link).is_some() => ends[end].remove_link(link, now_ns),
            2 | 3 if ends[end].link(link).is_none() => {
                let config = link_config(choices, link);
                ends[end].add_link(link, config, now_ns);
            }
            4 if choices.u8(..) < 20 => ends[end] = make(end as u64 + 1, choices, now_ns),
            5..=14 => {
                let mut datagram = match history.len() {
                    0 => bytes(choices, 100),
                    count => history[choices.usize(..count)].clone(),
                };
                mutate(choices, &mut datagram);
                let source = address(choices.usize(..3), choices.u8(..4));
                if ends[end].link(link).is_some() {
                    let _ = ends[end].handle_datagram(link, source, &mut datagram, now_ns);
                }
            }
            15..=39 => {
                let mut frame = if choices.bool() {
                    burst(choices)
                } else {
                    bytes(choices, 200)
                };
                frame.resize(frame.len().max(VNET_BYTES), 0);
                if frame.len() >= VNET_BYTES + 6 && choices.u8(..) > 20 {
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
            40..=44 => ends[end].observe_unsent(link, choices.u64(..1 << 20), now_ns),
            45..=59 => now_ns += choices.u64(..5 * MS),
            60 => now_ns += choices.u64(..2_000 * MS),
            61 if choices.u8(..) < 10 => now_ns += choices.u64(..300_000 * MS),
            _ => {
                if ends[end].poll_timeout(now_ns) <= now_ns {
                    ends[end].handle_timeout(now_ns);
                }
                let _ = ends[end].frames_wait_until(now_ns);
                for link in 0..4 {
                    while let Some(batch) = ends[end].poll_transmit(link) {
                        let (batch_bytes, segment) = (batch.bytes.clone(), batch.segment_bytes);
                        ends[end].transmitted(link);
                        for datagram in batch_bytes.chunks(segment) {
                            if history.len() < 500 {
                                history.push(datagram.to_vec());
                            } else if choices.u8(..) < 10 {
                                history[choices.usize(..500)] = datagram.to_vec();
                            }
                            if choices.u8(..) > 10 && ends[1 - end].link(link).is_some() {
                                let source = address(end, link);
                                let mut datagram = datagram.to_vec();
                                let _ = ends[1 - end].handle_datagram(
                                    link,
                                    source,
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
}
