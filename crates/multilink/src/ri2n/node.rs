//! A peer, and its endpoints: one for each NIC it is reached by (paper §4.4, figure 5).
//!
//! ```text
//!             a counter > FT_HTHRESH, this one ≤ FT_LTHRESH,
//!             silent for SLOW_TOUT
//!   working ──────────────────────────────────────────────▶ failed
//!           ◀──────────────────────────────────────────────
//!             a heartbeat
//! ```

use super::header::Mac;
use super::reorder::Reorder;
use crate::frame::Frame;

/// `FT_HTHRESH`: a counter above it has its peer's endpoints judged (§4.4, table 2).
pub const FT_HTHRESH: u32 = 10;
/// `FT_LTHRESH`: a counter no higher is a failure then (§4.4, table 2).
pub const FT_LTHRESH: u32 = 1;
/// `SLOW_TOUT`: an endpoint heard less than this ago has not failed, whatever the counters say: the
/// receive buffers of NICs make them uneven for short times (§4.4, table 2).
pub const SLOW_TOUT_NS: u64 = 100_000_000;
/// `HBSPAN`: how often heartbeats are sent (§4.4, table 2).
pub const HBSPAN_NS: u64 = 2_000_000_000;
/// `HBWEIGHT`: what a heartbeat counts for (§4.4, table 2).
pub const HBWEIGHT: u32 = 3;

/// A pair of peer and NIC.
#[derive(Debug, Clone, Copy, Default)]
pub struct EndpointState {
    /// Whether it is taken to be broken.
    pub is_failed: bool,
    /// Receive counter since its peer's endpoints were last judged.
    pub counter: u32,
    /// When something was last received; when the peer became known, if nothing was.
    pub heard_ns: u64,
    /// Data frames sent, and their bytes on the link.
    pub tx: (u64, u64),
    /// Data frames received, and their bytes on the link.
    pub rx: (u64, u64),
    /// Heartbeats sent and received.
    pub heartbeats: (u64, u64),
    /// How often it failed.
    pub failures: u64,
}

/// A peer.
#[derive(Debug)]
pub struct Node {
    /// Address of its device.
    pub mac: Mac,
    /// Number of the next frame to it.
    pub next_sequence: u32,
    /// One a NIC.
    pub endpoints: Vec<EndpointState>,
    /// Its frames on their way up.
    pub reorder: Reorder<Frame>,
    last_used: usize,
}

/// Which endpoint a frame goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The one of this link.
    Link(usize),
    /// None now: all that work have full queues.
    Full,
    /// None: all have failed.
    Failed,
}

/// Round robin after `last_used`, past what has failed and what is full (§5.3).
pub fn round_robin(
    links: usize,
    last_used: &mut usize,
    is_failed: impl Fn(usize) -> bool,
    is_full: impl Fn(usize) -> bool,
) -> Choice {
    let mut choice = Choice::Failed;
    for link in (1..=links).map(|step| (*last_used + step) % links) {
        if is_failed(link) {
            continue;
        }
        if !is_full(link) {
            *last_used = link;
            return Choice::Link(link);
        }
        choice = Choice::Full;
    }
    choice
}

impl Node {
    /// A peer reached by `links` NICs, all of which are taken to work.
    pub fn new(mac: Mac, links: usize, first_sequence: u32, now_ns: u64) -> Self {
        let endpoint = EndpointState {
            heard_ns: now_ns,
            ..EndpointState::default()
        };
        Self {
            mac,
            next_sequence: first_sequence,
            endpoints: vec![endpoint; links],
            reorder: Reorder::new(links),
            last_used: links - 1,
        }
    }

    /// The link for the next frame.
    pub fn choose(&mut self, is_full: impl Fn(usize) -> bool) -> Choice {
        let endpoints = &self.endpoints;
        let is_failed = |link: usize| endpoints[link].is_failed;
        round_robin(endpoints.len(), &mut self.last_used, is_failed, is_full)
    }

    /// Counts what was received on `link`, and judges when that is due: gives the links that have
    /// just failed.
    pub fn count(&mut self, link: usize, weight: u32, now_ns: u64) -> impl Iterator<Item = usize> {
        let heard = &mut self.endpoints[link];
        heard.counter += weight;
        heard.heard_ns = now_ns;
        let mut failed = 0u32;
        if heard.counter > FT_HTHRESH {
            for (link, endpoint) in self.endpoints.iter_mut().enumerate() {
                let is_silent = now_ns.saturating_sub(endpoint.heard_ns) >= SLOW_TOUT_NS;
                if !endpoint.is_failed && endpoint.counter <= FT_LTHRESH && is_silent {
                    endpoint.is_failed = true;
                    endpoint.failures += 1;
                    failed |= 1 << link;
                }
                // The next comparison starts from nothing, or none would ever find a low one.
                endpoint.counter = 0;
            }
        }
        (0..u32::BITS as usize).filter(move |link| failed & 1 << link != 0)
    }

    /// A heartbeat arrived on a failed endpoint (§5.7). False if it had not failed.
    pub fn recover(&mut self, link: usize, now_ns: u64) -> bool {
        let endpoint = &mut self.endpoints[link];
        let was_failed = std::mem::take(&mut endpoint.is_failed);
        if was_failed {
            endpoint.heard_ns = now_ns;
        }
        was_failed
    }

    /// Whether anything was heard on an endpoint that works.
    pub fn is_up(&self) -> bool {
        let mut endpoints = self.endpoints.iter();
        endpoints.any(|e| !e.is_failed && e.rx.0 + e.heartbeats.1 > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn node() -> Node {
        Node::new([2; 6], 2, 0, 0)
    }

    fn failed(node: &mut Node, link: usize, weight: u32, now_ns: u64) -> Vec<usize> {
        node.count(link, weight, now_ns).collect()
    }

    /// §4.4: FT_HTHRESH must be exceeded, and SLOW_TOUT have passed.
    #[test]
    fn failure__eleventh_packet_after_slow_tout__is_found() {
        let mut node = node();
        for _ in 0..FT_HTHRESH {
            assert_eq!(failed(&mut node, 0, 1, 100 * MS), []);
        }
        assert_eq!(failed(&mut node, 0, 1, 100 * MS), [1]);
        assert!(node.endpoints[1].is_failed && !node.endpoints[0].is_failed);
    }

    /// §4.4: SLOW_TOUT is the low-pass filter against buffers that make the counters uneven.
    #[test]
    fn failure__silence_shorter_than_slow_tout__is_no_failure() {
        let mut node = node();
        failed(&mut node, 1, 1, 10 * MS);
        for at in 0..1000 {
            assert_eq!(failed(&mut node, 0, 1, 10 * MS + at * 99_000), []);
        }
        let later = (0..11).flat_map(|_| failed(&mut node, 0, 1, 110 * MS));
        assert_eq!(later.collect::<Vec<_>>(), [1]);
    }

    /// §4.4: a counter above FT_LTHRESH acquits.
    #[test]
    fn failure__counter_above_ft_lthresh__is_no_failure() {
        let mut node = node();
        for _ in 0..=FT_LTHRESH {
            failed(&mut node, 1, 1, 0);
        }
        for _ in 0..=FT_HTHRESH {
            assert_eq!(failed(&mut node, 0, 1, 500 * MS), []);
        }
    }

    /// §4.4: HBWEIGHT makes four heartbeats, not eleven, enough.
    #[test]
    fn failure__heartbeats_alone__are_enough_with_the_fourth() {
        let mut node = node();
        for beat in 1..4 {
            assert_eq!(failed(&mut node, 0, HBWEIGHT, beat * HBSPAN_NS), []);
        }
        assert_eq!(failed(&mut node, 0, HBWEIGHT, 4 * HBSPAN_NS), [1]);
    }

    /// §4.4, §5.7: a heartbeat ends the failure; the counter is not raised by it.
    #[test]
    fn recovery__heartbeat_on_failed_endpoint__clears_the_flag() {
        let mut node = node();
        for _ in 0..=FT_HTHRESH {
            failed(&mut node, 0, 1, 100 * MS);
        }
        assert!(node.recover(1, 200 * MS));
        assert!(!node.recover(1, 200 * MS));
        assert_eq!(node.endpoints[1].counter, 0);
        assert_eq!(node.endpoints[1].heard_ns, 200 * MS);
    }

    /// §5.3: links in turn, past those that have failed or whose queue is full.
    #[test]
    fn round_robin__failed_or_full_link__is_passed_over() {
        let mut node = Node::new([2; 6], 3, 0, 0);
        let turn = |full: usize, node: &mut Node| node.choose(|link| link == full);
        let free = usize::MAX;
        let turns: Vec<_> = (0..4).map(|_| turn(free, &mut node)).collect();
        assert_eq!(turns, [0, 1, 2, 0].map(Choice::Link));
        node.endpoints[1].is_failed = true;
        assert_eq!(turn(free, &mut node), Choice::Link(2));
        assert_eq!(turn(0, &mut node), Choice::Link(2));
        assert_eq!(node.choose(|_| true), Choice::Full);
        node.endpoints.iter_mut().for_each(|e| e.is_failed = true);
        assert_eq!(node.choose(|_| false), Choice::Failed);
    }
}
