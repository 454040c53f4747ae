//! Who is in a running lab: what another process needs to enter its hosts.

use super::error::ClusterError;
use super::run_dir;
use crate::topology::address::NicAddress;
use crate::topology::nearest;
use kumi_sys::netns::{Namespaces, avoid_processor_on_exec};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;

/// Format number of the roster and of everything the lab prints as JSON.
pub const SCHEMA: u32 = 1;

/// A host and the process that holds its namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostEntry {
    /// Host's name.
    pub name: String,
    /// Process id of its holder.
    pub pid: u32,
}

/// A running lab, as `roster.json` and `kumi lab ls -j` show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The lab's name.
    pub name: String,
    /// Process that owns the lab.
    pub pid: u32,
    /// `kernel` or `emulator`.
    pub fabric: String,
    /// Process that holds the fabric's namespace.
    pub fabric_pid: u32,
    /// The processor that programs in hosts leave to the fabric, if it needs one.
    #[serde(default)]
    pub fabric_processor: Option<usize>,
    /// Its hosts.
    pub hosts: Vec<HostEntry>,
    /// Their NICs.
    pub nics: Vec<NicAddress>,
    /// What the user should know, in sentences.
    pub notes: Vec<String>,
}

impl Roster {
    /// The roster of the lab `name`, or of the only one that is up.
    ///
    /// # Errors
    /// There is no such lab, or several and no name.
    pub fn find(name: Option<&str>) -> Result<Self, ClusterError> {
        let living = run_dir::living()?;
        let name = match (name, living.as_slice()) {
            (Some(name), _) => name.to_owned(),
            (None, [only]) => only.clone(),
            (None, _) => {
                return Err(match living.as_slice() {
                    [] => ClusterError::NoneUp,
                    names => ClusterError::SeveralUp {
                        names: names.join(", "),
                    },
                });
            }
        };
        if !living.contains(&name) {
            let hint = nearest(&name, living.iter().map(String::as_str))
                .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            return Err(ClusterError::NoSuchLab { name, hint });
        }
        let path = run_dir::root()?.join(&name).join("roster.json");
        let doing = format!("reading {}", path.display());
        let text = std::fs::read_to_string(path).map_err(ClusterError::io(doing.clone()))?;
        serde_json::from_str(&text).map_err(|error| ClusterError::Io {
            doing,
            reason: error.into(),
        })
    }

    /// Where the lab's supervisor listens.
    ///
    /// # Errors
    /// There is no directory for labs.
    pub fn control_socket(&self) -> Result<PathBuf, ClusterError> {
        Ok(run_dir::root()?.join(&self.name).join("control"))
    }

    /// The host called `name`.
    ///
    /// # Errors
    /// Names the hosts there are.
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

    /// A command that runs `program` in the host called `host`.
    ///
    /// # Errors
    /// There is no such host, or it may not be entered.
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
