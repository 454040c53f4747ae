//! A put to several peers by IP multicast, with repair to each peer.
//!
//! ```text
//!   root ── Invite ──► each peer         joins the group, and says that it hears it
//!        ══ packets of all chunks ══►    one datagram for all peers
//!        ◄── Report ── each peer         chunks that it has, and packets that it misses
//!        ── puts of what is missing ──►  as any put
//!        ── End ──► each peer
//! ```
//!
//! `root` and `member` have no clock, socket or thread; `listen` receives, and `send` is the call
//! of the program.

pub mod listen;
pub mod member;
mod root;
mod send;
#[cfg(test)]
mod tests;
pub mod wire;

pub use send::Outcome;

use crate::protocol::{Delivery, Endpoint, PeerId, Regions};
use listen::Listeners;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use wire::{Control, TransferName};

/// Packets of a chunk: the unit of windows and reports. A bit of a byte stands for each.
pub const CHUNK_PACKETS: u32 = 8;

/// Transfers of this node, and those in which it is a member.
pub struct Network {
    /// Groups that this node has joined.
    pub listeners: Listeners,
    /// Messages of peers about each transfer of this node.
    inbox: HashMap<TransferName, VecDeque<(PeerId, Control)>>,
}

impl Network {
    pub fn new(listeners: Listeners) -> Self {
        Self {
            listeners,
            inbox: HashMap::new(),
        }
    }

    fn begin(&mut self, name: TransferName) {
        self.inbox.insert(name, VecDeque::new());
    }

    /// Takes the next message of a peer about a transfer.
    fn next(&mut self, name: TransferName) -> Option<(PeerId, Control)> {
        self.inbox.get_mut(&name)?.pop_front()
    }

    fn end(&mut self, name: TransferName) {
        self.inbox.remove(&name);
    }

    /// Handles a message about a transfer. One that is not understood is that of a later version,
    /// and has no effect.
    pub fn handle(
        &mut self,
        from: PeerId,
        delivery: &Delivery,
        endpoint: &mut Endpoint<SocketAddr>,
        regions: &mut dyn Regions,
        now_ns: u64,
    ) {
        let Some((name, control)) = wire::parse(&delivery.header) else {
            return;
        };
        match control {
            Control::Heard | Control::Unable | Control::Report(_) => {
                if let Some(inbox) = self.inbox.get_mut(&name) {
                    inbox.push_back((from, control));
                }
            }
            Control::Invite(invite) => {
                let Some(root) = endpoint.address(from) else {
                    return;
                };
                let listeners = &mut self.listeners;
                let reply = listeners.invite((from, root), name, &invite, regions, now_ns);
                if let Some(reply) = reply {
                    wire::send(endpoint, from, name, &reply);
                }
            }
            Control::Ask { end } => {
                let report = self.listeners.report_before(from, name, end);
                wire::send(endpoint, from, name, &Control::Report(report));
            }
            Control::End => self.listeners.end(from, name, now_ns),
        }
    }
}
