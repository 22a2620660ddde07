//! A list of files and their hashes that a verification compares with the source instead of a target. The format is
//! that of a manifest: a push writes it, and `b3sum --check` reads it.
//!
//! **Invariant:** a list is either parsed completely or rejected. All its paths are relative and stay below the
//! directory that is verified.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, BufRead, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thiserror::Error;
use zmove_types::{RelPath, Root, from_hex};
use zmove_wire::{Differences, EntryGroup, SourceEntry, SourceKind, Verdict};

/// A list of files with their hashes.
#[derive(Debug, Default)]
pub struct ListedFiles {
    files: HashMap<RelPath, ListedFile>,
    unlisted: Unlisted,
    /// Number of unlisted files that were ignored.
    passed_over: AtomicU64,
}

#[derive(Debug)]
struct ListedFile {
    root: Root,
    was_found: AtomicBool,
}

/// How to treat files that are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unlisted {
    /// Unlisted files are reported as differences.
    #[default]
    Differs,
    /// Unlisted files are ignored and counted.
    PassedOver,
}

/// The reason why a list was rejected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListError {
    /// The list cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// A line is not in the format of `b3sum`.
    #[error("line {number}: {why}")]
    Line {
        /// The line number, counting from 1.
        number: u64,
        /// A description of the error.
        why: &'static str,
    },
}

/// Maximum length of a line in bytes: a path in which every byte is escaped, and the hash before it.
const LINE_BYTES_MAX: usize = 2 * RelPath::BYTES_MAX + 80;

impl ListedFiles {
    /// Reads a list to its end.
    ///
    /// # Errors
    /// [`ListError`] if the list cannot be read, or with the number of the first invalid line.
    pub fn read(mut from: impl BufRead, unlisted: Unlisted) -> Result<Self, ListError> {
        let mut files = HashMap::new();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let wrong = |why| ListError::Line { number, why };
            from.by_ref()
                .take(LINE_BYTES_MAX as u64 + 1)
                .read_until(b'\n', &mut line)?;
            if line.is_empty() {
                break;
            }
            if line.len() > LINE_BYTES_MAX {
                return Err(wrong("too long for a hash and a path"));
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let (path, root) = parse(text.strip_suffix(b"\r").unwrap_or(text)).map_err(wrong)?;
            match files.entry(path) {
                Entry::Vacant(entry) => {
                    entry.insert(ListedFile {
                        root,
                        was_found: AtomicBool::new(false),
                    });
                }
                Entry::Occupied(entry) if entry.get().root == root => {}
                Entry::Occupied(_) => {
                    return Err(wrong("another hash for a file that an earlier line lists"));
                }
            }
        }
        Ok(Self {
            files,
            unlisted,
            passed_over: AtomicU64::new(0),
        })
    }

    /// Returns the listed files that were not found and for which `wanted` returns true, in ascending order.
    pub fn missing(&self, wanted: impl Fn(&RelPath) -> bool) -> Vec<RelPath> {
        let missing = self
            .files
            .iter()
            .filter(|(_, file)| !file.was_found.load(Ordering::Relaxed));
        let mut missing: Vec<_> = missing
            .map(|(path, _)| path.clone())
            .filter(wanted)
            .collect();
        missing.sort_unstable();
        missing
    }

    /// Returns the number of unlisted files that were found and ignored.
    #[must_use]
    pub fn passed_over(&self) -> u64 {
        self.passed_over.load(Ordering::Relaxed)
    }

    /// Returns the verdicts on entries of the source.
    pub(super) fn verdicts(&self, groups: &[EntryGroup]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for group in groups {
            // Lists do not contain directories, so a directory counts as equal.
            verdicts.extend(group.itself.as_ref().map(|_| Verdict::Same));
            verdicts.extend(
                group
                    .entries
                    .iter()
                    .map(|entry| self.look_up(&group.directory, entry)),
            );
        }
        verdicts
    }

    fn look_up(&self, directory: &RelPath, entry: &SourceEntry) -> Verdict {
        let is_file = matches!(
            entry.kind,
            SourceKind::File { .. } | SourceKind::Link { .. }
        );
        let listed = directory
            .join(&entry.name)
            .ok()
            .and_then(|path| self.files.get(&path));
        let Some(listed) = listed else {
            return match self.unlisted {
                _ if !is_file => Verdict::Same,
                Unlisted::Differs => Verdict::New,
                Unlisted::PassedOver => {
                    self.passed_over.fetch_add(1, Ordering::Relaxed);
                    Verdict::Stays
                }
            };
        };
        listed.was_found.store(true, Ordering::Relaxed);
        match entry.kind {
            SourceKind::File { .. } => Verdict::Contents(Differences::default(), listed.root.0),
            // Only a file entry can match a listed file. A verification against a list requests no hard links.
            _ => Verdict::Replace(Differences::TYPE),
        }
    }
}

/// Parses the hash and the path of a line.
fn parse(line: &[u8]) -> Result<(RelPath, Root), &'static str> {
    let escaped = line.strip_prefix(b"\\");
    let line = escaped.unwrap_or(line);
    let hash = line.get(..64).and_then(from_hex).ok_or(
        "it has no BLAKE3 hash of 64 lower-case hexadecimal digits (is the file a manifest?)",
    )?;
    let name = line[64..]
        .strip_prefix(b"  ")
        .ok_or("no two spaces between the hash and the path")?;
    let name = if escaped.is_some() {
        unescaped(name)?
    } else {
        name.to_vec()
    };
    let mut name = &name[..];
    while let Some(rest) = name.strip_prefix(b"./") {
        name = rest;
    }
    let path = RelPath::from_bytes(name).map_err(|_| "no relative path without '..'")?;
    if path.is_root() {
        Err("no path")
    } else {
        Ok((path, Root(hash)))
    }
}

/// Resolves the escapes in a name: `\\`, `\n`, and the `\r` of newer versions of b3sum.
fn unescaped(name: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut plain = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => match bytes.next() {
                Some(b'\\') => b'\\',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                _ => return Err("a backslash in the path that does not begin an escape sequence"),
            },
            byte => byte,
        });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<ListedFiles, String> {
        ListedFiles::read(text, Unlisted::Differs).map_err(|error| error.to_string())
    }

    fn line(byte: u8, name: &str) -> String {
        format!("{}  {name}\n", format!("{byte:02x}").repeat(32))
    }

    #[test]
    fn lines_are_read_as_b3sum_writes_them() {
        let text = [
            line(0xab, "a b"),
            line(1, "./d/f"),
            format!("\\{}", line(2, "back\\\\slash\\nline")),
        ];
        let text =
            text.concat() + line(3, "last").trim_end() + "\r\n" + line(4, "no newline").trim_end();
        let list = read(text.as_bytes()).unwrap();
        let mut found: Vec<_> = list
            .files
            .iter()
            .map(|(path, file)| (path.as_bytes().to_vec(), file.root))
            .collect();
        found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let expected: [(&[u8], u8); 5] = [
            (b"a b", 0xab),
            (b"back\\slash\nline", 2),
            (b"d/f", 1),
            (b"last", 3),
            (b"no newline", 4),
        ];
        assert_eq!(
            found,
            expected.map(|(path, byte)| (path.to_vec(), Root([byte; 32])))
        );
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named() {
        let short = "ab".repeat(31);
        for (wrong, why) in [
            (format!("{short}  a\n"), "it has no BLAKE3 hash"),
            (format!("{}  a\n", "AB".repeat(32)), "it has no BLAKE3 hash"),
            ("\n".to_owned(), "it has no BLAKE3 hash"),
            ("# comment\n".to_owned(), "it has no BLAKE3 hash"),
            (format!("{} a\n", "ab".repeat(32)), "no two spaces"),
            (line(1, ""), "no path"),
            (line(1, "/etc/passwd"), "no relative path"),
            (line(1, "a/../b"), "no relative path"),
            (format!("\\{}", line(1, "a\\x")), "a backslash"),
            (line(2, "there"), "another hash"),
            (line(1, &"a".repeat(LINE_BYTES_MAX)), "too long"),
        ] {
            let text = line(1, "there") + &line(1, "there") + &wrong;
            let error = read(text.as_bytes()).unwrap_err();
            assert!(
                error.starts_with(&format!("line 3: {why}")),
                "{wrong}: {error}"
            );
        }
    }
}
