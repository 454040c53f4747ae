//! A peer as the programs know it: its ways, and the links that rest.

use super::drain::Drain;
use super::intf::{Peer, Way};
use kumi_multilink::endpoint::direct::DirectPeer;
use kumi_multilink::wire::LINKS_MAX;

/// Share of the fastest path's rate below which a path rests, and time of a rest in ns.
const SHARE_LEAST: f64 = 0.2;
const REST_NS: u64 = 10_000_000_000;

/// A peer, as the programs know it.
#[derive(Debug, Default)]
pub struct Known {
    /// Its number in the maps.
    pub number: u32,
    /// Its links and addresses; `None` if the daemon carries the frames to it.
    pub reached: Option<Peer>,
    /// Frames at the last look.
    pub frames: u64,
    /// Drains of its paths, by link.
    pub drains: [Drain; LINKS_MAX],
    /// Times until which links rest, in ns.
    rest_until_ns: [u64; LINKS_MAX],
    /// Rates that the drains gave last, in bit/s.
    pub rates_bps: [f64; LINKS_MAX],
}

impl Known {
    /// Returns a peer with this number, of which nothing else is known.
    pub fn new(number: u32) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    /// Lets links rest that are slow beside the fastest: a stream waits for each of its bursts
    /// there. Their rates are forgotten, so they are tried again after the rest.
    pub fn rest_slow_links(&mut self, peer: &DirectPeer, now_ns: u64) {
        let used = peer.ways.iter().map(|way| way.link);
        let used = used.filter(|link| now_ns >= self.rest_until_ns[usize::from(*link)]);
        let rate = |link: u8| Some((link, self.drains[usize::from(link)].firm_bps()?));
        let rates: Vec<(u8, f64)> = used.filter_map(rate).collect();
        let fastest_bps = rates
            .iter()
            .fold(0.0, |most, (_, rate)| f64::max(most, *rate));
        for (link, rate_bps) in rates {
            if rate_bps < fastest_bps * SHARE_LEAST {
                self.rest_until_ns[usize::from(link)] = now_ns + REST_NS;
                self.drains[usize::from(link)].forget_rates();
            }
        }
    }

    /// Returns the ways to the peer: the links that do not rest, or all if each of them rests.
    pub fn ways(&self, peer: &DirectPeer, now_ns: u64) -> Peer {
        let rests = |link: u8| now_ns < self.rest_until_ns[usize::from(link)];
        let all_rest = peer.ways.iter().all(|way| rests(way.link));
        let mut value = Peer {
            links: 0,
            number: self.number,
            ways: [Way::default(); LINKS_MAX],
        };
        for way in &peer.ways {
            value.links |= u32::from(all_rest || !rests(way.link)) << way.link;
            value.ways[usize::from(way.link)] = Way {
                to: way.to,
                from: way.from,
            };
        }
        value
    }
}
