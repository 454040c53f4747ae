//! The control socket of a device. A request is one line of JSON, and so is the answer to it;
//! `events` streams lines.

use crate::join;
use crate::listeners::{Entrance, Listeners};
use anyhow::Context;
use kumi_command::BadInput;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Version of the format. It grows when a key changes its meaning.
pub const SCHEMA: u32 = 1;

/// Largest length of a request line, in bytes.
const REQUEST_BYTES_MAX: u64 = 65_536;
/// Largest number of clients served at once, each by a thread: a monitor, some `kumi link events`,
/// and commands of people.
const CLIENTS_MAX: usize = 64;
/// Pause after a failure to accept a client for lack of descriptors or threads.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// Interval at which a listener's connection is checked while no event occurs.
const LISTENER_CHECK: Duration = Duration::from_secs(1);
/// Longest wait for a client that sends no request or does not read.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Returns the device's state.
    Show,
    /// Adds an interface.
    Add {
        /// Name of the interface.
        link: String,
    },
    /// Removes an interface.
    Del {
        /// Name of the interface.
        link: String,
    },
    /// Fixes a link's rate, or measures it again.
    Set {
        /// Name of the interface.
        link: String,
        /// Rate in bits per second; absent to measure it.
        rate_bps: Option<u64>,
    },
    /// Ends the device.
    Down,
    /// Streams the events from now on.
    Events,
}

/// A request for the device's loop, with the channel for the answer.
#[derive(Debug)]
pub struct Call {
    /// Operation to perform.
    pub request: Request,
    /// Channel for the answer, a JSON text.
    pub answer: SyncSender<String>,
}

/// A loop's end of the control socket.
#[derive(Debug)]
pub struct Control {
    /// Readable when calls wait.
    pub wake: Arc<EventFd>,
    /// Listeners to the device's events.
    pub listeners: Listeners,
    calls: Receiver<Call>,
}

/// The control socket's end towards the loops of a device: one channel per queue.
#[derive(Debug, Clone)]
pub struct Desk {
    queues: Vec<(Sender<Call>, Arc<EventFd>)>,
    entrance: Entrance,
}

impl Control {
    /// Listens on `path` for a device of one queue, in a new thread.
    pub fn listen(path: &Path) -> anyhow::Result<Self> {
        let (_, mut controls) = Desk::open(path, 1)?;
        controls.pop().context("the device has no queue")
    }

    /// Returns the next call that waits.
    pub fn next_call(&self) -> Option<Call> {
        let _ = self.wake.read();
        self.calls.try_recv().ok()
    }
}

impl Desk {
    /// Listens on `path` in a new thread. Returns the desk, and each queue's end.
    pub fn open(path: &Path, queues: usize) -> anyhow::Result<(Self, Vec<Control>)> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).with_context(|| format!("{}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let listeners = Listeners::default();
        let mut desk = Self {
            queues: Vec::new(),
            entrance: listeners.entrance(),
        };
        let mut controls = Vec::new();
        for _ in 0..queues {
            let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
            let wake = Arc::new(EventFd::from_flags(flags)?);
            let (sender, calls) = channel();
            desk.queues.push((sender, Arc::clone(&wake)));
            controls.push(Control {
                wake,
                listeners: listeners.clone(),
                calls,
            });
        }
        let server = desk.clone();
        std::thread::spawn(move || accept(&listener, &server));
        Ok((desk, controls))
    }

    /// Ends all queues, because they form one device.
    pub fn end(&self) {
        let (answer, _) = sync_channel(self.queues.len());
        for queue in 0..self.queues.len() {
            self.call(queue, Request::Down, &answer);
        }
    }

    fn call(&self, queue: usize, request: Request, answer: &SyncSender<String>) -> bool {
        let (calls, wake) = &self.queues[queue];
        let answer = answer.clone();
        calls.send(Call { request, answer }).is_ok() && wake.write(1).is_ok()
    }

    /// Returns one queue's answer; `None` if the queue has ended.
    fn ask(&self, queue: usize, request: &Request) -> Option<String> {
        let (answer, answers) = sync_channel(1);
        self.call(queue, request.clone(), &answer);
        drop(answer);
        answers.recv().ok()
    }

    /// Returns the device's answer; `None` if a queue has ended.
    fn answer(&self, request: &Request) -> Option<String> {
        let queues = 0..self.queues.len();
        match request {
            Request::Show => {
                let texts: Option<Vec<String>> =
                    queues.map(|queue| self.ask(queue, request)).collect();
                let states: Vec<serde_json::Value> = texts?
                    .iter()
                    .filter_map(|text| serde_json::from_str(text).ok())
                    .collect();
                Some(join::states(&states).to_string())
            }
            // The other queues end with the first.
            Request::Down => self.ask(0, request),
            // If the first queue refuses, the others are not asked. If a later one refuses, an
            // interface that was added is removed again from those before it.
            _ => {
                let first = self.ask(0, request)?;
                for queue in queues.skip(1) {
                    if refusal(&first).is_some() {
                        break;
                    }
                    let answer = self.ask(queue, request)?;
                    if refusal(&answer).is_some() {
                        self.undo(request, queue);
                        return Some(answer);
                    }
                }
                Some(first)
            }
        }
    }

    /// Removes a link from the first `queues` queues, because the next one could not add it.
    fn undo(&self, request: &Request, queues: usize) {
        if let Request::Add { link } = request {
            let link = link.clone();
            let removal = Request::Del { link };
            for queue in 0..queues {
                let _ = self.ask(queue, &removal);
            }
        }
    }
}

/// Serves clients, one thread each, until the process ends.
fn accept(listener: &UnixListener, desk: &Desk) {
    let places = Arc::new(());
    loop {
        // An error (no descriptor left) lasts until a descriptor is released, so do not spin.
        let Ok((client, _)) = listener.accept() else {
            std::thread::sleep(ACCEPT_RETRY);
            continue;
        };
        if Arc::strong_count(&places) > CLIENTS_MAX {
            let reason =
                format!("{CLIENTS_MAX} clients are connected, the limit; end a `kumi link events`");
            let _ = writeln!(&client, "{}", failure(&reason));
            continue;
        }
        let (desk, place) = (desk.clone(), Arc::clone(&places));
        let serve = move || {
            serve(&client, &desk);
            drop(place);
        };
        if std::thread::Builder::new().spawn(serve).is_err() {
            std::thread::sleep(ACCEPT_RETRY);
        }
    }
}

/// Returns whether the client has closed its end of the connection.
fn has_hung_up(client: &UnixStream) -> bool {
    let mut fds = [PollFd::new(client.as_fd(), PollFlags::empty())];
    let outcome = poll(&mut fds, PollTimeout::ZERO);
    let events = fds[0].revents().unwrap_or(PollFlags::empty());
    outcome.is_ok() && events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR)
}

/// Sends the events from now on to a client, until the client leaves or the device ends.
fn stream_events(mut client: &UnixStream, desk: &Desk) {
    let Some(subscription) = desk.entrance.join() else {
        return;
    };
    loop {
        match subscription.events.recv_timeout(LISTENER_CHECK) {
            Ok(text) => {
                if writeln!(client, "{text}").is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) if !has_hung_up(client) => {}
            Err(_) => return,
        }
    }
}

fn serve(client: &UnixStream, desk: &Desk) {
    let _ = client.set_read_timeout(Some(CLIENT_TIMEOUT));
    let _ = client.set_write_timeout(Some(CLIENT_TIMEOUT));
    let mut line = String::new();
    let mut reader = BufReader::new(std::io::Read::take(client, REQUEST_BYTES_MAX));
    if reader.read_line(&mut line).is_err() {
        return;
    }
    let mut client = client;
    let request = match serde_json::from_str::<Request>(&line) {
        Ok(request) => request,
        Err(error) => {
            let _ = writeln!(
                client,
                "{}",
                failure(&format!("cannot parse the request: {error}"))
            );
            return;
        }
    };
    if request == Request::Events {
        return stream_events(client, desk);
    }
    if let Some(text) = desk.answer(&request) {
        let _ = writeln!(client, "{text}");
    }
}

/// Returns the JSON of a failed request.
pub fn failure(reason: &str) -> String {
    serde_json::json!({ "error": reason }).to_string()
}

/// Longest wait for a device's answer. Its loop may be busy, or its process may be stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a request to the device at `path` and returns the answer.
pub fn ask(path: &Path, request: &Request) -> anyhow::Result<serde_json::Value> {
    let mut text = String::new();
    let mut stream = stream(path, request)?;
    stream.get_ref().set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream
        .read_line(&mut text)
        .map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => anyhow::anyhow!(
                "the device did not answer within {} s; check whether its process is stopped",
                ANSWER_TIMEOUT.as_secs()
            ),
            _ => error.into(),
        })?;
    if text.is_empty() {
        anyhow::bail!("the device ended before it answered");
    }
    match refusal(&text) {
        Some(error) => Err(BadInput(error).into()),
        None => Ok(serde_json::from_str(&text)?),
    }
}

/// Returns the error message if `answer` is that of a failed request.
pub fn refusal(answer: &str) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    Some(answer.get("error")?.as_str()?.to_owned())
}

/// Sends a request to the device at `path` and returns the connection to read answers from.
pub fn stream(path: &Path, request: &Request) -> anyhow::Result<BufReader<UnixStream>> {
    let mut client = UnixStream::connect(path)?;
    writeln!(client, "{}", serde_json::to_string(request)?)?;
    Ok(BufReader::new(client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal__only_of_an_answer_with_an_error__is_its_message() {
        assert_eq!(refusal(&failure("no")), Some("no".to_owned()));
        let event = r#"{"event": "path", "reason": "error"}"#;
        for answer in ["{}", event, "", "garbage"] {
            assert_eq!(refusal(answer), None, "{answer}");
        }
    }
}
