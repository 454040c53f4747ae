//! Echoes over plain UDP and TCP sockets, polled or blocking: the bare path beside Wind's figures.

use clap::ValueEnum;
use kumi_command::outln;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const COUNT_MAX: usize = 20_000;
const COUNT_MIN: usize = 20;

/// Longest message over UDP, in bytes.
const DATAGRAM_BYTES_MAX: usize = 65_000;

/// Time after which an answer over UDP is taken as lost.
const LOST: Duration = Duration::from_millis(200);

/// Transport of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Datagrams, without repair.
    Udp,
    /// One connection, with `TCP_NODELAY`.
    Tcp,
}

/// Arguments of the end that answers.
#[derive(Debug, clap::Args)]
pub struct EchoArgs {
    /// Transport of the messages.
    #[arg(value_enum)]
    transport: Transport,
    /// Port to listen on.
    port: u16,
    /// Polls instead of sleeping.
    #[arg(long)]
    spin: bool,
}

/// Arguments of the end that measures.
#[derive(Debug, clap::Args)]
pub struct ExchangeArgs {
    /// Transport of the messages.
    #[arg(value_enum)]
    transport: Transport,
    /// The other end's address.
    address: IpAddr,
    /// The other end's port.
    port: u16,
    /// Polls instead of sleeping.
    #[arg(long)]
    spin: bool,
    /// Time for each size, in milliseconds.
    time_ms: u64,
    /// Message sizes, in bytes, at least 8.
    #[arg(required = true)]
    sizes_bytes: Vec<usize>,
}

/// Reads until `message` is full.
fn fill(stream: &mut TcpStream, message: &mut [u8]) -> std::io::Result<()> {
    let mut length = 0;
    while length < message.len() {
        match stream.read(&mut message[length..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn put(stream: &mut TcpStream, mut message: &[u8]) -> std::io::Result<()> {
    while !message.is_empty() {
        match stream.write(message) {
            Ok(count) => message = &message[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns messages. Over TCP, the first eight bytes of a message are its length, and the end of
/// the connection ends the process.
pub fn echo(args: &EchoArgs) -> anyhow::Result<()> {
    match args.transport {
        Transport::Udp => echo_udp(args),
        Transport::Tcp => echo_tcp(args),
    }
}

fn echo_udp(args: &EchoArgs) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", args.port))?;
    socket.set_nonblocking(args.spin)?;
    outln!("listening");
    let mut message = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        match socket.recv_from(&mut message) {
            Ok((bytes, from)) => drop(socket.send_to(&message[..bytes], from)?),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
}

fn echo_tcp(args: &EchoArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", args.port))?;
    outln!("listening");
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(args.spin)?;
    let mut message = vec![0; 8];
    while fill(&mut stream, &mut message[..8]).is_ok() {
        let (head, _) = message.split_first_chunk().expect("eight bytes");
        let bytes = u64::from_be_bytes(*head).clamp(8, 1 << 26) as usize;
        message.resize(bytes, 0);
        fill(&mut stream, &mut message[8..])?;
        put(&mut stream, &message)?;
    }
    Ok(())
}

/// Exchanges one message. Returns false if it is lost.
type Once = Box<dyn FnMut(&mut [u8]) -> anyhow::Result<bool>>;

/// Prints the times of the echo, one line per size.
pub fn exchange(args: &ExchangeArgs) -> anyhow::Result<()> {
    let target = (args.address, args.port);
    let mut once: Once = match args.transport {
        Transport::Udp => {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            socket.connect(target)?;
            socket.set_nonblocking(args.spin)?;
            socket.set_read_timeout(Some(LOST))?;
            Box::new(move |message| datagram(&socket, message))
        }
        Transport::Tcp => {
            let mut stream = super::connect(target.into(), "raw-echo tcp")?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(args.spin)?;
            Box::new(move |message| {
                put(&mut stream, message)?;
                fill(&mut stream, message)?;
                Ok(true)
            })
        }
    };
    for size in &args.sizes_bytes {
        let bytes = (*size).max(8);
        if args.transport == Transport::Udp && bytes > DATAGRAM_BYTES_MAX {
            continue;
        }
        let mut message = vec![0x5a; bytes];
        message[..8].copy_from_slice(&(bytes as u64).to_be_bytes());
        let mut times = Vec::new();
        let warm = Duration::from_millis(args.time_ms / 4);
        let began = Instant::now();
        let limit = warm + Duration::from_millis(args.time_ms);
        while (began.elapsed() < limit || times.len() < COUNT_MIN) && times.len() < COUNT_MAX {
            let sent = Instant::now();
            // A lost datagram has no time.
            if once(&mut message)? && began.elapsed() > warm {
                times.push(sent.elapsed());
            }
        }
        times.sort_unstable();
        let micros = |at: usize| times[at].as_secs_f64() * 1e6;
        let row = json!({
            "size_bytes": size,
            "echo_median_us": micros(times.len() / 2),
            "echo_p99_us": micros(times.len() * 99 / 100),
        });
        outln!("{row}");
    }
    Ok(())
}

/// Exchanges one datagram. Returns false if it is lost.
fn datagram(socket: &UdpSocket, message: &mut [u8]) -> anyhow::Result<bool> {
    socket.send(message)?;
    let sent = Instant::now();
    loop {
        match socket.recv(message) {
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if sent.elapsed() > LOST {
                    return Ok(false);
                }
                std::hint::spin_loop();
            }
            Err(error) => return Err(error.into()),
        }
    }
}
