//! Requests of peers, and responses to this side's.

use super::{Endpoint, PeerId, UNKNOWN_MAX};
use crate::protocol::model::Regions;
use crate::protocol::requests::slots::SlotMemory;
use crate::protocol::session::Session;
use crate::protocol::wire::{HEADER_BYTES, Header, TagKey};
use std::hash::Hash;
use std::sync::Arc;

/// Most responses that wait. A requester sends a request again that has none.
const RESPONSES_MAX: usize = 1024;

/// Names and keys by which the kernel executes the requests of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestKeys<A> {
    /// Address of the peer.
    pub peer: A,
    /// `receiver` of the requests.
    pub index: u32,
    /// `receiver` of the responses.
    pub peer_index: u32,
    /// Keys of the tags of requests and of responses; `None` for a plain session.
    pub tags: Option<(TagKey, TagKey)>,
}

impl<A: Copy + Eq + Hash + std::fmt::Debug> Endpoint<A> {
    fn session_mut(&mut self, peer: PeerId) -> Option<&mut Session> {
        self.peers.get_mut(&peer)?.session.as_mut()
    }

    /// Returns what the kernel needs in order to execute the requests of a peer; `None` without a
    /// session, or for an encrypted one.
    pub fn request_keys(&self, peer: PeerId) -> Option<RequestKeys<A>> {
        let peer = self.peers.get(&peer)?;
        let session = peer.session.as_ref()?;
        session.may_request().then_some(())?;
        Some(RequestKeys {
            peer: peer.address,
            index: peer.session_index?,
            peer_index: session.remote.index,
            tags: session.tag_keys(),
        })
    }

    /// Executes the requests of a peer from now on, with `slots`, which the kernel may share. The
    /// peer is told, and sends its operations as requests.
    pub fn serve_requests(&mut self, peer: PeerId, slots: Arc<dyn SlotMemory>) {
        if let Some(session) = self.session_mut(peer) {
            session.serve(slots);
            self.touch(peer);
        }
    }

    /// Returns whether operations on a peer are sent as requests.
    pub fn sends_requests(&self, peer: PeerId) -> bool {
        let session = self.peers.get(&peer).and_then(|peer| peer.session.as_ref());
        session.is_some_and(Session::sends_requests)
    }

    pub(super) fn note_unknown(&mut self, from: A, header: &Header, packet: &[u8]) {
        if self.unknown.len() < UNKNOWN_MAX && packet.len() > HEADER_BYTES {
            self.unknown.push_back((from, *header));
        }
    }

    pub(super) fn handle_request(
        &mut self,
        from: A,
        header: &Header,
        packet: &[u8],
        regions: &mut dyn Regions,
        now_ns: u64,
    ) {
        let known = self.indices.get(&header.receiver).copied();
        let Some(id) = known else {
            self.note_unknown(from, header, packet);
            return;
        };
        let mut response = Vec::new();
        let mut happenings = Vec::new();
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let address = peer.address;
        if let Some(session) = &mut peer.session {
            session.handle_request(header, packet, regions, now_ns, &mut response);
            session.look(regions, now_ns, &mut happenings);
        }
        for happening in happenings {
            self.note(id, happening);
        }
        if !response.is_empty() && self.responses.len() < RESPONSES_MAX {
            self.responses.push_back((address, response));
        }
        self.touch(id);
    }

    pub(super) fn handle_response(&mut self, header: &Header, packet: &[u8], now_ns: u64) {
        let Some(id) = self.indices.get(&header.receiver).copied() else {
            return;
        };
        let mut happenings = Vec::new();
        if let Some(session) = self.session_mut(id) {
            session.handle_response(header, packet, now_ns, &mut happenings);
        }
        for happening in happenings {
            self.note(id, happening);
        }
        self.touch(id);
    }

    /// Handles a path probe, or the reply to one.
    pub(super) fn handle_path(&mut self, header: &Header, packet: &mut [u8]) {
        let known = self.indices.get(&header.receiver).copied();
        let peer = known.and_then(|id| Some((id, self.peers.get_mut(&id)?)));
        let Some((id, peer)) = peer else { return };
        let session = peer.session.as_mut();
        if session.is_some_and(|session| session.handle_path(header, packet).is_ok()) {
            self.touch(id);
        }
    }
}
