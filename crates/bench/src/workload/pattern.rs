//! Communication patterns of Takano et al. (figures 4, 5, 10 to 14, table 3), size by size.

use super::pattern_ends::{Exchange, Observations, Pattern, SETTLING};
use super::{Context, Measurement};
use crate::ceiling::PLAIN_TCP;
use crate::hosts::PathFacts;
use crate::hosts::background::Background;
use crate::sample::Figures;
use anyhow::Context as _;
use clap::ValueEnum;

const PORT: &str = "5801";

/// Destination port of the bursts. It has no receiver.
const BURST_PORT: &str = "5899";

/// Size of a message whose exchange is all latency. A larger message takes this time besides that
/// of its bytes.
const SMALLEST_BYTES: u64 = 1;

/// A pattern, and the way in which its messages follow each other.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    /// Directions of the messages on the connections.
    pub pattern: Pattern,
    /// Condition for an end's next message.
    pub exchange: Exchange,
    /// Number of parallel instances of the pattern.
    pub flows: u32,
    /// Datagrams per burst into the sending host's queue, ten bursts per second.
    pub burst_datagrams: Option<u32>,
}

/// Runs the pattern with each size.
pub fn measure(
    context: &Context<'_>,
    traffic: Traffic,
    sizes_bytes: &[u64],
    seconds: u32,
) -> anyhow::Result<Vec<Measurement>> {
    let path = context.running.hosts.path()?;
    let seconds = f64::from(seconds) + SETTLING.as_secs_f64();
    let latency_us = match traffic.exchange {
        Exchange::Streaming => 0.0,
        Exchange::RequestResponse => {
            let [source, _] = run(context, traffic, SMALLEST_BYTES, 1.5)?;
            mean(&source.rounds_us)
        }
    };
    let sizes = sizes_bytes.iter().map(|size_bytes| {
        let bursts = traffic
            .burst_datagrams
            .map(|datagrams| bursts(context, datagrams, seconds))
            .transpose()?;
        let observations = run(context, traffic, *size_bytes, seconds)?;
        drop(bursts);
        let mut figures = match traffic.exchange {
            Exchange::Streaming => stream_figures(&observations, path, seconds),
            Exchange::RequestResponse => {
                round_figures(&observations[0], *size_bytes, path, latency_us)?
            }
        };
        figures.extend(ack_figures(&observations));
        Ok(Measurement {
            size_bytes: Some(*size_bytes),
            figures,
            series: None,
        })
    });
    sizes.collect()
}

/// Returns the observations of source and sink.
fn run(
    context: &Context<'_>,
    traffic: Traffic,
    size_bytes: u64,
    seconds: f64,
) -> anyhow::Result<[Observations; 2]> {
    let running = context.running;
    let hosts = running.hosts;
    let kumi = hosts.kumi();
    let seconds_max = crate::hosts::COMMAND_SECONDS_MAX;
    let sink = running.wrapped(&[kumi, "workload", "pattern-sink", PORT]);
    let mut sink = Background::start(hosts, running.server(), &sink, seconds_max)?;
    sink.line()?;
    let values = [
        traffic.pattern.to_possible_value(),
        traffic.exchange.to_possible_value(),
    ];
    let [pattern, exchange] =
        values.map(|value| value.map_or(String::new(), |value| value.get_name().to_owned()));
    let numbers = [
        size_bytes.to_string(),
        seconds.to_string(),
        traffic.flows.to_string(),
    ];
    let mut source = vec![
        kumi,
        "workload",
        "pattern-source",
        &running.server_address,
        PORT,
    ];
    source.extend([pattern.as_str(), exchange.as_str()]);
    source.extend(numbers.iter().map(String::as_str));
    let text = hosts.run(running.client(), &running.wrapped(&source))?;
    let source = serde_json::from_str(&text).context("invalid output of the source")?;
    let sink = sink.finish().context("the pattern's sink")?;
    Ok([
        source,
        serde_json::from_str(&sink).context("invalid output of the sink")?,
    ])
}

/// Sends bursts of `datagrams` from the sending host. They end after `seconds`, or when the value
/// is dropped.
pub fn bursts(context: &Context<'_>, datagrams: u32, seconds: f64) -> anyhow::Result<Background> {
    let running = context.running;
    let (datagrams, seconds) = (datagrams.to_string(), seconds.to_string());
    let argv = [
        running.hosts.kumi(),
        "workload",
        "datagram-bursts",
        &running.server_address,
        BURST_PORT,
        &datagrams,
        &seconds,
    ];
    let seconds_max = crate::hosts::COMMAND_SECONDS_MAX;
    Background::start(running.hosts, running.client(), &argv, seconds_max)
}

/// Returns the goodput of all connections, its share of the allowed rate in the directions in use,
/// and the fairness between connections (Jain's index).
fn stream_figures(observations: &[Observations; 2], path: PathFacts, seconds: f64) -> Figures {
    let settling_s = SETTLING.as_secs_f64();
    let directions = observations
        .iter()
        .filter(|end| !end.arrivals.is_empty())
        .count();
    let goodputs_bps: Vec<f64> = observations
        .iter()
        .flat_map(|end| &end.arrivals)
        .map(|arrivals| arrivals.goodput_bps(settling_s, seconds))
        .collect();
    let sum_bps: f64 = goodputs_bps.iter().sum();
    let squares: f64 = goodputs_bps.iter().map(|bps| bps * bps).sum();
    let allowed_bps = path.bottleneck_bps * PLAIN_TCP * directions as f64;
    Figures::from([
        ("goodput_bps".into(), sum_bps),
        ("of_allowed_ratio".into(), sum_bps / allowed_bps),
        (
            "jain_ratio".into(),
            sum_bps * sum_bps / (goodputs_bps.len() as f64 * squares),
        ),
    ])
}

/// Returns the mean. It is not the median: where both ends send, a round that takes no time may
/// follow one that takes a whole round trip.
fn mean(times_us: &[f64]) -> f64 {
    times_us.iter().sum::<f64>() / times_us.len() as f64
}

/// Returns the time of a round and the allowed time: that of the smallest message, plus that of the
/// bytes at the bottleneck rate.
fn round_figures(
    source: &Observations,
    size_bytes: u64,
    path: PathFacts,
    latency_us: f64,
) -> anyhow::Result<Figures> {
    anyhow::ensure!(
        !source.rounds_us.is_empty(),
        "no round of {size_bytes} bytes completed in time; give the case more `seconds` or smaller \
         `sizes_bytes`"
    );
    let round_us = mean(&source.rounds_us);
    let bytes_us = size_bytes as f64 * 8.0 / (path.bottleneck_bps * PLAIN_TCP) * 1e6;
    Ok(Figures::from([
        ("round_mean_us".into(), round_us),
        ("round_allowed_us".into(), latency_us + bytes_us),
        (
            "of_allowed_ratio".into(),
            (latency_us + bytes_us) / round_us,
        ),
    ]))
}

/// Returns the worst acknowledgement times of all connections that carried messages away from an
/// end, and the sum of their retransmissions.
fn ack_figures(observations: &[Observations; 2]) -> Figures {
    let acks: Vec<_> = observations.iter().flat_map(|end| &end.acks).collect();
    if acks.is_empty() {
        return Figures::new();
    }
    let longest = |value: &dyn Fn(&super::pattern_ends::Acks) -> f64| {
        acks.iter().map(|acks| value(acks)).fold(0.0, f64::max)
    };
    let silence_round_trips =
        longest(&|acks| acks.silence_max_ms / acks.round_trip_max_ms.max(f64::MIN_POSITIVE));
    Figures::from([
        (
            "ack_silence_ms".into(),
            longest(&|acks| acks.silence_max_ms),
        ),
        ("ack_silence_round_trips".into(), silence_round_trips),
        (
            "round_trip_max_ms".into(),
            longest(&|acks| acks.round_trip_max_ms),
        ),
        (
            "retransmits".into(),
            acks.iter().map(|acks| f64::from(acks.retransmits)).sum(),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::flow_ends::Arrivals;
    use super::super::pattern_ends::Acks;
    use super::*;

    const PATH: PathFacts = PathFacts {
        bottleneck_bps: 1e9,
        round_trip_s: 0.0,
    };

    #[test]
    fn streams__one_direction_starved__reach_half_of_the_allowed_rate() {
        let full = Arrivals {
            bins_bytes: vec![(1e9 * PLAIN_TCP / 800.0) as u64; 200],
            ..Arrivals::default()
        };
        let sink = Observations {
            arrivals: vec![full],
            ..Observations::default()
        };
        let source = Observations {
            arrivals: vec![Arrivals::default()],
            ..Observations::default()
        };
        let figures = stream_figures(&[source, sink], PATH, 2.0);
        assert!(
            (figures["of_allowed_ratio"] - 0.5).abs() < 1e-6,
            "{figures:?}"
        );
        assert!((figures["jain_ratio"] - 0.5).abs() < 1e-6);
    }

    #[test]
    fn rounds__twice_the_allowed_time__reach_half_of_the_allowed_rate() {
        let allowed_us = 50.0 + 1e6 * 8.0 / (1e9 * PLAIN_TCP) * 1e6;
        let source = Observations {
            rounds_us: vec![0.0, 4.0 * allowed_us],
            ..Observations::default()
        };
        let figures = round_figures(&source, 1_000_000, PATH, 50.0).expect("a round ended");
        assert!((figures["of_allowed_ratio"] - 0.5).abs() < 1e-9);
        let error = round_figures(&Observations::default(), 4096, PATH, 1.0).unwrap_err();
        let expected = "no round of 4096 bytes completed in time; give the case more `seconds` or \
                        smaller `sizes_bytes`";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn ack_silence__several_connections__is_counted_in_their_own_round_trips() {
        let fast = Acks {
            silence_max_ms: 3.0,
            round_trip_max_ms: 1.0,
            retransmits: 1,
        };
        let slow = Acks {
            silence_max_ms: 10.0,
            round_trip_max_ms: 20.0,
            retransmits: 2,
        };
        let observations = Observations {
            acks: vec![fast, slow],
            ..Observations::default()
        };
        let figures = ack_figures(&[observations, Observations::default()]);
        assert_eq!(figures["ack_silence_round_trips"], 3.0);
        assert_eq!(figures["ack_silence_ms"], 10.0);
        assert_eq!(figures["retransmits"], 3.0);
    }
}
