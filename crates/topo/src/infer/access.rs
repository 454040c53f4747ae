//! Estimates the length of each host's access link and the measurement noise.
//!
//! For a host `h` and two others `s` and `o`, (d(h,s) + d(h,o) − d(s,o)) / 2 is the distance from
//! `h` to the path between `s` and `o`. It equals the length of the access link if that path
//! crosses the switch of `h`, and is longer otherwise. On a switch with at least three links, at
//! least `hosts − 2` of these values agree. Queues move a value up or down. So the estimate is the
//! lowest value on which enough of them agree.

use super::{LINK_SHARE_MIN, median};

/// Share of the values through a host's switch that must agree. If each distance is undisturbed
/// with 70 %, all three are with 34 %.
const AGREEING_SHARE: f64 = 0.3;

/// Distance of two values that agree, in multiples of the noise.
const AGREEING_NOISES: f64 = 2.0;

/// The access links of all hosts, and the distance below which two values agree.
pub(super) struct AccessLinks {
    pub(super) links: Vec<f64>,
    pub(super) tolerance: f64,
}

impl AccessLinks {
    pub(super) fn new(distances: &[Vec<f64>]) -> Self {
        let hosts = distances.len();
        let products: Vec<Vec<f64>> = (0..hosts).map(|host| products(distances, host)).collect();
        let nearest = (0..hosts).map(|host| {
            let peers = (0..hosts).filter(|peer| *peer != host);
            peers
                .map(|peer| distances[host][peer] / 2.0)
                .fold(f64::INFINITY, f64::min)
        });
        let typical = median(&mut nearest.collect::<Vec<_>>());
        let widths = products
            .iter()
            .map(|sorted| narrowest(sorted, hosts.saturating_sub(2).max(1)));
        let noise = median(&mut widths.collect::<Vec<_>>());
        let tolerance =
            (AGREEING_NOISES * noise).clamp(LINK_SHARE_MIN * typical, TOLERANCE_MAX * typical);
        let support = match hosts {
            0..=3 => 1,
            _ => ((AGREEING_SHARE * (hosts - 2) as f64).round() as usize).max(2),
        };
        let links = products
            .iter()
            .map(|sorted| lowest_agreed(sorted, support, tolerance));
        Self {
            links: links.collect(),
            tolerance,
        }
    }
}

/// Upper bound of that distance, as a share of the typical access link.
const TOLERANCE_MAX: f64 = 0.15;

/// Returns the distances from a host to the path between each two others, sorted.
fn products(distances: &[Vec<f64>], host: usize) -> Vec<f64> {
    let others: Vec<usize> = (0..distances.len())
        .filter(|other| *other != host)
        .collect();
    let mut products: Vec<f64> = Vec::with_capacity(others.len() * others.len() / 2);
    for (index, s) in others.iter().enumerate() {
        for o in &others[..index] {
            products.push((distances[host][*s] + distances[host][*o] - distances[*s][*o]) / 2.0);
        }
    }
    products.sort_unstable_by(f64::total_cmp);
    products
}

/// Returns the width of the narrowest window of `count` sorted values.
fn narrowest(sorted: &[f64], count: usize) -> f64 {
    let windows = sorted.windows(count.min(sorted.len()).max(1));
    let width = windows.map(|window| window[window.len() - 1] - window[0]);
    width.fold(f64::INFINITY, f64::min)
}

/// Returns the lowest value on which `support` of the sorted values agree.
fn lowest_agreed(sorted: &[f64], support: usize, tolerance: f64) -> f64 {
    let window = |from: f64| {
        let first = sorted.partition_point(|value| *value < from);
        let end = sorted.partition_point(|value| *value <= from + tolerance);
        &sorted[first..end]
    };
    let first = sorted.iter().find(|value| window(**value).len() >= support);
    let Some(first) = first.or(sorted.first()) else {
        return 0.0;
    };
    // The window may begin with a value that is too low. Take the fullest of the windows that begin
    // inside it.
    let starts = window(*first).iter();
    let fullest = starts
        .map(|start| window(*start))
        .max_by_key(|window| window.len());
    let fullest = fullest.unwrap_or_default();
    fullest.get(fullest.len() / 2).copied().unwrap_or(*first)
}
