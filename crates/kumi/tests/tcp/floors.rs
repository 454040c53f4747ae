//! Tests of the floor of the retransmission timeout where no daemon runs.

use super::{Control, Program, wan};

/// Python server that prints the floor of an accepted connection, in microseconds.
const SERVER: &str = "import socket
s=socket.create_server(('0.0.0.0',7120))
while True:
    c,_=s.accept();print(c.getsockopt(6,45),flush=True)";

/// Python client that prints the floors of a connection to its own host, and of two to the server:
/// one that waits in `connect`, and one that does not. The last number is the system's floor.
const CLIENT: &str = "import select,socket
near=socket.create_server(('0.0.0.0',7121));a=socket.create_connection(('h1',7121))
b=socket.create_connection(('h2',7120))
c=socket.socket();c.setblocking(False);c.connect_ex((socket.gethostbyname('h2'),7120))
select.select([],[c],[]);assert c.getsockopt(socket.SOL_SOCKET,socket.SO_ERROR)==0
print(*[s.getsockopt(6,45) for s in (a,b,c)],open('/proc/sys/net/ipv4/tcp_rto_min_us').read().strip(),flush=True)";

#[test]
#[ignore = "needs root, netns"]
fn connection__with_a_long_round_trip_and_no_daemon__keeps_the_systems_floor() {
    let _none = Control::none();
    let cluster = wan("floors");
    let mut server = Program::start(&cluster, "h2", SERVER);
    std::thread::sleep(std::time::Duration::from_millis(400));
    let line = Program::start(&cluster, "h1", CLIENT).line();
    let floors: Vec<u32> = line.split(' ').map(|us| us.parse().unwrap()).collect();
    let [near, far, far_later, system] = floors[..] else {
        panic!("{line}");
    };
    assert!(near < 20_000, "{line}");
    assert_eq!((far, far_later), (system, system));
    for _ in 0..2 {
        assert_eq!(server.line(), system.to_string());
    }
}
