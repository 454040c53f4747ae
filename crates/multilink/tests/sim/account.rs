//! Account of the frames sent and delivered, which checks every delivery against the frames sent.

use crate::frames::{self, Flow, Shape};
use kumi_multilink::frame::VNET_BYTES;
use std::collections::BTreeMap;

/// A frame that a core accepted.
#[derive(Debug)]
struct SentFrame {
    position: u64,
    bytes: usize,
    sent_at_ns: u64,
    /// Stretches delivered, by receiver. A whole frame is one stretch.
    stretches: Vec<(usize, std::ops::Range<u64>)>,
}

#[derive(Debug)]
struct FlowAccount {
    flow: Flow,
    sent: Vec<SentFrame>,
    next_position: u64,
    /// Highest position delivered and the time of the last delivery, by receiver.
    newest: BTreeMap<usize, (u64, u64)>,
    gap_max_ns: u64,
    delivered_bytes: u64,
}

/// All flows of a run.
#[derive(Debug, Default)]
pub struct Account {
    flows: Vec<FlowAccount>,
    /// Frames delivered after a later one of their flow, by receiver and sender.
    overtaken: BTreeMap<(usize, usize), u64>,
    /// Number of frames that the cores delivered.
    pub delivered: u64,
    /// Number of these that are parts of bursts.
    pub parts: u64,
    /// Start of the measurement of gaps between deliveries, in nanoseconds.
    pub gaps_start_ns: u64,
}

impl Account {
    /// Adds a flow and returns its number.
    pub fn add(&mut self, from: usize, to: usize, shape: Shape, segment_bytes: u16) -> u16 {
        let id = self.flows.len() as u16;
        let flow = Flow {
            id,
            from,
            to,
            shape,
            segment_bytes,
        };
        self.flows.push(FlowAccount {
            flow,
            sent: Vec::new(),
            next_position: 0,
            newest: BTreeMap::new(),
            gap_max_ns: 0,
            delivered_bytes: 0,
        });
        id
    }

    /// Returns the next frame of `flow`. It counts as sent only after [`Account::accept`].
    pub fn next(&self, flow: u16, bytes: usize) -> Vec<u8> {
        let account = &self.flows[usize::from(flow)];
        frames::build(&account.flow, account.next_position, bytes)
    }

    /// Records that a core took the frame from [`Account::next`].
    pub fn accept(&mut self, flow: u16, bytes: usize, now_ns: u64) {
        let account = &mut self.flows[usize::from(flow)];
        let position = account.next_position;
        account.next_position += if account.flow.shape == Shape::Tcp {
            bytes as u64
        } else {
            1
        };
        account.sent.push(SentFrame {
            position,
            bytes,
            sent_at_ns: now_ns,
            stretches: Vec::new(),
        });
    }

    /// Records that a core delivered `frame` at `host`.
    ///
    /// # Panics
    /// If the frame differs from the one sent or was delivered before.
    pub fn deliver(&mut self, host: usize, frame: &[u8], now_ns: u64) {
        self.delivered += 1;
        let (id, position, bytes) =
            frames::identify(frame).unwrap_or_else(|| panic!("frame of no flow: {frame:02x?}"));
        let account = self.flows.get_mut(usize::from(id));
        let account = account.unwrap_or_else(|| panic!("frame of unknown flow {id}"));
        let flow = account.flow;
        let destination = &frame[VNET_BYTES..VNET_BYTES + 6];
        if destination[0] & 1 == 0 && destination != frames::device_mac(host) {
            return; // flooded, as by a switch; the host's stack ignores it
        }
        let is_for_us = flow.to == host || flow.shape == Shape::Broadcast && flow.from != host;
        assert!(
            is_for_us,
            "flow {id} is from {} to {}, not {host}",
            flow.from, flow.to
        );
        let index = account
            .sent
            .partition_point(|sent| sent.position <= position);
        assert!(index > 0, "flow {id}: position {position} was never sent");
        let sent = &mut account.sent[index - 1];
        let (start, end) = (sent.position, sent.position + span(&flow, sent.bytes));
        let range = position..position + span(&flow, bytes);
        assert!(
            range.end <= end,
            "flow {id}: {range:?} is not within the burst {start}..{end}"
        );
        let is_complete = range == (start..end);
        if is_complete {
            let expected = frames::build(&flow, position, sent.bytes);
            assert!(
                frame == expected,
                "flow {id} at {position}: {bytes} B differ from what was sent"
            );
        } else {
            self.parts += 1;
            assert!(
                flow.shape == Shape::Tcp,
                "flow {id}: a piece of what is not a stream"
            );
            let expected = frames::stretch(&flow, position, bytes, range.end == end);
            assert!(
                frame == expected,
                "flow {id}: bad stretch {range:?} of {start}..{end}"
            );
        }
        let duplicate = sent
            .stretches
            .iter()
            .find(|(to, part)| *to == host && part.start < range.end && range.start < part.end);
        assert!(
            duplicate.is_none(),
            "flow {id}: {range:?} delivered twice, before as {duplicate:?}"
        );
        sent.stretches.push((host, range.clone()));
        let is_overtaken = account
            .newest
            .get(&host)
            .is_some_and(|(newest, _)| position < *newest);
        *self.overtaken.entry((host, flow.from)).or_default() += u64::from(is_overtaken);
        if let Some((_, at_ns)) = account.newest.get(&host)
            && now_ns >= self.gaps_start_ns
        {
            let since_ns = (*at_ns).max(self.gaps_start_ns);
            account.gap_max_ns = account.gap_max_ns.max(now_ns - since_ns);
        }
        account.delivered_bytes += bytes as u64;
        let newest = account.newest.entry(host).or_insert((0, now_ns));
        *newest = (newest.0.max(position), now_ns);
    }

    /// Returns the number of frames from `from` that `host` received after a later one of their
    /// flow.
    pub fn overtaken(&self, host: usize, from: usize) -> u64 {
        self.overtaken
            .get(&(host, from))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the longest time between deliveries of a unicast flow to its receiver, in
    /// nanoseconds.
    pub fn gap_max_ns(&self) -> u64 {
        let unicast = self
            .flows
            .iter()
            .filter(|account| account.flow.shape != Shape::Broadcast);
        unicast.map(|account| account.gap_max_ns).max().unwrap_or(0)
    }

    /// Returns the payload delivered, in bytes.
    pub fn delivered_bytes(&self) -> u64 {
        self.flows
            .iter()
            .map(|account| account.delivered_bytes)
            .sum()
    }

    /// Returns the number of frames accepted.
    pub fn accepted(&self) -> usize {
        self.flows.iter().map(|account| account.sent.len()).sum()
    }

    /// Describes the frames sent in `from_ns..until_ns` that did not arrive completely.
    pub fn missing(&self, from_ns: u64, until_ns: u64, hosts: usize) -> Vec<String> {
        let mut missing = Vec::new();
        for account in &self.flows {
            let flow = account.flow;
            let receivers: Vec<usize> = match flow.shape {
                Shape::Broadcast => (0..hosts).filter(|host| *host != flow.from).collect(),
                _ => vec![flow.to],
            };
            for sent in account
                .sent
                .iter()
                .filter(|s| (from_ns..until_ns).contains(&s.sent_at_ns))
            {
                for &receiver in &receivers {
                    let received: u64 = sent
                        .stretches
                        .iter()
                        .filter(|(to, _)| *to == receiver)
                        .map(|(_, range)| range.end - range.start)
                        .sum();
                    if received < span(&flow, sent.bytes) {
                        missing.push(format!(
                            "{:?} flow {} {}->{receiver} at {}: {} of {} B, sent at {} us",
                            flow.shape,
                            flow.id,
                            flow.from,
                            sent.position,
                            received,
                            sent.bytes,
                            sent.sent_at_ns / 1000,
                        ));
                    }
                }
            }
        }
        missing
    }
}

/// Returns the distance by which a frame with `bytes` of payload advances its flow's position.
fn span(flow: &Flow, bytes: usize) -> u64 {
    if flow.shape == Shape::Tcp {
        bytes as u64
    } else {
        1
    }
}
