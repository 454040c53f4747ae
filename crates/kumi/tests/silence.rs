//! Compares the measured longest silence of a connection with interruptions of known length.

use kumi_lab::Cluster;
use kumi_lab::topology::LinkChange;
use kumi_tcp::silence::Silence;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Python server that receives the announced number of bytes and answers with one byte.
const SERVE: &str = "import socket
s=socket.create_server(('0.0.0.0',7100));print('listening',flush=True);c,_=s.accept()
while n:=int(c.recv(10) or 0):
    while n: n-=len(c.recv(min(n,1<<20)))
    c.sendall(b'x')";

/// Python client. For each input line it sends that many bytes and waits for the answer.
const SEND: &str = "import socket,sys
s=socket.create_connection((sys.argv[1],7100))
for line in sys.stdin:
    n=int(line);s.sendall(b'%010d'%n+b'x'*n);s.recv(1);print('answered',flush=True)";

/// A Python program on a host, controlled by lines. It is killed on drop.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command, arguments: &[&str]) -> Self {
        let command = command.arg("-c").args(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn send(&mut self, bytes: u32) {
        writeln!(self.input, "{bytes}").unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn now_ns() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    let now = nix::time::clock_gettime(clock).unwrap();
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

fn inode(cluster: &Cluster, host: &str) -> u32 {
    let mut command = cluster.command(host, "readlink").unwrap();
    let output = command.arg("/proc/self/ns/net").output().unwrap();
    let link = String::from_utf8(output.stdout).unwrap();
    let digits = link.trim().trim_matches(|c: char| !c.is_ascii_digit());
    digits.parse().unwrap()
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn silence__blackhole_and_program_pause__only_the_blackhole_counts() {
    let mut cluster = kumi_testlab::up("silence", &kumi_testlab::cables(1, "100Mbit"));
    let inodes = ["h1", "h2"].map(|host| inode(&cluster, host));
    let silence = Silence::watch(&inodes).unwrap();
    let mut server = Program::start(cluster.command("h2", "python3").unwrap(), &[SERVE]);
    assert_eq!(server.line(), "listening\n");
    let mut client = Program::start(cluster.command("h1", "python3").unwrap(), &[SEND, "h2"]);

    let undisturbed_from_ns = now_ns();
    for _ in 0..2 {
        client.send(1_000_000);
        assert_eq!(client.line(), "answered\n");
        std::thread::sleep(Duration::from_millis(400)); // nothing to send, so not a silence
    }
    let disturbed_from_ns = now_ns();
    client.send(5_000_000); // 0.4 s on the wire
    std::thread::sleep(Duration::from_millis(100));
    let blackhole = |is_on| LinkChange {
        blackhole: Some(is_on),
        ..LinkChange::default()
    };
    cluster.set_link("h1:eth1", &blackhole(true)).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    cluster.set_link("h1:eth1", &blackhole(false)).unwrap();
    assert_eq!(client.line(), "answered\n");

    let profile = silence.profile().unwrap();
    let undisturbed_ms = profile.longest_ns(undisturbed_from_ns, disturbed_from_ns) / 1_000_000;
    let disturbed_ms = profile.longest_ns(disturbed_from_ns, now_ns()) / 1_000_000;
    assert!(undisturbed_ms < 200, "{undisturbed_ms} ms of silence");
    assert!((450..5_000).contains(&disturbed_ms), "{disturbed_ms} ms");
}
