//! One event of an observed connection.

use crate::intf::{SharedEvent, address};
use crate::layout::tick;
use std::net::SocketAddr;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A segment arrived.
    Segment {
        /// Sequence number that it acknowledges.
        ack: u32,
        /// Payload, in bytes.
        payload_bytes: u32,
    },
    /// A segment was retransmitted.
    Retransmit(Retransmit),
    /// The congestion state changed to this one.
    State(State),
    /// The program wrote while nothing was in flight.
    Write,
    /// A queue of this host refused a segment.
    LocalDrop,
    /// A delayed acknowledgement left.
    HeldAck {
        /// Delay, in microseconds.
        held_us: u32,
    },
    /// The connection closed.
    Close,
}

impl Kind {
    /// Returns the name in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Self::Segment { .. } => "segment",
            Self::Retransmit(_) => "retransmit",
            Self::State(_) => "state",
            Self::Write => "write",
            Self::LocalDrop => "local-drop",
            Self::HeldAck { .. } => "held-ack",
            Self::Close => "close",
        }
    }
}

/// Reason for a retransmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retransmit {
    /// Later segments had arrived.
    Fast,
    /// The retransmission timeout expired.
    Timeout,
    /// A tail loss probe (RFC 8985).
    Probe,
}

/// TCP's congestion state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No loss and no re-ordering.
    Open,
    /// Segments arrived out of order.
    Disorder,
    /// TCP reduces the window without a loss, for a local refusal or a router's mark.
    Reduced,
    /// A loss is under repair.
    Recovery,
    /// A timeout is under repair.
    Loss,
}

impl State {
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::Disorder,
            2 => Self::Reduced,
            3 => Self::Recovery,
            _ => Self::Loss,
        }
    }

    /// Returns the kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Disorder => "disorder",
            Self::Reduced => "cwr",
            Self::Recovery => "recovery",
            Self::Loss => "loss",
        }
    }
}

/// Limit of the sender, by the kernel's own account (`tcp_chrono`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No limit: there is no data to send.
    Nobody,
    /// Congestion control, or the wire.
    Network,
    /// The receiver's window.
    FarWindow,
    /// The size of the send buffer.
    SendBuffer,
}

/// One event, with the connection's state at that time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Time of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The kernel's socket cookie.
    pub cookie: u64,
    /// Kind of event.
    pub kind: Kind,
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// First byte not acknowledged.
    pub snd_una: u32,
    /// First byte not sent.
    pub snd_nxt: u32,
    /// First byte not written.
    pub write_seq: u32,
    /// Congestion window, in packets.
    pub cwnd: u32,
    /// Slow start threshold, in packets.
    pub ssthresh: u32,
    /// Packets in flight.
    pub in_flight: u32,
    /// The receiver's window, in bytes.
    pub snd_wnd: u32,
    /// The window announced to the far end, in bytes.
    pub rcv_wnd: u32,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Shortest round-trip time.
    pub rtt_min_us: u32,
    /// Retransmission timeout.
    pub rto_us: u64,
    /// Segment size, in bytes.
    pub mss_bytes: u32,
    /// Pacing rate, in bits per second.
    pub pacing_bps: u64,
    /// Congestion state.
    pub state: State,
    /// Limit of the sender.
    pub limit: Limit,
    /// Events of all connections that were dropped for lack of room so far.
    pub lost: u32,
    /// Process that names its phase, by its place in the table of `kumi run`; 0 for none.
    pub rank: u32,
    /// Number of the phase.
    pub phase: u32,
    /// Name of the phase, if its program gives it one.
    pub phase_name: Option<Arc<str>>,
    /// Cumulative counters of the connection.
    pub totals: Counters,
}

/// Cumulative counters of a connection, as Web100 has them (RFC 4898): bytes and times since the
/// connection began, segments since it is observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes retransmitted.
    pub bytes_resent: u64,
    /// Bytes acknowledged.
    pub bytes_acked: u64,
    /// Time limited by congestion control or the wire, in microseconds.
    pub network_us: u64,
    /// Time limited by the receiver's window, in microseconds.
    pub far_window_us: u64,
    /// Time limited by the send buffer, in microseconds.
    pub send_buffer_us: u64,
    /// Duplicate acknowledgements while data was in flight.
    pub dupacks: u32,
    /// Segments with selective acknowledgements.
    pub sacks: u32,
    /// Duplicate segments that the far end reported.
    pub dsacks: u32,
}

impl Event {
    /// Size of the structure, in bytes.
    pub const BYTES: usize = size_of::<SharedEvent>();

    /// Reads one event; `None` for another size or an unknown kind.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let event = SharedEvent::read_from_bytes(bytes).ok()?;
        let kind = match event.kind {
            1 => Kind::Segment {
                ack: event.ack,
                payload_bytes: event.detail,
            },
            2 => Kind::Retransmit(match event.detail {
                1 => Retransmit::Timeout,
                2 => Retransmit::Probe,
                _ => Retransmit::Fast,
            }),
            3 => Kind::State(State::from_number(event.detail)),
            4 => Kind::Write,
            5 => Kind::LocalDrop,
            6 => Kind::HeldAck {
                held_us: event.detail,
            },
            7 => Kind::Close,
            _ => return None,
        };
        let is_ipv6 = event.is_ipv6 != 0;
        let tick_us = u64::try_from(tick().as_micros()).unwrap_or(u64::MAX);
        Some(Self {
            at_ns: event.at_ns,
            cookie: event.cookie,
            kind,
            local: address(event.local, event.local_port, is_ipv6),
            remote: address(event.remote, event.remote_port, is_ipv6),
            snd_una: event.snd_una,
            snd_nxt: event.snd_nxt,
            write_seq: event.write_seq,
            cwnd: event.cwnd,
            ssthresh: event.ssthresh,
            in_flight: event.in_flight,
            snd_wnd: event.snd_wnd,
            rcv_wnd: event.rcv_wnd,
            srtt_us: event.srtt_us,
            rtt_min_us: event.rtt_min_us,
            rto_us: u64::from(event.rto_ticks) * tick_us,
            mss_bytes: event.mss_bytes,
            pacing_bps: event.pacing_bytes_ps.saturating_mul(8),
            state: State::from_number(event.ca_state.into()),
            limit: match event.limit {
                1 => Limit::Network,
                2 => Limit::FarWindow,
                3 => Limit::SendBuffer,
                _ => Limit::Nobody,
            },
            lost: event.lost,
            rank: event.rank,
            phase: event.phase,
            phase_name: None,
            totals: Counters {
                bytes_sent: event.bytes_sent,
                bytes_resent: event.bytes_resent,
                bytes_acked: event.bytes_acked,
                network_us: u64::from(event.network_ticks) * tick_us,
                far_window_us: u64::from(event.far_ticks) * tick_us,
                send_buffer_us: u64::from(event.buffer_ticks) * tick_us,
                dupacks: event.dupacks,
                sacks: event.sacks,
                dsacks: event.dsacks,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event__bytes__are_parsed_at_the_header_offsets() {
        let mut bytes = [0; Event::BYTES];
        bytes[24..28].copy_from_slice(&2_u32.to_ne_bytes());
        bytes[28..32].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[48..52].copy_from_slice(&10_u32.to_ne_bytes());
        bytes[85] = 2;
        bytes[88..90].copy_from_slice(&80_u16.to_ne_bytes());
        bytes[92..96].copy_from_slice(&[10, 0, 0, 1]);
        bytes[124..128].copy_from_slice(&3_u32.to_ne_bytes());
        bytes[132..136].copy_from_slice(&5_u32.to_ne_bytes());
        bytes[144..152].copy_from_slice(&1448_u64.to_ne_bytes());
        bytes[180..].copy_from_slice(&6_u32.to_ne_bytes());
        let event = Event::from_bytes(&bytes).expect("the right size");
        assert_eq!(event.kind, Kind::Retransmit(Retransmit::Timeout));
        assert_eq!((event.cwnd, event.limit), (10, Limit::FarWindow));
        assert_eq!(event.local.to_string(), "10.0.0.1:80");
        assert_eq!((event.lost, event.rank, event.phase), (3, 0, 5));
        assert_eq!((event.totals.bytes_resent, event.totals.dsacks), (1448, 6));
        assert_eq!(Event::from_bytes(&bytes[1..]), None);
        bytes[24] = 99;
        assert_eq!(Event::from_bytes(&bytes), None);
    }
}
