use super::*;
use crate::group::card::Card;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn environment(pairs: &[(&str, &str)]) -> Result<Environment, String> {
    Environment::read(|name| {
        let pair = pairs.iter().find(|(key, _)| *key == name);
        pair.map(|(_, text)| (*text).to_owned())
    })
}

#[test]
fn environment__missing_or_invalid_variable__is_refused_by_name() {
    let valid = [
        ("MASTER_ADDR", "node1"),
        ("MASTER_PORT", "29500"),
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
    ];
    let read = environment(&valid).unwrap();
    assert_eq!(
        (read.address.as_str(), read.rank, read.ranks),
        ("node1:29500", 3, 4)
    );
    for (index, (name, _)) in valid.iter().enumerate() {
        let mut present = valid.to_vec();
        present.remove(index);
        let error = environment(&present).unwrap_err();
        assert_eq!(
            error,
            format!(
                "{name} is not set; a group needs MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE"
            )
        );
    }
    for (index, value, message) in [
        (1, "0", "invalid MASTER_PORT `0`: expected 1 to 65535"),
        (
            1,
            "70000",
            "invalid MASTER_PORT `70000`: expected 1 to 65535",
        ),
        (2, "4", "invalid RANK `4`: expected 0 to 3"),
        (2, "-1", "invalid RANK `-1`: expected 0 to 3"),
        (3, "0", "invalid WORLD_SIZE `0`: expected 1 to 4096"),
        (3, "four", "invalid WORLD_SIZE `four`: expected 1 to 4096"),
    ] {
        let mut invalid = valid;
        invalid[index].1 = value;
        assert_eq!(environment(&invalid).unwrap_err(), message);
    }
}

#[test]
fn rank__never_connects__is_named_in_the_error() {
    let alone = Environment {
        address: "127.0.0.1:0".to_owned(),
        rank: 0,
        ranks: 3,
        launcher: Secret::none(),
    };
    let error = exchange(
        &alone,
        &Secret::none(),
        &[0; CARD_BYTES],
        Duration::from_millis(50),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 1 of 3 has not connected to 127.0.0.1:0"
    );
}

#[test]
fn rank__that_is_missing__is_named_on_all_others() {
    let ranks = environments(3);
    let secret = secret("what the job knows");
    let limit = Duration::from_millis(300);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| exchange(&ranks[1], &secret, &card(1), limit).unwrap_err());
        let reason = format!("rank 2 of 3 has not connected to {}", ranks[0].address);
        let error = exchange(&ranks[0], &secret, &card(0), limit).unwrap_err();
        assert_eq!(error.to_string(), reason);
        let error = other.join().unwrap().to_string();
        let told = format!("rank 0 at {} refuses this rank: {reason}", ranks[0].address);
        assert_eq!(error, told);
    });
}

/// Returns the parameters of the ranks of one group, at a free port.
fn environments(ranks: usize) -> Vec<Environment> {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap().to_string();
    let rank_environment = |rank| Environment {
        address: address.clone(),
        rank,
        ranks,
        launcher: Secret::none(),
    };
    (0..ranks).map(rank_environment).collect()
}

fn secret(text: &str) -> Secret {
    Secret::from_bytes(text.as_bytes(), "a test").unwrap()
}

fn card(rank: usize) -> [u8; CARD_BYTES] {
    let card = Card {
        key: [rank as u8; 16],
        proof: [0; 8],
        version: "0".to_owned(),
        port: 1,
        addresses: vec!["127.0.0.1".parse().unwrap()],
        host: format!("host{rank}"),
        network: 0,
        wind_port: 0,
    };
    card.bytes()
}

fn connect(environment: &Environment) -> TcpStream {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match TcpStream::connect(&environment.address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns all bytes that rank 0 sends before it closes the connection.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // The connection may be reset, because rank 0 has not read everything.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn stranger__without_the_job_secret__receives_no_cards() {
    let all = environments(3);
    let right = secret("what the job knows");
    std::thread::scope(|scope| {
        let run_rank = |rank: usize| exchange(&all[rank], &right, &card(rank), LONG);
        let rank_0 = scope.spawn(move || run_rank(0).unwrap());
        // A rank of an earlier release sends its number and its card.
        let mut old = connect(&all[1]);
        old.write_all(&[&[1, 0, 0, 0], &card(1)[..]].concat())
            .unwrap();
        assert_eq!(answer(old), b"");
        // A peer proves another secret in the right format.
        let wrong = secret("what another job knows");
        let mut noise = wrong.initiator().unwrap();
        let mut first = [0; FIRST_BYTES];
        first[..8].copy_from_slice(&MAGIC);
        noise.write_message(&[], &mut first[8..]).unwrap();
        let mut stream = connect(&all[1]);
        stream.write_all(&first).unwrap();
        assert_eq!(answer(stream), b"");
        let error = exchange(&all[1], &wrong, &card(1), LONG).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("it has another job secret (here: a test"),
            "{error}"
        );
        // A peer replays the first message of a rank.
        let mut noise = right.initiator().unwrap();
        noise.write_message(&[], &mut first[8..]).unwrap();
        let mut stream = connect(&all[1]);
        stream.write_all(&first).unwrap();
        stream.write_all(&[7; CARD_MESSAGE_BYTES]).unwrap();
        let reply = answer(stream);
        assert!(reply.len() <= HANDSHAKE_BYTES, "{} bytes", reply.len());
        // The ranks still join.
        let peers = [1, 2].map(|rank| scope.spawn(move || run_rank(rank).unwrap()));
        let expected = [0, 1, 2].map(|rank| card(rank).to_vec());
        for rank in peers.into_iter().chain([rank_0]) {
            assert_eq!(rank.join().unwrap(), expected);
        }
    });
}

#[test]
fn connections__trickling_bytes__do_not_delay_the_ranks() {
    let all = environments(3);
    let secret = secret("what the job knows");
    let is_complete = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let run_rank = |rank: usize| exchange(&all[rank], &secret, &card(rank), LONG).unwrap();
        let rank_0 = scope.spawn(move || run_rank(0));
        let mut drips: Vec<TcpStream> = (0..90).map(|_| connect(&all[1])).collect();
        let is_complete = &is_complete;
        scope.spawn(move || {
            while !is_complete.load(std::sync::atomic::Ordering::Relaxed) {
                for drip in &mut drips {
                    let _ = drip.write(b"K");
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        let started_at = Instant::now();
        let peers = [1, 2].map(|rank| scope.spawn(move || run_rank(rank)));
        for rank in peers.into_iter().chain([rank_0]) {
            assert_eq!(rank.join().unwrap().len(), 3);
        }
        is_complete.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(
            started_at.elapsed() < Duration::from_secs(1),
            "{:?}",
            started_at.elapsed()
        );
    });
}

#[test]
fn rank__wrong_world_size_or_duplicate__is_refused_with_the_reason() {
    let all = environments(3);
    let secret = secret("what the job knows");
    std::thread::scope(|scope| {
        let run_rank = |rank: usize, ranks: usize| {
            let environment = Environment {
                rank,
                ranks,
                ..all[0].clone()
            };
            exchange(&environment, &secret, &card(rank), LONG)
        };
        let rank_0 = scope.spawn(move || run_rank(0, 3).unwrap());
        let error = run_rank(1, 4).unwrap_err().to_string();
        assert!(
            error.ends_with("it has rank 1 of 4 (RANK, WORLD_SIZE), and rank 0 expects 3 ranks"),
            "{error}"
        );
        // Two ranks have the same number. One waits and the other is refused; the order of arrival
        // decides.
        let duplicates = [(); 2].map(|()| scope.spawn(move || run_rank(1, 3)));
        while duplicates.iter().all(|thread| !thread.is_finished()) {
            std::thread::sleep(PAUSE);
        }
        run_rank(2, 3).unwrap();
        let duplicates = duplicates.map(|thread| thread.join().unwrap());
        let errors = duplicates.iter().filter_map(|result| result.as_ref().err());
        let errors: Vec<String> = errors.map(ToString::to_string).collect();
        assert!(
            errors.len() == 1 && errors[0].contains("rank 1 already joined from 127.0.0.1:"),
            "{errors:?}"
        );
        assert_eq!(rank_0.join().unwrap().len(), 3);
    });
}

#[test]
fn cards__many_ranks__reach_every_rank() {
    let all = environments(2 * CARDS_PER_MESSAGE + 1);
    std::thread::scope(|scope| {
        let ranks = all.iter().map(|env| {
            let run_rank = || exchange(env, &env.launcher, &card(env.rank), LONG).unwrap();
            scope.spawn(run_rank)
        });
        let ranks: Vec<_> = ranks.collect();
        let expected: Vec<Vec<u8>> = all.iter().map(|env| card(env.rank).to_vec()).collect();
        for rank in ranks {
            assert!(rank.join().unwrap() == expected);
        }
    });
}

#[test]
fn rank_0__address_in_use__is_named_with_the_variables() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let environment = Environment {
        address: address.clone(),
        rank: 0,
        ranks: 2,
        launcher: Secret::none(),
    };
    let error = exchange(&environment, &Secret::none(), &card(0), LONG).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "rank 0 cannot listen at {address} (MASTER_ADDR, MASTER_PORT): \
             Address already in use (os error 98)"
        )
    );
}

#[test]
fn rank_0__absent_or_leaving__is_named_with_the_reason() {
    let environment = &environments(2)[1];
    let address = &environment.address;
    let secret = secret("what the job knows");
    let limit = Duration::from_millis(50);
    let error = exchange(environment, &secret, &card(1), limit).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "rank 0 cannot be reached at {address} (MASTER_ADDR, MASTER_PORT): \
             Connection refused (os error 111); rank 0 has not begun, or the job has begun \
             without this rank"
        )
    );
    let listener = TcpListener::bind(address).unwrap();
    std::thread::scope(|scope| {
        // This rank 0 proves the secret, and ends when the card has arrived.
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut first = [0; FIRST_BYTES];
            stream.read_exact(&mut first).unwrap();
            let mut noise = secret.responder().unwrap();
            let sealed = &first[MAGIC.len()..];
            noise
                .read_message(sealed, &mut [0; HANDSHAKE_BYTES])
                .unwrap();
            let mut reply = [0; HANDSHAKE_BYTES];
            noise.write_message(&[], &mut reply).unwrap();
            stream.write_all(&reply).unwrap();
            stream.read_exact(&mut [0; CARD_MESSAGE_BYTES]).unwrap();
        });
        let error = exchange(environment, &secret, &card(1), LONG).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "rank 0 at {address} has not sent the addresses of the other ranks: \
                 unexpected end of file"
            )
        );
    });
}

#[test]
fn rank_0__only_strangers_connect__counts_them_in_the_error() {
    let environment = &environments(2)[0];
    let secret = secret("what the job knows");
    let limit = Duration::from_secs(1);
    for (count, refused) in [
        (1, "1 connection was refused: it"),
        (2, "2 connections were refused: they"),
    ] {
        let error = std::thread::scope(|scope| {
            let rank_0 = scope.spawn(|| exchange(environment, &secret, &card(0), limit));
            for _ in 0..count {
                let mut stranger = connect(environment);
                stranger.write_all(&[0; FIRST_BYTES]).unwrap();
                assert_eq!(answer(stranger), b"");
            }
            rank_0.join().unwrap().unwrap_err()
        });
        assert_eq!(
            error.to_string(),
            format!(
                "rank 1 of 2 has not connected to {}; \
                 {refused} did not prove the job secret (here: a test)",
                environment.address
            )
        );
    }
}
