//! Explains slow connections, with the analysis of the send-stall paper (Takano et al., section 3),
//! for any program.
//!
//! A transfer is slow if it takes more than `SLOW_RATIO` × (minimum RTT + bytes ÷ path rate). The
//! path rate is the highest rate observed to the far host. A slow transfer is examined interval by
//! interval, from one arrival to the next. An interval loses its length minus bytes ÷ path rate,
//! and all of that goes to one cause. Time is counted once: as the union over connections.
//!
//! The analysis is pure. It takes events and returns a report, and has no clock and no socket.

mod cause;
mod connection;
mod rates;
mod report;
mod union;

pub use cause::{Cause, Place};
pub use report::{Explained, InPhase, Loss, Report};

use crate::trace::{Event, Kind};
use connection::Connection;
use report::Ledger;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// Most connections that are analysed. As many further ones are counted.
const CONNECTIONS_MAX: usize = 65_536;
/// Most intervals of all connections together: 101 MB, one minute of a full gigabit link.
const INTERVALS_TOTAL_MAX: usize = 1 << 21;
const _: () = assert!(INTERVALS_TOTAL_MAX * size_of::<connection::Interval>() <= 101_000_000);
/// Most phases, of all programs together.
const PHASES_MAX: usize = 1024;

/// The analysis in progress.
#[derive(Debug, Default)]
pub struct Analysis {
    connections: HashMap<u64, Connection>,
    cookies: HashMap<(SocketAddr, SocketAddr), u64>,
    senders: Vec<Connection>,
    start_ns: Option<u64>,
    end_ns: u64,
    events_lost: u64,
    /// Connections beyond the limit, at most as many as are analysed.
    excess: HashSet<u64>,
    phases: Vec<Arc<str>>,
    room: Room,
    merge_count: u64,
}

/// Number of intervals that may still be kept.
#[derive(Debug)]
struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(INTERVALS_TOTAL_MAX)
    }
}

impl Analysis {
    /// Processes one event.
    pub fn note(&mut self, event: &Event) {
        self.start_ns.get_or_insert(event.at_ns);
        self.end_ns = self.end_ns.max(event.at_ns);
        self.events_lost = event.lost.into();
        if let Kind::HeldAck { held_us } = event.kind {
            let peer = self.cookies.get(&(event.remote, event.local)).copied();
            if let Some(connection) = peer.and_then(|cookie| self.connections.get_mut(&cookie)) {
                connection.note_delayed_ack(event.at_ns, u64::from(held_us) * 1000);
            }
            return;
        }
        if !self.connections.contains_key(&event.cookie) {
            if self.connections.len() + self.senders.len() >= CONNECTIONS_MAX {
                if self.excess.len() < CONNECTIONS_MAX {
                    self.excess.insert(event.cookie);
                }
                return;
            }
            let connection = Connection::new(event.local, event.remote);
            self.connections.insert(event.cookie, connection);
            self.cookies
                .insert((event.local, event.remote), event.cookie);
        }
        let phase = event.phase_name.as_ref().and_then(|name| self.number(name));
        if let Some(connection) = self.connections.get_mut(&event.cookie) {
            connection.phase = phase;
            let former_len = connection.intervals.len();
            self.merge_count += u64::from(connection.note(event, self.room.0 > 0));
            let growth = connection.intervals.len() - former_len;
            self.room.0 = self.room.0.saturating_sub(growth);
        }
        if event.kind == Kind::Close {
            self.cookies.remove(&(event.local, event.remote));
            let closed = self.connections.remove(&event.cookie);
            self.senders.extend(closed.filter(Connection::is_sender));
        }
    }

    /// Returns the number of a phase, which it gets at its first occurrence; `None` beyond the
    /// limit.
    fn number(&mut self, name: &Arc<str>) -> Option<u16> {
        let position = self.phases.iter().position(|phase| phase == name);
        let number = position.unwrap_or(self.phases.len());
        if number >= PHASES_MAX {
            return None;
        }
        if position.is_none() {
            self.phases.push(Arc::clone(name));
        }
        u16::try_from(number).ok()
    }

    /// Returns the report.
    pub fn finish(mut self) -> Report {
        for mut connection in self.connections.into_values() {
            connection.complete();
            self.senders
                .extend(Some(connection).filter(Connection::is_sender));
        }
        let mut ledger = Ledger::new(&self.senders);
        for connection in &self.senders {
            ledger.add(connection);
        }
        let start_ns = self.start_ns.unwrap_or(self.end_ns);
        let mut report = ledger.finish(&self.phases);
        report.observed_s = (self.end_ns - start_ns) as f64 / 1e9;
        report.events_lost = self.events_lost;
        report.connections_left = self.excess.len() as u64;
        report.acknowledgements_joined = self.merge_count;
        report
    }
}

#[cfg(test)]
mod tests;
