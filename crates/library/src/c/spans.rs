//! Memory of a C caller, as the memory of a collective.

use crate::group::Memory;
use crate::request::RequestedOperation;
use std::ptr;

/// Contiguous memory of the caller.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: *mut u8,
    bytes: u64,
}

const EMPTY: Span = Span {
    start: ptr::null_mut(),
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
        unsafe { self.start.add(offset as usize) }
    }

    /// # Safety
    /// Both spans have the same length, and may be read and written.
    unsafe fn copy_to(&self, target: &Self) {
        if self.bytes > 0 && self.start != target.start {
            // SAFETY: the caller guarantees it.
            unsafe { ptr::copy(self.start, target.start, self.bytes as usize) };
        }
    }
}

/// Blocks of one collective on one rank.
#[derive(Debug)]
pub struct Spans {
    sources: Vec<Span>,
    destinations: Vec<Span>,
    /// Number of ranks in an all-to-all, whose blocks are numbered by pair; otherwise `None`.
    all_to_all_ranks: Option<u64>,
    /// Copies of the caller's blocks, where a collective must not write to them.
    _scratch: Vec<u8>,
    /// Source and destination of a copy at the end.
    final_copy: Option<(Span, Span)>,
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
    /// `from` holds more than `index` pointers.
    unsafe fn source(&self, index: usize, bytes: u64) -> Span {
        // SAFETY: the caller guarantees it.
        let start = unsafe { *self.from.add(index) };
        Span {
            start: start.cast_mut(),
            bytes,
        }
    }

    /// # Safety
    /// `to` holds more than `index` pointers.
    unsafe fn destination(&self, index: usize, bytes: u64) -> Span {
        // SAFETY: the caller guarantees it.
        let start = unsafe { *self.to.add(index) };
        Span { start, bytes }
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
        let own_table = |span: Span| {
            let mut table = vec![EMPTY; ranks];
            table[rank] = span;
            table
        };
        // SAFETY: the caller guarantees the length of the tables and their contents.
        unsafe {
            let all_sources = |bytes: &[u64]| -> Vec<Span> {
                let spans = bytes.iter().enumerate();
                spans
                    .map(|(index, bytes)| tables.source(index, *bytes))
                    .collect()
            };
            let all_destinations = |bytes: &[u64]| -> Vec<Span> {
                let spans = bytes.iter().enumerate();
                spans
                    .map(|(index, bytes)| tables.destination(index, *bytes))
                    .collect()
            };
            match operation {
                RequestedOperation::Gather if is_root => {
                    let to = all_destinations(bytes);
                    tables.source(0, bytes[rank]).copy_to(&to[rank]);
                    Self::from_spans(to)
                }
                RequestedOperation::Gather => {
                    Self::from_spans(own_table(tables.source(0, bytes[rank])))
                }
                RequestedOperation::Scatter if is_root => {
                    let from = all_sources(bytes);
                    from[rank].copy_to(&tables.destination(0, bytes[rank]));
                    Self::from_spans(from)
                }
                RequestedOperation::Scatter => {
                    Self::from_spans(own_table(tables.destination(0, bytes[rank])))
                }
                RequestedOperation::Broadcast => Self::from_spans(all_destinations(bytes)),
                RequestedOperation::AllReduce => {
                    let to = tables.destination(0, bytes[0]);
                    tables.source(0, bytes[0]).copy_to(&to);
                    Self::from_spans(vec![to])
                }
                RequestedOperation::Reduce if is_root => {
                    let to = tables.destination(0, bytes[0]);
                    tables.source(0, bytes[0]).copy_to(&to);
                    Self::from_spans(vec![to])
                }
                RequestedOperation::Reduce => Self::from_copies(&all_sources(bytes)),
                RequestedOperation::AllGather => {
                    let to = all_destinations(bytes);
                    tables.source(0, bytes[rank]).copy_to(&to[rank]);
                    Self::from_spans(to)
                }
                RequestedOperation::ReduceScatter => {
                    let mut spans = Self::from_copies(&all_sources(bytes));
                    spans.final_copy =
                        Some((spans.sources[rank], tables.destination(0, bytes[rank])));
                    spans
                }
                RequestedOperation::AllToAll => {
                    let row = &bytes[rank * ranks..][..ranks];
                    let column: Vec<u64> =
                        bytes.iter().skip(rank).step_by(ranks).copied().collect();
                    let (from, to) = (all_sources(row), all_destinations(&column));
                    let is_shared = |span: &Span| {
                        span.bytes > 0 && to.iter().any(|to| to.start == span.start && to.bytes > 0)
                    };
                    let mut spans = match from.iter().any(is_shared) {
                        // The operation is in place: the blocks to send lie where blocks will be
                        // received.
                        true => Self::from_copies(&from),
                        false => Self::from_spans(from),
                    };
                    spans.sources[rank].copy_to(&to[rank]);
                    spans.destinations = to;
                    spans.all_to_all_ranks = Some(ranks as u64);
                    spans
                }
            }
        }
    }

    /// Returns the memory of a message, which is a single block.
    pub fn single(start: *mut u8, bytes: u64) -> Self {
        Self::from_spans(vec![Span { start, bytes }])
    }

    fn from_spans(spans: Vec<Span>) -> Self {
        Self {
            sources: spans.clone(),
            destinations: spans,
            all_to_all_ranks: None,
            _scratch: Vec::new(),
            final_copy: None,
        }
    }

    /// Copies the contents of spans.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn from_copies(spans: &[Span]) -> Self {
        let total_bytes: u64 = spans.iter().map(|span| span.bytes).sum();
        let mut scratch = vec![0; total_bytes as usize];
        let mut offset = 0;
        let copies = spans.iter().map(|span| {
            // SAFETY: `scratch` is as long as all copies together and does not move. The caller
            // guarantees `span`.
            let copy = unsafe {
                let copy = Span {
                    start: scratch.as_mut_ptr().add(offset),
                    bytes: span.bytes,
                };
                span.copy_to(&copy);
                copy
            };
            offset += span.bytes as usize;
            copy
        });
        let copies = copies.collect();
        Self {
            _scratch: scratch,
            ..Self::from_spans(copies)
        }
    }
}

impl Memory for Spans {
    fn source(&self, block: u64, offset: u64, bytes: usize) -> &[u8] {
        if bytes == 0 {
            return &[];
        }
        let block = self.all_to_all_ranks.map_or(block, |ranks| block % ranks);
        let start = self.sources[block as usize].part(offset, bytes);
        // SAFETY: the part lies within a span, which the caller does not touch until the collective
        // has ended.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    fn destination(&mut self, block: u64, offset: u64, bytes: usize) -> &mut [u8] {
        if bytes == 0 {
            return &mut [];
        }
        let block = self.all_to_all_ranks.map_or(block, |ranks| block / ranks);
        let start = self.destinations[block as usize].part(offset, bytes);
        // SAFETY: as above; and `self` is borrowed exclusively, so no other slice of it exists.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    fn finish(&mut self) {
        if let Some((from, to)) = self.final_copy.take() {
            // SAFETY: both are blocks of this rank's length, one of them in scratch memory.
            unsafe { from.copy_to(&to) };
        }
    }
}
