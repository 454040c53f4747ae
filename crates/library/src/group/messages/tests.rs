use super::*;
use crate::group::ticket::{Completion, Ticket};
use std::sync::Arc;

struct NoMemory;

impl Memory for NoMemory {
    fn source(&self, _: u64, _: u64, _: usize) -> &[u8] {
        &[]
    }
    fn destination(&mut self, _: u64, _: u64, _: usize) -> &mut [u8] {
        &mut []
    }
}

fn parcel(peer: Option<usize>, tag: u64, bytes: u64) -> (Parcel, Arc<Ticket>) {
    let (promise, ticket) = Promise::new();
    let memory = Box::new(NoMemory);
    let parcel = Parcel {
        peer,
        tag,
        bytes,
        memory,
        ticket: promise,
    };
    (parcel, ticket)
}

/// Ranks, and their control messages in flight by sender and receiver, in order.
struct Net {
    ranks: Vec<Messages>,
    in_flight: Vec<Vec<VecDeque<ControlMessage>>>,
}

impl Net {
    fn new(ranks: usize) -> Self {
        let mut members = Vec::new();
        members.resize_with(ranks, Messages::default);
        Self {
            ranks: members,
            in_flight: vec![vec![VecDeque::new(); ranks]; ranks],
        }
    }

    fn collect(&mut self, rank: usize) {
        for (to, message) in self.ranks[rank].drain_control_messages() {
            self.in_flight[rank][to].push_back(message);
        }
        assert!(
            self.ranks[rank]
                .offer_counts
                .values()
                .all(|count| *count <= WINDOW)
        );
    }

    fn send(&mut self, from: usize, to: usize, tag: u64, bytes: u64) -> Arc<Ticket> {
        let (message, ticket) = parcel(Some(to), tag, bytes);
        assert!(self.ranks[from].send(message).is_ok());
        self.collect(from);
        ticket
    }

    fn receive(&mut self, rank: usize, from: Option<usize>, tag: u64) -> Arc<Ticket> {
        let (buffer, ticket) = parcel(from, tag, u64::MAX);
        let members = (0..self.ranks.len()).filter(|peer| *peer != rank);
        assert!(self.ranks[rank].receive(buffer, members).is_ok());
        self.collect(rank);
        ticket
    }

    /// Delivers one control message, if there is one.
    fn step(&mut self, from: usize, to: usize) -> bool {
        let Some(message) = self.in_flight[from][to].pop_front() else {
            return false;
        };
        let rank = &mut self.ranks[to];
        match message {
            ControlMessage::Offer { name, tag, bytes } => rank.handle_offer(from, name, tag, bytes),
            ControlMessage::Take { name } => {
                let bytes = rank.handle_take(from, name).unwrap();
                rank.remove_outgoing(name)
                    .unwrap()
                    .ticket
                    .settle(Ok(Completion::default()));
                let buffer = self.ranks[from].remove_incoming(to, name).unwrap();
                assert_eq!(buffer.bytes, bytes);
                buffer.ticket.settle(Ok(Completion { from: to, bytes }));
            }
            ControlMessage::Refuse { name, .. } => drop(rank.handle_refuse(from, name).unwrap()),
            ControlMessage::Hold { name } => rank.handle_hold(from, name).unwrap(),
            ControlMessage::Want { tag, is_on } => rank.handle_want(from, tag, is_on).unwrap(),
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

fn outcome(ticket: &Ticket) -> Option<Completion> {
    let result = ticket.wait(Some(std::time::Duration::ZERO));
    result.map(|outcome| outcome.unwrap())
}

#[test]
fn sender__far_ahead_of_the_receiver__is_held_to_the_window_and_loses_nothing() {
    let mut net = Net::new(2);
    let count = 70_000;
    let tickets: Vec<_> = (0..count)
        .map(|bytes| net.send(0, 1, bytes % 3, bytes))
        .collect();
    net.settle();
    assert_eq!(net.ranks[1].offers.len(), WINDOW);
    assert!(tickets.iter().all(|ticket| outcome(ticket).is_none()));
    // Most messages with the last tag were never offered. They arrive in order nevertheless.
    let last = net.receive(1, Some(0), 2);
    net.settle();
    assert_eq!(outcome(&last).map(|completion| completion.bytes), Some(2));
    for tag in [1, 2, 0] {
        for bytes in (0..count).filter(|bytes| bytes % 3 == tag && *bytes != 2) {
            let received = net.receive(1, None, tag);
            net.settle();
            assert_eq!(outcome(&received), Some(Completion { from: 0, bytes }));
        }
    }
    assert!(tickets.iter().all(|ticket| outcome(ticket).is_some()));
    assert!(!net.ranks[0].needs(1) && net.ranks[1].pending_wants.is_empty());
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
        let mut receives = Vec::new();
        // Messages still to be sent, and buffers still to be added.
        let mut to_send = Vec::new();
        for number in 0..count as u64 {
            let from = random.usize(0..ranks);
            let to = (from + random.usize(1..ranks)) % ranks;
            to_send.push((from, to, random.u64(0..tags), number));
        }
        let mut to_receive: Vec<_> = to_send
            .iter()
            .map(|(from, to, tag, _)| (*from, *to, *tag))
            .collect();
        random.shuffle(&mut to_receive);
        for from in 0..ranks {
            for to in (0..ranks).filter(|to| *to != from) {
                let backlog = random.usize(WINDOW - 2..WINDOW + 50);
                to_send.extend((0..backlog).map(|_| (from, to, UNWANTED, 0)));
            }
        }
        if random.bool() {
            random.shuffle(&mut to_send);
        }
        while !to_send.is_empty() || !to_receive.is_empty() {
            if let Some((from, to, tag, number)) = to_send.pop() {
                net.send(from, to, tag, number);
                sent.entry((from, to, tag)).or_default().push(number);
            }
            if let Some((from, to, tag)) = to_receive.pop().filter(|_| random.usize(0..8) >= late) {
                let sender = (tag != any).then_some(from);
                receives.push((to, tag, net.receive(to, sender, tag)));
            }
            for _ in 0..random.usize(0..6) {
                net.step(random.usize(0..ranks), random.usize(0..ranks));
            }
        }
        net.settle();
        let mut received: HashMap<(usize, usize, u64), Vec<u64>> = HashMap::new();
        let mut record = |to: usize, tag: u64, ticket: &Ticket| {
            let completion = outcome(ticket);
            let completion = completion
                .unwrap_or_else(|| panic!("seed {seed}: nothing came to {to}, tag {tag}"));
            received
                .entry((completion.from, to, tag))
                .or_default()
                .push(completion.bytes);
        };
        for (to, tag, ticket) in receives {
            record(to, tag, &ticket);
        }
        let counts: Vec<_> = sent
            .iter()
            .map(|(route, sent)| (*route, sent.len()))
            .collect();
        for ((from, to, tag), count) in counts.into_iter().filter(|(route, _)| route.2 == UNWANTED)
        {
            for _ in 0..count {
                let ticket = net.receive(to, Some(from), tag);
                net.settle();
                record(to, tag, &ticket);
            }
        }
        for (route, received) in received {
            assert!(
                sent[&route].starts_with(&received),
                "seed {seed}: {route:?} out of order"
            );
        }
    }
}

#[test]
fn control_message__without_a_matching_message__is_malformed() {
    let mut net = Net::new(3);
    net.send(0, 1, 5, 10);
    let rank = &mut net.ranks[0];
    assert_eq!(rank.handle_take(2, 1), Err(Malformed));
    assert_eq!(rank.handle_hold(1, 2), Err(Malformed));
    assert_eq!(rank.handle_take(1, 1), Ok(10));
    // A message can be taken once.
    assert_eq!(rank.handle_take(1, 1), Err(Malformed));
    assert_eq!(rank.handle_refuse(1, 1).map(|_| ()), Err(Malformed));
    for tag in 0..BUFFERS_MAX as u64 {
        assert_eq!(rank.handle_want(1, tag, true), Ok(()));
    }
    assert_eq!(rank.handle_want(1, u64::MAX, true), Err(Malformed));
}

#[test]
fn receives__more_than_the_limit__are_refused_with_the_limit() {
    let mut messages = Messages::default();
    let mut receive = || {
        let (buffer, _) = parcel(Some(1), 0, 0);
        messages.receive(buffer, std::iter::empty())
    };
    for _ in 0..BUFFERS_MAX {
        assert!(receive().is_ok());
    }
    let (_, reason) = receive().err().unwrap();
    assert_eq!(
        reason,
        "65536 receives of this rank are pending, the limit; wait until some are complete"
    );
}
