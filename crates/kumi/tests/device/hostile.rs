//! Tests of a flood by an attacker on the network.

use std::collections::HashMap;

use super::Bench;

/// Python program that sends empty datagrams and bursts of one-byte datagrams to all addresses, as
/// fast as it can. A burst is one system call (`UDP_SEGMENT`), so the receiving kernel limits the
/// flood more than the sender does.
const FLOOD: &str = "import socket,sys
to=[(a,24870) for a in sys.argv[1:]]
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
g=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
g.setsockopt(17,103,1)
burst=bytes(64)
while True:
 for a in to:
  for _ in range(8):
   try:
    s.sendto(b'',a)
    g.sendto(burst,a)
   except OSError: pass";

/// Returns the datagrams over IPv4 that the socket filters of a host have dropped.
fn filtered_datagrams(bench: &Bench, host: &str) -> u64 {
    let snmp = bench.run(host, &["cat", "/proc/net/snmp"]);
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let names = lines.next().unwrap().split(' ');
    let counts = lines
        .next()
        .unwrap()
        .split(' ')
        .map(|count| count.parse::<u64>().unwrap());
    let count_by_name: HashMap<&str, u64> = names.zip(counts).collect();
    // The kernel counts a drop by a filter as InErrors, and a drop at a full buffer as both.
    count_by_name["InErrors"] - count_by_name["RcvbufErrors"]
}

/// Least rate of the flood, in datagrams a second that the ports' socket filter must have dropped.
/// Without the filter the daemon reads them all, and the stream keeps 0.67-0.70 of its goodput.
const FILTERED_MIN: f64 = 100_000.0;

/// Least share of its undisturbed goodput that the stream keeps. On the development machine (two
/// processors, shared) it keeps 0.69-0.95 in 15 runs, so the median of several runs is compared.
const GOODPUT_SHARE_MIN: f64 = 0.6;

/// Number of rounds, each of a run without the flood and a run with it.
const ROUNDS: usize = 3;

/// The stream is not paced, so the cost of the flood is visible. Its rate is 0.8 Gb/s of two 500
/// Mb/s links, because stream, flood and daemons share the processors. At 1 Gb/s per link it kept
/// only 0.77-0.82.
#[test]
#[ignore = "needs root, netns, tun"]
fn device__flooded_with_empty_and_one_byte_datagrams__drops_them_and_keeps_its_goodput() {
    let bench = Bench::with_rate("flood", &["auto"; 3], "500Mbit");
    let nics = bench.cluster.nics();
    let first_nics = nics.iter().filter(|nic| nic.host_name == "h1");
    let addresses: Vec<String> = first_nics.map(|nic| nic.ipv4.to_string()).collect();
    assert_eq!(addresses.len(), 2);
    let (mut shares, mut summaries) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let undisturbed_mbps = bench.stream_mbps();
        let initial_count = filtered_datagrams(&bench, "h1");
        let start = std::time::Instant::now();
        let mut flooders: Vec<_> = addresses
            .iter()
            .map(|address| {
                let mut command = bench.command("h3", &["/usr/bin/python3", "-c", FLOOD]);
                command.arg(address).spawn().unwrap()
            })
            .collect();
        let flooded_mbps = bench.stream_mbps();
        let count = filtered_datagrams(&bench, "h1") - initial_count;
        let rate = count as f64 / start.elapsed().as_secs_f64();
        for flooder in &mut flooders {
            flooder.kill().unwrap();
            flooder.wait().unwrap();
        }
        shares.push(flooded_mbps / undisturbed_mbps);
        summaries.push(format!(
            "{undisturbed_mbps:.0} Mb/s undisturbed, {flooded_mbps:.0} while the filters dropped \
             {rate:.0} datagrams a second"
        ));
        assert!(rate > FILTERED_MIN, "not filtered: {summaries:?}");
    }
    eprintln!("{summaries:?}");
    shares.sort_by(f64::total_cmp);
    assert!(shares[ROUNDS / 2] >= GOODPUT_SHARE_MIN, "{summaries:?}");
}
