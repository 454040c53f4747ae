//! Diffs of pages, in parts of one operation each.

use super::fabric::{EncodedDiff, Memory};
use super::refreshes::Refreshes;
use super::region::{PAGE_BYTES, Region, View};
use kumi_wind::protocol::diff;
use std::collections::HashMap;

/// Pages whose diffs are sent while those of the next ones are computed.
pub const PAGES_PER_PUT: usize = 64;

/// Diffs of pages, joined by home as far as they fit a part.
pub struct Diffs {
    bytes_max: usize,
    memory: Memory,
    /// The parts.
    pub parts: Vec<EncodedDiff>,
    /// The part of each home and region that may have room.
    open: HashMap<(usize, usize), usize>,
    /// Bytes that have changed in all of them.
    pub changed_bytes: usize,
}

impl Diffs {
    /// Returns no diffs, of a memory of the regions. A part has at most `bytes_max` bytes of runs.
    pub fn new(bytes_max: usize, memory: Memory) -> Self {
        Self {
            bytes_max,
            memory,
            parts: Vec::new(),
            open: HashMap::new(),
            changed_bytes: 0,
        }
    }

    /// Adds the bytes of a locked page that differ from its twin, which has them then, and to
    /// `refreshes` if there are subscribers. Returns whether there are any.
    pub fn add<V: View>(
        &mut self,
        region: &Region<V>,
        page: usize,
        refreshes: &mut Refreshes,
    ) -> bool {
        let home = region.home(page);
        let number = region.first + page as u32;
        let is_wanted = refreshes.is_wanted(number);
        let mut runs = Vec::new();
        let changed_bytes = region.take_changes(page, |offset, bytes| {
            self.push(home, region.number, offset, bytes);
            if is_wanted {
                let at = offset - (page * PAGE_BYTES) as u64;
                diff::push_run(at as u32, bytes, &mut runs);
            }
        });
        if !runs.is_empty() {
            refreshes.add(number, &runs);
        }
        self.changed_bytes += changed_bytes;
        changed_bytes > 0
    }

    /// Adds bytes at an offset of a region, for a node.
    pub fn push(&mut self, node: usize, region: usize, offset: u64, bytes: &[u8]) {
        let bytes_max = self.bytes_max;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let part = self.part(node, region, at);
            let room = bytes_max - part.runs.len() - diff::RUN_HEADER_BYTES;
            let (now, later) = rest.split_at(room.min(rest.len()));
            diff::push_run((at - part.offset) as u32, now, &mut part.runs);
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Returns a part for the home that has room for a run of one byte.
    fn part(&mut self, home: usize, region: usize, offset: u64) -> &mut EncodedDiff {
        let fits = |part: &EncodedDiff| {
            part.runs.len() + diff::RUN_HEADER_BYTES < self.bytes_max
                && offset >= part.offset
                && offset - part.offset <= u64::from(u32::MAX)
        };
        let open = self.open.get(&(home, region)).copied();
        let index = open.filter(|index| fits(&self.parts[*index]));
        let index = index.unwrap_or_else(|| {
            self.parts.push(EncodedDiff {
                home,
                region,
                memory: self.memory,
                offset,
                runs: Vec::new(),
            });
            let index = self.parts.len() - 1;
            self.open.insert((home, region), index);
            index
        });
        &mut self.parts[index]
    }
}
