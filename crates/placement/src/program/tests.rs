use super::*;
use crate::owners::Owners;
use kumi_wind::kernel::{KERNEL_REGION, Open};
use kumi_wind::protocol::diff;
use kumi_wind::protocol::wire::{Authenticator, Flags, Header, Kind, Request, emit_request};
use kumi_wind::{Operation, Place, Seal};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::Barrier;

const KEY: [u8; 16] = *b"0123456789abcdef";
const INDEX: u32 = 0x1234_5678;
const PORT: u16 = 24_890;
const PEER: ([u8; 4], u16) = ([10, 9, 0, 1], 5_000);

/// `TC_ACT_REDIRECT` of linux/pkt_cls.h: the program answers.
const REDIRECT: u32 = 7;

/// Number of programs that end while requests are in execution. With the regions removed before the
/// windows, 18 to 20 of 100 refuse one.
const ENDS: usize = 50;

/// Requests of a super-packet, and the runs of bytes that each of them changes.
const SEGMENTS: u64 = 2;
const RUNS: u32 = 195;

/// More packets than arrive until a program has ended.
const PACKETS: usize = 2_000;

/// Keeps the thread on a processor: requests are in execution while another one ends the program.
fn run_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor).unwrap();
    // With one processor, nothing is in execution at the same time.
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}

/// Returns the program a second time, with the maps of the first.
fn load_again(first: &Program) -> Object {
    let mut open = ObjectBuilder::default().open_memory(OBJECT).unwrap();
    for mut map in open.maps_mut() {
        let shared = match map.name().to_str().unwrap() {
            "sessions" => &first.sessions,
            "regions" => &first.regions,
            "memories" => &first.memories,
            "owners" => &first.owners,
            _ => continue,
        };
        map.reuse_fd(shared.as_fd()).unwrap();
    }
    open.load().unwrap()
}

/// Returns a super-packet in which the peer writes to region 0, and its context.
fn write_requests(first: u64) -> (Vec<u8>, [u8; SK_BUFF_BYTES]) {
    let mut payload = Vec::new();
    let tags = Authenticator::new(&[1; 32], Seal::Authenticate);
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        diff::push_run(2, &[1], &mut runs);
    }
    for number in first..first + SEGMENTS {
        let request = Request {
            number,
            place: Place {
                region: KERNEL_REGION,
                key: KEY,
                offset: 0,
            },
            operation: Operation::PutDiff(runs.clone()),
        };
        let header = Header {
            kind: Kind::Request,
            flags: Flags::default(),
            receiver: INDEX,
            number,
        };
        let mut segment = Vec::new();
        emit_request(header, &request, &tags, &mut segment);
        payload.extend(segment);
    }
    let segment_bytes = payload.len() as u32 / SEGMENTS as u32;
    let udp_bytes = 8 + payload.len() as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((20 + udp_bytes).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(PEER.0);
    frame.extend([10, 9, 0, 2]);
    frame.extend(PEER.1.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(udp_bytes.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    let mut context = [0; SK_BUFF_BYTES];
    context[GSO_SEGMENTS_AT..][..4].copy_from_slice(&(SEGMENTS as u32).to_ne_bytes());
    context[GSO_BYTES_AT..][..4].copy_from_slice(&segment_bytes.to_ne_bytes());
    (frame, context)
}

/// Returns whether the response in the frame refuses a write.
fn has_refusal(frame: &[u8]) -> bool {
    const ANSWERS_AT: usize = 14 + 20 + 8 + 16;
    const ANSWER_BYTES: usize = 12;
    let tag_at = frame.len() - 8;
    let answers = frame[ANSWERS_AT..tag_at].chunks(ANSWER_BYTES);
    answers.into_iter().any(|answer| answer[1] != 0)
}

#[test]
#[ignore = "needs root, bpf"]
fn owner__that_ends_while_requests_arrive__refuses_none_of_them() {
    let program = Program::load().expect("the kernel takes the program");
    let again = load_again(&program);
    let mut owners = Owners::new(program, 1 << 20);
    let key = |side| {
        let tags = Authenticator::new(&[side; 32], Seal::Authenticate);
        tags.key().unwrap()
    };
    let open = Open {
        index: INDEX,
        port: PORT,
        peer: PEER.into(),
        peer_index: 7,
        tags: Some((key(1), key(2))),
    };
    let numbers = (0..).step_by(SEGMENTS as usize).take(PACKETS);
    let packets: Vec<_> = numbers.map(write_requests).collect();
    run_on(0);
    let is_ready = Barrier::new(2);
    for end in 0..ENDS {
        let (owner, _) = owners.add().unwrap();
        let (region, _) = owners.register(owner, 4096, KEY).unwrap();
        owners.open(owner, &open).unwrap();
        assert_eq!(region, 0, "the frames name it");
        // Returns the number of the first packet that was refused, or found no session.
        let requests = || {
            run_on(1);
            let program = again.progs_mut().next().unwrap();
            let mut out = [0; 4096];
            for (number, (frame, context)) in packets.iter().enumerate() {
                let mut context = *context;
                let input = ProgramInput {
                    context_in: Some(&mut context),
                    data_in: Some(frame),
                    data_out: Some(&mut out),
                    ..ProgramInput::default()
                };
                let output = program.test_run(input).unwrap();
                if number == 0 {
                    is_ready.wait();
                }
                if output.return_value != REDIRECT {
                    return (number, false);
                }
                if has_refusal(output.data.unwrap()) {
                    return (number, true);
                }
            }
            panic!("the session has not ended");
        };
        let (number, is_refused) = std::thread::scope(|scope| {
            let requests = scope.spawn(requests);
            is_ready.wait();
            owners.remove(owner);
            requests.join().unwrap()
        });
        assert!(number > 0, "the session was not open");
        assert!(!is_refused, "end {end}, packet {number}");
    }
}
