//! A peer and its endpoints, one for each NIC that reaches the peer (paper §4.4, figure 5).
//!
//! ```text
//!             a counter of the peer > FT_HTHRESH, this one ≤ FT_LTHRESH,
//!             and nothing received for SLOW_TOUT
//!   working ──────────────────────────────────────────────▶ failed
//!           ◀──────────────────────────────────────────────
//!             heartbeat received
//! ```

use super::header::Mac;
use super::reorder::Reorder;
use kumi_multilink::frame::Frame;

/// `FT_HTHRESH`: packets received on an endpoint above which its peer's endpoints are compared
/// (§4.4, table 2).
pub const FT_HTHRESH: u32 = 10;
/// `FT_LTHRESH`: packet count up to which an endpoint is judged as failed in that comparison (§4.4,
/// table 2).
pub const FT_LTHRESH: u32 = 1;
/// `SLOW_TOUT`: time without a received frame before an endpoint can fail, in nanoseconds (§4.4,
/// table 2). The receive buffers of NICs make the counters uneven for short times.
pub const SLOW_TOUT_NS: u64 = 100_000_000;
/// `HBSPAN`: interval of heartbeats, in nanoseconds (§4.4, table 2).
pub const HBSPAN_NS: u64 = 2_000_000_000;
/// `HBWEIGHT`: packets that a heartbeat counts for (§4.4, table 2).
pub const HBWEIGHT: u32 = 3;

/// State of an endpoint, a pair of a peer and a NIC.
#[derive(Debug, Clone, Copy, Default)]
pub struct EndpointState {
    /// True after a failure, until a heartbeat is received.
    pub is_failed: bool,
    /// Packets received since the last comparison of the peer's endpoints, with a heartbeat as
    /// [`HBWEIGHT`].
    pub counter: u32,
    /// Time of the last received frame, or the time at which the peer became known.
    pub heard_ns: u64,
    /// Data frames sent, and their bytes on the link.
    pub tx: (u64, u64),
    /// Data frames received, and their bytes on the link.
    pub rx: (u64, u64),
    /// Heartbeats sent and received.
    pub heartbeats: (u64, u64),
    /// Number of failures.
    pub failures: u64,
}

/// A peer: another device that uses RI2N/DRV.
#[derive(Debug)]
pub struct Node {
    /// Address of the peer's device.
    pub mac: Mac,
    /// Sequence number of the next frame to the peer.
    pub next_sequence: u32,
    /// Endpoints of the peer, one per NIC.
    pub endpoints: Vec<EndpointState>,
    /// Frames from the peer that wait for their order.
    pub reorder: Reorder<Frame>,
    last_used: usize,
}

/// Result of the choice of a link for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Index of the chosen link.
    Link(usize),
    /// All working endpoints have full queues.
    Full,
    /// All endpoints have failed.
    Failed,
}

/// Chooses the next link after `last_used` in round-robin order. Skips failed and full links
/// (§5.3).
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
    /// Creates a peer with `links` NICs, all of which count as working.
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

    /// Chooses the link for the next frame.
    pub fn choose(&mut self, is_full: impl Fn(usize) -> bool) -> Choice {
        let endpoints = &self.endpoints;
        let is_failed = |link: usize| endpoints[link].is_failed;
        round_robin(endpoints.len(), &mut self.last_used, is_failed, is_full)
    }

    /// Counts a packet received on `link` and compares the endpoints if a comparison is due.
    /// Returns the links that have failed just now.
    pub fn count(&mut self, link: usize, weight: u32, now_ns: u64) -> impl Iterator<Item = usize> {
        let receiver = &mut self.endpoints[link];
        receiver.counter += weight;
        receiver.heard_ns = now_ns;
        let mut failed = 0u32;
        if receiver.counter > FT_HTHRESH {
            for (link, endpoint) in self.endpoints.iter_mut().enumerate() {
                let is_silent = now_ns.saturating_sub(endpoint.heard_ns) >= SLOW_TOUT_NS;
                if !endpoint.is_failed && endpoint.counter <= FT_LTHRESH && is_silent {
                    endpoint.is_failed = true;
                    endpoint.failures += 1;
                    failed |= 1 << link;
                }
                // Each comparison starts from zero. Otherwise no counter would stay low enough to
                // show a failure.
                endpoint.counter = 0;
            }
        }
        (0..u32::BITS as usize).filter(move |link| failed & 1 << link != 0)
    }

    /// Processes a heartbeat on an endpoint (§5.7). Returns true if the endpoint had failed.
    pub fn recover(&mut self, link: usize, now_ns: u64) -> bool {
        let endpoint = &mut self.endpoints[link];
        let was_failed = std::mem::take(&mut endpoint.is_failed);
        if was_failed {
            endpoint.heard_ns = now_ns;
        }
        was_failed
    }

    /// Returns true if any working endpoint has ever received a frame.
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

    fn count(node: &mut Node, link: usize, weight: u32, now_ns: u64) -> Vec<usize> {
        node.count(link, weight, now_ns).collect()
    }

    /// §4.4: a failure requires a counter above `FT_HTHRESH` and `SLOW_TOUT` without a frame.
    #[test]
    fn failure__eleventh_packet_after_slow_tout__is_detected() {
        let mut node = node();
        for _ in 0..FT_HTHRESH {
            assert!(count(&mut node, 0, 1, 100 * MS).is_empty());
        }
        assert_eq!(count(&mut node, 0, 1, 100 * MS), [1]);
        assert!(node.endpoints[1].is_failed && !node.endpoints[0].is_failed);
    }

    /// §4.4: `SLOW_TOUT` is the low-pass filter against buffers that make the counters uneven.
    #[test]
    fn failure__silence_shorter_than_slow_tout__is_not_detected() {
        let mut node = node();
        count(&mut node, 1, 1, 10 * MS);
        for step in 0..1000 {
            assert!(count(&mut node, 0, 1, 10 * MS + step * 99_000).is_empty());
        }
        let failures = (0..11).flat_map(|_| count(&mut node, 0, 1, 110 * MS));
        assert_eq!(failures.collect::<Vec<_>>(), [1]);
    }

    /// §4.4: a counter above `FT_LTHRESH` prevents a failure.
    #[test]
    fn failure__counter_above_ft_lthresh__is_not_detected() {
        let mut node = node();
        for _ in 0..=FT_LTHRESH {
            count(&mut node, 1, 1, 0);
        }
        for _ in 0..=FT_HTHRESH {
            assert!(count(&mut node, 0, 1, 500 * MS).is_empty());
        }
    }

    /// §4.4: with `HBWEIGHT`, four heartbeats suffice instead of eleven.
    #[test]
    fn failure__heartbeats_alone__is_detected_with_the_fourth() {
        let mut node = node();
        for beat in 1..4 {
            assert!(count(&mut node, 0, HBWEIGHT, beat * HBSPAN_NS).is_empty());
        }
        assert_eq!(count(&mut node, 0, HBWEIGHT, 4 * HBSPAN_NS), [1]);
    }

    /// §4.4, §5.7: a heartbeat ends the failure and does not raise the counter.
    #[test]
    fn recovery__heartbeat_on_failed_endpoint__clears_the_flag() {
        let mut node = node();
        for _ in 0..=FT_HTHRESH {
            count(&mut node, 0, 1, 100 * MS);
        }
        assert!(node.recover(1, 200 * MS));
        assert!(!node.recover(1, 200 * MS));
        assert_eq!(node.endpoints[1].counter, 0);
        assert_eq!(node.endpoints[1].heard_ns, 200 * MS);
    }

    /// §5.3: links are used in turn. Links that have failed or whose queue is full are skipped.
    #[test]
    fn round_robin__failed_or_full_link__is_skipped() {
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
