//! The program of `bpf/wind` and the Rust executor of requests, with the same random packets: both
//! answer with the same bytes, and leave the same memory and slots.

mod support;

use kumi_wind::kernel::KERNEL_REGION;
use kumi_wind::protocol::wire::{Flags, Header, Kind, Request, emit_request, parse_response};
use kumi_wind::{Operation, Place, Seal};
use support::{
    INDEX, KEY, Pair, REDIRECT, REGION, SHAPES, SHOT, Shape, UNSPEC, frame, random_flags,
    random_operation, random_place,
};

/// Sends `count` packets, some of them again, old ones, and damaged ones.
fn compare(shape: Shape, seal: Seal, seed: u64, count: usize) {
    let mut pair = Pair::new(shape, seal);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut sent: Vec<Vec<u8>> = Vec::new();
    let (mut next, mut answered) = (0, 0);
    for number in 0..count {
        let mut packet = Vec::new();
        if !sent.is_empty() && rng.u8(..5) == 0 {
            let recent = sent.len().saturating_sub(200);
            packet = sent[rng.usize(recent..sent.len())].clone();
        } else {
            let request = Request {
                number: next + rng.u64(..3),
                place: random_place(&mut rng),
                operation: random_operation(&mut rng),
            };
            next += u64::from(rng.bool());
            let header = Header {
                kind: Kind::Request,
                flags: random_flags(&mut rng),
                receiver: INDEX,
                number: number as u64,
            };
            emit_request(header, &request, &pair.requests, &mut packet);
            sent.push(packet.clone());
        }
        // The model does not know the session's name and the header, so these are not damaged.
        let is_damaged = rng.u8(..10) == 0;
        if is_damaged && rng.bool() {
            let at = rng.usize(16..packet.len());
            packet[at] ^= 1 << rng.u8(..8);
        } else if is_damaged {
            packet.truncate(rng.usize(16..packet.len()));
        }
        let what = (
            shape,
            seal,
            seed,
            number,
            packet.get(16..20).map(<[u8]>::to_vec),
        );
        let input = frame(shape, &packet, false);
        let (action, output) = pair.program.test_run(&input).expect("the kernel runs it");
        let is_own = packet.get(28).is_none_or(|byte| byte & 0x80 != 0);
        let expected = match is_own {
            true => pair.answer(&packet),
            // Damaged so that the region is one of the program.
            false => None,
        };
        match expected {
            Some(response) => {
                assert_eq!(action, REDIRECT, "{what:?}");
                let mut expected = frame(shape, &response, true);
                if output.len() > expected.len() {
                    // The test's device pads short frames.
                    expected.resize(output.len(), 0);
                }
                assert_eq!(output, expected, "{what:?}");
                answered += 1;
            }
            None => assert!(action == SHOT || action == UNSPEC, "{action} {what:?}"),
        }
        if number % 64 == 0 {
            pair.check_equal(&what);
        }
    }
    pair.check_equal(&"all");
    assert!(answered > count / 4, "{answered} of {count} answered");
}

#[test]
#[ignore = "needs root, bpf"]
fn program__random_requests__answers_and_writes_as_the_rust_executor() {
    for shape in SHAPES {
        for seal in [Seal::Authenticate, Seal::Plain] {
            for seed in 0..3 {
                compare(shape, seal, seed, 2_000);
            }
        }
    }
}

#[test]
#[ignore = "needs root, bpf"]
fn program__other_traffic__is_left_alone() {
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    let request = Request {
        number: 0,
        place: Place {
            region: REGION | KERNEL_REGION,
            key: KEY,
            offset: 0,
        },
        operation: Operation::Put(vec![9; 100]),
    };
    let header = |receiver: u32| Header {
        kind: Kind::Request,
        flags: Flags::default(),
        receiver,
        number: 0,
    };
    let requests = pair.requests;
    let packet = |receiver: u32, request: &Request| {
        let mut out = Vec::new();
        emit_request(header(receiver), request, &requests, &mut out);
        out
    };
    let good = frame(Shape::Ipv4, &packet(INDEX, &request), false);
    let change = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let of_program = Request {
        place: Place {
            region: REGION,
            ..request.place
        },
        ..request.clone()
    };
    let cases = [
        (
            "another session",
            frame(Shape::Ipv4, &packet(INDEX + 1, &request), false),
        ),
        ("another address", change(14 + 15, 7)),
        ("another peer port", change(14 + 20 + 1, 7)),
        ("another port", change(14 + 20 + 3, 7)),
        ("a Data packet", change(14 + 28, 0x31)),
        ("another version", change(14 + 28, 0x52)),
        ("TCP", change(14 + 9, 6)),
        ("first fragment", change(14 + 6, 0x20)),
        ("later fragment", change(14 + 7, 1)),
        ("ARP", change(13, 6)),
        (
            "a region of the program",
            frame(Shape::Ipv4, &packet(INDEX, &of_program), false),
        ),
        ("a UDP length beyond the frame", change(14 + 24, 0xff)),
    ];
    for (name, bytes) in cases {
        let (action, output) = pair.program.test_run(&bytes).unwrap();
        assert_eq!(
            (action, &output[..bytes.len()]),
            (UNSPEC, &bytes[..]),
            "{name}"
        );
    }
    // The kernel refuses test frames that end within the headers.
    for length in 14 + 20..good.len() {
        let (action, _) = pair.program.test_run(&good[..length]).unwrap();
        assert!(
            action == UNSPEC || action == SHOT,
            "{length} bytes: {action}"
        );
    }
    pair.check_equal(&"other traffic");
    assert_eq!(pair.program.test_run(&good).unwrap().0, REDIRECT);
}

/// Sends eight puts as one super-packet, to the kernel and the model. Returns the kernel's action
/// and what it sends.
fn send_super_packet(pair: &mut Pair, flags: fn(u64) -> Flags) -> (u32, Vec<u8>) {
    let mut payload = Vec::new();
    let mut segment = 0;
    for number in 0..8_u64 {
        let bytes = if number == 7 { 100 } else { 300 };
        let request = Request {
            number,
            place: Place {
                region: REGION | KERNEL_REGION,
                key: KEY,
                offset: number * 300,
            },
            operation: Operation::Put(vec![number as u8 + 1; bytes]),
        };
        let header = Header {
            kind: Kind::Request,
            flags: flags(number),
            receiver: INDEX,
            number: 70 + number,
        };
        let mut packet = Vec::new();
        emit_request(header, &request, &pair.requests, &mut packet);
        segment = segment.max(packet.len());
        payload.extend(&packet);
        pair.answer(&packet);
    }
    let input = frame(Shape::Ipv4, &payload, false);
    let run = pair
        .program
        .test_run_segmented(&input, segment as u32, 8)
        .expect("the kernel runs it");
    pair.check_equal(&"a super-packet");
    run
}

#[test]
#[ignore = "needs root, bpf"]
fn program__super_packet_of_gets__is_left_to_the_program() {
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    let mut payload = Vec::new();
    for number in 0..4 {
        let header = Header {
            kind: Kind::Request,
            flags: Flags::default(),
            receiver: INDEX,
            number,
        };
        let request = Request {
            number,
            place: Place {
                region: REGION | KERNEL_REGION,
                key: KEY,
                offset: 0,
            },
            operation: Operation::Get(1_000),
        };
        emit_request(header, &request, &pair.requests, &mut payload);
    }
    let input = frame(Shape::Ipv4, &payload, false);
    let segment_bytes = payload.len() as u32 / 4;
    let run = pair.program.test_run_segmented(&input, segment_bytes, 4);
    let (action, output) = run.expect("the kernel runs it");
    assert_eq!((action, &output[..]), (UNSPEC, &input[..]));
    pair.check_equal(&"gets");
}

/// Returns the packet number of the response in a frame, the requests that it answers, and those in
/// its summary.
fn answered(pair: &Pair, output: &[u8]) -> (u64, Vec<u64>, Option<Vec<u64>>) {
    let packet = &output[14 + 28..];
    let response = parse_response(packet, &pair.responses).expect("authentic");
    let answers = response.answers.iter();
    assert!(answers.clone().all(|answer| answer.result == Ok(&[])));
    (
        Header::parse(packet).unwrap().number,
        answers.map(|answer| answer.operation).collect(),
        response.summary.map(|summary| summary.numbers().collect()),
    )
}

#[test]
#[ignore = "needs root, bpf"]
fn program__super_packet__answers_all_of_its_requests_at_once() {
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    let (action, output) = send_super_packet(&mut pair, |_| Flags::default());
    assert_eq!(action, REDIRECT);
    assert_eq!(answered(&pair, &output), (77, (0..8).collect(), None));
}

#[test]
#[ignore = "needs root, bpf"]
fn program__super_packet_of_quiet_puts__answers_the_others_with_a_summary_or_nothing() {
    let quiet = |number: u64| Flags {
        is_quiet: number != 2 && number != 6,
        wants_summary: number == 6,
        ..Flags::default()
    };
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    let (action, output) = send_super_packet(&mut pair, quiet);
    assert_eq!(action, REDIRECT);
    let of_summary = Some((0..7).collect());
    assert_eq!(answered(&pair, &output), (76, vec![2, 6], of_summary));
    let all = |_| Flags {
        is_quiet: true,
        ..Flags::default()
    };
    let mut pair = Pair::new(Shape::Ipv4, Seal::Authenticate);
    assert_eq!(send_super_packet(&mut pair, all).0, SHOT);
}
