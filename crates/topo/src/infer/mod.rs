//! Infers the tree of switches from round-trip times between hosts (Shirai, Saito and Taura, HPDC
//! 2007).
//!
//! Distances in a tree add up along its links. Three hosts therefore show where their paths branch.
//! The branching points closest to a host are at its own switch, which gives the length of its
//! access link. Hosts whose switches have distance 0 share a switch. Switches are then added to the
//! tree one at a time, each at the point where its paths to the placed switches branch. Such a
//! point can be a switch without hosts.
//!
//! A switch with only two links cannot be observed, and is left out.

mod access;
mod placing;

use access::AccessLinks;
use placing::{Distances, Tree, WEIGHT_MAX};

/// An inferred tree of switches.
#[derive(Debug, Clone, PartialEq)]
pub struct Inferred {
    /// Switch of each host.
    pub switch_of: Vec<usize>,
    /// Links between switches, as pairs of switches.
    pub links: Vec<(usize, usize)>,
    /// Number of switches. Those without hosts have the highest numbers.
    pub switches: usize,
}

/// The delay that each link adds, in the unit of the distances.
#[derive(Debug, Clone, PartialEq)]
pub struct Lengths {
    /// Delay of each host's access link.
    pub hosts: Vec<f64>,
    /// Delay of each link between switches.
    pub links: Vec<f64>,
}

/// Factor over the measurement noise from which a gap between distances is significant.
const GAP_NOISES: f64 = 3.0;

/// Distance, in tolerances, from which two hosts are on two switches.
const THRESHOLD_MAX: f64 = 3.0;

/// Shortest link that is distinguished from noise, as a share of the typical access link.
const LINK_SHARE_MIN: f64 = 0.04;

/// Infers the tree from `distances[a][b]`, in any one unit. The diagonal is not read.
pub fn infer(distances: &[Vec<f64>]) -> Inferred {
    let hosts = distances.len();
    if hosts < 3 {
        return Inferred {
            switch_of: vec![0; hosts],
            links: Vec::new(),
            switches: 1,
        };
    }
    let AccessLinks {
        links: access,
        tolerance,
    } = AccessLinks::new(distances);
    let distance = |a: usize, b: usize| distances[a][b] - access[a] - access[b];
    let mut gaps: Vec<f64> = pairs(hosts).map(|(a, b)| distance(a, b)).collect();
    gaps.sort_by(f64::total_cmp);
    let limit = threshold(&gaps, tolerance);
    let switch_of = grouped(hosts, |a, b| distance(a, b) < limit);
    let count = switch_of.iter().max().map_or(0, |most| most + 1);
    let members: Vec<Vec<usize>> = (0..count)
        .map(|switch| {
            (0..hosts)
                .filter(|host| switch_of[*host] == switch)
                .collect()
        })
        .collect();
    let mut switch_distances = Distances {
        length: vec![vec![0.0; count]; count],
        weight: vec![vec![0.0; count]; count],
    };
    for (a, b) in pairs(count) {
        let ends = members[a]
            .iter()
            .flat_map(|a| members[b].iter().map(move |b| (*a, *b)));
        let mut lengths: Vec<f64> = ends.map(|(a, b)| distance(a, b)).collect();
        let length = least(&mut lengths);
        let weight = lengths.len().min(WEIGHT_MAX) as f64;
        for (a, b) in [(a, b), (b, a)] {
            switch_distances.length[a][b] = length;
            switch_distances.weight[a][b] = weight;
        }
    }
    // Switches with the most hosts are the most certain, and are placed first.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|switch| std::cmp::Reverse(members[*switch].len()));
    let (links, switches) = Tree::new(&switch_distances, &order, 2.0 * tolerance).finish();
    Inferred {
        switch_of,
        links,
        switches,
    }
}

/// Estimates the delay of each link of a tree. An access link's delay comes from the host triples.
/// The delays of links between switches are fitted to the remaining distances.
pub fn fit(tree: &Inferred, distances: &[Vec<f64>]) -> Lengths {
    let AccessLinks {
        links: access,
        tolerance,
    } = AccessLinks::new(distances);
    let paths = tree.paths();
    let hosts_on = |switch: usize| {
        let hosts = 0..tree.switch_of.len();
        hosts.filter(move |host| tree.switch_of[*host] == switch)
    };
    // For each pair of switches: the links between them, their distance, and its weight.
    let mut measured: Vec<(&[usize], f64, f64)> = Vec::new();
    for (a, b) in pairs(tree.switches) {
        let ends = hosts_on(a).flat_map(|a| hosts_on(b).map(move |b| (a, b)));
        let samples = ends.map(|(a, b)| distances[a][b] - access[a] - access[b]);
        let mut samples: Vec<f64> = samples.collect();
        if !samples.is_empty() {
            measured.push((&paths[a][b], least(&mut samples), 1.0));
        }
    }
    let mut links = vec![0.0; tree.links.len()];
    settle(&mut links, &measured, tolerance);
    Lengths {
        hosts: access,
        links,
    }
}

/// Fits link lengths to measured sums. Each sum has its links, its value and its weight. A sum that
/// is off by more than `tolerance` loses weight with its error, so that a few disturbed sums have
/// no effect.
fn settle(links: &mut [f64], measured: &[(&[usize], f64, f64)], tolerance: f64) {
    for round in 0..ROUNDS {
        for link in 0..links.len() {
            let (mut sum, mut count) = (0.0, 0.0);
            for (path, length, weight) in measured {
                if path.contains(&link) {
                    let error = length - path.iter().map(|link| links[*link]).sum::<f64>();
                    let is_trusted = round < TRUSTING_ROUNDS || error.abs() <= tolerance;
                    let weight = weight
                        * if is_trusted {
                            1.0
                        } else {
                            tolerance / error.abs()
                        };
                    sum += weight * error;
                    count += weight;
                }
            }
            links[link] = f64::max(links[link] + sum / f64::max(count, 1e-9), 0.0);
        }
    }
}

/// Rounds in which all sums have full weight, so that the fit does not depend on its starting
/// point.
const TRUSTING_ROUNDS: usize = 10;

/// Rounds of the fit. Links on a common path converge by halves; this many rounds reach a
/// thousandth.
const ROUNDS: usize = 60;

/// Reciprocal of the share of distances that may be too short.
const LEAST_DIVISOR: usize = 20;

impl Inferred {
    /// Returns the links between each two switches, in path order.
    pub fn paths(&self) -> Vec<Vec<Vec<usize>>> {
        (0..self.switches)
            .map(|from| self.paths_from(from))
            .collect()
    }

    fn paths_from(&self, from: usize) -> Vec<Vec<usize>> {
        let mut paths: Vec<Option<Vec<usize>>> = vec![None; self.switches];
        paths[from] = Some(Vec::new());
        let mut stack = vec![from];
        while let Some(switch) = stack.pop() {
            for (index, (a, b)) in self.links.iter().enumerate() {
                let next = match switch {
                    switch if switch == *a => *b,
                    switch if switch == *b => *a,
                    _ => continue,
                };
                if paths[next].is_none() {
                    let mut path = paths[switch].clone().unwrap_or_default();
                    path.push(index);
                    paths[next] = Some(path);
                    stack.push(next);
                }
            }
        }
        paths.into_iter().map(Option::unwrap_or_default).collect()
    }

    /// Returns the switches on the first end's side of a link.
    pub fn side(&self, link: usize) -> Vec<usize> {
        let (first, _) = self.links[link];
        let paths = self.paths_from(first);
        let switches = 0..self.switches;
        switches
            .filter(|switch| !paths[*switch].contains(&link))
            .collect()
    }
}

fn pairs(hosts: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..hosts).flat_map(move |a| (a + 1..hosts).map(move |b| (a, b)))
}

/// Returns the median; 0 for an empty slice.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// Returns a low quantile (1/[`LEAST_DIVISOR`]). Measured distances are often too long, and rarely
/// too short.
fn least(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get(values.len() / LEAST_DIVISOR)
        .copied()
        .unwrap_or(0.0)
}

/// Returns the distance below which two switches are one: the middle of the first significant gap
/// in the sorted distances.
fn threshold(gaps: &[f64], tolerance: f64) -> f64 {
    for pair in gaps.windows(2) {
        let (gap, next) = (pair[0], pair[1]);
        if gap > THRESHOLD_MAX * tolerance {
            break;
        }
        if next - gap > tolerance / GAP_NOISES && next > GAP_NOISES / 2.0 * tolerance {
            return f64::midpoint(gap.max(0.0), next).min(THRESHOLD_MAX * tolerance);
        }
    }
    THRESHOLD_MAX * tolerance
}

/// Groups equal elements, and numbers the groups in the order of their first elements.
fn grouped(count: usize, alike: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut group: Vec<Option<usize>> = vec![None; count];
    let mut groups = 0;
    for first in 0..count {
        if group[first].is_some() {
            continue;
        }
        group[first] = Some(groups);
        let mut stack = vec![first];
        while let Some(element) = stack.pop() {
            for (other, other_group) in group.iter_mut().enumerate() {
                if other_group.is_none() && alike(element.min(other), element.max(other)) {
                    *other_group = Some(groups);
                    stack.push(other);
                }
            }
        }
        groups += 1;
    }
    group.into_iter().flatten().collect()
}

#[cfg(test)]
mod disturbed;
#[cfg(test)]
mod tests;
