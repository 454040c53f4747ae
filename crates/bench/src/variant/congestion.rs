//! One congestion control for every socket of a run, whatever the machine's default is.
//!
//! A namespace inherits the machine's default. The kernel lets it choose only among the controls
//! that the administrator allows, but a route may name any. If the sysctl is refused, every route
//! of the hosts' devices names the control instead. Unmodified programs obey routes as well.

use super::Running;

/// Makes new sockets on every host use the control `name`.
pub fn pin(running: &mut Running<'_>, name: &str) -> anyhow::Result<()> {
    let is_default = running
        .set_sysctl("net.ipv4.tcp_congestion_control", name)
        .is_ok();
    for host in running.hosts.names().to_vec() {
        let mut devices = running.hosts.devices(&host);
        if !devices.contains(&running.device) {
            devices.push(running.device.clone());
        }
        for device in devices {
            let routes = running
                .hosts
                .run(&host, &["ip", "-4", "route", "show", "dev", &device])?;
            let setting = format!("congctl {name}");
            for route in routes.lines().filter(|route| !route.contains(&setting)) {
                // A route's own control takes precedence over the default.
                if !is_default || route.contains("congctl") {
                    name_in_route(running, &host, &device, route, name)?;
                }
            }
        }
    }
    Ok(())
}

fn name_in_route(
    running: &mut Running<'_>,
    host: &str,
    device: &str,
    route: &str,
    name: &str,
) -> anyhow::Result<()> {
    // Removes words that `show` prints and `change` rejects: states such as `linkdown`, and the
    // lock of `rto_min`, which is always set.
    let route = route.replace("rto_min lock", "rto_min");
    let arguments = route
        .split_whitespace()
        .filter(|argument| !matches!(*argument, "linkdown" | "dead"));
    let mut restore = vec!["ip", "route", "change"];
    restore.extend(arguments);
    restore.extend(["dev", device]);
    let mut change = restore.clone();
    if let Some(index) = change.iter().position(|argument| *argument == "congctl") {
        change.drain(index..index + 2);
    }
    change.extend(["congctl", name]);
    // A device of the variant takes its routes with it when it goes, so there is nothing to undo.
    if device == running.device && !running.hosts.devices(host).iter().any(|nic| nic == device) {
        running.hosts.run(host, &change)?;
        return Ok(());
    }
    running.act(host, &change, &restore)
}
