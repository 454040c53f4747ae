//! Makes new inputs from old ones, with the usual first mutations of coverage-guided fuzzers.

use fastrand::Rng;

/// Longest input. Longer ones take more time and find nothing more.
const INPUT_BYTES_MAX: usize = 16 * 1024;

/// Most mutations of one input.
const MUTATIONS_MAX: usize = 8;

/// Values at which parsers branch: ends of ranges, and characters of text.
const BOUNDARY_VALUES: [u8; 12] = [
    0, 1, 0x7f, 0x80, 0xff, b'"', b'[', b'=', b'\n', b'-', b'9', b':',
];

/// Mutates `input` a few times; parts are taken from `donor`.
pub fn mutate(input: &mut Vec<u8>, donor: &[u8], rng: &mut Rng) {
    for _ in 0..rng.usize(1..=MUTATIONS_MAX) {
        mutate_once(input, donor, rng);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn mutate_once(input: &mut Vec<u8>, donor: &[u8], rng: &mut Rng) {
    if input.is_empty() {
        input.extend((0..rng.usize(1..64)).map(|_| rng.u8(..)));
        return;
    }
    let index = rng.usize(..input.len());
    match rng.u8(..8) {
        0 => input[index] ^= 1 << rng.u8(..8),
        1 => input[index] = rng.u8(..),
        2 => input[index] = BOUNDARY_VALUES[rng.usize(..BOUNDARY_VALUES.len())],
        3 => input.insert(index, BOUNDARY_VALUES[rng.usize(..BOUNDARY_VALUES.len())]),
        4 => input.truncate(index),
        5 => {
            let end = (index + rng.usize(1..32)).min(input.len());
            input.drain(index..end);
        }
        6 => {
            let end = (index + rng.usize(1..64)).min(input.len());
            let part = input[index..end].to_vec();
            input.splice(index..index, part);
        }
        _ if !donor.is_empty() => {
            let start = rng.usize(..donor.len());
            let end = (start + rng.usize(1..64)).min(donor.len());
            input.splice(index..index, donor[start..end].iter().copied());
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
