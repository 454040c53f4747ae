//! The two ends of the communication patterns of Takano et al., section 3.1. A pattern has one
//! connection in one direction, two connections with one direction each, or one connection in both.
//!
//! ```text
//!   one-way            two-connections      one-connection
//!   source ──► sink    source ──► sink      source ◄─► sink
//!                      source ◄── sink
//! ```
//!
//! When streaming, messages follow each other as fast as TCP accepts them. In request and response,
//! each end sends one message per round. It begins the next round when the other end's message has
//! arrived. In the one-way pattern, the sink answers with a byte.

use super::flow_ends::Arrivals;
use anyhow::Context;
use clap::ValueEnum;
use kumi_command::outln;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Directions of the messages on the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// One connection, one direction.
    OneWay,
    /// Two connections, one in each direction.
    TwoConnections,
    /// One connection, both directions at once.
    OneConnection,
}

/// Condition for an end's next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// TCP has room for the message.
    Streaming,
    /// The other end's message, or its answer, has arrived.
    RequestResponse,
}

/// Task that the source sends to the sink on each connection, as a line of JSON.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, clap::Args)]
pub struct Task {
    /// Directions of the messages.
    pattern: Pattern,
    /// Condition for an end's next message.
    exchange: Exchange,
    /// Bytes of a message.
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    size_bytes: u64,
    /// Duration, in seconds.
    #[arg(value_parser = super::parse_duration_s)]
    seconds: f64,
    /// Number of parallel instances of the pattern; streaming only.
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    flows: u32,
}

/// Arguments of the end that connects.
#[derive(Debug, clap::Args)]
pub struct SourceArgs {
    /// The sink's address.
    address: IpAddr,
    /// The sink's port.
    port: u16,
    #[command(flatten)]
    task: Task,
}

/// Arguments of the end that listens.
#[derive(Debug, clap::Args)]
pub struct SinkArgs {
    /// Port to listen on.
    port: u16,
}

/// Observations of an end, which it prints as a line of JSON.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Observations {
    /// Arrivals on each connection that carries messages to this end; streaming only.
    pub arrivals: Vec<Arrivals>,
    /// Time of each round, in microseconds; request and response only, and at the source only.
    pub rounds_us: Vec<f64>,
    /// Acknowledgements on each connection that carries messages from this end; streaming only.
    pub acks: Vec<Acks>,
}

/// Promptness of a connection's acknowledgements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Acks {
    /// Longest time with data in flight and no acknowledgement, in milliseconds.
    pub silence_max_ms: f64,
    /// Longest smoothed round-trip time, in milliseconds: the distance of the other end, with the
    /// queues.
    pub round_trip_max_ms: f64,
    /// Segments retransmitted.
    pub retransmits: u32,
}

/// Time at the start that does not count, because slow start decides it.
pub const SETTLING: Duration = Duration::from_millis(1000);

/// Interval at which a connection's acknowledgements are sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_micros(500);

/// First byte of the source's last message. In earlier messages, this byte is 0.
const LAST: u8 = 1;

/// Connects, and sends and receives as the task requires.
pub fn source(args: &SourceArgs) -> anyhow::Result<()> {
    let sink = SocketAddr::new(args.address, args.port);
    let task = &args.task;
    let mut streams = Vec::new();
    for _ in 0..task.connections() {
        let mut stream = super::connect(sink, "pattern-sink")?;
        stream.set_nodelay(true)?;
        writeln!(stream, "{}", serde_json::to_string(task)?)?;
        // The sink confirms that it has read the task. It then accepts the connections in this
        // order.
        stream.read_exact(&mut [0])?;
        streams.push(stream);
    }
    let observations = match task.exchange {
        Exchange::Streaming => stream_messages(task, &streams, End::Source),
        Exchange::RequestResponse => exchange(task, &streams, End::Source),
    }?;
    outln!("{}", serde_json::to_string(&observations)?);
    Ok(())
}

/// Does the sink's part of one task, and returns.
pub fn sink(args: &SinkArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", args.port))?;
    outln!("listening");
    let (mut streams, mut task) = (Vec::new(), None::<Task>);
    while task.is_none_or(|task| streams.len() < task.connections()) {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut line = String::new();
        // The buffer has one byte, because the bytes after the line belong to messages.
        BufReader::with_capacity(1, &stream).read_line(&mut line)?;
        task = Some(serde_json::from_str(&line).context("invalid task")?);
        stream.write_all(b"x")?;
        streams.push(stream);
    }
    let task = task.context("no connection was accepted")?;
    let observations = match task.exchange {
        Exchange::Streaming => stream_messages(&task, &streams, End::Sink),
        Exchange::RequestResponse => exchange(&task, &streams, End::Sink),
    }?;
    outln!("{}", serde_json::to_string(&observations)?);
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Source,
    Sink,
}

impl Task {
    fn connections(&self) -> usize {
        let pattern_connections = if self.pattern == Pattern::TwoConnections {
            2
        } else {
            1
        };
        pattern_connections * self.flows as usize
    }

    /// Returns whether the connection with this number carries messages from `end`.
    fn carries_from(&self, end: End, number: usize) -> bool {
        match self.pattern {
            Pattern::OneWay => end == End::Source,
            Pattern::TwoConnections => (end == End::Source) == (number % 2 == 0),
            Pattern::OneConnection => true,
        }
    }

    fn message(&self) -> Vec<u8> {
        vec![0; self.size_bytes as usize]
    }
}

impl End {
    fn peer(self) -> Self {
        match self {
            Self::Source => Self::Sink,
            Self::Sink => Self::Source,
        }
    }
}

fn stream_messages(task: &Task, streams: &[TcpStream], end: End) -> anyhow::Result<Observations> {
    let deadline = Instant::now() + Duration::from_secs_f64(task.seconds);
    thread::scope(|scope| {
        let (mut senders, mut watchers, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
        for (number, stream) in streams.iter().enumerate() {
            if task.carries_from(end, number) {
                senders.push(scope.spawn(move || send_until(stream, task, deadline)));
                watchers.push(scope.spawn(move || watch(stream, deadline)));
            }
            if task.carries_from(end.peer(), number) {
                receivers.push(scope.spawn(move || receive_all(stream)));
            }
        }
        join(senders)?;
        Ok(Observations {
            arrivals: join(receivers)?,
            acks: join(watchers)?,
            rounds_us: Vec::new(),
        })
    })
}

fn join<T>(threads: Vec<ScopedJoinHandle<'_, anyhow::Result<T>>>) -> anyhow::Result<Vec<T>> {
    let results = threads.into_iter().map(|thread| {
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a thread of the workload panicked"))?
    });
    results.collect()
}

fn send_until(mut stream: &TcpStream, task: &Task, deadline: Instant) -> anyhow::Result<()> {
    let message = task.message();
    while Instant::now() < deadline {
        stream.write_all(&message)?;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(())
}

fn receive_all(mut stream: &TcpStream) -> anyhow::Result<Arrivals> {
    let mut buffer = vec![0; 1 << 20];
    let mut arrivals = Arrivals::default();
    let (mut first, mut last) = (None, Duration::ZERO);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(arrivals);
        }
        let now = Instant::now();
        let arrival = now - *first.get_or_insert(now);
        arrivals.note(arrival, last, count as u64);
        last = arrival;
    }
}

/// Samples the acknowledgements of sent data until the given time.
fn watch(stream: &TcpStream, deadline: Instant) -> anyhow::Result<Acks> {
    let settling_end = Instant::now() + SETTLING;
    let mut acks = Acks::default();
    let mut last = kumi_sys::tcp::standing(stream.as_fd())?;
    let mut last_ack = Instant::now();
    while Instant::now() < deadline {
        thread::sleep(SAMPLE_INTERVAL);
        let info = kumi_sys::tcp::standing(stream.as_fd())?;
        let now = Instant::now();
        let is_acked = info.acked_bytes != last.acked_bytes || last.unacked == 0;
        if now > settling_end {
            let silence_ms = (now - last_ack).as_secs_f64() * 1e3;
            acks.silence_max_ms = acks.silence_max_ms.max(silence_ms);
            let round_trip_ms = f64::from(info.round_trip_us) / 1e3;
            acks.round_trip_max_ms = acks.round_trip_max_ms.max(round_trip_ms);
        }
        if is_acked {
            last_ack = now;
        }
        last = info;
    }
    acks.retransmits = last.retransmits;
    Ok(acks)
}

/// Runs rounds until the source marks the last one. A separate thread sends the messages, because
/// both ends may send more than the buffers between them hold.
fn exchange(task: &Task, streams: &[TcpStream], end: End) -> anyhow::Result<Observations> {
    let find_connection = |from| (0..streams.len()).find(|number| task.carries_from(from, *number));
    let outgoing = find_connection(end).map(|number| &streams[number]);
    let incoming = find_connection(end.peer()).map(|number| &streams[number]);
    let deadline = Instant::now() + Duration::from_secs_f64(task.seconds);
    let settling_end = Instant::now() + SETTLING;
    let (order, orders) = mpsc::channel::<bool>();
    let (done_sender, done_receiver) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let sender = outgoing.map(|mut stream| {
            scope.spawn(move || -> anyhow::Result<()> {
                let mut message = task.message();
                for is_last in orders {
                    message[0] = if is_last { LAST } else { 0 };
                    stream.write_all(&message)?;
                    if done_sender.send(()).is_err() {
                        break;
                    }
                }
                Ok(())
            })
        });
        let mut observations = Observations::default();
        let mut message = task.message();
        loop {
            let round_start = Instant::now();
            let mut is_last = end == End::Source && round_start >= deadline;
            if sender.is_some() {
                order.send(is_last)?;
            }
            if let Some(mut stream) = incoming {
                stream.read_exact(&mut message)?;
                is_last |= end == End::Sink && message[0] == LAST;
            }
            if sender.is_some() {
                done_receiver.recv()?;
            }
            match (task.pattern, end) {
                (Pattern::OneWay, End::Source) => {
                    outgoing.context("the source sends")?.read_exact(&mut [0])?
                }
                (Pattern::OneWay, End::Sink) => {
                    incoming.context("the sink receives")?.write_all(b"x")?;
                }
                _ => {}
            }
            if end == End::Source && round_start >= settling_end {
                observations
                    .rounds_us
                    .push(round_start.elapsed().as_secs_f64() * 1e6);
            }
            if is_last && (end == End::Source || incoming.is_some()) {
                break;
            }
        }
        drop(order);
        if let Some(sender) = sender {
            join(vec![sender])?;
        }
        Ok(observations)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(task: Task) -> (Observations, Observations) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has one");
        let (mut source_streams, mut sink_streams) = (Vec::new(), Vec::new());
        for _ in 0..task.connections() {
            source_streams.push(TcpStream::connect(address).expect("it listens"));
            sink_streams.push(listener.accept().expect("somebody comes").0);
        }
        let run = |task: &Task, streams: &[TcpStream], end| match task.exchange {
            Exchange::Streaming => stream_messages(task, streams, end),
            Exchange::RequestResponse => exchange(task, streams, end),
        };
        // The source alone decides when the rounds end, whatever the sink's clock.
        let short_task = Task {
            seconds: 0.01,
            ..task
        };
        let sink_task = match task.exchange {
            Exchange::Streaming => task,
            Exchange::RequestResponse => short_task,
        };
        thread::scope(|scope| {
            let sink = scope.spawn(|| run(&sink_task, &sink_streams, End::Sink));
            let source = run(&task, &source_streams, End::Source).expect("the source ends well");
            let sink = sink.join().expect("no panic").expect("the sink ends well");
            (source, sink)
        })
    }

    fn task(pattern: Pattern, exchange: Exchange) -> Task {
        Task {
            pattern,
            exchange,
            size_bytes: 100_000,
            seconds: SETTLING.as_secs_f64() + 0.1,
            flows: 1,
        }
    }

    #[test]
    fn streaming__each_pattern__transfers_in_its_directions() {
        for (pattern, to_source, to_sink) in [
            (Pattern::OneWay, 0, 1),
            (Pattern::TwoConnections, 1, 1),
            (Pattern::OneConnection, 1, 1),
        ] {
            let (source, sink) = ends(task(pattern, Exchange::Streaming));
            let directions = (source.arrivals.len(), sink.arrivals.len());
            assert_eq!(directions, (to_source, to_sink), "{pattern:?}");
            for arrivals in source.arrivals.iter().chain(&sink.arrivals) {
                assert!(arrivals.bins_bytes.iter().sum::<u64>() > 100_000);
            }
        }
    }

    #[test]
    fn request_response__each_pattern__completes_rounds_and_ends() {
        for pattern in [
            Pattern::OneWay,
            Pattern::TwoConnections,
            Pattern::OneConnection,
        ] {
            let (source, sink) = ends(task(pattern, Exchange::RequestResponse));
            assert!(source.rounds_us.len() > 10, "{pattern:?}");
            assert!(sink.rounds_us.is_empty());
        }
    }
}
