//! State changes of paths that the device reports during a workload: the time until a fault is
//! detected, and the number of changes.

use super::Context;
use crate::hosts::Hosts;
use crate::hosts::background::Background;
use crate::sample::Figures;
use crate::variant::Running;
use serde::Deserialize;
use serde_json::{Value, json};

/// Time within which a fault must be detected to count, in seconds.
const DETECTION_WINDOW_S: f64 = 1.0;

/// Listeners for the events of both hosts' devices.
pub struct PathEvents {
    client: Background,
    server: Background,
}

/// Changes of paths that the devices reported, each list in order of time.
pub struct Changes {
    client: Vec<Change>,
    server: Vec<Change>,
}

/// A `path` event of `kumi link events`.
#[derive(Debug, Clone, Deserialize)]
struct Change {
    unix_s: f64,
    link: String,
    from: String,
    to: String,
    #[serde(default)]
    reason: String,
}

impl PathEvents {
    /// Starts to listen, if the variant is a device that reports its paths.
    pub fn watch(running: &Running<'_>, seconds_max: u32) -> anyhow::Result<Option<Self>> {
        if !running.variant.is_device() {
            return Ok(None);
        }
        let argv = [running.hosts.kumi(), "link", "events", &running.device];
        let listen = |host: &str| Background::start(running.hosts, host, &argv, seconds_max);
        Ok(Some(Self {
            client: listen(running.client())?,
            server: listen(running.server())?,
        }))
    }

    /// Stops listening and returns the changes until now.
    pub fn finish(self) -> anyhow::Result<Changes> {
        Ok(Changes {
            client: changes(&self.client.stop()?),
            server: changes(&self.server.stop()?),
        })
    }
}

/// Returns the `path` events among `lines`. The last line may be incomplete.
fn changes(lines: &str) -> Vec<Change> {
    lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

impl Changes {
    /// Returns `state_changes` of both devices, and `detected_NAME_ms` of each event of the plan
    /// that took a path out of `up` at the sender.
    pub fn figures(&self, context: &Context<'_>, event_times: &[(String, u64)]) -> Figures {
        let mut figures = Figures::new();
        let count = self.client.len() + self.server.len();
        figures.insert("state_changes".into(), count as f64);
        let (hosts, client) = (context.running.hosts, context.running.client());
        for event in context.events {
            let entry = event_times.iter().find(|(name, _)| *name == event.name);
            let Some((name, unix_ns)) = entry else {
                continue;
            };
            let link = device_on_link(hosts, client, &event.link);
            if let Some(after_s) = detection_s(&self.client, &link, *unix_ns as f64 / 1e9) {
                figures.insert(format!("detected_{name}_ms"), after_s * 1e3);
            }
        }
        figures
    }
}

impl Changes {
    /// Returns all changes as JSON, for the explanation of a figure. Times count from
    /// `first_unix_ns`.
    pub fn series(&self, first_unix_ns: u64) -> Value {
        let object = |host: &str, change: &Change| {
            json!({
                "at_s": change.unix_s - first_unix_ns as f64 / 1e9,
                "host": host, "link": change.link,
                "from": change.from, "to": change.to, "reason": change.reason,
            })
        };
        let client = self.client.iter().map(|change| object("client", change));
        let server = self.server.iter().map(|change| object("server", change));
        client.chain(server).collect()
    }
}

/// Returns the device of `host` on the same link as `end` of a plan. Links are paired in order.
fn device_on_link(hosts: &dyn Hosts, host: &str, end: &str) -> String {
    let device = end.rsplit(':').next().unwrap_or(end);
    let number = device
        .strip_prefix("eth")
        .and_then(|text| text.parse().ok());
    number
        .and_then(|number: usize| hosts.devices(host).get(number.checked_sub(1)?).cloned())
        .unwrap_or_else(|| device.into())
}

/// Returns the time after `from_s` at which the path of `link` left `up` and stayed out of it, in
/// seconds. A suspicion that is withdrawn is not a detection.
fn detection_s(changes: &[Change], link: &str, from_s: f64) -> Option<f64> {
    let mut out_at_s = None;
    for change in changes {
        let after_s = change.unix_s - from_s;
        if change.link != link || !(0.0..DETECTION_WINDOW_S).contains(&after_s) {
            continue;
        }
        out_at_s = match change.to.as_str() {
            "up" => None,
            _ => out_at_s.or(Some(after_s)),
        };
    }
    out_at_s
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"
        {"event":"path","unix_s":9.5,"link":"eth2","from":"up","to":"suspect"}
        {"event":"path","unix_s":10.0,"link":"eth2","from":"suspect","to":"up"}
        {"event":"path","unix_s":10.0625,"link":"eth1","from":"up","to":"suspect"}
        {"event":"path","unix_s":10.125,"link":"eth1","from":"suspect","to":"up"}
        {"event":"path","unix_s":10.25,"link":"eth2","from":"up","to":"suspect"}
        {"event":"path","unix_s":10.5,"link":"eth2","from":"suspect","to":"down"}
        {"event":"lossy","unix_s":10.6,"link":"eth2","loss":0.2}
        {"event":"path","unix_s":12.0,"link":"eth2","from":"down","to":"up"}
        {"event":"pa"#;

    #[test]
    fn detected__path_out_of_use__counts_from_the_fault_to_the_first_change() {
        assert_eq!(detection_s(&changes(LINES), "eth2", 10.0), Some(0.25));
    }

    #[test]
    fn detected__suspicion_withdrawn__does_not_count() {
        assert_eq!(detection_s(&changes(LINES), "eth1", 10.0), None);
        assert_eq!(detection_s(&changes(LINES), "eth2", 11.0), None);
    }

    #[test]
    fn changes__other_events_and_a_truncated_line__are_ignored() {
        assert_eq!(changes(LINES).len(), 7);
    }
}
