use super::*;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Instant;

mod ahead;
mod exchange;
mod udp;

/// Blocks in their own memory. The received blocks are handed out at the end.
struct Blocks {
    source: Vec<Vec<u8>>,
    destination: Option<Vec<Vec<u8>>>,
    result_sender: Sender<Vec<Vec<u8>>>,
    /// Number of ranks in an all-to-all, whose blocks are numbered by pair.
    ranks: Option<usize>,
}

impl Blocks {
    fn index(&self, block: u64, is_source: bool) -> usize {
        match self.ranks {
            Some(ranks) if is_source => block as usize % ranks,
            Some(ranks) => block as usize / ranks,
            None => block as usize,
        }
    }
}

impl Memory for Blocks {
    fn source(&self, block: u64, offset: u64, bytes: usize) -> &[u8] {
        let table = self.destination.as_ref().filter(|_| self.ranks.is_none());
        let block = &table.unwrap_or(&self.source)[self.index(block, true)];
        &block[offset as usize..][..bytes]
    }

    fn destination(&mut self, block: u64, offset: u64, bytes: usize) -> &mut [u8] {
        let index = self.index(block, false);
        let table = self.destination.as_mut().unwrap_or(&mut self.source);
        &mut table[index][offset as usize..][..bytes]
    }

    fn finish(&mut self) {
        // The test may have given up waiting.
        let _ = self
            .result_sender
            .send(self.destination.take().unwrap_or_default());
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

/// Runs `body` once for each transport and rank, with that rank's handle of a group on this host.
fn run_ranks<T: Send>(ranks: usize, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    run_ranks_hidden(ranks, &[], body)
}

/// Does the same, but the ranks in `hidden` cannot be reached: the others know a closed TCP port
/// for them.
fn run_ranks_hidden<T: Send>(
    ranks: usize,
    hidden: &[usize],
    body: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let transports = [Transport::Tcp, Transport::Wind, Transport::WindPuts].into_iter();
    transports
        .flat_map(|transport| run_ranks_over(transport, ranks, hidden, &body))
        .collect()
}

fn run_ranks_over<T: Send>(
    transport: Transport,
    ranks: usize,
    hidden: &[usize],
    body: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let config = Config {
        transport,
        host: Some("here".to_owned()),
        interface: Some("lo".to_owned()),
        ..Config::default()
    };
    let listening: Vec<Listening> = (0..ranks)
        .map(|_| Listening::new(config.clone()).unwrap())
        .collect();
    let (_socket, closed_port) = closed_port();
    let card_bytes = |owner: usize, reader: usize| {
        let card = &listening[owner].card;
        let is_hidden = owner != reader && hidden.contains(&owner);
        let port = if is_hidden { closed_port } else { card.port };
        let card = Card {
            port,
            ..card.clone()
        };
        card.bytes().to_vec()
    };
    let cards = |reader: usize| (0..ranks).map(|owner| card_bytes(owner, reader)).collect();
    let cards: Vec<Vec<Vec<u8>>> = (0..ranks).map(cards).collect();
    std::thread::scope(|scope| {
        let (body, cards) = (&body, &cards);
        let threads = listening.into_iter().enumerate().map(|(rank, listening)| {
            scope.spawn(move || body(listening.join(rank, &cards[rank]).unwrap()))
        });
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
        view.pace_bytes_per_s(&config(job))[1].unwrap()
    };
    assert_eq!(trunk_bytes_per_s(None), 100_000_000);
    assert_eq!(trunk_bytes_per_s(Some("abcd")), 50_000_000);
    // Ranks that know of different jobs make different plans.
    let [alone, member] = [None, Some("abcd")].map(|job| Listening::new(config(job)).unwrap());
    let cards: Vec<Vec<u8>> = [&alone, &member].map(|rank| rank.card().to_vec()).into();
    let error = alone.join(0, &cards).unwrap_err();
    assert!(error.to_string().contains("different jobs"), "{error}");
    std::fs::remove_file(file).unwrap();
}

fn call(
    operation: RequestedOperation,
    root: usize,
    bytes: Vec<u64>,
    source: Vec<Vec<u8>>,
    destination: Vec<Vec<u8>>,
    ranks: Option<usize>,
) -> (Call, std::sync::mpsc::Receiver<Vec<Vec<u8>>>) {
    let (result_sender, result) = channel();
    let element = Element::U32;
    let call = Call {
        request: Request {
            operation,
            root,
            bytes,
            element_bytes: element.bytes(),
        },
        element,
        reduction: Reduction::Sum,
        memory: Box::new(Blocks {
            source,
            destination: Some(destination),
            result_sender,
            ranks,
        }),
    };
    (call, result)
}

fn native_bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_ne_bytes).collect()
}

fn all_reduce(group: &Group, elements: u32) -> Result<Vec<u8>, GroupError> {
    let input = native_bytes((0..elements).map(|index| index + group.rank() as u32));
    let bytes = vec![u64::from(elements) * 4];
    let (call, result) = call(
        RequestedOperation::AllReduce,
        0,
        bytes,
        vec![],
        vec![input],
        None,
    );
    group.start(call)?.wait(None).unwrap()?;
    Ok(result.recv().unwrap().remove(0))
}

fn sum(elements: u32, ranks: &[u32]) -> Vec<u8> {
    native_bytes((0..elements).map(|index| ranks.iter().map(|rank| index + rank).sum()))
}

#[test]
fn all_reduce__any_length__gives_the_sum_on_every_rank() {
    for ranks in [1, 2, 3, 5] {
        let lengths = [0, 1, 7, 3000, 100_000];
        let sums = run_ranks(ranks as usize, |group| {
            lengths.map(|length| all_reduce(&group, length).unwrap())
        });
        let all: Vec<u32> = (0..ranks).collect();
        for results in sums {
            for (length, result) in lengths.iter().zip(results) {
                assert!(
                    result == sum(*length, &all),
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
            let length = sizes[from * ranks + to] as u32 / 4;
            native_bytes((0..length).map(|index| index + 100 * from as u32 + to as u32))
        };
        run_ranks(ranks, |group| {
            let rank = group.rank();
            let source = (0..ranks).map(|to| block(rank, to)).collect();
            let destination = (0..ranks)
                .map(|from| vec![0; block(from, rank).len()])
                .collect();
            let operation = RequestedOperation::AllToAll;
            let (call, result) = call(
                operation,
                0,
                sizes.clone(),
                source,
                destination,
                Some(ranks),
            );
            group.start(call).unwrap().wait(None).unwrap().unwrap();
            let received = result.recv().unwrap();
            for from in (0..ranks).filter(|from| *from != rank) {
                assert!(
                    received[from] == block(from, rank),
                    "seed {seed}: {from} to {rank}"
                );
            }
        });
    }
}

#[test]
fn collectives__started_together__each_give_their_own_result() {
    run_ranks(3, |group| {
        let input =
            |round: u32| native_bytes((0..5000).map(|index| index * round + group.rank() as u32));
        let started: Vec<_> = (1..20)
            .map(|round| {
                let bytes = vec![20_000];
                let root = round as usize % 3;
                let operation = RequestedOperation::Broadcast;
                let (call, result) = call(operation, root, bytes, vec![], vec![input(round)], None);
                (group.start(call).unwrap(), result, root, round)
            })
            .collect();
        for (ticket, result, root, round) in started {
            ticket.wait(None).unwrap().unwrap();
            let expected = native_bytes((0..5000).map(|index| index * round + root as u32));
            assert!(result.recv().unwrap()[0] == expected, "round {round}");
        }
    });
}

#[test]
fn ranks__different_requests__all_get_the_error_and_can_continue() {
    let errors = run_ranks(4, |group| {
        let elements = if group.rank() == 2 { 999 } else { 1000 };
        let error = all_reduce(&group, elements).unwrap_err().to_string();
        // The next collective succeeds.
        assert!(all_reduce(&group, 5000).unwrap() == sum(5000, &[0, 1, 2, 3]));
        error
    });
    for text in errors {
        assert!(
            text.starts_with("ranks made different requests: rank "),
            "{text}"
        );
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
    run_ranks(4, |group| {
        all_reduce(&group, 100).unwrap();
        barrier.wait();
        if group.rank() == 1 {
            return;
        }
        let started_at = Instant::now();
        let failure = all_reduce(&group, 100_000).unwrap_err();
        assert!(
            started_at.elapsed() < Duration::from_secs(1),
            "{:?}",
            started_at.elapsed()
        );
        assert!(
            matches!(failure, GroupError::Failed(Failure::Lost { rank: 1, .. })),
            "{failure}"
        );
        let text = failure.to_string();
        assert!(
            text.starts_with("rank 1 is lost: ") && text.contains("(it ran on here"),
            "{text}"
        );
        assert_eq!(group.lost(), [1]);
        // New requests fail as well.
        assert!(all_reduce(&group, 10).is_err());
        group.shrink(None).unwrap();
        assert_eq!((group.members(), group.lost()), (vec![0, 2, 3], vec![]));
        for length in [1, 50_000] {
            let result = all_reduce(&group, length).unwrap();
            assert!(result == sum(length, &[0, 1, 2]));
        }
    });
}

#[test]
fn rank__unreachable_by_the_others__makes_the_connections_itself() {
    let barrier = Barrier::new(4);
    run_ranks_hidden(4, &[2], |group| {
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
    exchange::messages_round(&[0]);
}

#[test]
fn ranks__mutually_unreachable__are_named_in_the_error() {
    let config = Config {
        interface: Some("lo".to_owned()),
        start_timeout: Duration::from_secs(2),
        ..Config::default()
    };
    let (_socket, closed_port) = closed_port();
    let listening = [(); 2].map(|()| Listening::new(config.clone()).unwrap());
    let cards = listening.each_ref().map(|listening| listening.card.clone());
    std::thread::scope(|scope| {
        for (rank, listening) in listening.into_iter().enumerate() {
            let mut cards = cards.clone();
            cards[1 - rank].port = closed_port;
            let cards = cards.map(|card| card.bytes().to_vec());
            scope.spawn(move || {
                let error = listening.join(rank, &cards).unwrap_err().to_string();
                let peer = 1 - rank;
                assert!(
                    error.starts_with(&format!("rank {peer} on "))
                        && error.contains("has not connected for 2 s"),
                    "{error}"
                );
            });
        }
    });
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
    let cards: Vec<Vec<u8>> = listening.iter().map(|rank| rank.card().to_vec()).collect();
    let ports: Vec<u16> = listening.iter().map(|rank| rank.card.port).collect();
    let wrong_key = frame::Hello {
        channel: frame::Channel::Control,
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
        for (rank, listening) in listening.into_iter().enumerate() {
            let cards = &cards;
            scope.spawn(move || {
                let group = listening.join(rank, cards).unwrap();
                assert!(all_reduce(&group, 1000).unwrap() == sum(1000, &[0, 1]));
            });
        }
    });
}

#[test]
fn arguments__invalid__are_refused_locally_and_the_group_still_works() {
    run_ranks(2, |group| {
        let error_of = |operation, root, bytes: &[u64], element| {
            let (mut call, _) = call(operation, root, bytes.to_vec(), vec![], vec![], None);
            call.element = element;
            call.reduction = Reduction::Xor;
            group.start(call).unwrap_err().to_string()
        };
        let of_f32 = error_of(RequestedOperation::AllReduce, 0, &[4], Element::F32);
        assert_eq!(of_f32, "the reduction xor is not defined for float32");
        let root = error_of(RequestedOperation::Broadcast, 2, &[4], Element::U32);
        assert_eq!(root, "root 2 out of range (0–1)");
        let sizes = error_of(RequestedOperation::AllGather, 0, &[4], Element::U32);
        assert_eq!(sizes, "1 block sizes given: expected 2, one for each block");
        let element = error_of(RequestedOperation::AllReduce, 0, &[6], Element::U32);
        assert_eq!(
            element,
            "6 bytes are not a whole number of elements of 4 bytes"
        );
        for peer in [2, group.rank()] {
            let expected = format!(
                "invalid peer rank {peer}: expected 0 to 1, except this rank, {}",
                group.rank()
            );
            let send = group.send(peer, 0, 0, Box::new(Broken));
            let receive = group.receive(Some(peer), 0, 0, Box::new(Broken));
            for outcome in [send, receive] {
                assert_eq!(outcome.unwrap_err().to_string(), expected);
            }
        }
        all_reduce(&group, 10).unwrap();
    });
}

#[test]
fn group__closed_with_a_pending_receive__fails_it_with_the_reason() {
    run_ranks(1, |group| {
        let ticket = group.receive(None, 7, 0, Box::new(Broken)).unwrap();
        drop(group);
        let failure = ticket.wait(None).unwrap().unwrap_err();
        assert_eq!(failure.to_string(), "the group is closed");
    });
}

#[test]
fn group__from_an_invalid_environment__is_refused_with_the_variables() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let environment = Environment {
        address: holder.local_addr().unwrap().to_string(),
        rank: 0,
        ranks: 2,
        launcher: Secret::none(),
    };
    let config = Config {
        interface: Some("lo".to_owned()),
        ..Config::default()
    };
    let error = Group::from_environment(config, &environment).unwrap_err();
    let start = format!(
        "cannot exchange the ranks' cards: rank 0 cannot listen at {} (MASTER_ADDR, MASTER_PORT): ",
        environment.address
    );
    assert!(error.to_string().starts_with(&start), "{error}");
}

/// Memory that panics on access.
struct Broken;

impl Memory for Broken {
    fn source(&self, _: u64, _: u64, _: usize) -> &[u8] {
        panic!("the group's thread ends here, for the test")
    }

    fn destination(&mut self, _: u64, _: u64, _: usize) -> &mut [u8] {
        panic!("the group's thread ends here, for the test")
    }
}

#[test]
fn group__progress_thread_ended__fails_pending_and_later_calls() {
    run_ranks(2, |group| {
        all_reduce(&group, 10).unwrap();
        if group.rank() == 1 {
            all_reduce(&group, 10).unwrap_err();
            return;
        }
        let broken = Call {
            request: Request {
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
        let first = group.start(broken).unwrap();
        // The first ends the thread. The second may be ordered before or after that.
        let (second, _) = call(
            RequestedOperation::AllReduce,
            0,
            vec![4],
            vec![],
            vec![vec![0; 4]],
            None,
        );
        let second = group.start(second).unwrap();
        for ticket in [first, second] {
            let error = ticket.wait(limit).expect("it is settled").unwrap_err();
            assert!(error.to_string().contains("thread has ended"), "{error}");
        }
        assert!(all_reduce(&group, 1).is_err());
        let error = group.shrink(None).unwrap_err().to_string();
        assert!(error.contains("thread has ended"), "{error}");
    });
}

#[test]
fn shrink__not_called_by_one_rank__names_that_rank_and_can_be_retried() {
    let (reduced, barrier) = (Barrier::new(3), Barrier::new(2));
    run_ranks(3, |group| {
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
        let error = group.shrink(Some(Duration::from_millis(100)));
        // Rank 1 waits for this: a failed assertion before it would hang the test.
        barrier.wait();
        let error = error.unwrap_err();
        assert!(
            matches!(error, GroupError::Failed(Failure::Late(_))),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            "not all ranks have agreed to shrink in time: rank 1 on here has not called shrink"
        );
        group.shrink(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(group.members(), [0, 1]);
    });
}
