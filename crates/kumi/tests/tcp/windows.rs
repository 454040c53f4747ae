//! Tests that windows under random loss stay within the path's capacity, even if the kernel leaves
//! programs out.
//!
//! A full run takes `KUMI_WINDOWS_S=600`: 600 seconds on each of six paths, instead of a few
//! seconds on one.

use super::{Control, Program};
use kumi_lab::Cluster;
use kumi_testlab::Wan;
use std::time::Duration;

/// Seconds on the first path in a run of all tests.
const SECONDS: u64 = 3;
/// Limits of samples that may exceed the bound: one in this number, and a few more. Such a sample
/// shows a value that the kernel has just stored, before the next callback. Without sane.h, one
/// sample in a hundred exceeds it.
const SAMPLES_PER_MISS: u64 = 1_000;
const MISSES: u64 = 2;

/// A path between two hosts.
struct Path {
    rate_mbps: u64,
    one_way_us: u64,
    queue_kib: u64,
    loss: f64,
}

const fn path(rate_mbps: u64, one_way_us: u64, queue_kib: u64, loss: f64) -> Path {
    Path {
        rate_mbps,
        one_way_us,
        queue_kib,
        loss,
    }
}

const PATHS: [Path; 6] = [
    path(500, 2_500, 128, 0.003),
    path(500, 10_000, 128, 0.003),
    path(100, 25_000, 256, 0.01),
    path(200, 1_000, 64, 0.003),
    path(900, 250, 128, 0.001),
    path(50, 5_000, 64, 0.03),
];

impl Path {
    /// Returns the largest valid window, in packets on the wire: twice the path's bandwidth-delay
    /// product, and its buffer.
    fn window_max(&self) -> u64 {
        let bytes = 2 * self.rate_mbps * 2 * self.one_way_us / 8 + self.queue_kib * 1024;
        bytes / 1514
    }

    fn cluster(&self, number: usize) -> Cluster {
        let path = Wan {
            rate_mbps: self.rate_mbps,
            delay_us: self.one_way_us,
            port_kib: self.queue_kib,
            loss: self.loss,
            ..Wan::default()
        };
        kumi_testlab::up(&format!("windows{number}"), &path.text())
    }
}

/// Python server that receives from twelve connections.
const SINK: &str = "import socket,threading
s=socket.create_server(('0.0.0.0',7107),backlog=64)
def take(c):
    b=bytearray(1<<20)
    while c.recv_into(b): pass
while True:
    c,_=s.accept()
    threading.Thread(target=take,args=(c,),daemon=True).start()";

/// Python client that sends on twelve connections. It prints the number of samples, those with a
/// window and those with a threshold above LIMIT, and the largest window and threshold.
const STREAMS: &str = "import os,socket,struct,threading,time
streams=[socket.create_connection(('h2',7107)) for _ in range(12)];d=b'x'*(1<<18)
def push(s):
    while True: s.sendall(d)
for s in streams: threading.Thread(target=push,args=(s,),daemon=True).start()
end=time.monotonic()+SECONDS;samples=0;over=[0,0];worst=[0,0]
while time.monotonic()<end:
    time.sleep(0.005)
    for s in streams:
        ssthresh,cwnd=struct.unpack_from('II',s.getsockopt(socket.IPPROTO_TCP,socket.TCP_INFO,104),76)
        samples+=1
        for i,v in enumerate((cwnd,ssthresh if ssthresh!=0x7fffffff else 0)):
            over[i]+=v>LIMIT;worst[i]=max(worst[i],v)
print(samples,*over,*worst,flush=True);os._exit(0)";

fn check(number: usize, path: &Path, seconds: u64) {
    let cluster = path.cluster(number);
    let _sink = Program::start(&cluster, "h2", SINK);
    std::thread::sleep(Duration::from_millis(500));
    let limit = path.window_max();
    let script = STREAMS
        .replace("SECONDS", &seconds.to_string())
        .replace("LIMIT", &limit.to_string());
    let line = Program::start(&cluster, "h1", &script).line();
    let fields: Vec<u64> = line.split(' ').map(|text| text.parse().unwrap()).collect();
    let [samples, windows, thresholds, window, threshold] = fields[..] else {
        panic!("{line}");
    };
    println!(
        "path {number}: {samples} samples; windows above {limit}: {windows}, largest {window}; thresholds: {thresholds}, \
         largest {threshold}"
    );
    assert!(samples > 100, "{line}");
    let misses_max = MISSES + samples / SAMPLES_PER_MISS;
    assert!(
        windows + thresholds <= misses_max,
        "path {number}, limit {limit}: samples, windows above, thresholds above, the largest {line}"
    );
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn windows__under_random_loss__stay_within_the_path_capacity() {
    let _control = Control::up();
    let full = std::env::var("KUMI_WINDOWS_S").ok();
    let full: Option<u64> = full.map(|seconds| seconds.parse().expect("KUMI_WINDOWS_S: seconds"));
    let paths = if full.is_some() { PATHS.len() } else { 1 };
    for (number, path) in PATHS.iter().take(paths).enumerate() {
        check(number, path, full.unwrap_or(SECONDS));
    }
}
