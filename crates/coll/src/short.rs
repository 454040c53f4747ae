//! Plans for short vectors and blocks, where the number of successive messages matters more than
//! their length.
//!
//! ```text
//!   candidate            for a vector of V bytes           for N blocks of at most b bytes
//!
//!   trees (tree.rs)      V ≤ 256 KiB or V < 512 N;         –
//!                        every V between sites
//!   each host to each    –                                 N ≤ 64 and N · b ≤ 32 KiB
//!   halves (halves.rs)   3 ≤ N ≤ 512, V ≤ 4 MiB, and       otherwise, if 3 ≤ N ≤ 512 and
//!                        V ≥ 64 N in an all-reduce,        all blocks have at most 4 MiB
//!                        V ≥ 512 N in other operations
//!
//!   N   number of hosts; sizes in bytes
//! ```
//!
//! A vector goes down a tree of hosts, up a tree, or both. Or the halves of the hosts exchange its
//! parts, as they do with blocks. Tiny blocks go directly from each host to each. Bytes in ports
//! are bounded as in any plan. Tiny messages fit the ports together, so they only wait for the data
//! that they carry.

use crate::halves::{self, by_halves};
use crate::plan::{Blocks, Operation, PORT_BYTES, Plan};
use crate::schedule::Schedule;
use crate::sites::Sites;
use crate::tree::Tree;
use crate::vector::Vector;
use kumi_topo::{Network, Paths};

/// Longest vector that is tried without division, in bytes: 2 ms at 1 Gb/s, the time of some forty
/// hops through switches. Between sites, which may be far apart, every vector is tried.
const WHOLE_BYTES_MAX: u64 = 256 << 10;

/// Shortest part of a vector per host, in bytes (ADR 034). Each part is a message of its own.
pub(crate) const PART_BYTES_MIN: u64 = 512;

/// Shortest part if the parts that a host sends together are adjacent in memory, in bytes (ADR
/// 034). From and to a root, each part is sent separately.
const JOINED_BYTES_MIN: u64 = 64;

/// Longest vector, or sum of all blocks, for exchanges between halves, in bytes (ADR 034). A ring
/// or chain is as good for longer ones.
const HALVES_BYTES_MAX: u64 = 4 << 20;

/// Most hosts that send to each other directly (ADR 034). With more, a host's messages cost more
/// than a ring's hops.
const DIRECT_HOSTS_MAX: usize = 64;

/// A plan for short data, with its predicted time in seconds on the scale of plans for long data.
pub(crate) struct Short {
    pub plan: Plan,
    estimated_s: f64,
}

/// Ratio of simulated to predicted time of exchanges between halves (ADR 034; docs/perf-log.md,
/// 2026-11-25: 1.25 to 1.4). Every host awaits control messages, which compete with chunks of other
/// transfers.
const HALVES_TIMES: f64 = 1.25;

impl Short {
    fn from_plan(plan: Plan) -> Self {
        let estimated_s = plan.predicted_s;
        Self { plan, estimated_s }
    }

    fn from_halves(
        paths: &Paths,
        operation: Operation,
        order: &[usize],
        block_bytes: &[u64],
    ) -> Self {
        let plan = by_halves(paths, operation, order, block_bytes);
        let estimated_s = plan.predicted_s * HALVES_TIMES;
        Self { plan, estimated_s }
    }

    /// Returns the fastest plan; between equals the first.
    fn quickest(plans: Vec<Self>) -> Option<Self> {
        let plans = plans.into_iter();
        plans.min_by(|a, b| a.estimated_s.total_cmp(&b.estimated_s))
    }

    /// Returns the faster one of a short and a long plan. The long plan takes at least `long_min_s`
    /// seconds, and is not made if that is no less than the short one's time.
    pub fn choose(short: Option<Self>, long_min_s: f64, long: impl FnOnce() -> Plan) -> Plan {
        match short {
            None => long(),
            Some(short) if short.estimated_s <= long_min_s => short.plan,
            Some(short) => Some(long())
                .filter(|long| long.predicted_s <= short.estimated_s)
                .unwrap_or(short.plan),
        }
    }
}

/// Returns the plan with the least predicted time for a short vector. Returns `None` if the
/// module's table has no candidate. An all-reduce of an empty vector is a barrier.
pub(crate) fn plan_short_vector(
    network: &Network,
    paths: &Paths,
    operation: Operation,
    order: &[usize],
    vector: Vector,
) -> Option<Short> {
    let (goes_up, goes_down) = match operation {
        Operation::Broadcast { .. } => (false, true),
        Operation::Reduce { .. } => (true, false),
        Operation::AllReduce => (true, true),
        _ => return None,
    };
    let mut plans = Vec::new();
    let sites = Sites::new(network, paths, order);
    let is_cut = vector.bytes() >= PART_BYTES_MIN * order.len() as u64;
    if sites.is_some() || vector.bytes() <= WHOLE_BYTES_MAX || !is_cut {
        let mut trees = vec![Tree::new(paths, order, vector.bytes())];
        if let Some(sites) = &sites {
            trees.extend(Tree::for_sites(paths, sites, vector.bytes()));
        }
        let plan = |tree: &Tree| on_tree(paths, operation, order, vector, tree, goes_up, goes_down);
        plans.extend(trees.iter().map(plan).map(Short::from_plan));
        let swaps = |sites: &&Sites| goes_up && goes_down && may_swap(sites, vector.bytes());
        if let Some(sites) = sites.as_ref().filter(swaps) {
            plans.push(Short::from_plan(swap_sums(paths, order, vector, sites)));
        }
    }
    let has_parts = match operation {
        Operation::AllReduce => vector.bytes() >= JOINED_BYTES_MIN * order.len() as u64,
        _ => is_cut,
    };
    if has_parts && has_halves(order, vector.bytes()) {
        let parts = vector.divide(order.len());
        plans.push(Short::from_halves(paths, operation, order, &parts));
    }
    Short::quickest(plans)
}

/// Returns the plan with the least predicted time for short blocks. Returns `None` if the module's
/// table has no candidate. `block_bytes` is by place.
pub(crate) fn plan_short_blocks(
    paths: &Paths,
    operation: Operation,
    order: &[usize],
    block_bytes: &[u64],
) -> Option<Short> {
    let longest = block_bytes.iter().max().copied().unwrap_or(0);
    let hosts = order.len();
    let mut plans = Vec::new();
    if hosts <= DIRECT_HOSTS_MAX && longest.saturating_mul(hosts as u64) <= PORT_BYTES {
        let plan = direct(paths, operation, order, block_bytes);
        plans.push(Short::from_plan(plan));
    } else if has_halves(order, block_bytes.iter().sum()) {
        plans.push(Short::from_halves(paths, operation, order, block_bytes));
    }
    Short::quickest(plans)
}

fn has_halves(order: &[usize], bytes: u64) -> bool {
    (3..=halves::HOSTS_MAX).contains(&order.len()) && bytes <= HALVES_BYTES_MAX
}

/// Sends each host's block directly to each other host, or in a reduce-scatter its part of the
/// other's block. The receivers that are next in the order come first.
fn direct(paths: &Paths, operation: Operation, order: &[usize], block_bytes: &[u64]) -> Plan {
    let hosts = order.len();
    let combines = operation.combines();
    let mut schedule = Schedule::new(paths);
    for step in 1..hosts {
        for from in 0..hosts {
            let to = (from + step) % hosts;
            let block = if combines { to } else { from };
            let ends = (order[from], order[to]);
            schedule.add(ends, Blocks::one(block), block_bytes[block], combines, &[]);
        }
    }
    schedule.into_plan(operation, order.to_vec(), block_bytes.to_vec())
}

/// Plans transfers up a tree to the first host of the order, combining on the way, and down again.
fn on_tree(
    paths: &Paths,
    operation: Operation,
    order: &[usize],
    vector: Vector,
    tree: &Tree,
    goes_up: bool,
    goes_down: bool,
) -> Plan {
    let mut flow = Flow::new(paths, order, vector);
    if goes_up {
        flow.sum_up(tree);
    }
    if goes_down {
        flow.spread_down(tree);
    }
    flow.into_plan(operation, order, vector)
}

/// Transfers of a whole vector along trees.
struct Flow<'a> {
    schedule: Schedule<'a>,
    blocks: Blocks,
    bytes: u64,
    /// For each host, the transfers that brought what it sends next.
    feeds: Vec<Vec<usize>>,
}

impl<'a> Flow<'a> {
    fn new(paths: &'a Paths, order: &[usize], vector: Vector) -> Self {
        Self {
            schedule: Schedule::new(paths),
            blocks: Blocks::run(0, vector.parts().len()),
            bytes: vector.bytes(),
            feeds: vec![Vec::new(); order.len()],
        }
    }

    fn add(&mut self, (from, to): (usize, usize), combines: bool) -> usize {
        let blocks = self.blocks.clone();
        let needs = &self.feeds[from];
        self.schedule
            .add((from, to), blocks, self.bytes, combines, needs)
    }

    /// Sums the vector at the root of a tree. Children come after their parents.
    fn sum_up(&mut self, tree: &Tree) {
        for (parent, child) in tree.edges.iter().rev() {
            let up = self.add((*child, *parent), true);
            self.feeds[*parent].push(up);
        }
    }

    /// Sends the vector from the root of a tree to all its hosts.
    fn spread_down(&mut self, tree: &Tree) {
        for (parent, child) in &tree.edges {
            let down = self.add((*parent, *child), false);
            self.feeds[*child] = vec![down];
        }
    }

    fn into_plan(self, operation: Operation, order: &[usize], vector: Vector) -> Plan {
        self.schedule
            .into_plan(operation, order.to_vec(), vector.parts())
    }
}

/// Returns whether sites may swap the sums of a vector of this size.
fn may_swap(sites: &Sites, bytes: u64) -> bool {
    let have_adders = sites.members.iter().all(|members| members.len() > 1);
    // More than two sites send each host that adds more than its link carries at once. All sums fit
    // the port, so that none waits for another.
    let sites = sites.members.len() as u64;
    have_adders && (sites == 2 || sites * bytes <= PORT_BYTES)
}

/// Plans an all-reduce that crosses the links between sites once: each site sends its sum to all
/// others at the same time.
///
/// In each site a tree sums the vector at one host, and another host adds the sums of all sites.
/// The first must keep its site's sum until it has been sent. All hosts add in one order, that of
/// the sites, so that their sums of floats are equal. With two sites the order does not matter, and
/// a site begins with its own sum.
fn swap_sums(paths: &Paths, order: &[usize], vector: Vector, sites: &Sites) -> Plan {
    let mut flow = Flow::new(paths, order, vector);
    for members in &sites.members {
        flow.sum_up(&Tree::new(paths, members, vector.bytes()));
    }
    let count = sites.members.len();
    let mut sums: Vec<Vec<usize>> = vec![Vec::new(); count];
    for step in 0..count {
        for (to, sums) in sums.iter_mut().enumerate() {
            let from = if count == 2 { (to + step) % 2 } else { step };
            let (holder, adder) = (sites.members[from][0], sites.members[to][1]);
            sums.push(flow.add((holder, adder), step > 0));
        }
    }
    for (members, sums) in sites.members.iter().zip(sums) {
        let mut members = members.clone();
        members.rotate_left(1);
        flow.feeds[members[0]] = sums;
        flow.spread_down(&Tree::new(paths, &members, vector.bytes()));
    }
    flow.into_plan(Operation::AllReduce, order, vector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::even_tree;
    use crate::{check, uniform};
    use kumi_topo::{Delay, Rate};

    fn star(hosts: usize) -> Network {
        let names: Vec<String> = (0..hosts).map(|host| format!("h{host}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let rate = Rate::from_bps(1_000_000_000).unwrap();
        Network::star(&names, rate, Delay::from_ns(25_000))
    }

    #[test]
    fn short_vectors__on_one_switch__take_as_many_hops_as_the_tree_is_deep() {
        let hop_s = 50e-6;
        for (hosts, operation, hops) in [
            (9, Operation::Broadcast { root: 3 }, 1.0),
            (9, Operation::Reduce { root: 3 }, 1.0),
            (9, Operation::AllReduce, 2.0),
            (64, Operation::AllReduce, 4.0),
            (16, Operation::AllGather, 1.0),
        ] {
            let network = star(hosts);
            let plan = uniform(&network, operation, 64).unwrap();
            assert_eq!(check(&network, &plan), Ok(()), "{operation:?}");
            assert!(
                plan.predicted_s < hop_s * (hops + 0.5),
                "{operation:?} of {hosts}: {} us",
                plan.predicted_s * 1e6
            );
        }
    }

    #[test]
    fn all_reduce__between_sites__crosses_the_long_links_once() {
        for sites in [2, 3, 9] {
            let switches: Vec<usize> = (0..4 * sites).map(|host| 1 + host % sites).collect();
            let mut network = even_tree(&vec![0; sites + 1], 1000, &switches, 1000);
            for link in network.links.iter_mut().take(sites) {
                link.latency = Delay::from_ns(5_000_000);
            }
            for bytes in [0, 8, 2 << 10] {
                let plan = uniform(&network, Operation::AllReduce, bytes).unwrap();
                assert_eq!(check(&network, &plan), Ok(()));
                assert!(
                    plan.predicted_s < 11.5e-3,
                    "{sites} sites, {bytes} bytes: {} ms",
                    plan.predicted_s * 1e3
                );
            }
        }
    }

    /// Scatter and all-gather, or reduce-scatter and all-gather, in 2 log₂ N successive messages
    /// (Thakur et al.).
    #[test]
    fn medium_vectors__on_one_switch__take_no_longer_than_the_textbook_algorithm() {
        let (hop_s, bytes) = (50e-6, 64 << 10);
        for hosts in [16_usize, 64, 128] {
            let network = star(hosts);
            let messages = 2.0 * (hosts as f64).log2();
            let textbook_s = messages * hop_s + 2.0 * bytes as f64 / 125e6;
            for operation in [
                Operation::Broadcast { root: 1 },
                Operation::Reduce { root: 1 },
                Operation::AllReduce,
            ] {
                let plan = uniform(&network, operation, bytes).unwrap();
                assert_eq!(check(&network, &plan), Ok(()), "{operation:?}");
                let ratio = plan.predicted_s / textbook_s;
                assert!(ratio < 1.05, "{operation:?} of {hosts}: {ratio}");
            }
        }
    }

    #[test]
    fn reduce_scatter__short_blocks__takes_one_or_log_n_hops() {
        for (hosts, bytes, hops) in [(16, 1024, 1.0), (64, 64, 1.0), (64, 1024, 6.0)] {
            let network = star(hosts);
            let plan = uniform(&network, Operation::ReduceScatter, bytes).unwrap();
            assert_eq!(check(&network, &plan), Ok(()));
            let sent_s = (hosts as u64 * bytes) as f64 / 125e6;
            let ratio = plan.predicted_s / (hops * 50e-6 + sent_s);
            assert!(ratio < 1.1, "{hosts} hosts, {bytes} bytes: {ratio}");
        }
    }

    #[test]
    fn long_vectors__on_one_switch__use_rings_and_chains() {
        let network = star(8);
        for operation in [Operation::AllReduce, Operation::Broadcast { root: 0 }] {
            let plan = uniform(&network, operation, 4 << 20).unwrap();
            assert!(plan.transfers.iter().all(|transfer| {
                let sent = plan
                    .transfers
                    .iter()
                    .filter(|other| other.from == transfer.from);
                sent.map(|other| other.to).all(|to| to == transfer.to)
            }));
        }
    }
}
