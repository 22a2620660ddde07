//! The work items into which a multi-node job is split.
//!
//! | item | work | announces |
//! |---|---|---|
//! | *begin* | none: it starts the job | the tree of each source |
//! | *trees* | scans and sends directories, up to the size of an item | the rest of the scan, ranges, large files |
//! | *names* | looks up and sends entries of one directory | ranges and large files among them |
//! | *range* | sends groups of a large file | nothing |
//! | *large file* | commits a file whose ranges other items send | nothing |
//!
//! An item contains the state of its directories as the announcing node has seen them ([`zmove_scan::DirectoryMark`]).
//! A node that sees a different state returns the item and leaves the job. At the head, such directories fail.
//!
//! **Invariant:** the id of an item is derived from its contents, so that a queue can skip an item that it already
//! knows. Each *pass* over the sources has different ids. If an item is processed again, only files that are missing at
//! the target are sent.

use serde::{Deserialize, Serialize};
use zmove_scan::MarkedPath;
use zmove_types::{Name, Timestamp, WorkId};
use zmove_wire::GroupRange;

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkItem {
    /// Number of the pass that the item belongs to, starting at 1.
    pub pass: u32,
    /// Number of the source that the work refers to. 0 for *begin*.
    pub source: u32,
    /// The work.
    pub work: ItemWork,
}

/// The work of an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemWork {
    /// Starts the job with the top directories of all sources.
    Begin(Vec<MarkedPath>),
    /// Scans directories and sends their entries, up to the size of an item.
    Trees(Vec<MarkedPath>),
    /// Sends entries of a directory.
    Names {
        /// The directory.
        directory: MarkedPath,
        /// The names of the entries.
        names: Vec<Name>,
    },
    /// Sends groups of a large file.
    Range {
        /// The file.
        file: SplitFile,
        /// The groups.
        range: GroupRange,
    },
    /// Commits a large file.
    Large(SplitFile),
}

/// A large file that several nodes send, in the state in which the scan found it. If a node finds a different state,
/// the file has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitFile {
    /// The directory that contains the file.
    pub directory: MarkedPath,
    /// Name of the file.
    pub name: Name,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Modification time of the file.
    pub mtime: Timestamp,
}

impl WorkItem {
    /// Creates an item that this item announces, with the same source and pass.
    #[must_use]
    pub const fn child(&self, work: ItemWork) -> Self {
        Self {
            pass: self.pass,
            source: self.source,
            work,
        }
    }

    /// Returns the id of the item in its job. It does not depend on directory marks, because a directory may change
    /// between two announcements.
    ///
    /// # Panics
    /// Never panics, because encoding into a vector cannot fail.
    #[must_use]
    pub fn id(&self) -> WorkId {
        let mut hasher = blake3::Hasher::new_derive_key("zmove 2026-11-26 id of a work item");
        let mut unmarked = self.clone();
        unmarked.work.forget_marks();
        hasher.update(&unmarked.encode());
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        WorkId(id)
    }

    /// Encodes the item.
    ///
    /// # Panics
    /// Never panics, because encoding into a vector cannot fail.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a vector grows")
    }

    /// Decodes an item. Returns `None` if the bytes are not a valid item.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= ITEM_BYTES_MAX).then(|| postcard::from_bytes(bytes).ok())?
    }
}

/// Maximum length of an encoded item, in bytes. Every queue accepts a message of this length.
pub const ITEM_BYTES_MAX: usize = 512 << 10;

impl ItemWork {
    /// Returns whether the work announces other items and moves little data itself.
    #[must_use]
    pub const fn is_walk(&self) -> bool {
        matches!(self, Self::Begin(_) | Self::Trees(_))
    }

    fn forget_marks(&mut self) {
        match self {
            Self::Begin(directories) | Self::Trees(directories) => {
                for directory in directories {
                    directory.mark = None;
                }
            }
            Self::Names { directory, .. }
            | Self::Range {
                file: SplitFile { directory, .. },
                ..
            }
            | Self::Large(SplitFile { directory, .. }) => directory.mark = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_scan::DirectoryMark;
    use zmove_types::RelPath;

    fn marked(path: &str, mark: Option<DirectoryMark>) -> MarkedPath {
        let path = RelPath::from_bytes(path.as_bytes()).unwrap();
        MarkedPath { path, mark }
    }

    fn item(work: ItemWork) -> WorkItem {
        WorkItem {
            pass: 1,
            source: 1,
            work,
        }
    }

    fn mark(above_ctime: Option<Timestamp>) -> Option<DirectoryMark> {
        let ctime = Timestamp {
            seconds: 1 << 33,
            nanos: 999_999_999,
        };
        Some(DirectoryMark {
            inode: 1 << 60,
            ctime,
            above_ctime,
        })
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    /// Returns one item of each kind, for directories with these marks.
    fn each(marks: [Option<DirectoryMark>; 2]) -> [ItemWork; 5] {
        let place = |path: &str| marked(path, marks[0]);
        let mtime = Timestamp {
            seconds: -3,
            nanos: 5,
        };
        let file = SplitFile {
            directory: place("a/b"),
            name: name("f"),
            bytes: 1 << 40,
            mtime,
        };
        [
            ItemWork::Begin(marks.map(|mark| marked("", mark)).into()),
            ItemWork::Trees(vec![place(""), marked("a", marks[1])]),
            ItemWork::Names {
                directory: place("a"),
                names: [name("x"), name("\u{e9}y")].into(),
            },
            ItemWork::Range {
                file: file.clone(),
                range: GroupRange::new(3, 9),
            },
            ItemWork::Large(file),
        ]
    }

    #[test]
    fn what_is_encoded_comes_back() {
        let marks = [mark(None), mark(Some(Timestamp::default()))];
        for work in [each(marks), each([None, marks[0]])].concat() {
            let item = item(work);
            assert_eq!(WorkItem::decode(&item.encode()).unwrap(), item);
        }
    }

    #[test]
    fn an_id_follows_from_pass_source_and_work_without_marks() {
        let ids: std::collections::BTreeSet<_> =
            each([None; 2]).map(|work| item(work).id().0).into();
        assert_eq!(ids.len(), 5);
        let marked = each([mark(None), mark(Some(Timestamp::default()))]);
        for (work, marked) in each([None; 2]).into_iter().zip(marked) {
            let first = item(work.clone());
            assert_eq!(item(marked).id(), first.id());
            let next = WorkItem {
                pass: 2,
                ..first.clone()
            };
            assert_ne!(next.id(), first.id());
            let of_other = WorkItem {
                source: 2,
                ..first.clone()
            };
            assert_ne!(of_other.id(), first.id());
            let children = [&first, &next].map(|parent| parent.child(work.clone()).id());
            assert_eq!(
                children,
                [first.id(), next.id()],
                "what it announces is of its pass"
            );
        }
    }

    #[test]
    fn what_is_no_item_is_refused() {
        let bytes = item(each([None; 2])[2].clone()).encode();
        assert!((0..bytes.len()).all(|len| WorkItem::decode(&bytes[..len]).is_none()));
        let dots = String::from_utf8_lossy(&bytes)
            .replace('x', ".")
            .into_bytes();
        assert!(
            WorkItem::decode(&dots).is_none(),
            "a name that leads elsewhere"
        );
        assert!(WorkItem::decode(&vec![0; ITEM_BYTES_MAX + 1]).is_none());
    }
}
