//! State of one peer: its sessions, the paths to it, the data in flight to it and the data received
//! from it.

mod candidates;
mod deliver;
mod direct;
mod pairing;
mod pulse;
mod repair;
mod reporting;
mod send;

pub use direct::{Alias, Way};

use core::net::SocketAddr;
use std::collections::VecDeque;

use crate::bottleneck::Bottleneck;
use crate::direct::Direct;
use crate::event::Event;
use crate::flow::FLOW_BUCKETS;
use crate::frame::{Frame, FramePool};
use crate::handshake::{Initiator, Keys};
use crate::link::LocalLink;
use crate::liveness::{Change, State};
use crate::loss::LossMeter;
use crate::path::Path;
use crate::reorder::{HOLD_MAX_NS, Reorder};
use crate::retain::{Retained, UnitRef};
use crate::session::{LINK_PACKETS_MAX, OVERLAP_NS, Session};
use crate::wire::{LINKS_MAX, Params, Report};

/// Time for which a path counts as active after a datagram was last sent on it that the peer
/// reports, in ns.
const ACTIVE_NS: u64 = 100_000_000;

/// Local links, by number.
pub(crate) type Links = [Option<LocalLink>];

/// Parts of the endpoint that all its peers use.
pub(crate) struct Shared<'a> {
    pub(crate) now_ns: u64,
    pub(crate) links: &'a mut Links,
    pub(crate) pool: &'a mut FramePool,
    pub(crate) frames: &'a mut VecDeque<Frame>,
    pub(crate) events: &'a mut VecDeque<Event>,
}

/// A handshake that this side began.
pub(crate) struct Dial {
    pub(crate) initiator: Initiator,
    pub(crate) sent_at_ns: u64,
    /// Local link and destination address of the Init.
    pub(crate) target: (u8, SocketAddr),
}

/// A session that this side has made and the peer has not yet used.
pub(crate) struct Next {
    pub(crate) session: Session,
    pub(crate) params: Params,
    /// True if the sender of the handshake message proved its address, so that the message is not a
    /// recording.
    pub(crate) is_proven: bool,
}

/// Largest number of sessions that wait to be used. A recorded Init gets a Reply that is of no use
/// to its sender. The session of a genuine Init must survive a few of those.
const NEXT_MAX: usize = 4;
/// Past epochs (`instance`) of a peer that are remembered, so that recordings of them are
/// recognized.
const RETIRED_MAX: usize = 16;

/// State of one peer.
pub(crate) struct Peer {
    pub(crate) params: Params,
    /// Largest unit payload that the links of both sides take, in bytes.
    unit_limit: usize,
    /// Largest unit payload that the paths in use carry, in bytes.
    pub(crate) unit_bytes_max: usize,
    /// Session to send with.
    pub(crate) current: Option<Session>,
    /// Session before the last renewal, whose packets are still accepted.
    pub(crate) previous: Option<Session>,
    /// Sessions that wait for the peer to use them.
    pub(crate) next: Vec<Next>,
    /// Epoch of the peer with which both sides count units.
    pub(crate) associated: Option<u64>,
    retired: VecDeque<u64>,
    /// Epoch that a hello named while a session with another epoch was in use.
    doubt: Option<u64>,
    doubted_at_ns: Option<u64>,
    /// Time at which the newest hello of the epoch was sent, by the peer's clock.
    pub(crate) newest_hello_sent_ns: u64,
    /// Time until which this side does not dial, because the peer got a Reply and may send first.
    /// It does so at once or not at all.
    pub(crate) yields_until_ns: u64,
    /// Session of the newest packet: the next report is about it.
    pub(crate) arrival_session: u16,
    pub(crate) created_at_ns: u64,
    /// True if the peer seems to have restarted without knowledge of this session.
    pub(crate) wants_session: bool,
    pub(crate) dial: Option<Dial>,
    pub(crate) next_dial_at_ns: u64,
    pub(crate) dial_attempts: u32,
    /// `sent_at_ns` of the last handshake accepted from this epoch. Older ones are replays.
    pub(crate) newest_handshake_sent_ns: u64,
    pub(crate) paths: Vec<Path>,
    /// True after a path went down: hellos are to be sent soon, because the peer's links may be
    /// heard elsewhere now.
    pub(crate) wants_hellos: bool,
    /// True after the peer came up: another peer at its address may be its past identity.
    pub(crate) is_newly_up: bool,
    /// Time at which the last authentic datagram arrived.
    pub(crate) heard_at_ns: u64,
    pub(crate) is_up: bool,

    next_unit: u64,
    /// One past the last unit of each flow's last frame; 0: no frame yet.
    flow_ends: Vec<u64>,
    pub(crate) retained: Retained,
    repair_budget_bytes: f64,
    pub(crate) repair_queue: VecDeque<UnitRef>,
    /// Time at which a data unit was last sent or received. An idle peer is pinged less often.
    active_at_ns: u64,

    pub(crate) reorder: Reorder,
    report: Report,
    report_seq: u32,
    reported_at_ns: u64,
    report_due_ns: Option<u64>,
    newest_report_seq: Option<u32>,
    silence_checked_ns: u64,
}

impl Peer {
    pub(crate) fn new(params: Params, now_ns: u64) -> Self {
        let mut paths = Vec::new();
        paths.resize_with(LINKS_MAX, Path::default);
        Self {
            unit_limit: usize::from(params.unit_bytes_max),
            unit_bytes_max: usize::from(params.unit_bytes_max),
            params,
            current: None,
            previous: None,
            next: Vec::new(),
            associated: None,
            retired: VecDeque::new(),
            doubt: None,
            doubted_at_ns: None,
            newest_hello_sent_ns: 0,
            yields_until_ns: 0,
            arrival_session: 0,
            created_at_ns: now_ns,
            wants_session: false,
            dial: None,
            next_dial_at_ns: now_ns,
            dial_attempts: 0,
            newest_handshake_sent_ns: 0,
            paths,
            wants_hellos: false,
            is_newly_up: false,
            heard_at_ns: now_ns,
            is_up: false,
            next_unit: 0,
            flow_ends: vec![0; FLOW_BUCKETS],
            retained: Retained::default(),
            repair_budget_bytes: 0.0,
            repair_queue: VecDeque::new(),
            active_at_ns: now_ns,
            reorder: Reorder::default(),
            report: Report::default(),
            report_seq: 0,
            reported_at_ns: 0,
            report_due_ns: None,
            newest_report_seq: None,
            silence_checked_ns: 0,
        }
    }

    /// Returns the session with the number `local`.
    pub(crate) fn session_mut(&mut self, local: u16) -> Option<&mut Session> {
        let next = self.next.iter_mut().map(|next| &mut next.session);
        [self.current.as_mut(), self.previous.as_mut()]
            .into_iter()
            .flatten()
            .chain(next)
            .find(|session| session.local == local)
    }

    /// Returns the numbers of all sessions.
    pub(crate) fn session_numbers(&self) -> impl Iterator<Item = u16> + '_ {
        let next = self.next.iter().map(|next| &next.session);
        [self.current.as_ref(), self.previous.as_ref()]
            .into_iter()
            .flatten()
            .chain(next)
            .map(|s| s.local)
    }

    /// Resets the state after the peer came back with another epoch. Its sequences start at 0, and
    /// so do this side's.
    fn restart(&mut self, pool: &mut FramePool) {
        self.reorder = Reorder::default();
        self.next_unit = 0;
        self.flow_ends.fill(0);
        self.newest_handshake_sent_ns = 0;
        self.newest_report_seq = None;
        self.settle_all(pool);
        (self.current, self.previous) = (None, None);
        for path in &mut self.paths {
            path.liveness.forgive();
            path.direct = Direct::default();
        }
    }

    /// Handles the end of the peer's epoch. It is past from now on: its recordings are ignored, and
    /// only another epoch is dialled.
    pub(crate) fn handle_goodbye(&mut self, shared: &mut Shared<'_>) {
        self.restart(shared.pool);
        self.retire(self.params.instance);
        self.associated = None;
        (self.dial, self.doubt) = (None, None);
        self.wants_session = false;
        let instance = self.params.instance;
        self.next.retain(|next| next.params.instance != instance);
        for link in 0..self.paths.len() as u8 {
            let path = &mut self.paths[usize::from(link)];
            if let Some(change) = path.liveness.handle_goodbye() {
                self.apply(link, change, shared);
            }
        }
    }

    fn settle_all(&mut self, pool: &mut FramePool) {
        let queued = std::mem::take(&mut self.repair_queue);
        for path in &mut self.paths {
            for unit in path.ledger.restart() {
                self.retained.settle(unit, pool);
            }
        }
        for unit in queued {
            self.retained.settle(unit, pool);
        }
    }

    /// Makes `session` the one to send with. The link sequence numbers start over with its keys.
    /// Datagrams in flight under the old keys count as received; TCP repairs those that were not.
    fn adopt(&mut self, session: Session, pool: &mut FramePool) {
        self.settle_all(pool);
        self.newest_report_seq = None;
        self.dial_attempts = 0;
        self.previous = self.current.replace(session);
        for path in &mut self.paths {
            path.newest_acked_sent_ns = 0;
        }
    }

    /// Returns whether an Init with these parameters is known to have been received before.
    pub(crate) fn is_old_init(&self, params: &Params) -> bool {
        let sent_ns = params.sent_at_ns;
        let answered = |next: &Next| {
            next.params.instance == params.instance && sent_ns <= next.params.sent_at_ns
        };
        let is_known =
            self.params.instance == params.instance && sent_ns <= self.newest_handshake_sent_ns;
        is_known || self.is_retired(params.instance) || self.next.iter().any(answered)
    }

    /// Returns whether the peer is known to have restarted since the epoch `instance`.
    pub(crate) fn is_retired(&self, instance: u64) -> bool {
        self.retired.contains(&instance)
    }

    fn retire(&mut self, instance: u64) {
        if self.retired.len() == RETIRED_MAX {
            self.retired.pop_front();
        }
        self.retired.push_back(instance);
    }

    /// Returns whether an Init with these parameters must prove its address first. That is so while
    /// other epochs that did not prove theirs hold all places for sessions. Recordings could
    /// otherwise displace the genuine session.
    pub(crate) fn needs_proof(&self, params: &Params) -> bool {
        let mut unproven = self.next.iter().filter(|next| !next.is_proven);
        let is_full = unproven.clone().count() == NEXT_MAX;
        is_full && unproven.all(|next| next.params.instance != params.instance)
    }

    /// Keeps a session until the peer uses it: the newest one of each epoch.
    pub(crate) fn await_use(&mut self, next: Next) {
        let is_same = |waiting: &Next| waiting.params.instance == next.params.instance;
        if let Some(older) = self.next.iter().position(is_same) {
            self.next.remove(older);
        } else if self.next.len() == NEXT_MAX {
            let recorded = self.next.iter().position(|next| !next.is_proven);
            self.next.remove(recorded.unwrap_or(0));
        }
        self.next.push(next);
    }

    /// Returns whether the current session is newer than the session `local` of the same epoch.
    pub(crate) fn has_newer(&self, local: u16) -> bool {
        let used = self.next.iter().find(|next| next.session.local == local);
        let current = self.current.as_ref();
        used.zip(current).is_some_and(|(used, current)| {
            used.params.instance == self.params.instance
                && used.session.made_at_ns <= current.made_at_ns
        })
    }

    /// Makes the session `local` current, after the peer has proven that it holds the keys. `own`
    /// is this side's epoch.
    pub(crate) fn confirm_next(&mut self, local: u16, own: u64, pool: &mut FramePool) {
        let number = self
            .next
            .iter()
            .position(|next| next.session.local == local);
        let Some(Next {
            session, params, ..
        }) = number.map(|number| self.next.remove(number))
        else {
            return;
        };
        // If both sides dialled at once, the peer may use another session of the same epoch.
        self.next
            .retain(|next| next.params.instance == params.instance);
        let past_epoch = self.associated.filter(|epoch| *epoch != params.instance);
        if past_epoch.is_some() || self.associated.is_some() && params.knows != own {
            self.restart(pool);
        }
        if let Some(epoch) = past_epoch {
            self.retire(epoch);
        }
        if self.params.instance != params.instance {
            self.newest_hello_sent_ns = 0;
        }
        self.associated = Some(params.instance);
        self.newest_handshake_sent_ns = self.newest_handshake_sent_ns.max(params.sent_at_ns);
        self.dial = None;
        self.params = params;
        self.wants_session = false;
        self.adopt(session, pool);
    }

    /// Retires the doubted epoch if the peer answered a later Init with a different one.
    pub(crate) fn settle_doubt(&mut self, dialled_ns: u64) {
        let is_answer = self.doubted_at_ns.is_some_and(|at_ns| dialled_ns >= at_ns);
        let doubted = self.doubt.take_if(|_| is_answer);
        if let Some(instance) = doubted.filter(|doubted| *doubted != self.params.instance) {
            self.retire(instance);
        }
    }

    /// Drops the sessions that have expired. Returns whether any session ended.
    pub(crate) fn expire_sessions(&mut self, now_ns: u64) -> bool {
        let old_count = self.session_numbers().count();
        self.next
            .retain(|next| now_ns < next.session.made_at_ns + OVERLAP_NS);
        let made_at_ns = self
            .current
            .as_ref()
            .map_or(0, |current| current.made_at_ns);
        let is_expired = self.previous.is_some() && now_ns.saturating_sub(made_at_ns) > OVERLAP_NS;
        if is_expired {
            self.previous = None;
        }
        self.session_numbers().count() < old_count
    }

    /// Returns the session `local` with the keys of a finished handshake.
    pub(crate) fn session(local: u16, params: &Params, keys: &Keys, now_ns: u64) -> Session {
        Session::new(local, params.session, params.seal, keys, now_ns)
    }

    /// Returns whether a link has carried as many packets as one key may.
    pub(crate) fn is_key_worn(&self) -> bool {
        self.paths
            .iter()
            .any(|path| path.ledger.next_seq() > LINK_PACKETS_MAX)
    }

    /// Records a change of a path's state and acts on it.
    pub(crate) fn apply(&mut self, link: u8, change: Change, shared: &mut Shared<'_>) {
        let path = &mut self.paths[usize::from(link)];
        if change.from == State::Up {
            path.counters.failures += 1;
        }
        let event = Event::Path {
            node: self.params.node,
            name: self.params.name.clone(),
            link,
            change,
            loss: path.loss.share(),
        };
        shared.events.push_back(event);
        if matches!(change.from, State::Down | State::Quarantined) && change.to == State::Up {
            // Losses before the path healed do not describe the healed path.
            path.loss = LossMeter::default();
            path.bottleneck = Bottleneck::default();
        }
        if matches!(change.to, State::Down | State::Quarantined) {
            path.mtu.doubt(false);
            path.direct.note_down();
        }
        self.fit_units();
        if matches!(change.to, State::Suspect | State::Down | State::Quarantined) {
            self.evacuate(link, shared);
        }
        self.wants_hellos |= change.to == State::Down;
        let is_up = self
            .paths
            .iter()
            .any(|path| path.liveness.state() == State::Up);
        if is_up != self.is_up {
            self.is_up = is_up;
            self.is_newly_up |= is_up;
            shared.events.push_back(Event::Peer {
                node: self.params.node,
                name: self.params.name.clone(),
                is_up,
            });
        }
    }

    /// Handles the loss of a local link's carrier.
    pub(crate) fn handle_carrier_loss(&mut self, link: u8, shared: &mut Shared<'_>) {
        let path = &mut self.paths[usize::from(link)];
        if let Some(change) = path.liveness.handle_carrier_loss(shared.now_ns) {
            self.apply(link, change, shared);
        }
    }

    /// Handles the removal of a local link.
    pub(crate) fn handle_link_removed(&mut self, link: u8, shared: &mut Shared<'_>) {
        self.handle_carrier_loss(link, shared);
        for unit in self.paths[usize::from(link)].clear() {
            self.retained.settle(unit, shared.pool);
        }
    }

    /// Returns whether the path over `link` is in use, and is behind the quickest path by at most
    /// the longest hold.
    pub(crate) fn is_worth_waiting_for(&self, link: usize) -> bool {
        let usable = self.paths.iter().filter(|path| path.is_usable());
        let quickest_ns = usable.map(|path| path.rtt.min_ns()).min().unwrap_or(0);
        let path = &self.paths[link];
        path.is_usable() && path.rtt.min_ns() <= quickest_ns + HOLD_MAX_NS
    }

    /// Returns whether a datagram that the peer reports was sent over `link` lately.
    pub(crate) fn is_active_on(&self, link: usize, now_ns: u64) -> bool {
        let path = &self.paths[link];
        path.is_usable() && now_ns < path.eliciting_at_ns + ACTIVE_NS && path.ledger.len() > 1
    }

    /// Returns the least smoothed round trip of the paths in use, in ns: the time that a repair
    /// takes. It is 1 ms before the first sample.
    pub(crate) fn rtt_ns(&self) -> u64 {
        let rtts = self
            .paths
            .iter()
            .filter(|path| path.is_usable())
            .map(|p| p.rtt.smoothed_ns());
        rtts.filter(|rtt| *rtt > 0).min().unwrap_or(1_000_000)
    }
}
