//! Changes the rate of an HTB class while traffic flows.
//!
//! `tc class change` does the same. This module serves a daemon that does it many times per second.

use crate::netlink::{acknowledgement, attribute, route_socket};
use nix::sys::socket::{MsgFlags, send};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const RTM_NEWTCLASS: u16 = 40;
const NLM_F_REQUEST_ACK: u16 = 0x001 | 0x004;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const TC_LINKLAYER_ETHERNET: u8 = 1;
/// Tick of the kernel's packet scheduler: 64 ns (`PSCHED_SHIFT`).
const TICK_NS: u64 = 64;
/// Quantum of the class, in bytes. There is one class, so the value has no effect.
const QUANTUM_BYTES: u32 = 65_536;

/// One HTB class of one interface.
#[derive(Debug)]
pub struct HtbClass {
    fd: OwnedFd,
    interface_index: u32,
    class: u32,
    parent: u32,
    sequence: u32,
}

impl HtbClass {
    /// Opens the class `1:1` under the root `1:` of an interface of this namespace.
    pub fn open(interface_index: u32) -> io::Result<Self> {
        let fd = route_socket(0)?;
        Ok(Self {
            fd,
            interface_index,
            class: 0x1_0001,
            parent: 0x1_0000,
            sequence: 0,
        })
    }

    /// Sets rate and ceiling, in bytes per second, and the burst, in ns of that rate.
    pub fn set_rate(&mut self, rate_bytes_per_s: u64, burst_ns: u64) -> io::Result<()> {
        let rate32 = u32::try_from(rate_bytes_per_s).unwrap_or(u32::MAX);
        // struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
        let mut spec = [0u8; 12];
        spec[1] = TC_LINKLAYER_ETHERNET;
        spec[8..].copy_from_slice(&rate32.to_ne_bytes());
        let ticks = u32::try_from(burst_ns / TICK_NS).unwrap_or(u32::MAX);
        // struct tc_htb_opt: rate, ceil, buffer, cbuffer, quantum, level, prio
        let mut parms = Vec::with_capacity(44);
        parms.extend_from_slice(&spec);
        parms.extend_from_slice(&spec);
        for word in [ticks, ticks, QUANTUM_BYTES, 0, 0] {
            parms.extend_from_slice(&word.to_ne_bytes());
        }
        let mut options = Vec::new();
        attribute(&mut options, TCA_HTB_PARMS, &parms);
        attribute(
            &mut options,
            TCA_HTB_RATE64,
            &rate_bytes_per_s.to_ne_bytes(),
        );
        attribute(
            &mut options,
            TCA_HTB_CEIL64,
            &rate_bytes_per_s.to_ne_bytes(),
        );
        self.request(&options)
    }

    fn request(&mut self, options: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let mut message = vec![0; 4];
        message.extend_from_slice(&RTM_NEWTCLASS.to_ne_bytes());
        message.extend_from_slice(&NLM_F_REQUEST_ACK.to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&[0; 8]); // port, then struct tcmsg: family and padding
        for word in [self.interface_index, self.class, self.parent, 0] {
            message.extend_from_slice(&word.to_ne_bytes());
        }
        attribute(&mut message, TCA_KIND, b"htb\0");
        attribute(&mut message, TCA_OPTIONS, options);
        let length = (message.len() as u32).to_ne_bytes();
        message[..4].copy_from_slice(&length);
        send(self.fd.as_raw_fd(), &message, MsgFlags::empty())?;
        acknowledgement(&self.fd, self.sequence)
    }
}
