//! What the supervisor of a lab is asked, one JSON object a line each way.
//!
//! The socket is `control` in the lab's directory, which only its owner may enter; whoever can
//! connect could enter the hosts anyway.

use super::error::ClusterError;
use super::roster::Roster;
use crate::topology::LinkChange;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// A request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Tear the lab down; the answer comes when nothing of it is left.
    Down,
    /// The roster.
    Info,
    /// Whether what ran since the lab came up, or since the last such question, may be believed.
    Validity,
    /// The traffic meter's rows, one JSON object a line, until the connection is closed.
    Meter,
    /// Change a link.
    SetLink {
        /// `h1:eth1`, or `a:b` between two switches.
        link: String,
        /// The change.
        change: LinkChange,
    },
}

/// An answer: the value asked for, or one sentence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It was done; what was asked for, or null.
    Ok(Value),
    /// It was not done.
    Error(String),
}

/// Longest request line that is read, in bytes: a link change is some hundred.
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
    /// It does not listen: the lab belongs to a program of its own.
    pub fn connect(roster: &Roster) -> Result<Self, ClusterError> {
        let socket = roster.control_socket()?;
        let stream = UnixStream::connect(&socket).map_err(|_| ClusterError::Unsupported {
            what: format!(
                "lab `{}` is run by process {} and takes no commands",
                roster.name, roster.pid
            ),
            mend: "end that process to take it down".to_owned(),
        })?;
        Ok(Self {
            stream: BufReader::new(stream),
            name: roster.name.clone(),
        })
    }

    /// Sends `request` and returns the value of the answer; the inner error is the supervisor's.
    ///
    /// # Errors
    /// The connection broke.
    pub fn ask(&mut self, request: &Request) -> Result<Result<Value, String>, ClusterError> {
        let doing = format!("asking lab `{}`", self.name);
        self.tell(request)?;
        let text = self.next_line()?.unwrap_or_default();
        match serde_json::from_str(&text) {
            Ok(Answer::Ok(value)) => Ok(Ok(value)),
            Ok(Answer::Error(sentence)) => Ok(Err(sentence)),
            Err(error) => Err(ClusterError::Io {
                doing,
                source: error.into(),
            }),
        }
    }

    /// Sends `request`; what comes back is for [`Client::next_line`].
    ///
    /// # Errors
    /// The connection broke.
    pub fn tell(&mut self, request: &Request) -> Result<(), ClusterError> {
        let mut line = serde_json::to_string(request).unwrap_or_default();
        line.push('\n');
        self.stream
            .get_mut()
            .write_all(line.as_bytes())
            .map_err(ClusterError::io(format!("asking lab `{}`", self.name)))
    }

    /// The next line the supervisor sends; `None` when it has ended.
    ///
    /// # Errors
    /// The connection broke.
    pub fn next_line(&mut self) -> Result<Option<String>, ClusterError> {
        let mut text = String::new();
        let bytes = self
            .stream
            .read_line(&mut text)
            .map_err(ClusterError::io(format!("hearing lab `{}`", self.name)))?;
        Ok((bytes > 0).then_some(text))
    }
}
