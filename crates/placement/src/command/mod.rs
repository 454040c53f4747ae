//! `kumi wind`: checks and measures Wind between two hosts, and lets the kernel execute operations.

mod show;
mod up;

use anyhow::Context;
use clap::Subcommand;
use kumi_command::{BadInput, interrupt, outln};
use kumi_wind::perf::{self, Exchange, Stream};
use kumi_wind::{Class, Config, Node, PeerId, Place, Seal};
use serde_json::json;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// UDP port of `kumi wind serve`, after those of the device (24870 and following).
const PORT: u16 = 24_890;

/// Lengths of a table, in bytes.
const SIZES: [usize; 5] = [8, 256, 4 << 10, 64 << 10, 1 << 20];

/// Arguments of `kumi wind`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lets the kernel execute the operations of peers that arrive at a device, in the background.
    Up(up::Args),
    /// Ends this. Programs execute the operations of their peers themselves then.
    Down,
    /// Shows the nodes of this network namespace with their peers, and the daemon.
    Show {
        /// Prints JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Answers `ping` and `perf` of other hosts until it is interrupted.
    Serve {
        /// UDP port.
        #[arg(long, default_value_t = PORT)]
        port: u16,
        #[command(flatten)]
        common: Common,
    },
    /// Measures round trips to a host that runs `kumi wind serve`.
    Ping {
        /// Host, with or without `:PORT`.
        host: String,
        /// Number of round trips.
        #[arg(short, long, default_value_t = 10)]
        count: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Measures round trips and goodput by length, to a host that runs `kumi wind serve`.
    Perf {
        /// Host, with or without `:PORT`.
        host: String,
        /// Time for each goodput, in seconds.
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
        /// Prints JSON.
        #[arg(short, long)]
        json: bool,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Cluster key (`kumi link keygen`), the same on both hosts.
    #[arg(long, default_value = "/etc/kumi/cluster.key", value_name = "FILE")]
    key: PathBuf,
    /// Neither encrypts nor authenticates packets: for networks in which no other host can send.
    /// The same on both hosts.
    #[arg(long)]
    plain: bool,
    /// Authenticates packets and does not encrypt them, so that the kernel of the target may
    /// execute operations (`kumi wind up`): for networks in which nobody else may read. The same on
    /// both hosts.
    #[arg(long, conflicts_with = "plain")]
    trusted: bool,
}

impl Common {
    fn node(&self, address: SocketAddr) -> anyhow::Result<Node> {
        let key = kumi_device::key::load(&self.key)?;
        let epoch = kumi_wind::random_epoch().context("no random numbers")?;
        let mut config = Config::new(key.wind_secret(), epoch);
        if self.plain {
            config.seal = Seal::Plain;
        }
        if self.trusted {
            config.seal = Seal::Authenticate;
        }
        Ok(Node::bind(address, config)?)
    }

    /// Opens a node, and connects it to `host`.
    fn connect(&self, host: &str) -> anyhow::Result<(Node, PeerId, Place)> {
        let target = resolve(host)?;
        let node = self.node((Ipv6Addr::UNSPECIFIED, 0).into())?;
        let peer = node.connect(target)?;
        let place = perf::place(&node, peer).with_context(|| {
            let option = match (self.plain, self.trusted) {
                (true, _) => " --plain",
                (_, true) => " --trusted",
                _ => "",
            };
            format!(
                "{host}: no answer; is `kumi wind serve{option}` running there, with the same key?"
            )
        })?;
        Ok((node, peer, place))
    }
}

/// Returns the address of `HOST` or `HOST:PORT`.
fn resolve(host: &str) -> Result<SocketAddr, BadInput> {
    let addresses = host
        .to_socket_addrs()
        .or_else(|_| (host, PORT).to_socket_addrs());
    let first = addresses.ok().and_then(|mut addresses| addresses.next());
    first.ok_or_else(|| {
        BadInput(format!(
            "invalid host `{host}`: expected a name or an address, with or without :PORT, \
             such as node2, 10.0.0.2:{PORT} or [fd00::2]:{PORT}"
        ))
    })
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::Up(args) => up::up(args),
        Verb::Down => up::down(),
        Verb::Show { json } => show::show(*json),
        Verb::Serve { port, common } => serve(*port, common),
        Verb::Ping {
            host,
            count,
            common,
        } => ping(host, *count, common),
        Verb::Perf {
            host,
            seconds,
            json,
            common,
        } => measure(host, *seconds, *json, common),
    }
}

fn serve(port: u16, common: &Common) -> anyhow::Result<ExitCode> {
    let node = common
        .node((Ipv6Addr::UNSPECIFIED, port).into())
        .with_context(|| format!("UDP port {port}"))?;
    let executor = if node.has_kernel() {
        "kernel"
    } else {
        "program"
    };
    outln!(
        "serving on UDP port {}; the {executor} executes operations; Ctrl-C ends it",
        node.local_address()?.port()
    );
    interrupt::watch()?;
    perf::serve(&node, || interrupt::noted().is_some())?;
    Ok(ExitCode::SUCCESS)
}

fn ping(host: &str, count: usize, common: &Common) -> anyhow::Result<ExitCode> {
    let (node, peer, place) = common.connect(host)?;
    for exchange in Exchange::ALL {
        let times = perf::latency(&node, peer, place, exchange, 8, count)?;
        outln!(
            "{:<12} {:>9.1} µs median {:>9.1} µs p99",
            exchange.name(),
            micros(times.median),
            micros(times.p99)
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn measure(host: &str, seconds: f64, as_json: bool, common: &Common) -> anyhow::Result<ExitCode> {
    if !(0.01..=600.0).contains(&seconds) {
        let text = format!("invalid --seconds {seconds}: expected 0.01 to 600");
        return Err(BadInput(text).into());
    }
    let (node, peer, place) = common.connect(host)?;
    let time = Duration::from_secs_f64(seconds);
    if !as_json {
        outln!(
            "{:>9} {:>14} {:>10} {:>10} {:>14} {:>14}",
            "bytes",
            "synchronous µs",
            "put µs",
            "get µs",
            "ordered MB/s",
            "unordered MB/s"
        );
    }
    let mut rows = Vec::new();
    for bytes in SIZES {
        let count = (4 << 20 >> 10) / (bytes >> 10).max(4);
        let mut medians = Vec::new();
        for exchange in [Exchange::Synchronous, Exchange::Put, Exchange::Get] {
            let times = perf::latency(&node, peer, place, exchange, bytes, count)?;
            medians.push(micros(times.median));
        }
        let mut rates = Vec::new();
        for class in [Class::Ordered, Class::Unordered] {
            let stream = Stream::Messages(class);
            let rate = perf::goodput(&node, peer, place, stream, bytes, time)?;
            rates.push(rate / 1e6);
        }
        if as_json {
            rows.push(json!({
                "bytes": bytes,
                "synchronous_us": medians[0],
                "put_us": medians[1],
                "get_us": medians[2],
                "ordered_mb_per_s": rates[0],
                "unordered_mb_per_s": rates[1],
            }));
        } else {
            outln!(
                "{bytes:>9} {:>14.1} {:>10.1} {:>10.1} {:>14.1} {:>14.1}",
                medians[0],
                medians[1],
                medians[2],
                rates[0],
                rates[1]
            );
        }
    }
    if as_json {
        outln!("{}", json!({"schema": 1, "host": host, "rows": rows}));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host__with_and_without_a_port__is_resolved_or_named() {
        assert_eq!(resolve("127.0.0.1").unwrap(), ([127, 0, 0, 1], PORT).into());
        assert_eq!(resolve("127.0.0.1:7").unwrap(), ([127, 0, 0, 1], 7).into());
        let named = resolve("no such host").unwrap_err().to_string();
        assert!(
            named.starts_with("invalid host `no such host`: expected a name"),
            "{named}"
        );
    }
}
