//! Diffs of pages, in parts of one operation each.

use super::fabric::EncodedDiff;
use super::region::{PAGE_BYTES, Region, View, changes};
use kumi_wind::protocol::diff;
use std::collections::HashMap;
use std::ops::Range;

/// Diffs of pages, joined by home as far as they fit a part.
pub struct Diffs {
    bytes_max: usize,
    /// The parts.
    pub parts: Vec<EncodedDiff>,
    /// The part of each home and region that may have room.
    open: HashMap<(usize, usize), usize>,
    /// Room for the changed ranges of a page.
    found: Vec<Range<usize>>,
    /// Bytes that have changed in all of them.
    pub changed_bytes: usize,
}

impl Diffs {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            parts: Vec::new(),
            open: HashMap::new(),
            found: Vec::new(),
            changed_bytes: 0,
        }
    }

    /// Adds the bytes of a locked page that differ from its twin, which has them then. Returns
    /// whether there are any.
    pub fn add<V: View>(&mut self, region: &Region<V>, page: usize) -> bool {
        let (mut now, mut twin) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        let at = page * PAGE_BYTES;
        region.view.own().read(at, &mut now);
        region.twins.read(at, &mut twin);
        let mut found = std::mem::take(&mut self.found);
        changes(&twin, &now, &mut found);
        if found.is_empty() {
            self.found = found;
            return false;
        }
        let (home, bytes_max) = (region.home(page), self.bytes_max);
        let blocks = found
            .iter()
            .flat_map(|change| change.start / 64..=(change.end - 1) / 64);
        let blocks = blocks.fold(0, |blocks, block| blocks | 1 << block);
        region.sharing.on_write(page, blocks);
        for change in found.drain(..) {
            self.changed_bytes += change.len();
            let mut rest = change;
            while !rest.is_empty() {
                let part = self.part(home, region.number, (at + rest.start) as u64);
                let room = bytes_max - part.runs.len() - diff::RUN_HEADER_BYTES;
                let end = rest.end.min(rest.start + room);
                let offset = (at + rest.start) as u64 - part.offset;
                diff::push_run(offset as u32, &now[rest.start..end], &mut part.runs);
                rest.start = end;
            }
        }
        self.found = found;
        region.twins.write(at, &now);
        true
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
