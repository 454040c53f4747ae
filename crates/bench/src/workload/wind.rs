//! Wind and its rivals: times of exchanges and goodput, size by size.

use super::processors::bound;
use super::{Context, Measurement, libfabric, mpi, ucx};
use crate::hosts::COMMAND_SECONDS_MAX;
use crate::hosts::background::Background;
use crate::sample::Figures;
use crate::variant::{Running, Variant};
use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Port of the target.
pub const PORT: &str = "5410";

/// Time for each figure, in milliseconds.
const TIME_MS: u64 = 300;

/// Time of a bulk transfer for each figure, in milliseconds.
const GOODPUT_MS: u64 = 1_000;

/// Time from the connection to the first exchange with a target that stops itself.
const STOPPED_AFTER_MS: u64 = 1_000;

/// State of the target while it is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Its program waits for messages.
    #[default]
    Idle,
    /// Its program is stopped by SIGSTOP.
    Stopped,
    /// Other programs of the target compute, one on each processor.
    Computing,
}

/// Kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Times of exchanges.
    Exchange,
    /// Goodput of messages and puts.
    Goodput,
}

/// A measurement.
#[derive(Debug, Clone, Copy)]
pub struct Traffic<'a> {
    /// Kind of figures.
    pub kind: Kind,
    /// Message sizes, in bytes.
    pub sizes_bytes: &'a [u64],
    /// State of the target.
    pub target: Target,
}

/// Runs the measurement.
pub fn measure(context: &Context<'_>, traffic: Traffic<'_>) -> anyhow::Result<Vec<Measurement>> {
    let running = context.running;
    let _steering = Steering::start(running)?;
    let _load = match traffic.target {
        Target::Computing => Some(compute(running)?),
        Target::Idle | Target::Stopped => None,
    };
    let text = match running.variant {
        Variant::MpiOneSided | Variant::Oshmem => one_sided(context, traffic)?,
        Variant::FabricTcp => return libfabric::measure(context, traffic.sizes_bytes),
        Variant::Ucx => return ucx::measure(context, traffic.sizes_bytes),
        Variant::Udp | Variant::UdpSpin | Variant::TcpSpin | Variant::Cubic => {
            raw(context, traffic)?
        }
        _ => wind(context, traffic)?,
    };
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| measurement(line).with_context(|| line.to_owned()))
        .collect()
}

/// Returns the figures of an end, a JSON object.
pub fn measurement(line: &str) -> anyhow::Result<Measurement> {
    let mut row: Map<String, Value> = serde_json::from_str(line)?;
    let size = row.remove("size_bytes").and_then(|size| size.as_u64());
    let figures = row
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_f64()?)));
    Ok(Measurement {
        size_bytes: size,
        figures: figures.collect::<Figures>(),
        series: None,
    })
}

fn sizes(traffic: Traffic<'_>) -> Vec<String> {
    traffic.sizes_bytes.iter().map(u64::to_string).collect()
}

fn time_ms(context: &Context<'_>, kind: Kind) -> String {
    let time_ms = match kind {
        Kind::Exchange => TIME_MS,
        Kind::Goodput => GOODPUT_MS,
    };
    let time_ms = if context.quick { time_ms / 4 } else { time_ms };
    time_ms.to_string()
}

/// Returns the options of both ends that the variant has.
pub fn options(running: &Running<'_>) -> anyhow::Result<Vec<String>> {
    let secret = running
        .secret
        .as_deref()
        .context("the variant has no secret")?;
    let seal = match running.variant {
        Variant::WindKernel | Variant::WindTrusted => "authenticate",
        Variant::WindPlain => "plain",
        _ => "encrypt",
    };
    Ok(["--secret", secret, "--seal", seal]
        .map(String::from)
        .to_vec())
}

/// Runs both ends over Wind.
fn wind(context: &Context<'_>, traffic: Traffic<'_>) -> anyhow::Result<String> {
    let running = context.running;
    let hosts = running.hosts;
    let kumi = hosts.kumi();
    let options = options(running)?;
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let spin = match running.variant {
        Variant::WindSpin | Variant::WindPlain => &["--spin"][..],
        _ => &[],
    };
    let mut serve = vec![kumi, "workload", "wind-serve", PORT];
    serve.extend(&options);
    serve.extend(spin);
    if running.variant == Variant::WindKernel {
        serve.push("--kernel");
    }
    if traffic.target == Target::Stopped {
        serve.push("--stops");
    }
    let serve = bound(hosts, 1, &serve);
    let mut server = Background::start(hosts, running.server(), &serve, COMMAND_SECONDS_MAX)?;
    server.line()?;
    let time = time_ms(context, traffic.kind);
    let verb = match traffic.kind {
        Kind::Exchange => "wind-exchange",
        Kind::Goodput => "wind-goodput",
    };
    let after = STOPPED_AFTER_MS.to_string();
    let mut ask = vec![kumi, "workload", verb, &running.server_address, PORT];
    ask.extend(&options);
    // The requester polls in every variant whose rivals do.
    if traffic.kind == Kind::Exchange && running.variant != Variant::Wind {
        ask.push("--spin");
    }
    if running.variant == Variant::WindKernel {
        ask.push("--expects-kernel");
    }
    if traffic.target == Target::Stopped {
        ask.extend(["--after-ms", &after]);
    }
    ask.push(&time);
    let sizes = sizes(traffic);
    ask.extend(sizes.iter().map(String::as_str));
    hosts.run(running.client(), &bound(hosts, 0, &ask))
}

/// Runs an echo over a plain socket.
fn raw(context: &Context<'_>, traffic: Traffic<'_>) -> anyhow::Result<String> {
    let running = context.running;
    let hosts = running.hosts;
    let kumi = hosts.kumi();
    let transport = match running.variant {
        Variant::Udp | Variant::UdpSpin => "udp",
        _ => "tcp",
    };
    let spin = match running.variant {
        Variant::UdpSpin | Variant::TcpSpin => &["--spin"][..],
        _ => &[],
    };
    let (server_verb, verb) = match traffic.kind {
        Kind::Exchange => ("raw-echo", "raw-exchange"),
        Kind::Goodput => ("raw-sink", "raw-source"),
    };
    let mut serve = vec![kumi, "workload", server_verb];
    if traffic.kind == Kind::Exchange {
        serve.push(transport);
    }
    serve.push(PORT);
    serve.extend(spin);
    let serve = bound(hosts, 1, &serve);
    let mut server = Background::start(hosts, running.server(), &serve, COMMAND_SECONDS_MAX)?;
    server.line()?;
    let mut ask = vec![kumi, "workload", verb];
    if traffic.kind == Kind::Exchange {
        ask.push(transport);
    }
    ask.extend([&running.server_address, PORT]);
    ask.extend(spin);
    let time = time_ms(context, traffic.kind);
    ask.push(&time);
    let sizes = sizes(traffic);
    ask.extend(sizes.iter().map(String::as_str));
    hosts.run(running.client(), &bound(hosts, 0, &ask))
}

/// One-sided operations of Open MPI, or of its OpenSHMEM, over TCP.
fn one_sided(context: &Context<'_>, traffic: Traffic<'_>) -> anyhow::Result<String> {
    let running = context.running;
    let program = match running.variant {
        Variant::Oshmem => &mpi::OSHMEM,
        _ => &mpi::ONE_SIDED,
    };
    let mut args = vec![time_ms(context, traffic.kind)];
    args.extend(sizes(traffic));
    let mut argv = mpi::mpirun(running, program, &args)?;
    if running.hosts.kind() == "lab" {
        // Each rank on the processor of its end, as the ends of the other variants.
        let bind = [
            "sh",
            "-c",
            "exec taskset -c $OMPI_COMM_WORLD_RANK \"$@\"",
            "sh",
        ];
        let at = argv.len() - args.len() - 1;
        argv.splice(at..at, bind.map(String::from));
    }
    if running.variant == Variant::Oshmem {
        argv.splice(1..1, mpi::over_ucx(running));
    }
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    // Open MPI 4.1.4 with UCX 1.13 crashes at its end, after the last figure.
    let script = ["sh", "-c", "\"$@\" 2>&1 || true", "sh"];
    let text = running
        .hosts
        .run(running.client(), &[&script[..], &argv].concat())?;
    let count = text.lines().filter(|line| line.starts_with('{')).count();
    anyhow::ensure!(count == traffic.sizes_bytes.len(), "{text}");
    Ok(text)
}

/// Programs that compute on each processor of the target.
pub fn compute(running: &Running<'_>) -> anyhow::Result<Vec<Background>> {
    let hosts = running.hosts;
    let count = match hosts.kind() {
        // Those of the other end belong to the requester.
        "lab" => 1,
        _ => hosts.run(running.server(), &["nproc"])?.trim().parse()?,
    };
    let spin = bound(
        hosts,
        1,
        &["sh", "-c", "echo computing; while :; do :; done"],
    );
    let programs = (0..count).map(|_| {
        let program = Background::start(hosts, running.server(), &spin, COMMAND_SECONDS_MAX);
        program.and_then(|mut program| {
            program.line()?;
            Ok(program)
        })
    });
    programs.collect()
}

/// Receive processing on the processor of each end. On veth the sender's own system call would
/// otherwise do the target's work.
pub struct Steering<'a> {
    running: &'a Running<'a>,
}

impl<'a> Steering<'a> {
    /// Sets it, in a lab.
    pub fn start(running: &'a Running<'a>) -> anyhow::Result<Option<Self>> {
        if running.hosts.kind() != "lab" {
            return Ok(None);
        }
        set_steering(running, ["1", "2"])?;
        Ok(Some(Self { running }))
    }
}

impl Drop for Steering<'_> {
    fn drop(&mut self) {
        let _ = set_steering(self.running, ["0", "0"]);
    }
}

/// Writes the processors of each end, as masks.
fn set_steering(running: &Running<'_>, masks: [&str; 2]) -> anyhow::Result<()> {
    for (host, mask) in [running.client(), running.server()].into_iter().zip(masks) {
        let device = &running.device;
        let script = format!(
            "for file in /sys/class/net/{device}/queues/rx-*/rps_cpus; do echo {mask} > $file; done"
        );
        running.hosts.run(host, &["sh", "-c", &script])?;
    }
    Ok(())
}
