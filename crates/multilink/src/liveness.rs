//! State machine that decides whether a path delivers (RI2N/DRV §4.4 and §7.2).
//!
//! ```text
//!            ack               overtaken and s > S
//!   New ────────────▶ Up ───────────────────────────▶ Suspect
//!                    ▲ │  ◀─────────── ack ───────────    │
//!                    │ │                                  │ overtaken and s > D,
//!             healed │ │ loss > Q                         │ or s > M
//!                    │ ▼                                  ▼
//!               Quarantined            Up ── s > M ────▶ Down
//!                                      Up ◀─ healed, ─── Down
//!                                            or ack if alone
//!   any state ── carrier lost ──▶ Down
//!   any state ── goodbye ───────▶ New
//! ```
//!
//! ```text
//! s = min(age of the oldest datagram without a report, time since the last ack)
//! S = max(SUSPECT_NS,     e + SUSPECT_NS / 2)        e: time within which an answer is due
//! D = max(DOWN_NS,        e + SUSPECT_NS)
//! M = max(SILENCE_MAX_NS, 3 e)
//! e = 2 r            r: smoothed round trip of the daemons
//!     q + 4 v        q: smoothed round trip of questions to kernels; v: its deviation
//! Q = QUARANTINE_LOSS
//! H = READMIT_NS × 2^min(max(f − 1, 0), PATIENCE_MAX)      f: failures
//! ```
//!
//! - *ack*: the peer reported that a datagram of this path arrived. The caller passes it on for a
//!   path out of use only if the path has been shown to carry full datagrams.
//! - *overtaken*: another path delivered a datagram that was sent more than 4 ms + max(e − e₂, 0)/2
//!   later, or a question more than 2 ms + the same, unless data of the daemon is open on
//!   this path. e₂ is e of that path.
//! - *healed*: acks have arrived for the time H without a pause of more than `BREAK_NS`. In
//!   Quarantined, a loss above Q/4 starts the time again.
//! - *alone*: no other path to the peer is Up or Suspect.
//! - *failure*: a change from Up or Suspect to Down or Quarantined. The count restarts at a failure
//!   that is more than `FORGIVE_NS` after the one before, and when the peer restarts.
//!
//! # Reasons
//!
//! Suspicion is a comparison of paths. A datagram of this path is still unacknowledged, although
//! another path has delivered one that was sent later. This is the counter rule of RI2N/DRV, with
//! the receiver's reports in place of counts of received packets. A busy or stopped peer therefore
//! raises no suspicion. Suspicion is cheap: the path rests, its open units move to other paths, and
//! an ack ends it.
//!
//! RI2N/DRV leaves open a path that half works and flaps (its open problem 2). Here each recent
//! failure doubles the time H before the path is used again. The wait only makes sense with an
//! alternative. A path that is Down and answers is used at once if no other path is in use.
//!
//! # Constants
//!
//! | | value | origin |
//! |---|---|---|
//! | `SUSPECT_NS` | 12 ms | judgement; equals three report intervals of 4 ms |
//! | `DOWN_NS` | 40 ms | judgement; a unit test requires Down within 50 ms |
//! | `SILENCE_MAX_NS` | 300 ms | judgement; equals three heartbeats of 100 ms |
//! | 2 r in D | | commit of 2026-11-22: 4 r found a blackhole after 86 ms at r = 18 ms |
//! | `READMIT_NS` | 200 ms | judgement; equals four pings of a path that is down (50 ms) |
//! | `BREAK_NS` | 150 ms | judgement; equals three such pings |
//! | `PATIENCE_MAX` | 8 | judgement; H is 51.2 s at most |
//! | `FORGIVE_NS` | 60 s | judgement; longer than the longest H |
//! | `QUARANTINE_LOSS` | 10 % | below the share that repairs may take (12.5 %) |
//!
//! Repairs must cover a loss of 1 %: bench plan `link-failover`, case `lossy`.

/// Least silence after which a path is suspected, in ns.
pub const SUSPECT_NS: u64 = 12_000_000;
/// Least silence after which a suspect is down, in ns.
pub const DOWN_NS: u64 = 40_000_000;
/// Least silence after which a path is down although no other path delivers more, in ns.
const SILENCE_MAX_NS: u64 = 300_000_000;
/// Time for which a path must answer without a break before it is used again, after the first
/// failure, in ns.
pub const READMIT_NS: u64 = 200_000_000;
/// Largest exponent of the time before re-admission: `READMIT_NS × 2^8` = 51.2 s.
const PATIENCE_MAX: u32 = 8;
/// Time after a failure at which the next one counts as the first, in ns.
const FORGIVE_NS: u64 = 60_000_000_000;
/// Pause between acks that restarts the time before re-admission, in ns.
const BREAK_NS: u64 = 150_000_000;
/// Share of packets lost above which a path is quarantined.
pub const QUARANTINE_LOSS: f64 = 0.10;

/// Limits of silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The daemon sends the data, so reports come every few ms.
    Usual,
    /// The peer's kernel answers questions, which leave every 2 ms under load and wait behind no
    /// data of the daemon. One may be lost. S has a third of its constant, and D half.
    Quick,
}

impl Pace {
    /// Returns S and D of the module's table without their terms of the round trip, in ns.
    const fn limits_ns(self) -> (u64, u64) {
        match self {
            Self::Usual => (SUSPECT_NS, DOWN_NS),
            Self::Quick => (SUSPECT_NS / 3, DOWN_NS / 2),
        }
    }
}

/// State of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No datagram has been acknowledged on the path yet.
    New,
    /// In use: carries data.
    Up,
    /// Silent while other paths deliver. Carries data only if no path is up.
    Suspect,
    /// Considered broken. Pinged, carries no data.
    Down,
    /// Answers, but loses too many datagrams. Carries data only if there is no better path.
    Quarantined,
}

impl State {
    /// Returns the name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::Quarantined => "quarantined",
        }
    }
}

/// Reason for a change of a path's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The peer acknowledged a datagram.
    Acknowledged,
    /// No report came for too long while other paths delivered, or for very long.
    Silent,
    /// The NIC lost its carrier or was taken down.
    Carrier,
    /// Too many datagrams were lost.
    Loss,
    /// The path answered long enough without a break.
    Healed,
    /// The path answered, and no other path to the peer was in use.
    LastResort,
    /// The peer sent a goodbye.
    Goodbye,
}

impl Reason {
    /// Returns the name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Silent => "silent",
            Self::Carrier => "carrier",
            Self::Loss => "loss",
            Self::Healed => "healed",
            Self::LastResort => "last-resort",
            Self::Goodbye => "goodbye",
        }
    }
}

/// Change of a path's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// State before the change.
    pub from: State,
    /// State after the change.
    pub to: State,
    /// Cause of the change.
    pub reason: Reason,
}

/// Liveness of one path.
#[derive(Debug, Clone)]
pub struct Liveness {
    state: State,
    failures: u32,
    failed_at_ns: u64,
    healing_since_ns: Option<u64>,
    acked_at_ns: u64,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            state: State::New,
            failures: 0,
            failed_at_ns: 0,
            healing_since_ns: None,
            acked_at_ns: 0,
        }
    }
}

impl Liveness {
    /// Returns the present state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the failures that are not forgotten.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Forgets the failures because the peer has restarted: the silence was the peer's, not the
    /// path's.
    pub fn forgive(&mut self) {
        self.failures = 0;
    }

    fn change(&mut self, to: State, reason: Reason) -> Option<Change> {
        let from = std::mem::replace(&mut self.state, to);
        (from != to).then_some(Change { from, to, reason })
    }

    fn fail(&mut self, now_ns: u64, to: State, reason: Reason) -> Option<Change> {
        if matches!(self.state, State::Up | State::Suspect) {
            if now_ns.saturating_sub(self.failed_at_ns) > FORGIVE_NS {
                self.failures = 0;
            }
            self.failures += 1;
            self.failed_at_ns = now_ns;
        }
        self.healing_since_ns = None;
        self.change(to, reason)
    }

    fn patience_ns(&self) -> u64 {
        READMIT_NS << self.failures.saturating_sub(1).min(PATIENCE_MAX)
    }

    /// Handles the peer's goodbye: the path starts anew with the peer's next epoch.
    pub fn handle_goodbye(&mut self) -> Option<Change> {
        let change = self.change(State::New, Reason::Goodbye);
        *self = Self::default();
        change
    }

    /// Handles an acknowledgement of a datagram sent on the path. `alone`: no other path to the
    /// peer is in use.
    pub fn handle_ack(&mut self, now_ns: u64, alone: bool) -> Option<Change> {
        let pause_ns = now_ns.saturating_sub(self.acked_at_ns);
        self.acked_at_ns = now_ns;
        match self.state {
            State::New | State::Suspect => self.change(State::Up, Reason::Acknowledged),
            State::Up => None,
            State::Down if alone => self.change(State::Up, Reason::LastResort),
            State::Down | State::Quarantined => {
                if pause_ns > BREAK_NS || self.healing_since_ns.is_none() {
                    self.healing_since_ns = Some(now_ns);
                }
                let healing_ns = now_ns - self.healing_since_ns.expect("just set");
                if healing_ns < self.patience_ns() {
                    return None;
                }
                self.change(State::Up, Reason::Healed)
            }
        }
    }

    /// Handles silence. `silent_ns` is the age of the oldest datagram without a report, and
    /// `due_ns` the time within which one is due. `overtaken`: another path delivered a datagram
    /// that was sent later.
    pub fn handle_silence(
        &mut self,
        now_ns: u64,
        silent_ns: u64,
        due_ns: u64,
        overtaken: bool,
        pace: Pace,
    ) -> Option<Change> {
        // A path with a long queue acknowledges late but steadily; a dead path stops.
        let silent_ns = silent_ns.min(now_ns.saturating_sub(self.acked_at_ns));
        let (suspect_ns, down_ns) = pace.limits_ns();
        let suspect_after_ns = suspect_ns.max(due_ns + suspect_ns / 2);
        let down_after_ns = down_ns.max(due_ns + suspect_ns);
        match self.state {
            State::Up if overtaken && silent_ns > suspect_after_ns => {
                self.change(State::Suspect, Reason::Silent)
            }
            State::Suspect if overtaken && silent_ns > down_after_ns => {
                self.fail(now_ns, State::Down, Reason::Silent)
            }
            State::Up | State::Suspect if silent_ns > SILENCE_MAX_NS.max(3 * due_ns) => {
                self.fail(now_ns, State::Down, Reason::Silent)
            }
            _ => None,
        }
    }

    /// Handles the loss of the carrier of the local NIC.
    pub fn handle_carrier_loss(&mut self, now_ns: u64) -> Option<Change> {
        self.fail(now_ns, State::Down, Reason::Carrier)
    }

    /// Handles the smoothed share of packets lost (0–1).
    pub fn handle_loss(&mut self, now_ns: u64, share: f64) -> Option<Change> {
        match self.state {
            State::Up if share > QUARANTINE_LOSS => {
                self.fail(now_ns, State::Quarantined, Reason::Loss)
            }
            State::Quarantined if share > QUARANTINE_LOSS / 4.0 => {
                self.healing_since_ns = None;
                None
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn path_up() -> Liveness {
        let mut liveness = Liveness::default();
        liveness.handle_ack(0, false);
        liveness
    }

    /// Acknowledges every 50 ms from `from_ns` until the path is up. Returns that time, in ns.
    fn heal(liveness: &mut Liveness, from_ns: u64) -> u64 {
        (0..2000)
            .map(|step| from_ns + step * 50 * MS)
            .find(|now| {
                liveness.handle_ack(*now, false);
                liveness.state() == State::Up
            })
            .expect("a path that answers is used again")
    }

    #[test]
    fn liveness__silent_path_while_others_are_heard__is_down_within_50_ms() {
        let mut liveness = path_up();
        assert_eq!(
            liveness.handle_silence(20 * MS, 20 * MS, MS, false, Pace::Usual),
            None,
            "the peer may be busy"
        );
        let change = liveness
            .handle_silence(20 * MS, 20 * MS, MS, true, Pace::Usual)
            .unwrap();
        assert_eq!((change.to, change.reason), (State::Suspect, Reason::Silent));
        assert_eq!(
            liveness
                .handle_silence(45 * MS, 45 * MS, MS, true, Pace::Usual)
                .unwrap()
                .to,
            State::Down
        );
    }

    #[test]
    fn liveness__long_but_draining_queue__is_not_suspected() {
        let mut liveness = path_up();
        for step in 0..100 {
            liveness.handle_ack(step * 4 * MS, false);
            let now_ns = (step * 4 + 3) * MS;
            assert_eq!(
                liveness.handle_silence(now_ns, 30 * MS, MS, true, Pace::Usual),
                None
            );
        }
    }

    #[test]
    fn liveness__ack_on_a_suspect_path__restores_it_without_counting_a_failure() {
        let mut liveness = path_up();
        liveness.handle_silence(20 * MS, 20 * MS, MS, true, Pace::Usual);
        assert_eq!(liveness.handle_ack(21 * MS, false).unwrap().to, State::Up);
        assert_eq!(liveness.failures(), 0);
    }

    #[test]
    fn liveness__path_after_its_first_failure__heals_within_a_quarter_second() {
        let mut liveness = path_up();
        liveness.handle_carrier_loss(1000 * MS);
        assert!(heal(&mut liveness, 5000 * MS) <= 5250 * MS);
    }

    #[test]
    fn liveness__path_flapping_at_1_hz__is_used_less_than_1_s_of_60() {
        let mut liveness = path_up();
        let mut used_ms = 0;
        for second in 1..60u64 {
            liveness.handle_carrier_loss(second * 1000 * MS);
            for step in 0..10 {
                liveness.handle_ack((second * 1000 + 500 + step * 50) * MS, false);
                used_ms += if liveness.state() == State::Up { 50 } else { 0 };
            }
        }
        assert!(
            used_ms < 1000,
            "a 1 Hz flapper was used for {used_ms} ms of 60 s"
        );
    }

    #[test]
    fn liveness__only_remaining_path__is_used_as_soon_as_it_answers() {
        let mut liveness = path_up();
        for second in 1..10u64 {
            liveness.handle_carrier_loss(second * 1000 * MS);
            let change = liveness.handle_ack((second * 1000 + 500) * MS, true);
            assert_eq!(change.map(|c| c.reason), Some(Reason::LastResort));
        }
    }

    #[test]
    fn liveness__heavy_loss__is_quarantined_and_one_percent_is_not() {
        let mut liveness = path_up();
        assert_eq!(liveness.handle_loss(0, 0.01), None);
        assert_eq!(liveness.handle_loss(0, 0.2).unwrap().to, State::Quarantined);
        for step in 0..100 {
            liveness.handle_ack(step * 10 * MS, false);
            liveness.handle_loss(step * 10 * MS, 0.2);
        }
        assert_eq!(liveness.state(), State::Quarantined);
    }
}
