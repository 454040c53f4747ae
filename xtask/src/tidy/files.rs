//! Checks the names, lengths and first lines of files.

use super::{File, Finding};
use std::collections::BTreeMap;

/// Names that describe a place for code rather than its subject.
const NAMELESS: [&str; 9] = [
    "util", "utils", "common", "helper", "helpers", "manager", "misc", "shared", "stuff",
];

/// Most lines of a file. A longer one usually contains a second concept.
const LINES_MAX: usize = 600;

/// Longer files with a single concept, each with its reason.
const LONG: [(&str, &str); 0] = [];

/// Most lines of the command's own crate: command lines and printing only.
const COMMAND_LINES_MAX: usize = 5000;

/// Largest share of one crate in the Rust code of all crates.
const CRATE_SHARE_MAX: f64 = 0.2;

/// Checks the sizes of crates.
pub fn check_crates(files: &[File], findings: &mut Vec<Finding>) {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let inner = file.path.strip_prefix("crates/");
        if let Some((name, _)) = inner.and_then(|inner| inner.split_once("/src/")) {
            *lines.entry(name).or_default() += file.text.lines().count();
        }
    }
    let total: usize = lines.values().sum();
    for file in files {
        let Some(name) = file
            .path
            .strip_prefix("crates/")
            .and_then(|inner| inner.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let crate_lines = lines.get(name).copied().unwrap_or(0);
        if name == "kumi" && crate_lines > COMMAND_LINES_MAX {
            let message = format!("{crate_lines} lines in src; at most {COMMAND_LINES_MAX}");
            findings.push(file.finding(1, message));
        }
        if crate_lines as f64 > CRATE_SHARE_MAX * total as f64 {
            let share = 100.0 * crate_lines as f64 / total as f64;
            let message = format!("{share:.0} % of all Rust code; at most 20 %");
            findings.push(file.finding(1, message));
        }
    }
}

pub fn check(file: &File, findings: &mut Vec<Finding>) {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    let stem = name.split('.').next().unwrap_or(name);
    let is_source = [".rs", ".c", ".h", ".py", ".sh"]
        .iter()
        .any(|end| name.ends_with(end));
    if !is_source {
        return;
    }
    if NAMELESS.contains(&stem)
        || file
            .path
            .split('/')
            .any(|folder| NAMELESS.contains(&folder))
    {
        findings.push(file.finding(
            1,
            format!("`{stem}` does not name a concept; name the file after its concept"),
        ));
    }
    let length = file.text.lines().count();
    if length > LINES_MAX && !LONG.iter().any(|(path, _)| *path == file.path) {
        findings.push(file.finding(
            LINES_MAX + 1,
            format!("{length} lines, more than {LINES_MAX}; look for the second concept"),
        ));
    }
    check_head(file, name, findings);
}

fn check_head(file: &File, name: &str, findings: &mut Vec<Finding>) {
    // A `tests.rs` belongs to the file beside it, whose first lines describe both.
    if file.is_rust() && name != "tests.rs" && !file.text.starts_with("//!") {
        findings.push(file.finding(1, "a Rust file must open with `//!`: what it is, and why"));
    }
    let is_bpf = file.path.starts_with("bpf/") && (name.ends_with(".c") || name.ends_with(".h"));
    if is_bpf
        && !file
            .text
            .contains("SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause")
    {
        findings.push(file.finding(1, "a BPF source must name its licence (see bpf/LICENSE)"));
    }
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
    fn files__generic_name__is_found() {
        assert_eq!(findings("crates/x/src/util.rs", "//! X.\n"), 1);
        assert_eq!(findings("crates/x/src/helpers/a.rs", "//! X.\n"), 1);
        assert_eq!(findings("crates/x/src/reorder.rs", "//! X.\n"), 0);
    }

    #[test]
    fn files__longer_than_the_limit__is_found() {
        let lines = |count: usize| "//! X.\n".repeat(count);
        assert_eq!(findings("crates/x/src/a.rs", &lines(LINES_MAX)), 0);
        assert_eq!(findings("crates/x/src/a.rs", &lines(LINES_MAX + 1)), 1);
        assert_eq!(findings("Cargo.lock", &lines(LINES_MAX + 1)), 0);
    }

    #[test]
    fn files__rust_file_without_a_module_comment__is_found() {
        assert_eq!(findings("crates/x/src/a.rs", "fn x() {}\n"), 1);
    }

    #[test]
    fn files__bpf_without_a_licence__is_found() {
        assert_eq!(findings("bpf/x/a.bpf.c", "int x;\n"), 1);
        let licensed = "// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause\n";
        assert_eq!(findings("bpf/x/a.bpf.c", licensed), 0);
    }

    #[test]
    fn files__crate_with_a_quarter_of_the_code_or_long_command__is_found() {
        let long = "//! X.\n".repeat(COMMAND_LINES_MAX + 1);
        let mut files = vec![
            File::new("crates/kumi/Cargo.toml", ""),
            File::new("crates/kumi/src/main.rs", &long),
        ];
        for name in ["a", "b", "c", "d", "e"] {
            files.push(File::new(&format!("crates/{name}/src/lib.rs"), &long));
            files.push(File::new(&format!("crates/{name}/Cargo.toml"), ""));
        }
        let count = |files: &[File]| {
            let mut findings = Vec::new();
            check_crates(files, &mut findings);
            findings.len()
        };
        assert_eq!(
            count(&files),
            1,
            "six equal crates, one of them the command"
        );
        assert_eq!(count(&files[..8]), 5, "four crates have a quarter each");
    }
}
