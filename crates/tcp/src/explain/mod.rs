//! Explains slow connections, with the analysis of the send-stall paper (Takano et al., section 3),
//! for any program.
//!
//! A transfer is slow if it takes more than `SLOW_RATIO` × (minimum RTT + bytes ÷ path rate). The
//! path rate is the highest rate observed to the far host. A slow transfer is examined piece by
//! piece, from one arrival to the next. A piece loses its length minus bytes ÷ path rate, and all
//! of that goes to one cause. Time is counted once: as the union over connections.
//!
//! The analysis is pure. It takes events and returns a report, and has no clock and no socket.

mod cause;
mod flow;
mod rates;
mod report;
mod union;

pub use cause::{Cause, Place};
pub use report::{Explained, InPhase, Loss, Report};

use crate::trace::{Event, Kind};
use flow::Flow;
use report::Ledger;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// Most connections that are analysed. As many further ones are counted.
const FLOWS_MAX: usize = 65_536;
/// Most pieces of all connections together: 117 MB at 56 bytes each, one minute of a full gigabit
/// link.
const PIECES_TOTAL_MAX: usize = 1 << 21;
/// Most phases, of all programs together.
const PHASES_MAX: usize = 1024;

/// The analysis in progress.
#[derive(Debug, Default)]
pub struct Analysis {
    flows: HashMap<u64, Flow>,
    by_ends: HashMap<(SocketAddr, SocketAddr), u64>,
    done: Vec<Flow>,
    began_ns: Option<u64>,
    ended_ns: u64,
    events_lost: u64,
    /// Connections beyond the limit, at most as many as are analysed.
    left: HashSet<u64>,
    phases: Vec<Arc<str>>,
    room: Room,
    joined: u64,
}

/// Number of pieces that may still be kept.
#[derive(Debug)]
struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(PIECES_TOTAL_MAX)
    }
}

impl Analysis {
    /// Processes one event.
    pub fn note(&mut self, event: &Event) {
        self.began_ns.get_or_insert(event.at_ns);
        self.ended_ns = self.ended_ns.max(event.at_ns);
        self.events_lost = event.lost.into();
        if let Kind::HeldAck { held_us } = event.kind {
            let far = self.by_ends.get(&(event.remote, event.local)).copied();
            if let Some(flow) = far.and_then(|cookie| self.flows.get_mut(&cookie)) {
                flow.note_held(event.at_ns, u64::from(held_us) * 1000);
            }
            return;
        }
        if !self.flows.contains_key(&event.cookie) {
            if self.flows.len() + self.done.len() >= FLOWS_MAX {
                if self.left.len() < FLOWS_MAX {
                    self.left.insert(event.cookie);
                }
                return;
            }
            let flow = Flow::new(event.local, event.remote);
            self.flows.insert(event.cookie, flow);
            self.by_ends
                .insert((event.local, event.remote), event.cookie);
        }
        let phase = event.phase_name.as_ref().and_then(|name| self.number(name));
        if let Some(flow) = self.flows.get_mut(&event.cookie) {
            flow.phase = phase;
            let before = flow.pieces.len();
            self.joined += u64::from(flow.note(event, self.room.0 > 0));
            self.room.0 = self.room.0.saturating_sub(flow.pieces.len() - before);
        }
        if event.kind == Kind::Close {
            self.by_ends.remove(&(event.local, event.remote));
            let closed = self.flows.remove(&event.cookie);
            self.done.extend(closed.filter(Flow::is_sender));
        }
    }

    /// Returns the number of a phase, which it gets at its first occurrence; `None` beyond the
    /// limit.
    fn number(&mut self, name: &Arc<str>) -> Option<u16> {
        let known = self.phases.iter().position(|known| known == name);
        let number = known.unwrap_or(self.phases.len());
        if number >= PHASES_MAX {
            return None;
        }
        if known.is_none() {
            self.phases.push(Arc::clone(name));
        }
        u16::try_from(number).ok()
    }

    /// Returns the report.
    pub fn finish(mut self) -> Report {
        for mut flow in self.flows.into_values() {
            flow.complete();
            self.done.extend(Some(flow).filter(Flow::is_sender));
        }
        let mut ledger = Ledger::new(&self.done);
        for flow in &self.done {
            ledger.add(flow);
        }
        let began_ns = self.began_ns.unwrap_or(self.ended_ns);
        let mut report = ledger.finish(&self.phases);
        report.observed_s = (self.ended_ns - began_ns) as f64 / 1e9;
        report.events_lost = self.events_lost;
        report.connections_left = self.left.len() as u64;
        report.acknowledgements_joined = self.joined;
        report
    }
}

#[cfg(test)]
mod tests;
