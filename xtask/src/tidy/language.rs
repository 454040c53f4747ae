//! Checks the mechanical part of the project's language: plain technical English, one term for one
//! thing.
//!
//! Rules for single comments have a finding for each violation. The word "what" is sometimes right,
//! so the whole tree has a budget for it.

use super::{File, Finding};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Widest comment line, in columns.
const COMMENT_COLUMNS_MAX: usize = 100;

/// A tab of C and BPF code, in columns.
const TAB_COLUMNS: usize = 8;

/// Uses of "what" in comments, per 1000 words. quinn, smoltcp and turmoil have 0.2 to 0.6.
const WHAT_PER_1000_MAX: f64 = 1.5;

/// Longest commit subject, in characters.
const SUBJECT_CHARS_MAX: usize = 72;

/// Commits since this day follow the rule for subjects.
const SUBJECTS_SINCE: &str = "2026-11-25T07:00:00Z";

/// Phrases of a private dialect, with plain ones. Spelt in halves so that this file passes its own
/// rule.
const PHRASES: [(&str, &str); 5] = [
    (concat!("is n", "one"), "not found, or out of range (0–3)"),
    (concat!("are n", "one"), "not found, or out of range (0–3)"),
    (concat!("so m", "any"), "this many, or the number"),
    (concat!("so l", "ong"), "this long, or the time"),
    (concat!("so o", "ften"), "this often, or the rate"),
];

/// Words with which no doc comment begins, because a clause without a noun follows them.
const OPENINGS: [&str; 10] = [
    "What", "Which", "Who", "Whom", "Whose", "Where", "When", "Why", "How", "Whether",
];

/// Folders that follow these rules. The others are rewritten one by one.
const FOLDERS: [&str; 7] = [
    "bench/workloads/",
    "bindings/",
    "bpf/",
    "crates/",
    "fuzz/",
    "tests/",
    "xtask/",
];

/// Checks the comments of one file.
pub fn check(file: &File, findings: &mut Vec<Finding>) {
    if !is_checked(&file.path) {
        return;
    }
    let mut is_doc_before = false;
    for (number, line) in file.lines() {
        let Some(comment) = Comment::parse(line) else {
            is_doc_before = false;
            continue;
        };
        // A line of a macro in C ends with a backslash.
        if columns(line.trim_end_matches('\\').trim_end()) > COMMENT_COLUMNS_MAX {
            let message = format!("comment wider than {COMMENT_COLUMNS_MAX} columns");
            findings.push(file.finding(number, message));
        }
        let lower = comment.text.to_lowercase();
        for (phrase, replacement) in PHRASES {
            if contains_words(&lower, phrase) {
                findings.push(file.finding(number, format!("\"{phrase}\": write {replacement}")));
            }
        }
        if comment.is_doc && !is_doc_before {
            check_opening(file, number, comment.text, findings);
        }
        is_doc_before = comment.is_doc;
    }
}

/// Checks rules for the tree as a whole: the budget of "what", and terms that are defined once.
pub fn check_tree(files: &[File], findings: &mut Vec<Finding>) {
    let (mut word_count, mut what_count) = (0_usize, 0_usize);
    for file in files.iter().filter(|file| is_checked(&file.path)) {
        for comment in file.lines().filter_map(|(_, line)| Comment::parse(line)) {
            for word in comment.text.split(|c: char| !c.is_alphabetic()) {
                word_count += usize::from(!word.is_empty());
                what_count += usize::from(word.eq_ignore_ascii_case("what"));
            }
        }
    }
    if let Some(first) = files.first() {
        let per_1000 = 1000.0 * what_count as f64 / word_count.max(1) as f64;
        if per_1000 > WHAT_PER_1000_MAX {
            let message = format!(
                "comments of the tree have {per_1000:.1} \"what\" per 1000 words; at most {WHAT_PER_1000_MAX}"
            );
            findings.push(first.finding(1, message));
        }
    }
    for file in files.iter().filter(|file| file.path == "docs/glossary.md") {
        check_glossary(file, findings);
    }
}

/// Checks the subjects of commits since [`SUBJECTS_SINCE`]. Without a repository, as in a tarball,
/// it finds nothing.
pub fn check_commits(root: &Path, findings: &mut Vec<Finding>) {
    let log = Command::new("git")
        .current_dir(root)
        .args(["log", "--no-merges", "--format=%h %s"])
        .arg(format!("--since={SUBJECTS_SINCE}"))
        .output();
    let Ok(log) = log else {
        return;
    };
    for line in String::from_utf8_lossy(&log.stdout).lines() {
        findings.extend(check_subject(line));
    }
}

/// Checks a commit, as its short hash and its subject.
fn check_subject(commit: &str) -> Option<Finding> {
    let (hash, subject) = commit.split_once(' ')?;
    let chars = subject.chars().count();
    (chars > SUBJECT_CHARS_MAX).then(|| Finding {
        path: format!("commit {hash}"),
        line: 1,
        message: format!("subject of {chars} characters; at most {SUBJECT_CHARS_MAX}"),
    })
}

/// Checks that each term stands only once in the first column of the glossary's tables.
fn check_glossary(file: &File, findings: &mut Vec<Finding>) {
    let mut term_lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, line) in file.lines() {
        if line.starts_with("## Words that are not used") {
            return;
        }
        let term = line
            .strip_prefix("| ")
            .and_then(|row| row.split(" |").next());
        let Some(term) = term.filter(|term| *term != "term") else {
            continue;
        };
        if let Some(first_line) = term_lines.insert(term, number) {
            let message = format!("`{term}` is defined in line {first_line} already");
            findings.push(file.finding(number, message));
        }
    }
}

fn check_opening(file: &File, number: usize, text: &str, findings: &mut Vec<Finding>) {
    let first = text.split_whitespace().next().unwrap_or_default();
    if OPENINGS.contains(&first) {
        let message = format!("doc comment opens with \"{first}\": name the thing first");
        findings.push(file.finding(number, message));
    }
    if text.split_whitespace().count() == 1 && first.ends_with('.') {
        let message = format!("\"{first}\" says no more than the name; drop it or say more");
        findings.push(file.finding(number, message));
    }
}

/// A line that contains only a comment.
struct Comment<'a> {
    text: &'a str,
    is_doc: bool,
}

impl<'a> Comment<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim();
        let markers = ["///", "//!", "//", "/**", "/*", "*/", "* "];
        let marker = markers
            .into_iter()
            .find(|marker| line.starts_with(marker))?;
        let text = line[marker.len()..]
            .trim()
            .trim_end_matches("*/")
            .trim_end();
        Some(Self {
            text,
            is_doc: matches!(marker, "///" | "//!" | "/**"),
        })
    }
}

fn is_checked(path: &str) -> bool {
    let has_comments = [".rs", ".c", ".h"].iter().any(|end| path.ends_with(end));
    has_comments && FOLDERS.iter().any(|folder| path.starts_with(folder))
}

fn columns(line: &str) -> usize {
    line.chars()
        .map(|char| if char == '\t' { TAB_COLUMNS } else { 1 })
        .sum()
}

/// Returns whether a text contains a phrase as whole words.
fn contains_words(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(offset, _)| {
        let previous = text[..offset].chars().next_back();
        let next = text[offset + phrase.len()..].chars().next();
        !previous.is_some_and(char::is_alphanumeric) && !next.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        File::new(path, text).messages(check)
    }

    #[test]
    fn language__wide_comment__is_found() {
        let wide = "x".repeat(COMMENT_COLUMNS_MAX);
        assert_eq!(messages("xtask/a.rs", &format!("// {wide}\n")).len(), 1);
        assert_eq!(
            messages("xtask/a.rs", &format!("let {wide} = 1;\n")).len(),
            0
        );
        let tabs = "x".repeat(COMMENT_COLUMNS_MAX - 2 * TAB_COLUMNS - 2);
        assert_eq!(messages("xtask/a.h", &format!("\t\t/* {tabs}\n")).len(), 1);
    }

    #[test]
    fn language__opening_without_a_noun__is_found_once_per_comment() {
        let text = "/// What follows.\n/// When it does.\nfn a() {}\n/// Returns what follows.\n";
        assert_eq!(messages("xtask/a.rs", text).len(), 1);
        assert_eq!(messages("xtask/a.rs", "// What follows\n").len(), 0);
    }

    #[test]
    fn language__one_word_doc_comment__is_found() {
        assert_eq!(messages("xtask/a.rs", "/// Peers.\n").len(), 1);
        assert_eq!(messages("xtask/a.rs", "/// Peers, by index.\n").len(), 0);
    }

    #[test]
    fn language__banned_phrases__are_found_as_whole_words() {
        assert_eq!(
            messages("xtask/a.rs", &format!("// it {}\n", PHRASES[0].0)).len(),
            1
        );
        assert_eq!(
            messages("xtask/a.rs", &format!("// al{} ago\n", PHRASES[3].0)).len(),
            0
        );
    }

    #[test]
    fn language__what_used_too_often_in_the_tree__is_found() {
        let findings = |text: &str| {
            let mut findings = Vec::new();
            check_tree(&[File::new("xtask/a.rs", text)], &mut findings);
            findings.len()
        };
        assert_eq!(findings("// what is it\n"), 1);
        assert_eq!(
            findings(&format!("// what is it\n{}", "// a b c\n".repeat(400))),
            0
        );
    }

    #[test]
    fn language__term_defined_twice__is_found() {
        let text = "| term | meaning |\n|---|---|\n| port | a |\n| link | b |\n| port | c |\n";
        let mut findings = Vec::new();
        check_tree(&[File::new("docs/glossary.md", text)], &mut findings);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 5);
    }

    #[test]
    fn language__long_commit_subject__is_found() {
        assert!(check_subject("abc coll: plan short vectors in halves").is_none());
        assert!(check_subject(&format!("abc {}", "x".repeat(SUBJECT_CHARS_MAX + 1))).is_some());
    }
}
