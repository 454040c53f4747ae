//! The process that owns a lab and answers requests about it.
//!
//! One thread waits for connections and signals. Each connection has a thread of its own. SIGINT,
//! SIGTERM and SIGHUP take the lab down in order. After any other death of the process, the holders
//! remove the lab.

use super::Cluster;
use super::control::{Answer, REQUEST_BYTES_MAX, Request};
use super::error::ClusterError;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Interval at which the meter's rows are sent.
const METER_FLUSH: Duration = Duration::from_millis(50);

/// The lab, or `None` once it is taken down.
type Shared = Arc<Mutex<Option<Cluster>>>;

/// Signals that are blocked in the supervisor's threads and read from a descriptor.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks SIGINT, SIGTERM and SIGHUP in this thread and in the threads that it starts later. It
    /// must be called before the lab is built, so that no signal can interrupt the construction.
    ///
    /// # Errors
    /// If the kernel refuses a signalfd.
    pub fn block() -> Result<Self, ClusterError> {
        let signal_error = |error: nix::Error| ClusterError::Io {
            operation: "blocking signals".to_owned(),
            reason: error.into(),
        };
        let mut set = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block().map_err(signal_error)?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC).map_err(signal_error)?;
        Ok(Self { fd })
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Option<Cluster>> {
    // After a panic of a thread that held it, the lab can still be taken down.
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Serves `cluster` until it is taken down or a signal arrives. The lab is then completely removed.
///
/// `announce` is called once the control socket accepts connections.
///
/// # Errors
/// If the control socket cannot be created or polled, or if `announce` fails.
pub fn serve(
    cluster: Cluster,
    signals: &Signals,
    announce: impl FnOnce(&Cluster) -> io::Result<()>,
) -> Result<(), ClusterError> {
    let socket = cluster.dir().join("control");
    let operation = || format!("listening on {}", socket.display());
    let listener = UnixListener::bind(&socket).map_err(ClusterError::io(operation()))?;
    let (done_reader, done_writer) = UnixStream::pair().map_err(ClusterError::io(operation()))?;
    announce(&cluster).map_err(ClusterError::io("reporting that the lab is up"))?;
    let shared: Shared = Arc::new(Mutex::new(Some(cluster)));
    loop {
        let mut fds = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN),
            PollFd::new(done_reader.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => {
                return Err(ClusterError::Io {
                    operation: operation(),
                    reason: error.into(),
                });
            }
        }
        let ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if ready(&fds[1]) || ready(&fds[2]) {
            drop(lock(&shared).take());
            return Ok(());
        }
        if ready(&fds[0]) {
            let Ok((stream, _)) = listener.accept() else {
                continue;
            };
            let shared = Arc::clone(&shared);
            let done_writer = done_writer.try_clone();
            std::thread::spawn(move || {
                // A client that disconnects early does not affect the others.
                if let (Ok(true), Ok(mut writer)) = (serve_client(&stream, &shared), done_writer) {
                    let _ = writer.write_all(b"x");
                }
            });
        }
    }
}

/// Answers the requests of one connection. Returns true if the lab was taken down.
fn serve_client(stream: &UnixStream, shared: &Shared) -> io::Result<bool> {
    let mut lines = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if lines
            .by_ref()
            .take(REQUEST_BYTES_MAX)
            .read_line(&mut line)?
            == 0
        {
            return Ok(false);
        }
        let request = serde_json::from_str(&line);
        if matches!(request, Ok(Request::Meter)) {
            return stream_meter(writer, shared).map(|()| false);
        }
        let is_down = matches!(request, Ok(Request::Down));
        let answer = match request {
            Ok(request) => answer(request, shared),
            Err(error) => Answer::Error(format!("invalid request `{}`: {error}", line.trim())),
        };
        let mut text = serde_json::to_string(&answer)?;
        text.push('\n');
        writer.write_all(text.as_bytes())?;
        if is_down {
            return Ok(true);
        }
    }
}

fn answer(request: Request, shared: &Shared) -> Answer {
    let mut guard = lock(shared);
    if request == Request::Down {
        drop(guard.take());
        return Answer::Ok(Value::Null);
    }
    let Some(cluster) = guard.as_mut() else {
        return Answer::Error("the lab is being taken down".to_owned());
    };
    let value = match request {
        Request::Info => serde_json::to_value(cluster.roster()).map_err(|error| error.to_string()),
        Request::SetLink { link, change } => cluster
            .set_link(&link, &change)
            .map(|()| Value::Null)
            .map_err(|error| error.to_string()),
        Request::Validity => {
            let validity = cluster.validity();
            cluster.begin_watch();
            serde_json::to_value(validity).map_err(|error| error.to_string())
        }
        Request::Down | Request::Meter => Ok(Value::Null),
    };
    value.map_or_else(Answer::Error, Answer::Ok)
}

/// Sends the meter's rows until the client disconnects or the lab is taken down.
fn stream_meter(mut writer: &UnixStream, shared: &Shared) -> io::Result<()> {
    let meter = match lock(shared).as_ref().map(Cluster::meter) {
        Some(Ok(meter)) => meter,
        Some(Err(error)) => {
            let answer = serde_json::to_string(&Answer::Error(error.to_string()))?;
            return writeln!(writer, "{answer}");
        }
        None => return Ok(()),
    };
    while lock(shared).is_some() {
        std::thread::sleep(METER_FLUSH);
        let mut text = String::new();
        for row in meter.take() {
            text.push_str(&serde_json::to_string(&row)?);
            text.push('\n');
        }
        // Writing an empty line shows whether the client is still connected.
        if text.is_empty() {
            text.push('\n');
        }
        writer.write_all(text.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    /// Returns the reason why a lab that was taken down refuses the request in `line`.
    fn refusal(line: &str) -> String {
        let (mut client, server) = UnixStream::pair().unwrap();
        writeln!(client, "{line}").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let shared: Shared = Arc::new(Mutex::new(None));
        assert!(!serve_client(&server, &shared).unwrap());
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        match serde_json::from_str::<Answer>(&text).unwrap() {
            Answer::Error(reason) => reason,
            Answer::Ok(value) => panic!("{value}"),
        }
    }

    #[test]
    fn request__invalid_or_too_late__is_answered_with_the_reason() {
        assert_eq!(
            refusal("hello"),
            "invalid request `hello`: expected value at line 1 column 1"
        );
        let unknown = refusal(r#"{"verb":"up"}"#);
        let expected = "unknown variant `up`, expected one of `down`, `info`, `validity`, `meter`, \
                        `set_link`";
        assert!(unknown.contains(expected), "{unknown}");
        assert!(unknown.starts_with(r#"invalid request `{"verb":"up"}`: "#));
        assert_eq!(refusal(r#"{"verb":"info"}"#), "the lab is being taken down");
    }
}
