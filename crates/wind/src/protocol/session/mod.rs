//! A session with one peer: packets, acknowledgements, credit, messages and operations.

mod acknowledgements;
mod conversation;
mod path;
mod requests;
mod transmit;

use crate::protocol::handshake::{Keys, Params};
use crate::protocol::inbox::{self, Delivered, Inbox, Limits, Violation};
use crate::protocol::model::{Operation, Place, Refused, Regions};
use crate::protocol::operations::Executed;
use crate::protocol::outbox::Outbox;
use crate::protocol::path_mtu::PathMtu;
use crate::protocol::ranges::Ranges;
use crate::protocol::recovery::{Outcome, Part, Recovery};
use crate::protocol::requests::Sender;
use crate::protocol::rtt::Rtt;
use crate::protocol::window::Window;
use crate::protocol::wire::{
    ACK_RANGES_MAX, ANSWER_HEAD_BYTES, Ack, Answer, Authenticator, HEADER_BYTES, Header, Malformed,
    Record, Segment, parse_records,
};
pub use acknowledgements::ACK_DELAY_STATED_NS;
use conversation::Conversation;
use kumi_multilink::secure::{PacketKey, Seal};
use requests::Served;
pub use requests::operation_name;
use std::collections::{BTreeMap, VecDeque};

/// Time without a packet from a peer after which it is asked whether it is still there, in ns.
/// Programs that end without a word would be remembered for ever.
const QUIET_NS: u64 = 600_000_000_000;

/// The same while a message or an operation waits that the peer has acknowledged: it may have ended
/// before it answered.
const QUIET_AWAITED_NS: u64 = 300_000_000;

/// Low bits of that time, 69 s, which are set so that few packets change it.
const QUIET_GRAIN_NS: u64 = (1 << 36) - 1;

/// Ranges of packet numbers that are remembered. Older ones count as received.
const RECEIVED_RANGES_MAX: usize = 4 * ACK_RANGES_MAX;

/// Bytes of a packet for records that state a value. What is not cut leaves them free;
/// a message is cut to fill the packet.
pub const STATE_BYTES: usize = 3 * 12 + 4;

/// Event of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// A message was delivered or refused.
    Delivered(Delivered),
    /// An operation of this side has its result.
    Answered {
        /// Name of the operation.
        operation: u64,
        /// Bytes of the result.
        result: Result<Vec<u8>, Refused>,
    },
    /// The peer has delivered all ordered messages below this number.
    Placed(u64),
    /// The peer refused the data of a message.
    Rejected {
        /// The message has a place in the order.
        is_ordered: bool,
        /// Number of the message.
        message: u64,
        /// Reason for the refusal.
        reason: Refused,
    },
    /// The peer has ended the session.
    Closed,
}

/// Reason why a packet had no effect, or ends the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Forged, damaged, or of another session.
    #[error("the packet is not of this session")]
    Forged,
    /// Authentic and malformed: the peer does not keep the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The peer violates the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The peer acknowledges a packet that was not sent.
    #[error("the peer acknowledges a packet that was not sent")]
    Ack,
}

/// Settings of this side.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Protection of packets.
    pub seal: Seal,
    /// Longest message that is received, in bytes.
    pub message_bytes_max: u32,
    /// Longest datagram that every path carries, in bytes.
    pub datagram_bytes: u16,
    /// Longest datagram that is sent, in bytes.
    pub datagram_bytes_max: u16,
}

/// Values of which the peer needs the current one.
#[derive(Debug, Clone, Copy, Default)]
struct Dirty {
    grant: bool,
    wanted: bool,
    placed: bool,
    serves: bool,
}

/// A session.
pub struct Session {
    /// Parameters of the peer.
    pub remote: Params,
    seal: PacketKey,
    open: PacketKey,
    tag_bytes: usize,
    /// Requests are not encrypted.
    may_request: bool,
    recovery: Recovery,
    window: Window,
    mtu: PathMtu,
    /// Number of a path probe of the peer that is to be answered.
    path_reply: Option<u64>,
    /// Messages and operations of this side.
    pub outbox: Outbox,
    inbox: Inbox,
    executed: Executed,
    /// Requests of this side, if the peer executes them.
    requests: Option<Box<Sender>>,
    served: Option<Box<Served>>,
    sending: Authenticator,
    receiving: Authenticator,
    received: Ranges,
    highest_at_ns: u64,
    conversation: Conversation,
    unacked: u32,
    ack_at_ns: Option<u64>,
    is_probe_due: bool,
    dirty: Dirty,
    /// Bytes that the peer has been granted in all.
    granted_bytes: u64,
    /// Bytes that the peer has granted to this side in all.
    credit_bytes: u64,
    /// Bytes that the peer would like to send in all.
    wanted_bytes: u64,
    /// Time at which the program looks for requests that the kernel has executed, in ns.
    look_at_ns: Option<u64>,
    rejections: BTreeMap<(bool, u64), Refused>,
    rejections_to_send: VecDeque<(bool, u64)>,
    message_bytes_max: u32,
    /// Packets that are missing since this was taken, without those that arrived late.
    pub missing: i64,
    /// Time at which an authentic packet arrived last, in ns.
    pub heard_at_ns: u64,
    is_closing: bool,
    /// The last packet had data, and more may follow it at once.
    is_in_burst: bool,
}

impl Session {
    /// Begins a session after its handshake, which took `rtt_ns`.
    pub fn new(
        remote: Params,
        keys: &Keys,
        terms: Terms,
        granted_bytes: u64,
        rtt_ns: u64,
        now_ns: u64,
    ) -> Self {
        let seal = terms.seal;
        let bytes_max = terms.datagram_bytes_max.min(remote.datagram_bytes_max);
        let mtu = PathMtu::new(terms.datagram_bytes, bytes_max);
        let ack_delay_ns = u64::from(remote.ack_delay_us) * 1000;
        Self {
            remote,
            seal: PacketKey::new(&keys.sending, seal),
            open: PacketKey::new(&keys.receiving, seal),
            tag_bytes: seal.tag_bytes(),
            may_request: seal != Seal::Encrypt,
            recovery: Recovery::new(Rtt::new(rtt_ns), ack_delay_ns),
            window: Window::new(mtu.bytes().into()),
            mtu,
            path_reply: None,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            executed: Executed::default(),
            requests: None,
            served: None,
            sending: Authenticator::new(&keys.sending, seal),
            receiving: Authenticator::new(&keys.receiving, seal),
            received: Ranges::default(),
            highest_at_ns: 0,
            conversation: Conversation::default(),
            unacked: 0,
            ack_at_ns: None,
            is_probe_due: false,
            dirty: Dirty::default(),
            granted_bytes,
            credit_bytes: remote.granted_bytes,
            wanted_bytes: 0,
            look_at_ns: None,
            rejections: BTreeMap::new(),
            rejections_to_send: VecDeque::new(),
            message_bytes_max: terms.message_bytes_max,
            missing: 0,
            heard_at_ns: now_ns,
            is_closing: false,
            is_in_burst: false,
        }
    }

    /// Returns the bytes of a packet of any path that a record may have which is not cut.
    pub fn room_bytes(&self) -> usize {
        usize::from(self.mtu.base_bytes()) - HEADER_BYTES - self.tag_bytes - STATE_BYTES
    }

    /// Returns the credit that the peer has used, and the bytes of it that are not delivered.
    pub fn used_and_held_bytes(&self) -> (u64, u64) {
        (self.inbox.used_bytes(), self.inbox.held_bytes())
    }

    /// Returns the bytes that the peer would like to send in all.
    pub fn wanted_bytes(&self) -> u64 {
        self.wanted_bytes
    }

    /// Returns the bytes that the peer has been granted in all.
    pub fn granted_bytes(&self) -> u64 {
        self.granted_bytes
    }

    /// Raises the peer's grant.
    pub fn grant(&mut self, granted_bytes: u64) {
        if granted_bytes > self.granted_bytes {
            self.granted_bytes = granted_bytes;
            self.dirty.grant = true;
        }
    }

    /// Returns whether the peer waits for something that is to be sent: a placed message, the
    /// answer of an operation, or a rejection. An acknowledgement may wait for the program's next
    /// message.
    pub fn is_awaited(&self) -> bool {
        self.dirty.placed || self.executed.is_ready() || !self.rejections_to_send.is_empty()
    }

    /// Returns the estimate of the round trip.
    pub fn rtt(&self) -> &Rtt {
        &self.recovery.rtt
    }

    /// Returns whether nothing was heard of the peer for `limit_ns`, and probes of that time had no
    /// answer.
    pub fn is_silent(&self, now_ns: u64, limit_ns: u64) -> bool {
        let requests = self.requests.as_ref();
        let is_unanswered = self.recovery.is_unanswered(now_ns, limit_ns)
            || requests.is_some_and(|requests| requests.is_unanswered(now_ns, limit_ns));
        is_unanswered && now_ns.saturating_sub(self.heard_at_ns) >= limit_ns
    }

    /// Tells the peer with the next packet that the session ends, and what was placed before: an
    /// earlier packet that said so may be lost, and none is sent again.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.dirty.placed = self.placed() > 0;
    }

    /// Asks the peer for an acknowledgement, which proves that this side has the keys.
    pub fn prove(&mut self) {
        self.is_probe_due = true;
    }

    /// Opens a packet in place and handles its records.
    pub fn handle(
        &mut self,
        header: &Header,
        packet: &mut [u8],
        regions: &mut dyn Regions,
        now_ns: u64,
        out: &mut Vec<Happening>,
    ) -> Result<(), Unusable> {
        let body = self
            .open
            .open(0, header.number, HEADER_BYTES, packet)
            .map_err(|_| Unusable::Forged)?;
        self.heard_at_ns = now_ns;
        let lowest = self
            .received
            .descending()
            .last()
            .map_or(0, |range| range.start);
        let is_old = self.received.count() == RECEIVED_RANGES_MAX && header.number < lowest;
        if is_old || self.received.contains(header.number) {
            // A duplicate. The peer may lack the acknowledgement.
            self.note_packet(header, false, now_ns);
            return Ok(());
        }
        let records = parse_records(body)?;
        let is_eliciting = records.iter().any(Record::is_eliciting);
        // The packet counts as received before its records are handled: a violation ends the
        // session in any case.
        let next = self
            .received
            .descending()
            .next()
            .map_or(0, |range| range.end);
        // A packet beyond the next one leaves a gap, and an earlier one fills a part of one.
        self.missing += match header.number.checked_sub(next) {
            Some(gap) => i64::try_from(gap).unwrap_or(i64::MAX / 4),
            None => -1,
        };
        self.received.insert(header.number..header.number + 1);
        self.received.keep_highest(RECEIVED_RANGES_MAX);
        if is_eliciting {
            self.note_packet(header, true, now_ns);
        }
        for record in records {
            self.handle_record(record, regions, now_ns, out)?;
        }
        Ok(())
    }

    fn handle_record(
        &mut self,
        record: Record<'_>,
        regions: &mut dyn Regions,
        now_ns: u64,
        out: &mut Vec<Happening>,
    ) -> Result<(), Unusable> {
        match record {
            Record::Ack(ack) => self.handle_ack(&ack, now_ns)?,
            Record::Grant(bytes) => self.credit_bytes = self.credit_bytes.max(bytes),
            Record::Wanted(bytes) => self.wanted_bytes = self.wanted_bytes.max(bytes),
            Record::Placed(count) => out.push(Happening::Placed(count)),
            Record::Ping => {}
            Record::Close => out.push(Happening::Closed),
            Record::Serves => self.begin_requests(),
            Record::Segment(segment) => self.take([segment], regions, out)?,
            Record::Batch(batch) => self.take(batch.segments(), regions, out)?,
            Record::Operation {
                number,
                place,
                operation,
            } => self.handle_operation(number, &place, &operation, regions, out)?,
            Record::Answer(answer) => self.handle_answer(&answer, out),
            // One outside a response has no meaning.
            Record::Summary(_) => {}
            Record::Rejection {
                is_ordered,
                message,
                reason,
            } => out.push(Happening::Rejected {
                is_ordered,
                message,
                reason,
            }),
        }
        Ok(())
    }

    /// Takes segments, and delivers what is complete.
    fn take<'a>(
        &mut self,
        segments: impl IntoIterator<Item = Segment<'a>>,
        regions: &mut dyn Regions,
        out: &mut Vec<Happening>,
    ) -> Result<(), Violation> {
        let limits = Limits {
            granted_bytes: self.granted_bytes,
            message_bytes_max: self.message_bytes_max,
        };
        let executed = self.executed_without_gap();
        let mut delivered = Vec::new();
        let taken = segments.into_iter().try_for_each(|segment| {
            let inbox = &mut self.inbox;
            inbox.take(&segment, limits, executed, regions, &mut delivered)
        });
        self.note_delivered(delivered, out);
        taken
    }

    fn handle_operation(
        &mut self,
        number: u64,
        place: &Place,
        operation: &Operation,
        regions: &mut dyn Regions,
        out: &mut Vec<Happening>,
    ) -> Result<(), Unusable> {
        if self.executed.contains(number) {
            return Ok(());
        }
        let bytes = match operation {
            Operation::Put(bytes) | Operation::PutDiff(bytes) => bytes.len() as u64,
            Operation::Get(_) => 0,
            Operation::Atomic(_) => 16,
        };
        if matches!(operation, Operation::Get(bytes) if usize::from(*bytes) + ANSWER_HEAD_BYTES > self.room_bytes())
        {
            // Its answer would fit no packet, and would hold back all others.
            return Err(Malformed::Field("length").into());
        }
        self.inbox.charge(bytes, self.granted_bytes)?;
        self.executed.execute(number, place, operation, regions)?;
        self.advance(regions, out);
        Ok(())
    }

    /// Delivers the ordered messages whose turn has come.
    fn advance(&mut self, regions: &mut dyn Regions, out: &mut Vec<Happening>) {
        let executed = self.executed_without_gap();
        self.advance_to(executed, regions, out);
    }

    fn advance_to(
        &mut self,
        executed: inbox::Executed,
        regions: &mut dyn Regions,
        out: &mut Vec<Happening>,
    ) {
        let mut delivered = Vec::new();
        self.inbox.advance(executed, regions, &mut delivered);
        self.note_delivered(delivered, out);
    }

    fn handle_answer(&mut self, answer: &Answer<'_>, out: &mut Vec<Happening>) {
        if self.outbox.note_answer(answer.operation) {
            out.push(Happening::Answered {
                operation: operation_name(answer.operation),
                result: answer.result.map(<[u8]>::to_vec),
            });
        }
    }

    fn note_delivered(&mut self, delivered: Vec<Delivered>, out: &mut Vec<Happening>) {
        for delivered in delivered {
            self.dirty.placed |= delivered.is_synchronous;
            if let Some(reason) = delivered.refused {
                let name = (delivered.is_ordered, delivered.number);
                self.rejections.insert(name, reason);
                self.rejections_to_send.push_back(name);
            }
            out.push(Happening::Delivered(delivered));
        }
    }

    fn handle_ack(&mut self, ack: &Ack, now_ns: u64) -> Result<(), Unusable> {
        let is_limited = self.is_limited();
        let outcome = self.recovery.on_ack(ack, now_ns).ok_or(Unusable::Ack)?;
        if let Some(highest) = outcome.highest {
            let next = self.recovery.next();
            let rtt = &self.recovery.rtt;
            self.window
                .on_ack(outcome.arrived_bytes, highest, next, rtt, is_limited);
            self.mtu.on_arrived(outcome.arrived_bytes);
        }
        self.apply(outcome);
        Ok(())
    }

    fn apply(&mut self, outcome: Outcome) {
        if let Some(highest) = outcome.highest_lost {
            let next = self.recovery.next();
            self.window
                .on_loss(outcome.lost_bytes, highest, next, &self.recovery.rtt);
        }
        for part in outcome.arrived {
            match part {
                Part::Segment { message, range } => {
                    self.outbox.note_segment(message, &range);
                }
                Part::Answer(number) => self.executed.note_arrived(number),
                Part::Rejection(is_ordered, number) => {
                    self.rejections.remove(&(is_ordered, number));
                    self.dirty.placed = true;
                }
                Part::Operation(_) | Part::State => {}
            }
        }
        outcome
            .lost
            .into_iter()
            .for_each(|part| self.send_again(part));
    }

    fn send_again(&mut self, part: Part) {
        match part {
            Part::Segment { .. } | Part::Operation(_) => self.outbox.send_again(part),
            Part::Answer(number) => self.executed.send_again(number),
            Part::Rejection(is_ordered, number) => {
                self.rejections_to_send.push_back((is_ordered, number));
            }
            Part::State => {
                self.dirty = Dirty {
                    grant: true,
                    wanted: true,
                    placed: true,
                    serves: self.served.is_some(),
                };
            }
        }
    }

    /// Frees what an idle session does not need: an emptied map keeps a node of eleven entries.
    pub fn release(&mut self) {
        self.recovery.release();
        self.outbox.release();
        self.inbox.release();
        self.executed.release();
        if let Some(requests) = &mut self.requests {
            requests.release();
        }
    }

    /// Returns the time at which the peer is asked whether it is still there; `None` if something
    /// is in flight, or if the peer's kernel executes requests: its program may be stopped.
    fn ask_at_ns(&self) -> Option<u64> {
        let is_asked = self.is_probe_due || self.recovery.timeout_ns().is_some();
        let is_due = !is_asked && self.requests.is_none();
        is_due.then(|| match self.unsent_bytes() {
            0 => (self.heard_at_ns + QUIET_NS) | QUIET_GRAIN_NS,
            _ => self.heard_at_ns + QUIET_AWAITED_NS,
        })
    }

    /// Returns the time of the next timeout; `None` if nothing waits for one.
    pub fn timeout_ns(&self) -> Option<u64> {
        [self.work_at_ns(), self.ask_at_ns()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns whether nothing is in flight, awaited or due.
    pub fn is_idle(&self) -> bool {
        self.work_at_ns().is_none()
    }

    fn work_at_ns(&self) -> Option<u64> {
        let recovery = self.recovery.timeout_ns();
        let requests = self.requests.as_ref();
        let requests = requests.and_then(|requests| requests.timeout_ns());
        let timeouts = [recovery, self.ack_at_ns, requests, self.look_at_ns];
        timeouts.into_iter().flatten().min()
    }

    /// Handles a timeout.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if let Some(requests) = &mut self.requests {
            requests.handle_timeout(now_ns);
        }
        self.is_probe_due |= self.ask_at_ns().is_some_and(|at_ns| at_ns <= now_ns);
        let (outcome, probe) = self.recovery.on_timeout(now_ns);
        self.apply(outcome);
        if let Some(parts) = probe {
            self.is_probe_due = true;
            parts.into_iter().for_each(|part| self.send_again(part));
            if self.recovery.probes() == 2 {
                self.window.on_silence(self.recovery.next());
                if self.mtu.on_timeout(now_ns) {
                    self.window.set_unit(self.mtu.bytes().into());
                }
            }
        }
    }
}
