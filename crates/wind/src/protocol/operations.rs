//! One-sided operations: those that this side executes for a peer, and the results of its own.
//!
//! The target executes each operation once. It remembers which ones it has executed, and keeps the
//! answer of each until the requester has it.

use crate::protocol::inbox::Violation;
use crate::protocol::memory;
use crate::protocol::model::{Atomic, Operation, Place, Refused, Regions, check_place, place};
use crate::protocol::outbox::UNACKED_SPAN_MAX;
use crate::protocol::ranges::Ranges;
use crate::protocol::wire::{ANSWER_HEAD_BYTES, Answer, Record};
use std::collections::{BTreeMap, VecDeque};

/// Answer that is kept: the bytes of the result.
type Kept = Result<Vec<u8>, Refused>;

/// Operations of one peer on this side's memory.
#[derive(Debug, Default)]
pub struct Executed {
    numbers: Ranges,
    answers: BTreeMap<u64, Kept>,
    to_send: VecDeque<u64>,
}

impl Executed {
    /// Returns the number of operations that were executed without a gap.
    pub fn count(&self) -> u64 {
        self.numbers.first_gap(0)
    }

    /// Returns whether the operation was executed before.
    pub fn contains(&self, number: u64) -> bool {
        self.numbers.contains(number)
    }

    /// Executes an operation that was not executed before.
    pub fn execute(
        &mut self,
        number: u64,
        target: &Place,
        operation: &Operation,
        regions: &mut dyn Regions,
    ) -> Result<(), Violation> {
        if number >= self.count() + UNACKED_SPAN_MAX {
            return Err(Violation::Span);
        }
        self.numbers.insert(number..number + 1);
        let answer = perform(target, operation, regions);
        self.answers.insert(number, answer);
        self.to_send.push_back(number);
        Ok(())
    }

    /// Returns whether answers wait for transmission.
    pub fn is_ready(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// Appends one answer of at most `room` bytes to `out`. Returns the number of its operation.
    pub fn emit(&mut self, room: usize, out: &mut Vec<u8>) -> Option<u64> {
        while let Some(number) = self.to_send.front().copied() {
            if let Some(answer) = self.answers.get(&number) {
                let bytes = answer.as_ref().map_or(0, Vec::len);
                if ANSWER_HEAD_BYTES + bytes > room {
                    return None;
                }
                let result = answer.as_ref().map(Vec::as_slice).map_err(|reason| *reason);
                let record = Record::Answer(Answer {
                    operation: number,
                    result,
                });
                record.emit(out);
                self.to_send.pop_front();
                return Some(number);
            }
            self.to_send.pop_front();
        }
        None
    }

    /// Schedules an answer for retransmission.
    pub fn send_again(&mut self, number: u64) {
        if self.answers.contains_key(&number) {
            self.to_send.push_back(number);
        }
    }

    /// Records that an answer arrived.
    pub fn note_arrived(&mut self, number: u64) {
        self.answers.remove(&number);
    }

    /// Frees what the collections keep beyond their entries.
    pub fn release(&mut self) {
        memory::release(&mut self.answers);
        self.to_send.shrink_to_fit();
    }
}

/// Performs an operation, and returns the bytes of its result.
pub fn perform(
    target: &Place,
    operation: &Operation,
    regions: &mut dyn Regions,
) -> Result<Vec<u8>, Refused> {
    match operation {
        Operation::Put(bytes) => place(regions, target, bytes, false).map(|()| Vec::new()),
        Operation::PutDiff(bytes) => place(regions, target, bytes, true).map(|()| Vec::new()),
        Operation::Get(bytes) => {
            check_place(regions, target, u64::from(*bytes))?;
            let mut out = vec![0; usize::from(*bytes)];
            regions.read(target.region, target.offset, &mut out);
            Ok(out)
        }
        Operation::Atomic(atomic) => update(target, *atomic, regions),
    }
}

fn update(target: &Place, atomic: Atomic, regions: &mut dyn Regions) -> Kept {
    check_place(regions, target, 8)?;
    if target.offset % 8 != 0 {
        return Err(Refused::Alignment);
    }
    let before = regions.update(target.region, target.offset, atomic);
    Ok(before.to_be_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{KEY, Memory};

    fn at(offset: u64) -> Place {
        Place {
            region: 0,
            key: KEY,
            offset,
        }
    }

    /// Executes `operation` as number 0 and returns its answer.
    fn answer(memory: &mut Memory, target: Place, operation: Operation) -> Kept {
        let mut executed = Executed::default();
        executed.execute(0, &target, &operation, memory).unwrap();
        executed.answers.remove(&0).unwrap()
    }

    #[test]
    fn operations__valid__change_memory_and_return_its_former_value() {
        let mut memory = Memory::new(64);
        let word = |memory: &Memory| u64::from_ne_bytes(memory.bytes[8..16].try_into().unwrap());
        let mut atomic = |atomic| {
            let answer = answer(&mut memory, at(8), Operation::Atomic(atomic)).unwrap();
            (
                u64::from_be_bytes(answer.try_into().unwrap()),
                word(&memory),
            )
        };
        assert_eq!(atomic(Atomic::FetchAdd(5)), (0, 5));
        assert_eq!(
            atomic(Atomic::CompareSwap {
                expected: 4,
                new: 9
            }),
            (5, 5)
        );
        assert_eq!(
            atomic(Atomic::CompareSwap {
                expected: 5,
                new: 9
            }),
            (5, 9)
        );
        assert_eq!(atomic(Atomic::Swap(u64::MAX)), (9, u64::MAX));
        let masked = Atomic::MaskedStore {
            mask: 0xff,
            value: 0x1234,
        };
        assert_eq!(atomic(masked), (u64::MAX, u64::MAX - 0xcb));
        assert_eq!(
            answer(&mut memory, at(60), Operation::Put(b"abcd".to_vec())),
            Ok(vec![])
        );
        assert_eq!(
            answer(&mut memory, at(61), Operation::Get(3)),
            Ok(b"bcd".to_vec())
        );
    }

    #[test]
    fn operations__outside_or_without_the_key__are_refused_and_change_nothing() {
        let mut memory = Memory::new(64);
        let wrong_key = Place {
            key: [1; 16],
            ..at(0)
        };
        let wrong_region = Place { region: 1, ..at(0) };
        let mut diff = Vec::new();
        crate::protocol::diff::push_run(0, b"x", &mut diff);
        crate::protocol::diff::push_run(63, b"xy", &mut diff);
        let cases = [
            (at(61), Operation::Put(b"abcd".to_vec()), Refused::Bounds),
            (
                at(u64::MAX),
                Operation::Put(b"abcd".to_vec()),
                Refused::Bounds,
            ),
            (at(64), Operation::Get(1), Refused::Bounds),
            (at(64), Operation::Atomic(Atomic::Swap(1)), Refused::Bounds),
            (
                at(12),
                Operation::Atomic(Atomic::Swap(1)),
                Refused::Alignment,
            ),
            (wrong_key, Operation::Put(b"a".to_vec()), Refused::Region),
            (wrong_region, Operation::Get(1), Refused::Region),
            (at(0), Operation::PutDiff(diff), Refused::Bounds),
            (at(0), Operation::PutDiff(vec![0; 5]), Refused::Diff),
        ];
        for (target, operation, reason) in cases {
            assert_eq!(
                answer(&mut memory, target, operation.clone()),
                Err(reason),
                "{operation:?}"
            );
        }
        assert_eq!(memory.bytes, [0; 64]);
    }
}
