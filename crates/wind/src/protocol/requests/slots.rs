//! Execution of requests: each number once, by the kernel or the program.
//!
//! ```text
//!   slot of request n: n mod SLOTS       two words
//!   state  = (n + 1) · 256 + refusal · 2 + is running       0: never used
//!   result = the word before an atomic operation
//!
//!   n + 1 < number of the state:  old, no answer: the requester has it
//!   n + 1 = number of the state:  running: no answer; otherwise the same answer again
//!   n + 1 > number of the state:  claimed by compare-and-swap, executed, and then marked as done
//! ```
//!
//! A requester is at most [`SLOTS`] numbers ahead of its oldest unanswered request.

use crate::protocol::model::{Operation, Refused, Regions};
use crate::protocol::operations::perform;
use crate::protocol::wire::{Answer, Flags, Request, Response, Summary};
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots of a session. `bpf/wind/intf.h` has the same number.
pub const SLOTS: u64 = 128;

/// Words of the slots of a session: two for each slot.
pub const SLOT_WORDS: usize = 2 * SLOTS as usize;

/// Memory of the slots of one session, which the kernel may share.
pub trait SlotMemory: Send + Sync {
    /// Returns a word, below [`SLOT_WORDS`].
    fn word(&self, index: usize) -> &AtomicU64;
}

impl SlotMemory for Vec<AtomicU64> {
    fn word(&self, index: usize) -> &AtomicU64 {
        &self[index]
    }
}

const RUNNING: u64 = 1;

/// Result of a request; `None` if it has none now.
pub type Outcome = Option<Result<Vec<u8>, Refused>>;

fn done(number: u64, refused: Option<Refused>) -> u64 {
    (number + 1) << 8 | refused.map_or(0, |reason| reason as u64) << 1
}

/// A word that several threads, or the kernel, change. Tests have one whose interleavings are
/// explored.
trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Replaces `seen` by `value`. Returns false if the word has changed since.
    fn replace(&self, seen: u64, value: u64, order: Ordering) -> bool;
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn replace(&self, seen: u64, value: u64, order: Ordering) -> bool {
        let replaced = self.compare_exchange(seen, value, order, Ordering::Relaxed);
        replaced.is_ok()
    }
}

/// Right to execute or to repeat a request.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// It is executed now, by the caller only.
    Execute,
    /// It was executed before; its state.
    Repeat(u64),
    /// It is old, or another one executes it.
    Nothing,
}

fn claim(number: u64, state: &impl Word) -> Turn {
    let seen = state.load(Ordering::Acquire);
    let newest = seen >> 8;
    // The top of the range is refused, so that the state fits its word.
    if number >= 1 << 55 || seen & RUNNING != 0 || number + 1 < newest {
        return Turn::Nothing;
    }
    if number + 1 == newest {
        return Turn::Repeat(seen);
    }
    match state.replace(seen, (number + 1) << 8 | RUNNING, Ordering::AcqRel) {
        true => Turn::Execute,
        false => Turn::Nothing,
    }
}

/// Records that a request was executed. `word` is the result of an atomic operation.
fn complete(
    number: u64,
    refused: Option<Refused>,
    word: Option<u64>,
    state: &impl Word,
    result: &impl Word,
) {
    if let Some(word) = word {
        result.store(word, Ordering::Relaxed);
    }
    // The result is visible to whoever sees the state.
    state.store(done(number, refused), Ordering::Release);
}

/// Executes a request, or repeats its answer.
pub fn execute(request: &Request, slots: &dyn SlotMemory, regions: &mut dyn Regions) -> Outcome {
    let at = 2 * (request.number % SLOTS) as usize;
    let (state, result) = (slots.word(at), slots.word(at + 1));
    match claim(request.number, state) {
        Turn::Nothing => return None,
        Turn::Repeat(seen) => return Some(repeat(request, seen, result, regions)),
        Turn::Execute => {}
    }
    let answer = perform(&request.place, &request.operation, regions);
    let word = match (&request.operation, &answer) {
        (Operation::Atomic(_), Ok(bytes)) => bytes.as_slice().try_into().ok(),
        _ => None,
    };
    let word = word.map(u64::from_be_bytes);
    let refused = answer.as_ref().err().copied();
    complete(request.number, refused, word, state, result);
    Some(answer)
}

/// Returns the answer of a request that was executed before.
fn repeat(
    request: &Request,
    seen: u64,
    result: &AtomicU64,
    regions: &mut dyn Regions,
) -> Result<Vec<u8>, Refused> {
    if let Some(refused) = Refused::from_wire((seen >> 1 & 0x7f) as u8) {
        return Err(refused);
    }
    match &request.operation {
        Operation::Put(_) | Operation::PutDiff(_) => Ok(Vec::new()),
        Operation::Atomic(_) => Ok(result.load(Ordering::Relaxed).to_be_bytes().to_vec()),
        // Reading again changes nothing, and the requester takes one of the answers.
        Operation::Get(_) => perform(&request.place, &request.operation, regions),
    }
}

/// Returns which requests up to `highest` were executed and not refused.
pub fn summary(slots: &dyn SlotMemory, highest: u64) -> Summary {
    let is_executed = |place: &u64| {
        let number = highest.checked_sub(*place);
        number.is_some_and(|number| {
            let state = slots.word(2 * (number % SLOTS) as usize);
            state.load(Ordering::Acquire) == done(number, None)
        })
    };
    let places = (0..u64::from(u64::BITS)).filter(is_executed);
    Summary {
        highest,
        executed: places.fold(0, |bits, place| bits | 1 << place),
    }
}

/// Returns the answers to a request that has just been executed with `result`; `None` if its sender
/// wants none.
pub fn respond<'a>(
    flags: Flags,
    request: &Request,
    result: &'a Result<Vec<u8>, Refused>,
    slots: &dyn SlotMemory,
) -> Option<Response<'a>> {
    let is_put = request.operation.is_put();
    if flags.is_quiet && is_put && result.is_ok() {
        return None;
    }
    let result = result.as_ref().map(Vec::as_slice).map_err(|reason| *reason);
    let answer = Answer {
        operation: request.number,
        result,
    };
    // The response to a get may have no room for it.
    let has_summary = flags.wants_summary && !matches!(request.operation, Operation::Get(_));
    Some(Response {
        answers: vec![answer],
        summary: has_summary.then(|| summary(slots, request.number)),
    })
}

/// Returns the number of requests that were executed without a gap, given an earlier such number.
pub fn executed(slots: &dyn SlotMemory, mut count: u64) -> u64 {
    loop {
        let state = slots
            .word(2 * (count % SLOTS) as usize)
            .load(Ordering::Acquire);
        // A later request in the slot means that the requester has the answer of this one.
        let is_done = state >> 8 > count + 1 || state >> 8 == count + 1 && state & RUNNING == 0;
        if !is_done {
            return count;
        }
        count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Explored;
    use loom::thread;

    impl Word for Explored {
        fn load(&self, order: Ordering) -> u64 {
            Explored::load(self, order)
        }

        fn store(&self, value: u64, order: Ordering) {
            Explored::store(self, value, order);
        }

        fn replace(&self, seen: u64, value: u64, order: Ordering) -> bool {
            let replaced = self.compare_exchange(seen, value, order, Ordering::Relaxed);
            replaced.is_ok()
        }
    }

    /// The words of a slot, and a memory to which requests add.
    struct Shared {
        state: Explored,
        result: Explored,
        memory: Explored,
    }

    /// Adds one to the memory, as the kernel and the program do. Returns the word before it.
    fn add(number: u64, shared: &Shared) -> Option<u64> {
        match claim(number, &shared.state) {
            Turn::Nothing => None,
            Turn::Repeat(seen) => {
                assert_eq!(seen, done(number, None));
                Some(shared.result.load(Ordering::Relaxed))
            }
            Turn::Execute => {
                let before = shared.memory.fetch_add(1, Ordering::Relaxed);
                complete(number, None, Some(before), &shared.state, &shared.result);
                Some(before)
            }
        }
    }

    /// Every interleaving of the kernel and the program, which receive the same requests.
    #[test]
    fn request__at_the_kernel_and_the_program__is_executed_once_and_answered_equally() {
        loom::model(|| {
            let shared = Arc::new(Shared {
                state: Explored::new(0),
                result: Explored::new(0),
                memory: Explored::new(0),
            });
            // The next request of the slot is sent when this one has an answer.
            let both = |shared: &Shared| {
                let first = add(0, shared);
                (first, first.and_then(|_| add(SLOTS, shared)))
            };
            let other = thread::spawn({
                let shared = Arc::clone(&shared);
                move || both(&shared)
            });
            let (own, own_next) = both(&shared);
            let (others, others_next) = other.join().unwrap();
            // An answer after the first one is ignored: its slot may have the next result.
            assert!(own.is_some() || others.is_some());
            assert!(others_next.is_some() || own.is_none_or(|before| before == 0));
            assert!(own_next.is_some() || others.is_none_or(|before| before == 0));
            for before in [own_next, others_next].into_iter().flatten() {
                assert_eq!(before, 1);
            }
            let is_next = own_next.or(others_next).is_some();
            assert_eq!(
                shared.memory.load(Ordering::Relaxed),
                1 + u64::from(is_next)
            );
        });
    }
}
