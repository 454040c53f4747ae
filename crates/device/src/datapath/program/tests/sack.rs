//! Selective acknowledgements of bytes that overtook others (`bpf/multilink/sack.h`).

use super::*;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// First missing byte, and bytes of a burst. The numbers wrap within it.
const MISSING: u32 = u32::MAX - 999;
const BURST_BYTES: u32 = 4 * SEGMENT_BYTES;
/// Bytes of a full segment with timestamps at an MTU of 1500.
const SEGMENT_BYTES: u32 = 1448;
/// Value of the map `streams`: the times and the count, then 64 bursts of 32 bytes.
const STREAM_BYTES: usize = 24 + 64 * 32;
const HIDDEN: u8 = 253;
const SHOWN: u8 = 5;

/// Bursts of a stream in the order in which they were sent, each by its link.
struct Sent<'a> {
    links: &'a [u32],
    /// Estimated arrival of each.
    due_at_ns: u64,
}

impl<'a> Sent<'a> {
    /// Bursts that are due in a minute.
    fn over(links: &'a [u32]) -> Self {
        Self {
            links,
            due_at_ns: super::super::super::kernel_ns() + 60_000_000_000,
        }
    }

    /// Returns the value of the map.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        bytes.extend((self.links.len() as u64).to_ne_bytes());
        for (&link, number) in self.links.iter().zip(0..) {
            bytes.extend(1_u64.to_ne_bytes());
            bytes.extend(self.due_at_ns.to_ne_bytes());
            bytes.extend(place(number).to_ne_bytes());
            bytes.extend(place(number + 1).to_ne_bytes());
            bytes.extend(link.to_ne_bytes());
            bytes.extend([0; 4]);
        }
        bytes.resize(STREAM_BYTES, 0);
        bytes
    }
}

/// Returns the sequence number of the first byte of burst `number`.
fn place(number: u32) -> u32 {
    MISSING.wrapping_add(number * BURST_BYTES)
}

/// Returns the sum of 16-bit words as in the Internet checksum (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns a frame of the peer that acknowledges what is before [`MISSING`], and `ranges`.
fn acknowledgement(from: SocketAddr, to: SocketAddr, ranges: &[(u32, u32)]) -> Vec<u8> {
    let options = 12 + 4 + 8 * ranges.len();
    let mut tcp = Vec::new();
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend(1_u32.to_be_bytes());
    tcp.extend(MISSING.to_be_bytes());
    let words = (20 + options) / 4;
    tcp.extend([(words << 4) as u8, 0x10, 1, 0, 0, 0, 0, 0]);
    tcp.extend([1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9]);
    tcp.extend([1, 1, SHOWN, (2 + 8 * ranges.len()) as u8]);
    for (first, end) in ranges {
        tcp.extend(first.to_be_bytes());
        tcp.extend(end.to_be_bytes());
    }
    let length = tcp.len() as u8;
    let (ethernet, ip) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = [0x45, 0, 0, 20 + length, 0, 0, 0, 0, 64, 6, 0, 0];
            ([8, 0], [&ip[..], &from.octets(), &to.octets()].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = [0x60, 0, 0, 0, 0, length, 6, 64];
            let addresses = [from.octets(), to.octets()].concat();
            ([0x86, 0xdd], [&ip[..], &addresses].concat())
        }
        _ => unreachable!("both ends have the same family"),
    };
    let check = !sum(&with_addresses(&ip, &tcp));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    [&OWN_ADDRESS[..], &ALIAS, &ethernet, &ip, &tcp].concat()
}

/// Returns what the checksum of TCP covers: the addresses, protocol and length, and the segment.
fn with_addresses(ip: &[u8], tcp: &[u8]) -> Vec<u8> {
    let addresses = if ip[0] >> 4 == 4 {
        &ip[12..20]
    } else {
        &ip[8..40]
    };
    [addresses, &[0, 6, 0, tcp.len() as u8], tcp].concat()
}

/// Passes an acknowledgement of `ranges` to the program at a link, for a connection that sent these
/// bursts. Returns the kind of its option afterwards.
fn kind_after(sent: &Sent<'_>, ranges: &[(u32, u32)]) -> u8 {
    let kinds = ["127.0.0.1:0", "[::1]:0"].map(|host| kind_at(host, sent, ranges));
    assert_eq!(kinds[0], kinds[1], "IPv4 and IPv6 differ");
    kinds[0]
}

/// The same at one local address.
fn kind_at(host: &'static str, sent: &Sent<'_>, ranges: &[(u32, u32)]) -> u8 {
    let bytes = sent.to_bytes();
    let ranges = ranges.to_vec();
    // A thread of its own, since it leaves its network namespace.
    let kind = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace");
        ip("link set lo mtu 1500 up");
        let listener = TcpListener::bind(host).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut program = program();
        let mut maps = program._object.maps();
        let streams = maps.find(|map| map.name() == "streams").unwrap();
        let key = socket.as_raw_fd().to_ne_bytes();
        streams.update(&key, &bytes, MapFlags::ANY).unwrap();
        drop(maps);
        let (from, to) = (socket.peer_addr().unwrap(), socket.local_addr().unwrap());
        let frame = acknowledgement(from, to, &ranges);
        let (verdict, frame) = run(&mut program, "link_ingress", &frame);
        assert_eq!(verdict, REDIRECTED);
        let (ip, tcp) = frame[14..].split_at(if from.is_ipv4() { 20 } else { 40 });
        let covered = with_addresses(ip, tcp);
        assert_eq!(sum(&covered), 0xffff, "the checksum fits the frame");
        tcp[34]
    });
    kind.join().unwrap()
}

#[test]
#[ignore = "needs root, bpf"]
fn link_ingress__bytes_that_overtook_others__are_hidden_until_those_are_overdue() {
    let overtaken = [(place(1), place(1).wrapping_add(SEGMENT_BYTES))];
    let mut sent = Sent::over(&[0, 1, 0, 1]);
    assert_eq!(kind_after(&sent, &overtaken), HIDDEN);
    sent.due_at_ns = 1;
    assert_eq!(kind_after(&sent, &overtaken), SHOWN);
}

#[test]
#[ignore = "needs root, bpf"]
fn link_ingress__bytes_lost_on_a_link_that_goes_on__are_shown_as_lost() {
    let sent = Sent::over(&[0, 1, 0, 1]);
    let two = MISSING.wrapping_add(SEGMENT_BYTES);
    let few = [(two, two.wrapping_add(2 * SEGMENT_BYTES))];
    assert_eq!(kind_after(&sent, &few), HIDDEN);
    let many = [(two, two.wrapping_add(3 * SEGMENT_BYTES))];
    assert_eq!(kind_after(&sent, &many), SHOWN, "of the burst itself");
    let next = [(place(1), place(2).wrapping_add(3 * SEGMENT_BYTES))];
    assert_eq!(kind_after(&sent, &next), SHOWN, "of the link's next burst");
}

#[test]
#[ignore = "needs root, bpf"]
fn link_ingress__last_acknowledgement_of_a_message__is_hidden_unless_bytes_of_the_link_arrived() {
    let over_two = Sent::over(&[0, 1]);
    assert_eq!(kind_after(&over_two, &[(place(1), place(2))]), HIDDEN);
    let over_one = Sent::over(&[0, 0]);
    let next = [(place(1), place(1).wrapping_add(SEGMENT_BYTES))];
    assert_eq!(kind_after(&over_one, &next), SHOWN);
    let over_two = Sent::over(&[0, 1, 0]);
    let last = [(place(2), place(3)), (place(1), place(2))];
    assert_eq!(kind_after(&over_two, &last), SHOWN);
}

#[test]
#[ignore = "needs root, bpf"]
fn link_ingress__report_of_a_duplicate__is_shown() {
    let sent = Sent::over(&[0, 1, 0, 1]);
    let overtaken = (place(1), place(1).wrapping_add(SEGMENT_BYTES));
    let before = (MISSING.wrapping_sub(SEGMENT_BYTES), MISSING);
    assert_eq!(kind_after(&sent, &[before, overtaken]), SHOWN);
    let within = (place(1), place(1).wrapping_add(9));
    assert_eq!(kind_after(&sent, &[within, overtaken]), SHOWN);
}
