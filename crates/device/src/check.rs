//! Checks that a device's configuration fits this machine: its NICs, its key and its ports.

use crate::config::{DeviceConfig, Preset};
use crate::control::{self, Request};
use crate::key;
use crate::run_dir::{self, RunDir};
use kumi_command::BadInput;
use kumi_sys::netlink::link::Interface;
use serde_json::Value;

/// Least MTU of a link, in bytes: the minimum of IPv6.
const MTU_MIN: u32 = 1280;
/// Kinds of master interface whose ports keep an IP stack of their own.
const MASTERS_ALLOWED: [&str; 1] = ["vrf"];

/// Returns all mistakes of `config` on a machine with the interfaces `all`.
pub fn mistakes(config: &DeviceConfig, all: &[Interface]) -> Vec<String> {
    let mut mistakes = config.mistakes();
    for (index, name) in config.over.iter().enumerate() {
        let checked = interface(name, all, config.needs_ipv6(index));
        mistakes.extend(checked.err().map(|error| error.0));
    }
    if config.preset == Preset::Kumi {
        mistakes.extend(
            key::load(&config.key)
                .err()
                .map(|error| format!("{error:#}")),
        );
    }
    mistakes.extend(port_conflict(config));
    mistakes
}

/// Returns an error message if both devices would listen on the same UDP port of the same
/// interface.
pub fn shared_port(first: &DeviceConfig, second: &DeviceConfig) -> Option<String> {
    let links = first.over.iter().filter(|link| second.over.contains(link));
    let links: Vec<&str> = links.map(String::as_str).collect();
    let ports = |config: &DeviceConfig| {
        u32::from(config.port)..u32::from(config.port) + u32::from(config.ports_max())
    };
    let is_shared = overlap(ports(first), ports(second)) && !links.is_empty();
    is_shared.then(|| conflict_message(first, &second.name, &links, second.port))
}

/// Returns an error message if a running device has a UDP port that `config` needs on the same
/// interface.
fn port_conflict(config: &DeviceConfig) -> Option<String> {
    let others = run_dir::devices().unwrap_or_default();
    let mut others = others.iter().filter(|name| **name != config.name);
    others.find_map(|name| {
        let state = control::ask(&RunDir::of(name).ok()?.socket(), &Request::Show).ok()?;
        let port = u32::try_from(state["facts"]["udp_port"].as_u64()?).ok()?;
        let queues = state["queues"].as_array().map_or(1, Vec::len) as u32;
        let links = state["links"].as_array().into_iter().flatten();
        let names = links.filter_map(|link: &Value| link["name"].as_str());
        let shared: Vec<&str> = names
            .filter(|name| config.over.iter().any(|own| own == name))
            .collect();
        let own = u32::from(config.port)..u32::from(config.port) + u32::from(config.ports_max());
        let is_shared = overlap(own, port..port + queues) && !shared.is_empty();
        is_shared.then(|| conflict_message(config, name, &shared, port as u16))
    })
}

fn overlap(first: std::ops::Range<u32>, second: std::ops::Range<u32>) -> bool {
    first.start < second.end && second.start < first.end
}

fn conflict_message(config: &DeviceConfig, holder: &str, links: &[&str], port: u16) -> String {
    format!(
        "port {}: {holder} has UDP port {port} on {}; set another `port` for {}, such as {}",
        config.port,
        links.join(", "),
        config.name,
        port.checked_add(100).unwrap_or(port - 100),
    )
}

/// Returns the interface `name` of `all`, or the reason why it cannot be a link.
pub fn interface<'a>(
    name: &str,
    all: &'a [Interface],
    needs_ipv6: bool,
) -> Result<&'a Interface, BadInput> {
    let bad = |reason: String| Err(BadInput(format!("over: {reason}")));
    let Some(interface) = all.iter().find(|interface| interface.name == name) else {
        let nics = all.iter().filter(|interface| !interface.is_loopback);
        let names: Vec<&str> = nics.map(|interface| interface.name.as_str()).collect();
        let names = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        return bad(format!("no interface `{name}`; this host has {names}"));
    };
    if interface.is_loopback {
        return bad(format!(
            "`{name}` is the loopback interface; a link is a NIC to other hosts"
        ));
    }
    if run_dir::devices().is_ok_and(|devices| devices.iter().any(|device| device == name)) {
        return bad(format!(
            "`{name}` is a kumi device itself; name the NICs under it"
        ));
    }
    if let Some((index, kind)) = &interface.master {
        if !MASTERS_ALLOWED.contains(&kind.as_str()) {
            let master = all.iter().find(|interface| interface.index == *index);
            let master = master.map_or("another interface", |master| master.name.as_str());
            return bad(format!(
                "`{name}` is a port of {master} ({kind}), which takes all its packets; \
                 run `ip link set {name} nomaster`"
            ));
        }
    }
    if interface.mtu < MTU_MIN {
        return bad(format!(
            "`{name}` has MTU {}: expected at least {MTU_MIN}; run `ip link set {name} mtu 1500`",
            interface.mtu
        ));
    }
    if !interface.is_up {
        return bad(format!("`{name}` is down; run `ip link set {name} up`"));
    }
    if needs_ipv6 && is_ipv6_disabled(name) {
        return bad(format!(
            "`{name}` has IPv6 disabled, and peers find each other by IPv6; run \
             `sysctl -w net.ipv6.conf.{name}.disable_ipv6=0`, or give each peer's IPv4 addresses with --peer"
        ));
    }
    Ok(interface)
}

/// Returns whether an interface has no IPv6: it is disabled there, or the kernel lacks it.
pub fn is_ipv6_disabled(name: &str) -> bool {
    let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    std::fs::read_to_string(path).map_or(true, |text| text.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(index: u32, name: &str) -> Interface {
        Interface {
            index,
            name: name.to_owned(),
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, 1]),
            is_up: true,
            has_carrier: true,
            is_loopback: name == "lo",
            master: None,
            is_gone: false,
        }
    }

    #[test]
    fn interface__unusable_as_a_link__is_refused_with_the_reason() {
        // This machine has no interfaces of these names, so IPv6 counts as disabled on them.
        let mut all = vec![
            nic(1, "lo"),
            nic(2, "nic-a"),
            nic(3, "br-a"),
            nic(4, "nic-b"),
            nic(5, "nic-c"),
            nic(6, "nic-d"),
            nic(7, "nic-e"),
        ];
        all[3].master = Some((3, "bridge".to_owned()));
        all[4].master = Some((3, "vrf".to_owned()));
        all[5].mtu = 1279;
        all[6].is_up = false;
        let index = |name: &str| interface(name, &all, false).map(|nic| nic.index);
        assert_eq!(index("nic-a").unwrap(), 2);
        assert_eq!(
            index("nic-c").unwrap(),
            5,
            "a VRF's port keeps its IP stack"
        );
        for (name, message) in [
            (
                "eth9",
                "no interface `eth9`; this host has nic-a, br-a, nic-b, nic-c, nic-d, nic-e",
            ),
            (
                "lo",
                "`lo` is the loopback interface; a link is a NIC to other hosts",
            ),
            (
                "nic-b",
                "`nic-b` is a port of br-a (bridge), which takes all its packets; run `ip link set \
                 nic-b nomaster`",
            ),
            (
                "nic-d",
                "`nic-d` has MTU 1279: expected at least 1280; run `ip link set nic-d mtu 1500`",
            ),
            ("nic-e", "`nic-e` is down; run `ip link set nic-e up`"),
            (
                "nic-a",
                "`nic-a` has IPv6 disabled, and peers find each other by IPv6; run `sysctl -w \
                 net.ipv6.conf.nic-a.disable_ipv6=0`, or give each peer's IPv4 addresses with \
                 --peer",
            ),
        ] {
            let error = interface(name, &all, true).unwrap_err();
            assert_eq!(error.0, format!("over: {message}"));
        }
        let error = interface("eth9", &all[..1], false).unwrap_err();
        assert_eq!(error.0, "over: no interface `eth9`; this host has none");
    }

    #[test]
    fn shared_port__same_nic_and_port__is_refused() {
        let device = |name: &str, link: &str, port: u16| -> DeviceConfig {
            toml::from_str(&format!(
                "name = \"{name}\"\nover = [\"{link}\"]\nport = {port}\nqueues = 2\n"
            ))
            .unwrap()
        };
        let first = device("kumi0", "eth1", 24_870);
        let message = "port 24871: kumi0 has UDP port 24870 on eth1; set another `port` for kumi1, \
                       such as 24970";
        let text = shared_port(&device("kumi1", "eth1", 24_871), &first);
        assert_eq!(text.as_deref(), Some(message));
        assert_eq!(shared_port(&device("kumi1", "eth1", 24_872), &first), None);
        assert_eq!(shared_port(&device("kumi1", "eth2", 24_870), &first), None);
    }
}
