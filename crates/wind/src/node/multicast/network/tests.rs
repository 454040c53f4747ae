//! Root and members over a network that loses, repeats and reorders datagrams.

use super::CHUNK_PACKETS;
use super::member::{Arrival, Member};
use super::root::Root;
use super::wire::{Invite, PROBE, Report, datagram_header};
use crate::protocol::{PeerId, Place, Seal};
use kumi_multilink::secure::PacketKey;
use proptest::prelude::*;
use std::collections::VecDeque;

const PACKET_BYTES: u16 = 10;
const PLACE: Place = Place {
    region: 0,
    key: [0; 16],
    offset: 0,
};
const US: u64 = 1_000;

fn key() -> PacketKey {
    PacketKey::new(&[1; 32], Seal::Authenticate)
}

fn datagram(number: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let header = datagram_header([7; 16], number);
    key().seal(0, number.into(), &header, data, &mut out);
    out
}

fn invite(bytes: u64) -> Invite {
    Invite {
        place: PLACE,
        bytes,
        packet_bytes: PACKET_BYTES,
        group: "239.255.0.1:50000".parse().unwrap(),
    }
}

/// A member, its memory, and how often each byte was written.
struct Side {
    member: Member,
    memory: Vec<u8>,
    writes: Vec<u8>,
}

impl Side {
    fn new(bytes: usize) -> Self {
        Self {
            member: Member::new(PeerId(0), &invite(bytes as u64), key()).unwrap(),
            memory: vec![0; bytes],
            writes: vec![0; bytes],
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.memory[offset..offset + data.len()].copy_from_slice(data);
        for count in &mut self.writes[offset..offset + data.len()] {
            *count += 1;
        }
    }

    fn take(&mut self, number: u32, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let arrival = self.member.handle(number, &mut bytes);
        if let Some(Arrival::Data(place, data)) = arrival {
            let (offset, data) = (place.offset as usize, data.to_vec());
            self.write(offset, &data);
        }
    }
}

/// Sends data to members. A packet is lost, repeated or late with the probabilities in percent.
/// Returns the repairs.
fn transfer(bytes: usize, members: usize, seed: u64, [lost, repeated, late]: [u32; 3]) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut hits = move |percent: u32| random.u32(0..100) < percent;
    let data: Vec<u8> = (0..bytes).map(|at| (at * 7 + 3) as u8).collect();
    let mut sides: Vec<Side> = (0..members).map(|_| Side::new(bytes)).collect();
    let mut root = Root::new(bytes as u64, PACKET_BYTES, members, 50 * US, 0);
    // Packets that are late at each member.
    let mut delayed: Vec<VecDeque<(u32, Vec<u8>)>> = vec![VecDeque::new(); members];
    let (mut now_ns, mut repairs) = (0, 0);
    let range = |packet: u32| {
        let start = packet as usize * usize::from(PACKET_BYTES);
        start..bytes.min(start + usize::from(PACKET_BYTES))
    };
    while !root.is_complete() {
        now_ns += 20 * US;
        while let Some(packets) = root.take_chunk(now_ns) {
            for packet in packets {
                let bytes = datagram(packet, &data[range(packet)]);
                for (side, delayed) in sides.iter_mut().zip(&mut delayed) {
                    if hits(lost) {
                        continue;
                    }
                    if hits(late) {
                        delayed.push_back((packet, bytes.clone()));
                        continue;
                    }
                    for _ in 0..=u32::from(hits(repeated)) {
                        side.take(packet, &bytes);
                    }
                }
            }
        }
        let (overdue, end) = root.take_overdue(now_ns);
        for index in overdue {
            sides[index].member.settle_before(end);
            let report = sides[index].member.take_report().unwrap_or_default();
            root.handle(index, &report, now_ns);
        }
        for (index, side) in sides.iter_mut().enumerate() {
            if let Some(report) = side.member.take_report() {
                root.handle(index, &report, now_ns);
            }
            if let Some((packet, bytes)) = delayed[index].pop_front() {
                side.take(packet, &bytes);
            }
        }
        while let Some(repair) = root.take_repair() {
            repairs += 1;
            let range = range(repair.packet);
            sides[repair.member].write(range.start, &data[range]);
        }
    }
    // What is still late arrives after the end, and must change nothing.
    for (side, delayed) in sides.iter_mut().zip(delayed) {
        for (packet, bytes) in delayed {
            side.take(packet, &bytes);
        }
        assert!(side.memory == data);
        assert!(side.writes.iter().all(|count| *count == 1), "written twice");
    }
    repairs
}

#[test]
fn transfer__no_faults__repairs_nothing() {
    for bytes in [1, 10, 79, 80, 81, 5_000, 100_000] {
        assert_eq!(transfer(bytes, 3, 1, [0; 3]), 0, "{bytes} bytes");
    }
}

#[test]
fn transfer__nothing_arrives__repairs_everything() {
    assert_eq!(transfer(1_000, 2, 1, [100, 0, 0]), 200);
}

proptest! {
    #[test]
    fn transfer__any_faults__writes_each_byte_once(
        bytes in 1_usize..3_000,
        members in 1_usize..5,
        seed in any::<u64>(),
        faults in [0_u32..60, 0..40, 0..40],
    ) {
        transfer(bytes, members, seed, faults);
    }

    #[test]
    fn member__any_datagrams__writes_in_its_place_only(
        bytes in 1_u64..2_000,
        packets in proptest::collection::vec((0_u32..300, 0_usize..14, any::<bool>()), 0..60),
    ) {
        let mut member = Member::new(PeerId(0), &invite(bytes), key()).unwrap();
        for (number, length, is_damaged) in packets {
            let mut bytes_of = datagram(number, &vec![1; length]);
            if is_damaged {
                let at = bytes_of.len() - 1;
                bytes_of[at] ^= 1;
            }
            match member.handle(number, &mut bytes_of) {
                Some(Arrival::Data(place, data)) => {
                    prop_assert!(!is_damaged);
                    prop_assert!(place.offset + data.len() as u64 <= bytes);
                }
                Some(Arrival::Probe) => prop_assert!(false, "no number is that of a probe"),
                Some(Arrival::Repeated) | None => {}
            }
        }
    }

    #[test]
    fn root__any_reports__ends_when_each_member_has_reported(
        reports in proptest::collection::vec(
            (0_usize..3, any::<u32>(), any::<u32>(), any::<u8>()), 0..40
        ),
    ) {
        let mut root = Root::new(1_000, PACKET_BYTES, 3, 50 * US, 0);
        while root.take_chunk(0).is_some() {}
        for (member, first, count, has) in reports {
            let report = Report {
                complete: vec![(first % 20, count)],
                missing: vec![(first, has), (first % 20, has)],
            };
            root.handle(member, &report, US);
        }
        let mut rounds = 0;
        while !root.is_complete() {
            while root.take_chunk(0).is_some() {}
            (0..3).for_each(|member| root.remove(member, US));
            rounds += 1;
            prop_assert!(rounds < 100);
        }
        prop_assert!(root.take_repair().is_none(), "a member that is gone gets nothing");
    }
}

#[test]
fn member__lengths_that_no_root_has__are_refused() {
    let with = |bytes: u64, packet_bytes: u16| Invite {
        packet_bytes,
        ..invite(bytes)
    };
    for bad in [with(0, 10), with(10, 0), with(u64::from(PROBE) * 10, 10)] {
        assert!(Member::new(PeerId(0), &bad, key()).is_none(), "{bad:?}");
    }
}

#[test]
fn root__window__is_full_until_reports_arrive() {
    let mut root = Root::new(1 << 20, PACKET_BYTES, 1, 50 * US, 0);
    let mut sent = 0;
    while let Some(packets) = root.take_chunk(0) {
        assert_eq!(packets.len() as u32, CHUNK_PACKETS);
        sent += 1;
    }
    let report = Report {
        complete: vec![(0, sent)],
        missing: Vec::new(),
    };
    root.handle(0, &report, 60 * US);
    let more = std::iter::from_fn(|| root.take_chunk(60 * US)).count() as u32;
    assert!(more > sent, "{more} after {sent}");
}
