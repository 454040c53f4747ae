//! Tests of the multilink device on this machine's kernel: the command itself, in a lab of its own.

mod adversity;
mod datapath;
mod hostile;
mod operators;
mod restart;
mod stream;

use kumi_lab::Cluster;
use kumi_lab::topology::{Direction, LinkChange};
use kumi_testlab::star;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const KUMI: &str = env!("CARGO_BIN_EXE_kumi");

/// A lab with a `kumi0` in every host, all with one key.
struct Bench {
    cluster: Cluster,
    /// Value of `--queues` for each host's device.
    queues: Vec<&'static str>,
    folder: PathBuf,
}

impl Bench {
    fn new(test: &str, hosts: usize) -> Self {
        Self::with_queues(test, &vec!["auto"; hosts])
    }

    fn with_queues(test: &str, queues: &[&'static str]) -> Self {
        Self::with_rate(test, queues, "500Mbit")
    }

    fn with_rate(test: &str, queues: &[&'static str], rate: &str) -> Self {
        Self::with_topology(test, queues, &star(queues.len(), 2, rate))
    }

    fn with_topology(test: &str, queues: &[&'static str], topology: &str) -> Self {
        Self::start(test, queues, topology, &[])
    }

    /// Starts all devices with further options.
    fn with_options(test: &str, hosts: usize, options: &[&str]) -> Self {
        let queues = vec!["auto"; hosts];
        Self::start(test, &queues, &star(hosts, 2, "500Mbit"), options)
    }

    fn start(test: &str, queues: &[&'static str], topology: &str, options: &[&str]) -> Self {
        let hosts = queues.len();
        let folder = std::env::temp_dir().join(format!("device-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let bench = Self {
            cluster: kumi_testlab::up(&format!("device-{test}"), topology),
            queues: queues.to_vec(),
            folder,
        };
        bench.run("h1", &[KUMI, "link", "keygen", &bench.key("cluster")]);
        for host in 1..=hosts {
            bench.up_with(host, "cluster", options);
        }
        for host in 1..=hosts {
            bench.await_peers(&format!("h{host}"), hosts - 1);
        }
        bench
    }

    fn key(&self, name: &str) -> String {
        self.folder
            .join(format!("{name}.key"))
            .display()
            .to_string()
    }

    fn up(&self, host: usize, key: &str) {
        self.up_with(host, key, &[]);
    }

    fn up_with(&self, host: usize, key: &str, options: &[&str]) {
        let address = format!("10.77.0.{host}/24");
        let key = self.key(key);
        let queues = self.queues[host - 1];
        let args = ["--over", "eth1,eth2", "--address", &address, "--key", &key];
        let args = [&args[..], &["--queues", queues], options].concat();
        let host = format!("h{host}");
        self.run(&host, &[&[KUMI, "link", "up", "kumi0"][..], &args].concat());
    }

    fn command(&self, host: &str, argv: &[&str]) -> Command {
        let mut command = self.cluster.command(host, argv[0]).unwrap();
        command.args(&argv[1..]);
        command
    }

    /// Runs a command that must succeed. Returns its standard output.
    fn run(&self, host: &str, argv: &[&str]) -> String {
        let output = self.command(host, argv).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{host}: {argv:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn state(&self, host: &str) -> Value {
        let text = self.run(host, &[KUMI, "link", "show", "-j"]);
        serde_json::from_str::<Value>(&text).unwrap()["devices"][0].clone()
    }

    /// Returns the log of a host's daemon.
    fn log(&self, host: &str) -> String {
        let cat = "cat /run/kumi/net-$(stat -Lc %i /proc/self/ns/net)/kumi0.log";
        self.run(host, &["sh", "-c", cat])
    }

    fn await_peers(&self, host: &str, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let state = self.state(host);
            let peers = state["peers"].as_array().unwrap();
            let all_paths_up = |peer: &Value| {
                let paths = peer["paths"].as_array().unwrap();
                peer["up"] == true
                    && paths.len() == 2
                    && paths.iter().all(|path| path["state"] == "up")
            };
            if peers.iter().filter(|peer| all_paths_up(peer)).count() >= count {
                return;
            }
            let log = || self.log(host);
            assert!(Instant::now() < deadline, "{host}: {state:#}\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the goodput of one TCP stream from h1 to h2 over two seconds, in Mb/s.
    fn stream_mbps(&self) -> f64 {
        let mut server = self.command("h2", &["iperf3", "-s", "-1"]);
        let mut server = server.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let client = ["iperf3", "-c", "10.77.0.2", "-t", "2", "-C", "cubic", "-J"];
        let report = self.run("h1", &client);
        server.wait().unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        let bps = &report["end"]["sum_received"]["bits_per_second"];
        bps.as_f64().unwrap() / 1e6
    }

    /// Sends pseudo-random bytes from h1 to h2 by TCP. It is slow enough for events to happen
    /// meanwhile. Both ends hash the bytes.
    fn transfer(&self, mebibytes: usize) -> Transfer {
        self.transfer_to(2, 7000, mebibytes)
    }

    /// Starts a transfer to one of two hosts from the other.
    fn transfer_to(&self, to: usize, port: u16, mebibytes: usize) -> Transfer {
        let address = format!("('10.77.0.{to}',{port})");
        let receive = format!(
            "import socket,hashlib\ns=socket.create_server({address})\nc,_=s.accept()\nh=hashlib.sha256()\nwhile True:\n d=c.recv(1<<20)\n if not d: break\n h.update(d)\nprint(h.hexdigest())"
        );
        let send = format!(
            "import socket,hashlib,random,time\nr=random.Random(1)\ntime.sleep(0.5)\ns=socket.create_connection({address})\nh=hashlib.sha256()\nfor _ in range({mebibytes}):\n d=r.randbytes(1<<20)\n h.update(d)\n s.sendall(d)\n time.sleep(0.02)\ns.close()\nprint(h.hexdigest())"
        );
        Transfer {
            receiver: self.python(to, &receive),
            sender: self.python(3 - to, &send),
        }
    }

    fn python(&self, host: usize, script: &str) -> Child {
        let argv = ["/usr/bin/python3", "-c", script];
        let mut command = self.command(&format!("h{host}"), &argv);
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Sends datagrams of 16 flows, and as many broadcasts, from one of two hosts to the other.
    /// Each must arrive once.
    fn scatter(&self, from: usize) {
        let to = 3 - from;
        let receive = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.bind(('',7100))\ns.settimeout(3)\nn=[]\ntry:\n while True: n.append(s.recv(2000)[:9])\nexcept TimeoutError: print(len(n),len(set(n)))";
        let send = format!(
            "import socket,time\ntime.sleep(0.5)\nfor f in range(16):\n s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n s.setsockopt(socket.SOL_SOCKET,socket.SO_BROADCAST,1)\n for i in range(20):\n  s.sendto(b'u%04d%04d'%(f,i)+bytes(1000),('10.77.0.{to}',7100))\n  s.sendto(b'b%04d%04d'%(f,i)+bytes(1000),('10.77.0.255',7100))\n  time.sleep(0.001)"
        );
        let (receiver, sender) = (self.python(to, receive), self.python(from, &send));
        assert!(sender.wait_with_output().unwrap().status.success());
        let output = receiver.wait_with_output().unwrap();
        let counts = String::from_utf8_lossy(&output.stdout);
        assert_eq!(counts.trim(), "640 640", "datagrams, and different ones");
    }

    /// Returns the bytes that each queue of `host` has sent to its peers.
    fn sent_by_queues(&self, host: &str) -> Vec<u64> {
        let state = self.state(host);
        let queues = state["queues"].as_array().unwrap().iter();
        queues
            .map(|queue| queue["tx_bytes"].as_u64().unwrap())
            .collect()
    }

    /// Kills the first host's daemon with SIGKILL.
    fn kill_first(&self, test: &str) {
        self.signal_first(test, "KILL");
    }

    /// Sends a signal to the first host's daemon.
    fn signal_first(&self, test: &str, signal: &str) {
        let pid = std::process::id();
        let pattern = format!("link up kumi0.*10.77.0.1/24.*device-{pid}-{test}");
        self.run("h1", &["pkill", &format!("-{signal}"), "-f", &pattern]);
    }

    /// Returns the link and the state of each path to the first peer.
    fn path_states(&self, host: &str) -> Vec<(String, String)> {
        let state = self.state(host);
        let paths = state["peers"][0]["paths"].as_array().cloned();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let paths = paths.into_iter().flatten();
        paths
            .map(|path| (text(&path["link"]), text(&path["state"])))
            .collect()
    }

    fn path_state(&self, host: &str, link: &str) -> String {
        let state = self.state(host);
        let paths = state["peers"][0]["paths"].as_array().unwrap();
        let path = paths.iter().find(|path| path["link"] == link).unwrap();
        path["state"].as_str().unwrap().to_owned()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running transfer.
struct Transfer {
    receiver: Child,
    sender: Child,
}

impl Transfer {
    /// Waits for both ends. They must have hashed the same bytes.
    fn finish(self) {
        let digest = |child: Child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "an end of the transfer failed");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        let (sent, received) = (digest(self.sender), digest(self.receiver));
        assert_eq!(sent.len(), 64);
        assert_eq!(sent, received, "what arrived is not what was sent");
    }
}

#[test]
#[ignore = "needs root, netns, tun"]
fn device__three_hosts_on_one_switch__reach_each_other_over_both_links() {
    let bench = Bench::new("three", 3);
    for (from, to) in [("h1", 2), ("h2", 3), ("h3", 1)] {
        bench.run(
            from,
            &[
                "ping",
                "-c",
                "3",
                "-i",
                "0.2",
                "-W",
                "1",
                &format!("10.77.0.{to}"),
            ],
        );
        bench.run(from, &["ping", "-6", "-c", "1", "-W", "2", "ff02::1%kumi0"]);
    }
}

#[test]
#[ignore = "needs root, netns, tun"]
fn device__without_receive_coalescing__exceeds_350_mbps() {
    let bench = Bench::new("singly", 2);
    // The NICs of the lab do no receive coalescing. When the daemon read two datagrams a turn, with
    // turns 80 us apart, a device carried 270 Mb/s of 1000 (`docs/perf-log.md`, 2026-11-22).
    let mbps = (0..3).map(|_| bench.stream_mbps()).fold(0.0, f64::max);
    assert!(mbps > 350.0, "{mbps} Mb/s");
}

#[test]
#[ignore = "needs root, netns, tun"]
fn device__carrier_lost_silent_link_and_heal_under_load__delivers_every_byte() {
    let mut bench = Bench::new("cut", 2);
    let transfer = bench.transfer(100);
    let pause = || std::thread::sleep(Duration::from_millis(400));
    pause();
    bench
        .cluster
        .set_link("h2:eth2", &LinkChange::carrier(false))
        .unwrap();
    pause();
    assert_eq!(bench.path_state("h2", "eth2"), "down");
    bench
        .cluster
        .set_link("h2:eth2", &LinkChange::carrier(true))
        .unwrap();
    pause();
    bench
        .cluster
        .set_link("h2:eth1", &LinkChange::blackhole(Direction::Rx))
        .unwrap();
    pause();
    assert_eq!(bench.path_state("h1", "eth1"), "down");
    bench
        .cluster
        .set_link("h2:eth1", &LinkChange::heal())
        .unwrap();
    transfer.finish();
    bench.await_peers("h1", 1);
}

#[test]
#[ignore = "needs root, netns, tun"]
fn device__links_added_and_removed_under_load__delivers_every_byte() {
    let bench = Bench::new("live", 2);
    let transfer = bench.transfer(60);
    for _ in 0..2 {
        bench.run("h1", &[KUMI, "link", "del", "kumi0", "eth1"]);
        std::thread::sleep(Duration::from_millis(200));
        bench.run("h1", &[KUMI, "link", "add", "kumi0", "eth1"]);
        std::thread::sleep(Duration::from_millis(200));
    }
    bench.run(
        "h1",
        &[KUMI, "link", "set", "kumi0", "eth2", "--rate", "300mbit"],
    );
    transfer.finish();
    bench.await_peers("h1", 1);
}

/// Checks the properties that must hold for any numbers of queues of two devices.
fn serve_with_queues(test: &str, queues: [&'static str; 2]) {
    let mut bench = Bench::with_queues(test, &queues);
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    bench.run(
        "h1",
        &["ping", "-c", "3", "-i", "0.2", "-W", "1", "10.77.0.2"],
    );
    let initial = [bench.sent_by_queues("h1"), bench.sent_by_queues("h2")];
    for (host, initial) in initial.iter().enumerate() {
        assert_eq!(initial.len().to_string(), queues[host]);
        bench.scatter(host + 1);
        let latest = bench.sent_by_queues(&format!("h{}", host + 1));
        for (queue, (new, old)) in latest.iter().zip(initial).enumerate() {
            assert!(new - old > 50_000, "queue {queue}: {initial:?}, {latest:?}");
        }
    }
    let transfers: Vec<Transfer> = (0..8)
        .map(|flow| bench.transfer_to(1 + usize::from(flow % 2), 7000 + flow, 20))
        .collect();
    pause(1000);
    let carrier = |bench: &mut Bench, is_up: bool| {
        let change = LinkChange::carrier(is_up);
        bench.cluster.set_link("h2:eth2", &change).unwrap();
    };
    carrier(&mut bench, false);
    pause(300);
    assert_eq!(bench.path_state("h2", "eth2"), "down");
    carrier(&mut bench, true);
    pause(300);
    bench.kill_first(test);
    pause(100);
    bench.up(1, "cluster");
    bench.run("h1", &[KUMI, "link", "del", "kumi0", "eth1"]);
    bench.run("h1", &[KUMI, "link", "add", "kumi0", "eth1"]);
    bench.run(
        "h1",
        &[KUMI, "link", "set", "kumi0", "eth2", "--rate", "300mbit"],
    );
    transfers.into_iter().for_each(Transfer::finish);
    bench.await_peers("h1", 1);
    bench.await_peers("h2", 1);
    bench.scatter(1);
    bench.run(
        "h1",
        &["ping", "-c", "3", "-i", "0.2", "-W", "1", "10.77.0.2"],
    );
    bench.run("h1", &[KUMI, "link", "down", "kumi0"]);
    let links = bench.run("h1", &["ip", "-br", "link"]);
    assert!(!links.contains("kumi0"), "the device stays: {links}");
}

#[test]
#[ignore = "needs root, netns, tun"]
fn device__two_queues_on_both_hosts__deliver_every_byte_and_each_broadcast_once() {
    serve_with_queues("both2", ["2", "2"]);
}

#[test]
#[ignore = "needs root, netns, tun"]
fn device__two_queues_against_one__deliver_every_byte_and_each_broadcast_once() {
    serve_with_queues("two1", ["2", "1"]);
}
