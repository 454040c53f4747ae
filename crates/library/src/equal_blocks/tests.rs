use super::*;
use crate::ranks::Ranks;
use crate::request::Request;
use crate::work::{CallerStep, Work};
use kumi_coll::Action;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

fn make_ranks(hosts: usize) -> Ranks {
    let names: Vec<String> = (0..hosts).map(|host| format!("h{host}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Ranks::new(None, &names).unwrap()
}

/// Runs the parts of all ranks to completion. Messages between two ranks stay in order. Returns the
/// bytes received of each block, by receiver.
fn run(works: &mut [Work]) -> Vec<HashMap<u64, u64>> {
    let mut received = vec![HashMap::new(); works.len()];
    // By sender, receiver and kind: the bytes in flight, and the receiver's waiting steps.
    let mut in_flight: HashMap<(usize, usize, bool), VecDeque<(usize, u64)>> = HashMap::new();
    let mut waiting: HashMap<(usize, usize, bool), VecDeque<(usize, CallerStep)>> = HashMap::new();
    loop {
        let mut is_idle = true;
        for (rank, work) in works.iter_mut().enumerate() {
            while let Some((index, step)) = work.begin() {
                is_idle = false;
                match step.action {
                    Action::Send | Action::Post | Action::Grant => {
                        let key = (rank, step.peer, step.action != Action::Grant);
                        let messages = in_flight.entry(key).or_default();
                        messages.push_back((index, step.bytes));
                    }
                    _ => {
                        let key = (step.peer, rank, step.action != Action::Await);
                        waiting.entry(key).or_default().push_back((index, step));
                    }
                }
            }
        }
        for (key, steps) in &mut waiting {
            let messages = in_flight.entry(*key).or_default();
            while !steps.is_empty() && !messages.is_empty() {
                let ((receive, step), (send, bytes)) =
                    (steps.pop_front().unwrap(), messages.pop_front().unwrap());
                is_idle = false;
                assert_eq!(bytes, step.bytes, "from {} to {}", key.0, key.1);
                if key.2 {
                    *received[key.1].entry(step.block).or_default() += bytes;
                }
                assert!(works[key.0].complete(send) && works[key.1].complete(receive));
            }
        }
        if is_idle {
            assert!(
                works.iter().all(Work::is_complete),
                "ranks wait for each other"
            );
            return received;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn all_to_all__ranks_know_only_their_own_lengths__delivers_every_block(
        ranks in 2_usize..9,
        block_bytes in 1_u64..200_000,
        seed in any::<u64>(),
    ) {
        let network = make_ranks(ranks);
        let mut random = fastrand::Rng::with_seed(seed);
        // A third of the blocks are empty, and some are much longer than the plan's.
        let bytes: Vec<Vec<u64>> = (0..ranks)
            .map(|_| (0..ranks).map(|_| [0, random.u64(0..9000), random.u64(0..400_000)][random.usize(0..3)]).collect())
            .collect();
        let request = EqualBlocks {
            operation: RequestedOperation::AllToAll,
            root: 0,
            block_bytes,
        };
        let mut works: Vec<Work> = (0..ranks)
            .map(|rank| {
                let own = OwnBytes {
                    out_bytes: bytes[rank].clone(),
                    in_bytes: bytes.iter().map(|row| row[rank]).collect(),
                };
                Work::with_equal_blocks(&network, rank, request, &own).unwrap()
            })
            .collect();
        let received = run(&mut works);
        for (from, row) in bytes.iter().enumerate() {
            for to in (0..ranks).filter(|to| *to != from) {
                let block = (from * ranks + to) as u64;
                prop_assert_eq!(received[to].get(&block).copied().unwrap_or(0), row[to]);
            }
        }
    }

    #[test]
    fn gather_and_scatter__ranks_know_only_their_own_lengths__deliver_every_block(
        ranks in 2_usize..9,
        root in 0_usize..9,
        seed in any::<u64>(),
    ) {
        let root = root % ranks;
        let network = make_ranks(ranks);
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u64> = (0..ranks).map(|_| random.u64(0..100_000) * random.u64(0..2)).collect();
        for operation in [RequestedOperation::Gather, RequestedOperation::Scatter] {
            let request = EqualBlocks { operation, root, block_bytes: 1 << 14 };
            let mut works: Vec<Work> = (0..ranks)
                .map(|rank| {
                    let known = |owner: usize| {
                        if rank == root || owner == rank { bytes[owner] } else { 77 }
                    };
                    let own = OwnBytes {
                        out_bytes: (0..ranks).map(known).collect(),
                        in_bytes: Vec::new(),
                    };
                    Work::with_equal_blocks(&network, rank, request, &own).unwrap()
                })
                .collect();
            let received = run(&mut works);
            for owner in (0..ranks).filter(|owner| *owner != root) {
                let receiver = if operation == RequestedOperation::Gather { root } else { owner };
                prop_assert_eq!(
                    received[receiver].get(&(owner as u64)).copied().unwrap_or(0),
                    bytes[owner]
                );
            }
        }
    }
}

#[test]
fn order__equal_blocks__matches_the_exact_plan() {
    let network = make_ranks(6);
    for rank in 0..6 {
        let request = EqualBlocks {
            operation: RequestedOperation::AllToAll,
            root: 0,
            block_bytes: 50_000,
        };
        let own = OwnBytes {
            out_bytes: vec![50_000; 6],
            in_bytes: vec![50_000; 6],
        };
        let exact_request = Request {
            operation: RequestedOperation::AllToAll,
            root: 0,
            bytes: vec![50_000; 36],
            element_bytes: 1,
        };
        let mut ours = Work::with_equal_blocks(&network, rank, request, &own).unwrap();
        let mut exact = Work::new(&network, rank, exact_request).unwrap();
        loop {
            let (ours_step, exact_step) = (ours.begin(), exact.begin());
            assert_eq!(
                ours_step.map(|(_, step)| step),
                exact_step.map(|(_, step)| step)
            );
            let (Some((ours_index, _)), Some((exact_index, _))) = (ours_step, exact_step) else {
                break;
            };
            assert!(ours.complete(ours_index) && exact.complete(exact_index));
        }
    }
}

#[test]
fn equal_blocks__operation_that_relays__is_refused() {
    let network = make_ranks(3);
    let request = EqualBlocks {
        operation: RequestedOperation::AllGather,
        root: 0,
        block_bytes: 8,
    };
    let own = OwnBytes {
        out_bytes: vec![8; 3],
        in_bytes: Vec::new(),
    };
    let error = Work::with_equal_blocks(&network, 0, request, &own).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("expected Gather, Scatter or AllToAll")
    );
}

#[test]
fn order__1000_ranks__needs_no_table_of_all_pairs() {
    let network = kumi_topo::Network::star(
        &(0..1000)
            .map(|host| format!("h{host}"))
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
        kumi_topo::Rate::from_bps(1_000_000_000).unwrap(),
        kumi_topo::Delay::from_ns(25_000),
    );
    let request = EqualBlocks {
        operation: RequestedOperation::Gather,
        root: 0,
        block_bytes: 1 << 14,
    };
    let order = Order::new(&network, 7, &request).unwrap();
    assert!(order.memory_bytes() < 10_000, "{}", order.memory_bytes());
}
