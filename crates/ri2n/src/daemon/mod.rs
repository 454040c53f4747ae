//! The daemon of a device that uses RI2N/DRV: one loop between the TAP, a raw socket per link, and
//! the core.
//!
//! The TAP is opened without offloads. As in the paper's driver, each packet of the network layer
//! is sent as one frame, with its checksums.

mod setup;
mod state;

use crate::protocol::Ri2n;
use kumi_device::config::DeviceConfig;
use kumi_device::control::{Call, Control, Request, failure};
use kumi_device::interface;
use kumi_device::ready::{Host, Ready, SLEEP_NS_MAX, Socket, Wakers};
use kumi_multilink::frame::Frame;
use kumi_sys::netlink::link::LinkMonitor;
use kumi_sys::raw_ethernet::RawEthernet;
use kumi_sys::tap::Tap;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::Instant;

pub use setup::run;

/// Frames read from the device before the links are served again: the capacity of two links'
/// queues.
const FRAMES_PER_TURN: usize = 64;
/// Receive calls on one link before the others are served again. Each returns a batch.
const RECEIVES_PER_TURN: usize = 2;

/// A NIC under the device.
struct Nic {
    name: String,
    index: u32,
    socket: RawEthernet,
    has_carrier: bool,
    /// True if the socket's send buffer was full at the last send.
    is_blocked: bool,
    /// Frames that the kernel refused: its queue was full, the carrier was off, or the interface
    /// was down.
    refused: u64,
    /// Frames lost because this process read them too late.
    overrun: u64,
}

/// A running device.
struct Device {
    config: DeviceConfig,
    mtu: u32,
    core: Ri2n,
    tap: Tap,
    nics: Vec<Nic>,
    /// Frame of the host that found all queues full. While it waits, no further frame is read.
    waiting_frame: Option<Frame>,
    frame_bytes_max: usize,
    monitor: LinkMonitor,
    control: Control,
    wakers: Wakers,
    started: Instant,
    tap_write_errors: u64,
    is_ending: bool,
}

impl Device {
    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Runs the loop until the device ends.
    fn serve(&mut self) -> anyhow::Result<()> {
        while !self.is_ending {
            let ready = self.wait()?;
            let now_ns = self.now_ns();
            for link in 0..self.nics.len() {
                if ready.links & 1 << link != 0 {
                    self.receive(link, now_ns);
                }
            }
            if self.core.poll_timeout() <= now_ns {
                self.core.handle_timeout(now_ns);
            }
            self.hand_over_frames();
            self.transmit();
            if ready.tap || self.waiting_frame.is_some() {
                self.take_frames(now_ns);
                self.transmit();
            }
            if ready.monitor {
                self.follow_interfaces()?;
            }
            if ready.control {
                self.answer_calls();
            }
            self.announce_events();
        }
        Ok(())
    }

    /// Sleeps until an event occurs or a timeout is due.
    fn wait(&mut self) -> anyhow::Result<Ready> {
        let due_ns = self.core.poll_timeout().saturating_sub(self.now_ns());
        let sleep_ns = if self.config.busy_poll {
            0
        } else {
            due_ns.min(SLEEP_NS_MAX)
        };
        let host = Host {
            tap: self.tap.as_fd(),
            takes_frames: self.waiting_frame.is_none(),
            control: self.control.wake.as_fd(),
            monitor: self.monitor.as_fd(),
        };
        let links = self.nics.iter().map(|nic| Socket {
            fd: nic.socket.as_fd(),
            number: 0, // the sockets are never replaced
            is_blocked: nic.is_blocked,
        });
        self.wakers.poll(host, links, sleep_ns)
    }

    /// Receives the frames that wait on a link.
    fn receive(&mut self, link: usize, now_ns: u64) {
        let (nic, core) = (&mut self.nics[link], &mut self.core);
        for _ in 0..RECEIVES_PER_TURN {
            // An error means that no frame waits, or that the interface went down. Neither needs an
            // action.
            let take = |frame: &[u8]| core.handle_datagram(link, frame, now_ns);
            match nic.socket.receive(take) {
                Ok(kumi_sys::raw_ethernet::BATCH_FRAMES_MAX) => {}
                _ => return,
            }
        }
    }

    /// Writes the frames that are in order to the host.
    fn hand_over_frames(&mut self) {
        while let Some(frame) = self.core.poll_frame() {
            if self.tap.write(frame.as_slice()).is_err() {
                self.tap_write_errors += 1; // the device is down
            }
            self.core.give_buffer(frame);
        }
    }

    /// Takes frames from the host while a link has room for them.
    fn take_frames(&mut self, now_ns: u64) {
        if let Some(frame) = self.waiting_frame.take() {
            self.waiting_frame = self.core.handle_frame(frame, now_ns).err();
        }
        for _ in 0..FRAMES_PER_TURN {
            if self.waiting_frame.is_some() {
                return;
            }
            let mut frame = self.core.take_buffer(self.frame_bytes_max);
            match self.tap.read(frame.buffer()) {
                Ok(bytes) => {
                    frame.set_len(bytes);
                    self.waiting_frame = self.core.handle_frame(frame, now_ns).err();
                }
                Err(error) => {
                    self.core.give_buffer(frame);
                    // The device was removed while this process ran.
                    self.is_ending |= error.raw_os_error() == Some(nix::libc::EBADFD);
                    return;
                }
            }
        }
    }

    fn transmit(&mut self) {
        for (link, nic) in self.nics.iter_mut().enumerate() {
            nic.transmit(link, &mut self.core);
        }
    }

    /// Follows the device's MAC address and the carriers of the links. The carriers are shown but
    /// cause no action.
    fn follow_interfaces(&mut self) -> anyhow::Result<()> {
        for change in self.monitor.changes()? {
            if let Some(mac) = change.mac.filter(|_| change.name == self.config.name) {
                self.core.set_mac(mac);
            }
            let mut nics = self.nics.iter_mut();
            if let Some(nic) = nics.find(|nic| nic.index == change.index) {
                nic.has_carrier = change.has_carrier && !change.is_gone;
            }
        }
        Ok(())
    }

    fn answer_calls(&mut self) {
        while let Some(call) = self.control.next_call() {
            let Call {
                request, answer, ..
            } = call;
            let text = match request {
                Request::Show => self.state().to_string(),
                Request::Events => continue, // served by the control socket's thread
                Request::Down => {
                    self.is_ending = true;
                    "{}".to_owned()
                }
                Request::Datapath { .. } => {
                    let name = &self.config.name;
                    failure(&format!(
                        "{name}: preset ri2n has no data path in the kernel"
                    ))
                }
                Request::Add { .. } | Request::Del { .. } | Request::Set { .. } => {
                    let name = &self.config.name;
                    failure(&format!(
                        "{name}: preset ri2n fixes the links when the device is created, as in the paper; run `kumi link down {name}` and `kumi link up {name}` again"
                    ))
                }
            };
            let _ = answer.try_send(text);
        }
    }

    fn state(&mut self) -> serde_json::Value {
        for nic in &mut self.nics {
            nic.overrun += u64::from(nic.socket.take_drops());
        }
        state::device(self)
    }

    /// Writes events to the log and passes them to the listeners.
    fn announce_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            let now_s = self.started.elapsed().as_secs_f64();
            let mut line = state::event(&event, &self.nics, now_s);
            line["unix_s"] = kumi_device::listeners::unix_s().into();
            let text = line.to_string();
            interface::log(&self.config.name, &text);
            self.control.listeners.tell(&text);
        }
    }
}

impl Nic {
    /// Passes all frames of the core for this link to the kernel, until the socket's buffer is
    /// full. A frame that the kernel refuses is lost, as with `dev_queue_xmit`.
    fn transmit(&mut self, link: usize, core: &mut Ri2n) {
        self.is_blocked = false;
        while core.poll_transmit(link).len() > 0 {
            match self.socket.send(core.poll_transmit(link)) {
                Ok(frames) => core.transmitted(link, frames),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return;
                }
                Err(_) => {
                    self.refused += 1;
                    core.transmitted(link, 1);
                }
            }
        }
    }
}
