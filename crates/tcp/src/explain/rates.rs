//! Rate of each path, from the transfers on it.

use super::flow::{Flow, Piece};
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
pub fn path_rates(flows: &[Flow]) -> HashMap<IpAddr, f64> {
    let mut seen: HashMap<IpAddr, (f64, Vec<f64>)> = HashMap::new();
    for flow in flows {
        let (highest, trains) = seen.entry(flow.remote.ip()).or_default();
        for transfer in &flow.transfers {
            let pieces = &flow.pieces[transfer.pieces.clone()];
            *highest = highest.max(highest_rate(pieces));
            add_train_rates(pieces, transfer.rtt_min_ns, trains);
        }
    }
    let rates = seen
        .into_iter()
        .map(|(host, (highest, trains))| (host, highest.max(borne_out(trains))));
    rates.filter(|(_, rate)| *rate > 0.0).collect()
}

/// Returns the rate that a tenth of the trains reach; of two trains the slower, and 0 without
/// trains.
fn borne_out(mut trains: Vec<f64>) -> f64 {
    trains.sort_by(|a, b| b.total_cmp(a));
    let reached = trains.get((trains.len() / 10).max(1)).or(trains.first());
    reached.copied().unwrap_or(0.0)
}

/// Returns the highest rate over any window of a transfer, in bytes per nanosecond; 0 if none is
/// long enough.
fn highest_rate(pieces: &[Piece]) -> f64 {
    let mut highest = 0.0_f64;
    let (mut from, mut bytes) = (0, 0);
    for to in 1..pieces.len() {
        bytes += pieces[to].bytes;
        // A window starts after an arrival: the bytes of its first piece were sent before it.
        loop {
            let next = bytes - pieces[from + 1].bytes;
            let shorter_ns = pieces[to].to_ns - pieces[from + 1].to_ns;
            if from + 1 >= to || shorter_ns < RATE_WINDOW_NS || next < RATE_WINDOW_BYTES {
                break;
            }
            bytes = next;
            from += 1;
        }
        let span_ns = pieces[to].to_ns - pieces[from].to_ns;
        if span_ns >= RATE_WINDOW_NS && bytes >= RATE_WINDOW_BYTES {
            highest = highest.max(bytes as f64 / span_ns as f64);
        }
    }
    highest
}

/// Adds the highest rate within each train, in bytes per nanosecond. Bytes sent together arrive
/// with the bottleneck's spacing, so a short transfer shows a rate that it never reaches. A train
/// ends with a pause of a quarter round trip.
fn add_train_rates(pieces: &[Piece], rtt_min_ns: u64, rates: &mut Vec<f64>) {
    let (mut began_ns, mut bytes, mut highest) = (0, 0, 0.0_f64);
    for (at, piece) in pieces.iter().enumerate() {
        if at == 0 || piece.to_ns - piece.from_ns > rtt_min_ns / 4 {
            rates.extend(Some(highest).filter(|rate| *rate > 0.0));
            (began_ns, bytes, highest) = (piece.to_ns, 0, 0.0);
            continue;
        }
        bytes += piece.bytes;
        let span_ns = piece.to_ns - began_ns;
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
        assert_eq!(borne_out(trains), 1.0);
        assert_eq!(borne_out(vec![1.0, 2.0]), 1.0);
        assert_eq!(borne_out(vec![2.0]), 2.0);
        assert_eq!(borne_out(Vec::new()), 0.0);
    }
}
