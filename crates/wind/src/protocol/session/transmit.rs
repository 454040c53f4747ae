//! Packets of a session, and their records.

use super::Session;
use super::conversation::ANSWER_HOLD_NS;
use crate::protocol::recovery::Part;
use crate::protocol::wire::{Flags, HEADER_BYTES, Header, Kind, Record};

/// Bytes that are worth a system call while others are in flight: a dozen datagrams.
const CALL_BYTES: u64 = 16 << 10;

/// Bytes of a stream that are worth a system call, with the costs of its messages: 256 messages of
/// 64 bytes. Fitted to `wind-goodput`.
const STREAM_CALL_BYTES: u64 = 32 << 10;

/// Time since the last packet after which a message is alone, in ns: it waits for no others. A
/// sender of more messages than this fills packets.
const LONE_NS: u64 = 50_000;

/// A packet that others follow is padded if it lacks this share of its length at most: packets of
/// one length share a system call and a pass of the network stack (`UDP_SEGMENT`).
const PADDED_SHARE: usize = 16;

/// Share of the window that is worth a system call. A window is hardly larger than what the path
/// holds, so the path runs empty while more of it is held back.
const WINDOW_SHARE: u64 = 16;

/// Length of the record that ends a session.
const CLOSE_BYTES: usize = 4;

/// Growth of the demand for credit that the peer learns while it has not met the demand it knows.
const WANTED_STEP_BYTES: u64 = 64 << 10;

impl Session {
    /// Returns whether a message that was just submitted should be sent at once: nothing is in
    /// flight, whose acknowledgement would send it, and it is not of a stream; nothing was sent for
    /// [`LONE_NS`]; or enough waits for a batch that the window takes. Acknowledgements send
    /// smaller ones.
    pub fn is_worth_sending(&self, is_stream: bool, now_ns: u64) -> bool {
        let requests = self
            .requests
            .as_ref()
            .filter(|requests| requests.has_unsent());
        if requests.is_some_and(|requests| requests.is_worth_sending(now_ns)) {
            return true;
        }
        let in_flight_bytes = self.recovery.in_flight_bytes();
        if requests.is_some() && self.outbox.waiting_bytes() == 0 {
            return false;
        }
        let has_room = self.room_in_window_bytes() >= CALL_BYTES.min(self.window.bytes() / 2);
        let call_bytes = if is_stream {
            STREAM_CALL_BYTES
        } else {
            CALL_BYTES
        };
        // The acknowledgement of the last packet may be held.
        let is_nothing_awaited = in_flight_bytes == 0 || self.recovery.is_held();
        (is_nothing_awaited && !is_stream)
            || (has_room && self.outbox.waiting_bytes() >= call_bytes)
            || now_ns >= self.recovery.eliciting_at_ns() + LONE_NS
    }

    pub(super) fn room_in_window_bytes(&self) -> u64 {
        let in_flight_bytes = self.recovery.in_flight_bytes();
        self.window.bytes().saturating_sub(in_flight_bytes)
    }

    /// Appends the next packet to `out`. Returns false if nothing is to be sent now.
    pub fn poll_transmit(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        // A probe may be too long for the socket, which then refuses all that is sent with it. So
        // it is sent when there is nothing else.
        let has_sent = self.poll_packet(now_ns, out) || self.poll_path(now_ns, out);
        self.is_in_burst &= has_sent;
        has_sent
    }

    /// Returns whether the window takes a packet, and enough of them for a system call.
    /// Acknowledgements make more room.
    fn has_window(&self) -> bool {
        let datagram_bytes = u64::from(self.mtu.bytes());
        let room_bytes = self.room_in_window_bytes();
        let is_worth = room_bytes >= self.worth_bytes()
            || room_bytes >= self.outbox.waiting_bytes()
            || self.outbox.sends_again();
        room_bytes >= datagram_bytes && (self.is_in_burst || is_worth)
    }

    fn worth_bytes(&self) -> u64 {
        CALL_BYTES.min(self.window.bytes() / WINDOW_SHARE)
    }

    /// Returns whether the window limits what is sent.
    pub(super) fn is_limited(&self) -> bool {
        let datagram_bytes = u64::from(self.mtu.bytes());
        self.room_in_window_bytes() < self.worth_bytes().max(datagram_bytes)
    }

    fn poll_packet(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        if let Some(requests) = &mut self.requests {
            if requests.poll_transmit(self.remote.index, &self.sending, now_ns, out) {
                return true;
            }
        }
        let room = usize::from(self.mtu.bytes()) - HEADER_BYTES - self.tag_bytes;
        let datagram_bytes = u64::from(self.mtu.bytes());
        let has_window = self.has_window();
        let is_ack_due = self.ack_at_ns.is_some_and(|at_ns| at_ns <= now_ns);
        self.dirty.wanted |= self.is_short_of_credit();
        let has_data = self.executed.is_ready()
            || !self.rejections_to_send.is_empty()
            || self.outbox.is_ready(self.credit_bytes);
        let is_sending = self.is_probe_due || (has_window && has_data);
        let dirty = &self.dirty;
        let has_state = dirty.grant || dirty.wanted || dirty.placed || dirty.serves;
        if !is_ack_due && !is_sending && !has_state && !self.is_closing {
            return false;
        }
        let start = out.len();
        let body_start = start + HEADER_BYTES;
        out.resize(body_start, 0);
        let mut parts = Vec::new();
        if self.ack_at_ns.is_some() {
            self.emit_ack(now_ns, out);
        }
        self.emit_state(out, &mut parts);
        if is_sending {
            let close_bytes = if self.is_closing { CLOSE_BYTES } else { 0 };
            self.emit_data(body_start + room - close_bytes, out, &mut parts);
        }
        if self.is_probe_due && parts.is_empty() {
            Record::Ping.emit(out);
            parts.push(Part::State);
        }
        self.is_probe_due = false;
        if std::mem::take(&mut self.is_closing) {
            Record::Close.emit(out);
        }
        if out.len() == body_start {
            out.truncate(start);
            return false;
        }
        let sent_bytes = self.recovery.in_flight_bytes() + (out.len() - start) as u64;
        let has_more = (self.executed.is_ready() || self.outbox.is_ready(self.credit_bytes))
            && sent_bytes + datagram_bytes <= self.window.bytes();
        let full = body_start + room;
        if has_more && out.len() < full && out.len() + room / PADDED_SHARE >= full {
            out.resize(full, 0);
        }
        let is_message = |part: &Part| matches!(part, Part::Segment { .. });
        let is_other = |part: &Part| !matches!(part, Part::Segment { .. } | Part::State);
        let is_lone = !has_more && self.recovery.in_flight_bytes() == 0;
        let may_hold_ack = is_lone
            && parts.iter().any(is_message)
            && !parts.iter().any(is_other)
            && self.conversation.on_sent(now_ns);
        let header = Header {
            kind: Kind::Data,
            flags: Flags {
                wants_ack: !parts.is_empty() && !has_more && !may_hold_ack,
                may_hold_ack,
                ..Flags::default()
            },
            receiver: self.remote.index,
            number: self.recovery.next(),
        };
        out[start..body_start].copy_from_slice(&header.to_bytes());
        self.seal
            .seal_at(0, header.number, start, HEADER_BYTES, out);
        debug_assert!(out.len() - start <= usize::from(self.mtu.bytes()));
        let bytes = if parts.is_empty() {
            0
        } else {
            (out.len() - start) as u64
        };
        self.is_in_burst |= !parts.is_empty();
        self.recovery.on_sent(now_ns, bytes, parts);
        if may_hold_ack {
            self.recovery.expect_hold(ANSWER_HOLD_NS);
        }
        true
    }

    /// Returns whether the peer should learn that there is more to send than it has granted: it
    /// takes the demand for met, or the demand has grown much.
    fn is_short_of_credit(&mut self) -> bool {
        let wanted = self.outbox.wanted_bytes();
        let announced = self.outbox.announced_bytes;
        let is_known = announced > self.credit_bytes && wanted < announced + WANTED_STEP_BYTES;
        let is_new = wanted > self.credit_bytes && wanted > announced && !is_known;
        if is_new {
            self.outbox.announced_bytes = wanted;
        }
        is_new
    }

    fn emit_state(&mut self, body: &mut Vec<u8>, parts: &mut Vec<Part>) {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.grant {
            Record::Grant(self.granted_bytes).emit(body);
        }
        if dirty.wanted {
            Record::Wanted(self.outbox.wanted_bytes()).emit(body);
        }
        if dirty.placed {
            Record::Placed(self.placed()).emit(body);
        }
        if dirty.serves {
            Record::Serves.emit(body);
        }
        if dirty.grant || dirty.wanted || dirty.placed || dirty.serves {
            parts.push(Part::State);
        }
    }

    /// Returns the number of ordered messages that the peer may take as placed. A rejected one, and
    /// those after it, follow when the peer has the rejection.
    pub(super) fn placed(&self) -> u64 {
        let rejected = self.rejections.range((true, 0)..).next();
        let delivered = self.inbox.ordered_delivered();
        rejected.map_or(delivered, |((_, number), _)| delivered.min(*number))
    }

    /// Appends records to `body`, which may have `end` bytes.
    fn emit_data(&mut self, end: usize, body: &mut Vec<u8>, parts: &mut Vec<Part>) {
        while let Some(name) = self.rejections_to_send.front().copied() {
            if body.len() + 12 > end {
                return;
            }
            self.rejections_to_send.pop_front();
            let Some(reason) = self.rejections.get(&name) else {
                continue;
            };
            let record = Record::Rejection {
                is_ordered: name.0,
                message: name.1,
                reason: *reason,
            };
            record.emit(body);
            parts.push(Part::Rejection(name.0, name.1));
        }
        while let Some(number) = self.executed.emit(end.saturating_sub(body.len()), body) {
            parts.push(Part::Answer(number));
        }
        while let Some(part) =
            self.outbox
                .emit(end.saturating_sub(body.len()), self.credit_bytes, body)
        {
            parts.push(part);
        }
    }
}
