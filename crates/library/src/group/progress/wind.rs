//! Chunks that are carried by Wind.

use super::Progress;
use super::data::Destination;
use crate::group::frame::{Header, Kind};
use crate::group::wind_links::{Chunk, WindLinks};
use kumi_coll::Action;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::Epoll;
use nix::sys::time::TimeSpec;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

impl Progress {
    /// Waits until an event, a tick or Wind's next timeout, which epoll would round to 1 ms.
    /// Returns the maximum time that is left to wait for events.
    pub(super) fn wait_for_wind(&mut self) -> Duration {
        let tick = self.tick();
        let Some(wind) = &self.wind else { return tick };
        let timeout = wind.time_to_timeout().unwrap_or(tick);
        if timeout >= tick {
            return tick;
        }
        let epoll: &Epoll = &self.epoll;
        let mut files = [PollFd::new(epoll.0.as_fd(), PollFlags::POLLIN)];
        // An error is an interruption, after which the loop looks again.
        if ppoll(&mut files, Some(TimeSpec::from(timeout)), None) == Ok(0) {
            self.turn_wind();
        }
        Duration::ZERO
    }

    /// Receives chunks, and sends those for which there is room now.
    pub(super) fn turn_wind(&mut self) {
        let Some(wind) = &mut self.wind else { return };
        wind.turn();
        self.take_from_node();
        let waiting = self.wind.as_ref().map(WindLinks::waiting);
        for peer in waiting.unwrap_or_default() {
            self.flush_wind(peer);
        }
    }

    /// Takes what the node has received, also while it sent. Returns whether there was something.
    pub(super) fn take_from_node(&mut self) -> bool {
        let Some(wind) = &mut self.wind else {
            return false;
        };
        let arrivals = wind.take_arrived();
        let mut has_taken = !arrivals.is_empty();
        for (peer, result) in arrivals {
            self.peers[peer].received_at = Instant::now();
            match result {
                Ok(()) => self.deliver_wind(peer),
                Err(reason) => self.lose(peer, reason),
            }
        }
        let waiting = self.wind.as_ref().map(WindLinks::waiting);
        for peer in waiting.unwrap_or_default() {
            has_taken |= self.acknowledge_put(peer);
        }
        has_taken
    }

    /// Takes the chunks that have been put as acknowledged. Returns whether there was one.
    fn acknowledge_put(&mut self, peer: usize) -> bool {
        let put = self.wind.as_mut().map(|wind| wind.take_put(peer));
        let headers = match put.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(headers) => headers,
            Err(reason) => {
                self.lose(peer, reason);
                return true;
            }
        };
        let has_put = !headers.is_empty();
        let Some(member) = self.member(peer) else {
            return has_put;
        };
        for header in headers {
            if header.term == self.membership.term() {
                let ack = Header {
                    kind: Kind::Ack,
                    number: 1,
                    ..header
                };
                // Only chunks that this rank has sent are counted.
                let _ = self.handle_ack(member, ack);
            }
        }
        has_put
    }

    /// Tells peers of chunks on which this rank may wait.
    pub(super) fn tell_idle_on_wind(&mut self) {
        let told = self.wind.as_mut().map(WindLinks::tell_idle);
        for peer in told.unwrap_or_default() {
            self.flush_wind(peer);
        }
    }

    /// Sends the chunks that are queued for a peer, as far as there is room.
    pub(super) fn flush_wind(&mut self, peer: usize) {
        let Self { wind, active, .. } = self;
        let Some(wind) = wind else { return };
        let result = wind.flush(peer, |step| Some(active.as_ref()?.job.source(step)));
        if let Err(reason) = result {
            self.lose(peer, reason);
        }
    }

    /// Puts the chunks of a peer into place, as far as they have one.
    pub(super) fn deliver_wind(&mut self, peer: usize) {
        while let Some(header) = self.next_on_wind(peer) {
            let Some(member) = self.member(peer) else {
                return;
            };
            let destination = self.find_destination(member, &header);
            match destination {
                Destination::Unknown => break,
                Destination::Mismatch(step) => return self.note_mismatch(member, &header, &step),
                Destination::Discard | Destination::Step(_) => {}
            }
            self.take_from_wind(peer, member, destination);
        }
        // The peer may wait for room in its ring.
        self.flush_wind(peer);
    }

    /// Takes the next chunk of a peer to its destination.
    fn take_from_wind(&mut self, peer: usize, member: usize, destination: Destination) {
        let Self { wind, active, .. } = self;
        let Some(wind) = wind else { return };
        let needs_ack = wind.front(peer).is_some_and(Chunk::needs_ack);
        let (Destination::Step(step), Some(active)) = (destination, active) else {
            return wind.take_into(peer, &mut []);
        };
        let mut scratch = Vec::new();
        if step.action == Action::Receive {
            wind.take_into(peer, active.job.destination(&step));
        } else {
            scratch.resize(step.bytes as usize, 0);
            wind.take_into(peer, &mut scratch);
        }
        active.job.complete_chunk(member, &scratch);
        self.peers[peer].unacked_chunks += u64::from(needs_ack);
    }

    fn next_on_wind(&self, peer: usize) -> Option<Header> {
        let chunk = self.wind.as_ref()?.front(peer)?;
        Some(chunk.header)
    }

    /// Loses the peers that do not answer over UDP, for instance behind a firewall.
    pub(super) fn lose_silent_on_wind(&mut self) {
        let silent = self.wind.as_mut().map(WindLinks::silent);
        for (peer, reason) in silent.unwrap_or_default() {
            if self.peers[peer].leave_sequence.is_none() {
                self.lose(peer, reason);
            }
        }
    }
}
