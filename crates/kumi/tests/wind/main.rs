//! Wind between hosts of a lab.

mod groups;
mod kernel;
mod killed;
mod shmem;

use kumi_lab::Cluster;
use kumi_wind::{Atomic, Config, Node, PeerId, Place, Rung, Seal, WindError, perf, random_epoch};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
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

/// Two hosts with a cable, and a cluster key.
struct Lab {
    cluster: Cluster,
    folder: PathBuf,
    key: PathBuf,
    daemon: Option<Daemon>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Lab {
    fn up(name: &str, topology: &str) -> Self {
        let cluster = kumi_testlab::up(name, topology);
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let key = folder.join("cluster.key");
        succeed(Command::new(KUMI).args(["link", "keygen"]).arg(&key));
        Self {
            cluster,
            folder,
            key,
            daemon: None,
        }
    }

    /// Starts the daemon in both hosts.
    fn begin(&mut self) {
        self.daemon = Some(Daemon);
        for host in ["h1", "h2"] {
            let mut command = self.cluster.command(host, KUMI).unwrap();
            succeed(command.args(["wind", "up", "eth1"]));
        }
    }

    fn end(&mut self) {
        self.daemon = None;
    }

    /// Returns the address of the server.
    fn server(&self) -> SocketAddr {
        let mut nics = self.cluster.nics().iter();
        let nic = nics.find(|nic| nic.host_name == "h2").expect("a NIC");
        (nic.ipv4, PORT).into()
    }

    fn serve(&self) -> Program {
        let mut command = self.cluster.command("h2", KUMI).unwrap();
        command.args(["wind", "serve", "--trusted", "--key"]);
        command.arg(&self.key).stdout(Stdio::null());
        Program(command.spawn().unwrap())
    }

    /// Starts a server and a client, whose operations the server's kernel executes.
    fn connect_to_kernel(&self, rung: Rung) -> (Program, Node, PeerId, Place) {
        let (server, client) = (self.serve(), self.node(rung));
        let (peer, place) = connect(&client, self.server());
        wait_for_kernel(&client, peer);
        (server, client, peer, place)
    }

    fn node(&self, rung: Rung) -> Node {
        let secret = kumi_device::key::load(&self.key).unwrap().wind_secret();
        let mut config = Config::new(secret, random_epoch().unwrap());
        (config.seal, config.rung) = (Seal::Authenticate, rung);
        Node::bind((Ipv6Addr::UNSPECIFIED, 0).into(), config).unwrap()
    }
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
