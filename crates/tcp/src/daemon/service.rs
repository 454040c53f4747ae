//! The daemon's loop: one thread for its clients and for the processes that it has accepted.
//!
//! ```text
//! listener ─► client ── request, a line ─► reply, and the page's descriptor
//!               │ closed after CLIENT_TIMEOUT, or as one too many of its user
//! process ────► pidfd readable: the process has ended, and its place is free
//! signals ────► SIGINT, SIGTERM: the programs are removed
//! ```

use super::client::{Reply, Request};
use crate::bursts::Bursts;
use crate::ladder::Tier;
use crate::processes::{Place, Rank};
use anyhow::Context;
use kumi_command::errln;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Size limit of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 4096;
/// Most bytes of an invalid request that its refusal repeats. The refusal then fits a client's
/// buffer.
const QUOTE_BYTES_MAX: usize = 200;
/// Time within which a client must send its request. After it, the connection is closed.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of clients with an incomplete request. `kumi run` sends its request at once, so there are
/// few.
const CLIENTS_MAX: usize = 64;
/// Time for which no client is accepted after `accept` failed, for example without a free
/// descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client whose request is incomplete.
struct Client {
    stream: UnixStream,
    pid: i32,
    uid: u32,
    deadline: Instant,
    text: Vec<u8>,
}

/// Result of a request.
enum Next {
    /// The loop continues.
    Serve,
    /// The daemon ends and removes the programs.
    Remove,
    /// The daemon ends. Another one takes over the programs.
    HandOver,
}

/// State of the daemon's loop.
pub struct Service {
    listener: UnixListener,
    signals: SignalFd,
    tier: Tier,
    clients: Vec<Client>,
    ranks: Vec<(Place, OwnedFd)>,
    /// `None` without [`Mechanism::ShortBursts`](crate::Mechanism::ShortBursts).
    bursts: Option<Bursts>,
    accept_at: Instant,
}

impl Service {
    /// Creates a service on `listener` that ends at one of `signals`. `ranks` are processes that an
    /// earlier daemon accepted.
    pub fn new(
        listener: UnixListener,
        signals: &SigSet,
        tier: Tier,
        ranks: Vec<(Place, OwnedFd)>,
    ) -> anyhow::Result<Self> {
        listener.set_nonblocking(true)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            listener,
            signals: SignalFd::with_flags(signals, flags)?,
            tier,
            clients: Vec::new(),
            ranks,
            bursts: None,
            accept_at: Instant::now(),
        })
    }

    /// Adds the mechanism [`ShortBursts`](crate::Mechanism::ShortBursts), for the daemon's network
    /// namespace and those of its processes. `is_adopted`: an earlier daemon may have changed them.
    pub fn with_short_bursts(mut self, is_adopted: bool) -> Self {
        self.bursts = Some(Bursts::default());
        let accepted: Vec<u32> = self.ranks.iter().map(|(place, _)| place.pid()).collect();
        for pid in std::iter::once(std::process::id()).chain(accepted) {
            self.shorten_bursts(pid, is_adopted);
        }
        self
    }

    fn shorten_bursts(&mut self, pid: u32, is_adopted: bool) {
        let Some(bursts) = &mut self.bursts else {
            return;
        };
        if let Err(error) = bursts.shorten(pid, is_adopted) {
            errln!("kumi: cannot set net.ipv4.tcp_tso_rtt_log for process {pid}: {error}");
        }
    }

    /// Serves until a signal or a request ends it. Returns whether the programs are to be removed.
    pub fn run(mut self) -> anyhow::Result<bool> {
        loop {
            let ready = self.wait()?;
            let (signal, ready) = ready.split_first().context("signals are watched")?;
            if *signal {
                return Ok(true);
            }
            let (clients, tail) = ready.split_at(self.clients.len());
            let (ranks, listener) = tail.split_at(self.ranks.len());
            self.free_places(ranks);
            match self.serve(clients) {
                Next::Serve => {}
                Next::Remove => return Ok(true),
                Next::HandOver => {
                    // Before the listener closes, because the next daemon then sets its own.
                    self.bursts = None;
                    return Ok(false);
                }
            }
            if listener.first() == Some(&true) {
                self.accept();
            }
        }
    }

    /// Waits for an event. Returns the readiness of the descriptors, in the order signals, clients,
    /// processes, listener.
    fn wait(&self) -> anyhow::Result<Vec<bool>> {
        let now = Instant::now();
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let clients = self.clients.iter().map(|client| client.stream.as_fd());
        let ranks = self.ranks.iter().map(|(_, pidfd)| pidfd.as_fd());
        fds.extend(
            clients
                .chain(ranks)
                .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN)),
        );
        let deadlines = self.clients.iter().map(|client| client.deadline);
        let mut next = deadlines.min();
        if now >= self.accept_at {
            fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        } else {
            next = Some(next.map_or(self.accept_at, |next| next.min(self.accept_at)));
        }
        let timeout = next.map_or(PollTimeout::NONE, |next| {
            let remaining = next.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds.iter().map(|fd| fd.any() == Some(true)).collect())
    }

    /// Frees the places of processes that have ended.
    fn free_places(&mut self, has_ended: &[bool]) {
        let mut has_ended = has_ended.iter();
        let before = self.ranks.len();
        self.ranks.retain(|(place, _)| {
            if has_ended.next() != Some(&true) {
                return true;
            }
            if let Err(error) = place.leave() {
                errln!("kumi: {error}");
            }
            false
        });
        if let Some(bursts) = self.bursts.as_mut().filter(|_| self.ranks.len() < before) {
            let accepted = self.ranks.iter().map(|(place, _)| place.pid());
            bursts.keep_only(std::iter::once(std::process::id()).chain(accepted));
        }
    }

    /// Reads from clients that are ready, and answers those whose request is complete.
    fn serve(&mut self, ready: &[bool]) -> Next {
        let now = Instant::now();
        let clients = std::mem::take(&mut self.clients);
        let mut next = Next::Serve;
        for (index, mut client) in clients.into_iter().enumerate() {
            let is_ready = ready.get(index) == Some(&true);
            match if is_ready { client.read() } else { Ok(None) } {
                Ok(None) if now < client.deadline => self.clients.push(client),
                Ok(None) => {}
                Ok(Some(request)) => match self.answer(&client, &request) {
                    Next::Serve => {}
                    end => next = end,
                },
                Err(error) => client.refuse(&error.to_string()),
            }
        }
        next
    }

    fn answer(&mut self, client: &Client, request: &Request) -> Next {
        match request {
            Request::Down | Request::HandOver if client.uid != 0 => {
                let uid = client.uid;
                client.refuse(&format!("only root may end the daemon, not user {uid}"));
                Next::Serve
            }
            Request::Down => {
                client.reply(&Reply::default(), None);
                Next::Remove
            }
            Request::HandOver => {
                client.reply(&Reply::default(), None);
                Next::HandOver
            }
            Request::Join => {
                match join(client) {
                    Ok((rank, pidfd)) => {
                        let reply = Reply {
                            tier: Some(self.tier.name().to_owned()),
                            ..Reply::default()
                        };
                        self.shorten_bursts(rank.place.pid(), false);
                        client.reply(&reply, Some(&rank));
                        // A process that joins again has its place already.
                        if !self.ranks.iter().any(|(place, _)| *place == rank.place) {
                            self.ranks.push((rank.place, pidfd));
                        }
                    }
                    Err(error) => client.refuse(&error.to_string()),
                }
                Next::Serve
            }
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if self.clients.len() >= CLIENTS_MAX {
                        let index = eviction_index(&self.clients);
                        self.clients.remove(index);
                    }
                    self.clients.extend(Client::new(stream));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    errln!("kumi: cannot accept a client: {error}");
                    self.accept_at = Instant::now() + ACCEPT_PAUSE;
                    return;
                }
            }
        }
    }
}

impl Client {
    fn new(stream: UnixStream) -> Option<Self> {
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Self {
            stream,
            pid: peer.pid(),
            uid: peer.uid(),
            deadline: Instant::now() + CLIENT_TIMEOUT,
            text: Vec::new(),
        })
    }

    /// Reads the available bytes. Returns the request if it is complete.
    fn read(&mut self) -> anyhow::Result<Option<Request>> {
        let mut text = [0; REQUEST_BYTES_MAX];
        let length = match self.stream.read(&mut text) {
            Ok(0) => anyhow::bail!(
                "the request ended after {} bytes without a line end: expected one line of JSON",
                self.text.len()
            ),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.text.extend_from_slice(&text[..length]);
        let Some(end) = self.text.iter().position(|byte| *byte == b'\n') else {
            anyhow::ensure!(
                self.text.len() < REQUEST_BYTES_MAX,
                "request too long: {} bytes without a line end; at most {REQUEST_BYTES_MAX} are accepted",
                self.text.len()
            );
            return Ok(None);
        };
        let line = &self.text[..end];
        let request = serde_json::from_slice(line).map_err(|error| {
            let quote = String::from_utf8_lossy(&line[..end.min(QUOTE_BYTES_MAX)]);
            anyhow::anyhow!("invalid request `{quote}`: {error}")
        })?;
        Ok(Some(request))
    }

    /// Sends a reply, with the descriptor of the page of `rank`. It does not wait for a client that
    /// does not read.
    fn reply(&self, reply: &Reply, rank: Option<&Rank>) {
        let mut text = serde_json::to_string(reply).unwrap_or_default();
        text.push('\n');
        let descriptors: Vec<i32> = rank.iter().map(|rank| rank.page().as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let rights = if descriptors.is_empty() {
            &[][..]
        } else {
            &rights
        };
        let text = [IoSlice::new(text.as_bytes())];
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let _ = sendmsg::<()>(self.stream.as_raw_fd(), &text, rights, flags, None);
    }

    fn refuse(&self, error: &str) {
        let reply = Reply {
            error: Some(error.to_owned()),
            ..Reply::default()
        };
        self.reply(&reply, None);
    }
}

fn join(client: &Client) -> anyhow::Result<(Rank, OwnedFd)> {
    // The process ID is 0 if the process is in another PID namespace that the daemon does not see.
    let pid = u32::try_from(client.pid).ok().filter(|pid| *pid > 0);
    let pid = pid.context(
        "the process is not visible in the PID namespace of the daemon; run both in one namespace",
    )?;
    let pidfd = kumi_sys::process::pidfd(pid)?;
    Ok((Rank::join(pid, client.uid)?, pidfd))
}

/// Returns the client to drop for a new one: the oldest client of the user with the most clients.
fn eviction_index(clients: &[Client]) -> usize {
    let users: Vec<u32> = clients.iter().map(|client| client.uid).collect();
    oldest_of_most(&users)
}

fn oldest_of_most(users: &[u32]) -> usize {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for user in users {
        *counts.entry(*user).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    let is_of_most = |user: &u32| counts.get(user) == Some(&most);
    users.iter().position(is_of_most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};

    /// Returns a client of this user, and its end of the connection.
    fn client(uid: u32) -> (Client, UnixStream) {
        let (stream, peer) = UnixStream::pair().unwrap();
        let client = Client::new(stream).unwrap();
        (Client { uid, ..client }, peer)
    }

    #[test]
    fn request__invalid__is_refused_with_what_is_accepted() {
        let long = "x".repeat(REQUEST_BYTES_MAX);
        let unknown = format!("{}{}", r#"{"do":"jump"}"#, " ".repeat(QUOTE_BYTES_MAX));
        let quote = &unknown[..QUOTE_BYTES_MAX];
        let unknown_line = format!("{unknown}\n");
        for (text, message) in [
            (
                "{",
                "the request ended after 1 bytes without a line end: expected one line of JSON"
                    .to_owned(),
            ),
            (
                long.as_str(),
                "request too long: 4096 bytes without a line end; at most 4096 are accepted"
                    .to_owned(),
            ),
            (
                "hello\n",
                "invalid request `hello`: expected value at line 1 column 1".to_owned(),
            ),
            (
                unknown_line.as_str(),
                format!(
                    "invalid request `{quote}`: unknown variant `jump`, \
                     expected one of `join`, `down`, `hand-over`"
                ),
            ),
        ] {
            let (mut client, mut peer) = client(0);
            peer.write_all(text.as_bytes()).unwrap();
            drop(peer);
            let error = loop {
                match client.read() {
                    Ok(None) => {}
                    Ok(Some(request)) => panic!("{text}: {request:?}"),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.starts_with(&message), "{error}");
        }
    }

    #[test]
    fn request__of_a_client_without_the_right__is_refused_with_the_reason() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("kumi-tcp-service-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut service =
            Service::new(listener, &SigSet::empty(), Tier::OptionsOnly, Vec::new()).unwrap();
        let mut refusal = |client: Client, peer: UnixStream, request: &Request| {
            let next = service.answer(&client, request);
            assert!(matches!(next, Next::Serve), "{request:?}");
            let mut line = String::new();
            BufReader::new(peer).read_line(&mut line).unwrap();
            let reply: Reply = serde_json::from_str(&line).unwrap();
            reply.error.unwrap()
        };
        for request in [Request::Down, Request::HandOver] {
            let (client, peer) = client(1000);
            assert_eq!(
                refusal(client, peer, &request),
                "only root may end the daemon, not user 1000"
            );
        }
        let (client, peer) = client(1000);
        // The kernel gives this number to a process of another PID namespace.
        let client = Client { pid: 0, ..client };
        assert_eq!(
            refusal(client, peer, &Request::Join),
            "the process is not visible in the PID namespace of the daemon; run both in one namespace"
        );
    }

    #[test]
    fn evicted_client__several_users__is_the_oldest_of_the_user_with_the_most() {
        assert_eq!(oldest_of_most(&[1000, 7, 7, 1000, 7]), 1);
        assert_eq!(oldest_of_most(&[1000]), 0);
    }
}
