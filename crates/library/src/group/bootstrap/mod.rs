//! Exchange of the ranks' cards if the program has no other means for it. Rank 0 collects them at
//! an address that all ranks know. `torchrun` and similar launchers provide it (`MASTER_ADDR`,
//! `MASTER_PORT`, `RANK`, `WORLD_SIZE`).
//!
//! ```text
//!  rank ──── magic, Noise message 1 ─────────► rank 0     proves the job's secret
//!  rank ◄─── Noise message 2 ───────────────── rank 0     proves it too
//!  rank ──── sealed: number, ranks, card ────► rank 0     sealed with fresh keys, so not a replay
//!  rank ◄─── sealed: all cards ─────────────── rank 0     when all ranks have arrived
//! ```

mod collect;
mod hand_in;

use crate::group::RANKS_MAX;
use crate::group::card::CARD_BYTES;
use crate::group::secret::{HANDSHAKE_BYTES, Secret, TAG_BYTES};
use std::io;
use std::time::{Duration, Instant};

/// Prefix of the first message.
const MAGIC: [u8; 8] = *b"KUMIJOB2";

/// Length of the first message, in bytes.
const FIRST_BYTES: usize = MAGIC.len() + HANDSHAKE_BYTES;

/// Length of the message with a card, in bytes: the rank, the number of ranks, and the card.
const CARD_MESSAGE_BYTES: usize = 4 + 4 + CARD_BYTES + TAG_BYTES;

/// Maximum number of cards in a message: 32 KiB, half of Noise's limit.
const CARDS_PER_MESSAGE: usize = 64;

/// First byte of a sealed message of rank 0: cards follow, or the reason for a refusal.
const CARDS: u8 = 1;
const REFUSED: u8 = 0;

/// Time limit for each message of a rank until its card has arrived, and for each attempt to
/// connect to rank 0.
const CARD_LIMIT: Duration = Duration::from_secs(2);

/// Time between two attempts to reach rank 0.
const PAUSE: Duration = Duration::from_millis(20);

/// Parameters of a rank, from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Address at which rank 0 collects cards.
    pub address: String,
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Secret that the launcher gives to the job's processes. It is used if the user has set none.
    pub launcher: Secret,
}

impl Environment {
    /// Reads the parameters. `variable` returns the value of an environment variable.
    ///
    /// # Errors
    /// A variable is missing or not a valid number. The message names it.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let variable = &variable;
        let text = |name: &str| {
            variable(name).ok_or_else(|| {
                format!(
                    "{name} is not set; a group needs MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE"
                )
            })
        };
        let number = |name: &str, min: usize, max: usize| {
            let text = text(name)?;
            let number = text.parse().ok();
            let number = number.filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| format!("invalid {name} `{text}`: expected {min} to {max}"))
        };
        let ranks = number("WORLD_SIZE", 1, RANKS_MAX)?;
        let rank = number("RANK", 0, ranks - 1)?;
        let port = number("MASTER_PORT", 1, usize::from(u16::MAX))?;
        Ok(Self {
            address: format!("{}:{port}", text("MASTER_ADDR")?),
            rank,
            ranks,
            launcher: Secret::from_launcher(variable),
        })
    }
}

/// Returns all ranks' cards, by rank. Only a process that knows `secret` receives them.
///
/// # Errors
/// Within `start_timeout`, rank 0 cannot be reached or a rank does not arrive. Or this rank has
/// another secret or another number of ranks than rank 0.
pub fn exchange(
    environment: &Environment,
    secret: &Secret,
    card: &[u8; CARD_BYTES],
    start_timeout: Duration,
) -> io::Result<Vec<Vec<u8>>> {
    let deadline = Instant::now() + start_timeout;
    match environment.rank {
        0 => collect::collect(environment, secret, card, deadline),
        _ => hand_in::hand_in(environment, secret, card, deadline),
    }
}

#[cfg(test)]
mod tests;
