//! Operations that the kernel of the target executes, between hosts of a lab.

use kumi_lab::Cluster;
use kumi_wind::{Atomic, Config, Node, PeerId, Place, Rung, Seal, WindError, perf, random_epoch};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");
const PORT: u16 = 24_890;
const LIMIT: Duration = Duration::from_secs(10);

/// A program that is killed on drop.
struct Program(Child);

impl Program {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it runs");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The daemon of this machine, ended on drop.
struct Daemon;

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new(KUMI).args(["wind", "down"]).output();
    }
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

fn address(cluster: &Cluster, host: &str) -> SocketAddr {
    let mut nics = cluster.nics().iter();
    let nic = nics.find(|nic| nic.host_name == host).expect("a NIC");
    (nic.ipv4, PORT).into()
}

/// Creates a cluster key, and starts the daemon in both hosts.
fn begin(cluster: &Cluster, key: &Path) -> Daemon {
    succeed(Command::new(KUMI).args(["link", "keygen"]).arg(key));
    let daemon = Daemon;
    for host in ["h1", "h2"] {
        succeed(
            cluster
                .command(host, KUMI)
                .unwrap()
                .args(["wind", "up", "eth1"]),
        );
    }
    daemon
}

fn serve(cluster: &Cluster, key: &Path) -> Program {
    let mut command = cluster.command("h2", KUMI).unwrap();
    command
        .args(["wind", "serve", "--trusted", "--key"])
        .arg(key);
    Program(command.stdout(Stdio::null()).spawn().unwrap())
}

fn node(key: &Path, rung: Rung) -> Node {
    let secret = kumi_device::key::load(key).unwrap().wind_secret();
    let mut config = Config::new(secret, random_epoch().unwrap());
    (config.seal, config.rung) = (Seal::Authenticate, rung);
    Node::bind((Ipv6Addr::UNSPECIFIED, 0).into(), config).unwrap()
}

/// Connects to the server, which may be about to start.
fn connect(node: &Node, target: SocketAddr) -> (PeerId, Place) {
    let began = Instant::now();
    loop {
        let peer = node.connect(target).unwrap();
        match perf::place(node, peer) {
            Ok(place) => return (peer, place),
            Err(error) => assert!(began.elapsed() < LIMIT, "{error}"),
        }
    }
}

/// Waits until the kernel of the peer executes operations, or the time limit has passed.
fn wait_for_kernel(node: &Node, peer: PeerId) {
    let began = Instant::now();
    while !node.peer_has_kernel(peer) {
        assert!(began.elapsed() < LIMIT, "the peer does not state it");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Puts, gets and changes of a counter; all of them are checked.
fn operate(node: &Node, peer: PeerId, place: Place, rounds: u64) -> Result<(), WindError> {
    let counter = place.plus(8 << 20);
    let first = node.atomic(peer, counter, Atomic::FetchAdd(0))?;
    for round in 0..rounds {
        let bytes: Vec<u8> = (0..5_000).map(|at| (at as u64 * 7 + round) as u8).collect();
        let at = place.plus(round * 4_999);
        node.put(peer, at, &bytes)?;
        assert_eq!(node.get(peer, at, bytes.len())?, bytes);
        let mut changed = bytes.clone();
        (changed[3], changed[4_000]) = (1, 2);
        node.put_diff(peer, at, &bytes, &changed)?;
        assert_eq!(node.get(peer, at, bytes.len())?, changed);
        let before = node.atomic(peer, counter, Atomic::FetchAdd(1))?;
        assert_eq!(before, first + round);
    }
    Ok(())
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__target_stopped_killed_and_daemon_ended__completes_or_reports() {
    let cluster = kumi_testlab::up("windkernel", &kumi_testlab::cables(1, "1Gbit"));
    let folder = std::env::temp_dir().join(format!("windkernel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let key = folder.join("cluster.key");
    let daemon = begin(&cluster, &key);
    let shown = succeed(Command::new(KUMI).args(["wind", "show", "-j"]));
    assert!(shown.contains("\"devices\":[\"eth1\",\"eth1\"]"), "{shown}");
    assert!(shown.contains("\"nodes\":[]"), "{shown}");
    cluster.enter_thread("h1").unwrap();

    let server = serve(&cluster, &key);
    let client = node(&key, Rung::Kernel);
    let (peer, place) = connect(&client, address(&cluster, "h2"));
    wait_for_kernel(&client, peer);
    operate(&client, peer, place, 50).unwrap();
    let shown = succeed(
        cluster
            .command("h2", KUMI)
            .unwrap()
            .args(["wind", "show", "-j"]),
    );
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let node = &shown["nodes"][0];
    assert_eq!(
        (&node["executor"], &node["regions"]),
        (&"kernel".into(), &1.into())
    );
    let executed = &node["peers"][0]["executed"];
    assert_eq!(
        (&executed["atomics"], &executed["forged"]),
        (&51.into(), &0.into())
    );
    let shown = succeed(Command::new(KUMI).args(["wind", "show"]));
    assert!(
        shown.contains("kernel at eth1, eth1: programs 2, sessions 2, regions 1"),
        "{shown}"
    );

    // A stopped target, longer than the time after which a silent peer is lost.
    server.signal(Signal::SIGSTOP);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        operate(&client, peer, place, 20).unwrap();
    }
    let wrong = Place {
        key: [0; 16],
        ..place
    };
    let refused = client.put(peer, wrong, b"x").unwrap_err().to_string();
    assert_eq!(
        refused,
        "the peer refused: no such region at the peer, or another key"
    );
    let outside = client.get(peer, place.plus(16 << 20), 1).unwrap_err();
    assert!(
        outside.to_string().contains("outside the region"),
        "{outside}"
    );
    server.signal(Signal::SIGCONT);
    // Its program has not lost the session.
    perf::latency(&client, peer, place, perf::Exchange::Echo, 8, 10).unwrap();

    // Without the daemon, the target's program executes the requests of the session.
    drop(daemon);
    operate(&client, peer, place, 50).unwrap();
    let shown = succeed(cluster.command("h1", KUMI).unwrap().args(["wind", "show"]));
    assert!(shown.starts_with("no daemon: programs execute"), "{shown}");
    assert!(shown.contains(" kernel "), "{shown}");

    server.signal(Signal::SIGKILL);
    let began = Instant::now();
    let error = operate(&client, peer, place, 1_000_000).unwrap_err();
    assert!(matches!(error, WindError::Lost(_)), "{error}");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__killed_program__loses_its_sessions_and_regions() {
    let cluster = kumi_testlab::up("windkill", &kumi_testlab::cables(1, "1Gbit"));
    let folder = std::env::temp_dir().join(format!("windkill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let key = folder.join("cluster.key");
    let _daemon = begin(&cluster, &key);
    cluster.enter_thread("h1").unwrap();
    let server = serve(&cluster, &key);
    let client = node(&key, Rung::User);
    let (peer, place) = connect(&client, address(&cluster, "h2"));
    wait_for_kernel(&client, peer);
    operate(&client, peer, place, 5).unwrap();
    drop(server);
    let error = operate(&client, peer, place, 1_000).unwrap_err();
    assert!(matches!(error, WindError::Lost(_)), "{error}");
    let shown = succeed(Command::new(KUMI).args(["wind", "show"]));
    let expected = "kernel at eth1, eth1: programs 0, sessions 0, regions 0";
    assert!(shown.starts_with(expected), "{shown}");
    // A new process at the address is a new peer.
    let _server = serve(&cluster, &key);
    let (peer, place) = connect(&client, address(&cluster, "h2"));
    wait_for_kernel(&client, peer);
    operate(&client, peer, place, 5).unwrap();
    let _ = std::fs::remove_dir_all(folder);
}

/// A cable without emulation: two ends of a veth pair, which pass super-packets.
const BARE_CABLE: &str = r#"
name = "t"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[link]]
between = ["h1:eth1", "h2:eth1"]
"#;

#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__device_with_super_packets__executes_long_operations_of_a_stopped_target() {
    let cluster = kumi_testlab::up("windsuper", BARE_CABLE);
    for host in ["h1", "h2"] {
        // The lab turns this off, because its wires have frames.
        let mut command = cluster.command(host, "ethtool").unwrap();
        succeed(command.args(["-K", "eth1", "tx", "on", "tx-udp-segmentation", "on"]));
    }
    let folder = std::env::temp_dir().join(format!("windsuper-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let key = folder.join("cluster.key");
    let _daemon = begin(&cluster, &key);
    cluster.enter_thread("h1").unwrap();
    let server = serve(&cluster, &key);
    let client = node(&key, Rung::User);
    let (peer, place) = connect(&client, address(&cluster, "h2"));
    wait_for_kernel(&client, peer);
    server.signal(Signal::SIGSTOP);
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 7) as u8).collect();
    let began = Instant::now();
    for _ in 0..10 {
        client.put(peer, place, &bytes).unwrap();
        assert!(client.get(peer, place, bytes.len()).unwrap() == bytes);
    }
    // It takes 0.1 s. When gets were sent together in a super-packet, all but the first were lost:
    // it took 2 s, and a program that polled took the peer for lost.
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    let _ = std::fs::remove_dir_all(folder);
}
