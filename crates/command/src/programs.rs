//! External programs that features run, and the packages that contain them.

use std::path::PathBuf;

/// Programs, each with the command that installs it on Debian and Ubuntu.
const INSTALLS: [(&str, &str); 10] = [
    ("clang", "apt install clang"),
    ("ethtool", "apt install ethtool"),
    ("ip", "apt install iproute2"),
    ("iperf3", "apt install iperf3"),
    ("mpicc", "apt install libopenmpi-dev"),
    ("mpirun", "apt install openmpi-bin"),
    ("mptcpize", "apt install mptcpize"),
    ("ssh", "apt install openssh-client"),
    ("tc", "apt install iproute2"),
    ("unshare", "apt install util-linux"),
];

/// Returns whether `program` is in a folder of PATH, /usr/sbin or /sbin.
pub fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Distributions keep ip and tc in folders that an ordinary user's PATH does not contain.
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .any(|folder| folder.join(program).is_file())
}

/// Returns the command that installs `program`.
pub fn install(program: &str) -> &'static str {
    let entry = INSTALLS.iter().find(|(name, _)| *name == program);
    entry.map_or("use the distribution's package manager", |(_, line)| line)
}

/// Returns a message for each of `programs` that is missing, with the command that installs it.
pub fn missing(programs: &[&str]) -> Vec<String> {
    let absent = programs.iter().filter(|program| !is_on_path(program));
    absent
        .map(|program| format!("{program} is not installed: {}", install(program)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing__absent_program__is_named_with_its_package() {
        assert!(missing(&["sh"]).is_empty());
        let messages = missing(&["sh", "kumi-is-no-such-program", "kumi-nor-this"]);
        assert_eq!(messages.len(), 2);
        assert!(messages[0].starts_with("kumi-is-no-such-program is not installed: "));
        assert_eq!(install("mpicc"), "apt install libopenmpi-dev");
    }
}
