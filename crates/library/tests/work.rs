//! A collective of a few ranks through the public interface.

use kumi::{Ranks, Request, RequestedOperation, Work};
use std::collections::{HashMap, VecDeque};

const RANKS: usize = 5;
const BYTES: u64 = 100_000;

fn all_to_all() -> Request {
    Request {
        operation: RequestedOperation::AllToAll,
        root: 0,
        bytes: vec![BYTES; RANKS * RANKS],
        element_bytes: 1,
    }
}

#[test]
fn work__all_ranks__delivers_every_block_once_and_complete() {
    let ranks = Ranks::new(None, &["a", "b", "a", "c", "d"]).unwrap();
    let work = |rank| Work::new(&ranks, rank, all_to_all()).unwrap();
    let mut works: Vec<Work> = (0..RANKS).map(work).collect();
    let mut messages: HashMap<(usize, usize, bool), [VecDeque<usize>; 2]> = HashMap::new();
    let mut received = vec![0; RANKS * RANKS];
    while works.iter().any(|work| !work.is_complete()) {
        for (rank, work) in works.iter_mut().enumerate() {
            while let Some((index, step)) = work.begin() {
                let is_control = step.bytes == 0;
                // Actions 0, 3 and 5 send.
                let is_send = matches!(step.action as i32, 0 | 3 | 5);
                let (from, to) = if is_send {
                    (rank, step.peer)
                } else {
                    (step.peer, rank)
                };
                let steps = messages.entry((from, to, is_control)).or_default();
                steps[usize::from(is_send)].push_back(index);
                if !is_send {
                    received[step.block as usize] += step.bytes;
                }
            }
        }
        for ((from, to, _), [receives, sends]) in &mut messages {
            while let (Some(_), Some(_)) = (receives.front(), sends.front()) {
                works[*from].complete(sends.pop_front().unwrap());
                works[*to].complete(receives.pop_front().unwrap());
            }
        }
    }
    for (block, received) in received.into_iter().enumerate() {
        let expected = if block / RANKS == block % RANKS {
            0
        } else {
            BYTES
        };
        assert_eq!(received, expected, "block {block}");
    }
}

#[test]
fn work__invalid_request__is_refused_with_the_reason() {
    let ranks = Ranks::new(None, &["a", "b"]).unwrap();
    let error_of = |rank, request| Work::new(&ranks, rank, request).unwrap_err().to_string();
    let request = |operation, root, bytes: &[u64], element_bytes| Request {
        operation,
        root,
        bytes: bytes.to_vec(),
        element_bytes,
    };
    let gather = RequestedOperation::Gather;
    assert_eq!(
        error_of(2, request(gather, 0, &[1, 1], 1)),
        "rank 2 out of range (0–1)"
    );
    assert_eq!(
        error_of(0, request(gather, 7, &[1, 1], 1)),
        "root 7 out of range (0–1)"
    );
    assert_eq!(
        error_of(0, request(gather, 0, &[1], 1)),
        "1 block sizes given: expected 2, one for each block"
    );
    assert_eq!(
        error_of(0, request(RequestedOperation::AllReduce, 0, &[10], 4)),
        "10 bytes are not a whole number of elements of 4 bytes"
    );
}
