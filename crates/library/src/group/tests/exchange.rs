//! Messages between ranks, in any order.

use super::*;

#[test]
fn messages__any_order__reach_the_matching_receives() {
    messages_round(&[]);
}

pub fn messages_round(hidden: &[usize]) {
    run_ranks_hidden(3, hidden, |group| {
        let rank = group.rank();
        let next = (rank + 1) % 3;
        let previous = (rank + 2) % 3;
        let text = |from: usize, tag: u64, bytes: usize| vec![(from as u8) << 4 | tag as u8; bytes];
        let blocks = |block: Vec<u8>| {
            let (sender, outcome) = channel();
            let memory = Box::new(MessageBuffer(block, sender));
            (memory as Box<dyn Memory>, outcome)
        };
        let sends: Vec<_> = [(1_u64, 100_000), (2, 10), (3, 0)]
            .map(|(tag, bytes)| {
                let (memory, _) = blocks(text(rank, tag, bytes));
                group.send(next, tag, bytes as u64, memory).unwrap()
            })
            .into();
        for (tag, bytes) in [(3, 0), (2, 10), (1_u64, 100_000)] {
            let (memory, received) = blocks(vec![0; 200_000]);
            let from = (tag != 2).then_some(previous);
            let completion = group
                .receive(from, tag, 200_000, memory)
                .unwrap()
                .wait(None)
                .unwrap();
            assert_eq!(
                completion,
                Ok(Completion {
                    from: previous,
                    bytes: bytes as u64
                })
            );
            assert!(received.recv().unwrap()[..bytes] == text(previous, tag, bytes)[..]);
        }
        for ticket in sends {
            assert!(ticket.wait(None).unwrap().is_ok());
        }
        // More messages are sent than the window holds, and the last is received first.
        let count = messages::WINDOW as u64 * 2;
        let sends: Vec<_> = (0..count)
            .map(|index| {
                let (memory, _) = blocks(text(rank, index % 16, 8));
                group.send(next, 100 + index, 8, memory).unwrap()
            })
            .collect();
        for index in (0..count).rev() {
            let (memory, received) = blocks(vec![0; 8]);
            let ticket = group
                .receive(Some(previous), 100 + index, 8, memory)
                .unwrap();
            ticket.wait(None).unwrap().unwrap();
            assert_eq!(received.recv().unwrap(), text(previous, index % 16, 8));
        }
        for ticket in sends {
            assert!(ticket.wait(None).unwrap().is_ok());
        }
        // A message that does not fit fails on both sides, and nothing else fails.
        let (memory, _) = blocks(vec![7; 50]);
        let send_ticket = group.send(next, 9, 50, memory).unwrap();
        let (memory, _) = blocks(vec![0; 49]);
        let receive_ticket = group.receive(Some(previous), 9, 49, memory).unwrap();
        for (ticket, from, to) in [(send_ticket, rank, next), (receive_ticket, previous, rank)] {
            let error = ticket.wait(None).unwrap().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "a message of 50 bytes from rank {from} does not fit the buffer of 49 bytes on rank {to}"
                )
            );
        }
        assert!(group.send(3, 0, 0, blocks(vec![]).0).is_err());
        all_reduce(&group, 10).unwrap();
    });
}

/// Buffer of a message, handed out when it is dropped.
struct MessageBuffer(Vec<u8>, Sender<Vec<u8>>);

impl Memory for MessageBuffer {
    fn source(&self, _: u64, offset: u64, bytes: usize) -> &[u8] {
        &self.0[offset as usize..][..bytes]
    }

    fn destination(&mut self, _: u64, offset: u64, bytes: usize) -> &mut [u8] {
        &mut self.0[offset as usize..][..bytes]
    }
}

impl Drop for MessageBuffer {
    fn drop(&mut self) {
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}
