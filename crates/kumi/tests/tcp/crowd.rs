//! Tests with hundreds of connections, with bursts of many connections at once, with a fair share
//! of a shallow port, and with a program that stores invalid phase numbers.

use super::{Control, KUMI, Program, kumi, wan};
use kumi_lab::Cluster;
use kumi_testlab::star;
use serde_json::Value;
use std::process::Command;
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

/// Python program that sends 64 KiB on 48 connections, eight times, in the phase of an all-to-all
/// whose fair share it writes to its page. The connections start a millisecond apart, like those of
/// hosts that are not in step. Each time, it waits for a byte on each. It prints the segments that
/// were sent again, without those of the first two times: the kernel does not pace a connection's
/// first ten packets. Then it prints the paces of the last time and the share, in bytes per second.
const SHARED: &str = "import mmap,os,socket,struct,time
page=mmap.mmap(int(os.environ['KUMI_PHASE_FD']),4096)
page[128:140]=b'MPI_Alltoall'
page[8:12]=struct.pack('=I',2)
N=48
share=int(20e6/8/1583*1448/N)
page[2116:2132]=struct.pack('=IQI',N,share,32768//N)
page[4:8]=struct.pack('=I',1)
streams=[socket.create_connection(('h2',7106)) for _ in range(N)]
def info(first,end):
    infos=[s.getsockopt(socket.IPPROTO_TCP,socket.TCP_INFO,112) for s in streams]
    return [int.from_bytes(i[first:end],'little') for i in infos]
def resent():
    return sum(info(100,104))
for call in range(8):
    page[2112:2116]=struct.pack('=I',call+1)
    for s in streams: s.sendall(bytes(65536));time.sleep(0.001)
    paces=info(104,112)
    for s in streams: s.recv(1)
    if call==1: before=resent()
print(resent()-before,min(paces),max(paces),share,flush=True)";

/// Python server that answers each 64 KiB with a byte.
const ANSWER: &str = "import socket,threading
s=socket.create_server(('0.0.0.0',7106),backlog=512)
def answer(c):
    n=0
    while d:=c.recv(65536):
        n+=len(d)
        while n>=65536: c.sendall(b'x');n-=65536
while True:
    c,_=s.accept()
    threading.Thread(target=answer,args=(c,),daemon=True).start()";

/// Runs `SHARED` through a port of 32 KiB at 20 Mb/s. Returns what it prints.
fn resent_paces_and_share(test: &str) -> [u64; 4] {
    let shallow = "name = \"s1\"\nport_queue = \"32KiB\"\n";
    let text = star(2, 1, "20Mbit").replace("name = \"s1\"\n", shallow);
    let slow_sink = text.replacen("rate = \"20Mbit\"", "rate = \"1Gbit\"", 1);
    let cluster = kumi_testlab::up(test, &slow_sink);
    let _server = Program::start(&cluster, "h2", ANSWER);
    std::thread::sleep(Duration::from_millis(500));
    let line = Program::start(&cluster, "h1", SHARED).line();
    let numbers: Vec<u64> = line.split(' ').map(|text| text.parse().unwrap()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn all_to_all__port_shallower_than_a_packet_of_each__loses_little_at_the_fair_share() {
    let _control = Control::up();
    let [at_share, slowest, fastest, share] = resent_paces_and_share("share");
    assert_eq!([slowest, fastest], [share, share]);
    assert!(kumi(&["tcp", "down"]).status.success());
    let up = Command::new(KUMI)
        .args(["tcp", "up", "--without", "fair-share"])
        .status();
    assert!(up.unwrap().success());
    let [without, ..] = resent_paces_and_share("no-share");
    assert!(at_share * 10 < without, "{at_share} of {without}");
}

/// Python program that sends 10 MB to a thread of its own, in the phase of an all-to-all with a
/// fair share of 10 KB/s. It prints the time, in milliseconds.
const WITHIN_HOST: &str = "import mmap,os,socket,struct,threading,time
page=mmap.mmap(int(os.environ['KUMI_PHASE_FD']),4096)
page[128:140]=b'MPI_Alltoall'
page[8:12]=struct.pack('=I',2)
page[2112:2132]=struct.pack('=IIQI',1,1,10000,100)
page[4:8]=struct.pack('=I',1)
server=socket.create_server(('127.0.0.1',7107))
def answer():
    c,_=server.accept();n=0
    while n<10000000: n+=len(c.recv(1<<20))
    c.sendall(b'x')
threading.Thread(target=answer,daemon=True).start()
s=socket.create_connection(('127.0.0.1',7107))
start=time.monotonic()
s.sendall(bytes(10000000));s.recv(1)
print(int((time.monotonic()-start)*1000),flush=True)";

#[test]
#[ignore = "needs root, netns, bpf"]
fn all_to_all__within_a_host__has_no_fair_share() {
    let _control = Control::up();
    let cluster = wan("within");
    let line = Program::start(&cluster, "h1", WITHIN_HOST).line();
    let took_ms: u32 = line.parse().unwrap_or_else(|_| panic!("{line}"));
    // At the share, it would be a thousand seconds.
    assert!(took_ms < 5000, "{took_ms} ms");
}
