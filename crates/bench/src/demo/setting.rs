//! Place and time of the demo's run, for its report.

use crate::hosts::Hosts;
use crate::manifest::Manifest;
use std::fs;
use std::process::Command;

/// Facts of the run with their names, in the order of the report.
#[derive(Debug, Clone, Default)]
pub struct Setting(pub Vec<(&'static str, String)>);

impl Setting {
    /// Reads the facts from this machine and the first host.
    pub fn collect(hosts: &dyn Hosts) -> anyhow::Result<Self> {
        let manifest = Manifest::collect(hosts, 0, false)?;
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = field(&cpuinfo, "model name").unwrap_or("processor of unknown model");
        let name = nix::unistd::gethostname().unwrap_or_default();
        let program = |name: &str| manifest.programs.get(name).cloned().unwrap_or_default();
        let facts = [
            ("date", date()),
            ("machine", name.to_string_lossy().into_owned()),
            ("processors", format!("{} × {model}", manifest.cpus)),
            ("kernel", format!("Linux {}", manifest.kernel)),
            ("commit", manifest.commit),
            ("kumi", program("kumi")),
            (
                "programs",
                format!("{}; {}", program("iperf3"), program("mpirun")),
            ),
        ];
        let known = facts.into_iter().filter(|(_, value)| !value.is_empty());
        Ok(Self(known.collect()))
    }
}

/// Returns date and time in UTC, as `date` prints them; empty if there is no such command.
fn date() -> String {
    let output = Command::new("date").args(["-u", "+%F %H:%M UTC"]).output();
    output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

/// Returns the first value of `name` in `cpuinfo`, the text of `/proc/cpuinfo`.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field__cpuinfo__is_the_first_value_of_that_name() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A B 3\nprocessor\t: 1\nmodel name\t: C\n";
        assert_eq!(field(cpuinfo, "model name"), Some("A B 3"));
        assert_eq!(field(cpuinfo, "cache size"), None);
    }
}
