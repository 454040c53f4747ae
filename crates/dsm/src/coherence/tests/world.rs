//! A network of nodes whose programs run one at a time. A seed decides who runs next, and when a
//! message arrives.

use crate::coherence::{
    Copies, DsmError, EncodedDiff, Fabric, Member, PAGE_BYTES, Region, Update, View,
};
use crate::protocol::{Placement, Updates};
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::protocol::diff;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};

const CLOSED: u8 = 0;
const OPEN: u8 = 1;
const WRITTEN: u8 = 2;

/// Memory whose accesses go through functions instead of through page tables.
pub struct SimulatedView {
    own: SharedMemory,
    pages: Vec<AtomicU8>,
}

impl SimulatedView {
    pub fn new(pages: usize) -> Self {
        Self {
            own: SharedMemory::new(pages * PAGE_BYTES).unwrap(),
            pages: (0..pages).map(|_| AtomicU8::new(CLOSED)).collect(),
        }
    }
}

impl View for SimulatedView {
    fn own(&self) -> &SharedMemory {
        &self.own
    }

    fn open(&self, pages: Range<usize>) -> io::Result<()> {
        for page in &self.pages[pages] {
            page.fetch_max(OPEN, Ordering::Relaxed);
        }
        Ok(())
    }

    fn close(&self, pages: Range<usize>) -> io::Result<()> {
        for page in &self.pages[pages] {
            page.store(CLOSED, Ordering::Relaxed);
        }
        Ok(())
    }

    fn take_written(&self, pages: Range<usize>, runs: &mut Vec<Range<usize>>) -> io::Result<()> {
        for page in pages {
            let written = self.pages[page].load(Ordering::Relaxed) == WRITTEN;
            if written {
                self.pages[page].store(OPEN, Ordering::Relaxed);
                runs.push(page..page + 1);
            }
        }
        Ok(())
    }
}

type Node = Member<Link, SimulatedView>;

/// The program that runs, and the messages under way.
struct Schedule {
    rng: fastrand::Rng,
    turn: Option<usize>,
    /// Nodes whose programs have not ended.
    running: Vec<usize>,
    /// Messages from each node to each, in order.
    links: Vec<Vec<VecDeque<Vec<u8>>>>,
    /// Turns since a message arrived or a program did something.
    idle_turns: usize,
    has_failed: bool,
}

/// The network.
pub struct World {
    schedule: Mutex<Schedule>,
    changed: Condvar,
    members: OnceLock<Vec<Weak<Node>>>,
    regions: OnceLock<Vec<Vec<Arc<Region<SimulatedView>>>>>,
}

/// A node's part of the network.
pub struct Link {
    world: Arc<World>,
    me: usize,
    diff_bytes_max: usize,
}

impl World {
    /// Ends this program's turn, and waits for the next one. Before it ends, messages may arrive.
    fn pass(&self, me: usize) {
        let mut schedule = self.schedule.lock().unwrap();
        while schedule.rng.u8(..3) > 0 {
            let full: Vec<(usize, usize)> = schedule.full_links();
            if full.is_empty() {
                break;
            }
            let (from, to) = full[schedule.rng.usize(..full.len())];
            let message = schedule.links[from][to].pop_front().unwrap();
            schedule.idle_turns = 0;
            drop(schedule);
            let members = self.members.get().unwrap();
            if let Some(member) = members[to].upgrade() {
                member.handle(from, &message).unwrap();
            }
            schedule = self.schedule.lock().unwrap();
        }
        schedule.idle_turns += 1;
        if schedule.idle_turns > 100_000 {
            schedule.has_failed = true;
        }
        let count = schedule.running.len();
        let next = schedule.rng.usize(..count);
        schedule.turn = Some(schedule.running[next]);
        self.changed.notify_all();
        while schedule.turn != Some(me) && !schedule.has_failed {
            schedule = self.changed.wait(schedule).unwrap();
        }
        if schedule.has_failed {
            schedule.running.clear();
            self.changed.notify_all();
            drop(schedule);
            panic!("another program has failed, or all wait for ever");
        }
    }

    fn work(&self) {
        self.schedule.lock().unwrap().idle_turns = 0;
    }

    fn end(&self, me: usize, has_failed: bool) {
        let mut schedule = self.schedule.lock().unwrap();
        schedule.running.retain(|node| *node != me);
        schedule.has_failed |= has_failed;
        schedule.turn = schedule.running.first().copied();
        self.changed.notify_all();
    }
}

impl Schedule {
    fn full_links(&self) -> Vec<(usize, usize)> {
        let nodes = self.links.len();
        let pairs = (0..nodes * nodes).map(|pair| (pair / nodes, pair % nodes));
        pairs
            .filter(|(from, to)| !self.links[*from][*to].is_empty())
            .collect()
    }
}

impl Fabric for Link {
    fn get(
        &self,
        home: usize,
        region: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), DsmError> {
        self.world.pass(self.me);
        let regions = self.world.regions.get().unwrap();
        // Parts of a get are executed one by one.
        for (index, part) in into.chunks_mut(1000).enumerate() {
            let at = offset as usize + index * 1000;
            regions[home][region].view().own().read(at, part);
            self.world.pass(self.me);
        }
        self.world.work();
        Ok(())
    }

    type Puts = Vec<EncodedDiff>;

    fn start_puts(&self, diffs: Vec<EncodedDiff>, puts: &mut Self::Puts) -> Result<(), DsmError> {
        puts.extend(diffs);
        Ok(())
    }

    fn finish_puts(&self, mut diffs: Self::Puts) -> Result<(), DsmError> {
        let regions = self.world.regions.get().unwrap();
        while !diffs.is_empty() {
            self.world.pass(self.me);
            let next = self.world.schedule.lock().unwrap().rng.usize(..diffs.len());
            let part = diffs.swap_remove(next);
            assert!(part.runs.len() <= self.diff_bytes_max);
            for run in diff::runs(&part.runs) {
                let (at, bytes) = run.unwrap();
                let own = regions[part.home][part.region].view().own();
                own.write(part.offset as usize + at as usize, bytes);
            }
        }
        self.world.work();
        Ok(())
    }

    fn push(&self, updates: Vec<Update>) -> Result<(), DsmError> {
        let regions = self.world.regions.get().unwrap();
        let nodes = regions.len();
        let mut parts: Vec<(usize, Update)> = (0..nodes)
            .filter(|node| *node != self.me)
            .flat_map(|node| updates.iter().map(move |update| (node, update.clone())))
            .collect();
        while !parts.is_empty() {
            self.world.pass(self.me);
            let next = self.world.schedule.lock().unwrap().rng.usize(..parts.len());
            let (node, update) = parts.swap_remove(next);
            let arrivals = regions[node][update.region].arrivals();
            arrivals.write(update.offset as usize, &update.bytes);
        }
        self.world.work();
        Ok(())
    }

    fn diff_bytes_max(&self) -> usize {
        self.diff_bytes_max
    }

    fn check(&self) -> Result<(), DsmError> {
        Ok(())
    }

    fn send(&self, to: usize, message: Vec<u8>) -> Result<(), DsmError> {
        let mut schedule = self.world.schedule.lock().unwrap();
        schedule.links[self.me][to].push_back(message);
        Ok(())
    }

    fn wait(&self, is_done: &dyn Fn() -> bool) -> Result<(), DsmError> {
        while !is_done() {
            self.world.pass(self.me);
        }
        self.world.work();
        Ok(())
    }
}

/// A program's access to the shared memory of one node.
pub struct Program {
    pub me: usize,
    pub member: Arc<Node>,
    regions: Vec<Arc<Region<SimulatedView>>>,
}

impl Program {
    fn access(&self, region: usize, page: usize, state: u8) {
        let region = &self.regions[region];
        let view = region.view();
        while view.pages[page].load(Ordering::Relaxed) == CLOSED {
            self.member.fault(region, page).unwrap();
        }
        view.pages[page].fetch_max(state, Ordering::Relaxed);
    }

    /// Reads the byte at an offset of a region. The first one updates on access, the second one at
    /// barriers.
    pub fn read(&self, (region, at): (usize, usize)) -> u8 {
        self.access(region, at / PAGE_BYTES, OPEN);
        let mut byte = [0];
        self.regions[region].view().own().read(at, &mut byte);
        byte[0]
    }

    pub fn write(&self, (region, at): (usize, usize), byte: u8) {
        self.access(region, at / PAGE_BYTES, WRITTEN);
        self.regions[region].view().own().write(at, &[byte]);
    }

    /// Lets others run.
    pub fn pause(&self) {
        self.member.fabric().world.work();
        self.member.fabric().world.pass(self.me);
    }
}

/// Runs a program on each of `nodes` nodes that share `pages` pages.
pub fn run(
    seed: u64,
    nodes: usize,
    pages: usize,
    placement: Placement,
    body: impl Fn(&Program) + Sync,
) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let diff_bytes_max = rng.usize(8..1400);
    let world = Arc::new(World {
        schedule: Mutex::new(Schedule {
            turn: Some(0),
            running: (0..nodes).collect(),
            links: vec![vec![VecDeque::new(); nodes]; nodes],
            idle_turns: 0,
            has_failed: false,
            rng,
        }),
        changed: Condvar::new(),
        members: OnceLock::new(),
        regions: OnceLock::new(),
    });
    let member = |me| {
        let link = Link {
            world: Arc::clone(&world),
            me,
            diff_bytes_max,
        };
        Arc::new(Member::new(link, me, nodes))
    };
    let members: Vec<Arc<Node>> = (0..nodes).map(member).collect();
    let weak = members.iter().map(Arc::downgrade).collect();
    assert!(world.members.set(weak).is_ok());
    let add = |member: &Arc<Node>| {
        let add = |updates| {
            let memory = || SharedMemory::new(pages * PAGE_BYTES).unwrap();
            let copies = Copies {
                twins: memory(),
                staged: (updates == Updates::AtBarriers).then(memory),
            };
            member.add_region(SimulatedView::new(pages), copies, placement, updates)
        };
        [Updates::OnAccess, Updates::AtBarriers]
            .into_iter()
            .map(add)
            .collect()
    };
    let regions: Vec<_> = members.iter().map(add).collect();
    assert!(world.regions.set(regions.clone()).is_ok());
    std::thread::scope(|scope| {
        for (me, member) in members.iter().enumerate() {
            let program = Program {
                me,
                member: Arc::clone(member),
                regions: regions[me].clone(),
            };
            let (world, body) = (&world, &body);
            scope.spawn(move || {
                {
                    let mut schedule = world.schedule.lock().unwrap();
                    while schedule.turn != Some(me) && !schedule.has_failed {
                        schedule = world.changed.wait(schedule).unwrap();
                    }
                }
                let body = std::panic::AssertUnwindSafe(|| body(&program));
                let outcome = std::panic::catch_unwind(body);
                world.end(me, outcome.is_err());
                if let Err(panic) = outcome {
                    eprintln!("node {me} failed with seed {seed}");
                    std::panic::resume_unwind(panic);
                }
            });
        }
    });
}
