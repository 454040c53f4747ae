//! One connection's transfers, cut where something arrived, each piece with why it may have been slow.
//!
//! A transfer is the time from the first byte written while nothing was under way to the
//! acknowledgement of the last. What a piece lost is known at the end only: when the path's rate is.

use super::cause::Cause;
use crate::trace::{Event, Kind, Limit, Retransmit, State};
use std::net::SocketAddr;

/// A silence is longer than this many round trips.
const SILENCE_ROUND_TRIPS: f64 = 1.3;
/// Shorter pieces are no silences, whatever the round trip: the scheduler makes them.
const SILENCE_MIN_NS: u64 = 1_500_000;
/// How long Linux holds an acknowledgement back (`TCP_DELACK_MIN`, 40 ms), and a bit: where the far end is
/// not watched, a longer silence is rather its timeout.
const HELD_MAX_NS: u64 = 60_000_000;
/// Round trips in which a second loss is still slow start's: 0.7 of twice the path is more than it holds. As
/// `REPAIR_ROUND_TRIPS` of `bpf/tcp/pace.h`.
const OVERSHOOT_ROUND_TRIPS: u64 = 8;
/// The kernel's "no threshold yet".
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// Pieces of one connection that are kept; later ones are joined to the last.
const PIECES_MAX: usize = 1 << 18;

/// From one arrival to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    /// When it began.
    pub from_ns: u64,
    /// When it ended.
    pub to_ns: u64,
    /// Bytes acknowledged at its end.
    pub bytes: u64,
    /// Why it is slow, if it is; none: as fast as what is sent comes back.
    pub cause: Option<Cause>,
    /// How much of it the first answer takes in any case.
    pub latency_ns: u64,
    /// The phase in which it ended, by its number in the analysis; none: nobody tells.
    pub phase: Option<u16>,
}

/// A transfer: its pieces, as a range of the flow's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Its pieces.
    pub pieces: std::ops::Range<usize>,
    /// The shortest round trip known when it ended.
    pub rtt_min_ns: u64,
}

/// Why the window is smaller than it was, until it is as large again.
#[derive(Debug, Clone, Copy)]
struct Reduced {
    cause: Cause,
    until_cwnd: u32,
}

impl Reduced {
    /// Whether the window is as large again, or, of a new connection, as large as it will be. Not while the
    /// kernel is still cutting it, packet by packet.
    fn is_over(self, event: &Event) -> bool {
        if !matches!(event.state, State::Open | State::Disorder) {
            return false;
        }
        let has_left_slow_start = event.ssthresh != NO_THRESHOLD && event.cwnd >= event.ssthresh;
        event.cwnd >= self.until_cwnd || (self.cause == Cause::SlowStart && has_left_slow_start)
    }
}

/// A running transfer.
#[derive(Debug, Clone, Copy)]
struct Running {
    first_piece: usize,
    last_arrival_ns: u64,
}

/// A connection under observation.
#[derive(Debug)]
pub struct Flow {
    /// This end.
    pub local: SocketAddr,
    /// The other.
    pub remote: SocketAddr,
    /// All pieces so far.
    pub pieces: Vec<Piece>,
    /// Complete transfers.
    pub transfers: Vec<Transfer>,
    /// The phase of the event to come.
    pub phase: Option<u16>,
    rtt_min_ns: u64,
    running: Option<Running>,
    reduced: Option<Reduced>,
    ended: Option<(u64, u32)>,
    repair: Option<Cause>,
    /// The buffer that held the running transfer up before.
    limited: Option<Cause>,
    refused_at_ns: u64,
    held: Option<(u64, u64)>,
    /// The threshold before the event to come: a cut has changed it when it is told.
    ssthresh: u32,
    /// When slow start last lost something.
    overshot_at_ns: Option<u64>,
}

impl Flow {
    /// A connection of which nothing is known.
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

    /// The far end, which is watched too, held an acknowledgement back until `at_ns`.
    pub fn note_held(&mut self, at_ns: u64, held_ns: u64) {
        self.held = Some((at_ns.saturating_sub(held_ns), at_ns));
    }

    /// Takes one event; without room its piece is joined to the last. Returns whether it was joined.
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
        // A timeout after a probe: the probe did not help, and the timeout is what it waited for.
        self.repair = Some(self.repair.map_or(cause, |before| before.min(cause)));
    }

    /// Whether a loss is slow start's: it is being repaired, or the window cut once holds too much still.
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
            // Cut without a loss, and no router marks here: a refusal that left no trace.
            State::Reduced => Cause::SendStall,
            State::Recovery if self.is_overshoot(event) => Cause::Overshoot,
            State::Recovery => Cause::Congestion,
            State::Loss => Cause::Timeout,
        };
        // One cut after another: the window was as large as before the first.
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

    /// Keeps a piece, or joins it to the last: then true.
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

    /// Why the piece that ends with `event` may have been slow.
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
        // Held for the last of many, it held nobody up.
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
                // The far program's answer, with which its host acknowledged: nothing here waited for that.
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
        // A window that is not full, or for which nothing waits, holds nobody up: the program does, or, by
        // turns, a buffer.
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

    /// Ends the running transfer, if there is one, with what has come of it.
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

    /// Whether it ever sent something that was answered.
    pub fn is_sender(&self) -> bool {
        !self.transfers.is_empty()
    }
}
