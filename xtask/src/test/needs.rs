//! Requirements of tests, and whether the machine meets them.
//!
//! A test that requires more than a process states it: `#[ignore = "needs netns, tun"]`. Plain
//! `cargo test` then skips it. The network stage runs it on machines that meet the requirements.

use std::path::Path;
use std::process::{Command, Stdio};

/// Parses `needs a, b`; `None` for another kind of reason ("soak: an hour").
pub fn parse(reason: &str) -> Option<Vec<&str>> {
    Some(
        reason
            .strip_prefix("needs ")?
            .split(',')
            .map(str::trim)
            .collect(),
    )
}

/// Returns the part of `need` that the machine lacks, as a reason to skip; `None` if it lacks
/// nothing. A need that this function does not know is an error: a test with a misspelt need
/// would otherwise never run.
pub fn find_lack(need: &str) -> Result<Option<String>, String> {
    let (is_met, lack) = match need {
        "root" => (runs("sh", &["-c", "test $(id -u) = 0"]), "not root"),
        "netns" => {
            let is_met = runs("unshare", &["--net", "true"]) || runs("unshare", &["-Urn", "true"]);
            (
                is_met,
                "no network namespaces (need root or user namespaces)",
            )
        }
        "tun" => (
            std::fs::File::open("/dev/net/tun").is_ok(),
            "/dev/net/tun cannot be opened",
        ),
        "bpf" => {
            let is_met =
                Path::new("/sys/kernel/btf/vmlinux").exists() && runs("clang", &["--version"]);
            (is_met, "no BPF (needs kernel type information and clang)")
        }
        "mptcp" => (
            Path::new("/proc/sys/net/mptcp/enabled").exists(),
            "kernel without MPTCP",
        ),
        "mpi" => (runs("mpirun", &["--version"]), "Open MPI is not installed"),
        "hpcc" => (Path::new("/usr/bin/hpcc").exists(), "hpcc is not installed"),
        // packaging/setup.sh does not install it, because the package would start a service.
        "sshd" => (
            Path::new("/usr/sbin/sshd").exists() && runs("ssh", &["-V"]),
            "openssh-server is not installed",
        ),
        "iperf3" | "ethtool" | "tc" => (
            runs(need, &["--version"]) || runs(need, &["-V"]),
            "not installed",
        ),
        _ => {
            return Err(format!(
                "unknown need `{need}`: correct it, or add a check to xtask/src/test/needs.rs"
            ));
        }
    };
    Ok((!is_met).then(|| format!("needs {need}: {lack}")))
}

/// Returns every ignored test in the sources with its reason, by the bare name of its function.
pub fn find_ignored(root: &Path) -> Vec<(String, String)> {
    let mut tests = Vec::new();
    for path in super::list_files(root, &["*.rs"]) {
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            tests.extend(parse_ignored(&text));
        }
    }
    tests
}

fn parse_ignored(source: &str) -> Vec<(String, String)> {
    let mut reason = None;
    let mut tests = Vec::new();
    for line in source.lines().map(str::trim) {
        if let Some(tail) = line.strip_prefix("#[ignore = \"") {
            reason = Some(tail.trim_end_matches("\"]").to_string());
            continue;
        }
        let Some(tail) = line.strip_prefix("fn ") else {
            continue;
        };
        if let Some(reason) = reason.take() {
            let name = tail.split('(').next().unwrap_or(tail);
            tests.push((name.to_string(), reason));
        }
    }
    tests
}

fn runs(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs__list__is_split() {
        assert_eq!(parse("needs netns, tun"), Some(vec!["netns", "tun"]));
        assert_eq!(parse("soak: an hour"), None);
    }

    #[test]
    fn needs__misspelt_name__is_an_error() {
        assert!(find_lack("BPF").is_err_and(|error| error.contains("needs.rs")));
    }

    #[test]
    fn needs__of_every_ignored_test__are_known() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("xtask is a folder of the repository");
        let tests = find_ignored(root);
        assert!(!tests.is_empty());
        for (name, reason) in tests {
            for need in parse(&reason).unwrap_or_default() {
                assert_eq!(find_lack(need).err(), None, "{name}");
            }
        }
    }

    #[test]
    fn needs__ignored_test__is_found_with_its_reason() {
        let source =
            "#[test]\n    #[ignore = \"needs tun\"]\n    fn tap__opens() {\n}\nfn other() {}\n";
        assert_eq!(
            parse_ignored(source),
            [("tap__opens".to_string(), "needs tun".to_string())]
        );
    }
}
