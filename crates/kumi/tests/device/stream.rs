//! A TCP stream whose delivery is recorded over time.

use super::Bench;
use std::process::Child;
use std::time::{SystemTime, UNIX_EPOCH};

/// Width of a bin of the record, in seconds.
const BIN_S: f64 = 0.02;

/// A stream from h1 to h2, as fast as the path allows.
pub struct Stream {
    receiver: Child,
    sender: Child,
}

/// Bytes delivered, in bins of [`BIN_S`] seconds.
pub struct DeliveryRecord {
    bins: Vec<(f64, f64)>,
}

/// Returns the seconds since 1970. Both ends use the same clock.
pub fn now_s() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs_f64()
}

impl Stream {
    /// Starts a stream that ends after `seconds`.
    pub fn start(bench: &Bench, seconds: f64) -> Self {
        let receive = format!(
            "import socket,time\ns=socket.create_server(('10.77.0.2',7300))\nc,_=s.accept()\nb=memoryview(bytearray(1<<20))\nbins={{}}\ntotal=0\nwhile True:\n n=c.recv_into(b)\n if not n: break\n total+=n\n at=int(time.time()/{BIN_S})\n bins[at]=bins.get(at,0)+n\nprint(total,*('%d:%d'%i for i in sorted(bins.items())))"
        );
        let send = format!(
            "import socket,time\ntime.sleep(0.3)\ns=socket.socket()\ns.setsockopt(6,13,b'cubic')\ns.connect(('10.77.0.2',7300))\nd=bytes(1<<18)\nend=time.time()+{seconds}\ntotal=0\nwhile time.time()<end:\n s.sendall(d)\n total+=len(d)\ns.close()\nprint(total)"
        );
        Self {
            receiver: bench.python(2, &receive),
            sender: bench.python(1, &send),
        }
    }

    /// Waits for the end. Every byte must have been delivered.
    pub fn finish(self) -> DeliveryRecord {
        let stdout = |child: Child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "an end of the stream failed");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let (sent, received) = (stdout(self.sender), stdout(self.receiver));
        let mut fields = received.split_whitespace();
        assert_eq!(fields.next(), Some(sent.trim()), "bytes sent and received");
        let bins = fields.map(|field| {
            let (index, bytes) = field.split_once(':').unwrap();
            let index: f64 = index.parse().unwrap();
            (index * BIN_S, bytes.parse().unwrap())
        });
        DeliveryRecord {
            bins: bins.collect(),
        }
    }
}

impl DeliveryRecord {
    /// Returns the mean rate between two times, in Mb/s.
    pub fn mbps(&self, from_s: f64, to_s: f64) -> f64 {
        let is_within = |at_s: f64| at_s >= from_s && at_s < to_s;
        let bins = self.bins.iter().filter(|(at_s, _)| is_within(*at_s));
        bins.map(|(_, bytes)| bytes).sum::<f64>() * 8e-6 / (to_s - from_s)
    }

    /// Returns the longest time without a delivery between two times, in seconds.
    pub fn longest_silence(&self, from_s: f64, to_s: f64) -> f64 {
        let is_within = |at_s: &f64| *at_s > from_s && *at_s < to_s;
        let deliveries = self.bins.iter().map(|(at_s, _)| *at_s).filter(is_within);
        let ends = deliveries.chain([to_s]);
        let mut last_s = from_s;
        ends.map(|at_s| at_s - std::mem::replace(&mut last_s, at_s + BIN_S))
            .fold(0.0, f64::max)
    }

    /// Returns the time of the last delivery, in seconds since 1970.
    pub fn end_s(&self) -> f64 {
        self.bins.last().map_or(0.0, |(at_s, _)| *at_s)
    }

    /// Returns the rates of `parts` equal parts of the time between two times, in Mb/s.
    pub fn course(&self, from_s: f64, to_s: f64, parts: usize) -> Vec<f64> {
        let part_s = (to_s - from_s) / parts as f64;
        let start_s = |part: usize| from_s + part as f64 * part_s;
        (0..parts)
            .map(|part| self.mbps(start_s(part), start_s(part + 1)).round())
            .collect()
    }
}
