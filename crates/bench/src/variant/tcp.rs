//! The TCP variants: the kernel's congestion controls as an administrator would set them, and
//! kumi's with its mechanisms one by one (columns of Matsuda et al., table 2).

use super::{Running, Variant, congestion};
use anyhow::Context;
use kumi_command::errln;

/// Congestion control, sysctls and, for kumi's control, mechanisms of a variant.
struct Recipe {
    congestion_control: &'static str,
    sysctls: &'static [(&'static str, &'static str)],
    /// Mechanisms that `kumi tcp up` leaves out, separated by commas. `None`: the programs are not
    /// loaded.
    exclusions: Option<&'static str>,
}

const KERNEL: Recipe = Recipe {
    congestion_control: super::CONGESTION_CONTROL,
    sysctls: &[],
    exclusions: None,
};

/// Returns the recipe of `variant`; `None` if it is not a TCP variant.
fn recipe(variant: Variant) -> Option<Recipe> {
    let kumi = |exclusions| {
        Some(Recipe {
            exclusions: Some(exclusions),
            ..KERNEL
        })
    };
    match variant {
        Variant::Cubic => Some(KERNEL),
        Variant::CubicIdle0 => Some(Recipe {
            sysctls: &[("net.ipv4.tcp_slow_start_after_idle", "0")],
            ..KERNEL
        }),
        Variant::CubicRto5 => Some(Recipe {
            sysctls: &[("net.ipv4.tcp_rto_min_us", "5000")],
            ..KERNEL
        }),
        Variant::Bbr => Some(Recipe {
            congestion_control: "bbr",
            ..KERNEL
        }),
        Variant::KumiTcp | Variant::KumiLinkTcp | Variant::KumiCollTcp | Variant::KumiAuto => {
            kumi("")
        }
        Variant::KumiTcpRto => kumi(
            "paced-restart,phase-memory,first-target,stall-forgiveness,ack-band,unsent-cap,short-bursts,fair-share",
        ),
        Variant::KumiTcpPce => kumi(
            "short-rto,phase-memory,stall-forgiveness,ack-band,unsent-cap,short-bursts,fair-share",
        ),
        Variant::KumiTcpNoPhases => kumi("phase-memory"),
        Variant::KumiTcpNoStall => kumi("stall-forgiveness"),
        Variant::KumiTcpNoBand => kumi("ack-band"),
        _ => None,
    }
}

/// Returns whether `variant` is a TCP variant.
pub fn is_tcp(variant: Variant) -> bool {
    recipe(variant).is_some()
}

/// Sets the variant up.
pub fn start(running: &mut Running<'_>) -> anyhow::Result<()> {
    let recipe = recipe(running.variant).context("not a TCP variant")?;
    for (key, value) in recipe.sysctls {
        running.set_sysctl(key, value)?;
    }
    congestion::pin(running, recipe.congestion_control)?;
    running.congestion_control = recipe.congestion_control;
    if let Some(exclusions) = recipe.exclusions {
        let kumi = running.hosts.kumi().to_owned();
        let mut argv = vec![kumi.as_str(), "tcp", "up"];
        if !exclusions.is_empty() {
            argv.extend(["--without", exclusions]);
        }
        let _shield = kumi_command::interrupt::shield();
        running.hosts.run_on_machines(&argv).with_context(|| {
            format!(
                "cannot load the programs of `{}`; if `kumi tcp` is in use, run \
                     `kumi tcp down` first",
                running.variant
            )
        })?;
        running.leaves_programs = true;
        running.wraps_ranks = true;
        running.congestion_control = "kumi";
        let run = [kumi.as_str(), "run", "--require"].map(String::from);
        running.prefix = run.to_vec();
        // The ranks of a network that is not a tree have no fair share.
        if running.hosts.network().is_ok() {
            let file = super::coll::write_network(running)?;
            let topology = ["--coll", "off", "--topology", &file].map(String::from);
            running.prefix.extend(topology);
        }
        running.prefix.push("--".to_owned());
    }
    Ok(())
}

/// Unloads the TCP programs.
pub fn end(running: &Running<'_>) {
    let argv = [running.hosts.kumi(), "tcp", "down"];
    if let Err(error) = running.hosts.run_on_machines(&argv) {
        errln!("kumi: cannot undo {}: {error:#}", running.variant);
    }
}
