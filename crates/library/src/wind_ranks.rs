//! Ranks of a job that reach each other by Wind. They find each other as those of a group do.

use crate::group::{Config, Environment, GroupError, Listening, Secret, Transport, exchange};
use kumi_multilink::secure::Seal;
use kumi_wind::{Config as WindConfig, Node, PeerId, WindError, random_epoch};
use std::time::Duration;

/// Time without a sign of life after which a rank is lost.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// Failure to join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The ranks do not find each other.
    #[error(transparent)]
    Ranks(#[from] GroupError),
    /// The system refuses something.
    #[error(transparent)]
    Wind(#[from] WindError),
}

/// A node of Wind, with the other ranks of the job as its peers.
pub struct WindRanks {
    /// The node.
    pub node: Node,
    /// This process's rank.
    pub rank: usize,
    /// Peers by rank. This rank has none.
    pub peers: Vec<Option<PeerId>>,
    /// Secret of the sessions.
    pub secret: [u8; 32],
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

/// Returns this rank, which listens, and all ranks' cards, with the parameters of the environment.
///
/// # Errors
/// Other ranks do not arrive in time.
pub(crate) fn meet(
    config: Config,
    environment: &Environment,
) -> Result<(Listening, Vec<Vec<u8>>), GroupError> {
    let start_timeout = config.start_timeout;
    let secret = config.secret.clone();
    let secret: Secret = secret.unwrap_or_else(|| environment.launcher.clone());
    let listening = listen(config)?;
    let cards = exchange(environment, &secret, &listening.card(), start_timeout);
    let cards = cards.map_err(|error| GroupError::System {
        operation: "cannot exchange the ranks' cards".to_owned(),
        error,
    })?;
    Ok((listening, cards))
}

impl WindRanks {
    /// Opens the node of a rank that listens. The cards are given by rank. Sessions begin in the
    /// background.
    ///
    /// # Errors
    /// A card is malformed, ranks have different secrets or libraries, or the system refuses
    /// something.
    pub fn join(
        listening: Listening,
        rank: usize,
        cards: &[Vec<u8>],
        seal: Seal,
    ) -> Result<Self, JoinError> {
        let ranks = listening.into_wind(rank, cards)?;
        let epoch = random_epoch().map_err(|error| WindError::System {
            what: "cannot read random numbers",
            error,
        })?;
        let config = WindConfig {
            seal,
            lost_after_ns: LOST_AFTER.as_nanos() as u64,
            message_bytes_max: u32::MAX,
            ..WindConfig::new(ranks.secret, epoch)
        };
        let node = Node::on(ranks.socket, config)?;
        let peers = ranks
            .addresses
            .iter()
            .enumerate()
            .map(|(other, addresses)| {
                let first = addresses.first().filter(|_| other != rank);
                first.map(|address| node.connect(*address)).transpose()
            });
        Ok(Self {
            peers: peers.collect::<Result<_, _>>()?,
            node,
            rank,
            secret: ranks.secret,
        })
    }

    /// Joins the ranks that the variables of the environment name.
    ///
    /// # Errors
    /// As [`Self::join`], or a variable is missing or invalid, or other ranks do not arrive in
    /// time.
    pub fn from_environment(
        config: Config,
        environment: &Environment,
        seal: Seal,
    ) -> Result<Self, JoinError> {
        let (listening, cards) = meet(config, environment)?;
        Self::join(listening, environment.rank, &cards, seal)
    }
}
