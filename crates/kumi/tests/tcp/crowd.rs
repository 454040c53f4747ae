//! Tests with hundreds of connections, with bursts of many connections at once, and with a program
//! that stores invalid phase numbers.

use super::{Control, KUMI, Program, wan};
use kumi_lab::Cluster;
use serde_json::Value;
use std::time::Duration;

/// Python server that echoes on all connections at once.
const ECHO_ALL: &str = "import socket,threading
s=socket.create_server(('0.0.0.0',7105),backlog=512)
def echo(c):
    while d:=c.recv(65536): c.sendall(d)
while True:
    c,_=s.accept()
    threading.Thread(target=echo,args=(c,),daemon=True).start()";

const MANY: &str = "import socket,sys
all=[socket.create_connection(('h2',7105)) for _ in range(300)]
for s in all: s.sendall(b'x')
for s in all: s.recv(1)
print('done',flush=True)
sys.stdin.read()";

/// Python program that stores numbers of phases that do not exist.
const NONSENSE: &str = "import mmap,os,socket,struct,sys
page=mmap.mmap(int(os.environ['KUMI_PHASE_FD']),4096)
s=socket.create_connection(('h2',7105))
for phase in (31,32,4096,0xffffffff,7):
    page[4:8]=struct.pack('=I',phase)
    s.sendall(b'x'*1000);n=0
    while n<1000: n+=len(s.recv(1000))
print('done',flush=True)
sys.stdin.read()";

fn h1_connections(cluster: &Cluster) -> Vec<Value> {
    let mut show = cluster.command("h1", KUMI).unwrap();
    let show = show.args(["tcp", "show", "-j"]).output().unwrap();
    let state: Value = serde_json::from_slice(&show.stdout).unwrap();
    state["connections"].as_array().unwrap().clone()
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn show__hundreds_of_connections__has_a_line_for_each() {
    let _control = Control::up();
    let cluster = wan("many");
    let _server = Program::start(&cluster, "h2", ECHO_ALL);
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Program::start(&cluster, "h1", MANY);
    assert_eq!(client.line(), "done");
    assert_eq!(h1_connections(&cluster).len(), 300);
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn phase__invalid_numbers__are_harmless_and_a_later_valid_one_is_used() {
    let _control = Control::up();
    let cluster = wan("nonsense");
    let _server = Program::start(&cluster, "h2", ECHO_ALL);
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Program::start(&cluster, "h1", NONSENSE);
    assert_eq!(client.line(), "done");
    let connections = h1_connections(&cluster);
    assert_eq!(connections.len(), 1, "{connections:?}");
    assert_eq!(connections[0]["phase"], 7, "{connections:?}");
}

/// Python client that sends 32 KiB on 24 connections at once, twelve times, and waits for the
/// echoes. It prints its host's retransmission timeouts and retransmitted segments meanwhile.
const BURSTS: &str = "import socket
def counts():
    rows=[l.split() for f in ('snmp','netstat') for l in open('/proc/self/net/'+f)]
    all={}
    for names,values in zip(rows[::2],rows[1::2]): all.update(zip([names[0]+n for n in names[1:]],values[1:]))
    return int(all['TcpExt:TCPTimeouts']),int(all['Tcp:RetransSegs'])
streams=[socket.create_connection(('h2',7105)) for _ in range(24)];d=b'x'*32768
before=counts()
for _ in range(12):
    for s in streams: s.sendall(d)
    for s in streams:
        n=0
        while n<len(d): n+=len(s.recv(65536))
print(*(a-b for a,b in zip(counts(),before)),flush=True)";

#[test]
#[ignore = "needs root, netns, bpf"]
fn bursts__many_at_once_overflow_a_port__are_repaired_without_timeouts() {
    let _control = Control::up();
    let cluster = wan("bursts");
    let _server = Program::start(&cluster, "h2", ECHO_ALL);
    std::thread::sleep(Duration::from_millis(500));
    let line = Program::start(&cluster, "h1", BURSTS).line();
    let counts: Vec<u32> = line.split(' ').map(|text| text.parse().unwrap()).collect();
    let [timeouts, retransmits] = counts[..] else {
        panic!("{line}");
    };
    assert!(retransmits > 50, "nothing overflowed: {retransmits}");
    // A window that is cut below what is in flight, without RFC 6937, sends nothing again: then
    // every twentieth retransmission follows a timeout.
    assert!(timeouts * 50 <= retransmits, "{timeouts} of {retransmits}");
}
