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
fn topology__device_used_twice__is_refused() {
    let error = refusal(|text| text.replacen("h1:eth2", "h1:eth1", 1));
    assert!(error.contains("already has a link"), "{error}");
}

#[test]
fn topology__loop_of_switches__is_refused() {
    let ring = "\n[[switch]]\nname = \"s2\"\n[[link]]\nbetween = [\"s1\", \"s2\"]\n[[link]]\nbetween = [\"s2\", \"s1\"]\n";
    let error = refusal(|text| text + ring);
    assert!(error.contains("closes a loop"), "{error}");
}

#[test]
fn topology__delay_on_a_kernel_fabric__is_refused() {
    let error = refusal(|text| format!("fabric = \"kernel\"\n{text}delay = \"1ms\"\n"));
    assert!(error.starts_with("lab.toml:1: fabric:"), "{error}");
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
