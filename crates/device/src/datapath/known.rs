//! A peer as the programs know it: its ways, the links that rest, and who has its long streams.

use super::bulk::Carrier;
use super::drain::{Drain, SHARE_SLOW};
use super::intf::{Answer, Path, Peer, Way};
use super::lost::Losses;
use super::trials::Trials;
use kumi_multilink::endpoint::direct::{self, DirectPeer};
use kumi_multilink::wire::LINKS_MAX;

/// Time of a rest, in ns.
const REST_NS: u64 = 10_000_000_000;

/// Questions on a path. Times are in the programs' ns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// Time of the last question.
    pub last_ns: u64,
    /// Time of the last question that was answered.
    pub answered_ns: u64,
    /// Time of the last question that a frame may have overtaken: it does not tell how much was
    /// sent before it.
    pub inexact_ns: u64,
    /// The path as the programs know it.
    pub path: Path,
}

/// Iterates over the ways of a peer that are up.
fn up(peer: &DirectPeer) -> impl Iterator<Item = &direct::Way> {
    peer.ways.iter().filter(|way| way.is_up)
}

/// A peer, as the programs know it.
#[derive(Debug, Default)]
pub struct Known {
    /// Its number in the maps.
    pub number: u32,
    /// Its links and addresses; `None` if the daemon carries the frames to it.
    pub reached: Option<Peer>,
    /// Frames at the last look, and time until which the peer counts as in use, in ns.
    pub frames: u64,
    pub used_until_ns: u64,
    /// Questions, by link.
    pub asked: [Asked; LINKS_MAX],
    /// Time of the last questions, in ns.
    pub asked_at_ns: u64,
    /// Drains of its paths, by link.
    pub drains: [Drain; LINKS_MAX],
    /// Losses on its paths, by link.
    pub losses: [Losses; LINKS_MAX],
    /// Bit n is set if link n is left to the daemon, which repairs losses.
    lossy: u32,
    /// Times until which links rest, in ns.
    rest_until_ns: [u64; LINKS_MAX],
    /// Trials of links whose rates have not shown.
    trials: Trials,
    /// Rates that the drains gave last, in bit/s.
    pub rates_bps: [f64; LINKS_MAX],
    /// Time until which the ways of a predecessor of this daemon count, unless the peer offers
    /// others, in ns.
    pub inherited_until_ns: u64,
    /// Its daemon was heard lately.
    pub has_daemon: bool,
    /// Carrier of its long streams.
    carrier: Carrier,
}

impl Known {
    /// Returns a peer with this number, of which nothing else is known.
    pub fn new(number: u32) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    /// Returns a peer to which a predecessor of this daemon had these ways, with the last answers
    /// to its questions, by link.
    pub fn inherited(reached: Peer, answers: [Option<Answer>; LINKS_MAX], until_ns: u64) -> Self {
        let asked = answers.map(|answer| {
            let answered_ns = answer.map_or(0, |answer| answer.asked_at_ns);
            Asked {
                last_ns: answered_ns,
                answered_ns,
                ..Asked::default()
            }
        });
        Self {
            number: reached.number,
            reached: Some(reached),
            asked,
            inherited_until_ns: until_ns,
            ..Self::default()
        }
    }

    /// Chooses who carries long streams. `daemon_bps` is the rate of a link in bit/s, and whether
    /// the daemon has measured it. `now_ns` is the programs' time.
    ///
    /// The rate at which the peer received lately is the better measure, but while the daemon has
    /// the long streams, only the daemon measures. Before any measurement, the claims count.
    pub fn choose_bulk(
        &mut self,
        peer: &DirectPeer,
        daemon_bps: impl Fn(u8) -> (f64, bool),
        now_ns: u64,
    ) {
        let rate = |link: u8| {
            let drain = &self.drains[usize::from(link)];
            let shown_bps = drain.firm_bps();
            let lately_bps = shown_bps.filter(|_| drain.is_shown(now_ns));
            let (daemon_bps, is_measured) = daemon_bps(link);
            let measured_bps = lately_bps.or(Some(daemon_bps).filter(|_| is_measured));
            measured_bps.or(shown_bps).unwrap_or(daemon_bps)
        };
        let lossy = peer.ways.iter().filter(|way| way.is_lossy);
        self.lossy = lossy.fold(0, |lossy, way| lossy | 1 << way.link);
        let ways = peer.ways.iter().filter(|way| way.is_up || way.is_lossy);
        let rates_bps: Vec<_> = ways.map(|way| rate(way.link)).collect();
        let is_lossy = self.lossy != 0;
        self.carrier.choose(&rates_bps, is_lossy, now_ns);
        if !peer.has_daemon {
            self.carrier.use_kernel();
        }
    }

    /// Returns whether the daemon carries the long streams.
    pub fn daemon_has_bulk(&self) -> bool {
        self.carrier.is_daemon()
    }

    /// Returns whether the daemon has a link because it loses frames.
    pub fn is_lossy(&self, link: u8) -> bool {
        self.lossy >> link & 1 == 1
    }

    /// Returns whether a link rests.
    pub fn rests(&self, link: u8, now_ns: u64) -> bool {
        now_ns < self.rest_until_ns[usize::from(link)]
    }

    /// Lets links rest that are slow beside the fastest: a stream waits for each of its bursts
    /// there. Their rates are forgotten, so they are tried again after the rest. None rests while
    /// the daemon has the long streams.
    pub fn rest_slow_links(&mut self, peer: &DirectPeer, now_ns: u64) {
        if self.daemon_has_bulk() {
            self.rest_until_ns = [0; LINKS_MAX];
            return;
        }
        let used = up(peer).map(|way| way.link);
        let used = used.filter(|link| !self.rests(*link, now_ns));
        let rate = |link: u8| Some((link, self.drains[usize::from(link)].firm_bps()?));
        let rates: Vec<(u8, f64)> = used.filter_map(rate).collect();
        let fastest_bps = rates
            .iter()
            .fold(0.0, |most, (_, rate)| f64::max(most, *rate));
        for (link, rate_bps) in rates {
            if rate_bps < fastest_bps * SHARE_SLOW {
                self.rest_until_ns[usize::from(link)] = now_ns + REST_NS;
                self.drains[usize::from(link)].forget_rates();
            }
        }
    }

    /// Tries the links that carry long streams and show less than they should, one after another.
    /// `claim_bps` is what a link should have, and the first of the times the programs'.
    pub fn try_links(
        &mut self,
        peer: &DirectPeer,
        claim_bps: impl Fn(u8) -> f64,
        times_ns: (u64, u64),
    ) {
        let used = up(peer).map(|way| way.link);
        let used = used.filter(|link| !self.daemon_has_bulk() && !self.rests(*link, times_ns.1));
        let used: Vec<u8> = used.collect();
        let drains = (0..).zip(&mut self.drains);
        let mut links: Vec<_> = drains.filter(|(link, _)| used.contains(link)).collect();
        self.trials.follow(&mut links, claim_bps, times_ns);
    }

    /// Returns the time of the next look at a trial, in ns.
    pub fn trial_look_ns(&self) -> Option<u64> {
        self.trials.look_ns()
    }

    /// Returns the ways to the peer. Those that are up and do not rest are used, or all that are up
    /// if each of them rests. The first of the times is the programs'.
    pub fn ways(&self, peer: &DirectPeer, (kernel_now_ns, now_ns): (u64, u64)) -> Peer {
        let all_rest = up(peer).all(|way| self.rests(way.link, now_ns));
        let mut value = Peer {
            links: 0,
            number: self.number,
            daemon_has_bulk: self.daemon_has_bulk().into(),
            tried: self.trials.link().map_or(0, |link| 1 << link),
            guessed: 0,
            ways: [Way::default(); LINKS_MAX],
        };
        for way in &peer.ways {
            let is_used = way.is_up && (all_rest || !self.rests(way.link, now_ns));
            value.links |= u32::from(is_used) << way.link;
            let is_guessed = !self.drains[usize::from(way.link)].is_known(kernel_now_ns);
            value.guessed |= u32::from(is_used && is_guessed) << way.link;
            value.ways[usize::from(way.link)] = Way {
                to: way.to,
                from: way.from,
            };
        }
        value.tried &= value.links;
        value
    }
}
