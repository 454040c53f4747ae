use super::*;

const TWO_LINKS: &str = r#"name = "two"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[switch]]
name = "s1"
[[link]]
between = ["h1:eth1", "s1"]
rate = "1Gbit"
[[link]]
between = ["h2:eth1", "s1"]
rate = "1Gbit"
[[link]]
between = ["h1:eth2", "h2:eth2"]
rate = "1Gbit"
rx_coalesce = "50us"
"#;

/// Loop of two switches, to append to [`TWO_LINKS`].
const RING: &str = r#"
[[switch]]
name = "s2"
[[link]]
between = ["s1", "s2"]
[[link]]
between = ["s2", "s1"]
"#;

fn refusal(change: impl Fn(String) -> String) -> String {
    Topology::parse("lab.toml", &change(TWO_LINKS.to_owned()))
        .unwrap_err()
        .to_string()
}

#[test]
fn topology__two_hosts_a_switch_and_a_cable__are_read() {
    let topology = Topology::parse("lab.toml", TWO_LINKS).unwrap();
    assert_eq!(
        topology.nic_names(),
        ["h1:eth1", "h2:eth1", "h1:eth2", "h2:eth2"]
    );
    assert!(topology.links[2].is_cable() && !topology.links[0].is_cable());
    assert!(topology.fits_kernel());
    assert_eq!(topology.congestion_control, "cubic");
}

#[test]
fn topology__mistyped_key__names_line_and_nearest_key() {
    let error = refusal(|text| text.replacen("rate =", "rat =", 1));
    assert!(
        error.starts_with("lab.toml:10: rat: `rat` is not known here; did you mean `rate`?"),
        "{error}"
    );
}

#[test]
fn topology__value_with_a_wrong_unit__names_line_key_and_value() {
    let error = refusal(|text| text.replacen("\"1Gbit\"", "\"1Gb\"", 1));
    assert!(
        error.starts_with("lab.toml:10: rate: `1Gb` is not a rate; write"),
        "{error}"
    );
}

#[test]
fn topology__unknown_host__suggests_the_nearest() {
    let error = refusal(|text| text.replacen("h1:eth1", "h3:eth1", 1));
    assert!(
        error.starts_with("lab.toml:9: between: no host `h3`; did you mean `h1`?"),
        "{error}"
    );
}

#[test]
fn topology__invalid_values__are_named_with_what_is_accepted() {
    const LAST_KEY: &str = r#"rx_coalesce = "50us""#;
    for (old, new, message) in [
        (
            r#""two""#,
            r#""two links""#,
            "1: name: `two links` is not a name; use 1 to 40 letters, digits, `-`, `_` or `.`, \
             a letter or digit first",
        ),
        (
            r#"name = "s1""#,
            r#"name = "h1""#,
            "7: name: `h1` is already the name of a host or switch; give each its own",
        ),
        (
            r#"["h1:eth1", "s1"]"#,
            r#"["h1:eth1"]"#,
            r#"9: between: 1 ends: expected two, such as ["h1:eth1", "s1"]"#,
        ),
        (
            "h1:eth1",
            "h1",
            "9: between: `h1` is a host; name its NIC too, as `h1:eth1`",
        ),
        (
            r#""s1"]"#,
            r#""s9"]"#,
            "9: between: no switch `s9`; did you mean `s1`?",
        ),
        (
            r#""s1"]"#,
            r#""core"]"#,
            "9: between: no switch `core` (known: s1)",
        ),
        (
            "h1:eth1",
            "login:eth1",
            "9: between: no host `login` (known: h1, h2)",
        ),
        (
            "h1:eth1",
            "h1:eth 1",
            "9: between: `eth 1` is not a device name; use 1 to 15 letters, digits, `-`, `_` \
             or `.`, such as `eth1`, but not `lo`",
        ),
        (
            "h1:eth2",
            "h1:eth1",
            "15: between: `h1:eth1` already has a link; give this one another device name",
        ),
        (
            "h2:eth2",
            "h1:eth3",
            "15: between: `h1:eth2` and `h1:eth3` are on the same host or switch; a link joins \
             two different ones",
        ),
        (
            LAST_KEY,
            r#"address = "10.1.0.1""#,
            "17: address: `10.1.0.1` is not an IPv4 address with its prefix length; write it as \
             `10.1.0.1/24`",
        ),
        (
            LAST_KEY,
            r#"addresses = ["10.9.0.1/24", "10.9.0.2/33"]"#,
            "17: address: `10.9.0.2/33` is not an IPv4 address with its prefix length; write it \
             as `10.1.0.1/24`",
        ),
        (
            LAST_KEY,
            "address = \"10.9.0.1/24\"\naddresses = []",
            "18: addresses: both `address` and `addresses`; write one of them",
        ),
        (
            LAST_KEY,
            r#"addresses = ["10.9.0.1/24", "10.9.0.2/24", "10.9.0.3/24"]"#,
            "17: addresses: 3 given: expected at most 2, one for each NIC of the link",
        ),
        (
            LAST_KEY,
            "nic_queue = \"150KB\"\nnic_bands = true",
            "18: nic_bands: bands count packets, and `nic_queue` is 150KB; write it as a number \
             of packets",
        ),
        (
            "rate = \"1Gbit\"\nrx_coalesce = \"50us\"",
            "nic_bands = true",
            "16: nic_bands: a queue needs a wire that is slower than the host; give the link a \
             `rate`",
        ),
        (
            LAST_KEY,
            "tso = true",
            "17: tso: bursts cross the wire whole, which a `rate` does not allow; remove one of \
             them",
        ),
        (
            LAST_KEY,
            "mtu = 9217",
            "17: mtu: invalid MTU 9217: expected 68 (RFC 791) to 9216",
        ),
        (
            LAST_KEY,
            RING,
            "23: between: joining `s2` and `s1` closes a loop of switches; remove one link of \
             the loop",
        ),
        (
            LAST_KEY,
            "[[link]]\nbetween = [\"h1:e\", \"s1\"]\naddresses = [\"10.9.0.1/8\", \"10.9.0.2/8\"]",
            "19: addresses: 2 given: expected at most 1, one for each NIC of the link",
        ),
    ] {
        let error = refusal(|text| text.replacen(old, new, 1));
        assert_eq!(error, format!("lab.toml:{message}"), "{new}");
    }
}

#[test]
fn topology__switch_without_any__is_refused_with_the_missing_table() {
    let error = refusal(|text| text.replacen("[[switch]]\nname = \"s1\"\n", "", 1));
    let expected = "lab.toml:7: between: no switch `s1`; the file has no [[switch]]";
    assert_eq!(error, expected);
}

#[test]
fn topology__too_many_hosts_or_segments__are_counted_with_the_limit() {
    let parse = |text: &str| Topology::parse("lab.toml", text).unwrap_err().to_string();
    let hosts = |count: usize| -> String {
        let host = |number| format!("[[host]]\nname = \"h{number}\"\n");
        (1..=count).map(host).collect()
    };
    for count in [0, 251] {
        assert_eq!(
            parse(&format!("name = \"many\"\n{}", hosts(count))),
            format!("lab.toml:1: host: {count} hosts: expected 1 to 250 [[host]] entries")
        );
    }
    let cable = |number| format!("[[link]]\nbetween = [\"h1:e{number}\", \"h2:e{number}\"]\n");
    let cables: String = (1..=251).map(cable).collect();
    assert_eq!(
        parse(&format!("name = \"many\"\n{}{cables}", hosts(2))),
        "lab.toml:1: link: 251 segments: expected at most 250; join links through switches"
    );
}

#[test]
fn topology__delay_on_a_kernel_fabric__is_refused_with_the_line_of_the_fabric() {
    let error = refusal(|text| {
        let text = text.replacen("\"two\"", "\"fabric\"\nfabric = \"kernel\"", 1);
        format!("{text}delay = \"1ms\"\n")
    });
    let expected = "lab.toml:2: fabric: `kernel` does not support delay, jitter, re-ordering or \
                    a shared buffer; write \"auto\" or \"emulator\"";
    assert_eq!(error, expected);
}

#[test]
fn topology__unknown_fabric__is_named_with_the_known_ones() {
    let error = refusal(|text| format!("fabric = \"kernal\"\n{text}"));
    let expected = "lab.toml:1: fabric: `kernal` is not known here; did you mean `kernel`? \
                    (known: auto, kernel, emulator)";
    assert_eq!(error, expected);
}

#[test]
fn addresses__segments__follow_the_order_of_links() {
    let topology = Topology::parse("lab.toml", TWO_LINKS).unwrap();
    let plan = address::plan(&topology);
    let ipv4: Vec<String> = plan.iter().map(|nic| nic.ipv4.to_string()).collect();
    assert_eq!(ipv4, ["10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2"]);
    assert_eq!(plan[0].ipv6_link_local.to_string(), "fe80::6b:75ff:fe01:1");
    assert!(address::hosts_file(&topology, &plan, 0).contains("10.1.0.2 h2\n"));
}

#[test]
fn bench_topologies__all_files__are_valid() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/topologies");
    let mut count = 0;
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        Topology::read(&path).unwrap_or_else(|error| panic!("{error}"));
        count += 1;
    }
    assert!(count >= 8, "only {count} topologies");
}

#[test]
fn path__between_hosts_of_two_switches__has_the_trunk_in_the_middle() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/topologies");
    let topology = Topology::read(&dir.join("gridmpi.toml")).unwrap();
    let local_path: Vec<_> = topology.path(0, 1).unwrap();
    assert_eq!(local_path.len(), 2, "by the switch both are on");
    let trunk_mbps: Vec<u64> = topology
        .path(0, 15)
        .unwrap()
        .iter()
        .map(|link| link.rate.unwrap().bps() / 1_000_000)
        .collect();
    assert_eq!(trunk_mbps, [1000, 500, 1000]);
}
