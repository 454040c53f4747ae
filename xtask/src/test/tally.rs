//! Counts tests by the lines that libtest prints, and prints the summary.

use std::fmt;

/// Tests that ran, and tests that did not.
#[derive(Debug, Default)]
pub struct Tally {
    /// Number of tests that passed.
    pub passed: usize,
    /// Names of tests that failed.
    pub failed: Vec<String>,
    /// Names of skipped tests, with the missing requirement.
    pub skipped: Vec<(String, String)>,
    /// Names of tests that failed while the hypervisor took processors, with its share (0 to 1).
    /// They run again.
    pub void: Vec<(String, f64)>,
    /// Names of tests that failed, with the first lines that they printed.
    outputs: Vec<(String, Vec<String>)>,
}

/// Lines of a failed test in the summary, at most: by judgement, the message of an assertion.
const OUTPUT_LINES: usize = 24;

impl Tally {
    /// Counts one test.
    pub fn record(&mut self, name: &str, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failed.push(name.into());
        }
    }

    /// Counts one test that did not run.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push((name.into(), reason.into()));
    }

    /// Counts a `test NAME ... ok` line. Other lines and ignored tests do not count. A test that
    /// failed is void if the hypervisor took a `void_share` meanwhile. Returns whether it counts.
    pub fn count_line(&mut self, line: &str, void_share: impl FnOnce() -> Option<f64>) -> bool {
        match parse(line) {
            Some((_, "ok")) => self.passed += 1,
            Some((name, verdict)) if verdict.starts_with("FAILED") => match void_share() {
                Some(share) => self.void.push((name.into(), share)),
                None => self.failed.push(name.into()),
            },
            _ => return false,
        }
        true
    }

    /// Keeps what failed tests printed, from all lines of a run. The summary repeats it, because a
    /// reader of a long log may have its end only.
    pub fn keep_outputs(&mut self, lines: &[String]) {
        let mut is_kept = false;
        for line in lines {
            let title = line.strip_prefix("---- ");
            if let Some(name) = title.and_then(|title| title.strip_suffix(" stdout ----")) {
                self.outputs.push((name.into(), Vec::new()));
                is_kept = true;
            } else if line == "failures:" || line == "stack backtrace:" {
                is_kept = false;
            } else if is_kept && !line.is_empty() {
                if let Some((_, output)) = self.outputs.last_mut() {
                    output.push(line.clone());
                    output.truncate(OUTPUT_LINES);
                }
            }
        }
    }

    /// Returns the number of tests that failed, void or not.
    pub fn failures(&self) -> usize {
        self.failed.len() + self.void.len()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, reason) in &self.skipped {
            writeln!(out, "skipped: {name}: {reason}")?;
        }
        for (name, share) in &self.void {
            let percent = share * 100.0;
            writeln!(
                out,
                "void: {name}: failed while the hypervisor took {percent:.0} % of the processors, and ran again"
            )?;
        }
        for name in &self.failed {
            writeln!(out, "FAILED: {name}")?;
            let mut outputs = self.outputs.iter().rev();
            let output = outputs.find(|(test, _)| test == name);
            for line in output.iter().flat_map(|(_, lines)| lines) {
                writeln!(out, "    {line}")?;
            }
        }
        let Self {
            passed,
            failed,
            skipped,
            ..
        } = self;
        writeln!(
            out,
            "{passed} passed, {} failed, {} skipped",
            failed.len(),
            skipped.len()
        )
    }
}

/// Returns name and reason of each `test NAME ... ignored, REASON` line.
pub fn ignored_tests(lines: &[String]) -> Vec<(String, String)> {
    lines
        .iter()
        .filter_map(|line| {
            let (name, verdict) = parse(line)?;
            let reason = verdict
                .strip_prefix("ignored")?
                .trim_start_matches([',', ' ']);
            Some((name.into(), reason.into()))
        })
        .collect()
}

/// Returns the name and the verdict of libtest's `test NAME ... VERDICT`.
fn parse(line: &str) -> Option<(&str, &str)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((name.trim_end_matches(" - should panic"), verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally__libtest_lines__are_counted() {
        let mut tally = Tally::default();
        for line in [
            "running 4 tests",
            "test a::b__c ... ok",
            "test d__e - should panic ... ok",
            "test f__g ... FAILED",
            "test h__i ... ignored, needs tun",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out",
        ] {
            tally.count_line(line, || None);
        }
        assert_eq!((tally.passed, tally.failed), (2, vec!["f__g".to_string()]));
    }

    #[test]
    fn tally__failure_without_the_processors__is_void() {
        let mut tally = Tally::default();
        assert!(tally.count_line("test a ... FAILED", || Some(0.07)));
        assert!(tally.count_line("test b ... FAILED", || None));
        assert!(!tally.count_line("test c ... ignored", || Some(0.07)));
        assert_eq!(tally.failures(), 2);
        assert_eq!(
            tally.to_string(),
            "void: a: failed while the hypervisor took 7 % of the processors, and ran again\n\
             FAILED: b\n0 passed, 1 failed, 0 skipped\n"
        );
    }

    #[test]
    fn tally__summary__repeats_what_a_failed_test_printed_without_its_backtrace() {
        let mut tally = Tally::default();
        let lines = [
            "test a ... FAILED",
            "test b ... ok",
            "failures:",
            "",
            "---- a stdout ----",
            "",
            "thread 'a' panicked at tests/a.rs:1:1:",
            "FAILED claim: of seven",
            "stack backtrace:",
            "   0: begin_unwind",
            "",
            "failures:",
            "    a",
        ]
        .map(String::from);
        for line in &lines {
            tally.count_line(line, || None);
        }
        tally.keep_outputs(&lines);
        assert_eq!(
            tally.to_string(),
            "FAILED: a\n    thread 'a' panicked at tests/a.rs:1:1:\n    FAILED claim: of seven\n\
             1 passed, 1 failed, 0 skipped\n"
        );
    }

    #[test]
    fn tally__ignored_tests__keep_their_reason() {
        let lines = [
            "test h__i ... ignored, needs tun".to_string(),
            "test k ... ignored".into(),
        ];
        let expected = [
            ("h__i".to_string(), "needs tun".to_string()),
            ("k".into(), String::new()),
        ];
        assert_eq!(ignored_tests(&lines), expected);
    }

    #[test]
    fn tally__summary__ends_with_the_counts() {
        let mut tally = Tally {
            passed: 3,
            ..Tally::default()
        };
        tally.skip("x", "no tun");
        assert_eq!(
            tally.to_string(),
            "skipped: x: no tun\n3 passed, 0 failed, 1 skipped\n"
        );
    }
}
