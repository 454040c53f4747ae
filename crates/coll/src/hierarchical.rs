//! All-gather, reduce-scatter and all-reduce between sites (`sites.rs`), over links that are slower
//! or longer than access links.
//!
//! A ring of N hosts sends N − 1 blocks over every link. Here each block crosses each link between
//! sites only once per required direction:
//!
//! - All-gather: a block enters a site at one host, another host for each block, and goes round the
//!   site's own ring.
//! - Reduce-scatter: an all-gather in reverse.
//! - All-reduce: each part of the vector is summed in every site, then along the tree of sites, and
//!   distributed again. Two sites may swap their sums instead. The vector goes in slices, so that
//!   the slow links are busy from early on.
//!
//! `list_schedule.rs` puts the transfers in order (ADR 021).

use crate::grain::CHUNK_BYTES;
use crate::list_schedule::{Task, start_order};
use crate::plan::{Blocks, Operation, Plan};
use crate::schedule::Schedule;
use crate::sites::Sites;
use crate::vector::Vector;
use kumi_topo::{Network, Paths};

/// Most tasks of a plan for which two variants are tried. For a longer plan only one is made (ADR
/// 034).
const VARIED_TASKS_MAX: usize = 16_384;

/// Most tasks of a plan (ADR 034). A task takes some 200 bytes of memory and 5 µs of one processor.
const TASKS_MAX: usize = 1 << 20;

/// Most slices of a vector. With this number, a slice's way in and out takes one sixteenth of the
/// whole time (docs/perf-log.md, 2026-11-23).
const SLICES_MAX: usize = 8;

/// Returns the number of parts of an all-reduce's vector between sites: one or several per host.
/// Several parts per host follow each other from site to site.
///
/// ```text
///   parts = N · k
///   k     = V / (N · 8 KiB) rounded up, at most 16 384 / (2 N (N − 1)), and from 1 to 8
///
///   N  number of hosts
///   V  bytes of the vector
/// ```
pub(crate) fn parts(hosts: usize, vector: Vector) -> usize {
    let slice_tasks = hosts * 2 * (hosts - 1);
    // The parts match the chunks: a part slightly longer than a chunk would be two messages.
    let slices = vector.bytes().div_ceil(hosts as u64 * CHUNK_BYTES) as usize;
    hosts
        * slices
            .min(VARIED_TASKS_MAX / slice_tasks)
            .clamp(1, SLICES_MAX)
}

/// Input of a plan by sites.
pub(crate) struct BySites<'a> {
    pub network: &'a Network,
    pub paths: &'a Paths,
    pub sites: &'a Sites,
    pub operation: Operation,
    pub order: &'a [usize],
    /// Size of each block by place. For a vector, their number is a multiple of the number of
    /// hosts.
    pub block_bytes: &'a [u64],
}

impl BySites<'_> {
    /// Returns the plan, or the one of two variants with the least predicted time. Returns `None`
    /// if there are too many transfers to order.
    pub fn plan(&self) -> Option<Plan> {
        let transfers = self.block_bytes.len() * (self.order.len() - 1);
        let transfers = match self.operation {
            Operation::AllReduce => 2 * transfers,
            _ => transfers,
        };
        if transfers > TASKS_MAX {
            return None;
        }
        let variants = if transfers > VARIED_TASKS_MAX { 1 } else { 2 };
        let plans = (0..variants).map(|variant| match self.operation {
            Operation::ReduceScatter => self.reduce_scatter(variant),
            Operation::AllReduce => self.schedule_tasks(&self.all_reduce(self.crossing(variant))),
            _ => self.schedule_tasks(&self.all_gather(variant)),
        });
        plans.min_by(|a, b| a.predicted_s.total_cmp(&b.predicted_s))
    }

    fn schedule_tasks(&self, tasks: &[Task]) -> Plan {
        let order = start_order(self.paths, tasks);
        self.plan_tasks(tasks, &order)
    }

    /// Plans tasks in an order in which each comes after the tasks that it needs.
    fn plan_tasks(&self, tasks: &[Task], order: &[usize]) -> Plan {
        let mut schedule = Schedule::new(self.paths);
        let mut transfers = vec![0; tasks.len()];
        for index in order {
            let task = &tasks[*index];
            let needs: Vec<usize> = task.needs.iter().map(|need| transfers[*need]).collect();
            transfers[*index] = schedule.add(
                (task.from, task.to),
                Blocks::one(task.block),
                task.bytes,
                task.combines,
                &needs,
            );
        }
        schedule.into_plan(
            self.operation,
            self.order.to_vec(),
            self.block_bytes.to_vec(),
        )
    }

    fn writer(&self) -> Writer<'_> {
        Writer {
            sites: self.sites,
            block_bytes: self.block_bytes,
            tasks: Vec::new(),
        }
    }

    /// Blocks enter each site at one host after another, against the direction of the ring. A busy
    /// host delays the blocks that go round, and each block is at one host only. The host that
    /// receives next follows the host that sends next, so that both delay the same step of the
    /// ring. With `offset` = 1 it is that host itself.
    fn all_gather(&self, offset: usize) -> Vec<Task> {
        let sites = self.sites;
        let mut writer = self.writer();
        let mut entries = vec![0; sites.members.len()];
        for (block, owner) in self.order.iter().copied().enumerate().rev() {
            let own_site = sites.site_of[owner];
            let mut holders: Vec<Option<(usize, Vec<usize>)>> = vec![None; sites.members.len()];
            holders[own_site] = Some((owner, Vec::new()));
            for (from, to) in &sites.spread[own_site] {
                let Some((sender, feeds)) = holders[*from].clone() else {
                    continue;
                };
                let members = &sites.members[*to];
                let turn = 2 * members.len() - entries[*to] % members.len() - offset;
                let receiver = members[turn % members.len()];
                entries[*to] += 1;
                let task = writer.add((sender, receiver), block, false, feeds);
                holders[*to] = Some((receiver, vec![task]));
            }
            for (host, feeds) in holders.into_iter().flatten() {
                writer.round(host, block, feeds);
            }
        }
        writer.tasks
    }

    /// Reverses an all-gather, on a network with reversed links: each block's parts are summed on
    /// their way to its owner.
    fn reduce_scatter(&self, offset: usize) -> Plan {
        let mut reversed = self.network.clone();
        for link in &mut reversed.links {
            link.rates.reverse();
        }
        let forward = self.all_gather(offset);
        let order = start_order(&Paths::new(&reversed), &forward);
        let mut backward: Vec<Task> = forward
            .iter()
            .map(|task| Task {
                from: task.to,
                to: task.from,
                combines: true,
                needs: Vec::new(),
                ..task.clone()
            })
            .collect();
        for (index, task) in forward.iter().enumerate() {
            for need in &task.needs {
                backward[*need].needs.push(index);
            }
        }
        let order: Vec<usize> = order.into_iter().rev().collect();
        self.plan_tasks(&backward, &order)
    }

    /// Returns how sums cross between sites in a variant.
    fn crossing(&self, variant: usize) -> Crossing {
        let members = &self.sites.members;
        let is_pair = members.len() == 2 && members.iter().all(|members| members.len() > 1);
        match variant {
            0 => Crossing::Tree,
            // For two sites, the tree is direct.
            _ if is_pair => Crossing::Swap,
            _ => Crossing::Direct,
        }
    }

    /// Sums each part in every site, then between them.
    fn all_reduce(&self, crossing: Crossing) -> Vec<Task> {
        let sites = self.sites;
        let hosts = self.order.len();
        let mut writer = self.writer();
        for part in 0..self.block_bytes.len() {
            let place = part % hosts;
            // For each site, the host with the part's sum, and the transfers that brought it.
            let owners = sites.members.iter();
            let owners: Vec<usize> = owners
                .map(|members| members[place * members.len() / hosts])
                .collect();
            let sums = owners.iter().map(|owner| writer.sum(*owner, part));
            let feeds: Vec<Vec<usize>> = sums.collect();
            match crossing {
                Crossing::Swap => writer.swap(&owners, part, &feeds),
                Crossing::Tree | Crossing::Direct => {
                    let edges = self.edges(place, crossing);
                    writer.meet(owners, part, feeds, &edges);
                }
            }
        }
        writer.tasks
    }

    /// Returns the pairs of sites along which the sum of a part spreads. The tree of sites starts
    /// at another site for each part.
    fn edges(&self, place: usize, crossing: Crossing) -> Vec<(usize, usize)> {
        let sites = self.sites;
        // A host that is a site by itself owns no sum: its slow link would receive each site's sum.
        let has_several = |site: &usize| sites.members[*site].len() > 1;
        let mut homes: Vec<usize> = (0..sites.members.len()).filter(has_several).collect();
        if homes.is_empty() {
            homes.push(0);
        }
        let home = homes[place % homes.len()];
        if crossing == Crossing::Tree {
            return sites.spread[home].clone();
        }
        let others = (0..sites.members.len()).filter(|site| *site != home);
        others.map(|site| (home, site)).collect()
    }
}

/// The way of a part's sums between sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crossing {
    /// Along the tree of sites to one site, and back.
    Tree,
    /// To one site directly, and back. That takes fewer hops where a router joins the sites, but
    /// all sums enter one port.
    Direct,
    /// Two sites send each other their sums at the same time. Each link between them is crossed
    /// once in place of twice. In a site, a part takes one more hop.
    Swap,
}

/// Writes tasks.
struct Writer<'a> {
    sites: &'a Sites,
    block_bytes: &'a [u64],
    tasks: Vec<Task>,
}

impl Writer<'_> {
    fn add(
        &mut self,
        ends: (usize, usize),
        block: usize,
        combines: bool,
        needs: Vec<usize>,
    ) -> usize {
        self.tasks.push(Task {
            from: ends.0,
            to: ends.1,
            block,
            bytes: self.block_bytes[block],
            combines,
            needs,
            // For a vector, one slice precedes the next.
            class: (block / self.sites.site_of.len()) as u32,
        });
        self.tasks.len() - 1
    }

    /// Sends a block round a site, from the host that has it, with the transfers that brought it
    /// there.
    fn round(&mut self, first: usize, block: usize, feeds: Vec<usize>) {
        let members = self.sites.members[self.sites.site_of[first]].len();
        let (mut host, mut needs) = (first, feeds);
        for _ in 1..members {
            let next = self.sites.next[host];
            needs = vec![self.add((host, next), block, false, needs)];
            host = next;
        }
    }

    /// Sends each site's sum along these pairs of sites to the first one, and the whole sum back
    /// and round each site.
    fn meet(
        &mut self,
        owners: Vec<usize>,
        block: usize,
        mut feeds: Vec<Vec<usize>>,
        edges: &[(usize, usize)],
    ) {
        for (parent, child) in edges.iter().rev() {
            let needs = feeds[*child].clone();
            let up = self.add((owners[*child], owners[*parent]), block, true, needs);
            feeds[*parent].push(up);
        }
        for (parent, child) in edges {
            let needs = feeds[*parent].clone();
            let down = self.add((owners[*parent], owners[*child]), block, false, needs);
            feeds[*child] = vec![down];
        }
        for (owner, feeds) in owners.into_iter().zip(feeds) {
            self.round(owner, block, feeds);
        }
    }

    /// Swaps the sums of two sites. The next host of each site's ring adds both, because the owner
    /// must keep its site's sum until it has been sent. The whole sum goes round from there.
    fn swap(&mut self, owners: &[usize], block: usize, feeds: &[Vec<usize>]) {
        let adders: Vec<usize> = owners.iter().map(|owner| self.sites.next[*owner]).collect();
        let mut sums: Vec<Vec<usize>> = vec![Vec::new(); owners.len()];
        for site in 0..owners.len() {
            let own = self.add(
                (owners[site], adders[site]),
                block,
                false,
                feeds[site].clone(),
            );
            sums[site].push(own);
        }
        for site in 0..owners.len() {
            let other = 1 - site;
            let mut needs = feeds[other].clone();
            // The adder stores its site's sum before it adds the other.
            needs.extend(&sums[site]);
            let swapped = self.add((owners[other], adders[site]), block, true, needs);
            sums[site].push(swapped);
        }
        for (adder, sums) in adders.into_iter().zip(sums) {
            self.round(adder, block, sums);
        }
    }

    /// Sums a block round a site, ending at this host. Returns the transfers that bring the sum.
    fn sum(&mut self, last: usize, block: usize) -> Vec<usize> {
        let members = self.sites.members[self.sites.site_of[last]].len();
        let (mut host, mut needs) = (self.sites.next[last], Vec::new());
        for _ in 1..members {
            let next = self.sites.next[host];
            needs = vec![self.add((host, next), block, true, needs)];
            host = next;
        }
        needs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::even_tree;
    use crate::{bound_s, check, uniform};

    #[test]
    fn all_reduce__distant_sites_around_a_router__sends_parts_directly_to_the_summing_site() {
        let switches: Vec<usize> = (0..16).map(|host| 1 + host % 8).collect();
        let mut network = even_tree(&[0; 9], 1000, &switches, 100);
        for link in network.links.iter_mut().take(8) {
            link.latency = kumi_topo::Delay::from_ns(10_000_000);
        }
        let plan = uniform(&network, Operation::AllReduce, 64 << 10).unwrap();
        check(&network, &plan).unwrap();
        // Two one-way latencies between sites, plus the time of the parts. Round all eight sites,
        // the plan would take 14 one-way latencies.
        assert!(plan.predicted_s < 0.06, "{}", plan.predicted_s);
    }

    #[test]
    fn all_reduce__two_distant_sites__crosses_the_link_between_them_once() {
        let switches: Vec<usize> = (0..16).map(|host| host % 2).collect();
        let mut network = even_tree(&[0, 0], 500, &switches, 200);
        network.links[0].latency = kumi_topo::Delay::from_ns(10_000_000);
        for bytes in [64 << 10, 1 << 20] {
            let plan = uniform(&network, Operation::AllReduce, bytes).unwrap();
            check(&network, &plan).unwrap();
            let once_s = 0.010 + 2.2 * bound_s(&network, &plan);
            assert!(
                plan.predicted_s < once_s + 0.002,
                "{bytes} bytes: {} s",
                plan.predicted_s
            );
        }
    }

    #[test]
    fn all_reduce__one_slow_host__takes_less_than_115_percent_of_the_bound() {
        let mut network = even_tree(&[0], 1000, &[0; 16], 1000);
        network.links[5].rates = [kumi_topo::Rate::from_bps(250_000_000).unwrap(); 2];
        let plan = uniform(&network, Operation::AllReduce, 4 << 20).unwrap();
        check(&network, &plan).unwrap();
        let ratio = plan.predicted_s / bound_s(&network, &plan);
        assert!(ratio < 1.15, "{ratio}");
    }

    #[test]
    fn all_gather__more_transfers_than_are_varied__stays_within_110_percent_of_the_bound() {
        let switches: Vec<usize> = (0..140).map(|host| host % 2).collect();
        let network = even_tree(&[0, 0], 250, &switches, 1000);
        let plan = uniform(&network, Operation::AllGather, 64 << 10).unwrap();
        assert!(plan.transfers.len() > VARIED_TASKS_MAX);
        check(&network, &plan).unwrap();
        let ratio = plan.predicted_s / bound_s(&network, &plan);
        assert!(ratio < 1.1, "{ratio}");
    }

    #[test]
    fn plans__over_slow_trunks__stay_close_to_the_bound() {
        let spread = |switches: usize| (0..16).map(|host| host * 7 % switches).collect::<Vec<_>>();
        let around: Vec<usize> = (0..16).map(|host| 1 + host % 3).collect();
        // An all-reduce between k sites round a switch crosses each link at least 2 (k-1)/k times.
        // The bound counts one.
        for (network, all_reduces) in [
            (even_tree(&[0, 0], 25, &spread(2), 100), 1.1),
            (even_tree(&[0, 0], 70, &spread(2), 100), 1.2),
            (even_tree(&[0, 0, 1], 25, &spread(3), 100), 1.1),
            (even_tree(&[0, 0, 0, 0], 25, &spread(4), 100), 1.1),
            // Here early bytes are a quarter of the port's depth, divided between the four
            // transfers that share a host's link. The plan takes 0.3 % longer than with the whole
            // depth.
            (
                even_tree(&[0, 0, 0, 0], 25, &around, 100),
                1.103 * 4.0 / 3.0,
            ),
        ] {
            for (operation, bytes, limit) in [
                (Operation::AllGather, 1 << 20, 1.1),
                (Operation::ReduceScatter, 1 << 20, 1.1),
                (Operation::AllReduce, 16 << 20, all_reduces),
            ] {
                let plan = uniform(&network, operation, bytes).unwrap();
                check(&network, &plan).unwrap();
                let ratio = plan.predicted_s / bound_s(&network, &plan);
                assert!(ratio < limit, "{operation:?}: {ratio} on {network:?}");
            }
        }
    }
}
