//! Builds the tree from switches, each at the place that most of the measurements support.
//!
//! Queues only lengthen a distance. A place is judged by the distances that it explains. A distance
//! longer than the tree's may be disturbed. A shorter one contradicts the tree. A switch without
//! hosts must explain more than it costs.

use super::{Inferred, pairs};

/// Cost of a distance that is longer than the tree's. One that is shorter costs more.
const DISTURBED_COST: f64 = 1.0;
const CONTRADICTION_COST: f64 = 2.0;

/// Cost of a switch without hosts: more than one disturbed pair of hosts.
const SWITCH_COST: f64 = 1.5;

/// Most that a distance between two switches counts, in pairs of hosts that confirm it.
pub(super) const WEIGHT_MAX: usize = 4;

/// Number of times that each switch is removed and placed again.
const SWEEPS: usize = 4;

/// Distances between switches, and the number of host pairs behind each.
pub(super) struct Distances {
    pub(super) length: Vec<Vec<f64>>,
    pub(super) weight: Vec<Vec<f64>>,
}

/// A tree under construction. Switches with hosts have the lowest numbers.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    links: Vec<(usize, usize, f64)>,
    host_switches: usize,
    next: usize,
    tolerance: f64,
}

/// Place at which a switch is attached.
#[derive(Debug, Clone, Copy)]
struct Place {
    spot: Spot,
    leg: f64,
}

#[derive(Debug, Clone, Copy)]
enum Spot {
    Node(usize),
    /// On a link, at this distance from its first end.
    Link(usize, f64),
}

impl Tree {
    /// Builds the tree for these distances. `order` lists the most certain switches first.
    pub(super) fn new(distances: &Distances, order: &[usize], tolerance: f64) -> Self {
        let host_switches = distances.length.len();
        let mut tree = Self {
            links: Vec::new(),
            host_switches,
            next: host_switches,
            tolerance,
        };
        for (index, switch) in order.iter().enumerate() {
            tree.add(*switch, &order[..index], distances);
        }
        for _ in 0..SWEEPS {
            for switch in order {
                let others: Vec<usize> = order
                    .iter()
                    .copied()
                    .filter(|other| other != switch)
                    .collect();
                let mut moved = tree.clone();
                moved.remove(*switch);
                moved.add(*switch, &others, distances);
                if moved.cost(distances) <= tree.cost(distances) {
                    tree = moved;
                }
            }
            tree.refit(distances);
        }
        tree.simplify(distances);
        tree
    }

    /// Returns the links and the number of switches. Switches without hosts get the highest
    /// numbers.
    pub(super) fn finish(mut self) -> (Vec<(usize, usize)>, usize) {
        let mut numbers: Vec<usize> = self.links.iter().flat_map(|(a, b, _)| [*a, *b]).collect();
        numbers.retain(|number| *number >= self.host_switches);
        numbers.sort_unstable();
        numbers.dedup();
        let place = |number: usize| match numbers.binary_search(&number) {
            Ok(index) => self.host_switches + index,
            Err(_) => number,
        };
        let links = self.links.drain(..);
        let links = links.map(|(a, b, _)| (place(a), place(b))).collect();
        (links, self.host_switches + numbers.len())
    }

    /// Returns the distance from a switch to every other; infinite for switches that are not
    /// placed.
    fn lengths_from(&self, from: usize) -> Vec<f64> {
        let mut lengths = vec![f64::INFINITY; self.next];
        lengths[from] = 0.0;
        let mut stack = vec![from];
        while let Some(switch) = stack.pop() {
            for (a, b, length) in &self.links {
                let next = match switch {
                    switch if switch == *a => *b,
                    switch if switch == *b => *a,
                    _ => continue,
                };
                if lengths[next].is_infinite() {
                    lengths[next] = lengths[switch] + length;
                    stack.push(next);
                }
            }
        }
        lengths
    }

    fn misfit(&self, measured: f64, length: f64, weight: f64) -> f64 {
        let error = measured - length;
        let scale = match error {
            error if error > self.tolerance => DISTURBED_COST,
            error if error < -self.tolerance => CONTRADICTION_COST,
            // Among places that explain the same distances, take the best fit.
            error => 0.01 * error.abs() / self.tolerance,
        };
        weight * scale
    }

    fn cost(&self, distances: &Distances) -> f64 {
        let table: Vec<Vec<f64>> = (0..self.host_switches)
            .map(|switch| self.lengths_from(switch))
            .collect();
        let misfits = pairs(self.host_switches)
            .map(|(a, b)| self.misfit(distances.length[a][b], table[a][b], distances.weight[a][b]));
        misfits.sum::<f64>() + SWITCH_COST * self.hostless() as f64
    }

    fn hostless(&self) -> usize {
        let ends = self.links.iter().flat_map(|(a, b, _)| [*a, *b]);
        let mut ends: Vec<usize> = ends.filter(|end| *end >= self.host_switches).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.len()
    }

    /// Adds a switch at the place that explains its distances to those `placed` best.
    fn add(&mut self, switch: usize, placed: &[usize], distances: &Distances) {
        if placed.is_empty() {
            return;
        }
        let lengths: Vec<Vec<f64>> = (0..self.next).map(|node| self.lengths_from(node)).collect();
        let measured = &distances.length[switch];
        let mut best: Option<(f64, Place)> = None;
        for (index, a) in placed.iter().enumerate() {
            for b in &placed[..=index] {
                let length = lengths[*a][*b];
                let leg = match a == b {
                    true => measured[*a],
                    false => (measured[*a] + measured[*b] - length) / 2.0,
                };
                if leg < -self.tolerance {
                    continue;
                }
                let leg = leg.max(0.0);
                let along = (measured[*a] - leg).clamp(0.0, length);
                let spot = self.spot(*a, *b, along, &lengths);
                let length_to = |node: usize| match spot {
                    Spot::Node(origin) => lengths[origin][node],
                    Spot::Link(link, offset) => {
                        let (first, second, length) = self.links[link];
                        f64::min(
                            lengths[first][node] + offset,
                            lengths[second][node] + length - offset,
                        )
                    }
                };
                let misfits = placed.iter().map(|peer| {
                    self.misfit(
                        measured[*peer],
                        leg + length_to(*peer),
                        distances.weight[switch][*peer],
                    )
                });
                let is_new = matches!(spot, Spot::Link(..)) && leg >= self.tolerance;
                let cost = misfits.sum::<f64>() + SWITCH_COST * f64::from(u8::from(is_new));
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, Place { spot, leg }));
                }
            }
        }
        let nearest = placed
            .iter()
            .min_by(|a, b| measured[**a].total_cmp(&measured[**b]));
        let fallback = nearest.map(|node| Place {
            spot: Spot::Node(*node),
            leg: measured[*node].max(0.0),
        });
        if let Some(place) = best.map(|(_, place)| place).or(fallback) {
            self.hang(switch, place);
        }
    }

    /// Returns the place at distance `along` on the path between two switches; a switch, if one is
    /// within the tolerance.
    fn spot(&self, from: usize, to: usize, along: f64, lengths: &[Vec<f64>]) -> Spot {
        let total = lengths[from][to];
        let is_on_path =
            |node: usize| (lengths[from][node] + lengths[node][to] - total).abs() < 1e-6;
        let nodes = (0..self.next).filter(|node| is_on_path(*node));
        let nearest = nodes.min_by(|a, b| {
            let error = |node: &usize| (lengths[from][*node] - along).abs();
            error(a).total_cmp(&error(b))
        });
        let nearest = nearest.unwrap_or(from);
        if (lengths[from][nearest] - along).abs() < self.tolerance {
            return Spot::Node(nearest);
        }
        for (link, (a, b, _)) in self.links.iter().enumerate() {
            let (length_a, length_b) = (lengths[from][*a], lengths[from][*b]);
            if is_on_path(*a)
                && is_on_path(*b)
                && length_a.min(length_b) < along
                && along < length_a.max(length_b)
            {
                return Spot::Link(link, (along - length_a).abs());
            }
        }
        Spot::Node(nearest)
    }

    fn hang(&mut self, switch: usize, place: Place) {
        let is_zero = place.leg < self.tolerance;
        match place.spot {
            Spot::Node(node) if is_zero && node >= self.host_switches => self.rename(node, switch),
            Spot::Node(node) => self.links.push((node, switch, place.leg)),
            Spot::Link(link, offset) => {
                let (a, b, length) = self.links[link];
                let middle = if is_zero { switch } else { self.next };
                self.links[link] = (a, middle, offset);
                self.links.push((middle, b, length - offset));
                if !is_zero {
                    self.next += 1;
                    self.links.push((middle, switch, place.leg));
                }
            }
        }
    }

    fn rename(&mut self, from: usize, to: usize) {
        for (a, b, _) in &mut self.links {
            *a = if *a == from { to } else { *a };
            *b = if *b == from { to } else { *b };
        }
    }

    fn links_of(&self, switch: usize) -> Vec<usize> {
        let links = (0..self.links.len()).filter(|link| {
            let (a, b, _) = self.links[*link];
            a == switch || b == switch
        });
        links.collect()
    }

    /// Removes a switch. If it joined two links, they become one.
    fn remove(&mut self, switch: usize) {
        let node = self.next;
        self.next += 1;
        self.rename(switch, node);
        self.tidy(node);
    }

    /// Removes a switch without hosts that has fewer than three links.
    fn tidy(&mut self, node: usize) {
        let opposite = |(a, b, _): (usize, usize, f64)| if a == node { b } else { a };
        match self.links_of(node)[..] {
            [link] => {
                let neighbour = opposite(self.links.swap_remove(link));
                if neighbour >= self.host_switches {
                    self.tidy(neighbour);
                }
            }
            [first_link, second_link] => {
                let (first, second) = (self.links[first_link], self.links[second_link]);
                self.links[first_link] = (opposite(first), opposite(second), first.2 + second.2);
                self.links.swap_remove(second_link);
            }
            _ => {}
        }
    }

    /// Refits the lengths: least absolute error, by reweighted least squares.
    fn refit(&mut self, distances: &Distances) {
        let tree = Inferred {
            switch_of: Vec::new(),
            links: self.links.iter().map(|(a, b, _)| (*a, *b)).collect(),
            switches: self.next,
        };
        let paths: Vec<Vec<Vec<usize>>> = (0..self.host_switches)
            .map(|a| tree.paths_from(a))
            .collect();
        let measured: Vec<(&[usize], f64, f64)> = pairs(self.host_switches)
            .map(|(a, b)| {
                (
                    &paths[a][b][..],
                    distances.length[a][b],
                    distances.weight[a][b],
                )
            })
            .collect();
        let mut lengths: Vec<f64> = self.links.iter().map(|(_, _, length)| *length).collect();
        super::settle(&mut lengths, &measured, self.tolerance);
        for (link, length) in self.links.iter_mut().zip(lengths) {
            link.2 = length;
        }
    }

    /// Removes each link to a switch without hosts that explains no more than it costs.
    fn simplify(&mut self, distances: &Distances) {
        let mut link = 0;
        while link < self.links.len() {
            let (a, b, _) = self.links[link];
            let (removed, retained) = if a >= self.host_switches {
                (a, b)
            } else {
                (b, a)
            };
            let mut simpler = self.clone();
            if removed >= self.host_switches {
                simpler.links.swap_remove(link);
                simpler.rename(removed, retained);
                simpler.refit(distances);
                if simpler.cost(distances) <= self.cost(distances) {
                    *self = simpler;
                    link = 0;
                    continue;
                }
            }
            link += 1;
        }
    }
}
