//! Requests of this side, until they are answered.

use super::slots::SLOTS;
use crate::protocol::endpoint::PathStatus;
use crate::protocol::model::{Operation, Place, Refused};
use crate::protocol::recovery::{Outcome, Part, Recovery};
use crate::protocol::rtt::Rtt;
use crate::protocol::sequence::Sequence;
use crate::protocol::window::Window;
use crate::protocol::wire::{
    Ack, Authenticator, Flags, HEADER_BYTES, Header, Kind, OPERATION_HEAD_BYTES, REQUEST_TAG_BYTES,
    Request, Response, Summary, emit_request, parse_response,
};
use std::collections::VecDeque;

/// Most puts in a row without a response of their own. A summary covers four such rows, so that a
/// few lost ones do no harm.
const QUIET_MAX: u64 = 15;

/// Bytes of a request without its payload.
const HEAD_BYTES: usize = HEADER_BYTES + OPERATION_HEAD_BYTES + REQUEST_TAG_BYTES;

/// A window has room for this number of rows, so that responses still pace the packets.
const ROWS_PER_WINDOW: u64 = 4;

/// Time since the last packet after which a request is alone, in ns: it waits for no others.
const LONE_NS: u64 = 50_000;

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
    open: Sequence<Open>,
    /// Number of the next request that is sent for the first time.
    unsent: u64,
    again: VecDeque<u64>,
    is_probe_due: bool,
    held_bytes: u64,
    /// Puts since the last request that gets a response, and their bytes.
    quiet: u64,
    quiet_bytes: u64,
    /// Most puts in a row without a response. Halved by a loss, and increased by each response:
    /// what is missing in a summary is sent again, even if it was only late.
    quiet_max: u64,
}

/// A request without an answer.
struct Open {
    request: Request,
    /// Number of its packet, if it was sent once.
    packet: Option<u64>,
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
            quiet: 0,
            quiet_bytes: 0,
            quiet_max: QUIET_MAX,
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
        self.open.push(Open {
            request,
            packet: None,
        })
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

    /// Returns whether three probes, and everything else for `limit_ns`, had no answer.
    pub fn is_unanswered(&self, now_ns: u64, limit_ns: u64) -> bool {
        self.recovery.is_unanswered(now_ns, limit_ns)
    }

    /// Returns whether a request that was just submitted should be sent at once: nothing is in
    /// flight, whose response would send it; or nothing was sent for a while; or a row is complete.
    pub fn is_worth_sending(&self, now_ns: u64) -> bool {
        let waiting = self.open.next() - self.unsent;
        self.recovery.in_flight_bytes() == 0
            || waiting > QUIET_MAX
            || now_ns >= self.recovery.eliciting_at_ns() + LONE_NS
    }

    /// Returns whether requests wait to be sent for the first time.
    pub fn has_unsent(&self) -> bool {
        self.unsent < self.open.next()
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
        let Some((number, is_first)) = self.take_next() else {
            return false;
        };
        self.is_probe_due = false;
        let flags = self.choose_flags(number, is_first);
        let packet = self.recovery.next();
        let Some(open) = self.open.get_mut(number) else {
            return false;
        };
        open.packet = is_first.then_some(packet);
        let header = Header {
            kind: Kind::Request,
            flags,
            receiver,
            number: packet,
        };
        let start = out.len();
        emit_request(header, &open.request, authenticator, out);
        let bytes = (out.len() - start) as u64;
        self.recovery
            .on_sent(now_ns, bytes, vec![Part::Operation(number)]);
        true
    }

    /// Returns the next request to send, and whether it is sent for the first time.
    fn take_next(&mut self) -> Option<(u64, bool)> {
        while let Some(number) = self.again.pop_front() {
            if self.open.contains(number) {
                return Some((number, false));
            }
        }
        let oldest = self.open.first()?;
        let may_send = self.unsent < self.open.next() && self.unsent < oldest + SLOTS;
        may_send.then(|| {
            self.unsent += 1;
            (self.unsent - 1, true)
        })
    }

    /// Returns whether `number` is of a request that is not a get.
    fn may_summarize(&self, number: u64) -> bool {
        let open = self.open.get(number);
        open.is_some_and(|open| !matches!(open.request.operation, Operation::Get(_)))
    }

    /// Chooses the flags of a request that is sent now. A put is quiet if a request that can ask
    /// for a summary follows it at once.
    fn choose_flags(&mut self, number: u64, is_first: bool) -> Flags {
        let mut flags = Flags::default();
        let open = self.open.get(number);
        let Some(open) = open.filter(|_| self.may_summarize(number)) else {
            // A get has no summary. The flag says that it is sent again.
            flags.wants_summary = !is_first;
            return flags;
        };
        let operation = &open.request.operation;
        let is_put = operation.is_put();
        let bytes = (HEAD_BYTES + operation.payload_bytes()) as u64;
        let in_flight_bytes = self.recovery.in_flight_bytes() + bytes;
        let next = self.unsent;
        let is_followed = self.again.is_empty()
            && self.may_summarize(next)
            && self
                .open
                .first()
                .is_some_and(|oldest| next < oldest + SLOTS)
            && in_flight_bytes + self.datagram_bytes <= self.window.bytes();
        let row_bytes = self.quiet_bytes + bytes;
        let is_short =
            self.quiet < self.quiet_max && row_bytes * ROWS_PER_WINDOW <= self.window.bytes();
        if is_put && is_first && is_followed && is_short {
            self.quiet += 1;
            self.quiet_bytes = row_bytes;
            flags.is_quiet = true;
        } else {
            flags.wants_summary = self.quiet > 0 || !is_first;
            (self.quiet, self.quiet_bytes) = (0, 0);
        }
        flags
    }

    /// Returns whether a request without an answer is a put. A summary ends puts only, because
    /// others have a result.
    fn is_open_put(&self, number: u64) -> bool {
        let open = self.open.get(number);
        open.is_some_and(|open| open.request.operation.is_put())
    }

    /// Returns the packets that a response acknowledges: that of its number, and those of the
    /// requests which it ends and which were sent once.
    fn acknowledged(&self, number: u64, response: &Response<'_>) -> Ack {
        let answered = response.answers.iter().map(|answer| answer.operation);
        let executed = response.summary.into_iter().flat_map(Summary::numbers);
        let executed = executed.filter(|request| self.is_open_put(*request));
        let packets = answered.chain(executed).filter_map(|request| {
            let packet = self.open.get(request)?.packet;
            packet.filter(|packet| *packet < number)
        });
        let mut packets: Vec<u64> = packets.chain([number]).collect();
        packets.sort_unstable_by(|a, b| b.cmp(a));
        packets.dedup();
        Ack {
            delay_us: 0,
            ranges: packets
                .into_iter()
                .map(|packet| packet..packet + 1)
                .collect(),
        }
    }

    /// Ends a request that has an answer.
    fn close(&mut self, number: u64) -> bool {
        let open = self.open.remove(number);
        let cost = open.as_ref().map(|open| open.request.cost_bytes());
        self.held_bytes -= cost.unwrap_or(0);
        open.is_some()
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
        let response = parse_response(packet, authenticator)?;
        header.number.checked_add(1)?;
        let is_limited =
            self.recovery.in_flight_bytes() + self.datagram_bytes > self.window.bytes();
        let ack = self.acknowledged(header.number, &response);
        let outcome = self.recovery.on_ack(&ack, now_ns)?;
        if let Some(highest) = outcome.highest {
            let next = self.recovery.next();
            let rtt = &self.recovery.rtt;
            self.window
                .on_ack(outcome.arrived_bytes, highest, next, rtt, is_limited);
        }
        self.quiet_max = (self.quiet_max + 1).min(QUIET_MAX);
        self.send_lost_again(outcome);
        let mut fresh = Vec::new();
        for number in response.summary.into_iter().flat_map(Summary::numbers) {
            if self.is_open_put(number) && self.close(number) {
                fresh.push((number, Ok(Vec::new())));
            }
        }
        for answer in response.answers {
            if self.close(answer.operation) {
                fresh.push((answer.operation, answer.result.map(<[u8]>::to_vec)));
            }
        }
        Some(fresh)
    }

    fn send_lost_again(&mut self, outcome: Outcome) {
        if let Some(highest) = outcome.highest_lost {
            self.quiet_max /= 2;
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
        crate::protocol::outgoing::ITEM_COST_BYTES + self.operation.payload_bytes() as u64
    }
}
