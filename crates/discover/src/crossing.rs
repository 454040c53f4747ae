//! Rates of the links between switches, from trains of several hosts that cross a link at once.
//!
//! The number of sending hosts is doubled until the rate across the link no longer grows. Other
//! traffic can slow a train on any link of its path. So a train that is slower than its hosts'
//! access links does not show that the measured link is full. Only trains that deliver no more when
//! their number is doubled show it. If the hosts cannot fill a link, its rate is at least the rate
//! that they offer.

use super::agents::Agents;
use super::train::{QUIET_MIN_S, Rates, Train, WIRE_BITS, packets, quiet_s, run};
use kumi_topo::infer::Inferred;

/// Duration of trains, in seconds. It is long enough for trains of several hosts to overlap.
const TOGETHER_S: f64 = 0.15;

/// Duration of trains during the search for the number of hosts that fill the link, in seconds.
const SEARCH_S: f64 = 0.04;

/// Measurements of a full link; the median is used. Other traffic lowers the rate. It can also
/// raise it, when it releases trains that it held up (`docs/perf-log.md`, 2026-11-24).
const MEASUREMENTS: usize = 3;

/// Maximum number of hosts on either side that fill a link together.
const TOGETHER_MAX: usize = 8;

/// Share of the offered rate below which a link may be full. Chosen by judgement.
const FILLED: f64 = 0.9;

/// A link is full if doubling the hosts raises its rate by less than this factor. Chosen by
/// judgement.
const GROWTH: f64 = 1.25;

/// Window for the rate of a full link, in seconds. Bursts of other traffic are shorter.
const WINDOW_S: f64 = 0.04;

/// Fewest packets from which the time of a train on the link follows.
const FLOW_PACKETS_MIN: usize = 8;

/// Returns the links between switches, those with the fewest hosts behind them first. Their rates
/// limit the traffic that hosts can bring to the other links.
pub(super) fn outermost_first(tree: &Inferred) -> Vec<usize> {
    let hosts = tree.switch_of.len();
    let behind = |link: &usize| {
        let side = tree.side(*link);
        let on = tree.switch_of.iter().filter(|switch| side.contains(switch));
        let on = on.count();
        on.min(hosts - on)
    };
    let mut links: Vec<usize> = (0..tree.links.len()).collect();
    links.sort_by_key(behind);
    links
}

/// The measurement of one link between switches.
pub(super) struct Crossing<'a> {
    tree: &'a Inferred,
    rates: &'a Rates,
    /// Offset of each host's clock, in nanoseconds.
    ahead_ns: &'a [i64],
    link: usize,
    /// Pairs of hosts, one on either side of the link.
    pairs: Vec<(usize, usize)>,
}

impl<'a> Crossing<'a> {
    pub(super) fn new(
        tree: &'a Inferred,
        rates: &'a Rates,
        ahead_ns: &'a [i64],
        link: usize,
    ) -> Self {
        let first_side = tree.side(link);
        let (first, second) = tree.links[link];
        let side = |is_first: bool, end: usize| {
            let hosts = 0..tree.switch_of.len();
            let on: Vec<usize> = hosts
                .filter(|host| first_side.contains(&tree.switch_of[*host]) == is_first)
                .collect();
            spread(tree, &on, end)
        };
        let pairs = side(true, first).into_iter().zip(side(false, second));
        let pairs = pairs.take(TOGETHER_MAX).collect();
        Self {
            tree,
            rates,
            ahead_ns,
            link,
            pairs,
        }
    }

    /// Returns the rate of the link from its first end and back, in bits per second.
    pub(super) fn measure(
        &self,
        agents: &mut Agents,
        number: &mut u32,
    ) -> anyhow::Result<[f64; 2]> {
        let most = self.pairs.len();
        let mut counts = [1.min(most); 2];
        let mut before_bps = [0.0; 2];
        let mut full = [false; 2];
        loop {
            let passed_bps = self.trains(agents, number, counts, SEARCH_S, total_bps)?;
            let mut more = counts;
            for way in 0..2 {
                let offered_bps = self.offered_bps(counts[way], way);
                let is_short = passed_bps[way] < FILLED * offered_bps;
                full[way] |= is_short && passed_bps[way] < GROWTH * before_bps[way];
                if !full[way] {
                    more[way] = (2 * counts[way]).min(most);
                }
                before_bps[way] = passed_bps[way];
            }
            if more == counts {
                return self.settled(agents, number, (counts, full));
            }
            counts = more;
        }
    }

    /// Returns the rate that these hosts send across a `full` link, and for other links the offered
    /// rate. Both are in bits per second and by direction.
    fn settled(
        &self,
        agents: &mut Agents,
        number: &mut u32,
        (counts, full): ([usize; 2], [bool; 2]),
    ) -> anyhow::Result<[f64; 2]> {
        let mut passed_bps: [Vec<f64>; 2] = Default::default();
        for _ in 0..MEASUREMENTS {
            let both_bps = self.trains(agents, number, counts, TOGETHER_S, undisturbed_bps)?;
            for (passed_bps, bps) in passed_bps.iter_mut().zip(both_bps) {
                passed_bps.push(bps);
            }
        }
        Ok([0, 1].map(|way| {
            passed_bps[way].sort_unstable_by(f64::total_cmp);
            let middle_bps = passed_bps[way][MEASUREMENTS / 2];
            let offered_bps = self.offered_bps(counts[way], way);
            match full[way] || middle_bps < FILLED * offered_bps {
                true => middle_bps.min(offered_bps),
                false => offered_bps,
            }
        }))
    }

    /// Sends trains both ways at once. Returns the rate that `rate` computes from the arrivals of
    /// each way.
    fn trains(
        &self,
        agents: &mut Agents,
        number: &mut u32,
        counts: [usize; 2],
        seconds: f64,
        rate: fn(&[Vec<u64>]) -> f64,
    ) -> anyhow::Result<[f64; 2]> {
        let there = self.pairs[..counts[0]].iter().copied();
        let back = self.pairs[..counts[1]].iter().map(|(a, b)| (*b, *a));
        let trains = there.chain(back).map(|(from, to)| Train {
            from,
            to,
            packets: packets(self.pair_bps(from, to), seconds),
        });
        let trains: Vec<Train> = trains.collect();
        let quiet_s = trains
            .iter()
            .map(|train| quiet_s(self.pair_bps(train.from, train.to)))
            .fold(QUIET_MIN_S, f64::max);
        let mut seen = run(agents, number, &trains, quiet_s)?;
        for (train, at_ns) in trains.iter().zip(&mut seen) {
            let ahead_ns = self.ahead_ns[train.to];
            at_ns
                .iter_mut()
                .for_each(|at| *at = at.saturating_add_signed(-ahead_ns));
        }
        let (there, back) = seen.split_at(counts[0]);
        Ok([rate(there), rate(back)])
    }

    fn pair_bps(&self, from: usize, to: usize) -> f64 {
        self.rates.hosts[from][0]
            .min(self.rates.hosts[to][1])
            .max(1e5)
    }

    /// Returns the rate at which the first `count` pairs can send to and receive from the link, in
    /// bits per second.
    fn offered_bps(&self, count: usize, way: usize) -> f64 {
        let (first, second) = self.tree.links[self.link];
        let pairs = &self.pairs[..count];
        let (senders, receivers): (Vec<usize>, Vec<usize>) = match way {
            0 => pairs.iter().copied().unzip(),
            _ => pairs.iter().map(|(a, b)| (*b, *a)).unzip(),
        };
        let (from, to) = if way == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let alone = senders.iter().zip(&receivers);
        let alone_bps: f64 = alone.map(|(from, to)| self.pair_bps(*from, *to)).sum();
        let brought_bps = self.through_bps(from, self.link, &senders, true);
        let taken_bps = self.through_bps(to, self.link, &receivers, false);
        alone_bps.min(brought_bps).min(taken_bps).max(1e5)
    }

    /// Returns the rate at which `hosts` behind `switch`, seen from `link`, can send or receive
    /// together, in bits per second. Links that are not measured yet do not limit it.
    fn through_bps(&self, switch: usize, link: usize, hosts: &[usize], is_sending: bool) -> f64 {
        let here = hosts
            .iter()
            .filter(|host| self.tree.switch_of[**host] == switch);
        let own_bps = here.map(|host| self.rates.hosts[*host][usize::from(!is_sending)].max(1e5));
        let mut sum_bps: f64 = own_bps.sum();
        for (other, (a, b)) in self.tree.links.iter().enumerate() {
            let beyond = match switch {
                switch if switch == *a => *b,
                switch if switch == *b => *a,
                _ => continue,
            };
            if other != link {
                let way = usize::from((beyond == *a) != is_sending);
                let known_bps = self.rates.links[other][way];
                let limit_bps = if known_bps > 0.0 {
                    known_bps
                } else {
                    f64::INFINITY
                };
                sum_bps += self
                    .through_bps(beyond, other, hosts, is_sending)
                    .min(limit_bps);
            }
        }
        sum_bps
    }
}

/// Orders hosts so that the first ones are on as many different switches as possible, the nearest
/// switches first. This keeps other links from limiting the traffic across the measured link.
fn spread(tree: &Inferred, hosts: &[usize], end: usize) -> Vec<usize> {
    let paths = &tree.paths()[end];
    let mut turns = vec![0_usize; tree.switches];
    let mut order: Vec<(usize, usize, usize)> = hosts
        .iter()
        .map(|host| {
            let switch = tree.switch_of[*host];
            turns[switch] += 1;
            (turns[switch], paths[switch].len(), *host)
        })
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, _, host)| host).collect()
}

/// Returns the time in which all trains arrive, and the arrivals in that time. Trains with almost
/// no packets are ignored for the time. If it is at most a quarter of the whole time, the whole
/// time is used instead.
fn common(seen: &[Vec<u64>]) -> Option<((u64, u64), Vec<u64>)> {
    let whole = seen.iter().filter(|at_ns| at_ns.len() >= FLOW_PACKETS_MIN);
    let from = whole.clone().filter_map(|at_ns| at_ns.first()).max();
    let to = whole.filter_map(|at_ns| at_ns.last()).min();
    let mut at_ns: Vec<u64> = seen.iter().flatten().copied().collect();
    at_ns.sort_unstable();
    let (first, last) = (*at_ns.first()?, *at_ns.last()?);
    let span = match (from, to) {
        (Some(from), Some(to)) if to.saturating_sub(*from) > (last - first) / 4 => (*from, *to),
        _ => (first, last),
    };
    at_ns.retain(|at| span.0 <= *at && *at <= span.1);
    Some((span, at_ns))
}

/// Returns the rate at which the packets of several trains arrive together, by one clock.
fn total_bps(seen: &[Vec<u64>]) -> f64 {
    let Some(((from, to), at_ns)) = common(seen) else {
        return 0.0;
    };
    at_ns.len().saturating_sub(1) as f64 * WIRE_BITS / (to - from).max(1) as f64 * 1e9
}

/// Returns the rate in the windows that other traffic slows least: one window in four is faster.
fn undisturbed_bps(seen: &[Vec<u64>]) -> f64 {
    let Some((_, at_ns)) = common(seen) else {
        return 0.0;
    };
    let window_ns = (WINDOW_S * 1e9) as u64;
    let windows = at_ns.iter().enumerate().filter_map(|(first, from)| {
        let past = at_ns.partition_point(|at| *at <= from + window_ns);
        let gaps = (past - first).checked_sub(1).filter(|gaps| *gaps > 0)?;
        // A window at the end of the trains is incomplete.
        (past < at_ns.len()).then(|| {
            let ns = at_ns[past - 1] - from;
            gaps as f64 * WIRE_BITS / ns.max(1) as f64 * 1e9
        })
    });
    let mut rates: Vec<f64> = windows.collect();
    rates.sort_unstable_by(f64::total_cmp);
    match rates.get(rates.len() * 3 / 4) {
        Some(bps) => *bps,
        None => total_bps(seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tree in which switch 2 joins switches 0, 1 and 3. Hosts h0 and h1 are on switch 0,
    /// h2 and h3 on 1, and h4 to h7 on 3.
    fn tree() -> Inferred {
        Inferred {
            switch_of: vec![0, 0, 1, 1, 3, 3, 3, 3],
            links: vec![(0, 2), (2, 3), (1, 2)],
            switches: 4,
        }
    }

    fn rates() -> Rates {
        Rates {
            hosts: vec![[10e6; 2]; 8],
            both_ways: vec![0.0; 8],
            links: vec![[15e6, 12e6], [0.0; 2], [15e6, 15e6]],
        }
    }

    #[test]
    fn crossing__inner_link__uses_hosts_of_all_switches_and_is_bounded_by_outer_links() {
        let (tree, rates) = (tree(), rates());
        assert_eq!(outermost_first(&tree), [0, 2, 1]);
        let crossing = Crossing::new(&tree, &rates, &[0; 8], 1);
        assert_eq!(crossing.pairs, [(0, 4), (2, 5), (1, 6), (3, 7)]);
        let offered = [1, 2, 4].map(|count| crossing.offered_bps(count, 0));
        assert_eq!(offered, [10e6, 20e6, 30e6]);
        let back = [1, 2, 4].map(|count| crossing.offered_bps(count, 1));
        assert_eq!(back, [10e6, 20e6, 27e6]);
    }

    #[test]
    fn rates__several_trains_together__give_the_link_rate() {
        // At 10 Mb/s, a packet takes 1.17 ms. The two trains alternate, and one begins later.
        let gap = (WIRE_BITS / 10e6 * 1e9) as u64;
        let trains = [0, 7].map(|late| {
            (late..late + 60)
                .map(|at| 2 * at * gap + late % 2 * gap)
                .collect::<Vec<u64>>()
        });
        assert!((total_bps(&trains) / 10e6 - 1.0).abs() < 0.05);
        assert!((undisturbed_bps(&trains) / 10e6 - 1.0).abs() < 0.05);
        // Other traffic takes 20 ms of each 100 ms.
        let late = |at: u64| at + at / 80_000_000 * 20_000_000;
        let slowed = trains.map(|train| train.into_iter().map(late).collect::<Vec<u64>>());
        assert!(total_bps(&slowed) < 0.9 * 10e6);
        assert!((undisturbed_bps(&slowed) / 10e6 - 1.0).abs() < 0.05);
        assert_eq!((total_bps(&[]), undisturbed_bps(&[vec![5]])), (0.0, 0.0));
    }
}
