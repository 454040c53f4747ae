//! Memory that the ranks of a job share. The ranks find each other as those of a group do.

use crate::group::{Config, Environment, GroupError, Listening};
use crate::wind_ranks::meet;
use kumi_dsm::coherence::DsmError;
use kumi_dsm::runtime::{Config as DsmConfig, Dsm, Transfers};

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
    from_environment_with(config, environment, Transfers::Direct)
}

/// As [`from_environment`], with a way in which pages and diffs travel.
///
/// # Errors
/// As [`from_environment`].
pub fn from_environment_with(
    config: Config,
    environment: &Environment,
    transfers: Transfers,
) -> Result<Dsm, JoinError> {
    let (listening, cards) = meet(config, environment)?;
    let ranks = listening.into_wind(environment.rank, &cards)?;
    let config = DsmConfig {
        transfers,
        ..DsmConfig::new(ranks.secret)
    };
    let (rank, addresses) = (environment.rank, &ranks.addresses);
    Ok(Dsm::join(ranks.socket, rank, addresses, &config)?)
}
