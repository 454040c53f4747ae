//! Makes new inputs from old ones, with the usual first mutations of coverage-guided fuzzers.

use fastrand::Rng;

/// Longest input. Longer ones take more time and find nothing more.
const INPUT_BYTES_MAX: usize = 16 * 1024;

/// Most mutations of one input.
const MUTATIONS_MAX: usize = 8;

/// Values at which parsers branch: ends of ranges, and characters of text.
const TURNING: [u8; 12] = [
    0, 1, 0x7f, 0x80, 0xff, b'"', b'[', b'=', b'\n', b'-', b'9', b':',
];

/// Mutates `input` a few times; parts are taken from `other`.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    for _ in 0..rng.usize(1..=MUTATIONS_MAX) {
        mutate_once(input, other, rng);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn mutate_once(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    if input.is_empty() {
        input.extend((0..rng.usize(1..64)).map(|_| rng.u8(..)));
        return;
    }
    let at = rng.usize(..input.len());
    match rng.u8(..8) {
        0 => input[at] ^= 1 << rng.u8(..8),
        1 => input[at] = rng.u8(..),
        2 => input[at] = TURNING[rng.usize(..TURNING.len())],
        3 => input.insert(at, TURNING[rng.usize(..TURNING.len())]),
        4 => input.truncate(at),
        5 => {
            let end = (at + rng.usize(1..32)).min(input.len());
            input.drain(at..end);
        }
        6 => {
            let end = (at + rng.usize(1..64)).min(input.len());
            let part = input[at..end].to_vec();
            input.splice(at..at, part);
        }
        _ if !other.is_empty() => {
            let from = rng.usize(..other.len());
            let end = (from + rng.usize(1..64)).min(other.len());
            input.splice(at..at, other[from..end].iter().copied());
        }
        _ => input.push(rng.u8(..)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutate__same_seed__gives_the_same_input() {
        let run = |seed| {
            let (mut input, mut rng) = (b"rate = \"1Gbit\"".to_vec(), Rng::with_seed(seed));
            (0..100).for_each(|_| mutate(&mut input, b"delay", &mut rng));
            input
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn mutate__many_times__stays_within_the_limit() {
        let (mut input, mut rng) = (Vec::new(), Rng::with_seed(3));
        for _ in 0..20_000 {
            mutate(&mut input, &[1; 64], &mut rng);
            assert!(input.len() <= INPUT_BYTES_MAX);
        }
    }
}
