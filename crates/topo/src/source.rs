//! A file that a person wrote, and errors that name the line, the key and the accepted values.

use crate::nearest::nearest;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// Reason for which a file was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be read.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// Path of the file.
        file: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A key or a value is wrong.
    #[error("{file}:{line}: {key}: {problem}")]
    Wrong {
        /// The file's path.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Key on that line.
        key: String,
        /// The value, and the values that are accepted.
        problem: String,
    },
}

/// Reads a file. Returns its path as messages print it, and its text.
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

/// A file that is being checked. It turns a byte span into a line number for an error.
pub struct Source<'a> {
    /// Path, for the messages.
    pub file: &'a str,
    /// Text of the file.
    pub text: &'a str,
}

impl Source<'_> {
    /// Returns the error for the value at `span`, with its key and the problem.
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

    /// Rewrites a parser's error. The key comes from the place that the error points at. An unknown
    /// key gets the nearest known one.
    pub fn syntax(&self, error: &toml::de::Error) -> FileError {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().trim();
        let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let key = match quoted.first() {
            Some(key) if message.starts_with("unknown field ") => *key,
            // The parser has no place for a key that is missing in the file as a whole.
            _ if span == (0..0) => "file",
            _ => self.key_at(span.start),
        };
        let problem = match quoted.split_first() {
            Some((wrong, known)) if message.starts_with("unknown ") => {
                let known = known.iter().copied();
                let hint = nearest(wrong, known.clone())
                    .map_or(String::new(), |best| format!("; did you mean `{best}`?"));
                let names: Vec<&str> = known.collect();
                format!(
                    "`{wrong}` is not known here{hint} (known: {})",
                    names.join(", ")
                )
            }
            _ => message.replace('\n', " "),
        };
        self.wrong(span, key, problem)
    }

    /// Returns the key whose value is at `offset`, or else the first word on that line.
    fn key_at(&self, offset: usize) -> &str {
        let offset = offset.min(self.text.len());
        let start = self.text[..offset].rfind('\n').map_or(0, |end| end + 1);
        let line = self.text[start..].lines().next().unwrap_or("");
        let before = match self.text[start..offset].rsplit_once('=') {
            Some((before, _)) => before,
            None => line.split('=').next().unwrap_or(""),
        };
        let mut words = before.rsplit([' ', '\t', ',', '{']);
        words.find(|word| !word.is_empty()).unwrap_or("file")
    }

    /// Checks a name that serves as a host name, a device name and a file name.
    ///
    /// # Errors
    /// Says why the name is refused, and which names are accepted.
    pub fn name(
        &self,
        key: &str,
        name: &Spanned<String>,
        chars_max: usize,
    ) -> Result<String, FileError> {
        let text = name.get_ref();
        let is_valid = !text.is_empty()
            && text.len() <= chars_max
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.');
        if is_valid {
            return Ok(text.clone());
        }
        Err(self.wrong(
            name.span(),
            key,
            format!("`{text}` is not a name; use 1 to {chars_max} letters, digits, `-`, `_` or `.`, a letter or digit first"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name__invalid__is_quoted_with_the_accepted_characters() {
        let source = Source {
            file: "f",
            text: "\nname = 1",
        };
        let long = "n".repeat(9);
        for name in ["", "two words", "-n", "n/1", long.as_str()] {
            let name = Spanned::new(8..9, name.to_owned());
            let error = source.name("name", &name, 8).unwrap_err();
            let expected = format!(
                "f:2: name: `{}` is not a name; use 1 to 8 letters, digits, `-`, `_` or `.`, \
                 a letter or digit first",
                name.get_ref()
            );
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn file__unreadable__is_named_with_the_reason() {
        for (path, reason) in [
            ("/no/such/file", "No such file or directory (os error 2)"),
            ("/", "Is a directory (os error 21)"),
        ] {
            let error = read(Path::new(path)).unwrap_err().to_string();
            assert_eq!(error, format!("{path}: cannot be read: {reason}"));
        }
    }
}
