//! The TCP of a link: the kernel's congestion controls as an administrator would set them, and kumi's
//! with its mechanisms one by one (the columns of Matsuda et al., table 2).

use super::{Running, Variant, congestion};
use anyhow::Context;

/// The congestion control, sysctls and, for kumi's, mechanisms that make up a variant.
struct Recipe {
    congestion_control: &'static str,
    sysctls: &'static [(&'static str, &'static str)],
    /// What `kumi tcp up` leaves out; none: it is not installed.
    without: Option<&'static str>,
}

const KERNEL: Recipe = Recipe {
    congestion_control: super::CONGESTION_CONTROL,
    sysctls: &[],
    without: None,
};

/// How `variant` is made; none if it is no variant of this kind.
fn recipe(variant: Variant) -> Option<Recipe> {
    let kumi = |without| {
        Some(Recipe {
            without: Some(without),
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
        Variant::KumiTcp | Variant::KumiLinkTcp => kumi(""),
        Variant::KumiTcpRto => {
            kumi("paced-restart,phase-memory,first-target,stall-forgiveness,ack-band,unsent-cap")
        }
        Variant::KumiTcpPce => kumi("short-rto,phase-memory,stall-forgiveness,ack-band,unsent-cap"),
        Variant::KumiTcpNoPhases => kumi("phase-memory"),
        Variant::KumiTcpNoStall => kumi("stall-forgiveness"),
        Variant::KumiTcpNoBand => kumi("ack-band"),
        _ => None,
    }
}

/// Whether `variant` is of this kind.
pub fn is_one(variant: Variant) -> bool {
    recipe(variant).is_some()
}

/// Sets the variant up.
pub fn start(running: &mut Running<'_>) -> anyhow::Result<()> {
    let recipe = recipe(running.variant).context("a TCP variant")?;
    for (key, value) in recipe.sysctls {
        running.set_sysctl(key, value)?;
    }
    congestion::pin(running, recipe.congestion_control)?;
    running.congestion_control = recipe.congestion_control;
    if let Some(without) = recipe.without {
        let kumi = running.hosts.kumi().to_owned();
        let mut up = vec![kumi.as_str(), "tcp", "up"];
        if !without.is_empty() {
            up.extend(["--without", without]);
        }
        let _shield = crate::interrupt::shield();
        running
            .hosts
            .run_on_machines(&up)
            .context("`kumi tcp down` first, if it is in use")?;
        running.leaves_programs = true;
        running.wraps_ranks = true;
        running.congestion_control = "kumi";
        running.prefix = [kumi.as_str(), "run", "--require", "--"]
            .map(String::from)
            .to_vec();
    }
    Ok(())
}

/// Takes the programs away again.
pub fn end(running: &Running<'_>) {
    let down = [running.hosts.kumi(), "tcp", "down"];
    if let Err(error) = running.hosts.run_on_machines(&down) {
        errln!("kumi: undoing {}: {error:#}", running.variant);
    }
}
