//! A file that somebody has written by hand: where in it something is wrong, and what would be right.

use crate::nearest::nearest;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// Why a file was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be read.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// Its path.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// A key or a value is wrong.
    #[error("{file}:{line}: {key}: {problem}")]
    Wrong {
        /// The file's path.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key on that line.
        key: String,
        /// The value, and what would be right.
        problem: String,
    },
}

/// A file's path, as messages have it, and what is in it.
///
/// # Errors
/// [`FileError::Unreadable`].
pub fn read(path: &Path) -> Result<(String, String), FileError> {
    let file = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((file, text)),
        Err(source) => Err(FileError::Unreadable { file, source }),
    }
}

/// The file while it is being checked: turns a span into a line for the error.
pub struct Source<'a> {
    /// Its path, for the messages.
    pub file: &'a str,
    /// What is in it.
    pub text: &'a str,
}

impl Source<'_> {
    /// The error of what stands at `span`: `key` and what is wrong with its value.
    pub fn wrong(&self, span: Range<usize>, key: &str, problem: String) -> FileError {
        let line = self.text[..span.start.min(self.text.len())]
            .matches('\n')
            .count()
            + 1;
        FileError::Wrong {
            file: self.file.to_owned(),
            line,
            key: key.to_owned(),
            problem,
        }
    }

    /// Words a parser's error: the key comes from the line it points at, and an unknown key gets
    /// the nearest known one.
    pub fn syntax(&self, error: &toml::de::Error) -> FileError {
        let span = error.span().unwrap_or(0..0);
        let start = self.text[..span.start.min(self.text.len())]
            .rfind('\n')
            .map_or(0, |at| at + 1);
        let line = self.text[start..].lines().next().unwrap_or("");
        let key = line.split('=').next().unwrap_or("").trim();
        let message = error.message().trim();
        let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let problem = match quoted.split_first() {
            Some((wrong, known)) if message.starts_with("unknown ") => {
                let known = known.iter().copied();
                let hint = nearest(wrong, known.clone())
                    .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                let all: Vec<&str> = known.collect();
                format!(
                    "`{wrong}` is not known here{hint} (known: {})",
                    all.join(", ")
                )
            }
            _ => message.replace('\n', " "),
        };
        self.wrong(span, if key.is_empty() { "file" } else { key }, problem)
    }

    /// A name that serves as a host name, a device name and a file name.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn name(
        &self,
        key: &str,
        name: &Spanned<String>,
        chars_max: usize,
    ) -> Result<String, FileError> {
        let text = name.get_ref();
        let sound = !text.is_empty()
            && text.len() <= chars_max
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.');
        if sound {
            return Ok(text.clone());
        }
        Err(self.wrong(
            name.span(),
            key,
            format!("`{text}` is not a name; use 1 to {chars_max} letters, digits, `-`, `_` or `.`, a letter or digit first"),
        ))
    }
}
