//! One event of a watched connection: `struct kumi_trace_event` of `bpf/trace/intf.h`.

use crate::fields::Fields;
use crate::layout::tick;
use std::net::SocketAddr;
use std::sync::Arc;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A segment arrived.
    Segment {
        /// The sequence number it acknowledges.
        ack: u32,
        /// Payload it brought, bytes.
        payload_bytes: u32,
    },
    /// A segment was sent again.
    Retransmit(Retransmit),
    /// The congestion state changed to this one.
    State(State),
    /// The program wrote, and nothing was under way.
    Write,
    /// A queue of this host refused a segment.
    LocalDrop,
    /// An acknowledgement left that had been held back.
    HeldAck {
        /// For so long.
        held_us: u32,
    },
    /// The connection is gone.
    Close,
}

impl Kind {
    /// The name in a trace.
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

/// Why a segment was sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retransmit {
    /// Later segments had arrived.
    Fast,
    /// The retransmission timeout had passed.
    Timeout,
    /// A probe of the tail (RFC 8985).
    Probe,
}

/// TCP's congestion state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing amiss.
    Open,
    /// Something came out of order.
    Disorder,
    /// The window is being cut without a loss: a local refusal, or a router's mark.
    Reduced,
    /// A loss is being repaired.
    Recovery,
    /// A timeout is being repaired.
    Loss,
}

impl State {
    fn of(number: u32) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::Disorder,
            2 => Self::Reduced,
            3 => Self::Recovery,
            _ => Self::Loss,
        }
    }

    /// The kernel's name.
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

/// Who holds the sender up, by the kernel's own account (`tcp_chrono`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Nobody: there is nothing to send.
    Nobody,
    /// Congestion control, or the wire.
    Network,
    /// The far end's window.
    FarWindow,
    /// The size of its own send buffer.
    SendBuffer,
}

/// One event, and the connection as it was when it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The kernel's name of the socket.
    pub cookie: u64,
    /// What happened.
    pub kind: Kind,
    /// This end.
    pub local: SocketAddr,
    /// The other.
    pub remote: SocketAddr,
    /// First byte not acknowledged.
    pub snd_una: u32,
    /// First byte not sent.
    pub snd_nxt: u32,
    /// First byte not written.
    pub write_seq: u32,
    /// Congestion window, packets.
    pub cwnd: u32,
    /// Slow start threshold, packets.
    pub ssthresh: u32,
    /// Packets under way.
    pub in_flight: u32,
    /// The far end's window, bytes.
    pub snd_wnd: u32,
    /// The window announced to it, bytes.
    pub rcv_wnd: u32,
    /// Smoothed round trip.
    pub srtt_us: u32,
    /// Shortest round trip.
    pub rtt_min_us: u32,
    /// Retransmission timeout.
    pub rto_us: u64,
    /// Segment size, bytes.
    pub mss_bytes: u32,
    /// Pacing rate, bits a second.
    pub pacing_bps: u64,
    /// Congestion state.
    pub state: State,
    /// Who holds the sender up.
    pub limit: Limit,
    /// Events of all connections that found no room until now.
    pub lost: u32,
    /// The process that tells its phase, by its place in the table of `kumi run`; 0: none.
    pub rank: u32,
    /// The number of its phase.
    pub phase: u32,
    /// The phase's name, where there is somebody who tells it.
    pub phase_name: Option<Arc<str>>,
    /// What has been cumulated of the connection.
    pub totals: Cumulated,
}

/// What Web100 cumulates of a connection (RFC 4898): since it was made, and segments since it is watched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cumulated {
    /// Payload bytes sent, with what was sent again.
    pub bytes_sent: u64,
    /// Of these, bytes sent again.
    pub bytes_resent: u64,
    /// Bytes acknowledged.
    pub bytes_acked: u64,
    /// Time held up by congestion control or the wire, microseconds.
    pub network_us: u64,
    /// Time held up by the far end's window, microseconds.
    pub far_window_us: u64,
    /// Time held up by the send buffer, microseconds.
    pub send_buffer_us: u64,
    /// Acknowledgements of what was acknowledged before, while data was under way.
    pub dupacks: u32,
    /// Segments with selective acknowledgements.
    pub sacks: u32,
    /// Segments that the far end told it had received twice.
    pub dsacks: u32,
}

impl Event {
    /// Bytes of the structure.
    pub const BYTES: usize = 184;

    /// Reads one; `None` if it has not the structure's size, or is of a kind nobody knows.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let fields = Fields(bytes.get(..Self::BYTES)?);
        let detail = fields.u32(28);
        let kind = match fields.u32(24) {
            1 => Kind::Segment {
                ack: fields.u32(32),
                payload_bytes: detail,
            },
            2 => Kind::Retransmit(match detail {
                1 => Retransmit::Timeout,
                2 => Retransmit::Probe,
                _ => Retransmit::Fast,
            }),
            3 => Kind::State(State::of(detail)),
            4 => Kind::Write,
            5 => Kind::LocalDrop,
            6 => Kind::HeldAck { held_us: detail },
            7 => Kind::Close,
            _ => return None,
        };
        let is_ipv6 = fields.u8(86) != 0;
        let tick_us = u64::try_from(tick().as_micros()).unwrap_or(u64::MAX);
        Some(Self {
            at_ns: fields.u64(0),
            cookie: fields.u64(8),
            pacing_bps: fields.u64(16).saturating_mul(8),
            kind,
            snd_una: fields.u32(36),
            snd_nxt: fields.u32(40),
            write_seq: fields.u32(44),
            cwnd: fields.u32(48),
            ssthresh: fields.u32(52),
            in_flight: fields.u32(56),
            snd_wnd: fields.u32(60),
            rcv_wnd: fields.u32(64),
            srtt_us: fields.u32(68),
            rtt_min_us: fields.u32(72),
            rto_us: u64::from(fields.u32(76)) * tick_us,
            mss_bytes: fields.u32(80),
            state: State::of(fields.u8(84).into()),
            limit: match fields.u8(85) {
                1 => Limit::Network,
                2 => Limit::FarWindow,
                3 => Limit::SendBuffer,
                _ => Limit::Nobody,
            },
            local: fields.address(92, 88, is_ipv6),
            remote: fields.address(108, 90, is_ipv6),
            lost: fields.u32(124),
            rank: fields.u32(128),
            phase: fields.u32(132),
            phase_name: None,
            totals: Cumulated {
                bytes_sent: fields.u64(136),
                bytes_resent: fields.u64(144),
                bytes_acked: fields.u64(152),
                network_us: u64::from(fields.u32(160)) * tick_us,
                far_window_us: u64::from(fields.u32(164)) * tick_us,
                send_buffer_us: u64::from(fields.u32(168)) * tick_us,
                dupacks: fields.u32(172),
                sacks: fields.u32(176),
                dsacks: fields.u32(180),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event__bytes__are_read_by_the_headers_offsets() {
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
