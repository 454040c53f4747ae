//! One TCP stream, timed at its receiver, while links are cut and healed.

use super::flow_ends::{Arrivals, BIN, Resent, unix_ns};
use super::path_events::PathEvents;
use super::{Context, Measured};
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
const GAP_WITHIN_MS: f64 = 1000.0;

/// Round trips after an event within which TCP may retransmit to find its window.
const SETTLED_ROUND_TRIPS: u64 = 3;

/// End of the period for `late_retransmits_NAME`, in nanoseconds after the event. The period begins
/// after `SETTLED_ROUND_TRIPS`.
const LATE_NS: u64 = 1_500_000_000;

/// Runs the stream and the events.
pub fn measure(context: &Context<'_>, seconds: u32) -> anyhow::Result<Measured> {
    let running = context.running;
    let hosts = running.hosts;
    let (client, server) = (running.client(), running.server());
    let kumi = hosts.kumi();
    let seconds_max = seconds + 20;
    let sink = running.wrapped(&[kumi, "workload", "flow-sink", PORT]);
    let mut sink = Background::start(hosts, server, &sink, seconds_max)?;
    sink.line()?;
    let watched = PathEvents::watch(running, seconds_max)?;
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
    let acted = act(context)?;
    let resent = source.finish().context("the stream's sender")?;
    let resent: Resent = serde_json::from_str(&resent).context("invalid output of the sender")?;
    let arrivals = sink.finish().context("the stream's receiver")?;
    let arrivals: Arrivals = serde_json::from_str(&arrivals)?;
    let after = (
        Counters::read(hosts, client)?,
        Counters::read(hosts, server)?,
    );

    let grown =
        |name: &str| (after.0.grown(&before.0, name) + after.1.grown(&before.1, name)) as f64;
    let mut figures = figures(context, &arrivals, &acted, f64::from(seconds));
    for (name, unix_ns) in &acted {
        let settled_ns = unix_ns + SETTLED_ROUND_TRIPS * resent.round_trip_max_ns;
        let late = resent.between(settled_ns, unix_ns + LATE_NS);
        figures.insert(format!("late_retransmits_{name}"), late.into());
    }
    let changes = watched.map(PathEvents::finish).transpose()?;
    if let Some(changes) = &changes {
        figures.extend(changes.figures(context, &acted));
    }
    figures.insert("retransmits".into(), grown("RetransSegs"));
    figures.insert("tcp_timeouts".into(), grown("TCPTimeouts"));
    figures.insert("tcp_spurious_timeouts".into(), grown("TCPSpuriousRTOs"));
    let events: Vec<_> = acted
        .iter()
        .map(|(name, unix_ns)| json!({"name": name, "at_s": since_first_s(&arrivals, *unix_ns)}))
        .collect();
    let series = json!({
        "bin_ms": BIN.as_millis() as u64,
        "bytes": arrivals.bins_bytes,
        "events": events,
        "state_changes": changes.map(|changes| changes.series(arrivals.first_unix_ns)),
    });
    Ok(Measured {
        figures,
        series: Some(series),
        ..Measured::default()
    })
}

/// Makes the changes of the links at their times. Returns the name of each and its time in
/// nanoseconds since 1970.
pub fn act(context: &Context<'_>) -> anyhow::Result<Vec<(String, u64)>> {
    let start = Instant::now();
    let mut acted = Vec::new();
    for (at_s, name, link, change) in schedule(context.events) {
        let due = start + Duration::from_secs_f64(at_s);
        kumi_command::interrupt::sleep(due.saturating_duration_since(Instant::now()))?;
        acted.push((name, unix_ns()));
        context.running.hosts.change(&link, &change)?;
    }
    Ok(acted)
}

type Due = (f64, String, String, LinkChange);

/// Returns all changes in order of time, with repetitions unrolled.
fn schedule(events: &[Event]) -> Vec<Due> {
    let mut due = Vec::new();
    for event in events {
        due.push((
            event.at_s,
            event.name.clone(),
            event.link.clone(),
            event.change.clone(),
        ));
        let Some(again) = &event.again else { continue };
        for turn in 1..again.count {
            let at_s = event.at_s + f64::from(turn) * again.every_s;
            let change = if turn % 2 == 1 {
                &again.reverse
            } else {
                &event.change
            };
            due.push((
                at_s,
                format!("{}-{turn}", event.name),
                event.link.clone(),
                change.clone(),
            ));
        }
    }
    due.sort_by(|a, b| a.0.total_cmp(&b.0));
    due
}

fn figures(
    context: &Context<'_>,
    arrivals: &Arrivals,
    acted: &[(String, u64)],
    seconds: f64,
) -> Figures {
    let mut figures = Figures::new();
    figures.insert("goodput_bps".into(), arrivals.goodput_bps(1.0, seconds));
    for (name, unix_ns) in acted {
        let at_ms = since_first_s(arrivals, *unix_ns) * 1e3;
        let gap = arrivals.gap_max_ms(at_ms, at_ms + GAP_WITHIN_MS);
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

fn since_first_s(arrivals: &Arrivals, unix_ns: u64) -> f64 {
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
        let due = schedule(&[event]);
        let told: Vec<_> = due
            .iter()
            .map(|due| (due.0, due.1.as_str(), due.3.carrier))
            .collect();
        let expected = [
            (1.0, "flap", Some(false)),
            (1.5, "flap-1", Some(true)),
            (2.0, "flap-2", Some(false)),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn schedule__unknown_change__is_refused() {
        let text = "at_s = 1.0\nname = \"x\"\nlink = \"h2:eth2\"\nchange = { carier = false }";
        assert!(toml::from_str::<Event>(text).is_err());
    }
}
