//! Executes a program: returns the steps that may begin, and takes their completion.
//!
//! ```text
//!          its stream's turn,            begin(): Some(step),
//!          all needs complete            the windows have room           complete(step)
//! waiting ────────────────────► ready ───────────────────────► in flight ───────────► complete
//! ```
//!
//! Bytes in flight fill two queues: the host's own, where control messages wait behind them, and
//! the ports of switches. TCP alone fills both until a loss. A send of b bytes to peer p in stream
//! s therefore begins only if
//!
//! ```text
//!   f(s) + b ≤ W(s)      or f(s) = 0      W(s)     window of s: Program::window_to
//!   f(s) + b ≤ a + D(s)  or f(s) = 0      a        first bytes of s: Program::first_bytes
//!   f(j) + b ≤ w(j, p)   or f(j) = 0      w(j, p)  window of narrow port j on the path (narrow.rs)
//!   f + b ≤ W            or it precedes   W        window of the host: Program::own_window
//!                        all in flight
//! ```
//!
//! Here f is the number of bytes in flight: of the stream, through the port, and of the host. D(s)
//! is the number of bytes of the stream's completed sends. On a long path, a is a ramp for a sender
//! that awaited a grant. The ramp doubles the bytes in flight with every round trip, as TCP does
//! after a pause. The sender may therefore start while its predecessor still sends (ADR 022).

use crate::program::{Action, Program, Step};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// State of one host's program. The caller begins the step that [`Engine::begin`] returns, in that
/// order, and calls [`Engine::complete`] when it is complete. A send is complete when the peer has
/// begun to receive it and its memory may be overwritten. A receive is complete when the chunk is
/// in its place.
#[derive(Debug)]
pub struct Engine {
    program: Arc<Program>,
    needs: Vec<u32>,
    streams: Vec<Stream>,
    ready: VecDeque<usize>,
    /// The next send of each stream, if it waits only for the windows; and the sends in flight,
    /// with their bytes.
    sends: BTreeSet<usize>,
    sends_in_flight: BTreeSet<usize>,
    in_flight_bytes: u64,
    /// For each step, whether it is a complete receive; the first receive that is not complete; and
    /// control messages that await all receives up to a step, nearest first.
    is_step_received: Vec<bool>,
    first_missing: usize,
    control_messages: BTreeSet<(u32, u32)>,
    remaining: usize,
    /// For each narrow port of the program, the bytes in flight through it.
    narrow_bytes: Vec<u64>,
}

#[derive(Debug, Default)]
struct Stream {
    /// Steps that have not begun, in the program's order.
    waiting: VecDeque<u32>,
    in_flight: usize,
    /// Its next send waits for the windows.
    is_offered: bool,
    /// For a stream of chunks: the bytes in flight, and the limit a + D(s) of the module's comment.
    in_flight_bytes: u64,
    in_flight_max_bytes: u64,
    /// Bytes sent since at most the content of the path was in flight.
    undrained_bytes: u64,
}

impl Engine {
    /// Creates the state at the start of a program.
    pub fn new(program: Arc<Program>) -> Self {
        let mut streams = Vec::new();
        streams.resize_with(program.streams, Stream::default);
        for (index, step) in program.steps.iter().enumerate() {
            let stream: &mut Stream = &mut streams[step.stream as usize];
            stream.waiting.push_back(index as u32);
            stream.in_flight_max_bytes = program.first_bytes(step.stream, step.peer);
        }
        let mut engine = Self {
            needs: program.steps.iter().map(|step| step.needs).collect(),
            ready: VecDeque::new(),
            sends: BTreeSet::new(),
            sends_in_flight: BTreeSet::new(),
            in_flight_bytes: 0,
            is_step_received: vec![false; program.steps.len()],
            first_missing: 0,
            control_messages: program.control_messages.iter().copied().collect(),
            remaining: program.steps.len(),
            narrow_bytes: vec![0; program.narrow_ports.ports()],
            streams,
            program,
        };
        for stream in 0..engine.streams.len() {
            engine.advance(stream as u32);
        }
        engine.pass_received();
        engine
    }

    /// Returns a step to begin now, if there is one.
    pub fn begin(&mut self) -> Option<usize> {
        if let Some(step) = self.ready.pop_front() {
            return Some(step);
        }
        let program = Arc::clone(&self.program);
        let send = self.sends.iter().copied().find(|send| {
            let step = &program.steps[*send];
            let stream = &self.streams[step.stream as usize];
            let is_within = |bytes: u64, max: u64| bytes == 0 || bytes + step.bytes <= max;
            let mut narrow = program.narrow_ports.on_path_to(step.peer);
            is_within(stream.in_flight_bytes, stream.in_flight_max_bytes)
                && is_within(
                    stream.in_flight_bytes,
                    program.window_to(step.stream, step.peer, stream.undrained_bytes),
                )
                && narrow.all(|(port, max)| is_within(self.narrow_bytes[port], max))
        })?;
        let Step {
            bytes,
            peer,
            stream: index,
            ..
        } = program.steps[send];
        // A send that precedes all sends in flight in the program's order may exceed this window.
        // The sends that fill it may wait for that one, directly or not.
        let is_first = self
            .sends_in_flight
            .first()
            .is_none_or(|first| send < *first);
        if !is_first && self.in_flight_bytes + bytes > program.own_window() {
            return None;
        }
        self.sends.remove(&send);
        self.sends_in_flight.insert(send);
        let stream = &mut self.streams[index as usize];
        stream.in_flight_bytes += bytes;
        stream.undrained_bytes += bytes;
        stream.is_offered = false;
        self.in_flight_bytes += bytes;
        for (port, _) in program.narrow_ports.on_path_to(peer) {
            self.narrow_bytes[port] += bytes;
        }
        self.advance(index);
        self.fulfil(program.start_needed_by(send));
        Some(send)
    }

    /// Completes a step that had begun.
    pub fn complete(&mut self, index: usize) {
        let program = Arc::clone(&self.program);
        let step = &program.steps[index];
        self.remaining -= 1;
        let stream = &mut self.streams[step.stream as usize];
        stream.in_flight -= 1;
        match step.action {
            Action::Send | Action::Post => {
                self.sends_in_flight.remove(&index);
                self.in_flight_bytes -= step.bytes;
                stream.in_flight_bytes -= step.bytes;
                stream.in_flight_max_bytes = stream.in_flight_max_bytes.saturating_add(step.bytes);
                if stream.in_flight_bytes <= program.flight_to(step.peer) {
                    stream.undrained_bytes = 0;
                }
                for (port, _) in program.narrow_ports.on_path_to(step.peer) {
                    self.narrow_bytes[port] -= step.bytes;
                }
            }
            Action::Receive | Action::Combine => {
                self.is_step_received[index] = true;
                self.pass_received();
            }
            Action::Grant | Action::Await => {}
        }
        self.advance(step.stream);
        self.fulfil(program.needed_by(index));
    }

    /// Returns whether all steps are complete.
    pub fn is_complete(&self) -> bool {
        self.remaining == 0
    }

    /// Advances to the first receive that is not complete, and sends the control messages that
    /// awaited those before.
    fn pass_received(&mut self) {
        let steps = &self.program.steps;
        let is_missing = |(step, is_complete): (&Step, &bool)| {
            matches!(step.action, Action::Receive | Action::Combine) && !is_complete
        };
        let pending = steps
            .iter()
            .zip(&self.is_step_received)
            .skip(self.first_missing);
        let received = pending.take_while(|step| !is_missing(*step)).count();
        self.first_missing += received;
        while let Some((last, message)) = self.control_messages.first().copied() {
            if last as usize >= self.first_missing {
                return;
            }
            self.control_messages.pop_first();
            self.fulfil(std::iter::once(message as usize));
        }
    }

    /// Satisfies one need of each of these steps.
    fn fulfil(&mut self, steps: impl Iterator<Item = usize>) {
        for step in steps {
            self.needs[step] -= 1;
            if self.needs[step] == 0 {
                self.advance(self.program.steps[step].stream);
            }
        }
    }

    /// Makes the next steps of a stream ready. The next send is offered to the windows.
    fn advance(&mut self, index: u32) {
        let stream = &mut self.streams[index as usize];
        while let Some(first) = stream.waiting.front().copied() {
            let step = &self.program.steps[first as usize];
            let is_send = matches!(step.action, Action::Send | Action::Post);
            let is_full = match is_send {
                true => stream.is_offered,
                false => stream.in_flight >= self.program.in_flight_max(step.peer),
            };
            if self.needs[first as usize] > 0 || is_full {
                return;
            }
            stream.waiting.pop_front();
            stream.in_flight += 1;
            if is_send {
                stream.is_offered = true;
                self.sends.insert(first as usize);
            } else {
                self.ready.push_back(first as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests;
