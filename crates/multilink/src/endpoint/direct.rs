//! Frames that the kernel carries: what the caller's data path needs to know.

use super::{Endpoint, shared};
pub use crate::peer::{Alias, Way};
use crate::peer::{Peer, Shared};
use crate::wire::Mac;

/// A peer to which the kernel may send frames, or from which it may take some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectPeer {
    /// MAC address of the peer's device.
    pub mac: Mac,
    /// Paths on which the kernel may ask the peer's kernel, and send frames if they are up.
    pub ways: Vec<Way>,
    /// Source addresses of the peer's frames.
    pub aliases: Vec<Alias>,
    /// The peer's daemon was heard lately.
    pub has_daemon: bool,
}

impl Endpoint {
    /// Returns the peers whose frames the kernel may carry.
    pub fn direct_peers(&self, now_ns: u64) -> Vec<DirectPeer> {
        let peers = self.peers.iter().map(|peer| DirectPeer {
            mac: peer.params.mac,
            ways: peer.ways(&self.links, now_ns).collect(),
            aliases: peer.aliases(now_ns).collect(),
            has_daemon: peer.has_daemon(now_ns),
        });
        peers.filter(|peer| !peer.aliases.is_empty()).collect()
    }

    /// Returns whether an offer with other addresses, or the first answer on a path, arrived since
    /// the last call.
    pub fn take_direct_news(&mut self) -> bool {
        std::mem::take(&mut self.has_direct_news)
    }

    /// Records a question to a peer's kernel on a link.
    pub fn note_question(&mut self, mac: Mac, link: u8, now_ns: u64) {
        if let Some(peer) = self.peer_at(mac) {
            peer.paths[usize::from(link)].direct.note_question(now_ns);
        }
    }

    /// Records that a peer's kernel answered the question of `asked_at_ns` on a link, and that the
    /// answer arrived `trip_ns` later.
    pub fn note_answer(
        &mut self,
        mac: Mac,
        link: u8,
        (asked_at_ns, trip_ns): (u64, u64),
        now_ns: u64,
    ) {
        let mut macs = self.peers.iter().map(|peer| peer.params.mac);
        if let Some(number) = macs.position(|peer| peer == mac) {
            let peer = &mut self.peers[number];
            self.has_direct_news |=
                peer.handle_answer(link, (asked_at_ns, trip_ns), shared!(self, now_ns));
        }
    }

    /// Records the share of the kernel's frames to a peer that a link lost lately.
    pub fn note_carried(&mut self, mac: Mac, link: u8, lost_share: f64, now_ns: u64) {
        let mut macs = self.peers.iter().map(|peer| peer.params.mac);
        if let Some(number) = macs.position(|peer| peer == mac) {
            self.peers[number].handle_carried(link, lost_share, shared!(self, now_ns));
        }
    }

    fn peer_at(&mut self, mac: Mac) -> Option<&mut Peer> {
        let mut peers = self.peers.iter_mut();
        peers.find(|peer| peer.params.mac == mac)
    }

    /// Records that the kernel takes frames from an alias of a peer, on a link. The peer is told,
    /// and begins to send.
    pub fn accept_alias(&mut self, mac: Mac, link: u8, alias: Mac) {
        if let Some(peer) = self.peer_at(mac) {
            peer.paths[usize::from(link)].direct.accept(alias);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Pair, endpoint_with};
    use super::*;
    use crate::endpoint::DirectLink;
    use crate::liveness::State;
    use crate::secure::Seal;
    use crate::wire::{CONTROL_HEADER_BYTES, ControlHeader, ControlKind, OFFER_BYTES, Offer};
    use core::net::SocketAddr;

    const MS: u64 = 1_000_000;
    const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

    fn direct_link(side: u8, link: u8) -> DirectLink {
        DirectLink {
            address: [2, 1, 0, 0, side, link],
            alias: [2, 2, 0, 0, side, link],
            key: [side; 16],
        }
    }

    fn pair(seal: Seal) -> Pair {
        let end = |side: u8| {
            let node = u64::from(side) + 1;
            endpoint_with(node, node * 11, 0, seal, |link| {
                Some(direct_link(side, link))
            })
        };
        Pair::of([end(0), end(1)])
    }

    /// Accepts all aliases at both ends, as the data path does.
    fn accept_all(pair: &mut Pair) {
        for end in &mut pair.ends {
            for peer in end.direct_peers(pair.now_ns) {
                for alias in peer.aliases {
                    end.accept_alias(peer.mac, alias.link, alias.mac);
                }
            }
        }
        pair.run_for(5 * MS);
    }

    fn links_of(pair: &Pair, side: usize) -> Vec<u8> {
        let peers = pair.ends[side].direct_peers(pair.now_ns);
        let ways = peers.iter().flat_map(|peer| &peer.ways);
        ways.filter(|way| way.is_up).map(|way| way.link).collect()
    }

    #[test]
    fn direct__alias_accepted__the_kernel_may_send_from_it() {
        let mut pair = pair(Seal::Plain);
        assert_eq!(links_of(&pair, 0), [], "not before it is accepted");
        accept_all(&mut pair);
        for side in 0..2 {
            let peers = pair.ends[side].direct_peers(pair.now_ns);
            assert_eq!(peers.len(), 1);
            assert_eq!(peers[0].mac, MACS[1 - side]);
            let keys = peers[0].aliases.iter().map(|alias| alias.key);
            assert!(keys.eq([[1 - side as u8; 16]; 2]));
            for (link, way) in (0..).zip(&peers[0].ways) {
                let (own, other) = (side as u8, 1 - side as u8);
                assert_eq!(way.link, link);
                assert_eq!(way.from, direct_link(own, link).alias);
                assert_eq!(way.to, direct_link(other, link).address);
            }
        }
    }

    #[test]
    fn direct__sealed_peer__stays_with_the_daemon() {
        let mut pair = pair(Seal::Encrypt);
        accept_all(&mut pair);
        assert_eq!(pair.ends[0].direct_peers(pair.now_ns), []);
    }

    /// Runs two ends whose kernels answer on each link that is not cut, for a time. They are asked
    /// every 2 ms.
    fn run_asked(pair: &mut Pair, time_ns: u64) {
        for _ in 0..time_ns / (2 * MS) {
            let now_ns = pair.now_ns;
            for (side, mac) in [(0, MACS[1]), (1, MACS[0])] {
                let peers = pair.ends[side].direct_peers(now_ns);
                for link in peers.iter().flat_map(|peer| &peer.ways).map(|way| way.link) {
                    pair.ends[side].note_question(mac, link, now_ns);
                    if !pair.cut[0][usize::from(link)] && !pair.cut[1][usize::from(link)] {
                        pair.ends[side].note_answer(mac, link, (now_ns, 0), now_ns);
                    }
                }
            }
            pair.run_for(2 * MS);
        }
    }

    #[test]
    fn direct__path_in_use_falls_silent__is_left_within_15_ms() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        run_asked(&mut pair, 20 * MS);
        assert_eq!(links_of(&pair, 0), [0, 1]);
        pair.cut[0][1] = true;
        run_asked(&mut pair, 15 * MS);
        assert_eq!(links_of(&pair, 0), [0]);
        pair.cut[0][1] = false;
        run_asked(&mut pair, 1000 * MS);
        assert_eq!(links_of(&pair, 0), [0, 1]);
    }

    #[test]
    fn direct__question_behind_data_of_the_daemon__may_be_late() {
        for (frames, is_up_after_10_ms) in [(0, false), (40, true)] {
            let mut pair = pair(Seal::Plain);
            accept_all(&mut pair);
            run_asked(&mut pair, 20 * MS);
            pair.cut = [[false, true]; 2];
            for number in 0..frames {
                pair.send(0, number);
            }
            run_asked(&mut pair, 10 * MS);
            assert_eq!(links_of(&pair, 0).contains(&1), is_up_after_10_ms);
            run_asked(&mut pair, 10 * MS);
            assert_eq!(links_of(&pair, 0), [0]);
        }
    }

    #[test]
    fn direct__one_direction_falls_silent__does_not_flap() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        run_asked(&mut pair, 20 * MS);
        // The other end's datagrams still arrive, and reports about them come on the other link.
        pair.cut[0][1] = true;
        for end in &mut pair.ends {
            while end.poll_event().is_some() {}
        }
        run_asked(&mut pair, 1000 * MS);
        for (side, end) in pair.ends.iter_mut().enumerate() {
            let mut changes = 0;
            while end.poll_event().is_some() {
                changes += 1;
            }
            assert!(changes < 8, "{changes} events at side {side}");
        }
        assert_eq!(links_of(&pair, 0), [0]);
        assert_eq!(links_of(&pair, 1), [0]);
    }

    #[test]
    fn direct__daemon_dies_and_its_kernel_answers__the_paths_stay() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        run_asked(&mut pair, 20 * MS);
        pair.is_dead[1] = true;
        run_asked(&mut pair, 10_000 * MS);
        assert_eq!(links_of(&pair, 0), [0, 1]);
        let peers = pair.ends[0].direct_peers(pair.now_ns);
        assert!(!peers[0].has_daemon);
        // Then its kernel does not answer either.
        pair.cut[0] = [true; 2];
        run_asked(&mut pair, 400 * MS);
        assert_eq!(links_of(&pair, 0), []);
    }

    #[test]
    fn direct__no_answer_yet__the_daemons_decide() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        for _ in 0..100 {
            let now_ns = pair.now_ns;
            pair.ends[0].note_question(MACS[1], 1, now_ns);
            pair.run_for(2 * MS);
        }
        assert_eq!(pair.states(0), [State::Up; 2]);
        assert_eq!(links_of(&pair, 0), [], "no frame leaves before an answer");
    }

    #[test]
    fn direct__kernel_stops_answering_and_the_daemon_does_not__frames_go_to_the_daemon() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        run_asked(&mut pair, 20 * MS);
        for _ in 0..1000 {
            let now_ns = pair.now_ns;
            let peers = pair.ends[0].direct_peers(now_ns);
            for link in peers.iter().flat_map(|peer| &peer.ways).map(|way| way.link) {
                pair.ends[0].note_question(MACS[1], link, now_ns);
            }
            pair.run_for(2 * MS);
        }
        assert_eq!(pair.states(0), [State::Up; 2]);
        assert_eq!(links_of(&pair, 0), []);
    }

    #[test]
    fn direct__kernels_frames_are_lost__the_daemon_has_the_path_until_it_is_clean() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        run_asked(&mut pair, 20 * MS);
        pair.ends[0].note_carried(MACS[1], 1, 0.004, pair.now_ns);
        assert_eq!(links_of(&pair, 0), [0, 1]);
        pair.ends[0].note_carried(MACS[1], 1, 0.02, pair.now_ns);
        let lossy = |pair: &Pair| {
            let peers = pair.ends[0].direct_peers(pair.now_ns);
            let ways = peers[0].ways.iter();
            ways.map(|way| way.is_lossy).collect::<Vec<_>>()
        };
        assert_eq!(links_of(&pair, 0), [0]);
        assert_eq!(lossy(&pair), [false, true]);
        assert_eq!(pair.states(0), [State::Up; 2], "the daemon uses it");
        // Five windows of 64 datagrams halve the share to below a thousandth.
        run_asked(&mut pair, 2_000 * MS);
        assert_eq!(links_of(&pair, 0), [0]);
        run_asked(&mut pair, 60_000 * MS);
        assert_eq!(links_of(&pair, 0), [0, 1]);
    }

    #[test]
    fn direct__kernel_loses_a_fifth__the_path_is_quarantined() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        run_asked(&mut pair, 20 * MS);
        pair.ends[0].note_carried(MACS[1], 1, 0.2, pair.now_ns);
        assert_eq!(pair.states(0), [State::Up, State::Quarantined]);
        run_asked(&mut pair, 1000 * MS);
        assert_eq!(pair.states(0), [State::Up; 2], "the daemon tries it");
        assert_eq!(links_of(&pair, 0), [0]);
        run_asked(&mut pair, 60_000 * MS);
        assert_eq!(links_of(&pair, 0), [0, 1]);
    }

    #[test]
    fn direct__kernels_frames_are_lost_and_the_peer_has_no_daemon__the_path_stays() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        run_asked(&mut pair, 20 * MS);
        pair.is_dead[1] = true;
        run_asked(&mut pair, 2_000 * MS);
        pair.ends[0].note_carried(MACS[1], 1, 0.2, pair.now_ns);
        assert_eq!(links_of(&pair, 0), [0, 1]);
    }

    #[test]
    fn direct__offer_without_a_seal__is_refused_in_a_plain_session() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        let known = pair.ends[1].direct_peers(pair.now_ns);
        let forged = Offer {
            address: [2, 9, 9, 9, 9, 9],
            alias: [2, 8, 8, 8, 8, 8],
            accepted: direct_link(1, 0).alias,
            key: [7; 16],
        };
        let session = pair.ends[0].peers[0].current.as_ref().unwrap();
        let header = ControlHeader {
            link: 0,
            kind: ControlKind::Offer,
            session: session.remote,
            link_seq: 1000,
        };
        let mut head = [0; CONTROL_HEADER_BYTES];
        header.emit(&mut head);
        let mut datagram = Vec::new();
        session.seal(0, 1000, &head, &forged.emit(), &mut datagram);
        assert_eq!(datagram.len(), head.len() + OFFER_BYTES, "it has no tag");
        let from = SocketAddr::from(([10, 0, 0, 1], 7000));
        let outcome = pair.ends[1].handle_datagram(0, from, &mut datagram, pair.now_ns);
        assert_eq!(outcome, Ok(()));
        assert_eq!(pair.ends[1].counters().forged, 1);
        assert_eq!(pair.ends[1].direct_peers(pair.now_ns), known);
    }

    #[test]
    fn direct__offers_end__the_addresses_are_void() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        let later_ns = pair.now_ns + 3_500 * MS;
        assert_eq!(pair.ends[0].direct_peers(later_ns), []);
    }
}
