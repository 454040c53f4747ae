//! How ranks come to have each other's cards if nothing else brings them: rank 0 collects them at an address that all
//! were given, as `torchrun` and its like give it (`MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE`).

use crate::group::RANKS_MAX;
use crate::group::card::{CARD_BYTES, Card};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A card comes at once behind its connection.
const CARD_LIMIT: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(20);

/// What the environment says of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Where rank 0 collects cards.
    pub address: String,
    /// This one's number.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Environment {
    /// What it says, by its variables' names.
    ///
    /// # Errors
    /// A variable is missing or no number, by name.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let text = |name: &str| {
            variable(name).ok_or_else(|| {
                format!("{name} is not set; a group is begun by MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE")
            })
        };
        let number = |name: &str, max: usize| {
            let text = text(name)?;
            let number = text.parse().ok().filter(|number: &usize| *number <= max);
            number.ok_or_else(|| format!("{name} is `{text}`; a number up to {max} would be right"))
        };
        let ranks = number("WORLD_SIZE", RANKS_MAX)?;
        let rank = number("RANK", ranks.saturating_sub(1))?;
        let port = number("MASTER_PORT", usize::from(u16::MAX))?;
        Ok(Self {
            address: format!("{}:{port}", text("MASTER_ADDR")?),
            rank,
            ranks,
        })
    }
}

/// All ranks' cards.
///
/// # Errors
/// Rank 0 cannot be reached, or a rank does not come, within `patience`.
pub fn exchange(
    environment: &Environment,
    card: &[u8; CARD_BYTES],
    patience: Duration,
) -> io::Result<Vec<Vec<u8>>> {
    let until = Instant::now() + patience;
    match environment.rank {
        0 => collect(environment, card, until),
        _ => hand_in(environment, card, until),
    }
}

fn collect(
    environment: &Environment,
    card: &[u8; CARD_BYTES],
    until: Instant,
) -> io::Result<Vec<Vec<u8>>> {
    let Environment { address, ranks, .. } = environment;
    let listener = TcpListener::bind(address).map_err(|error| {
        let text =
            format!("MASTER_ADDR and MASTER_PORT, {address}: rank 0 cannot listen there: {error}");
        io::Error::new(error.kind(), text)
    })?;
    listener.set_nonblocking(true)?;
    let mut cards: Vec<Option<Vec<u8>>> = vec![None; *ranks];
    let mut streams = Vec::new();
    cards[0] = Some(card.to_vec());
    while let Some(absent) = cards.iter().position(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                // Whoever says what is no card is none of the ranks.
                if let Ok((rank, card, stream)) = one_card(stream) {
                    if rank < *ranks && cards[rank].is_none() {
                        cards[rank] = Some(card);
                        streams.push(stream);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() > until {
                    let text = format!("rank {absent} of {ranks} has not come to {address}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    let cards: Vec<Vec<u8>> = cards.into_iter().flatten().collect();
    for mut stream in streams {
        // Who has gone since is missed when the group is joined.
        let _ = stream.write_all(&cards.concat());
    }
    Ok(cards)
}

fn one_card(mut stream: TcpStream) -> io::Result<(usize, Vec<u8>, TcpStream)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CARD_LIMIT))?;
    let mut said = vec![0; 4 + CARD_BYTES];
    stream.read_exact(&mut said)?;
    let card = said.split_off(4);
    let rank = said
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    match Card::parse(&card) {
        Some(_) => Ok((rank, card, stream)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn hand_in(
    environment: &Environment,
    card: &[u8; CARD_BYTES],
    until: Instant,
) -> io::Result<Vec<Vec<u8>>> {
    let Environment {
        address,
        ranks,
        rank,
    } = environment;
    let mut stream = loop {
        let reached = address.to_socket_addrs().and_then(|mut all| {
            let one = all.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
            TcpStream::connect_timeout(&one, CARD_LIMIT)
        });
        match reached {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > until => {
                let text = format!(
                    "rank 0 cannot be reached at {address} (MASTER_ADDR, MASTER_PORT): {error}"
                );
                return Err(io::Error::new(error.kind(), text));
            }
            // It may not be there yet.
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    stream.write_all(&(*rank as u32).to_le_bytes())?;
    stream.write_all(card)?;
    stream.set_read_timeout(Some(
        until.saturating_duration_since(Instant::now()).max(PAUSE),
    ))?;
    let mut cards = vec![0; ranks * CARD_BYTES];
    stream.read_exact(&mut cards).map_err(|error| {
        let text = format!("rank 0 at {address} has not said where the others are: {error}");
        io::Error::new(error.kind(), text)
    })?;
    Ok(cards.chunks(CARD_BYTES).map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Result<Environment, String> {
        Environment::read(|name| {
            let pair = pairs.iter().find(|(of, _)| *of == name);
            pair.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn environment__with_a_slip__is_refused_by_the_variables_name() {
        let right = [
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29500"),
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
        ];
        let read = environment(&right).unwrap();
        assert_eq!(
            (read.address.as_str(), read.rank, read.ranks),
            ("node1:29500", 3, 4)
        );
        let missing = environment(&right[..3]).unwrap_err();
        assert!(missing.starts_with("WORLD_SIZE is not set"));
        let mut wrong = right;
        wrong[2].1 = "4";
        let refused = environment(&wrong).unwrap_err();
        assert_eq!(refused, "RANK is `4`; a number up to 3 would be right");
    }

    #[test]
    fn rank__that_does_not_come__is_named() {
        let alone = Environment {
            address: "127.0.0.1:0".to_owned(),
            rank: 0,
            ranks: 3,
        };
        let refused = exchange(&alone, &[0; CARD_BYTES], Duration::from_millis(50)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "rank 1 of 3 has not come to 127.0.0.1:0"
        );
    }
}
