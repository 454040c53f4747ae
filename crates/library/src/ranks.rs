//! The network as the ranks of a job see it.

use crate::like::{Like, Order};
use crate::seen::Seen;
use crate::work::{Asked, Planned, WorkError};
use kumi_topo::{Delay, FileError, Network, Paths, Rate, nearest};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Plans that are kept. A program has a handful of collectives, each with a handful of sizes; if it
/// has more, all are forgotten, and planned again when they come.
const KEPT_MAX: usize = 256;

/// Memory of all plans that are kept, and of what they were asked with: about a million steps. A
/// plan that takes more by itself is made anew each time.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// What is assumed of hosts on one switch when no file says more.
const RATE: Rate = match Rate::from_bps(1_000_000_000) {
    Some(rate) => rate,
    None => panic!("a rate"),
};
const LATENCY: Delay = Delay::from_ns(25_000);

/// Why ranks have no network.
#[derive(Debug, thiserror::Error)]
pub enum RanksError {
    /// The file is missing or wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// A rank's host is not in the file.
    #[error("{file}: no host `{host}`, on which rank {rank} runs{hint}")]
    Host {
        /// The file.
        file: String,
        /// The host's name.
        host: String,
        /// A rank that runs there.
        rank: usize,
        /// A name that is like it.
        hint: String,
    },
    /// No ranks at all.
    #[error("a network needs at least one rank")]
    None,
}

/// The network of a job's ranks, and what was planned on it.
#[derive(Debug)]
pub struct Ranks {
    network: Network,
    kept: Mutex<Kept>,
    seen: Option<Arc<Seen>>,
}

#[derive(Debug, Default)]
struct Kept {
    plans: HashMap<(usize, Asked), Arc<Planned>>,
    orders: HashMap<(usize, Like), Arc<Order>>,
    bytes: usize,
}

impl Kept {
    /// Makes room for one more of so many bytes; false if it is too long to be kept.
    fn make_room(&mut self, bytes: usize) -> bool {
        let count = self.plans.len() + self.orders.len();
        if count >= KEPT_MAX || self.bytes + bytes > KEPT_BYTES_MAX {
            *self = Self::default();
        }
        let fits = bytes <= KEPT_BYTES_MAX;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

/// Digest of the network in a file; of the one switch that is assumed without one. Layout and
/// comments do not count.
///
/// # Errors
/// The file is missing or wrong.
pub fn network_digest(file: Option<&Path>) -> Result<u64, FileError> {
    let network = file.map(Network::read).transpose()?;
    let text = format!("{network:?} {RATE:?} {LATENCY:?}");
    // FNV-1a: nobody forges a network file to have a job fail.
    let step = |digest: u64, byte: u8| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Ok(text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

impl Ranks {
    /// Ranks on these hosts, by name, of the network in a file; without a file, on one switch.
    ///
    /// # Errors
    /// The file is wrong, or does not have a host.
    pub fn new(file: Option<&Path>, hosts: &[&str]) -> Result<Self, RanksError> {
        Self::in_job(file, hosts, hosts)
    }

    /// Some ranks of a job, whose others, on `job_hosts`, may be at work meanwhile: of links that
    /// they share they have their part. Hosts of the job that the network does not have count for
    /// nothing.
    ///
    /// # Errors
    /// As [`Ranks::new`].
    pub fn in_job(
        file: Option<&Path>,
        hosts: &[&str],
        job_hosts: &[&str],
    ) -> Result<Self, RanksError> {
        if hosts.is_empty() {
            return Err(RanksError::None);
        }
        let whole = match file {
            Some(file) => Network::read(file)?,
            None => {
                let mut names = [hosts, job_hosts].concat();
                names.sort_unstable();
                names.dedup();
                Network::star(&names, RATE, LATENCY)
            }
        };
        let index: HashMap<&str, usize> = whole
            .hosts
            .iter()
            .enumerate()
            .map(|(at, host)| (host.name.as_str(), at))
            .collect();
        let find = |host: &str| {
            // A name with its domain is the name without it, if the file has only that.
            let short = host.split('.').next().unwrap_or(host);
            index.get(host).or_else(|| index.get(short)).copied()
        };
        let mut on = Vec::with_capacity(hosts.len());
        for (rank, host) in hosts.iter().enumerate() {
            on.push(find(host).ok_or_else(|| {
                let near = nearest(host, index.keys().copied());
                RanksError::Host {
                    file: file.map_or(String::new(), |file| file.display().to_string()),
                    host: (*host).to_owned(),
                    rank,
                    hint: near.map_or(String::new(), |near| format!("; did you mean `{near}`?")),
                }
            })?);
        }
        let job_on: Vec<usize> = job_hosts.iter().filter_map(|host| find(host)).collect();
        let network = whole.share_of(&on, &job_on).of_ranks(&on);
        // By the file's names. Where others are at work too, slow is not the link.
        let names: Vec<&str> = on.iter().map(|at| whole.hosts[*at].name.as_str()).collect();
        let is_alone = hosts.len() == job_hosts.len();
        let seen = is_alone.then(|| Seen::from_environment(&network, &names));
        Ok(Self {
            seen: seen.flatten().map(Arc::new),
            network,
            kept: Mutex::default(),
        })
    }

    /// The network, its hosts the ranks.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Whether all ranks are on one switch, each by a link of its own.
    pub fn is_flat(&self) -> bool {
        let paths = Paths::new(&self.network);
        let others = 1..self.network.hosts.len();
        let links = |rank: usize| {
            let links = paths.links(0, rank).into_iter();
            links.filter(|link| paths.limited(*link).is_none()).count()
        };
        others.into_iter().all(|rank| links(rank) <= 2)
    }

    /// Where what came is to be kept, for `kumi topo learn`.
    pub(crate) fn seen(&self) -> Option<Arc<Seen>> {
        self.seen.clone()
    }

    /// Whether some are so far apart that what is on its way between them counts.
    pub fn is_far(&self) -> bool {
        kumi_coll::is_far(&self.network)
    }

    /// One rank's part of a collective, planned now or kept from before.
    pub(crate) fn planned(&self, rank: usize, asked: Asked) -> Result<Arc<Planned>, WorkError> {
        let key = (rank, asked);
        if let Some(planned) = self.kept().plans.get(&key) {
            return Ok(Arc::clone(planned));
        }
        let planned = Arc::new(Planned::new(&self.network, rank, &key.1)?);
        let mut kept = self.kept();
        if kept.make_room(planned.memory_bytes() + key.1.bytes.len() * size_of::<u64>()) {
            kept.plans.insert(key, Arc::clone(&planned));
        }
        Ok(planned)
    }

    /// The order of one rank's transfers in a collective of blocks of one length, planned now or
    /// kept from before.
    pub(crate) fn order(&self, rank: usize, like: Like) -> Result<Arc<Order>, WorkError> {
        let key = (rank, like);
        if let Some(order) = self.kept().orders.get(&key) {
            return Ok(Arc::clone(order));
        }
        let order = Arc::new(Order::new(&self.network, rank, &like)?);
        let mut kept = self.kept();
        if kept.make_room(order.memory_bytes()) {
            kept.orders.insert(key, Arc::clone(&order));
        }
        Ok(order)
    }

    /// A panic of another thread leaves nothing half done here.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks__of_a_host_that_the_file_lacks__are_refused_by_name() {
        let file = std::env::temp_dir().join(format!("kumi-ranks-{}.toml", std::process::id()));
        let text = "name = \"two\"\nhost = [{ name = \"node1\" }, { name = \"node2\" }]\n\
                    [[link]]\nbetween = [\"node1\", \"node2\"]\nrate = \"1Gbit\"\n";
        std::fs::write(&file, text).unwrap();
        let refused = Ranks::new(Some(&file), &["node1", "node3"]).unwrap_err();
        assert!(
            refused
                .to_string()
                .ends_with("no host `node3`, on which rank 1 runs; did you mean `node1`?")
                || refused.to_string().ends_with("did you mean `node2`?")
        );
        let domain = Ranks::new(Some(&file), &["node2.cluster", "node2"]).unwrap();
        assert_eq!(domain.network().hosts[0].name, "rank 0 on node2");
        // They are on one host, and hang from it as from a switch.
        assert!(domain.is_flat());
        let apart = Ranks::new(Some(&file), &["node1", "node2", "node2"]).unwrap();
        assert!(!Ranks::new(None, &["a", "b", "b"]).unwrap().is_flat() && apart.is_flat());
        std::fs::remove_file(&file).unwrap();
    }
}
