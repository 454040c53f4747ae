//! Selection of the lanes of other devices that this endpoint talks to, and of the lane for each
//! frame.

use core::net::SocketAddr;

use super::Endpoint;
use crate::peer::Peer;
use crate::wire::Params;

/// Returns the address of a lane: the device's address with the port increased by the number of the
/// lane.
pub(super) fn lane_address(mut device: SocketAddr, lane: u8) -> SocketAddr {
    device.set_port(device.port().wrapping_add(u16::from(lane)));
    device
}

impl Endpoint {
    /// Returns whether the sender of `params`, at `from` on `link`, is a counterpart of this lane.
    /// On a LAN the port distinguishes a lane of the peer's device from another device with nearby
    /// ports.
    pub(super) fn may_talk_to(&self, link: u8, from: SocketAddr, params: &Params) -> bool {
        let (ours, theirs) = (self.config.lane, params.lane);
        if params.node == self.config.node || !ours.talks_to(theirs) {
            return false;
        }
        let local = self.links[usize::from(link)].as_ref();
        let group = local.and_then(|link| link.config.hello_to);
        let is_lane_port =
            group.is_none_or(|group| lane_address(group, theirs.number).port() == from.port());
        is_lane_port || ours.count == 1 && theirs.count == 1
    }

    /// Returns whether the peer `number` is the sender of `params`.
    pub(super) fn is_sender(&self, number: usize, params: &Params) -> bool {
        let known = &self.peers[number].params;
        known.node == params.node && known.lane.number == params.lane.number
    }

    /// Returns whether this side is the pair's caller, which dials first. The caller is the side
    /// with fewer lanes, because not all lanes of the other side hear its hellos. With equal
    /// numbers it is the node with the smaller number.
    pub(super) fn is_caller(&self, theirs: &Params) -> bool {
        (self.config.lane.count, self.config.node) < (theirs.lane.count, theirs.node)
    }

    fn sends_to(&self, peer: &Peer) -> bool {
        self.config.lane.sends_to(peer.params.lane)
    }

    /// Returns the peer that gets the frames for stations heard through peer `number`.
    pub(super) fn home_peer(&self, number: usize) -> usize {
        let (node, theirs) = (
            self.peers[number].params.node,
            self.peers[number].params.lane,
        );
        if self.config.lane.sends_to(theirs) {
            return number;
        }
        let home = (node, self.config.lane.number % theirs.count);
        self.by_node.get(&home).copied().unwrap_or(number)
    }

    /// Enters a peer's own address in the table of stations. A hello may be old, so it does not
    /// take the address from a peer that is up.
    pub(super) fn introduce_station(&mut self, number: usize, now_ns: u64) {
        let mac = self.peers[number].params.mac;
        let served = self.stations.find(&mac);
        if self.sends_to(&self.peers[number]) && served.is_none_or(|peer| !self.peers[peer].is_up) {
            self.stations.insert(mac, number, now_ns);
        }
    }

    /// Applies the number of lanes that a session announces. Lanes of the device beyond that number
    /// are gone.
    pub(super) fn settle_lanes(&mut self, number: usize, now_ns: u64) {
        let (node, lane, mac) = {
            let params = &self.peers[number].params;
            (params.node, params.lane, params.mac)
        };
        for peer in self.peers.iter_mut().filter(|p| p.params.node == node) {
            peer.params.lane.count = lane.count;
        }
        if self.config.lane.sends_to(lane) {
            self.stations.insert(mac, number, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Config, LinkConfig};
    use crate::frame::Frame;
    use crate::lane::Lane;
    use crate::secure::{ClusterKey, Seal};

    const MS: u64 = 1_000_000;
    const PORT: u16 = 7000;

    /// Hosts on one LAN, each with several lanes. Datagrams arrive at once.
    struct Lan {
        ends: Vec<(SocketAddr, Endpoint)>,
        now_ns: u64,
        /// Number of the endpoint that delivered a frame, and the frame.
        delivered: Vec<(usize, Vec<u8>)>,
    }

    fn address(node: u8) -> SocketAddr {
        ([10, 0, 0, node], PORT).into()
    }

    /// Returns one lane of a host. With `peer`, the hosts are behind routers and hellos do not
    /// reach that node.
    fn lane_end(
        node: u8,
        lane: Lane,
        instance: u64,
        peer: Option<u8>,
        now_ns: u64,
    ) -> (SocketAddr, Endpoint) {
        let config = Config {
            node: node.into(),
            instance,
            name: format!("h{node}"),
            mac: [2, 0, 0, 0, 0, node],
            lane,
            coalesces_udp: false,
            seal: Seal::Encrypt,
            key: ClusterKey::from_bytes([7; 32]),
            static_peers: peer
                .map(|peer| vec![(0, address(peer))])
                .into_iter()
                .collect(),
        };
        let mut end = Endpoint::new(config, now_ns);
        let link = LinkConfig {
            name: "eth0".into(),
            datagram_bytes_max: 1452,
            hello_to: peer.is_none().then_some(([224, 0, 0, 1], PORT).into()),
            rate_bps: 1_000_000_000,
            is_rate_fixed: false,
            direct: None,
        };
        end.add_link(0, link, now_ns);
        (lane_address(address(node), lane.number), end)
    }

    fn host(node: u8, count: u8, peer: Option<u8>, now_ns: u64) -> Vec<(SocketAddr, Endpoint)> {
        let lanes = (0..count).map(|number| Lane { number, count });
        lanes
            .map(|lane| lane_end(node, lane, now_ns + 1, peer, now_ns))
            .collect()
    }

    impl Lan {
        fn new(ours: Vec<(SocketAddr, Endpoint)>, theirs: Vec<(SocketAddr, Endpoint)>) -> Self {
            let mut lan = Self {
                ends: ours.into_iter().chain(theirs).collect(),
                now_ns: 0,
                delivered: Vec::new(),
            };
            lan.run_for(4000 * MS);
            lan
        }

        fn settle(&mut self) {
            while let Some((from, to, bytes, segment)) =
                self.ends.iter_mut().find_map(|(from, end)| {
                    let batch = end.poll_transmit(0)?;
                    let datagrams = (*from, batch.destination?, batch.bytes.clone());
                    let segment = batch.segment_bytes;
                    end.transmitted(0);
                    Some((datagrams.0, datagrams.1, datagrams.2, segment))
                })
            {
                for (address, end) in &mut self.ends {
                    let is_group = to.ip().is_multicast() && address.ip() != from.ip();
                    if *address == to || is_group && address.port() == to.port() {
                        for datagram in bytes.clone().chunks_mut(segment) {
                            let _ = end.handle_datagram(0, from, datagram, self.now_ns);
                        }
                    }
                }
            }
            for (number, (_, end)) in self.ends.iter_mut().enumerate() {
                while let Some(frame) = end.poll_frame() {
                    self.delivered.push((number, frame.ethernet().to_vec()));
                }
            }
        }

        fn run_for(&mut self, ns: u64) {
            for _ in 0..ns / MS {
                self.now_ns += MS;
                for (_, end) in &mut self.ends {
                    end.handle_timeout(self.now_ns);
                }
                self.settle();
            }
        }

        /// Sends one frame from endpoint `number`. Returns the endpoints that delivered it.
        fn send(&mut self, number: usize, to: [u8; 6]) -> Vec<usize> {
            let from = self.ends[number].1.config.node as u8;
            let frame = [&to[..], &[2, 0, 0, 0, 0, from, 8, 0], &[0; 80]].concat();
            let now_ns = self.now_ns;
            self.ends[number]
                .1
                .handle_frame(Frame::from_ethernet(&frame), now_ns);
            self.run_for(30 * MS);
            let delivered = std::mem::take(&mut self.delivered);
            delivered.into_iter().map(|(end, _)| end).collect()
        }
    }

    const GROUP: [u8; 6] = [0xff; 6];

    fn check(mut lan: Lan, (ours, theirs): (u8, u8)) {
        let (ours, theirs) = (usize::from(ours), usize::from(theirs));
        for end in (0..ours + theirs).chain(0..ours + theirs) {
            let peer = if end < ours { 2 } else { 1 };
            for to in [[2, 0, 0, 0, 0, peer], GROUP] {
                let receivers = lan.send(end, to);
                let is_receiver = |index: &usize| (*index < ours) == (peer == 1);
                assert_eq!(receivers.len(), 1, "{ours}/{theirs}: {end} to {to:?}");
                assert!(receivers.iter().all(is_receiver), "{ours}/{theirs}: {end}");
            }
        }
    }

    const COUNTS: [(u8, u8); 7] = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (2, 4), (8, 3)];

    #[test]
    fn lanes__any_two_lane_counts__every_frame_arrives_once() {
        for (ours, theirs) in COUNTS {
            let lan = Lan::new(host(1, ours, None, 0), host(2, theirs, None, 0));
            check(lan, (ours, theirs));
        }
    }

    #[test]
    fn lanes__hosts_behind_routers__every_frame_arrives_once() {
        for (ours, theirs) in COUNTS {
            let lan = Lan::new(host(1, ours, Some(2), 0), host(2, theirs, Some(1), 0));
            check(lan, (ours, theirs));
        }
    }

    #[test]
    fn lanes__host_restarted_with_another_lane_count__frames_flow_both_ways() {
        for (before, after) in [(2, 1), (1, 2), (4, 2)] {
            let mut lan = Lan::new(host(1, 2, None, 0), host(2, before, None, 0));
            lan.ends.truncate(2);
            lan.run_for(500 * MS);
            lan.ends.extend(host(2, after, None, lan.now_ns));
            lan.run_for(4000 * MS);
            for end in 0..2 {
                for to in [[2, 0, 0, 0, 0, 2], GROUP] {
                    let receivers = lan.send(end, to);
                    assert_eq!(receivers.len(), 1, "{before} to {after}: {end} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn lanes__other_device_on_the_next_port__is_not_taken_for_a_lane() {
        let mut lan = Lan::new(host(1, 2, None, 0), host(2, 2, None, 0));
        let (mut address, stranger) = lane_end(3, Lane::ONLY, 1, None, lan.now_ns);
        address.set_port(PORT + 1);
        lan.ends.push((address, stranger));
        lan.run_for(3000 * MS);
        let known = lan.ends[1].1.peers().filter(|peer| peer.node() == 3);
        assert_eq!(known.count(), 0);
    }
}
