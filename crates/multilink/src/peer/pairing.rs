//! Pairing of the local links with the peer's links.

use core::net::SocketAddr;

use super::{Links, Peer};
use crate::liveness::State;
use crate::partner::HEARD_LATELY_NS;
use crate::wire::Params;

/// Least time between dials that hellos of unknown epochs cause, in ns. Replayed old hellos then
/// cost a handshake only now and then.
const DOUBT_NS: u64 = 1_500_000_000;

/// Returns the position of a local link among the existing ones.
fn rank(links: &Links, link: u8) -> usize {
    links[..usize::from(link)].iter().flatten().count()
}

impl Peer {
    /// Returns the destinations of the paths that are up, except that over `link`.
    fn taken_destinations(&self, link: u8) -> Vec<SocketAddr> {
        let paths = self.paths.iter().enumerate();
        paths
            .filter(|(i, path)| *i != usize::from(link) && path.liveness.state() == State::Up)
            .filter_map(|(_, path)| path.destination)
            .collect()
    }

    /// Records that the peer's link `remote` was heard from `address` on the local `link`. If that
    /// is new, the path's partner is chosen again.
    pub(crate) fn note_heard(
        &mut self,
        link: u8,
        remote: u8,
        address: SocketAddr,
        links: &Links,
        now_ns: u64,
    ) {
        if self.paths[usize::from(link)].note_heard(remote, address, now_ns) {
            let taken = self.taken_destinations(link);
            self.paths[usize::from(link)].choose(now_ns, link, rank(links, link), &taken);
        }
    }

    /// Handles a hello of the peer. Returns whether it may be new. A replayed old hello does not
    /// show the peer's present state.
    pub(crate) fn note_hello(&mut self, params: &Params) -> bool {
        if self.is_retired(params.instance) {
            return false;
        }
        if params.instance != self.params.instance {
            return true; // a restart or a recording: a dial finds out
        }
        let newest_ns = self.newest_hello_sent_ns.max(params.sent_at_ns);
        self.newest_hello_sent_ns = newest_ns;
        params.sent_at_ns.saturating_add(HEARD_LATELY_NS) > newest_ns
    }

    /// Handles a hello of another epoch than that of the session in use: a dial finds out which one
    /// is current.
    pub(crate) fn note_doubt(&mut self, instance: u64, now_ns: u64) {
        let mut doubted = self.doubted_at_ns.iter();
        if doubted.any(|at_ns| now_ns < at_ns + DOUBT_NS) {
            return;
        }
        (self.doubt, self.doubted_at_ns) = (Some(instance), Some(now_ns));
        self.next_dial_at_ns = self.next_dial_at_ns.min(now_ns);
        self.wants_session = true;
    }

    /// Handles a sealed datagram of the peer's link `remote` from `address` on the local `link`,
    /// whose path has another destination.
    pub(crate) fn note_sealed_from(
        &mut self,
        link: u8,
        remote: u8,
        address: SocketAddr,
        links: &Links,
        now_ns: u64,
    ) {
        self.note_heard(link, remote, address, links, now_ns);
        let taken = self.taken_destinations(link);
        self.paths[usize::from(link)].note_sealed_from(address, now_ns, &taken);
    }

    /// Tries another partner for a path whose partner does not answer.
    pub(super) fn retry_unanswered(&mut self, link: u8, links: &Links, now_ns: u64) {
        if self.paths[usize::from(link)].is_unanswered(now_ns) {
            let taken = self.taken_destinations(link);
            self.paths[usize::from(link)].retry(now_ns, link, rank(links, link), &taken);
        }
    }

    /// Returns whether a path that is up has the same destination as the path of `old_peer` on the
    /// same link.
    fn shares_destination(&self, old_peer: &Peer) -> bool {
        let mut paths = self.paths.iter().zip(&old_peer.paths);
        paths.any(|(ours, theirs)| {
            ours.liveness.state() == State::Up
                && ours.destination.is_some()
                && ours.destination == theirs.destination
        })
    }

    /// Returns whether this peer is up in the place of `old_peer`: a path of both has the same
    /// destination, and one socket is one device. `old_peer` must be down, or not have been heard
    /// since this peer's keys were agreed.
    pub(crate) fn supersedes(&self, old_peer: &Peer) -> bool {
        let keyed_ns = self.current.as_ref().map(|session| session.made_at_ns);
        let is_newer = keyed_ns.is_some_and(|at_ns| at_ns >= old_peer.heard_at_ns);
        self.is_up && (is_newer || !old_peer.is_up) && self.shares_destination(old_peer)
    }

    /// Returns the targets to dial the peer: first the destinations of its paths, then the other
    /// addresses at which it was heard.
    pub(crate) fn dial_targets(&self, links: &Links) -> Vec<(u8, SocketAddr)> {
        let open = || {
            let paths = self.paths.iter().zip(links).enumerate();
            paths.filter_map(|(number, (path, link))| {
                let is_open = link.as_ref().is_some_and(|link| link.has_carrier);
                is_open.then_some((number as u8, path))
            })
        };
        let chosen = open().filter_map(|(number, path)| Some((number, path.destination?)));
        let alternatives = open().flat_map(|(number, path)| {
            let addresses = path.partners.addresses();
            addresses
                .filter(|address| path.destination != Some(*address))
                .map(move |address| (number, address))
        });
        chosen.chain(alternatives).collect()
    }
}
