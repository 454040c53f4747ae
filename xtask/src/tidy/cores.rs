//! Checks that `unsafe` stands only in its crates, and that cores have no I/O.
//!
//! A core gets time and randomness as arguments. One scenario can therefore run in virtual time
//! under a seed, and in real time on the kernel.

use super::{File, Finding};

/// The crates that may contain `unsafe`.
const UNSAFE_CRATES: [&str; 2] = ["crates/sys/", "crates/library/"];

/// Code that sees no clock, socket, thread, environment or file.
const CORES: [&str; 6] = [
    "crates/multilink/src/",
    "crates/ri2n/src/protocol/",
    "crates/lab/src/model/",
    "crates/coll/src/",
    "crates/wind/src/protocol/",
    "crates/dsm/src/protocol/",
];

/// Words that show I/O in a core, and the replacement for each.
const FORBIDDEN: [(&str, &str); 11] = [
    ("Instant::now", "take `now` as an argument"),
    ("SystemTime", "take `now` as an argument"),
    ("std::thread", "a core runs on its caller's thread"),
    (
        "UdpSocket",
        "a core returns datagrams, its caller sends them",
    ),
    (
        "TcpStream",
        "a core returns datagrams, its caller sends them",
    ),
    (
        "TcpListener",
        "a core returns datagrams, its caller sends them",
    ),
    ("std::fs", "take the text as an argument"),
    ("std::env", "take the setting as an argument"),
    ("std::process", "a core starts nothing and ends nothing"),
    ("fastrand::Rng::new", "take the seed as an argument"),
    ("kumi_sys", "arrows run one way: a core never imports `sys`"),
];

pub fn check(file: &File, findings: &mut Vec<Finding>) {
    if !file.is_rust() {
        return;
    }
    let may_be_unsafe = UNSAFE_CRATES
        .iter()
        .any(|folder| file.path.starts_with(folder));
    let is_core = CORES.iter().any(|core| file.path.starts_with(core));
    for (number, line) in file.lines() {
        let code = line.split("//").next().unwrap_or(line);
        if !may_be_unsafe && has_unsafe(code) {
            findings.push(file.finding(
                number,
                "`unsafe` is allowed only in crates/sys, and in crates/library for C",
            ));
        }
        let violation = FORBIDDEN
            .iter()
            .find(|(word, _)| is_core && code.contains(word));
        if let Some((word, replacement)) = violation {
            findings.push(file.finding(number, format!("`{word}` in a core: {replacement}")));
        }
    }
    let is_crate_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
    if is_crate_root && !may_be_unsafe && !file.text.contains("#![forbid(unsafe_code)]") {
        findings.push(file.finding(1, "a crate other than sys needs `#![forbid(unsafe_code)]`"));
    }
}

/// Returns whether the keyword occurs, and not just the word in a name (`unsafe_code`) or a text.
fn has_unsafe(code: &str) -> bool {
    ["{", "fn ", "impl ", "extern ", "trait "]
        .iter()
        .any(|next| code.contains(&format!("unsafe {next}")) && !code.contains('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(&File::new(path, text), &mut findings);
        findings.len()
    }

    #[test]
    fn cores__unsafe_outside_sys__is_found() {
        let code = format!("let x = {} {{ y() }};\n", "unsafe");
        assert_eq!(findings("crates/kumi/src/a.rs", &code), 1);
        assert_eq!(findings("crates/sys/src/a.rs", &code), 0);
        assert_eq!(findings("crates/kumi/src/a.rs", &format!("// {code}")), 0);
    }

    #[test]
    fn cores__clock_in_a_core__is_found() {
        let code = "let now = Instant::now();\n";
        assert_eq!(findings("crates/multilink/src/hold.rs", code), 1);
        assert_eq!(findings("crates/lab/src/model/queue.rs", code), 1);
        assert_eq!(findings("crates/lab/src/emulator.rs", code), 0);
    }

    #[test]
    fn cores__crate_root_that_does_not_forbid_unsafe__is_found() {
        assert_eq!(findings("crates/kumi/src/main.rs", "//! X.\n"), 1);
        assert_eq!(findings("crates/sys/src/lib.rs", "//! X.\n"), 0);
        assert_eq!(
            findings("crates/x/src/lib.rs", "//! X.\n#![forbid(unsafe_code)]\n"),
            0
        );
    }
}
