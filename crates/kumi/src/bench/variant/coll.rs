//! MPI collectives by a plan.

use super::Running;
use anyhow::Context;

/// Puts the network file on every host, where `kumi run` finds it.
pub fn start(running: &mut Running<'_>) -> anyhow::Result<()> {
    if running.hosts.kind() == "lab" {
        // Without it, `kumi run` leaves collectives to the MPI library, and that would be measured.
        crate::run::planning_library().map_err(anyhow::Error::msg)?;
    }
    let _shield = crate::interrupt::shield();
    let network = running.hosts.network()?;
    let text = network.to_toml().context("the network as a file")?;
    // The ranks of a job have one command line: the file is under one name everywhere.
    let file = format!("/tmp/kumi-bench-network-{}.toml", std::process::id());
    for host in running.hosts.names().to_vec() {
        let write = format!("umask 077; cat > {file}");
        running
            .hosts
            .feed(&host, &["sh", "-c", &write], text.as_bytes())?;
        let remove = ["rm", "-f", &file].map(String::from).to_vec();
        running.undo.push((host, remove));
    }
    let kumi = running.hosts.kumi().to_owned();
    running.wraps_ranks = true;
    running.prefix = [&kumi, "run", "--coll", "all", "--topology", &file, "--"]
        .map(String::from)
        .to_vec();
    Ok(())
}
