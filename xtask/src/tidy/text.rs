//! Checks every line for forbidden text, and the names of tests.

use super::{File, Finding};

/// Marks of unfinished work. Unfinished work is an issue, or named in the documents. Spelt in
/// halves so that this file passes its own rule.
const NOTES: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
];

/// Folders that exist on one machine only.
const PLACES: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

/// `if let` chained with a second one. This compiler accepts it; Rust 1.85, which we promise, does
/// not.
const LET_CHAIN: &str = concat!("&& ", "let ");

pub fn check(file: &File, findings: &mut Vec<Finding>) {
    // Copied texts (the licences) and generated files are exempt.
    if file.path.contains("LICENSE") || file.path == "Cargo.lock" || is_data(&file.path) {
        return;
    }
    for (number, line) in file.lines() {
        if line.ends_with([' ', '\t']) {
            findings.push(file.finding(number, "trailing white space"));
        }
        if let Some(note) = NOTES.iter().find(|note| line.contains(**note)) {
            findings.push(file.finding(number, format!("`{note}`: do it, or open an issue")));
        }
        if file.is_rust() && line.contains(LET_CHAIN) {
            findings.push(file.finding(number, "a `let` chain needs Rust 1.88; we promise 1.85"));
        }
        if let Some(place) = PLACES.iter().find(|place| line.contains(**place)) {
            findings.push(file.finding(number, format!("`{place}` exists on one machine only")));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(file.finding(file.text.lines().count(), "no newline at the end"));
    }
    if file.is_rust() {
        check_test_names(file, findings);
    }
}

/// Returns whether a file is written by a program: results, figures, and inputs that fuzzers found.
fn is_data(path: &str) -> bool {
    [".ndjson", ".svg", ".html", ".lock", ".bin"]
        .iter()
        .any(|end| path.ends_with(end))
}

/// Checks that a test's name is a claim, `subject__condition__outcome`, with at least subject and
/// outcome.
fn check_test_names(file: &File, findings: &mut Vec<Finding>) {
    let mut has_test_attribute = false;
    for (number, line) in file.lines() {
        let code = line.trim_start();
        if code == "#[test]" {
            has_test_attribute = true;
            continue;
        }
        let Some(signature) = code.strip_prefix("fn ") else {
            continue;
        };
        let name = signature.split(['(', '<']).next().unwrap_or(signature);
        if std::mem::take(&mut has_test_attribute) && !name.contains("__") {
            findings.push(file.finding(
                number,
                format!("test `{name}`: name it as a claim, subject__condition__outcome"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        File::new(path, text).messages(check)
    }

    #[test]
    fn text__white_space_at_the_end__is_found() {
        assert_eq!(messages("a.md", "x \n"), ["trailing white space"]);
        assert_eq!(messages("a.md", "x"), ["no newline at the end"]);
    }

    #[test]
    fn text__unfinished_work_marker__is_found() {
        assert_eq!(
            messages("a.rs", &format!("//! {} later\n", NOTES[0])).len(),
            1
        );
    }

    #[test]
    fn text__machine_specific_path__is_found() {
        assert_eq!(messages("a.sh", &format!("cd {}x\n", PLACES[0])).len(), 1);
    }

    #[test]
    fn text__test_name_without_a_claim__is_found() {
        let test = |name: &str| format!("#[test]\n#[ignore = \"needs tun\"]\nfn {name}() {{}}\n");
        assert_eq!(messages("a.rs", &test("works")).len(), 1);
        assert_eq!(
            messages("a.rs", &test("queue__full__drops_the_tail")).len(),
            0
        );
        assert_eq!(messages("a.rs", "fn works() {}\n").len(), 0);
    }

    #[test]
    fn text__licence_and_results__are_not_checked() {
        assert!(messages("LICENSE-MIT", "x \n").is_empty());
        assert!(messages("bench/results/a.ndjson", "{} \n").is_empty());
    }
}
