//! Marks of directories. A mark records the state of a directory as seen by one node of a job. Another node uses it to
//! check that it sees the same directory.
//!
//! On a file system shared by all nodes, a directory has the same inode number on each node. Its change time never goes
//! back, and no program can set it. In a copy of the file system, inode numbers differ. A snapshot or a cloned volume
//! preserves inode numbers. But a directory that was changed after the copy has an older change time in the copy. If a
//! directory has changed *later* than its mark, its current state is walked, as in any push. A different directory at
//! the path is walked only if a directory above it has changed later than its mark. Replacing a directory changes its
//! parent.
//!
//! A change above only shows that a directory may have been replaced. If the upper directories of a tree change
//! constantly, a different inode number proves nothing. So three more comparisons prevent a node from sending another
//! tree:
//!
//! - The roots are compared before the node joins.
//! - Change times are compared, because no directory in an outdated copy has a later change time.
//! - Mounts are compared at every level of the path.
//!
//! Two cases are not detected. A file system may show different directories to different hosts without mounts. If its
//! upper directories change too, each node sends the directories that it sees. On a file system that cannot be queried
//! for its current state, a node may send a replaced directory from its name cache for about a second.
//!
//! **Invariant:** a directory with a mark is listed only after the server was queried and the directory was compared
//! with the mark. An outdated cache of this node is refreshed and does not count as a difference.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use zmove_types::{RelPath, Timestamp};

use crate::config::ScanConfig;
use crate::directory::{Directory, DirectoryStatus, SourceRoot};
use crate::entry::Entry;
use crate::error::{Difference, ScanError};

/// The state of a directory as seen by a node of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryMark {
    /// The inode number.
    pub inode: u64,
    /// The change time.
    pub ctime: Timestamp,
    /// The latest change time of all directories above this one, each read before the directory was listed. `None` for
    /// a root.
    pub above_ctime: Option<Timestamp>,
}

/// A directory below a root, with the state of the directory as seen by a node of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedPath {
    /// The path below the root.
    pub path: RelPath,
    /// The mark of the directory. If `None`, neither this directory nor anything below it is compared.
    pub mark: Option<DirectoryMark>,
}

impl DirectoryMark {
    pub(super) fn of_root(status: &DirectoryStatus) -> Self {
        Self {
            inode: status.number.inode,
            ctime: status.ctime,
            above_ctime: None,
        }
    }

    /// Returns the mark of `entry`, a subdirectory of the directory with this mark.
    pub(super) fn below(self, entry: &Entry) -> Self {
        Self {
            inode: entry.inode,
            ctime: entry.ctime,
            above_ctime: self.above_ctime.max(Some(self.ctime)),
        }
    }

    fn difference(self, here: &DirectoryStatus) -> Option<Difference> {
        match here.number.inode {
            inode if inode != self.inode => Some(Difference::Another {
                here: inode,
                there: self.inode,
            }),
            _ if here.ctime < self.ctime => Some(Difference::Older),
            _ => None,
        }
    }

    /// Returns whether any directory above the marked one has changed since the mark was made. `now` is the latest
    /// change time of these directories.
    fn has_changed_above(self, now: Timestamp) -> bool {
        self.above_ctime.is_some_and(|then| now > then)
    }

    /// Returns a mark of the directory that is at the path now. It may have replaced the marked directory. `here` is
    /// its current state.
    fn refreshed(self, here: &DirectoryStatus, above: Option<Timestamp>) -> Self {
        Self {
            inode: here.number.inode,
            ctime: here.ctime,
            above_ctime: self.above_ctime.max(above),
        }
    }
}

/// Opens a directory and compares it with its mark. Returns the directory and its current mark.
pub(super) fn open_and_compare(
    root: &Arc<SourceRoot>,
    path: &RelPath,
    seen: DirectoryMark,
    config: &ScanConfig,
    open: impl Fn(&RelPath) -> Result<Arc<Directory>, Errno>,
) -> Result<(Arc<Directory>, DirectoryMark), ScanError> {
    let failed = root.open_error(path);
    let mut pauses = PAUSES.into_iter();
    let mut above = None;
    let mut may_be_replaced = false;
    loop {
        let opened =
            open(path).and_then(|directory| Ok((directory.query_status_at_server()?, directory)));
        let difference = match &opened {
            Ok((here, _)) => seen.difference(here),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {
                Some(Difference::Missing)
            }
            Err(errno) => return Err(failed(*errno)),
        };
        let is_replaced = may_be_replaced && difference != Some(Difference::Older);
        match (difference, opened) {
            (None, Ok((here, directory))) => return Ok((directory, seen.refreshed(&here, above))),
            (Some(_), Ok((here, directory))) if is_replaced => {
                check_mount(config, here.is_mount, || directory.full_path())?;
                return Ok((directory, seen.refreshed(&here, above)));
            }
            (Some(_), Err(errno)) if is_replaced => return Err(failed(errno)),
            (difference, _) => {
                let difference = difference.unwrap_or(Difference::Missing);
                let Some(pause) = pauses.next() else {
                    return Err(ScanError::Differs {
                        path: root.path().join(path.as_path()),
                        difference,
                    });
                };
                above = query_ancestors(path, config, &open)?;
                // If a directory above was removed, this directory was removed too.
                may_be_replaced = above.map_or(!path.is_root(), |now| seen.has_changed_above(now));
                sleep(pause);
            }
        }
    }
}

/// Returns the latest change time of the directories above a path. Returns `None` if one of these directories is
/// missing or if the path is a root. Each directory is queried, from the root downwards, so that no name in the path is
/// taken from a cache.
///
/// # Errors
/// Returns an error if the mounts on these directories differ from those at the head (the node that leads the job).
fn query_ancestors(
    path: &RelPath,
    config: &ScanConfig,
    open: &impl Fn(&RelPath) -> Result<Arc<Directory>, Errno>,
) -> Result<Option<Timestamp>, ScanError> {
    let mut latest = None;
    // This is a loop, because there may be too many directories for recursion.
    for above in path.lineage().skip(1).collect::<Vec<_>>().into_iter().rev() {
        let opened = RelPath::from_bytes(above)
            .ok()
            .and_then(|above| open(&above).ok());
        let asked = opened
            .and_then(|directory| Some((directory.query_status_at_server().ok()?, directory)));
        let Some((status, directory)) = asked else {
            return Ok(None);
        };
        if !above.is_empty() {
            check_mount(config, status.is_mount, || directory.full_path())?;
        }
        latest = latest.max(Some(status.ctime));
    }
    Ok(latest)
}

/// Checks that an entry is a mount point here if and only if it is one at the head (the node that leads the job). A
/// mount hides the directory that all nodes share.
///
/// # Errors
/// Returns an error if the entry is a mount point only here or only at the head.
pub(super) fn check_mount(
    config: &ScanConfig,
    is_mount: Option<bool>,
    path: impl FnOnce() -> PathBuf,
) -> Result<(), ScanError> {
    let Some((mounts, is_mount)) = config.mounts.as_ref().zip(is_mount) else {
        return Ok(());
    };
    if !is_mount && mounts.is_empty() {
        return Ok(());
    }
    let path = path();
    match (is_mount, mounts.contains(&path)) {
        (true, false) => Err(ScanError::Differs {
            path,
            difference: Difference::MountedHere,
        }),
        (false, true) => Err(ScanError::Differs {
            path,
            difference: Difference::NotMountedHere,
        }),
        (true, true) | (false, false) => Ok(()),
    }
}

/// The pauses before the retries. The first retry only queries the server for all directories above. The other retries
/// are for file systems that cannot be queried and that cache names and attributes for about a second.
const PAUSES: [Duration; 3] = [Duration::ZERO, CACHE_PAUSE, CACHE_PAUSE.saturating_mul(5)];
const CACHE_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 500 });

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{File, Permissions, create_dir, create_dir_all, remove_dir, rename, write};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::*;
    use crate::config::ScanRoot;
    use crate::walk::{Portion, PortionEntries, PortionSize, mark_root, walk_portion};

    const NOTHING_BELOW: PortionSize = PortionSize {
        entries: 1,
        bytes: 100,
        large_bytes: 1000,
        wanted: PortionEntries::All,
    };

    fn walk(home: &Path, places: &[MarkedPath]) -> Portion {
        walk_portion(
            &ScanRoot::new(home, RelPath::root()),
            places,
            NOTHING_BELOW,
            &ScanConfig::default(),
        )
    }

    /// Waits until further changes get a later timestamp than all earlier ones.
    fn wait_for_a_tick() {
        let ctime = |file: &File| {
            let metadata = file.metadata().unwrap();
            (metadata.ctime(), metadata.ctime_nsec())
        };
        let [before, now] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        while ctime(&now) <= ctime(&before) {
            now.set_permissions(Permissions::from_mode(0o600)).unwrap();
        }
    }

    /// Walks only the root and returns the directories found in it.
    fn found_in(home: &Path) -> Vec<MarkedPath> {
        let mark = mark_root(&ScanRoot::new(home, RelPath::root()));
        assert!(mark.is_some());
        let portion = walk(
            home,
            &[MarkedPath {
                path: RelPath::root(),
                mark,
            }],
        );
        assert!(portion.difference().is_none(), "{portion:?}");
        assert!(portion.directories.iter().all(|found| found.mark.is_some()));
        wait_for_a_tick();
        portion.directories
    }

    fn difference(portion: &Portion) -> Option<Difference> {
        match portion.difference() {
            Some(ScanError::Differs { difference, .. }) => Some(*difference),
            _ => None,
        }
    }

    #[test]
    fn a_directory_that_changes_after_it_was_seen_or_is_replaced_is_walked_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        create_dir(home.path().join("d")).unwrap();
        let found = found_in(home.path());
        assert_eq!(difference(&walk(home.path(), &found)), None);
        write(home.path().join("d/f"), "").unwrap();
        let changed = walk(home.path(), &found);
        assert_eq!(
            (changed.difference().is_some(), changed.items.len()),
            (false, 1),
            "{changed:?}"
        );
        rename(home.path().join("d"), home.path().join("aside")).unwrap();
        create_dir_all(home.path().join("d/e")).unwrap();
        let replaced = walk(home.path(), &found);
        assert_eq!(
            (replaced.difference().is_some(), replaced.items.len()),
            (false, 1),
            "{replaced:?}"
        );
        // The subdirectories have marks of the replacement, which was walked.
        assert_eq!(difference(&walk(home.path(), &replaced.directories)), None);
    }

    /// Directories that were found in the replaced directory are looked up in its replacement immediately.
    #[test]
    fn below_a_directory_that_is_exchanged_what_is_there_is_walked() {
        let [home, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [cur, new] = [&home, &other].map(|tree| tree.path().join("cur"));
        create_dir_all(cur.join("a/b/c")).unwrap();
        create_dir_all(new.join("a/b/c")).unwrap();
        write(new.join("a/b/c/f"), "").unwrap();
        let below = |found: &[MarkedPath]| walk(home.path(), found).directories;
        let b = below(&below(&found_in(home.path())));
        let c = below(&b);
        assert_eq!(c[0].path.as_bytes(), b"cur/a/b/c");
        rename(&cur, other.path().join("old")).unwrap();
        rename(&new, &cur).unwrap();
        let replaced = walk(home.path(), &c);
        assert_eq!(
            (difference(&replaced), replaced.items.len()),
            (None, 1),
            "{replaced:?}"
        );
        let path = RelPath::from_bytes(b"cur/a/gone").unwrap();
        let vanished = walk(
            home.path(),
            &[MarkedPath {
                path,
                ..b[0].clone()
            }],
        )
        .items;
        assert!(
            matches!(
                vanished[..],
                [crate::ScanItem::Error(ScanError::Vanished { .. })]
            ),
            "{vanished:?}"
        );
        // The mark was made after the exchange, so no directory above has changed since.
        let seen = below(&b);
        let inode = c[0].mark.unwrap().inode;
        let mark = Some(DirectoryMark {
            inode,
            ..seen[0].mark.unwrap()
        });
        let another = difference(&walk(
            home.path(),
            &[MarkedPath {
                mark,
                ..seen[0].clone()
            }],
        ));
        assert!(
            matches!(another, Some(Difference::Another { .. })),
            "{another:?}"
        );
    }

    /// In a busy tree, a directory at the top has always changed. Even so, a node must not send a file system that is
    /// mounted there.
    #[test]
    fn what_is_mounted_on_the_way_is_told_where_something_above_has_changed() {
        let changed_above = Some(Timestamp::default());
        let mark = Some(DirectoryMark {
            inode: 0,
            ctime: Timestamp::default(),
            above_ctime: changed_above,
        });
        let walk = |path: &str, mounts: &[&str]| {
            let mounts = mounts.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
            let config = ScanConfig {
                mounts: Some(Arc::new(mounts)),
                ..ScanConfig::default()
            };
            let place = MarkedPath {
                path: RelPath::from_bytes(path.as_bytes()).unwrap(),
                mark,
            };
            difference(&walk_portion(
                &ScanRoot::new("/", RelPath::root()),
                &[place],
                NOTHING_BELOW,
                &config,
            ))
        };
        for path in ["proc", "proc/sys/kernel"] {
            assert_eq!(walk(path, &[]), Some(Difference::MountedHere), "{path}");
        }
        assert_eq!(
            walk("proc/fs", &["/proc", "/proc/fs"]),
            Some(Difference::NotMountedHere)
        );
        assert_eq!(walk("proc/fs", &["/proc"]), None);
    }

    #[test]
    fn a_directory_that_goes_after_it_was_seen_has_vanished() {
        let home = tempfile::tempdir().unwrap();
        create_dir_all(home.path().join("d/e")).unwrap();
        let found = found_in(home.path());
        let below = walk(home.path(), &found).directories;
        std::fs::remove_dir_all(home.path().join("d")).unwrap();
        for gone in [found, below] {
            let portion = walk(home.path(), &gone);
            let items = &portion.items[..];
            assert!(
                matches!(items, [crate::ScanItem::Error(ScanError::Vanished { .. })]),
                "{items:?}"
            );
        }
    }

    /// The parent has not changed, so no entry in it can have been removed or replaced.
    #[test]
    fn another_directory_an_older_one_and_none_are_told() {
        let home = tempfile::tempdir().unwrap();
        create_dir(home.path().join("d")).unwrap();
        let all = found_in(home.path());
        let [found] = &all[..] else { panic!("{all:?}") };
        let mark = found.mark.unwrap();
        let other = |change: fn(&mut DirectoryMark)| {
            let mut mark = mark;
            change(&mut mark);
            difference(&walk(
                home.path(),
                &[MarkedPath {
                    mark: Some(mark),
                    ..found.clone()
                }],
            ))
        };
        let another = Difference::Another {
            here: mark.inode,
            there: mark.inode + 1,
        };
        assert_eq!(other(|mark| mark.inode += 1), Some(another));
        assert_eq!(
            other(|mark| mark.ctime.seconds += 1),
            Some(Difference::Older)
        );
        remove_dir(home.path().join("d")).unwrap();
        // As far as this node knows, the parent has changed since the mark was made.
        assert_eq!(
            other(|mark| mark.above_ctime.as_mut().unwrap().seconds += 10),
            Some(Difference::Missing)
        );
    }

    #[test]
    fn a_root_is_compared_too() {
        let home = tempfile::tempdir().unwrap();
        let mark = mark_root(&ScanRoot::new(home.path(), RelPath::root())).unwrap();
        let mark = Some(DirectoryMark {
            inode: mark.inode + 1,
            ..mark
        });
        let portion = walk(
            home.path(),
            &[MarkedPath {
                path: RelPath::root(),
                mark,
            }],
        );
        assert!(
            matches!(difference(&portion), Some(Difference::Another { .. })),
            "{portion:?}"
        );
    }

    #[test]
    fn what_is_mounted_here_alone_or_there_alone_is_told() {
        let walk = |root: &Path, mounts: &[&Path]| {
            let mounts = mounts
                .iter()
                .map(|path| path.to_path_buf())
                .collect::<BTreeSet<_>>();
            let config = ScanConfig {
                mounts: Some(Arc::new(mounts)),
                ..ScanConfig::default()
            };
            let size = PortionSize {
                wanted: PortionEntries::Directories,
                ..NOTHING_BELOW
            };
            let places = [MarkedPath {
                path: RelPath::root(),
                mark: None,
            }];
            let portion = walk_portion(
                &ScanRoot::new(root, RelPath::root()),
                &places,
                size,
                &config,
            );
            let errors = portion.items.into_iter().filter_map(|item| match item {
                crate::ScanItem::Error(ScanError::Differs { path, difference }) => {
                    Some((path, difference))
                }
                _ => None,
            });
            errors.collect::<Vec<_>>()
        };
        let proc = (PathBuf::from("/proc"), Difference::MountedHere);
        assert!(walk(Path::new("/"), &[]).contains(&proc));
        assert!(!walk(Path::new("/"), &[Path::new("/proc")]).contains(&proc));
        let home = tempfile::tempdir().unwrap();
        let below = home.path().join("d");
        create_dir(&below).unwrap();
        assert_eq!(walk(home.path(), &[]), []);
        assert_eq!(
            walk(home.path(), &[&below]),
            [(below.clone(), Difference::NotMountedHere)]
        );
    }
}
