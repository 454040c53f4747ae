//! The network as the ranks of a job see it.

use crate::equal_blocks::{EqualBlocks, Order};
use crate::flow_log::FlowLog;
use crate::rank_plan::RankPlan;
use crate::request::{Request, WorkError};
use kumi_coll::FairShare;
use kumi_topo::{Delay, FileError, Network, Paths, Rate, nearest};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of plans in the plan cache. Programs use few collectives, each with few sizes.
/// When the limit is reached, the cache is emptied and plans are made again on demand.
const PLANS_MAX: usize = 256;

/// Maximum memory of the plan cache, in bytes, including the requests: about a million steps. A
/// plan that needs more than this alone is made again at each use.
const PLANS_BYTES_MAX: usize = 64 << 20;

/// Link rate assumed between hosts on one switch if there is no network file.
const RATE: Rate = match Rate::from_bps(1_000_000_000) {
    Some(rate) => rate,
    None => panic!("a rate"),
};
const LATENCY: Delay = Delay::from_ns(25_000);

/// Reason that ranks have no network.
#[derive(Debug, thiserror::Error)]
pub enum RanksError {
    /// The network file is missing or invalid.
    #[error(transparent)]
    File(#[from] FileError),
    /// The host of a rank is not in the network file.
    #[error("{file}: no host `{host}`, on which rank {rank} runs{hint}")]
    Host {
        /// Path of the network file.
        file: String,
        /// Name of the host.
        host: String,
        /// Rank on the host.
        rank: usize,
        /// Suggestion of a similar name, or the accepted names, as text for the message.
        hint: String,
    },
    /// The list of hosts is empty.
    #[error("no hosts given: expected the host of each rank, at least one")]
    None,
}

/// Network of a job's ranks, with the plan cache.
#[derive(Debug)]
pub struct Ranks {
    network: Network,
    plan_cache: Mutex<PlanCache>,
    flow_log: Option<Arc<FlowLog>>,
}

#[derive(Debug, Default)]
struct PlanCache {
    plans: HashMap<(usize, Request), Arc<RankPlan>>,
    orders: HashMap<(usize, EqualBlocks), Arc<Order>>,
    bytes: usize,
}

impl PlanCache {
    /// Reserves room for a plan of `bytes`. Returns false if the plan is too large for the cache.
    fn make_room(&mut self, bytes: usize) -> bool {
        let count = self.plans.len() + self.orders.len();
        if count >= PLANS_MAX || self.bytes + bytes > PLANS_BYTES_MAX {
            *self = Self::default();
        }
        let fits = bytes <= PLANS_BYTES_MAX;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

/// Returns a digest of the network in a file, or of the default single switch without a file.
/// Layout and comments of the file do not affect it.
///
/// # Errors
/// The file is missing or invalid.
pub fn network_digest(file: Option<&Path>) -> Result<u64, FileError> {
    let network = file.map(Network::read).transpose()?;
    let text = format!("{network:?} {RATE:?} {LATENCY:?}");
    // FNV-1a suffices: there is no reason to forge a network file in order to make a job fail.
    let step = |digest: u64, byte: u8| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Ok(text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

impl Ranks {
    /// Creates ranks on hosts given by name, in the network of a file. Without a file, one switch
    /// joins the hosts.
    ///
    /// # Errors
    /// The file is invalid, or a host is not in it.
    pub fn new(file: Option<&Path>, hosts: &[&str]) -> Result<Self, RanksError> {
        Self::in_job(file, hosts, hosts)
    }

    /// Creates some of the ranks of a job. The job's other ranks, on `job_hosts`, may communicate
    /// at the same time, so these ranks get their part of the links that both use (ADR 024). Job
    /// hosts that the network lacks are ignored.
    ///
    /// # Errors
    /// The same as for [`Ranks::new`].
    pub fn in_job(
        file: Option<&Path>,
        hosts: &[&str],
        job_hosts: &[&str],
    ) -> Result<Self, RanksError> {
        if hosts.is_empty() {
            return Err(RanksError::None);
        }
        let full_network = match file {
            Some(file) => Network::read(file)?,
            None => {
                let mut names = [hosts, job_hosts].concat();
                names.sort_unstable();
                names.dedup();
                Network::star(&names, RATE, LATENCY)
            }
        };
        let index: HashMap<&str, usize> = full_network
            .hosts
            .iter()
            .enumerate()
            .map(|(position, host)| (host.name.as_str(), position))
            .collect();
        let find = |host: &str| {
            // A name with a domain matches the short name if the file has only the latter.
            let short = host.split('.').next().unwrap_or(host);
            index.get(host).or_else(|| index.get(short)).copied()
        };
        let mut host_indices = Vec::with_capacity(hosts.len());
        for (rank, host) in hosts.iter().enumerate() {
            host_indices.push(find(host).ok_or_else(|| {
                let closest = nearest(host, index.keys().copied());
                RanksError::Host {
                    file: file.map_or(String::new(), |file| file.display().to_string()),
                    host: (*host).to_owned(),
                    rank,
                    hint: match closest {
                        Some(name) => format!("; did you mean `{name}`?"),
                        None => "; expected a host of that file".to_owned(),
                    },
                }
            })?);
        }
        let job_host_indices: Vec<usize> = job_hosts.iter().filter_map(|host| find(host)).collect();
        let network = full_network
            .share_of(&host_indices, &job_host_indices)
            .of_ranks(&host_indices);
        // The flow log uses the host names of the network file. A group that is only a part of its
        // job keeps no flow log: other ranks of the job may slow its flows down, and the link would
        // seem slow.
        let names: Vec<&str> = host_indices
            .iter()
            .map(|index| full_network.hosts[*index].name.as_str())
            .collect();
        let is_alone = hosts.len() == job_hosts.len();
        let flow_log = is_alone.then(|| FlowLog::from_environment(&network, &names));
        Ok(Self {
            flow_log: flow_log.flatten().map(Arc::new),
            network,
            plan_cache: Mutex::default(),
        })
    }

    /// Returns the network, in which each host is a rank.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns whether all ranks are on a single switch, each with its own link.
    pub fn is_single_switch(&self) -> bool {
        let paths = Paths::new(&self.network);
        let peers = 1..self.network.hosts.len();
        let links = |rank: usize| {
            let links = paths.links(0, rank).into_iter();
            links.filter(|link| paths.limited(*link).is_none()).count()
        };
        peers.into_iter().all(|rank| links(rank) <= 2)
    }

    /// Returns the fair share of a connection in an all-to-all of all ranks; `None` for a single
    /// rank, or where a window can express it on the longest path.
    pub fn fair_share(&self) -> Option<FairShare> {
        FairShare::new(&self.network)
    }

    /// Returns the flow log for `kumi topo learn`, if there is one.
    pub(crate) fn flow_log(&self) -> Option<Arc<FlowLog>> {
        self.flow_log.clone()
    }

    /// Returns whether some ranks are far enough apart that the bytes in flight between them
    /// matter.
    pub fn is_multi_site(&self) -> bool {
        kumi_coll::is_multi_site(&self.network)
    }

    /// Returns the other ranks in the order in which `rank` begins its blocks of an all-to-all
    /// that sends all at once ([`kumi_coll::sending_order`]).
    pub fn sending_order(&self, rank: usize) -> Vec<usize> {
        kumi_coll::sending_order(&self.network, rank)
    }

    /// Returns one rank's plan of a collective, from the plan cache if it is there.
    pub(crate) fn plan(&self, rank: usize, request: Request) -> Result<Arc<RankPlan>, WorkError> {
        let key = (rank, request);
        if let Some(plan) = self.plan_cache().plans.get(&key) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(RankPlan::new(&self.network, rank, &key.1)?);
        let mut cache = self.plan_cache();
        if cache.make_room(plan.memory_bytes() + key.1.bytes.len() * size_of::<u64>()) {
            cache.plans.insert(key, Arc::clone(&plan));
        }
        Ok(plan)
    }

    /// Returns the order of one rank's transfers in a collective of blocks of one length, from the
    /// plan cache if it is there.
    pub(crate) fn order(&self, rank: usize, request: EqualBlocks) -> Result<Arc<Order>, WorkError> {
        let key = (rank, request);
        if let Some(order) = self.plan_cache().orders.get(&key) {
            return Ok(Arc::clone(order));
        }
        let order = Arc::new(Order::new(&self.network, rank, &request)?);
        let mut cache = self.plan_cache();
        if cache.make_room(order.memory_bytes()) {
            cache.orders.insert(key, Arc::clone(&order));
        }
        Ok(order)
    }

    /// Locks the plan cache. It ignores poisoning: a panic in another thread leaves the cache
    /// consistent.
    fn plan_cache(&self) -> MutexGuard<'_, PlanCache> {
        self.plan_cache
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks__host_missing_from_the_network_file__are_refused_by_name() {
        let file = std::env::temp_dir().join(format!("kumi-ranks-{}.toml", std::process::id()));
        let text = "name = \"two\"\nhost = [{ name = \"node1\" }, { name = \"node2\" }]\n\
                    [[link]]\nbetween = [\"node1\", \"node2\"]\nrate = \"1Gbit\"\n";
        std::fs::write(&file, text).unwrap();
        let error = Ranks::new(Some(&file), &["node1", "node3"]).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("no host `node3`, on which rank 1 runs; did you mean `node1`?")
                || error.to_string().ends_with("did you mean `node2`?")
        );
        let error = Ranks::new(Some(&file), &["zebra"]).unwrap_err();
        let expected = "no host `zebra`, on which rank 0 runs; expected a host of that file";
        assert_eq!(error.to_string(), format!("{}: {expected}", file.display()));
        let error = Ranks::new(Some(&file), &[]).unwrap_err();
        let expected = "no hosts given: expected the host of each rank, at least one";
        assert_eq!(error.to_string(), expected);
        let domain = Ranks::new(Some(&file), &["node2.cluster", "node2"]).unwrap();
        assert_eq!(domain.network().hosts[0].name, "rank 0 on node2");
        // Both ranks are on one host, which acts as their switch.
        assert!(domain.is_single_switch());
        let separate = Ranks::new(Some(&file), &["node1", "node2", "node2"]).unwrap();
        assert!(
            !Ranks::new(None, &["a", "b", "b"])
                .unwrap()
                .is_single_switch()
                && separate.is_single_switch()
        );
        std::fs::remove_file(&file).unwrap();
    }
}
