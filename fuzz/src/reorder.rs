//! Fuzzes the reorder buffer of the multilink device, and its salvage of incomplete bursts.

use crate::choices::Choices;
use crate::frames::burst;
use kumi_multilink::frame::{FRAME_BYTES_MAX, Frame, FramePool, VNET_BYTES};
use kumi_multilink::reorder::{Reorder, Unit};
use std::collections::VecDeque;

const MS: u64 = 1_000_000;

/// Checks, for any units, that the buffer does not grow, returns only whole frames, and holds
/// nothing for ever.
pub fn run(choices: &mut Choices) {
    let (mut reorder, mut pool) = (Reorder::default(), FramePool::default());
    let mut out: VecDeque<Frame> = VecDeque::new();
    let (mut now_ns, mut next_seq) = (0, if choices.bool() { 0 } else { choices.u32(..) });
    for _ in 0..choices.usize(1..100) {
        now_ns += choices.u64(..3 * MS);
        let frame = burst(choices);
        let unit_bytes = choices.usize(50..1500);
        let units = frame.len().div_ceil(unit_bytes).clamp(1, 256);
        for index in 0..units {
            if choices.u8(..) < 20 {
                continue;
            }
            let end = frame.len().min((index + 1) * unit_bytes);
            let is_wild = choices.u8(..) < 4;
            let unit = Unit {
                seq: if is_wild {
                    choices.u32(..)
                } else {
                    next_seq.wrapping_add(index as u32)
                },
                index: index as u8,
                last: if is_wild {
                    choices.u8(index as u8..)
                } else {
                    (units - 1) as u8
                },
                aux: if index > 0 {
                    unit_bytes as u16
                } else {
                    choices.u16(..4)
                },
                has_vnet: !is_wild || choices.bool(),
                payload: &frame[index * unit_bytes..end],
            };
            reorder.push(
                now_ns,
                choices.u8(..4),
                choices.u8(..) < 20,
                &unit,
                &mut pool,
                &mut out,
            );
        }
        next_seq = next_seq.wrapping_add(units as u32);
        reorder.handle_timeout(now_ns, choices.u64(..5 * MS), &mut pool, &mut out);
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
}
