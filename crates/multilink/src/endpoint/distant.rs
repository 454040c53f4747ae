//! Tests of handshakes on long paths, and of recorded handshakes.

use super::tests::{LINKS, address, endpoint};
use super::*;
use crate::frame::VNET_BYTES;
use crate::handshake::Initiator;
use crate::wire::{CookieReply, Params, flag};

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// A datagram in flight: arrival time, receiving side, link, contents.
type Flight = (u64, usize, u8, Vec<u8>);

/// Two endpoints with a long delay between them.
struct DistantPair {
    ends: [Endpoint; 2],
    now_ns: u64,
    one_way_ns: u64,
    flights: VecDeque<Flight>,
    is_cut: bool,
    delivered: [usize; 2],
}

impl DistantPair {
    fn new(one_way_ns: u64) -> Self {
        let mut pair = Self {
            ends: [endpoint(1, 11, 0), endpoint(2, 22, 0)],
            now_ns: 0,
            one_way_ns,
            flights: VecDeque::new(),
            is_cut: false,
            delivered: [0; 2],
        };
        pair.run_for(8 * S);
        pair.assert_agreed();
        pair
    }

    fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        while self.now_ns < until_ns {
            self.now_ns += MS;
            while let Some((_, to, link, mut bytes)) =
                self.flights.pop_front_if(|flight| flight.0 <= self.now_ns)
            {
                let from = address(1 - to, link);
                let _ = self.ends[to].handle_datagram(link, from, &mut bytes, self.now_ns);
            }
            for side in 0..2 {
                self.take_turn(side);
            }
        }
    }

    fn take_turn(&mut self, side: usize) {
        if self.ends[side].poll_timeout(self.now_ns) <= self.now_ns {
            self.ends[side].handle_timeout(self.now_ns);
        }
        for link in 0..LINKS {
            while let Some(batch) = self.ends[side].poll_transmit(link) {
                let (bytes, segment) = (batch.bytes.clone(), batch.segment_bytes);
                self.ends[side].transmitted(link);
                let arrival_ns = self.now_ns + self.one_way_ns;
                let datagrams = bytes.chunks(segment).filter(|_| !self.is_cut);
                self.flights.extend(
                    datagrams.map(|datagram| (arrival_ns, 1 - side, link, datagram.to_vec())),
                );
            }
        }
        while self.ends[side].poll_frame().is_some() {
            self.delivered[side] += 1;
        }
    }

    /// Returns the hellos that a side sends within 2 s.
    fn collect_hellos(&mut self, side: usize) -> Vec<Flight> {
        let mut hellos = Vec::new();
        for _ in 0..2000 {
            self.run_for(MS);
            let sent = self.flights.iter().filter(|flight| flight.1 != side);
            hellos.extend(
                sent.filter(|flight| kind_of(&flight.3) == Ok(Kind::Hello))
                    .cloned(),
            );
        }
        assert!(!hellos.is_empty());
        hellos
    }

    /// Returns the session numbers on packets to this side and to the other side.
    fn numbers(&self, side: usize) -> (u16, u16) {
        let current = self.ends[side].peers[0].current.as_ref();
        current.map_or((0, 0), |session| (session.local, session.remote))
    }

    fn assert_agreed(&self) {
        let [(ours, theirs), (remote_ours, remote_theirs)] = [0, 1].map(|side| self.numbers(side));
        assert_eq!((ours, theirs), (remote_theirs, remote_ours), "two sessions");
        for end in &self.ends {
            assert!(
                end.peers[0]
                    .current
                    .as_ref()
                    .is_some_and(|session| session.is_confirmed)
            );
        }
    }

    fn send_both_ways(&mut self) {
        self.delivered = [0; 2];
        for side in 0..2u8 {
            let destination = [2, 0, 0, 0, 0, 2 - side, 2, 0, 0, 0, 0, 1 + side, 8, 0];
            let frame = Frame::from_ethernet(&[&destination[..], &[0; 80]].concat());
            self.ends[usize::from(side)].handle_frame(frame, self.now_ns);
        }
        self.run_for(2 * self.one_way_ns + 50 * MS);
        assert_eq!(self.delivered, [1, 1]);
    }
}

#[test]
fn dials__both_sides_at_once_on_a_long_path__settle_on_one_session() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = DistantPair::new(random.u64(125..300) * MS);
        let is_cut = random.bool();
        for side in [0, 1] {
            let now_ns = pair.now_ns;
            pair.ends[side].dial(0, now_ns);
            pair.run_for(random.u64(0..2) * random.u64(0..100) * MS);
        }
        pair.run_for(random.u64(0..1000) * MS);
        pair.is_cut = is_cut;
        pair.run_for(random.u64(1000..3000) * MS);
        pair.is_cut = false;
        pair.run_for(6 * S);
        pair.assert_agreed();
        let settled = pair.numbers(0);
        // Longer than two sessions overlap.
        pair.run_for(11 * S);
        assert_eq!(pair.numbers(0), settled, "seed {seed}: made anew");
        pair.assert_agreed();
        pair.send_both_ways();
    }
}

#[test]
fn goodbye__genuine_forged_or_replayed__ends_only_its_own_instance() {
    let mut pair = DistantPair::new(2 * MS);
    let recorded: Vec<Flight> = pair.collect_hellos(0);
    let now_ns = pair.now_ns;
    pair.ends[0].say_goodbye(now_ns);
    pair.take_turn(0);
    let goodbyes: Vec<Flight> = pair
        .flights
        .iter()
        .filter(|flight| flight.1 == 1)
        .cloned()
        .collect();
    assert!(goodbyes.len() >= usize::from(LINKS), "one on each link");
    let forged = goodbyes.iter().map(|(_, _, link, bytes)| {
        let mut bytes = bytes.clone();
        *bytes.last_mut().unwrap() ^= 1;
        (*link, bytes)
    });
    for (link, mut bytes) in forged.collect::<Vec<_>>() {
        let _ = pair.ends[1].handle_datagram(link, address(0, link), &mut bytes, now_ns);
    }
    assert!(pair.ends[1].peers[0].is_up, "a forged goodbye is believed");
    pair.is_cut = true;
    pair.run_for(3 * MS);
    let peer = &pair.ends[1].peers[0];
    assert!(!peer.is_up && peer.current.is_none() && peer.is_retired(11));
    // A recorded hello does not revive the ended epoch, and the peer is not dialled.
    for (_, _, link, mut bytes) in recorded {
        let _ = pair.ends[1].handle_datagram(link, address(0, link), &mut bytes, pair.now_ns);
    }
    pair.run_for(3 * S);
    assert!(pair.ends[1].peers[0].dial.is_none() && pair.ends[1].peers[0].dial_attempts == 0);
    pair.is_cut = false;
    pair.ends[0] = endpoint(1, 12, pair.now_ns);
    pair.run_for(500 * MS);
    assert!(pair.ends[1].peers[0].is_up, "the next instance is not up");
    for (_, _, link, mut bytes) in goodbyes {
        let _ = pair.ends[1].handle_datagram(link, address(0, link), &mut bytes, pair.now_ns);
    }
    assert!(
        pair.ends[1].peers[0].is_up,
        "a replayed goodbye is believed"
    );
    pair.send_both_ways();
    pair.assert_agreed();
}

/// Returns an Init of node 1 with the epoch `instance`, sent at `sent_at_ns`.
fn init(instance: u64, sent_at_ns: u64) -> (Initiator, Vec<u8>) {
    let mut node = endpoint(1, instance, 0);
    let session = node.allocate_session();
    let params = Params {
        sent_at_ns,
        ..node.params(0, session, 0, 0)
    };
    Initiator::start(&node.config.key, &params)
}

fn waiting(end: &Endpoint) -> Vec<(u64, bool)> {
    let next = end.peers[0].next.iter();
    next.map(|next| (next.params.instance, next.is_proven))
        .collect()
}

fn receive(end: &mut Endpoint, datagram: &[u8]) {
    let mut datagram = datagram.to_vec();
    end.handle_datagram(0, address(0, 0), &mut datagram, S)
        .unwrap();
}

#[test]
fn inits__recordings_of_one_past_instance__occupy_one_waiting_slot() {
    let mut end = endpoint(2, 22, 0);
    for sent_at_ns in 1..=8 {
        receive(&mut end, &init(5, sent_at_ns).1);
    }
    receive(&mut end, &init(5, 3).1);
    assert_eq!(waiting(&end), [(5, false)]);
    receive(&mut end, &init(6, 9).1);
    assert_eq!(waiting(&end), [(5, false), (6, false)]);
}

#[test]
fn init__waiting_list_full_of_recordings__is_admitted_with_a_cookie() {
    let mut end = endpoint(2, 22, 0);
    for instance in 1..=8 {
        receive(&mut end, &init(instance, instance).1);
    }
    let recorded = [1, 2, 3, 4].map(|instance| (instance, false));
    assert_eq!(waiting(&end), recorded);
    while end.poll_transmit(0).is_some() {
        end.transmitted(0);
    }
    let (mut initiator, datagram) = init(99, 9);
    receive(&mut end, &datagram);
    assert_eq!(waiting(&end), recorded);
    let batch = end.poll_transmit(0).expect("a cookie reply");
    let key = end.config.key.clone();
    let reply = CookieReply::parse(&batch.bytes, &key).unwrap().unwrap();
    assert_eq!(reply.init, initiator.tag);
    let repeat = initiator.with_cookie(&key, reply.cookie).to_vec();
    receive(&mut end, &repeat);
    for instance in 10..=20 {
        receive(&mut end, &init(instance, instance).1);
    }
    assert!(waiting(&end).contains(&(99, true)), "{:?}", waiting(&end));
}

#[test]
fn queue__kernel_takes_nothing__is_bounded_and_causes_no_busy_loop() {
    let mut pair = DistantPair::new(MS);
    let now_ns = pair.now_ns;
    let end = &mut pair.ends[0];
    for number in 0..100_000u32 {
        let to = SocketAddr::from(([10, 9, 0, 1], (number % 60_000) as u16 + 1));
        end.send_plain(0, to, &[0; 52], now_ns);
    }
    let queued = |end: &Endpoint| end.links[0].as_ref().unwrap().queue.queued_bytes();
    let full = queued(end);
    assert!(full < 32_100_000, "{full} B");
    for turn in 1..=1000 {
        end.handle_timeout(now_ns + turn * MS);
        while end.poll_transmit(1).is_some() {
            end.transmitted(1);
        }
    }
    let due_ns = end.poll_timeout(now_ns + 1000 * MS);
    assert!(due_ns > now_ns + 1000 * MS, "always something due");
    assert_eq!(
        queued(end),
        full,
        "hellos, pings or reports are still added"
    );
}

#[test]
fn unit__shorter_than_its_virtio_header__is_refused_as_malformed() {
    for payload_bytes in 0..VNET_BYTES {
        let mut pair = DistantPair::new(MS);
        let now_ns = pair.now_ns;
        let peer = &pair.ends[0].peers[0];
        let session = peer.current.as_ref().expect("a session");
        let link_seq = peer.paths[0].ledger.next_seq();
        let header = DataHeader {
            link: 0,
            flags: flag::VNET,
            session: session.remote,
            link_seq: link_seq as u32,
            unit_seq: 0,
            index: 0,
            last: 0,
            aux: 0,
        };
        let mut head = [0; DATA_HEADER_BYTES];
        header.emit(&mut head);
        let mut datagram = Vec::new();
        session.seal(
            0,
            link_seq,
            &head,
            &[0; VNET_BYTES][..payload_bytes],
            &mut datagram,
        );
        let malformed_before = pair.ends[1].counters().malformed;
        let handled = pair.ends[1].handle_datagram(0, address(0, 0), &mut datagram, now_ns);
        assert_eq!(handled, Err(Malformed::Short), "{payload_bytes} B");
        assert_eq!(pair.ends[1].counters().malformed, malformed_before + 1);
        assert!(pair.ends[1].poll_frame().is_none());
    }
}
