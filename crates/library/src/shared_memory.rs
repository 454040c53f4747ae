//! Memory that the ranks of a job share. The ranks find each other as those of a group do.

use crate::group::{Config, Environment, GroupError, Listening, Transport, exchange};
use kumi_dsm::coherence::DsmError;
use kumi_dsm::runtime::{Config as DsmConfig, Dsm};

/// Failure to join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The ranks do not find each other.
    #[error(transparent)]
    Ranks(#[from] GroupError),
    /// A rank does not answer.
    #[error(transparent)]
    Dsm(#[from] DsmError),
}

/// Opens a socket. Its card is what the other ranks need.
///
/// # Errors
/// As [`Listening::new`].
pub fn listen(config: Config) -> Result<Listening, GroupError> {
    Listening::new(Config {
        transport: Transport::Wind,
        ..config
    })
}

/// Joins the other ranks. Their cards are given by rank.
///
/// # Errors
/// A card is malformed, ranks have different secrets or libraries, or a rank does not answer.
pub fn join(listening: Listening, rank: usize, cards: &[Vec<u8>]) -> Result<Dsm, JoinError> {
    let ranks = listening.into_wind(rank, cards)?;
    let config = DsmConfig::new(ranks.secret);
    Ok(Dsm::join(ranks.socket, rank, &ranks.addresses, &config)?)
}

/// Joins the ranks that the variables of the environment name.
///
/// # Errors
/// A variable is missing or invalid, or other ranks do not arrive in time.
pub fn from_environment(config: Config, environment: &Environment) -> Result<Dsm, JoinError> {
    let start_timeout = config.start_timeout;
    let secret = config.secret.clone();
    let secret = secret.unwrap_or_else(|| environment.launcher.clone());
    let listening = listen(config)?;
    let cards = exchange(environment, &secret, &listening.card(), start_timeout);
    let cards = cards.map_err(|error| GroupError::System {
        operation: "cannot exchange the ranks' cards".to_owned(),
        error,
    })?;
    join(listening, environment.rank, &cards)
}
