//! Depth of a NIC's transmit queue, read and changed by `tc`.
//!
//! A rival may need a deeper queue than the topology's. On the same links, MPTCP reached 1690 Mb/s
//! with 150 KB and 1877 Mb/s with 1500 KB (ADR 006). A shaped NIC has a token bucket, whose own
//! limit is the depth. If the bucket has a packet queue as its child, the child's limit is the
//! depth, in packets, as a NIC counts descriptors.

/// Size of a full frame as the kernel's queues count it, in bytes.
const FRAME_BYTES: u64 = 1514;

/// A queue whose depth can be changed.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// Arguments of `tc` that each change must repeat: place and discipline, all but the depth.
    arguments: Vec<String>,
    /// Present depth, as `limit N` or `latency TIME`.
    current: [String; 2],
    /// Bytes of one unit of `limit`.
    unit_bytes: u64,
}

impl QueueDepth {
    /// Finds the queue in the output of `tc qdisc show dev DEVICE`; `None` if no token bucket
    /// shapes the device.
    pub fn find(output: &str) -> Option<Self> {
        let find_line = |kind: &str| {
            let line = output
                .lines()
                .find(|line| line.starts_with(&format!("qdisc {kind} ")))?;
            Some(line.split_whitespace().collect::<Vec<&str>>())
        };
        let bucket = find_line("tbf")?;
        if let Some(packets) = find_line("pfifo") {
            let limit = value(&packets, "limit")?.trim_end_matches('p').to_string();
            let arguments = [place(&packets)?, vec!["pfifo".into()]].concat();
            return Some(Self {
                arguments,
                current: ["limit".into(), limit],
                unit_bytes: FRAME_BYTES,
            });
        }
        // `show` prints the depth in one of two ways, and abbreviates latency to `lat`.
        let current = match (value(&bucket, "limit"), value(&bucket, "lat")) {
            (Some(bytes), _) => ["limit".to_string(), bytes],
            (None, Some(time)) => ["latency".to_string(), time],
            (None, None) => return None,
        };
        let shape = [
            "tbf",
            "rate",
            &value(&bucket, "rate")?,
            "burst",
            &value(&bucket, "burst")?,
        ];
        let arguments = [place(&bucket)?, shape.map(str::to_string).to_vec()].concat();
        Some(Self {
            arguments,
            current,
            unit_bytes: 1,
        })
    }

    /// Returns the command that makes the queue of `device` `depth_bytes` deep.
    pub fn set(&self, device: &str, depth_bytes: u64) -> Vec<String> {
        let limit = (depth_bytes / self.unit_bytes).to_string();
        self.change(device, ["limit", &limit])
    }

    /// Returns the command that restores the previous depth.
    pub fn restore(&self, device: &str) -> Vec<String> {
        self.change(device, [&self.current[0], &self.current[1]])
    }

    fn change(&self, device: &str, depth: [&str; 2]) -> Vec<String> {
        let change = ["tc", "qdisc", "change", "dev", device].map(str::to_string);
        let depth = depth.map(str::to_string);
        change
            .into_iter()
            .chain(self.arguments.clone())
            .chain(depth)
            .collect()
    }
}

/// Returns the place of a discipline, as arguments of `tc`: `root handle 1:`.
fn place(line: &[&str]) -> Option<Vec<String>> {
    let handle = line.get(2)?.to_string();
    let mut place = match value(line, "parent") {
        Some(parent) => vec!["parent".to_string(), parent],
        None => vec!["root".to_string()],
    };
    place.extend(["handle".to_string(), handle]);
    Some(place)
}

fn value(line: &[&str], key: &str) -> Option<String> {
    let position = line.iter().position(|word| *word == key)?;
    line.get(position + 1).map(|word| (*word).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: &str = "qdisc tbf 1: root refcnt 2 rate 984395Kbit burst 15000b lat 1.1ms \n\
         qdisc clsact ffff: parent ffff:fff1 \n";

    #[test]
    fn queue_depth__bucket_alone__is_changed_in_bytes() {
        let depth = QueueDepth::find(BUCKET).expect("there is one");
        let shape = "dev eth1 root handle 1: tbf rate 984395Kbit burst 15000b";
        let set = format!("tc qdisc change {shape} limit 150000");
        let restore = format!("tc qdisc change {shape} latency 1.1ms");
        assert_eq!(depth.set("eth1", 150_000).join(" "), set);
        assert_eq!(depth.restore("eth1").join(" "), restore);
    }

    #[test]
    fn queue_depth__bucket_with_packet_queue__is_changed_in_packets() {
        let output = format!("{BUCKET}qdisc pfifo 10: parent 1:1 limit 1000p\n");
        let depth = QueueDepth::find(&output).expect("there is one");
        let set = "tc qdisc change dev eth1 parent 1:1 handle 10: pfifo limit 99";
        assert_eq!(depth.set("eth1", 150_000).join(" "), set);
        assert!(depth.restore("eth1").join(" ").ends_with("limit 1000"));
    }

    #[test]
    fn queue_depth__real_nic__is_not_found() {
        assert_eq!(QueueDepth::find("qdisc mq 0: root \n"), None);
    }
}
