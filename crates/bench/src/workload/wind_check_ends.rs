//! Messages whose contents, order and times the receiver checks by rules of its own: the two ends.

use super::wind_ends::Common;
use anyhow::Context;
use clap::ValueEnum;
use kumi_command::outln;
use kumi_wind::{Atomic, Class, Node, Operation, PeerId, Place, Rung, perf};
use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Bytes of a message before its pattern.
const HEAD_BYTES: usize = 1 + 1 + 8 + 8 + 8;
const MESSAGE: u8 = b'm';
const END: u8 = b'z';

/// Words of the region to which puts go. A word is used again after that many puts, more than may
/// be under way.
const PUT_WORDS: u64 = 32_768;
const REGION_BYTES: usize = 8 * (PUT_WORDS as usize + 1);

/// Operations without a result, at most.
const OPEN_MAX: usize = 64;

/// Time without a message after which the receiver gives up.
const SILENCE: Duration = Duration::from_secs(20);

/// Delivery classes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Classes {
    /// Each message after all earlier ones.
    Ordered,
    /// Each message when it is complete.
    Unordered,
    /// All three classes at random.
    Mixed,
}

/// Arguments of the end that receives and checks.
#[derive(Debug, clap::Args)]
pub struct SinkArgs {
    /// UDP port.
    port: u16,
    #[command(flatten)]
    common: Common,
    /// Requires that the kernel executes the operations of peers.
    #[arg(long)]
    kernel: bool,
}

/// Arguments of the end that sends.
#[derive(Debug, clap::Args)]
pub struct SourceArgs {
    /// Address of the other end.
    address: IpAddr,
    /// Its UDP port.
    port: u16,
    #[command(flatten)]
    common: Common,
    /// Delivery classes.
    #[arg(long, value_enum)]
    classes: Classes,
    /// Messages per second; as many as pass without it.
    #[arg(long)]
    per_s: Option<f64>,
    /// Executes puts and additions between the messages.
    #[arg(long)]
    operations: bool,
    /// Seed of classes and lengths.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest message, in bytes; with one class all have this length.
    bytes: usize,
    /// Number of messages.
    count: u64,
}

/// Returns the time of the clock that all processes of a machine share, in ns.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    now.as_nanos() as u64
}

/// Findings of the receiver.
#[derive(Debug, Default)]
pub struct Checker {
    /// Messages below this number have all arrived.
    below: u64,
    /// Further messages that have arrived.
    beyond: std::collections::BTreeSet<u64>,
    received: u64,
    duplicates: u64,
    violations: u64,
    damaged: u64,
}

impl Checker {
    /// Takes message `index`, which is ordered after all below it if `is_ordered` is set.
    pub fn take(&mut self, index: u64, is_ordered: bool) {
        self.received += 1;
        if index < self.below || !self.beyond.insert(index) {
            self.duplicates += 1;
            return;
        }
        if is_ordered && index > self.below {
            self.violations += 1;
        }
        while self.beyond.remove(&self.below) {
            self.below += 1;
        }
    }
}

fn pattern(index: u64, at: usize) -> u8 {
    (index as usize * 31 + at * 7) as u8
}

fn build(class: Class, index: u64, puts: u64, bytes: usize) -> Vec<u8> {
    let mut message = vec![MESSAGE, class as u8];
    message.extend(index.to_be_bytes());
    message.extend(now_ns().to_be_bytes());
    message.extend(puts.to_be_bytes());
    let rest = bytes.saturating_sub(HEAD_BYTES);
    message.extend((0..rest).map(|at| pattern(index, at)));
    message
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_be_bytes)
}

/// Receives until the end, and prints the findings.
pub fn sink(args: &SinkArgs) -> anyhow::Result<()> {
    let rung = if args.kernel {
        Rung::Kernel
    } else {
        Rung::User
    };
    let node = args.common.node(args.port, rung)?;
    let region = node.register(REGION_BYTES)?;
    outln!("listening");
    let mut checker = Checker::default();
    let mut times_us = [Vec::new(), Vec::new()];
    let mut began: Option<Instant> = None;
    let (mut bytes, mut announced) = (0_u64, 0);
    while let Some(received) = node.receive(Some(SILENCE)) {
        let data = received.message.data;
        match data.first() {
            Some(&MESSAGE) => {}
            Some(&END) => {
                announced = word(&data, 1);
                break;
            }
            _ => {
                perf::offer(&node, received.peer, region.place(0))?;
                continue;
            }
        }
        began.get_or_insert_with(Instant::now);
        let (index, sent_ns, puts) = (word(&data, 2), word(&data, 10), word(&data, 18));
        let is_ordered = data[1] != Class::Unordered as u8;
        checker.take(index, is_ordered);
        bytes += data.len() as u64;
        let mut rest = data[HEAD_BYTES.min(data.len())..].iter().enumerate();
        if !rest.all(|(at, byte)| *byte == pattern(index, at)) {
            checker.damaged += 1;
        }
        // The latest puts before an ordered message are in the region.
        for put in puts.saturating_sub(4)..if is_ordered { puts } else { 0 } {
            let place = 8 * (1 + put % PUT_WORDS) as usize;
            let found = region.memory().word(place);
            if u64::from_be(found.load(std::sync::atomic::Ordering::Acquire)) <= put {
                checker.violations += 1;
            }
        }
        let time_us = now_ns().saturating_sub(sent_ns) as f64 / 1e3;
        times_us[usize::from(is_ordered)].push(time_us);
    }
    let seconds = began.map_or(1.0, |began| began.elapsed().as_secs_f64());
    let mut row = json!({
        "received": checker.received,
        "lost": announced.saturating_sub(checker.received - checker.duplicates),
        "duplicates": checker.duplicates,
        "violations": checker.violations,
        "damaged": checker.damaged,
        "goodput_bps": bytes as f64 * 8.0 / seconds,
        "counter": region.memory().word(0).load(std::sync::atomic::Ordering::Acquire),
    });
    for (name, times) in ["unordered", "ordered"].iter().zip(&mut times_us) {
        if times.is_empty() {
            continue;
        }
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        row[format!("{name}_median_us")] = json!(at(0.5));
        row[format!("{name}_p99_us")] = json!(at(0.99));
        row[format!("{name}_p999_us")] = json!(at(0.999));
    }
    outln!("{row}");
    Ok(())
}

/// Additions and puts of the sender, and what their results must be.
#[derive(Debug, Default)]
struct Operations {
    open: VecDeque<u64>,
    additions: u64,
    puts: u64,
    /// Results that repeat an earlier one or are too large.
    wrong: u64,
    seen: Vec<bool>,
}

impl Operations {
    fn add(&mut self, node: &Node, peer: PeerId, place: Place) -> anyhow::Result<()> {
        let add = Operation::Atomic(Atomic::FetchAdd(1));
        self.open.push_back(node.start(peer, place, add)?);
        self.additions += 1;
        self.seen.push(false);
        if self.open.len() >= OPEN_MAX {
            self.take(node, peer)?;
        }
        Ok(())
    }

    fn take(&mut self, node: &Node, peer: PeerId) -> anyhow::Result<()> {
        let Some(operation) = self.open.pop_front() else {
            return Ok(());
        };
        let before = word(&node.wait_result(peer, operation, Some(SILENCE))?, 0);
        match self.seen.get_mut(before as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => self.wrong += 1,
        }
        Ok(())
    }

    fn put(&mut self, node: &Node, peer: PeerId, place: Place) -> anyhow::Result<()> {
        let at = place.plus(8 * (1 + self.puts % PUT_WORDS));
        self.puts += 1;
        let value = self.puts.to_be_bytes().to_vec();
        Ok(node.post(peer, at, Operation::Put(value))?)
    }
}

/// Sends the messages, and prints what the sender has seen.
pub fn source(args: &SourceArgs) -> anyhow::Result<()> {
    let node = args.common.node(0, Rung::User)?;
    let peer = node.connect((args.address, args.port).into())?;
    let place = perf::place(&node, peer).context("the other end does not answer")?;
    // The peer states within a round trip that its kernel executes operations.
    std::thread::sleep(Duration::from_millis(100));
    let mut rng = fastrand::Rng::with_seed(args.seed);
    let mut operations = Operations::default();
    let began = Instant::now();
    for index in 0..args.count {
        let (class, bytes) = match args.classes {
            Classes::Ordered => (Class::Ordered, args.bytes),
            Classes::Unordered => (Class::Unordered, args.bytes),
            Classes::Mixed => {
                let class = Class::ALL[rng.usize(..3)];
                let most = if rng.u8(..16) == 0 {
                    args.bytes
                } else {
                    args.bytes.min(256)
                };
                (class, rng.usize(HEAD_BYTES..=most.max(HEAD_BYTES)))
            }
        };
        if args.operations && rng.u8(..4) == 0 {
            operations.add(&node, peer, place)?;
            operations.put(&node, peer, place)?;
        }
        if let Some(per_s) = args.per_s {
            let due = Duration::from_secs_f64(index as f64 / per_s);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        node.send_bytes(peer, class, build(class, index, operations.puts, bytes))?;
    }
    while !operations.open.is_empty() {
        operations.take(&node, peer)?;
    }
    node.flush(peer, Some(SILENCE))?;
    // The other end closes the session when it has the end.
    let status = node.status(peer);
    let end = [&[END][..], &args.count.to_be_bytes()].concat();
    let end = node.send_bytes(peer, Class::Synchronous, end)?;
    node.wait_placed(peer, end, Some(SILENCE))?;
    let counts = status.as_ref().map(|status| status.messages.counts);
    let rtt_us = status.map_or(0.0, |status| status.messages.rtt_min_ns as f64 / 1e3);
    let row = json!({
        "additions": operations.additions,
        "puts": operations.puts,
        "wrong_results": operations.wrong,
        "packets": counts.map(|counts| counts.packets),
        "packets_lost": counts.map(|counts| counts.lost),
        "timeouts": counts.map(|counts| counts.timeouts),
        "rtt_min_us": rtt_us,
        "messages_per_s": args.count as f64 / began.elapsed().as_secs_f64(),
    });
    outln!("{row}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(deliveries: &[(u64, bool)]) -> (u64, u64) {
        let mut checker = Checker::default();
        for (index, is_ordered) in deliveries {
            checker.take(*index, *is_ordered);
        }
        (checker.violations, checker.duplicates)
    }

    #[test]
    fn checker__deliveries_of_broken_receivers__are_found() {
        let (ordered, unordered) = (true, false);
        // Sound: an unordered message may be early, an ordered one follows all before it.
        let sound = [(1, unordered), (0, ordered), (2, ordered), (3, unordered)];
        assert_eq!(checked(&sound), (0, 0));
        // Ordered messages out of order.
        assert_eq!(checked(&[(1, ordered), (0, ordered)]), (1, 0));
        // An ordered message before an earlier unordered one.
        assert_eq!(
            checked(&[(0, ordered), (2, ordered), (1, unordered)]),
            (1, 0)
        );
        // A message twice, at once and later.
        assert_eq!(checked(&[(0, ordered), (0, ordered)]), (0, 1));
        assert_eq!(
            checked(&[(0, unordered), (1, ordered), (0, unordered)]),
            (0, 1)
        );
        // A message that is left out violates the order of the next one.
        assert_eq!(checked(&[(0, ordered), (2, ordered)]), (1, 0));
    }

    #[test]
    fn message__built__has_its_fields_and_pattern() {
        let message = build(Class::Unordered, 7, 3, 100);
        assert_eq!(
            (message.len(), word(&message, 2), word(&message, 18)),
            (100, 7, 3)
        );
        assert_eq!(message[HEAD_BYTES + 5], pattern(7, 5));
    }
}
