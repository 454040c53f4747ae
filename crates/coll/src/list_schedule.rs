//! Orders transfers that depend on each other: list scheduling (Graham).
//!
//! A host with data to send, and links with capacity for it, sends. If several transfers can start,
//! the one with the smallest key does:
//!
//! ```text
//!   key(t) = ( class(t), −L(t), index of t )
//!   L(t)   = b(t) / r(t) + max L(u) over all u that need t
//!
//!   class  slice of a vector, so that earlier slices go first
//!   L      time of the longest path of dependent transfers from t on, in seconds
//!   b, r   bytes of a transfer, and its bottleneck rate in bytes per second
//! ```
//!
//! A link that is slower than others of its path must never be idle, so its next transfer is chosen
//! while the current one runs. The other links of that path are then kept for it. Another transfer
//! with a later key may start on them only in two cases: it ends before the current one on the slow
//! link, or it leaves enough capacity. EASY backfilling treats the first job of a queue in the same
//! way.

use crate::grain::CHUNK_BYTES;
use crate::shares::ENOUGH;
use kumi_topo::Paths;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// A transfer of one block without a place in the order yet.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub from: usize,
    pub to: usize,
    pub block: usize,
    pub bytes: u64,
    pub combines: bool,
    /// Earlier tasks that bring its sender the data, or its receiver the data with which it is
    /// combined.
    pub needs: Vec<usize>,
    /// Slice of the vector: tasks of a lower class go first.
    pub class: u32,
}

/// Returns the tasks, as indices, in the order in which they start.
pub(crate) fn start_order(paths: &Paths, tasks: &[Task]) -> Vec<usize> {
    let mut list = List::new(paths, tasks);
    for (index, task) in tasks.iter().enumerate() {
        if task.needs.is_empty() {
            list.events
                .push(Reverse((Instant(0.0), Event::Ready, index)));
        }
    }
    let mut ready = Vec::new();
    while let Some(Reverse((Instant(now_s), event, index))) = list.events.pop() {
        list.now_s = now_s;
        match event {
            Event::Complete => list.free(index),
            Event::Ready => ready.push(list.keys[index]),
        }
        // Among tasks that become ready at the same time, the one with the smallest key starts
        // first.
        let next = list.events.peek();
        if next.is_none_or(|Reverse((time, event, _))| *event != Event::Ready || time.0 > now_s) {
            ready.sort_unstable();
            for (_, _, index) in ready.drain(..) {
                list.try_begin(index);
            }
        }
    }
    list.order
}

/// A time in seconds, which is never NaN.
#[derive(Clone, Copy, PartialEq)]
struct Instant(f64);

impl Eq for Instant {}

impl PartialOrd for Instant {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Instant {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The task's links are free again.
    Complete,
    /// The data that the task sends has begun to arrive.
    Ready,
}

/// Class, L of the module's comment (longest first), and the task.
type Key = (u32, Reverse<Instant>, usize);

struct List<'a> {
    paths: &'a Paths,
    tasks: &'a [Task],
    needed_by: Vec<Vec<usize>>,
    links: Vec<Vec<usize>>,
    bytes_per_s: Vec<f64>,
    keys: Vec<Key>,
    /// Number of needed tasks that have not started, and the time at which the started ones let
    /// this task start.
    open_needs: Vec<usize>,
    ready_s: Vec<f64>,
    /// For each task, the time at which its data has arrived, in seconds. It does not end earlier.
    fed_s: Vec<f64>,
    free_bytes_per_s: Vec<f64>,
    link_bytes_per_s: Vec<f64>,
    /// For each link, the tasks that wait for capacity on it.
    waiting: Vec<BTreeSet<Key>>,
    /// For each link, the task for which it is kept free, and the time from which it is, in
    /// seconds.
    reserved: Vec<Option<(usize, f64)>>,
    /// For each slow link, its next task, for which other links are kept free.
    next: Vec<Option<usize>>,
    events: BinaryHeap<Reverse<(Instant, Event, usize)>>,
    now_s: f64,
    order: Vec<usize>,
}

impl<'a> List<'a> {
    fn new(paths: &'a Paths, tasks: &'a [Task]) -> Self {
        let indices = 0..paths.directed_links() as u32;
        let free = indices.map(|link| paths.link_bytes_per_s(kumi_topo::DirectedLink(link)));
        let free_bytes_per_s: Vec<f64> = free.collect();
        // The slowest link first.
        let links = tasks.iter().map(|task| {
            let links = paths.links(task.from, task.to).into_iter();
            let mut links: Vec<usize> = links.map(|link| link.0 as usize).collect();
            links.sort_by(|a, b| free_bytes_per_s[*a].total_cmp(&free_bytes_per_s[*b]));
            links
        });
        let links: Vec<Vec<usize>> = links.collect();
        let slowest = |links: &Vec<usize>| {
            let rates = links.iter().map(|link| free_bytes_per_s[*link]);
            rates.fold(f64::INFINITY, f64::min)
        };
        let bytes_per_s: Vec<f64> = links.iter().map(slowest).collect();
        let mut needed_by = vec![Vec::new(); tasks.len()];
        for (index, task) in tasks.iter().enumerate() {
            for need in &task.needs {
                needed_by[*need].push(index);
            }
        }
        // Tasks that need a task come after it.
        let mut path_s = vec![0.0_f64; tasks.len()];
        for (index, task) in tasks.iter().enumerate().rev() {
            let lengths = needed_by[index].iter().map(|follower| path_s[*follower]);
            path_s[index] = lengths.fold(0.0, f64::max) + task.bytes as f64 / bytes_per_s[index];
        }
        let key = |index: usize| (tasks[index].class, Reverse(Instant(path_s[index])), index);
        Self {
            paths,
            tasks,
            needed_by,
            keys: (0..tasks.len()).map(key).collect(),
            open_needs: tasks.iter().map(|task| task.needs.len()).collect(),
            ready_s: vec![0.0; tasks.len()],
            fed_s: vec![0.0; tasks.len()],
            waiting: vec![BTreeSet::new(); free_bytes_per_s.len()],
            reserved: vec![None; free_bytes_per_s.len()],
            next: vec![None; free_bytes_per_s.len()],
            links,
            bytes_per_s,
            link_bytes_per_s: free_bytes_per_s.clone(),
            free_bytes_per_s,
            events: BinaryHeap::new(),
            now_s: 0.0,
            order: Vec::with_capacity(tasks.len()),
        }
    }

    /// Starts a task if all its links have capacity. Otherwise the task waits for a full link,
    /// which is returned.
    fn try_begin(&mut self, task: usize) -> Option<usize> {
        let links = &self.links[task];
        let (slowest, fastest) = (links[0], links[links.len() - 1]);
        let is_slow = self.link_bytes_per_s[slowest] < self.link_bytes_per_s[fastest] * ENOUGH;
        if let Some(full) = links
            .iter()
            .copied()
            .find(|link| !self.has_room(*link, task))
        {
            self.waiting[full].insert(self.keys[task]);
            // The slow link is idle.
            if is_slow && full != slowest && self.next[slowest].is_none() {
                self.reserve_links(task, slowest, self.now_s);
            }
            return Some(full);
        }
        let end_s = self.begin(task);
        if self.next[slowest] == Some(task) {
            self.next[slowest] = None;
        }
        let waiting = self.waiting[slowest].first().copied();
        if let (true, None, Some((_, _, next))) = (is_slow, self.next[slowest], waiting) {
            self.reserve_links(next, slowest, end_s);
        }
        None
    }

    fn has_room(&self, link: usize, task: usize) -> bool {
        let spare = self.free_bytes_per_s[link] - self.bytes_per_s[task];
        let is_free = spare >= -(1.0 - ENOUGH) * self.bytes_per_s[task];
        let is_reserved = self.reserved[link].is_some_and(|(next, start_s)| {
            let end_s = self.now_s + self.tasks[task].bytes as f64 / self.bytes_per_s[task];
            self.keys[next] < self.keys[task]
                && end_s > start_s
                && spare < self.bytes_per_s[next] * ENOUGH
        });
        is_free && !is_reserved
    }

    /// Keeps the other links of a slow link's next task free for it.
    fn reserve_links(&mut self, task: usize, slowest: usize, start_s: f64) {
        self.next[slowest] = Some(task);
        for link in self.links[task].iter().filter(|link| **link != slowest) {
            self.reserved[*link] = Some((task, start_s));
        }
    }

    /// Starts a task and returns its end time.
    fn begin(&mut self, task: usize) -> f64 {
        let rate = self.bytes_per_s[task];
        for link in &self.links[task] {
            self.free_bytes_per_s[*link] -= rate;
            if self.reserved[*link].is_some_and(|(next, _)| next == task) {
                self.reserved[*link] = None;
            }
        }
        self.order.push(task);
        let Task {
            from, to, bytes, ..
        } = self.tasks[task];
        let chunk_s = bytes.min(CHUNK_BYTES) as f64 / rate;
        let end_s = (self.now_s + bytes as f64 / rate).max(self.fed_s[task] + chunk_s);
        self.events
            .push(Reverse((Instant(end_s), Event::Complete, task)));
        // A relay sends data on as it arrives, but no faster.
        let latency_s = self.paths.latency_s(from, to);
        for follower in &self.needed_by[task] {
            let sending_s = self.tasks[*follower].bytes as f64 / self.bytes_per_s[*follower];
            let first_s = self.now_s + chunk_s + latency_s;
            let ready_s = first_s.max(end_s + latency_s + chunk_s - sending_s);
            self.ready_s[*follower] = self.ready_s[*follower].max(ready_s);
            self.fed_s[*follower] = self.fed_s[*follower].max(end_s + latency_s);
            self.open_needs[*follower] -= 1;
            if self.open_needs[*follower] == 0 {
                let ready = Instant(self.ready_s[*follower]);
                self.events.push(Reverse((ready, Event::Ready, *follower)));
            }
        }
        end_s
    }

    /// Releases a task's links, and starts tasks that waited for them.
    fn free(&mut self, task: usize) {
        let links = self.links[task].clone();
        for link in &links {
            self.free_bytes_per_s[*link] += self.bytes_per_s[task];
        }
        for link in links {
            while let Some((_, _, next)) = self.waiting[link].pop_first() {
                if self.try_begin(next) == Some(link) {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::even_tree;

    fn task(from: usize, to: usize, needs: &[usize]) -> Task {
        Task {
            from,
            to,
            block: 0,
            bytes: 1 << 20,
            combines: false,
            needs: needs.to_vec(),
            class: 0,
        }
    }

    #[test]
    fn list_schedule__several_tasks_of_one_sender__starts_the_longest_chain_first() {
        let network = even_tree(&[0], 100, &[0; 5], 100);
        let paths = Paths::new(&network);
        // One transfer to host 1; to hosts 2, 3 and 4 one after another.
        let tasks = [
            task(0, 1, &[]),
            task(0, 2, &[]),
            task(2, 3, &[1]),
            task(3, 4, &[2]),
        ];
        assert_eq!(start_order(&paths, &tasks), [1, 2, 3, 0]);
    }

    #[test]
    fn list_schedule__task_waiting_for_a_port__does_not_delay_one_that_can_start() {
        let network = even_tree(&[0], 100, &[0; 4], 100);
        let paths = Paths::new(&network);
        let tasks = [task(0, 3, &[]), task(1, 3, &[]), task(1, 2, &[])];
        // A task that cannot start does not delay one that can.
        assert_eq!(start_order(&paths, &tasks), [0, 2, 1]);
    }
}
