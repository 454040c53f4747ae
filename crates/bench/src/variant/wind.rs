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
        let (kumi, server) = (running.hosts.kumi().to_owned(), running.server().to_owned());
        let device = running.device.clone();
        let up = [kumi.as_str(), "wind", "up", &device];
        running
            .act(&server, &up, &[&kumi, "wind", "down"])
            .context("cannot let the kernel execute operations")?;
    }
    Ok(())
}
