//! Requests of a session: those of this side, and those of the peer.

use super::{Happening, Session};
use crate::protocol::endpoint::{PathStatus, Status};
use crate::protocol::inbox::Executed;
use crate::protocol::model::{Operation, Place, Regions};
use crate::protocol::outgoing::Message;
use crate::protocol::requests::Sender;
use crate::protocol::requests::slots::{self, SlotMemory};
use crate::protocol::wire::{Flags, Header, Kind, TagKey, emit_response, parse_request};
use std::sync::Arc;

/// Shortest time between two looks at the slots while a message waits for requests, in ns. A look
/// costs less than a microsecond.
const LOOK_NS: u64 = 20_000;

/// Requests of the peer, which this side executes.
pub(super) struct Served {
    slots: Arc<dyn SlotMemory>,
    /// Requests that were executed without a gap, when this was counted last.
    executed: u64,
}

/// Name of an operation for the program: operations and requests are counted separately.
pub fn operation_name(number: u64) -> u64 {
    number << 1
}

fn request_name(number: u64) -> u64 {
    number << 1 | 1
}

impl Session {
    /// Submits a message. Returns its number: ordered and unordered ones are counted separately.
    pub fn submit(&mut self, message: Message) -> u64 {
        let requests = self.requests.as_ref();
        let submitted = requests.map_or(0, |requests| requests.submitted());
        self.outbox.submit(message, submitted)
    }

    /// Submits an operation, as a request if the peer executes those. Returns its name.
    pub fn operate(&mut self, place: Place, operation: Operation) -> u64 {
        match &mut self.requests {
            Some(requests) => request_name(requests.submit(place, operation)),
            None => operation_name(self.outbox.submit_operation(place, operation)),
        }
    }

    /// Returns the bytes of messages and operations that wait or are in flight.
    pub fn unsent_bytes(&self) -> u64 {
        let requests = self.requests.as_ref();
        self.outbox.held_bytes() + requests.map_or(0, |requests| requests.held_bytes())
    }

    /// Returns whether the session may have requests: they are not encrypted.
    pub fn may_request(&self) -> bool {
        self.may_request
    }

    /// Returns whether the peer executes requests.
    pub fn sends_requests(&self) -> bool {
        self.requests.is_some()
    }

    /// Returns the state of the session.
    pub fn status(&self) -> Status {
        Status {
            messages: PathStatus::new(&self.recovery, &self.window),
            requests: self.requests.as_ref().map(|sender| sender.status()),
            waiting_bytes: self.unsent_bytes(),
            credit_bytes: self.credit_bytes.saturating_sub(self.outbox.used_bytes()),
            held_bytes: self.inbox.held_bytes(),
        }
    }

    pub(super) fn begin_requests(&mut self) {
        if self.requests.is_none() && self.may_request {
            let rtt_ns = self.rtt().smoothed_ns();
            let datagram_bytes = self.mtu.base_bytes();
            self.requests = Some(Box::new(Sender::new(rtt_ns, datagram_bytes)));
        }
    }

    /// Returns the keys of the tags of requests from the peer, and of the responses to it. `None`
    /// for a plain session.
    pub fn tag_keys(&self) -> Option<(TagKey, TagKey)> {
        self.receiving.key().zip(self.sending.key())
    }

    /// Executes the requests of the peer from now on, with `slots`, and tells the peer. An
    /// encrypted session has none.
    pub fn serve(&mut self, slots: Arc<dyn SlotMemory>) {
        if !self.may_request {
            return;
        }
        self.served = Some(Box::new(Served { slots, executed: 0 }));
        self.dirty.serves = true;
    }

    /// Executes a request that the kernel has left to the program. Builds the response in `out`.
    pub fn handle_request(
        &mut self,
        header: &Header,
        packet: &[u8],
        regions: &mut dyn Regions,
        now_ns: u64,
        out: &mut Vec<u8>,
    ) {
        let Some(served) = &self.served else { return };
        let Some(request) = parse_request(packet, &self.receiving) else {
            return;
        };
        self.heard_at_ns = now_ns;
        let Some(result) = slots::execute(&request, &*served.slots, regions) else {
            return;
        };
        let Some(response) = slots::respond(header.flags, &request, &result, &*served.slots) else {
            return;
        };
        let header = Header {
            kind: Kind::Response,
            flags: Flags::default(),
            receiver: self.remote.index,
            number: header.number,
        };
        emit_response(header, response, &self.sending, out);
    }

    /// Handles a response.
    pub fn handle_response(
        &mut self,
        header: &Header,
        packet: &[u8],
        now_ns: u64,
        out: &mut Vec<Happening>,
    ) {
        let Some(requests) = &mut self.requests else {
            return;
        };
        let answers = requests.handle_response(header, packet, &self.receiving, now_ns);
        let Some(answers) = answers else { return };
        self.heard_at_ns = now_ns;
        out.extend(
            answers
                .into_iter()
                .map(|(number, result)| Happening::Answered {
                    operation: request_name(number),
                    result,
                }),
        );
    }

    /// Returns what this side has executed for the peer.
    pub(super) fn executed_without_gap(&mut self) -> Executed {
        let mut requests = 0;
        if let Some(served) = &mut self.served {
            served.executed = slots::executed(&*served.slots, served.executed);
            requests = served.executed;
        }
        Executed {
            operations: self.executed.count(),
            requests,
        }
    }

    /// Delivers messages that waited for requests which are executed now, and sets the time of the
    /// next look. The kernel does not wake the program for a request.
    pub fn look(&mut self, regions: &mut dyn Regions, now_ns: u64, out: &mut Vec<Happening>) {
        if self.served.is_none() {
            return;
        }
        // With one count for both: the kernel may execute the request meanwhile, and a message that
        // no look delivers would wait for the next packet.
        let executed = self.executed_without_gap();
        self.advance_to(executed, regions, out);
        let waits = self.inbox.waits_for_requests(executed.requests);
        let pause_ns = (self.rtt().smoothed_ns() / 4).max(LOOK_NS);
        let next_ns = self.look_at_ns.filter(|at_ns| *at_ns > now_ns);
        self.look_at_ns = waits.then(|| next_ns.unwrap_or(now_ns + pause_ns));
    }
}
