use super::*;
use crate::check::tests::{all_plans, tree};
use crate::grain::Grain;
use crate::plan::{Operation, Plan};
use crate::program::Action;
use proptest::prelude::*;
use std::collections::HashMap;

/// One host: its program, and the content of its blocks. An element is a byte, and combining is
/// addition.
struct Host {
    engine: Engine,
    blocks: HashMap<usize, Vec<u8>>,
}

/// Returns a host's contribution to a block: bytes that distinguish it from others.
fn content(host: usize, block: usize, bytes: u64) -> Vec<u8> {
    (0..bytes)
        .map(|offset| (host as u64 * 31 + block as u64 * 7 + offset % 251) as u8)
        .collect()
}

fn owns(plan: &Plan, host: usize, block: usize) -> bool {
    match plan.operation {
        Operation::Scatter { root } | Operation::Broadcast { root } => root == host,
        Operation::AllToAll => block / plan.order.len() == host,
        Operation::Gather { .. } | Operation::AllGather => plan.order[block] == host,
        _ => true,
    }
}

/// Returns the expected content of a host's block at the end, if it has one.
fn expected(plan: &Plan, host: usize, block: usize) -> Option<Vec<u8>> {
    let hosts = plan.order.len();
    let bytes = plan.block_bytes[block];
    let sum = || {
        (0..hosts).fold(vec![0_u8; bytes as usize], |sum, from| {
            let add = content(from, block, bytes).into_iter();
            sum.into_iter()
                .zip(add)
                .map(|(a, b)| a.wrapping_add(b))
                .collect()
        })
    };
    match plan.operation {
        Operation::Gather { root } => {
            (root == host).then(|| content(plan.order[block], block, bytes))
        }
        Operation::AllGather => Some(content(plan.order[block], block, bytes)),
        Operation::Scatter { root } => {
            (plan.order[block] == host).then(|| content(root, block, bytes))
        }
        Operation::Broadcast { root } => Some(content(root, block, bytes)),
        Operation::Reduce { root } => (root == host).then(sum),
        Operation::ReduceScatter => (plan.order[block] == host).then(sum),
        Operation::AllReduce => Some(sum()),
        Operation::AllToAll => {
            (block % hosts == host).then(|| content(block / hosts, block, bytes))
        }
    }
}

/// Runs all programs of a plan, with message times given by `choices`, and checks the result.
fn run(plan: &Plan, grain: Grain, choices: &[usize]) {
    let hosts = plan.order.len();
    let program = |host| Arc::new(Program::new(plan, host, grain));
    let programs: Vec<Arc<Program>> = (0..hosts).map(program).collect();
    let mut states: Vec<Host> = programs
        .iter()
        .enumerate()
        .map(|(host, program)| Host {
            engine: Engine::new(Arc::clone(program)),
            blocks: (0..plan.block_bytes.len())
                .filter(|block| owns(plan, host, *block))
                .map(|block| (block, content(host, block, plan.block_bytes[block])))
                .collect(),
        })
        .collect();
    // Messages sent, and receives begun, by sender, receiver, and whether they are control
    // messages.
    type Key = (usize, usize, bool);
    let mut messages: HashMap<Key, VecDeque<(usize, Vec<u8>)>> = HashMap::new();
    let mut receives: HashMap<Key, VecDeque<usize>> = HashMap::new();
    let mut choices = choices.iter().cycle();
    loop {
        for host in 0..hosts {
            while let Some(index) = states[host].engine.begin() {
                let step = programs[host].steps[index];
                let (peer, block) = (step.peer as usize, step.block as usize);
                let span = step.offset as usize..(step.offset + step.bytes) as usize;
                let is_control = matches!(step.action, Action::Grant | Action::Await);
                match step.action {
                    Action::Send | Action::Post => {
                        // A chunk may hold several parts of a vector.
                        let parts = (block..).map(|part| &states[host].blocks[&part]);
                        let bytes = parts.flatten().copied();
                        let chunk = bytes.skip(span.start).take(span.len()).collect();
                        messages
                            .entry((host, peer, false))
                            .or_default()
                            .push_back((index, chunk));
                    }
                    Action::Grant => {
                        messages
                            .entry((host, peer, true))
                            .or_default()
                            .push_back((index, Vec::new()));
                    }
                    _ => receives
                        .entry((peer, host, is_control))
                        .or_default()
                        .push_back(index),
                }
            }
        }
        let mut matches: Vec<Key> = receives
            .iter()
            .filter(|(key, steps)| {
                !steps.is_empty() && messages.get(key).is_some_and(|queue| !queue.is_empty())
            })
            .map(|(key, _)| *key)
            .collect();
        matches.sort_unstable();
        if matches.is_empty() {
            break;
        }
        let key = matches[choices.next().unwrap() % matches.len()];
        let (send, chunk) = messages.get_mut(&key).unwrap().pop_front().unwrap();
        let receive = receives.get_mut(&key).unwrap().pop_front().unwrap();
        let step = &programs[key.1].steps[receive];
        assert_eq!(step.bytes, chunk.len() as u64);
        if !key.2 {
            let (mut number, mut offset) = (step.block as usize, step.offset as usize);
            for byte in chunk {
                while offset >= plan.block_bytes[number] as usize {
                    (number, offset) = (number + 1, 0);
                }
                let block = states[key.1].blocks.entry(number);
                let block = block.or_insert_with(|| vec![0; plan.block_bytes[number] as usize]);
                block[offset] = if step.action == Action::Combine {
                    block[offset].wrapping_add(byte)
                } else {
                    byte
                };
                offset += 1;
            }
        }
        states[key.0].engine.complete(send);
        states[key.1].engine.complete(receive);
    }
    for (host, state) in states.iter().enumerate() {
        let operation = plan.operation;
        assert!(state.engine.is_complete(), "{host} stands in {operation:?}");
        for block in (0..plan.block_bytes.len()).filter(|block| plan.block_bytes[*block] > 0) {
            if let Some(expected) = expected(plan, host, block) {
                assert_eq!(state.blocks[&block], expected, "{:?}", plan.operation);
            }
        }
    }
}

proptest! {
    #[test]
    fn programs__on_any_tree__perform_the_operation_in_any_arrival_order(
        switches in prop::collection::vec(0_usize..64, 1..5),
        hosts in prop::collection::vec((0_usize..64, 1_u64..2000, 0_u64..3000), 1..9),
        root in 0_usize..9,
        sizes in prop::collection::vec(0_u64..2_000, 1..5),
        chunk_bytes in 1_u64..700,
        element_bytes in 1_u64..9,
        window_bytes in 0_u64..2_000,
        choices in prop::collection::vec(0_usize..1000, 1..100),
    ) {
        let network = tree(&switches, &hosts);
        let sizes: Vec<u64> = sizes.iter().map(|bytes| bytes - bytes % element_bytes).collect();
        let grain = Grain { chunk_bytes, element_bytes, window_bytes };
        for plan in all_plans(&network, root % hosts.len(), &sizes) {
            run(&plan, grain, &choices);
        }
    }
}

/// The bytes in a port grow by the share of the link that acknowledgements take. A host with a path
/// of its own therefore drains it after each mebibyte.
#[test]
fn long_stream__around_a_ring__is_drained_after_each_mebibyte() {
    let rate = kumi_topo::Rate::from_bps(1_000_000_000).unwrap();
    let hosts = ["a", "b", "c", "d"];
    let network = kumi_topo::Network::star(&hosts, rate, kumi_topo::Delay::from_ns(25_000));
    let plan = crate::uniform(&network, Operation::AllGather, 4 << 20).unwrap();
    let program = Arc::new(Program::on(&network, &plan, 0, 1));
    let path_bytes = program.flight_to(1);
    let mut engine = Engine::new(Arc::clone(&program));
    let mut sent = VecDeque::new();
    let (mut in_flight, mut undrained, mut drains) = (0, 0, 0);
    while !engine.is_complete() {
        while let Some(index) = engine.begin() {
            let step = program.steps[index];
            if step.action == Action::Send {
                in_flight += step.bytes;
                undrained += step.bytes;
                sent.push_back(index);
            } else {
                engine.complete(index);
            }
        }
        assert!(in_flight <= (48 << 10) + path_bytes);
        assert!(undrained <= (1 << 20) + (48 << 10) + path_bytes);
        let Some(oldest) = sent.pop_front() else {
            continue;
        };
        in_flight -= program.steps[oldest].bytes;
        engine.complete(oldest);
        if in_flight <= path_bytes {
            drains += usize::from(undrained >= 1 << 20);
            undrained = 0;
        }
    }
    assert!((11..=12).contains(&drains), "{drains}");
}
