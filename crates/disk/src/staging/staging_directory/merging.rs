//! Merges a staging directory with the existing directory that has its final name.
//!
//! **Invariant:** no entry is lost if another process adds it during the merge. A directory is removed only while it is
//! empty, and no process can create an entry in a removed directory.
//!
//! **Invariant:** at most two directories and their parents are open, regardless of the depth. When the merge returns
//! to a parent and reopens it, the parent must be the same directory as before.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;
use zmove_types::{FileNumber, Name, RelPath};

use crate::metadata::entry::{number_at, number_of};
use crate::opening::by_name::{list_directory, open_at, remove_directory_at};
use crate::opening::tree::{DIRECTORY, open_parent};
use crate::publishing::final_names::rename;
use crate::publishing::lease::Lease;
use crate::publishing::remove::remove_best_effort;

/// Callbacks of a merge. See [`merge_into`](super::StagingDirectory::merge_into).
#[expect(missing_debug_implementations, reason = "it holds closures")]
pub struct MergeCallbacks<'a> {
    /// Returns whether an existing entry of the target is kept. The arguments are the source directory, the target
    /// directory, and the path of the entry below the staging directory. The entry is not a directory.
    pub keeps_existing: &'a mut dyn FnMut(&OwnedFd, &OwnedFd, &RelPath) -> bool,
    /// Reports an entry that cannot be moved.
    pub failed: &'a mut dyn FnMut(RelPath, io::Error),
    /// Lets other threads use the CPU. Called before each entry.
    pub pause: &'a dyn Fn(),
}

/// The state of a merge that is in progress.
pub(super) struct Merge<'a, 'b> {
    lease: &'a Lease,
    callbacks: &'a mut MergeCallbacks<'b>,
    /// The directory that contains the staging directory.
    parent: Arc<OwnedFd>,
    /// The directories from the staging directory down to the one that is being emptied.
    levels: Vec<MergeLevel>,
    /// The deepest of these directories.
    here: DirectoryPair,
    /// The path of the deepest directory below the staging directory.
    path: RelPath,
}

/// A directory in the staging directory, and the directory that it is merged with.
struct DirectoryPair {
    from: Arc<OwnedFd>,
    into: Arc<OwnedFd>,
}

/// A directory that is being merged with another.
struct MergeLevel {
    /// The name in the parent directory.
    name: Name,
    from: FileNumber,
    into: FileNumber,
    /// Subdirectories that exist in both directories.
    below: Vec<Name>,
    /// Entries that could not be moved. They are not retried.
    given_up: HashSet<Name>,
}

impl<'a, 'b> Merge<'a, 'b> {
    /// Starts to merge the directory `name` of `parent`, which is open as `from`, into `into`.
    pub(super) fn begin(
        lease: &'a Lease,
        parent: Arc<OwnedFd>,
        name: Name,
        from: &Arc<OwnedFd>,
        into: &Arc<OwnedFd>,
        callbacks: &'a mut MergeCallbacks<'b>,
    ) -> io::Result<Self> {
        let here = DirectoryPair {
            from: Arc::clone(from),
            into: Arc::clone(into),
        };
        let levels = vec![MergeLevel::of(name, &here)?];
        Ok(Self {
            lease,
            callbacks,
            parent,
            levels,
            here,
            path: RelPath::root(),
        })
    }

    /// Moves every entry that can be moved. Returns whether the directory was removed.
    ///
    /// # Errors
    /// Returns `ESTALE` if a directory was moved elsewhere during the merge, or the system's error. The remaining
    /// entries are not moved.
    pub(super) fn run(mut self) -> io::Result<bool> {
        let mut is_file_system_gone = false;
        while let Some(level) = self.levels.last_mut() {
            (self.callbacks.pause)();
            if let Some(below) = level.below.pop() {
                if let Err(error) = self.enter(&below) {
                    self.report_failure(below, error);
                }
                continue;
            }
            let above = self.above()?;
            is_file_system_gone = self.remove(&above).is_ok();
            if is_file_system_gone || !self.move_entries() {
                self.leave(above, is_file_system_gone);
            }
        }
        Ok(is_file_system_gone)
    }

    fn enter(&mut self, name: &Name) -> io::Result<()> {
        let open = |parent| open_at(parent, name, DIRECTORY);
        let path = self
            .path
            .join(name)
            .map_err(|_too_long| Errno::NAMETOOLONG)?;
        let below = DirectoryPair {
            from: Arc::new(open(&self.here.from)?),
            into: Arc::new(open(&self.here.into)?),
        };
        self.levels.push(MergeLevel::of(name.clone(), &below)?);
        (self.path, self.here) = (path, below);
        Ok(())
    }

    /// Opens the parents of the deepest pair of directories. At the top level, only the staging directory has a parent
    /// to open.
    fn above(&self) -> io::Result<DirectoryPair> {
        let [.., above, _] = &self.levels[..] else {
            return Ok(DirectoryPair {
                from: Arc::clone(&self.parent),
                into: Arc::clone(&self.parent),
            });
        };
        let from = Arc::new(open_parent(&self.here.from, above.from)?);
        Ok(DirectoryPair {
            from,
            into: Arc::new(open_parent(&self.here.into, above.into)?),
        })
    }

    /// Removes the deepest directory if it is empty.
    fn remove(&self, above: &DirectoryPair) -> rustix::io::Result<()> {
        let Some(level) = self.levels.last() else {
            return Ok(());
        };
        match remove_directory_at(&above.from, &level.name) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Returns to the parent directories. Drop removes entries that are still in the staging directory.
    fn leave(&mut self, above: DirectoryPair, is_file_system_gone: bool) {
        let left = self.levels.pop();
        if !is_file_system_gone && let Some((level, left)) = self.levels.last_mut().zip(left) {
            level.given_up.insert(left.name);
        }
        self.here = above;
        self.path = self.path.directory();
    }

    /// Moves the current entries of the deepest directory. Returns whether the directory contained entries that had not
    /// been given up before.
    fn move_entries(&mut self) -> bool {
        let entries = match list_directory(&self.here.from)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        {
            Ok(entries) => entries,
            Err(error) => {
                (self.callbacks.failed)(self.path.clone(), error.into());
                return false;
            }
        };
        let mut some = false;
        for entry in entries {
            (self.callbacks.pause)();
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            // A name that is not valid was not created by this program.
            let Ok(name) = Name::from_bytes(entry.file_name().to_bytes()) else {
                continue;
            };
            if self
                .levels
                .last()
                .is_none_or(|level| level.given_up.contains(&name))
            {
                continue;
            }
            some |= self.move_entry(name, entry.file_type());
        }
        some
    }

    /// Moves an entry of the deepest directory. Returns `false` if the entry no longer exists.
    fn move_entry(&mut self, name: Name, file_type: FileType) -> bool {
        let Ok(below) = self.path.join(&name) else {
            self.report_failure(name, Errno::NAMETOOLONG.into());
            return true;
        };
        let DirectoryPair { from, into } = &self.here;
        if file_type != FileType::Directory && (self.callbacks.keeps_existing)(from, into, &below) {
            self.discard(name);
            return true;
        }
        let may_be_directory = matches!(file_type, FileType::Directory | FileType::Unknown);
        let renamed = self
            .lease
            .permit()
            .and_then(|permit| rename(permit, from, &name, into, &name));
        match renamed {
            // A rename does nothing if both names are links to the same file. Without this check, the merge would
            // repeat it forever.
            Ok(()) if self.is_in_both(&name) => self.discard(name),
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOTEMPTY) if may_be_directory => {
                self.levels.last_mut().into_iter().for_each(|level| {
                    level.below.push(name.clone());
                })
            }
            // The entry is listed but does not exist. A file system may list it again, so it must not count as an
            // entry.
            Err(Errno::NOENT) => return false,
            Err(error) => self.report_failure(name, error.into()),
        }
        true
    }

    /// Returns whether a name is the same entry in both directories.
    fn is_in_both(&self, name: &Name) -> bool {
        let there = |directory: &OwnedFd| number_at(directory, name).ok();
        there(&self.here.from).is_some_and(|number| there(&self.here.into) == Some(number))
    }

    fn report_failure(&mut self, name: Name, error: io::Error) {
        (self.callbacks.failed)(
            self.path
                .join(&name)
                .unwrap_or_else(|_too_long| self.path.clone()),
            error,
        );
        self.discard(name);
    }

    fn discard(&mut self, name: Name) {
        // If the removal fails, drop removes the entry together with this directory.
        remove_best_effort(&self.here.from, &name);
        self.levels
            .last_mut()
            .map(|level| level.given_up.insert(name));
    }
}

impl MergeLevel {
    fn of(name: Name, DirectoryPair { from, into }: &DirectoryPair) -> io::Result<Self> {
        Ok(Self {
            name,
            from: number_of(from)?,
            into: number_of(into)?,
            below: Vec::new(),
            given_up: HashSet::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::publishing::publish::Replace;
    use crate::staging::staging_directory::tests::{begin, place};

    use super::*;

    #[test]
    fn few_directories_of_a_deep_tree_are_open() {
        let (home, fd) = place();
        let home = home.path().canonicalize().unwrap();
        let staging = begin(&fd, "d");
        let deep = ["d"; 300].join("/");
        let theirs = home.join("d").join(&deep);
        std::fs::create_dir_all(theirs.join("in the way")).unwrap();
        let ours = home.join(staging.hidden.as_os_str()).join(&deep);
        std::fs::create_dir_all(&ours).unwrap();
        std::fs::write(ours.join("f"), "x").unwrap();
        assert!(
            staging
                .publish(&Lease::constant(), Replace::Existing)
                .is_err()
        );
        let into = Arc::new(open_at(&fd, "d", DIRECTORY).unwrap());
        let mut open = 0;
        let mut keeps_existing = |_: &OwnedFd, _: &OwnedFd, _: &RelPath| {
            let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
            let targets = descriptors.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            open += targets.filter(|target| target.starts_with(&home)).count();
            false
        };
        let failed = &mut |path, error| panic!("{path}: {error}");
        staging.merge_into(
            &Lease::constant(),
            &into,
            &mut MergeCallbacks {
                keeps_existing: &mut keeps_existing,
                failed,
                pause: &|| {},
            },
        );
        drop(staging);
        // The upper limit includes the parent, the two merged directories, and another descriptor of the staging
        // directory.
        assert!((1..=4 + 4).contains(&open), "{open}");
        assert!(theirs.join("f").exists());
        assert_eq!(std::fs::read_dir(&home).unwrap().count(), 1);
    }

    /// Two transfers of the same tree may both have linked this name to the same file.
    #[test]
    fn another_name_of_the_file_that_is_there_goes() {
        let (home, fd) = place();
        let staging = begin(&fd, "d");
        let ours = home.path().join(staging.hidden.as_os_str());
        let theirs = home.path().join("d");
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(theirs.join("f"), "x").unwrap();
        std::fs::hard_link(theirs.join("f"), ours.join("f")).unwrap();
        std::fs::write(ours.join("other"), "y").unwrap();
        let into = Arc::new(open_at(&fd, "d", DIRECTORY).unwrap());
        let steps = std::cell::Cell::new(0);
        let pause = || {
            steps.set(steps.get() + 1);
            assert!(steps.get() < 100, "it comes to an end");
        };
        let failed = &mut |path, error| panic!("{path}: {error}");
        staging.merge_into(
            &Lease::constant(),
            &into,
            &mut MergeCallbacks {
                keeps_existing: &mut |_, _, _| false,
                failed,
                pause: &pause,
            },
        );
        drop(staging);
        let read = |name: &str| std::fs::read_to_string(theirs.join(name)).unwrap();
        assert_eq!([read("f"), read("other")], ["x", "y"]);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_is_moved_leads_nowhere_else() {
        let (home, fd) = place();
        let home = home.path();
        let staging = begin(&fd, "d");
        let ours = home.join(staging.hidden.as_os_str());
        for directory in [
            ours.join("a/b"),
            home.join("d/a/b/in the way"),
            home.join("elsewhere/a"),
        ] {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(ours.join("a/b/f"), "x").unwrap();
        std::fs::write(home.join("elsewhere/a/precious"), "x").unwrap();
        let into = Arc::new(open_at(&fd, "d", DIRECTORY).unwrap());
        let mut keeps_existing = |_: &OwnedFd, _: &OwnedFd, _: &RelPath| {
            std::fs::rename(home.join("d/a/b"), home.join("elsewhere/b")).unwrap();
            false
        };
        let mut faults = Vec::new();
        let failed = &mut |path: RelPath, error| {
            faults.push((path.to_string(), Errno::from_io_error(&error)))
        };
        staging.merge_into(
            &Lease::constant(),
            &into,
            &mut MergeCallbacks {
                keeps_existing: &mut keeps_existing,
                failed,
                pause: &|| {},
            },
        );
        drop(staging);
        assert_eq!(faults, [(RelPath::root().to_string(), Some(Errno::STALE))]);
        assert!(home.join("elsewhere/a/precious").exists() && home.join("elsewhere/b/f").exists());
        assert_eq!(std::fs::read_dir(home).unwrap().count(), 2);
    }
}
