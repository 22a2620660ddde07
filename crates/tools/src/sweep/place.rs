//! The directory in which a sweep works.
//!
//! The directory is hidden, is named `.zmove-sweep-NUMBER`, is accessible only to its owner, and is locked while the
//! sweep runs.
//!
//! **Invariant:** a sweep changes nothing outside its directory, with one exception. It removes directories that
//! earlier sweeps of this user on this host left behind. Such a directory has the name of a sweep's directory, is not
//! locked, and contains a mark. The mark matches only the directory for which it was written, not a copy of it. Another
//! process may rename a directory during the sweep, so entries are removed relative to the directory's descriptor and
//! not by path.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use zmove_disk::{DirectoryModes, Tree, list_directory, remove_entries, remove_open_directory};
use zmove_types::{Name, RelPath};

use crate::sweep::SweepEvent;
use crate::sweep::error::SweepError;
use crate::sweep::result::SweepHost;

/// The directory of a running sweep.
#[derive(Debug)]
pub(crate) struct SweepDirectory {
    /// The parent of the sweep's directory.
    parent: Tree,
    name: Name,
    /// The path of the directory, for messages.
    pub(crate) path: PathBuf,
    /// The open directory.
    pub(crate) tree: Tree,
    removed: bool,
}

impl SweepDirectory {
    /// Creates a sweep's directory in `parent`, which is at `path`. Removes directories that earlier sweeps left there.
    pub(crate) fn make_in(
        parent: Tree,
        path: &Path,
        tell: &mut dyn FnMut(SweepEvent),
    ) -> Result<Self, SweepError> {
        let named = |name: &Name| name.as_bytes().starts_with(PREFIX.as_bytes());
        for name in names(parent.fd(), named).map_err(SweepError::io("list", path))? {
            let found = look(&parent, &name, path.join(name.as_os_str()))?;
            found.into_iter().for_each(&mut *tell);
        }
        let name = fresh_name().map_err(SweepError::io("name a directory below", path))?;
        let shown = path.join(name.as_os_str());
        Self::make_named(parent, name, &shown).map_err(SweepError::io("make the directory", &shown))
    }

    fn make_named(parent: Tree, name: Name, path: &Path) -> io::Result<Self> {
        let modes = DirectoryModes::default();
        if !Tree::create_new(parent.lease(), parent.fd(), &name, modes)? {
            return Err(Errno::EXIST.into());
        }
        let opened = parent.open_directory(&beneath(&name));
        let opened = opened.inspect_err(|_| {
            let _best_effort =
                rustix::fs::unlinkat(parent.fd(), name.as_os_str(), AtFlags::REMOVEDIR);
        })?;
        let place = Self {
            parent,
            name,
            path: path.to_owned(),
            tree: Self::new_tree(opened)?,
            removed: false,
        };
        // If the file system does not support locks, the next sweep reports a directory that was left behind but does
        // not remove it.
        let _no_locks =
            rustix::fs::flock(place.tree.fd(), FlockOperation::NonBlockingLockExclusive);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(place.tree.fd(), MARK, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(mark(place.tree.fd())?.as_bytes())?;
        Ok(place)
    }

    /// Returns a tree for a directory that was just created and opened. Fails if the directory is not empty: another
    /// process may have replaced it in between, and the sweep would remove that directory's entries at its end.
    fn new_tree(opened: Arc<OwnedFd>) -> io::Result<Tree> {
        if names(opened.as_fd(), |_| true)?.is_empty() {
            Ok(Tree::at(opened))
        } else {
            Err(Errno::STALE.into())
        }
    }

    /// Empties and removes a subdirectory with several threads, because the removal counts as time of the sweep.
    fn empty(&self, directory: &Name, threads: usize) -> Result<(), SweepError> {
        let path = beneath(directory);
        let shown = self.path.join(directory.as_os_str());
        let cannot = || SweepError::io("list", &shown);
        let opened = self.tree.open_directory(&path).map_err(cannot())?;
        let all = names(opened.as_fd(), |_| true).map_err(cannot())?;
        std::thread::scope(|scope| {
            for part in all.chunks(all.len().div_ceil(threads.max(1)).max(1)) {
                let path = &path;
                // If an entry cannot be removed, the removal of the directory fails, and that failure is reported.
                scope.spawn(move || remove_entries(&self.tree, path, part.iter(), |_, _| {}));
            }
        });
        let mut failed = None;
        let name = std::iter::once(directory);
        remove_entries(&self.tree, &RelPath::root(), name, |_, source| {
            failed.get_or_insert(source);
        });
        self.left_by(failed)
    }

    /// Removes the sweep's directory and its contents.
    pub(crate) fn remove(mut self, threads: usize) -> Result<(), SweepError> {
        self.removed = true;
        let directories =
            names(self.tree.fd(), |name| name.as_bytes() != MARK.as_bytes()).unwrap_or_default();
        for directory in directories {
            // If the directory could not be removed here, the removal below tries again and reports the error.
            let _best_effort = self.empty(&directory, threads);
        }
        self.remove_itself()
    }

    fn remove_itself(&self) -> Result<(), SweepError> {
        let mut failed = None;
        remove_open_directory(self.parent.fd(), &self.name, self.tree.fd(), |source| {
            failed.get_or_insert(source);
        });
        self.left_by(failed)
    }

    fn left_by(&self, failed: Option<io::Error>) -> Result<(), SweepError> {
        failed.map_or(Ok(()), |source| {
            Err(SweepError::NotRemoved {
                path: self.path.clone(),
                source,
            })
        })
    }
}

impl Drop for SweepDirectory {
    fn drop(&mut self) {
        if !self.removed {
            // The error that led to this drop has been reported already.
            let _best_effort = self.remove_itself();
        }
    }
}

/// Examines a directory that has the name of a sweep's directory, and removes it if an earlier sweep left it behind.
/// Returns the event to report, or `None` if the directory no longer exists.
fn look(parent: &Tree, name: &Name, path: PathBuf) -> Result<Option<SweepEvent>, SweepError> {
    let directory = match parent.open_directory(&beneath(name)) {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Ok(Some(SweepEvent::Stays(path))),
    };
    // The owner must be this user: another user who can write to the directory could forge a mark.
    let own = rustix::fs::fstat(&directory).is_ok_and(|stat| {
        let mode = Mode::from_raw_mode(stat.st_mode);
        stat.st_uid == rustix::process::geteuid().as_raw()
            && !mode.intersects(Mode::WGRP | Mode::WOTH)
    });
    let mut stays = !own || !is_marked(&directory);
    if !stays {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => remove_open_directory(parent.fd(), name, directory.as_fd(), |_| stays = true),
            Err(Errno::WOULDBLOCK) => return Err(SweepError::Running { path }),
            Err(_no_locks) => stays = true,
        }
    }
    Ok(Some(if stays {
        SweepEvent::Stays(path)
    } else {
        SweepEvent::Removed(path)
    }))
}

fn is_marked(directory: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(directory, MARK, flags, Mode::empty()) else {
        return false;
    };
    let mut text = String::new();
    let read = File::from(file)
        .take(MARK_BYTES_MAX)
        .read_to_string(&mut text);
    read.is_ok() && mark(directory.as_fd()).is_ok_and(|mark| mark == text)
}

/// Returns the text that identifies a directory uniquely.
fn mark(directory: BorrowedFd<'_>) -> io::Result<String> {
    let asked = StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, asked)?;
    let birth = stat.stx_btime;
    // Use both the machine id and the host name. Two hosts may have the same host name, and hosts that were created
    // from the same image may have the same machine id.
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    Ok(format!(
        "zmove sweep {:x} {:x}.{:x} {} {}\n",
        stat.stx_ino,
        birth.tv_sec,
        birth.tv_nsec,
        machine.trim(),
        SweepHost::own_name()
    ))
}

fn fresh_name() -> io::Result<Name> {
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number[..], rustix::rand::GetRandomFlags::empty())?;
    let name = format!("{PREFIX}{:016x}", u64::from_le_bytes(number));
    Ok(Name::from_bytes(name.as_bytes()).expect("digits are a short name"))
}

/// Returns the names of the directory's entries for which `wanted` returns true.
fn names(directory: BorrowedFd<'_>, wanted: impl Fn(&Name) -> bool) -> io::Result<Vec<Name>> {
    let mut names = Vec::new();
    for entry in list_directory(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.extend(Name::from_bytes(name).ok().filter(&wanted));
        }
    }
    Ok(names)
}

fn beneath(name: &Name) -> RelPath {
    RelPath::root()
        .join(name)
        .expect("one name is no long path")
}

const PREFIX: &str = ".zmove-sweep-";
const MARK: &str = "mark";
const MARK_BYTES_MAX: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(home: &tempfile::TempDir) -> Vec<String> {
        let entries = std::fs::read_dir(home.path()).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn make(home: &tempfile::TempDir) -> (Result<SweepDirectory, SweepError>, Vec<SweepEvent>) {
        let mut found = Vec::new();
        let parent = Tree::open(home.path()).unwrap();
        let place = SweepDirectory::make_in(parent, home.path(), &mut |event| found.push(event));
        (place, found)
    }

    #[test]
    fn a_place_is_hidden_and_goes_with_all_that_is_in_it() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("precious"), "x").unwrap();
        let place = make(&home).0.unwrap();
        std::fs::create_dir_all(place.path.join("a/b")).unwrap();
        for number in 0..10 {
            std::fs::write(place.path.join(format!("a/{number}")), "x").unwrap();
        }
        assert_eq!(
            listed(&home)
                .iter()
                .filter(|name| name.starts_with(".zmove-sweep-"))
                .count(),
            1
        );
        place.remove(3).unwrap();
        drop(make(&home).0.unwrap());
        assert_eq!(listed(&home), ["precious"]);
    }

    /// A local user who can rename entries in the parent renames a directory that this user cannot remove to the name
    /// of a sweep's directory.
    #[test]
    fn another_directory_under_the_name_of_a_place_stays() {
        let home = tempfile::tempdir().unwrap();
        let place = make(&home).0.unwrap();
        std::fs::write(place.path.join("f"), "x").unwrap();
        let forged = place.path.clone();
        std::fs::rename(&forged, home.path().join("moved")).unwrap();
        std::fs::create_dir(&forged).unwrap();
        std::fs::write(forged.join("precious"), "x").unwrap();
        assert!(matches!(
            place.remove(1),
            Err(SweepError::NotRemoved { .. })
        ));
        assert!(forged.join("precious").exists());
        assert_eq!(
            std::fs::read_dir(home.path().join("moved"))
                .unwrap()
                .count(),
            0
        );
    }

    #[test]
    fn a_directory_with_entries_is_not_taken_for_a_new_one() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("precious"), "x").unwrap();
        let opened = Tree::open(home.path()).unwrap();
        let opened = opened.open_directory(&RelPath::root()).unwrap();
        assert!(SweepDirectory::new_tree(opened).is_err());
    }

    /// Another user may have created the mark in such a directory.
    #[test]
    fn a_marked_directory_in_which_others_may_write_stays() {
        let home = tempfile::tempdir().unwrap();
        let mut killed = make(&home).0.unwrap();
        killed.removed = true;
        let left = killed.path.clone();
        drop(killed);
        std::fs::set_permissions(&left, std::os::unix::fs::PermissionsExt::from_mode(0o775))
            .unwrap();
        let (_place, found) = make(&home);
        assert_eq!(found, [SweepEvent::Stays(left.clone())]);
        assert!(left.join("mark").exists());
    }

    #[test]
    fn two_on_one_host_do_not_measure_each_other() {
        let home = tempfile::tempdir().unwrap();
        let place = make(&home).0.unwrap();
        assert!(matches!(make(&home).0, Err(SweepError::Running { .. })));
        assert!(place.path.exists());
    }

    #[test]
    fn what_a_killed_one_left_is_removed_and_nothing_else_is() {
        let home = tempfile::tempdir().unwrap();
        let mut killed = make(&home).0.unwrap();
        killed.removed = true;
        let left = killed.path.clone();
        std::fs::write(left.join("f"), "x").unwrap();
        drop(killed);
        let name = left.file_name().unwrap().to_str().unwrap();
        let (most, last) = name.split_at(name.len() - 1);
        let copy = home
            .path()
            .join(format!("{most}{}", if last == "0" { 1 } else { 0 }));
        std::fs::create_dir(&copy).unwrap();
        for name in ["mark", "f"] {
            std::fs::copy(left.join(name), copy.join(name)).unwrap();
        }
        let elsewhere = home.path().join(".zmove-sweep-other-1");
        std::fs::create_dir(&elsewhere).unwrap();
        let (place, mut found) = make(&home);
        assert!(!left.exists() && copy.join("f").exists() && elsewhere.exists());
        found.sort_by_key(|event| format!("{event:?}"));
        let mut expected = [
            SweepEvent::Removed(left),
            SweepEvent::Stays(copy),
            SweepEvent::Stays(elsewhere),
        ];
        expected.sort_by_key(|event| format!("{event:?}"));
        assert_eq!(found, expected);
        drop(place);
        assert_eq!(listed(&home).len(), 2);
    }
}
