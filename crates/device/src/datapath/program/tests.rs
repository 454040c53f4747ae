mod sack;

use super::super::intf::{QUESTION_TYPE, Question, Way};
use super::*;
use kumi_multilink::wire::QuestionKey;
use libbpf_rs::ProgramInput;

/// Verdicts of `linux/pkt_cls.h`.
const PASSED_ON: u32 = u32::MAX;
const DROPPED: u32 = 2;
const REDIRECTED: u32 = 7;

const OWN_KEY: QuestionKey = [1; 16];
const THEIR_KEY: QuestionKey = [2; 16];
const ALIAS: Mac = [2, 0, 0, 0, 0, 9];
/// Address of the loopback interface, at which the kernel runs the program.
const OWN_ADDRESS: Mac = [0; 6];
const WAY: Way = Way {
    to: [2, 0, 0, 0, 0, 7],
    from: [2, 0, 0, 0, 0, 8],
};

const OWN_DEVICE: Device = Device {
    index: 1,
    mac: [2, 0, 0, 0, 0, 2],
    zero: [0; 6],
    alive_at_ns: 0,
    layout: LAYOUT,
};

/// Returns programs that know one peer.
fn program() -> Program {
    let mac = [2, 0, 0, 0, 0, 1];
    let program = Program::load(OWN_DEVICE, None).expect("the kernel takes the programs");
    let link = Link {
        index: 1,
        key: OWN_KEY,
        ..Link::default()
    };
    program.set_link(0, &link).unwrap();
    let sender = Sender {
        link: 0,
        number: 0,
        mac,
        zero: 0,
        key: THEIR_KEY,
    };
    program.set_sender(ALIAS, Some(&sender)).unwrap();
    program.set_peer(mac, Some(&peer_with(1))).unwrap();
    program
}

fn peer_with(ways: u8) -> Peer {
    Peer {
        links: (1 << ways) - 1,
        number: 0,
        daemon_has_bulk: 0,
        tried: 0,
        guessed: 0,
        ways: [WAY; LINKS_MAX],
    }
}

/// Returns what the program at a link does with a question or an answer, and the frame
/// afterwards.
fn receive(program: &mut Program, from: Mac, payload: &[u8]) -> (u32, Vec<u8>) {
    let ether_type = QUESTION_TYPE.to_be_bytes();
    let frame = [&OWN_ADDRESS, &from, &ether_type[..], payload].concat();
    run(program, "link_ingress", &frame)
}

/// Returns what a program does with a frame, and the frame afterwards.
fn run(program: &mut Program, name: &str, frame: &[u8]) -> (u32, Vec<u8>) {
    run_in(program, name, frame, None)
}

/// The same with a context, a `struct __sk_buff`.
fn run_in(
    program: &mut Program,
    name: &str,
    frame: &[u8],
    context_in: Option<&mut [u8]>,
) -> (u32, Vec<u8>) {
    let mut out = vec![0; frame.len()];
    let mut programs = program._object.progs_mut();
    let found = programs.find(|program| program.name() == name);
    let input = ProgramInput {
        context_in,
        data_in: Some(frame),
        data_out: Some(&mut out),
        ..ProgramInput::default()
    };
    let output = found.unwrap().test_run(input).expect("the kernel runs it");
    (output.return_value, out)
}

#[test]
#[ignore = "needs root, bpf"]
fn link_ingress__question_of_a_peer__is_answered_with_a_tag_by_its_key() {
    let mut program = program();
    let question = Question::new(3, 4, &THEIR_KEY);
    let (verdict, frame) = receive(&mut program, ALIAS, question.as_bytes());
    assert_eq!(verdict, REDIRECTED);
    assert_eq!(frame[..12], *WAY.as_bytes());
    // kind, times and bytes of the question, bytes received
    assert_eq!(
        (frame[14], &frame[22..38]),
        (2, &question.as_bytes()[8..24])
    );
    assert_eq!(frame[38..46], [0; 8]);
    let tag = super::super::intf::tag(&frame[14..54], &THEIR_KEY);
    assert_eq!(frame[54..], tag);
}

#[test]
#[ignore = "needs root, bpf"]
fn link_ingress__question_that_no_peer_made__is_dropped() {
    let mut program = program();
    let question = Question::new(3, 4, &THEIR_KEY);
    for bit in 0..question.as_bytes().len() * 8 {
        let mut forged = question.as_bytes().to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        let (verdict, _) = receive(&mut program, ALIAS, &forged);
        assert_eq!(verdict, DROPPED, "bit {bit}");
    }
    for key in [OWN_KEY, QuestionKey::default()] {
        let forged = Question::new(3, 4, &key);
        let (verdict, _) = receive(&mut program, ALIAS, forged.as_bytes());
        assert_eq!(verdict, DROPPED);
    }
    let short = &question.as_bytes()[..40];
    assert_eq!(receive(&mut program, ALIAS, short).0, DROPPED);
    let unknown = [2, 0, 0, 0, 0, 10];
    let (verdict, frame) = receive(&mut program, unknown, question.as_bytes());
    assert_eq!(verdict, PASSED_ON, "it is a frame of the link");
    assert_eq!(frame[14..], *question.as_bytes());
}

#[test]
#[ignore = "needs root, bpf"]
fn link_ingress__answer__is_kept_if_its_tag_is_by_the_own_key() {
    let mut program = program();
    for (key, is_kept) in [
        (THEIR_KEY, false),
        (QuestionKey::default(), false),
        (OWN_KEY, true),
    ] {
        let mut answer = Question::new(3, 4, &key).as_bytes()[..40].to_vec();
        answer[0] = 2;
        answer.extend(super::super::intf::tag(&answer, &key));
        assert_eq!(receive(&mut program, ALIAS, &answer).0, DROPPED);
        let kept = program.answer_of(0, 0);
        assert_eq!(kept.is_some(), is_kept);
        assert_eq!(kept.map_or(3, |kept| kept.asked_at_ns), 3);
    }
    // Not even by a link that is not in use yet, whose key is 0.
    program.set_link(0, &Link::default()).unwrap();
    let mut answer = Question::new(5, 6, &QuestionKey::default()).as_bytes()[..40].to_vec();
    answer[0] = 2;
    answer.extend(super::super::intf::tag(&answer, &QuestionKey::default()));
    receive(&mut program, ALIAS, &answer);
    assert_eq!(
        program.answer_of(0, 0).map(|kept| kept.asked_at_ns),
        Some(3)
    );
}

/// Time of a byte at 1 Gb/s, in 1/1024 ns.
const GIGABIT_BYTE_TIME: u64 = 8 << 10;

/// Gives the peer of [`program`] this number of ways over links of this byte time. Returns it.
fn add_ways(program: &Program, count: u8, byte_time: u64) -> Peer {
    let mut peer = peer_with(count);
    for number in 0..count {
        peer.ways[usize::from(number)].from[5] = number;
        let link = Link {
            index: 1,
            byte_time,
            key: OWN_KEY,
            ..Link::default()
        };
        program.set_link(number, &link).unwrap();
    }
    program.set_peer([2, 0, 0, 0, 0, 1], Some(&peer)).unwrap();
    peer
}

/// Sends a frame of 54 bytes to the peer as a burst of `segments`. Returns its link.
fn send(program: &mut Program, segments: u32) -> u8 {
    let (own, to) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let frame = [&to[..], &own, &[8, 0], &[0; 40]].concat();
    // `struct __sk_buff` of linux/bpf.h, with `gso_segs`.
    let mut context = [0; 192];
    context[164..168].copy_from_slice(&segments.to_ne_bytes());
    let (verdict, frame) = run_in(program, "kumi_egress", &frame, Some(&mut context));
    assert_eq!(verdict, REDIRECTED);
    frame[11]
}

#[test]
#[ignore = "needs root, bpf"]
fn kumi_egress__single_frames__do_not_move_the_turn_of_the_bursts() {
    let mut program = program();
    add_ways(&program, 3, 0);
    let links = [44, 44, 1, 44, 1, 44].map(|segments| send(&mut program, segments));
    assert_eq!(links, [0, 1, 0, 2, 0, 0]);
}

#[test]
#[ignore = "needs root, bpf"]
fn kumi_egress__short_frame__counts_as_padded() {
    let mut program = program();
    add_ways(&program, 1, 0);
    send(&mut program, 1);
    // 60 bytes, check sequence, preamble and gap
    assert_eq!(program.count_of(0, 0).sent_bytes, 84);
}

#[test]
#[ignore = "needs root, bpf"]
fn clear_load__link_that_is_behind__is_free() {
    let mut program = program();
    add_ways(&program, 2, GIGABIT_BYTE_TIME * 1_000_000);
    assert_eq!([(); 2].map(|()| send(&mut program, 1)), [0, 1]);
    program.clear_load(1).unwrap();
    assert_eq!(send(&mut program, 1), 1);
}

#[test]
#[ignore = "needs root, bpf"]
fn kumi_egress__link_that_is_tried__carries_all_frames_while_the_daemon_lives() {
    let mut program = program();
    let mut peer = add_ways(&program, 2, GIGABIT_BYTE_TIME);
    peer.tried = 0b10;
    program.set_peer([2, 0, 0, 0, 0, 1], Some(&peer)).unwrap();
    // Returns the links of bursts after the daemon was last alive.
    let mut links_after = |silence_ns, bursts| {
        let device = Device {
            alive_at_ns: super::super::kernel_ns() - silence_ns,
            ..OWN_DEVICE
        };
        program.set_device(&device).unwrap();
        let links = (0..bursts).map(|_| send(&mut program, 44));
        links.collect::<Vec<_>>()
    };
    assert_eq!(links_after(0, 4), [1; 4]);
    // The link that was tried is behind by four bursts.
    let links = links_after(1_000_000_000, 12);
    assert!([0, 1].iter().all(|link| links.contains(link)), "{links:?}");
}

#[test]
#[ignore = "needs root, bpf"]
fn link_ingress__question_on_a_path_without_addresses__has_no_answer() {
    let mut program = program();
    let peer = Peer {
        links: 0,
        number: 0,
        daemon_has_bulk: 0,
        tried: 0,
        guessed: 0,
        ways: [Way::default(); LINKS_MAX],
    };
    program.set_peer([2, 0, 0, 0, 0, 1], Some(&peer)).unwrap();
    let question = Question::new(3, 4, &THEIR_KEY);
    let (verdict, _) = receive(&mut program, ALIAS, question.as_bytes());
    assert_eq!(verdict, DROPPED);
}

#[test]
#[ignore = "needs root, bpf"]
fn kumi_egress__path_with_an_overdue_answer__is_left() {
    let mut program = program();
    add_ways(&program, 2, GIGABIT_BYTE_TIME);
    // Returns the link of a frame after questions of these times.
    let link_after = |program: &mut Program, asked_at_ns: [u64; 2]| {
        std::thread::sleep(std::time::Duration::from_millis(1)); // the frame before has left
        for (number, asked_at_ns) in (0..).zip(asked_at_ns) {
            let path = Path {
                byte_time: GIGABIT_BYTE_TIME,
                latency_ns: 1000,
                asked_at_ns,
                ..Path::default()
            };
            program.set_path(0, number, &path).unwrap();
        }
        send(program, 1)
    };
    let ago = |ms: u64| super::super::kernel_ns() - ms * 1_000_000;
    let link = link_after(&mut program, [0, 0]);
    assert_eq!(link, 0, "the first of equal ones");
    assert_eq!(link_after(&mut program, [ago(3), ago(0)]), 1);
    let link = link_after(&mut program, [ago(7), ago(9)]);
    assert_eq!(link, 0, "the peer is late");
    assert_eq!(link_after(&mut program, [ago(200), 0]), 0, "no daemon asks");
    let asked_at_ns = ago(3);
    let mut answer = Question::new(asked_at_ns, 0, &OWN_KEY).as_bytes()[..40].to_vec();
    answer[0] = 2;
    answer.extend(super::super::intf::tag(&answer, &OWN_KEY));
    receive(&mut program, ALIAS, &answer);
    let link = link_after(&mut program, [asked_at_ns, ago(0)]);
    assert_eq!(link, 0, "the daemon has not read the answer");
}

#[test]
#[ignore = "needs root, bpf"]
fn kumi_egress__path_that_was_idle_after_its_last_answer__is_busy_from_the_frame_on() {
    let mut program = program();
    add_ways(&program, 2, GIGABIT_BYTE_TIME);
    for number in 0..2 {
        let path = Path {
            byte_time: 100_000 * GIGABIT_BYTE_TIME, // 67 ms for the frame
            left_at_ns: super::super::kernel_ns() - 1_000_000_000,
            ..Path::default()
        };
        program.set_path(0, number, &path).unwrap();
    }
    let links = [(); 4].map(|()| send(&mut program, 1));
    assert_eq!(links, [0, 1, 0, 1]);
}

#[test]
#[ignore = "needs root, bpf"]
fn kumi_egress__repair__takes_another_path_than_the_bytes_that_it_repairs() {
    // A thread of its own, since it leaves its network namespace.
    let sent = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace");
        for name in ["kumi0", "link0", "link1"] {
            let end = format!("{name}-end");
            ip(&format!("link add {name} type veth peer name {end}"));
            for name in [name, &end] {
                // IPv6 would send packets by itself.
                ip(&format!("link set {name} up addrgenmode none"));
            }
        }
        ip("link set kumi0 address 02:00:00:00:00:02");
        ip("address add 10.0.0.2/24 dev kumi0");
        ip("neighbour add 10.0.0.1 lladdr 02:00:00:00:00:01 dev kumi0");
        let program = program();
        let index = |name| nix::net::if_::if_nametoindex(name).unwrap();
        add_ways(&program, 2, 0);
        for (number, name) in [(0, "link0"), (1, "link1")] {
            let link = Link {
                index: index(name),
                ..Link::default()
            };
            program.set_link(number, &link).unwrap();
        }
        program.attach_device("kumi0", index("kumi0")).unwrap();
        // The first SYN has no answer, and is repeated after 1 s (RFC 6298).
        let to = std::net::SocketAddr::from(([10, 0, 0, 1], 9));
        let limit = std::time::Duration::from_millis(1500);
        std::net::TcpStream::connect_timeout(&to, limit).expect_err("nobody is there");
        ["link0", "link1"].map(|name| {
            let shown = ip(&format!("-json -statistics link show {name}"));
            let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
            shown[0]["stats64"]["tx"]["packets"].as_u64()
        })
    });
    assert_eq!(sent.join().unwrap(), [Some(1), Some(1)]);
}

/// Runs `ip` and returns its output.
fn ip(line: &str) -> Vec<u8> {
    let mut command = std::process::Command::new("ip");
    let output = command.args(line.split(' ')).output().expect("ip runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {line}: {error}");
    output.stdout
}

/// Returns the maps of programs whose daemon was killed.
fn left_by(program: &Program) -> Inherited {
    let maps = program._object.maps();
    let maps = maps.map(|map| MapHandle::try_from(&map).unwrap());
    Inherited {
        maps: maps.collect(),
    }
}

#[test]
#[ignore = "needs root, bpf"]
fn load__maps_of_another_layout_with_the_same_sizes__are_refused() {
    let before = program();
    assert!(Program::load(OWN_DEVICE, Some(&left_by(&before))).is_ok());
    let other = Device {
        layout: LAYOUT ^ 1,
        ..OWN_DEVICE
    };
    before.set_device(&other).unwrap();
    let refused = Program::load(OWN_DEVICE, Some(&left_by(&before)));
    assert!(matches!(refused, Err(DatapathError::OtherVersion)));
}
