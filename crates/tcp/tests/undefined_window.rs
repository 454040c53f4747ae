//! Simulates a kernel that skips `ssthresh`, which leaves an undefined threshold
//! (`bpf/tcp/sane.h`).

use kumi_tcp::{Connection, Settings, connections, install, remove, totals};
use libbpf_rs::{Iter, ObjectBuilder};
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Compiled `bpf/tcp/disturb.bpf.c`.
static DISTURB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/disturb.bpf.o"));
/// The threshold that it sets.
const WILD: u32 = 0x0220_34e5;

/// Removes the programs when the test ends, even by a panic.
struct Programs;

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = remove();
    }
}

fn disturb() {
    let open = ObjectBuilder::default().open_memory(DISTURB).unwrap();
    let object = open.load().unwrap();
    let program = object.progs_mut().next().unwrap();
    let link = program.attach().unwrap();
    let mut output = Vec::new();
    let mut walk = Iter::new(&link).unwrap();
    walk.read_to_end(&mut output).unwrap();
}

/// Returns the connection to `port`.
fn connection(port: u16) -> Connection {
    let all = connections().unwrap();
    let connection = all
        .into_iter()
        .find(|connection| connection.remote.port() == port);
    connection.expect("the connection lives")
}

#[test]
#[ignore = "needs root, bpf"]
fn threshold__undefined_value__is_corrected_during_the_next_exchange() {
    let _ = remove();
    install(&Settings::default()).unwrap();
    let _programs = Programs;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
    setsockopt(&sender, TcpCongestion, &"kumi".into()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let mut exchange = || {
        let mut received = [0; 100_000];
        sender.write_all(&[1; 100_000]).unwrap();
        receiver.read_exact(&mut received).unwrap();
    };
    exchange();
    let initial = connection(port);
    assert_eq!(initial.ssthresh, None, "nothing was lost: {initial:?}");
    disturb();
    assert_eq!(connection(port).ssthresh, Some(WILD), "disturbed");
    exchange();
    assert_eq!(connection(port).ssthresh, None, "as the programs left it");
    assert_eq!(totals().unwrap().mended, 1);
}
