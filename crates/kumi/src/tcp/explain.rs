//! `kumi tcp explain`: explains why a program's connections were slow, and names remedies.

use super::watch;
use kumi_command::{err, outln};
use kumi_tcp::explain::{Analysis, Explained, InPhase, Report};
use kumi_tcp::trace::Detail;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Version of the JSON format. It increases when the meaning of a key changes.
const SCHEMA: u32 = 2;
/// Share of the observed time below which a loss is not printed. Chosen by judgement.
const SHARE_MIN: f64 = 0.001;

/// Arguments of `kumi tcp explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Prints one JSON object.
    #[arg(short, long)]
    json: bool,
    /// Number of connections to name, those that lost most first.
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    #[command(flatten)]
    watch: watch::Args,
}

/// Runs `kumi tcp explain`. The report goes to standard error, because standard output belongs to
/// the command. JSON goes to standard output.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut analysis = Analysis::default();
    let code = watch::run(&args.watch, Detail::Senders, |event| analysis.note(&event))?;
    let report = analysis.finish();
    if args.json {
        outln!("{}", json(&report));
    } else {
        err!("{}", text(&report, args.top));
    }
    Ok(code)
}

fn json(report: &Report) -> Value {
    let losses = report.losses.iter().map(|loss| {
        json!({
            "cause": loss.cause.key(),
            "lost_s": loss.lost_s,
            "summed_s": loss.summed_s,
            "count": loss.count,
            "remedy": loss.cause.mend(loss.place),
            "phases": loss.phases.iter().map(|phase| json!({
                "phase": &*phase.name,
                "summed_s": phase.summed_s,
                "count": phase.count,
            })).collect::<Vec<_>>(),
        })
    });
    let connections = report.connections.iter().map(|connection| {
        let losses = connection.losses.iter();
        json!({
            "local": connection.local.to_string(),
            "remote": connection.remote.to_string(),
            "transfers": connection.transfers,
            "slow": connection.slow,
            "bytes": connection.bytes,
            "busy_s": connection.busy_s,
            "losses": losses.map(|(cause, s)| json!({"cause": cause.key(), "lost_s": s})).collect::<Vec<_>>(),
        })
    });
    json!({
        "schema": SCHEMA,
        "observed_s": report.observed_s,
        "busy_s": report.busy_s,
        "lost_s": report.lost_s,
        "losses": losses.collect::<Vec<_>>(),
        "connections": connections.collect::<Vec<_>>(),
        "events_lost": report.events_lost,
        "connections_left": report.connections_left,
        "acknowledgements_joined": report.acknowledgements_joined,
    })
}

fn text(report: &Report, top: usize) -> String {
    let mut text = String::new();
    let mut push_line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    if report.connections.is_empty() {
        push_line("kumi: no observed TCP connection sent data that was acknowledged".to_owned());
        return text;
    }
    let share = |s: f64| 100.0 * s / report.observed_s.max(1e-9);
    push_line(format!(
        "observed {:.2} s: {:.2} s in transfers, of which {:.2} s ({:.0} % of the run) were lost",
        report.observed_s,
        report.busy_s,
        report.lost_s,
        share(report.lost_s)
    ));
    let significant = report
        .losses
        .iter()
        .filter(|loss| loss.lost_s > SHARE_MIN * report.observed_s);
    for loss in significant {
        push_line(format!(
            "  {:<24} {:>8.3} s {:>4.0} %  {} times",
            loss.cause.name(),
            loss.lost_s,
            share(loss.lost_s),
            loss.count
        ));
        if !loss.phases.is_empty() {
            push_line(format!("    {}", phases(&loss.phases)));
        }
        push_line(format!("    fix: {}", loss.cause.mend(loss.place)));
    }
    let slow = report
        .connections
        .iter()
        .filter(|connection| connection.slow > 0);
    for connection in slow.take(top) {
        push_line(line(connection));
    }
    if report.events_lost > 0 {
        let lost = report.events_lost;
        push_line(format!(
            "  {lost} events were dropped because the buffer was full; the figures are too small"
        ));
    }
    if report.acknowledgements_joined > 0 {
        let merged = report.acknowledgements_joined;
        push_line(format!(
            "  {merged} acknowledgements beyond the limit were merged with earlier ones; observe for a shorter time"
        ));
    }
    if report.connections_left > 0 {
        let omitted = report.connections_left;
        push_line(format!(
            "  {omitted} connections beyond the limit were not analysed"
        ));
    }
    text
}

/// Maximum number of phases named for a cause.
const PHASES_NAMED: usize = 4;

fn phases(phases: &[InPhase]) -> String {
    let named = phases.iter().take(PHASES_NAMED);
    let named: Vec<String> = named
        .map(|phase| {
            let InPhase {
                count,
                name,
                summed_s,
            } = phase;
            format!("{count} in {name} ({summed_s:.3} s)")
        })
        .collect();
    let remaining: u64 = phases.iter().skip(PHASES_NAMED).map(|p| p.count).sum();
    let suffix = if remaining > 0 {
        format!(", {remaining} in others")
    } else {
        String::new()
    };
    format!("{}{suffix}", named.join(", "))
}

fn line(connection: &Explained) -> String {
    let losses: Vec<String> = connection
        .losses
        .iter()
        .take(3)
        .map(|(cause, s)| format!("{} {s:.3} s", cause.name()))
        .collect();
    // A slow transfer may have lost too little time to have a cause.
    let losses = match losses.is_empty() {
        true => String::new(),
        false => format!("; {}", losses.join(", ")),
    };
    format!(
        "  {} → {}: {} of {} transfers slow{losses}",
        connection.local, connection.remote, connection.slow, connection.transfers
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explained_connection__without_a_cause__ends_with_its_transfer_counts() {
        let address = "127.0.0.1:1".parse().unwrap();
        let connection = Explained {
            local: address,
            remote: address,
            transfers: 20,
            slow: 19,
            bytes: 1,
            busy_s: 0.1,
            losses: Vec::new(),
        };
        assert!(line(&connection).ends_with("19 of 20 transfers slow"));
    }
}
