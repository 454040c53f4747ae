//! Checks every `kumi` command in the documents with the parser of the command line.
//!
//! A command in a block must parse as it stands. A command in a sentence may be incomplete, so only
//! its verbs and flags must exist.

use crate::Cli;
use clap::Parser;
use clap::error::ErrorKind;
use std::path::{Path, PathBuf};

/// A command in a document.
struct Command {
    place: String,
    words: Vec<String>,
    is_complete: bool,
}

/// Returns the documents that contain commands.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["tutorials", "how-to", "reference", "explanation"] {
        let pages = std::fs::read_dir(root.join("docs").join(folder)).expect("a folder of pages");
        paths.extend(pages.map(|page| page.expect("a page").path()));
    }
    // The page of options is generated from the parser.
    paths.retain(|path| !path.ends_with("options.md"));
    paths
}

/// Splits a line of a shell into words. Quotes group words, and operators end a command.
fn split(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word = String::new();
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(mark), _) if letter == mark => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (Some(_), _) => word.push(letter),
            (None, ' ' | ';' | '|' | '&' | '>' | '<' | '(' | ')') => {
                if !word.is_empty() {
                    let last = commands.last_mut().expect("there is one");
                    last.push(std::mem::take(&mut word));
                }
                if letter != ' ' {
                    commands.push(Vec::new());
                }
            }
            (None, '#') if word.is_empty() => break,
            (None, _) => word.push(letter),
        }
    }
    if !word.is_empty() {
        commands.last_mut().expect("there is one").push(word);
    }
    commands
}

/// Returns the `kumi` command within a shell command, such as one behind `mpirun`.
fn find_kumi(words: &[String]) -> Option<Vec<String>> {
    let index = words.iter().position(|word| word == "kumi")?;
    (words.len() > index + 1).then(|| words[index..].to_vec())
}

/// Returns the commands in one document.
fn commands(path: &Path) -> Vec<Command> {
    let text = std::fs::read_to_string(path).expect("a readable page");
    let mut commands = Vec::new();
    let mut is_block = false;
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{}:{}", path.display(), number + 1);
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            is_block = !is_block;
            continue;
        }
        if is_block {
            let command = trimmed.strip_prefix("$ ").or(trimmed.strip_prefix("# "));
            for words in command.map(split).unwrap_or_default() {
                commands.extend(find_kumi(&words).map(|words| Command {
                    place: place(),
                    words,
                    is_complete: true,
                }));
            }
            continue;
        }
        // Every second part of a line stands between backquotes.
        for code in line.split('`').skip(1).step_by(2) {
            let words = split(code).into_iter().next().unwrap_or_default();
            if words.first().is_some_and(|word| word == "kumi") {
                commands.extend(find_kumi(&words).map(|words| Command {
                    place: place(),
                    words,
                    is_complete: false,
                }));
            }
        }
    }
    commands
}

/// Returns the parser's objection to a command.
fn objection(command: &Command) -> Option<String> {
    // Placeholders such as `…`, `[OPTIONS]` and `COMMAND` stand for more words, and ` · ` for
    // alternatives.
    let is_plain = |word: &&String| !word.contains(['…', '[', '·']) && *word != "COMMAND";
    let words = command.words.iter().take_while(is_plain);
    let error = Cli::try_parse_from(words).err()?;
    let is_accepted = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => false,
        _ => !command.is_complete,
    };
    (!is_accepted).then(|| format!("{}: {}\n{error}", command.place, command.words.join(" ")))
}

#[test]
fn documents__every_kumi_command__is_accepted_by_the_parser() {
    let all: Vec<Command> = documents().iter().flat_map(|path| commands(path)).collect();
    assert!(all.len() > 100, "only {} commands were found", all.len());
    let blocks = all.iter().filter(|command| command.is_complete).count();
    assert!(blocks > 30, "only {blocks} commands in blocks were found");
    let objections: Vec<String> = all.iter().filter_map(objection).collect();
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

#[test]
fn objection__misspelt_flag_or_verb__is_found() {
    let command = |line: &str, is_complete| Command {
        place: "here".into(),
        words: find_kumi(&split(line).remove(0)).unwrap(),
        is_complete,
    };
    assert!(objection(&command("sudo kumi link show --jsn", false)).is_some());
    assert!(objection(&command("kumi topo discuver", false)).is_some());
    assert!(objection(&command("kumi topo plan --operation gather", false)).is_none());
    assert!(objection(&command("kumi link up", true)).is_some());
    let line = "mpirun -n 2 kumi run -- sh -c 'a > b' # remark";
    assert!(objection(&command(line, true)).is_none());
}
