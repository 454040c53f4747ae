//! Orders the blocks of an all-to-all without a regular order: the busiest links first.

use crate::shares::ENOUGH;
use kumi_topo::{DirectedLink, Paths};

/// Returns every pair of hosts in the order in which their blocks start, if every host sends
/// whenever it can. Among the blocks whose links have capacity, a sender chooses the one with the
/// most work left on a link behind its access link. Equals keep the order of the ring `order`.
/// Block `from × hosts + to` has its size at that index of `block_bytes`.
pub(crate) fn busiest_first(
    paths: &Paths,
    order: &[usize],
    block_bytes: &[u64],
) -> Vec<(usize, usize)> {
    let hosts = order.len();
    let mut work = Work::new(paths, hosts, block_bytes);
    let mut waiting: Vec<Vec<usize>> = (0..hosts)
        .map(|place| (1..hosts).map(move |step| order[(place + step) % hosts]))
        .map(Iterator::collect)
        .collect();
    let mut pairs = Vec::with_capacity(hosts * hosts);
    loop {
        // Hosts with most data to send choose first.
        let mut senders: Vec<usize> = (0..hosts)
            .filter(|place| !waiting[*place].is_empty())
            .collect();
        if senders.is_empty() {
            return pairs;
        }
        senders.sort_by(|a, b| {
            let [a, b] = [a, b].map(|place| work.unsent_s(order[*place], waiting[*place][0]));
            b.total_cmp(&a)
        });
        for place in senders {
            let from = order[place];
            while let Some(index) = work.busiest(from, &waiting[place]) {
                let to = waiting[place].remove(index);
                work.begin(from, to);
                pairs.push((from, to));
            }
        }
        work.end_next();
    }
}

/// Remaining work of the links, and their free capacity, at a point in time.
struct Work {
    hosts: usize,
    now_s: f64,
    /// For each pair of hosts, the directed links between them and the bottleneck rate in bytes per
    /// second.
    links: Vec<Vec<usize>>,
    pair_bytes_per_s: Vec<f64>,
    bytes: Vec<f64>,
    link_bytes_per_s: Vec<f64>,
    remaining_s: Vec<f64>,
    free_bytes_per_s: Vec<f64>,
    /// Pairs whose blocks are in flight, with their end times.
    in_flight: Vec<(f64, usize)>,
}

impl Work {
    fn new(paths: &Paths, hosts: usize, block_bytes: &[u64]) -> Self {
        let path = |pair: usize| paths.links(pair / hosts, pair % hosts);
        let numbers = |links: Vec<DirectedLink>| links.iter().map(|link| link.0 as usize).collect();
        let links: Vec<Vec<usize>> = (0..hosts * hosts).map(|pair| numbers(path(pair))).collect();
        let indices = 0..paths.directed_links() as u32;
        let link_bytes_per_s: Vec<f64> = indices
            .map(|link| paths.link_bytes_per_s(DirectedLink(link)))
            .collect();
        let mut remaining_s = vec![0.0; link_bytes_per_s.len()];
        for (links, bytes) in links.iter().zip(block_bytes) {
            for link in links {
                remaining_s[*link] += *bytes as f64 / link_bytes_per_s[*link];
            }
        }
        let slowest = |links: &Vec<usize>| {
            let rates = links.iter().map(|link| link_bytes_per_s[*link]);
            rates.fold(f64::INFINITY, f64::min)
        };
        Self {
            hosts,
            now_s: 0.0,
            pair_bytes_per_s: links.iter().map(slowest).collect(),
            links,
            bytes: block_bytes.iter().map(|bytes| *bytes as f64).collect(),
            free_bytes_per_s: link_bytes_per_s.clone(),
            link_bytes_per_s,
            remaining_s,
            in_flight: Vec::new(),
        }
    }

    /// Returns the time that a host's access link needs for its remaining blocks, in seconds. `to`
    /// is any receiver.
    fn unsent_s(&self, from: usize, to: usize) -> f64 {
        let first = self.links[from * self.hosts + to].first();
        first.map_or(0.0, |link| self.remaining_s[*link])
    }

    /// Returns the index in `receivers` of the first one with the most work left on a link behind
    /// the sender's access link.
    fn busiest(&self, from: usize, receivers: &[usize]) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        for (index, to) in receivers.iter().enumerate() {
            let pair = from * self.hosts + to;
            let least = self.pair_bytes_per_s[pair] * ENOUGH;
            let links = &self.links[pair];
            if links
                .iter()
                .any(|link| self.free_bytes_per_s[*link] < least)
            {
                continue;
            }
            let remaining = links.iter().skip(1).map(|link| self.remaining_s[*link]);
            let most_s = remaining.fold(0.0, f64::max);
            if best.is_none_or(|(best_s, _)| most_s > best_s * (1.0 + 1e-9)) {
                best = Some((most_s, index));
            }
        }
        best.map(|(_, index)| index)
    }

    fn begin(&mut self, from: usize, to: usize) {
        let pair = from * self.hosts + to;
        let rate = self.pair_bytes_per_s[pair];
        for link in &self.links[pair] {
            self.free_bytes_per_s[*link] -= rate;
            self.remaining_s[*link] -= self.bytes[pair] / self.link_bytes_per_s[*link];
        }
        self.in_flight
            .push((self.now_s + self.bytes[pair] / rate, pair));
    }

    /// Advances to the time at which the next blocks end, which frees capacity.
    fn end_next(&mut self) {
        let ends = self.in_flight.iter().map(|(end_s, _)| *end_s);
        let next_s = ends.fold(f64::INFINITY, f64::min);
        let (links, free) = (&self.links, &mut self.free_bytes_per_s);
        self.in_flight.retain(|(end_s, pair)| {
            let is_complete = *end_s <= next_s;
            for link in links[*pair].iter().filter(|_| is_complete) {
                free[*link] += self.pair_bytes_per_s[*pair];
            }
            !is_complete
        });
        self.now_s = next_s;
    }
}
