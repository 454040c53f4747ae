//! Tests of the congestion control on this machine's kernel, in a lab of its own.

mod all_to_all;
mod application;
mod bursts;
mod crowd;
mod departure;
mod floors;
mod installation;
mod sizes;
mod trajectory;
mod watched;
mod windows;

use kumi_lab::Cluster;
use kumi_testlab::Wan;
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");

/// Python server that receives BYTES and answers with one byte, until the client closes.
const SERVE: &str = "import socket,sys
s=socket.create_server(('0.0.0.0',7100));c,_=s.accept();n=int(sys.argv[1])
while True:
    left=n
    while left:
        d=c.recv(min(left,1<<20))
        if not d: sys.exit()
        left-=len(d)
    c.sendall(b'x')";

/// Python client that first sends 30 bursts of BYTES to fill the path. Then it sends one burst per
/// second, and prints the median time of these, in milliseconds.
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

/// Python server that echoes, on one connection after the other.
const ECHO: &str = "import socket
s=socket.create_server(('0.0.0.0',7101))
while True:
    c,_=s.accept()
    print(c.getsockopt(socket.IPPROTO_TCP,socket.TCP_CONGESTION,16).rstrip(b'\\0').decode(),flush=True)
    while d:=c.recv(65536): c.sendall(d)";

/// Python client that prints the congestion control and the RTO of its one live connection ten
/// times a second. It ends with its input.
const LIVE: &str = "import socket,sys,time,threading
s=socket.create_connection(('h2',7101));s.settimeout(5)
threading.Thread(target=lambda:(sys.stdin.read(),s.shutdown(1)),daemon=True).start()
while True:
    s.sendall(b'x'*1000)
    n=0
    while n<1000:
        d=s.recv(1000-n)
        if not d: sys.exit()
        n+=len(d)
    i=s.getsockopt(socket.IPPROTO_TCP,socket.TCP_INFO,232)
    print(s.getsockopt(socket.IPPROTO_TCP,socket.TCP_CONGESTION,16).rstrip(b'\\0').decode(),
          int.from_bytes(i[8:12],'little'),flush=True)
    time.sleep(0.1)";

/// Lock of the tests, because a kernel has only one congestion control of a given name.
static TURN: Mutex<()> = Mutex::new(());

/// The installed programs. They are installed on creation and removed on drop.
struct Control(#[expect(dead_code, reason = "held until dropped")] MutexGuard<'static, ()>);

impl Control {
    fn up() -> Self {
        let control = Self::none();
        control.install();
        control
    }

    /// Takes the turn, and removes programs that an aborted test left.
    fn none() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = kumi(&["tcp", "down"]);
        Self(turn)
    }

    fn install(&self) {
        let output = kumi(&["tcp", "up"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn state(&self) -> Value {
        serde_json::from_slice(&kumi(&["tcp", "show", "-j"]).stdout).unwrap()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = kumi(&["tcp", "down"]);
    }
}

/// Starts the lab of two hosts and a WAN. `test` makes its name unique.
fn wan(test: &str) -> Cluster {
    wan_with_control(test, "cubic")
}

/// Starts the same lab, whose hosts use another congestion control.
fn wan_with_control(test: &str, congestion_control: &'static str) -> Cluster {
    let path = Wan {
        congestion_control,
        ..Wan::default()
    };
    kumi_testlab::up(test, &path.text())
}

/// A program on a host of the lab, and its lines of output.
struct Program {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts python3 with `script`, under `kumi run`, as a user without privileges.
    fn start(cluster: &Cluster, host: &str, script: &str) -> Self {
        let mut command = cluster.command(host, "setpriv").unwrap();
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let run = [KUMI, "run", "--", "python3", "-c", script];
        let mut child = command
            .args(user)
            .args(run)
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Sends a line end to its input.
    fn say(&mut self) {
        writeln!(self.child.stdin.as_ref().expect("has an input")).unwrap();
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("the program lives").unwrap()
    }

    /// Returns the first line that is read more than `seconds` after the call.
    fn later_line(&mut self, seconds: f64) -> String {
        let start = Instant::now();
        loop {
            let line = self.line();
            if start.elapsed().as_secs_f64() > seconds {
                return line;
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kumi(argv: &[&str]) -> std::process::Output {
    Command::new(KUMI).args(argv).output().unwrap()
}

/// Returns the median time of a burst after a second of silence, in milliseconds.
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
fn control__burst_after_idle_time__is_sent_at_the_remembered_rate() {
    let control = Control::up();
    let cluster = wan("burst");
    let cubic_ms = burst_ms(&cluster, "cubic", 1_000_000);
    let kumi_ms = burst_ms(&cluster, "kumi", 1_000_000);
    // 1 MB takes 36 ms at 500 Mb/s with a round trip of 20 ms.
    assert!(
        kumi_ms < 0.6 * cubic_ms,
        "kumi {kumi_ms} ms, cubic {cubic_ms} ms"
    );
    let state = control.state();
    assert!(
        state["totals"]["paced_restarts"].as_u64().unwrap() >= 5,
        "{state}"
    );
    assert_eq!(state["totals"]["connections"], 1, "{state}");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn control__installed_or_removed_twice__is_refused_and_changes_nothing() {
    let control = Control::up();
    let second_up = kumi(&["tcp", "up"]);
    assert!(!second_up.status.success());
    let stderr = String::from_utf8_lossy(&second_up.stderr).into_owned();
    assert!(stderr.contains("kumi tcp down"), "{stderr}");
    assert_eq!(control.state()["totals"]["connections"], 0);
    assert!(kumi(&["tcp", "down"]).status.success());
    let second_down = kumi(&["tcp", "down"]);
    let stderr = String::from_utf8_lossy(&second_down.stderr).into_owned();
    assert!(
        !second_down.status.success() && stderr.contains("kumi tcp up"),
        "{stderr}"
    );
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn run__program_without_privilege__gets_the_control_at_both_ends_and_short_timeouts() {
    let control = Control::up();
    let cluster = wan("run");
    let mut server = Program::start(&cluster, "h2", ECHO);
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Program::start(&cluster, "h1", LIVE);
    let line = client.line(); // the first line: the RTO must be short from the start
    let (name, rto_us) = line.split_once(' ').unwrap();
    assert_eq!(name, "kumi");
    // The RTO is 20 ms of round trip and its variance. The kernel's own would be at least 220 ms.
    assert!(rto_us.parse::<u32>().unwrap() < 200_000, "{line}");
    assert_eq!(
        server.line(),
        "kumi",
        "an accepted socket is its listener's"
    );
    assert_eq!(control.state()["totals"]["connections"], 2);
    let mut show = cluster.command("h1", KUMI).unwrap();
    let show = show.args(["tcp", "show", "-j"]).output().unwrap();
    let state: Value = serde_json::from_slice(&show.stdout).unwrap();
    let connection = &state["connections"][0];
    assert!(
        connection["remote"].as_str().unwrap().ends_with(":7101"),
        "{state}"
    );
    assert_eq!(connection["phase_name"], "point-to-point", "{state}");
    assert!(connection["rtt_us"].as_u64().unwrap() >= 20_000, "{state}");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn daemon__killed_and_then_stopped_under_traffic__breaks_no_connection() {
    let _control = Control::up();
    let cluster = wan_with_control("daemon", "reno");
    let _server = Program::start(&cluster, "h2", ECHO);
    std::thread::sleep(Duration::from_millis(500));
    let mut client = Program::start(&cluster, "h1", LIVE);
    assert!(client.line().starts_with("kumi "));
    let status = Command::new("pkill")
        .args(["-9", "-f", "tcp up --foreground"])
        .status();
    assert!(status.unwrap().success());
    assert!(client.later_line(0.5).starts_with("kumi "));
    let restart = kumi(&["tcp", "up"]);
    let stdout = String::from_utf8_lossy(&restart.stdout).into_owned();
    assert!(
        restart.status.success() && stdout.contains("took over"),
        "{stdout}"
    );
    assert!(client.later_line(0.5).starts_with("kumi "));
    assert!(kumi(&["tcp", "down"]).status.success());
    assert!(
        client.later_line(0.5).starts_with("reno "),
        "given back what it had while it lives"
    );
    assert!(
        kumi(&["tcp", "up"]).status.success(),
        "nothing is left in the way"
    );
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn run__exit_status_and_signals__are_those_of_the_command() {
    let _control = Control::up();
    let status = |argv: &[&str]| {
        let argv = [&["run", "--"], argv].concat();
        kumi(&argv).status
    };
    assert_eq!(status(&["sh", "-c", "exit 7"]).code(), Some(7));
    assert_eq!(status(&["sh", "-c", "kill -TERM $$"]).signal(), Some(15));
    assert_eq!(status(&["/no/such/program"]).code(), Some(127));
    assert_eq!(status(&["/etc/passwd"]).code(), Some(126));
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn run__without_a_daemon__warns_sets_options_and_fails_only_if_required() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = kumi(&["tcp", "down"]);
    let script = "import socket;print(socket.socket().getsockopt(socket.IPPROTO_TCP,45))";
    let run = kumi(&["run", "--", "python3", "-c", script]);
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        run.status.success() && stderr.contains("kumi tcp up"),
        "{stderr}"
    );
    let rto_min_us: u32 = String::from_utf8_lossy(&run.stdout).trim().parse().unwrap();
    assert!(rto_min_us < 100_000, "{rto_min_us}");
    let output = kumi(&["run", "--require", "--", "true"]);
    assert_eq!(output.status.code(), Some(3));
}

/// Python client that sends in two phases by turns. It prints a line when it has been in each
/// twice.
const PHASES: &str = "import socket,sys,time
sys.path.insert(0,sys.argv[1])
import kumi
s=socket.create_connection(('h2',7101))
def send():
    for _ in range(5):
        s.sendall(b'x'*1000)
        n=0
        while n<1000: n+=len(s.recv(1000))
for turn in range(2):
    with kumi.phase('halo'): send()
    with kumi.phase('sum'): send()
with kumi.phase('halo'):
    send()
    print('done',flush=True)
    sys.stdin.read()";

#[test]
#[ignore = "needs root, netns, bpf"]
fn phase__stored_in_the_page__names_the_connection_and_recalls_its_parameters() {
    let control = Control::up();
    let cluster = wan("phases");
    let _server = Program::start(&cluster, "h2", ECHO);
    std::thread::sleep(Duration::from_millis(500));
    let bindings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/python");
    let script = PHASES.replace("sys.argv[1]", &format!("{bindings:?}"));
    let mut client = Program::start(&cluster, "h1", &script);
    assert_eq!(client.line(), "done");
    let mut show = cluster.command("h1", KUMI).unwrap();
    let show = show.args(["tcp", "show", "-j"]).output().unwrap();
    let state: Value = serde_json::from_slice(&show.stdout).unwrap();
    assert_eq!(state["connections"][0]["phase_name"], "halo", "{state}");
    // The switches to a known phase: halo and sum the second time, and halo the third time.
    assert!(
        control.state()["totals"]["phase_switches"]
            .as_u64()
            .unwrap()
            >= 3
    );
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn explain__cubic_bursts_after_idle_time__names_idle_collapse_and_keeps_the_exit_status() {
    let cluster = wan("explain");
    let mut sink = cluster.command("h2", KUMI).unwrap();
    let mut sink = sink
        .args(["workload", "burst-sink", "7102"])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let source = format!(
        "{KUMI} workload burst-source 10.1.0.2 7102 --warm-up-ms 1000 \
         --pauses-ms 700,700,700,700,700,700 65536 >/dev/null; exit 5"
    );
    let mut explain = cluster.command("h1", KUMI).unwrap();
    let explain = explain.args(["tcp", "explain", "-j", "--", "sh", "-c", &source]);
    let output = explain.output().unwrap();
    sink.kill().unwrap();
    sink.wait().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The warm-up loses time to other causes. It shows the bottleneck rate, in whatever way the
    // ACKs of the short bursts arrive.
    let losses = report["losses"].as_array().unwrap();
    // A burst during which the emulator was late counts as a stall of the path. At most two of six
    // may.
    assert_eq!(losses[0]["cause"], "idle_collapse", "{report}");
    let count = losses[0]["count"].as_u64().unwrap();
    assert!((4..=6).contains(&count), "{report}");
}

/// Python client that sends 4 MB over a new connection, in a phase of its own.
const IN_A_PHASE: &str = "import socket,sys
sys.path.insert(0,sys.argv[1])
import kumi
s=socket.create_connection(('h2',7103));n=4<<20
s.sendall(n.to_bytes(8,'big'))
with kumi.phase('halo'):
    s.sendall(b'x'*n);s.recv(1)";

#[test]
#[ignore = "needs root, netns, bpf"]
fn explain__program_that_names_its_phases__names_the_phase_of_the_loss() {
    let _control = Control::up();
    let cluster = wan("explain-phases");
    let mut sink = cluster.command("h2", KUMI).unwrap();
    let mut sink = sink
        .args(["workload", "burst-sink", "7103"])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let bindings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/python");
    let script = IN_A_PHASE.replace("sys.argv[1]", &format!("{bindings:?}"));
    let mut explain = cluster.command("h1", KUMI).unwrap();
    let explain = explain.args(["tcp", "explain", "-j", "--", KUMI, "run", "--require", "--"]);
    let output = explain.args(["python3", "-c", &script]).output().unwrap();
    sink.kill().unwrap();
    sink.wait().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let largest_loss = &report["losses"][0];
    assert_eq!(largest_loss["phases"][0]["phase"], "halo", "{report}");
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn trace__no_or_unknown_target__is_refused_with_the_reason() {
    let output = kumi(&["tcp", "trace"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("--pid") && stderr.contains("--cgroup"),
        "{stderr}"
    );
    let output = kumi(&["tcp", "explain", "--pid", "4194304"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.contains("4194304") && output.status.code() == Some(2),
        "{stderr}"
    );
}
