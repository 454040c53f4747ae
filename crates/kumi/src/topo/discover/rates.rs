//! What links carry, from trains of packets.
//!
//! A host's link is as fast as its fastest train to or from another on the same switch. A link between switches is as fast as
//! trains of many hosts that pass it at once are together; if the hosts cannot fill it, it is at least that fast.

use super::end::{Said, Told};
use super::ends::Ends;
use super::packet::{FRAMING_BYTES, LARGE_BYTES};
use anyhow::bail;
use kumi_topo::infer::Inferred;

/// How long a train is on its link: long enough to see past a moment's other traffic.
const TRAIN_S: f64 = 0.03;

/// The same between switches, where trains of several hosts have to meet.
const TOGETHER_S: f64 = 0.15;

/// The same while it is still to be found how many hosts fill a link between switches.
const SEARCH_S: f64 = 0.04;

/// Shortest silence after which the queues on the way count as empty, in seconds. A train that finds
/// packets of the one before in a queue is compressed or dropped: a link of 15 Mb/s read 18, or 7.
const QUIET_MIN_S: f64 = 0.02;

/// The same in packets of the slowest train.
const QUIET_PACKETS: f64 = 5.0;

/// Over what time a rate is told: shorter, and the clock and what a NIC gathers count.
const WINDOW_NS: u64 = 1_500_000;

const PACKETS_MIN: u32 = 24;
const PACKETS_MAX: u32 = 4000;

/// Hosts on either side that fill a link together.
const TOGETHER_MAX: usize = 8;

/// What is not filled to that share may be faster.
const FILLED: f64 = 0.9;

const WIRE_BITS: f64 = ((LARGE_BYTES + FRAMING_BYTES) * 8) as f64;

/// What was measured, in bits a second; 0 where nothing was.
pub struct Rates {
    /// Of each host's link, from it and to it.
    pub hosts: Vec<[f64; 2]>,
    /// What each host sends and receives at once, added up.
    pub both_ways: Vec<f64>,
    /// Of each link between switches, from its first end and back.
    pub links: Vec<[f64; 2]>,
}

/// A train from one host to another.
#[derive(Debug, Clone, Copy)]
struct Train {
    from: usize,
    to: usize,
    packets: u32,
}

/// Measures with what is guessed of the hosts' links, in bits a second, and by how much their clocks are ahead.
pub fn measure(
    ends: &mut Ends,
    tree: &Inferred,
    guessed_bps: &[f64],
    ahead_ns: &[i64],
) -> anyhow::Result<Rates> {
    let hosts = tree.switch_of.len();
    let mut rates = Rates {
        hosts: vec![[0.0; 2]; hosts],
        both_ways: vec![0.0; hosts],
        links: vec![[0.0; 2]; tree.links.len()],
    };
    let mut number = 0;
    for round in rounds(tree, guessed_bps) {
        let trains = round.pairs.iter().map(|(from, to)| Train {
            from: *from,
            to: *to,
            packets: packets(guessed_bps[*from].min(guessed_bps[*to]), TRAIN_S),
        });
        let trains: Vec<Train> = trains.collect();
        let slowest = trains
            .iter()
            .map(|train| guessed_bps[train.from].min(guessed_bps[train.to]));
        let quiet_s = quiet_s(slowest.fold(f64::INFINITY, f64::min));
        let seen = run(ends, &mut number, &trains, quiet_s)?;
        let mut sums = vec![0.0; hosts];
        for (train, at_ns) in trains.iter().zip(&seen) {
            let bps = burst_bps(at_ns);
            let sent = &mut rates.hosts[train.from][0];
            *sent = sent.max(bps);
            let received = &mut rates.hosts[train.to][1];
            *received = received.max(bps);
            sums[train.from] += bps;
            sums[train.to] += bps;
        }
        if round.is_both_ways {
            for (both, sum) in rates.both_ways.iter_mut().zip(sums) {
                *both = both.max(sum);
            }
        }
    }
    for link in 0..tree.links.len() {
        rates.links[link] = between(ends, &mut number, tree, (&rates.hosts, ahead_ns), link)?;
    }
    Ok(rates)
}

/// Who sends to whom at once.
struct Round {
    pairs: Vec<(usize, usize)>,
    is_both_ways: bool,
}

/// Who sends to whom, of the hosts of one switch.
type Pairing<'a> = dyn Fn(&[usize]) -> Vec<(usize, usize)> + 'a;

/// On each switch, hosts in the order of their guessed rates, so that a fast one has a fast one beside it: every other host to
/// the next, then all round a ring, one way and the other. Hosts alone on their switch send to another's, one after the
/// other.
fn rounds(tree: &Inferred, guessed_bps: &[f64]) -> Vec<Round> {
    let on: Vec<Vec<usize>> = (0..tree.switches)
        .map(|switch| {
            let hosts = 0..tree.switch_of.len();
            let mut on: Vec<usize> = hosts
                .filter(|host| tree.switch_of[*host] == switch)
                .collect();
            on.sort_by(|a, b| guessed_bps[*b].total_cmp(&guessed_bps[*a]));
            on
        })
        .collect();
    let each = |pairs: &Pairing, is_both_ways| Round {
        pairs: on
            .iter()
            .filter(|hosts| hosts.len() > 1)
            .flat_map(|hosts| pairs(hosts))
            .collect(),
        is_both_ways,
    };
    let next = |hosts: &[usize], at: usize, step: usize| hosts[(at + step) % hosts.len()];
    let ring = |hosts: &[usize], step: usize| {
        (0..hosts.len())
            .map(|at| (hosts[at], next(hosts, at, step)))
            .collect::<Vec<_>>()
    };
    let halves = |hosts: &[usize], first: usize| {
        let senders = (first..hosts.len()).step_by(2);
        senders
            .map(|at| (hosts[at], next(hosts, at, 1)))
            .collect::<Vec<_>>()
    };
    let mut rounds = vec![
        each(
            &|hosts| halves(&hosts[..hosts.len() - hosts.len() % 2], 0),
            false,
        ),
        each(
            &|hosts| halves(&hosts[..hosts.len() - hosts.len() % 2], 1),
            false,
        ),
        each(&|hosts| ring(hosts, 1), true),
        each(&|hosts| ring(hosts, hosts.len() - 1), true),
    ];
    for alone in on.iter().filter(|hosts| hosts.len() == 1) {
        let host = alone[0];
        if let Some(other) = nearest_other(tree, host) {
            rounds.push(Round {
                pairs: vec![(host, other)],
                is_both_ways: false,
            });
            rounds.push(Round {
                pairs: vec![(other, host)],
                is_both_ways: false,
            });
        }
    }
    rounds.retain(|round| !round.pairs.is_empty());
    rounds
}

fn nearest_other(tree: &Inferred, host: usize) -> Option<usize> {
    let paths = tree.paths();
    let hops = |other: &usize| paths[tree.switch_of[host]][tree.switch_of[*other]].len();
    (0..tree.switch_of.len())
        .filter(|other| *other != host)
        .min_by_key(hops)
}

/// What a link between switches carries, both ways at once. The number of hosts that send is doubled
/// until they fill the link, each way by itself: they offer at most about twice what it carries.
fn between(
    ends: &mut Ends,
    number: &mut u32,
    tree: &Inferred,
    (hosts, ahead_ns): (&[[f64; 2]], &[i64]),
    link: usize,
) -> anyhow::Result<[f64; 2]> {
    let first_side = tree.side(link);
    let (first, second) = tree.links[link];
    let paths = tree.paths();
    // Those nearest to the link, for what is further off may be held up elsewhere.
    let nearest = |is_first: bool, switch: usize| {
        let all = 0..tree.switch_of.len();
        let mut side: Vec<usize> = all
            .filter(|host| first_side.contains(&tree.switch_of[*host]) == is_first)
            .collect();
        side.sort_by_key(|host| paths[switch][tree.switch_of[*host]].len());
        side
    };
    let (firsts, seconds) = (nearest(true, first), nearest(false, second));
    let pairs: Vec<(usize, usize)> = firsts.into_iter().zip(seconds).take(TOGETHER_MAX).collect();
    let mut counts = [1; 2];
    loop {
        let crossing = Crossing {
            pairs: &pairs,
            counts,
            hosts,
            ahead_ns,
        };
        let found = crossing.measure(ends, number, SEARCH_S)?;
        let more = [0, 1].map(|way| match found[way].is_filled {
            true => counts[way],
            false => (2 * counts[way]).min(pairs.len()),
        });
        if more == counts {
            let found = crossing.measure(ends, number, TOGETHER_S)?;
            return Ok(found.map(|way| way.bps));
        }
        counts = more;
    }
}

/// Trains over a link between switches, both ways at once.
struct Crossing<'a> {
    /// A host on either side, nearest first.
    pairs: &'a [(usize, usize)],
    /// How many of the pairs send there, and how many back.
    counts: [usize; 2],
    /// What each host's link carries, from it and to it, in bits a second.
    hosts: &'a [[f64; 2]],
    /// By how much each host's clock is ahead.
    ahead_ns: &'a [i64],
}

/// What trains found of one way of a link.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    /// The link's rate, in bits a second, as far as the trains could fill it.
    bps: f64,
    /// Whether the link carried less than was sent.
    is_filled: bool,
}

impl Crossing<'_> {
    fn bps_of(&self, from: usize, to: usize) -> f64 {
        self.hosts[from][0].min(self.hosts[to][1]).max(1e5)
    }

    fn measure(
        &self,
        ends: &mut Ends,
        number: &mut u32,
        seconds: f64,
    ) -> anyhow::Result<[Found; 2]> {
        let there = self.pairs[..self.counts[0]].iter().copied();
        let back = self.pairs[..self.counts[1]].iter().map(|(a, b)| (*b, *a));
        let trains = there.chain(back).map(|(from, to)| Train {
            from,
            to,
            packets: packets(self.bps_of(from, to), seconds),
        });
        let trains: Vec<Train> = trains.collect();
        let quiet_s = trains
            .iter()
            .map(|train| quiet_s(self.bps_of(train.from, train.to)))
            .fold(QUIET_MIN_S, f64::max);
        let mut seen = run(ends, number, &trains, quiet_s)?;
        for (train, at_ns) in trains.iter().zip(&mut seen) {
            let ahead_ns = self.ahead_ns[train.to];
            at_ns
                .iter_mut()
                .for_each(|at| *at = at.saturating_add_signed(-ahead_ns));
        }
        let (there, back) = seen.split_at(self.counts[0]);
        let offered = trains.iter().map(|train| self.bps_of(train.from, train.to));
        let offered: Vec<f64> = offered.collect();
        let (offered_there, offered_back) = offered.split_at(self.counts[0]);
        let found = |seen: &[Vec<u64>], offered: &[f64]| {
            let (passed, offered) = (together_bps(seen), offered.iter().sum::<f64>());
            let is_filled = passed < FILLED * offered;
            let bps = if is_filled { passed } else { offered };
            Found { bps, is_filled }
        };
        Ok([found(there, offered_there), found(back, offered_back)])
    }
}

/// How long trains at `bps` must be silent before nothing of them is on its way, in seconds.
fn quiet_s(bps: f64) -> f64 {
    (QUIET_PACKETS * WIRE_BITS / bps.max(1e5)).max(QUIET_MIN_S)
}

/// Sends trains at once, and returns when their packets came, once the queues on the way are empty.
fn run(
    ends: &mut Ends,
    number: &mut u32,
    trains: &[Train],
    quiet_s: f64,
) -> anyhow::Result<Vec<Vec<u64>>> {
    let first = *number;
    *number += trains.len() as u32;
    let numbers = first..*number;
    for (train, number) in trains.iter().zip(numbers.clone()) {
        let told = Told::Train {
            peer: train.to as u32,
            number,
            packets: train.packets,
        };
        ends.tell(train.from, &told)?;
    }
    let senders: Vec<usize> = trains.iter().map(|train| train.from).collect();
    ends.hear(&senders)?;
    let quiet_us = (quiet_s * 1e6) as u64;
    for (train, number) in trains.iter().zip(numbers) {
        ends.tell(train.to, &Told::Arrivals { number, quiet_us })?;
    }
    let receivers: Vec<usize> = trains.iter().map(|train| train.to).collect();
    let mut seen = Vec::new();
    for said in ends.hear(&receivers)? {
        match said {
            Said::Came { at_ns, .. } => seen.push(at_ns),
            other => bail!("an end said {other:?} of a train"),
        }
    }
    Ok(seen)
}

fn packets(bps: f64, seconds: f64) -> u32 {
    ((bps * seconds / WIRE_BITS) as u32).clamp(PACKETS_MIN, PACKETS_MAX)
}

/// How fast packets come when nothing else is in their way: three of four windows are no faster.
fn burst_bps(at_ns: &[u64]) -> f64 {
    let (Some(first), Some(last)) = (at_ns.first(), at_ns.last()) else {
        return 0.0;
    };
    let gaps = at_ns.len() as u64 - 1;
    if gaps == 0 || last == first {
        return 0.0;
    }
    let gap_ns = ((last - first) / gaps).max(1);
    let window = (WINDOW_NS.div_ceil(gap_ns) as usize).clamp(1, gaps as usize);
    let spans = at_ns.windows(window + 1).map(|part| part[window] - part[0]);
    let mut spans: Vec<u64> = spans.filter(|span| *span > 0).collect();
    spans.sort_unstable();
    match spans.get(spans.len() / 4) {
        Some(span) => window as f64 * WIRE_BITS / *span as f64 * 1e9,
        None => 0.0,
    }
}

/// How fast packets of several trains come together, by one clock: while those of all come that are not all but shut out,
/// or in all the time, if they hardly ever do.
fn together_bps(seen: &[Vec<u64>]) -> f64 {
    let whole = seen.iter().filter(|at_ns| at_ns.len() >= FLOW_PACKETS_MIN);
    let from = whole.clone().filter_map(|at_ns| at_ns.first()).max();
    let to = whole.filter_map(|at_ns| at_ns.last()).min();
    let mut at_ns: Vec<u64> = seen.iter().flatten().copied().collect();
    at_ns.sort_unstable();
    let (Some(first), Some(last)) = (at_ns.first(), at_ns.last()) else {
        return 0.0;
    };
    let all = match (from, to) {
        (Some(from), Some(to)) if to.saturating_sub(*from) > (last - first) / 4 => (*from, *to),
        _ => (*first, *last),
    };
    let count = at_ns
        .iter()
        .filter(|at| **at > all.0 && **at <= all.1)
        .count();
    count as f64 * WIRE_BITS / (all.1 - all.0).max(1) as f64 * 1e9
}

/// Trains of which fewer packets come say nothing of when they were on their way.
const FLOW_PACKETS_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst__with_others_packets_between__is_as_fast_as_the_link() {
        // 10 Mb/s: 1.17 ms a packet; every sixth is behind another's.
        let gap = (WIRE_BITS / 10e6 * 1e9) as u64;
        let at_ns: Vec<u64> = (0..60).map(|at| at * gap + at / 6 * gap).collect();
        assert!((burst_bps(&at_ns) / 10e6 - 1.0).abs() < 0.02);
        assert!(together_bps(&[at_ns]) < 0.9 * 10e6);
        // Two by turns, one later than the other.
        let [one, other] = [0, 7].map(|late| {
            (late..late + 40)
                .map(|at| 2 * at * gap)
                .collect::<Vec<u64>>()
        });
        assert!((together_bps(&[one, other]) / 10e6 - 1.0).abs() < 0.05);
        assert_eq!(
            (burst_bps(&[]), burst_bps(&[5]), together_bps(&[])),
            (0.0, 0.0, 0.0)
        );
    }

    #[test]
    fn rounds__of_any_tree__let_no_host_send_or_receive_twice() {
        let tree = Inferred {
            switch_of: vec![0, 0, 0, 1, 2, 2],
            links: vec![(0, 1), (1, 2)],
            switches: 3,
        };
        let rounds = rounds(&tree, &[1.0; 6]);
        assert_eq!(rounds.len(), 6);
        for round in &rounds {
            for ends in [
                |pair: &(usize, usize)| pair.0,
                |pair: &(usize, usize)| pair.1,
            ] {
                let mut once: Vec<usize> = round.pairs.iter().map(ends).collect();
                once.sort_unstable();
                once.dedup();
                assert_eq!(once.len(), round.pairs.len());
            }
        }
    }
}
