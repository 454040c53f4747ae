//! Transfers of pages and diffs by messages, which the receiver's thread takes in: shared memory
//! over UDP without direct placement, with which the Wind paper compares its own. For measurements.
//!
//! ```text
//! | 0xffff | kind (8) | number (32) | region (32) | memory (8) | offset (64) | rest |
//!
//! kind 0, get:    length (32)        answered with the bytes
//! kind 1, diff:   runs               answered with nothing
//! kind 2, bytes:  the bytes          answered with nothing
//! kind 3, answer: bytes
//! ```

use crate::coherence::Memory;
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::protocol::diff;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Way in which pages and diffs travel. The same on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transfers {
    /// One-sided operations, which need no program of the home (Direct Map, Direct Diff).
    #[default]
    Direct,
    /// Messages that the home takes in (Message Through).
    ByMessages,
}

/// First bytes of a transfer. No message of the protocol begins with them: there are fewer nodes.
pub const MARK: [u8; 2] = [0xff, 0xff];

const HEAD_BYTES: usize = 20;

/// Kind of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Get,
    Diff,
    Bytes,
    Answer,
}

/// A transfer.
#[derive(Debug, PartialEq, Eq)]
pub struct Transfer<'a> {
    pub kind: Kind,
    pub number: u32,
    pub place: (usize, Memory),
    pub offset: u64,
    pub rest: &'a [u8],
}

impl Transfer<'_> {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MARK.to_vec();
        out.push(match self.kind {
            Kind::Get => 0,
            Kind::Diff => 1,
            Kind::Bytes => 2,
            Kind::Answer => 3,
        });
        out.extend(self.number.to_be_bytes());
        out.extend((self.place.0 as u32).to_be_bytes());
        out.push(u8::from(self.place.1 == Memory::Replica));
        out.extend(self.offset.to_be_bytes());
        out.extend(self.rest);
        out
    }
}

/// Reads a transfer.
pub fn decode(message: &[u8]) -> Option<Transfer<'_>> {
    let (head, rest) = message.split_at_checked(HEAD_BYTES)?;
    let number = |at: usize| head[at..at + 4].try_into().ok().map(u32::from_be_bytes);
    Some(Transfer {
        kind: match head[2] {
            0 => Kind::Get,
            1 => Kind::Diff,
            2 => Kind::Bytes,
            3 => Kind::Answer,
            _ => return None,
        },
        number: number(3)?,
        place: (
            number(7)? as usize,
            match head[11] {
                0 => Memory::Pages,
                1 => Memory::Replica,
                _ => return None,
            },
        ),
        offset: head[12..].try_into().ok().map(u64::from_be_bytes)?,
        rest,
    })
}

/// Executes a transfer on the memory that it names, and returns its answer.
pub fn execute(transfer: &Transfer<'_>, memory: &SharedMemory) -> Option<Vec<u8>> {
    let start = usize::try_from(transfer.offset).ok()?;
    let has = |bytes: usize| {
        let end = start.checked_add(bytes);
        end.is_some_and(|end| end <= memory.bytes())
    };
    match transfer.kind {
        Kind::Get => {
            let length = u32::from_be_bytes(transfer.rest.try_into().ok()?) as usize;
            let mut bytes = vec![0; Some(length).filter(|length| has(*length))?];
            memory.read(start, &mut bytes);
            return Some(bytes);
        }
        Kind::Bytes if has(transfer.rest.len()) => memory.write(start, transfer.rest),
        Kind::Diff => {
            for run in diff::runs(transfer.rest) {
                let (at, bytes) = run.ok()?;
                let end = (at as usize).checked_add(bytes.len())?;
                memory.write(start + Some(at as usize).filter(|_| has(end))?, bytes);
            }
        }
        Kind::Bytes | Kind::Answer => return None,
    }
    Some(Vec::new())
}

/// Transfers that wait for their answers.
#[derive(Debug, Default)]
pub struct Waiting {
    last: AtomicU32,
    answers: Mutex<HashMap<u32, Vec<u8>>>,
}

impl Waiting {
    /// Returns a number for a transfer.
    pub fn number(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes an answer.
    pub fn answer(&self, number: u32, bytes: Vec<u8>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.insert(number, bytes);
    }

    /// Returns whether the answer has arrived.
    pub fn has(&self, number: u32) -> bool {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.contains_key(&number)
    }

    /// Returns the answer, if it has arrived.
    pub fn take(&self, number: u32) -> Option<Vec<u8>> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(kind: Kind, offset: u64, rest: &[u8]) -> Transfer<'_> {
        Transfer {
            kind,
            number: 7,
            place: (3, Memory::Replica),
            offset,
            rest,
        }
    }

    #[test]
    fn transfer__any__is_read_back_and_executed_within_the_memory() {
        let memory = SharedMemory::new(64).unwrap();
        let bytes = transfer(Kind::Bytes, 60, b"abcd").encode();
        let read = decode(&bytes).unwrap();
        assert_eq!(read, transfer(Kind::Bytes, 60, b"abcd"));
        assert_eq!(execute(&read, &memory), Some(Vec::new()));
        let length = 4_u32.to_be_bytes();
        let got = execute(&transfer(Kind::Get, 60, &length), &memory);
        assert_eq!(got.unwrap(), b"abcd");
        let mut runs = Vec::new();
        diff::push_run(2, b"xy", &mut runs);
        assert!(execute(&transfer(Kind::Diff, 58, &runs), &memory).is_some());
        let got = execute(&transfer(Kind::Get, 60, &length), &memory);
        assert_eq!(got.unwrap(), b"xycd");
        for offset in [61, u64::MAX] {
            assert_eq!(
                execute(&transfer(Kind::Bytes, offset, b"abcd"), &memory),
                None
            );
            assert_eq!(
                execute(&transfer(Kind::Get, offset, &length), &memory),
                None
            );
            assert_eq!(execute(&transfer(Kind::Diff, offset, &runs), &memory), None);
        }
        for length in 0..HEAD_BYTES {
            assert_eq!(decode(&bytes[..length]), None);
        }
    }
}
