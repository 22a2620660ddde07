//! Lists of paths to send (`--files-from`), read on demand.
//!
//! **Invariant:** only the paths of one read are in memory at a time, and no path in the list leads outside the root.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use zmove_types::{PathError, RelPath};

use crate::config::ScanRoot;
use crate::error::{ListFault, ScanError};

pub(crate) mod fuzzing;

/// A reader of a list of paths, which are relative to one directory.
pub struct PathList {
    /// The directory to which the paths are relative.
    pub(crate) root: ScanRoot,
    name: PathBuf,
    separator: Separator,
    reader: BufReader<Box<dyn Read + Send>>,
}

/// The separator between the paths of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    /// A line feed, optionally preceded by a carriage return. Empty lines are skipped.
    Newline,
    /// A NUL byte.
    Nul,
}

/// A path of a list, or the reason why it cannot be sent.
pub(crate) type ListedPath = Result<RelPath, ScanError>;

impl PathList {
    /// Creates a list of paths below the directory `root`, read from `reader`. `name` is used in messages.
    #[must_use]
    pub fn new(
        root: ScanRoot,
        reader: impl Read + Send + 'static,
        name: PathBuf,
        separator: Separator,
    ) -> Self {
        let reader: Box<dyn Read + Send> = Box::new(reader);
        Self {
            root,
            name,
            separator,
            reader: BufReader::with_capacity(BUFFER_BYTES, reader),
        }
    }

    /// Returns the next paths, or `None` at the end of the list. The result contains only the paths of one read, so
    /// that they need not wait for the next read.
    pub(crate) fn next_batch(&mut self) -> Option<Vec<ListedPath>> {
        let mut batch = Vec::new();
        let mut text = Vec::new();
        while batch.is_empty() || !self.reader.buffer().is_empty() {
            match self.read_text(&mut text) {
                Ok(Some(length)) => batch.extend(self.parse(&text, length)),
                Ok(None) => break,
                Err(source) => {
                    batch.push(Err(ScanError::List {
                        path: self.name.clone(),
                        source,
                    }));
                    // After a failed read, the position in the list is unknown, so the remaining paths are not read.
                    self.reader = BufReader::new(Box::new(io::empty()));
                    break;
                }
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Reads a path up to the next separator or the end of the list. If the path is too long, keeps only its beginning.
    fn read_text(&mut self, text: &mut Vec<u8>) -> io::Result<Option<Length>> {
        text.clear();
        let separator = match self.separator {
            Separator::Newline => b'\n',
            Separator::Nul => 0,
        };
        // The limit includes one byte for the separator.
        let read = (&mut self.reader)
            .take(TEXT_BYTES_MAX as u64 + 1)
            .read_until(separator, text)?;
        text.pop_if(|last| *last == separator);
        if text.len() <= TEXT_BYTES_MAX {
            return Ok((read > 0).then_some(Length::Whole));
        }
        text.truncate(TEXT_BYTES_MAX);
        self.reader.skip_until(separator)?;
        Ok(Some(Length::TooLong))
    }

    fn parse(&self, text: &[u8], length: Length) -> Option<ListedPath> {
        let text = match self.separator {
            Separator::Newline => text.strip_suffix(b"\r").unwrap_or(text),
            Separator::Nul => text,
        };
        if text.is_empty() && self.separator == Separator::Newline {
            return None;
        }
        let parsed = match length {
            Length::Whole => parse(text),
            Length::TooLong => Err(ListFault::Path(PathError::PathTooLong)),
        };
        let shown = &text[..text.len().min(SHOWN_BYTES_MAX)];
        let failed = |fault| ScanError::Listed {
            path: OsStr::from_bytes(shown).into(),
            fault,
        };
        Some(parsed.map_err(failed))
    }
}

/// Whether the text of a path was read completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Whole,
    TooLong,
}

/// Parses a path. Ignores `.` components, repeated slashes and a trailing slash.
fn parse(text: &[u8]) -> Result<RelPath, ListFault> {
    match text.first() {
        None => return Err(ListFault::Path(PathError::Empty)),
        Some(b'/') => return Err(ListFault::Absolute),
        Some(_) => {}
    }
    let components = || {
        text.split(|&byte| byte == b'/')
            .filter(|part| !matches!(part, [] | [b'.']))
    };
    if components().any(|part| part == b"..") {
        return Err(ListFault::DotDot);
    }
    RelPath::from_bytes(&components().collect::<Vec<_>>().join(&b'/')).map_err(ListFault::Path)
}

impl fmt::Debug for PathList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathList")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Size of one read, in bytes. A larger read lets more paths of the same directory be grouped.
const BUFFER_BYTES: usize = 512 * 1024;
/// Maximum length of a path in the list, with room for the longest valid path and some `.` components.
const TEXT_BYTES_MAX: usize = 2 * RelPath::BYTES_MAX;
/// Maximum number of bytes of an invalid path that are shown in a message.
const SHOWN_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn list(bytes: &[u8], separator: Separator) -> PathList {
        let root = ScanRoot::new(".", RelPath::root());
        PathList::new(
            root,
            io::Cursor::new(bytes.to_vec()),
            "list".into(),
            separator,
        )
    }

    fn read(bytes: &[u8], separator: Separator) -> Vec<String> {
        let mut list = list(bytes, separator);
        let show = |listed: ListedPath| {
            listed.map_or_else(|error| error.to_string(), |path| path.to_string())
        };
        std::iter::from_fn(|| list.next_batch())
            .flatten()
            .map(show)
            .collect()
    }

    #[test]
    fn lines_are_paths_and_empty_ones_are_none() {
        assert_eq!(
            read(b"a\n\n./b//c/.\r\n\r\n d \n#e", Separator::Newline),
            ["a", "b/c", " d ", "#e"]
        );
        assert!(read(b"", Separator::Newline).is_empty());
        assert!(read(b"\n\n", Separator::Newline).is_empty());
    }

    #[test]
    fn paths_between_nul_bytes_may_hold_line_feeds() {
        assert_eq!(read(b"a\nb\0c\r\0", Separator::Nul), ["a\\nb", "c\\r"]);
    }

    #[test]
    fn what_leads_out_is_refused_and_the_others_are_read() {
        let said = read(b"/etc\na/../b\nok\n..\nx\0y\n", Separator::Newline);
        let of = |path: &str, why: &str| format!("find the listed path '{path}': {why}");
        assert_eq!(
            said[0],
            of(
                "/etc",
                "it is absolute, but paths must be relative to the source"
            )
        );
        assert_eq!(said[1], of("a/../b", "it has a '..'"));
        assert_eq!(said[2], "ok");
        assert_eq!(said[3], of("..", "it has a '..'"));
        assert_eq!(said.len(), 5);
    }

    #[test]
    fn a_line_without_end_costs_no_memory() {
        let mut list = list(&[], Separator::Newline);
        let endless = io::repeat(b'a')
            .take(3 << 20)
            .chain(io::Cursor::new(b"\nnext\n"));
        list.reader = BufReader::with_capacity(BUFFER_BYTES, Box::new(endless));
        let mut text = Vec::new();
        assert_eq!(list.read_text(&mut text).unwrap(), Some(Length::TooLong));
        assert_eq!(text.len(), TEXT_BYTES_MAX);
        assert_eq!(list.read_text(&mut text).unwrap(), Some(Length::Whole));
        assert_eq!(text, b"next");
    }

    #[test]
    fn what_has_been_read_does_not_wait_for_more() {
        let mut list = list(&[], Separator::Newline);
        list.reader = BufReader::new(Box::new(
            io::Cursor::new(b"a\nb\n").chain(io::Cursor::new(b"c\n")),
        ));
        let mut count = || list.next_batch().map(|batch| batch.len());
        assert_eq!([count(), count(), count()], [Some(2), Some(1), None]);
    }

    #[test]
    fn a_read_that_fails_ends_the_list() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::Other.into())
            }
        }
        let mut list = list(&[], Separator::Newline);
        list.reader = BufReader::new(Box::new(io::Cursor::new(b"a\n").chain(Broken)));
        assert!(matches!(list.next_batch().unwrap()[..], [Ok(_)]));
        assert!(matches!(
            list.next_batch().unwrap()[..],
            [Err(ScanError::List { .. })]
        ));
        assert!(list.next_batch().is_none());
    }
}
