//! Chunks that are carried by Wind.

use super::Progress;
use super::data::Destination;
use crate::group::frame::Header;
use crate::group::wind_links::WindLinks;
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
        for (peer, result) in wind.turn() {
            self.peers[peer].received_at = Instant::now();
            match result {
                Ok(()) => self.deliver_wind(peer),
                Err(reason) => self.lose(peer, reason),
            }
        }
        let waiting = self.wind.as_ref().map(WindLinks::waiting);
        for peer in waiting.unwrap_or_default() {
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
                Destination::Unknown => return,
                Destination::Mismatch(step) => return self.note_mismatch(member, &header, &step),
                Destination::Discard | Destination::Step(_) => {}
            }
            let chunk = self.wind.as_mut().and_then(|wind| wind.take(peer));
            let current = chunk.zip(self.active.as_mut());
            let (Destination::Step(step), Some((chunk, active))) = (destination, current) else {
                continue;
            };
            if step.action == Action::Receive {
                active.job.destination(&step).copy_from_slice(&chunk.data);
            }
            active.job.complete_chunk(member, &chunk.data);
            self.peers[peer].unacked_chunks += 1;
        }
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
