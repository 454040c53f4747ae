//! Waits for programs that do not say when they listen.

use super::Context;
use std::time::Duration;

/// Waits until a program of `package` listens on the target, which it does not say.
pub fn wait_for_listener(
    context: &Context<'_>,
    program: &str,
    port: &str,
    package: &str,
) -> anyhow::Result<()> {
    let running = context.running;
    for _ in 0..100 {
        let sockets = running.hosts.run(running.server(), &["ss", "-tln"])?;
        if sockets.contains(&format!(":{port} ")) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    anyhow::bail!("{program} does not listen on port {port}; is `{package}` installed?")
}
