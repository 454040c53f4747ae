//! Trials: for a moment, one link carries all frames to a peer, so that its rate shows.
//!
//! The rates that a path shows (`drain.rs`) are those of a stream over several paths. Its bursts
//! overtake each other, TCP takes that for losses, and its window stays small. So a path may never
//! be full, and bursts on their way look like bytes that wait. On 1000 and 500 Mb/s both links
//! showed 550, and shared the stream evenly from then on (`docs/perf-log.md`, 2026-11-28). On one
//! path alone nothing overtakes, so the stream fills it.
//!
//! A path far slower than another carries too little to show a firm rate. Over 1000 and 100 Mb/s a
//! stream had 0.75 of the fast link for up to 2.8 s, because its bursts were as short as for the
//! slow one (`docs/perf-log.md`, 2026-11-30). So a path that seems so slow is tried at once.

use super::drain::Drain;
use kumi_multilink::wire::LINKS_MAX;

/// Least and longest time of a trial, in ns, and time between the looks at it in between. In 14
/// trials the stream filled the link after 2 to 24 ms (`docs/perf-log.md`, 2026-11-28).
const TRIAL_LEAST_NS: u64 = 24_000_000;
const TRIAL_MOST_NS: u64 = 60_000_000;
const TRIAL_LOOK_NS: u64 = 4_000_000;
/// Least and longest time from a trial of a link to its next, in ns.
const AGAIN_LEAST_NS: u64 = 3_000_000_000;
const AGAIN_MOST_NS: u64 = 30_000_000_000;
/// Difference between two trials up to which they agree.
const DIFFERENCE: f64 = 0.1;
/// Share of the links' time that trials may take, and time not paid back up to which a trial may
/// begin, in ns: enough for the trials of two links. When all eight links were tried at once, the
/// first two seconds of a stream carried a third less.
const SHARE: f64 = 0.02;
const AT_ONCE_NS: f64 = 40e6;

/// The present trial. Times are in ns.
#[derive(Debug, Clone, Copy)]
struct Present {
    link: u8,
    begun_ns: u64,
    look_ns: u64,
    end_ns: u64,
}

/// The last trial of a link. Times are in ns.
#[derive(Debug, Clone, Copy)]
struct Last {
    at_ns: u64,
    again_ns: u64,
    rate_bps: Option<f64>,
}

impl Last {
    /// Returns the trial that ended with this rate, if it showed one, after the one `before`. The
    /// next one waits for twice the time if both agree: the stream may not have filled the link.
    fn new(at_ns: u64, rate_bps: Option<f64>, before: Option<Self>) -> Self {
        let agrees = |before: &Self| match (before.rate_bps, rate_bps) {
            (Some(before), Some(rate)) => (rate - before).abs() <= rate * DIFFERENCE,
            (None, None) => true,
            _ => false,
        };
        let again_ns = before.filter(agrees).map_or(AGAIN_LEAST_NS, |before| {
            AGAIN_MOST_NS.min(before.again_ns * 2)
        });
        Self {
            at_ns,
            again_ns,
            rate_bps,
        }
    }

    /// Returns whether the next trial is due. It is early if the link shows less since.
    fn is_old(&self, shows_less: bool, now_ns: u64) -> bool {
        let again_ns = if shows_less {
            AGAIN_LEAST_NS
        } else {
            self.again_ns
        };
        now_ns >= self.at_ns + again_ns
    }
}

/// Trials of the links to a peer.
#[derive(Debug, Default)]
pub struct Trials {
    present: Option<Present>,
    /// Last trials of the links.
    last: [Option<Last>; LINKS_MAX],
    /// Time of the links that trials have taken and that is not paid back yet, in ns; and the time
    /// up to which it was paid back.
    taken_ns: f64,
    given_at_ns: u64,
}

impl Trials {
    /// Returns the link that is tried.
    pub fn link(&self) -> Option<u8> {
        self.present.map(|present| present.link)
    }

    /// Returns the time of the next look at the present trial, in ns.
    pub fn look_ns(&self) -> Option<u64> {
        self.present.map(|present| present.look_ns)
    }

    /// Ends the present trial if its rate shows or its link is gone, and begins the next. `links`
    /// may carry frames of long streams; `claim_bps` is what a link should have. The first of the
    /// times is the programs'.
    pub fn follow(
        &mut self,
        links: &mut [(u8, &mut Drain)],
        claim_bps: impl Fn(u8) -> f64,
        (kernel_now_ns, now_ns): (u64, u64),
    ) {
        if let Some(present) = &mut self.present {
            let mut tried = links.iter_mut().filter(|(link, _)| *link == present.link);
            if let Some((_, drain)) = tried.next() {
                if now_ns < present.look_ns {
                    return;
                }
                if now_ns < present.end_ns && !drain.is_trial_settled() {
                    present.look_ns = now_ns + TRIAL_LOOK_NS;
                    return;
                }
                let rate_bps = drain.end_trial(kernel_now_ns);
                let last = &mut self.last[usize::from(present.link)];
                *last = Some(Last::new(now_ns, rate_bps, *last));
                // Meanwhile the others carried nothing.
                let trial_ns = (now_ns - present.begun_ns) as f64;
                self.taken_ns += trial_ns * (1.0 - 1.0 / links.len() as f64);
            }
            self.present = None;
        }
        let given_ns = now_ns.saturating_sub(self.given_at_ns) as f64 * SHARE;
        self.taken_ns = f64::max(self.taken_ns - given_ns, 0.0);
        self.given_at_ns = now_ns;
        if links.len() < 2 || self.taken_ns >= AT_ONCE_NS {
            return;
        }
        let drains = links.iter().map(|(_, drain)| &**drain);
        let streaming = drains.filter(|drain| drain.carries_stream(kernel_now_ns));
        let fastest_bps = streaming.filter_map(Drain::firm_bps).fold(0.0, f64::max);
        let due = links.iter_mut().find(|(link, drain)| {
            let shows_less = drain.shows_less_than_tried();
            let last = self.last[usize::from(*link)];
            last.is_none_or(|last| last.is_old(shows_less, now_ns))
                && (drain.is_doubtful(claim_bps(*link), kernel_now_ns)
                    || drain.seems_slow(fastest_bps))
        });
        if let Some((link, drain)) = due {
            drain.begin_trial(kernel_now_ns);
            self.present = Some(Present {
                link: *link,
                begun_ns: now_ns,
                look_ns: now_ns + TRIAL_LEAST_NS,
                end_ns: now_ns + TRIAL_MOST_NS,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::drain::tests::{Fed, MS};
    use super::*;

    /// A claim that no path here comes near.
    const CLAIM_BPS: f64 = 10e9;

    /// A stream over two paths that keeps 550 Mb/s on each, and `alone_mbps` on one alone.
    struct Stream {
        trials: Trials,
        paths: [Fed; 2],
        alone_mbps: [u64; 2],
        /// Time that it takes to fill a path, in ms.
        growth_ms: u64,
        tried: Vec<Option<u8>>,
    }

    impl Stream {
        fn new(alone_mbps: [u64; 2]) -> Self {
            Self {
                trials: Trials::default(),
                paths: Default::default(),
                alone_mbps,
                growth_ms: 0,
                tried: Vec::new(),
            }
        }

        /// Runs for a time, with answers and looks every 2 ms.
        fn run(&mut self, time_ms: u64) {
            for _ in (0..time_ms).step_by(2) {
                let tried = self.trials.link();
                let same = self.tried.iter().rev().take_while(|link| **link == tried);
                let alone_ms = 2 * same.count() as u64;
                for (link, path) in (0..).zip(&mut self.paths) {
                    let full_mbps = self.alone_mbps[usize::from(link)];
                    let lacking = self.growth_ms.saturating_sub(alone_ms);
                    let mbps = match tried {
                        Some(tried) if tried == link => full_mbps - full_mbps * lacking / 100,
                        Some(_) => 0,
                        None => 550,
                    };
                    path.feed(mbps, 2, 40_000 * u64::from(mbps > 100));
                }
                let now_ns = self.paths[0].now_ms * MS;
                let mut links = Vec::new();
                for (link, path) in (0..).zip(&mut self.paths) {
                    links.push((link, &mut path.drain));
                }
                self.trials
                    .follow(&mut links, |_| CLAIM_BPS, (now_ns, now_ns));
                self.tried.push(self.trials.link());
            }
        }

        /// Returns the links that were tried, in order.
        fn tried(&self) -> Vec<u8> {
            let mut tried = self.tried.clone();
            tried.dedup();
            tried.into_iter().flatten().collect()
        }

        fn rates_mbps(&self) -> [Option<u64>; 2] {
            let rate = |path: &Fed| path.drain.firm_bps().map(|bps| (bps / 1e6).round() as u64);
            [rate(&self.paths[0]), rate(&self.paths[1])]
        }
    }

    #[test]
    fn trials__stream_that_shares_unlike_paths_evenly__finds_their_rates() {
        let mut stream = Stream::new([940, 470]);
        stream.run(150);
        assert_eq!(stream.tried(), [0, 1]);
        // The second one shows what it had of the even shares.
        assert_eq!(stream.rates_mbps(), [Some(940), Some(550)]);
        stream.run(2_800);
        assert_eq!(stream.rates_mbps(), [Some(940), Some(550)], "they last");
        assert_eq!(stream.tried(), [0, 1], "no second trials so early");
        stream.run(57_000);
        // 550 is less than three quarters of 940, and not of 470.
        let of_other = stream.tried().iter().filter(|link| **link == 1).count();
        assert_eq!(of_other, 5, "after 3, 6, 12, 24 s");
        let of_one = stream.tried().iter().filter(|link| **link == 0).count();
        assert!((18..=20).contains(&of_one), "every 3 s, {of_one}");
    }

    #[test]
    fn trials__stream_that_fills_a_path_slowly__is_waited_for() {
        let mut stream = Stream::new([940, 470]);
        stream.growth_ms = 40;
        stream.run(250);
        assert_eq!(stream.rates_mbps(), [Some(940), Some(550)]);
        assert_eq!(stream.tried(), [0, 1]);
    }

    #[test]
    fn trials__link_that_shows_less_than_in_its_trial__is_tried_again_earlier() {
        let mut stream = Stream::new([940, 600]);
        stream.run(20_000);
        stream.alone_mbps = [560, 600];
        stream.run(3_100);
        assert_eq!(
            stream.rates_mbps(),
            [Some(560), Some(600)],
            "it became slower"
        );
    }

    #[test]
    fn trials__many_links__take_a_fiftieth_of_the_time() {
        let mut trials = Trials::default();
        let mut paths: [Fed; 8] = Default::default();
        let mut tried_ms = [0; 9];
        for ms in (0..20_000_u64).step_by(2) {
            let tried = trials.link().map(usize::from);
            tried_ms[tried.unwrap_or(8)] += 2;
            let mut links = Vec::new();
            for (link, path) in paths.iter_mut().enumerate() {
                let is_used = tried.is_none_or(|tried| tried == link);
                path.feed(if is_used { 200 } else { 0 }, 2, 40_000);
                links.push((link as u8, &mut path.drain));
            }
            trials.follow(&mut links, |_| CLAIM_BPS, (ms * MS, ms * MS));
        }
        let sum_ms: u64 = tried_ms[..8].iter().sum();
        // 2 % and what is taken at once, in time of one link
        assert!((250..=560).contains(&sum_ms), "{tried_ms:?}");
        assert!(
            tried_ms[..8].iter().all(|time_ms| *time_ms > 0),
            "{tried_ms:?}"
        );
    }

    #[test]
    fn trials__stream_that_fills_no_path__measures_nothing() {
        let mut stream = Stream::new([90, 90]);
        stream.run(500);
        assert_eq!(stream.tried(), [0, 1]);
        assert!(
            stream
                .paths
                .iter()
                .all(|path| path.drain.tried_bps().is_none())
        );
    }

    #[test]
    fn trials__rate_as_claimed_or_one_link_or_short_traffic__none_begins() {
        let begin = |path: &mut Fed, other: &mut Fed, claim_bps, count: usize| {
            let now_ns = path.now_ms * MS;
            let mut trials = Trials::default();
            let mut links = vec![(0, &mut path.drain), (1, &mut other.drain)];
            links.truncate(count);
            let times = (now_ns, now_ns);
            trials.follow(&mut links, |_| claim_bps, times);
            trials.link()
        };
        let fed = |mbps, time_ms| {
            let mut path = Fed::default();
            path.feed(mbps, time_ms, 40_000);
            path
        };
        let long = || fed(940, 200);
        assert_eq!(begin(&mut long(), &mut long(), CLAIM_BPS, 2), Some(0));
        assert_eq!(begin(&mut long(), &mut long(), 1e9, 2), None);
        assert_eq!(begin(&mut long(), &mut long(), CLAIM_BPS, 1), None);
        assert_eq!(
            begin(&mut fed(20, 200), &mut fed(20, 200), CLAIM_BPS, 2),
            None
        );
        assert_eq!(
            begin(&mut fed(940, 30), &mut fed(940, 30), CLAIM_BPS, 2),
            None
        );
    }

    #[test]
    fn trials__link_that_seems_far_slower__is_tried_though_it_carries_little() {
        let begin = |slow_mbps, now_ms: u64| {
            let (mut fast, mut slow) = (Fed::default(), Fed::default());
            fast.feed(940, 200, 40_000);
            // Only at the start of the stream.
            slow.feed(slow_mbps, 24, 40_000);
            slow.feed(0, 176, 0);
            let mut trials = Trials::default();
            let mut links = [(0, &mut fast.drain), (1, &mut slow.drain)];
            trials.follow(&mut links, |_| 1e9, (now_ms * MS, now_ms * MS));
            trials.link()
        };
        assert_eq!(begin(95, 200), Some(1));
        assert_eq!(begin(300, 200), None, "its bursts delay the others' little");
        assert_eq!(begin(95, 1_200), None, "no stream shows a rate");
    }

    #[test]
    fn trials__link_goes_away__its_trial_ends() {
        let mut stream = Stream::new([940, 470]);
        while stream.trials.link().is_none() {
            stream.run(2);
        }
        let now_ns = stream.paths[0].now_ms * MS;
        let mut links = [(1, &mut stream.paths[1].drain)];
        let times = (now_ns, now_ns);
        stream.trials.follow(&mut links, |_| CLAIM_BPS, times);
        assert_eq!(stream.trials.link(), None);
    }
}
