//! Workloads: the traffic and the programs that hosts run while they are measured.

mod burst;
mod burst_ends;
mod coll_bound;
mod datagram_bursts_end;
mod discovered;
mod dsm;
mod dsm_apps;
mod dsm_crash_end;
mod dsm_ends;
mod dsm_litmus_end;
mod ends;
mod explained;
pub mod flow;
pub mod flow_ends;
mod integrity;
mod integrity_ends;
mod libfabric;
pub mod link_bytes;
mod listener;
pub mod mpi;
pub mod mpi_programs;
mod nas;
mod neighbours;
mod path_events;
mod pattern;
mod pattern_ends;
pub mod pingpong;
mod pingpong_ends;
mod processors;
mod python_ranks;
mod ranks;
mod raw_ends;
mod raw_goodput_ends;
mod raw_stamp_ends;
mod shmem;
mod simulated;
mod stream;
mod ucx;
pub mod wind;
mod wind_check_ends;
mod wind_ends;
mod wind_many;
mod wind_many_ends;

pub use ends::{Args, run};

use super::event::{Event, Window};
use super::sample::Figures;
use super::variant::Running;
use anyhow::Context as _;
use kumi_lab::topology::Bytes;
use serde::Deserialize;
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};

/// A workload of a plan, written as `workload = { kind = "stream", seconds = 10 }`.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Workload {
    /// iperf3, unmodified, from the first host to the second.
    Stream {
        /// Measured time, in seconds, after one second that is not measured.
        seconds: u32,
        /// Number of parallel streams.
        #[serde(default = "default_count")]
        streams: u32,
        /// Share of the ceiling at which UDP is sent, instead of TCP.
        #[serde(default)]
        udp_share: Option<f64>,
        /// True if `kumi tcp explain` observes both ends meanwhile.
        #[serde(default)]
        explained: bool,
    },
    /// One TCP stream with the time of every arrival, for gaps and curves.
    Flow {
        /// Measured time, in seconds.
        seconds: u32,
        /// Traffic of others beside it.
        #[serde(default)]
        cross: Option<stream::Cross>,
    },
    /// Datagrams whose every byte is checked.
    Integrity {
        /// Measured time, in seconds.
        seconds: u32,
        /// Forged datagrams per second that a stranger sends to the device meanwhile.
        #[serde(default)]
        forged_per_s: Option<u32>,
        /// True if they go to a port without a socket instead. This shows their cost to the lab
        /// itself.
        #[serde(default)]
        forged_to_nobody: bool,
    },
    /// Messages back and forth. The figure is half the round trip, in one row per size.
    Pingpong {
        /// Message sizes, in bytes.
        sizes_bytes: Vec<u64>,
        /// Transport of the messages.
        #[serde(default)]
        over: Carrier,
        /// True if an iperf3 stream fills the links meanwhile.
        #[serde(default)]
        under_load: bool,
    },
    /// Bursts, each with an answer and a pause: the cost of a restart, in one row per size.
    Burst {
        /// Sizes of a burst, in bytes.
        sizes_bytes: Vec<u64>,
        /// Pauses, in milliseconds, one before each burst of a size.
        pauses_ms: Vec<u64>,
        /// Size of the bursts that precede every four of a size on the same connection, in bytes.
        #[serde(default)]
        before_bytes: Option<u64>,
    },
    /// An MPI program of `bench/workloads/`, with a rank on every host.
    Mpi {
        /// Program to run.
        program: mpi_programs::MpiProgram,
        /// Arguments of the program.
        args: Vec<String>,
        /// Arguments with `--quick`, if they are not the same.
        #[serde(default)]
        quick_args: Vec<String>,
        /// Number of runs, each with another order of the ranks on the hosts. Without it, one run.
        #[serde(default)]
        orders: Option<u32>,
    },
    /// Collectives of a PyTorch program between hosts, over Gloo or a variant's own backend.
    Torch {
        /// Arguments of `torch_coll.py`.
        args: Vec<String>,
        /// Arguments with `--quick`, if they are not the same.
        #[serde(default)]
        quick_args: Vec<String>,
    },
    /// Collectives of a group of libkumi, over the variant's transport.
    Group {
        /// Arguments of `group_coll.py`.
        args: Vec<String>,
        /// Arguments with `--quick`, if they are not the same.
        #[serde(default)]
        quick_args: Vec<String>,
    },
    /// Ranks that die, hang or are cut off during collectives.
    Failure {
        /// Number of ranks to lose, over all jobs.
        losses: u32,
    },
    /// Shared memory: misses, barriers and writes.
    Dsm {
        /// Figures to measure.
        measure: dsm::Measure,
        /// Number of hosts, from the first one on; all by default.
        #[serde(default)]
        nodes: Option<usize>,
        /// Bytes that are updated, or that a rival gets.
        #[serde(default)]
        sizes_bytes: Vec<u64>,
        /// Litmus tests, or jobs in which a node is killed.
        #[serde(default)]
        count: u64,
    },
    /// An application on shared memory, or the same with MPI.
    DsmApp {
        /// Name of a program of `examples/dsm`.
        app: dsm_apps::App,
        /// Number of hosts, from the first one on, with a node on each.
        nodes: usize,
        /// Arguments of the program.
        args: Vec<String>,
        /// Arguments with `--quick`, if they are not the same.
        #[serde(default)]
        quick_args: Vec<String>,
    },
    /// OpenSHMEM: one-sided operations, or collectives.
    Shmem {
        /// Figures to measure.
        measure: shmem::Measure,
        /// Number of hosts, from the first one on, with a PE on each.
        pes: usize,
        /// Bytes of an operation, or of a block to each PE; 0 is a barrier.
        sizes_bytes: Vec<u64>,
    },
    /// `kumi topo discover`, compared with the actual network.
    Discover {
        /// Share of each host's link that other traffic takes meanwhile.
        load_share: f64,
    },
    /// A collective's plan in virtual time, on the topology enlarged to more hosts.
    Simulated {
        /// Name of the operation in `mpi_coll`.
        operation: String,
        /// Number of hosts.
        hosts: usize,
        /// Sizes of a block, or of the vector, in bytes.
        sizes_bytes: Vec<u64>,
        /// Depth of a switch port.
        port_queue: Bytes,
    },
    /// A program with a known cause of slowness, under `kumi tcp explain`.
    Explained {
        /// Cause of the slowness.
        ailment: explained::Ailment,
        /// Duration in seconds, for programs that do not end after a number of messages.
        #[serde(default = "default_seconds")]
        seconds: u32,
    },
    /// A pattern of connections between two hosts, size by size.
    Pattern {
        /// Pattern of the connections.
        pattern: pattern_ends::Pattern,
        /// Condition for an end's next message.
        exchange: pattern_ends::Exchange,
        /// Message sizes, in bytes.
        sizes_bytes: Vec<u64>,
        /// Measured time for each size, in seconds, after one second that is not measured.
        seconds: u32,
        /// Number of parallel instances of the pattern. More than one only when streaming.
        #[serde(default = "default_count")]
        flows: u32,
        /// Datagrams that the sending host puts into the same queue at once, ten times per second.
        /// They overflow a queue that TCP alone keeps short.
        #[serde(default)]
        burst_datagrams: Option<u32>,
    },
    /// Messages and operations of Wind, or of a rival.
    Wind {
        /// Kind of figures.
        measure: wind::Kind,
        /// Message sizes, in bytes.
        sizes_bytes: Vec<u64>,
        /// State of the target.
        #[serde(default)]
        target: wind::Target,
    },
    /// Messages over Wind whose contents, order and times are checked.
    WindChecked {
        /// Delivery classes.
        classes: wind_many::Classes,
        /// Longest message, in bytes.
        bytes: u64,
        /// Number of messages.
        count: u64,
        /// Messages per second; as many as pass without it.
        #[serde(default)]
        per_s: Option<u32>,
        /// True with puts and additions between the messages.
        #[serde(default)]
        operations: bool,
    },
    /// All other hosts send to the second one at the same time.
    WindIncast {
        /// Length of a message, in bytes.
        bytes: u64,
        /// Time, in seconds.
        seconds: u32,
    },
    /// Goodput of one peer beside idle peers, and their memory.
    WindPeers {
        /// Number of idle peers.
        peers: u64,
    },
    /// One put to all other hosts.
    WindMulticast {
        /// Length of the data, in bytes.
        bytes: u64,
        /// Targets; all other hosts by default.
        targets: Option<u32>,
    },
    /// A long flow of the variant beside long flows of the kernel's TCP.
    Neighbours {
        /// Duration, in seconds.
        seconds: u32,
        /// Number of flows of the kernel's TCP.
        neighbours: u32,
        /// Congestion control of the kernel's flows.
        congestion_control: String,
    },
}

fn default_count() -> u32 {
    1
}

fn default_seconds() -> u32 {
    4
}

/// Transport of a ping-pong's messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// A TCP socket with `TCP_NODELAY`.
    #[default]
    Tcp,
    /// Open MPI's `MPI_Send` and `MPI_Recv`.
    Mpi,
    /// Tagged messages of libfabric, between two `fi_pingpong`.
    Fabric,
}

/// Context of a workload's run.
pub struct Context<'a> {
    /// Variant under the workload.
    pub running: &'a Running<'a>,
    /// Changes of the network during the run.
    pub events: &'a [Event],
    /// Periods whose goodput becomes a figure.
    pub windows: &'a [Window],
    /// True for a shorter run, as a first impression. Its figures prove nothing.
    pub quick: bool,
}

/// Measurements of a workload. A ping-pong returns one per size.
#[derive(Debug, Clone, Default)]
pub struct Measurement {
    /// Message size, in bytes, if the workload has one.
    pub size_bytes: Option<u64>,
    /// Measured figures.
    pub figures: Figures,
    /// Bytes over time, for workloads whose curves are drawn.
    pub series: Option<Value>,
}

impl Workload {
    /// Checks the values that the types of the keys do not. The error names the wrong value.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Pattern {
                exchange: pattern_ends::Exchange::RequestResponse,
                flows,
                ..
            } if *flows > 1 => Err(format!(
                "invalid flows = {flows}: expected 1, because only exchange `streaming` has more"
            )),
            Self::Simulated { operation, .. }
                if !coll_bound::OPERATIONS.contains(&operation.as_str()) =>
            {
                Err(coll_bound::unknown_operation(operation))
            }
            Self::Flow {
                cross: Some(cross), ..
            } => cross.check(),
            _ => Ok(()),
        }
    }

    /// Returns whether the figures are independent of this machine's punctuality.
    pub fn is_in_virtual_time(&self) -> bool {
        matches!(self, Self::Simulated { .. })
    }

    /// Runs the workload.
    pub fn measure(&self, context: &Context<'_>) -> anyhow::Result<Vec<Measurement>> {
        match self {
            Self::Stream {
                seconds,
                streams,
                udp_share,
                explained,
            } => {
                let _explain = explained.then(|| explained::watch(context)).transpose()?;
                let stream = stream::Stream {
                    seconds: shorten(*seconds, context.quick),
                    streams: *streams,
                    udp_share: *udp_share,
                };
                Ok(vec![stream.measure(context)?])
            }
            Self::Flow { seconds, cross } => {
                let cross = cross.as_ref().map(|cross| cross.start(context));
                let _cross = cross.transpose()?;
                Ok(vec![flow::measure(context, *seconds)?])
            }
            Self::Integrity {
                seconds,
                forged_per_s,
                forged_to_nobody,
            } => {
                let stranger = forged_per_s.map(|per_s| integrity::Stranger {
                    per_s,
                    is_to_unused_port: *forged_to_nobody,
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
                    Carrier::Fabric => libfabric::measure(context, sizes_bytes),
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
                let args = arguments(context, args, quick_args);
                match orders {
                    None => mpi_programs::measure(context, *program, args),
                    Some(orders) => {
                        let orders = if context.quick { 2 } else { *orders };
                        mpi_programs::measure_in_orders(context, *program, args, orders)
                    }
                }
            }
            Self::Torch { args, quick_args } => {
                let args = arguments(context, args, quick_args);
                python_ranks::measure_torch(context, args)
            }
            Self::Group { args, quick_args } => {
                let args = arguments(context, args, quick_args);
                python_ranks::measure_group(context, args)
            }
            Self::Failure { losses } => {
                let losses = if context.quick { 1 } else { *losses };
                python_ranks::measure_failure(context, losses)
            }
            Self::Dsm {
                measure,
                nodes,
                sizes_bytes,
                count,
            } => dsm::measure(context, *measure, *nodes, sizes_bytes, *count),
            Self::DsmApp {
                app,
                nodes,
                args,
                quick_args,
            } => dsm_apps::measure(context, *app, *nodes, arguments(context, args, quick_args)),
            Self::Shmem {
                measure,
                pes,
                sizes_bytes,
            } => shmem::measure(context, *measure, *pes, sizes_bytes),
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
                let traffic = pattern::Traffic {
                    pattern: *pattern,
                    exchange: *exchange,
                    flows: *flows,
                    burst_datagrams: *burst_datagrams,
                };
                let seconds = shorten(*seconds, context.quick);
                pattern::measure(context, traffic, sizes_bytes, seconds)
            }
            Self::WindChecked {
                classes,
                bytes,
                count,
                per_s,
                operations,
            } => {
                let count = if context.quick { count / 10 } else { *count };
                let traffic = wind_many::Checked {
                    classes: *classes,
                    bytes: *bytes,
                    count,
                    per_s: *per_s,
                    operations: *operations,
                };
                Ok(vec![wind_many::measure_checked(context, traffic)?])
            }
            Self::WindIncast { bytes, seconds } => {
                let seconds = shorten(*seconds, context.quick);
                Ok(vec![wind_many::measure_incast(context, *bytes, seconds)?])
            }
            Self::WindPeers { peers } => Ok(vec![wind_many::measure_peers(context, *peers)?]),
            Self::WindMulticast { bytes, targets } => {
                let targets = targets.map_or(usize::MAX, |targets| targets as usize);
                Ok(vec![wind_many::measure_multicast(
                    context, *bytes, targets,
                )?])
            }
            Self::Wind {
                measure,
                sizes_bytes,
                target,
            } => {
                let traffic = wind::Traffic {
                    kind: *measure,
                    sizes_bytes,
                    target: *target,
                };
                wind::measure(context, traffic)
            }
            Self::Neighbours {
                seconds,
                neighbours,
                congestion_control,
            } => {
                let seconds = shorten(*seconds, context.quick).max(4);
                let measurement =
                    neighbours::measure(context, seconds, *neighbours, congestion_control)?;
                Ok(vec![measurement])
            }
        }
    }
}

/// Returns the arguments of a program: those for `--quick`, if there are any.
fn arguments<'a>(
    context: &Context<'_>,
    args: &'a [String],
    quick_args: &'a [String],
) -> &'a [String] {
    let is_short = context.quick && !quick_args.is_empty();
    if is_short { quick_args } else { args }
}

/// Returns the seconds of a run, at most 2 with `--quick`. Flows keep their length, because their
/// events have times.
fn shorten(seconds: u32, quick: bool) -> u32 {
    if quick { seconds.min(2) } else { seconds }
}

/// Returns the time in seconds since 1970.
pub fn unix_s() -> u64 {
    flow_ends::unix_ns() / 1_000_000_000
}

/// Connects to the end `other` at `address`.
fn connect(address: SocketAddr, other: &str) -> anyhow::Result<TcpStream> {
    TcpStream::connect(address).with_context(|| {
        let port = address.port();
        format!("cannot connect to {address}; start `kumi workload {other} {port}` there first")
    })
}

/// Longest duration of an end, in seconds: a day, far above any case of a plan.
const DURATION_MAX_S: f64 = 86_400.0;

/// Parses the duration of an end, in seconds.
fn parse_duration_s(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.0..=DURATION_MAX_S).contains(seconds))
        .ok_or_else(|| format!("expected 0 to {DURATION_MAX_S} seconds"))
}

#[cfg(test)]
mod tests;
