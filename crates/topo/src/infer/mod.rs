//! The tree of switches, from how far apart its hosts are (Shirai, Saito and Taura, HPDC 2007).
//!
//! Distances in a tree add up along its links, so three hosts say where their paths part: with the two that part from
//! a host's path soonest, at its own switch. Hosts whose switches are no distance apart are on one. The switches are then
//! put together one by one, each where its paths to those that stand already part, which may be a switch without hosts.
//!
//! What no host can tell apart is one: a switch with two links only is none.

mod own;
mod placing;

use own::Own;
use placing::{Apart, Tree, WEIGHT_MAX};

/// A tree of switches as it was inferred.
#[derive(Debug, Clone, PartialEq)]
pub struct Inferred {
    /// The switch of each host.
    pub switch_of: Vec<usize>,
    /// Links between switches.
    pub links: Vec<(usize, usize)>,
    /// How many switches there are, those without hosts last.
    pub switches: usize,
}

/// What each link adds to distances.
#[derive(Debug, Clone, PartialEq)]
pub struct Lengths {
    /// Of each host's link.
    pub hosts: Vec<f64>,
    /// Of each link between switches.
    pub links: Vec<f64>,
}

/// A gap counts from so many times what measurements vary by.
const GAP_NOISES: f64 = 3.0;

/// Hosts are on two switches that are this many tolerances apart.
const THRESHOLD_MAX: f64 = 3.0;

/// A link is never so much shorter than a typical host's.
const LINK_SHARE_MIN: f64 = 0.04;

/// The tree in which hosts are so far apart; of `distances[a][b]` the same unit, and the diagonal is not read.
pub fn infer(distances: &[Vec<f64>]) -> Inferred {
    let hosts = distances.len();
    if hosts < 3 {
        return Inferred {
            switch_of: vec![0; hosts],
            links: Vec::new(),
            switches: 1,
        };
    }
    let Own {
        links: own,
        tolerance,
    } = Own::new(distances);
    let between = |a: usize, b: usize| distances[a][b] - own[a] - own[b];
    let mut gaps: Vec<f64> = pairs(hosts).map(|(a, b)| between(a, b)).collect();
    gaps.sort_by(f64::total_cmp);
    let limit = threshold(&gaps, tolerance);
    let switch_of = grouped(hosts, |a, b| between(a, b) < limit);
    let count = switch_of.iter().max().map_or(0, |most| most + 1);
    let members: Vec<Vec<usize>> = (0..count)
        .map(|switch| {
            (0..hosts)
                .filter(|host| switch_of[*host] == switch)
                .collect()
        })
        .collect();
    let mut apart = Apart {
        length: vec![vec![0.0; count]; count],
        weight: vec![vec![0.0; count]; count],
    };
    for (a, b) in pairs(count) {
        let ends = members[a]
            .iter()
            .flat_map(|a| members[b].iter().map(move |b| (*a, *b)));
        let mut lengths: Vec<f64> = ends.map(|(a, b)| between(a, b)).collect();
        let length = least(&mut lengths);
        let weight = lengths.len().min(WEIGHT_MAX) as f64;
        for (a, b) in [(a, b), (b, a)] {
            apart.length[a][b] = length;
            apart.weight[a][b] = weight;
        }
    }
    // The surest first.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|switch| std::cmp::Reverse(members[*switch].len()));
    let (links, switches) = Tree::new(&apart, &order, 2.0 * tolerance).finish();
    Inferred {
        switch_of,
        links,
        switches,
    }
}

/// What each link adds, for these distances: a host's, as others say; one between switches, what is left over of the
/// distances that pass it, in the mean, as for all links at once.
pub fn fit(tree: &Inferred, distances: &[Vec<f64>]) -> Lengths {
    let Own {
        links: own,
        tolerance,
    } = Own::new(distances);
    let paths = tree.paths();
    let on = |switch: usize| {
        let hosts = 0..tree.switch_of.len();
        hosts.filter(move |host| tree.switch_of[*host] == switch)
    };
    // The links between each two switches, how far these are apart, and how much that counts.
    let mut measured: Vec<(&[usize], f64, f64)> = Vec::new();
    for (a, b) in pairs(tree.switches) {
        let ends = on(a).flat_map(|a| on(b).map(move |b| (a, b)));
        let between = ends.map(|(a, b)| distances[a][b] - own[a] - own[b]);
        let mut between: Vec<f64> = between.collect();
        if !between.is_empty() {
            measured.push((&paths[a][b], least(&mut between), 1.0));
        }
    }
    let mut links = vec![0.0; tree.links.len()];
    settle(&mut links, &measured, tolerance);
    Lengths { hosts: own, links }
}

/// Fits the lengths of links to measured sums: the links of each, the sum, its weight. Sums that are
/// off by more than `tolerance` count less and less, so that a few disturbed ones move nothing.
fn settle(links: &mut [f64], measured: &[(&[usize], f64, f64)], tolerance: f64) {
    for round in 0..ROUNDS {
        for link in 0..links.len() {
            let (mut left, mut count) = (0.0, 0.0);
            for (path, length, weight) in measured {
                if path.contains(&link) {
                    let off = length - path.iter().map(|link| links[*link]).sum::<f64>();
                    let is_trusted = round < TRUSTING_ROUNDS || off.abs() <= tolerance;
                    let weight = weight
                        * if is_trusted {
                            1.0
                        } else {
                            tolerance / off.abs()
                        };
                    left += weight * off;
                    count += weight;
                }
            }
            links[link] = f64::max(links[link] + left / f64::max(count, 1e-9), 0.0);
        }
    }
}

/// Rounds in which all sums count alike, so that the fit does not depend on where it starts.
const TRUSTING_ROUNDS: usize = 10;

/// Links that lie on one path settle together, by halves: after so many rounds to a thousandth.
const ROUNDS: usize = 60;

/// One in so many distances may be too short.
const LEAST_OF: usize = 20;

impl Inferred {
    /// The links between each two switches, in their order.
    pub fn paths(&self) -> Vec<Vec<Vec<usize>>> {
        (0..self.switches)
            .map(|from| self.paths_from(from))
            .collect()
    }

    fn paths_from(&self, from: usize) -> Vec<Vec<usize>> {
        let mut paths: Vec<Option<Vec<usize>>> = vec![None; self.switches];
        paths[from] = Some(Vec::new());
        let mut stack = vec![from];
        while let Some(at) = stack.pop() {
            for (index, (a, b)) in self.links.iter().enumerate() {
                let next = match at {
                    at if at == *a => *b,
                    at if at == *b => *a,
                    _ => continue,
                };
                if paths[next].is_none() {
                    let mut path = paths[at].clone().unwrap_or_default();
                    path.push(index);
                    paths[next] = Some(path);
                    stack.push(next);
                }
            }
        }
        paths.into_iter().map(Option::unwrap_or_default).collect()
    }

    /// The switches on the first end's side of a link.
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

/// Middle of some numbers; 0 of none.
fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    match of.len() {
        0 => 0.0,
        count if count % 2 == 1 => of[count / 2],
        count => (of[count / 2 - 1] + of[count / 2]) / 2.0,
    }
}

/// What is least of some numbers, but for a few: measured distances are too long, and hardly ever too short.
fn least(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / LEAST_OF).copied().unwrap_or(0.0)
}

/// Below which distance switches are one: the middle of the first gap in the sorted distances that
/// is wide for what they vary by.
fn threshold(gaps: &[f64], tolerance: f64) -> f64 {
    for pair in gaps.windows(2) {
        let (here, next) = (pair[0], pair[1]);
        if here > THRESHOLD_MAX * tolerance {
            break;
        }
        if next - here > tolerance / GAP_NOISES && next > GAP_NOISES / 2.0 * tolerance {
            return f64::midpoint(here.max(0.0), next).min(THRESHOLD_MAX * tolerance);
        }
    }
    THRESHOLD_MAX * tolerance
}

/// Groups of what is alike, by number, in the order of their first.
fn grouped(count: usize, alike: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    let mut group: Vec<Option<usize>> = vec![None; count];
    let mut groups = 0;
    for first in 0..count {
        if group[first].is_some() {
            continue;
        }
        group[first] = Some(groups);
        let mut stack = vec![first];
        while let Some(at) = stack.pop() {
            for (other, of) in group.iter_mut().enumerate() {
                if of.is_none() && alike(at.min(other), at.max(other)) {
                    *of = Some(groups);
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
