//! The topology file of a lab: its keys, and the error messages for an invalid one.

use super::{
    BURST_DEFAULT, Bytes, Delay, End, FabricChoice, Faults, HOSTS_MAX, Host, Link, Nic, NicQueue,
    PORT_QUEUE_DEFAULT, Probability, RX_COALESCE_FRAMES_DEFAULT, Rate, SEGMENTS_MAX, Switch,
    Topology, TopologyError, address, fault,
};
use kumi_topo::nearest;
use kumi_topo::source::Source;
use serde::Deserialize;
use std::collections::HashSet;
use std::net::Ipv4Addr;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    fabric: Option<Spanned<FabricChoice>>,
    congestion_control: Option<Spanned<String>>,
    #[serde(default)]
    host: Vec<HostEntry>,
    #[serde(default)]
    switch: Vec<SwitchEntry>,
    #[serde(default)]
    link: Vec<LinkEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchEntry {
    name: Spanned<String>,
    port_queue: Option<Bytes>,
    shared_buffer: Option<Bytes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    between: Spanned<Vec<Spanned<String>>>,
    rate: Option<Rate>,
    #[serde(default)]
    delay: Delay,
    port_queue: Option<Bytes>,
    burst: Option<Delay>,
    mtu: Option<Spanned<u32>>,
    address: Option<Spanned<String>>,
    addresses: Option<Spanned<Vec<Spanned<String>>>>,
    nic_queue: Option<NicQueue>,
    nic_bands: Option<Spanned<bool>>,
    rx_coalesce: Option<Delay>,
    rx_coalesce_frames: Option<std::num::NonZeroU32>,
    gro: Option<bool>,
    tso: Option<Spanned<bool>>,
    gso_max_segs: Option<u32>,
    #[serde(default)]
    loss: Probability,
    burst_loss: Option<fault::BurstLoss>,
    #[serde(default)]
    corrupt: Probability,
    #[serde(default)]
    duplicate: Probability,
    #[serde(default)]
    reorder: Probability,
    #[serde(default)]
    reorder_delay: Delay,
    #[serde(default)]
    jitter: Delay,
}

fn address(
    source: &Source<'_>,
    address: &Spanned<String>,
) -> Result<(Ipv4Addr, u8), TopologyError> {
    let text = address.get_ref();
    text.split_once('/')
        .and_then(|(ip, len)| Some((ip.parse().ok()?, len.parse().ok().filter(|l| *l <= 32)?)))
        .ok_or_else(|| {
            let problem = format!(
                "`{text}` is not an IPv4 address with its prefix length; write it as `10.1.0.1/24`"
            );
            source.wrong(address.span(), "address", problem)
        })
}

/// Parses and checks a whole file.
pub fn parse(file: &str, text: &str) -> Result<Topology, TopologyError> {
    let source = Source { file, text };
    let entry: File = toml::from_str(text).map_err(|error| source.syntax(&error))?;
    let name = source.name("name", &entry.name, 40)?;
    let congestion_control = match &entry.congestion_control {
        Some(name) => source.name("congestion_control", name, 15)?,
        None => "cubic".to_owned(),
    };
    let mut taken = HashSet::new();
    let mut unique = |key: &str, name: &Spanned<String>| {
        let checked = source.name(key, name, 32)?;
        if taken.insert(checked.clone()) {
            Ok(checked)
        } else {
            let problem =
                format!("`{checked}` is already the name of a host or switch; give each its own");
            Err(source.wrong(name.span(), key, problem))
        }
    };
    let mut hosts = Vec::new();
    for host in &entry.host {
        hosts.push(Host {
            name: unique("name", &host.name)?,
        });
    }
    let mut switches = Vec::new();
    for switch in &entry.switch {
        switches.push(Switch {
            name: unique("name", &switch.name)?,
            port_queue: switch.port_queue.unwrap_or(PORT_QUEUE_DEFAULT),
            shared_buffer: switch.shared_buffer,
        });
    }
    if hosts.is_empty() || hosts.len() > HOSTS_MAX {
        let problem = format!(
            "{} hosts: expected 1 to {HOSTS_MAX} [[host]] entries",
            hosts.len()
        );
        return Err(source.wrong(0..0, "host", problem));
    }
    let mut topology = Topology {
        name,
        fabric: entry
            .fabric
            .as_ref()
            .map_or(FabricChoice::Auto, |fabric| *fabric.get_ref()),
        congestion_control,
        hosts,
        switches,
        links: Vec::new(),
    };
    for link in &entry.link {
        let checked = check_link(&source, &topology, link)?;
        topology.links.push(checked);
    }
    check_trees(&source, &topology, &entry)?;
    let segments = address::segments(&topology).into_iter().max().unwrap_or(0);
    if segments > SEGMENTS_MAX {
        let problem = format!(
            "{segments} segments: expected at most {SEGMENTS_MAX}; join links through switches"
        );
        return Err(source.wrong(0..0, "link", problem));
    }
    if topology.fabric == FabricChoice::Kernel && !topology.fits_kernel() {
        let problem = "`kernel` does not support delay, jitter, re-ordering or a shared buffer; write \"auto\" or \"emulator\"";
        let span = entry.fabric.as_ref().map_or(0..0, Spanned::span);
        return Err(source.wrong(span, "fabric", problem.to_owned()));
    }
    Ok(topology)
}

/// Checks one `[[link]]` against the hosts, the switches and the links before it.
fn check_link(
    source: &Source<'_>,
    topology: &Topology,
    link: &LinkEntry,
) -> Result<Link, TopologyError> {
    let [a, b] = link.between.get_ref().as_slice() else {
        let problem = format!(
            "{} ends: expected two, such as [\"h1:eth1\", \"s1\"]",
            link.between.get_ref().len()
        );
        return Err(source.wrong(link.between.span(), "between", problem));
    };
    let mut addresses = match (&link.address, &link.addresses) {
        (Some(_), Some(list)) => {
            let problem = "both `address` and `addresses`; write one of them".to_owned();
            return Err(source.wrong(list.span(), "addresses", problem));
        }
        (Some(entry), None) => vec![address(source, entry)?],
        (None, Some(list)) => list
            .get_ref()
            .iter()
            .map(|entry| address(source, entry))
            .collect::<Result<_, _>>()?,
        (None, None) => Vec::new(),
    }
    .into_iter();
    let queue = link.nic_queue.unwrap_or_default();
    let bands = link
        .nic_bands
        .as_ref()
        .is_some_and(|bands| *bands.get_ref());
    if let Some(bands_entry) = link.nic_bands.as_ref().filter(|_| bands) {
        let problem = match (queue, link.rate) {
            (NicQueue::Bytes(_), _) => Some(format!(
                "bands count packets, and `nic_queue` is {queue}; write it as a number of packets"
            )),
            (_, None) => Some(
                "a queue needs a wire that is slower than the host; give the link a `rate`"
                    .to_owned(),
            ),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(source.wrong(bands_entry.span(), "nic_bands", problem));
        }
    }
    let tso = link.tso.as_ref().is_some_and(|tso| *tso.get_ref());
    if let Some(entry) = link.tso.as_ref().filter(|_| tso && link.rate.is_some()) {
        let problem =
            "bursts cross the wire whole, which a `rate` does not allow; remove one of them";
        return Err(source.wrong(entry.span(), "tso", problem.to_owned()));
    }
    let mut end = |text: &Spanned<String>| -> Result<End, TopologyError> {
        match check_end(source, topology, text)? {
            (Place::Host(host), device) => Ok(End::Nic(Nic {
                host,
                device,
                address: addresses.next(),
                queue,
                bands,
                rx_coalesce: link.rx_coalesce.unwrap_or_default(),
                rx_coalesce_frames: link
                    .rx_coalesce_frames
                    .map_or(RX_COALESCE_FRAMES_DEFAULT, std::num::NonZeroU32::get),
                gro: link
                    .gro
                    .unwrap_or(link.rx_coalesce.unwrap_or_default() > Delay::ZERO),
                tso,
                gso_max_segs: link.gso_max_segs,
            })),
            (Place::Switch(switch), _) => Ok(End::Port(switch)),
        }
    };
    let ends = [end(a)?, end(b)?];
    let surplus = addresses.count();
    if surplus > 0 {
        let nics = ends.iter().filter(|end| end.nic().is_some()).count();
        let problem = format!(
            "{} given: expected at most {nics}, one for each NIC of the link",
            nics + surplus
        );
        let (key, span) = match (&link.address, &link.addresses) {
            (Some(address), _) => ("address", address.span()),
            (None, list) => ("addresses", list.as_ref().map_or(0..0, Spanned::span)),
        };
        return Err(source.wrong(span, key, problem));
    }
    let mtu = link.mtu.as_ref().map_or(1500, |mtu| *mtu.get_ref());
    if !(68..=9216).contains(&mtu) {
        let span = link.mtu.as_ref().map_or(0..0, Spanned::span);
        let problem = format!("invalid MTU {mtu}: expected 68 (RFC 791) to 9216");
        return Err(source.wrong(span, "mtu", problem));
    }
    if ends[0] == ends[1]
        || matches!((&ends[0], &ends[1]), (End::Nic(x), End::Nic(y)) if x.host == y.host)
    {
        let problem = format!(
            "`{}` and `{}` are on the same host or switch; a link joins two different ones",
            a.get_ref(),
            b.get_ref()
        );
        return Err(source.wrong(link.between.span(), "between", problem));
    }
    Ok(Link {
        ends,
        rate: link.rate,
        delay: link.delay,
        port_queue: link.port_queue,
        burst: link.burst.unwrap_or(BURST_DEFAULT),
        mtu,
        faults: Faults {
            loss: link.loss,
            burst_loss: link.burst_loss,
            corrupt: link.corrupt,
            duplicate: link.duplicate,
            reorder: link.reorder,
            reorder_delay: link.reorder_delay,
            jitter: link.jitter,
        },
    })
}

enum Place {
    Host(usize),
    Switch(usize),
}

/// Resolves the name of a link end, `h1:eth1` or `s1`.
fn check_end(
    source: &Source<'_>,
    topology: &Topology,
    end: &Spanned<String>,
) -> Result<(Place, String), TopologyError> {
    let text = end.get_ref();
    let wrong = |problem: String| Err(source.wrong(end.span(), "between", problem));
    let suggest = |name: &str, kind: &str, known: Vec<&str>| {
        let best = nearest(name, known.iter().copied());
        match (best, known.is_empty()) {
            (Some(best), _) => format!("; did you mean `{best}`?"),
            (None, true) => format!("; the file has no [[{kind}]]"),
            (None, false) => format!(" (known: {})", known.join(", ")),
        }
    };
    let host_names = || {
        topology
            .hosts
            .iter()
            .map(|host| host.name.as_str())
            .collect::<Vec<_>>()
    };
    let Some((name, device)) = text.split_once(':') else {
        let position = topology
            .switches
            .iter()
            .position(|switch| switch.name == *text);
        return match position {
            Some(switch) => Ok((Place::Switch(switch), String::new())),
            None if topology.host(text).is_some() => wrong(format!(
                "`{text}` is a host; name its NIC too, as `{text}:eth1`"
            )),
            None => {
                let known = topology
                    .switches
                    .iter()
                    .map(|switch| switch.name.as_str())
                    .collect();
                let hint = suggest(text, "switch", known);
                wrong(format!("no switch `{text}`{hint}"))
            }
        };
    };
    let Some(host) = topology.host(name) else {
        let hint = suggest(name, "host", host_names());
        return wrong(format!("no host `{name}`{hint}"));
    };
    let is_valid = !device.is_empty()
        && device.len() <= 15
        && device != "lo"
        && device
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.');
    if !is_valid {
        return wrong(format!(
            "`{device}` is not a device name; use 1 to 15 letters, digits, `-`, `_` or `.`, \
             such as `eth1`, but not `lo`"
        ));
    }
    if topology.nic(text).is_some() {
        return wrong(format!(
            "`{text}` already has a link; give this one another device name"
        ));
    }
    Ok((Place::Host(host), device.to_owned()))
}

/// Checks that the switches form trees. There is no spanning-tree protocol, so frames would
/// circulate in a loop for ever.
fn check_trees(
    source: &Source<'_>,
    topology: &Topology,
    entry: &File,
) -> Result<(), TopologyError> {
    let mut group: Vec<usize> = (0..topology.switches.len()).collect();
    for (link, link_entry) in topology.links.iter().zip(&entry.link) {
        let [End::Port(a), End::Port(b)] = link.ends else {
            continue;
        };
        let (from, to) = (group[a], group[b]);
        if from == to {
            let problem = format!(
                "joining `{}` and `{}` closes a loop of switches; remove one link of the loop",
                topology.switches[a].name, topology.switches[b].name
            );
            return Err(source.wrong(link_entry.between.span(), "between", problem));
        }
        group
            .iter_mut()
            .filter(|g| **g == from)
            .for_each(|g| *g = to);
    }
    Ok(())
}
