//! Record of the datagrams that a link received, to explain why there is no peer.

use kumi_multilink::wire::{Hello, Kind, Malformed, lead};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Datagrams received on one link, and the senders of useless ones.
#[derive(Debug, Default)]
pub struct Reception {
    /// Number of received datagrams, without this device's own hellos.
    datagrams: u64,
    received_at_ns: Option<u64>,
    own_hello_at_ns: Option<u64>,
    wrong_key: Option<(SocketAddr, u64)>,
    other_version: Option<(SocketAddr, u8, u64)>,
    /// Error of the last send that the kernel refused, and its time in ns.
    refusal: Option<(String, u64)>,
}

/// Returns whether a datagram introduces its sender and is not part of a session.
pub fn is_introduction(datagram: &[u8]) -> bool {
    datagram
        .first()
        .is_some_and(|lead| lead >> 4 >= Kind::Hello as u8)
}

impl Reception {
    /// Records a datagram. Returns true for this node's own hello, which needs no handling.
    pub fn note(&mut self, node: u64, datagram: &[u8], now_ns: u64) -> bool {
        let is_hello = datagram.first() == Some(&lead(Kind::Hello));
        if is_hello && Hello::claimed_node(datagram) == Some(node) {
            self.own_hello_at_ns = Some(now_ns);
            return true;
        }
        self.datagrams += 1;
        self.received_at_ns = Some(now_ns);
        false
    }

    /// Records the core's verdict on an introduction. `is_wrong_key` states that it was made with
    /// another key.
    pub fn note_outcome(
        &mut self,
        sender: SocketAddr,
        outcome: Result<(), Malformed>,
        is_wrong_key: bool,
        now_ns: u64,
    ) {
        match outcome {
            Err(Malformed::Version(version)) => {
                self.other_version = Some((sender, version, now_ns));
            }
            Ok(()) if is_wrong_key => self.wrong_key = Some((sender, now_ns)),
            _ => {}
        }
    }

    /// Notes that the kernel refused a send.
    pub fn note_refusal(&mut self, error: &std::io::Error, now_ns: u64) {
        self.refusal = Some((error.to_string(), now_ns));
    }

    /// Returns the record for the device's state. Times are ages in milliseconds.
    pub fn state(&self, now_ns: u64) -> Value {
        let age_ms = |at_ns: u64| now_ns.saturating_sub(at_ns) / 1_000_000;
        json!({
            "datagrams": self.datagrams,
            "ms_ago": self.received_at_ns.map(age_ms),
            "own_hello_ms_ago": self.own_hello_at_ns.map(age_ms),
            "wrong_key": self.wrong_key.map(|(sender, at_ns)| {
                json!({"from": sender.ip().to_string(), "ms_ago": age_ms(at_ns)})
            }),
            "other_version": self.other_version.map(|(sender, version, at_ns)| {
                let ip = sender.ip().to_string();
                json!({"from": ip, "version": version, "ms_ago": age_ms(at_ns)})
            }),
            "refusal": self.refusal.as_ref().map(|(error, at_ns)| {
                json!({"error": error, "ms_ago": age_ms(*at_ns)})
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hearing__own_hello__is_distinguished_from_others() {
        let mut reception = Reception::default();
        let mut hello = vec![lead(Kind::Hello), 0, 0, 0];
        hello.extend_from_slice(&7u64.to_be_bytes());
        assert!(reception.note(7, &hello, 1_000_000));
        assert!(!reception.note(8, &hello, 2_000_000));
        let sender = "[fe80::1]:24870".parse().unwrap();
        reception.note_outcome(sender, Ok(()), true, 2_000_000);
        let state = reception.state(5_000_000);
        assert_eq!(
            (&state["datagrams"], &state["ms_ago"]),
            (&json!(1), &json!(3))
        );
        assert_eq!(state["own_hello_ms_ago"], 4);
        assert_eq!(state["wrong_key"]["from"], "fe80::1");
        assert!(is_introduction(&hello) && !is_introduction(&[lead(Kind::Data)]));
    }
}
