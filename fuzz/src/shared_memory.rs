//! Nodes of shared memory with any sequence of calls, whose messages are damaged, repeated and
//! exchanged.

use crate::choices::Choices;
use crate::frames::mutate;
use kumi_dsm::protocol::{Engine, Report, Span, UpdateWay};

const STEPS_MAX: u32 = 800;
/// Most messages that are kept for repetitions.
const KEPT_MAX: usize = 100;
/// Pages of all regions.
const PAGES: u32 = 1 << 12;
/// Locks that the nodes compete for.
const LOCKS: u32 = 3;
/// A message is damaged if a byte is below this: one in 26.
const DAMAGE: u8 = 10;

struct Node {
    me: usize,
    engine: Engine,
    /// An exchange is active.
    is_calling: bool,
    /// It is a barrier.
    is_barrier: bool,
}

fn spans(choices: &mut Choices) -> Vec<Span> {
    let count = choices.usize(..4);
    let span = |_| Span {
        first: choices.u32(..PAGES),
        count: choices.u32(1..100),
    };
    (0..count).map(span).collect()
}

/// Makes a call of a program, where the rules of the interface allow it.
fn call(node: &mut Node, nodes: usize, choices: &mut Choices) {
    let lock = choices.u32(..LOCKS);
    match choices.u8(..6) {
        0 if !node.is_calling => {
            let report = Report {
                subscribed: spans(choices),
                unsubscribed: spans(choices),
            };
            let other = choices.usize(..nodes) as u16;
            let refreshes = [(other, vec![(choices.u32(..PAGES), vec![0; 9])])].into();
            let ways = [UpdateWay::Before, UpdateWay::Messages, UpdateWay::Behind];
            let updates = (spans(choices), ways[choices.usize(..ways.len())]);
            node.engine.start_barrier(updates, report, refreshes);
            (node.is_calling, node.is_barrier) = (true, true);
        }
        1 => node.engine.close_interval(spans(choices)),
        2 => {
            // A lock that is held already is an error.
            let _ = node.engine.acquire(lock);
        }
        3 => {
            let _ = node.engine.release(lock);
        }
        4 => {
            let _ = node.engine.take_grant(lock);
        }
        // A node is lost, for this one, or another one has told so.
        _ if choices.u8(..) < DAMAGE || !node.engine.lost().is_empty() => {
            let lost = choices.usize(..nodes);
            if lost != node.me {
                node.engine.lose(&[lost]);
            }
            node.engine.start_agreement();
            if let Some(lost) = node.engine.take_agreement() {
                let _ = node.engine.renew(&lost);
                node.is_calling = false;
            }
        }
        _ => {}
    }
    if !node.is_calling {
        return;
    }
    if let Some(outcome) = node.engine.take_exchange() {
        node.is_calling = false;
        if let (Ok(data), true) = (outcome, node.is_barrier) {
            if let Ok(end) = node.engine.end_barrier(&data) {
                let _ = node.engine.take_refreshes(&end.refreshed_by);
            }
        }
    }
}

/// Checks that no node panics.
pub fn run(choices: &mut Choices) {
    let count = choices.usize(1..6);
    let engine = |me| {
        let mut engine = Engine::new(me, count);
        engine.set_pages(PAGES);
        engine
    };
    let node = |me| Node {
        me,
        engine: engine(me),
        is_calling: false,
        is_barrier: false,
    };
    let mut nodes: Vec<Node> = (0..count).map(node).collect();
    let mut kept: Vec<(usize, usize, Vec<u8>)> = Vec::new();
    for _ in 0..choices.u32(..STEPS_MAX) {
        let at = choices.usize(..count);
        if choices.bool() {
            call(&mut nodes[at], count, choices);
        }
        while let Some((to, message)) = nodes[at].engine.poll_transmit() {
            if kept.len() == KEPT_MAX {
                kept.remove(choices.usize(..KEPT_MAX));
            }
            kept.push((at, to, message));
        }
        if kept.is_empty() {
            continue;
        }
        // Mostly in order, and each once.
        let next = if choices.u8(..) < DAMAGE {
            choices.usize(..kept.len())
        } else {
            0
        };
        let (from, to, mut message) = if choices.u8(..) < DAMAGE {
            kept[next].clone()
        } else {
            kept.remove(next)
        };
        if choices.u8(..) < DAMAGE {
            mutate(choices, &mut message);
        }
        // A violation ends the job. The state machine must survive it, and what follows.
        let _ = nodes[to].engine.handle(from, &message);
    }
}
