//! Differential test against a model that is slow and obviously correct.

use super::tests::MS;
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a unit in these tests.
const UNIT_BYTES: usize = 10;

/// A frame as cut by the sender: its first unit, its number of units, and the distance back to the
/// end of the previous frame in its flow. A distance of 0 means no previous frame.
#[derive(Debug, Clone, Copy)]
struct Cut {
    first: u32,
    units: u8,
    back: u16,
}

/// Frames by their first unit. A frame is delivered when it is complete and the previous frame of
/// its flow has been delivered. This is the full behaviour as long as no frame is given up.
#[derive(Default)]
struct Model {
    received: BTreeSet<u32>,
    delivered: BTreeSet<u32>,
}

impl Model {
    /// Takes a unit and returns the set of frames that it completes.
    fn take(&mut self, cuts: &BTreeMap<u32, Cut>, unit: u32) -> BTreeSet<u32> {
        self.received.insert(unit);
        let mut out = BTreeSet::new();
        loop {
            let next = cuts.values().find(|cut| {
                let is_complete = (cut.first..cut.first + u32::from(cut.units))
                    .all(|unit| self.received.contains(&unit));
                let predecessor = cut.first - u32::from(cut.back);
                let is_next = cut.back == 0
                    || cuts.values().any(|previous| {
                        previous.first + u32::from(previous.units) == predecessor + 1
                            && self.delivered.contains(&previous.first)
                    });
                is_complete && is_next && !self.delivered.contains(&cut.first)
            });
            let Some(next) = next else { return out };
            self.delivered.insert(next.first);
            out.insert(next.first);
        }
    }
}

/// Returns `shape.len()` frames, numbered as a sender numbers them. `shape` has the units and the
/// flow of each frame.
fn cut_up(shape: &[(u8, usize)]) -> BTreeMap<u32, Cut> {
    let mut ends = BTreeMap::new();
    let mut first = 0;
    let mut cuts = BTreeMap::new();
    for &(units, flow) in shape {
        let back = ends
            .get(&flow)
            .map_or(0, |end: &u32| (first + 1 - end) as u16);
        cuts.insert(first, Cut { first, units, back });
        first += u32::from(units);
        ends.insert(flow, first);
    }
    cuts
}

fn payload(unit: u32) -> [u8; UNIT_BYTES] {
    let mut payload = [0; UNIT_BYTES];
    payload[..4].copy_from_slice(&unit.to_be_bytes());
    payload
}

fn push(
    reorder: &mut Reorder,
    cut: &Cut,
    unit: u32,
    now_ns: u64,
    pool: &mut FramePool,
    out: &mut VecDeque<Frame>,
) -> Fate {
    let index = (unit - cut.first) as u8;
    let aux = if index == 0 {
        cut.back
    } else {
        UNIT_BYTES as u16
    };
    let payload = payload(unit);
    let unit = Unit {
        seq: unit,
        index,
        last: cut.units - 1,
        aux,
        has_vnet: false,
        payload: &payload,
    };
    reorder.push(now_ns, index % 4, false, &unit, pool, out)
}

fn first_unit(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.ethernet()[..4].try_into().expect("a unit's bytes"))
}

fn assert_complete(frame: &Frame, cut: &Cut) {
    let units = cut.first..cut.first + u32::from(cut.units);
    let expected: Vec<u8> = units.flat_map(payload).collect();
    assert_eq!(frame.ethernet(), expected);
}

/// Returns a shape and an order of its units. Most units are sent near their position, some twice
/// and some never.
fn orders() -> impl Strategy<Value = (Vec<(u8, usize)>, Vec<usize>)> {
    let shape = proptest::collection::vec((1u8..9, 0usize..4), 1..24);
    shape.prop_flat_map(|shape| {
        let units: usize = shape.iter().map(|(units, _)| usize::from(*units)).sum();
        let moves = proptest::collection::vec((0..units, 0usize..20), 0..2 * units);
        (Just(shape), moves).prop_map(move |(shape, moves)| {
            let mut order: Vec<usize> = (0..units).collect();
            for (index, kind) in moves {
                let index = index % order.len().max(1);
                match kind {
                    0 if order.len() > 1 => drop(order.remove(index)),
                    1 => order.insert(index, order[index]),
                    _ => {
                        let second = (index + kind) % order.len();
                        order.swap(index, second);
                    }
                }
            }
            (shape, order)
        })
    })
}

proptest! {
    #[test]
    fn reorder__any_order_with_losses_and_duplicates__delivers_as_the_model_does(
        (shape, order) in orders()
    ) {
        let cuts = cut_up(&shape);
        let owner = |unit: u32| cuts.range(..=unit).next_back().expect("unit 0 has a frame").1;
        let (mut reorder, mut model) = (Reorder::default(), Model::default());
        let (mut pool, mut out) = (FramePool::default(), VecDeque::new());
        for &unit in &order {
            let unit = unit as u32;
            let was_received = model.received.contains(&unit);
            let expected = model.take(&cuts, unit);
            let fate = push(&mut reorder, owner(unit), unit, 0, &mut pool, &mut out);
            prop_assert_eq!(fate, if was_received { Fate::Duplicate } else { Fate::Accepted });
            let delivered: Vec<u32> = out.iter().map(first_unit).collect();
            prop_assert_eq!(delivered.iter().copied().collect::<BTreeSet<_>>(), expected);
            prop_assert!(delivered.windows(2).all(|pair| pair[0] < pair[1]), "{delivered:?}");
            out.drain(..).for_each(|frame| assert_complete(&frame, &cuts[&first_unit(&frame)]));
        }
        // Frames still held are released when their hold ends. Complete frames are whole, and no
        // frame is delivered twice. Flows keep their order except for frames counted as late: a
        // lost frame between two others hides that they belong together.
        for ms in 0..60 {
            reorder.handle_timeout(ms * MS, MS / 10, &mut pool, &mut out);
        }
        prop_assert_eq!(reorder.held_bytes(), 0);
        prop_assert_eq!(reorder.poll_timeout(MS / 10), None);
        let (mut newest, mut overtaken) = (BTreeMap::new(), 0);
        let flows: BTreeMap<u32, usize> =
            cuts.keys().copied().zip(shape.iter().map(|(_, flow)| *flow)).collect();
        for frame in out.drain(..) {
            let first = first_unit(&frame);
            assert_complete(&frame, &cuts[&first]);
            prop_assert!(model.delivered.insert(first), "{first} was delivered before");
            let newest_first = newest.entry(flows[&first]).or_insert(first);
            overtaken += u64::from(first < *newest_first);
            *newest_first = first.max(*newest_first);
        }
        let late = reorder.counts().late;
        prop_assert!(overtaken <= late, "{overtaken} out of order, {late} counted as late");
        for cut in cuts.values() {
            let is_complete = (cut.first..cut.first + u32::from(cut.units))
                .all(|unit| model.received.contains(&unit));
            prop_assert_eq!(model.delivered.contains(&cut.first), is_complete, "{:?}", cut);
        }
    }
}
