//! What a link has heard, for the question why there is no peer.

use kumi_multilink::wire::{Hello, Kind, Malformed, lead};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// What came in on one link, and from whom it was useless.
#[derive(Debug, Default)]
pub struct Hearing {
    /// Datagrams from others.
    datagrams: u64,
    heard_at_ns: Option<u64>,
    own_hello_at_ns: Option<u64>,
    wrong_key: Option<(SocketAddr, u64)>,
    other_version: Option<(SocketAddr, u8, u64)>,
    /// Why the kernel refused the last send that it refused, and when.
    refusal: Option<(String, u64)>,
}

/// Whether a datagram introduces its sender: it is not part of a session.
pub fn is_introduction(datagram: &[u8]) -> bool {
    datagram
        .first()
        .is_some_and(|lead| lead >> 4 >= Kind::Hello as u8)
}

impl Hearing {
    /// Notes a datagram. True if it is this node's own hello, which leads nowhere.
    pub fn note(&mut self, node: u64, datagram: &[u8], now_ns: u64) -> bool {
        let is_hello = datagram.first() == Some(&lead(Kind::Hello));
        if is_hello && Hello::claimed_node(datagram) == Some(node) {
            self.own_hello_at_ns = Some(now_ns);
            return true;
        }
        self.datagrams += 1;
        self.heard_at_ns = Some(now_ns);
        false
    }

    /// Notes what the core thought of an introduction: `is_wrong_key` if another key had made it.
    pub fn note_outcome(
        &mut self,
        from: SocketAddr,
        outcome: Result<(), Malformed>,
        is_wrong_key: bool,
        now_ns: u64,
    ) {
        match outcome {
            Err(Malformed::Version(version)) => self.other_version = Some((from, version, now_ns)),
            Ok(()) if is_wrong_key => self.wrong_key = Some((from, now_ns)),
            _ => {}
        }
    }

    /// Notes that the kernel refused a send.
    pub fn note_refusal(&mut self, error: &std::io::Error, now_ns: u64) {
        self.refusal = Some((error.to_string(), now_ns));
    }

    /// As the state shows it; times are ms ago.
    pub fn shown(&self, now_ns: u64) -> Value {
        let ago = |at_ns: u64| now_ns.saturating_sub(at_ns) / 1_000_000;
        json!({
            "datagrams": self.datagrams,
            "ms_ago": self.heard_at_ns.map(ago),
            "own_hello_ms_ago": self.own_hello_at_ns.map(ago),
            "wrong_key": self.wrong_key.map(|(from, at_ns)| {
                json!({"from": from.ip().to_string(), "ms_ago": ago(at_ns)})
            }),
            "other_version": self.other_version.map(|(from, version, at_ns)| {
                json!({"from": from.ip().to_string(), "version": version, "ms_ago": ago(at_ns)})
            }),
            "refusal": self.refusal.as_ref().map(|(error, at_ns)| {
                json!({"error": error, "ms_ago": ago(*at_ns)})
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hearing__own_hello__is_told_from_others() {
        let mut hearing = Hearing::default();
        let mut hello = vec![lead(Kind::Hello), 0, 0, 0];
        hello.extend_from_slice(&7u64.to_be_bytes());
        assert!(hearing.note(7, &hello, 1_000_000));
        assert!(!hearing.note(8, &hello, 2_000_000));
        let from = "[fe80::1]:24870".parse().unwrap();
        hearing.note_outcome(from, Ok(()), true, 2_000_000);
        let shown = hearing.shown(5_000_000);
        assert_eq!(
            (&shown["datagrams"], &shown["ms_ago"]),
            (&json!(1), &json!(3))
        );
        assert_eq!(shown["own_hello_ms_ago"], 4);
        assert_eq!(shown["wrong_key"]["from"], "fe80::1");
        assert!(is_introduction(&hello) && !is_introduction(&[lead(Kind::Data)]));
    }
}
