//! What the hosts do while they are measured.

mod burst;
mod burst_ends;
mod coll_bound;
mod datagram_bursts_end;
mod discovered;
mod explained;
pub mod flow;
pub mod flow_ends;
mod integrity;
mod integrity_ends;
pub mod link_bytes;
pub mod mpi;
pub mod mpi_programs;
mod neighbours;
mod path_events;
mod pattern;
mod pattern_ends;
pub mod pingpong;
mod pingpong_ends;
mod python_ranks;
mod simulated;
mod stream;

use super::plan::{Event, Window};
use super::sample::Figures;
use super::variant::Running;
use clap::Subcommand;
use kumi_lab::topology::Bytes;
use serde::Deserialize;
use serde_json::Value;
use std::process::ExitCode;

/// A workload of a plan, as `workload = { kind = "stream", seconds = 10 }`.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Workload {
    /// iperf3, unmodified, from the first host to the second.
    Stream {
        /// How long it is measured, after a second that is not.
        seconds: u32,
        /// Parallel streams.
        #[serde(default = "one")]
        streams: u32,
        /// UDP at this share of the ceiling, instead of TCP.
        #[serde(default)]
        udp_share: Option<f64>,
        /// Whether `kumi tcp explain` looks at both ends meanwhile.
        #[serde(default)]
        explained: bool,
    },
    /// One TCP stream whose every arrival is timed: for silences and for curves.
    Flow {
        /// How long it is measured.
        seconds: u32,
    },
    /// Datagrams whose every byte is checked.
    Integrity {
        /// How long it is measured.
        seconds: u32,
        /// Forged datagrams a second that a stranger sends to the device meanwhile.
        #[serde(default)]
        forged_per_s: Option<u32>,
        /// They go to a port where nobody listens: what the lab itself takes for them.
        #[serde(default)]
        forged_to_nobody: bool,
    },
    /// Messages to and fro: half the round trip, a row a size.
    Pingpong {
        /// Message sizes, in bytes.
        sizes_bytes: Vec<u64>,
        /// What carries the messages.
        #[serde(default)]
        over: Carrier,
        /// Whether an iperf3 stream fills the links meanwhile.
        #[serde(default)]
        under_load: bool,
    },
    /// So many bytes, an answer, a pause: what a restart costs, a row a size.
    Burst {
        /// Bytes of a burst.
        sizes_bytes: Vec<u64>,
        /// Pauses, one before each burst of a size.
        pauses_ms: Vec<u64>,
        /// Bytes of bursts that precede, on the same connection, every four of a size.
        #[serde(default)]
        before_bytes: Option<u64>,
    },
    /// A program of `bench/workloads/`, a rank on every host.
    Mpi {
        /// Which.
        program: mpi_programs::MpiProgram,
        /// Its arguments.
        args: Vec<String>,
        /// Its arguments with `--quick`, if not the same.
        #[serde(default)]
        quick_args: Vec<String>,
        /// How many times, ranks on the hosts in another order each time.
        #[serde(default)]
        orders: Option<u32>,
    },
    /// What a PyTorch program does between hosts: over Gloo, or a variant's own backend.
    Torch {
        /// `torch_coll.py`'s arguments.
        args: Vec<String>,
        /// Its arguments with `--quick`, if not the same.
        #[serde(default)]
        quick_args: Vec<String>,
    },
    /// Ranks that die, hang or are cut off in the midst of collectives.
    Failure {
        /// How many, over all jobs.
        losses: u32,
    },
    /// `kumi topo discover`, compared with the network that is there.
    Discover {
        /// What others' traffic takes of each host's link meanwhile.
        load_share: f64,
    },
    /// A collective's plan in virtual time, on the topology grown to so many hosts.
    Simulated {
        /// As `mpi_coll` calls it.
        operation: String,
        /// How many hosts.
        hosts: usize,
        /// Of a block, or of the vector.
        sizes_bytes: Vec<u64>,
        /// Of a switch's port.
        port_queue: Bytes,
    },
    /// A program that is slow for one known cause, under `kumi tcp explain`.
    Explained {
        /// The cause.
        ailment: explained::Ailment,
        /// How long it runs, where it is no number of messages.
        #[serde(default = "four")]
        seconds: u32,
    },
    /// A pattern of connections between two hosts, size by size.
    Pattern {
        /// Which.
        pattern: pattern_ends::Pattern,
        /// What makes an end send its next message.
        exchange: pattern_ends::Exchange,
        /// Bytes of a message.
        sizes_bytes: Vec<u64>,
        /// How long each, after a second that is not measured.
        seconds: u32,
        /// How many times the pattern, side by side; streaming only.
        #[serde(default = "one")]
        flows: u32,
        /// Datagrams that the sending host puts into the same queue at once, ten times a second: a queue
        /// that TCP alone keeps short overflows.
        #[serde(default)]
        burst_datagrams: Option<u32>,
    },
    /// A long flow of the variant beside long flows of the kernel's.
    Neighbours {
        /// How long.
        seconds: u32,
        /// How many of the kernel's.
        neighbours: u32,
        /// Their congestion control.
        congestion_control: String,
    },
}

fn one() -> u32 {
    1
}

fn four() -> u32 {
    4
}

/// What carries the messages of a ping-pong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// A TCP socket with `TCP_NODELAY`.
    #[default]
    Tcp,
    /// Open MPI's `MPI_Send` and `MPI_Recv`.
    Mpi,
}

/// What a workload is run with.
pub struct Context<'a> {
    /// The variant under it.
    pub running: &'a Running<'a>,
    /// What happens to the network meanwhile.
    pub events: &'a [Event],
    /// Stretches that become figures.
    pub windows: &'a [Window],
    /// Shorter, for a first impression: the figures prove nothing.
    pub quick: bool,
}

/// What a workload measured: for a ping-pong, once a size.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Message size, where the workload has one.
    pub size_bytes: Option<u64>,
    /// What was measured.
    pub figures: Figures,
    /// Bytes over time, where somebody will draw them.
    pub series: Option<Value>,
}

impl Workload {
    /// Whether its keys go together.
    pub fn is_sound(&self) -> bool {
        !matches!(
            self,
            Self::Pattern {
                exchange: pattern_ends::Exchange::RequestResponse,
                flows: 2..,
                ..
            }
        )
    }

    /// Whether nothing of what it measures depends on how punctual this machine is.
    pub fn is_in_virtual_time(&self) -> bool {
        matches!(self, Self::Simulated { .. })
    }

    /// Runs the workload.
    pub fn measure(&self, context: &Context<'_>) -> anyhow::Result<Vec<Measured>> {
        match self {
            Self::Stream {
                seconds,
                streams,
                udp_share,
                explained,
            } => {
                let _explain = explained.then(|| explained::watch(context)).transpose()?;
                let stream = stream::Stream {
                    seconds: shortened(*seconds, context.quick),
                    streams: *streams,
                    udp_share: *udp_share,
                };
                Ok(vec![stream.measure(context)?])
            }
            Self::Flow { seconds } => Ok(vec![flow::measure(context, *seconds)?]),
            Self::Integrity {
                seconds,
                forged_per_s,
                forged_to_nobody,
            } => {
                let stranger = forged_per_s.map(|per_s| integrity::Stranger {
                    per_s,
                    is_to_nobody: *forged_to_nobody,
                });
                Ok(vec![integrity::measure(context, *seconds, stranger)?])
            }
            Self::Pingpong {
                sizes_bytes,
                over,
                under_load,
            } => {
                let _load = under_load.then(|| stream::load(context)).transpose()?;
                match over {
                    Carrier::Tcp => pingpong::measure(context, sizes_bytes),
                    Carrier::Mpi => mpi::measure(context, sizes_bytes),
                }
            }
            Self::Burst {
                sizes_bytes,
                pauses_ms,
                before_bytes,
            } => burst::measure(context, sizes_bytes, pauses_ms, *before_bytes),
            Self::Mpi {
                program,
                args,
                quick_args,
                orders,
            } => {
                let is_short = context.quick && !quick_args.is_empty();
                let args = if is_short { quick_args } else { args };
                match orders {
                    None => mpi_programs::measure(context, *program, args),
                    Some(orders) => {
                        let orders = if context.quick { 2 } else { *orders };
                        mpi_programs::measure_in_orders(context, *program, args, orders)
                    }
                }
            }
            Self::Torch { args, quick_args } => {
                let is_short = context.quick && !quick_args.is_empty();
                let args = if is_short { quick_args } else { args };
                python_ranks::measure_torch(context, args)
            }
            Self::Failure { losses } => {
                let losses = if context.quick { 1 } else { *losses };
                python_ranks::measure_failure(context, losses)
            }
            Self::Discover { load_share } => Ok(vec![discovered::measure(context, *load_share)?]),
            Self::Simulated {
                operation,
                hosts,
                sizes_bytes,
                port_queue,
            } => simulated::measure(context, operation, *hosts, sizes_bytes, *port_queue),
            Self::Explained { ailment, seconds } => {
                Ok(vec![explained::measure(context, *ailment, *seconds)?])
            }
            Self::Pattern {
                pattern,
                exchange,
                sizes_bytes,
                seconds,
                flows,
                burst_datagrams,
            } => {
                let way = pattern::Way {
                    pattern: *pattern,
                    exchange: *exchange,
                    flows: *flows,
                    burst_datagrams: *burst_datagrams,
                };
                let seconds = shortened(*seconds, context.quick);
                pattern::measure(context, way, sizes_bytes, seconds)
            }
            Self::Neighbours {
                seconds,
                neighbours,
                congestion_control,
            } => {
                let seconds = shortened(*seconds, context.quick).max(4);
                let measured =
                    neighbours::measure(context, seconds, *neighbours, congestion_control)?;
                Ok(vec![measured])
            }
        }
    }
}

/// A `--quick` run's length. Flows keep theirs: their events have times.
fn shortened(seconds: u32, quick: bool) -> u32 {
    if quick { seconds.min(2) } else { seconds }
}

/// The ends of the built-in workloads, which `kumi bench` starts on the hosts.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    end: End,
}

#[derive(Debug, Subcommand)]
enum End {
    /// Sends a TCP stream.
    FlowSource(flow_ends::SourceArgs),
    /// Receives a TCP stream and prints when its bytes came.
    FlowSink(flow_ends::SinkArgs),
    /// Prints what each link has sent, ten times a second.
    LinkBytes(link_bytes::Args),
    /// Sends numbered datagrams.
    IntegritySource(integrity_ends::SourceArgs),
    /// Receives numbered datagrams and checks every byte.
    IntegritySink(integrity_ends::SinkArgs),
    /// Sends what only looks like the device's datagrams.
    Forge(integrity_ends::ForgeArgs),
    /// Sends bursts after pauses.
    BurstSource(burst_ends::SourceArgs),
    /// Answers bursts.
    BurstSink(burst_ends::SinkArgs),
    /// Sends and receives in a pattern.
    PatternSource(pattern_ends::SourceArgs),
    /// The other end of a pattern.
    PatternSink(pattern_ends::SinkArgs),
    /// Sends bursts of datagrams that nobody receives.
    DatagramBursts(datagram_bursts_end::Args),
    /// Sends messages and times their return.
    Ping(pingpong_ends::PingArgs),
    /// Returns messages.
    Pong(pingpong_ends::PongArgs),
}

/// Runs one end.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.end {
        End::FlowSource(args) => flow_ends::source(&args),
        End::FlowSink(args) => flow_ends::sink(&args),
        End::LinkBytes(args) => link_bytes::run(&args),
        End::IntegritySource(args) => integrity_ends::source(&args),
        End::IntegritySink(args) => integrity_ends::sink(&args),
        End::Forge(args) => integrity_ends::forge(&args),
        End::BurstSource(args) => burst_ends::source(&args),
        End::BurstSink(args) => burst_ends::sink(&args),
        End::PatternSource(args) => pattern_ends::source(&args),
        End::PatternSink(args) => pattern_ends::sink(&args),
        End::DatagramBursts(args) => datagram_bursts_end::run(&args),
        End::Ping(args) => pingpong_ends::ping(&args),
        End::Pong(args) => pingpong_ends::pong(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    flow_ends::unix_ns() / 1_000_000_000
}
