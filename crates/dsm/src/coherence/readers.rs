//! Pages that this node reads after each barrier: subscriptions, and what arrives for them.

use super::counts::add;
use super::error::DsmError;
use super::pages::Pages;
use super::region::View;
use crate::protocol::{PageRuns, Report, Updates, Written};
use std::collections::{BTreeMap, BTreeSet};

/// The only writer of a page before a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    None,
    Only(u16),
    Several,
}

impl<V: View> Pages<V> {
    /// Returns the pages to which this node subscribes from now on, and no more.
    pub fn take_report(&self) -> Report {
        let mut report = Report::default();
        for region in self.regions_with(Updates::OnAccess) {
            region.subscriptions.take_report(region.first, &mut report);
        }
        report
    }

    /// Takes in what others have sent of the pages to which this node subscribes. `all` are all
    /// writes before the barrier. Returns the pages that are valid behind it: a refresh of one that
    /// several nodes have written lacks changes.
    pub fn refresh(
        &self,
        refreshes: Vec<(usize, u32, PageRuns)>,
        all: &[Written],
    ) -> Result<BTreeSet<u32>, DsmError> {
        let pages = refreshes.iter().map(|(_, page, _)| (*page, Writer::None));
        let mut writers: BTreeMap<u32, Writer> = pages.collect();
        for written in all {
            for span in &written.pages {
                for (_, writer) in writers.range_mut(span.pages()) {
                    *writer = match *writer {
                        Writer::None => Writer::Only(written.writer),
                        Writer::Only(other) if other == written.writer => *writer,
                        _ => Writer::Several,
                    };
                }
            }
        }
        let regions = self.regions();
        let mut valid = BTreeSet::new();
        for (sender, number, runs) in refreshes {
            let is_only = writers.get(&number) == Some(&Writer::Only(sender as u16));
            let region = regions.iter().find(|region| region.has(number));
            let region = region.filter(|region| region.updates == Updates::OnAccess);
            if let (true, Some(region)) = (is_only, region) {
                let page = (number - region.first) as usize;
                if region.home(page) != self.me() && region.refresh(page, &runs)? {
                    valid.insert(number);
                }
            }
        }
        add(&self.counters.refreshed_pages, valid.len());
        Ok(valid)
    }
}
