//! Which of the peer's links each path sends to.

use core::net::SocketAddr;

use super::{Links, Peer};
use crate::liveness::State;

/// The place of a local link among those there are.
fn rank(links: &Links, link: u8) -> usize {
    links[..usize::from(link)].iter().flatten().count()
}

impl Peer {
    /// Where the paths in use other than `link` send to.
    fn taken(&self, link: u8) -> Vec<SocketAddr> {
        let others = self.paths.iter().enumerate();
        others
            .filter(|(at, path)| *at != usize::from(link) && path.liveness.state() == State::Up)
            .filter_map(|(_, path)| path.to)
            .collect()
    }

    /// The peer's link `remote` introduced itself from `address` on the local `link`.
    pub(crate) fn note_heard(
        &mut self,
        link: u8,
        remote: u8,
        address: SocketAddr,
        links: &Links,
        now_ns: u64,
    ) {
        if self.paths[usize::from(link)].note_heard(remote, address, now_ns) {
            let taken = self.taken(link);
            self.paths[usize::from(link)].choose(now_ns, link, rank(links, link), &taken);
        }
    }

    /// A sealed datagram of the peer's link `remote` came from `address` on the local `link`, which
    /// sends elsewhere.
    pub(crate) fn note_sealed_from(
        &mut self,
        link: u8,
        remote: u8,
        address: SocketAddr,
        links: &Links,
        now_ns: u64,
    ) {
        self.note_heard(link, remote, address, links, now_ns);
        let taken = self.taken(link);
        self.paths[usize::from(link)].note_sealed_from(address, now_ns, &taken);
    }

    /// Tries another partner for a path whose partner does not answer.
    pub(super) fn retry_unanswered(&mut self, link: u8, links: &Links, now_ns: u64) {
        if self.paths[usize::from(link)].is_unanswered(now_ns) {
            let taken = self.taken(link);
            self.paths[usize::from(link)].retry(now_ns, link, rank(links, link), &taken);
        }
    }

    /// The ways to call the peer: first where the paths send to, then wherever else it was heard.
    pub(crate) fn ways(&self, links: &Links) -> Vec<(u8, SocketAddr)> {
        let open = || {
            let paths = self.paths.iter().zip(links).enumerate();
            paths.filter_map(|(number, (path, link))| {
                let is_open = link.as_ref().is_some_and(|link| link.has_carrier);
                is_open.then_some((number as u8, path))
            })
        };
        let chosen = open().filter_map(|(number, path)| Some((number, path.to?)));
        let others = open().flat_map(|(number, path)| {
            let addresses = path.partners.addresses();
            addresses
                .filter(|address| path.to != Some(*address))
                .map(move |address| (number, address))
        });
        chosen.chain(others).collect()
    }
}
