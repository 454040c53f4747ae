//! Memory of a C caller, as the memory of a collective.

use crate::group::Memory;
use crate::request::RequestedOperation;
use std::ptr;

/// Contiguous memory of the caller.
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
            "{bytes} bytes at offset {offset} exceed a block of {} bytes",
            self.bytes
        );
        // SAFETY: the part lies within the span, which is contiguous memory as its creator
        // guarantees.
        unsafe { self.at.add(offset as usize) }
    }

    /// # Safety
    /// Both spans have the same length, and may be read and written.
    unsafe fn copy_to(&self, other: &Self) {
        if self.bytes > 0 && self.at != other.at {
            // SAFETY: the caller guarantees it.
            unsafe { ptr::copy(self.at, other.at, self.bytes as usize) };
        }
    }
}

/// Blocks of one collective on one rank.
#[derive(Debug)]
pub struct Spans {
    out: Vec<Span>,
    place: Vec<Span>,
    /// Number of ranks in an all-to-all, whose blocks are numbered by pair; otherwise `None`.
    pairs_of: Option<u64>,
    /// Copies of the caller's blocks, where a collective must not write to them.
    _scratch: Vec<u8>,
    /// Source and destination of a copy at the end.
    end: Option<(Span, Span)>,
}

// SAFETY: the caller does not touch the memory until the collective has ended, so any thread may
// access it.
unsafe impl Send for Spans {}

/// Memory of a collective, as a C caller describes it.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    pub operation: RequestedOperation,
    pub root: usize,
    pub rank: usize,
    pub ranks: usize,
    /// Lengths of the blocks in bytes, as in [`crate::Request`].
    pub bytes: &'a [u64],
    pub from: *const *const u8,
    pub to: *const *mut u8,
}

impl Tables<'_> {
    /// # Safety
    /// `from` holds more than `at` pointers.
    unsafe fn from(&self, at: usize, bytes: u64) -> Span {
        // SAFETY: the caller guarantees it.
        let at = unsafe { *self.from.add(at) };
        Span {
            at: at.cast_mut(),
            bytes,
        }
    }

    /// # Safety
    /// `to` holds more than `at` pointers.
    unsafe fn to(&self, at: usize, bytes: u64) -> Span {
        // SAFETY: the caller guarantees it.
        let at = unsafe { *self.to.add(at) };
        Span { at, bytes }
    }
}

impl Spans {
    /// Locates the blocks of a collective. It copies the rank's own input to its destination at
    /// once.
    ///
    /// # Safety
    /// The tables hold as many pointers as `bindings/c/kumi_group.h` requires. The pointers are to
    /// blocks of the lengths in `bytes`, which stay valid until the collective has ended.
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
        // SAFETY: the caller guarantees the length of the tables and their contents.
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
                RequestedOperation::Gather if is_root => {
                    let to = all_to(bytes);
                    tables.from(0, bytes[rank]).copy_to(&to[rank]);
                    Self::of(to)
                }
                RequestedOperation::Gather => Self::of(own(tables.from(0, bytes[rank]))),
                RequestedOperation::Scatter if is_root => {
                    let from = all_from(bytes);
                    from[rank].copy_to(&tables.to(0, bytes[rank]));
                    Self::of(from)
                }
                RequestedOperation::Scatter => Self::of(own(tables.to(0, bytes[rank]))),
                RequestedOperation::Broadcast => Self::of(all_to(bytes)),
                RequestedOperation::AllReduce => {
                    let to = tables.to(0, bytes[0]);
                    tables.from(0, bytes[0]).copy_to(&to);
                    Self::of(vec![to])
                }
                RequestedOperation::Reduce if is_root => {
                    let to = tables.to(0, bytes[0]);
                    tables.from(0, bytes[0]).copy_to(&to);
                    Self::of(vec![to])
                }
                RequestedOperation::Reduce => Self::apart(&all_from(bytes)),
                RequestedOperation::AllGather => {
                    let to = all_to(bytes);
                    tables.from(0, bytes[rank]).copy_to(&to[rank]);
                    Self::of(to)
                }
                RequestedOperation::ReduceScatter => {
                    let mut spans = Self::apart(&all_from(bytes));
                    spans.end = Some((spans.out[rank], tables.to(0, bytes[rank])));
                    spans
                }
                RequestedOperation::AllToAll => {
                    let row = &bytes[rank * ranks..][..ranks];
                    let column: Vec<u64> =
                        bytes.iter().skip(rank).step_by(ranks).copied().collect();
                    let (from, to) = (all_from(row), all_to(&column));
                    let is_shared = |span: &Span| {
                        span.bytes > 0 && to.iter().any(|to| to.at == span.at && to.bytes > 0)
                    };
                    let mut spans = match from.iter().any(is_shared) {
                        // The operation is in place: the blocks to send lie where blocks will be
                        // received.
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

    /// Returns the memory of a message, which is a single block.
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

    /// Copies the contents of spans.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn apart(spans: &[Span]) -> Self {
        let all: u64 = spans.iter().map(|span| span.bytes).sum();
        let mut scratch = vec![0; all as usize];
        let mut begin = 0;
        let copies = spans.iter().map(|span| {
            // SAFETY: `scratch` is as long as all copies together and does not move. The caller
            // guarantees `span`.
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
        // SAFETY: the part lies within a span, which the caller does not touch until the collective
        // has ended.
        unsafe { std::slice::from_raw_parts(at, bytes) }
    }

    fn place(&mut self, block: u64, offset: u64, bytes: usize) -> &mut [u8] {
        if bytes == 0 {
            return &mut [];
        }
        let block = self.pairs_of.map_or(block, |ranks| block / ranks);
        let at = self.place[block as usize].part(offset, bytes);
        // SAFETY: as above; and `self` is borrowed exclusively, so no other slice of it exists.
        unsafe { std::slice::from_raw_parts_mut(at, bytes) }
    }

    fn finish(&mut self) {
        if let Some((from, to)) = self.end.take() {
            // SAFETY: both are blocks of this rank's length, one of them in scratch memory.
            unsafe { from.copy_to(&to) };
        }
    }
}
