//! `kumi tcp enable UNIT`: writes a drop-in for a systemd service. At each start of the service,
//! systemd then attaches the pinned programs to its cgroup (`BPFProgram=`, systemd 250). The
//! service's own files do not change.

use anyhow::Context;
use kumi_command::BadInput;
use kumi_command::{out, outln};
use std::path::PathBuf;
use std::process::Command;

/// Folder of an administrator's drop-ins.
const UNITS: &str = "/etc/systemd/system";

/// Arguments of `kumi tcp enable` and `disable`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Service, such as slurmd.service.
    unit: String,
    /// Prints the drop-in and changes nothing.
    #[arg(long)]
    dry_run: bool,
}

/// systemd's name of each hook, and the pinned program for it.
const PROGRAMS: [(&str, &str); 3] = [
    ("sock_create", "own_units_socket"),
    ("sock_ops", "choose"),
    ("egress", "put_acks_first"),
];

fn drop_in(unit: &str) -> Result<PathBuf, BadInput> {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.@:\\".contains(c))
    };
    match unit.rsplit_once('.') {
        Some((name, "service" | "scope" | "slice")) if is_name(name) => {
            Ok(PathBuf::from(UNITS).join(format!("{unit}.d/50-kumi-tcp.conf")))
        }
        _ => Err(BadInput(format!(
            "invalid unit `{unit}`: expected a service, scope or slice, such as slurmd.service"
        ))),
    }
}

fn text() -> String {
    let mut text =
        String::from("# Made by `kumi tcp enable`; `kumi tcp disable` removes it.\n[Service]\n");
    for (hook, program) in PROGRAMS {
        let pin = kumi_tcp::pin(program);
        text.push_str(&format!("BPFProgram={hook}:{}\n", pin.display()));
    }
    text
}

fn reload() -> anyhow::Result<()> {
    let status = Command::new("systemctl")
        .arg("daemon-reload")
        .status()
        .context("cannot run `systemctl daemon-reload`; does this host run systemd?")?;
    anyhow::ensure!(status.success(), "systemctl daemon-reload: {status}");
    Ok(())
}

/// Runs `kumi tcp enable`.
pub fn enable(args: &Args) -> anyhow::Result<()> {
    let path = drop_in(&args.unit)?;
    let text = text();
    if args.dry_run {
        out!("# {}\n{text}", path.display());
        return Ok(());
    }
    kumi_tcp::installed()?; // without them, the unit's next start finds no programs
    let folder = path.parent().context("the path has no folder")?;
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, text))
        .with_context(|| format!("cannot write {}", path.display()))?;
    if let Err(error) = reload() {
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_dir(folder);
        return Err(error);
    }
    outln!(
        "{0}: enabled from its next start; to restart it now, run `systemctl restart {0}`",
        args.unit
    );
    Ok(())
}

/// Runs `kumi tcp disable`.
pub fn disable(args: &Args) -> anyhow::Result<()> {
    let path = drop_in(&args.unit)?;
    if !path.exists() {
        return Err(BadInput(format!(
            "{} is not enabled: there is no {}",
            args.unit,
            path.display()
        ))
        .into());
    }
    if args.dry_run {
        outln!("rm {}", path.display());
        return Ok(());
    }
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    if let Some(folder) = path.parent() {
        let _ = std::fs::remove_dir(folder);
    }
    reload()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit__path_or_not_a_service__is_refused_by_name() {
        assert!(drop_in("slurmd.service").is_ok());
        for wrong in [
            "slurmd",
            "../x.service",
            "a b.service",
            "x.timer",
            ".service",
        ] {
            assert!(drop_in(wrong).unwrap_err().0.contains(wrong));
        }
    }

    #[test]
    fn drop_in__text__names_one_pinned_program_per_hook() {
        let text = text();
        assert!(text.contains("BPFProgram=sock_create:/sys/fs/bpf/kumi/tcp/own_units_socket\n"));
        assert_eq!(text.matches("BPFProgram=").count(), 3);
    }
}
