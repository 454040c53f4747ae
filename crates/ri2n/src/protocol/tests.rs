//! Tests of two devices with simulated links and a simulated clock.

use super::*;

const MS: u64 = 1_000_000;
const A: Mac = [2, 0, 0, 0, 0, 1];
const B: Mac = [2, 0, 0, 0, 0, 2];

/// Two devices, `a` and `b`, over two links without delay.
struct Pair {
    now_ns: u64,
    devices: [Ri2n; 2],
    /// True for links that lose every frame.
    is_dead: [bool; 2],
    /// First payload byte of each frame that a host received.
    received: [Vec<u8>; 2],
    /// Frames delivered on each link.
    link_frames: [usize; 2],
    events: Vec<(u64, Event)>,
}

impl Pair {
    /// Starts `b` and its heartbeats `later_ns` after `a`.
    fn new(later_ns: u64) -> Self {
        Self {
            now_ns: later_ns,
            devices: [Ri2n::new(A, 2, 5, 0), Ri2n::new(B, 2, 9, later_ns)],
            is_dead: [false; 2],
            received: Default::default(),
            link_frames: [0; 2],
            events: Vec::new(),
        }
    }

    fn send(&mut self, from: usize, to: Mac, mark: u8) {
        let mut ethernet = to.to_vec();
        ethernet.extend_from_slice(&[A, B][from]);
        ethernet.extend_from_slice(&[0x08, 0x00, mark]);
        let frame = Frame::from_ethernet(&ethernet);
        let result = self.devices[from].handle_frame(frame, self.now_ns);
        result.expect("queues are emptied at once");
        self.settle();
    }

    /// Delivers frames until no device has any left to send.
    fn settle(&mut self) {
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            for (from, link) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let device = &mut self.devices[from];
                let frames: Vec<Vec<u8>> = device.poll_transmit(link).map(<[u8]>::to_vec).collect();
                device.transmitted(link, frames.len());
                has_moved |= !frames.is_empty();
                for frame in frames.iter().filter(|_| !self.is_dead[link]) {
                    self.link_frames[link] += 1;
                    self.devices[1 - from].handle_datagram(link, frame, self.now_ns);
                }
            }
            for (device, received) in self.devices.iter_mut().zip(&mut self.received) {
                while let Some(frame) = device.poll_frame() {
                    received.push(frame.ethernet()[ETHERNET_BYTES]);
                    device.give_buffer(frame);
                }
                while let Some(event) = device.poll_event() {
                    self.events.push((self.now_ns, event));
                }
            }
        }
    }

    /// Advances the clock by `ns`. With `traffic`, each side sends a frame every millisecond.
    fn run(&mut self, ns: u64, traffic: bool) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns += MS;
            for device in &mut self.devices {
                if device.poll_timeout() <= self.now_ns {
                    device.handle_timeout(self.now_ns);
                }
            }
            self.settle();
            if traffic {
                self.send(0, B, 0);
                self.send(1, A, 0);
            }
        }
    }

    fn failed_count(&self) -> usize {
        let nodes = self.devices.iter().flat_map(Ri2n::nodes);
        let endpoints = nodes.flat_map(|node| &node.endpoints);
        endpoints.filter(|endpoint| endpoint.is_failed).count()
    }
}

/// §5.3, §5.5: frames are numbered per peer, use the links in turn and are delivered in order.
#[test]
fn pair__unicast__uses_both_links_and_keeps_order() {
    let mut pair = Pair::new(0);
    (0..100).for_each(|mark| pair.send(0, B, mark));
    assert_eq!(pair.received[1], (0..100).collect::<Vec<_>>());
    assert_eq!(pair.link_frames, [50, 50]);
}

/// §5.6: ARP needs broadcast before any address is known.
#[test]
fn pair__broadcast__arrives_and_creates_no_peer() {
    let mut pair = Pair::new(0);
    (0..4).for_each(|mark| pair.send(0, [0xff; 6], mark));
    assert_eq!(pair.received[1], [0, 1, 2, 3]);
    assert_eq!(pair.link_frames, [2, 2]);
    assert_eq!(pair.devices[1].nodes().count(), 0);
}

/// Unicast and broadcast frames have separate numbers, so neither causes gaps in the other.
#[test]
fn pair__broadcast_between_unicast__causes_no_gaps() {
    let mut pair = Pair::new(0);
    for mark in 0..50 {
        pair.send(0, if mark % 3 == 0 { [0xff; 6] } else { B }, mark);
    }
    assert_eq!(pair.received[1], (0..50).collect::<Vec<_>>());
    let node = pair.devices[1].nodes().next().unwrap();
    assert_eq!(node.reorder.counts(), ReorderCounts::default());
}

/// §5.7: heartbeats are sent every `HBSPAN` to all endpoints of all peers.
#[test]
fn heartbeats__known_peer__are_sent_on_every_link_each_hbspan() {
    let mut pair = Pair::new(0);
    pair.run(3 * HBSPAN_NS, false);
    assert_eq!(pair.link_frames, [0, 0], "no peer is known yet");
    pair.send(0, B, 0);
    pair.run(3 * HBSPAN_NS, false);
    let beats = |device: &Ri2n| device.nodes().next().unwrap().endpoints[1].heartbeats;
    assert_eq!(pair.devices.each_ref().map(beats), [(3, 3), (3, 3)]);
    assert_eq!(pair.failed_count(), 0);
}

/// §4.4: with traffic, a failure is detected after `SLOW_TOUT` and up to `FT_HTHRESH` further
/// packets.
#[test]
fn failure__link_dies_under_traffic__is_detected_after_slow_tout() {
    let mut pair = Pair::new(0);
    pair.run(HBSPAN_NS / 2, true);
    pair.is_dead[0] = true;
    let died_ns = pair.now_ns;
    pair.run(HBSPAN_NS / 2, true);
    assert_eq!(pair.failed_count(), 2);
    for (at_ns, event) in &pair.events {
        assert!(matches!(event, Event::Failed { link: 0, .. }));
        let after_ns = at_ns - died_ns;
        assert!(
            (SLOW_TOUT_NS..SLOW_TOUT_NS + 40 * MS).contains(&after_ns),
            "{after_ns}"
        );
    }
    let before = pair.devices[0].nodes().next().unwrap().endpoints[0].tx.0;
    pair.run(100 * MS, true);
    let after = pair.devices[0].nodes().next().unwrap().endpoints[0].tx.0;
    assert_eq!(before, after, "a failed endpoint is not chosen");
}

/// §4.4: without traffic, the fourth heartbeat on the other link shows the failure.
#[test]
fn failure__link_dies_without_traffic__is_detected_by_heartbeats() {
    let mut pair = Pair::new(0);
    pair.send(0, B, 0);
    pair.is_dead[0] = true;
    pair.run(HBSPAN_NS * 4 - 10 * MS, false);
    assert_eq!(pair.failed_count(), 0);
    pair.run(20 * MS, false);
    assert_eq!(pair.failed_count(), 2);
}

/// §4.4, figure 15: a repaired link is used again within `HBSPAN` and stays in use. This holds for
/// any phase between the two hosts' heartbeats.
#[test]
fn recovery__any_heartbeat_phase__happens_within_hbspan_and_lasts() {
    for later_ns in [0, 70 * MS, 500 * MS, 1000 * MS, 1900 * MS] {
        let mut pair = Pair::new(later_ns);
        pair.run(HBSPAN_NS, true);
        pair.is_dead[1] = true;
        pair.run(3 * HBSPAN_NS + 300 * MS, true);
        assert_eq!(pair.failed_count(), 2, "both have noticed");
        pair.is_dead[1] = false;
        let healed_ns = pair.now_ns;
        pair.run(5 * HBSPAN_NS, true);
        assert_eq!(pair.failed_count(), 0);
        let last = pair.events.last().unwrap();
        assert!(matches!(last.1, Event::Recovered { link: 1, .. }));
        assert!(last.0 - healed_ns <= HBSPAN_NS, "phase {later_ns}");
    }
}

/// §5.3: with all queues full, a frame is returned to the caller.
#[test]
fn full_queues__further_frame__is_returned_to_the_caller() {
    let mut device = Ri2n::new(A, 2, 0, 0);
    let frame = || {
        let mut ethernet = B.to_vec();
        ethernet.resize(60, 0);
        Frame::from_ethernet(&ethernet)
    };
    for _ in 0..2 * QUEUE_FRAMES_MAX {
        assert!(device.handle_frame(frame(), 0).is_ok());
    }
    assert!(device.handle_frame(frame(), 0).is_err());
    device.transmitted(1, 1);
    assert!(device.handle_frame(frame(), 0).is_ok());
    assert_eq!(device.poll_transmit(1).len(), QUEUE_FRAMES_MAX);
}

#[test]
fn datagram__foreign_or_malformed__is_dropped_and_counted() {
    let mut device = Ri2n::new(A, 2, 0, 0);
    let mut frame = Frame::from_ethernet(&[0; 60]);
    frame.buffer()[VNET_BYTES..VNET_BYTES + 6].copy_from_slice(&B);
    let wire = LinkFrame::wrap(frame, [4; 6], 0);
    device.handle_datagram(0, wire.as_slice(), 0);
    device.handle_datagram(0, &wire.as_slice()[..20], 0);
    assert_eq!(device.poll_frame(), None);
    assert_eq!(device.nodes().count(), 0);
    let counters = device.counters();
    assert_eq!((counters.not_ours, counters.malformed), (1, 1));
}
