//! Divides one connection's transfers into pieces at each arrival, and gives each piece a possible
//! cause.
//!
//! A transfer lasts from the first byte written while nothing was in flight to the acknowledgement
//! of the last byte. The time that a piece lost is computed at the end, when the path's rate is
//! known.

use super::cause::Cause;
use crate::trace::{Event, Kind, Limit, Retransmit, State};
use std::net::SocketAddr;

/// Length of a silence, in round trips.
const SILENCE_ROUND_TRIPS: f64 = 1.3;
/// Lower bound of a silence, in nanoseconds. Shorter pauses come from the scheduler.
const SILENCE_MIN_NS: u64 = 1_500_000;
/// Longest time for which Linux delays an acknowledgement (`TCP_DELACK_MIN`, 40 ms), plus a margin.
/// If the far end is not observed, a longer silence is more likely its timeout.
const HELD_MAX_NS: u64 = 60_000_000;
/// Round trips during which a second loss still belongs to slow start. A cut to 0.7 of twice the
/// path's capacity still exceeds it. As `REPAIR_ROUND_TRIPS` of `bpf/tcp/pace.h`.
const OVERSHOOT_ROUND_TRIPS: u64 = 8;
/// The kernel's value for "no threshold yet".
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// Most pieces that are kept of one connection. Later ones are merged into the last.
const PIECES_MAX: usize = 1 << 18;

/// The time from one arrival to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    /// Time at which it began.
    pub from_ns: u64,
    /// Time at which it ended.
    pub to_ns: u64,
    /// Bytes acknowledged at its end.
    pub bytes: u64,
    /// Cause of a slow piece; `None` if data is acknowledged as fast as it is sent.
    pub cause: Option<Cause>,
    /// Part of its length that the first response takes in any case.
    pub latency_ns: u64,
    /// Phase at its end, by its number in the analysis; `None` if no program names phases.
    pub phase: Option<u16>,
}

/// A transfer, as a range of the flow's pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Its pieces.
    pub pieces: std::ops::Range<usize>,
    /// Shortest round trip known at its end.
    pub rtt_min_ns: u64,
}

/// Cause of a reduced window, valid until the window has its former size.
#[derive(Debug, Clone, Copy)]
struct Reduced {
    cause: Cause,
    until_cwnd: u32,
}

impl Reduced {
    /// Returns whether the window has its former size, or for a new connection its final one. While
    /// the kernel still reduces the window, packet by packet, this is false.
    fn is_over(self, event: &Event) -> bool {
        if !matches!(event.state, State::Open | State::Disorder) {
            return false;
        }
        let has_left_slow_start = event.ssthresh != NO_THRESHOLD && event.cwnd >= event.ssthresh;
        event.cwnd >= self.until_cwnd || (self.cause == Cause::SlowStart && has_left_slow_start)
    }
}

/// A transfer in progress.
#[derive(Debug, Clone, Copy)]
struct Running {
    first_piece: usize,
    last_arrival_ns: u64,
}

/// A connection under observation.
#[derive(Debug)]
pub struct Flow {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// All pieces so far.
    pub pieces: Vec<Piece>,
    /// Complete transfers.
    pub transfers: Vec<Transfer>,
    /// Phase of the next event.
    pub phase: Option<u16>,
    rtt_min_ns: u64,
    running: Option<Running>,
    reduced: Option<Reduced>,
    ended: Option<(u64, u32)>,
    repair: Option<Cause>,
    /// Buffer that delayed the current transfer last.
    limited: Option<Cause>,
    refused_at_ns: u64,
    held: Option<(u64, u64)>,
    /// Threshold before the next event. The event of a cut reports the threshold after it.
    ssthresh: u32,
    /// Time of the latest loss in slow start.
    overshot_at_ns: Option<u64>,
}

impl Flow {
    /// Creates a connection without history.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local,
            remote,
            pieces: Vec::new(),
            transfers: Vec::new(),
            phase: None,
            rtt_min_ns: 0,
            running: None,
            reduced: None,
            ended: None,
            repair: None,
            limited: None,
            refused_at_ns: 0,
            held: None,
            ssthresh: NO_THRESHOLD,
            overshot_at_ns: None,
        }
    }

    /// Records that the far end, which is observed too, delayed an acknowledgement until `at_ns`.
    pub fn note_held(&mut self, at_ns: u64, held_ns: u64) {
        self.held = Some((at_ns.saturating_sub(held_ns), at_ns));
    }

    /// Processes one event. Without room, its piece is merged into the last one. Returns whether it
    /// was merged.
    pub fn note(&mut self, event: &Event, has_room: bool) -> bool {
        let mut is_joined = false;
        self.rtt_min_ns = u64::from(event.rtt_min_us) * 1000;
        match event.kind {
            Kind::Write => self.begin(event, event.at_ns),
            Kind::Segment { ack, payload_bytes } => {
                is_joined = self.arrived(event, ack, payload_bytes, has_room);
            }
            Kind::Retransmit(why) => self.resent(why),
            Kind::LocalDrop => self.refused_at_ns = event.at_ns,
            Kind::State(state) => self.changed(event, state),
            Kind::HeldAck { .. } => {}
            Kind::Close => self.end(event, event.at_ns),
        }
        self.ssthresh = event.ssthresh;
        is_joined
    }

    fn begin(&mut self, event: &Event, at_ns: u64) {
        if self.running.is_some() {
            return;
        }
        self.running = Some(Running {
            first_piece: self.pieces.len(),
            last_arrival_ns: at_ns,
        });
        match self.ended {
            Some((ended_ns, cwnd)) if at_ns.saturating_sub(ended_ns) > event.rto_us * 1000 => {
                self.reduced = Some(Reduced {
                    cause: Cause::IdleCollapse,
                    until_cwnd: cwnd,
                });
            }
            Some(_) => {}
            None => {
                self.reduced = Some(Reduced {
                    cause: Cause::SlowStart,
                    until_cwnd: NO_THRESHOLD,
                });
            }
        }
        self.repair = None;
        self.limited = None;
    }

    fn resent(&mut self, why: Retransmit) {
        let cause = match why {
            Retransmit::Fast => return,
            Retransmit::Timeout => Cause::Timeout,
            Retransmit::Probe => Cause::TailLossProbe,
        };
        // A timeout after a probe: the probe did not help, so the timeout is the cause.
        self.repair = Some(self.repair.map_or(cause, |before| before.min(cause)));
    }

    /// Returns whether a loss belongs to slow start: either slow start is under repair, or one cut
    /// was not enough.
    fn is_overshoot(&mut self, event: &Event) -> bool {
        if event.cwnd < self.ssthresh {
            self.overshot_at_ns = Some(event.at_ns);
            return true;
        }
        let rtt_ns = 1000 * u64::from(event.srtt_us);
        self.overshot_at_ns
            .is_some_and(|at| event.at_ns.saturating_sub(at) < OVERSHOOT_ROUND_TRIPS * rtt_ns)
    }

    fn changed(&mut self, event: &Event, state: State) {
        let cause = match state {
            State::Open | State::Disorder => return,
            State::Reduced
                if event.at_ns.saturating_sub(self.refused_at_ns)
                    < 1000 * u64::from(event.srtt_us) =>
            {
                Cause::SendStall
            }
            State::Reduced if self.repair == Some(Cause::TailLossProbe) => Cause::TailLossProbe,
            // A cut without a loss. Routers do not mark here, so it was a local refusal that left
            // no trace.
            State::Reduced => Cause::SendStall,
            State::Recovery if self.is_overshoot(event) => Cause::Overshoot,
            State::Recovery => Cause::Congestion,
            State::Loss => Cause::Timeout,
        };
        // After several cuts, the window before the first one counts.
        let before = self.reduced.map(|reduced| reduced.until_cwnd);
        let until_cwnd = before.filter(|cwnd| *cwnd != NO_THRESHOLD).unwrap_or(0);
        self.reduced = Some(Reduced {
            cause,
            until_cwnd: event.cwnd.max(until_cwnd),
        });
    }

    fn arrived(&mut self, event: &Event, ack: u32, payload_bytes: u32, has_room: bool) -> bool {
        let acked = ack.wrapping_sub(event.snd_una);
        let outstanding = event.write_seq.wrapping_sub(event.snd_una);
        let acked = if acked <= outstanding { acked } else { 0 };
        if self.running.is_none() {
            if outstanding == 0 {
                return false; // a receiver
            }
            let rtt_ns = u64::from(event.srtt_us) * 1000;
            self.begin(event, event.at_ns.saturating_sub(rtt_ns));
        }
        let Some(running) = self.running else {
            return false;
        };
        let is_first = self.pieces.len() == running.first_piece;
        let rtt_ns = u64::from(event.rtt_min_us) * 1000;
        let piece = Piece {
            from_ns: running.last_arrival_ns,
            to_ns: event.at_ns.max(running.last_arrival_ns),
            bytes: acked.into(),
            cause: self.cause(event, running.last_arrival_ns, outstanding, payload_bytes),
            latency_ns: if is_first { rtt_ns } else { 0 },
            phase: self.phase,
        };
        let is_joined = self.push(piece, has_room);
        if let Some(by @ (Cause::ReceiverWindow | Cause::SenderBuffer)) = piece.cause {
            self.limited = Some(by);
        }
        self.repair = None;
        self.running = Some(Running {
            last_arrival_ns: piece.to_ns,
            ..running
        });
        self.reduced = self.reduced.filter(|reduced| !reduced.is_over(event));
        if acked == outstanding {
            self.end(event, event.at_ns);
        }
        is_joined
    }

    /// Appends a piece, or merges it into the last one. Returns whether it was merged.
    fn push(&mut self, piece: Piece, has_room: bool) -> bool {
        let is_full = !has_room || self.pieces.len() >= PIECES_MAX;
        match self.pieces.last_mut() {
            Some(last) if is_full => {
                last.to_ns = piece.to_ns;
                last.bytes += piece.bytes;
                true
            }
            _ => {
                self.pieces.push(piece);
                false
            }
        }
    }

    /// Returns the possible cause of the piece that ends with `event`.
    fn cause(
        &self,
        event: &Event,
        from_ns: u64,
        outstanding: u32,
        payload_bytes: u32,
    ) -> Option<Cause> {
        let took_ns = event.at_ns.saturating_sub(from_ns);
        let rtt_ns = u64::from(event.srtt_us.max(event.rtt_min_us)) * 1000;
        let is_silent = took_ns > SILENCE_MIN_NS.max((SILENCE_ROUND_TRIPS * rtt_ns as f64) as u64);
        if self.repair.is_some() {
            return self.repair;
        }
        let few = outstanding <= 2 * event.mss_bytes;
        // If only the last of many acknowledgements was delayed, the sender did not wait for it.
        if few && (is_silent || took_ns > SILENCE_MIN_NS) {
            let is_held = self.held.is_some_and(|(began, ended)| {
                ended > from_ns
                    && began < event.at_ns
                    && 2 * (ended - began) > took_ns.saturating_sub(rtt_ns)
            });
            if is_held {
                return Some(Cause::DelayedAck);
            }
        }
        let unsent = event.write_seq.wrapping_sub(event.snd_nxt);
        if is_silent {
            return Some(match event.limit {
                // The far program answered, and its host acknowledged with the answer. Nothing here
                // waited for an acknowledgement.
                _ if few && unsent == 0 && payload_bytes > 0 => Cause::Application,
                Limit::FarWindow => Cause::ReceiverWindow,
                _ if few && took_ns < rtt_ns + HELD_MAX_NS => Cause::DelayedAck,
                Limit::SendBuffer => Cause::SenderBuffer,
                _ => Cause::Path,
            });
        }
        match event.limit {
            Limit::FarWindow => return Some(Cause::ReceiverWindow),
            Limit::SendBuffer => return Some(Cause::SenderBuffer),
            _ => {}
        }
        // If the window is not full, or no data waits for it, the window is not the cause. The
        // program is, or a buffer.
        if unsent < event.mss_bytes || event.in_flight < event.cwnd / 4 * 3 {
            return self.limited;
        }
        self.reduced.map(|reduced| reduced.cause)
    }

    fn end(&mut self, event: &Event, at_ns: u64) {
        if self.running.is_some() {
            self.ended = Some((at_ns, event.cwnd));
            self.complete();
        }
    }

    /// Ends the current transfer, if there is one, with the pieces so far.
    pub fn complete(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        if self.pieces.len() > running.first_piece {
            self.transfers.push(Transfer {
                pieces: running.first_piece..self.pieces.len(),
                rtt_min_ns: self.rtt_min_ns,
            });
        }
    }

    /// Returns whether the connection sent data that was acknowledged.
    pub fn is_sender(&self) -> bool {
        !self.transfers.is_empty()
    }
}
