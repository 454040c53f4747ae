//! Whether a path to a peer works (paper §4.4, §7.2).
//!
//! ```text
//!          ack                silence while          still silent
//!   New ────────▶ Up ◀──────▶ Suspect ─────────────▶ Down
//!                 │ ▲   ack   others are heard        │
//!       heavy loss│ └─────────────────────────────────┘ acks without a break for READMIT × 2^k
//!                 ▼                                   │
//!            Quarantined ─────────────────────────────┘
//! ```
//!
//! A path is suspected by comparison: what was sent on it *before* something that another path has
//! delivered is still unacknowledged. That is the paper's counter rule with the receiver's reports
//! in place of received-packet counts, so a busy or stopped peer accuses nobody. Suspicion is
//! cheap (the path rests, its open units go elsewhere) and an acknowledgement ends it. The paper's
//! open problem (2), a path that half works and flaps, is answered by re-admission that doubles
//! its patience with each recent failure. Patience is for those who can choose: a path that is down
//! and answers is used at once if no other is in use.

/// Silence after which a path is suspected, at least.
pub const SUSPECT_NS: u64 = 12_000_000;
/// Silence after which a suspect is down, at least.
pub const DOWN_NS: u64 = 40_000_000;
/// Silence after which a path is down even when nothing shows that others do better.
const SILENCE_MAX_NS: u64 = 300_000_000;
/// How long a path must answer without a break before it is used again, the first time.
pub const READMIT_NS: u64 = 200_000_000;
/// Patience grows at most to `READMIT_NS × 2^8` = 51 s.
const PATIENCE_MAX: u32 = 8;
/// A failure is forgiven after this long without another.
const FORGIVE_NS: u64 = 60_000_000_000;
/// A pause between acks that starts the waiting over.
const BREAK_NS: u64 = 150_000_000;
/// Share of packets lost above which a path is quarantined.
pub const QUARANTINE_LOSS: f64 = 0.10;

/// Where a path stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing has been acknowledged on it yet.
    New,
    /// In use.
    Up,
    /// Silent while others are heard; resting.
    Suspect,
    /// Taken to be broken; probed.
    Down,
    /// Answers, but loses too much to be used; probed.
    Quarantined,
}

impl State {
    /// The name in output.
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

/// Why a path changed its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The peer acknowledged something.
    Acknowledged,
    /// Silence, while other paths were heard or for very long.
    Silent,
    /// The NIC lost its carrier or was taken down.
    Carrier,
    /// Too many packets lost.
    Loss,
    /// It answered long enough without a break.
    Healed,
    /// It answered, and no other path to the peer was in use.
    LastResort,
    /// The peer said goodbye.
    Goodbye,
}

impl Reason {
    /// The name in output.
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

/// A change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub from: State,
    /// After.
    pub to: State,
    /// Why.
    pub reason: Reason,
}

/// The state machine of one path.
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
    /// Where the path stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// How often it failed recently.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The peer has restarted: the silence was its own, not the path's.
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

    /// The peer said goodbye: the path begins anew with the peer's next instance.
    pub fn handle_goodbye(&mut self) -> Option<Change> {
        let change = self.change(State::New, Reason::Goodbye);
        *self = Self::default();
        change
    }

    /// The peer acknowledged something sent on the path. `alone`: no other path to it is in use.
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

    /// The oldest unacknowledged datagram is `silent_ns` old; `overtaken`: another path delivered
    /// what was sent after it.
    pub fn handle_silence(
        &mut self,
        now_ns: u64,
        silent_ns: u64,
        rtt_ns: u64,
        overtaken: bool,
    ) -> Option<Change> {
        // A path with a long queue acknowledges late but goes on doing so; a dead one stops.
        let silent_ns = silent_ns.min(now_ns.saturating_sub(self.acked_at_ns));
        let suspect_after_ns = SUSPECT_NS.max(2 * rtt_ns + SUSPECT_NS / 2);
        let down_after_ns = DOWN_NS.max(2 * rtt_ns + SUSPECT_NS);
        match self.state {
            State::Up if overtaken && silent_ns > suspect_after_ns => {
                self.change(State::Suspect, Reason::Silent)
            }
            State::Suspect if overtaken && silent_ns > down_after_ns => {
                self.fail(now_ns, State::Down, Reason::Silent)
            }
            State::Up | State::Suspect if silent_ns > SILENCE_MAX_NS.max(6 * rtt_ns) => {
                self.fail(now_ns, State::Down, Reason::Silent)
            }
            _ => None,
        }
    }

    /// The NIC under the path lost its carrier.
    pub fn handle_carrier_loss(&mut self, now_ns: u64) -> Option<Change> {
        self.fail(now_ns, State::Down, Reason::Carrier)
    }

    /// The share of packets lost over the last while.
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

    fn up() -> Liveness {
        let mut liveness = Liveness::default();
        liveness.handle_ack(0, false);
        liveness
    }

    /// Acks every 50 ms from `from` until the path is up; gives when that was.
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
    fn liveness__silence_while_others_are_heard__is_down_within_50_ms() {
        let mut liveness = up();
        assert_eq!(
            liveness.handle_silence(20 * MS, 20 * MS, MS, false),
            None,
            "the peer may be busy"
        );
        let change = liveness.handle_silence(20 * MS, 20 * MS, MS, true).unwrap();
        assert_eq!((change.to, change.reason), (State::Suspect, Reason::Silent));
        assert_eq!(
            liveness
                .handle_silence(45 * MS, 45 * MS, MS, true)
                .unwrap()
                .to,
            State::Down
        );
    }

    #[test]
    fn liveness__long_queue_that_moves__is_not_suspected() {
        let mut liveness = up();
        for step in 0..100 {
            liveness.handle_ack(step * 4 * MS, false);
            let now_ns = (step * 4 + 3) * MS;
            assert_eq!(liveness.handle_silence(now_ns, 30 * MS, MS, true), None);
        }
    }

    #[test]
    fn liveness__ack_ends_suspicion__without_a_failure() {
        let mut liveness = up();
        liveness.handle_silence(20 * MS, 20 * MS, MS, true);
        assert_eq!(liveness.handle_ack(21 * MS, false).unwrap().to, State::Up);
        assert_eq!(liveness.failures(), 0);
    }

    #[test]
    fn liveness__first_failure__is_readmitted_within_a_quarter_second() {
        let mut liveness = up();
        liveness.handle_carrier_loss(1000 * MS);
        assert!(heal(&mut liveness, 5000 * MS) <= 5250 * MS);
    }

    #[test]
    fn liveness__flapper__is_left_alone_after_few_flaps() {
        let mut liveness = up();
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
    fn liveness__nothing_else_in_use__is_used_as_soon_as_it_answers() {
        let mut liveness = up();
        for second in 1..10u64 {
            liveness.handle_carrier_loss(second * 1000 * MS);
            let change = liveness.handle_ack((second * 1000 + 500) * MS, true);
            assert_eq!(change.map(|c| c.reason), Some(Reason::LastResort));
        }
    }

    #[test]
    fn liveness__heavy_loss__is_quarantined_and_one_percent_is_not() {
        let mut liveness = up();
        assert_eq!(liveness.handle_loss(0, 0.01), None);
        assert_eq!(liveness.handle_loss(0, 0.2).unwrap().to, State::Quarantined);
        for step in 0..100 {
            liveness.handle_ack(step * 10 * MS, false);
            liveness.handle_loss(step * 10 * MS, 0.2);
        }
        assert_eq!(liveness.state(), State::Quarantined);
    }
}
