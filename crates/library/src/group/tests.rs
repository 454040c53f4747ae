use super::*;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Instant;

mod ahead;

/// Blocks in their own memory. The received blocks are handed out at the end.
struct Blocks {
    out: Vec<Vec<u8>>,
    place: Option<Vec<Vec<u8>>>,
    done: Sender<Vec<Vec<u8>>>,
    /// Number of ranks in an all-to-all, whose blocks are numbered by pair.
    ranks: Option<usize>,
}

impl Blocks {
    fn at(&self, block: u64, is_out: bool) -> usize {
        match self.ranks {
            Some(ranks) if is_out => block as usize % ranks,
            Some(ranks) => block as usize / ranks,
            None => block as usize,
        }
    }
}

impl Memory for Blocks {
    fn out(&self, block: u64, offset: u64, bytes: usize) -> &[u8] {
        let table = self.place.as_ref().filter(|_| self.ranks.is_none());
        let block = &table.unwrap_or(&self.out)[self.at(block, true)];
        &block[offset as usize..][..bytes]
    }

    fn place(&mut self, block: u64, offset: u64, bytes: usize) -> &mut [u8] {
        let at = self.at(block, false);
        let table = self.place.as_mut().unwrap_or(&mut self.out);
        &mut table[at][offset as usize..][..bytes]
    }

    fn finish(&mut self) {
        // The test may have given up waiting.
        let _ = self.done.send(self.place.take().unwrap_or_default());
    }
}

/// Returns a port on which no process listens while the returned socket exists.
fn closed_port() -> (socket2::Socket, u16) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

/// Runs `body` once for each rank, with that rank's handle of a group on this host.
fn together<T: Send>(ranks: usize, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    together_behind(ranks, &[], body)
}

/// Does the same, but the ranks in `hidden` cannot be reached: the others know a closed port for
/// them.
fn together_behind<T: Send>(
    ranks: usize,
    hidden: &[usize],
    body: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let config = Config {
        host: Some("here".to_owned()),
        interface: Some("lo".to_owned()),
        ..Config::default()
    };
    let listening: Vec<Listening> = (0..ranks)
        .map(|_| Listening::new(config.clone()).unwrap())
        .collect();
    let (_bound, closed) = closed_port();
    let card_of = |of: usize, to: usize| {
        let card = &listening[of].card;
        let is_hidden = of != to && hidden.contains(&of);
        let port = if is_hidden { closed } else { card.port };
        let card = Card {
            port,
            ..card.clone()
        };
        card.bytes().to_vec()
    };
    let cards = |to: usize| (0..ranks).map(|of| card_of(of, to)).collect();
    let cards: Vec<Vec<Vec<u8>>> = (0..ranks).map(cards).collect();
    std::thread::scope(|scope| {
        let (body, cards) = (&body, &cards);
        let threads = listening
            .into_iter()
            .enumerate()
            .map(|(rank, one)| scope.spawn(move || body(one.join(rank, &cards[rank]).unwrap())));
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn view__group_within_a_job__gets_its_share_of_the_trunk() {
    let mut text = "name = \"n\"\nswitch = [{ name = \"s\" }, { name = \"t\" }]\n".to_owned();
    for (host, switch) in [("a", "s"), ("b", "s"), ("c", "t"), ("d", "t")] {
        text += &format!(
            "[[host]]\nname = \"{host}\"\n[[link]]\nbetween = [\"{host}\", \"{switch}\"]\nrate = \"1Gbit\"\n"
        );
    }
    text += "[[link]]\nbetween = [\"s\", \"t\"]\nrate = \"800Mbit\"\n";
    let file = std::env::temp_dir().join(format!("kumi-job-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let names = |names: &str| names.chars().map(String::from).collect::<Vec<_>>();
    let config = |job: Option<&str>| Config {
        network: Some(file.clone()),
        job: job.map(names),
        interface: Some("lo".to_owned()),
        ..Config::default()
    };
    let trunk_bytes_per_s = |job: Option<&str>| {
        let view = View::new(&config(job), &names("ac"), &[0, 1], 0, 0).unwrap();
        view.pace(&config(job))[1].unwrap()
    };
    assert_eq!(trunk_bytes_per_s(None), 100_000_000);
    assert_eq!(trunk_bytes_per_s(Some("abcd")), 50_000_000);
    // Ranks that know of different jobs make different plans.
    let [alone, one] = [None, Some("abcd")].map(|job| Listening::new(config(job)).unwrap());
    let cards: Vec<Vec<u8>> = [&alone, &one].map(|rank| rank.card().to_vec()).into();
    let refused = alone.join(0, &cards).unwrap_err();
    assert!(refused.to_string().contains("different jobs"), "{refused}");
    std::fs::remove_file(file).unwrap();
}

fn call(
    operation: RequestedOperation,
    root: usize,
    bytes: Vec<u64>,
    out: Vec<Vec<u8>>,
    place: Vec<Vec<u8>>,
    ranks: Option<usize>,
) -> (Call, std::sync::mpsc::Receiver<Vec<Vec<u8>>>) {
    let (done, outcome) = channel();
    let element = Element::U32;
    let call = Call {
        asked: Request {
            operation,
            root,
            bytes,
            element_bytes: element.bytes(),
        },
        element,
        reduction: Reduction::Sum,
        memory: Box::new(Blocks {
            out,
            place: Some(place),
            done,
            ranks,
        }),
    };
    (call, outcome)
}

fn words(words: impl Iterator<Item = u32>) -> Vec<u8> {
    words.flat_map(u32::to_ne_bytes).collect()
}

fn all_reduce(group: &Group, elements: u32) -> Result<Vec<u8>, GroupError> {
    let mine = words((0..elements).map(|at| at + group.rank() as u32));
    let bytes = vec![u64::from(elements) * 4];
    let (call, outcome) = call(
        RequestedOperation::AllReduce,
        0,
        bytes,
        vec![],
        vec![mine],
        None,
    );
    group.start(call)?.wait(None).unwrap()?;
    Ok(outcome.recv().unwrap().remove(0))
}

fn sum(elements: u32, ranks: &[u32]) -> Vec<u8> {
    words((0..elements).map(|at| ranks.iter().map(|rank| at + rank).sum()))
}

#[test]
fn all_reduce__any_length__gives_the_sum_on_every_rank() {
    for ranks in [1, 2, 3, 5] {
        let lengths = [0, 1, 7, 3000, 100_000];
        let sums = together(ranks as usize, |group| {
            lengths.map(|length| all_reduce(&group, length).unwrap())
        });
        let all: Vec<u32> = (0..ranks).collect();
        for of_rank in sums {
            for (length, came) in lengths.iter().zip(of_rank) {
                assert!(
                    came == sum(*length, &all),
                    "{length} elements on {ranks} ranks"
                );
            }
        }
    }
}

#[test]
fn all_to_all__any_sizes__delivers_each_rank_its_blocks() {
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let ranks = random.usize(2..6);
        let sizes = (0..ranks * ranks).map(|_| random.u64(0..30_000) * 4 * random.u64(0..2));
        let sizes: Vec<u64> = sizes.collect();
        let block = |from: usize, to: usize| {
            let words_of = sizes[from * ranks + to] as u32 / 4;
            words((0..words_of).map(|at| at + 100 * from as u32 + to as u32))
        };
        together(ranks, |group| {
            let rank = group.rank();
            let out = (0..ranks).map(|to| block(rank, to)).collect();
            let place = (0..ranks)
                .map(|from| vec![0; block(from, rank).len()])
                .collect();
            let operation = RequestedOperation::AllToAll;
            let (call, outcome) = call(operation, 0, sizes.clone(), out, place, Some(ranks));
            group.start(call).unwrap().wait(None).unwrap().unwrap();
            let came = outcome.recv().unwrap();
            for from in (0..ranks).filter(|from| *from != rank) {
                assert!(
                    came[from] == block(from, rank),
                    "seed {seed}: {from} to {rank}"
                );
            }
        });
    }
}

#[test]
fn collectives__started_together__each_give_their_own_result() {
    together(3, |group| {
        let mine = |round: u32| words((0..5000).map(|at| at * round + group.rank() as u32));
        let started: Vec<_> = (1..20)
            .map(|round| {
                let bytes = vec![20_000];
                let root = round as usize % 3;
                let operation = RequestedOperation::Broadcast;
                let (call, outcome) = call(operation, root, bytes, vec![], vec![mine(round)], None);
                (group.start(call).unwrap(), outcome, root, round)
            })
            .collect();
        for (ticket, outcome, root, round) in started {
            ticket.wait(None).unwrap().unwrap();
            let expected = words((0..5000).map(|at| at * round + root as u32));
            assert!(outcome.recv().unwrap()[0] == expected, "round {round}");
        }
    });
}

#[test]
fn ranks__different_requests__all_get_the_error_and_can_continue() {
    let said = together(4, |group| {
        let elements = if group.rank() == 2 { 999 } else { 1000 };
        let refused = all_reduce(&group, elements).unwrap_err().to_string();
        // The next collective succeeds.
        assert!(all_reduce(&group, 5000).unwrap() == sum(5000, &[0, 1, 2, 3]));
        refused
    });
    for text in said {
        assert!(
            text.contains("an all-reduce of 3996 bytes, sum of uint32"),
            "{text}"
        );
        assert!(
            text.contains("an all-reduce of 4000 bytes, sum of uint32"),
            "{text}"
        );
    }
}

#[test]
fn rank__leaves_the_group__is_reported_lost_and_the_others_continue_after_shrink() {
    let barrier = Barrier::new(4);
    together(4, |group| {
        all_reduce(&group, 100).unwrap();
        barrier.wait();
        if group.rank() == 1 {
            return;
        }
        let began = Instant::now();
        let failure = all_reduce(&group, 100_000).unwrap_err();
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
        assert!(
            matches!(failure, GroupError::Failed(Failure::Lost { rank: 1, .. })),
            "{failure}"
        );
        assert_eq!(group.lost(), [1]);
        // New requests fail as well.
        assert!(all_reduce(&group, 10).is_err());
        group.shrink(None).unwrap();
        assert_eq!((group.members(), group.lost()), (vec![0, 2, 3], vec![]));
        for length in [1, 50_000] {
            let came = all_reduce(&group, length).unwrap();
            assert!(came == sum(length, &[0, 1, 2]));
        }
    });
}

#[test]
fn rank__unreachable_by_the_others__makes_the_connections_itself() {
    let barrier = Barrier::new(4);
    together_behind(4, &[2], |group| {
        for length in [1, 100_000] {
            assert!(all_reduce(&group, length).unwrap() == sum(length, &[0, 1, 2, 3]));
        }
        barrier.wait();
        if group.rank() == 1 {
            return;
        }
        // After the shrink its connections are made again.
        all_reduce(&group, 100_000).unwrap_err();
        group.shrink(None).unwrap();
        for length in [1, 50_000] {
            assert!(all_reduce(&group, length).unwrap() == sum(length, &[0, 1, 2]));
        }
    });
    messages_round(&[0]);
}

#[test]
fn ranks__mutually_unreachable__are_named_in_the_error() {
    let config = Config {
        interface: Some("lo".to_owned()),
        patience: Duration::from_secs(2),
        ..Config::default()
    };
    let (_bound, closed) = closed_port();
    let listening = [(); 2].map(|()| Listening::new(config.clone()).unwrap());
    let cards = listening.each_ref().map(|one| one.card.clone());
    std::thread::scope(|scope| {
        for (rank, one) in listening.into_iter().enumerate() {
            let mut cards = cards.clone();
            cards[1 - rank].port = closed;
            let cards = cards.map(|card| card.bytes().to_vec());
            scope.spawn(move || {
                let why = one.join(rank, &cards).unwrap_err().to_string();
                let other = 1 - rank;
                assert!(
                    why.starts_with(&format!("rank {other} on "))
                        && why.contains("has not connected for 2 s"),
                    "{why}"
                );
            });
        }
    });
}

#[test]
fn messages__any_order__reach_the_matching_receives() {
    messages_round(&[]);
}

fn messages_round(hidden: &[usize]) {
    together_behind(3, hidden, |group| {
        let rank = group.rank();
        let next = (rank + 1) % 3;
        let before = (rank + 2) % 3;
        let text = |from: usize, tag: u64, bytes: usize| vec![(from as u8) << 4 | tag as u8; bytes];
        let blocks = |block: Vec<u8>| {
            let (done, outcome) = channel();
            let memory = Box::new(Grant(block, done));
            (memory as Box<dyn Memory>, outcome)
        };
        let sends: Vec<_> = [(1_u64, 100_000), (2, 10), (3, 0)]
            .map(|(tag, bytes)| {
                let (memory, _) = blocks(text(rank, tag, bytes));
                group.send(next, tag, bytes as u64, memory).unwrap()
            })
            .into();
        for (tag, bytes) in [(3, 0), (2, 10), (1_u64, 100_000)] {
            let (memory, came) = blocks(vec![0; 200_000]);
            let from = (tag != 2).then_some(before);
            let done = group
                .receive(from, tag, 200_000, memory)
                .unwrap()
                .wait(None)
                .unwrap();
            assert_eq!(
                done,
                Ok(Done {
                    from: before,
                    bytes: bytes as u64
                })
            );
            assert!(came.recv().unwrap()[..bytes] == text(before, tag, bytes)[..]);
        }
        for sent in sends {
            assert!(sent.wait(None).unwrap().is_ok());
        }
        // More messages are sent than the window holds, and the last is received first.
        let ahead = messages::WINDOW as u64 * 2;
        let sends: Vec<_> = (0..ahead)
            .map(|at| {
                let (memory, _) = blocks(text(rank, at % 16, 8));
                group.send(next, 100 + at, 8, memory).unwrap()
            })
            .collect();
        for at in (0..ahead).rev() {
            let (memory, came) = blocks(vec![0; 8]);
            let received = group.receive(Some(before), 100 + at, 8, memory).unwrap();
            received.wait(None).unwrap().unwrap();
            assert_eq!(came.recv().unwrap(), text(before, at % 16, 8));
        }
        for sent in sends {
            assert!(sent.wait(None).unwrap().is_ok());
        }
        // A message that does not fit fails on both sides, and nothing else fails.
        let (memory, _) = blocks(vec![7; 50]);
        let sent = group.send(next, 9, 50, memory).unwrap();
        let (memory, _) = blocks(vec![0; 49]);
        let received = group.receive(Some(before), 9, 49, memory).unwrap();
        for ticket in [sent, received] {
            let refused = ticket.wait(None).unwrap().unwrap_err().to_string();
            assert!(
                refused.starts_with("a message of 50 bytes from rank"),
                "{refused}"
            );
        }
        assert!(group.send(3, 0, 0, blocks(vec![]).0).is_err());
        all_reduce(&group, 10).unwrap();
    });
}

/// Buffer of a message, handed out when it is dropped.
struct Grant(Vec<u8>, Sender<Vec<u8>>);

impl Memory for Grant {
    fn out(&self, _: u64, offset: u64, bytes: usize) -> &[u8] {
        &self.0[offset as usize..][..bytes]
    }

    fn place(&mut self, _: u64, offset: u64, bytes: usize) -> &mut [u8] {
        &mut self.0[offset as usize..][..bytes]
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}

#[test]
fn strangers__sending_noise_while_ranks_join__do_not_disturb_the_group() {
    use std::io::Write;
    use std::net::TcpStream;
    let config = Config {
        interface: Some("lo".to_owned()),
        ..Config::default()
    };
    let listening: Vec<Listening> = (0..2)
        .map(|_| Listening::new(config.clone()).unwrap())
        .collect();
    let cards: Vec<Vec<u8>> = listening.iter().map(|one| one.card().to_vec()).collect();
    let ports: Vec<u16> = listening.iter().map(|one| one.card.port).collect();
    let wrong_key = frame::Hello {
        lane: frame::Lane::Words,
        is_call: false,
        from: 1,
        term: 0,
        key: [0; 16],
    };
    let mut strangers = Vec::new();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..50 {
        for port in &ports {
            let mut stranger = TcpStream::connect(("127.0.0.1", *port)).unwrap();
            let noise: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
            let _ = stranger.write_all(&noise);
            let _ = stranger.write_all(&wrong_key.bytes());
            strangers.push(stranger);
        }
    }
    // There are more connections than a rank keeps. The oldest are evicted in favour of the ranks.
    std::thread::scope(|scope| {
        for (rank, one) in listening.into_iter().enumerate() {
            let cards = &cards;
            scope.spawn(move || {
                let group = one.join(rank, cards).unwrap();
                assert!(all_reduce(&group, 1000).unwrap() == sum(1000, &[0, 1]));
            });
        }
    });
}

#[test]
fn arguments__invalid__are_refused_locally_and_the_group_still_works() {
    together(2, |group| {
        let ask = |operation, root, bytes: &[u64], element| {
            let (mut call, _) = call(operation, root, bytes.to_vec(), vec![], vec![], None);
            call.element = element;
            call.reduction = Reduction::Xor;
            group.start(call).unwrap_err().to_string()
        };
        let of_f32 = ask(RequestedOperation::AllReduce, 0, &[4], Element::F32);
        assert_eq!(of_f32, "the reduction xor is not defined for float32");
        let root = ask(RequestedOperation::Broadcast, 2, &[4], Element::U32);
        assert_eq!(root, "root 2 out of range (0–1)");
        let sizes = ask(RequestedOperation::AllGather, 0, &[4], Element::U32);
        assert_eq!(sizes, "1 block sizes given: expected 2, one for each block");
        let cut = ask(RequestedOperation::AllReduce, 0, &[6], Element::U32);
        assert_eq!(cut, "6 bytes are not a whole number of elements of 4 bytes");
        all_reduce(&group, 10).unwrap();
    });
}

/// Memory that panics on access.
struct Broken;

impl Memory for Broken {
    fn out(&self, _: u64, _: u64, _: usize) -> &[u8] {
        panic!("the group's thread ends here, for the test")
    }

    fn place(&mut self, _: u64, _: u64, _: usize) -> &mut [u8] {
        panic!("the group's thread ends here, for the test")
    }
}

#[test]
fn group__progress_thread_ended__fails_pending_and_later_calls() {
    together(2, |group| {
        all_reduce(&group, 10).unwrap();
        if group.rank() == 1 {
            all_reduce(&group, 10).unwrap_err();
            return;
        }
        let broken = Call {
            asked: Request {
                operation: RequestedOperation::AllReduce,
                root: 0,
                bytes: vec![40],
                element_bytes: 4,
            },
            element: Element::U32,
            reduction: Reduction::Sum,
            memory: Box::new(Broken),
        };
        let limit = Some(Duration::from_secs(5));
        let started = group.start(broken).unwrap();
        // The first ends the thread. The second may be ordered before or after that.
        let (behind, _) = call(
            RequestedOperation::AllReduce,
            0,
            vec![4],
            vec![],
            vec![vec![0; 4]],
            None,
        );
        let behind = group.start(behind).unwrap();
        for ticket in [started, behind] {
            let failed = ticket.wait(limit).expect("it is settled").unwrap_err();
            assert!(failed.to_string().contains("thread has ended"), "{failed}");
        }
        assert!(all_reduce(&group, 1).is_err());
        let failed = group.shrink(None).unwrap_err().to_string();
        assert!(failed.contains("thread has ended"), "{failed}");
    });
}

#[test]
fn shrink__not_called_by_one_rank__names_that_rank_and_can_be_retried() {
    let (reduced, barrier) = (Barrier::new(3), Barrier::new(2));
    together(3, |group| {
        let first = all_reduce(&group, 10);
        // Rank 2 leaves when no rank is in this collective any more.
        reduced.wait();
        first.unwrap();
        if group.rank() == 2 {
            return;
        }
        all_reduce(&group, 10).unwrap_err();
        if group.rank() == 1 {
            // The other rank has given up.
            barrier.wait();
            return group.shrink(None).unwrap();
        }
        let late = group.shrink(Some(Duration::from_millis(100)));
        // Rank 1 waits for this: a failed assertion before it would hang the test.
        barrier.wait();
        let late = late.unwrap_err();
        assert!(
            matches!(&late, GroupError::Failed(Failure::Late(why)) if why.contains("rank 1 on here has not called shrink")),
            "{late}"
        );
        group.shrink(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(group.members(), [0, 1]);
    });
}
