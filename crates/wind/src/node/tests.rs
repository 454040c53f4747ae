use super::waiting::{POLLED, SPIN};
use super::*;
use crate::protocol::{Seal, Secret};
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

pub const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

pub fn config(secret: Secret) -> Config {
    let mut config = Config::new(secret, random_epoch().unwrap());
    config.lost_after_ns = 500_000_000;
    config
}

fn node(secret: Secret) -> Node {
    Node::bind((Ipv4Addr::LOCALHOST, 0).into(), config(secret)).unwrap()
}

/// Two nodes, and the name of the second at the first.
fn pair() -> (Node, Node, PeerId) {
    let (one, other) = (node([1; 32]), node([1; 32]));
    let peer = one.connect(other.local_address().unwrap()).unwrap();
    (one, other, peer)
}

#[test]
fn messages__of_each_class__arrive_in_their_order() {
    let (one, other, peer) = pair();
    let count = 3_000_u32;
    for number in 0..count {
        let class = Class::ALL[number as usize % 2 * 2];
        let data = [&number.to_be_bytes()[..], &vec![7; number as usize % 5_000]].concat();
        one.send_bytes(peer, class, data).unwrap();
    }
    for number in 0..count {
        let received = other.receive(LIMIT).expect("a message");
        assert_eq!(received.message.data[..4], number.to_be_bytes());
        assert_eq!(received.message.data.len(), 4 + number as usize % 5_000);
    }
    let last = one.send_bytes(peer, Class::Synchronous, vec![]).unwrap();
    one.wait_placed(peer, last, LIMIT).unwrap();
    one.flush(peer, LIMIT).unwrap();
}

#[test]
fn answer__sent_to_the_peer_of_a_message__reaches_it() {
    let (one, other, peer) = pair();
    one.send_bytes(peer, Class::Ordered, *b"ping").unwrap();
    let received = other.receive(LIMIT).unwrap();
    other
        .send_bytes(received.peer, Class::Ordered, *b"pong")
        .unwrap();
    let answer = one.receive(LIMIT).unwrap();
    assert_eq!(
        (answer.peer, &answer.message.data[..]),
        (peer, &b"pong"[..])
    );
}

#[test]
fn operations__on_a_region__change_it_without_the_program() {
    let (one, other, peer) = pair();
    let region = other.register(1 << 20).unwrap();
    let bytes: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
    one.put(peer, region.place(5), &bytes).unwrap();
    assert_eq!(one.get(peer, region.place(5), bytes.len()).unwrap(), bytes);
    let mut copy = vec![0; bytes.len()];
    region.memory().read(5, &mut copy);
    assert_eq!(copy, bytes);
    let word = region.place(200_000);
    for expected in 0..100 {
        assert_eq!(
            one.atomic(peer, word, Atomic::FetchAdd(1)).unwrap(),
            expected
        );
    }
    assert_eq!(region.memory().word(200_000).load(Ordering::Acquire), 100);
    other.deregister(&region);
    let refused = one.put(peer, region.place(0), b"late").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the peer refused: no such region at the peer, or another key"
    );
}

#[test]
fn put__with_a_notice__is_there_when_the_program_gets_it() {
    let (one, other, peer) = pair();
    let region = other.register(1 << 20).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=50_u8 {
                let bytes = vec![round; 20_000];
                one.put_and_notify(peer, region.place(3), &bytes, vec![round])
                    .unwrap();
            }
        });
        for round in 1..=50_u8 {
            let received = other.receive(LIMIT).expect("a notice");
            assert_eq!(received.message.data, [round]);
            let mut bytes = vec![0; 20_000];
            region.memory().read(3, &mut bytes);
            // Later puts do not wait for this program.
            assert!(bytes.iter().all(|byte| *byte >= round));
        }
    });
}

#[test]
fn operations__refused_in_each_part__leave_no_result_behind() {
    let (one, other, peer) = pair();
    let region = other.register(100).unwrap();
    let place = region.place(0);
    let refusals = [
        one.put(peer, place, &[1; 100_000]).unwrap_err(),
        one.get(peer, place, 100_000).unwrap_err(),
        one.put_diff(peer, place, &[0; 100_000], &[1; 100_000])
            .unwrap_err(),
    ];
    for refused in refusals {
        let reason = "the peer refused: the place lies outside the region";
        assert_eq!(refused.to_string(), reason);
    }
    assert_eq!(one.state().untaken(), 0);
}

#[test]
fn diff__of_an_area__writes_the_changed_bytes_only() {
    let (one, other, peer) = pair();
    let region = other.register(300_000).unwrap();
    let twin = vec![1; 300_000];
    let mut now = twin.clone();
    for at in (0..now.len()).step_by(77) {
        now[at] = 2;
    }
    now[100_000..150_000].fill(3);
    // The peer's bytes differ from the twin, so a byte that is written without need shows.
    let expected: Vec<u8> = now
        .iter()
        .map(|&byte| if byte == 1 { 0 } else { byte })
        .collect();
    let contents = || {
        let mut bytes = vec![0; 300_000];
        region.memory().read(0, &mut bytes);
        bytes
    };
    one.put_diff(peer, region.place(0), &twin, &now).unwrap();
    assert!(contents() == expected);

    one.put(peer, region.place(0), &vec![0; 300_000]).unwrap();
    let (class, place) = (Class::Ordered, region.place(0));
    let header = Some(b"changed".to_vec());
    one.send_diff(peer, class, place, header, &twin, &now)
        .unwrap();
    let received = other.receive(LIMIT).unwrap().message;
    let (header, data) = (&received.header[..], received.data.len());
    assert_eq!((header, data), (&b"changed"[..], 0));
    assert!(contents() == expected);

    let class = Class::Synchronous;
    let sent = one
        .send_diff(peer, class, place, None, &twin, &twin)
        .unwrap();
    one.wait_placed(peer, sent, LIMIT).unwrap();
    assert!(contents() == expected);

    let refused = one.put_diff(peer, place, &twin[1..], &now).unwrap_err();
    let reason = "the twin has 299999 bytes, and the area has 300000: expected the same length";
    assert_eq!(refused.to_string(), reason);
}

#[test]
fn message__to_a_place_out_of_range__is_an_error_of_the_synchronous_sender() {
    let (one, other, peer) = pair();
    let region = other.register(100).unwrap();
    let message = Message {
        class: Class::Synchronous,
        mode: Mode::DirectMap,
        header: Vec::new(),
        data: vec![vec![1; 10]],
        place: Some(region.place(91)),
    };
    let sent = one.send(peer, message).unwrap();
    let refused = one.wait_placed(peer, sent, LIMIT).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the peer refused: the place lies outside the region"
    );
}

/// Waits until a peer is lost, and returns the reason.
fn wait_lost(node: &Node, peer: PeerId) -> String {
    loop {
        if let Err(lost) = node.flush(peer, LIMIT) {
            return lost.to_string();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn peer__gone_absent_or_with_another_secret__is_an_error_in_time() {
    let (one, other, peer) = pair();
    one.send_bytes(peer, Class::Ordered, *b"a").unwrap();
    one.flush(peer, LIMIT).unwrap();
    drop(other);
    let lost = wait_lost(&one, peer);
    assert_eq!(lost, "the peer ended the session");
    let stranger = node([2; 32]);
    let peer = one.connect(stranger.local_address().unwrap()).unwrap();
    let began = Instant::now();
    one.send_bytes(peer, Class::Ordered, *b"a").unwrap();
    assert_eq!(wait_lost(&one, peer), "the peer does not answer");
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    let late = one.receive(Some(Duration::from_millis(20)));
    assert_eq!(late, None);
}

#[test]
fn disconnect__of_a_peer__takes_back_what_it_still_sends() {
    let (one, other, peer) = pair();
    let region = one.register(8).unwrap();
    one.send_bytes(peer, Class::Ordered, *b"hello").unwrap();
    let back = other.receive(LIMIT).unwrap().peer;
    other.put(back, region.place(0), &[1; 8]).unwrap();
    one.disconnect(peer);
    // At once: no answer of the peer is awaited.
    assert!(one.check(peer).is_err());
    assert!(other.put(back, region.place(0), &[2; 8]).is_err());
    let mut bytes = [0; 8];
    region.memory().read(0, &mut bytes);
    assert_eq!(bytes, [1; 8]);
}

#[test]
fn seal__plain_and_encrypted__do_not_understand_each_other() {
    let one = node([1; 32]);
    let mut plain = config([1; 32]);
    plain.seal = Seal::Plain;
    let other = Node::bind((Ipv4Addr::LOCALHOST, 0).into(), plain).unwrap();
    let peer = one.connect(other.local_address().unwrap()).unwrap();
    one.send_bytes(peer, Class::Ordered, *b"a").unwrap();
    let lost = one.flush(peer, LIMIT).unwrap_err();
    assert_eq!(lost.to_string(), "the peer does not answer");
}

#[test]
fn message__of_mode_relay__is_refused() {
    let (one, _other, peer) = pair();
    let message = Message {
        class: Class::Ordered,
        mode: Mode::Relay,
        header: Vec::new(),
        data: Vec::new(),
        place: None,
    };
    let error = one.send(peer, message).unwrap_err().to_string();
    assert_eq!(
        error,
        "mode Relay is sent by nodes only: `put_to_all` uses it"
    );
}

/// Memory of a test.
impl LocalMemory for Vec<u8> {
    fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self[offset..offset + bytes].to_vec()
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// Polls a transfer until it is complete.
fn complete(node: &Node, mut transfer: Transfer, memory: &mut Vec<u8>) -> Result<(), WindError> {
    let began = Instant::now();
    while !node.advance(&mut transfer, memory)? {
        assert!(node.poll().is_none());
        assert!(began.elapsed() < Duration::from_secs(10));
    }
    Ok(())
}

#[test]
fn transfers__polled__equal_the_operations_that_wait() {
    let (one, other, peer) = pair();
    let key = Node::derived_key(&[1; 32], 9);
    let memory = SharedMemory::new(5 << 20).unwrap();
    let region = other.register_as(77, key, memory).expect("a free number");
    let again = SharedMemory::new(8).unwrap();
    assert!(other.register_as(77, key, again).is_none());
    let place = region.place(3);
    let mut bytes: Vec<u8> = (0..5_000_000_u32).map(|at| (at / 7) as u8).collect();
    let expected = bytes.clone();
    complete(&one, Transfer::put(peer, place, bytes.len()), &mut bytes).unwrap();
    let mut copy = vec![0; bytes.len()];
    complete(&one, Transfer::get(peer, place, copy.len()), &mut copy).unwrap();
    assert!(copy == expected);
    let add = Transfer::atomic(peer, region.place(0), Atomic::FetchAdd(1));
    let word = region.memory().word(0).load(Ordering::Relaxed);
    complete(&one, add, &mut copy).unwrap();
    assert_eq!(copy[..8], word.to_ne_bytes());
    let outside = Transfer::put(peer, region.place(1 << 20), bytes.len());
    let refused = complete(&one, outside, &mut bytes).unwrap_err();
    let reason = "the peer refused: the place lies outside the region";
    assert_eq!(refused.to_string(), reason);
    assert_eq!(one.state().untaken(), 0);
}

#[test]
fn try_send__more_than_waits_for_a_peer__says_so_instead_of_waiting() {
    let (one, other, peer) = pair();
    let message = Message {
        class: Class::Synchronous,
        mode: Mode::MessageThrough,
        header: Vec::new(),
        data: vec![vec![1; 1 << 20]],
        place: None,
    };
    let mut numbers = Vec::new();
    while let Some(sent) = one.try_send(peer, message.clone()).unwrap() {
        numbers.push(sent.number);
    }
    assert!(numbers.len() >= 16, "{}", numbers.len());
    let seen = other.wait_change(0, LIMIT);
    assert!(seen > 0);
    for number in numbers {
        let received = other.receive(LIMIT).expect("a message");
        assert_eq!(received.message.data.len(), 1 << 20);
        while !one.is_placed(peer, number).unwrap() {
            one.wait_change(
                one.wait_change(u64::MAX, None),
                Some(Duration::from_millis(1)),
            );
        }
    }
    let began = Instant::now();
    one.wake();
    drop(other);
    while one.check(peer).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(one.try_send(peer, message).is_err());
    assert!(one.peer_address(peer).is_none());
}

#[test]
fn poll__once_and_never_again__leaves_acknowledgements_to_the_thread() {
    let (one, other, peer) = pair();
    one.send_bytes(peer, Class::Ordered, *b"first").unwrap();
    let began = Instant::now();
    while other.poll().is_none() {
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    one.flush(peer, LIMIT).unwrap();
    // The thread has long stopped leaving the socket to the program.
    std::thread::sleep(3 * POLLED);
    one.send_bytes(peer, Class::Ordered, *b"second").unwrap();
    one.flush(peer, LIMIT).unwrap();
    assert_eq!(other.poll().unwrap().message.data, b"second");
}

#[test]
fn wait__after_a_poll__is_woken_by_the_thread_at_once() {
    let (one, other, peer) = pair();
    one.send_bytes(peer, Class::Ordered, *b"first").unwrap();
    other.receive(LIMIT).expect("a message");
    let mut shortest = Duration::MAX;
    for _ in 0..20 {
        one.flush(peer, LIMIT).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(4 * SPIN);
                one.send_bytes(peer, Class::Ordered, *b"next").unwrap();
            });
            let began = Instant::now();
            // The poll finds the message if this thread was stopped before it.
            let received = other.poll().or_else(|| other.receive(LIMIT));
            received.expect("a message");
            shortest = shortest.min(began.elapsed());
        });
    }
    // The thread would leave the socket alone for a millisecond.
    assert!(shortest < POLLED * 7 / 8, "{shortest:?}");
}

/// Each of two nodes answers from its handler, whether its program computes or waits.
#[test]
fn handler__of_messages__is_called_in_order_while_programs_compute_and_wait() {
    let (one, other, peer) = pair();
    let (one, other) = (Arc::new(one), Arc::new(other));
    let answered = Arc::new(Mutex::new(Vec::new()));
    let (answers, weak) = (Arc::clone(&answered), Arc::downgrade(&other));
    other.hand_messages_to(Box::new(move |received| {
        let other = weak.upgrade().expect("it lives");
        let data = received.message.data;
        other
            .send_bytes(received.peer, Class::Ordered, data)
            .unwrap();
    }));
    one.hand_messages_to(Box::new(move |received| {
        answers.lock().unwrap().push(received.message.data[0]);
    }));
    let count = || answered.lock().unwrap().len();
    for number in 0..200_u8 {
        one.send_bytes(peer, Class::Ordered, [number]).unwrap();
        let seen = usize::from(number) / 2;
        if number % 5 == 0 {
            assert!(one.wait_until(LIMIT, || count() >= seen));
        }
    }
    assert!(one.wait_until(LIMIT, || count() == 200));
    assert!(!one.wait_until(Some(Duration::from_millis(1)), || count() == 201));
    // Nobody waits.
    one.send_bytes(peer, Class::Ordered, [200]).unwrap();
    let began = Instant::now();
    while count() < 201 && began.elapsed() < LIMIT.unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(answered.lock().unwrap().iter().copied().eq(0..=200));
}

/// The node's thread may hold the handler's turn while a program begins to wait. A program that
/// then slept on the socket was not woken: nothing arrived there any more.
#[test]
fn handler__run_by_the_nodes_thread__wakes_a_program_that_begins_to_wait() {
    let (one, other, peer) = pair();
    let handled = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&handled);
    other.hand_messages_to(Box::new(move |_| {
        std::thread::sleep(Duration::from_micros(200));
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    for number in 1..=400_u64 {
        one.send_bytes(peer, Class::Ordered, b"1").unwrap();
        // The node's thread receives meanwhile.
        std::thread::sleep(Duration::from_micros(number % 40 * 10));
        let began = Instant::now();
        assert!(other.wait_until(LIMIT, || handled.load(Ordering::SeqCst) >= number));
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
    }
}

#[test]
fn waits__of_several_threads_at_once__all_end() {
    let (one, other, peer) = pair();
    let region = other.register(1 << 16).unwrap();
    let one = &one;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (word, own) = (region.place(0), region.place(4_096 * (thread + 1)));
            scope.spawn(move || {
                for _ in 0..500 {
                    one.atomic(peer, word, Atomic::FetchAdd(1)).unwrap();
                    one.post_put(peer, own, &[thread as u8; 3_000]).unwrap();
                    one.flush(peer, LIMIT).unwrap();
                }
            });
        }
    });
    assert_eq!(region.memory().word(0).load(Ordering::Acquire), 2_000);
    let mut copy = [0; 3_000];
    region.memory().read(4_096 * 4, &mut copy);
    assert_eq!(copy, [3; 3_000]);
}
