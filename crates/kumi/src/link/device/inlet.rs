//! Frames taken from the host that wait for the links.
//!
//! What waits in a TAP's ring cannot be seen from outside, so nothing is left there: the frames are
//! taken at once and wait here, where they count for the device's backpressure.

use kumi_multilink::endpoint::Endpoint;
use kumi_multilink::frame::{FRAME_BYTES_MAX, Frame};
use kumi_multilink::pressure::Intake;
use kumi_sys::tap::Tap;
use std::collections::VecDeque;
use std::io;

/// Beyond this frames stay in the TAP: 8 ms at a gigabit, or a thousand small frames.
const WAITING_BYTES_MAX: usize = 1_000_000;
const WAITING_FRAMES_MAX: usize = 1_000;

/// The queue between the TAP and the core.
#[derive(Debug, Default)]
pub struct Inlet {
    waiting: VecDeque<Frame>,
    waiting_bytes: usize,
    intake: Intake,
}

impl Inlet {
    /// Whether more may be taken from the host.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX && self.waiting.len() < WAITING_FRAMES_MAX
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What was taken from the host since the last adjustment of its rate.
    pub fn intake_mut(&mut self) -> &mut Intake {
        &mut self.intake
    }

    /// Takes one frame from the host and gives its bytes: 0 if there is none; an error if the device
    /// is gone.
    pub fn take(&mut self, tap: &Tap, core: &mut Endpoint) -> io::Result<usize> {
        let mut frame = core.take_buffer(FRAME_BYTES_MAX);
        match tap.read(frame.buffer()) {
            Ok(bytes) => {
                self.intake.bytes += bytes as u64;
                self.intake.frames += 1;
                self.waiting_bytes += bytes;
                frame.set_len(bytes);
                self.waiting.push_back(core.compact(frame));
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

    /// The next frame for the links.
    pub fn next(&mut self) -> Option<Frame> {
        let frame = self.waiting.pop_front()?;
        self.waiting_bytes -= frame.as_slice().len();
        Some(frame)
    }
}
