//! Bytes that leave a path, from the peer's answers: how far it is behind, and how fast it is.
//!
//! ```text
//! sent  ──── waits and travels ────  received + offset
//!
//! offset: bytes lost, and bytes that one side counted before the other
//! ```
//!
//! Each answer has the bytes that were sent before its question, and those that the peer's kernel
//! had received when the question arrived. What was sent before the question is no longer on the
//! way then, and no more than what was sent has arrived:
//!
//! ```text
//! sent before the question - received  <=  offset  <=  sent - received
//! ```
//!
//! The rate of a path is the third highest of the rates at which bytes arrived in the last
//! [`RATES`] intervals of 4 ms. One or two may be too high, because buckets and interrupts compress
//! bursts. Of fewer than 16 rates it is the second or the highest: those of a stream that starts
//! are too low. It counts from the fourth on, once bytes had to wait: until then it shows what was
//! sent, and no limit. Before, and when none has waited for a second, the rate is that of the link.
//! A path has at least the rate of its last trial (`trials.rs`), for [`TRIED_NS`].
//!
//! Bytes wait if more than [`WAITING_BYTES`] are on the way, besides those that arrive in the time
//! that the answer takes. On a slow path, few bytes wait long: there a question that waits for
//! [`WAITING_NS`] shows it. An interval in which fewer than [`RATE_BYTES`] arrive is no rate. It
//! lasts longer, up to [`RATE_LONGEST_NS`], while each question waits for [`QUEUE_NS`].
//!
//! An interval is full if each of its answers finds bytes waiting. The path has at least the third
//! highest rate of the last 64 full intervals, once there are 16. Without this bound, a path whose
//! rate is estimated too low gets less, shows less, and its estimate falls further. BBR likewise
//! keeps its estimate while the application limits the sender.

use super::intf::Answer;
use super::least::Least;
use super::trial::{QUEUE_NS, Trial};
use std::collections::VecDeque;

/// Rates that are compared: a quarter of a second of traffic.
const RATES: usize = 64;
/// Last position of the one that counts, from the highest, and rates for each position.
const RATE_POSITION: usize = 2;
const RATES_PER_POSITION: usize = 8;
/// Rates before the highest counts. A burst that does not fill its interval shows too little.
const RATES_LEAST: usize = 4;
/// Least time and bytes of a rate.
const RATE_NS: u64 = 3_500_000;
const RATE_BYTES: u64 = 16_384;
/// Longest time of a rate: of a path of 4 Mb/s.
const RATE_LONGEST_NS: u64 = 33_000_000;
/// Answers of the last 64 that must find bytes waiting, before the rates count.
const WAITING_LEAST: u32 = 6;
/// Rates after which a path may be tried: those of a stream, of 50 ms.
const RATES_ENOUGH: usize = 12;
/// Share of its link's rate from which a path needs no trial. Chosen by judgement: a full link
/// shows its rate within a few percent, and the fast one of the log's unlike links showed 0.55.
const SHARE_ENOUGH: f64 = 0.85;
/// Share of the fastest path's rate below which a path rests, and one that seems so slow is tried
/// at once. Chosen by judgement.
pub const SHARE_SLOW: f64 = 0.2;
/// Time for which the rate of a trial counts, in ns.
const TRIED_NS: u64 = 40_000_000_000;
/// Share of a trial's rate below which a path shows less. The rates vary by a tenth.
const SHARE_LESS: f64 = 0.75;
/// Bytes on the way that a message in flight has hardly, and a burst has.
const WAITING_BYTES: f64 = 16_384.0;
/// Time for which a question waits only behind a queue, with at least two packets of this host on
/// the way, and not for a processor. Chosen by judgement.
const WAITING_NS: u64 = 2_000_000;
const WAITING_BYTES_LEAST: f64 = 3_000.0;
/// Time without waiting bytes after which the link's rate counts again, in ns.
const FORGET_NS: u64 = 1_000_000_000;
/// Least guess of a path's rate, in bit/s: bursts of 10 segments. Chosen by judgement.
const GUESS_LEAST_BPS: f64 = 250e6;
/// Time between two answers above which they say nothing of the time between them, in ns.
const APART_NS: u64 = 10_000_000;
/// Time over which the shortest delay of answers is kept, in ns. Clocks drift by 0.1 ms in it.
const DELAY_NS: u64 = 1_000_000_000;
/// Time over which the shortest round trip is kept, in ns.
const TRIP_NS: u64 = 10_000_000_000;

/// State of one path. All times are of this side's `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
pub struct Drain {
    /// `sent - received` while nothing is on the way.
    offset: i64,
    /// Answer at the start of the present interval, and the last one.
    interval: Option<(Answer, Answer)>,
    /// Each question of the present interval had to wait.
    is_queued: bool,
    /// Each answer of the present interval, and the one that began it, found bytes waiting.
    is_full: bool,
    /// Rates of the last intervals, in bit/s.
    rates_bps: VecDeque<f64>,
    /// Rates of the last full intervals, in bit/s.
    full_bps: VecDeque<f64>,
    /// Last answers, as bits: 1 if bytes waited.
    answers: u64,
    /// Time at which enough had waited that the rates count.
    shown_at_ns: u64,
    /// Rate at which bytes arrived in the last interval, with the time.
    latest: (f64, u64),
    /// Enough bytes arrived in the last interval for a rate.
    is_streaming: bool,
    /// The present trial.
    trial: Option<Trial>,
    /// Rate of the last trial in bit/s, and time of its end.
    tried: Option<(f64, u64)>,
    /// Shortest time from an answer to its arrival, by two clocks.
    delay: Least<DELAY_NS>,
    /// Shortest round trip.
    trip: Least<TRIP_NS>,
}

/// State of a path by the peer's counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drained {
    /// Bytes of those sent that had arrived or were lost.
    pub left_bytes: u64,
    /// Time at which they had, in ns.
    pub at_ns: u64,
    /// Rate of the path, in bit/s.
    pub rate_bps: f64,
    /// Time that a frame takes besides its length, in ns.
    pub travel_ns: u64,
    /// More bytes are on the way than travel in the time that an answer takes.
    pub is_waiting: bool,
}

impl Drain {
    /// Evaluates an answer of the peer, after `sent` bytes were sent, over a link of `link_bps`.
    pub fn note(&mut self, answer: Answer, sent: u64, link_bps: f64) -> Drained {
        let now_ns = answer.arrived_at_ns;
        let least = answer.sent_bytes.wrapping_sub(answer.received_bytes) as i64;
        let most = sent.wrapping_sub(answer.received_bytes) as i64;
        self.offset = self.offset.max(least).min(most);
        let left_bytes = answer.received_bytes.wrapping_add_signed(self.offset);
        let left_bytes = left_bytes.min(sent);
        let trip_ns = now_ns.saturating_sub(answer.asked_at_ns).min(DELAY_NS);
        let trip_excess_ns = self.trip.note(trip_ns as i64, now_ns);
        let delay_ns = now_ns.wrapping_sub(answer.answered_at_ns) as i64;
        let excess_ns = self.delay.note(delay_ns, now_ns).min(DELAY_NS);
        let queue_ns = trip_excess_ns.saturating_sub(excess_ns);
        let age_ns = excess_ns + self.travel_ns();
        let arriving_bytes = self.latest_bps(now_ns) * age_ns as f64 / 8e9;
        let waiting_bytes = (sent - left_bytes) as f64 - arriving_bytes;
        let is_waiting = waiting_bytes > WAITING_BYTES
            || waiting_bytes > WAITING_BYTES_LEAST && queue_ns > WAITING_NS;
        self.measure(answer, is_waiting, queue_ns);
        Drained {
            left_bytes,
            at_ns: now_ns.saturating_sub(age_ns),
            rate_bps: self.rate_bps(link_bps, now_ns),
            travel_ns: self.travel_ns(),
            is_waiting,
        }
    }

    /// Returns half of the shortest round trip, in ns.
    fn travel_ns(&self) -> u64 {
        self.trip.least_ns().unsigned_abs() / 2
    }

    /// Measures the rate of the path. The question waited for `queue_ns` on its way.
    fn measure(&mut self, answer: Answer, is_waiting: bool, queue_ns: u64) {
        let now_ns = answer.arrived_at_ns;
        if self.interval.is_none() {
            self.begin_interval(answer, is_waiting);
        }
        let (start, last) = self.interval.unwrap_or((answer, answer));
        let span_ns = answer.answered_at_ns.wrapping_sub(start.answered_at_ns);
        let pause_ns = answer.answered_at_ns.wrapping_sub(last.answered_at_ns);
        // A peer that restarted counts from 0, on another clock.
        if answer.received_bytes < start.received_bytes || pause_ns > APART_NS {
            self.begin_interval(answer, is_waiting);
            return;
        }
        self.interval = Some((start, answer));
        self.is_queued &= queue_ns > QUEUE_NS;
        self.is_full &= is_waiting;
        if let Some(trial) = &mut self.trial {
            trial.note(answer, is_waiting, queue_ns);
        }
        self.answers = self.answers << 1 | u64::from(is_waiting);
        if is_waiting && self.answers.count_ones() >= WAITING_LEAST {
            self.shown_at_ns = now_ns;
        }
        if span_ns < RATE_NS {
            return;
        }
        let arrived_bytes = answer.received_bytes - start.received_bytes;
        if arrived_bytes < RATE_BYTES && self.is_queued && span_ns < RATE_LONGEST_NS {
            return;
        }
        let is_full = self.is_full;
        self.begin_interval(answer, is_waiting);
        let rate_bps = arrived_bytes as f64 * 8e9 / span_ns as f64;
        self.latest = (rate_bps, now_ns);
        self.is_streaming = arrived_bytes >= RATE_BYTES;
        if !self.is_streaming {
            return;
        }
        let full = is_full.then_some(&mut self.full_bps);
        for rates_bps in std::iter::once(&mut self.rates_bps).chain(full) {
            rates_bps.truncate(RATES - 1);
            rates_bps.push_front(rate_bps);
        }
    }

    fn begin_interval(&mut self, answer: Answer, is_waiting: bool) {
        self.interval = Some((answer, answer));
        self.is_queued = true;
        self.is_full = is_waiting;
    }

    /// Forgets the rates that the path showed.
    pub fn forget_rates(&mut self) {
        self.rates_bps.clear();
        self.full_bps.clear();
        (self.answers, self.shown_at_ns) = (0, 0);
        self.tried = None;
    }

    /// Returns whether the path carries a stream, and shows less than its link should have.
    pub fn is_doubtful(&self, link_bps: f64, now_ns: u64) -> bool {
        self.carries_stream(now_ns)
            && self.rates_bps.len() >= RATES_ENOUGH
            && self.shown_lately_bps().unwrap_or(0.0) < link_bps * SHARE_ENOUGH
    }

    /// Returns whether bytes of a stream arrived on the path lately.
    pub fn carries_stream(&self, now_ns: u64) -> bool {
        self.is_streaming && self.latest_bps(now_ns) > 0.0
    }

    /// Returns whether the path seems far slower than one of `fastest_bps`. It may then carry too
    /// little to show a firm rate.
    pub fn seems_slow(&self, fastest_bps: f64) -> bool {
        let shown_bps = self.shown_lately_bps();
        self.tried.is_none() && shown_bps.is_some_and(|rate| rate < fastest_bps * SHARE_SLOW)
    }

    /// Returns whether the path shows less than in its last trial.
    pub fn shows_less_than_tried(&self) -> bool {
        let shown_bps = self.shown_lately_bps().unwrap_or(0.0);
        self.tried_bps()
            .is_some_and(|tried_bps| shown_bps < tried_bps * SHARE_LESS)
    }

    /// Begins a trial: the path carries all frames to the peer from now on.
    pub fn begin_trial(&mut self, now_ns: u64) {
        self.trial = Some(Trial::begin(now_ns));
    }

    /// Returns whether the rate of the trial no longer grows.
    pub fn is_trial_settled(&self) -> bool {
        self.trial.as_ref().is_none_or(Trial::is_settled)
    }

    /// Ends the trial. Returns the rate that showed.
    pub fn end_trial(&mut self, now_ns: u64) -> Option<f64> {
        let rate_bps = self.trial.take().and_then(|trial| trial.rate_bps());
        self.tried = rate_bps.map(|rate_bps| (rate_bps, now_ns));
        rate_bps
    }

    /// Returns the rate of the last trial.
    pub fn tried_bps(&self) -> Option<f64> {
        self.tried.map(|(rate_bps, _)| rate_bps)
    }

    /// Returns the rate of the path over a link of `link_bps`.
    fn rate_bps(&self, link_bps: f64, now_ns: u64) -> f64 {
        let known_bps = self.measured_bps().filter(|_| self.is_known(now_ns));
        known_bps.unwrap_or(link_bps)
    }

    /// Returns whether the path has shown its rate lately. Otherwise that of its link is a guess.
    pub fn is_known(&self, now_ns: u64) -> bool {
        let is_tried = self
            .tried
            .is_some_and(|(_, at_ns)| now_ns < at_ns + TRIED_NS);
        (is_tried || self.is_shown(now_ns)) && self.measured_bps().is_some()
    }

    /// Returns whether bytes waited lately, so that the rates show the path's limit.
    pub fn is_shown(&self, now_ns: u64) -> bool {
        now_ns < self.shown_at_ns + FORGET_NS
    }

    /// Returns the rate that the path showed last, at least that of its trial.
    pub fn measured_bps(&self) -> Option<f64> {
        let rates = [self.shown_lately_bps(), self.tried_bps()].into_iter();
        rates.flatten().reduce(f64::max)
    }

    /// Returns the rate that the path showed in the last intervals, or in the last full ones.
    fn shown_lately_bps(&self) -> Option<f64> {
        let is_enough = self.full_bps.len() >= RATE_POSITION * RATES_PER_POSITION;
        let full_bps = high_rate(&self.full_bps).filter(|_| is_enough);
        let rates = [high_rate(&self.rates_bps), full_bps].into_iter();
        let rate_bps = rates.flatten().reduce(f64::max);
        rate_bps.filter(|_| self.shown_at_ns > 0)
    }

    /// Returns the rate that the path showed last, if it is not the first guess at a stream that
    /// starts.
    pub fn firm_bps(&self) -> Option<f64> {
        let is_firm = self.rates_bps.len() >= RATE_POSITION * RATES_PER_POSITION;
        self.measured_bps()
            .filter(|_| is_firm || self.tried.is_some())
    }

    /// Returns a rate that the path has at least, over a link of `link_bps`, and whether it is
    /// measured. Before a measurement, it is twice the rate at which bytes arrive.
    pub fn least_bps(&self, link_bps: f64, now_ns: u64) -> (f64, bool) {
        let guess_bps = (2.0 * self.latest_bps(now_ns)).max(GUESS_LEAST_BPS);
        match self.measured_bps() {
            Some(rate_bps) => (rate_bps, true),
            None => (guess_bps.min(link_bps), false),
        }
    }

    /// Returns the rate at which bytes arrived lately.
    pub fn latest_bps(&self, now_ns: u64) -> f64 {
        let (rate_bps, at_ns) = self.latest;
        match now_ns < at_ns + FORGET_NS / 10 {
            true => rate_bps,
            false => 0.0,
        }
    }
}

/// Returns the rate that counts among those of intervals, unless they are too few.
fn high_rate(rates_bps: &VecDeque<f64>) -> Option<f64> {
    let mut sorted_bps: Vec<f64> = rates_bps.iter().copied().collect();
    sorted_bps.sort_unstable_by(|one, other| other.total_cmp(one));
    let position = (sorted_bps.len() / RATES_PER_POSITION).min(RATE_POSITION);
    let rate_bps = sorted_bps.get(position).copied();
    rate_bps.filter(|_| sorted_bps.len() >= RATES_LEAST)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const MS: u64 = 1_000_000;

    /// A path and what arrived on it. Answers come every 2 ms.
    #[derive(Debug, Default)]
    pub struct Fed {
        pub drain: Drain,
        pub now_ms: u64,
        received: u64,
    }

    impl Fed {
        /// Carries this rate for a time, while `waiting_bytes` are on the way.
        pub fn feed(&mut self, mbps: u64, time_ms: u64, waiting_bytes: u64) {
            for _ in (0..time_ms).step_by(2) {
                self.now_ms += 2;
                self.received += mbps * 250;
                let answer = answer_at(self.now_ms * MS, self.received, 0);
                self.drain.note(answer, self.received + waiting_bytes, 1e10);
            }
        }
    }

    /// Time of a step of [`run`], in ns, and steps between two questions.
    const STEP_NS: u64 = 100_000;
    const QUESTION_STEPS: u64 = 20;

    /// Offers `offered_bps` to a path that carries `bps` and loses a packet of 1500 bytes in each
    /// step of `lossy`, for this time. Returns for each answer by how much the drain is wrong about
    /// the bytes that left the path.
    fn run(
        drain: &mut Drain,
        (bps, offered_bps): (u64, u64),
        lossy: std::ops::Range<u64>,
        time_ns: u64,
    ) -> Vec<i64> {
        let step_bytes = |bps: u64| bps / 8 * STEP_NS / 1_000_000_000;
        let (mut sent, mut left, mut lost) = (0, 0, 0);
        let mut markers = VecDeque::new();
        let mut errors = Vec::new();
        for step in 1..time_ns / STEP_NS {
            if step % QUESTION_STEPS == 0 {
                markers.push_back(sent);
            }
            sent += step_bytes(offered_bps);
            left += step_bytes(bps).min(sent - left);
            lost += if lossy.contains(&step) { 1500 } else { 0 };
            while let Some(marker) = markers.pop_front_if(|marker| *marker < left) {
                let answer = Answer {
                    asked_at_ns: step * STEP_NS,
                    sent_bytes: marker,
                    received_bytes: left - lost,
                    answered_at_ns: 77 * MS + step * STEP_NS,
                    arrived_at_ns: step * STEP_NS,
                    check: 0,
                };
                let drained = drain.note(answer, sent, 1e9);
                errors.push(drained.left_bytes as i64 - left as i64);
            }
        }
        errors
    }

    /// Returns the answer to a question that a peer without delay answers.
    fn answer_at(ns: u64, received_bytes: u64, sent_bytes: u64) -> Answer {
        Answer {
            asked_at_ns: ns,
            sent_bytes,
            received_bytes,
            answered_at_ns: ns,
            arrived_at_ns: ns,
            check: 0,
        }
    }

    #[test]
    fn drain__path_slower_than_its_link__has_the_rate_at_which_bytes_arrive() {
        let mut drain = Drain::default();
        run(&mut drain, (400_000_000, 600_000_000), 0..0, 200 * MS);
        let rate_bps = drain.rate_bps(1e9, 200 * MS);
        assert!((rate_bps - 4e8).abs() < 2e7, "{rate_bps}");
        assert_eq!(drain.firm_bps(), Some(rate_bps));
        assert_eq!(drain.rate_bps(1e9, 3_000 * MS), 1e9, "it is forgotten");
    }

    #[test]
    fn drain__stream_that_starts__has_its_highest_rate_and_is_not_firm() {
        let mut drain = Drain::default();
        let mut received = 0;
        // Rates in Mb/s of a path of 100 Mb/s. Enough bytes wait from the beginning.
        for (number, mbps) in (1..).zip([43, 99, 98, 99, 43, 99, 99]) {
            received += mbps * 500;
            let answer = answer_at(number * 4 * MS, received, 0);
            drain.note(answer, received + 200_000, 1e10);
            // The first answer begins the first interval.
            assert_eq!(drain.measured_bps().is_some(), number > 5, "{number}");
        }
        assert_eq!(drain.measured_bps(), Some(99e6));
        assert_eq!(drain.firm_bps(), None);
    }

    #[test]
    fn drain__path_that_is_not_full__keeps_the_rate_of_its_link() {
        let mut drain = Drain::default();
        run(&mut drain, (900_000_000, 300_000_000), 0..0, 200 * MS);
        assert_eq!(drain.rate_bps(1e9, 200 * MS), 1e9);
    }

    /// Feeds a path of 20 Mb/s on which 6 KB are on the way, so that questions wait for `queue_ns`.
    fn feed_slowly(drain: &mut Drain, queue_ns: u64) {
        drain.note(answer_at(2 * MS, 0, 0), 0, 1e10);
        for number in 2..200 {
            let received = number * 5_000;
            let answer = Answer {
                asked_at_ns: number * 2 * MS - queue_ns,
                ..answer_at(number * 2 * MS, received, received - 6_000)
            };
            drain.note(answer, received + 6_000, 1e10);
        }
    }

    #[test]
    fn drain__slow_path_with_few_bytes_waiting__shows_its_rate() {
        let mut drain = Drain::default();
        feed_slowly(&mut drain, 2_400_000);
        assert!(drain.is_known(400 * MS));
        let rate_bps = drain.rate_bps(1e10, 400 * MS);
        assert!((rate_bps - 20e6).abs() < 1e6, "{rate_bps}");
    }

    #[test]
    fn drain__light_traffic_without_a_queue__shows_no_rate() {
        let mut drain = Drain::default();
        feed_slowly(&mut drain, 0);
        assert!(!drain.is_known(400 * MS) && drain.rates_bps.is_empty());
        assert!(!drain.is_doubtful(1e10, 400 * MS));
    }

    #[test]
    fn drain__path_that_gets_less_than_it_carries__is_not_taken_for_slower() {
        // A path of 200 Mb/s is full, and then gets bursts of 48 KB every 8 ms: 48 Mb/s.
        let mut fed = Fed::default();
        fed.feed(200, 400, 100_000);
        let before_bps = fed.drain.measured_bps().unwrap();
        for _ in 0..100 {
            fed.feed(96, 4, 30_000);
            fed.feed(0, 4, 0);
        }
        assert_eq!(fed.drain.measured_bps(), Some(before_bps));
        assert!(fed.drain.is_known(fed.now_ms * MS));
        // It carries less only now.
        fed.feed(150, 300, 30_000);
        assert_eq!(fed.drain.measured_bps(), Some(150e6));
        // Or more.
        fed.feed(180, 16, 0);
        assert_eq!(fed.drain.measured_bps(), Some(180e6));
    }

    #[test]
    fn drain__messages_with_pauses__show_the_rate_of_the_path() {
        // Each 20 ms a message leaves, for 10 ms of the path. Answers come every 2.1 ms.
        let (mut drain, rate_bps) = (Drain::default(), 1e9);
        let message_bytes = 1_250_000_u64;
        let arrived = |ns: u64| {
            let into = (ns % (20 * MS)) as f64 * rate_bps / 8e9;
            ns / (20 * MS) * message_bytes + (into as u64).min(message_bytes)
        };
        for number in 1..100_u64 {
            let now_ns = number * 2_100_000;
            let sent = (now_ns / (20 * MS) + 1) * message_bytes;
            drain.note(answer_at(now_ns, arrived(now_ns), 0), sent, 1e10);
        }
        let shown_bps = drain.rate_bps(1e10, 210 * MS);
        assert!((shown_bps - 1e9).abs() < 1e7, "{shown_bps}");
    }

    #[test]
    fn drain__bytes_lost__do_not_wait() {
        let mut drain = Drain::default();
        let errors = run(&mut drain, (900_000_000, 300_000_000), 500..1500, 200 * MS);
        // Each answer comes after the frames of a step that it does not count.
        let worst = errors.iter().map(|error| error.abs()).max();
        assert!(worst < Some(3750 + 20 * 1500), "{worst:?}");
        assert!(errors.last().unwrap().abs() <= 3750, "{errors:?}");
    }

    #[test]
    fn drain__either_side_counts_from_0_again__follows() {
        let mut drain = Drain::default();
        let mut note = |received, marker, sent, at: u64| {
            let answer = answer_at(at * MS, received, marker);
            drain.note(answer, sent, 1e9).left_bytes
        };
        assert_eq!(note(1000, 1000, 1000, 2), 1000);
        // The peer restarted: 500 bytes are on the way.
        assert_eq!(note(0, 1000, 1500, 4), 1000);
        assert_eq!(note(500, 1500, 1500, 6), 1500);
        // This side restarted.
        assert_eq!(note(700, 0, 200, 8), 200);
        assert_eq!(note(700, 200, 900, 10), 200);
    }

    #[test]
    fn drain__counts_of_a_mad_peer__do_no_harm() {
        let mut drain = Drain::default();
        for (received, marker, at_ns) in
            [(u64::MAX, 0, 0), (0, u64::MAX, u64::MAX), (1 << 63, 5, 9)]
        {
            let answer = Answer {
                asked_at_ns: at_ns,
                answered_at_ns: at_ns,
                ..answer_at(5 * MS, received, marker)
            };
            let drained = drain.note(answer, 1000, 1e9);
            assert!(drained.left_bytes <= 1000 && drained.rate_bps.is_finite());
        }
    }

    #[test]
    fn drain__answer_that_took_longer__is_older() {
        let mut drain = Drain::default();
        let mut drained = |arrived: u64, answered: u64| {
            let answer = Answer {
                asked_at_ns: arrived * MS - 2000,
                answered_at_ns: answered * MS,
                ..answer_at(arrived * MS, 0, 0)
            };
            drain.note(answer, 0, 1e9)
        };
        assert_eq!(drained(100, 7).travel_ns, 1000);
        assert_eq!(drained(102, 9).at_ns, 102 * MS - 1000);
        assert_eq!(drained(105, 9).at_ns, 102 * MS - 1000);
    }
}
