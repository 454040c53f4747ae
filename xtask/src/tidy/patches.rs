//! Checks that each patch fits the source. The builds with a fault (`tests/broken-builds`) are made
//! only now and then.

use super::{File, Finding};

pub fn check(files: &[File], findings: &mut Vec<Finding>) {
    for patch in files.iter().filter(|file| file.path.ends_with(".patch")) {
        for hunk in hunks(&patch.text) {
            let target = files.iter().find(|file| file.path == hunk.path);
            let fits = target.is_some_and(|file| contains(&file.text, &hunk.before));
            if !fits {
                let message = format!("does not fit {} any more: renew it", hunk.path);
                findings.push(patch.finding(hunk.line, message));
            }
        }
    }
}

/// A part of a patch.
struct Hunk<'a> {
    line: usize,
    path: &'a str,
    /// Lines that must be there, one after the other.
    before: Vec<&'a str>,
}

fn hunks(text: &str) -> Vec<Hunk<'_>> {
    let mut hunks: Vec<Hunk<'_>> = Vec::new();
    let mut path = "";
    for (index, line) in text.lines().enumerate() {
        if let Some(named) = line.strip_prefix("--- a/") {
            path = named;
        } else if line.starts_with("@@") {
            hunks.push(Hunk {
                line: index + 1,
                path,
                before: Vec::new(),
            });
        } else if let Some(hunk) = hunks.last_mut() {
            // An empty line of the context has lost its blank.
            let before = match line.split_at_checked(1) {
                Some((" " | "-", before)) if !line.starts_with("---") => Some(before),
                None => Some(""),
                _ => None,
            };
            hunk.before.extend(before);
        }
    }
    hunks
}

/// Returns whether `text` has the lines one after the other, apart from blanks at their ends.
fn contains(text: &str, lines: &[&str]) -> bool {
    let all: Vec<&str> = text.lines().map(str::trim_end).collect();
    let mut places = all.windows(lines.len());
    places.any(|place| {
        let mut pairs = place.iter().zip(lines);
        pairs.all(|(there, wanted)| *there == wanted.trim_end())
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree_messages;
    use super::*;

    const PATCH: &str =
        "what is broken\n\n--- a/one.rs\n+++ b/one.rs\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n\n";

    #[test]
    fn patch__that_fits_or_not__is_told_apart() {
        let messages = |text| tree_messages(check, &[("one.rs", text), ("one.patch", PATCH)]);
        assert!(messages("0\na\nb\n\nc\n").is_empty());
        let expected = ["does not fit one.rs any more: renew it"];
        assert_eq!(messages("0\na\nc\n\nc\n"), expected);
    }
}
