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

/// Executes a request, or repeats its answer.
pub fn execute(request: &Request, slots: &dyn SlotMemory, regions: &mut dyn Regions) -> Outcome {
    let at = 2 * (request.number % SLOTS) as usize;
    let (state, result) = (slots.word(at), slots.word(at + 1));
    let seen = state.load(Ordering::Acquire);
    let newest = seen >> 8;
    // The top of the range is refused, so that the state fits its word.
    if request.number >= 1 << 55 || seen & RUNNING != 0 || request.number + 1 < newest {
        return None;
    }
    if request.number + 1 == newest {
        return Some(repeat(request, seen, result, regions));
    }
    let claim = (request.number + 1) << 8 | RUNNING;
    state
        .compare_exchange(seen, claim, Ordering::AcqRel, Ordering::Relaxed)
        .ok()?;
    let answer = perform(&request.place, &request.operation, regions);
    if let (Operation::Atomic(_), Ok(bytes)) = (&request.operation, &answer) {
        let word = bytes.as_slice().try_into().map_or(0, u64::from_be_bytes);
        result.store(word, Ordering::Relaxed);
    }
    let refused = answer.as_ref().err().copied();
    state.store(done(request.number, refused), Ordering::Release);
    Some(answer)
}

/// Returns the answer of a request that was executed before.
fn repeat(
    request: &Request,
    state: u64,
    result: &AtomicU64,
    regions: &mut dyn Regions,
) -> Result<Vec<u8>, Refused> {
    if let Some(refused) = Refused::from_wire((state >> 1 & 0x7f) as u8) {
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
