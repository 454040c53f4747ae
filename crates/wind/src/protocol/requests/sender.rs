//! Requests of this side, until they are answered.

use super::slots::SLOTS;
use crate::protocol::endpoint::PathStatus;
use crate::protocol::model::{Operation, Place, Refused};
use crate::protocol::recovery::{Outcome, Part, Recovery};
use crate::protocol::rtt::Rtt;
use crate::protocol::sequence::Sequence;
use crate::protocol::window::Window;
use crate::protocol::wire::{
    Ack, Authenticator, Header, Kind, Request, emit_request, parse_response,
};
use std::collections::VecDeque;

/// Result of a request: its number, and the bytes.
pub type Answered = (u64, Result<Vec<u8>, Refused>);

/// Requests to one peer.
///
/// Their packets have numbers, loss detection and window of their own, because the kernel of the
/// target answers them sooner than its program.
pub struct Sender {
    recovery: Recovery,
    window: Window,
    datagram_bytes: u64,
    open: Sequence<Request>,
    /// Number of the next request that is sent for the first time.
    unsent: u64,
    again: VecDeque<u64>,
    is_probe_due: bool,
    held_bytes: u64,
}

impl Sender {
    /// Begins with the path's round trip `rtt_ns`.
    pub fn new(rtt_ns: u64, datagram_bytes: u16) -> Self {
        Self {
            recovery: Recovery::new(Rtt::new(rtt_ns), 0),
            window: Window::new(datagram_bytes.into()),
            datagram_bytes: datagram_bytes.into(),
            open: Sequence::default(),
            unsent: 0,
            again: VecDeque::new(),
            is_probe_due: false,
            held_bytes: 0,
        }
    }

    /// Submits a request. Returns its number.
    pub fn submit(&mut self, place: Place, operation: Operation) -> u64 {
        let number = self.open.next();
        let request = Request {
            number,
            place,
            operation,
        };
        self.held_bytes += request.cost_bytes();
        self.open.push(request)
    }

    /// Returns the number of requests that were submitted.
    pub fn submitted(&self) -> u64 {
        self.open.next()
    }

    /// Returns the bytes of requests without an answer.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the state of the path of requests.
    pub fn status(&self) -> PathStatus {
        PathStatus::new(&self.recovery, &self.window)
    }

    /// Returns the probes without an answer.
    pub fn probes(&self) -> u32 {
        self.recovery.probes()
    }

    /// Appends the next request to `out`. Returns false if none may be sent now.
    pub fn poll_transmit(
        &mut self,
        receiver: u32,
        authenticator: &Authenticator,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let in_flight_bytes = self.recovery.in_flight_bytes() + self.datagram_bytes;
        if !self.is_probe_due && in_flight_bytes > self.window.bytes() {
            return false;
        }
        let Some(number) = self.take_next() else {
            return false;
        };
        self.is_probe_due = false;
        let header = Header {
            kind: Kind::Request,
            wants_ack: false,
            receiver,
            number: self.recovery.next(),
        };
        let Some(request) = self.open.get(number) else {
            return false;
        };
        let start = out.len();
        emit_request(header, request, authenticator, out);
        let bytes = (out.len() - start) as u64;
        self.recovery
            .on_sent(now_ns, bytes, vec![Part::Operation(number)]);
        true
    }

    fn take_next(&mut self) -> Option<u64> {
        while let Some(number) = self.again.pop_front() {
            if self.open.contains(number) {
                return Some(number);
            }
        }
        let oldest = self.open.first()?;
        let may_send = self.unsent < self.open.next() && self.unsent < oldest + SLOTS;
        may_send.then(|| {
            self.unsent += 1;
            self.unsent - 1
        })
    }

    /// Handles a response. Returns the answers that are new; `None` for a packet that is not of
    /// this session.
    pub fn handle_response(
        &mut self,
        header: &Header,
        packet: &[u8],
        authenticator: &Authenticator,
        now_ns: u64,
    ) -> Option<Vec<Answered>> {
        let answers = parse_response(packet, authenticator)?;
        let end = header.number.checked_add(answers.len() as u64)?;
        let is_limited =
            self.recovery.in_flight_bytes() + self.datagram_bytes > self.window.bytes();
        let numbers = header.number..end;
        let ack = Ack {
            delay_us: 0,
            ranges: vec![numbers],
        };
        let outcome = self.recovery.on_ack(&ack, now_ns)?;
        if let Some(highest) = outcome.highest {
            let next = self.recovery.next();
            let rtt = &self.recovery.rtt;
            self.window
                .on_ack(outcome.arrived_bytes, highest, next, rtt, is_limited);
        }
        self.send_lost_again(outcome);
        let mut fresh = Vec::new();
        for answer in answers {
            if let Some(request) = self.open.remove(answer.operation) {
                self.held_bytes -= request.cost_bytes();
                fresh.push((answer.operation, answer.result.map(<[u8]>::to_vec)));
            }
        }
        Some(fresh)
    }

    fn send_lost_again(&mut self, outcome: Outcome) {
        if let Some(highest) = outcome.highest_lost {
            let next = self.recovery.next();
            self.window
                .on_loss(outcome.lost_bytes, highest, next, &self.recovery.rtt);
        }
        self.again
            .extend(outcome.lost.into_iter().filter_map(number));
    }

    /// Returns the time of the next timeout; `None` if nothing waits for one.
    pub fn timeout_ns(&self) -> Option<u64> {
        self.recovery.timeout_ns()
    }

    /// Handles a timeout.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let (outcome, probe) = self.recovery.on_timeout(now_ns);
        self.send_lost_again(outcome);
        if let Some(parts) = probe {
            self.is_probe_due = true;
            self.again.extend(parts.into_iter().filter_map(number));
            if self.recovery.probes() == 2 {
                self.window.on_silence(self.recovery.next());
            }
        }
    }

    /// Frees what the collections keep beyond their entries.
    pub fn release(&mut self) {
        self.recovery.release();
        self.open.release();
        self.again.shrink_to_fit();
    }
}

fn number(part: Part) -> Option<u64> {
    match part {
        Part::Operation(number) => Some(number),
        _ => None,
    }
}

impl Request {
    /// Returns the bytes that the requester holds for it.
    fn cost_bytes(&self) -> u64 {
        crate::protocol::outbox::ITEM_COST_BYTES + self.operation.payload_bytes() as u64
    }
}
