//! Fuzzes two devices that speak the RI2N/DRV protocol with any sequence of operations.

use crate::choices::Choices;
use crate::frames::{bytes, mutate};
use kumi_multilink::frame::Frame;
use kumi_ri2n::protocol::{NODES_MAX, QUEUE_FRAMES_MAX, Ri2n};

const MS: u64 = 1_000_000;
/// Links of each device.
const LINKS: usize = 3;
/// Most steps of one sequence.
const STEPS_MAX: u32 = 2_000;
/// Number of datagrams that are kept for replay.
const HISTORY_MAX: usize = 200;

fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// Returns a frame of the host, to a peer, a group, or an unknown station.
fn frame(choices: &mut Choices) -> Frame {
    let destination = match choices.u8(..8) {
        0 => [0xff; 6],
        1 => mac(choices.u8(..)),
        _ => mac(choices.u8(..2)),
    };
    let source = mac(choices.u8(..2));
    let mut ethernet = [destination, source].concat();
    ethernet.extend([8, 0]);
    ethernet.extend(bytes(choices, 60));
    if choices.u8(..) < 10 {
        ethernet.truncate(choices.usize(..=ethernet.len()));
    }
    Frame::from_ethernet(&ethernet)
}

/// Checks that neither device panics or grows.
pub fn run(choices: &mut Choices) {
    let mut now_ns = choices.u64(..1 << 40);
    let make = |number: u8, choices: &mut Choices, now_ns| {
        Ri2n::new(mac(number), LINKS, choices.u32(..), now_ns)
    };
    let mut ends = [make(0, choices, now_ns), make(1, choices, now_ns)];
    let mut history: Vec<Vec<u8>> = Vec::new();
    for _ in 0..choices.u32(1..STEPS_MAX) {
        let end = choices.usize(..2);
        let link = choices.usize(..LINKS);
        match choices.u8(..64) {
            0 if choices.bool() => ends[end] = make(end as u8, choices, now_ns),
            1..=20 => {
                let frame = frame(choices);
                let _ = ends[end].handle_frame(frame, now_ns);
            }
            21..=30 => {
                let mut datagram = match history.len() {
                    0 => bytes(choices, 60),
                    count => history[choices.usize(..count)].clone(),
                };
                mutate(choices, &mut datagram);
                ends[end].handle_datagram(link, &datagram, now_ns);
            }
            31..=40 => now_ns += choices.u64(..5 * MS),
            41 => now_ns += choices.u64(..5_000 * MS),
            42..=48 if ends[end].poll_timeout() <= now_ns => ends[end].handle_timeout(now_ns),
            _ => carry(choices, &mut ends, end, link, &mut history, now_ns),
        }
        drain(&mut ends[end]);
    }
}

/// Carries datagrams of a link to the other end, and drops some.
fn carry(
    choices: &mut Choices,
    ends: &mut [Ri2n; 2],
    end: usize,
    link: usize,
    history: &mut Vec<Vec<u8>>,
    now_ns: u64,
) {
    let transmit_queue = ends[end].poll_transmit(link);
    assert!(transmit_queue.len() <= QUEUE_FRAMES_MAX + NODES_MAX);
    let datagrams: Vec<Vec<u8>> = transmit_queue.map(<[u8]>::to_vec).collect();
    let count = choices.usize(..=datagrams.len());
    ends[end].transmitted(link, count);
    for datagram in datagrams.into_iter().take(count) {
        if choices.u8(..) > 20 {
            ends[1 - end].handle_datagram(link, &datagram, now_ns);
        }
        if history.len() < HISTORY_MAX {
            history.push(datagram);
        }
    }
}

fn drain(device: &mut Ri2n) {
    while let Some(frame) = device.poll_frame() {
        device.give_buffer(frame);
    }
    while device.poll_event().is_some() {}
    assert!(device.nodes().count() <= NODES_MAX);
    for node in device.nodes() {
        let waiting = node.reorder.waiting();
        assert!(waiting <= kumi_ri2n::protocol::MAXBUF, "{waiting} wait");
    }
}
