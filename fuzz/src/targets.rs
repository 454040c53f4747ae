//! The targets.

use kumi_lab::Topology;
use kumi_multilink::secure::{CLUSTER_KEY_BYTES, ClusterKey};
use kumi_multilink::wire::{
    CONTROL_HEADER_BYTES, ControlHeader, DATA_HEADER_BYTES, DataHeader, Hello, Report, kind_of,
};

/// A function that must not panic.
pub type Target = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: [(&str, Target); 2] = [("topology", topology), ("wire", wire)];

/// The target called `name`.
pub fn find(name: &str) -> Option<Target> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, target)| *target)
}

/// The topology file: what is read is sound, and what is refused says where.
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

/// Every datagram of the multilink device: what is read is written back as it was.
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
    // Signed as a peer that holds the key would: a hello with a wrong signature is not read at all.
    let key = ClusterKey::from_bytes([7; CLUSTER_KEY_BYTES]);
    let signed = [bytes, &key.hello_mac(bytes)].concat();
    if let Ok(Some(hello)) = Hello::parse(&signed, &key) {
        assert_eq!(Hello::parse(&hello.emit(&key), &key), Ok(Some(hello)));
    }
}
