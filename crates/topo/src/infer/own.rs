//! How far each host is from its switch, and what measurements vary by.
//!
//! For two other hosts `s` and `o`, `(d(h,s) + d(h,o) − d(s,o)) / 2` is how far host `h` is from the
//! path between them, which is its own link if that path passes its switch and more if not. On a
//! switch with three links at least `hosts − 2` of these products agree on the own link. A queue
//! scatters a product, up or down. So the own link is the lowest value on which enough of them agree.

use super::{LINK_SHARE_MIN, median};

/// Share of the products that pass a host's switch at the least which must agree. Of three
/// distances that are each undisturbed with 70 %, all are with 34 %.
const AGREEING_SHARE: f64 = 0.3;

/// Two values agree that are this many times the noise apart.
const AGREEING_NOISES: f64 = 2.0;

/// The own links of all hosts, and how far apart values are that agree.
pub(super) struct Own {
    pub(super) links: Vec<f64>,
    pub(super) tolerance: f64,
}

impl Own {
    pub(super) fn new(distances: &[Vec<f64>]) -> Self {
        let hosts = distances.len();
        let products: Vec<Vec<f64>> = (0..hosts).map(|host| products(distances, host)).collect();
        let nearest = (0..hosts).map(|host| {
            let others = (0..hosts).filter(|other| *other != host);
            others
                .map(|other| distances[host][other] / 2.0)
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

/// Values never agree that are further apart than this share of a typical host's link.
const TOLERANCE_MAX: f64 = 0.15;

/// How far a host is from the path between each two others, sorted.
fn products(distances: &[Vec<f64>], host: usize) -> Vec<f64> {
    let others: Vec<usize> = (0..distances.len())
        .filter(|other| *other != host)
        .collect();
    let mut products: Vec<f64> = Vec::with_capacity(others.len() * others.len() / 2);
    for (at, s) in others.iter().enumerate() {
        for o in &others[..at] {
            products.push((distances[host][*s] + distances[host][*o] - distances[*s][*o]) / 2.0);
        }
    }
    products.sort_unstable_by(f64::total_cmp);
    products
}

/// Width of the narrowest window of `count` sorted values.
fn narrowest(sorted: &[f64], count: usize) -> f64 {
    let windows = sorted.windows(count.min(sorted.len()).max(1));
    let width = windows.map(|window| window[window.len() - 1] - window[0]);
    width.fold(f64::INFINITY, f64::min)
}

/// The lowest value on which `support` of the sorted values agree.
fn lowest_agreed(sorted: &[f64], support: usize, tolerance: f64) -> f64 {
    let within = |from: f64| {
        let first = sorted.partition_point(|value| *value < from);
        let past = sorted.partition_point(|value| *value <= from + tolerance);
        &sorted[first..past]
    };
    let first = sorted.iter().find(|value| within(**value).len() >= support);
    let Some(first) = first.or(sorted.first()) else {
        return 0.0;
    };
    // The window may begin with a value that is too low: of those that begin in it, the fullest.
    let starts = within(*first).iter();
    let fullest = starts
        .map(|start| within(*start))
        .max_by_key(|window| window.len());
    let fullest = fullest.unwrap_or_default();
    fullest.get(fullest.len() / 2).copied().unwrap_or(*first)
}
