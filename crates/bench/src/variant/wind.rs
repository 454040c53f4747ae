//! The Wind variants.

use super::{Running, Variant};
use anyhow::Context;
use std::io::Read;

/// Returns whether `variant` is Wind.
pub fn is_wind(variant: Variant) -> bool {
    matches!(
        variant,
        Variant::Wind
            | Variant::WindSpin
            | Variant::WindPlain
            | Variant::WindTrusted
            | Variant::WindKernel
    )
}

/// Writes a cluster key to every host, for the libfabric provider.
pub fn start_fabric(running: &mut Running<'_>) -> anyhow::Result<()> {
    let _shield = kumi_command::interrupt::shield();
    if running.hosts.kind() == "lab" {
        // Without the provider, the plan would measure another one.
        let library = kumi_command::library::planning_library().map_err(anyhow::Error::msg)?;
        let provider = library.with_file_name("libkumi-fi.so");
        anyhow::ensure!(
            provider.exists(),
            "{} does not exist; `make build` builds it with libfabric's headers",
            provider.display()
        );
        running.provider = provider.parent().map(|folder| folder.display().to_string());
    }
    let mut key = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = format!("/tmp/kumi-bench-key-{}", std::process::id());
    for host in running.hosts.names().to_vec() {
        let write = format!("umask 077; cat > {file}");
        let text = format!("{digits}\n");
        running
            .hosts
            .feed(&host, &["sh", "-c", &write], text.as_bytes())?;
        let remove = ["rm", "-f", &file].map(String::from).to_vec();
        running.undo.push((host, remove));
    }
    running.secret = Some(file);
    Ok(())
}

/// Writes a secret to every host, and lets the kernel of the target execute operations if the
/// variant wants it.
pub fn start(running: &mut Running<'_>) -> anyhow::Result<()> {
    let _shield = kumi_command::interrupt::shield();
    let mut secret = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let file = format!("/tmp/kumi-bench-secret-{}", std::process::id());
    for host in running.hosts.names().to_vec() {
        let write = format!("umask 077; cat > {file}");
        running.hosts.feed(&host, &["sh", "-c", &write], &secret)?;
        let remove = ["rm", "-f", &file].map(String::from).to_vec();
        running.undo.push((host, remove));
    }
    running.secret = Some(file);
    if running.variant == Variant::WindKernel {
        let server = running.server().to_owned();
        execute_in_kernel(running, &[server])?;
    }
    Ok(())
}

/// Lets the kernels of `hosts` execute operations.
pub fn execute_in_kernel(running: &mut Running<'_>, hosts: &[String]) -> anyhow::Result<()> {
    let kumi = running.hosts.kumi().to_owned();
    let device = running.device.clone();
    for (index, host) in hosts.iter().enumerate() {
        let up = [kumi.as_str(), "wind", "up", &device];
        // The hosts of a lab share one daemon.
        let done = match running.hosts.kind() {
            "lab" if index > 0 => running.hosts.run(host, &up).map(drop),
            _ => running.act(host, &up, &[&kumi, "wind", "down"]),
        };
        done.context("cannot let the kernel execute operations")?;
    }
    Ok(())
}
