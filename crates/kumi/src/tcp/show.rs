//! `kumi tcp show`: prints the totals, and one line per live connection.

use kumi_command::{out, outln};
use kumi_tcp::{Connection, Totals};
use serde_json::{Value, json};

/// Version of the JSON format. It increases when the meaning of a key changes.
const SCHEMA: u32 = 3;

/// Arguments of `kumi tcp show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Prints one JSON object.
    #[arg(short, long)]
    json: bool,
}

/// Runs `kumi tcp show`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (settings, tier) = kumi_tcp::installed()?;
    let totals = kumi_tcp::totals()?;
    let connections = kumi_tcp::connections()?;
    if args.json {
        let mechanisms: Vec<&str> = settings.mechanisms.iter().map(|item| item.name()).collect();
        let object = json!({
            "schema": SCHEMA,
            "congestion_control": "kumi",
            "tier": tier.name(),
            "mechanisms": mechanisms,
            "totals": totals_json(&totals),
            "connections": connections.iter().map(connection_json).collect::<Vec<_>>(),
        });
        outln!("{object}");
        return Ok(());
    }
    let omitted = settings.left_out();
    out!("kumi: capability tier {}", tier.name());
    if !omitted.is_empty() {
        out!(", without {}", omitted.join(", "));
    }
    outln!("; {} connections so far", totals.connections);
    for (name, value) in figures(&totals) {
        outln!("  {name:<34}{value}");
    }
    if !connections.is_empty() {
        print_table(&connections);
    }
    Ok(())
}

/// Returns the totals with their names, for the text format.
fn figures(totals: &Totals) -> [(&'static str, u64); 8] {
    [
        ("restarts paced", totals.paced),
        ("local stalls forgiven", totals.stalls),
        ("windows cut for losses", totals.losses),
        ("retransmission timeouts", totals.timeouts),
        ("of these, spurious", totals.spurious),
        ("phases entered with phase memory", totals.switches),
        ("acknowledgements before data", totals.acks_first),
        ("windows corrected", totals.mended),
    ]
}

fn totals_json(totals: &Totals) -> Value {
    json!({
        "connections": totals.connections,
        "paced_restarts": totals.paced,
        "forgiven_stalls": totals.stalls,
        "losses": totals.losses,
        "timeouts": totals.timeouts,
        "spurious_timeouts": totals.spurious,
        "phase_switches": totals.switches,
        "acks_first": totals.acks_first,
        "mended_windows": totals.mended,
    })
}

fn connection_json(connection: &Connection) -> Value {
    json!({
        "local": connection.local.to_string(),
        "remote": connection.remote.to_string(),
        "phase": connection.phase,
        "phase_name": connection.phase_name,
        "rank": connection.rank,
        "cwnd": connection.cwnd,
        "ssthresh": connection.ssthresh,
        "in_flight": connection.in_flight,
        "mss_bytes": connection.mss_bytes,
        "pacing_bps": connection.pacing_bps,
        "rtt_us": connection.rtt_us,
        "rto_us": connection.rto_us,
        "rto_min_us": connection.rto_min_us,
        "stalls": connection.stalls,
        "losses": connection.losses,
        "timeouts": connection.timeouts,
        "paced_restarts": connection.paced,
        "retransmits": connection.retransmits,
    })
}

fn print_table(connections: &[Connection]) {
    outln!(
        "{:<22} {:<22} {:<16} {:>6} {:>8} {:>6} {:>9} {:>8} {:>8} {:>6} {:>6} {:>6}",
        "local",
        "remote",
        "phase",
        "cwnd",
        "ssthresh",
        "flight",
        "rate Mb/s",
        "rtt ms",
        "rto ms",
        "stalls",
        "losses",
        "RTOs"
    );
    for connection in connections {
        let phase = if connection.phase_name.is_empty() {
            "-"
        } else {
            &connection.phase_name
        };
        let ssthresh = connection
            .ssthresh
            .map_or_else(|| "-".to_owned(), |packets| packets.to_string());
        outln!(
            "{:<22} {:<22} {:<16} {:>6} {:>8} {:>6} {:>9.1} {:>8.2} {:>8.0} {:>6} {:>6} {:>6}",
            connection.local.to_string(),
            connection.remote.to_string(),
            phase,
            connection.cwnd,
            ssthresh,
            connection.in_flight,
            connection.pacing_bps as f64 / 1e6,
            f64::from(connection.rtt_us) / 1e3,
            connection.rto_us as f64 / 1e3,
            connection.stalls,
            connection.losses,
            connection.timeouts
        );
    }
}
