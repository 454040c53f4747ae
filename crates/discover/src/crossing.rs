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
const MEASURE_S: f64 = 0.15;

/// Duration of trains during the search for the number of hosts that fill the link, in seconds.
const SEARCH_S: f64 = 0.04;

/// Measurements of a full link; the median is used. Other traffic lowers the rate. It can also
/// raise it, when it releases trains that it held up (`docs/perf-log.md`, 2026-11-24).
const MEASUREMENTS: usize = 3;

/// Maximum number of hosts on either side that fill a link together.
const PAIRS_MAX: usize = 8;

/// Share of the offered rate below which a link may be full. Chosen by judgement.
const FULL_SHARE: f64 = 0.9;

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
    let host_count = |link: &usize| {
        let side = tree.side(*link);
        let count = tree.switch_of.iter().filter(|switch| side.contains(switch));
        let count = count.count();
        count.min(hosts - count)
    };
    let mut links: Vec<usize> = (0..tree.links.len()).collect();
    links.sort_by_key(host_count);
    links
}

/// The measurement of one link between switches.
pub(super) struct Crossing<'a> {
    tree: &'a Inferred,
    rates: &'a Rates,
    /// Offset of each host's clock, in nanoseconds.
    clock_offsets_ns: &'a [i64],
    link: usize,
    /// Pairs of hosts, one on either side of the link.
    pairs: Vec<(usize, usize)>,
}

impl<'a> Crossing<'a> {
    pub(super) fn new(
        tree: &'a Inferred,
        rates: &'a Rates,
        clock_offsets_ns: &'a [i64],
        link: usize,
    ) -> Self {
        let first_side = tree.side(link);
        let (first, second) = tree.links[link];
        let side = |is_first: bool, end: usize| {
            let hosts = 0..tree.switch_of.len();
            let members: Vec<usize> = hosts
                .filter(|host| first_side.contains(&tree.switch_of[*host]) == is_first)
                .collect();
            spread(tree, &members, end)
        };
        let pairs = side(true, first).into_iter().zip(side(false, second));
        let pairs = pairs.take(PAIRS_MAX).collect();
        Self {
            tree,
            rates,
            clock_offsets_ns,
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
        let count_max = self.pairs.len();
        let mut counts = [1.min(count_max); 2];
        let mut previous_bps = [0.0; 2];
        let mut full = [false; 2];
        loop {
            let delivered_bps = self.trains(agents, number, counts, SEARCH_S, total_bps)?;
            let mut next_counts = counts;
            for direction in 0..2 {
                let offered_bps = self.offered_bps(counts[direction], direction);
                let is_short = delivered_bps[direction] < FULL_SHARE * offered_bps;
                full[direction] |=
                    is_short && delivered_bps[direction] < GROWTH * previous_bps[direction];
                if !full[direction] {
                    next_counts[direction] = (2 * counts[direction]).min(count_max);
                }
                previous_bps[direction] = delivered_bps[direction];
            }
            if next_counts == counts {
                return self.measure_settled(agents, number, (counts, full));
            }
            counts = next_counts;
        }
    }

    /// Returns the rate that these hosts send across a `full` link, and for other links the offered
    /// rate. Both are in bits per second and by direction.
    fn measure_settled(
        &self,
        agents: &mut Agents,
        number: &mut u32,
        (counts, full): ([usize; 2], [bool; 2]),
    ) -> anyhow::Result<[f64; 2]> {
        let mut delivered_bps: [Vec<f64>; 2] = Default::default();
        for _ in 0..MEASUREMENTS {
            let both_bps = self.trains(agents, number, counts, MEASURE_S, undisturbed_bps)?;
            for (delivered_bps, bps) in delivered_bps.iter_mut().zip(both_bps) {
                delivered_bps.push(bps);
            }
        }
        Ok([0, 1].map(|direction| {
            delivered_bps[direction].sort_unstable_by(f64::total_cmp);
            let median_bps = delivered_bps[direction][MEASUREMENTS / 2];
            let offered_bps = self.offered_bps(counts[direction], direction);
            match full[direction] || median_bps < FULL_SHARE * offered_bps {
                true => median_bps.min(offered_bps),
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
        let forward = self.pairs[..counts[0]].iter().copied();
        let reverse = self.pairs[..counts[1]].iter().map(|(a, b)| (*b, *a));
        let trains = forward.chain(reverse).map(|(from, to)| Train {
            from,
            to,
            packets: packets(self.pair_bps(from, to), seconds),
        });
        let trains: Vec<Train> = trains.collect();
        let quiet_s = trains
            .iter()
            .map(|train| quiet_s(self.pair_bps(train.from, train.to)))
            .fold(QUIET_MIN_S, f64::max);
        let mut arrivals_ns = run(agents, number, &trains, quiet_s)?;
        for (train, times_ns) in trains.iter().zip(&mut arrivals_ns) {
            let offset_ns = self.clock_offsets_ns[train.to];
            times_ns
                .iter_mut()
                .for_each(|time_ns| *time_ns = time_ns.saturating_add_signed(-offset_ns));
        }
        let (forward, reverse) = arrivals_ns.split_at(counts[0]);
        Ok([rate(forward), rate(reverse)])
    }

    fn pair_bps(&self, from: usize, to: usize) -> f64 {
        self.rates.hosts[from][0]
            .min(self.rates.hosts[to][1])
            .max(1e5)
    }

    /// Returns the rate at which the first `count` pairs can send to and receive from the link, in
    /// bits per second.
    fn offered_bps(&self, count: usize, direction: usize) -> f64 {
        let (first, second) = self.tree.links[self.link];
        let pairs = &self.pairs[..count];
        let (senders, receivers): (Vec<usize>, Vec<usize>) = match direction {
            0 => pairs.iter().copied().unzip(),
            _ => pairs.iter().map(|(a, b)| (*b, *a)).unzip(),
        };
        let (from, to) = if direction == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let alone = senders.iter().zip(&receivers);
        let alone_bps: f64 = alone.map(|(from, to)| self.pair_bps(*from, *to)).sum();
        let inflow_bps = self.through_bps(from, self.link, &senders, true);
        let outflow_bps = self.through_bps(to, self.link, &receivers, false);
        alone_bps.min(inflow_bps).min(outflow_bps).max(1e5)
    }

    /// Returns the rate at which `hosts` behind `switch`, seen from `link`, can send or receive
    /// together, in bits per second. Links that are not measured yet do not limit it.
    fn through_bps(&self, switch: usize, link: usize, hosts: &[usize], is_sending: bool) -> f64 {
        let local = hosts
            .iter()
            .filter(|host| self.tree.switch_of[**host] == switch);
        let own_bps = local.map(|host| self.rates.hosts[*host][usize::from(!is_sending)].max(1e5));
        let mut sum_bps: f64 = own_bps.sum();
        for (branch, (a, b)) in self.tree.links.iter().enumerate() {
            let next_switch = match switch {
                switch if switch == *a => *b,
                switch if switch == *b => *a,
                _ => continue,
            };
            if branch != link {
                let direction = usize::from((next_switch == *a) != is_sending);
                let known_bps = self.rates.links[branch][direction];
                let limit_bps = if known_bps > 0.0 {
                    known_bps
                } else {
                    f64::INFINITY
                };
                sum_bps += self
                    .through_bps(next_switch, branch, hosts, is_sending)
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
fn common(trains: &[Vec<u64>]) -> Option<((u64, u64), Vec<u64>)> {
    let long_trains = trains
        .iter()
        .filter(|times_ns| times_ns.len() >= FLOW_PACKETS_MIN);
    let start = long_trains
        .clone()
        .filter_map(|times_ns| times_ns.first())
        .max();
    let end = long_trains.filter_map(|times_ns| times_ns.last()).min();
    let mut times_ns: Vec<u64> = trains.iter().flatten().copied().collect();
    times_ns.sort_unstable();
    let (first, last) = (*times_ns.first()?, *times_ns.last()?);
    let span = match (start, end) {
        (Some(start), Some(end)) if end.saturating_sub(*start) > (last - first) / 4 => {
            (*start, *end)
        }
        _ => (first, last),
    };
    times_ns.retain(|time_ns| span.0 <= *time_ns && *time_ns <= span.1);
    Some((span, times_ns))
}

/// Returns the rate at which the packets of several trains arrive together, by one clock.
fn total_bps(trains: &[Vec<u64>]) -> f64 {
    let Some(((start, end), times_ns)) = common(trains) else {
        return 0.0;
    };
    times_ns.len().saturating_sub(1) as f64 * WIRE_BITS / (end - start).max(1) as f64 * 1e9
}

/// Returns the rate in the windows that other traffic slows least: one window in four is faster.
fn undisturbed_bps(trains: &[Vec<u64>]) -> f64 {
    let Some((_, times_ns)) = common(trains) else {
        return 0.0;
    };
    let window_ns = (WINDOW_S * 1e9) as u64;
    let windows = times_ns.iter().enumerate().filter_map(|(first, start_ns)| {
        let end = times_ns.partition_point(|time_ns| *time_ns <= start_ns + window_ns);
        let gaps = (end - first).checked_sub(1).filter(|gaps| *gaps > 0)?;
        // A window at the end of the trains is incomplete.
        (end < times_ns.len()).then(|| {
            let ns = times_ns[end - 1] - start_ns;
            gaps as f64 * WIRE_BITS / ns.max(1) as f64 * 1e9
        })
    });
    let mut rates: Vec<f64> = windows.collect();
    rates.sort_unstable_by(f64::total_cmp);
    match rates.get(rates.len() * 3 / 4) {
        Some(bps) => *bps,
        None => total_bps(trains),
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
        let reverse = [1, 2, 4].map(|count| crossing.offered_bps(count, 1));
        assert_eq!(reverse, [10e6, 20e6, 27e6]);
    }

    #[test]
    fn rates__several_trains_together__give_the_link_rate() {
        // At 10 Mb/s, a packet takes 1.17 ms. The two trains alternate, and one begins later.
        let gap = (WIRE_BITS / 10e6 * 1e9) as u64;
        let trains = [0, 7].map(|lag| {
            (lag..lag + 60)
                .map(|index| 2 * index * gap + lag % 2 * gap)
                .collect::<Vec<u64>>()
        });
        assert!((total_bps(&trains) / 10e6 - 1.0).abs() < 0.05);
        assert!((undisturbed_bps(&trains) / 10e6 - 1.0).abs() < 0.05);
        // Other traffic takes 20 ms of each 100 ms.
        let delay = |time_ns: u64| time_ns + time_ns / 80_000_000 * 20_000_000;
        let slowed = trains.map(|train| train.into_iter().map(delay).collect::<Vec<u64>>());
        assert!(total_bps(&slowed) < 0.9 * 10e6);
        assert!((undisturbed_bps(&slowed) / 10e6 - 1.0).abs() < 0.05);
        assert_eq!((total_bps(&[]), undisturbed_bps(&[vec![5]])), (0.0, 0.0));
    }
}
