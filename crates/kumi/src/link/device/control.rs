//! The control socket of a device: one JSON request a line, one JSON answer; `events` streams.

use super::join;
use anyhow::Context;
use nix::sys::eventfd::{EfdFlags, EventFd};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Longest request line.
const REQUEST_BYTES_MAX: u64 = 65_536;
/// Events a slow listener may have waiting; later ones are dropped for it.
const EVENTS_WAITING_MAX: usize = 1024;
/// A client that says nothing for this long is let go.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a client may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The device's state.
    Show,
    /// Adds an interface.
    Add {
        /// Its name.
        link: String,
    },
    /// Removes an interface.
    Del {
        /// Its name.
        link: String,
    },
    /// Fixes a link's rate, or measures it again.
    Set {
        /// Its name.
        link: String,
        /// Bits per second; absent: measure.
        rate_bps: Option<u64>,
    },
    /// Ends the device.
    Down,
    /// Streams events from now on.
    Events,
}

/// What the device's loop gets: a request and where the answer goes.
#[derive(Debug)]
pub struct Call {
    /// What is asked.
    pub request: Request,
    /// Where the answer goes, a JSON text.
    pub answer: SyncSender<String>,
}

/// A loop's end of the control socket.
#[derive(Debug)]
pub struct Control {
    /// Readable when calls wait.
    pub wake: Arc<EventFd>,
    calls: Receiver<Call>,
}

/// Where the loops of a device take calls: one place a queue.
#[derive(Debug, Clone)]
pub struct Desk {
    queues: Vec<(Sender<Call>, Arc<EventFd>)>,
}

impl Control {
    /// Listens on `path`, in a thread of its own, for a device of one queue.
    pub fn listen(path: &Path) -> anyhow::Result<Self> {
        let (_, mut controls) = Desk::open(path, 1)?;
        controls.pop().context("a device has a queue")
    }

    /// The next call that waits.
    pub fn next_call(&self) -> Option<Call> {
        let _ = self.wake.read();
        self.calls.try_recv().ok()
    }
}

impl Desk {
    /// Listens on `path`, in a thread of its own; gives each queue's end.
    pub fn open(path: &Path, queues: usize) -> anyhow::Result<(Self, Vec<Control>)> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).with_context(|| format!("{}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let mut desk = Self { queues: Vec::new() };
        let mut controls = Vec::new();
        for _ in 0..queues {
            let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
            let wake = Arc::new(EventFd::from_flags(flags)?);
            let (sender, calls) = channel();
            desk.queues.push((sender, Arc::clone(&wake)));
            controls.push(Control { wake, calls });
        }
        let served = desk.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let desk = served.clone();
                std::thread::spawn(move || serve(client, &desk));
            }
        });
        Ok((desk, controls))
    }

    /// Ends all queues: the device is one.
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

    /// One queue's answer; none if it has ended.
    fn ask(&self, queue: usize, request: &Request) -> Option<String> {
        let (answer, answers) = sync_channel(1);
        self.call(queue, request.clone(), &answer);
        drop(answer);
        answers.recv().ok()
    }

    /// The device's answer.
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
            // The others end with it.
            Request::Down => self.ask(0, request),
            // Whatever one queue refuses, the others need not be asked; what the first has done and
            // another cannot is undone.
            _ => {
                let first = self.ask(0, request)?;
                for queue in queues.skip(1) {
                    if is_failure(&first) {
                        break;
                    }
                    let other = self.ask(queue, request)?;
                    if is_failure(&other) {
                        self.undo(request, queue);
                        return Some(other);
                    }
                }
                Some(first)
            }
        }
    }

    /// A link that one queue could not add is no link of the device.
    fn undo(&self, request: &Request, queues: usize) {
        if let Request::Add { link } = request {
            let link = link.clone();
            let back = Request::Del { link };
            for queue in 0..queues {
                let _ = self.ask(queue, &back);
            }
        }
    }
}

fn is_failure(answer: &str) -> bool {
    let answer = serde_json::from_str::<serde_json::Value>(answer);
    answer.is_ok_and(|answer| !answer["error"].is_null())
}

fn serve(client: UnixStream, desk: &Desk) {
    let _ = client.set_read_timeout(Some(CLIENT_TIMEOUT));
    let _ = client.set_write_timeout(Some(CLIENT_TIMEOUT));
    let mut line = String::new();
    let mut reader = BufReader::new(std::io::Read::take(&client, REQUEST_BYTES_MAX));
    if reader.read_line(&mut line).is_err() {
        return;
    }
    let mut client = &client;
    let request = match serde_json::from_str::<Request>(&line) {
        Ok(request) => request,
        Err(error) => {
            let _ = writeln!(
                client,
                "{}",
                failure(&format!("request not understood: {error}"))
            );
            return;
        }
    };
    if request != Request::Events {
        if let Some(text) = desk.answer(&request) {
            let _ = writeln!(client, "{text}");
        }
        return;
    }
    let (answer, answers) = sync_channel(EVENTS_WAITING_MAX);
    for queue in 0..desk.queues.len() {
        desk.call(queue, Request::Events, &answer);
    }
    drop(answer);
    for text in answers {
        if writeln!(client, "{text}").is_err() {
            return;
        }
    }
}

/// The JSON of a failed request.
pub fn failure(why: &str) -> String {
    serde_json::json!({ "error": why }).to_string()
}

/// Asks the device at `path`.
pub fn ask(path: &Path, request: &Request) -> anyhow::Result<serde_json::Value> {
    let mut text = String::new();
    stream(path, request)?.read_line(&mut text)?;
    let answer: serde_json::Value =
        serde_json::from_str(&text).context("the device ended before it answered")?;
    match answer.get("error").and_then(|error| error.as_str()) {
        Some(error) => Err(crate::BadInput(error.to_owned()).into()),
        None => Ok(answer),
    }
}

/// Asks the device at `path`; gives the connection to read answers from.
pub fn stream(path: &Path, request: &Request) -> anyhow::Result<BufReader<UnixStream>> {
    let mut client = UnixStream::connect(path)?;
    writeln!(client, "{}", serde_json::to_string(request)?)?;
    Ok(BufReader::new(client))
}
