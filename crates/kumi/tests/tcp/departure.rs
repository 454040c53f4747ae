//! Tests of live sockets after `kumi tcp down`, and of children that outlive their process.

use super::{Control, KUMI, Program, kumi};
use kumi_lab::Cluster;
use kumi_testlab::star;
use serde_json::Value;
use std::time::Duration;

fn lan(test: &str) -> Cluster {
    let text = format!("congestion_control = \"cubic\"\n{}", star(2, 1, "1Gbit"));
    kumi_testlab::up(test, &text)
}

/// Python server that answers each byte with one, after that number of milliseconds. It prints the
/// RTO floor of its listener at each line of input.
const SERVER: &str = "import socket,sys,threading,time
s=socket.create_server(('0.0.0.0',7108))
def told():
    for _ in sys.stdin: print(s.getsockopt(socket.IPPROTO_TCP,45),flush=True)
threading.Thread(target=told,daemon=True).start()
while True:
    c,_=s.accept()
    def answer(c):
        c.setsockopt(socket.IPPROTO_TCP,socket.TCP_NODELAY,1)
        while d:=c.recv(1): time.sleep(d[0]/1e3);c.sendall(b'x')
    threading.Thread(target=answer,args=(c,),daemon=True).start()";

/// Python client that requests 20 immediate answers. After each line of input, it requests 30
/// answers after 30 ms. It prints the retransmitted segments, and the cap on unsent data of two
/// sockets. The first socket has a cap of its own, and the second has none.
const CLIENT: &str = "import socket,sys
def connect(own):
    s=socket.socket()
    if own: s.setsockopt(socket.IPPROTO_TCP,socket.TCP_NOTSENT_LOWAT,own)
    s.connect(('h2',7108));s.setsockopt(socket.IPPROTO_TCP,socket.TCP_NODELAY,1)
    return s
a,b=connect(4321),connect(0)
def ask(ms):
    for _ in range(30 if ms else 20): b.sendall(bytes([ms]));b.recv(1)
def say():
    caps=[s.getsockopt(socket.IPPROTO_TCP,socket.TCP_NOTSENT_LOWAT) for s in (a,b)]
    again=b.getsockopt(socket.IPPROTO_TCP,socket.TCP_INFO,104)[100:104]
    print(int.from_bytes(again,'little'),*caps,flush=True)
ask(0);say()
for _ in sys.stdin: ask(30);say()";

#[test]
#[ignore = "needs root, netns, bpf"]
fn tcp_down__live_connections__causes_no_retransmission_and_restores_settings() {
    let _control = Control::up();
    let cluster = lan("departure");
    let mut server = Program::start(&cluster, "h2", SERVER);
    std::thread::sleep(Duration::from_millis(400));
    let mut client = Program::start(&cluster, "h1", CLIENT);
    assert_eq!(
        client.line(),
        "0 4321 1048576",
        "the program's own cap stays"
    );
    server.say();
    let floor_us: u32 = server.line().parse().unwrap();
    assert!(floor_us < 50_000, "{floor_us}");
    assert!(kumi(&["tcp", "down"]).status.success());
    client.say();
    assert_eq!(client.line(), "0 4321 0", "after `down`");
    server.say();
    assert_eq!(
        server.line(),
        "200000",
        "what the listener accepts begins as without kumi"
    );
}

/// Python program that exits and leaves a child behind. The child connects to the listener that its
/// parent made.
const PARENT: &str = "import os,socket,sys,time
s=socket.create_server(('127.0.0.1',7109))
if os.fork(): sys.exit()
os.setsid()
a=socket.create_connection(('127.0.0.1',7109));c,_=s.accept()
a.sendall(b'x');c.recv(1)
print('left',flush=True)
while True:
    time.sleep(0.02);a.sendall(b'x');c.recv(1)";

/// Python program that gets the place of the process that has ended, and stores phase 7.
const NEXT: &str = "import mmap,os,struct,sys
page=mmap.mmap(int(os.environ['KUMI_PHASE_FD']),4096)
page[4:8]=struct.pack('=I',7)
print('said',flush=True)
sys.stdin.read()";

#[test]
#[ignore = "needs root, netns, bpf"]
fn child__outlives_its_rank__does_not_take_the_next_ranks_phase() {
    let _control = Control::up();
    let cluster = lan("orphan");
    let mut parent = Program::start(&cluster, "h1", PARENT);
    assert_eq!(parent.line(), "left");
    assert!(parent.child.wait().unwrap().success());
    std::thread::sleep(Duration::from_millis(100));
    let mut next = Program::start(&cluster, "h1", NEXT);
    assert_eq!(next.line(), "said");
    std::thread::sleep(Duration::from_millis(200));
    let mut show = cluster.command("h1", KUMI).unwrap();
    let show = show.args(["tcp", "show", "-j"]).output().unwrap();
    let state: Value = serde_json::from_slice(&show.stdout).unwrap();
    let connections = state["connections"].as_array().unwrap();
    assert!(!connections.is_empty(), "{state}");
    for connection in connections {
        assert_eq!(
            (&connection["rank"], &connection["phase"]),
            (&0.into(), &0.into()),
            "{state}"
        );
    }
}
