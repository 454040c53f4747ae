//! One TCP stream, timed at its receiver, while links are cut and healed.

use super::flow_ends::{Arrivals, BIN, Retransmissions, unix_ns};
use super::path_events::PathEvents;
use super::{Context, Measurement};
use crate::counters::Counters;
use crate::event::Event;
use crate::hosts::background::Background;
use crate::sample::Figures;
use anyhow::Context as _;
use kumi_lab::topology::LinkChange;
use serde_json::json;
use std::time::{Duration, Instant};

const PORT: &str = "5301";

/// Time after an event within which a gap counts as its effect, in milliseconds.
const GAP_WINDOW_MS: f64 = 1000.0;

/// Round trips after an event within which TCP may retransmit to find its window.
const SETTLED_ROUND_TRIPS: u64 = 3;

/// End of the period for `late_retransmits_NAME`, in nanoseconds after the event. The period begins
/// after `SETTLED_ROUND_TRIPS`.
const LATE_NS: u64 = 1_500_000_000;

/// Runs the stream and the events.
pub fn measure(context: &Context<'_>, seconds: u32) -> anyhow::Result<Measurement> {
    let running = context.running;
    let hosts = running.hosts;
    let (client, server) = (running.client(), running.server());
    let kumi = hosts.kumi();
    let seconds_max = seconds + 20;
    let sink = running.wrapped(&[kumi, "workload", "flow-sink", PORT]);
    let mut sink = Background::start(hosts, server, &sink, seconds_max)?;
    sink.line()?;
    let listeners = PathEvents::watch(running, seconds_max)?;
    let before = (
        Counters::read(hosts, client)?,
        Counters::read(hosts, server)?,
    );
    let length = seconds.to_string();
    let source = [
        kumi,
        "workload",
        "flow-source",
        &running.server_address,
        PORT,
        &length,
        "--notes-retransmits",
    ];
    let source = Background::start(hosts, client, &running.wrapped(&source), seconds_max)?;
    let event_times = apply_events(context)?;
    let report = source.finish().context("the stream's sender")?;
    let retransmissions: Retransmissions =
        serde_json::from_str(&report).context("invalid output of the sender")?;
    let arrivals = sink.finish().context("the stream's receiver")?;
    let arrivals: Arrivals = serde_json::from_str(&arrivals)?;
    let after = (
        Counters::read(hosts, client)?,
        Counters::read(hosts, server)?,
    );

    let growth =
        |name: &str| (after.0.growth(&before.0, name) + after.1.growth(&before.1, name)) as f64;
    let mut figures = figures(context, &arrivals, &event_times, f64::from(seconds));
    for (name, unix_ns) in &event_times {
        let settled_ns = unix_ns + SETTLED_ROUND_TRIPS * retransmissions.round_trip_max_ns;
        let late_count = retransmissions.count_between(settled_ns, unix_ns + LATE_NS);
        figures.insert(format!("late_retransmits_{name}"), late_count.into());
    }
    let changes = listeners.map(PathEvents::finish).transpose()?;
    if let Some(changes) = &changes {
        figures.extend(changes.figures(context, &event_times));
    }
    figures.insert("retransmits".into(), growth("RetransSegs"));
    figures.insert("tcp_timeouts".into(), growth("TCPTimeouts"));
    figures.insert("tcp_spurious_timeouts".into(), growth("TCPSpuriousRTOs"));
    let events: Vec<_> = event_times
        .iter()
        .map(|(name, unix_ns)| json!({"name": name, "at_s": stream_time_s(&arrivals, *unix_ns)}))
        .collect();
    let series = json!({
        "bin_ms": BIN.as_millis() as u64,
        "bytes": arrivals.bins_bytes,
        "events": events,
        "state_changes": changes.map(|changes| changes.series(arrivals.first_unix_ns)),
    });
    Ok(Measurement {
        figures,
        series: Some(series),
        ..Measurement::default()
    })
}

/// Makes the changes of the links at their times. Returns the name of each and its time in
/// nanoseconds since 1970.
pub fn apply_events(context: &Context<'_>) -> anyhow::Result<Vec<(String, u64)>> {
    let start = Instant::now();
    let mut event_times = Vec::new();
    for (at_s, name, link, change) in schedule(context.events) {
        let due = start + Duration::from_secs_f64(at_s);
        kumi_command::interrupt::sleep(due.saturating_duration_since(Instant::now()))?;
        event_times.push((name, unix_ns()));
        context.running.hosts.change(&link, &change)?;
    }
    Ok(event_times)
}

type ScheduledChange = (f64, String, String, LinkChange);

/// Returns all changes in order of time, with repetitions unrolled.
fn schedule(events: &[Event]) -> Vec<ScheduledChange> {
    let mut changes = Vec::new();
    for event in events {
        changes.push((
            event.at_s,
            event.name.clone(),
            event.link.clone(),
            event.change.clone(),
        ));
        let Some(repetition) = &event.again else {
            continue;
        };
        for number in 1..repetition.count {
            let at_s = event.at_s + f64::from(number) * repetition.every_s;
            let change = if number % 2 == 1 {
                &repetition.reverse
            } else {
                &event.change
            };
            changes.push((
                at_s,
                format!("{}-{number}", event.name),
                event.link.clone(),
                change.clone(),
            ));
        }
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    changes
}

fn figures(
    context: &Context<'_>,
    arrivals: &Arrivals,
    event_times: &[(String, u64)],
    seconds: f64,
) -> Figures {
    let mut figures = Figures::new();
    figures.insert("goodput_bps".into(), arrivals.goodput_bps(1.0, seconds));
    for (name, unix_ns) in event_times {
        let event_ms = stream_time_s(arrivals, *unix_ns) * 1e3;
        let gap = arrivals.gap_max_ms(event_ms, event_ms + GAP_WINDOW_MS);
        figures.insert(format!("gap_{name}_ms"), gap);
    }
    figures.insert(
        "gap_max_ms".into(),
        arrivals.gap_max_ms(500.0, seconds * 1e3 - 100.0),
    );
    for window in context.windows {
        let goodput = arrivals.goodput_bps(window.from_s, window.to_s);
        figures.insert(format!("goodput_{}_bps", window.name), goodput);
    }
    figures
}

fn stream_time_s(arrivals: &Arrivals, unix_ns: u64) -> f64 {
    (unix_ns as f64 - arrivals.first_unix_ns as f64) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule__flapping_link__alternates_in_time() {
        let text = r#"
            at_s = 1.0
            name = "flap"
            link = "h2:eth2"
            change = { carrier = false }
            again = { every_s = 0.5, reverse = { carrier = true }, count = 3 }
        "#;
        let event: Event = toml::from_str(text).expect("is an event");
        let changes = schedule(&[event]);
        let summaries: Vec<_> = changes
            .iter()
            .map(|change| (change.0, change.1.as_str(), change.3.carrier))
            .collect();
        let expected = [
            (1.0, "flap", Some(false)),
            (1.5, "flap-1", Some(true)),
            (2.0, "flap-2", Some(false)),
        ];
        assert_eq!(summaries, expected);
    }

    #[test]
    fn schedule__unknown_change__is_refused() {
        let text = "at_s = 1.0\nname = \"x\"\nlink = \"h2:eth2\"\nchange = { carier = false }";
        assert!(toml::from_str::<Event>(text).is_err());
    }
}
