//! Blocks that go from who has them straight to who wants them: all-to-all, scatter, and gather by turns.
//!
//! In an all-to-all of like blocks the hosts stand in a ring, in the order of a walk that passes no link twice in one
//! direction, and in step *p* each sends to the one *p* places on. A link that parts *n* hosts from the other
//! *N*−*n* is passed in that step by min(*p*, *N*−*p*, *n*, *N*−*n*) blocks, most of all where *n*(*N*−*n*) is
//! greatest: one behind another, step by step, they keep that link busy from the beginning to the end, and no
//! schedule can do with less (Faraj and Yuan's bound, without their phases). With several such links, with
//! some fatter than others, or with blocks of unlike sizes, it is better to send next where most is still to come
//! (`busiest.rs`): both are reckoned, and the quicker is taken.

use crate::busiest::busiest_first;
use crate::plan::{Blocks, Operation, Plan, PlanError};
use crate::schedule::Schedule;
use kumi_topo::{Network, Paths};

/// Most hosts for whom the order is tried in which the busiest links go first: to find it takes as many steps as
/// the third power of them.
const SORTED_HOSTS_MAX: usize = 128;

/// A ring that is so near to what the links alone take stays.
const WORTH_IT: f64 = 1.02;

/// Plans that each host sends each other one its block. Block `from × hosts + to` has `block_bytes` of that number;
/// those of a host to itself count nothing.
///
/// # Errors
/// As many sizes as the square of the hosts there must be.
pub fn all_to_all(network: &Network, block_bytes: Vec<u64>) -> Result<Plan, PlanError> {
    let hosts = network.hosts.len();
    if block_bytes.len() != hosts * hosts {
        return Err(PlanError::Sizes {
            given: block_bytes.len(),
            blocks: hosts * hosts,
        });
    }
    let paths = Paths::new(network);
    let order = paths.tour(network, 0);
    let ring = (1..hosts).flat_map(|step| {
        let order = &order;
        (0..hosts).map(move |place| (order[place], order[(place + step) % hosts]))
    });
    let mut schedule = one_after_another(&paths, &block_bytes, ring);
    // What cannot be much quicker is not tried.
    let is_slow = schedule.end_s() > schedule.links_s() * WORTH_IT;
    if hosts <= SORTED_HOSTS_MAX && is_slow {
        let busiest = busiest_first(&paths, &order, &block_bytes);
        let sorted = one_after_another(&paths, &block_bytes, busiest.into_iter());
        // The ring is the more regular: of equals it is taken.
        if sorted.end_s() < schedule.end_s() * 0.99 {
            schedule = sorted;
        }
    }
    Ok(schedule.into_plan(Operation::AllToAll, order, block_bytes))
}

/// Transfers of the blocks of these pairs, in this order.
fn one_after_another<'a>(
    paths: &'a Paths,
    block_bytes: &[u64],
    pairs: impl Iterator<Item = (usize, usize)>,
) -> Schedule<'a> {
    let mut schedule = Schedule::new(paths);
    for (from, to) in pairs {
        let block = from * paths.hosts() + to;
        if block_bytes[block] == 0 {
            continue;
        }
        schedule.add(
            (from, to),
            Blocks::one(block),
            block_bytes[block],
            false,
            &[],
        );
    }
    schedule
}

/// Plans that every host comes to have its block of those at `root`; `block_bytes` by host.
///
/// # Errors
/// The root is no host, or there is not one size for each.
pub fn scatter(network: &Network, root: usize, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    by_turns(network, root, block_bytes, Operation::Scatter { root })
}

/// Plans that every host sends its block straight to `root`, whose turn it is; `block_bytes` by host. No host need
/// know the size of another's block.
///
/// # Errors
/// The root is no host, or there is not one size for each.
pub fn gather_by_turns(
    network: &Network,
    root: usize,
    block_bytes: &[u64],
) -> Result<Plan, PlanError> {
    by_turns(network, root, block_bytes, Operation::Gather { root })
}

fn by_turns(
    network: &Network,
    root: usize,
    block_bytes: &[u64],
    operation: Operation,
) -> Result<Plan, PlanError> {
    let hosts = network.hosts.len();
    check_root(hosts, root)?;
    check_sizes(hosts, block_bytes)?;
    let paths = Paths::new(network);
    let order = paths.tour(network, root);
    let block_bytes: Vec<u64> = order.iter().map(|host| block_bytes[*host]).collect();
    let mut schedule = Schedule::new(&paths).ramped(operation.is_ramped());
    for (place, host) in order.iter().copied().enumerate().skip(1) {
        if block_bytes[place] == 0 {
            continue;
        }
        let ends = match operation {
            Operation::Scatter { .. } => (root, host),
            _ => (host, root),
        };
        schedule.add(ends, Blocks::one(place), block_bytes[place], false, &[]);
    }
    Ok(schedule.into_plan(operation, order, block_bytes))
}

pub(crate) fn check_root(hosts: usize, root: usize) -> Result<(), PlanError> {
    if root >= hosts {
        return Err(PlanError::Root { root, hosts });
    }
    Ok(())
}

pub(crate) fn check_sizes(hosts: usize, block_bytes: &[u64]) -> Result<(), PlanError> {
    if block_bytes.len() != hosts {
        return Err(PlanError::Sizes {
            given: block_bytes.len(),
            blocks: hosts,
        });
    }
    Ok(())
}
