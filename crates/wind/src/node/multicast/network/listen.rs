//! Groups that a node has joined: a thread for each receives what is sent to it.

use super::CHUNK_PACKETS;
use super::member::{Arrival, Member};
use super::wire::{self, Control, DATAGRAM_BYTES_MAX, Invite, Report, TransferName};
use crate::node::{Shared, lock};
use crate::protocol::{Endpoint, PeerId, Regions, Seal, Secret, check_place, place_bytes};
use kumi_multilink::secure::{PacketKey, multicast_key};
use kumi_sys::datagrams::Datagrams;
use kumi_sys::fork::Private;
use kumi_sys::udp::{LinkSocket, interface_towards};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most transfers in which a node is a member, of all roots and of one.
const MEMBERS_MAX: usize = 256;
const MEMBERS_OF_ROOT_MAX: usize = 16;

/// Receives of one turn, so that the node's lock is free again soon.
const RECEIVES_MAX: usize = 16;

/// Time after the last transfer for which a node stays in a group: the next one begins sooner, and
/// a switch that forwards groups to their members only need not learn it again.
const STAY: Duration = Duration::from_secs(60);

/// A group that this node has joined.
struct Listener {
    /// Ends the thread.
    bell: Arc<EventFd>,
    thread: JoinHandle<()>,
    /// Time of the last authentic datagram, in ns; `None` before the first.
    heard_ns: Option<u64>,
    used_ns: u64,
}

/// Groups, and transfers in which this node is a member.
pub struct Listeners {
    node: Weak<Shared>,
    secret: Secret,
    seal: Seal,
    groups: HashMap<SocketAddr, Listener>,
    members: HashMap<TransferName, (SocketAddr, Member)>,
}

/// Threads that end. They need the node's lock, which the caller must not have.
pub struct Ending(Vec<Listener>);

impl Ending {
    /// Waits for the threads.
    pub fn join(self) {
        for listener in self.0 {
            let _ = listener.bell.write(1);
            // An error means that the thread has panicked and printed a message.
            let _ = listener.thread.join();
        }
    }
}

impl Listeners {
    pub fn new(node: Weak<Shared>, secret: Secret, seal: Seal) -> Self {
        Self {
            node,
            secret,
            seal,
            groups: HashMap::new(),
            members: HashMap::new(),
        }
    }

    /// Joins a transfer. Returns the reply; `None` if it follows when the group is heard.
    pub fn invite(
        &mut self,
        (from, root): (PeerId, SocketAddr),
        name: TransferName,
        invite: &Invite,
        regions: &dyn Regions,
        now_ns: u64,
    ) -> Option<Control> {
        let of_root = self
            .members
            .values()
            .filter(|(_, member)| member.root == from);
        let is_full = self.members.len() >= MEMBERS_MAX || of_root.count() >= MEMBERS_OF_ROOT_MAX;
        let fits = check_place(regions, &invite.place, invite.bytes).is_ok();
        let key = PacketKey::new(&multicast_key(&self.secret, &name), self.seal);
        let member = Member::new(from, invite, key).filter(|_| fits && !is_full);
        let Some(member) = member else {
            return Some(Control::Unable);
        };
        if !self.groups.contains_key(&invite.group) {
            match self.join(invite.group, root, now_ns) {
                Ok(listener) => drop(self.groups.insert(invite.group, listener)),
                Err(_) => return Some(Control::Unable),
            }
        }
        self.members.insert(name, (invite.group, member));
        let listener = self.groups.get_mut(&invite.group)?;
        listener.used_ns = now_ns;
        listener.heard_ns.map(|_| Control::Heard)
    }

    fn join(&self, group: SocketAddr, root: SocketAddr, now_ns: u64) -> io::Result<Listener> {
        if !group.ip().is_multicast() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let socket = LinkSocket::member(group, interface_towards(root)?)?;
        let descriptor = socket.as_fd().as_raw_fd();
        let socket = Private::of(socket, descriptor);
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let bell = Arc::new(bell);
        let (node, ending) = (Weak::clone(&self.node), Arc::clone(&bell));
        let thread = std::thread::Builder::new()
            .name("wind-multicast".into())
            .spawn(move || listen(&node, &socket, &ending, group))?;
        Ok(Listener {
            bell,
            thread,
            heard_ns: None,
            used_ns: now_ns,
        })
    }

    /// Returns the report of a member whose root asks for it.
    pub fn report_before(&mut self, from: PeerId, name: TransferName, end: u32) -> Report {
        let member = self.members.get_mut(&name).map(|(_, member)| member);
        let Some(member) = member.filter(|member| member.root == from) else {
            return Report::default();
        };
        member.settle_before(end);
        member.take_report().unwrap_or_default()
    }

    /// Ends a transfer.
    pub fn end(&mut self, from: PeerId, name: TransferName, now_ns: u64) {
        let is_member = |(_, member): &(SocketAddr, Member)| member.root == from;
        if !self.members.get(&name).is_some_and(is_member) {
            return;
        }
        if let Some((group, _)) = self.members.remove(&name) {
            if let Some(listener) = self.groups.get_mut(&group) {
                listener.used_ns = now_ns;
            }
        }
    }

    /// Ends the transfers of a lost root.
    pub fn note_lost(&mut self, root: PeerId) {
        self.members.retain(|_, (_, member)| member.root != root);
    }

    /// Leaves all groups.
    pub fn close(&mut self) -> Ending {
        self.members.clear();
        Ending(self.groups.drain().map(|(_, listener)| listener).collect())
    }

    /// Leaves a group that was not used for long. Returns whether it was left.
    fn leave_unused(&mut self, group: SocketAddr, now_ns: u64) -> bool {
        if self.members.values().any(|(other, _)| *other == group) {
            return false;
        }
        let stay_ns = STAY.as_nanos() as u64;
        let is_old = |listener: &Listener| now_ns > listener.used_ns + stay_ns;
        match self.groups.get(&group) {
            Some(listener) if is_old(listener) => self.groups.remove(&group).is_some(),
            Some(_) => false,
            None => true,
        }
    }

    /// Takes a datagram that was sent to `group`. Returns the root and the answer to it, if one is
    /// due now.
    fn handle(
        &mut self,
        group: SocketAddr,
        datagram: &mut [u8],
        regions: &mut dyn Regions,
        now_ns: u64,
    ) -> Option<(PeerId, TransferName, Control)> {
        let (name, number) = wire::parse_datagram(datagram)?;
        let (_, member) = self.members.get_mut(&name)?;
        let root = member.root;
        let answer = match member.handle(number, datagram)? {
            Arrival::Probe => Some(Control::Heard),
            Arrival::Repeated => None,
            // The region was deregistered meanwhile.
            Arrival::Data(place, data) => match place_bytes(regions, &place, data) {
                Ok(()) => None,
                Err(_) => Some(Control::Unable),
            },
        };
        if let Some(listener) = self.groups.get_mut(&group) {
            listener.heard_ns = Some(now_ns);
        }
        Some((root, name, answer?))
    }

    /// Sends the reports of transfers whose datagrams came by `group`.
    fn report(&mut self, group: SocketAddr, endpoint: &mut Endpoint<SocketAddr>) {
        let members = self.members.iter_mut();
        for (name, (_, member)) in members.filter(|(_, (other, _))| *other == group) {
            if let Some(report) = member.take_report() {
                wire::send(endpoint, member.root, *name, &Control::Report(report));
            }
        }
    }
}

/// Receives what is sent to a group, until the node ends or has not used it for long.
fn listen(node: &Weak<Shared>, socket: &LinkSocket, bell: &EventFd, group: SocketAddr) {
    let mut datagrams = Datagrams::with_longest(1);
    let wake = Some(TimeSpec::from(STAY));
    loop {
        let mut files = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(bell.as_fd(), PollFlags::POLLIN),
        ];
        // An error is an interruption.
        let _ = ppoll(&mut files, wake, None);
        let has_arrived = files[0].any() == Some(true);
        let is_over = files[1].any() == Some(true);
        let Some(shared) = node.upgrade().filter(|_| !is_over) else {
            return;
        };
        let mut state = lock(&shared);
        let now_ns = state.now_ns();
        let state = &mut *state;
        let listeners = &mut state.multicast.network.listeners;
        if !has_arrived {
            if listeners.leave_unused(group, now_ns) {
                return;
            }
            continue;
        }
        for _ in 0..RECEIVES_MAX {
            if socket
                .receive(&mut datagrams, DATAGRAM_BYTES_MAX.into())
                .is_err()
            {
                break;
            }
            for (datagram, _) in datagrams.iter_mut() {
                let answer = listeners.handle(group, datagram, &mut state.regions, now_ns);
                if let Some((root, name, answer)) = answer {
                    wire::send(&mut state.endpoint, root, name, &answer);
                }
            }
            if !datagrams.is_full() {
                break;
            }
        }
        listeners.report(group, &mut state.endpoint);
        state.transmit(&shared.socket);
        crate::node::waiting::ring(&shared, state);
    }
}

const _: () = assert!(
    CHUNK_PACKETS == u8::BITS,
    "a chunk has a bit for each packet"
);
