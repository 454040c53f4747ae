//! Forwarding table: the peer behind which each MAC address is, of the peer's device or of a
//! machine bridged to it.

use std::collections::HashMap;

/// Largest number of addresses: that of a small switch.
pub const STATIONS_MAX: usize = 8192;
/// Time without a frame after which an address may be replaced by a new one, in ns (IEEE 802.1D:
/// 300 s).
const AGE_NS: u64 = 300_000_000_000;

/// Peers by MAC address.
#[derive(Debug, Default)]
pub struct Stations {
    table: HashMap<[u8; 6], (usize, u64)>,
    /// Result of the last look-up: most frames have the same destination as the one before.
    last: Option<([u8; 6], usize)>,
}

impl Stations {
    /// Returns the peer for frames to `mac`, or `None` for groups and unknown addresses.
    pub fn find(&mut self, mac: &[u8; 6]) -> Option<usize> {
        if let Some((_, peer)) = self.last.filter(|(known, _)| known == mac) {
            return Some(peer);
        }
        let peer = self.table.get(mac)?.0;
        self.last = Some((*mac, peer));
        Some(peer)
    }

    /// Enters an address of a peer.
    pub fn insert(&mut self, mac: [u8; 6], peer: usize, now_ns: u64) {
        if mac[0] & 1 != 0 {
            return; // a group address has no owner
        }
        if self.table.len() >= STATIONS_MAX && !self.table.contains_key(&mac) {
            self.table
                .retain(|_, (_, heard_ns)| now_ns.saturating_sub(*heard_ns) < AGE_NS);
            if self.table.len() >= STATIONS_MAX {
                return;
            }
        }
        self.last = None;
        self.table.insert(mac, (peer, now_ns));
    }

    /// Forgets peer `number`. Peer `last` has its number from now on.
    pub fn forget(&mut self, number: usize, last: usize) {
        self.last = None;
        self.table.retain(|_, (peer, _)| *peer != number);
        for (peer, _) in self.table.values_mut().filter(|entry| entry.0 == last) {
            *peer = number;
        }
    }

    /// Learns from a frame's source address.
    pub fn learn(&mut self, ethernet: &[u8], peer: usize, now_ns: u64) {
        let Some(mac) = ethernet.get(6..12).and_then(|mac| mac.first_chunk::<6>()) else {
            return;
        };
        match self.table.get_mut(mac) {
            Some(entry) if entry.0 == peer => entry.1 = now_ns,
            _ => self.insert(*mac, peer, now_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stations__flooded_with_addresses__stay_bounded() {
        let mut stations = Stations::default();
        for number in 0..20_000u32 {
            let mut frame = [0; 14];
            frame[8..12].copy_from_slice(&number.to_be_bytes());
            stations.learn(&frame, 1, 0);
        }
        assert_eq!(stations.table.len(), STATIONS_MAX);
        assert_eq!(stations.find(&[0; 6]), Some(1));
    }

    #[test]
    fn stations__peer_forgotten__are_removed_and_the_last_peer_takes_its_index() {
        let mut stations = Stations::default();
        for peer in 0..3 {
            stations.insert([2, 0, 0, 0, 0, peer as u8], peer, 0);
        }
        stations.forget(0, 2);
        let found = |number, stations: &mut Stations| stations.find(&[2, 0, 0, 0, 0, number]);
        assert_eq!(found(0, &mut stations), None);
        assert_eq!(found(1, &mut stations), Some(1));
        assert_eq!(found(2, &mut stations), Some(0));
    }

    #[test]
    fn stations__moved_address__is_found_at_its_new_peer() {
        let mut stations = Stations::default();
        stations.insert([2; 6], 1, 0);
        assert_eq!(stations.find(&[2; 6]), Some(1));
        stations.insert([2; 6], 2, 0);
        assert_eq!(stations.find(&[2; 6]), Some(2));
        stations.insert([3; 6], 2, 0);
        assert_eq!(
            stations.find(&[3; 6]),
            None,
            "a group address is not learned"
        );
    }
}
