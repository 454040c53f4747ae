use super::*;

/// A tree of switches with hosts, and the delay of each link.
struct Made {
    tree: Inferred,
    lengths: Lengths,
}

/// Returns random switches, with hosts on all that have fewer than three links and on some others.
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
        // A switch needs three links to be observable.
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

/// Returns the hosts on one side of each link, which does not depend on the numbers of switches.
pub(super) fn splits(tree: &Inferred) -> Vec<Vec<bool>> {
    let split = |link: usize| {
        let side = tree.side(link);
        let members: Vec<bool> = tree
            .switch_of
            .iter()
            .map(|switch| side.contains(switch))
            .collect();
        members.iter().map(|member| *member == members[0]).collect()
    };
    let mut splits: Vec<Vec<bool>> = (0..tree.links.len()).map(split).collect();
    splits.sort();
    splits
}

#[test]
fn infer__any_tree_with_noise__finds_the_tree() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let made = made(&mut random);
        if made.tree.switch_of.len() < 3 {
            continue;
        }
        // The minimum of several measurements is sometimes too long and never too short.
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
            let is_one_switch = made.tree.switch_of[a] == made.tree.switch_of[b];
            assert_eq!(same(a, b), is_one_switch, "seed {seed}: hosts {a} and {b}");
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
fn infer__one_switch_with_noise__stays_one_switch() {
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
