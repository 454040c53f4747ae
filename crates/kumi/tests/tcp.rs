//! The congestion control on this machine's kernel, in a lab of its own.

use kumi_lab::{Cluster, Topology, UpOptions};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");

/// The first paper's test bed, one host a side: 500 Mb/s, 20 ms round trip, 128 KB drop-tail.
const WAN: &str = r#"
name = "t"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[switch]]
name = "s1"
port_queue = "128KiB"
[[switch]]
name = "s2"
port_queue = "128KiB"
[[link]]
between = ["h1:eth1", "s1"]
rate = "1Gbit"
[[link]]
between = ["h2:eth1", "s2"]
rate = "1Gbit"
[[link]]
between = ["s1", "s2"]
rate = "500Mbit"
delay = "10ms"
"#;

/// Takes BYTES and answers with one, as often as it is told.
const SERVE: &str = "import socket,sys
s=socket.create_server(('0.0.0.0',7100));c,_=s.accept();n=int(sys.argv[1])
while True:
    left=n
    while left:
        d=c.recv(min(left,1<<20))
        if not d: sys.exit()
        left-=len(d)
    c.sendall(b'x')";

/// Fills the path for a while, then sends one burst of BYTES a second; prints what the bursts took, ms.
const BURST: &str = "import socket,sys,time
cc,n,rounds=sys.argv[2],int(sys.argv[3]),int(sys.argv[4])
s=socket.create_connection((sys.argv[1],7100));d=b'x'*n
s.setsockopt(socket.IPPROTO_TCP,socket.TCP_CONGESTION,cc.encode()) # the lab's routes name another
def burst():
    t=time.perf_counter();s.sendall(d);s.recv(1);return (time.perf_counter()-t)*1e3
for _ in range(30): burst()
took=[]
for _ in range(rounds):
    time.sleep(1);took.append(burst())
print(sorted(took)[len(took)//2])";

/// A machine has one congestion control of a name: the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Installs on creation, removes on drop.
struct Control(#[expect(dead_code, reason = "held until dropped")] MutexGuard<'static, ()>);

impl Control {
    fn up() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = kumi(&["tcp", "down"]);
        let output = kumi(&["tcp", "up"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Self(turn)
    }

    fn shown(&self) -> Value {
        serde_json::from_slice(&kumi(&["tcp", "show", "-j"]).stdout).unwrap()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = kumi(&["tcp", "down"]);
    }
}

fn kumi(argv: &[&str]) -> std::process::Output {
    Command::new(KUMI).args(argv).output().unwrap()
}

/// The median time of a burst after a second of silence, in ms.
fn burst_ms(cluster: &Cluster, congestion_control: &str, bytes: usize) -> f64 {
    let bytes = bytes.to_string();
    let mut server = cluster.command("h2", "python3").unwrap();
    let mut server = server.args(["-c", SERVE, &bytes]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    let mut client = cluster.command("h1", "python3").unwrap();
    let client = client
        .args(["-c", BURST, "h2", congestion_control, &bytes, "7"])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    String::from_utf8_lossy(&client.stdout)
        .trim()
        .parse()
        .expect("a time in ms")
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn control__burst_after_silence__is_sent_at_the_rate_of_before() {
    let control = Control::up();
    let topology = Topology::parse("wan", WAN).unwrap();
    let name = format!("tcp-{}", std::process::id());
    let options = UpOptions {
        name: Some(name),
        fabric: None,
        seed: 1,
    };
    let cluster = Cluster::up(&topology, options).unwrap();
    let cubic_ms = burst_ms(&cluster, "cubic", 1_000_000);
    let kumi_ms = burst_ms(&cluster, "kumi", 1_000_000);
    // 1 MB takes 36 ms at 500 Mb/s with a round trip of 20 ms.
    assert!(
        kumi_ms < 0.6 * cubic_ms,
        "kumi {kumi_ms} ms, cubic {cubic_ms} ms"
    );
    let shown = control.shown();
    assert!(shown["paced_restarts"].as_u64().unwrap() >= 5, "{shown}");
    assert_eq!(shown["connections"], 1, "{shown}");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn control__installed_twice_and_removed_twice__says_so_and_changes_nothing() {
    let control = Control::up();
    let twice = kumi(&["tcp", "up"]);
    assert!(!twice.status.success());
    let said = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(said.contains("kumi tcp down"), "{said}");
    assert_eq!(control.shown()["connections"], 0);
    assert!(kumi(&["tcp", "down"]).status.success());
    let again = kumi(&["tcp", "down"]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        !again.status.success() && said.contains("kumi tcp up"),
        "{said}"
    );
}
