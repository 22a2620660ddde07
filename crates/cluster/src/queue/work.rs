//! Work items: what a job of many nodes is cut into.
//!
//! | item | what is to be done | it announces |
//! |---|---|---|
//! | *begin* | nothing: the job begins with it | the tree of each source |
//! | *trees* | directories are walked and sent, as far as one item goes | the rest of the walk, ranges, large files |
//! | *names* | entries of one directory are looked up and sent | ranges and large files among them |
//! | *range* | groups of a large file are sent | nothing |
//! | *large file* | a file of which ranges are sent gets its name | nothing |
//!
//! An item carries what its announcer has seen of the directories that it is about ([`zmove_scan::DirectoryMark`]): a
//! node that sees others there gives it back and leaves the job, and at the node that leads they fail.
//!
//! **Invariant:** an item's id follows from what it says, so a queue passes over an item that it has had. Each *pass*
//! over the sources has ids of its own. Who does an item again finds what is at the target, and does the rest.

use serde::{Deserialize, Serialize};
use zmove_scan::MarkedPath;
use zmove_types::{Name, SharedJobId, Timestamp, WorkId};
use zmove_wire::GroupRange;

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkItem {
    /// The pass of the job that the item belongs to, from 1.
    pub pass: u32,
    /// The number of the source that the work is about; 0 of *begin*.
    pub source: u32,
    /// What is to be done.
    pub work: ItemWork,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemWork {
    /// To begin the job, with the tops of all sources.
    Begin(Vec<MarkedPath>),
    /// To walk directories and to send what is in them, as far as one item goes.
    Trees(Vec<MarkedPath>),
    /// To send entries of one directory.
    Names {
        /// The directory.
        directory: MarkedPath,
        /// The names of the entries.
        names: Vec<Name>,
    },
    /// To send groups of a large file.
    Range {
        /// The file.
        file: SplitFile,
        /// The groups.
        range: GroupRange,
    },
    /// To give a large file its name.
    Large(SplitFile),
}

/// A large file that several nodes send, as whoever has found it saw it. One that looks otherwise later has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitFile {
    /// The directory that it is in.
    pub directory: MarkedPath,
    /// The name there.
    pub name: Name,
    /// The length.
    pub bytes: u64,
    /// The time.
    pub mtime: Timestamp,
}

impl WorkItem {
    /// Work about the same source that this one announces.
    #[must_use]
    pub const fn child(&self, work: ItemWork) -> Self {
        Self {
            pass: self.pass,
            source: self.source,
            work,
        }
    }

    /// The item's id, in a job. It does not depend on marks: a directory may change between two announcements.
    ///
    /// # Panics
    /// Never: there is room for it.
    #[must_use]
    pub fn id(&self, job: SharedJobId) -> WorkId {
        let mut hasher = blake3::Hasher::new_derive_key("zmove 2026-11-26 id of a work item");
        hasher.update(&job.0);
        let mut unmarked = self.clone();
        unmarked.work.forget_marks();
        hasher.update(&unmarked.encode());
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        WorkId(id)
    }

    /// The item as bytes.
    ///
    /// # Panics
    /// Never: there is room for it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a vector grows")
    }

    /// The item that some bytes are; `None` if they are none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= ITEM_BYTES_MAX).then(|| postcard::from_bytes(bytes).ok())?
    }
}

/// The most bytes of an item: what a queue surely takes as one message.
pub const ITEM_BYTES_MAX: usize = 512 << 10;

impl ItemWork {
    /// Whether the work announces other work, and moves little itself.
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
    use crate::lab::JOB;
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

    /// Each kind of work, about directories with these marks.
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
    fn an_id_follows_from_job_pass_source_and_work_without_marks() {
        let ids: std::collections::BTreeSet<_> =
            each([None; 2]).map(|work| item(work).id(JOB).0).into();
        assert_eq!(ids.len(), 5);
        let marked = each([mark(None), mark(Some(Timestamp::default()))]);
        for (work, marked) in each([None; 2]).into_iter().zip(marked) {
            let first = item(work.clone());
            assert_eq!(item(marked).id(JOB), first.id(JOB));
            assert_ne!(first.id(SharedJobId([8; 16])), first.id(JOB));
            let next = WorkItem {
                pass: 2,
                ..first.clone()
            };
            assert_ne!(next.id(JOB), first.id(JOB));
            let of_other = WorkItem {
                source: 2,
                ..first.clone()
            };
            assert_ne!(of_other.id(JOB), first.id(JOB));
            let children = [&first, &next].map(|parent| parent.child(work.clone()).id(JOB));
            assert_eq!(
                children,
                [first.id(JOB), next.id(JOB)],
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
