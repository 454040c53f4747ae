//! Rates of links, from trains of packets.
//!
//! The rate of a host's link is that of its fastest train to or from another host on the same
//! switch. Links between switches are measured after that ([`super::crossing`]).

use super::agents::Agents;
use super::crossing::{self, Crossing};
use super::train::{Rates, Train, WIRE_BITS, packets, quiet_s, run};
use kumi_topo::infer::Inferred;

/// Duration of a train, in seconds. It is longer than a moment of other traffic.
const TRAIN_S: f64 = 0.03;

/// Least window for a rate, in nanoseconds. In a shorter one, the clock and the NIC's receive
/// coalescing distort the rate.
const WINDOW_NS: u64 = 1_500_000;

/// Measures all rates. `guessed_bps` are estimates for the hosts' links, in bits per second, and
/// `clock_offsets_ns` the offsets of their clocks.
pub fn measure(
    agents: &mut Agents,
    tree: &Inferred,
    guessed_bps: &[f64],
    clock_offsets_ns: &[i64],
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
        let arrivals_ns = run(agents, &mut number, &trains, quiet_s)?;
        let mut sums = vec![0.0; hosts];
        for (train, times_ns) in trains.iter().zip(&arrivals_ns) {
            let bps = burst_bps(times_ns);
            let send_bps = &mut rates.hosts[train.from][0];
            *send_bps = send_bps.max(bps);
            let receive_bps = &mut rates.hosts[train.to][1];
            *receive_bps = receive_bps.max(bps);
            sums[train.from] += bps;
            sums[train.to] += bps;
        }
        if round.is_both_ways {
            for (both_ways_bps, sum_bps) in rates.both_ways.iter_mut().zip(sums) {
                *both_ways_bps = both_ways_bps.max(sum_bps);
            }
        }
    }
    for link in crossing::outermost_first(tree) {
        let crossing = Crossing::new(tree, &rates, clock_offsets_ns, link);
        rates.links[link] = crossing.measure(agents, &mut number)?;
    }
    Ok(rates)
}

/// Trains that are sent at once, as pairs of sender and receiver.
struct Round {
    pairs: Vec<(usize, usize)>,
    is_both_ways: bool,
}

/// Function that returns pairs of sender and receiver for the hosts of one switch.
type Pairing<'a> = dyn Fn(&[usize]) -> Vec<(usize, usize)> + 'a;

/// Returns the rounds of trains. On each switch, hosts are in the order of their estimated rates,
/// so that a fast host has a fast neighbour. First every other host sends to the next, in two
/// rounds. Then all send round a ring, one way and then the other. A host that is alone on its
/// switch exchanges trains with a host of another switch, in rounds of its own.
fn rounds(tree: &Inferred, guessed_bps: &[f64]) -> Vec<Round> {
    let hosts_by_switch: Vec<Vec<usize>> = (0..tree.switches)
        .map(|switch| {
            let hosts = 0..tree.switch_of.len();
            let mut members: Vec<usize> = hosts
                .filter(|host| tree.switch_of[*host] == switch)
                .collect();
            members.sort_by(|a, b| guessed_bps[*b].total_cmp(&guessed_bps[*a]));
            members
        })
        .collect();
    let make_round = |pairs: &Pairing, is_both_ways| Round {
        pairs: hosts_by_switch
            .iter()
            .filter(|hosts| hosts.len() > 1)
            .flat_map(|hosts| pairs(hosts))
            .collect(),
        is_both_ways,
    };
    let next = |hosts: &[usize], index: usize, step: usize| hosts[(index + step) % hosts.len()];
    let ring = |hosts: &[usize], step: usize| {
        (0..hosts.len())
            .map(|index| (hosts[index], next(hosts, index, step)))
            .collect::<Vec<_>>()
    };
    let halves = |hosts: &[usize], first: usize| {
        let senders = (first..hosts.len()).step_by(2);
        senders
            .map(|index| (hosts[index], next(hosts, index, 1)))
            .collect::<Vec<_>>()
    };
    let mut rounds = vec![
        make_round(
            &|hosts| halves(&hosts[..hosts.len() - hosts.len() % 2], 0),
            false,
        ),
        make_round(
            &|hosts| halves(&hosts[..hosts.len() - hosts.len() % 2], 1),
            false,
        ),
        make_round(&|hosts| ring(hosts, 1), true),
        make_round(&|hosts| ring(hosts, hosts.len() - 1), true),
    ];
    for members in hosts_by_switch.iter().filter(|hosts| hosts.len() == 1) {
        let host = members[0];
        if let Some(peer) = nearest_peer(tree, host) {
            rounds.push(Round {
                pairs: vec![(host, peer)],
                is_both_ways: false,
            });
            rounds.push(Round {
                pairs: vec![(peer, host)],
                is_both_ways: false,
            });
        }
    }
    rounds.retain(|round| !round.pairs.is_empty());
    rounds
}

fn nearest_peer(tree: &Inferred, host: usize) -> Option<usize> {
    let paths = tree.paths();
    let hops = |peer: &usize| paths[tree.switch_of[host]][tree.switch_of[*peer]].len();
    (0..tree.switch_of.len())
        .filter(|peer| *peer != host)
        .min_by_key(hops)
}

/// Returns the rate of a train without other traffic in its way, in bits per second. Three of four
/// windows are no faster.
fn burst_bps(times_ns: &[u64]) -> f64 {
    let (Some(first), Some(last)) = (times_ns.first(), times_ns.last()) else {
        return 0.0;
    };
    let gaps = times_ns.len() as u64 - 1;
    if gaps == 0 || last == first {
        return 0.0;
    }
    let gap_ns = ((last - first) / gaps).max(1);
    let window = (WINDOW_NS.div_ceil(gap_ns) as usize).clamp(1, gaps as usize);
    let spans = times_ns
        .windows(window + 1)
        .map(|part| part[window] - part[0]);
    let mut spans: Vec<u64> = spans.filter(|span| *span > 0).collect();
    spans.sort_unstable();
    match spans.get(spans.len() / 4) {
        Some(span) => window as f64 * WIRE_BITS / *span as f64 * 1e9,
        None => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst__interleaved_with_other_traffic__still_shows_the_link_rate() {
        // At 10 Mb/s, a packet takes 1.17 ms. After every sixth packet, one of other traffic
        // follows.
        let gap = (WIRE_BITS / 10e6 * 1e9) as u64;
        let times_ns: Vec<u64> = (0..60).map(|index| index * gap + index / 6 * gap).collect();
        assert!((burst_bps(&times_ns) / 10e6 - 1.0).abs() < 0.02);
        assert_eq!((burst_bps(&[]), burst_bps(&[5])), (0.0, 0.0));
    }

    #[test]
    fn rounds__tree_of_three_switches__no_host_sends_or_receives_twice_in_one() {
        let tree = Inferred {
            switch_of: vec![0, 0, 0, 1, 2, 2],
            links: vec![(0, 1), (1, 2)],
            switches: 3,
        };
        let rounds = rounds(&tree, &[1.0; 6]);
        assert_eq!(rounds.len(), 6);
        for round in &rounds {
            for host_of in [
                |pair: &(usize, usize)| pair.0,
                |pair: &(usize, usize)| pair.1,
            ] {
                let mut hosts: Vec<usize> = round.pairs.iter().map(host_of).collect();
                hosts.sort_unstable();
                hosts.dedup();
                assert_eq!(hosts.len(), round.pairs.len());
            }
        }
    }
}
