use super::*;
use crate::liveness::State;

const MS: u64 = 1_000_000;
pub(super) const LINKS: u8 = 2;

pub(super) fn address(side: usize, link: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, link, side as u8 + 1], 7000))
}

pub(super) fn endpoint(node: u64, instance: u64, now_ns: u64) -> Endpoint {
    endpoint_with(node, instance, now_ns, Seal::Encrypt, |_| None)
}

/// Returns an endpoint with this seal, whose kernel has these addresses on its links.
pub(super) fn endpoint_with(
    node: u64,
    instance: u64,
    now_ns: u64,
    seal: Seal,
    direct: impl Fn(u8) -> Option<DirectLink>,
) -> Endpoint {
    let config = Config {
        node,
        instance,
        name: format!("h{node}"),
        mac: [2, 0, 0, 0, 0, node as u8],
        lane: Lane::ONLY,
        coalesces_udp: false,
        seal,
        key: ClusterKey::from_bytes([7; 32]),
        static_peers: Vec::new(),
    };
    let mut endpoint = Endpoint::new(config, now_ns);
    for number in 0..LINKS {
        let config = LinkConfig {
            direct: direct(number),
            ..link_config(number)
        };
        endpoint.add_link(number, config, now_ns);
    }
    endpoint
}

fn link_config(number: u8) -> LinkConfig {
    LinkConfig {
        name: format!("eth{number}"),
        datagram_bytes_max: 1452,
        hello_to: Some(SocketAddr::from(([224, 0, 0, 1], 7000))),
        rate_bps: 1_000_000_000,
        is_rate_fixed: false,
        direct: None,
    }
}

/// Returns the hello that `end` sends on `link` by `now_ns`.
fn take_hello(end: &mut Endpoint, link: u8, now_ns: u64) -> Vec<u8> {
    end.handle_timeout(now_ns);
    loop {
        let batch = end.poll_transmit(link).expect("a hello is due");
        let bytes = batch.bytes.clone();
        end.transmitted(link);
        if kind_of(&bytes) == Ok(Kind::Hello) {
            return bytes;
        }
    }
}

/// Two endpoints whose datagrams arrive at once, unless a wire is cut.
pub(super) struct Pair {
    pub(super) ends: [Endpoint; 2],
    pub(super) now_ns: u64,
    /// `cut[side][link]`: datagrams that `side` sends on `link` are lost.
    pub(super) cut: [[bool; LINKS as usize]; 2],
    /// `is_dead[side]`: `side` neither sends, receives nor acts.
    pub(super) is_dead: [bool; 2],
    /// Frames delivered at each side.
    delivered: [Vec<Vec<u8>>; 2],
    turns: u32,
}

impl Pair {
    fn new() -> Self {
        Self::of([endpoint(1, 11, 0), endpoint(2, 22, 0)])
    }

    /// Returns two endpoints whose paths are up.
    pub(super) fn of(ends: [Endpoint; 2]) -> Self {
        let mut pair = Self {
            ends,
            now_ns: 0,
            cut: Default::default(),
            is_dead: Default::default(),
            delivered: Default::default(),
            turns: 0,
        };
        pair.run_for(2000 * MS);
        for side in 0..2 {
            assert_eq!(pair.states(side), [State::Up; LINKS as usize]);
        }
        pair
    }

    pub(super) fn states(&self, side: usize) -> Vec<State> {
        let peer = self.ends[side].peers().next().expect("the other side");
        peer.paths().map(|path| path.state).collect()
    }

    /// Transfers all queued datagrams and delivers all frames.
    fn settle(&mut self) {
        let mut has_moved = true;
        while std::mem::take(&mut has_moved) {
            for side in 0..2 {
                for link in 0..LINKS {
                    while let Some(batch) = self.ends[side].poll_transmit(link) {
                        has_moved = true;
                        let (mut bytes, segment) = (batch.bytes.clone(), batch.segment_bytes);
                        self.ends[side].transmitted(link);
                        if self.cut[side][usize::from(link)] || self.is_dead != [false; 2] {
                            continue;
                        }
                        for datagram in bytes.chunks_mut(segment) {
                            let from = address(side, link);
                            let _ = self.ends[1 - side].handle_datagram(
                                link,
                                from,
                                datagram,
                                self.now_ns,
                            );
                        }
                    }
                }
                while let Some(frame) = self.ends[side].poll_frame() {
                    self.delivered[side].push(frame.ethernet().to_vec());
                }
            }
        }
    }

    pub(super) fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        loop {
            self.settle();
            let ends = self.ends.iter().zip(self.is_dead);
            let due = ends
                .filter(|(_, is_dead)| !is_dead)
                .map(|(end, _)| end.poll_timeout(self.now_ns))
                .min();
            let due_ns = due.expect("an end lives").max(self.now_ns);
            if due_ns > until_ns {
                self.now_ns = until_ns;
                return;
            }
            self.now_ns = due_ns;
            self.turns += 1;
            for (end, is_dead) in self.ends.iter_mut().zip(self.is_dead) {
                if !is_dead && end.poll_timeout(self.now_ns) <= self.now_ns {
                    end.handle_timeout(self.now_ns);
                    let next_ns = end.poll_timeout(self.now_ns);
                    assert!(next_ns > self.now_ns, "what was just done is due again");
                }
            }
        }
    }

    /// Sends frame `number` from `side` to the other.
    pub(super) fn send(&mut self, side: usize, number: u32) {
        let mut frame = vec![
            2,
            0,
            0,
            0,
            0,
            2 - side as u8,
            2,
            0,
            0,
            0,
            0,
            side as u8 + 1,
            8,
            0,
        ];
        frame.extend(number.to_be_bytes());
        frame.resize(100, 0);
        self.ends[side].handle_frame(Frame::from_ethernet(&frame), self.now_ns);
    }
}

#[test]
fn endpoint__carrier_gone__sleeps_between_timeouts() {
    let mut pair = Pair::new();
    pair.ends[0].handle_carrier(1, false, pair.now_ns);
    pair.cut = [[false, true]; 2];
    pair.turns = 0;
    pair.run_for(1000 * MS);
    assert_eq!(pair.states(0), [State::Up, State::Down]);
    assert!(pair.turns < 500, "{} turns in a second", pair.turns);
}

#[test]
fn endpoint__no_reports__memory_stays_bounded() {
    let mut pair = Pair::new();
    pair.cut = [[true; 2]; 2];
    for number in 0..3 * crate::ledger::LEDGER_MAX as u32 {
        pair.send(0, number);
        pair.settle();
    }
    let memory = pair.ends[0].peers().next().unwrap().memory();
    assert!(
        memory.open_datagrams <= 2 * crate::ledger::LEDGER_MAX,
        "{memory:?}"
    );
    assert!(
        memory.retained_entries <= 2 * crate::ledger::LEDGER_MAX + 2,
        "{memory:?}"
    );
    assert!(
        memory.retained_bytes <= 2 * crate::ledger::LEDGER_MAX * 200,
        "{memory:?}"
    );
}

#[test]
fn endpoint__one_of_two_links_down__accepts_less_than_2_ms_of_frames() {
    let mut pair = Pair::new();
    pair.cut[0][0] = true;
    pair.send(0, 0);
    pair.run_for(1000 * MS);
    assert_eq!(pair.states(0), [State::Down, State::Up]);
    let mut accepted = 0;
    while pair.ends[0].frames_wait_until(pair.now_ns).is_none() && accepted < 100_000 {
        accepted += 1;
        pair.send(0, accepted);
    }
    let frames_max = 2 * 125_000 / 100;
    assert!(
        accepted < frames_max,
        "{accepted} frames of 100 B and more within 2 ms of a gigabit"
    );
}

#[test]
fn endpoint__replugged_link_that_sends_nothing_yet__blocks_no_frames_and_keeps_its_rate() {
    let mut pair = Pair::new();
    for number in 0..2000 {
        pair.send(0, number);
        pair.run_for(MS / 10);
    }
    let rate_bps = |pair: &Pair| {
        pair.ends[0]
            .link(1)
            .map_or(0.0, |link| link.capacity.rate_bps())
    };
    let before_bps = rate_bps(&pair);
    let carrier = |pair: &mut Pair, has_carrier| {
        for end in &mut pair.ends {
            end.handle_carrier(1, has_carrier, pair.now_ns);
        }
    };
    carrier(&mut pair, false);
    pair.run_for(500 * MS);
    carrier(&mut pair, true);
    // The neighbour is unknown, so the kernel keeps the probes.
    (pair.cut[0][1], pair.cut[1][1]) = (true, true);
    for _ in 0..400 {
        pair.run_for(MS);
        pair.ends[0].observe_unsent(1, 200_000, pair.now_ns);
        assert_eq!(pair.ends[0].frames_wait_until(pair.now_ns), None);
    }
    assert!(
        rate_bps(&pair) > before_bps / 2.0,
        "{} of {before_bps}",
        rate_bps(&pair)
    );
    pair.ends[0].observe_unsent(1, 100_000_000, pair.now_ns);
    assert_eq!(pair.ends[0].frames_wait_until(pair.now_ns), None);
}

#[test]
fn endpoint__all_links_still_unproven__bounds_the_frames_accepted() {
    let mut pair = Pair::new();
    pair.cut = [[true; 2]; 2];
    for link in 0..LINKS {
        pair.ends[0].remove_link(link, pair.now_ns);
        let config = link_config(link);
        pair.ends[0].add_link(link, config, pair.now_ns);
        let hello = take_hello(&mut pair.ends[1], link, pair.now_ns + 2000 * MS);
        let from = address(1, link);
        let _ = pair.ends[0].handle_datagram(link, from, &mut hello.clone(), pair.now_ns);
    }
    assert_eq!(pair.states(0), [State::New; 2]);
    let mut accepted = 0;
    while pair.ends[0].frames_wait_until(pair.now_ns).is_none() && accepted < 100_000 {
        accepted += 1;
        pair.send(0, accepted);
    }
    assert!(accepted < 100_000, "no end to the frames accepted");
}

#[test]
fn endpoint__link_dies_without_carrier_loss__all_frames_arrive() {
    let mut pair = Pair::new();
    for number in 0..400 {
        pair.cut[0][0] |= number == 100;
        pair.send(0, number);
        pair.run_for(MS / 4);
    }
    pair.run_for(100 * MS);
    assert_eq!(pair.delivered[1].len(), 400);
}

#[test]
fn endpoint__healed_path__is_not_quarantined_for_earlier_losses() {
    let mut pair = Pair::new();
    let send_for_a_second = |pair: &mut Pair, lossy: bool| {
        for number in 0..4000 {
            pair.cut[0] = [lossy && number % 5 != 0; 2];
            pair.send(0, number);
            pair.run_for(MS / 4);
        }
        pair.cut[0] = [false; 2];
    };
    let failures = |pair: &Pair| -> u32 {
        let peer = pair.ends[0].peers().next().unwrap();
        peer.paths().map(|path| path.failures).sum()
    };
    send_for_a_second(&mut pair, true);
    assert!(pair.states(0).contains(&State::Quarantined));
    while pair.states(0) != [State::Up; 2] {
        pair.run_for(10 * MS);
    }
    let failures_before = failures(&pair);
    send_for_a_second(&mut pair, false);
    assert_eq!(
        (pair.states(0), failures(&pair)),
        (vec![State::Up; 2], failures_before)
    );
}

#[test]
fn endpoint__lossy_path__is_clean_again_below_half_of_the_share_that_raised_it() {
    let mut pair = Pair::new();
    let mut lossy = [false; 2];
    // Returns what the last event of each path told, after frames of which one in `part` is lost.
    let mut lossy_after = |part: u32| {
        for number in 0..20_000 {
            pair.cut[0] = [number % part == 0; 2];
            pair.send(0, number);
            pair.run_for(MS / 4);
            while let Some(event) = pair.ends[0].poll_event() {
                if let Event::Lossy { link, is_lossy, .. } = event {
                    lossy[usize::from(link)] = is_lossy;
                }
            }
        }
        lossy
    };
    assert!(lossy_after(40).contains(&true));
    assert_eq!(lossy_after(600), [false; 2]);
}

#[test]
fn endpoint__report_that_heals_a_path__does_not_quarantine_it_for_the_losses_it_lists() {
    let mut pair = Pair::new();
    pair.cut = [[true; 2]; 2];
    pair.run_for(10_000 * MS); // a hundred probes per path are lost
    pair.cut = [[false; 2]; 2];
    while pair.ends[0].poll_event().is_some() {}
    pair.run_for(1000 * MS);
    let events: Vec<Event> = std::iter::from_fn(|| pair.ends[0].poll_event()).collect();
    let is_quarantine = |event: &Event| matches!(event, Event::Path { change, .. } if change.to == State::Quarantined);
    assert!(!events.iter().any(is_quarantine), "{events:?}");
    assert_eq!(pair.states(0), [State::Up; 2]);
}

#[test]
fn endpoint__broadcast_without_peers__is_counted_as_unroutable() {
    let mut end = endpoint(1, 1, 0);
    end.handle_frame(Frame::from_ethernet(&[0xff; 60]), 0);
    assert_eq!(end.counters().unroutable, 1);
}

#[test]
fn endpoint__last_good_link_dies_beside_a_suspect__all_frames_still_arrive() {
    let mut pair = Pair::new();
    let mut sent = 0;
    pair.cut[0][0] = true;
    while pair.states(0)[0] != State::Suspect {
        pair.send(0, sent);
        sent += 1;
        pair.run_for(MS / 4);
    }
    pair.cut[0] = [false, true];
    for _ in 0..20 {
        pair.send(0, sent);
        sent += 1;
    }
    pair.settle();
    pair.ends[0].handle_carrier(1, false, pair.now_ns);
    pair.run_for(100 * MS);
    assert_eq!(pair.delivered[1].len(), sent as usize);
}

#[test]
fn endpoint__peer_absent_while_another_appears__receives_frames_again_on_return() {
    let mut pair = Pair::new();
    for number in 0..100 {
        pair.send(0, number);
    }
    pair.run_for(100 * MS);
    pair.cut = [[true; 2]; 2];
    pair.run_for(70_000 * MS);
    let hello = take_hello(&mut endpoint(3, 33, pair.now_ns), 0, pair.now_ns);
    let from = address(2, 0);
    let _ = pair.ends[0].handle_datagram(0, from, &mut hello.clone(), pair.now_ns);
    pair.cut = [[false; 2]; 2];
    pair.run_for(10_000 * MS);
    pair.delivered[1].clear();
    pair.send(0, 1000);
    pair.run_for(100 * MS);
    assert_eq!(pair.delivered[1].len(), 1);
}

#[test]
fn endpoint__peer_dead_for_a_minute__is_forgotten_and_reached_again_on_return() {
    let mut pair = Pair::new();
    pair.cut = [[true; 2]; 2];
    pair.run_for(55_000 * MS);
    assert_eq!(pair.ends[0].peers().count(), 1);
    pair.run_for(8_000 * MS);
    assert_eq!(pair.ends[0].peers().count(), 0);
    pair.cut = [[false; 2]; 2];
    pair.run_for(5_000 * MS);
    for (side, number) in [(0, 7), (1, 8)] {
        pair.send(side, number);
    }
    pair.run_for(100 * MS);
    let delivered = [pair.delivered[0].len(), pair.delivered[1].len()];
    assert_eq!(delivered, [1, 1]);
}

#[test]
fn endpoint__one_side_forgot_the_other__frames_flow_both_ways_again() {
    let mut pair = Pair::new();
    for number in 0..100 {
        pair.send(0, number);
        pair.send(1, number);
    }
    pair.run_for(100 * MS);
    pair.cut = [[true; 2]; 2];
    pair.run_for(50_000 * MS);
    pair.cut[1] = [false; 2]; // side 0 hears side 1 and remembers it
    pair.run_for(20_000 * MS);
    let known = [0, 1].map(|side: usize| pair.ends[side].peers().count());
    assert_eq!(known, [1, 0]);
    pair.cut = [[false; 2]; 2];
    pair.run_for(5_000 * MS);
    pair.delivered = Default::default();
    for number in 0..10 {
        pair.send(0, number);
        pair.send(1, number);
    }
    pair.run_for(100 * MS);
    let delivered = [pair.delivered[0].len(), pair.delivered[1].len()];
    assert_eq!(delivered, [10, 10]);
}

#[test]
fn endpoint__host_returns_with_a_new_identity__replaces_the_old_peer() {
    let mut pair = Pair::new();
    for (round, node) in [(1, 3), (2, 4), (3, 5)] {
        pair.ends[1] = endpoint(node, 100 + round, pair.now_ns);
        let is_up = |pair: &Pair| {
            let mut peers = pair.ends[0].peers();
            peers.any(|peer| peer.node() == node && peer.is_up())
        };
        while !is_up(&pair) {
            pair.run_for(10 * MS);
        }
        pair.run_for(10 * MS);
        let nodes: Vec<u64> = pair.ends[0].peers().map(|peer| peer.node()).collect();
        assert_eq!(nodes, [node]);
    }
}

#[test]
fn endpoint__peer_answers_from_another_address_than_configured__frames_flow_both_ways() {
    let mut pair = Pair::new();
    // The configured address is a second one of side 1. Datagrams to it arrive, and the answers
    // come from the first address.
    let second = SocketAddr::from(([10, 9, 9, 9], 7000));
    pair.ends[0].config.static_peers = vec![vec![(0, second)]];
    pair.ends[0]
        .introduction
        .static_dials
        .resize_with(1, || None);
    pair.ends[0].introduction.static_nodes = vec![None];
    for number in 0..40 {
        pair.run_for(100 * MS);
        pair.send(0, number);
        pair.send(1, number);
    }
    pair.run_for(100 * MS);
    let delivered = [pair.delivered[0].len(), pair.delivered[1].len()];
    assert_eq!(delivered, [40, 40]);
}

#[test]
fn endpoint__answered_init_that_is_not_followed_up__dials_the_peer_itself() {
    let mut caller = endpoint(1, 11, 0);
    let mut old = endpoint(2, 22, 0);
    let hello = take_hello(&mut old, 0, 0);
    let key = ClusterKey::from_bytes([7; 32]);
    let hello = crate::wire::Hello::parse(&hello, &key).unwrap().unwrap();
    let params = crate::wire::Params {
        sent_at_ns: 1,
        knows: 0,
        ..hello.params
    };
    let (_, init) = crate::handshake::Initiator::start(&key, &params);
    let _ = caller.handle_datagram(0, address(1, 0), &mut init.clone(), 0);
    let mut has_dialled = false;
    for ms in 0..5000 {
        caller.handle_timeout(ms * MS);
        while let Some(batch) = caller.poll_transmit(0) {
            let mut sent = batch.bytes.chunks(batch.segment_bytes);
            has_dialled |= sent.any(|datagram| kind_of(datagram) == Ok(Kind::Init));
            caller.transmitted(0);
        }
    }
    assert!(has_dialled);
}

#[test]
fn probe__full_size_datagram__is_not_batched_with_the_short_ping_behind_it() {
    let mut pair = Pair::new();
    pair.ends[0].peers[0].paths[0].mtu.doubt(true);
    let (mut probes, mut pings) = (0, 0);
    for _ in 0..50 {
        pair.now_ns += MS;
        pair.ends[0].handle_timeout(pair.now_ns);
        while let Some(batch) = pair.ends[0].poll_transmit(0) {
            if kind_of(&batch.bytes) == Ok(Kind::Control) && batch.segment_bytes > 1000 {
                assert_eq!(batch.datagrams(), 1);
                probes += 1;
            } else {
                pings += batch.datagrams();
            }
            pair.ends[0].transmitted(0);
        }
    }
    assert!(
        probes > 0 && pings >= probes,
        "{probes} probes, {pings} others"
    );
}
