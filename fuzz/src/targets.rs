//! The fuzz targets.

use crate::choices::Choices;
use kumi_coll::{check, gather};
use kumi_lab::Topology;
use kumi_multilink::handshake::Envelope;
use kumi_multilink::secure::{CLUSTER_KEY_BYTES, ClusterKey};
use kumi_multilink::wire::{
    CONTROL_HEADER_BYTES, ControlHeader, CookieReply, DATA_HEADER_BYTES, DataHeader, Hello, Kind,
    Report, kind_of,
};
use kumi_topo::{Network, Rate, slurm};

/// A function that must not panic.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 9] = [
    ("topology", topology),
    ("network", network),
    ("wire", wire),
    ("messages", messages),
    ("reorder", reorder),
    ("endpoint", endpoint),
    ("ri2n", ri2n),
    ("wind", wind),
    ("shared-memory", shared_memory),
];

/// Returns the target called `name`.
pub fn find(name: &str) -> Option<Target> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, target)| *target)
}

/// The topology file: an accepted file is valid, and a refused one is refused with a line.
pub fn topology(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Topology::parse("fuzz.toml", text) {
        Ok(topology) => {
            for name in topology.nic_names() {
                assert!(
                    topology.nic(&name).is_some(),
                    "{name} is named and not there"
                );
            }
        }
        Err(error) => assert!(error.to_string().starts_with("fuzz.toml:"), "{error}"),
    }
}

/// Most hosts of a network on which a gather is planned here.
const PLANNED_HOSTS_MAX: usize = 64;

/// The network file and Slurm's files: an accepted one can be written and planned on, and a refused
/// one is refused with a line.
pub fn network(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let gigabit = Rate::from_bps(1_000_000_000).expect("is not zero");
    for read in [slurm::conf::read, slurm::yaml::read] {
        match read("fuzz.slurm", text, gigabit) {
            Ok(network) => {
                let copy = slurm::yaml::read("again", &slurm::yaml::write(&network), gigabit);
                let copy = copy.expect("what is written can be read");
                assert_eq!(copy.links.len(), network.links.len());
            }
            Err(error) => assert!(error.to_string().starts_with("fuzz.slurm:"), "{error}"),
        }
    }
    match Network::parse("fuzz.toml", text) {
        Ok(network) => {
            let toml = network.to_toml().expect("names and numbers can be written");
            assert_eq!(Network::parse("again", &toml).as_ref().ok(), Some(&network));
            if network.hosts.len() <= PLANNED_HOSTS_MAX {
                let plan = gather(&network, 0, 1 << 20).expect("there is a first host");
                assert_eq!(check(&network, &plan), Ok(()));
            }
        }
        Err(error) => assert!(error.to_string().starts_with("fuzz.toml:"), "{error}"),
    }
}

/// Every datagram of the multilink device: an accepted one is written back unchanged.
pub fn wire(bytes: &[u8]) {
    let _ = kind_of(bytes);
    if let Ok(header) = DataHeader::parse(bytes) {
        let mut emitted = [0; DATA_HEADER_BYTES];
        header.emit(&mut emitted);
        assert_eq!(DataHeader::parse(&emitted).as_ref(), Ok(&header));
    }
    if let Ok(header) = ControlHeader::parse(bytes) {
        let mut emitted = [0; CONTROL_HEADER_BYTES];
        header.emit(&mut emitted);
        assert_eq!(ControlHeader::parse(&emitted).as_ref(), Ok(&header));
    }
    let _ = Report::default().parse(bytes);
    // Signed as a peer that holds the key would. A hello with a wrong signature is not read at all.
    let key = ClusterKey::from_bytes([7; CLUSTER_KEY_BYTES]);
    let signed = [bytes, &key.hello_mac(bytes)].concat();
    if let Ok(Some(hello)) = Hello::parse(&signed, &key) {
        assert_eq!(Hello::parse(&hello.emit(&key), &key), Ok(Some(hello)));
    }
    let signed = [bytes, &key.envelope_mac(bytes)].concat();
    if let Ok(Some(reply)) = CookieReply::parse(&signed, &key) {
        assert_eq!(reply.emit(&key), signed);
    }
    let _ = Envelope::open(Kind::Init, &key, &signed);
}

/// The same messages as a peer builds them, slightly damaged. They get further than arbitrary
/// bytes.
pub fn messages(bytes: &[u8]) {
    crate::messages::parse(&mut Choices::new(bytes));
}

/// The reorder buffer, with any units.
pub fn reorder(bytes: &[u8]) {
    crate::reorder::run(&mut Choices::new(bytes));
}

/// Two endpoints, with any sequence of operations.
pub fn endpoint(bytes: &[u8]) {
    crate::endpoint::run(&mut Choices::new(bytes));
}

/// Two devices of the RI2N/DRV protocol, with any sequence of operations.
pub fn ri2n(bytes: &[u8]) {
    crate::ri2n::run(&mut Choices::new(bytes));
}

/// Two Wind endpoints, with any sequence of operations.
pub fn wind(bytes: &[u8]) {
    crate::wind::run(&mut Choices::new(bytes));
}

/// Nodes of shared memory do not panic, whatever they are sent.
pub fn shared_memory(bytes: &[u8]) {
    crate::shared_memory::run(&mut Choices::new(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::mutate;
    use fastrand::Rng;
    use std::time::{Duration, Instant};

    /// Time of each target here. `make test` gives each another half minute.
    const TARGET_TIME: Duration = Duration::from_secs(1);

    #[test]
    fn targets__one_second_of_seeded_inputs__cause_no_panic() {
        for (name, target) in TARGETS {
            let (mut rng, end) = (Rng::with_seed(1), Instant::now() + TARGET_TIME);
            while Instant::now() < end {
                let mut input = Vec::new();
                mutate(&mut input, &[], &mut rng);
                // Printed if it fails. Commit it to regressions/ with the correction.
                println!("{name}: {input:?}");
                target(&input);
            }
        }
    }
}
