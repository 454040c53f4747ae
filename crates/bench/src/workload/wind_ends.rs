//! The two ends of Wind's measurements, run on the hosts.

use anyhow::Context;
use clap::ValueEnum;
use kumi_command::outln;
use kumi_wind::perf::{self, Exchange, Stream};
use kumi_wind::{Class, Config, Node, PeerId, Place, Rung, Seal, Waiting, random_epoch};
use nix::sys::signal::{Signal, raise};
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit of the connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Quiet time after which a server stops itself, so that its sessions have begun.
const STOP_AFTER: Duration = Duration::from_millis(300);

/// Most exchanges of one kind and size, and fewest.
const COUNT_MAX: usize = 20_000;
const COUNT_MIN: usize = 20;

/// Protection of packets.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SealChoice {
    /// Encrypted and authenticated.
    Encrypt,
    /// Authenticated, not encrypted; the kernel may execute operations.
    Authenticate,
    /// No protection.
    Plain,
}

/// Arguments of both ends.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// File with the secret, 32 bytes.
    #[arg(long)]
    secret: PathBuf,
    /// Protection of packets.
    #[arg(long, value_enum, default_value = "encrypt")]
    seal: SealChoice,
    /// Polls without end instead of sleeping.
    #[arg(long)]
    spin: bool,
}

impl Common {
    /// Opens a node.
    pub fn node(&self, port: u16, rung: Rung) -> anyhow::Result<Node> {
        let mut config = self.config()?;
        config.rung = rung;
        Ok(Node::bind((Ipv6Addr::UNSPECIFIED, port).into(), config)?)
    }

    /// Returns the settings.
    pub fn config(&self) -> anyhow::Result<Config> {
        let file = self.secret.display();
        let bytes = std::fs::read(&self.secret).with_context(|| format!("cannot read {file}"))?;
        let secret: [u8; 32] = bytes
            .as_slice()
            .try_into()
            .with_context(|| format!("{file} has {} bytes: expected 32", bytes.len()))?;
        let mut config = Config::new(secret, random_epoch()?);
        config.seal = match self.seal {
            SealChoice::Encrypt => Seal::Encrypt,
            SealChoice::Authenticate => Seal::Authenticate,
            SealChoice::Plain => Seal::Plain,
        };
        if self.spin {
            config.waiting = Waiting::Spin;
        }
        Ok(config)
    }
}

/// Arguments of the end that serves.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// UDP port.
    port: u16,
    #[command(flatten)]
    common: Common,
    /// Requires that the kernel executes the operations of peers.
    #[arg(long)]
    kernel: bool,
    /// Prints its resident memory each second, in bytes.
    #[arg(long)]
    prints_memory: bool,
    /// Stops itself with SIGSTOP when a peer has connected.
    #[arg(long)]
    stops: bool,
}

/// Arguments of the end that measures.
#[derive(Debug, clap::Args)]
pub struct MeasureArgs {
    /// Address of the other end.
    address: IpAddr,
    /// Its UDP port.
    port: u16,
    #[command(flatten)]
    common: Common,
    /// Requires that the kernel of the other end executes operations.
    #[arg(long)]
    expects_kernel: bool,
    /// Measures this goodput only.
    #[arg(long, value_parser = ["ordered", "unordered", "put"])]
    only: Option<String>,
    /// Time before the first measurement, in milliseconds.
    #[arg(long, default_value_t = 50)]
    after_ms: u64,
    /// Time for each figure, in milliseconds.
    time_ms: u64,
    /// Message sizes, in bytes.
    #[arg(required = true)]
    sizes_bytes: Vec<usize>,
}

/// Serves until the process is ended.
pub fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let rung = if args.kernel {
        Rung::Kernel
    } else {
        Rung::User
    };
    let node = args.common.node(args.port, rung)?;
    outln!("listening");
    if args.prints_memory {
        let printed = std::cell::Cell::new(Instant::now());
        return Ok(perf::serve(&node, || {
            if printed.get().elapsed() > Duration::from_secs(1) {
                printed.set(Instant::now());
                outln!("{}", resident_bytes());
            }
            false
        })?);
    }
    if !args.stops {
        return Ok(perf::serve(&node, || false)?);
    }
    // The first request is that of a place. Everything later needs no program.
    let began = std::cell::Cell::new(None);
    perf::serve(&node, || {
        if node.has_peers() && began.get().is_none() {
            began.set(Some(Instant::now()));
        }
        if began
            .get()
            .is_some_and(|began: Instant| began.elapsed() > STOP_AFTER)
        {
            // An error leaves the process running, which the measurement shows.
            let _ = raise(Signal::SIGSTOP);
        }
        false
    })?;
    Ok(())
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * 4096
}

fn connect(args: &MeasureArgs) -> anyhow::Result<(Node, PeerId, Place)> {
    let node = args.common.node(0, Rung::User)?;
    let target = match args.address {
        IpAddr::V4(address) if address == Ipv4Addr::UNSPECIFIED => Ipv4Addr::LOCALHOST.into(),
        address => address,
    };
    let peer = node.connect((target, args.port).into())?;
    let place = perf::place(&node, peer).context("the other end does not answer")?;
    let began = Instant::now();
    while args.expects_kernel && !node.peer_has_kernel(peer) {
        anyhow::ensure!(
            began.elapsed() < CONNECT,
            "the peer's kernel executes nothing"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(args.after_ms));
    Ok((node, peer, place))
}

/// Prints the times of each exchange, one line per size.
pub fn exchange(args: &MeasureArgs) -> anyhow::Result<()> {
    let (node, peer, place) = connect(args)?;
    let time = Duration::from_millis(args.time_ms);
    for bytes in &args.sizes_bytes {
        let mut row = Map::from_iter([("size_bytes".to_owned(), json!(bytes))]);
        for exchange in Exchange::ALL {
            let needs_program = matches!(exchange, Exchange::Echo | Exchange::Synchronous);
            // With a stopped target, only its kernel answers.
            if args.expects_kernel && needs_program {
                continue;
            }
            let probe = perf::latency(&node, peer, place, exchange, *bytes, COUNT_MIN)?;
            let count = time.as_secs_f64() / probe.median.as_secs_f64().max(1e-7);
            let count = (count as usize).clamp(COUNT_MIN, COUNT_MAX);
            let times = perf::latency(&node, peer, place, exchange, *bytes, count)?;
            let name = exchange.name().replace('-', "_");
            row.insert(format!("{name}_median_us"), micros(times.median));
            row.insert(format!("{name}_p99_us"), micros(times.p99));
        }
        outln!("{}", Value::Object(row));
    }
    Ok(())
}

fn micros(time: Duration) -> Value {
    json!(time.as_secs_f64() * 1e6)
}

/// Prints the goodput of each class and of puts, one line per size.
pub fn goodput(args: &MeasureArgs) -> anyhow::Result<()> {
    let (node, peer, place) = connect(args)?;
    let time = Duration::from_millis(args.time_ms);
    for bytes in &args.sizes_bytes {
        let mut row = Map::from_iter([("size_bytes".to_owned(), json!(bytes))]);
        for (name, stream) in [
            ("ordered", Stream::Messages(Class::Ordered)),
            ("unordered", Stream::Messages(Class::Unordered)),
            ("synchronous", Stream::Messages(Class::Synchronous)),
            ("put", Stream::Puts),
        ] {
            if args.only.as_ref().is_some_and(|only| only != name) {
                continue;
            }
            // A datagram's worth of puts, and the classes for messages of any length.
            if stream == Stream::Puts && *bytes > 1_024 {
                continue;
            }
            let rate = perf::goodput(&node, peer, place, stream, *bytes, time)?;
            row.insert(format!("{name}_goodput_bps"), json!(rate * 8.0));
            row.insert(format!("{name}_per_s"), json!(rate / *bytes as f64));
        }
        if let Some(status) = node.status(peer) {
            let counts = status.messages.counts;
            row.insert("packets".to_owned(), json!(counts.packets));
            row.insert("packets_lost".to_owned(), json!(counts.lost));
            row.insert("timeouts".to_owned(), json!(counts.timeouts));
        }
        outln!("{}", Value::Object(row));
    }
    Ok(())
}
