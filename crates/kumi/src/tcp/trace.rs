//! `kumi tcp trace`: prints the events of connections, one JSON object per event.

use super::watch;
use anyhow::Context;
use kumi_command::errln;
use kumi_command::output::Output;
use kumi_tcp::trace::{Detail, Event, Kind, Limit, Retransmit};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Version of the format, in every line. It increases when the meaning of a key changes.
const SCHEMA: u32 = 2;

/// Arguments of `kumi tcp trace`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File to write to, instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    watch: watch::Args,
}

/// Runs `kumi tcp trace`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    watch::selection(&args.watch)?; // a mistake must not empty the file
    let mut out: Box<dyn Write> = match &args.output {
        Some(path) => {
            let file = std::fs::File::create(path)
                .with_context(|| format!("cannot create {}", path.display()))?;
            Box::new(std::io::BufWriter::new(file))
        }
        None => Box::new(std::io::LineWriter::new(Output)),
    };
    let mut lost = 0;
    let mut write_error = None;
    let code = watch::run(&args.watch, Detail::Every, |event| {
        lost = event.lost;
        if let Err(error) = writeln!(out, "{}", line(&event)) {
            write_error.get_or_insert(error);
        }
    })?;
    let outcome = out.flush();
    if lost > 0 {
        errln!("kumi: warning: {lost} events were dropped because the buffer was full");
    }
    let outcome = write_error.map_or(outcome, Err);
    outcome.with_context(|| {
        let file = args.output.as_ref().map(|path| path.display().to_string());
        let name = file.unwrap_or_else(|| "standard output".to_owned());
        format!("cannot write the trace to {name}")
    })?;
    Ok(code)
}

fn line(event: &Event) -> Value {
    let totals = &event.totals;
    let mut line = json!({
        "schema": SCHEMA,
        "at_ns": event.at_ns,
        "event": event.kind.name(),
        "local": event.local.to_string(),
        "remote": event.remote.to_string(),
        "cwnd": event.cwnd,
        "ssthresh": event.ssthresh,
        "in_flight": event.in_flight,
        "unacked_bytes": event.snd_nxt.wrapping_sub(event.snd_una),
        "unsent_bytes": event.write_seq.wrapping_sub(event.snd_nxt),
        "advertised_bytes": event.snd_wnd,
        "announced_bytes": event.rcv_wnd,
        "pacing_bps": event.pacing_bps,
        "srtt_us": event.srtt_us,
        "rtt_min_us": event.rtt_min_us,
        "rto_us": event.rto_us,
        "state": event.state.name(),
        "phase": event.phase_name.as_deref(),
        "limit": match event.limit {
            Limit::Nobody => "nobody",
            Limit::Network => "network",
            Limit::FarWindow => "far-window",
            Limit::SendBuffer => "send-buffer",
        },
        "bytes_sent": totals.bytes_sent,
        "bytes_resent": totals.bytes_resent,
        "bytes_acked": totals.bytes_acked,
        "network_limited_us": totals.network_us,
        "far_window_limited_us": totals.far_window_us,
        "send_buffer_limited_us": totals.send_buffer_us,
        "dupacks": totals.dupacks,
        "sacks": totals.sacks,
        "dsacks": totals.dsacks,
    });
    let details = match event.kind {
        Kind::Segment { ack, payload_bytes } => {
            let acked = ack.wrapping_sub(event.snd_una);
            json!({"acked_bytes": acked, "payload_bytes": payload_bytes})
        }
        Kind::Retransmit(reason) => json!({"reason": match reason {
            Retransmit::Fast => "fast",
            Retransmit::Timeout => "timeout",
            Retransmit::Probe => "probe",
        }}),
        Kind::State(state) => json!({"to": state.name()}),
        Kind::HeldAck { held_us } => json!({"held_us": held_us}),
        _ => json!({}),
    };
    if let (Some(line), Value::Object(details)) = (line.as_object_mut(), details) {
        line.extend(details);
    }
    line
}
