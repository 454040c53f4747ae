//! Differences of two versions of a memory area: byte-exact runs of changed bytes.
//!
//! ```text
//! run: | offset (32) | length (16) | bytes |
//! ```
//!
//! The offset counts from the place of the diff, so each run can be applied without the ones before
//! it. Runs that are closer than a run's own header are one run, unless another writer may own the
//! bytes between them. Nobody but the program knows this, so runs are never joined.

use std::ops::Range;

/// Length of a run's header, in bytes.
pub const RUN_HEADER_BYTES: usize = 6;

/// Returns the changed ranges of `now` relative to `twin`, which has the same length.
///
/// # Panics
/// Panics if the lengths differ.
pub fn changes(twin: &[u8], now: &[u8]) -> Vec<Range<usize>> {
    assert_eq!(twin.len(), now.len(), "a twin has its area's length");
    let blocks = twin.chunks(BLOCK).zip(now.chunks(BLOCK));
    // Blocks that are equal are skipped by the compiler's widest comparison.
    let masks = blocks.map(|(old, new)| match old == new {
        true => 0,
        false => block_mask(old, new),
    });
    let mut found = Vec::new();
    for_each_range(masks, |range| extend(&mut found, range));
    found
}

/// Bytes that are compared at once.
const BLOCK: usize = 64;

/// Returns a bit for each byte of a block that has changed.
fn block_mask(old: &[u8], new: &[u8]) -> u64 {
    let bits = old.iter().zip(new).enumerate();
    bits.map(|(at, (old, new))| u64::from(old != new) << at)
        .sum()
}

/// Calls `found` with each range of bytes whose bits are set, of masks of 64 bytes each. A caller
/// with wider instructions than this code may use has made them. A range ends with its mask, so two
/// may touch.
pub fn for_each_range(masks: impl IntoIterator<Item = u64>, mut found: impl FnMut(Range<usize>)) {
    for (block, mut mask) in masks.into_iter().enumerate() {
        let mut at = block * BLOCK;
        while mask != 0 {
            let equal = mask.trailing_zeros();
            mask >>= equal;
            let changed = (!mask).trailing_zeros();
            mask = mask.checked_shr(changed).unwrap_or(0);
            at += equal as usize;
            found(at..at + changed as usize);
            at += changed as usize;
        }
    }
}

/// Appends a range, or extends the last one if it ends there.
pub fn extend(found: &mut Vec<Range<usize>>, range: Range<usize>) {
    match found.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => found.push(range),
    }
}

/// Appends the run of `bytes` at `offset` to `out`.
pub fn push_run(offset: u32, bytes: &[u8], out: &mut Vec<u8>) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX));
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Encodes the changes of `now` relative to `twin` in parts of at most `part_bytes_max` bytes, each
/// of which has whole runs.
///
/// # Panics
/// Panics if the lengths differ, or if a part cannot have a run of one byte.
pub fn encode(twin: &[u8], now: &[u8], part_bytes_max: usize) -> Vec<Vec<u8>> {
    assert!(part_bytes_max > RUN_HEADER_BYTES, "a part has a run");
    let mut parts = Vec::new();
    let mut part = Vec::new();
    for range in changes(twin, now) {
        let mut offset = range.start;
        while offset < range.end {
            if part.len() + RUN_HEADER_BYTES >= part_bytes_max {
                parts.push(std::mem::take(&mut part));
            }
            let room = (part_bytes_max - part.len() - RUN_HEADER_BYTES).min(usize::from(u16::MAX));
            let end = range.end.min(offset + room);
            push_run(offset as u32, &now[offset..end], &mut part);
            offset = end;
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// Iterates over the runs of an encoded diff: offset and bytes. The last item is an error if the
/// encoding is truncated.
pub fn runs(mut encoded: &[u8]) -> impl Iterator<Item = Result<(u32, &[u8]), Truncated>> {
    std::iter::from_fn(move || {
        if encoded.is_empty() {
            return None;
        }
        let parsed = split_run(encoded);
        match parsed {
            Some((offset, bytes, rest)) => {
                encoded = rest;
                Some(Ok((offset, bytes)))
            }
            None => {
                encoded = &[];
                Some(Err(Truncated))
            }
        }
    })
}

fn split_run(encoded: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (offset, rest) = encoded.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((u32::from_be_bytes(*offset), bytes, rest))
}

/// Error of a diff that ends within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the diff ends within a run")]
pub struct Truncated;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(area: &mut [u8], encoded: &[u8]) {
        for run in runs(encoded) {
            let (offset, bytes) = run.expect("a whole run");
            area[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    proptest! {
        #[test]
        fn diff__any_two_versions__turns_one_into_the_other(
            twin in proptest::collection::vec(0_u8..3, 0..300),
            edits in proptest::collection::vec((0_usize..300, 0_u8..3), 0..60),
            part in 7_usize..80,
        ) {
            let mut now = twin.clone();
            for (offset, byte) in edits {
                if let Some(place) = now.get_mut(offset) {
                    *place = byte;
                }
            }
            let mut area = twin.clone();
            let mut sent = 0;
            for encoded in encode(&twin, &now, part) {
                prop_assert!(encoded.len() <= part);
                apply(&mut area, &encoded);
                sent += runs(&encoded).map(|run| run.unwrap().1.len()).sum::<usize>();
            }
            prop_assert_eq!(&area, &now);
            let changed = twin.iter().zip(&now).filter(|(old, new)| old != new).count();
            prop_assert_eq!(sent, changed, "no unchanged byte is sent");
        }
    }

    #[test]
    fn changes__random_versions__are_those_of_a_byte_loop() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..2_000 {
            let twin: Vec<u8> = (0..rng.usize(..400)).map(|_| rng.u8(..2)).collect();
            let mut now = twin.clone();
            let (dense, start) = (rng.bool(), rng.usize(..400));
            for (at, byte) in now.iter_mut().enumerate() {
                if at >= start && (dense || rng.u8(..6) == 0) {
                    *byte = rng.u8(..);
                }
            }
            let changed = changes(&twin, &now);
            let all = changed.iter().cloned().flatten();
            let expected = (0..twin.len()).filter(|at| twin[*at] != now[*at]);
            assert!(all.eq(expected));
            let apart = changed.windows(2).all(|pair| pair[0].end < pair[1].start);
            assert!(apart, "touching runs are one");
        }
    }

    #[test]
    fn runs__truncated_diff__ends_with_an_error() {
        let mut encoded = Vec::new();
        push_run(5, b"abc", &mut encoded);
        for length in 1..encoded.len() {
            assert_eq!(runs(&encoded[..length]).last(), Some(Err(Truncated)));
        }
        assert_eq!(runs(&encoded).collect::<Vec<_>>(), [Ok((5, &b"abc"[..]))]);
    }
}
