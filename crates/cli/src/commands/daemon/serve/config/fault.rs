//! The faults of a configuration file, with line numbers.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;

/// A fault of a configuration file, with its line number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigFault {
    /// Line number, starting at 1, or `None` if the file could not be read.
    pub(super) line: Option<usize>,
    text: String,
}

impl ConfigFault {
    pub(super) fn unread(path: &Path, error: &std::io::Error) -> Self {
        Self {
            line: None,
            text: format!("read {}: {error}", path.display()),
        }
    }

    fn new(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let path = path.display();
        let said = error.message().replace('\n', ", ");
        match error.span().map(|span| locate(text, span.start)) {
            Some((line, key)) => Self {
                line: Some(line),
                text: format!("{path}: line {line}: {key}: {said}"),
            },
            None => Self {
                line: None,
                text: format!("{path}: {said}"),
            },
        }
    }
}

/// Returns all faults of a file that is parsed as `T`. The first fault is `error`. To find the next fault, the function
/// blanks the faulty line and parses the text again.
pub(super) fn all<T: DeserializeOwned>(
    path: &Path,
    text: &str,
    error: toml::de::Error,
) -> Vec<ConfigFault> {
    let mut rest = text.to_owned();
    let mut next = Some(error);
    let mut faults = Vec::new();
    while let Some(error) = next {
        faults.push(ConfigFault::new(path, &rest, &error));
        let Some(span) = error.span().filter(|_| is_toml(&rest)) else {
            break;
        };
        let line = line_around(&rest, span.start);
        if rest[line.clone()].trim().is_empty() {
            break;
        }
        let blank = " ".repeat(line.len());
        rest.replace_range(line, &blank);
        next = toml::from_str::<T>(&rest).err();
    }
    faults.sort_by_key(|fault| fault.line);
    faults
}

fn is_toml(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok()
}

fn line_around(text: &str, position: usize) -> Range<usize> {
    let position = position.min(text.len());
    let start = text[..position]
        .rfind('\n')
        .map_or(0, |newline| newline + 1);
    let end = text[position..]
        .find('\n')
        .map_or(text.len(), |length| position + length);
    start..end
}

/// Returns the line number of a byte position, starting at 1. Also returns the key on that line, prefixed with the name
/// of its table.
fn locate(text: &str, position: usize) -> (usize, String) {
    let around = line_around(text, position);
    let line = text[..around.start].matches('\n').count() + 1;
    let key = text[around.clone()]
        .split('=')
        .next()
        .unwrap_or_default()
        .trim();
    let header = |line: &str| Some(line.trim().strip_prefix('[')?.split(']').next()?.to_owned());
    let key = match text[..around.start].lines().rev().find_map(header) {
        Some(table) if !key.starts_with('[') => format!("{table}.{key}"),
        _ => key.to_owned(),
    };
    (line, key)
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
