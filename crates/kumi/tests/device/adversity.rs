//! Tests of networks with wrong cabling or dead NICs, and of attackers. The rates are low enough
//! for two processors, so that the links are the limit.

use super::stream::{Stream, now_s};
use super::{Bench, KUMI};
use kumi_lab::topology::{Direction, LinkChange};
use kumi_testlab::{cables, star};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Time limit for full recovery after a change, in seconds.
const RECOVERY_S_MAX: f64 = 2.0;
/// Share of the former rate that counts as full recovery.
const RECOVERY_SHARE: f64 = 0.85;

fn pause(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

impl Bench {
    /// Runs `ip` in the network namespace of the fabric.
    fn fabric_ip(&self, arguments: &str) {
        let pid = self.cluster.roster().fabric_pid.to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-n", "ip"]);
        let status = command.args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    /// Connects the NICs of the second host to `cables`, in this order.
    fn plug_second_host(&self, cables: [usize; 2]) {
        for (link, cable) in cables.iter().enumerate() {
            self.fabric_ip(&format!("link set l{link}b master c{cable}"));
            self.fabric_ip(&format!("link set l{link}b type bridge_slave learning off"));
        }
    }
}

#[test]
#[ignore = "needs root, netns, tun"]
fn cables__swapped_under_load__recover_within_two_seconds() {
    let bench = Bench::with_topology("crossed", &["auto"; 2], &cables(2, "100Mbit"));
    let stream = Stream::start(&bench, 8.0);
    pause(2.0);
    let mut changes_s = Vec::new();
    for cables in [[1, 0], [0, 1]] {
        changes_s.push(now_s());
        bench.plug_second_host(cables);
        pause(RECOVERY_S_MAX + 0.6);
    }
    let delivered = stream.finish();
    let before_mbps = delivered.mbps(changes_s[0] - 1.0, changes_s[0]);
    for at_s in changes_s {
        let recovery_s = at_s + RECOVERY_S_MAX;
        let after_mbps = delivered.mbps(recovery_s, recovery_s + 0.5);
        let summary = format!(
            "{before_mbps:.0} Mb/s, {RECOVERY_S_MAX} s after the cables were swapped \
             {after_mbps:.0}; silent for {:.2} s; {:?}",
            delivered.longest_silence(at_s, recovery_s),
            delivered.course(at_s, recovery_s + 0.5, 10),
        );
        eprintln!("{summary}");
        assert!(after_mbps > RECOVERY_SHARE * before_mbps, "{summary}");
    }
}

#[test]
#[ignore = "needs root, netns, tun"]
fn switch__dead_nic_at_each_end__traffic_continues_and_recovers() {
    let mut bench = Bench::with_rate("half", &["auto"; 2], "100Mbit");
    let stream = Stream::start(&bench, 7.5);
    pause(1.8);
    let dead_s = now_s();
    for end in ["h1:eth1", "h2:eth2"] {
        let change = LinkChange::blackhole(Direction::Both);
        bench.cluster.set_link(end, &change).unwrap();
    }
    pause(2.5);
    let healed_s = now_s();
    for end in ["h1:eth1", "h2:eth2"] {
        bench.cluster.set_link(end, &LinkChange::heal()).unwrap();
    }
    let delivered = stream.finish();
    let before_mbps = delivered.mbps(dead_s - 1.0, dead_s);
    let dead_mbps = delivered.mbps(dead_s + 1.0, healed_s);
    let recovery_s = healed_s + RECOVERY_S_MAX;
    let after_mbps = delivered.mbps(recovery_s, recovery_s + 0.6);
    let summary = format!(
        "{before_mbps:.0} Mb/s, {dead_mbps:.0} with a dead NIC at each end, {after_mbps:.0} \
         {RECOVERY_S_MAX} s after they healed; silent for {:.2} s; {:?}",
        delivered.longest_silence(dead_s, healed_s),
        delivered.course(dead_s, dead_s + 1.0, 10),
    );
    eprintln!("{summary}");
    assert!(dead_mbps > RECOVERY_SHARE * before_mbps / 2.0, "{summary}");
    assert!(after_mbps > RECOVERY_SHARE * before_mbps, "{summary}");
}

#[test]
#[ignore = "needs root, netns, tun"]
fn switch__limited_to_1500_between_jumbo_nics__carries_the_full_rate_of_1500() {
    let bench = Bench::with_rate("jumbo", &["auto"; 2], "100Mbit");
    let plain_mbps = bench.stream_mbps();
    for host in ["h1", "h2"] {
        bench.run(host, &[KUMI, "link", "down", "kumi0"]);
        for nic in ["eth1", "eth2"] {
            bench.run(host, &["ip", "link", "set", nic, "mtu", "9000"]);
        }
    }
    let start = Instant::now();
    bench.up(1, "cluster");
    bench.up(2, "cluster");
    bench.await_peers("h1", 1);
    bench.await_peers("h2", 1);
    let joined_s = start.elapsed().as_secs_f64();
    let jumbo_mbps = bench.stream_mbps();
    let summary = format!(
        "{plain_mbps:.0} Mb/s with NICs of 1500, {jumbo_mbps:.0} with jumbo NICs, which were up \
         after {joined_s:.1} s"
    );
    eprintln!("{summary}");
    assert!(jumbo_mbps > 0.9 * plain_mbps, "{summary}");
}

/// Python program that sends junk datagrams with the first bytes of handshakes. Its first argument
/// is the total rate per second, and the others are the addresses.
const JUNK: &str = "import os,socket,sys,time
rate=float(sys.argv[1])
to=[(a,24870) for a in sys.argv[2:]]
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
begin=time.monotonic()
n=0
while True:
 while n<(time.monotonic()-begin)*rate:
  s.sendto(bytes([0x42 if n%4 else 0x52,0,0,0])+os.urandom(191),to[n//4%len(to)])
  n+=1
 time.sleep(0.001)";

/// A flooding process. It is killed on drop.
struct Flooder(Child);

impl Drop for Flooder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs root, netns, tun"]
fn handshakes__10000_junk_messages_per_second__do_not_keep_a_peer_out() {
    let bench = Bench::with_topology("junk", &["auto"; 3], &star(3, 2, "100Mbit"));
    bench.run("h3", &[KUMI, "link", "down", "kumi0"]);
    bench.run("h2", &[KUMI, "link", "down", "kumi0"]);
    let nics = bench.cluster.nics();
    let victims = nics.iter().filter(|nic| nic.host_name != "h3");
    let addresses: Vec<String> = victims.map(|nic| nic.ipv4.to_string()).collect();
    assert_eq!(addresses.len(), 4);
    let wrong_keys = || {
        let counters = bench.state("h1")["counters"].clone();
        counters["wrong_key"].as_u64().unwrap()
    };
    // Each host gets half of the rate.
    let mut command = bench.command("h3", &["/usr/bin/python3", "-c", JUNK, "20000"]);
    let _flooder = Flooder(command.args(&addresses).spawn().unwrap());
    pause(0.5);
    let (initial_count, start) = (wrong_keys(), Instant::now());
    let join_time_s = |start: Instant| {
        bench.await_peers("h1", 1);
        bench.await_peers("h2", 1);
        start.elapsed().as_secs_f64()
    };
    bench.up(2, "cluster");
    let joined_s = join_time_s(start);
    let mut restarted_s = Vec::new();
    for _ in 0..3 {
        bench.kill_first("junk");
        pause(0.1);
        let start = Instant::now();
        bench.up(1, "cluster");
        restarted_s.push(join_time_s(start));
    }
    pause(1.0);
    let (start_count, start) = (wrong_keys(), Instant::now());
    pause(1.0);
    let per_second = (wrong_keys() - start_count) as f64 / start.elapsed().as_secs_f64();
    let summary = format!(
        "joined after {joined_s:.2} s, back after {restarted_s:.2?} s, among {per_second:.0} junk \
         handshakes a second at one host ({initial_count} before)"
    );
    eprintln!("{summary}");
    assert!(per_second > 5_000.0, "no flood: {summary}");
    assert!(
        joined_s <= 2.0 && restarted_s.iter().all(|s| *s <= 2.0),
        "{summary}"
    );
}
