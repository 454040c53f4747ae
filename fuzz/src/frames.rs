//! Frames and datagrams that are almost valid. Entirely invalid ones are refused at the first
//! check.

use crate::choices::Choices;

/// Returns up to `count_max` arbitrary bytes.
pub fn bytes(choices: &mut Choices, count_max: usize) -> Vec<u8> {
    let count = choices.usize(..=count_max);
    (0..count).map(|_| choices.u8(..)).collect()
}

/// Damages `bytes` at a few places, or at none.
pub fn mutate(choices: &mut Choices, bytes: &mut Vec<u8>) {
    for _ in 0..choices.usize(0..4) {
        let index = choices.usize(..=bytes.len());
        match choices.u8(0..5) {
            0 => bytes.truncate(index),
            1 => bytes.insert(index, choices.u8(..)),
            2 => bytes.extend((0..index % 40).map(|_| choices.u8(..))),
            _ if index < bytes.len() => {
                bytes[index] = [0, 1, 0x7f, 0x80, 0xff, choices.u8(..)][choices.usize(..6)]
            }
            _ => {}
        }
    }
}

/// Returns a TCP or other burst with headers that are often wrong.
pub fn burst(choices: &mut Choices) -> Vec<u8> {
    let v6 = choices.bool();
    let mut frame = vec![1, if v6 { 4 } else { 1 }, 0, 0, 0xa8, 5, 34, 0, 16, 0];
    frame.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    for _ in 0..choices.usize(..3) {
        frame.extend([0x81, 0, 0, 5]);
    }
    let payload = choices.usize(..8000);
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
    for _ in 0..choices.usize(0..4) {
        let index = choices.usize(..frame.len().min(90));
        frame[index] = choices.u8(..);
    }
    frame
}
