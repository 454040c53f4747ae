//! A network of nodes whose programs run one at a time. A seed decides who runs next, and when a
//! message arrives.

use crate::coherence::{
    Copies, DsmError, EncodedDiff, Fabric, Member, Memory, PAGE_BYTES, Region, Update, View,
};
use crate::protocol::{Placement, Updates, Violation};
use kumi_sys::shared_memory::SharedMemory;
use kumi_wind::protocol::diff;
use std::collections::{BTreeSet, VecDeque};
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
    /// Nodes that may still die, or be taken for lost while they run.
    losses_left: usize,
    losses_allowed: bool,
    dead: BTreeSet<usize>,
    /// Nodes that each node knows to be lost, and those that it has given up.
    lost: Vec<BTreeSet<usize>>,
    given_up: Vec<BTreeSet<usize>>,
}

/// Payload of the panic that ends the program of a node that dies.
struct Died;

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
        if schedule.losses_left > 0 && schedule.rng.u16(..1500) == 0 {
            schedule.losses_left -= 1;
            if schedule.rng.u8(..3) > 0 {
                schedule.die(me);
                drop(schedule);
                std::panic::resume_unwind(Box::new(Died));
            }
            let nodes = schedule.lost.len();
            let victim = schedule.rng.usize(..nodes);
            if victim != me {
                schedule.lost[me].insert(victim);
            }
        }
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
            let outcome = members[to]
                .upgrade()
                .map(|member| member.handle(from, &message));
            schedule = self.schedule.lock().unwrap();
            match outcome {
                None | Some(Ok(()) | Err(DsmError::Lost { .. })) => {}
                Some(Err(DsmError::Violation(Violation::GivenUp))) => {
                    schedule.lost[to].insert(from);
                }
                Some(Err(error)) => panic!("node {to}: {error}"),
            }
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
    /// Ends a node. Some of its last messages do not arrive.
    fn die(&mut self, node: usize) {
        self.dead.insert(node);
        for to in 0..self.links.len() {
            let kept = self.rng.usize(..=self.links[node][to].len());
            self.links[node][to].truncate(kept);
            self.links[to][node].clear();
        }
    }

    /// Returns an error if `me` cannot reach `node`, and notes the loss.
    fn reach(&mut self, me: usize, node: usize) -> Result<(), DsmError> {
        if self.dead.contains(&node) || self.given_up[node].contains(&me) {
            self.lost[me].insert(node);
        }
        if self.lost[me].contains(&node) {
            return Err(lost(node));
        }
        Ok(())
    }

    /// Finds lost nodes, now or later.
    fn look(&mut self, me: usize) {
        for node in 0..self.lost.len() {
            if self.rng.u8(..8) == 0 {
                let _ = self.reach(me, node);
                // A node that has left well is missed by those that still wait for it.
                let has_left = !self.running.contains(&node);
                if self.losses_allowed && has_left && self.links[node][me].is_empty() {
                    self.lost[me].insert(node);
                }
            }
        }
    }

    fn check(&self, me: usize) -> Result<(), DsmError> {
        let mut unknown = self.lost[me].difference(&self.given_up[me]);
        unknown.next().map_or(Ok(()), |node| Err(lost(*node)))
    }

    fn full_links(&self) -> Vec<(usize, usize)> {
        let nodes = self.links.len();
        let pairs = (0..nodes * nodes).map(|pair| (pair / nodes, pair % nodes));
        pairs
            .filter(|(from, to)| !self.links[*from][*to].is_empty())
            .collect()
    }
}

fn lost(node: usize) -> DsmError {
    DsmError::Lost {
        node,
        reason: "it died".to_owned(),
    }
}

impl Link {
    fn reach(&self, node: usize) -> Result<(), DsmError> {
        self.world.schedule.lock().unwrap().reach(self.me, node)
    }
}

impl Fabric for Link {
    fn get(
        &self,
        node: usize,
        (region, memory): (usize, Memory),
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), DsmError> {
        self.world.pass(self.me);
        let regions = self.world.regions.get().unwrap();
        // Parts of a get are executed one by one.
        for (index, part) in into.chunks_mut(1000).enumerate() {
            self.reach(node)?;
            let at = offset as usize + index * 1000;
            regions[node][region].memory(memory).read(at, part);
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
        let mut outcome = Ok(());
        while !diffs.is_empty() {
            self.world.pass(self.me);
            let next = self.world.schedule.lock().unwrap().rng.usize(..diffs.len());
            let part = diffs.swap_remove(next);
            assert!(part.runs.len() <= self.diff_bytes_max);
            // Those to others arrive all the same.
            outcome = outcome.and(self.reach(part.home));
            if self.reach(part.home).is_err() {
                continue;
            }
            for run in diff::runs(&part.runs) {
                let (at, bytes) = run.unwrap();
                let memory = regions[part.home][part.region].memory(part.memory);
                memory.write(part.offset as usize + at as usize, bytes);
            }
        }
        self.world.work();
        outcome
    }

    fn push(&self, updates: &[Update]) -> Result<(), DsmError> {
        let regions = self.world.regions.get().unwrap();
        let nodes = regions.len();
        let given_up = self.world.schedule.lock().unwrap().given_up[self.me].clone();
        let mut outcome = Ok(());
        let mut parts: Vec<(usize, Update)> = (0..nodes)
            .filter(|node| *node != self.me && !given_up.contains(node))
            .flat_map(|node| updates.iter().map(move |update| (node, update.clone())))
            .collect();
        while !parts.is_empty() {
            self.world.pass(self.me);
            let next = self.world.schedule.lock().unwrap().rng.usize(..parts.len());
            let (node, update) = parts.swap_remove(next);
            outcome = outcome.and(self.reach(node));
            if self.reach(node).is_ok() {
                let arrivals = regions[node][update.region].memory(Memory::Pages);
                arrivals.write(update.offset as usize, &update.bytes);
            }
        }
        self.world.work();
        outcome
    }

    fn prefers_messages(&self, _: &[Update]) -> bool {
        self.world.schedule.lock().unwrap().rng.bool()
    }

    fn diff_bytes_max(&self) -> usize {
        self.diff_bytes_max
    }

    fn check(&self) -> Result<(), DsmError> {
        self.world.schedule.lock().unwrap().check(self.me)
    }

    fn send(&self, to: usize, message: Vec<u8>) -> Result<(), DsmError> {
        assert_ne!(to, self.me, "a message of a node to itself");
        let mut schedule = self.world.schedule.lock().unwrap();
        schedule.reach(self.me, to)?;
        schedule.links[self.me][to].push_back(message);
        Ok(())
    }

    fn transmit(&self) {}

    type Expectation<'a> = ();

    fn expect_wait(&self) {}

    fn wait(&self, is_done: &dyn Fn() -> bool) -> Result<(), DsmError> {
        while !is_done() {
            self.check()?;
            self.world.pass(self.me);
            self.world.schedule.lock().unwrap().look(self.me);
        }
        self.world.work();
        Ok(())
    }

    fn wait_despite_losses(&self, is_done: &dyn Fn() -> bool) {
        while !is_done() {
            self.world.pass(self.me);
            self.world.schedule.lock().unwrap().look(self.me);
        }
        self.world.work();
    }

    fn lost(&self) -> Vec<usize> {
        let schedule = self.world.schedule.lock().unwrap();
        schedule.lost[self.me].iter().copied().collect()
    }

    fn lose(&self, node: usize, _reason: &str) {
        self.world.schedule.lock().unwrap().lost[self.me].insert(node);
    }

    fn give_up(&self, nodes: &[usize]) -> Result<(), DsmError> {
        let mut schedule = self.world.schedule.lock().unwrap();
        schedule.lost[self.me].extend(nodes);
        schedule.given_up[self.me].extend(nodes);
        for node in nodes {
            schedule.links[*node][self.me].clear();
        }
        schedule.check(self.me)
    }

    fn drop_regions(&self, _first: usize) {}
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
            match self.member.fault(region, page) {
                Ok(()) => {}
                // The home is lost with the replica, and the process ends.
                Err(DsmError::Lost { .. }) => {
                    let world = &self.member.fabric().world;
                    world.schedule.lock().unwrap().die(self.me);
                    std::panic::resume_unwind(Box::new(Died));
                }
                Err(error) => panic!("node {}: {error}", self.me),
            }
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

    /// Returns whether a node is lost that this one has not given up: reads may be of the last
    /// barrier.
    pub fn is_doomed(&self) -> bool {
        let schedule = self.member.fabric().world.schedule.lock().unwrap();
        let lost = schedule.dead.union(&schedule.lost[self.me]);
        lost.into_iter()
            .any(|node| !schedule.given_up[self.me].contains(node))
    }

    /// Lets others run.
    pub fn pause(&self) {
        self.member.fabric().world.work();
        self.member.fabric().world.pass(self.me);
    }
}

/// Runs a program on each of `nodes` nodes that share `pages` pages. With replicas, up to
/// `losses` nodes die or are taken for lost.
pub fn run(
    seed: u64,
    (nodes, losses): (usize, usize),
    pages: usize,
    placement: Placement,
    body: impl Fn(&Program) + Sync,
) {
    let has_replicas = losses > 0;
    let mut rng = fastrand::Rng::with_seed(seed);
    let diff_bytes_max = rng.usize(8..1400);
    let world = Arc::new(World {
        schedule: Mutex::new(Schedule {
            turn: Some(0),
            running: (0..nodes).collect(),
            links: vec![vec![VecDeque::new(); nodes]; nodes],
            idle_turns: 0,
            has_failed: false,
            losses_left: losses,
            losses_allowed: losses > 0,
            dead: BTreeSet::new(),
            lost: vec![BTreeSet::new(); nodes],
            given_up: vec![BTreeSet::new(); nodes],
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
        let member = Arc::new(Member::new(link, me, nodes));
        if has_replicas {
            member.keep_replicas();
        }
        member
    };
    let members: Vec<Arc<Node>> = (0..nodes).map(member).collect();
    let weak = members.iter().map(Arc::downgrade).collect();
    assert!(world.members.set(weak).is_ok());
    let add = |member: &Arc<Node>| {
        let add = |updates| {
            let memory = || SharedMemory::new(pages * PAGE_BYTES).unwrap();
            let copies = Copies {
                twins: memory(),
                staged: (has_replicas || updates == Updates::AtBarriers).then(memory),
                committed: has_replicas.then(memory),
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
                let has_died = matches!(&outcome, Err(panic) if panic.is::<Died>());
                world.end(me, outcome.is_err() && !has_died);
                if let (Err(panic), false) = (outcome, has_died) {
                    eprintln!("node {me} failed with seed {seed}");
                    std::panic::resume_unwind(panic);
                }
            });
        }
    });
}
