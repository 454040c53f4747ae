//! Recursive halving and doubling (Thakur, Rabenseifner and Gropp 2005, section 4).
//!
//! The hosts, in the order of a walk, form two halves. Each host of one half exchanges its blocks
//! with its counterpart in the other, so that both halves have all blocks. Each half then does the
//! same. After ⌈log₂ N⌉ exchanges every host has every block. The operations consist of these
//! exchanges:
//!
//! ```text
//!   all-gather       the exchanges
//!   reduce-scatter   the exchanges in reverse
//!   all-reduce       reduce-scatter, all-gather
//!   broadcast        scatter from the root, all-gather
//!   reduce           reduce-scatter, gather to the root
//! ```
//!
//! Neighbours exchange the most. The first exchange, between the halves of all hosts, carries one
//! block per host. Each block therefore crosses a link between two switches once.
//!
//! A ring sends the same amount in N − 1 steps. Here there are fewer steps, but more waits for
//! earlier senders to the same port.

use crate::plan::{Blocks, Operation, Plan};
use crate::schedule::Schedule;
use kumi_topo::Paths;

/// Most hosts. With more, blocks are so short that the cost of messages dominates.
pub(crate) const HOSTS_MAX: usize = 512;

/// One host sends these blocks to another. Hosts are numbered by place.
struct Exchange {
    from: usize,
    to: usize,
    blocks: Blocks,
}

/// Plans an operation. `block_bytes` has one size for each host, by the host's place in the order.
/// For a vector, it has the sizes of its parts.
pub(crate) fn by_halves(
    paths: &Paths,
    operation: Operation,
    order: &[usize],
    block_bytes: &[u64],
) -> Plan {
    let hosts = order.len();
    let initial_blocks = match operation {
        Operation::AllGather | Operation::ReduceScatter => (0..hosts).collect(),
        _ => part_of_place(hosts),
    };
    let mut rounds = rounds(&initial_blocks);
    if operation.root().is_some() {
        // The root, at place 0, has all blocks, or it sends none and receives all.
        for round in &mut rounds {
            round.retain(|exchange| exchange.to != 0);
        }
    }
    let mut exchanges = Exchanges {
        schedule: Schedule::new(paths),
        order,
        block_bytes,
        feeds: vec![Vec::new(); hosts],
    };
    if matches!(operation, Operation::Broadcast { .. }) {
        for (place, part) in initial_blocks.iter().enumerate().skip(1) {
            exchanges.add((0, place), &Blocks::one(*part), false);
        }
    }
    if operation.combines() {
        for round in rounds.iter().rev() {
            let reversed = round.iter().map(|pair| (pair.to, pair.from, &pair.blocks));
            exchanges.round(reversed, true);
        }
    }
    if !matches!(
        operation,
        Operation::Reduce { .. } | Operation::ReduceScatter
    ) {
        for round in &rounds {
            let forward = round.iter().map(|pair| (pair.from, pair.to, &pair.blocks));
            exchanges.round(forward, false);
        }
    }
    if matches!(operation, Operation::Reduce { .. }) {
        for (place, part) in initial_blocks.iter().enumerate().skip(1) {
            exchanges.add((place, 0), &Blocks::one(*part), true);
        }
    }
    let schedule = exchanges.schedule;
    schedule.into_plan(operation, order.to_vec(), block_bytes.to_vec())
}

/// The exchanges in the order in which they are scheduled.
struct Exchanges<'a> {
    schedule: Schedule<'a>,
    order: &'a [usize],
    block_bytes: &'a [u64],
    /// For each place, the transfers that have brought it data.
    feeds: Vec<Vec<usize>>,
}

impl Exchanges<'_> {
    /// Adds one transfer. The receiver may send its data on.
    fn add(&mut self, (from, to): (usize, usize), blocks: &Blocks, combines: bool) {
        let transfer = self.put((from, to), blocks, combines);
        self.feeds[to].push(transfer);
    }

    /// Adds simultaneous exchanges. Data received in one is not sent in another.
    fn round<'b>(
        &mut self,
        exchanges: impl Iterator<Item = (usize, usize, &'b Blocks)>,
        combines: bool,
    ) {
        let mut deliveries = Vec::new();
        for (from, to, blocks) in exchanges {
            deliveries.push((to, self.put((from, to), blocks, combines)));
        }
        for (to, transfer) in deliveries {
            self.feeds[to].push(transfer);
        }
    }

    fn put(&mut self, (from, to): (usize, usize), blocks: &Blocks, combines: bool) -> usize {
        let bytes = blocks.numbers().map(|block| self.block_bytes[block]).sum();
        let ends = (self.order[from], self.order[to]);
        let needs = &self.feeds[from];
        self.schedule
            .add(ends, blocks.clone(), bytes, combines, needs)
    }
}

/// Returns the exchanges of an all-gather, round by round. `initial_blocks` holds the block of each
/// place at the start.
fn rounds(initial_blocks: &[usize]) -> Vec<Vec<Exchange>> {
    let mut place_blocks: Vec<Blocks> = initial_blocks.iter().copied().map(Blocks::one).collect();
    let mut ranges = vec![(0, initial_blocks.len())];
    let mut rounds = Vec::new();
    loop {
        ranges.retain(|(from, to)| to - from > 1);
        if ranges.is_empty() {
            return rounds;
        }
        let mut round = Vec::new();
        let mut halves = Vec::with_capacity(2 * ranges.len());
        let previous = place_blocks.clone();
        for (first, end) in ranges.iter().copied() {
            let middle = first.midpoint(end);
            for right in middle..end {
                // If the right half has one more host, that host's blocks go to the last one on the
                // left.
                let left = (first + right - middle).min(middle - 1);
                let mut exchange = |from: usize, to: usize| {
                    place_blocks[to] = place_blocks[to].union(&previous[from]);
                    let blocks = previous[from].clone();
                    round.push(Exchange { from, to, blocks });
                };
                exchange(right, left);
                if right - middle == left - first {
                    exchange(left, right);
                }
            }
            halves.extend([(first, middle), (middle, end)]);
        }
        rounds.push(round);
        ranges = halves;
    }
}

/// Returns the part of a vector with which each place starts. For a power of two, the blocks of
/// each exchange are one run; for other numbers, nearly so.
fn part_of_place(hosts: usize) -> Vec<usize> {
    let mut parts = vec![0; hosts];
    for (part, place) in places_by_part(hosts).into_iter().enumerate() {
        parts[place] = part;
    }
    parts
}

fn places_by_part(hosts: usize) -> Vec<usize> {
    if hosts < 2 {
        return (0..hosts).collect();
    }
    let left = hosts / 2;
    let mut places = Vec::with_capacity(hosts);
    for place in places_by_part(left) {
        places.extend([place, left + place]);
        if place + 1 == left && hosts % 2 > 0 {
            places.push(hosts - 1);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::even_tree;
    use crate::{bound_s, check};

    const OPERATIONS: [Operation; 5] = [
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllReduce,
        Operation::Broadcast { root: 0 },
        Operation::Reduce { root: 0 },
    ];

    #[test]
    fn halving__any_number_of_hosts__passes_the_check() {
        for hosts in 2..40 {
            let switches: Vec<usize> = (0..hosts).map(|host| host * 7 % 3).collect();
            for network in [
                even_tree(&[0], 1000, &vec![0; hosts], 1000),
                even_tree(&[0, 0, 1], 1000, &switches, 1000),
            ] {
                let paths = Paths::new(&network);
                let order = paths.tour(&network, 0);
                for operation in OPERATIONS {
                    let blocks = (0..hosts as u64).map(|block| block * 977 % 5000);
                    let blocks: Vec<u64> = blocks.collect();
                    let plan = by_halves(&paths, operation, &order, &blocks);
                    assert_eq!(
                        check(&network, &plan),
                        Ok(()),
                        "{operation:?} of {hosts} on {}",
                        network.switches.len()
                    );
                }
            }
        }
    }

    #[test]
    fn halving__power_of_two_hosts__exchanges_contiguous_runs() {
        for hosts in [2, 4, 8, 64] {
            for exchange in rounds(&part_of_place(hosts)).iter().flatten() {
                assert_eq!(exchange.blocks.runs().count(), 1);
            }
        }
    }

    #[test]
    fn all_reduce__by_halving_on_one_switch__takes_its_send_time_and_a_few_hops() {
        let network = even_tree(&[0], 1000, &[0; 16], 1000);
        let paths = Paths::new(&network);
        let order = paths.tour(&network, 0);
        let plan = by_halves(&paths, Operation::AllReduce, &order, &[4 << 10; 16]);
        check(&network, &plan).unwrap();
        // It sends 2 × 15/16 of the vector. The bound counts the vector once.
        let sent_s = 2.0 * 15.0 / 16.0 * bound_s(&network, &plan);
        assert!(
            plan.predicted_s < sent_s + 16.0 * 40e-6,
            "{}",
            plan.predicted_s
        );
    }
}
