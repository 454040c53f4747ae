//! The part of all ranks except rank 0.

use super::{
    CARD_LIMIT, CARD_MESSAGE_BYTES, CARDS, Environment, FIRST_BYTES, MAGIC, PAUSE, REFUSED,
};
use crate::group::card::CARD_BYTES;
use crate::group::secret::{HANDSHAKE_BYTES, Secret};
use snow::TransportState;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Maximum number of handshakes. Rank 0 may close a connection unanswered because of a crowd at its
/// port.
const ATTEMPTS: usize = 3;

/// Time for which a rank waits for rank 0's reason, after its own patience.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);

pub fn hand_in(
    environment: &Environment,
    secret: &Secret,
    card: &[u8; CARD_BYTES],
    deadline: Instant,
) -> io::Result<Vec<Vec<u8>>> {
    let Environment {
        address,
        ranks,
        rank,
        ..
    } = environment;
    let mut attempts = 0;
    let (mut stream, mut transport) = loop {
        attempts += 1;
        let mut stream = reach(address, deadline)?;
        match shake_hands(&mut stream, secret, deadline) {
            Ok(transport) => break (stream, transport),
            Err(_) if attempts < ATTEMPTS && Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(error) => {
                let origin = secret.origin();
                let text = format!(
                    "rank 0 at {address} refuses this rank ({error}): it has another job secret (here: {origin}; \
                     KUMI_JOB_SECRET sets it), or another program is at that port"
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
        }
    };
    let exchange_error = |error: io::Error| {
        let text =
            format!("rank 0 at {address} has not sent the addresses of the other ranks: {error}");
        io::Error::new(error.kind(), text)
    };
    let mut message = Vec::with_capacity(CARD_MESSAGE_BYTES);
    message.extend_from_slice(&(*rank as u32).to_le_bytes());
    message.extend_from_slice(&(*ranks as u32).to_le_bytes());
    message.extend_from_slice(card);
    let mut sealed = [0; CARD_MESSAGE_BYTES];
    transport
        .write_message(&message, &mut sealed)
        .map_err(|error| exchange_error(noise_error(error)))?;
    stream.write_all(&sealed).map_err(exchange_error)?;
    // Rank 0 has the same patience, and names a rank that is missing when it ends.
    let deadline = deadline + ANSWER_MARGIN;
    let mut cards = Vec::with_capacity(ranks * CARD_BYTES);
    while cards.len() < ranks * CARD_BYTES {
        let reply = open(&mut stream, &mut transport, deadline).map_err(exchange_error)?;
        match reply.split_first() {
            Some((&CARDS, body)) if !body.is_empty() && body.len() % CARD_BYTES == 0 => {
                cards.extend_from_slice(body);
            }
            Some((&REFUSED, reason)) => {
                let reason = String::from_utf8_lossy(reason);
                let text = format!("rank 0 at {address} refuses this rank: {reason}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            _ => return Err(exchange_error(io::ErrorKind::InvalidData.into())),
        }
    }
    cards.truncate(ranks * CARD_BYTES);
    Ok(cards.chunks(CARD_BYTES).map(<[u8]>::to_vec).collect())
}

fn noise_error(error: snow::Error) -> io::Error {
    io::Error::other(error)
}

/// Connects to rank 0, which may not listen yet.
fn reach(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        let result = address.to_socket_addrs().and_then(|addresses| {
            let mut error = io::ErrorKind::AddrNotAvailable.into();
            for address in addresses {
                match TcpStream::connect_timeout(&address, CARD_LIMIT) {
                    Ok(stream) => return Ok(stream),
                    Err(cause) => error = cause,
                }
            }
            Err(error)
        });
        match result {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => {
                let hint = match error.kind() {
                    io::ErrorKind::ConnectionRefused => {
                        "; rank 0 has not begun, or the job has begun without this rank"
                    }
                    _ => "",
                };
                let text = format!(
                    "rank 0 cannot be reached at {address} (MASTER_ADDR, MASTER_PORT): {error}{hint}"
                );
                return Err(io::Error::new(error.kind(), text));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Proves the secret to rank 0, and verifies that rank 0 knows it.
fn shake_hands(
    stream: &mut TcpStream,
    secret: &Secret,
    deadline: Instant,
) -> io::Result<TransportState> {
    let mut noise = secret.initiator().map_err(noise_error)?;
    let mut first = [0; FIRST_BYTES];
    first[..MAGIC.len()].copy_from_slice(&MAGIC);
    noise
        .write_message(&[], &mut first[MAGIC.len()..])
        .map_err(noise_error)?;
    stream.write_all(&first)?;
    let mut answer = [0; HANDSHAKE_BYTES];
    read(stream, &mut answer, deadline)?;
    noise
        .read_message(&answer, &mut [0; HANDSHAKE_BYTES])
        .map_err(noise_error)?;
    noise.into_transport_mode().map_err(noise_error)
}

/// Reads a sealed message of rank 0.
fn open(
    stream: &mut TcpStream,
    transport: &mut TransportState,
    deadline: Instant,
) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 2];
    read(stream, &mut bytes, deadline)?;
    let mut sealed = vec![0; usize::from(u16::from_le_bytes(bytes))];
    read(stream, &mut sealed, deadline)?;
    let mut message = vec![0; sealed.len()];
    let bytes = transport
        .read_message(&sealed, &mut message)
        .map_err(noise_error)?;
    message.truncate(bytes);
    Ok(message)
}

/// Reads until `buffer` is full, or fails at `deadline`.
fn read(stream: &mut TcpStream, buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut read_bytes = 0;
    while read_bytes < buffer.len() {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(remaining))?;
        match stream.read(&mut buffer[read_bytes..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => read_bytes += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The kernel's name of it is "Resource temporarily unavailable".
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
