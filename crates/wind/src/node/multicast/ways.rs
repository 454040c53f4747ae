//! Choice of the way of a put to many peers, by the rates that were measured.

use super::relay::CHUNK_BYTES;
use crate::protocol::{Multicast, PeerId};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// Puts after which the slower way is tried again: the network may have changed.
const TRIED_EVERY: u32 = 32;

/// Ratio of the rates above which the slower way is not tried again as often: a put by it would
/// delay the program.
const RATIO_MAX: f64 = 4.0;

/// Puts after which it is tried again then.
const TRIED_RARELY: u32 = 1024;

/// Time for which peers that did not hear a group are not asked again, in ns. It doubles each time,
/// up to the second one.
const UNHEARD_NS: u64 = 60_000_000_000;
const UNHEARD_NS_MAX: u64 = 3_600_000_000_000;

/// Sets of peers that are remembered.
const KNOWN_MAX: usize = 256;

/// Length below which the other way beside IP multicast is a put to each peer, in bytes: a relay
/// passes chunks on, of which short data has too few.
pub const RELAY_BYTES_MIN: usize = 8 * CHUNK_BYTES;

/// Way of data to many peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A put to each peer.
    Each,
    /// From peer to peer.
    Relay,
    /// By IP multicast.
    Network,
}

/// Rates of a set of peers and a length, in bytes per s; `None` before the first put.
#[derive(Debug, Clone, Default)]
struct Known {
    /// From peer to peer, or to each.
    other: Option<f64>,
    network: Option<f64>,
    puts: u32,
}

#[derive(Debug, Clone)]
struct Unheard {
    until_ns: u64,
    pause_ns: u64,
}

/// Puts to many peers since the node began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passed on from peer to peer.
    pub relay: u64,
    /// By IP multicast.
    pub network: u64,
    /// Attempts of IP multicast that not all peers heard.
    pub unheard: u64,
}

/// Measured rates.
#[derive(Debug)]
pub struct Ways {
    /// Puts by each way.
    pub counts: Counts,
    policy: Multicast,
    known: HashMap<(u64, u32), Known>,
    unheard: HashMap<u64, Unheard>,
}

fn digest(peers: &[PeerId]) -> u64 {
    let mut hasher = DefaultHasher::new();
    peers.hash(&mut hasher);
    hasher.finish()
}

/// Returns the name of a set of peers and a length: rates of lengths within a factor of two count
/// as equal.
fn key(peers: &[PeerId], bytes: usize) -> (u64, u32) {
    (digest(peers), bytes.max(1).ilog2())
}

impl Ways {
    pub fn new(policy: Multicast) -> Self {
        Self {
            counts: Counts::default(),
            policy,
            known: HashMap::new(),
            unheard: HashMap::new(),
        }
    }

    /// Returns the way of a put of `bytes` bytes.
    pub fn choose(&mut self, peers: &[PeerId], bytes: usize, now_ns: u64) -> Way {
        let is_unheard = |unheard: &Unheard| now_ns < unheard.until_ns;
        let other = if bytes < RELAY_BYTES_MIN {
            Way::Each
        } else {
            Way::Relay
        };
        if self.policy == Multicast::Relay
            || self.unheard.get(&digest(peers)).is_some_and(is_unheard)
        {
            return other;
        }
        if self.policy == Multicast::Network {
            return Way::Network;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let known = self.known.entry(key(peers, bytes)).or_default();
        known.puts = known.puts.wrapping_add(1);
        let (Some(other_rate), Some(network)) = (known.other, known.network) else {
            return match known.network {
                None => Way::Network,
                Some(_) => other,
            };
        };
        let ratio = (other_rate / network).max(network / other_rate);
        let every = if ratio > RATIO_MAX {
            TRIED_RARELY
        } else {
            TRIED_EVERY
        };
        let is_network = (network >= other_rate) != (known.puts % every == 0);
        if is_network { Way::Network } else { other }
    }

    /// Takes the rate of a put, in bytes per s.
    pub fn record(&mut self, peers: &[PeerId], bytes: usize, way: Way, rate: f64) {
        let known = self.known.entry(key(peers, bytes)).or_default();
        let known = match way {
            Way::Each => &mut known.other,
            Way::Relay => {
                self.counts.relay += 1;
                &mut known.other
            }
            Way::Network => {
                self.counts.network += 1;
                &mut known.network
            }
        };
        *known = Some(known.map_or(rate, |before| (before + rate) / 2.0));
        if way == Way::Network {
            self.unheard.remove(&digest(peers));
        }
    }

    /// Records that not all peers hear a group.
    pub fn note_unheard(&mut self, peers: &[PeerId], now_ns: u64) {
        self.counts.unheard += 1;
        if self.unheard.len() >= KNOWN_MAX {
            self.unheard.clear();
        }
        let unheard = self.unheard.entry(digest(peers)).or_insert(Unheard {
            until_ns: 0,
            pause_ns: UNHEARD_NS / 2,
        });
        unheard.pause_ns = (2 * unheard.pause_ns).min(UNHEARD_NS_MAX);
        unheard.until_ns = now_ns + unheard.pause_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS: [PeerId; 2] = [PeerId(1), PeerId(2)];
    const BYTES: usize = 1 << 20;

    #[test]
    fn ways__both_measured__the_faster_is_chosen_and_the_slower_tried_again() {
        let mut ways = Ways::new(Multicast::Auto);
        let rates = [(Way::Network, 30.0), (Way::Relay, 20.0)];
        for (way, rate) in rates {
            assert_eq!(ways.choose(&PEERS, BYTES, 0), way);
            ways.record(&PEERS, BYTES, way, rate);
        }
        let chosen: Vec<Way> = (0..64).map(|_| ways.choose(&PEERS, BYTES, 0)).collect();
        let relays = chosen.iter().filter(|way| **way == Way::Relay).count();
        assert_eq!(relays, 2, "{chosen:?}");
        // Another length is measured by itself.
        assert_eq!(ways.choose(&PEERS, 64 * BYTES, 0), Way::Network);
    }

    #[test]
    fn ways__of_short_data__are_the_group_and_a_put_to_each() {
        let mut ways = Ways::new(Multicast::Auto);
        for (way, rate) in [(Way::Network, 20.0), (Way::Each, 30.0)] {
            assert_eq!(ways.choose(&PEERS, RELAY_BYTES_MIN - 1, 0), way);
            ways.record(&PEERS, RELAY_BYTES_MIN - 1, way, rate);
        }
        assert_eq!(ways.choose(&PEERS, RELAY_BYTES_MIN - 1, 0), Way::Each);
        assert_eq!(ways.counts.relay, 0);
        assert_eq!(ways.choose(&PEERS, RELAY_BYTES_MIN, 0), Way::Network);
    }

    #[test]
    fn ways__group_that_is_not_heard__is_tried_again_after_longer_and_longer_times() {
        let mut ways = Ways::new(Multicast::Network);
        ways.note_unheard(&PEERS, 0);
        assert_eq!(ways.choose(&PEERS, BYTES, UNHEARD_NS - 1), Way::Relay);
        assert_eq!(ways.choose(&PEERS, BYTES, UNHEARD_NS), Way::Network);
        ways.note_unheard(&PEERS, UNHEARD_NS);
        assert_eq!(ways.choose(&PEERS, BYTES, 3 * UNHEARD_NS - 1), Way::Relay);
        ways.record(&PEERS, BYTES, Way::Network, 1.0);
        assert_eq!(ways.choose(&PEERS, BYTES, 0), Way::Network);
    }

    #[test]
    fn ways__relay_only__never_asks_for_a_group() {
        let mut ways = Ways::new(Multicast::Relay);
        assert!((0..99).all(|_| ways.choose(&PEERS, BYTES, 0) == Way::Relay));
    }
}
