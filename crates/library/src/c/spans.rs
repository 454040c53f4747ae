//! Memory of a C caller, as a collective sees it.

use crate::group::Memory;
use crate::work::AskedOperation;
use std::ptr;

/// A run of the caller's memory.
#[derive(Debug, Clone, Copy)]
struct Span {
    at: *mut u8,
    bytes: u64,
}

const NONE: Span = Span {
    at: ptr::null_mut(),
    bytes: 0,
};

impl Span {
    fn part(&self, offset: u64, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes as u64);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} of a block of {}",
            self.bytes
        );
        // SAFETY: the part lies within the span, which its caller says is one run of memory.
        unsafe { self.at.add(offset as usize) }
    }

    /// # Safety
    /// Both are as long, and may be read and written.
    unsafe fn copy_to(&self, other: &Self) {
        if self.bytes > 0 && self.at != other.at {
            // SAFETY: as the caller says.
            unsafe { ptr::copy(self.at, other.at, self.bytes as usize) };
        }
    }
}

/// The blocks of one collective on one rank.
#[derive(Debug)]
pub struct Spans {
    out: Vec<Span>,
    place: Vec<Span>,
    /// Of an all-to-all a block is named by its pair of as many ranks.
    pairs_of: Option<u64>,
    /// What is combined on a rank that does not get it all.
    _scratch: Vec<u8>,
    /// What is copied at the end.
    end: Option<(Span, Span)>,
}

// SAFETY: the caller leaves the memory alone until the collective is over, whichever thread moves its bytes.
unsafe impl Send for Spans {}

/// What a C caller says of a collective's memory.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    pub operation: AskedOperation,
    pub root: usize,
    pub rank: usize,
    pub ranks: usize,
    /// As in [`crate::Asked`], and as many.
    pub bytes: &'a [u64],
    pub from: *const *const u8,
    pub to: *const *mut u8,
}

impl Tables<'_> {
    /// # Safety
    /// `from` has more than `at` pointers.
    unsafe fn from(&self, at: usize, bytes: u64) -> Span {
        // SAFETY: as the caller says.
        let at = unsafe { *self.from.add(at) };
        Span {
            at: at.cast_mut(),
            bytes,
        }
    }

    /// # Safety
    /// `to` has more than `at` pointers.
    unsafe fn to(&self, at: usize, bytes: u64) -> Span {
        // SAFETY: as the caller says.
        let at = unsafe { *self.to.add(at) };
        Span { at, bytes }
    }
}

impl Spans {
    /// Where the blocks of a collective are. What a rank has of its own goes to its place at once.
    ///
    /// # Safety
    /// The tables have as many pointers as `bindings/c/kumi_group.h` says, to blocks as long as `bytes` says, which
    /// stand until the collective is over.
    pub unsafe fn new(tables: &Tables<'_>) -> Self {
        let Tables {
            operation,
            root,
            rank,
            ranks,
            bytes,
            ..
        } = *tables;
        let is_root = rank == root;
        let own = |span: Span| {
            let mut table = vec![NONE; ranks];
            table[rank] = span;
            table
        };
        // SAFETY: the caller says that the tables are as long as the operation has them, and what is in them.
        unsafe {
            let all_from = |bytes: &[u64]| -> Vec<Span> {
                let spans = bytes.iter().enumerate();
                spans.map(|(at, bytes)| tables.from(at, *bytes)).collect()
            };
            let all_to = |bytes: &[u64]| -> Vec<Span> {
                let spans = bytes.iter().enumerate();
                spans.map(|(at, bytes)| tables.to(at, *bytes)).collect()
            };
            match operation {
                AskedOperation::Gather if is_root => {
                    let to = all_to(bytes);
                    tables.from(0, bytes[rank]).copy_to(&to[rank]);
                    Self::of(to)
                }
                AskedOperation::Gather => Self::of(own(tables.from(0, bytes[rank]))),
                AskedOperation::Scatter if is_root => {
                    let from = all_from(bytes);
                    from[rank].copy_to(&tables.to(0, bytes[rank]));
                    Self::of(from)
                }
                AskedOperation::Scatter => Self::of(own(tables.to(0, bytes[rank]))),
                AskedOperation::Broadcast => Self::of(all_to(bytes)),
                AskedOperation::AllReduce => {
                    let to = tables.to(0, bytes[0]);
                    tables.from(0, bytes[0]).copy_to(&to);
                    Self::of(vec![to])
                }
                AskedOperation::Reduce if is_root => {
                    let to = tables.to(0, bytes[0]);
                    tables.from(0, bytes[0]).copy_to(&to);
                    Self::of(vec![to])
                }
                AskedOperation::Reduce => Self::apart(&all_from(bytes)),
                AskedOperation::AllGather => {
                    let to = all_to(bytes);
                    tables.from(0, bytes[rank]).copy_to(&to[rank]);
                    Self::of(to)
                }
                AskedOperation::ReduceScatter => {
                    let mut spans = Self::apart(&all_from(bytes));
                    spans.end = Some((spans.out[rank], tables.to(0, bytes[rank])));
                    spans
                }
                AskedOperation::AllToAll => {
                    let row = &bytes[rank * ranks..][..ranks];
                    let column: Vec<u64> =
                        bytes.iter().skip(rank).step_by(ranks).copied().collect();
                    let (from, to) = (all_from(row), all_to(&column));
                    let is_shared = |span: &Span| {
                        span.bytes > 0 && to.iter().any(|to| to.at == span.at && to.bytes > 0)
                    };
                    let mut spans = match from.iter().any(is_shared) {
                        // In place: what is sent is read where it will be written.
                        true => Self::apart(&from),
                        false => Self::of(from),
                    };
                    spans.out[rank].copy_to(&to[rank]);
                    spans.place = to;
                    spans.pairs_of = Some(ranks as u64);
                    spans
                }
            }
        }
    }

    /// One run, of a message.
    pub fn one(at: *mut u8, bytes: u64) -> Self {
        Self::of(vec![Span { at, bytes }])
    }

    fn of(spans: Vec<Span>) -> Self {
        Self {
            out: spans.clone(),
            place: spans,
            pairs_of: None,
            _scratch: Vec::new(),
            end: None,
        }
    }

    /// A copy of what is in some spans.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn apart(spans: &[Span]) -> Self {
        let all: u64 = spans.iter().map(|span| span.bytes).sum();
        let mut scratch = vec![0; all as usize];
        let mut begin = 0;
        let copies = spans.iter().map(|span| {
            // SAFETY: the copies are as long as `scratch` together, and it does not move; `span` is as its caller says.
            let copy = unsafe {
                let copy = Span {
                    at: scratch.as_mut_ptr().add(begin),
                    bytes: span.bytes,
                };
                span.copy_to(&copy);
                copy
            };
            begin += span.bytes as usize;
            copy
        });
        let copies = copies.collect();
        Self {
            _scratch: scratch,
            ..Self::of(copies)
        }
    }
}

impl Memory for Spans {
    fn out(&self, block: u64, offset: u64, bytes: usize) -> &[u8] {
        if bytes == 0 {
            return &[];
        }
        let block = self.pairs_of.map_or(block, |ranks| block % ranks);
        let at = self.out[block as usize].part(offset, bytes);
        // SAFETY: the part lies within a span, which the caller leaves alone until the collective is over.
        unsafe { std::slice::from_raw_parts(at, bytes) }
    }

    fn place(&mut self, block: u64, offset: u64, bytes: usize) -> &mut [u8] {
        if bytes == 0 {
            return &mut [];
        }
        let block = self.pairs_of.map_or(block, |ranks| block / ranks);
        let at = self.place[block as usize].part(offset, bytes);
        // SAFETY: as above; and `self` is borrowed alone, so no other slice of it is.
        unsafe { std::slice::from_raw_parts_mut(at, bytes) }
    }

    fn finish(&mut self) {
        if let Some((from, to)) = self.end.take() {
            // SAFETY: both are a block of this rank's length, one in scratch.
            unsafe { from.copy_to(&to) };
        }
    }
}
