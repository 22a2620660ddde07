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
//! An item carries what its announcer has seen of the directories that it is about ([`DirectoryMark`]): a node that
//! sees others there gives it back and leaves the job, and at the node that leads they fail.
//!
//! **Invariant:** an item's id follows from what it says, so a queue passes over an item that it has had. Each *pass*
//! over the sources has ids of its own. Who does an item again finds what is at the target, and does the rest.

use serde::{Deserialize, Serialize};
use zmove_scan::{DirectoryMark, MarkedPath};
use zmove_types::{Name, RelPath, SharedJobId, Timestamp, WorkId};
use zmove_wire::GroupRange;

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkItem {
    /// The pass of the job that the item belongs to, from 1.
    pub pass: u32,
    /// What the announcer has seen of the directories that the work is about, in their order; of *begin*, of the
    /// sources. None of it is part of the id: a directory may change between two announcements.
    pub marks: Marks,
    /// What is to be done.
    pub work: Work,
}

/// Marks of directories, as far as whoever has seen them has made some.
pub type Marks = Vec<Option<DirectoryMark>>;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// To begin the job, with so many sources.
    Begin(u32),
    /// To walk directories and to send what is in them, as far as one item goes.
    Trees(Vec<Place>),
    /// To send entries of one directory.
    Names {
        /// The directory.
        directory: Place,
        /// The names of the entries.
        names: Vec<Name>,
    },
    /// To send groups of a large file.
    Range {
        /// The file.
        file: LargeFile,
        /// The groups.
        range: GroupRange,
    },
    /// To give a large file its name.
    Large(LargeFile),
}

/// A directory of a source, or the one that holds a source which is no directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The number of the source among those of the job.
    pub source: u32,
    /// The directory's path below it.
    pub path: RelPath,
}

/// A large file, as whoever has found it saw it. One that looks otherwise later has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargeFile {
    /// The directory that it is in.
    pub directory: Place,
    /// The name there.
    pub name: Name,
    /// The length.
    pub bytes: u64,
    /// The time.
    pub mtime: Timestamp,
}

impl Place {
    /// The directory with this mark.
    pub(crate) fn marked(&self, mark: Option<DirectoryMark>) -> MarkedPath {
        MarkedPath {
            path: self.path.clone(),
            mark,
        }
    }

    /// The top of each of so many sources.
    pub(crate) fn roots(sources: u32) -> impl Iterator<Item = Self> {
        (0..sources).map(|source| Self {
            source,
            path: RelPath::root(),
        })
    }
}

impl WorkItem {
    /// The work with which a pass begins, about sources of these marks.
    #[must_use]
    pub const fn first(pass: u32, marks: Marks, work: Work) -> Self {
        Self { pass, marks, work }
    }

    /// Work that this one announces.
    #[must_use]
    pub fn child(&self, work: Work, marks: Marks) -> Self {
        let pass = self.pass;
        Self { pass, marks, work }
    }

    /// The mark of the directory of this number.
    pub(crate) fn mark(&self, number: usize) -> Option<DirectoryMark> {
        self.marks.get(number).copied().flatten()
    }

    /// The item's id, in a job.
    ///
    /// # Panics
    /// Never: there is room for it.
    #[must_use]
    pub fn id(&self, job: SharedJobId) -> WorkId {
        let mut hasher = blake3::Hasher::new_derive_key("zmove 2026-11-26 id of a work item");
        hasher.update(&job.0);
        hasher.update(&self.pass.to_le_bytes());
        hasher.update(&postcard::to_stdvec(&self.work).expect("a vector grows"));
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

impl Work {
    /// Whether the work announces other work, and moves little itself.
    #[must_use]
    pub const fn is_walk(&self) -> bool {
        matches!(self, Self::Begin(_) | Self::Trees(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::JOB;

    fn place(path: &str) -> Place {
        Place {
            source: 1,
            path: RelPath::from_bytes(path.as_bytes()).unwrap(),
        }
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn each() -> [Work; 5] {
        let mtime = Timestamp {
            seconds: -3,
            nanos: 5,
        };
        let file = LargeFile {
            directory: place("a/b"),
            name: name("f"),
            bytes: 1 << 40,
            mtime,
        };
        [
            Work::Begin(2),
            Work::Trees(vec![place(""), place("a")]),
            Work::Names {
                directory: place("a"),
                names: [name("x"), name("\u{e9}y")].into(),
            },
            Work::Range {
                file: file.clone(),
                range: GroupRange::new(3, 9),
            },
            Work::Large(file),
        ]
    }

    #[test]
    fn what_is_encoded_comes_back() {
        let ctime = Timestamp {
            seconds: 1 << 33,
            nanos: 999_999_999,
        };
        let marks = [Some(ctime), None].map(|above_ctime| {
            Some(DirectoryMark {
                inode: 1 << 60,
                ctime,
                above_ctime,
            })
        });
        for work in each() {
            let marks = [&marks[..], &[None]].concat();
            let item = WorkItem::first(3, marks, work);
            assert_eq!(WorkItem::decode(&item.encode()).unwrap(), item);
        }
    }

    #[test]
    fn an_id_follows_from_job_pass_and_work_alone() {
        let ids: std::collections::BTreeSet<_> = each()
            .map(|work| WorkItem::first(1, Marks::new(), work).id(JOB).0)
            .into();
        assert_eq!(ids.len(), 5);
        for work in each() {
            let first = WorkItem::first(1, Marks::new(), work.clone());
            let again = WorkItem::first(1, vec![None], work.clone());
            assert_eq!(again.id(JOB), first.id(JOB));
            assert_ne!(again.id(SharedJobId([8; 16])), first.id(JOB));
            let next = WorkItem::first(2, Marks::new(), work.clone());
            assert_ne!(next.id(JOB), first.id(JOB));
            let children =
                [&first, &next].map(|parent| parent.child(work.clone(), Marks::new()).id(JOB));
            assert_eq!(
                children,
                [first.id(JOB), next.id(JOB)],
                "what it announces is of its pass"
            );
        }
    }

    #[test]
    fn what_is_no_item_is_refused() {
        let work = each()[2].clone();
        let item = WorkItem::first(1, vec![None], work);
        let bytes = item.encode();
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
