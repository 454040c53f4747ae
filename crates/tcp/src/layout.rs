//! Settings, counters and connections, as user space sees them. [`crate::intf`] has the
//! programs' own structures.

use crate::intf::{SharedConnection, SharedSettings, SharedTotals, address};
use crate::ladder::Tier;
use std::net::SocketAddr;
use std::time::Duration;
use zerocopy::FromBytes;

/// A mechanism that can be switched off: one bit of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mechanism {
    /// Paces the first packets after idle time at the remembered rate (GridMPI, Matsuda et al.,
    /// §3.2).
    PacedRestart = 1 << 0,
    /// Keeps the window when a local queue refuses a packet (send-stall, Takano et al., §3.3).
    StallForgiveness = 1 << 1,
    /// Sets a short floor of the retransmission timeout and a short delayed-ACK timer (GridMPI,
    /// §3.3).
    ShortRto = 1 << 2,
    /// Saves and restores parameters for each phase of the program (GridMPI, §3.1).
    PhaseMemory = 1 << 3,
    /// Puts acknowledgements before data in the host's queue (send-stall, Takano et al., §4).
    AckBand = 1 << 4,
    /// Limits the bytes that are written and not yet sent (send-stall, Takano et al., §4.1).
    UnsentCap = 1 << 5,
    /// Starts a connection to a known host at half of its route's rate (GridMPI, §3.2).
    FirstTarget = 1 << 6,
    /// Sends less at once on short paths (ADR 045).
    ShortBursts = 1 << 7,
    /// Paces the connections of an all-to-all at their fair share of the links (ADR 048).
    FairShare = 1 << 8,
}

impl Mechanism {
    /// Every mechanism, in the order of the papers.
    pub const ALL: [Self; 9] = [
        Self::PacedRestart,
        Self::ShortRto,
        Self::PhaseMemory,
        Self::FirstTarget,
        Self::StallForgiveness,
        Self::AckBand,
        Self::UnsentCap,
        Self::ShortBursts,
        Self::FairShare,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::PacedRestart => "paced-restart",
            Self::StallForgiveness => "stall-forgiveness",
            Self::ShortRto => "short-rto",
            Self::PhaseMemory => "phase-memory",
            Self::AckBand => "ack-band",
            Self::UnsentCap => "unsent-cap",
            Self::FirstTarget => "first-target",
            Self::ShortBursts => "short-bursts",
            Self::FairShare => "fair-share",
        }
    }
}

/// Mechanisms of a column of GridMPI's measurements (Matsuda et al., table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// `STD`: none, so the control searches and competes only.
    Std,
    /// `RTO`: short timeouts.
    Rto,
    /// `PCE`: paced start and restart.
    Pce,
    /// `ALL`: every mechanism.
    All,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 4] = [Self::Std, Self::Rto, Self::Pce, Self::All];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Std => "std",
            Self::Rto => "rto",
            Self::Pce => "pce",
            Self::All => "all",
        }
    }

    /// Returns its mechanisms.
    pub fn mechanisms(self) -> &'static [Mechanism] {
        match self {
            Self::Std => &[],
            Self::Rto => &[Mechanism::ShortRto],
            Self::Pce => &[Mechanism::PacedRestart, Mechanism::FirstTarget],
            Self::All => &Mechanism::ALL,
        }
    }
}

/// Settings of the congestion control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Age up to which a connection trusts its remembered rate.
    pub memory_max: Duration,
    /// Start rate of the first connection to an unknown host, in bits per second; 0 for slow start.
    pub first_rate_bps: u64,
    /// Mechanisms in use.
    pub mechanisms: Vec<Mechanism>,
    /// Floor of the retransmission timeout, at least two of the kernel's ticks.
    pub rto_min: Duration,
    /// Upper limit of the delayed-ACK timer.
    pub delack_max: Duration,
    /// Bytes that a program may have written and the kernel not sent.
    pub unsent_bytes_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let floor = shortest_timer();
        Self {
            memory_max: Duration::from_secs(600),
            first_rate_bps: 0,
            mechanisms: Mechanism::ALL.to_vec(),
            rto_min: floor,
            delack_max: floor,
            unsent_bytes_max: 1 << 20,
        }
    }
}

/// Returns a name that a program chose, without control characters, for printing on another user's
/// terminal.
pub(crate) fn to_printable(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let replacement = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    name.chars().map(replacement).collect()
}

/// Returns the shortest timeout that the kernel accepts for TCP: two ticks of its clock.
pub fn shortest_timer() -> Duration {
    2 * tick()
}

/// Returns the tick of the kernel's clock, which is the resolution of its coarse clocks.
pub fn tick() -> Duration {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    nix::time::clock_getres(clock).map_or(Duration::from_millis(10), Duration::from)
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

impl Settings {
    /// Size of the structure, in bytes.
    pub const BYTES: usize = size_of::<SharedSettings>();

    /// Returns whether `mechanism` is in use.
    pub fn has(&self, mechanism: Mechanism) -> bool {
        self.mechanisms.contains(&mechanism)
    }

    /// Returns the names of the mechanisms that are off.
    pub fn left_out(&self) -> Vec<&'static str> {
        let all = Mechanism::ALL.into_iter();
        all.filter(|mechanism| !self.has(*mechanism))
            .map(Mechanism::name)
            .collect()
    }

    /// Returns the structure as the programs read it on `tier`.
    pub fn to_bytes(&self, tier: Tier) -> [u8; Self::BYTES] {
        let mechanisms = self
            .mechanisms
            .iter()
            .fold(tier.bits(), |bits, mechanism| bits | *mechanism as u32);
        let shared = SharedSettings {
            memory_max_ns: u64::try_from(self.memory_max.as_nanos()).unwrap_or(u64::MAX),
            first_bytes_ps: self.first_rate_bps / 8,
            mechanisms,
            rto_min_us: micros(self.rto_min),
            delack_max_us: micros(self.delack_max),
            unsent_bytes_max: self.unsent_bytes_max,
            tick_us: micros(tick()),
            reserved: 0,
        };
        zerocopy::transmute!(shared)
    }

    /// Reads the result of [`Settings::to_bytes`]; `None` for another size.
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, Tier)> {
        let shared = SharedSettings::read_from_bytes(bytes).ok()?;
        let mut mechanisms = Mechanism::ALL.to_vec();
        mechanisms.retain(|mechanism| shared.mechanisms & *mechanism as u32 != 0);
        let settings = Self {
            memory_max: Duration::from_nanos(shared.memory_max_ns),
            first_rate_bps: shared.first_bytes_ps * 8,
            mechanisms,
            rto_min: Duration::from_micros(shared.rto_min_us.into()),
            delack_max: Duration::from_micros(shared.delack_max_us.into()),
            unsent_bytes_max: shared.unsent_bytes_max,
        };
        Some((settings, Tier::from_bits(shared.mechanisms)))
    }
}

/// Counters, summed over all processors since the installation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that used the congestion control.
    pub connections: u64,
    /// Paced restarts.
    pub paced: u64,
    /// Local send stalls that did not cut the window.
    pub stalls: u64,
    /// Window cuts for losses in the network.
    pub losses: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Retransmission timeouts that proved spurious.
    pub spurious: u64,
    /// Phases entered with remembered parameters.
    pub switches: u64,
    /// Acknowledgements put before data in the host's queue.
    pub acks_first: u64,
    /// Windows and thresholds that no program had set, and that were corrected.
    pub mended: u64,
}

impl Totals {
    /// Size of the structure, in bytes.
    pub const BYTES: usize = size_of::<SharedTotals>();

    /// Adds one processor's counters; `None` for another size.
    pub fn add(&mut self, bytes: &[u8]) -> Option<()> {
        let counters = SharedTotals::read_from_bytes(bytes).ok()?;
        self.connections += counters.connections;
        self.paced += counters.paced;
        self.stalls += counters.stalls;
        self.losses += counters.losses;
        self.timeouts += counters.timeouts;
        self.spurious += counters.spurious;
        self.switches += counters.switches;
        self.acks_first += counters.acks_first;
        self.mended += counters.mended;
        Some(())
    }
}

/// One live connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// Index of the current phase.
    pub phase: u32,
    /// Name of the phase; empty if no program names its phases.
    pub phase_name: String,
    /// Rank of `kumi run`, by its place in the process table; 0 for none.
    pub rank: u32,
    /// Congestion window, in packets.
    pub cwnd: u32,
    /// Slow start threshold, in packets; `None` before the first.
    pub ssthresh: Option<u32>,
    /// Packets in flight.
    pub in_flight: u32,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u32,
    /// Retransmission timeout, in microseconds.
    pub rto_us: u64,
    /// Floor of the retransmission timeout, in microseconds; 0 for the kernel's own.
    pub rto_min_us: u32,
    /// Segment size, in bytes.
    pub mss_bytes: u32,
    /// Pacing rate, in bits per second.
    pub pacing_bps: u64,
    /// Local send stalls.
    pub stalls: u32,
    /// Window cuts for losses in the network.
    pub losses: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Paced restarts.
    pub paced: u32,
    /// Retransmitted segments.
    pub retransmits: u64,
}

/// The kernel's value for "no threshold yet".
const TCP_INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

impl Connection {
    /// Size of the structure, in bytes.
    pub const BYTES: usize = size_of::<SharedConnection>();

    /// Reads one row of the iterator; `None` for another size.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let row = SharedConnection::read_from_bytes(bytes).ok()?;
        let is_ipv6 = row.is_ipv6 != 0;
        let tick_us = u64::try_from(tick().as_micros()).unwrap_or(u64::MAX);
        let name = row.phase_name.split(|byte| *byte == 0).next();
        Some(Self {
            local: address(row.local, row.local_port, is_ipv6),
            remote: address(row.remote, row.remote_port, is_ipv6),
            phase: row.phase,
            phase_name: to_printable(name.unwrap_or_default()),
            rank: row.rank,
            cwnd: row.cwnd,
            ssthresh: (row.ssthresh < TCP_INFINITE_SSTHRESH).then_some(row.ssthresh),
            in_flight: row.in_flight,
            rtt_us: row.rtt_us,
            rto_us: u64::from(row.rto_us) * tick_us,
            rto_min_us: row.rto_min_us,
            mss_bytes: row.mss_bytes,
            pacing_bps: row.pacing_bytes_ps.saturating_mul(8),
            stalls: row.stalls,
            losses: row.losses,
            timeouts: row.timeouts,
            paced: row.paced,
            retransmits: row.retransmits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings__bytes__match_the_header_layout_and_round_trip() {
        let settings = Settings {
            memory_max: Duration::from_nanos(0x0102_0304),
            first_rate_bps: 8_000,
            mechanisms: vec![Mechanism::PacedRestart, Mechanism::PhaseMemory],
            rto_min: Duration::from_millis(8),
            delack_max: Duration::from_millis(4),
            unsent_bytes_max: 7,
        };
        let mut expected = [0; 40];
        expected[..8].copy_from_slice(&0x0102_0304_u64.to_ne_bytes());
        expected[8..16].copy_from_slice(&1000_u64.to_ne_bytes());
        for (index, value) in [1 << 30 | 0b1001, 8000, 4000, 7_u32]
            .into_iter()
            .enumerate()
        {
            expected[16 + 4 * index..20 + 4 * index].copy_from_slice(&value.to_ne_bytes());
        }
        expected[32..36].copy_from_slice(&micros(tick()).to_ne_bytes());
        let tier = Tier::CappedPacing;
        assert_eq!(settings.to_bytes(tier), expected);
        assert_eq!(Settings::from_bytes(&expected), Some((settings, tier)));
        assert_eq!(Settings::from_bytes(&expected[1..]), None);
    }

    #[test]
    fn totals__two_processors__are_added() {
        let mut totals = Totals::default();
        let counters: Vec<u8> = (1_u64..10).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(totals.add(&counters), Some(()));
        assert_eq!(totals.add(&counters), Some(()));
        assert_eq!((totals.losses, totals.acks_first), (8, 16));
        assert_eq!(totals.mended, 18);
        assert_eq!(totals.add(&counters[1..]), None);
    }

    #[test]
    fn connection__row__is_parsed_at_the_header_offsets() {
        let mut row = [0; Connection::BYTES];
        row[..4].copy_from_slice(&[10, 0, 0, 1]);
        row[16..20].copy_from_slice(&[10, 0, 0, 2]);
        row[36..38].copy_from_slice(&7100_u16.to_ne_bytes());
        row[52..56].copy_from_slice(&TCP_INFINITE_SSTHRESH.to_ne_bytes());
        row[96..104].copy_from_slice(&1000_u64.to_ne_bytes());
        row[112..118].copy_from_slice(b"h\x1b[lo\0");
        let connection = Connection::from_bytes(&row).expect("the right size");
        assert_eq!(connection.local.to_string(), "10.0.0.1:7100");
        assert_eq!(connection.remote.to_string(), "10.0.0.2:0");
        assert_eq!(connection.ssthresh, None);
        assert_eq!(connection.pacing_bps, 8000);
        assert_eq!(connection.phase_name, "h\u{fffd}[lo", "no escape sequence");
        assert_eq!(Connection::from_bytes(&row[1..]), None);
    }
}
