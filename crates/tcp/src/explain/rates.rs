//! Rate of each path, from the transfers on it.

use super::connection::{Connection, Interval};
use std::collections::HashMap;
use std::net::IpAddr;

/// Shortest window over which a path's rate is measured, in nanoseconds. Shorter windows show
/// clumps.
const RATE_WINDOW_NS: u64 = 3_000_000;
const RATE_WINDOW_BYTES: u64 = 32 * 1448;
/// Smallest train that shows a rate, in bytes. Shorter trains are spaced by timers.
const TRAIN_BYTES: u64 = 8 * 1448;
const TRAIN_NS: u64 = 200_000;

/// Returns the path rate to each far host, in bytes per nanosecond. It is the highest rate over a
/// window, or the rate that a tenth of the trains reach, if that is higher. Delayed
/// acknowledgements that arrive together make one train in a hundred look ten times as fast as the
/// path.
pub fn path_rates(connections: &[Connection]) -> HashMap<IpAddr, f64> {
    let mut hosts: HashMap<IpAddr, (f64, Vec<f64>)> = HashMap::new();
    for connection in connections {
        let (highest, trains) = hosts.entry(connection.remote.ip()).or_default();
        for transfer in &connection.transfers {
            let intervals = &connection.intervals[transfer.intervals.clone()];
            *highest = highest.max(highest_rate(intervals));
            add_train_rates(intervals, transfer.rtt_min_ns, trains);
        }
    }
    let rates = hosts
        .into_iter()
        .map(|(host, (highest, trains))| (host, highest.max(train_rate(trains))));
    rates.filter(|(_, rate)| *rate > 0.0).collect()
}

/// Returns the rate that a tenth of the trains reach; of two trains the slower, and 0 without
/// trains.
fn train_rate(mut trains: Vec<f64>) -> f64 {
    trains.sort_by(|a, b| b.total_cmp(a));
    let rate = trains.get((trains.len() / 10).max(1)).or(trains.first());
    rate.copied().unwrap_or(0.0)
}

/// Returns the highest rate over any window of a transfer, in bytes per nanosecond; 0 if none is
/// long enough.
fn highest_rate(intervals: &[Interval]) -> f64 {
    let mut highest = 0.0_f64;
    let (mut start, mut bytes) = (0, 0);
    for end in 1..intervals.len() {
        bytes += intervals[end].bytes;
        // A window starts after an arrival: the bytes of its first interval were sent before it.
        loop {
            let next_bytes = bytes - intervals[start + 1].bytes;
            let shorter_ns = intervals[end].end_ns - intervals[start + 1].end_ns;
            if start + 1 >= end || shorter_ns < RATE_WINDOW_NS || next_bytes < RATE_WINDOW_BYTES {
                break;
            }
            bytes = next_bytes;
            start += 1;
        }
        let span_ns = intervals[end].end_ns - intervals[start].end_ns;
        if span_ns >= RATE_WINDOW_NS && bytes >= RATE_WINDOW_BYTES {
            highest = highest.max(bytes as f64 / span_ns as f64);
        }
    }
    highest
}

/// Adds the highest rate within each train, in bytes per nanosecond. Bytes sent together arrive
/// with the bottleneck's spacing, so a short transfer shows a rate that it never reaches. A train
/// ends with a pause of a quarter round trip.
fn add_train_rates(intervals: &[Interval], rtt_min_ns: u64, rates: &mut Vec<f64>) {
    let (mut start_ns, mut bytes, mut highest) = (0, 0, 0.0_f64);
    for (index, interval) in intervals.iter().enumerate() {
        if index == 0 || interval.end_ns - interval.start_ns > rtt_min_ns / 4 {
            rates.extend(Some(highest).filter(|rate| *rate > 0.0));
            (start_ns, bytes, highest) = (interval.end_ns, 0, 0.0);
            continue;
        }
        bytes += interval.bytes;
        let span_ns = interval.end_ns - start_ns;
        if bytes >= TRAIN_BYTES && span_ns >= TRAIN_NS {
            highest = highest.max(bytes as f64 / span_ns as f64);
        }
    }
    rates.extend(Some(highest).filter(|rate| *rate > 0.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains__one_ten_times_faster__does_not_set_the_path_rate() {
        let mut trains = vec![1.0; 9];
        trains.push(10.0);
        assert_eq!(train_rate(trains), 1.0);
        assert_eq!(train_rate(vec![1.0, 2.0]), 1.0);
        assert_eq!(train_rate(vec![2.0]), 2.0);
        assert_eq!(train_rate(Vec::new()), 0.0);
    }
}
