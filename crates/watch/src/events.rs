//! What the kernel tells of a tree: a watch for each directory.

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

/// Something that has happened, with the path below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// Somebody writes to a file, or has made one.
    Changed(PathBuf),
    /// A file was closed by who wrote it, or has come whole by its name.
    Closed(PathBuf),
    /// A directory was made or has come.
    Directory(PathBuf),
    /// A name is gone.
    Gone(PathBuf),
    /// The root is gone, or has another name.
    RootGone,
    /// Something was forgotten.
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

    /// Watches a directory, whose path below the root is given too.
    pub(crate) fn watch(&mut self, path: &Path, below: &Path) -> io::Result<()> {
        let number = add_watch(&self.descriptor, path, WHAT)?;
        self.directories.insert(number, below.to_owned());
        Ok(())
    }

    /// Watches a directory no more that has gone elsewhere, nor what is below it.
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

    /// What has happened since; empty where that is nothing.
    pub(crate) fn read(&mut self) -> io::Result<Vec<Happened>> {
        let mut told = Vec::new();
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
                        // What stood in a directory that has moved away is not told of it.
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
                        told.extend(happened(flags, path));
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                if told.len() >= TOLD_MAX && reader.is_buffer_empty() {
                    break;
                }
            }
        }
        moved_away.iter().for_each(|path| self.forget(path));
        Ok(told)
    }
}

fn happened(flags: ReadFlags, path: Option<PathBuf>) -> Option<Happened> {
    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
        return Some(Happened::Lost);
    }
    let path = path?;
    let of_itself = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
    if flags.intersects(of_itself) {
        return path.as_os_str().is_empty().then_some(Happened::RootGone);
    }
    let is_directory = flags.contains(ReadFlags::ISDIR);
    if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        return Some(Happened::Gone(path));
    }
    if is_directory {
        let came = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        return came.then_some(Happened::Directory(path));
    }
    if flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_TO) {
        return Some(Happened::Closed(path));
    }
    flags
        .intersects(ReadFlags::CREATE | ReadFlags::MODIFY)
        .then_some(Happened::Changed(path))
}

const WHAT: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

/// How many are told at once before they are seen to.
const TOLD_MAX: usize = 4096;
