//! Groups of libkumi between hosts of a lab, whose kernels write the chunks.

use super::{KUMI, LIMIT, Lab, succeed};
use kumi::group::{
    CARD_BYTES, Call, Config, Element, Group, Listening, Memory, Reduction, Transport,
};
use kumi::{Request, RequestedOperation};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

/// Hosts of the ranks: two processes on each.
const HOSTS: [&str; 4] = ["h1", "h2", "h1", "h2"];

/// Blocks of a rank in an all-to-all. The received ones are handed out at the end.
struct Blocks {
    source: Vec<Vec<u8>>,
    destination: Vec<Vec<u8>>,
    result: Sender<Vec<Vec<u8>>>,
}

impl Memory for Blocks {
    fn source(&self, block: u64, offset: u64, bytes: usize) -> &[u8] {
        &self.source[block as usize % HOSTS.len()][offset as usize..][..bytes]
    }

    fn destination(&mut self, block: u64, offset: u64, bytes: usize) -> &mut [u8] {
        &mut self.destination[block as usize / HOSTS.len()][offset as usize..][..bytes]
    }

    fn finish(&mut self) {
        let _ = self.result.send(std::mem::take(&mut self.destination));
    }
}

/// Returns the bytes from one rank to another in a round.
fn block(from: usize, to: usize, round: usize) -> Vec<u8> {
    let first = from * 31 + to * 7 + round;
    (0..100_000 + 1_000 * from)
        .map(|at| (first + at) as u8)
        .collect()
}

fn exchange(group: &Group, round: usize) -> Vec<Vec<u8>> {
    let ranks = 0..HOSTS.len();
    let rank = group.rank();
    let lengths = ranks
        .clone()
        .flat_map(|from| HOSTS.map(|_| block(from, 0, 0).len() as u64));
    let (sender, result) = channel();
    let memory = Blocks {
        source: ranks.clone().map(|to| block(rank, to, round)).collect(),
        destination: ranks.map(|from| vec![0; block(from, 0, 0).len()]).collect(),
        result: sender,
    };
    let call = Call {
        request: Request {
            operation: RequestedOperation::AllToAll,
            root: 0,
            bytes: lengths.collect(),
            element_bytes: 1,
        },
        element: Element::Byte,
        reduction: Reduction::Sum,
        memory: Box::new(memory),
    };
    let ticket = group.start(call).unwrap();
    ticket.wait(Some(LIMIT)).expect("it ends").unwrap();
    result.recv_timeout(Duration::from_secs(1)).unwrap()
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn kernel__groups_of_ranks__exchange_blocks_by_puts_that_the_kernels_execute() {
    let mut lab = Lab::up("windgroup", &kumi_testlab::cables(1, "1Gbit"));
    lab.begin();
    let (lab, all) = (&lab, &Barrier::new(HOSTS.len()));
    let cards = &Mutex::new(vec![vec![0; CARD_BYTES]; HOSTS.len()]);
    std::thread::scope(|scope| {
        for (rank, host) in HOSTS.into_iter().enumerate() {
            scope.spawn(move || {
                lab.cluster.enter_thread(host).unwrap();
                let config = Config {
                    transport: Transport::Wind,
                    host: Some(host.to_owned()),
                    interface: Some("eth1".to_owned()),
                    ..Config::default()
                };
                let listening = Listening::new(config).unwrap();
                cards.lock().unwrap()[rank] = listening.card().to_vec();
                all.wait();
                let cards = cards.lock().unwrap().clone();
                let group = listening.join(rank, &cards).unwrap();
                for round in 0..5 {
                    let received = exchange(&group, round);
                    for (from, bytes) in received
                        .iter()
                        .enumerate()
                        .filter(|(from, _)| *from != rank)
                    {
                        assert!(*bytes == block(from, rank, round), "{from} to {rank}");
                    }
                }
                all.wait();
                if rank == 0 {
                    let shown = succeed(Command::new(KUMI).args(["wind", "show", "-j"]));
                    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
                    let [programs, regions] =
                        ["programs", "regions"].map(|count| shown["kernel"][count].as_u64());
                    assert_eq!(programs, Some(4), "{shown}");
                    assert!(regions >= Some(4), "{shown}");
                }
                all.wait();
            });
        }
    });
}
