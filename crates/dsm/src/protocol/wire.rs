//! Messages between nodes. All numbers are big-endian.
//!
//! ```text
//! message:  | losses (16) | one of these:
//! exchange: | 1 | sequence (32) | direction (8) | count (16) | count × call |
//! request:  | 2 | lock (32)                  | clock |
//! forward:  | 3 | lock (32) | requester (16) | clock |
//! grant:    | 4 | lock (32)                  | intervals |
//! lost:     | 5 | count (16) | count × node (16) |
//! refresh:  | 6 | sequence (32) | count (32) | count × ( page (32), length (32), runs ) |
//!
//! call:      | length (16) | text | spans (16) | spans × nodes | count (16) | count × data |
//! nodes:     | first (16) | count (16) |                 those that have no data
//! data:      | node (16) | length (32) | bytes |
//! clock:     nodes × number (32)
//! intervals: | count (32) | count × ( writer (16), number (32), spans (32), spans × span ) |
//! span:      | first (32) | count (32) |
//! ```
//!
//! Intervals are numbered from 1. In the data of a barrier, one with the number 0 has the pages
//! that its writer has sent to all other nodes before the exchange.

use super::error::Malformed;
use super::intervals::{Clock, Interval};
use super::spans::Span;
use std::collections::BTreeMap;

/// Way of blobs in the tree of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the parent: those of the sender's subtree.
    Up,
    /// To a child: those of all nodes that are not in its subtree.
    Down,
}

/// Call that all nodes make together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Name and arguments, as messages show them.
    pub text: String,
    /// Data of this node.
    pub data: Vec<u8>,
}

/// Calls by node, in order.
pub type Calls = Vec<(usize, Call)>;

/// A message to another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Calls of some nodes, in an exchange.
    Exchange {
        sequence: u32,
        direction: Direction,
        calls: Calls,
    },
    /// Asks the manager for a lock.
    Request { lock: u32, clock: Clock },
    /// Tells the last one in the queue of a lock who comes after it.
    Forward {
        lock: u32,
        requester: u16,
        clock: Clock,
    },
    /// Passes the lock on, with the intervals that the next holder does not know.
    Grant { lock: u32, intervals: Vec<Interval> },
    /// Nodes that the sender knows to be lost.
    Lost { lost: Vec<u16> },
    /// Changes before a barrier, whose exchange has this number, of pages to which the receiver
    /// subscribes.
    Refresh {
        sequence: u32,
        pages: Vec<(u32, PageRuns)>,
    },
}

/// Changed bytes of a page, as runs of [`kumi_wind::protocol::diff`].
pub type PageRuns = Vec<u8>;

impl Message {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Exchange {
                sequence,
                direction,
                calls,
            } => {
                out.push(1);
                out.extend(sequence.to_be_bytes());
                out.push(match direction {
                    Direction::Up => 0,
                    Direction::Down => 1,
                });
                push_calls(calls, out);
            }
            Self::Request { lock, clock } => {
                out.push(2);
                out.extend(lock.to_be_bytes());
                push_clock(clock, out);
            }
            Self::Forward {
                lock,
                requester,
                clock,
            } => {
                out.push(3);
                out.extend(lock.to_be_bytes());
                out.extend(requester.to_be_bytes());
                push_clock(clock, out);
            }
            Self::Grant { lock, intervals } => {
                out.push(4);
                out.extend(lock.to_be_bytes());
                push_intervals(intervals, out);
            }
            Self::Lost { lost } => {
                out.push(5);
                out.extend((lost.len() as u16).to_be_bytes());
                out.extend(lost.iter().flat_map(|node| node.to_be_bytes()));
            }
            Self::Refresh { sequence, pages } => {
                out.push(6);
                out.extend(sequence.to_be_bytes());
                out.extend((pages.len() as u32).to_be_bytes());
                for (page, runs) in pages {
                    out.extend(page.to_be_bytes());
                    out.extend((runs.len() as u32).to_be_bytes());
                    out.extend(runs);
                }
            }
        }
    }

    /// Returns whether encoded bytes are [`Self::Lost`].
    pub fn is_about_losses(bytes: &[u8]) -> bool {
        bytes.first() == Some(&5)
    }

    /// Reads a message of a job of `nodes` nodes.
    ///
    /// # Errors
    /// It is truncated, has bytes left over, or an unknown kind.
    pub fn decode(bytes: &[u8], nodes: usize) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let message = reader.message(nodes).ok_or(Malformed(bytes.len()))?;
        match reader.0 {
            [] => Ok(message),
            _ => Err(Malformed(bytes.len())),
        }
    }
}

/// Most bytes of the text of a call. Each node of a message gets a copy.
const TEXT_BYTES_MAX: u16 = 1000;

/// Appends calls. Nodes with the same text and no data share a few bytes.
fn push_calls(calls: &Calls, out: &mut Vec<u8>) {
    let mut by_text: BTreeMap<&str, Vec<(u16, &[u8])>> = BTreeMap::new();
    for (node, call) in calls {
        let nodes = by_text.entry(&call.text).or_default();
        nodes.push((*node as u16, &call.data));
    }
    out.extend((by_text.len() as u16).to_be_bytes());
    for (text, nodes) in by_text {
        out.extend((text.len() as u16).to_be_bytes());
        out.extend(text.as_bytes());
        let (empty, full): (Vec<_>, Vec<_>) = nodes.iter().partition(|(_, data)| data.is_empty());
        let mut spans: Vec<(u16, u16)> = Vec::new();
        for (node, _) in empty {
            match spans.last_mut() {
                Some((first, count)) if *first + *count == node => *count += 1,
                _ => spans.push((node, 1)),
            }
        }
        out.extend((spans.len() as u16).to_be_bytes());
        for (first, count) in spans {
            out.extend(first.to_be_bytes());
            out.extend(count.to_be_bytes());
        }
        out.extend((full.len() as u16).to_be_bytes());
        for (node, data) in full {
            out.extend(node.to_be_bytes());
            out.extend((data.len() as u32).to_be_bytes());
            out.extend(data);
        }
    }
}

fn push_clock(clock: &Clock, out: &mut Vec<u8>) {
    out.extend(clock.0.iter().flat_map(|number| number.to_be_bytes()));
}

fn push_intervals(intervals: &[Interval], out: &mut Vec<u8>) {
    out.extend((intervals.len() as u32).to_be_bytes());
    for interval in intervals {
        out.extend(interval.writer.to_be_bytes());
        out.extend(interval.number.to_be_bytes());
        push_spans(&interval.pages, out);
    }
}

fn push_spans(spans: &[Span], out: &mut Vec<u8>) {
    out.extend((spans.len() as u32).to_be_bytes());
    for span in spans {
        out.extend(span.first.to_be_bytes());
        out.extend(span.count.to_be_bytes());
    }
}

/// Subscriptions that a node reports at a barrier.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Pages to which it subscribes from now on.
    pub subscribed: Vec<Span>,
    /// Pages to which it subscribes no more.
    pub unsubscribed: Vec<Span>,
}

/// Data of a barrier.
///
/// ```text
/// | intervals | subscribed | unsubscribed | nodes (16) | nodes × node (16) | updates (8) |
///
/// subscribed, unsubscribed: | spans (32) | spans × span |
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arrival {
    pub intervals: Vec<Interval>,
    pub report: Report,
    /// Nodes to which the sender has sent a refresh.
    pub refreshed: Vec<u16>,
    /// Way of the pages that the sender sends to all others.
    pub updates: UpdateWay,
}

/// Way of a node's updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpdateWay {
    /// They were put before the exchange, or the node has none.
    #[default]
    Before,
    /// Messages that are taken in behind the exchange.
    Messages,
    /// They are put behind the exchange, because a node may still take in the messages of the
    /// barrier before, which are older.
    Behind,
}

impl Arrival {
    /// Returns the bytes: none for what is [`Arrival::default`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if *self == Self::default() {
            return out;
        }
        push_intervals(&self.intervals, &mut out);
        push_spans(&self.report.subscribed, &mut out);
        push_spans(&self.report.unsubscribed, &mut out);
        out.extend((self.refreshed.len() as u16).to_be_bytes());
        out.extend(self.refreshed.iter().flat_map(|node| node.to_be_bytes()));
        out.push(match self.updates {
            UpdateWay::Before => 0,
            UpdateWay::Messages => 1,
            UpdateWay::Behind => 2,
        });
        out
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// They are truncated, or some are left over.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut reader = Reader(bytes);
        let arrival = reader.arrival().filter(|_| reader.0.is_empty());
        arrival.ok_or(Malformed(bytes.len()))
    }
}

/// State of a node after a loss: the data of the exchange with which a recovery begins.
///
/// ```text
/// | barriers (64) | losses (16) | next (64) | regions (32) | written | pushed |
///
/// written, pushed: | spans (32) | spans × span |
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// Barriers that this node has passed with all that belongs to them.
    pub barriers: u64,
    /// Nodes that were lost at the last recovery which this node has passed.
    pub losses: u16,
    /// A number of the program, of which the highest counts.
    pub next: u64,
    /// Regions that there were at the last barrier.
    pub regions: u32,
    /// Pages that nodes wrote before the last barrier, and whose bytes went to their homes.
    pub written: Vec<Span>,
    /// Pages that nodes sent to all others before it.
    pub pushed: Vec<Span>,
}

impl Standing {
    /// Returns the bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.barriers.to_be_bytes());
        out.extend(self.losses.to_be_bytes());
        out.extend(self.next.to_be_bytes());
        out.extend(self.regions.to_be_bytes());
        push_spans(&self.written, &mut out);
        push_spans(&self.pushed, &mut out);
        out
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// They are truncated, or some are left over.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let standing = reader.standing().filter(|_| reader.0.is_empty());
        standing.ok_or(Malformed(bytes.len()))
    }
}

/// Bytes that are left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn short(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn clock(&mut self, nodes: usize) -> Option<Clock> {
        let numbers = (0..nodes).map(|_| self.number());
        Some(Clock(numbers.collect::<Option<_>>()?))
    }

    /// Reads calls of a job of `nodes` nodes, each of which is in at most one.
    fn calls(&mut self, nodes: usize) -> Option<Calls> {
        let mut calls = BTreeMap::new();
        for _ in 0..self.short()? {
            let length = Some(self.short()?).filter(|length| *length <= TEXT_BYTES_MAX)?;
            let text = std::str::from_utf8(self.bytes(length.into())?).ok()?;
            let mut add = |node: usize, data: &[u8]| {
                let call = Call {
                    text: text.to_owned(),
                    data: data.to_vec(),
                };
                let is_new = node < nodes && calls.insert(node, call).is_none();
                is_new.then_some(())
            };
            for _ in 0..self.short()? {
                let (first, count) = (usize::from(self.short()?), usize::from(self.short()?));
                for node in first..first + count {
                    add(node, &[])?;
                }
            }
            for _ in 0..self.short()? {
                let (node, length) = (self.short()?, self.number()?);
                add(node.into(), self.bytes(length as usize)?)?;
            }
        }
        Some(calls.into_iter().collect())
    }

    // A list grows as its items are read, so a count beyond the bytes allocates nothing.
    fn intervals(&mut self) -> Option<Vec<Interval>> {
        let mut intervals = Vec::new();
        for _ in 0..self.number()? {
            intervals.push(Interval {
                writer: self.short()?,
                number: self.number()?,
                pages: self.spans()?,
            });
        }
        Some(intervals)
    }

    fn spans(&mut self) -> Option<Vec<Span>> {
        let mut spans = Vec::new();
        for _ in 0..self.number()? {
            let (first, count) = (self.number()?, self.number()?);
            first.checked_add(count).filter(|_| count > 0)?;
            spans.push(Span { first, count });
        }
        Some(spans)
    }

    fn arrival(&mut self) -> Option<Arrival> {
        let (intervals, subscribed, unsubscribed) =
            (self.intervals()?, self.spans()?, self.spans()?);
        let nodes = (0..self.short()?).map(|_| self.short());
        Some(Arrival {
            intervals,
            report: Report {
                subscribed,
                unsubscribed,
            },
            refreshed: nodes.collect::<Option<_>>()?,
            updates: match self.array()? {
                [0] => UpdateWay::Before,
                [1] => UpdateWay::Messages,
                [2] => UpdateWay::Behind,
                _ => return None,
            },
        })
    }

    fn standing(&mut self) -> Option<Standing> {
        Some(Standing {
            barriers: u64::from_be_bytes(self.array()?),
            losses: self.short()?,
            next: u64::from_be_bytes(self.array()?),
            regions: self.number()?,
            written: self.spans()?,
            pushed: self.spans()?,
        })
    }

    fn message(&mut self, nodes: usize) -> Option<Message> {
        Some(match self.byte()? {
            1 => {
                let sequence = self.number()?;
                let direction = match self.byte()? {
                    0 => Direction::Up,
                    1 => Direction::Down,
                    _ => return None,
                };
                Message::Exchange {
                    sequence,
                    direction,
                    calls: self.calls(nodes)?,
                }
            }
            2 => Message::Request {
                lock: self.number()?,
                clock: self.clock(nodes)?,
            },
            3 => Message::Forward {
                lock: self.number()?,
                requester: self.short()?,
                clock: self.clock(nodes)?,
            },
            4 => Message::Grant {
                lock: self.number()?,
                intervals: self.intervals()?,
            },
            5 => {
                let count = self.short()?;
                let lost = (0..count).map(|_| self.short());
                Message::Lost {
                    lost: lost.collect::<Option<_>>()?,
                }
            }
            6 => {
                let sequence = self.number()?;
                let mut pages = Vec::new();
                for _ in 0..self.number()? {
                    let (page, length) = (self.number()?, self.number()?);
                    pages.push((page, self.bytes(length as usize)?.to_vec()));
                }
                Message::Refresh { sequence, pages }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn intervals() -> impl Strategy<Value = Vec<Interval>> {
        let span =
            (0_u32..1 << 30, 1_u32..1 << 30).prop_map(|(first, count)| Span { first, count });
        let pages = proptest::collection::vec(span, 0..5);
        let interval =
            (0_u16..4, any::<u32>(), pages).prop_map(|(writer, number, pages)| Interval {
                writer,
                number,
                pages,
            });
        proptest::collection::vec(interval, 0..5)
    }

    fn refreshes() -> impl Strategy<Value = Vec<(u32, PageRuns)>> {
        let runs = proptest::collection::vec(any::<u8>(), 0..20);
        proptest::collection::vec((any::<u32>(), runs), 0..4)
    }

    fn message() -> impl Strategy<Value = Message> {
        let clock = || proptest::collection::vec(any::<u32>(), 4).prop_map(Clock);
        let data = proptest::collection::vec(any::<u8>(), 0..20);
        let call = ("a{1,2}", prop_oneof![Just(Vec::new()), data]);
        let call = call.prop_map(|(text, data)| Call { text, data });
        let calls = proptest::collection::btree_map(0_usize..4, call, 0..4);
        prop_oneof![
            (any::<u32>(), any::<bool>(), calls).prop_map(|(sequence, is_up, calls)| {
                Message::Exchange {
                    sequence,
                    direction: if is_up {
                        Direction::Up
                    } else {
                        Direction::Down
                    },
                    calls: calls.into_iter().collect(),
                }
            }),
            (any::<u32>(), clock()).prop_map(|(lock, clock)| Message::Request { lock, clock }),
            (any::<u32>(), 0_u16..4, clock()).prop_map(|(lock, requester, clock)| {
                Message::Forward {
                    lock,
                    requester,
                    clock,
                }
            }),
            (any::<u32>(), intervals())
                .prop_map(|(lock, intervals)| Message::Grant { lock, intervals }),
            proptest::collection::vec(any::<u16>(), 0..9).prop_map(|lost| Message::Lost { lost }),
            (any::<u32>(), refreshes())
                .prop_map(|(sequence, pages)| Message::Refresh { sequence, pages }),
        ]
    }

    proptest! {
        #[test]
        fn message__any__is_read_back_and_no_part_of_it_is(message in message()) {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            prop_assert_eq!(Message::decode(&bytes, 4), Ok(message));
            for length in 0..bytes.len() {
                prop_assert_eq!(Message::decode(&bytes[..length], 4), Err(Malformed(length)));
            }
            bytes.push(0);
            prop_assert!(Message::decode(&bytes, 4).is_err());
        }

        #[test]
        fn standing__any__is_read_back_and_no_part_of_it_is(
            (barriers, losses, next, regions) in any::<(u64, u16, u64, u32)>(),
            spans in proptest::collection::vec((0_u32..1 << 30, 1_u32..1 << 30), 0..9),
        ) {
            let spans = spans.into_iter().map(|(first, count)| Span { first, count });
            let (written, pushed) = spans.partition(|span| span.first % 2 == 0);
            let standing = Standing { barriers, losses, next, regions, written, pushed };
            let bytes = standing.encode();
            prop_assert_eq!(Standing::decode(&bytes), Ok(standing));
            for length in 0..bytes.len() {
                prop_assert!(Standing::decode(&bytes[..length]).is_err());
            }
        }

        #[test]
        fn message__any_bytes__is_read_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let _ = Message::decode(&bytes, 4);
        }
    }
}
