//! Tests of the short bursts on short paths: the sysctl, and what it does for a shallow port.

use super::{Control, ECHO, KUMI, LIVE, Program, kumi};
use kumi_lab::Cluster;
use kumi_testlab::star;
use std::process::Command;
use std::time::{Duration, Instant};

const SYSCTL: &str = "/proc/sys/net/ipv4/tcp_tso_rtt_log";
/// The kernel's value of it.
const DEFAULT: &str = "9";

/// Python program of an all-to-all: it accepts from all hosts and connects to the seven others. For
/// two seconds from when it is told, it sends to all of them. It then prints the segments that it
/// has sent again.
const EXCHANGE: &str = "import socket,sys,threading,time
own=socket.gethostname()
others=[f'h{i}' for i in range(1,9) if f'h{i}'!=own]
s=socket.create_server(('0.0.0.0',7110))
def take(c):
    while c.recv(1<<20): pass
def accept():
    while True: threading.Thread(target=take,args=(s.accept()[0],),daemon=True).start()
threading.Thread(target=accept,daemon=True).start()
print('listens',flush=True);sys.stdin.readline()
streams=[socket.create_connection((h,7110)) for h in others]
print('ready',flush=True);sys.stdin.readline()
end=time.monotonic()+2
def send(c):
    while time.monotonic()<end: c.sendall(bytes(65536))
sending=[threading.Thread(target=send,args=(c,)) for c in streams]
for t in sending: t.start()
for t in sending: t.join()
info=[c.getsockopt(socket.IPPROTO_TCP,socket.TCP_INFO,104)[100:104] for c in streams]
print(sum(int.from_bytes(i,'little') for i in info),flush=True)
sys.stdin.read()";

/// Returns the sysctl in the network namespace of a lab host, or of this process.
fn sysctl(cluster: Option<&Cluster>) -> String {
    let mut cat = match cluster {
        Some(cluster) => cluster.command("h1", "cat").unwrap(),
        None => Command::new("cat"),
    };
    let output = cat.arg(SYSCTL).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Waits up to two seconds until the sysctl is `value` there. Returns the value that it has then.
fn awaited_sysctl(cluster: Option<&Cluster>, value: &str) -> String {
    let start = Instant::now();
    loop {
        let present = sysctl(cluster);
        if present == value || start.elapsed() > Duration::from_secs(2) {
            return present;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn sysctl__namespaces_with_processes__is_set_and_restored() {
    let control = Control::none();
    // A killed daemon leaves 0. The daemons of this test restore the kernel's value.
    std::fs::write(SYSCTL, DEFAULT).unwrap();
    control.install();
    let cluster = kumi_testlab::up("sysctl", &star(2, 1, "1Gbit"));
    let at_first = sysctl(Some(&cluster));
    assert_ne!(at_first, "0", "no process is there yet");
    assert_eq!(awaited_sysctl(None, "0"), "0", "the daemon's namespace");
    let _server = Program::start(&cluster, "h2", ECHO);
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Program::start(&cluster, "h1", LIVE);
    client.line();
    assert_eq!(sysctl(Some(&cluster)), "0");
    assert!(kumi(&["tcp", "up", "--replace"]).status.success());
    assert_eq!(awaited_sysctl(Some(&cluster), "0"), "0", "the next daemon");
    drop(client);
    assert_eq!(awaited_sysctl(Some(&cluster), &at_first), at_first);
    let without = ["tcp", "up", "--replace", "--without", "short-bursts"];
    assert!(kumi(&without).status.success());
    assert_eq!(awaited_sysctl(None, DEFAULT), DEFAULT, "left out");
    assert!(kumi(&["tcp", "up", "--replace"]).status.success());
    assert_eq!(awaited_sysctl(None, "0"), "0");
    drop(control);
    assert_eq!(sysctl(None), DEFAULT);
}

/// Returns the segments that an all-to-all of eight hosts behind ports of 32 KiB sends again in two
/// seconds.
fn resent_by_an_all_to_all(test: &str) -> u32 {
    let shallow = "name = \"s1\"\nport_queue = \"32KiB\"\n";
    let text = star(8, 1, "100Mbit").replace("name = \"s1\"\n", shallow);
    let cluster = kumi_testlab::up(test, &text);
    let mut programs: Vec<Program> = (1..=8)
        .map(|host| Program::start(&cluster, &format!("h{host}"), EXCHANGE))
        .collect();
    for expected in ["listens", "ready"] {
        for program in &mut programs {
            assert_eq!(program.line(), expected);
        }
        for program in &mut programs {
            program.say();
        }
    }
    let resent = programs.iter_mut().map(|program| program.line());
    resent.map(|line| line.parse::<u32>().unwrap()).sum()
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn all_to_all__shallow_ports__loses_less_than_with_long_bursts() {
    let _control = Control::up();
    let resent = resent_by_an_all_to_all("short");
    assert!(kumi(&["tcp", "down"]).status.success());
    let up = Command::new(KUMI)
        .args(["tcp", "up", "--without", "short-bursts"])
        .status();
    assert!(up.unwrap().success());
    let resent_with_long_bursts = resent_by_an_all_to_all("long");
    assert!(
        resent * 2 < resent_with_long_bursts,
        "{resent} of {resent_with_long_bursts}"
    );
}
