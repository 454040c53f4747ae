use super::*;
use crate::group::ticket::{Done, Ticket};
use std::sync::Arc;

struct Nowhere;

impl Memory for Nowhere {
    fn out(&self, _: u64, _: u64, _: usize) -> &[u8] {
        &[]
    }
    fn place(&mut self, _: u64, _: u64, _: usize) -> &mut [u8] {
        &mut []
    }
}

fn parcel(peer: Option<usize>, tag: u64, bytes: u64) -> (Parcel, Arc<Ticket>) {
    let (ticket, waits) = Promise::new();
    let memory = Box::new(Nowhere);
    let parcel = Parcel {
        peer,
        tag,
        bytes,
        memory,
        ticket,
    };
    (parcel, waits)
}

/// Ranks, and their control messages in flight by sender and receiver, in order.
struct Net {
    ranks: Vec<Messages>,
    said: Vec<Vec<VecDeque<Act>>>,
}

impl Net {
    fn new(ranks: usize) -> Self {
        let mut all = Vec::new();
        all.resize_with(ranks, Messages::default);
        Self {
            ranks: all,
            said: vec![vec![VecDeque::new(); ranks]; ranks],
        }
    }

    fn collect(&mut self, rank: usize) {
        for (to, act) in self.ranks[rank].acts() {
            self.said[rank][to].push_back(act);
        }
        assert!(
            self.ranks[rank]
                .known
                .values()
                .all(|known| *known <= WINDOW)
        );
    }

    fn send(&mut self, from: usize, to: usize, tag: u64, bytes: u64) -> Arc<Ticket> {
        let (message, ticket) = parcel(Some(to), tag, bytes);
        assert!(self.ranks[from].send(message).is_ok());
        self.collect(from);
        ticket
    }

    fn receive(&mut self, at: usize, from: Option<usize>, tag: u64) -> Arc<Ticket> {
        let (place, ticket) = parcel(from, tag, u64::MAX);
        let others = (0..self.ranks.len()).filter(|other| *other != at);
        assert!(self.ranks[at].receive(place, others).is_ok());
        self.collect(at);
        ticket
    }

    /// Delivers one control message, if there is one.
    fn step(&mut self, from: usize, to: usize) -> bool {
        let Some(act) = self.said[from][to].pop_front() else {
            return false;
        };
        let rank = &mut self.ranks[to];
        match act {
            Act::Offer { name, tag, bytes } => rank.offered(from, name, tag, bytes),
            Act::Take { name } => {
                let bytes = rank.taken(from, name).unwrap();
                rank.sent(name).unwrap().ticket.settle(Ok(Done::default()));
                let place = self.ranks[from].received(to, name).unwrap();
                assert_eq!(place.bytes, bytes);
                place.ticket.settle(Ok(Done { from: to, bytes }));
            }
            Act::Refuse { name, .. } => drop(rank.refused(from, name).unwrap()),
            Act::Hold { name } => rank.held(from, name).unwrap(),
            Act::Want { tag, is_on } => rank.wanted(from, tag, is_on).unwrap(),
        }
        self.collect(to);
        true
    }

    fn settle(&mut self) {
        let ranks = self.ranks.len();
        let pairs = || (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        while pairs().fold(false, |any, (from, to)| self.step(from, to) || any) {}
    }
}

fn outcome(ticket: &Ticket) -> Option<Done> {
    let settled = ticket.wait(Some(std::time::Duration::ZERO));
    settled.map(|outcome| outcome.unwrap())
}

#[test]
fn sender__far_ahead_of_the_receiver__is_held_to_the_window_and_loses_nothing() {
    let mut net = Net::new(2);
    let count = 70_000;
    let sent: Vec<_> = (0..count).map(|at| net.send(0, 1, at % 3, at)).collect();
    net.settle();
    assert_eq!(net.ranks[1].offers.len(), WINDOW);
    assert!(sent.iter().all(|one| outcome(one).is_none()));
    // Most messages with the last tag were never offered. They arrive in order nevertheless.
    let last = net.receive(1, Some(0), 2);
    net.settle();
    assert_eq!(outcome(&last).map(|done| done.bytes), Some(2));
    for tag in [1, 2, 0] {
        for at in (0..count).filter(|at| at % 3 == tag && *at != 2) {
            let came = net.receive(1, None, tag);
            net.settle();
            assert_eq!(outcome(&came), Some(Done { from: 0, bytes: at }));
        }
    }
    assert!(sent.iter().all(|one| outcome(one).is_some()));
    assert!(!net.ranks[0].needs(1) && net.ranks[1].asked.is_empty());
}

/// Tag of messages that are received after all others.
const UNWANTED: u64 = 99;

/// Messages are sent and received in any order, behind messages that fill the window, and control
/// messages are late. All matching messages must be received, in order.
#[test]
fn messages__behind_a_full_window__all_arrive_in_order() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let ranks = random.usize(2..4);
        let mut net = Net::new(ranks);
        let (tags, count) = (random.u64(1..8), random.usize(1..400));
        let any = random.u64(0..tags);
        let late = random.usize(0..4);
        let mut sent: HashMap<(usize, usize, u64), Vec<u64>> = HashMap::new();
        let mut places = Vec::new();
        // Messages still to be sent, and buffers still to be added.
        let mut to_send = Vec::new();
        for at in 0..count as u64 {
            let from = random.usize(0..ranks);
            let to = (from + random.usize(1..ranks)) % ranks;
            to_send.push((from, to, random.u64(0..tags), at));
        }
        let mut to_place: Vec<_> = to_send
            .iter()
            .map(|(from, to, tag, _)| (*from, *to, *tag))
            .collect();
        random.shuffle(&mut to_place);
        for from in 0..ranks {
            for to in (0..ranks).filter(|to| *to != from) {
                let backlog = random.usize(WINDOW - 2..WINDOW + 50);
                to_send.extend((0..backlog).map(|_| (from, to, UNWANTED, 0)));
            }
        }
        if random.bool() {
            random.shuffle(&mut to_send);
        }
        while !to_send.is_empty() || !to_place.is_empty() {
            if let Some((from, to, tag, at)) = to_send.pop() {
                net.send(from, to, tag, at);
                sent.entry((from, to, tag)).or_default().push(at);
            }
            if let Some((from, to, tag)) = to_place.pop().filter(|_| random.usize(0..8) >= late) {
                let named = (tag != any).then_some(from);
                places.push((to, tag, net.receive(to, named, tag)));
            }
            for _ in 0..random.usize(0..6) {
                net.step(random.usize(0..ranks), random.usize(0..ranks));
            }
        }
        net.settle();
        let mut came: HashMap<(usize, usize, u64), Vec<u64>> = HashMap::new();
        let mut note = |to: usize, tag: u64, ticket: &Ticket| {
            let done = outcome(ticket);
            let done =
                done.unwrap_or_else(|| panic!("seed {seed}: nothing came to {to}, tag {tag}"));
            came.entry((done.from, to, tag))
                .or_default()
                .push(done.bytes);
        };
        for (to, tag, ticket) in places {
            note(to, tag, &ticket);
        }
        let rest: Vec<_> = sent.iter().map(|(of, sent)| (*of, sent.len())).collect();
        for ((from, to, tag), count) in rest.into_iter().filter(|(of, _)| of.2 == UNWANTED) {
            for _ in 0..count {
                let ticket = net.receive(to, Some(from), tag);
                net.settle();
                note(to, tag, &ticket);
            }
        }
        for (of, came) in came {
            assert!(
                sent[&of].starts_with(&came),
                "seed {seed}: {of:?} out of order"
            );
        }
    }
}

#[test]
fn control_message__without_a_matching_message__is_malformed() {
    let mut net = Net::new(3);
    net.send(0, 1, 5, 10);
    let rank = &mut net.ranks[0];
    assert_eq!(rank.taken(2, 1), Err(Malformed));
    assert_eq!(rank.held(1, 2), Err(Malformed));
    assert_eq!(rank.taken(1, 1), Ok(10));
    // A message can be taken once.
    assert_eq!(rank.taken(1, 1), Err(Malformed));
    assert_eq!(rank.refused(1, 1).map(|_| ()), Err(Malformed));
    for tag in 0..PLACES_MAX as u64 {
        assert_eq!(rank.wanted(1, tag, true), Ok(()));
    }
    assert_eq!(rank.wanted(1, u64::MAX, true), Err(Malformed));
}
