//! Cards: the record by which other ranks reach a rank.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of a card: text, padded with zeros. The fixed size suits any exchange of equal blocks.
pub const CARD_BYTES: usize = 512;

/// Maximum number of host addresses in a card.
const ADDRESSES_MAX: usize = 8;

/// Maximum length of a host name, in bytes (`HOST_NAME_MAX` of POSIX).
const HOST_BYTES_MAX: usize = 64;

const FORMAT: &str = "kumi3";

/// Maximum length of [`crate::VERSION`], in bytes.
const VERSION_BYTES_MAX: usize = 24;

/// Address and identity of a rank that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Random key of the listener. A rank that connects sends
    /// [`Secret::hello`](super::secret::Secret::hello) of this key.
    pub key: [u8; 16],
    /// [`Secret::proof`](super::secret::Secret::proof) of the key. It reveals a different secret
    /// before any rank connects.
    pub proof: [u8; 8],
    /// [`crate::VERSION`] of the owner. Versions must match because each rank computes the plan
    /// itself.
    pub version: String,
    /// TCP port on which the rank listens.
    pub port: u16,
    /// Addresses of the host, most likely one first.
    pub addresses: Vec<IpAddr>,
    /// Name of the host in the network file.
    pub host: String,
    /// Digest of the network file's content and the job's hosts; 0 without either. Ranks with
    /// different networks make different plans.
    pub network: u64,
    /// UDP port at which the rank receives chunks over Wind; 0 over TCP.
    pub wind_port: u16,
}

impl Card {
    /// Returns the card as it is exchanged.
    pub fn bytes(&self) -> [u8; CARD_BYTES] {
        let key = u128::from_be_bytes(self.key);
        let proof = u64::from_be_bytes(self.proof);
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        let (version, port, network) = (&self.version, self.port, self.network);
        let (addresses, host, wind_port) = (addresses.join(","), &self.host, self.wind_port);
        let text = format!(
            "{FORMAT} {key:032x} {proof:016x} {version} {port} {network:016x} {addresses} {host} {wind_port}"
        );
        let mut bytes = [0; CARD_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    /// Parses a card. Returns `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let text = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut fields = text.split(' ');
        let mut next = || fields.next();
        if next()? != FORMAT {
            return None;
        }
        let key = u128::from_str_radix(next()?, 16).ok()?.to_be_bytes();
        let proof = u64::from_str_radix(next()?, 16).ok()?.to_be_bytes();
        let version = next()?.to_owned();
        let port = next()?.parse().ok()?;
        let network = u64::from_str_radix(next()?, 16).ok()?;
        let addresses = next()?.split(',').map(str::parse);
        let addresses = addresses.collect::<Result<Vec<IpAddr>, _>>().ok()?;
        let host = next()?.to_owned();
        let wind_port = next()?.parse().ok()?;
        let is_valid = addresses.len() <= ADDRESSES_MAX
            && host.len() <= HOST_BYTES_MAX
            && version.len() <= VERSION_BYTES_MAX;
        is_valid.then_some(Self {
            key,
            proof,
            version,
            port,
            addresses,
            host,
            network,
            wind_port,
        })
    }
}

/// Address of a local interface, with its prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalAddress {
    pub address: IpAddr,
    pub prefix: u8,
    is_loopback: bool,
}

/// Returns the addresses of the local interfaces that are up, or of the named interface only.
/// Loopback addresses are left out if there are others.
///
/// # Errors
/// The kernel does not list the interfaces.
pub fn local_addresses(interface: Option<&str>) -> std::io::Result<Vec<LocalAddress>> {
    let mut addresses = Vec::new();
    for entry in getifaddrs()? {
        let is_up = entry.flags.contains(InterfaceFlags::IFF_UP);
        if !is_up || interface.is_some_and(|name| name != entry.interface_name) {
            continue;
        }
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => address.to_bits().leading_ones(),
            IpAddr::V6(address) => address.to_bits().leading_ones(),
        };
        let ip = |storage: Option<nix::sys::socket::SockaddrStorage>| {
            let storage = storage?;
            let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        let Some(address) = ip(entry.address) else {
            continue;
        };
        // A link-local address needs a scope, which differs from host to host.
        if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
            continue;
        }
        addresses.push(LocalAddress {
            address,
            prefix: ip(entry.netmask).map_or(0, bits) as u8,
            is_loopback: address.is_loopback(),
        });
    }
    addresses.sort_by_key(|local| (local.is_loopback, local.address.is_ipv6()));
    // No other host can reach a loopback address, so loopback is used only without an alternative.
    if addresses.iter().any(|local| !local.is_loopback) {
        addresses.retain(|local| !local.is_loopback);
    }
    addresses.truncate(ADDRESSES_MAX);
    Ok(addresses)
}

/// Returns the names of the local interfaces that are up and have an IP address.
///
/// # Errors
/// The kernel does not list the interfaces.
pub fn interfaces() -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in getifaddrs()? {
        let is_ip = entry.address.is_some_and(|address| {
            address.as_sockaddr_in().is_some() || address.as_sockaddr_in6().is_some()
        });
        if is_ip && entry.flags.contains(InterfaceFlags::IFF_UP) {
            names.push(entry.interface_name);
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Returns the address at which a host with these addresses reaches a card's owner. An address on a
/// common subnet is preferred.
pub fn reach(card: &Card, local_addresses: &[LocalAddress]) -> Option<SocketAddr> {
    let is_on_link = |address: &&IpAddr| {
        local_addresses
            .iter()
            .any(|local| local.has_on_link(**address))
    };
    let on_link = card.addresses.iter().find(is_on_link);
    let address = on_link.or_else(|| card.addresses.first())?;
    Some(SocketAddr::new(*address, card.port))
}

impl LocalAddress {
    fn has_on_link(&self, remote: IpAddr) -> bool {
        let prefix = u32::from(self.prefix);
        match (self.address, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let mask = |address: Ipv4Addr| address.to_bits().checked_shr(32 - prefix);
                prefix > 0 && mask(local) == mask(remote)
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let mask = |address: Ipv6Addr| address.to_bits().checked_shr(128 - prefix);
                prefix > 0 && mask(local) == mask(remote)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            key: [0xab; 16],
            proof: [0x0c; 8],
            version: "0.1.0+12345678".to_owned(),
            port: 4000,
            addresses: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
            host: "node7".to_owned(),
            network: 5,
            wind_port: 4001,
        }
    }

    #[test]
    fn card__written_and_parsed__is_unchanged_and_malformed_ones_are_refused() {
        assert_eq!(Card::parse(&card().bytes()), Some(card()));
        assert_eq!(Card::parse(&[0; CARD_BYTES]), None);
        assert_eq!(Card::parse(b"kumi2 00 0 1 1 0 10.0.0.1 a\0"), None);
        assert_eq!(Card::parse(b"kumi3 no end"), None);
        let many = b"kumi3 00 0 1 1 0 ::,::,::,::,::,::,::,::,:: a 0\0";
        assert_eq!(Card::parse(many), None);
        let mut largest = card();
        largest.addresses = vec![IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)); ADDRESSES_MAX];
        largest.host = "h".repeat(HOST_BYTES_MAX);
        largest.version = "v".repeat(VERSION_BYTES_MAX);
        assert!(crate::VERSION.len() <= VERSION_BYTES_MAX);
        assert_eq!(Card::parse(&largest.bytes()), Some(largest));
    }

    #[test]
    fn reach__peer_on_a_shared_network__uses_its_address_there() {
        let local = |address: &str, prefix| LocalAddress {
            address: address.parse().unwrap(),
            prefix,
            is_loopback: false,
        };
        let same_subnet = [local("192.168.1.1", 24), local("fd00::1", 64)];
        assert_eq!(
            reach(&card(), &same_subnet),
            Some("[fd00::7]:4000".parse().unwrap())
        );
        let other_subnets = [local("192.168.1.1", 24), local("10.0.1.1", 24)];
        assert_eq!(
            reach(&card(), &other_subnets),
            Some("10.0.0.7:4000".parse().unwrap())
        );
    }

    #[test]
    fn own_addresses__given_interface__lists_only_its_addresses() {
        assert!(!local_addresses(None).unwrap().is_empty());
        assert!(local_addresses(Some("none-such")).unwrap().is_empty());
        let loopback = local_addresses(Some("lo")).unwrap();
        assert!(loopback.iter().all(|local| local.address.is_loopback()));
    }
}
