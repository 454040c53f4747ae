//! MPTCP with one subflow per link, for unmodified programs under `mptcpize`.

use super::Running;
use anyhow::Context;

/// Adds the addresses of all links but the first as endpoints, on both hosts.
pub fn start(running: &mut Running<'_>) -> anyhow::Result<()> {
    running
        .set_sysctl("net.mptcp.enabled", "1")
        .context("the kernel has no MPTCP, which the variant `mptcp` needs")?;
    let roles = [
        (running.client().to_string(), "subflow"),
        (running.server().to_string(), "signal"),
    ];
    for (host, role) in roles {
        let limits = [
            "ip",
            "mptcp",
            "limits",
            "set",
            "subflow",
            "8",
            "add_addr_accepted",
            "8",
        ];
        let none = [
            "ip",
            "mptcp",
            "limits",
            "set",
            "subflow",
            "0",
            "add_addr_accepted",
            "0",
        ];
        running.act(&host, &limits, &none)?;
        for device in running.hosts.devices(&host).into_iter().skip(1) {
            let address = running.hosts.address(&host, &device)?;
            running.act(
                &host,
                &[
                    "ip", "mptcp", "endpoint", "add", &address, "dev", &device, role,
                ],
                &["ip", "mptcp", "endpoint", "flush"],
            )?;
        }
    }
    running.prefix = vec!["mptcpize".into(), "run".into()];
    Ok(())
}
