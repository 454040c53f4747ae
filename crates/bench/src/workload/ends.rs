//! The ends of the built-in workloads: `kumi workload`.

use super::{
    burst_ends, datagram_bursts_end, dsm_ends, flow_ends, integrity_ends, link_bytes, pattern_ends,
    pingpong_ends, raw_ends, raw_goodput_ends, raw_stamp_ends, wind_check_ends, wind_ends,
    wind_many_ends,
};
use clap::Subcommand;
use std::process::ExitCode;

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
    /// Receives a TCP stream and prints the arrival times of its bytes.
    FlowSink(flow_ends::SinkArgs),
    /// Prints the bytes that each link has sent, ten times per second.
    LinkBytes(link_bytes::Args),
    /// Sends numbered datagrams.
    IntegritySource(integrity_ends::SourceArgs),
    /// Receives numbered datagrams and checks every byte.
    IntegritySink(integrity_ends::SinkArgs),
    /// Sends forged datagrams that resemble the device's.
    Forge(integrity_ends::ForgeArgs),
    /// Sends bursts after pauses.
    BurstSource(burst_ends::SourceArgs),
    /// Answers bursts.
    BurstSink(burst_ends::SinkArgs),
    /// Sends and receives in a pattern.
    PatternSource(pattern_ends::SourceArgs),
    /// Runs the other end of a pattern.
    PatternSink(pattern_ends::SinkArgs),
    /// Sends bursts of datagrams to a port without a receiver.
    DatagramBursts(datagram_bursts_end::Args),
    /// Sends messages and times their return.
    Ping(pingpong_ends::PingArgs),
    /// Returns messages.
    Pong(pingpong_ends::PongArgs),
    /// Echoes messages over a plain socket.
    RawEcho(raw_ends::EchoArgs),
    /// Times the echo over a plain socket.
    RawExchange(raw_ends::ExchangeArgs),
    /// Receives messages over TCP.
    RawSink(raw_goodput_ends::SinkArgs),
    /// Sends messages over TCP.
    RawSource(raw_goodput_ends::SourceArgs),
    /// Receives messages with times over TCP.
    RawStampSink(raw_stamp_ends::SinkArgs),
    /// Sends messages with times over TCP.
    RawStampSource(raw_stamp_ends::SourceArgs),
    /// Answers measurements of Wind.
    WindServe(wind_ends::ServeArgs),
    /// Times exchanges over Wind.
    WindExchange(wind_ends::MeasureArgs),
    /// Measures the goodput over Wind.
    WindGoodput(wind_ends::MeasureArgs),
    /// Receives messages over Wind, and checks them.
    WindCheckSink(wind_check_ends::SinkArgs),
    /// Sends messages over Wind that the other end checks.
    WindCheckSource(wind_check_ends::SourceArgs),
    /// Connects idle peers over Wind.
    WindIdle(wind_many_ends::IdleArgs),
    /// Puts the same data to several peers over Wind.
    WindSpread(wind_many_ends::SpreadArgs),
    /// Measures shared memory, as a node.
    Dsm(dsm_ends::Args),
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
        End::RawEcho(args) => raw_ends::echo(&args),
        End::RawExchange(args) => raw_ends::exchange(&args),
        End::RawSink(args) => raw_goodput_ends::sink(&args),
        End::RawSource(args) => raw_goodput_ends::source(&args),
        End::RawStampSink(args) => raw_stamp_ends::sink(&args),
        End::RawStampSource(args) => raw_stamp_ends::source(&args),
        End::WindServe(args) => wind_ends::serve(&args),
        End::WindExchange(args) => wind_ends::exchange(&args),
        End::WindGoodput(args) => wind_ends::goodput(&args),
        End::WindCheckSink(args) => wind_check_ends::sink(&args),
        End::WindCheckSource(args) => wind_check_ends::source(&args),
        End::WindIdle(args) => wind_many_ends::idle(&args),
        End::WindSpread(args) => wind_many_ends::spread(&args),
        End::Dsm(args) => dsm_ends::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
