//! Nodes as processes of this machine. A test starts itself once for each node.

use kumi_dsm::coherence::PAGE_BYTES;
use kumi_dsm::protocol::{Placement, Updates};
use kumi_dsm::runtime::{Config, Dsm, SharedRegion};
use kumi_sys::tracked_memory::{Tier, TrackedMemory};
use kumi_sys::udp::LinkSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const NODE: &str = "KUMI_TEST_NODE";
const NODES: &str = "KUMI_TEST_NODES";
const FOLDER: &str = "KUMI_TEST_FOLDER";
const TIER: &str = "KUMI_TEST_TIER";
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the variable of a process that is a node.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns what `node` has left in the folder under `name`, and waits for it.
fn left(folder: &Path, name: &str, node: usize) -> String {
    let path = folder.join(format!("{name}-{node}"));
    let began = Instant::now();
    loop {
        match std::fs::read_to_string(&path) {
            Ok(text) if !text.is_empty() => return text,
            _ => assert!(began.elapsed() < LIMIT, "{} is missing", path.display()),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn leave(folder: &Path, name: &str, node: usize, text: &str) {
    let path = folder.join(format!("{name}-{node}"));
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

/// Joins the job of the test, in a process that is a node.
fn join() -> Option<(Dsm, PathBuf)> {
    let number = |name| variable(name).map(|text| text.parse::<usize>().unwrap());
    let (node, nodes) = (number(NODE)?, number(NODES)?);
    let folder = PathBuf::from(variable(FOLDER)?);
    let tier = match variable(TIER).as_deref() {
        Some("mixed") if node % 2 == 0 => Some(Tier::Protection),
        Some("mprotect") => Some(Tier::Protection),
        Some("userfaultfd") => Some(Tier::Userfault),
        _ => None,
    };
    let config = Config {
        tier,
        ..Config::new([7; 32])
    };
    let socket = LinkSocket::bound("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_address().unwrap().to_string();
    leave(&folder, "address", node, &address);
    let addresses = (0..nodes).map(|node| vec![left(&folder, "address", node).parse().unwrap()]);
    let addresses: Vec<_> = addresses.collect();
    let dsm = Dsm::join(socket, node, &addresses, &config).unwrap();
    Some((dsm, folder))
}

/// Processes of a job, killed on drop.
struct Processes {
    children: Vec<Child>,
    folder: PathBuf,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Processes {
    /// Starts the test `name` once for each node.
    fn start(name: &str, nodes: usize, tier: &str) -> Self {
        let folder = format!("kumi-dsm-{name}-{tier}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let start = |node: usize| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(NODE, node.to_string())
                .env(NODES, nodes.to_string())
                .env(FOLDER, &folder)
                .env(TIER, tier)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        Self {
            children: (0..nodes).map(start).collect(),
            folder,
        }
    }

    /// Waits until all processes have ended well.
    fn succeed(mut self) {
        for (node, child) in self.children.iter_mut().enumerate() {
            let status = child.wait().unwrap();
            assert!(status.success(), "node {node}: {status}");
        }
    }
}

fn read_word(region: &SharedRegion, at: usize) -> u64 {
    region.memory().word(at * 8).load(Ordering::Relaxed)
}

fn write_word(region: &SharedRegion, at: usize, value: u64) {
    region.memory().word(at * 8).store(value, Ordering::Relaxed);
}

/// Writes a cell of the row at `to` from the row at `from`.
fn write_next(region: &SharedRegion, cells: usize, cell: usize, (from, to): (usize, usize)) {
    let near = [(cell + cells - 1) % cells, cell, (cell + 1) % cells];
    let sum: u64 = near.iter().map(|cell| read_word(region, from + cell)).sum();
    write_word(region, to + cell, sum % 1009);
}

/// Returns the cells after some rounds of the stencil on one machine.
fn sequential(cells: usize, rounds: usize) -> Vec<u64> {
    let mut row: Vec<u64> = (0..cells).map(|cell| (cell * cell % 97) as u64).collect();
    for _ in 0..rounds {
        let next = (0..cells).map(|cell| {
            let before = row[(cell + cells - 1) % cells];
            (before + row[cell] + row[(cell + 1) % cells]) % 1009
        });
        row = next.collect();
    }
    row
}

/// Rounds of a stencil on a row of cells, whose blocks the nodes divide without regard to pages.
fn stencil(dsm: &Dsm) {
    const CELLS: usize = 10_007;
    const ROUNDS: usize = 20;
    let region = dsm.alloc(2 * CELLS * 8, Placement::Blocks).unwrap();
    let start = |node: usize| CELLS * node / dsm.nodes();
    let own = start(dsm.node())..start(dsm.node() + 1);
    for cell in own.clone() {
        write_word(&region, cell, (cell * cell % 97) as u64);
    }
    dsm.barrier().unwrap();
    for round in 0..ROUNDS {
        let (from, to) = (round % 2 * CELLS, (round + 1) % 2 * CELLS);
        for cell in own.clone() {
            write_next(&region, CELLS, cell, (from, to));
        }
        dsm.barrier().unwrap();
    }
    let expected = sequential(CELLS, ROUNDS);
    let found: Vec<u64> = (0..CELLS)
        .map(|cell| read_word(&region, ROUNDS % 2 * CELLS + cell))
        .collect();
    assert!(found == expected);
    dsm.barrier().unwrap();
}

/// Counters under locks, all in one page, and bytes of the same page that each node owns.
fn counters(dsm: &Dsm) {
    let region = dsm.alloc(PAGE_BYTES, Placement::Cyclic(1)).unwrap();
    let memory = region.memory();
    for round in 0..100_u64 {
        let lock = (round % 3) as usize;
        dsm.lock(lock as u32).unwrap();
        write_word(&region, lock, read_word(&region, lock) + 1);
        memory.write(1000 + dsm.node(), &[round as u8]);
        dsm.unlock(lock as u32).unwrap();
    }
    dsm.barrier().unwrap();
    let counts: Vec<u64> = (0..3).map(|lock| read_word(&region, lock)).collect();
    let nodes = dsm.nodes() as u64;
    assert_eq!(counts, [34 * nodes, 33 * nodes, 33 * nodes]);
    let mut bytes = vec![0; dsm.nodes()];
    memory.read(1000, &mut bytes);
    assert_eq!(bytes, vec![99; dsm.nodes()]);
    dsm.barrier().unwrap();
}

#[test]
fn programs__on_processes__have_the_results_of_one() {
    if let Some((dsm, _)) = join() {
        stencil(&dsm);
        counters(&dsm);
        return;
    }
    for tier in ["userfaultfd", "mprotect", "mixed"] {
        for nodes in [1, 2, 5] {
            let name = "programs__on_processes__have_the_results_of_one";
            Processes::start(name, nodes, tier).succeed();
        }
    }
}

#[test]
fn alloc__of_other_sizes_or_at_an_address_in_use__is_refused_by_name_or_moved() {
    if let Some((dsm, _)) = join() {
        let sizes = [1000, 2000];
        let error = dsm
            .alloc(sizes[dsm.node()], Placement::Blocks)
            .err()
            .unwrap();
        let expected = "node 0 calls alloc of 1000 bytes at homes 0/0, attempt 0, node 1 calls \
                        alloc of 2000 bytes at homes 0/0, attempt 0: all nodes make the same calls \
                        in the same order";
        assert_eq!(error.to_string(), expected);
        let error = dsm.alloc(0, Placement::Blocks).err().unwrap().to_string();
        assert!(
            error.contains("a region of 0 bytes: expected 1 to"),
            "{error}"
        );
        // The other calls go on.
        let first = dsm.alloc(1000, Placement::On(1)).unwrap();
        // Behind the first region, with a gap.
        let in_use = first.address() + (4 << 20);
        let _taken = (dsm.node() == 1).then(|| TrackedMemory::new(1, Some(in_use), None).unwrap());
        let second = dsm.alloc(1000, Placement::On(1)).unwrap();
        assert_eq!(second.address(), in_use + (1 << 36));
        let error = dsm.unlock(4).unwrap_err().to_string();
        assert_eq!(
            error,
            "lock 4 is not held by this node: only the holder may release it"
        );
        dsm.lock(4 + dsm.node() as u32).unwrap();
        let error = dsm.lock(4 + dsm.node() as u32).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "lock {} is held or waited for by this node already",
                4 + dsm.node()
            )
        );
        dsm.barrier().unwrap();
        return;
    }
    let name = "alloc__of_other_sizes_or_at_an_address_in_use__is_refused_by_name_or_moved";
    Processes::start(name, 2, "any").succeed();
}

/// Two nodes write neighbouring blocks of a page of a third one, and the same block of another
/// page.
#[test]
fn show__of_false_sharing__names_the_page_and_the_other_writer() {
    if let Some((dsm, _)) = join() {
        let region = dsm.alloc(4 * PAGE_BYTES, Placement::On(2)).unwrap();
        for round in 1..=10 {
            if dsm.node() < 2 {
                write_word(&region, dsm.node() * 8, round);
                write_word(&region, 2 * PAGE_BYTES / 8 + dsm.node(), round);
            }
            dsm.barrier().unwrap();
        }
        if dsm.node() == 0 {
            let own = std::process::id();
            let nodes = kumi_wind::node::show::nodes().unwrap().into_iter();
            let shown = nodes
                .filter_map(Result::ok)
                .find(|node| node["pid"] == own)
                .unwrap();
            let memory = &shown["shared_memory"];
            let found = &memory["regions"][0]["false_sharing"];
            assert_eq!(found.as_array().unwrap().len(), 1, "{memory}");
            assert_eq!(
                (&found[0]["page"], &found[0]["with_node"]),
                (&0.into(), &1.into())
            );
            assert!(found[0]["count"].as_u64() >= Some(8), "{memory}");
            assert_eq!(memory["barriers"], 10, "{memory}");
        }
        dsm.barrier().unwrap();
        return;
    }
    let name = "show__of_false_sharing__names_the_page_and_the_other_writer";
    Processes::start(name, 3, "any").succeed();
}

#[test]
fn node__killed__ends_the_calls_of_all_others_with_its_number() {
    if let Some((dsm, folder)) = join() {
        let region = dsm.alloc(PAGE_BYTES, Placement::On(0)).unwrap();
        write_word(&region, dsm.node(), 1);
        dsm.barrier().unwrap();
        leave(&folder, "ready", dsm.node(), "ready");
        if dsm.node() == 2 {
            std::thread::sleep(LIMIT);
        }
        // Node 0 waits at the barrier, node 1 for a lock that node 2 manages.
        let began = Instant::now();
        let outcome = match dsm.node() {
            0 => dsm.barrier(),
            _ => dsm.lock(2).and_then(|()| dsm.barrier()),
        };
        let error = outcome.unwrap_err().to_string();
        assert!(error.starts_with("node 2 is lost: "), "{error}");
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{:?}",
            began.elapsed()
        );
        let error = dsm.barrier().unwrap_err().to_string();
        assert!(error.starts_with("node 2 is lost: "), "{error}");
        leave(&folder, "failed", dsm.node(), "failed");
        // A node that ended first would be the lost one for the other.
        left(&folder, "failed", 1 - dsm.node());
        return;
    }
    let name = "node__killed__ends_the_calls_of_all_others_with_its_number";
    let mut processes = Processes::start(name, 3, "any");
    for node in 0..3 {
        left(&processes.folder, "ready", node);
    }
    std::thread::sleep(Duration::from_millis(200));
    processes.children[2].kill().unwrap();
    let killed = Instant::now();
    let mut victim = processes.children.pop().unwrap();
    victim.wait().unwrap();
    for node in 0..2 {
        left(&processes.folder, "failed", node);
    }
    let elapsed = killed.elapsed();
    // It takes 2.4 s (`dsm-crash`); other tests run beside this one.
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    processes.succeed();
}

/// Sums of neighbours, in two rows in turn. The nodes that are left divide the cells, and a round
/// that has failed is made again.
#[test]
fn node__killed_with_replicas__is_survived_with_the_result_of_one_machine() {
    const NAME: &str = "node__killed_with_replicas__is_survived_with_the_result_of_one_machine";
    const CELLS: usize = 20_011;
    const ROUNDS: usize = 300;
    const NODES: usize = 4;
    let Some((dsm, folder)) = join() else {
        for (round, victims) in [vec![2], vec![0], vec![3, 1]].into_iter().enumerate() {
            let mut processes = Processes::start(NAME, NODES, "any");
            left(&processes.folder, "ready", victims[0]);
            for victim in &victims {
                std::thread::sleep(Duration::from_millis(150 + 37 * round as u64));
                processes.children[*victim].kill().unwrap();
                processes.children[*victim].wait().unwrap();
                if victims.len() > 1 {
                    left(&processes.folder, "recovered", 0);
                }
            }
            for node in (0..NODES).filter(|node| !victims.contains(node)) {
                let status = processes.children[node].wait().unwrap();
                assert!(
                    status.success(),
                    "node {node} without {victims:?}: {status}"
                );
            }
        }
        return;
    };
    dsm.keep_replicas().unwrap();
    let region = dsm.alloc(2 * CELLS * 8, Placement::Blocks).unwrap();
    let totals = dsm
        .alloc_with(PAGE_BYTES, Placement::Blocks, Updates::AtBarriers)
        .unwrap();
    let counter = dsm.alloc(PAGE_BYTES, Placement::On(2)).unwrap();
    let mut increments = Vec::new();
    let error = dsm.recover().unwrap_err().to_string();
    assert!(error.starts_with("no node is lost"), "{error}");
    let mut left_nodes: Vec<usize> = (0..NODES).collect();
    if dsm.node() == 0 {
        for cell in 0..CELLS {
            write_word(&region, cell, (cell * cell % 97) as u64);
        }
    }
    dsm.barrier().unwrap();
    leave(&folder, "ready", dsm.node(), "ready");
    let mut round = 0;
    while round < ROUNDS {
        let place = left_nodes.iter().position(|node| *node == dsm.node());
        let start = |place: usize| CELLS * place / left_nodes.len();
        let own = start(place.unwrap())..start(place.unwrap() + 1);
        let (from, to) = (round % 2 * CELLS, (round + 1) % 2 * CELLS);
        for cell in own {
            write_next(&region, CELLS, cell, (from, to));
        }
        write_word(&totals, dsm.node(), round as u64);
        let counted = dsm.lock(1).and_then(|()| {
            write_word(&counter, 0, read_word(&counter, 0) + 1);
            dsm.unlock(1)
        });
        if counted.and_then(|()| dsm.barrier()).is_ok() {
            round += 1;
            increments.push(left_nodes.len() as u64);
            // Slow enough to be killed in the middle.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let recovery = dsm.recover().unwrap();
        assert!(recovery.left.contains(&dsm.node()), "{recovery:?}");
        round = recovery.barriers as usize - 1;
        while increments.len() < round {
            // The barrier that has failed here counts: another node had passed it.
            increments.push(left_nodes.len() as u64);
        }
        increments.truncate(round);
        left_nodes = recovery.left;
        for node in &left_nodes {
            let last = read_word(&totals, *node);
            assert_eq!(last, (round as u64).saturating_sub(1), "node {node}");
        }
        leave(&folder, "recovered", dsm.node(), "recovered");
    }
    let expected = sequential(CELLS, ROUNDS);
    let found: Vec<u64> = (0..CELLS)
        .map(|cell| read_word(&region, ROUNDS % 2 * CELLS + cell))
        .collect();
    assert!(found == expected);
    assert!(left_nodes.len() < NODES);
    let increments: u64 = increments.iter().sum();
    assert_eq!(read_word(&counter, 0), increments);
    dsm.barrier().unwrap();
}

#[test]
fn region__allocated_after_the_last_barrier__is_gone_and_may_be_allocated_again() {
    const NAME: &str =
        "region__allocated_after_the_last_barrier__is_gone_and_may_be_allocated_again";
    let Some((dsm, folder)) = join() else {
        let mut processes = Processes::start(NAME, 3, "any");
        for node in 0..3 {
            left(&processes.folder, "ready", node);
        }
        processes.children[2].kill().unwrap();
        processes.children.pop().unwrap().wait().unwrap();
        return processes.succeed();
    };
    dsm.keep_replicas().unwrap();
    let kept = dsm.alloc(3 * PAGE_BYTES, Placement::Blocks).unwrap();
    write_word(&kept, dsm.node() * 512, 7 + dsm.node() as u64);
    dsm.barrier().unwrap();
    let gone = dsm.alloc(2 * PAGE_BYTES, Placement::Cyclic(1)).unwrap();
    write_word(&gone, dsm.node(), 1);
    write_word(&kept, dsm.node() * 512, 99);
    leave(&folder, "ready", dsm.node(), "ready");
    if dsm.node() == 2 {
        std::thread::sleep(LIMIT);
    }
    let error = dsm.barrier().unwrap_err().to_string();
    assert!(error.starts_with("node 2 is lost: "), "{error}");
    let recovery = dsm.recover().unwrap();
    assert_eq!((recovery.lost, recovery.left), (vec![2], vec![0, 1]));
    assert_eq!(recovery.barriers, 1);
    for node in 0..3 {
        assert_eq!(read_word(&kept, node * 512), 7 + node as u64);
    }
    let error = gone.prefetch(0..PAGE_BYTES).unwrap_err().to_string();
    assert!(error.contains("allocate it again"), "{error}");
    drop(gone);
    let again = dsm.alloc(2 * PAGE_BYTES, Placement::Cyclic(1)).unwrap();
    write_word(&again, 512 * (1 - dsm.node()), 5);
    dsm.barrier().unwrap();
    let words = [0, 512].map(|word| read_word(&again, word));
    assert_eq!(words, [5, 5]);
    dsm.barrier().unwrap();
}

#[test]
fn epochs__of_typed_slices__count_under_locks_and_at_barriers() {
    const NAME: &str = "epochs__of_typed_slices__count_under_locks_and_at_barriers";
    let Some((dsm, _)) = join() else {
        return Processes::start(NAME, 3, "best").succeed();
    };
    let region = dsm.alloc(3 * PAGE_BYTES, Placement::Cyclic(1)).unwrap();
    let mut epoch = dsm.epoch();
    let (node, nodes) = (epoch.node(), epoch.nodes());
    for round in 1..=20 {
        let own = epoch
            .slice::<f32>(&region)
            .unwrap()
            .part(node * 5..node * 5 + 5);
        for index in 0..own.len() {
            own.set(index, (round * node + index) as f32);
        }
        epoch.barrier().unwrap();
        let all = epoch.slice::<f32>(&region).unwrap();
        let sum: f32 = all.part(0..5 * nodes).iter().sum();
        let wanted = 5 * round * (nodes * (nodes - 1) / 2) + nodes * 10;
        assert_eq!(sum, wanted as f32);
        let locked = epoch.lock(7).unwrap();
        let counts = locked.slice::<u64>(&region).unwrap();
        counts.set(1_000, counts.get(1_000) + 1);
        match round % 2 {
            0 => locked.unlock().unwrap(),
            _ => drop(locked),
        }
        epoch.barrier().unwrap();
    }
    let counts = epoch.slice::<u64>(&region).unwrap();
    assert_eq!(counts.get(1_000), 20 * nodes as u64);
    let outside = std::panic::AssertUnwindSafe(|| counts.get(3 * PAGE_BYTES / 8));
    let outside = std::panic::catch_unwind(outside);
    assert!(outside.is_err());
    epoch.barrier().unwrap();
}

#[test]
fn alloc__of_more_than_a_node_has__names_it_on_all_nodes_and_a_smaller_one_works() {
    const NAME: &str =
        "alloc__of_more_than_a_node_has__names_it_on_all_nodes_and_a_smaller_one_works";
    let Some((dsm, _)) = join() else {
        return Processes::start(NAME, 3, "best").succeed();
    };
    if dsm.node() == 1 {
        let limited = Command::new("prlimit")
            .args(["--as=4294967296", "--pid", &std::process::id().to_string()])
            .status();
        assert!(limited.unwrap().success());
    }
    let refused = dsm.alloc(8 << 30, Placement::Blocks).err().unwrap();
    let refused = refused.to_string();
    assert!(
        refused.contains("node 1 cannot map the region: Cannot allocate memory"),
        "{refused}"
    );
    let region = dsm.alloc(PAGE_BYTES, Placement::Blocks).unwrap();
    if dsm.node() == 2 {
        write_word(&region, 5, 77);
    }
    dsm.barrier().unwrap();
    assert_eq!(read_word(&region, 5), 77);
    dsm.barrier().unwrap();
}
