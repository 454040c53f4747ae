//! Frames taken from the host that wait for the links.
//!
//! The length of a TAP's ring cannot be read from outside. So frames are taken from it at once and
//! wait here, where they count as backlog for the device's backpressure (ADR 007).

use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::frame::{FRAME_BYTES_MAX, Frame};
use kumi_multilink::pressure::Intake;
use kumi_sys::tap::Tap;
use std::collections::VecDeque;
use std::io;

/// Limits beyond which frames stay in the TAP: 8 ms at 1 Gb/s, or a thousand small frames.
const WAITING_BYTES_MAX: usize = 1_000_000;
const WAITING_FRAMES_MAX: usize = 1_000;

/// Queue between the TAP and the core.
#[derive(Debug, Default)]
pub struct Inlet {
    frames: VecDeque<Frame>,
    waiting_bytes: usize,
    intake: Intake,
}

impl Inlet {
    /// Returns whether more frames may be taken from the host.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX && self.frames.len() < WAITING_FRAMES_MAX
    }

    /// Returns the number of bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Returns whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the traffic taken from the host since the last report to the shaper.
    pub fn intake_mut(&mut self) -> &mut Intake {
        &mut self.intake
    }

    /// Takes one frame from the host and returns its length in bytes, 0 if none is available. Fails
    /// if the device no longer exists.
    pub fn take(&mut self, tap: &Tap, core: &mut Endpoint) -> io::Result<usize> {
        let mut frame = core.take_buffer(FRAME_BYTES_MAX);
        match tap.read(frame.buffer()) {
            Ok(bytes) => {
                self.intake.bytes += bytes as u64;
                self.intake.frames += 1;
                self.waiting_bytes += bytes;
                frame.set_len(bytes);
                self.frames.push_back(core.compact(frame));
                Ok(bytes)
            }
            Err(error) => {
                core.give_buffer(frame);
                self.intake.was_empty = true;
                match error.raw_os_error() {
                    Some(nix::libc::EBADFD) => Err(error),
                    _ => Ok(0),
                }
            }
        }
    }

    /// Takes the next frame for the links.
    pub fn next(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.waiting_bytes -= frame.as_slice().len();
        Some(frame)
    }
}
