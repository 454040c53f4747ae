//! Checks that relative links between documents lead to files and headings, and that the book's
//! table of contents has every page.

use super::{File, Finding};
use std::collections::{BTreeMap, BTreeSet};

/// Table of contents of the book.
const CONTENTS: &str = "docs/SUMMARY.md";

pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let documents = || files.iter().filter(|file| file.path.ends_with(".md"));
    let headings: BTreeMap<&str, BTreeSet<String>> = documents()
        .map(|file| (file.path.as_str(), anchors(&file.text)))
        .collect();
    let mut pages = BTreeSet::new();
    for file in documents() {
        for (number, target) in links(&file.text) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() {
                file.path.clone()
            } else {
                resolve(&file.path, path)
            };
            if file.path == CONTENTS {
                pages.insert(path.clone());
            }
            let folder = format!("{}/", path.trim_end_matches('/'));
            if !paths.contains(path.as_str()) && !paths.iter().any(|p| p.starts_with(&folder)) {
                findings.push(file.finding(number, format!("broken link: no {path}")));
            } else if !anchor.is_empty()
                && headings
                    .get(path.as_str())
                    .is_some_and(|headings| !headings.contains(anchor))
            {
                findings.push(file.finding(number, format!("broken link: no #{anchor} in {path}")));
            }
        }
    }
    let has_contents = paths.contains(CONTENTS);
    for file in documents().filter(|file| has_contents && file.path.starts_with("docs/")) {
        // README.md is the table of contents of a reader on a forge.
        let is_listed = [CONTENTS, "docs/README.md"].contains(&file.path.as_str())
            || pages.contains(&file.path);
        if !is_listed {
            findings.push(file.finding(1, format!("the page is not in {CONTENTS}")));
        }
    }
}

/// Returns the lines of a document outside code blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            return None;
        }
        (!is_code).then_some((index + 1, line))
    })
}

/// Returns the relative targets of the links in a document, with their line numbers.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    for (number, line) in prose(text) {
        let code_free = line.split('`').step_by(2);
        for part in code_free.chain([line]) {
            for tail in part.split("](").skip(1) {
                let target = tail.split([')', ' ']).next().unwrap_or(tail);
                let is_relative = !target.contains("://") && !target.starts_with("mailto:");
                if is_relative && !target.is_empty() && !targets.contains(&(number, target)) {
                    targets.push((number, target));
                }
            }
        }
    }
    targets
}

/// Returns the path of a link's target from the root.
fn resolve(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchors of a document's headings, as forges and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let Some(title) = line
            .strip_prefix('#')
            .map(|tail| tail.trim_start_matches('#'))
        else {
            continue;
        };
        let slug: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = counts.entry(slug.clone()).or_default();
        anchors.insert(match *count {
            0 => slug,
            number => format!("{slug}-{number}"),
        });
        *count += 1;
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::super::tree_messages;
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        tree_messages(check, files)
    }

    #[test]
    fn links__missing_file_or_heading__is_found() {
        let page = "# A\n\n[b](../b.md#the-end) [c](c.md) [d](d)\n```\n[x](code.md)\n```\n";
        let files = [
            ("docs/a/a.md", page),
            ("docs/b.md", "# B\n## The *end*\n"),
            (
                "docs/a/d/e.md",
                "[up](../a.md#a) [out](https://example.org)\n",
            ),
        ];
        assert_eq!(messages(&files), ["broken link: no docs/a/c.md"]);
        let changed_page = ("docs/b.md", "# B\n");
        assert!(
            messages(&[files[0], changed_page, files[2]])
                .contains(&"broken link: no #the-end in docs/b.md".to_owned())
        );
    }

    #[test]
    fn links__page_missing_from_the_summary__is_found() {
        let files = [
            ("docs/SUMMARY.md", "- [A](a.md)\n"),
            ("docs/a.md", "# A\n"),
            ("docs/b.md", "# B\n"),
        ];
        assert_eq!(messages(&files), ["the page is not in docs/SUMMARY.md"]);
    }
}
