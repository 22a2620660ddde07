//! Distributes the groups of large files to threads, one file after the other. As in a push, any thread takes the next
//! group.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use zmove_types::{GroupSpan, Lock};

use crate::sweep::error::SweepError;

/// The files of a cell. A file is opened when its first group is taken.
pub(crate) struct Groups<T, F> {
    open: F,
    cursor: Lock<Cursor<T>>,
}

struct Cursor<T> {
    file: u64,
    index: u32,
    opened: Option<Arc<OpenFile<T>>>,
}

/// A file that is being written or read by group.
pub(crate) struct OpenFile<T> {
    /// The index of the file in its cell.
    pub(crate) number: u64,
    pub(crate) file: T,
    /// The length of the file.
    pub(crate) bytes: u64,
    /// Number of bytes that were written or read.
    pub(crate) moved: AtomicU64,
}

/// One group of an open file.
pub(crate) type Piece<T> = (Arc<OpenFile<T>>, GroupSpan);

impl<T, F: Fn(u64) -> Result<Option<(T, u64)>, SweepError>> Groups<T, F> {
    /// Creates the distribution of groups. `open` receives the index of a file. It returns the file and its length in
    /// bytes, or `None` if no such file exists.
    pub(crate) fn new(open: F) -> Self {
        Self {
            open,
            cursor: Lock::new(Cursor {
                file: 0,
                index: 0,
                opened: None,
            }),
        }
    }

    /// Returns the next group, provided that `admit` accepts the group's length. After the last group of a file was
    /// returned, only the threads that work on the file hold it.
    pub(crate) fn next(&self, admit: impl Fn(u64) -> bool) -> Result<Option<Piece<T>>, SweepError> {
        let mut cursor = self.cursor.lock();
        let file = match &cursor.opened {
            Some(file) => Arc::clone(file),
            None => {
                let number = cursor.file;
                let Some((file, bytes)) = (self.open)(number)? else {
                    return Ok(None);
                };
                cursor.index = 0;
                Arc::clone(cursor.opened.insert(Arc::new(OpenFile {
                    number,
                    file,
                    bytes,
                    moved: AtomicU64::new(0),
                })))
            }
        };
        let span = GroupSpan::of(file.bytes, cursor.index);
        let Some(span) = span.filter(|span| admit(span.len.into())) else {
            return Ok(None);
        };
        cursor.index += 1;
        if GroupSpan::of(file.bytes, cursor.index).is_none() {
            cursor.opened = None;
            cursor.file += 1;
        }
        Ok(Some((file, span)))
    }

    /// Returns the open file if not all of its groups were distributed.
    pub(crate) fn into_open(self) -> Option<Arc<OpenFile<T>>> {
        self.cursor.into_inner().opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::GROUP_BYTES;

    #[test]
    fn each_group_is_handed_out_once_in_order() {
        let bytes = 2 * GROUP_BYTES + 5;
        let groups = Groups::new(|number| Ok((number < 2).then_some((number, bytes))));
        let mut seen = Vec::new();
        while let Some((file, span)) = groups.next(|_| true).unwrap() {
            seen.push((file.file, span.offset(), u64::from(span.len)));
        }
        let of = |file| {
            [
                (file, 0, GROUP_BYTES),
                (file, GROUP_BYTES, GROUP_BYTES),
                (file, 2 * GROUP_BYTES, 5),
            ]
        };
        assert_eq!(seen, [of(0), of(1)].concat());
        assert!(groups.into_open().is_none());
    }

    #[test]
    fn who_is_not_admitted_leaves_the_file_open() {
        let groups = Groups::new(|number| Ok(Some((number, 2 * GROUP_BYTES))));
        let (first, _) = groups.next(|_| true).unwrap().unwrap();
        assert!(groups.next(|_| false).unwrap().is_none());
        drop(first);
        let open = Arc::into_inner(groups.into_open().unwrap());
        assert_eq!(open.map(|open| (open.number, open.file)), Some((0, 0)));
    }
}
