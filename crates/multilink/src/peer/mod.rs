//! One peer: its sessions, the paths to it, what is on its way to it and what came from it.

mod deliver;
mod pairing;
mod pulse;
mod reporting;
mod send;

use std::collections::VecDeque;

use crate::bottleneck::Bottleneck;
use crate::endpoint::{Event, LocalLink};
use crate::flow::FLOW_BUCKETS;
use crate::frame::{Frame, FramePool};
use crate::handshake::{Initiator, Keys};
use crate::liveness::{Change, State};
use crate::path::{LossMeter, Path};
use crate::reorder::{HOLD_MAX_NS, Reorder};
use crate::retain::{Retained, UnitRef};
use crate::session::{LINK_PACKETS_MAX, OVERLAP_NS, Session};
use crate::wire::{LINKS_MAX, Params, Report};

/// How long a path counts as in use after it was last sent on.
const ACTIVE_NS: u64 = 100_000_000;

/// The local links by number.
pub(crate) type Links = [Option<LocalLink>];

/// What all of an endpoint's peers share.
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
    pub(crate) at_ns: u64,
}

/// Everything about one peer.
pub(crate) struct Peer {
    pub(crate) params: Params,
    /// Unit payload both sides can take, in bytes.
    pub(crate) unit_bytes_max: usize,
    /// Keys for sending.
    pub(crate) current: Option<Session>,
    /// Keys still accepted after a renewal.
    pub(crate) previous: Option<Session>,
    /// Keys this side answered with, until the peer has used them.
    pub(crate) next: Option<(Session, Params)>,
    /// The session the newest packet came under: the one to report on.
    pub(crate) arrival_session: u16,
    pub(crate) created_at_ns: u64,
    /// The peer has restarted and does not know our session.
    pub(crate) wants_session: bool,
    pub(crate) dial: Option<Dial>,
    pub(crate) dial_again_at_ns: u64,
    pub(crate) dial_attempts: u32,
    /// `sent_at_ns` of the last handshake accepted from this instance: older ones are replays.
    pub(crate) handshake_seen_ns: u64,
    pub(crate) paths: Vec<Path>,
    /// A path went down: the peer's links may be heard elsewhere now.
    pub(crate) wants_hellos: bool,
    /// When anything authentic last came.
    pub(crate) heard_at_ns: u64,
    pub(crate) is_up: bool,

    next_unit: u64,
    /// One past the last unit of each flow's last frame; 0: none.
    flow_ends: Vec<u64>,
    pub(crate) retained: Retained,
    repair_budget_bytes: f64,
    pub(crate) repair_queue: VecDeque<UnitRef>,
    /// When data or a report on data last moved: an idle peer is pinged seldom.
    active_at_ns: u64,

    pub(crate) reorder: Reorder,
    report: Report,
    report_seq: u32,
    reported_at_ns: u64,
    report_due_ns: Option<u64>,
    report_seen: Option<u32>,
    silence_checked_ns: u64,
}

impl Peer {
    pub(crate) fn new(params: Params, now_ns: u64) -> Self {
        let mut paths = Vec::new();
        paths.resize_with(LINKS_MAX, Path::default);
        Self {
            unit_bytes_max: usize::from(params.unit_bytes_max),
            params,
            current: None,
            previous: None,
            next: None,
            arrival_session: 0,
            created_at_ns: now_ns,
            wants_session: false,
            dial: None,
            dial_again_at_ns: now_ns,
            dial_attempts: 0,
            handshake_seen_ns: 0,
            paths,
            wants_hellos: false,
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
            report_seen: None,
            silence_checked_ns: 0,
        }
    }

    /// The session a packet's number belongs to.
    pub(crate) fn session_mut(&mut self, local: u16) -> Option<&mut Session> {
        let next = self.next.as_mut().map(|(session, _)| session);
        [self.current.as_mut(), next, self.previous.as_mut()]
            .into_iter()
            .flatten()
            .find(|session| session.local == local)
    }

    /// The numbers of all sessions.
    pub(crate) fn session_numbers(&self) -> impl Iterator<Item = u16> + '_ {
        let next = self.next.as_ref().map(|(session, _)| session);
        [self.current.as_ref(), next, self.previous.as_ref()]
            .into_iter()
            .flatten()
            .map(|s| s.local)
    }

    /// A peer that came back as another instance: its sequences start at 0, and so do ours.
    fn restart(&mut self, pool: &mut FramePool) {
        self.reorder = Reorder::default();
        self.next_unit = 0;
        self.flow_ends.fill(0);
        self.handshake_seen_ns = 0;
        self.report_seen = None;
        self.settle_all(pool);
        (self.current, self.previous) = (None, None);
        for path in &mut self.paths {
            path.liveness.forgive();
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

    /// Makes `session` the one to send with. Numbers of links start over with its keys; what was
    /// open under the old keys counts as arrived, and TCP repairs what did not.
    fn adopt(&mut self, session: Session, pool: &mut FramePool) {
        self.settle_all(pool);
        self.report_seen = None;
        self.dial_attempts = 0;
        self.previous = self.current.replace(session);
        for path in &mut self.paths {
            path.newest_acked_sent_ns = 0;
        }
    }

    /// The session the peer has proven to hold becomes current.
    pub(crate) fn confirm_next(&mut self, pool: &mut FramePool) {
        let Some((session, params)) = self.next.take() else {
            return;
        };
        if params.instance != self.params.instance {
            self.restart(pool);
        }
        self.handshake_seen_ns = self.handshake_seen_ns.max(params.sent_at_ns);
        self.params = params;
        self.wants_session = false;
        self.adopt(session, pool);
    }

    /// Drops what has outlived its use; gives the numbers of sessions that ended.
    pub(crate) fn expire_sessions(&mut self, now_ns: u64) -> Option<u16> {
        let made = self
            .current
            .as_ref()
            .map_or(0, |current| current.made_at_ns);
        let is_over = self.previous.is_some() && now_ns.saturating_sub(made) > OVERLAP_NS;
        if is_over {
            self.previous.take().map(|session| session.local)
        } else {
            None
        }
    }

    /// Keys for a session this side began.
    pub(crate) fn session(local: u16, params: &Params, keys: &Keys, now_ns: u64) -> Session {
        Session::new(local, params.session, params.seal, keys, now_ns)
    }

    /// Whether a link has carried as much as one key may.
    pub(crate) fn is_key_worn(&self) -> bool {
        self.paths
            .iter()
            .any(|path| path.ledger.next_seq() > LINK_PACKETS_MAX)
    }

    /// Notes a change of a path's state and acts on it.
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
            // What it lost while it was broken says nothing of the path that has healed.
            path.loss = LossMeter::default();
            path.bottleneck = Bottleneck::default();
        }
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
            shared.events.push_back(Event::Peer {
                node: self.params.node,
                name: self.params.name.clone(),
                is_up,
            });
        }
    }

    /// A local link lost its carrier.
    pub(crate) fn handle_carrier_loss(&mut self, link: u8, shared: &mut Shared<'_>) {
        let path = &mut self.paths[usize::from(link)];
        if let Some(change) = path.liveness.handle_carrier_loss(shared.now_ns) {
            self.apply(link, change, shared);
        }
    }

    /// A local link was removed.
    pub(crate) fn handle_link_removed(&mut self, link: u8, shared: &mut Shared<'_>) {
        self.handle_carrier_loss(link, shared);
        for unit in self.paths[usize::from(link)].clear() {
            self.retained.settle(unit, shared.pool);
        }
    }

    /// Whether the path over `link` is in use and not further behind the quickest than a frame may
    /// be held.
    pub(crate) fn is_worth_waiting_for(&self, link: usize) -> bool {
        let usable = self.paths.iter().filter(|path| path.is_usable());
        let quickest_ns = usable.map(|path| path.rtt.min_ns()).min().unwrap_or(0);
        let path = &self.paths[link];
        path.is_usable() && path.rtt.min_ns() <= quickest_ns + HOLD_MAX_NS
    }

    /// Whether anything that is reported on was sent over `link` lately.
    pub(crate) fn is_active_on(&self, link: usize, now_ns: u64) -> bool {
        let path = &self.paths[link];
        path.is_usable() && now_ns < path.eliciting_at_ns + ACTIVE_NS && path.ledger.len() > 1
    }

    /// The least smoothed round trip of the paths in use, in ns: what a repair takes.
    pub(crate) fn rtt_ns(&self) -> u64 {
        let rtts = self
            .paths
            .iter()
            .filter(|path| path.is_usable())
            .map(|p| p.rtt.smoothed_ns());
        rtts.filter(|rtt| *rtt > 0).min().unwrap_or(1_000_000)
    }
}
