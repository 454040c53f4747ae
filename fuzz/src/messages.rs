//! Messages of the multilink device as a peer builds them, slightly damaged.

use crate::choices::Choices;
use crate::frames::{bytes, mutate};
use kumi_multilink::handshake::{Envelope, Initiator, Responder};
use kumi_multilink::secure::{ClusterKey, Seal};
use kumi_multilink::wire::{
    CONTROL_HEADER_BYTES, ControlHeader, CookieReply, DATA_HEADER_BYTES, DataHeader, Hello, Kind,
    LINKS_MAX, LinkReport, Missing, Params, Report, kind_of,
};

fn params(choices: &mut Choices) -> Params {
    Params {
        node: choices.u64(..4),
        instance: choices.u64(..3),
        sent_at_ns: choices.u64(..),
        knows: choices.u64(..),
        session: choices.u16(..),
        link: choices.u8(..LINKS_MAX as u8),
        seal: Seal::Encrypt,
        unit_bytes_max: choices.u16(512..),
        lane: kumi_multilink::lane::Lane {
            number: choices.u8(..2),
            count: 2,
        },
        links: choices.u8(..=LINKS_MAX as u8),
        mac: [2, 0, 0, 0, 0, choices.u8(..4)],
        name: "x".repeat(choices.usize(..=64)),
    }
}

/// Checks that every parser refuses a message, or returns one that reads back equal.
pub fn parse(choices: &mut Choices) {
    let key = ClusterKey::from_bytes([7; 32]);
    let mut input = match choices.u8(0..6) {
        0 => {
            let mut out = [0; DATA_HEADER_BYTES];
            let last = choices.u8(..);
            let header = DataHeader {
                link: choices.u8(..16),
                flags: choices.u8(..4),
                session: choices.u16(..),
                link_seq: choices.u32(..),
                unit_seq: choices.u32(..),
                index: choices.u8(..=last),
                last,
                aux: choices.u16(1..),
            };
            header.emit(&mut out);
            assert_eq!(DataHeader::parse(&out), Ok(header));
            out.to_vec()
        }
        1 => {
            let mut report = Report {
                seq: choices.u32(..),
                session: choices.u16(..),
                ..Report::default()
            };
            report.links = (0..choices.usize(..=16))
                .map(|link| LinkReport {
                    link: link as u8 % 16,
                    highest: choices.u32(..),
                    received: choices.u32(..),
                    held_us: choices.u32(..),
                })
                .collect();
            report.missing = (0..choices.usize(..=24))
                .map(|_| Missing {
                    link: choices.u8(..16),
                    first: choices.u32(..),
                    count: choices.u16(1..),
                })
                .collect();
            let mut out = Vec::new();
            report.emit(&mut out);
            let mut copy = Report::default();
            assert_eq!(copy.parse(&out), Ok(()));
            assert_eq!(copy, report);
            out
        }
        2 => {
            let mut out = Vec::new();
            params(choices).emit(&mut out);
            [&[0x32, 0, 0, 0], &out[..]].concat()
        }
        3 => Initiator::start(&key, &params(choices)).1,
        4 => {
            let reply = CookieReply {
                init: [choices.u8(..); 16],
                cookie: [choices.u8(..); 16],
            };
            assert_eq!(CookieReply::parse(&reply.emit(&key), &key), Ok(Some(reply)));
            reply.emit(&key)
        }
        _ => bytes(choices, 200),
    };
    mutate(choices, &mut input);
    let _ = kind_of(&input);
    if let Ok(header) = DataHeader::parse(&input) {
        let mut out = [0; DATA_HEADER_BYTES];
        header.emit(&mut out);
        assert_eq!(out, input[..DATA_HEADER_BYTES]);
    }
    if let Ok(header) = ControlHeader::parse(&input) {
        let mut out = [0; CONTROL_HEADER_BYTES];
        header.emit(&mut out);
        assert_eq!(out, input[..CONTROL_HEADER_BYTES]);
    }
    let mut report = Report::default();
    if report.parse(&input).is_ok() {
        let mut out = Vec::new();
        report.emit(&mut out);
        assert_eq!(out, input);
    }
    // Signed as a node of the cluster would. Without a valid signature, no code behind the check is
    // reached.
    let signed = [&input[..], &key.hello_mac(&input)].concat();
    if let Ok(Some(hello)) = Hello::parse(&signed, &key) {
        assert_eq!(Hello::parse(&hello.emit(&key), &key), Ok(Some(hello)));
    }
    let _ = Hello::parse(&input, &key);
    let signed = [&input[..], &key.envelope_mac(&input)].concat();
    for message in [&input, &signed] {
        let _ = CookieReply::parse(message, &key);
        if let Ok(init) = Envelope::open(Kind::Init, &key, message) {
            let _ = Responder::read(&key, &init);
        }
        let (mut initiator, _) = Initiator::start(&key, &params(choices));
        if let Ok(mut reply) = Envelope::open(Kind::Reply, &key, message) {
            reply.tie = initiator.tag;
            let _ = initiator.finish(&reply);
        }
    }
}
