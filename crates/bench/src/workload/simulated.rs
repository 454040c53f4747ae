//! A collective's plan, executed in the lab's model in virtual time, for more hosts than a machine
//! has room for.

use super::{Context, Measurement, coll_bound};
use anyhow::Context as _;
use kumi_lab::topology::Bytes;
use kumi_simulate::simulate;
use kumi_topo::{End, Host, Link, Network};

/// Simulates the operation that `mpi_coll` calls `operation`, size by size, on the topology's
/// network enlarged to `hosts` hosts.
pub fn measure(
    context: &Context<'_>,
    operation: &str,
    hosts: usize,
    sizes_bytes: &[u64],
    port_queue: Bytes,
) -> anyhow::Result<Vec<Measurement>> {
    let network = enlarge(&context.running.hosts.network()?, hosts)?;
    let sizes = sizes_bytes.iter().map(|size| {
        let plan = coll_bound::plan(&network, operation, *size)?
            .with_context(|| coll_bound::unknown_operation(operation))?;
        let outcome = simulate(&network, &plan, port_queue)?;
        let mut measurement = Measurement {
            size_bytes: Some(*size),
            ..Measurement::default()
        };
        let median_us = outcome.seconds * 1e6;
        for (name, value) in [
            ("median_us", median_us),
            ("goodput_bps", *size as f64 * 8.0 / outcome.seconds),
            ("port_bytes", outcome.port_bytes as f64),
        ] {
            measurement.figures.insert(name.into(), value);
        }
        coll_bound::add_for_plan(&mut measurement, &network, &plan, median_us);
        Ok(measurement)
    });
    sizes.collect()
}

/// Returns the network with more hosts. Each added host copies one of the first hosts, in turn: it
/// is on the same switch, with the same kind of link.
fn enlarge(network: &Network, hosts: usize) -> anyhow::Result<Network> {
    let count = network.hosts.len();
    anyhow::ensure!(
        hosts >= count,
        "invalid hosts = {hosts}: expected at least {count}, the hosts of the topology"
    );
    let mut network = network.clone();
    for host in count..hosts {
        let original = host % count;
        let own = |link: &&Link| link.ends.contains(&End::Host(original));
        let link = *network.links.iter().find(own).context("host has no link")?;
        let replace = |end| match end {
            End::Host(_) => End::Host(host),
            switch => switch,
        };
        network.links.push(Link {
            ends: link.ends.map(replace),
            ..link
        });
        network.hosts.push(Host {
            name: format!("{}-{host}", network.hosts[original].name),
            ..network.hosts[original].clone()
        });
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grown_network__more_hosts__copies_the_original_hosts() {
        let text = r#"
            name = "two"
            host = [{ name = "a" }, { name = "b" }]
            switch = [{ name = "s" }, { name = "t" }]
            link = [
                { between = ["a", "s"], rate = "1Gbit" },
                { between = ["s", "t"], rate = "2Gbit" },
                { between = ["t", "b"], rate = "3Gbit" },
            ]
        "#;
        let network = Network::parse("two", text).unwrap();
        let enlarged = enlarge(&network, 5).unwrap();
        let names = enlarged.hosts.iter().map(|host| host.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "a-2", "b-3", "a-4"]);
        assert_eq!(enlarged.links[4].ends, [End::Switch(1), End::Host(3)]);
        Network::parse("again", &enlarged.to_toml().unwrap()).unwrap();
        assert_eq!(
            super::enlarge(&network, 1).unwrap_err().to_string(),
            "invalid hosts = 1: expected at least 2, the hosts of the topology"
        );
    }
}
