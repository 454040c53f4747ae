//! The control socket of a device. A request is one line of JSON, and so is the answer to it;
//! `events` streams lines.

use crate::config::DatapathChoice;
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
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Version of the format. It grows when a key changes its meaning.
pub const SCHEMA: u32 = 2;

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
    /// Changes the carrier of the frames.
    Datapath {
        /// The carrier.
        carrier: DatapathChoice,
    },
    /// Ends the device.
    Down,
    /// Streams the events from now on.
    Events,
}

/// Step of a change of the links. Every queue checks the change before the first one makes it.
/// Without the check, a queue that refuses would leave the change in effect in those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Answers as the change would be answered. Nothing is changed.
    Check,
    /// Performs the request.
    Act,
}

/// A request for the device's loop, with the channel for the answer.
#[derive(Debug)]
pub struct Call {
    /// Operation to perform.
    pub request: Request,
    /// Step of a change of the links; [`Step::Act`] for other requests.
    pub step: Step,
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
    /// Held during a change of the links, so that all queues make the changes in one order.
    change: Arc<Mutex<()>>,
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
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let listeners = Listeners::default();
        let mut desk = Self {
            queues: Vec::new(),
            entrance: listeners.entrance(),
            change: Arc::default(),
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
        for queue in 0..self.queues.len() {
            self.call(queue, &Request::Down, Step::Act);
        }
    }

    /// Passes a request to one queue. Returns the channel of its answer.
    fn call(&self, queue: usize, request: &Request, step: Step) -> Receiver<String> {
        let (calls, wake) = &self.queues[queue];
        let (answer, answers) = sync_channel(1);
        let call = Call {
            request: request.clone(),
            step,
            answer,
        };
        if calls.send(call).is_ok() {
            // The write fails only if the counter is full, and then the loop wakes up in any case.
            let _ = wake.write(1);
        }
        answers
    }

    /// Returns one queue's answer; `None` if the queue has ended.
    fn ask(&self, queue: usize, request: &Request, step: Step) -> Option<String> {
        self.call(queue, request, step).recv().ok()
    }

    /// Returns the device's answer; `None` if a queue has ended.
    fn answer(&self, request: &Request) -> Option<String> {
        match request {
            Request::Show => {
                let texts: Option<Vec<String>> = (0..self.queues.len())
                    .map(|queue| self.ask(queue, request, Step::Act))
                    .collect();
                let states: Vec<serde_json::Value> = texts?
                    .iter()
                    .filter_map(|text| serde_json::from_str(text).ok())
                    .collect();
                Some(join::states(&states).to_string())
            }
            // The other queues end with the first.
            Request::Down => self.ask(0, request, Step::Act),
            _ => self.change(request),
        }
    }

    /// Makes a change of the links in all queues, or in no queue. Returns the first refusal.
    fn change(&self, request: &Request) -> Option<String> {
        let _guard = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = None;
        for step in [Step::Check, Step::Act] {
            for queue in 0..self.queues.len() {
                let answer = self.ask(queue, request, step)?;
                if refusal(&answer).is_some() {
                    self.undo(request, step, queue);
                    return Some(answer);
                }
                last = Some(answer);
            }
        }
        last
    }

    /// Removes an added link from the first `queues` queues, because the next one could not open
    /// its socket. Other changes cannot fail after the check.
    fn undo(&self, request: &Request, step: Step, queues: usize) {
        if let (Request::Add { link }, Step::Act) = (request, step) {
            let link = link.clone();
            let removal = Request::Del { link };
            for queue in 0..queues {
                let _ = self.ask(queue, &removal, Step::Act);
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
    ask_within(ANSWER_TIMEOUT, path, request)
}

fn ask_within(
    timeout: Duration,
    path: &Path,
    request: &Request,
) -> anyhow::Result<serde_json::Value> {
    // The socket is named after the device.
    let device = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut text = String::new();
    let mut stream = stream(path, request)?;
    stream.get_ref().set_read_timeout(Some(timeout))?;
    stream
        .read_line(&mut text)
        .map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => anyhow::anyhow!(
                "{device} did not answer within {} s; check whether its process is stopped",
                timeout.as_secs_f64()
            ),
            _ => error.into(),
        })?;
    if text.is_empty() {
        anyhow::bail!("{device} ended before it answered");
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
    match writeln!(client, "{}", serde_json::to_string(request)?) {
        // The device refuses a client beyond the limit before it reads the request. Its answer can
        // still be read.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(BufReader::new(client)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const NAMES: [&str; 3] = ["eth1", "eth2", "eth3"];

    type Rates = BTreeMap<&'static str, Option<u64>>;

    /// Plays a queue until the device ends. Returns its links and their rates.
    fn play(control: &Control, mut rates: Rates, can_open: bool) -> Rates {
        loop {
            let Some(call) = control.next_call() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let known = |link: &str| NAMES.into_iter().find(|name| *name == link);
            let reason = match &call.request {
                Request::Del { link } | Request::Set { link, .. }
                    if !rates.contains_key(link.as_str()) =>
                {
                    Some("no such link")
                }
                // Only the attempt shows that a socket cannot be opened.
                Request::Add { .. } if call.step == Step::Act && !can_open => Some("port in use"),
                _ => None,
            };
            match (&call.request, call.step, reason) {
                (Request::Down, _, _) => return rates,
                (Request::Add { link }, Step::Act, None) => {
                    rates.extend(known(link).map(|link| (link, None)));
                }
                (Request::Del { link }, Step::Act, None) => {
                    rates.remove(link.as_str());
                }
                (Request::Set { link, rate_bps }, Step::Act, None) => {
                    rates.extend(known(link).map(|link| (link, *rate_bps)));
                }
                _ => {}
            }
            let answer = reason.map_or_else(|| "{}".to_owned(), failure);
            let _ = call.answer.try_send(answer);
        }
    }

    #[test]
    fn change__refused_by_a_later_queue__changes_no_queue() {
        let path = std::env::temp_dir().join(format!("kumi-control-{}", std::process::id()));
        let (desk, controls) = Desk::open(&path, 2).unwrap();
        let queues = [
            Rates::from([("eth1", None), ("eth2", None)]),
            Rates::from([("eth1", None)]),
        ];
        let threads = controls.into_iter().zip(queues.clone()).enumerate();
        let threads: Vec<_> = threads
            .map(|(number, (control, rates))| {
                std::thread::spawn(move || play(&control, rates, number == 0))
            })
            .collect();
        let link = |name: &str| name.to_owned();
        let rate_bps = Some(1_000_000);
        for (request, message) in [
            (Request::Del { link: link("eth2") }, "no such link"),
            (
                Request::Set {
                    link: link("eth2"),
                    rate_bps,
                },
                "no such link",
            ),
            (Request::Add { link: link("eth3") }, "port in use"),
        ] {
            let error = ask(&path, &request).unwrap_err();
            assert_eq!(error.to_string(), message, "{request:?}");
            assert!(error.is::<BadInput>(), "{request:?}");
        }
        let set = Request::Set {
            link: link("eth1"),
            rate_bps,
        };
        ask(&path, &set).unwrap();
        desk.end();
        let latest: Vec<Rates> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        let expected = queues.map(|mut rates| {
            rates.insert("eth1", rate_bps);
            rates
        });
        assert_eq!(latest, expected);
        std::fs::remove_file(path).unwrap();
    }

    /// Returns the path of a device's socket in a folder that only one test uses.
    fn socket(test: &str, device: &str) -> std::path::PathBuf {
        let folder = format!("kumi-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder.join(format!("{device}.sock"))
    }

    #[test]
    fn socket__cannot_be_created__is_named() {
        let error = Desk::open(Path::new("/dev/null/kumi7.sock"), 1).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "cannot listen on /dev/null/kumi7.sock: Not a directory (os error 20)"
        );
    }

    #[test]
    fn ask__no_answer__names_the_device_and_the_reason() {
        let path = socket("silent", "kumi7");
        let listener = UnixListener::bind(&path).unwrap();
        let timeout = Duration::from_millis(50);
        let error = ask_within(timeout, &path, &Request::Show).unwrap_err();
        assert_eq!(
            error.to_string(),
            "kumi7 did not answer within 0.05 s; check whether its process is stopped"
        );
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                let (client, _) = listener.accept().unwrap();
                BufReader::new(client)
                    .read_line(&mut String::new())
                    .unwrap();
            }
        });
        let error = ask(&path, &Request::Show).unwrap_err();
        assert_eq!(error.to_string(), "kumi7 ended before it answered");
        server.join().unwrap();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn socket__unknown_request_or_too_many_clients__is_answered_with_the_reason() {
        let path = socket("refusing", "kumi8");
        let _desk = Desk::open(&path, 1).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        writeln!(client, r#"{{"do": "shew"}}"#).unwrap();
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).unwrap();
        let error = refusal(&answer).unwrap();
        assert!(
            error.starts_with(
                "cannot parse the request: unknown variant `shew`, expected one of `show`, `add`, \
                 `del`, `set`, `datapath`, `down`, `events`"
            ),
            "{error}"
        );
        // The client above may still have its place, so the crowd gets another socket.
        let path = path.with_file_name("kumi9.sock");
        let _desk = Desk::open(&path, 1).unwrap();
        let listeners: Vec<_> = (0..CLIENTS_MAX)
            .map(|_| stream(&path, &Request::Events).unwrap())
            .collect();
        let error = ask(&path, &Request::Show).unwrap_err();
        assert!(error.is::<BadInput>(), "{error}");
        assert_eq!(
            error.to_string(),
            "64 clients are connected, the limit; end a `kumi link events`"
        );
        drop(listeners);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn refusal__only_of_an_answer_with_an_error__is_its_message() {
        assert_eq!(refusal(&failure("no")), Some("no".to_owned()));
        let event = r#"{"event": "path", "reason": "error"}"#;
        for answer in ["{}", event, "", "garbage"] {
            assert_eq!(refusal(answer), None, "{answer}");
        }
    }
}
