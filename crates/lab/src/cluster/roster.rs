//! Roster of a running lab, with the data that another process needs to enter its hosts.

use super::error::ClusterError;
use super::run_dir;
use crate::topology::address::NicAddress;
use crate::topology::nearest;
use kumi_sys::netns::{Namespaces, avoid_processor_on_exec};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;

/// Format number of the roster and of the lab's JSON output.
pub const SCHEMA: u32 = 1;

/// A host and the process that holds its namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEntry {
    /// Name of the host.
    pub name: String,
    /// Process id of its holder.
    pub pid: u32,
}

/// A running lab, as `roster.json` and `kumi lab ls -j` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Format number: [`SCHEMA`].
    pub schema: u32,
    /// Name of the lab.
    pub name: String,
    /// Id of the process that owns the lab.
    pub pid: u32,
    /// Name of the fabric: `kernel` or `emulator`.
    pub fabric: String,
    /// Id of the process that holds the fabric's namespace.
    pub fabric_pid: u32,
    /// Processor that programs in hosts leave to the fabric, if it needs one.
    #[serde(default)]
    pub fabric_processor: Option<usize>,
    /// Hosts of the lab.
    pub hosts: Vec<HostEntry>,
    /// NICs of the hosts.
    pub nics: Vec<NicAddress>,
    /// Notes for the user, in sentences.
    pub notes: Vec<String>,
}

impl Roster {
    /// Reads the roster of the lab `name`, or of the only lab that is up.
    ///
    /// # Errors
    /// If there is no such lab, or if several are up and no name is given.
    pub fn find(name: Option<&str>) -> Result<Self, ClusterError> {
        let name = choose(name, &run_dir::running_labs()?)?;
        let path = run_dir::root()?.join(&name).join("roster.json");
        let operation = format!("reading {}", path.display());
        let text = std::fs::read_to_string(path).map_err(ClusterError::io(operation.clone()))?;
        serde_json::from_str(&text).map_err(|error| ClusterError::Io {
            operation,
            reason: error.into(),
        })
    }

    /// Returns the path of the supervisor's control socket.
    ///
    /// # Errors
    /// If there is no directory for labs.
    pub fn control_socket(&self) -> Result<PathBuf, ClusterError> {
        Ok(run_dir::root()?.join(&self.name).join("control"))
    }

    /// Returns the host called `name`.
    ///
    /// # Errors
    /// If there is no such host. The error names the lab's hosts.
    pub fn host(&self, name: &str) -> Result<&HostEntry, ClusterError> {
        self.hosts
            .iter()
            .find(|host| host.name == name)
            .ok_or_else(|| ClusterError::NoSuchHost {
                host: name.to_owned(),
                known: self
                    .hosts
                    .iter()
                    .map(|host| host.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }

    /// Returns a command that runs `program` in the host called `host`.
    ///
    /// # Errors
    /// If there is no such host, or if it cannot be entered.
    pub fn command(&self, host: &str, program: &str) -> Result<Command, ClusterError> {
        let pid = self.host(host)?.pid;
        let namespaces =
            Namespaces::of(pid).map_err(ClusterError::io(format!("entering host {host}")))?;
        let mut command = Command::new(program);
        namespaces.enter_on_exec(&mut command);
        if let Some(processor) = self.fabric_processor {
            avoid_processor_on_exec(&mut command, processor);
        }
        Ok(command)
    }
}

/// Returns `name` if it is one of `running_labs`. Without a name, returns the only lab.
fn choose(name: Option<&str>, running_labs: &[String]) -> Result<String, ClusterError> {
    let Some(name) = name else {
        return match running_labs {
            [] => Err(ClusterError::NoneUp),
            [only] => Ok(only.clone()),
            names => Err(ClusterError::SeveralUp {
                names: names.join(", "),
            }),
        };
    };
    if running_labs.iter().any(|lab| lab == name) {
        return Ok(name.to_owned());
    }
    let best = nearest(name, running_labs.iter().map(String::as_str));
    let hint = match (best, running_labs) {
        (Some(best), _) => format!(" (did you mean `{best}`?)"),
        (None, []) => String::new(),
        (None, names) => format!(" (up: {})", names.join(", ")),
    };
    Err(ClusterError::NoSuchLab {
        name: name.to_owned(),
        hint,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::control::Client;

    fn roster() -> Roster {
        let hosts = ["h1", "h2"].map(|name| HostEntry {
            name: name.to_owned(),
            pid: 1,
        });
        Roster {
            schema: SCHEMA,
            name: format!("test-{}-roster", std::process::id()),
            pid: 7,
            fabric: "kernel".to_owned(),
            fabric_pid: 1,
            fabric_processor: None,
            hosts: hosts.to_vec(),
            nics: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn lab__absent_or_ambiguous_name__is_refused_with_the_labs_that_are_up() {
        let two = ["one", "two"].map(String::from);
        for (name, running_labs, message) in [
            (
                None,
                &two[..0],
                "no lab is up; run `kumi lab up FILE.toml`, or `kumi lab up two-links`",
            ),
            (
                None,
                &two[..],
                "several labs are up; name one of one, two (with --lab, or after `down`)",
            ),
            (
                Some("one"),
                &two[..0],
                "no lab named `one` is up; run `kumi lab ls`, or `kumi lab up FILE.toml`",
            ),
            (
                Some("too"),
                &two[..],
                "no lab named `too` is up (did you mean `two`?); run `kumi lab ls`, or \
                 `kumi lab up FILE.toml`",
            ),
            (
                Some("gridmpi"),
                &two[..],
                "no lab named `gridmpi` is up (up: one, two); run `kumi lab ls`, or \
                 `kumi lab up FILE.toml`",
            ),
        ] {
            let error = choose(name, running_labs).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        assert_eq!(choose(None, &two[1..]).unwrap(), "two");
        assert_eq!(choose(Some("one"), &two).unwrap(), "one");
    }

    #[test]
    fn host__unknown_name__is_refused_with_the_hosts_of_the_lab() {
        let message = "the lab has no host `h3`; its hosts are h1, h2";
        let error = roster().command("h3", "true").unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(roster().host("h3").unwrap_err().to_string(), message);
    }

    #[test]
    fn client__lab_without_a_control_socket__is_refused_with_the_process_that_owns_it() {
        let error = Client::connect(&roster()).unwrap_err();
        let expected = format!(
            "lab `{}` is run by process 7 and takes no commands; end that process to take it down",
            roster().name
        );
        assert_eq!(error.to_string(), expected);
    }
}
