//! Frames that the kernel carries: what the caller's data path needs to know.

use super::{Endpoint, shared};
pub use crate::peer::Way;
use crate::peer::{Peer, Shared};
use crate::wire::{Counts, Mac};

/// A peer to which the kernel may send frames, or from which it may take some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectPeer {
    /// MAC address of the peer's device.
    pub mac: Mac,
    /// Paths on which the kernel may send frames.
    pub ways: Vec<Way>,
    /// Source addresses of the peer's frames, with the local link on which they arrive.
    pub aliases: Vec<(u8, Mac)>,
}

/// Counts of a peer's kernel, for one path.
#[derive(Debug, Clone, Copy)]
pub struct ArrivedCounts {
    /// MAC address of the peer's device.
    pub mac: Mac,
    /// Local link.
    pub link: u8,
    /// The counts.
    pub counts: Counts,
    /// Shortest round trip of the path, in ns.
    pub rtt_ns: u64,
}

impl Endpoint {
    /// Returns the peers whose frames the kernel may carry.
    pub fn direct_peers(&self, now_ns: u64) -> Vec<DirectPeer> {
        let peers = self.peers.iter().map(|peer| DirectPeer {
            mac: peer.params.mac,
            ways: peer.ways(&self.links, now_ns).collect(),
            aliases: peer.aliases(now_ns).collect(),
        });
        peers.filter(|peer| !peer.aliases.is_empty()).collect()
    }

    /// Returns whether an offer with other addresses arrived since the last call.
    pub fn take_direct_news(&mut self) -> bool {
        std::mem::take(&mut self.has_direct_news)
    }

    /// Returns whether [`Endpoint::take_direct_counts`] has something to pass.
    pub fn has_direct_counts(&self) -> bool {
        self.has_direct_counts
    }

    /// Returns the counts of peers' kernels that arrived since the last call.
    pub fn take_direct_counts(&mut self) -> Vec<ArrivedCounts> {
        let mut arrived = Vec::new();
        if !std::mem::take(&mut self.has_direct_counts) {
            return arrived;
        }
        for peer in &mut self.peers {
            for (link, path) in peer.paths.iter_mut().enumerate() {
                if let Some(counts) = path.direct.take_counts() {
                    arrived.push(ArrivedCounts {
                        mac: peer.params.mac,
                        link: link as u8,
                        counts,
                        rtt_ns: path.rtt.min_ns(),
                    });
                }
            }
        }
        arrived
    }

    /// Records the bytes that the kernel had received from a peer on a link when
    /// [`Endpoint::take_direct_counts`] returned counts of it.
    pub fn note_direct_received(&mut self, mac: Mac, link: u8, received: u64, now_ns: u64) {
        if let Some(peer) = self.peer_at(mac) {
            peer.paths[usize::from(link)]
                .direct
                .note_received(received, now_ns);
        }
    }

    /// Records that the kernel has carried frames to or from a peer lately.
    pub fn note_direct_use(&mut self, mac: Mac, now_ns: u64) {
        if let Some(peer) = self.peer_at(mac) {
            let paths = peer.paths.iter_mut();
            paths.for_each(|path| path.direct.note_used(now_ns));
        }
    }

    /// Sends the offers that are due. `sent` reads the bytes that the kernel has sent to a peer on
    /// a link.
    pub fn send_offers(&mut self, now_ns: u64, sent: impl Fn(Mac, u8) -> u64) {
        for number in 0..self.peers.len() {
            self.peers[number].send_offers(&sent, shared!(self, now_ns));
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
    use crate::secure::Seal;

    const MS: u64 = 1_000_000;
    const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

    fn direct_link(side: u8, link: u8) -> DirectLink {
        DirectLink {
            address: [2, 1, 0, 0, side, link],
            alias: [2, 2, 0, 0, side, link],
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
                for (link, alias) in peer.aliases {
                    end.accept_alias(peer.mac, link, alias);
                }
            }
        }
        pair.run_for(5 * MS);
    }

    fn links_of(pair: &Pair, side: usize) -> Vec<u8> {
        let peers = pair.ends[side].direct_peers(pair.now_ns);
        let ways = peers.iter().flat_map(|peer| &peer.ways);
        ways.map(|way| way.link).collect()
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

    #[test]
    fn direct__path_in_use_falls_silent__is_left_within_15_ms() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        assert_eq!(links_of(&pair, 0), [0, 1]);
        for (end, mac) in pair.ends.iter_mut().zip([MACS[1], MACS[0]]) {
            end.note_direct_use(mac, pair.now_ns);
        }
        pair.run_for(20 * MS);
        pair.cut[0][1] = true;
        pair.run_for(15 * MS);
        assert_eq!(links_of(&pair, 0), [0]);
        pair.cut[0][1] = false;
        pair.run_for(1000 * MS);
        assert_eq!(links_of(&pair, 0), [0, 1]);
    }

    #[test]
    fn direct__offers_end__the_addresses_are_void() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        let later_ns = pair.now_ns + 3_500 * MS;
        assert_eq!(pair.ends[0].direct_peers(later_ns), []);
    }

    #[test]
    fn direct__counts_of_the_peer__arrive_once_with_the_marker() {
        let mut pair = pair(Seal::Plain);
        accept_all(&mut pair);
        pair.ends[1].take_direct_counts();
        let now_ns = pair.now_ns;
        pair.ends[1].note_direct_received(MACS[0], 1, 700, now_ns);
        pair.ends[0].take_direct_counts();
        pair.run_for(1100 * MS);
        let arrived = pair.ends[0].take_direct_counts();
        let counts = arrived.iter().find(|arrived| arrived.link == 1).unwrap();
        // The other end sends the number of the link and 1 as its count.
        assert_eq!(counts.counts.received, 700);
        assert_eq!((counts.counts.marker, counts.counts.sent), (2, 2));
        assert_eq!(pair.ends[0].take_direct_counts().len(), 0);
    }
}
