//! libfabric's own ping-pong program, `fi_pingpong`, over a provider.

use super::listener::wait_for_listener;
use super::processors::bound;
use super::{Context, Measurement};
use crate::hosts::COMMAND_SECONDS_MAX;
use crate::hosts::background::Background;
use crate::sample::Figures;
use crate::variant::Variant;
use anyhow::Context as _;

/// Port of the program's control connection.
const PORT: &str = "47592";

/// Bytes of a test, which limit its number of exchanges.
const BYTES: u64 = 256 << 20;

/// Largest and smallest number of exchanges.
const COUNTS: (u64, u64) = (5_000, 200);

/// Measures a ping-pong of tagged messages between reliable datagram endpoints, size by size. The
/// program prints a mean.
pub fn measure(context: &Context<'_>, sizes_bytes: &[u64]) -> anyhow::Result<Vec<Measurement>> {
    let sizes = sizes_bytes.iter();
    sizes
        .map(|bytes| {
            let half_us = half_round_trip_us(context, *bytes)?;
            let goodput_bps = *bytes as f64 * 8.0 / (half_us / 1e6);
            Ok(Measurement {
                size_bytes: Some(*bytes),
                figures: Figures::from([
                    ("half_round_trip_mean_us".to_owned(), half_us),
                    ("echo_mean_us".to_owned(), 2.0 * half_us),
                    ("goodput_bps".to_owned(), goodput_bps),
                ]),
                series: None,
            })
        })
        .collect()
}

fn half_round_trip_us(context: &Context<'_>, bytes: u64) -> anyhow::Result<f64> {
    let running = context.running;
    let hosts = running.hosts;
    let provider = match running.variant {
        Variant::FabricKumi => "kumi",
        _ => "tcp",
    };
    let count = (BYTES / bytes.max(1)).clamp(COUNTS.1, COUNTS.0);
    let count = if context.quick { count / 10 } else { count };
    let mut settings = vec![
        format!("FI_TCP_IFACE={}", running.device),
        format!("FI_KUMI_IFACE={}", running.device),
    ];
    let secret = running.secret.iter();
    settings.extend(secret.map(|file| format!("FI_KUMI_KEY={file}")));
    let folder = running.provider.iter();
    settings.extend(folder.map(|folder| format!("FI_PROVIDER_PATH={folder}")));
    let (count, bytes) = (count.to_string(), bytes.to_string());
    let mut program = vec!["env"];
    program.extend(settings.iter().map(String::as_str));
    program.extend(["fi_pingpong", "-p", provider, "-e", "rdm", "-m", "tagged"]);
    program.extend(["-I", &count, "-S", &bytes]);
    let script = [
        &["sh", "-c", "echo ready; exec \"$@\" 2>&1", "sh"],
        &program[..],
    ]
    .concat();
    let serve = bound(hosts, 1, &script);
    let mut server = Background::start(hosts, running.server(), &serve, COMMAND_SECONDS_MAX)?;
    server.line()?;
    wait_for_listener(context, "fi_pingpong", PORT, "libfabric-bin")?;
    let address = running.server_address.as_str();
    let ask = [&program[..], &[address]].concat();
    let text = hosts.run(running.client(), &bound(hosts, 0, &ask))?;
    server.finish()?;
    time_us(&text).with_context(|| format!("fi_pingpong printed no times: {text}"))
}

/// Returns the time of a transfer from the table that the program prints.
fn time_us(text: &str) -> Option<f64> {
    let mut lines = text.lines().map(|line| line.split_whitespace());
    let column = lines.find_map(|mut names| names.position(|name| name == "usec/xfer"))?;
    lines.next()?.nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time__of_a_printed_table__is_that_of_a_transfer() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    8       1k      =1k      15k         0.04s      0.45      17.77       0.06\n";
        assert_eq!(time_us(text), Some(17.77));
        assert_eq!(time_us("fi_getinfo: -61"), None);
    }
}
