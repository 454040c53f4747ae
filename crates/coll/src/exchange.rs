//! Plans in which blocks go directly from their sender to their receiver: all-to-all, scatter, and
//! gather by turns.
//!
//! For an all-to-all of equal blocks, the N hosts form a ring in the order of a walk that crosses
//! no link twice in one direction. In step p each host sends to the one p places on. A link that
//! separates n hosts from the rest carries
//!
//! ```text
//!   min(p, N − p, n, N − n)   blocks in step p
//!   n · (N − n)               blocks in all steps
//! ```
//!
//! The links with the largest n (N − n) carry the most. They stay busy from the first step to the
//! last. No schedule is faster (the bound of Faraj and Yuan, without their phases).
//!
//! The order of `busiest.rs` is better in three cases: several such links, links of different
//! rates, and blocks of different sizes. It sends the blocks of the busiest links first. It is
//! computed for up to 128 hosts, unless the ring takes at most 1.02 times the time of its busiest
//! link. It is used if it is at least 1 % faster than the ring.

use crate::busiest::busiest_first;
use crate::plan::{Blocks, Operation, Plan, PlanError};
use crate::schedule::Schedule;
use kumi_topo::{Network, Paths};

/// Most hosts for which the order by busiest links is computed. That takes time proportional to the
/// cube of their number.
const SORTED_HOSTS_MAX: usize = 128;

/// Ratio of a ring's time to the links' time below which no other order is tried.
const REORDER_RATIO_MIN: f64 = 1.02;

/// Plans an all-to-all: every host receives a block from each other host. Block `from × hosts + to`
/// has its size at that index of `block_bytes`. Blocks of a host to itself are ignored.
///
/// # Errors
/// The number of sizes is not the square of the number of hosts.
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
    let mut schedule = schedule_pairs(&paths, &block_bytes, ring);
    // A plan that cannot become much faster is used as it is.
    let is_slow = schedule.end_s() > schedule.links_s() * REORDER_RATIO_MIN;
    if hosts <= SORTED_HOSTS_MAX && is_slow {
        let busiest = busiest_first(&paths, &order, &block_bytes);
        let sorted = schedule_pairs(&paths, &block_bytes, busiest.into_iter());
        // Between equals, the ring is used, because it is more regular.
        if sorted.end_s() < schedule.end_s() * 0.99 {
            schedule = sorted;
        }
    }
    Ok(schedule.into_plan(Operation::AllToAll, order, block_bytes))
}

/// Returns transfers of the blocks of these pairs, in this order.
fn schedule_pairs<'a>(
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

/// Plans a scatter: every host receives its block from `root`. `block_bytes` is by host.
///
/// # Errors
/// The root is out of range, or the number of sizes differs from the number of hosts.
pub fn scatter(network: &Network, root: usize, block_bytes: &[u64]) -> Result<Plan, PlanError> {
    by_turns(network, root, block_bytes, Operation::Scatter { root })
}

/// Plans a gather in which every host sends its block directly to `root` in turn. `block_bytes` is
/// by host. No host needs to know the size of another's block.
///
/// # Errors
/// The root is out of range, or the number of sizes differs from the number of hosts.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Vector, all_gather, broadcast, gather, reduce, reduce_scatter};
    use kumi_topo::{Delay, Rate};

    #[test]
    fn planners__invalid_root_or_sizes__are_refused_with_what_is_accepted() {
        let rate = Rate::from_bps(1_000_000_000).unwrap();
        let network = Network::star(&["a", "b", "c"], rate, Delay::ZERO);
        let vector = Vector::new(8, 4);
        for outcome in [
            gather(&network, 3, 1),
            gather_by_turns(&network, 3, &[1; 3]),
            scatter(&network, 3, &[1; 3]),
            broadcast(&network, 3, vector),
            reduce(&network, 3, vector),
        ] {
            let message = outcome.unwrap_err().to_string();
            assert_eq!(message, "root 3 out of range (0–2)");
        }
        for (outcome, message) in [
            (
                gather_by_turns(&network, 0, &[1; 2]),
                "2 block sizes given: expected 3, one for each block",
            ),
            (
                scatter(&network, 0, &[1; 4]),
                "4 block sizes given: expected 3, one for each block",
            ),
            (
                all_gather(&network, &[]),
                "0 block sizes given: expected 3, one for each block",
            ),
            (
                reduce_scatter(&network, &[1; 4]),
                "4 block sizes given: expected 3, one for each block",
            ),
            (
                all_to_all(&network, vec![1; 3]),
                "3 block sizes given: expected 9, one for each block",
            ),
        ] {
            assert_eq!(outcome.unwrap_err().to_string(), message);
        }
    }
}
