//! Checks the house style, as far as a program can.
//!
//! Each rule looks at one file and reports the line and the remedy. Readers judge the rest, such as
//! whether a comment gives a reason. Exceptions are listed beside their rule.

mod cores;
mod files;
mod imports;
mod language;
mod links;
mod patches;
mod records;
mod text;

use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// A file under version control, or about to be.
pub struct File {
    /// Path from the workspace root, with forward slashes.
    pub path: String,
    /// Contents. Files that are not UTF-8 are skipped.
    pub text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Iterates over the lines, numbered from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }

    /// Returns a finding in this file.
    fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding {
            path: self.path.clone(),
            line,
            message: message.into(),
        }
    }

    #[cfg(test)]
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }

    /// Returns the messages of a rule's findings in this file.
    #[cfg(test)]
    fn messages(&self, check: impl Fn(&Self, &mut Vec<Finding>)) -> Vec<String> {
        let mut findings = Vec::new();
        check(self, &mut findings);
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Returns the messages of a rule's findings in a tree of files, given by path and text.
#[cfg(test)]
fn tree_messages(
    check: impl Fn(&[File], &mut Vec<Finding>),
    files: &[(&str, &str)],
) -> Vec<String> {
    let files = files.iter().map(|(path, text)| File::new(path, text));
    let mut findings = Vec::new();
    check(&files.collect::<Vec<_>>(), &mut findings);
    findings
        .into_iter()
        .map(|finding| finding.message)
        .collect()
}

/// Checks every file of the tree. Fails if there is a finding.
pub fn run(root: &Path) -> ExitCode {
    let files = match read_tree(root) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut findings = check(&files);
    language::check_commits(root, &mut findings);
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        files::check(file, &mut findings);
        text::check(file, &mut findings);
        cores::check(file, &mut findings);
        language::check(file, &mut findings);
    }
    files::check_crates(files, &mut findings);
    imports::check(files, &mut findings);
    links::check(files, &mut findings);
    patches::check(files, &mut findings);
    records::check(files, &mut findings);
    language::check_tree(files, &mut findings);
    findings
}

/// Reads the files that git tracks or would add. Ignored files are not checked.
fn read_tree(root: &Path) -> Result<Vec<File>, String> {
    let listing = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !listing.status.success() {
        return Err(String::from_utf8_lossy(&listing.stderr).into_owned());
    }
    let listing = String::from_utf8_lossy(&listing.stdout);
    // git lists untracked files first. The numbers of decisions are checked in order.
    let mut paths: Vec<&str> = listing.lines().collect();
    paths.sort_unstable();
    Ok(paths
        .into_iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            Some(File {
                path: path.into(),
                text,
            })
        })
        .collect())
}
