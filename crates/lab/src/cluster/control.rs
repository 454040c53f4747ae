//! Control protocol of a lab's supervisor: one JSON object per line in each direction.
//!
//! The socket is `control` in the lab's directory, which only its owner may enter. A user who can
//! connect could also enter the hosts.

use super::error::ClusterError;
use super::roster::Roster;
use crate::topology::LinkChange;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// Request to the supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Takes the lab down. The answer follows once the lab is completely removed.
    Down,
    /// Returns the roster.
    Info,
    /// Returns the validity of runs since the lab came up, or since the last such request.
    Validity,
    /// Streams the traffic meter's rows, one JSON object per line, until the connection is closed.
    Meter,
    /// Changes a link.
    SetLink {
        /// Name of the link: `h1:eth1`, or `a:b` between two switches.
        link: String,
        /// Change to apply.
        change: LinkChange,
    },
}

/// Answer to a request: the requested value, or an error in one sentence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The request succeeded. The value is the requested one, or null.
    Ok(Value),
    /// The request failed, for the stated reason.
    Error(String),
}

/// Longest request line that is read, in bytes. A link change takes a few hundred.
pub const REQUEST_BYTES_MAX: u64 = 64 * 1024;

/// A connection to a lab's supervisor.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    name: String,
}

impl Client {
    /// Connects to the supervisor of `roster`'s lab.
    ///
    /// # Errors
    /// If the supervisor does not listen, because the lab belongs to a program that takes no
    /// commands.
    pub fn connect(roster: &Roster) -> Result<Self, ClusterError> {
        let socket = roster.control_socket()?;
        let stream = UnixStream::connect(&socket).map_err(|_| ClusterError::Unsupported {
            reason: format!(
                "lab `{}` is run by process {} and takes no commands",
                roster.name, roster.pid
            ),
            remedy: "end that process to take it down".to_owned(),
        })?;
        Ok(Self {
            stream: BufReader::new(stream),
            name: roster.name.clone(),
        })
    }

    /// Sends `request` and returns the value of the answer. The inner error is the supervisor's.
    ///
    /// # Errors
    /// If the connection fails or the answer is malformed.
    pub fn request(&mut self, request: &Request) -> Result<Result<Value, String>, ClusterError> {
        let operation = format!("asking lab `{}`", self.name);
        self.send(request)?;
        let text = self.next_line()?.unwrap_or_default();
        match serde_json::from_str(&text) {
            Ok(Answer::Ok(value)) => Ok(Ok(value)),
            Ok(Answer::Error(sentence)) => Ok(Err(sentence)),
            Err(error) => Err(ClusterError::Io {
                operation,
                reason: error.into(),
            }),
        }
    }

    /// Sends `request`. [`Client::next_line`] returns the answer.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn send(&mut self, request: &Request) -> Result<(), ClusterError> {
        let mut line = serde_json::to_string(request).unwrap_or_default();
        line.push('\n');
        self.stream
            .get_mut()
            .write_all(line.as_bytes())
            .map_err(ClusterError::io(format!("asking lab `{}`", self.name)))
    }

    /// Returns the next line from the supervisor, or `None` if the supervisor has closed the
    /// connection.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn next_line(&mut self) -> Result<Option<String>, ClusterError> {
        let mut text = String::new();
        let bytes = self
            .stream
            .read_line(&mut text)
            .map_err(ClusterError::io(format!("answer of lab `{}`", self.name)))?;
        Ok((bytes > 0).then_some(text))
    }
}
