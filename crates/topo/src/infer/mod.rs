//! The tree of switches, from how far apart its hosts are (Shirai, Saito and Taura, HPDC 2007).
//!
//! Distances in a tree add up along its links, so three hosts say where their paths part: with the two that part from
//! a host's path soonest, at its own switch. Hosts whose switches are no distance apart are on one. The switches are then
//! put together one by one, each where its paths to those that stand already part, which may be a switch without hosts.
//!
//! What no host can tell apart is one: a switch with two links only is none.

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
    let own = own_links(distances);
    let between = |a: usize, b: usize| distances[a][b] - own[a] - own[b];
    let mut gaps: Vec<f64> = pairs(hosts).map(|(a, b)| between(a, b)).collect();
    gaps.sort_by(f64::total_cmp);
    let typical = median(&mut own.clone());
    let (limit, noise) = threshold(&gaps, typical);
    let switch_of = grouped(hosts, |a, b| between(a, b) < limit);
    let count = switch_of.iter().max().map_or(0, |most| most + 1);
    let members: Vec<Vec<usize>> = (0..count)
        .map(|switch| {
            (0..hosts)
                .filter(|host| switch_of[*host] == switch)
                .collect()
        })
        .collect();
    let apart = |a: usize, b: usize| {
        let ends = members[a]
            .iter()
            .flat_map(|a| members[b].iter().map(move |b| (*a, *b)));
        least(&mut ends.map(|(a, b)| between(a, b)).collect::<Vec<_>>())
    };
    let mut joined = Joined::new(count, (2.0 * noise).min(limit / 2.0));
    let table: Vec<Vec<f64>> = (0..count)
        .map(|a| {
            (0..count)
                .map(|b| if a == b { 0.0 } else { apart(a, b) })
                .collect()
        })
        .collect();
    for switch in 1..count {
        joined.add(switch, &table);
    }
    Inferred {
        switch_of,
        links: joined.links.iter().map(|link| (link.0, link.1)).collect(),
        switches: joined.switches,
    }
}

/// What each link adds, for these distances: a host's, as others say; one between switches, what is left over of the
/// distances that pass it, in the mean, as for all links at once.
pub fn fit(tree: &Inferred, distances: &[Vec<f64>]) -> Lengths {
    let own = own_links(distances);
    let paths = tree.paths();
    let on = |switch: usize| {
        let hosts = 0..tree.switch_of.len();
        hosts.filter(move |host| tree.switch_of[*host] == switch)
    };
    // Of each two switches, how far they are apart.
    let mut apart: Vec<(&[usize], f64)> = Vec::new();
    for (a, b) in pairs(tree.switches) {
        let ends = on(a).flat_map(|a| on(b).map(move |b| (a, b)));
        let between = ends.map(|(a, b)| distances[a][b] - own[a] - own[b]);
        let mut between: Vec<f64> = between.collect();
        if !between.is_empty() {
            apart.push((&paths[a][b], least(&mut between)));
        }
    }
    let mut links = vec![0.0; tree.links.len()];
    for _ in 0..ROUNDS {
        for link in 0..links.len() {
            let over = apart.iter().filter(|(path, _)| path.contains(&link));
            let (mut left, mut count) = (0.0, 0.0);
            for (path, length) in over {
                left += length - path.iter().map(|link| links[*link]).sum::<f64>();
                count += 1.0;
            }
            links[link] = f64::max(links[link] + left / f64::max(count, 1.0), 0.0);
        }
    }
    Lengths { hosts: own, links }
}

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

/// How far each host is from its switch. By how much it is further from others than a second host is, half of them at least
/// say alike, if the second is on the same switch or nobody is behind it: then it is what the links of the two differ
/// by, and their distance the sum; of any second host it is no less. A middle is not moved by some that are too long.
fn own_links(distances: &[Vec<f64>]) -> Vec<f64> {
    let hosts = distances.len();
    let of = |host: usize| {
        let seconds = (0..hosts).filter(|second| *second != host);
        let said = seconds.map(|second| {
            let others = (0..hosts).filter(|other| *other != host && *other != second);
            let further = others.map(|other| distances[host][other] - distances[second][other]);
            let further = median(&mut further.collect::<Vec<_>>());
            (distances[host][second] + further) / 2.0
        });
        said.fold(f64::INFINITY, f64::min)
    };
    (0..hosts).map(of).collect()
}

/// Below which distance switches are one, in the first gap, from nothing on, that is wide for what the distances below it vary
/// by, and for a link; and by how much those vary.
fn threshold(gaps: &[f64], typical: f64) -> (f64, f64) {
    let least = LINK_SHARE_MIN * typical;
    let mut noise = gaps.first().copied().unwrap_or(0.0).abs();
    for pair in gaps.windows(2) {
        let (here, next) = (pair[0], pair[1]);
        noise = noise.max(here.abs());
        // What is below stands for one switch: it varies around nothing.
        let varies = noise.max(least);
        if next - here > varies / GAP_NOISES && next > GAP_NOISES / 2.0 * varies {
            return ((here.max(0.0) + next) / 2.0, varies);
        }
    }
    (f64::INFINITY, noise)
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

/// Switches put together so far.
struct Joined {
    /// Ends and length.
    links: Vec<(usize, usize, f64)>,
    switches: usize,
    with_hosts: usize,
    added: Vec<usize>,
    limit: f64,
}

impl Joined {
    fn new(with_hosts: usize, limit: f64) -> Self {
        Self {
            links: Vec::new(),
            switches: with_hosts,
            with_hosts,
            added: vec![0],
            limit,
        }
    }

    /// Adds a switch that has hosts, where its paths to those that stand part.
    fn add(&mut self, switch: usize, apart: &[Vec<f64>]) {
        let near = |a: usize, b: usize| (apart[switch][a] + apart[switch][b] - apart[a][b]) / 2.0;
        let mut ends = (self.added[0], self.added[0]);
        for (at, a) in self.added.iter().enumerate() {
            for b in &self.added[at..] {
                if near(*a, *b) < near(ends.0, ends.1) {
                    ends = (*a, *b);
                }
            }
        }
        let (from, to) = ends;
        let leg = near(from, to);
        let along = apart[switch][from] - leg;
        let point = self.point(from, to, along, (leg < self.limit).then_some(switch));
        if point >= self.with_hosts && leg < self.limit {
            // It stands already, as one without hosts.
            self.rename(point, switch);
        } else if point != switch {
            self.links.push((point, switch, leg.max(0.0)));
        }
        self.added.push(switch);
    }

    /// A switch gets another number, and the last one its.
    fn rename(&mut self, from: usize, to: usize) {
        let last = self.switches - 1;
        for (a, b, _) in &mut self.links {
            for end in [a, b] {
                *end = match *end {
                    end if end == from => to,
                    end if end == last => from,
                    end => end,
                };
            }
        }
        self.switches = last;
    }

    /// The switch so far along the path from one to another; made there if there is none.
    fn point(&mut self, from: usize, to: usize, along: f64, made: Option<usize>) -> usize {
        let (mut at, mut left) = (from, along);
        for link in self.path(from, to) {
            if left < self.limit {
                return at;
            }
            let (a, b, length) = self.links[link];
            let next = if a == at { b } else { a };
            if left < length - self.limit {
                let new = made.unwrap_or(self.switches);
                if made.is_none() {
                    self.switches += 1;
                }
                self.links[link] = (at, new, left);
                self.links.push((new, next, length - left));
                return new;
            }
            (at, left) = (next, left - length);
        }
        at
    }

    fn path(&self, from: usize, to: usize) -> Vec<usize> {
        let links = self.links.iter().map(|(a, b, _)| (*a, *b)).collect();
        let tree = Inferred {
            switch_of: Vec::new(),
            links,
            switches: self.switches,
        };
        tree.paths_from(from).swap_remove(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of switches, hosts on them, and what each link adds.
    struct Made {
        tree: Inferred,
        lengths: Lengths,
    }

    /// Switches at random, hosts on all that have fewer than three links, and perhaps on others.
    fn made(random: &mut fastrand::Rng) -> Made {
        let switches = random.usize(1..10);
        let links: Vec<(usize, usize)> = (1..switches)
            .map(|switch| (random.usize(0..switch), switch))
            .collect();
        let degree = |switch: usize| {
            links
                .iter()
                .filter(|(a, b)| *a == switch || *b == switch)
                .count()
        };
        let mut switch_of = Vec::new();
        for switch in 0..switches {
            // Three links at least, or nobody can tell that it is there.
            let least = 3_usize
                .saturating_sub(degree(switch))
                .max(usize::from(random.bool()));
            switch_of.extend(vec![switch; least + random.usize(0..6) * least.min(1)]);
        }
        random.shuffle(&mut switch_of);
        let lengths = Lengths {
            hosts: switch_of
                .iter()
                .map(|_| 40.0 + 40.0 * random.f64())
                .collect(),
            links: links.iter().map(|_| 15.0 + 100.0 * random.f64()).collect(),
        };
        Made {
            tree: Inferred {
                switch_of,
                links,
                switches,
            },
            lengths,
        }
    }

    fn distances(made: &Made, mut noise: impl FnMut() -> f64) -> Vec<Vec<f64>> {
        let hosts = made.tree.switch_of.len();
        let paths = made.tree.paths();
        let mut distances = vec![vec![0.0; hosts]; hosts];
        for (a, b) in pairs(hosts) {
            let path = &paths[made.tree.switch_of[a]][made.tree.switch_of[b]];
            let links: f64 = path.iter().map(|link| made.lengths.links[*link]).sum();
            let sum = made.lengths.hosts[a] + made.lengths.hosts[b] + links + noise();
            (distances[a][b], distances[b][a]) = (sum, sum);
        }
        distances
    }

    /// Which hosts are on this side of each link, so that numbers of switches do not matter.
    fn splits(tree: &Inferred) -> Vec<Vec<bool>> {
        let of_link = |link: usize| {
            let side = tree.side(link);
            let on: Vec<bool> = tree
                .switch_of
                .iter()
                .map(|one| side.contains(one))
                .collect();
            on.iter().map(|one| *one == on[0]).collect()
        };
        let mut splits: Vec<Vec<bool>> = (0..tree.links.len()).map(of_link).collect();
        splits.sort();
        splits
    }

    #[test]
    fn tree__of_any_shape__is_found_through_noise() {
        for seed in 0..400 {
            let mut random = fastrand::Rng::with_seed(seed);
            let made = made(&mut random);
            if made.tree.switch_of.len() < 3 {
                continue;
            }
            // Of the least of several measurements: some too long, none too short.
            let noisy = distances(&made, || {
                if random.bool() {
                    0.0
                } else {
                    2.0 * random.f64()
                }
            });
            let found = infer(&noisy);
            let same = |a: usize, b: usize| found.switch_of[a] == found.switch_of[b];
            for (a, b) in pairs(made.tree.switch_of.len()) {
                let is_one = made.tree.switch_of[a] == made.tree.switch_of[b];
                assert_eq!(same(a, b), is_one, "seed {seed}: hosts {a} and {b}");
            }
            assert_eq!(splits(&found), splits(&made.tree), "seed {seed}");
            let lengths = fit(&found, &noisy);
            let hosts = lengths.hosts.iter().zip(&made.lengths.hosts);
            for (found, made) in hosts {
                assert!(
                    (found - made).abs() < 4.0,
                    "seed {seed}: {found} for {made}"
                );
            }
        }
    }

    #[test]
    fn hosts__of_one_switch__stay_together_through_noise() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let hosts = random.usize(2..30);
            let one = Made {
                tree: Inferred {
                    switch_of: vec![0; hosts],
                    links: Vec::new(),
                    switches: 1,
                },
                lengths: Lengths {
                    hosts: (0..hosts).map(|_| 50.0 + random.f64()).collect(),
                    links: Vec::new(),
                },
            };
            let noisy = distances(&one, || 3.0 * random.f64());
            assert_eq!(infer(&noisy), one.tree, "seed {seed}");
        }
    }
}
