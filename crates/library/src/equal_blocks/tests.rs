use super::*;
use crate::ranks::Ranks;
use crate::request::Request;
use crate::work::{Named, Work};
use kumi_coll::Action;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

fn ranks_of(hosts: usize) -> Ranks {
    let names: Vec<String> = (0..hosts).map(|host| format!("h{host}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Ranks::new(None, &names).unwrap()
}

/// Runs the parts of all ranks to completion. Messages between two ranks stay in order. Returns the
/// bytes received of each block, by receiver.
fn run(works: &mut [Work]) -> Vec<HashMap<u64, u64>> {
    let mut came = vec![HashMap::new(); works.len()];
    // By sender, receiver and kind: the bytes in flight, and the receiver's waiting steps.
    let mut sent: HashMap<(usize, usize, bool), VecDeque<(usize, u64)>> = HashMap::new();
    let mut awaited: HashMap<(usize, usize, bool), VecDeque<(usize, Named)>> = HashMap::new();
    loop {
        let mut is_idle = true;
        for (rank, work) in works.iter_mut().enumerate() {
            while let Some((step, named)) = work.begin() {
                is_idle = false;
                match named.action {
                    Action::Send | Action::Post | Action::Grant => {
                        let lane = (rank, named.peer, named.action != Action::Grant);
                        let lane = sent.entry(lane).or_default();
                        lane.push_back((step, named.bytes));
                    }
                    _ => {
                        let lane = (named.peer, rank, named.action != Action::Await);
                        awaited.entry(lane).or_default().push_back((step, named));
                    }
                }
            }
        }
        for (lane, waiting) in &mut awaited {
            let lane_of = sent.entry(*lane).or_default();
            while !waiting.is_empty() && !lane_of.is_empty() {
                let ((receive, named), (send, bytes)) =
                    (waiting.pop_front().unwrap(), lane_of.pop_front().unwrap());
                is_idle = false;
                assert_eq!(bytes, named.bytes, "from {} to {}", lane.0, lane.1);
                if lane.2 {
                    *came[lane.1].entry(named.block).or_default() += bytes;
                }
                assert!(works[lane.0].complete(send) && works[lane.1].complete(receive));
            }
        }
        if is_idle {
            assert!(
                works.iter().all(Work::is_complete),
                "ranks wait for each other"
            );
            return came;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn all_to_all__ranks_know_only_their_own_lengths__delivers_every_block(
        ranks in 2_usize..9,
        planned in 1_u64..200_000,
        seed in any::<u64>(),
    ) {
        let network = ranks_of(ranks);
        let mut random = fastrand::Rng::with_seed(seed);
        // A third of the blocks are empty, and some are much longer than the plan's.
        let bytes: Vec<Vec<u64>> = (0..ranks)
            .map(|_| (0..ranks).map(|_| [0, random.u64(0..9000), random.u64(0..400_000)][random.usize(0..3)]).collect())
            .collect();
        let like = EqualBlocks { operation: RequestedOperation::AllToAll, root: 0, block_bytes: planned };
        let mut works: Vec<Work> = (0..ranks)
            .map(|rank| {
                let own = OwnBytes {
                    out: bytes[rank].clone(),
                    into: bytes.iter().map(|row| row[rank]).collect(),
                };
                Work::like(&network, rank, like, &own).unwrap()
            })
            .collect();
        let came = run(&mut works);
        for (from, row) in bytes.iter().enumerate() {
            for to in (0..ranks).filter(|to| *to != from) {
                let block = (from * ranks + to) as u64;
                prop_assert_eq!(came[to].get(&block).copied().unwrap_or(0), row[to]);
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
        let network = ranks_of(ranks);
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u64> = (0..ranks).map(|_| random.u64(0..100_000) * random.u64(0..2)).collect();
        for operation in [RequestedOperation::Gather, RequestedOperation::Scatter] {
            let like = EqualBlocks { operation, root, block_bytes: 1 << 14 };
            let mut works: Vec<Work> = (0..ranks)
                .map(|rank| {
                    let known = |of: usize| if rank == root || of == rank { bytes[of] } else { 77 };
                    let own = OwnBytes { out: (0..ranks).map(known).collect(), into: Vec::new() };
                    Work::like(&network, rank, like, &own).unwrap()
                })
                .collect();
            let came = run(&mut works);
            for of in (0..ranks).filter(|of| *of != root) {
                let at = if operation == RequestedOperation::Gather { root } else { of };
                prop_assert_eq!(came[at].get(&(of as u64)).copied().unwrap_or(0), bytes[of]);
            }
        }
    }
}

#[test]
fn order__equal_blocks__matches_the_exact_plan() {
    let network = ranks_of(6);
    for rank in 0..6 {
        let like = EqualBlocks {
            operation: RequestedOperation::AllToAll,
            root: 0,
            block_bytes: 50_000,
        };
        let own = OwnBytes {
            out: vec![50_000; 6],
            into: vec![50_000; 6],
        };
        let asked = Request {
            operation: RequestedOperation::AllToAll,
            root: 0,
            bytes: vec![50_000; 36],
            element_bytes: 1,
        };
        let mut ours = Work::like(&network, rank, like, &own).unwrap();
        let mut exact = Work::new(&network, rank, asked).unwrap();
        loop {
            let (one, other) = (ours.begin(), exact.begin());
            assert_eq!(one.map(|(_, named)| named), other.map(|(_, named)| named));
            let (Some((one, _)), Some((other, _))) = (one, other) else {
                break;
            };
            assert!(ours.complete(one) && exact.complete(other));
        }
    }
}

#[test]
fn equal_blocks__operation_that_relays__is_refused() {
    let network = ranks_of(3);
    let like = EqualBlocks {
        operation: RequestedOperation::AllGather,
        root: 0,
        block_bytes: 8,
    };
    let own = OwnBytes {
        out: vec![8; 3],
        into: Vec::new(),
    };
    let refused = Work::like(&network, 0, like, &own).unwrap_err();
    assert!(
        refused
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
    let like = EqualBlocks {
        operation: RequestedOperation::Gather,
        root: 0,
        block_bytes: 1 << 14,
    };
    let order = Order::new(&network, 7, &like).unwrap();
    assert!(order.memory_bytes() < 10_000, "{}", order.memory_bytes());
}
