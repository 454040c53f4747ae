//! Checks relations between files: decisions are numbered, and plans have results.

use super::{File, Finding};

pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    check_decisions(files, findings);
    check_plans(files, findings);
}

/// Checks `docs/adr/NNN-title.md`: numbers without gaps or duplicates, and the number again in the
/// title, so that "ADR 004" finds one page.
fn check_decisions(files: &[File], findings: &mut Vec<Finding>) {
    let decisions = files
        .iter()
        .filter(|f| f.path.starts_with("docs/adr/") && f.path.ends_with(".md"))
        .filter(|f| f.path != "docs/adr/README.md");
    for (expected, file) in (1..).zip(decisions) {
        let name = &file.path["docs/adr/".len()..];
        let number = name.split('-').next().unwrap_or(name);
        if number != format!("{expected:03}") {
            findings.push(file.finding(
                1,
                format!("expected number {expected:03}: no gaps, no doubles"),
            ));
        }
        if !file.text.starts_with(&format!("# {number}. ")) {
            findings
                .push(file.finding(1, format!("the title repeats the number: `# {number}. …`")));
        }
    }
}

/// Checks that a plan has its results beside it, or states `unmeasured = "why"`.
fn check_plans(files: &[File], findings: &mut Vec<Finding>) {
    for plan in files.iter().filter(|f| f.path.starts_with("bench/plans/")) {
        let Some(name) = plan.path["bench/plans/".len()..].strip_suffix(".toml") else {
            continue;
        };
        let result = format!("bench/results/{name}.ndjson");
        let has_result = files.iter().any(|file| file.path == result);
        let is_marked = plan
            .lines()
            .any(|(_, line)| line.starts_with("unmeasured = "));
        if !has_result && !is_marked {
            findings.push(plan.finding(1, format!("neither {result} nor `unmeasured = \"why\"`")));
        }
        if has_result && is_marked {
            findings.push(plan.finding(1, format!("has {result}: drop `unmeasured`")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree_messages;
    use super::*;

    fn findings(files: &[(&str, &str)]) -> usize {
        tree_messages(check, files).len()
    }

    #[test]
    fn records__gap_in_adr_numbers__is_found() {
        assert_eq!(
            findings(&[
                ("docs/adr/001-a.md", "# 001. A\n"),
                ("docs/adr/002-b.md", "# 002. B\n")
            ]),
            0
        );
        assert_eq!(
            findings(&[
                ("docs/adr/001-a.md", "# 001. A\n"),
                ("docs/adr/003-b.md", "# 003. B\n")
            ]),
            1
        );
        assert_eq!(findings(&[("docs/adr/001-a.md", "# A\n")]), 1);
    }

    #[test]
    fn records__plan_without_results__must_be_marked() {
        assert_eq!(findings(&[("bench/plans/x.toml", "name = \"x\"\n")]), 1);
        assert_eq!(
            findings(&[("bench/plans/x.toml", "unmeasured = \"no lab\"\n")]),
            0
        );
        assert_eq!(
            findings(&[
                ("bench/plans/x.toml", ""),
                ("bench/results/x.ndjson", "{}\n")
            ]),
            0
        );
    }
}
