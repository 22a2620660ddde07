//! The inotify events of a tree, with one watch per directory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{
    CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch,
};
use rustix::io::Errno;

/// An event, with a path relative to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeEvent {
    /// A file was created or written to.
    Changed(PathBuf),
    /// A file was closed by its writer, or was renamed into the tree.
    Closed(PathBuf),
    /// A directory was created, or was renamed into the tree.
    Directory(PathBuf),
    /// A name was removed.
    Gone(PathBuf),
    /// The root was removed or renamed.
    RootGone,
    /// The kernel dropped events.
    Lost,
}

/// The watches of a tree.
#[derive(Debug)]
pub(crate) struct Events {
    descriptor: OwnedFd,
    directories: HashMap<i32, PathBuf>,
}

impl Events {
    pub(crate) fn begin() -> io::Result<Self> {
        Ok(Self {
            descriptor: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            directories: HashMap::new(),
        })
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    pub(crate) fn directories(&self) -> usize {
        self.directories.len()
    }

    /// Watches a directory. `below` is its path relative to the root.
    pub(crate) fn watch(&mut self, path: &Path, below: &Path) -> io::Result<()> {
        let number = add_watch(&self.descriptor, path, WATCH_FLAGS)?;
        self.directories.insert(number, below.to_owned());
        Ok(())
    }

    /// Stops watching a directory that was moved away, and all directories below it.
    fn forget(&mut self, below: &Path) {
        let found = self
            .directories
            .iter()
            .filter(|(_, path)| path.starts_with(below));
        let numbers: Vec<_> = found.map(|(number, _)| *number).collect();
        for number in numbers {
            self.directories.remove(&number);
            let _gone_already = remove_watch(&self.descriptor, number);
        }
    }

    /// Returns the events since the previous call. The list is empty if no events occurred.
    pub(crate) fn read(&mut self) -> io::Result<Vec<TreeEvent>> {
        let mut new_events = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 64 << 10];
        let mut moved_away = Vec::new();
        {
            let mut reader = Reader::new(&self.descriptor, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event
                            .file_name()
                            .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
                        let flags = event.events();
                        let number = event.wd();
                        if flags.contains(ReadFlags::IGNORED) {
                            self.directories.remove(&number);
                            continue;
                        }
                        let directory = self.directories.get(&number).cloned();
                        let path = directory.map(|directory| match &name {
                            Some(name) => directory.join(name),
                            None => directory,
                        });
                        // Events from inside a directory that was moved away are ignored.
                        let is_away =
                            |path: &PathBuf| moved_away.iter().any(|away| path.starts_with(away));
                        let path = path.filter(|path| !is_away(path));
                        if flags.contains(ReadFlags::MOVED_FROM | ReadFlags::ISDIR) {
                            moved_away.extend(path.clone());
                        }
                        if flags.contains(ReadFlags::ISDIR)
                            && flags.intersects(ReadFlags::MOVED_TO | ReadFlags::CREATE)
                            && let Some(path) = &path
                        {
                            moved_away.retain(|away: &PathBuf| !away.starts_with(path));
                        }
                        new_events.extend(parse_event(flags, path));
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                if new_events.len() >= EVENTS_PER_READ_MAX && reader.is_buffer_empty() {
                    break;
                }
            }
        }
        moved_away.iter().for_each(|path| self.forget(path));
        Ok(new_events)
    }
}

fn parse_event(flags: ReadFlags, path: Option<PathBuf>) -> Option<TreeEvent> {
    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
        return Some(TreeEvent::Lost);
    }
    let path = path?;
    let of_itself = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
    if flags.intersects(of_itself) {
        return path.as_os_str().is_empty().then_some(TreeEvent::RootGone);
    }
    let is_directory = flags.contains(ReadFlags::ISDIR);
    if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        return Some(TreeEvent::Gone(path));
    }
    if is_directory {
        let came = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        return came.then_some(TreeEvent::Directory(path));
    }
    if flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_TO) {
        return Some(TreeEvent::Closed(path));
    }
    flags
        .intersects(ReadFlags::CREATE | ReadFlags::MODIFY)
        .then_some(TreeEvent::Changed(path))
}

const WATCH_FLAGS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

/// Number of events after which reading pauses so that they can be processed.
const EVENTS_PER_READ_MAX: usize = 4096;
