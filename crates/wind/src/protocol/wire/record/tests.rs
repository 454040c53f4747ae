use super::*;
use crate::protocol::model::{Class, Mode};
use crate::protocol::wire::Before;
use proptest::prelude::*;

const PLACE: Place = Place {
    region: 3,
    key: [9; 16],
    offset: 1 << 40,
};

fn examples() -> Vec<Record<'static>> {
    let segment = |class: Class, mode: Mode, offset| {
        Record::Segment(Segment {
            class,
            mode,
            message: 5,
            total_bytes: 100,
            offset,
            header_bytes: 7,
            after: (class.is_ordered() && offset == 0).then_some(Before {
                unordered: 3,
                operations: 4,
                requests: 5,
            }),
            place: mode.is_direct().then_some(PLACE),
            payload: if offset == 0 {
                b"0123456"
            } else {
                b"0123456789"
            },
        })
    };
    let operation = |operation| Record::Operation {
        number: 11,
        place: PLACE,
        operation,
    };
    let answer = |result| {
        Record::Answer(Answer {
            operation: 8,
            result,
        })
    };
    let mut all: Vec<Record<'static>> = Class::ALL
        .into_iter()
        .flat_map(|class| Mode::ALL.map(|mode| [segment(class, mode, 0), segment(class, mode, 90)]))
        .flatten()
        .collect();
    for class in Class::ALL {
        let after = class.is_ordered().then_some(Before {
            unordered: 1,
            operations: 0,
            requests: 2,
        });
        let bodies: [(bool, &'static [u8]); 2] = [
            (false, b"\x00\x03abc\x00\x00\x00\x01d"),
            (true, b"\x00\x03\x00\x02abc"),
        ];
        all.extend(bodies.map(|(has_headers, body)| {
            Record::Batch(Batch {
                class,
                first: 7,
                after,
                has_headers,
                body,
            })
        }));
    }
    all.extend([
        Record::Ack(Ack {
            delay_us: 12,
            ranges: vec![90..100, 70..80, 0..1],
        }),
        Record::Grant(1 << 33),
        operation(Operation::Put(b"abc".to_vec())),
        operation(Operation::PutDiff(Vec::new())),
        operation(Operation::Get(1000)),
        operation(Operation::Atomic(Atomic::FetchAdd(7))),
        operation(Operation::Atomic(Atomic::CompareSwap {
            expected: 1,
            new: 2,
        })),
        operation(Operation::Atomic(Atomic::Swap(3))),
        operation(Operation::Atomic(Atomic::MaskedStore { mask: 4, value: 5 })),
        answer(Ok(b"12345678")),
        answer(Err(Refused::Bounds)),
        Record::Placed(6),
        Record::Rejection {
            is_ordered: true,
            message: 9,
            reason: Refused::Region,
        },
        Record::Wanted(7),
        Record::Ping,
        Record::Close,
    ]);
    all
}

#[test]
fn records__all_kinds_in_one_packet__are_parsed_equal_and_never_truncated() {
    let records = examples();
    let mut bytes = Vec::new();
    let mut ends = vec![0];
    for record in &records {
        record.emit(&mut bytes);
        ends.push(bytes.len());
    }
    assert_eq!(parse_records(&bytes), Ok(records));
    for length in 0..bytes.len() {
        let is_whole = ends.contains(&length);
        assert_eq!(
            parse_records(&bytes[..length]).is_ok(),
            is_whole,
            "{length}"
        );
    }
}

/// `docs/spec/wind.md`: a message of 3 bytes, and a compare and swap.
#[test]
fn records__of_the_specification__have_these_bytes() {
    let segment = Record::Segment(Segment {
        class: Class::Synchronous,
        mode: Mode::MessageThrough,
        message: 0x0102,
        total_bytes: 3,
        offset: 0,
        header_bytes: 1,
        after: Some(Before {
            unordered: 4,
            operations: 5,
            requests: 6,
        }),
        place: None,
        payload: b"abc",
    });
    let operation = Record::Operation {
        number: 6,
        place: Place {
            region: 7,
            key: *b"0123456789abcdef",
            offset: 8,
        },
        operation: Operation::Atomic(Atomic::CompareSwap {
            expected: 9,
            new: 10,
        }),
    };
    let mut bytes = Vec::new();
    segment.emit(&mut bytes);
    operation.emit(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = [
        "03200003",
        "0000000000000102",
        "00000003",
        "00000000",
        "0001",
        "0000000000000004",
        "0000000000000005",
        "0000000000000006",
        "616263",
        "04040000",
        "0000000000000006",
        "00000007",
        "30313233343536373839616263646566",
        "0000000000000008",
        "0000000000000009",
        "000000000000000a",
    ];
    assert_eq!(hex, expected.concat());
}

#[test]
fn segment__head_bytes__are_the_emitted_length() {
    for record in examples() {
        if let Record::Segment(segment) = &record {
            let mut bytes = Vec::new();
            record.emit(&mut bytes);
            let head = Segment::head_bytes(segment.class, segment.mode, segment.offset);
            assert_eq!(bytes.len(), head + segment.payload.len());
        }
    }
}

#[test]
fn ack__more_ranges_than_fit__keeps_the_highest() {
    let ranges: Vec<_> = (0..100_u64).rev().map(|at| 2 * at..2 * at + 1).collect();
    let mut bytes = Vec::new();
    Record::Ack(Ack {
        delay_us: 0,
        ranges: ranges.clone(),
    })
    .emit(&mut bytes);
    let expected = Ack {
        delay_us: 0,
        ranges: ranges[..ACK_RANGES_MAX].to_vec(),
    };
    assert_eq!(parse_records(&bytes), Ok(vec![Record::Ack(expected)]));
}

proptest! {
    #[test]
    fn records__any_bytes__are_parsed_to_records_that_emit_them_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..120),
        kind in 0_u8..14,
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(records) = parse_records(&bytes) {
            let mut again = Vec::new();
            records.iter().for_each(|record| record.emit(&mut again));
            // Padding.
            again.resize(bytes.len(), 0);
            prop_assert_eq!(again, bytes);
        }
    }
}
