//! Hard links: which entries are names of the same file, and which of these names is sent as the file.
//!
//! ```text
//!  first name ──► asked about or sent like any file ──► published, or already at the target
//!                           │                               │
//!        later names wait ◄─┤ fails: the next name          └──► later names are sent as links to it
//!                           └──────────────► becomes the first
//! ```
//!
//! A link that the receiver could not make is returned to the planner and sent as a file. If the target cannot link the
//! name, the file is a copy. If the published name no longer leads to the file, the returned name becomes the first
//! name for the remaining ones.
//!
//! Names of symbolic links and special files also wait for their first name, but are sent as entries of their own kind.
//! If the receiver cannot link such an entry, it creates a new one and counts it.
//!
//! A resumed push may find a different first name than the push before it, because directories are listed in parallel.
//! The data is then sent once more, and existing names are linked to it. Incremental recursion in rsync has the same
//! effect. To avoid it, the scan would have to end before the first file is sent.
//!
//! A file is forgotten when all of its names have been seen. Memory therefore grows only with files that still miss
//! names, at most [`GROUPS_MAX`] of them. Names of further files become copies and are counted. While [`WAITING_MAX`]
//! names wait for their first name, the scan waits.
//!
//! **Invariant:** a link is sent only after the receiver has reported that its first name is published, so the receiver
//! never has to wait for another entry.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;
use zmove_scan::{Entry, HardLinkedFile, HardLinkedFileId};
use zmove_types::{RelPath, Root};
use zmove_wire::{FaultCode, NotKeptReason};

use crate::read::source::SourceDirectory;

/// A name of a file that is at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirstName {
    /// Path relative to the target.
    pub(crate) path: RelPath,
    /// Hash of the contents, if they were sent.
    pub(crate) root: Option<Root>,
}

/// The outcome for a name of a file with several names.
#[derive(Debug)]
pub(crate) enum LinkOutcome {
    /// The first name is at the target.
    FirstPublished(HardLinkedFileId, FirstName),
    /// The outcome of this number of links is known. Each link has been made, or the receiver has reported why it could
    /// not be made.
    LinksSettled(usize),
    /// The entry could not be linked to the file that has this first name.
    LinkFailed(SourceDirectory, Entry, Arc<FirstName>, FaultCode),
    /// The first name was to stay unchanged at the target, but it has changed since the receiver examined it.
    FirstChanged(SourceDirectory, Entry),
}

/// How a name is to be handled.
#[derive(Debug)]
pub(crate) enum NamePlan {
    /// The name is sent like any file.
    File(Entry),
    /// The name is sent as a link.
    Link(Entry, Arc<FirstName>),
    /// The name waits for the first name.
    Waits,
    /// The name is sent as a copy of the file. The reason states why it is not a link.
    Copy(Entry, NotKeptReason),
}

/// The files with several names, and the state of their first names.
#[derive(Debug, Default)]
pub(crate) struct Links {
    groups: HashMap<HardLinkedFileId, LinkGroup>,
    /// Number of waiting names.
    waiting: usize,
    /// Number of links that were sent and whose outcome is unknown.
    unsettled: usize,
}

#[derive(Debug)]
struct LinkGroup {
    /// Number of names that have not been seen.
    missing: u32,
    /// Number of first names that have been lost.
    lost: u32,
    first: FirstNameState,
}

#[derive(Debug)]
enum FirstNameState {
    /// The first name is not published yet. The listed names wait for it.
    Awaited(Vec<(SourceDirectory, Entry)>),
    Published(Arc<FirstName>),
}

/// Maximum number of files that are remembered because some of their names have not been seen. Maximum memory: about
/// 150 bytes per file, and the path of its first name.
const GROUPS_MAX: usize = 1 << 20;
/// Maximum number of lost first names of a file. After that, the remaining names become copies. Each loss costs a round
/// trip and sending the data again.
const LOST_MAX: u32 = 2;
/// Maximum number of waiting names, at about 300 bytes each.
const WAITING_MAX: usize = 1 << 17;

impl Links {
    /// Decides how to handle a name that the scan has found.
    pub(crate) fn take(
        &mut self,
        directory: &SourceDirectory,
        entry: Entry,
        shared: HardLinkedFile,
    ) -> NamePlan {
        let HardLinkedFile { id, names } = shared;
        let Some(group) = self.groups.get_mut(&id) else {
            if self.groups.len() >= GROUPS_MAX {
                return NamePlan::Copy(
                    Entry {
                        shared: None,
                        ..entry
                    },
                    NotKeptReason::TooMuch,
                );
            }
            let first = FirstNameState::Awaited(Vec::new());
            self.groups.insert(
                id,
                LinkGroup {
                    missing: names.saturating_sub(1),
                    lost: 0,
                    first,
                },
            );
            return NamePlan::File(entry);
        };
        group.missing = group.missing.saturating_sub(1);
        match &mut group.first {
            FirstNameState::Awaited(names) => {
                names.push((directory.closed(), entry));
                self.waiting += 1;
                NamePlan::Waits
            }
            FirstNameState::Published(first) => {
                let first = Arc::clone(first);
                self.unsettled += 1;
                self.forget_if_complete(id);
                NamePlan::Link(entry, first)
            }
        }
    }

    /// Records that the first name of a file is at the target. Returns that name together with the names that waited
    /// for it.
    pub(crate) fn note_first_published(
        &mut self,
        id: HardLinkedFileId,
        first: FirstName,
    ) -> (Arc<FirstName>, Vec<(SourceDirectory, Entry)>) {
        let first = Arc::new(first);
        let names = match self.groups.get_mut(&id) {
            Some(LinkGroup {
                first: state @ FirstNameState::Awaited(_),
                ..
            }) => match std::mem::replace(state, FirstNameState::Published(Arc::clone(&first))) {
                FirstNameState::Awaited(names) => names,
                FirstNameState::Published(_) => Vec::new(),
            },
            _ => Vec::new(),
        };
        self.waiting -= names.len();
        self.unsettled += names.len();
        self.forget_if_complete(id);
        (first, names)
    }

    /// Records that the outcomes of `links` links are known.
    pub(crate) fn note_links_settled(&mut self, links: usize) {
        self.unsettled = self.unsettled.saturating_sub(links);
    }

    /// Handles a name that could not be linked because the name `tried` no longer leads to the file. The unlinked name
    /// becomes the first name for the remaining names, unless they already have another first name.
    pub(crate) fn replan_unlinked(
        &mut self,
        directory: &SourceDirectory,
        entry: Entry,
        id: HardLinkedFileId,
        tried: &Arc<FirstName>,
    ) -> NamePlan {
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&id) {
            return NamePlan::Copy(
                Entry {
                    shared: None,
                    ..entry
                },
                NotKeptReason::TooMuch,
            );
        }
        // The file was forgotten because all its names had been seen. From now on it is remembered until the end.
        let kept = || LinkGroup {
            missing: 1,
            lost: 0,
            first: FirstNameState::Published(Arc::clone(tried)),
        };
        let group = self.groups.entry(id).or_insert_with(kept);
        match &mut group.first {
            FirstNameState::Awaited(names) => {
                names.push((directory.closed(), entry));
                self.waiting += 1;
                NamePlan::Waits
            }
            FirstNameState::Published(first) if !Arc::ptr_eq(first, tried) => {
                self.unsettled += 1;
                NamePlan::Link(entry, Arc::clone(first))
            }
            // The file keeps changing. Another attempt would take as long and fail in the same way.
            FirstNameState::Published(_) if group.lost == LOST_MAX => NamePlan::Copy(
                Entry {
                    shared: None,
                    ..entry
                },
                NotKeptReason::Os(Errno::STALE.raw_os_error()),
            ),
            named @ FirstNameState::Published(_) => {
                group.lost += 1;
                *named = FirstNameState::Awaited(Vec::new());
                NamePlan::File(entry)
            }
        }
    }

    /// Forgets a file because one of its names stays at the target, even if that name leads to a different file there.
    /// Returns the names that waited.
    pub(crate) fn forget(&mut self, id: HardLinkedFileId) -> Vec<(SourceDirectory, Entry)> {
        match self.groups.remove(&id) {
            Some(LinkGroup {
                first: FirstNameState::Awaited(names),
                ..
            }) => {
                self.waiting -= names.len();
                names
            }
            _ => Vec::new(),
        }
    }

    /// Replaces first names that have failed. Returns the next name of each file whose names are waiting.
    pub(crate) fn next_first_names(&mut self) -> Vec<(SourceDirectory, Entry)> {
        self.unsettled = 0;
        let awaited = self
            .groups
            .values_mut()
            .filter_map(|group| match &mut group.first {
                FirstNameState::Awaited(names) => names.pop(),
                FirstNameState::Published(_) => None,
            });
        let next: Vec<_> = awaited.collect();
        self.waiting -= next.len();
        next
    }

    /// Returns whether the maximum number of names is waiting, so that the scan must pause.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting >= WAITING_MAX
    }

    /// Returns whether no name waits and the outcomes of all links are known.
    pub(crate) fn is_done(&self) -> bool {
        self.waiting == 0 && self.unsettled == 0
    }

    fn forget_if_complete(&mut self, id: HardLinkedFileId) {
        let is_whole = |group: &LinkGroup| {
            group.missing == 0 && matches!(group.first, FirstNameState::Published(_))
        };
        if self.groups.get(&id).is_some_and(is_whole) {
            self.groups.remove(&id);
        }
    }
}

/// Why the receiver could not make a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkFailure {
    /// The first name no longer leads to the file.
    Lost,
    /// The file has the maximum number of names.
    Full(NotKeptReason),
    /// This name cannot be linked to the file.
    Never(NotKeptReason),
}

impl LinkFailure {
    pub(crate) fn of(code: FaultCode) -> Self {
        let FaultCode::Os(errno) = code else {
            return Self::Lost;
        };
        match Errno::from_raw_os_error(errno) {
            Errno::MLINK => Self::Full(NotKeptReason::Os(errno)),
            Errno::PERM | Errno::ACCESS => Self::Never(NotKeptReason::NotPermitted),
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV => {
                Self::Never(NotKeptReason::Unsupported)
            }
            _ => Self::Never(NotKeptReason::Os(errno)),
        }
    }

    /// Returns the reason why the name is not linked if it becomes a separate file. Returns `None` if the name will be
    /// planned again.
    pub(crate) fn lack(self) -> Option<NotKeptReason> {
        match self {
            Self::Lost => None,
            Self::Full(lack) | Self::Never(lack) => Some(lack),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use zmove_scan::{ScanConfig, ScanItem, ScanRoot, scan};
    use zmove_types::{FileNumber, Timestamp};

    use super::*;

    /// Returns the entries of a directory.
    fn entries(home: &Path) -> Vec<(SourceDirectory, Entry, HardLinkedFile)> {
        let root = ScanRoot::new(home.to_owned(), RelPath::root());
        let mut found = Vec::new();
        for item in scan(vec![root], &ScanConfig::default()).receiver() {
            let ScanItem::Batch(batch) = item else {
                continue;
            };
            let directory = SourceDirectory::held_open(&batch.directory);
            found.extend(batch.entries.into_iter().map(|entry| {
                let shared = entry.shared.expect("it has several names");
                (directory.clone(), entry, shared)
            }));
        }
        found.sort_by(|(_, one, _), (_, other, _)| one.name.cmp(&other.name));
        found
    }

    /// Creates a directory with a file that has `names` names.
    fn group(names: usize) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("0"), "x").unwrap();
        for name in 1..names {
            std::fs::hard_link(home.path().join("0"), home.path().join(name.to_string())).unwrap();
        }
        home
    }

    fn first(path: &str) -> FirstName {
        FirstName {
            path: RelPath::from_bytes(path.as_bytes()).unwrap(),
            root: None,
        }
    }

    #[test]
    fn the_scan_sees_which_file_it_is() {
        let home = group(3);
        let stat = home.path().join("0").metadata().unwrap();
        let id = HardLinkedFileId {
            number: FileNumber {
                device: stat.dev(),
                inode: stat.ino(),
            },
            ctime: Timestamp {
                seconds: stat.ctime(),
                nanos: u32::try_from(stat.ctime_nsec()).unwrap(),
            },
        };
        let shared = HardLinkedFile { id, names: 3 };
        let found = entries(home.path());
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|(_, _, found)| *found == shared));
    }

    #[test]
    fn names_wait_for_the_first_and_a_whole_group_is_forgotten() {
        let home = group(3);
        let mut links = Links::default();
        let parts: Vec<_> = entries(home.path())
            .into_iter()
            .map(|(directory, entry, shared)| (links.take(&directory, entry, shared), shared.id))
            .collect();
        assert!(
            matches!(
                &parts[..],
                [
                    (NamePlan::File(_), _),
                    (NamePlan::Waits, _),
                    (NamePlan::Waits, _)
                ]
            ),
            "{parts:?}"
        );
        assert!(!links.is_done());
        let (_, names) = links.note_first_published(parts[0].1, first("0"));
        assert_eq!(
            (names.len(), links.groups.len(), links.is_done()),
            (2, 0, false)
        );
        links.note_links_settled(2);
        assert!(links.is_done());
    }

    #[test]
    fn a_file_with_the_number_of_another_is_no_name_of_that() {
        let home = group(2);
        let mut links = Links::default();
        let [(directory, entry, shared), (_, other, _)] = entries(home.path()).try_into().unwrap();
        let mut not_that = shared;
        not_that.id.ctime.nanos ^= 1;
        for (entry, shared) in [(entry, shared), (other, not_that)] {
            let plan = links.take(&directory, entry, shared);
            assert!(matches!(plan, NamePlan::File(_)), "{plan:?}");
        }
    }

    #[test]
    fn a_name_that_comes_late_is_a_link_at_once() {
        let home = group(2);
        let mut links = Links::default();
        let [(directory, entry, shared), (_, late, _)] = entries(home.path()).try_into().unwrap();
        assert!(matches!(
            links.take(&directory, entry, shared),
            NamePlan::File(_)
        ));
        assert!(
            links
                .note_first_published(shared.id, first("0"))
                .1
                .is_empty()
        );
        let NamePlan::Link(entry, named) = links.take(&directory, late, shared) else {
            panic!("no link")
        };
        assert_eq!(
            (
                entry.name.as_bytes(),
                named.path.as_bytes(),
                links.groups.len()
            ),
            (&b"1"[..], &b"0"[..], 0)
        );
    }

    #[test]
    fn where_the_first_name_fails_the_next_one_is_the_first() {
        let home = group(3);
        let mut links = Links::default();
        let number =
            entries(home.path())
                .into_iter()
                .fold(None, |_, (directory, entry, shared)| {
                    links.take(&directory, entry, shared);
                    Some(shared.id)
                });
        assert_eq!(links.next_first_names().len(), 1);
        let (_, names) = links.note_first_published(number.unwrap(), first("2"));
        assert_eq!(names.len(), 1);
        assert!(links.next_first_names().is_empty());
    }

    #[test]
    fn names_that_come_back_get_one_new_first_name() {
        let home = group(4);
        let mut links = Links::default();
        let all = entries(home.path());
        let number = all[0].2.id;
        for (directory, entry, shared) in all.clone() {
            links.take(&directory, entry, shared);
        }
        let (tried, names) = links.note_first_published(number, first("0"));
        let back = |links: &mut Links, place: usize| {
            let (directory, entry) = names[place].clone();
            links.replan_unlinked(&directory, entry, number, &tried)
        };
        assert!(matches!(back(&mut links, 0), NamePlan::File(_)));
        assert!(matches!(back(&mut links, 1), NamePlan::Waits));
        assert_eq!(links.note_first_published(number, first("1")).1.len(), 1);
        assert!(
            matches!(back(&mut links, 2), NamePlan::Link(_, first) if first.path.as_bytes() == b"1")
        );
    }

    #[test]
    fn where_first_names_are_lost_again_and_again_the_rest_become_copies() {
        let home = group(9);
        let mut links = Links::default();
        let all = entries(home.path());
        let number = all[0].2.id;
        for (directory, entry, shared) in all {
            links.take(&directory, entry, shared);
        }
        for _ in 0..LOST_MAX {
            let (tried, names) = links.note_first_published(number, first("0"));
            for (place, (directory, entry)) in names.into_iter().enumerate() {
                let part = links.replan_unlinked(&directory, entry, number, &tried);
                assert_eq!(matches!(part, NamePlan::File(_)), place == 0, "{part:?}");
            }
        }
        let (tried, names) = links.note_first_published(number, first("0"));
        assert_eq!(names.len(), 6);
        for (directory, entry) in names {
            let part = links.replan_unlinked(&directory, entry, number, &tried);
            assert!(matches!(part, NamePlan::Copy(..)), "{part:?}");
        }
    }

    #[test]
    fn beyond_the_bound_names_become_copies() {
        let home = group(2);
        let mut links = Links::default();
        let none = |inode| {
            (
                HardLinkedFileId {
                    number: FileNumber { device: 0, inode },
                    ctime: Timestamp::default(),
                },
                LinkGroup {
                    missing: 1,
                    lost: 0,
                    first: FirstNameState::Awaited(Vec::new()),
                },
            )
        };
        links.groups.extend((0..GROUPS_MAX as u64).map(none));
        let found = entries(home.path());
        assert_eq!(found.len(), 2);
        for (directory, entry, shared) in found {
            assert!(matches!(
                links.take(&directory, entry, shared),
                NamePlan::Copy(Entry { shared: None, .. }, _)
            ));
        }
    }
}
