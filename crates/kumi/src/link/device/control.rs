//! The control socket of a device: one JSON request a line, one JSON answer; `events` streams.

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

/// The loop's end of the control socket.
#[derive(Debug)]
pub struct Control {
    /// Readable when calls wait.
    pub wake: Arc<EventFd>,
    calls: Receiver<Call>,
}

impl Control {
    /// Listens on `path`, in a thread of its own.
    pub fn listen(path: &Path) -> anyhow::Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).with_context(|| format!("{}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let wake = Arc::new(EventFd::from_flags(
            EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC,
        )?);
        let (sender, calls) = channel();
        let waker = Arc::clone(&wake);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (sender, waker) = (sender.clone(), Arc::clone(&waker));
                std::thread::spawn(move || serve(client, &sender, &waker));
            }
        });
        Ok(Self { wake, calls })
    }

    /// The next call that waits.
    pub fn next_call(&self) -> Option<Call> {
        let _ = self.wake.read();
        self.calls.try_recv().ok()
    }
}

fn serve(client: UnixStream, calls: &Sender<Call>, wake: &EventFd) {
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
    let streams = request == Request::Events;
    let (answer, answers) = sync_channel(EVENTS_WAITING_MAX);
    if calls.send(Call { request, answer }).is_err() || wake.write(1).is_err() {
        return;
    }
    for text in answers {
        if writeln!(client, "{text}").is_err() || !streams {
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
