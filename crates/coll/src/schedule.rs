//! Puts transfers one behind another, so that each passes links that have room for it.
//!
//! Who plans an operation says which transfers it takes, in which order; what each has to wait for follows from
//! the links. The order is a planner's art, not the promise: in a bad one links idle, and nothing collides.

use crate::lanes::{ENOUGH, Lanes};
use crate::plan::{Blocks, Transfer};
use kumi_topo::Paths;

/// Transfers so far, and what the links and hosts do meanwhile.
pub(crate) struct Schedule<'a> {
    paths: &'a Paths,
    lanes: Vec<Lanes>,
    transfers: Vec<Transfer>,
    /// When each transfer has been sent, and when it has come whole, in seconds.
    sent_s: Vec<f64>,
    come_s: Vec<f64>,
}

impl<'a> Schedule<'a> {
    pub fn new(paths: &'a Paths) -> Self {
        let links = 0..paths.directed_links();
        let capacity = |link| paths.link_bytes_per_s(kumi_topo::DirectedLink(link as u32));
        Self {
            paths,
            lanes: links.map(|link| Lanes::new(capacity(link))).collect(),
            transfers: Vec::new(),
            sent_s: Vec::new(),
            come_s: Vec::new(),
        }
    }

    /// Adds a transfer of so many bytes. It begins when the transfers `needs` have brought its sender what it
    /// sends, and those before it on its links have passed. Returns its index.
    pub fn add(
        &mut self,
        (from, to): (usize, usize),
        blocks: Blocks,
        bytes: u64,
        combines: bool,
        needs: &[usize],
    ) -> usize {
        let index = self.transfers.len();
        let links = self.paths.links(from, to);
        let rates = links.iter().map(|link| self.paths.link_bytes_per_s(*link));
        let rate = rates.fold(f64::INFINITY, f64::min);
        let mut after: Vec<usize> = Vec::new();
        for link in &links {
            self.follow(from, rate, &self.lanes[link.0 as usize], &mut after);
        }
        for link in &links {
            let is_followed = |last: usize| after.contains(&last);
            self.lanes[link.0 as usize].take(index, rate, is_followed);
        }
        let known = after.iter().map(|waited| self.known_s(*waited, from));
        let mut begins_s = known.fold(0.0, f64::max);
        for needed in needs {
            begins_s = begins_s.max(self.come_s[*needed]);
        }
        let sent_s = begins_s + bytes as f64 / rate;
        self.sent_s.push(sent_s);
        self.come_s.push(sent_s + self.paths.latency_s(from, to));
        self.transfers.push(Transfer {
            from,
            to,
            blocks,
            combines,
            after,
        });
        index
    }

    /// Adds to `after` what has to be over on a link before `rate` is free there: nothing more than what is
    /// waited for already, if that will do, or else those that a sender at `from` knows to be over soonest.
    fn follow(&self, from: usize, rate: f64, lanes: &Lanes, after: &mut Vec<usize>) {
        let waited = lanes.last().filter(|(_, last)| after.contains(last));
        let waited: f64 = waited.map(|(part, _)| part).sum();
        let mut missing = rate * ENOUGH - lanes.free() - waited;
        while missing > 0.0 {
            let others = lanes.last().filter(|(_, last)| !after.contains(last));
            let soonest = others
                .min_by(|(_, a), (_, b)| self.known_s(*a, from).total_cmp(&self.known_s(*b, from)));
            let Some((_, soonest)) = soonest else { return };
            let parts = lanes.last().filter(|(_, last)| *last == soonest);
            missing -= parts.map(|(part, _)| part).sum::<f64>();
            after.push(soonest);
        }
    }

    /// When a host knows that a transfer is over: has sent it, has it, or is told.
    fn known_s(&self, transfer: usize, host: usize) -> f64 {
        let Transfer { from, to, .. } = self.transfers[transfer];
        if from == host {
            self.sent_s[transfer]
        } else {
            self.come_s[transfer] + self.paths.latency_s(to, host)
        }
    }

    /// The transfers, and when the last has come.
    pub fn finish(self) -> (Vec<Transfer>, f64) {
        let end_s = self.come_s.iter().copied().fold(0.0, f64::max);
        (self.transfers, end_s)
    }
}
