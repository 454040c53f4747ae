//! Queue of datagrams for one link, in batches that the kernel can segment.
//!
//! A batch is the argument of one `sendmsg` with `UDP_SEGMENT`: datagrams for one destination, all
//! of one length. Only the last may be shorter. The order is kept: a datagram that does not fit the
//! newest batch begins another.

use core::net::SocketAddr;
use std::collections::VecDeque;

/// Largest number of datagrams in a batch (the kernel's `UDP_MAX_SEGMENTS` was 64 before Linux
/// 6.9).
pub const BATCH_DATAGRAMS_MAX: usize = 64;
/// Largest size of a batch, in bytes: below 64 KB with the IP and UDP headers.
pub const BATCH_BYTES_MAX: usize = 65_000;
/// Size at which a queue is full, in bytes and in batches. A dead link leaves at most
/// [`RETAINED_BYTES_MAX`] to another one, which is 17 000 datagrams of 1420 bytes; this is a third
/// more.
///
/// [`RETAINED_BYTES_MAX`]: crate::retain::RETAINED_BYTES_MAX
const QUEUE_BYTES_MAX: usize = 32_000_000;
const QUEUE_BATCHES_MAX: usize = 24_000;
/// Empty batches that one link keeps for reuse.
const FREE_MAX: usize = 64;

/// Datagrams for one `sendmsg`.
#[derive(Debug, Default)]
pub struct Batch {
    /// The datagrams, one after another.
    pub bytes: Vec<u8>,
    /// Length of every datagram but the last, in bytes.
    pub segment_bytes: usize,
    /// Destination address of all its datagrams.
    pub destination: Option<SocketAddr>,
    datagrams: usize,
    closed: bool,
}

impl Batch {
    /// Returns the number of datagrams in the batch.
    pub fn datagrams(&self) -> usize {
        self.datagrams
    }

    fn takes(&self, destination: &SocketAddr, datagram_bytes: usize, segmentation: bool) -> bool {
        !self.closed
            && segmentation
            && self.destination.as_ref() == Some(destination)
            && self.datagrams < BATCH_DATAGRAMS_MAX
            && self.bytes.len() + datagram_bytes <= BATCH_BYTES_MAX
            && datagram_bytes <= self.segment_bytes
    }
}

/// Batches of one link, oldest first.
#[derive(Debug)]
pub struct TransmitQueue {
    batches: VecDeque<Batch>,
    free: Vec<Batch>,
    queued_bytes: usize,
    /// True if batches may hold more than one datagram (`UDP_SEGMENT` works on this link).
    pub segmentation: bool,
}

impl Default for TransmitQueue {
    fn default() -> Self {
        Self {
            batches: VecDeque::new(),
            free: Vec::new(),
            queued_bytes: 0,
            segmentation: true,
        }
    }
}

impl TransmitQueue {
    /// Adds a datagram of exactly `datagram_bytes`, which `write` appends.
    pub fn push(
        &mut self,
        destination: SocketAddr,
        datagram_bytes: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let fits = self
            .batches
            .back()
            .is_some_and(|batch| batch.takes(&destination, datagram_bytes, self.segmentation));
        if !fits {
            let mut batch = self.free.pop().unwrap_or_default();
            batch.bytes.clear();
            batch.segment_bytes = datagram_bytes;
            batch.destination = Some(destination);
            batch.datagrams = 0;
            batch.closed = false;
            self.batches.push_back(batch);
        }
        let batch = self.batches.back_mut().expect("one was just made");
        let start = batch.bytes.len();
        write(&mut batch.bytes);
        debug_assert_eq!(batch.bytes.len() - start, datagram_bytes);
        batch.datagrams += 1;
        batch.closed = datagram_bytes < batch.segment_bytes;
        self.queued_bytes += datagram_bytes;
    }

    /// Ends the newest batch, so that the next datagram is not lost together with it.
    pub fn end_batch(&mut self) {
        if let Some(batch) = self.batches.back_mut() {
            batch.closed = true;
        }
    }

    /// Returns the batch to send next.
    pub fn front(&self) -> Option<&Batch> {
        self.batches.front()
    }

    /// Removes the batch that was sent or dropped.
    pub fn pop(&mut self) {
        if let Some(batch) = self.batches.pop_front() {
            self.queued_bytes -= batch.bytes.len();
            if self.free.len() < FREE_MAX {
                self.free.push(batch);
            }
        }
    }

    /// Returns whether the queue accepts no more datagrams that others can cause: replies to
    /// handshakes, reports and pings. Frames are held back long before.
    pub fn is_full(&self) -> bool {
        self.queued_bytes > QUEUE_BYTES_MAX || self.batches.len() > QUEUE_BATCHES_MAX
    }

    /// Returns the bytes not yet given to the kernel.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(queue: &mut TransmitQueue, port: u16, bytes: usize) {
        let destination = SocketAddr::from(([127, 0, 0, 1], port));
        queue.push(destination, bytes, |out| out.resize(out.len() + bytes, 0));
    }

    #[test]
    fn batch__equal_datagrams_and_a_shorter_last__form_one_batch() {
        let mut queue = TransmitQueue::default();
        for bytes in [100, 100, 60, 100] {
            push(&mut queue, 1, bytes);
        }
        let first = queue.front().unwrap();
        assert_eq!(
            (first.bytes.len(), first.segment_bytes, first.datagrams()),
            (260, 100, 3)
        );
        queue.pop();
        assert_eq!(queue.front().unwrap().datagrams(), 1);
        assert_eq!(queue.queued_bytes(), 100);
    }

    #[test]
    fn batch__longer_datagram_or_other_destination__starts_a_new_batch() {
        let mut queue = TransmitQueue::default();
        push(&mut queue, 1, 100);
        push(&mut queue, 1, 101);
        push(&mut queue, 2, 101);
        assert_eq!(queue.front().unwrap().datagrams(), 1);
        assert_eq!(queue.batches.len(), 3);
    }

    #[test]
    fn batch__many_datagrams__stay_within_the_kernel_limits() {
        let mut queue = TransmitQueue::default();
        for _ in 0..200 {
            push(&mut queue, 1, 1452);
        }
        assert!(
            queue
                .batches
                .iter()
                .all(|batch| batch.bytes.len() <= BATCH_BYTES_MAX)
        );
        let mut small = TransmitQueue::default();
        for _ in 0..200 {
            push(&mut small, 1, 10);
        }
        assert_eq!(small.batches.len(), 4);
    }
}
