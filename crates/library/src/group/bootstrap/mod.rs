//! How ranks come to have each other's cards if nothing else brings them: rank 0 collects them at an address that all
//! were given, as `torchrun` and its like give it (`MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE`).
//!
//! ```text
//!   rank ──── magic, Noise message 1 ─────────► rank 0     shows the job's secret
//!   rank ◄─── Noise message 2 ───────────────── rank 0     shows it too
//!   rank ──── sealed: number, ranks, card ────► rank 0     is no replay: sealed by fresh keys
//!   rank ◄─── sealed: all cards ─────────────── rank 0     when all have come
//! ```

mod collect;
mod hand_in;

use crate::group::RANKS_MAX;
use crate::group::card::CARD_BYTES;
use crate::group::secret::{HANDSHAKE_BYTES, Secret, TAG_BYTES};
use std::io;
use std::time::{Duration, Instant};

/// What the first message begins with.
const MAGIC: [u8; 8] = *b"KUMIJOB2";

/// Bytes of the first message.
const FIRST_BYTES: usize = MAGIC.len() + HANDSHAKE_BYTES;

/// Bytes of the message with a card: the rank's number, how many ranks it knows of, the card.
const CARD_MESSAGE_BYTES: usize = 4 + 4 + CARD_BYTES + TAG_BYTES;

/// Cards of one message: 32 KiB, half of what Noise allows.
const CARDS_PER_MESSAGE: usize = 64;

/// What a sealed message of rank 0 begins with: cards follow, or why there are none.
const CARDS: u8 = 1;
const REFUSED: u8 = 0;

/// How long a rank may take from its connection to its card: three messages.
const CARD_LIMIT: Duration = Duration::from_secs(2);

/// Time between two attempts to reach rank 0.
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
    /// What the launcher lets the ranks know of their job, for where the user has set no secret.
    pub launcher: Secret,
}

impl Environment {
    /// What it says, by its variables' names.
    ///
    /// # Errors
    /// A variable is missing or no number, by name.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let variable = &variable;
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
            launcher: Secret::of_launcher(variable),
        })
    }
}

/// Returns all ranks' cards, by rank. They are given to who knows `secret` only.
///
/// # Errors
/// Rank 0 cannot be reached, or a rank does not come, within `patience`; another secret, or another number of ranks.
pub fn exchange(
    environment: &Environment,
    secret: &Secret,
    card: &[u8; CARD_BYTES],
    patience: Duration,
) -> io::Result<Vec<Vec<u8>>> {
    let until = Instant::now() + patience;
    match environment.rank {
        0 => collect::collect(environment, secret, card, until),
        _ => hand_in::hand_in(environment, secret, card, until),
    }
}

#[cfg(test)]
mod tests;
