//! Offers to a peer: frames that the kernels carry without the daemons.

use super::reporting::LOSSY_SHARE;
use super::{Links, Peer, Shared};
use crate::liveness::State;
use crate::secure::Seal;
use crate::wire::{ControlKind, Mac, Malformed, Offer, QuestionKey};

/// Time after the last datagram for which the peer's daemon counts as running, in ns: three of the
/// longest intervals between pings.
const HEARD_NS: u64 = 1_500_000_000;

/// A path on which the kernel may ask the peer's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Number of the local link.
    pub link: u8,
    /// Destination address of the frames.
    pub to: Mac,
    /// Source address of the frames.
    pub from: Mac,
    /// The kernel may also send frames to the peer.
    pub is_up: bool,
    /// The kernel may not, because the path loses frames. The daemon uses it and repairs them.
    pub is_lossy: bool,
    /// Longest datagram that the path is known to carry, in bytes without IP and UDP headers.
    pub datagram_bytes: usize,
}

/// An address from which the peer's kernel sends frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alias {
    /// Number of the local link on which they arrive.
    pub link: u8,
    /// The address.
    pub mac: Mac,
    /// Key of the peer's questions.
    pub key: QuestionKey,
}

impl Peer {
    /// Handles an offer that arrived on the local `link`. Returns whether it changed anything.
    pub(crate) fn handle_offer(
        &mut self,
        link: u8,
        body: &[u8],
        now_ns: u64,
    ) -> Result<bool, Malformed> {
        let offer = Offer::parse(body)?;
        Ok(self.paths[usize::from(link)].direct.note(offer, now_ns))
    }

    /// Returns whether frames to the peer need no seal.
    fn is_plain(&self) -> bool {
        self.current
            .as_ref()
            .is_some_and(|session| session.seal == Seal::Plain)
    }

    /// Iterates over the aliases from which the peer sends frames.
    pub(crate) fn aliases(&self, now_ns: u64) -> impl Iterator<Item = Alias> + '_ {
        let paths = self.paths.iter().enumerate().filter(|_| self.is_plain());
        paths.filter_map(move |(link, path)| {
            let theirs = path.direct.theirs(now_ns)?;
            Some(Alias {
                link: link as u8,
                mac: theirs.alias,
                key: theirs.key,
            })
        })
    }

    /// Returns whether the peer's daemon was heard lately.
    pub(crate) fn has_daemon(&self, now_ns: u64) -> bool {
        now_ns < self.heard_at_ns + HEARD_NS
    }

    /// Handles the answer of the peer's kernel to the question of `asked_at_ns`, `trip_ns` later. A
    /// path that is out of use stays so until the peer's daemon answers. Returns whether it is the
    /// first answer since then.
    pub(crate) fn handle_answer(
        &mut self,
        link: u8,
        (asked_at_ns, trip_ns): (u64, u64),
        shared: &mut Shared<'_>,
    ) -> bool {
        let path = &mut self.paths[usize::from(link)];
        let is_first = path.direct.note_answer(asked_at_ns, trip_ns);
        path.newest_acked_sent_ns = path.newest_acked_sent_ns.max(asked_at_ns);
        if path.is_settled() {
            if let Some(change) = path.liveness.handle_ack(shared.now_ns, false) {
                self.apply(link, change, shared);
            }
        }
        is_first
    }

    /// Handles the share of the kernel's frames that a path lost. Nothing repairs them, so the path
    /// is left to the daemon until the daemon's own datagrams show it clean. If the peer has no
    /// daemon, there is no other way.
    pub(crate) fn handle_carried(&mut self, link: u8, lost_share: f64, shared: &mut Shared<'_>) {
        let is_settled = self.paths[usize::from(link)].is_settled();
        if lost_share <= LOSSY_SHARE || !is_settled || !self.has_daemon(shared.now_ns) {
            return;
        }
        let path = &mut self.paths[usize::from(link)];
        path.direct.is_lossy = true;
        path.loss.assume(lost_share);
        self.judge_loss(link, lost_share, shared);
    }

    /// Iterates over the paths on which the kernel may ask the peer's kernel.
    pub(crate) fn ways<'a>(
        &'a self,
        links: &'a Links,
        now_ns: u64,
    ) -> impl Iterator<Item = Way> + 'a {
        let paths = self.paths.iter().enumerate().filter(|_| self.is_plain());
        paths.filter_map(move |(link, path)| {
            let own = links[link].as_ref()?.config.direct?;
            let theirs = path.direct.theirs(now_ns)?;
            let is_ready = path.is_settled() && theirs.accepted == own.alias;
            let is_up = path.liveness.state() == State::Up && path.direct.is_answered();
            let is_lossy = path.direct.is_lossy && self.has_daemon(now_ns);
            is_ready.then_some(Way {
                link: link as u8,
                to: theirs.address,
                from: own.alias,
                is_up: is_up && !is_lossy,
                is_lossy: is_up && is_lossy,
                datagram_bytes: path.mtu.size(),
            })
        })
    }

    /// Returns the time at which an offer is due on a path.
    pub(super) fn offer_due_ns(&self, link: usize, links: &Links) -> Option<u64> {
        let path = &self.paths[link];
        let may_offer = links[link].as_ref()?.config.direct.is_some()
            && self.is_plain()
            && path.liveness.state() == State::Up;
        may_offer.then(|| path.direct.due_ns())
    }

    /// Sends the offers that are due.
    pub(super) fn send_offers(&mut self, shared: &mut Shared<'_>) {
        for link in 0..self.paths.len() {
            let is_due = self
                .offer_due_ns(link, shared.links)
                .is_some_and(|due_ns| due_ns <= shared.now_ns);
            let own = shared.links[link]
                .as_ref()
                .and_then(|local| local.config.direct);
            let Some(own) = own.filter(|_| is_due) else {
                continue;
            };
            let direct = &mut self.paths[link].direct;
            let offer = direct.offer(own, shared.now_ns);
            self.send_control(link as u8, ControlKind::Offer, &offer.emit(), shared);
        }
    }
}
