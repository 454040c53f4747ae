//! The node's state for `kumi wind show`: an abstract UNIX socket whose name begins with
//! [`PREFIX`]. Each connection of the same user, or of root, gets one JSON object.

use super::{Node, Shared, lock};
use crate::protocol::{PathStatus, PeerId};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Beginning of the names of the sockets, in `/proc/net/unix` with an `@` before it.
pub const PREFIX: &str = "kumi-wind/";

/// Time limit for a reader. The node's thread does not wait longer.
const READER_LIMIT: Duration = Duration::from_millis(200);

/// Listens under a name with the process and the port; `None` without sockets of this kind.
pub fn listen(port: u16) -> Option<UnixListener> {
    let name = format!("{PREFIX}{}/{port}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).ok()?;
    let listener = UnixListener::bind_addr(&address).ok()?;
    listener.set_nonblocking(true).ok()?;
    Some(listener)
}

/// Answers all that have connected.
pub(super) fn serve(shared: &Shared) {
    let Some(listener) = &shared.listener else {
        return;
    };
    while let Ok((stream, _)) = listener.accept() {
        // An error is that of the reader.
        let _ = answer(shared, stream);
    }
}

fn answer(shared: &Shared, mut stream: UnixStream) -> io::Result<()> {
    let peer =
        nix::sys::socket::getsockopt(&stream.as_fd(), nix::sys::socket::sockopt::PeerCredentials)?;
    let own = nix::unistd::geteuid().as_raw();
    if peer.uid() != own && peer.uid() != 0 {
        return Ok(());
    }
    stream.set_write_timeout(Some(READER_LIMIT))?;
    let text = state(shared).to_string();
    stream.write_all(text.as_bytes())
}

fn state(shared: &Shared) -> Value {
    // Without the lock, because the description may take a while.
    let user = shared.user.get().map(|user| (user.name, (user.describe)()));
    let state = lock(shared);
    let peers: Vec<PeerId> = state.endpoint.peer_ids().collect();
    let peers = peers.into_iter().filter_map(|peer| {
        let address = state.endpoint.address(peer)?;
        let Some(status) = state.endpoint.status(peer) else {
            return Some(json!({"address": address, "state": "connecting"}));
        };
        let mut row = json!({
            "address": address,
            "state": "connected",
            "messages": path(&status.messages),
            "requests": status.requests.as_ref().map(path),
            "waiting_bytes": status.waiting_bytes,
            "credit_bytes": status.credit_bytes,
            "held_bytes": status.held_bytes,
        });
        if let Some(window) = state.window(peer) {
            row["executed"] = json!({
                "puts": window.counter(0),
                "gets": window.counter(1),
                "atomics": window.counter(2),
                "repeated": window.counter(3),
                "refused": window.counter(4),
                "forged": window.counter(5),
                "bytes": window.counter(6),
            });
        }
        Some(row)
    });
    let address = shared.socket.local_address().ok();
    let multicast = state.multicast.ways.counts;
    let mut row = json!({
        "pid": std::process::id(),
        "address": address,
        "executor": if state.kernel.is_some() { "kernel" } else { "program" },
        "regions": state.regions.count(),
        "multicast": {
            "relay": multicast.relay,
            "network": multicast.network,
            "unheard": multicast.unheard,
        },
        "peers": peers.collect::<Vec<_>>(),
    });
    if let Some((name, description)) = user {
        row[name] = description;
    }
    row
}

/// Layer over the node that shows its state with it.
pub(super) struct User {
    name: &'static str,
    describe: Box<dyn Fn() -> Value + Send + Sync>,
}

impl Node {
    /// Adds a member to what the node shows. A second one is ignored.
    pub fn show_also(
        &self,
        name: &'static str,
        describe: impl Fn() -> Value + Send + Sync + 'static,
    ) {
        let describe = Box::new(describe);
        let _ = self.shared.user.set(User { name, describe });
    }
}

fn path(status: &PathStatus) -> Value {
    json!({
        "rtt_us": status.rtt_ns as f64 / 1e3,
        "rtt_min_us": status.rtt_min_ns as f64 / 1e3,
        "window_bytes": status.window_bytes,
        "in_flight_bytes": status.in_flight_bytes,
        "packets": status.counts.packets,
        "lost": status.counts.lost,
        "probes": status.counts.probes,
        "timeouts": status.counts.timeouts,
    })
}

/// Returns the state of each node in this network namespace that answers: a JSON object, or the
/// name of a socket whose process is stopped or of another user.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn nodes() -> io::Result<Vec<Result<Value, String>>> {
    let table = std::fs::read_to_string("/proc/net/unix")?;
    let mut names: Vec<&str> = table
        .lines()
        .filter_map(|line| line.rsplit_once('@')?.1.strip_prefix(PREFIX))
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names
        .into_iter()
        .map(|name| ask(name).map_err(|_| name.to_owned()))
        .collect())
}

fn ask(name: &str) -> io::Result<Value> {
    let address = SocketAddr::from_abstract_name(format!("{PREFIX}{name}"))?;
    let mut stream = UnixStream::connect_addr(&address)?;
    stream.set_read_timeout(Some(2 * READER_LIMIT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}
