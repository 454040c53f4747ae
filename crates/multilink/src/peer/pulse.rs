//! Timed actions towards a peer: reports, pings, and suspicion of silent paths.

use super::{Links, Peer, Shared};
use crate::liveness::{Pace, State};
use crate::path::Path;
use crate::wire::{CONTROL_HEADER_BYTES, ControlKind};

/// Interval of pings on a path in use that carries nothing, in ns. A new path is pinged twice as
/// often.
const HEARTBEAT_NS: u64 = 100_000_000;
/// Interval of pings when neither side has sent data for [`IDLE_NS`], in ns. Silence is then
/// noticed within a second.
const HEARTBEAT_IDLE_NS: u64 = 500_000_000;
/// Time for which a peer counts as active after the last data, in ns.
const IDLE_NS: u64 = 10_000_000_000;
/// Interval of pings on a suspect path and on a path that is down, in ns.
const SUSPECT_PING_NS: u64 = 5_000_000;
const DOWN_PING_NS: u64 = 50_000_000;
/// Interval of pings on a path that has not answered for [`LONG_DOWN_NS`], in ns, so that a host
/// that is switched off costs little.
const LONG_DOWN_PING_NS: u64 = 250_000_000;
const LONG_DOWN_NS: u64 = 5_000_000_000;
/// Interval of pings on a path in quarantine, in ns.
const QUARANTINE_PING_NS: u64 = 10_000_000;
/// Age of an unreported datagram, with nothing sent after it, at which a ping is sent, in ns. A
/// lost tail leaves no gap, so only a later datagram reveals it. Two such intervals and a round
/// trip fit into the least hold of 5 ms: the repair is in time even if one ping is lost.
const TAIL_NS: u64 = 2_000_000;
/// Interval of the checks for silence, in ns.
const CHECK_NS: u64 = 1_000_000;
/// Time by which another path must have delivered a later datagram to overtake this one, beyond the
/// difference of both delays, in ns.
const OVERTAKE_NS: u64 = 4_000_000;

/// Contents of padded pings.
static PADDING: [u8; 1 << 16] = [0; 1 << 16];

/// Returns whether the local link exists and has its carrier.
fn can_send(links: &Links, link: usize) -> bool {
    links[link].as_ref().is_some_and(|link| link.has_carrier)
}

impl Peer {
    /// Performs the actions that are due.
    pub(crate) fn handle_timeout(&mut self, shared: &mut Shared<'_>) {
        self.release_held(shared);
        if self.current.is_none() {
            return;
        }
        if self.report_due_ns.is_some_and(|due| due <= shared.now_ns) {
            self.send_report(shared);
        }
        if shared.now_ns >= self.silence_checked_ns + CHECK_NS {
            self.silence_checked_ns = shared.now_ns;
            for link in 0..self.paths.len() as u8 {
                self.check_silence(link, shared);
            }
        }
        for link in 0..self.paths.len() {
            if self
                .ping_due_ns(link)
                .is_some_and(|due| due <= shared.now_ns)
                && can_send(shared.links, link)
            {
                self.retry_unanswered(link as u8, shared.links, shared.now_ns);
                self.send_probe(link as u8, shared);
                self.send_control(link as u8, ControlKind::Ping, &[], shared);
            }
        }
        self.send_offers(shared);
    }

    /// Returns the time at which a padded ping is due on a path, and its length in bytes.
    fn probe_due(&self, link: usize) -> Option<(u64, usize)> {
        let path = &self.paths[link];
        match path.liveness.state() {
            State::Suspect => None,
            State::Up => path.mtu.probe(true),
            State::New | State::Down | State::Quarantined => path.mtu.probe(false),
        }
    }

    /// Sends a padded ping if one is due. The caller sends a short ping after it.
    fn send_probe(&mut self, link: u8, shared: &mut Shared<'_>) {
        let due = self.probe_due(usize::from(link));
        let Some((_, bytes)) = due.filter(|(at_ns, _)| *at_ns <= shared.now_ns) else {
            return;
        };
        let padding = bytes.saturating_sub(CONTROL_HEADER_BYTES + self.tag_bytes());
        let padding = &PADDING[..padding.min(PADDING.len())];
        // A queue or a bridge that finds one segment of a burst too long drops the whole burst.
        let end_batch = |links: &mut Links| {
            let local = links[usize::from(link)].as_mut();
            local.into_iter().for_each(|local| local.queue.end_batch());
        };
        end_batch(shared.links);
        self.send_control(link, ControlKind::Ping, padding, shared);
        end_batch(shared.links);
        self.paths[usize::from(link)].mtu.note_probe(shared.now_ns);
    }

    fn check_silence(&mut self, link: u8, shared: &mut Shared<'_>) {
        let path = &self.paths[usize::from(link)];
        if !matches!(path.liveness.state(), State::Up | State::Suspect) {
            return;
        }
        // Where the kernels answer, a daemon that does not run is no reason to leave the path.
        let is_asked = path.direct.is_asked(shared.now_ns);
        let open = path.ledger.oldest_open();
        let open_ns = match is_asked {
            true => path.direct.oldest_question_ns(),
            false => open.map(|open| open.queued_at_ns),
        };
        // A question waits behind the daemon's own data, which no trip of a question before shows.
        let has_units = open.is_some_and(|open| open.unit.is_some());
        let (pace, overtake_ns) = match is_asked && !has_units {
            true => (Pace::Quick, OVERTAKE_NS / 2),
            false => (Pace::Usual, OVERTAKE_NS),
        };
        // The daemons' delays are in their round trips, and not in those of the kernels.
        let due_after_ns = |path: &Path| {
            let due_ns = path.direct.due_after_ns().filter(|_| is_asked);
            due_ns.unwrap_or(2 * path.rtt.smoothed_ns())
        };
        let (Some(sent_at_ns), due_ns) = (open_ns, due_after_ns(path)) else {
            return;
        };
        let overtaken = self.paths.iter().enumerate().any(|(index, path)| {
            let slower_ns = due_ns.saturating_sub(due_after_ns(path)) / 2;
            index != usize::from(link)
                && path.newest_acked_sent_ns > sent_at_ns + overtake_ns + slower_ns
        });
        let silent_ns = shared.now_ns.saturating_sub(sent_at_ns);
        let liveness = &mut self.paths[usize::from(link)].liveness;
        let change = liveness.handle_silence(shared.now_ns, silent_ns, due_ns, overtaken, pace);
        if let Some(change) = change {
            self.apply(link, change, shared);
        }
    }

    fn ping_due_ns(&self, link: usize) -> Option<u64> {
        let path = &self.paths[link];
        path.destination?;
        let due = |start_ns: u64, interval_ns: u64| Some(start_ns + interval_ns);
        match path.liveness.state() {
            State::Suspect => due(path.pinged_at_ns, SUSPECT_PING_NS),
            State::Down if path.pinged_at_ns > path.answered_at_ns + LONG_DOWN_NS => {
                due(path.pinged_at_ns, LONG_DOWN_PING_NS)
            }
            State::Down => due(path.pinged_at_ns, DOWN_PING_NS),
            State::Quarantined => due(path.pinged_at_ns, QUARANTINE_PING_NS),
            State::New => due(path.pinged_at_ns, HEARTBEAT_NS / 2),
            State::Up => {
                let is_idle = path.eliciting_at_ns > self.active_at_ns + IDLE_NS;
                let heartbeat = if is_idle {
                    HEARTBEAT_IDLE_NS
                } else {
                    HEARTBEAT_NS
                };
                let heartbeat_ns = path.eliciting_at_ns + heartbeat;
                let tail_after_ns = TAIL_NS.max(path.rtt.smoothed_ns() * 3 / 2);
                // A daemon that does not run reports nothing.
                let may_report = path.eliciting_at_ns < self.heard_at_ns + HEARTBEAT_IDLE_NS;
                let open = path.ledger.oldest_open().filter(|_| may_report);
                let tail_ns = open.map(|_| {
                    (path.eliciting_at_ns + tail_after_ns).max(path.pinged_at_ns + tail_after_ns)
                });
                let probe_ns = self.probe_due(link).map(|(at_ns, _)| at_ns);
                [Some(heartbeat_ns), tail_ns, probe_ns]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self, links: &Links) -> Option<u64> {
        let held = self.reorder.poll_timeout(self.rtt_ns());
        if self.current.is_none() {
            return held;
        }
        let pings = (0..self.paths.len())
            .filter(|link| can_send(links, *link))
            .filter_map(|link| self.ping_due_ns(link))
            .min();
        let offers = (0..self.paths.len())
            .filter_map(|link| self.offer_due_ns(link, links))
            .min();
        let is_open = self.paths.iter().any(|path| {
            path.is_settled()
                && (path.ledger.oldest_open().is_some()
                    || path.direct.oldest_question_ns().is_some())
        });
        let check = is_open.then_some(self.silence_checked_ns + CHECK_NS);
        [held, self.report_due_ns, pings, offers, check]
            .into_iter()
            .flatten()
            .min()
    }
}
