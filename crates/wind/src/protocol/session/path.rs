//! Path probes and their replies.

use super::{Session, Unusable};
use crate::protocol::wire::{Flags, HEADER_BYTES, Header, Kind};

/// Number spaces of path probes and of the replies to them: they have nonces of their own.
const PATH_PROBE_SPACE: u8 = 1;
const PATH_REPLY_SPACE: u8 = 2;

impl Session {
    /// Handles a path probe, or the reply to one.
    ///
    /// # Errors
    /// The packet is not of this session.
    pub fn handle_path(&mut self, header: &Header, packet: &mut [u8]) -> Result<(), Unusable> {
        let space = match header.kind {
            Kind::PathProbe => PATH_PROBE_SPACE,
            _ => PATH_REPLY_SPACE,
        };
        let opened = self.open.open(space, header.number, HEADER_BYTES, packet);
        opened.map_err(|_| Unusable::Forged)?;
        if header.kind == Kind::PathProbe {
            self.path_reply = Some(header.number);
        } else if self.mtu.on_reply(header.number) {
            self.window.set_unit(self.mtu.bytes().into());
        }
        Ok(())
    }

    /// Appends a padded packet that finds out whether the path carries its length, or the reply to
    /// one of the peer, if it is due. These packets have numbers of their own: a lost one is no
    /// loss of the path.
    pub(super) fn poll_path(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let (kind, space, number, bytes) = match self.path_reply.take() {
            Some(number) => {
                let bytes = HEADER_BYTES + self.tag_bytes;
                (Kind::PathReply, PATH_REPLY_SPACE, number, bytes)
            }
            None => {
                let rtt_ns = self.rtt().smoothed_ns();
                let Some((number, bytes)) = self.mtu.take_probe(rtt_ns, now_ns) else {
                    return false;
                };
                (Kind::PathProbe, PATH_PROBE_SPACE, number, bytes.into())
            }
        };
        let header = Header {
            kind,
            flags: Flags::default(),
            receiver: self.remote.index,
            number,
        };
        out.extend_from_slice(&header.to_bytes());
        out.resize(start + bytes - self.tag_bytes, 0);
        self.seal.seal_at(space, number, start, HEADER_BYTES, out);
        true
    }
}
