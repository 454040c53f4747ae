//! The variants with planned collectives.

use super::Running;
use anyhow::Context;

/// Writes the network file to every host, for `kumi run`. Groups use this `transport`. `planned`
/// names the planned collectives of MPI.
pub fn start(running: &mut Running<'_>, transport: &str, planned: &str) -> anyhow::Result<()> {
    if running.hosts.kind() == "lab" {
        // Without this library, `kumi run` would leave collectives to the MPI library, and the plan
        // would measure those.
        kumi_command::library::planning_library().map_err(anyhow::Error::msg)?;
    }
    let file = write_network(running)?;
    let kumi = running.hosts.kumi().to_owned();
    running.wraps_ranks = true;
    let transport = format!("KUMI_TRANSPORT={transport}");
    running.prefix = [
        "env",
        &transport,
        &kumi,
        "run",
        "--coll",
        planned,
        "--topology",
        &file,
        "--",
    ]
    .map(String::from)
    .to_vec();
    Ok(())
}

/// Writes the network file to every host. Returns its path there.
pub fn write_network(running: &mut Running<'_>) -> anyhow::Result<String> {
    let _shield = kumi_command::interrupt::shield();
    let network = running.hosts.network()?;
    let text = network.to_toml().context("cannot write the network file")?;
    // The ranks of a job share one command line, so the file has the same name everywhere.
    let file = format!("/tmp/kumi-bench-network-{}.toml", std::process::id());
    for host in running.hosts.names().to_vec() {
        let write = format!("umask 077; cat > {file}");
        running
            .hosts
            .feed(&host, &["sh", "-c", &write], text.as_bytes())?;
        let remove = ["rm", "-f", &file].map(String::from).to_vec();
        running.undo.push((host, remove));
    }
    Ok(file)
}
