//! `kumi lab link set`: changes a link while the lab runs.

use super::lab_error;
use clap::Subcommand;
use kumi_command::BadInput;
use kumi_lab::cluster::Roster;
use kumi_lab::cluster::control::{Client, Request};
use kumi_lab::topology::{Direction, Faults, LinkChange, Probability, nearest};
use std::process::ExitCode;

/// Arguments of `kumi lab link`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Changes a link: rate R, delay T, loss P, corrupt P, duplicate P, reorder P, jitter T,
    /// blackhole [tx|rx|both], down, up, heal.
    Set {
        /// Name of the lab; may be left out when only one is up.
        #[arg(long, env = "KUMI_LAB")]
        lab: Option<String>,
        /// A NIC as `h1:eth1`, or two switches as `s1:s2`.
        link: String,
        /// Changes: keywords, each followed by its value.
        #[arg(required = true)]
        change: Vec<String>,
    },
}

/// Runs `kumi lab link`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Verb::Set { lab, link, change } = args.verb;
    let change = parse(&change).map_err(BadInput)?;
    let roster = Roster::find(lab.as_deref()).map_err(lab_error)?;
    let answer = Client::connect(&roster)?.request(&Request::SetLink { link, change })?;
    answer.map_err(BadInput)?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the words of a change, such as `loss 1% delay 5ms dir rx`.
fn parse(tokens: &[String]) -> Result<LinkChange, String> {
    const KNOWN: [&str; 13] = [
        "rate",
        "delay",
        "loss",
        "corrupt",
        "duplicate",
        "reorder",
        "reorder_delay",
        "jitter",
        "dir",
        "blackhole",
        "down",
        "up",
        "heal",
    ];
    let mut change = LinkChange::default();
    let mut faults: Option<Faults> = None;
    let mut tokens = tokens.iter().map(String::as_str).peekable();
    while let Some(key) = tokens.next() {
        match key {
            "up" => change.carrier = Some(true),
            "down" => change.carrier = Some(false),
            "heal" => {
                change.blackhole = Some(false);
                change.carrier = Some(true);
                faults = Some(Faults::default());
            }
            "blackhole" => {
                change.blackhole = Some(true);
                if let Some(word) = tokens.next_if(|word| !KNOWN.contains(word)) {
                    change.direction = direction(word).map_err(|error| {
                        format!("link set: blackhole: {error}, or another keyword")
                    })?;
                }
            }
            _ if !KNOWN.contains(&key) => {
                let hint = nearest(key, KNOWN)
                    .map_or(String::new(), |best| format!("; did you mean `{best}`?"));
                return Err(format!(
                    "link set: unknown keyword `{key}`{hint} (known: {})",
                    KNOWN.join(", ")
                ));
            }
            _ => {
                let value = tokens
                    .next()
                    .ok_or(format!("link set: {key}: no value; write `{key} VALUE`"))?;
                let wrong =
                    |error: kumi_lab::topology::QuantityError| format!("link set: {key}: {error}");
                let p = || value.parse::<Probability>().map_err(wrong);
                match key {
                    // These keys are not faults, so the link keeps its faults.
                    "rate" => change.rate = Some(value.parse().map_err(wrong)?),
                    "delay" => change.delay = Some(value.parse().map_err(wrong)?),
                    "dir" => {
                        change.direction =
                            direction(value).map_err(|error| format!("link set: dir: {error}"))?;
                    }
                    _ => {
                        let settings: &mut Faults = faults.get_or_insert_default();
                        match key {
                            "loss" => settings.loss = p()?,
                            "corrupt" => settings.corrupt = p()?,
                            "duplicate" => settings.duplicate = p()?,
                            "reorder" => settings.reorder = p()?,
                            "jitter" => settings.jitter = value.parse().map_err(wrong)?,
                            _ => settings.reorder_delay = value.parse().map_err(wrong)?,
                        }
                    }
                }
            }
        }
    }
    change.faults = faults;
    Ok(change)
}

fn direction(text: &str) -> Result<Direction, String> {
    match text {
        "tx" => Ok(Direction::Tx),
        "rx" => Ok(Direction::Rx),
        "both" => Ok(Direction::Both),
        _ => Err(format!("`{text}` is not a direction; write tx, rx or both")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str) -> Result<LinkChange, String> {
        parse(
            &text
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn link_set__several_settings__make_one_change() {
        let change = change("delay 5ms loss 1% dir rx").unwrap();
        assert_eq!(change.delay.unwrap().ns(), 5_000_000);
        assert_eq!(change.faults.unwrap().loss.get(), 0.01);
        assert_eq!(change.direction, Direction::Rx);
    }

    #[test]
    fn link_set__rate_alone__keeps_the_faults() {
        assert_eq!(change("rate 1Gbit").unwrap().faults, None);
        assert_eq!(change("loss 0").unwrap().faults, Some(Faults::default()));
    }

    #[test]
    fn link_set__rate_after_cleared_faults__still_clears_them() {
        for text in ["heal rate 1Gbit", "loss 0 delay 5ms", "loss 0 dir rx"] {
            let faults = change(text).unwrap().faults;
            assert_eq!(faults, Some(Faults::default()), "{text}");
        }
    }

    #[test]
    fn link_set__blackhole_with_direction__applies_to_that_direction() {
        assert_eq!(
            change("blackhole tx").unwrap(),
            LinkChange::blackhole(Direction::Tx)
        );
        assert_eq!(
            change("blackhole").unwrap(),
            LinkChange::blackhole(Direction::Both)
        );
    }

    #[test]
    fn link_set__mistyped_word__suggests_the_nearest() {
        assert!(
            change("los 1%")
                .unwrap_err()
                .contains("did you mean `loss`?")
        );
        assert!(change("loss 2").unwrap_err().contains("such as `0.01`"));
    }
}
