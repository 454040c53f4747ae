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
        let running_labs = run_dir::running_labs()?;
        let name = match (name, running_labs.as_slice()) {
            (Some(name), _) => name.to_owned(),
            (None, [only]) => only.clone(),
            (None, _) => {
                return Err(match running_labs.as_slice() {
                    [] => ClusterError::NoneUp,
                    names => ClusterError::SeveralUp {
                        names: names.join(", "),
                    },
                });
            }
        };
        if !running_labs.contains(&name) {
            let hint = nearest(&name, running_labs.iter().map(String::as_str))
                .map_or(String::new(), |best| format!("; did you mean `{best}`?"));
            return Err(ClusterError::NoSuchLab { name, hint });
        }
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
