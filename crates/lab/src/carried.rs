//! Topologies that are embedded in the program: those of `bench/topologies`.

use crate::topology::{Topology, TopologyError};

mod table {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}

/// Returns the embedded topology `name`; `None` if no topology of that name is embedded.
pub fn topology(name: &str) -> Option<Result<Topology, TopologyError>> {
    let (_, text) = table::TOPOLOGIES.iter().find(|(key, _)| *key == name)?;
    Some(Topology::parse(name, text))
}

/// Returns the names of the embedded topologies, in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    table::TOPOLOGIES.iter().map(|(name, _)| *name)
}
