//! Tests of the pace in an all-to-all.

use super::{Control, Program, wan};

/// Python server that prints the time in which each message of twelve segments arrives, in
/// milliseconds.
const SERVER: &str = "import socket,time
s=socket.create_server(('0.0.0.0',7130))
while True:
    c,_=s.accept()
    left=12*1448
    while d:=c.recv(left):
        if left==12*1448: begin=time.monotonic()
        left-=len(d)
        if left==0:
            print((time.monotonic()-begin)*1e3,flush=True)
            c.sendall(b'x');left=12*1448";

/// Python client that sends eight messages in a phase, with pauses.
const CLIENT: &str = "import socket,sys,time
sys.path.insert(0,BINDINGS)
import kumi
s=socket.create_connection(('h2',7130))
for _ in range(8):
    with kumi.phase(PHASE):
        s.sendall(bytes(12*1448));s.recv(1)
        time.sleep(0.2)
print('done',flush=True)";

/// Messages after which the window has grown beyond them.
const WARM_UP: usize = 5;

/// Returns the median time in which a message arrives, once the window is longer than it.
fn arrival_ms(server: &mut Program, cluster: &kumi_lab::Cluster, phase: &str) -> f64 {
    let bindings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/python");
    let script = CLIENT.replace("BINDINGS", &format!("{bindings:?}"));
    let script = script.replace("PHASE", &format!("{phase:?}"));
    assert_eq!(Program::start(cluster, "h1", &script).line(), "done");
    let times: Vec<f64> = (0..8).map(|_| server.line().parse().unwrap()).collect();
    eprintln!("{phase}: {times:.2?} ms");
    let mut times = times[WARM_UP..].to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn message__shorter_than_the_window__is_paced_in_an_all_to_all_only() {
    let _control = Control::up();
    let cluster = wan("all-to-all");
    let mut server = Program::start(&cluster, "h2", SERVER);
    std::thread::sleep(std::time::Duration::from_millis(500));
    // Twelve segments show no rate. At 500 Mb/s they take 0.3 ms, and at twice a window of 24 to 48
    // in 20 ms, 2.5 to 5 ms less the clump that leaves at once.
    let apart_ms = arrival_ms(&mut server, &cluster, "MPI_Alltoall");
    let at_once_ms = arrival_ms(&mut server, &cluster, "MPI_Allreduce");
    assert!(apart_ms > 1.5, "{apart_ms} ms in an all-to-all");
    assert!(at_once_ms < 1.0, "{at_once_ms} ms in another phase");
}
