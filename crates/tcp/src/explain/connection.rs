//! Divides one connection's transfers into intervals at each arrival, and gives each interval a
//! possible cause.
//!
//! A transfer lasts from the first byte written while nothing was in flight to the acknowledgement
//! of the last byte. The time that an interval lost is computed at the end, when the path's
//! rate is known.

use super::cause::Cause;
use crate::trace::{Event, Kind, Limit, Retransmit, State};
use std::net::SocketAddr;

/// Length of a silence, in round trips.
const SILENCE_ROUND_TRIPS: f64 = 1.3;
/// Lower bound of a silence, in nanoseconds. Shorter pauses come from the scheduler.
const SILENCE_MIN_NS: u64 = 1_500_000;
/// Longest time for which Linux delays an acknowledgement (`TCP_DELACK_MIN`, 40 ms), plus a margin.
/// If the far end is not observed, a longer silence is more likely its timeout.
const ACK_DELAY_MAX_NS: u64 = 60_000_000;
/// Round trips during which a second loss still belongs to slow start. A cut to 0.7 of twice the
/// path's capacity still exceeds it. As `REPAIR_ROUND_TRIPS` of `bpf/tcp/pace.h`.
const OVERSHOOT_ROUND_TRIPS: u64 = 8;
/// The kernel's value for "no threshold yet".
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// Most intervals that are kept of one connection. Later ones are merged into the last.
const INTERVALS_MAX: usize = 1 << 18;

/// The time from one arrival to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Time at which it began.
    pub start_ns: u64,
    /// Time at which it ended.
    pub end_ns: u64,
    /// Bytes acknowledged at its end.
    pub bytes: u64,
    /// Cause of a slow interval; `None` if data is acknowledged as fast as it is sent.
    pub cause: Option<Cause>,
    /// Part of its length that the first response takes in any case.
    pub latency_ns: u64,
    /// Part of its length, at its end, in which the path was silent beyond a round trip; 0 if
    /// `cause` explains the whole interval.
    pub silent_ns: u64,
    /// Phase at its end, by its number in the analysis; `None` if no program names phases.
    pub phase: Option<u16>,
}

/// A transfer, as a range of the connection's intervals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Its intervals.
    pub intervals: std::ops::Range<usize>,
    /// Shortest round trip known at its end.
    pub rtt_min_ns: u64,
}

/// Cause of a reduced window, valid until the window has its former size.
#[derive(Debug, Clone, Copy)]
struct Reduction {
    cause: Cause,
    target_cwnd: u32,
}

impl Reduction {
    /// Returns whether the window has its former size, or for a new connection its final one. While
    /// the kernel still reduces the window, packet by packet, this is false.
    fn has_ended(self, event: &Event) -> bool {
        if !matches!(event.state, State::Open | State::Disorder) {
            return false;
        }
        let has_left_slow_start = event.ssthresh != NO_THRESHOLD && event.cwnd >= event.ssthresh;
        event.cwnd >= self.target_cwnd || (self.cause == Cause::SlowStart && has_left_slow_start)
    }
}

/// A transfer in progress.
#[derive(Debug, Clone, Copy)]
struct CurrentTransfer {
    first_interval: usize,
    last_arrival_ns: u64,
}

/// A connection under observation.
#[derive(Debug)]
pub struct Connection {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// All intervals so far.
    pub intervals: Vec<Interval>,
    /// Complete transfers.
    pub transfers: Vec<Transfer>,
    /// Phase of the next event.
    pub phase: Option<u16>,
    rtt_min_ns: u64,
    current: Option<CurrentTransfer>,
    reduction: Option<Reduction>,
    last_end: Option<(u64, u32)>,
    repair: Option<Cause>,
    /// Buffer that delayed the current transfer last.
    buffer_limit: Option<Cause>,
    refused_at_ns: u64,
    ack_delay: Option<(u64, u64)>,
    /// Threshold before the next event. The event of a cut reports the threshold after it.
    ssthresh: u32,
    /// Time of the latest loss in slow start.
    overshot_at_ns: Option<u64>,
}

impl Connection {
    /// Creates a connection without history.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local,
            remote,
            intervals: Vec::new(),
            transfers: Vec::new(),
            phase: None,
            rtt_min_ns: 0,
            current: None,
            reduction: None,
            last_end: None,
            repair: None,
            buffer_limit: None,
            refused_at_ns: 0,
            ack_delay: None,
            ssthresh: NO_THRESHOLD,
            overshot_at_ns: None,
        }
    }

    /// Records that the far end, which is observed too, delayed an acknowledgement until `end_ns`.
    pub fn note_delayed_ack(&mut self, end_ns: u64, delay_ns: u64) {
        self.ack_delay = Some((end_ns.saturating_sub(delay_ns), end_ns));
    }

    /// Processes one event. Without room, its interval is merged into the last one. Returns
    /// whether it was merged.
    pub fn note(&mut self, event: &Event, has_room: bool) -> bool {
        let mut is_merged = false;
        self.rtt_min_ns = u64::from(event.rtt_min_us) * 1000;
        match event.kind {
            Kind::Write => self.begin(event, event.at_ns),
            Kind::Segment { ack, payload_bytes } => {
                is_merged = self.receive(event, ack, payload_bytes, has_room);
            }
            Kind::Retransmit(reason) => self.note_retransmission(reason),
            Kind::LocalDrop => self.refused_at_ns = event.at_ns,
            Kind::State(state) => self.note_state(event, state),
            Kind::HeldAck { .. } => {}
            Kind::Close => self.end(event, event.at_ns),
        }
        self.ssthresh = event.ssthresh;
        is_merged
    }

    fn begin(&mut self, event: &Event, start_ns: u64) {
        if self.current.is_some() {
            return;
        }
        self.current = Some(CurrentTransfer {
            first_interval: self.intervals.len(),
            last_arrival_ns: start_ns,
        });
        match self.last_end {
            Some((end_ns, cwnd)) if start_ns.saturating_sub(end_ns) > event.rto_us * 1000 => {
                self.reduction = Some(Reduction {
                    cause: Cause::IdleCollapse,
                    target_cwnd: cwnd,
                });
            }
            Some(_) => {}
            None => {
                self.reduction = Some(Reduction {
                    cause: Cause::SlowStart,
                    target_cwnd: NO_THRESHOLD,
                });
            }
        }
        self.repair = None;
        self.buffer_limit = None;
    }

    fn note_retransmission(&mut self, reason: Retransmit) {
        let cause = match reason {
            Retransmit::Fast => return,
            Retransmit::Timeout => Cause::Timeout,
            Retransmit::Probe => Cause::TailLossProbe,
        };
        // A timeout after a probe: the probe did not help, so the timeout is the cause.
        self.repair = Some(self.repair.map_or(cause, |earlier| earlier.min(cause)));
    }

    /// Returns whether a loss belongs to slow start: either slow start is under repair, or one cut
    /// was not enough.
    fn is_overshoot(&mut self, event: &Event) -> bool {
        if event.cwnd < self.ssthresh {
            self.overshot_at_ns = Some(event.at_ns);
            return true;
        }
        let rtt_ns = 1000 * u64::from(event.srtt_us);
        self.overshot_at_ns.is_some_and(|loss_ns| {
            event.at_ns.saturating_sub(loss_ns) < OVERSHOOT_ROUND_TRIPS * rtt_ns
        })
    }

    fn note_state(&mut self, event: &Event, state: State) {
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
        let former = self.reduction.map(|reduction| reduction.target_cwnd);
        let target_cwnd = former.filter(|cwnd| *cwnd != NO_THRESHOLD).unwrap_or(0);
        self.reduction = Some(Reduction {
            cause,
            target_cwnd: event.cwnd.max(target_cwnd),
        });
    }

    fn receive(&mut self, event: &Event, ack: u32, payload_bytes: u32, has_room: bool) -> bool {
        let acked = ack.wrapping_sub(event.snd_una);
        let outstanding = event.write_seq.wrapping_sub(event.snd_una);
        let acked = if acked <= outstanding { acked } else { 0 };
        if self.current.is_none() {
            if outstanding == 0 {
                return false; // a receiver
            }
            let rtt_ns = u64::from(event.srtt_us) * 1000;
            self.begin(event, event.at_ns.saturating_sub(rtt_ns));
        }
        let Some(current) = self.current else {
            return false;
        };
        let is_first = self.intervals.len() == current.first_interval;
        let rtt_ns = u64::from(event.rtt_min_us) * 1000;
        let mut interval = Interval {
            start_ns: current.last_arrival_ns,
            end_ns: event.at_ns.max(current.last_arrival_ns),
            bytes: acked.into(),
            cause: self.cause(event, current.last_arrival_ns, outstanding, payload_bytes),
            latency_ns: if is_first { rtt_ns } else { 0 },
            silent_ns: 0,
            phase: self.phase,
        };
        // A small window costs the round trip in which it is full, and the path the rest.
        if let (Some(Cause::Path), Some(cause)) = (interval.cause, self.window_cause(event)) {
            interval.cause = Some(cause);
            interval.silent_ns =
                (interval.end_ns - interval.start_ns).saturating_sub(longer_rtt_ns(event));
        }
        let is_merged = self.push(interval, has_room);
        if let Some(limit @ (Cause::ReceiverWindow | Cause::SenderBuffer)) = interval.cause {
            self.buffer_limit = Some(limit);
        }
        self.repair = None;
        self.current = Some(CurrentTransfer {
            last_arrival_ns: interval.end_ns,
            ..current
        });
        self.reduction = self
            .reduction
            .filter(|reduction| !reduction.has_ended(event));
        if acked == outstanding {
            self.end(event, event.at_ns);
        }
        is_merged
    }

    /// Appends an interval, or merges it into the last one. Returns whether it was merged.
    fn push(&mut self, interval: Interval, has_room: bool) -> bool {
        let is_full = !has_room || self.intervals.len() >= INTERVALS_MAX;
        match self.intervals.last_mut() {
            Some(last) if is_full => {
                last.end_ns = interval.end_ns;
                last.bytes += interval.bytes;
                true
            }
            _ => {
                self.intervals.push(interval);
                false
            }
        }
    }

    /// Returns the possible cause of the interval that ends with `event`.
    fn cause(
        &self,
        event: &Event,
        start_ns: u64,
        outstanding: u32,
        payload_bytes: u32,
    ) -> Option<Cause> {
        let span_ns = event.at_ns.saturating_sub(start_ns);
        let rtt_ns = longer_rtt_ns(event);
        let is_silent = span_ns > SILENCE_MIN_NS.max((SILENCE_ROUND_TRIPS * rtt_ns as f64) as u64);
        if self.repair.is_some() {
            return self.repair;
        }
        let has_little_data = outstanding <= 2 * event.mss_bytes;
        // If only the last of many acknowledgements was delayed, the sender did not wait for it.
        if has_little_data && (is_silent || span_ns > SILENCE_MIN_NS) {
            let is_ack_delayed = self.ack_delay.is_some_and(|(first_ns, last_ns)| {
                last_ns > start_ns
                    && first_ns < event.at_ns
                    && 2 * (last_ns - first_ns) > span_ns.saturating_sub(rtt_ns)
            });
            if is_ack_delayed {
                return Some(Cause::DelayedAck);
            }
        }
        let unsent = event.write_seq.wrapping_sub(event.snd_nxt);
        if is_silent {
            return Some(match event.limit {
                // The far program answered, and its host acknowledged with the answer. Nothing here
                // waited for an acknowledgement.
                _ if has_little_data && unsent == 0 && payload_bytes > 0 => Cause::Application,
                Limit::FarWindow => Cause::ReceiverWindow,
                _ if has_little_data && span_ns < rtt_ns + ACK_DELAY_MAX_NS => Cause::DelayedAck,
                Limit::SendBuffer => Cause::SenderBuffer,
                _ => Cause::Path,
            });
        }
        match event.limit {
            Limit::FarWindow => return Some(Cause::ReceiverWindow),
            Limit::SendBuffer => return Some(Cause::SenderBuffer),
            _ => {}
        }
        if !is_limited_by_window(event) {
            return self.buffer_limit; // or the program
        }
        self.window_cause(event)
    }

    /// Returns the cause for which the window is small, if the sender waits for it.
    fn window_cause(&self, event: &Event) -> Option<Cause> {
        let reduction = self.reduction.filter(|_| is_limited_by_window(event));
        reduction.map(|reduction| reduction.cause)
    }

    fn end(&mut self, event: &Event, end_ns: u64) {
        if self.current.is_some() {
            self.last_end = Some((end_ns, event.cwnd));
            self.complete();
        }
    }

    /// Ends the current transfer, if there is one, with the intervals so far.
    pub fn complete(&mut self) {
        let Some(current) = self.current.take() else {
            return;
        };
        if self.intervals.len() > current.first_interval {
            self.transfers.push(Transfer {
                intervals: current.first_interval..self.intervals.len(),
                rtt_min_ns: self.rtt_min_ns,
            });
        }
    }

    /// Returns whether the connection sent data that was acknowledged.
    pub fn is_sender(&self) -> bool {
        !self.transfers.is_empty()
    }
}

/// Returns whether the window is full, and data waits for it.
fn is_limited_by_window(event: &Event) -> bool {
    let unsent = event.write_seq.wrapping_sub(event.snd_nxt);
    unsent >= event.mss_bytes && event.in_flight >= event.cwnd / 4 * 3
}

/// Returns the smoothed round trip, or the shortest if that is longer, in nanoseconds.
fn longer_rtt_ns(event: &Event) -> u64 {
    u64::from(event.srtt_us.max(event.rtt_min_us)) * 1000
}
