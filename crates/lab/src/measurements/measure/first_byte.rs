//! Detects the first byte of data below a directory, whatever the temporary name of its file.
//!
//! Waits in inotify until a directory or file changes, and ends at the first file that contains data. Reserved space
//! does not count. Data that is written through a memory mapping is not detected until the file is renamed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::PipeReader;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A watch on a directory and everything that is created below it.
#[derive(Debug)]
pub(crate) struct FirstByte {
    events: OwnedFd,
    directories: HashMap<i32, PathBuf>,
}

impl FirstByte {
    /// Starts to watch. There must be no data below `root` yet.
    pub(crate) fn watch(root: &Path) -> Result<Self> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .context("failed to start inotify")?;
        let mut watch = Self {
            events,
            directories: HashMap::new(),
        };
        watch.add(root);
        Ok(watch)
    }

    /// Waits for data, or until the other end of `stop` is closed.
    pub(crate) fn wait(mut self, stop: &PipeReader) -> Option<Instant> {
        loop {
            let mut sources = [
                PollFd::new(&self.events, PollFlags::IN),
                PollFd::new(stop, PollFlags::IN),
            ];
            match poll(&mut sources, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return None,
            }
            let stopped = !sources[1].revents().is_empty();
            if self.changes().iter().any(|path| self.look(path)) {
                return Some(Instant::now());
            }
            if stopped {
                return None;
            }
        }
    }

    /// Returns the paths of the pending events.
    fn changes(&self) -> Vec<PathBuf> {
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut reader = Reader::new(&self.events, &mut buffer);
        let mut paths = Vec::new();
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                paths.extend(self.directories.values().cloned());
            }
            let (Some(directory), Some(name)) =
                (self.directories.get(&event.wd()), event.file_name())
            else {
                continue;
            };
            let path = directory.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            if paths.last() != Some(&path) {
                paths.push(path);
            }
        }
        paths
    }

    /// Returns whether there is data at the path. Watches the path if it is a directory.
    fn look(&mut self, path: &Path) -> bool {
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => self.add(path),
            Ok(metadata) if metadata.is_file() => holds_data(path),
            _ => false,
        }
    }

    /// Watches a directory. Returns whether there is data below it already.
    fn add(&mut self, directory: &Path) -> bool {
        let wanted =
            WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        let Ok(number) = inotify::add_watch(&self.events, directory, wanted) else {
            return false;
        };
        self.directories.insert(number, directory.to_owned());
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.iter().any(|path| self.look(path))
    }
}

fn holds_data(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| seek(&file, SeekFrom::Data(0)).is_ok())
}

const EVENT_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn noticed(change: impl FnOnce(&Path)) -> bool {
        let place = tempfile::tempdir().unwrap();
        let watch = FirstByte::watch(place.path()).unwrap();
        change(place.path());
        let (stop, writer) = std::io::pipe().unwrap();
        drop(writer);
        watch.wait(&stop).is_some()
    }

    #[test]
    fn data_in_a_new_directory_is_noticed() {
        assert!(noticed(|place| {
            fs::create_dir(place.join("d")).unwrap();
            fs::write(place.join("d/f"), b"x").unwrap();
        }));
    }

    #[test]
    fn empty_files_and_reserved_space_are_not_data() {
        assert!(!noticed(|place| {
            let file = File::create(place.join("f")).unwrap();
            file.set_len(1 << 20).unwrap();
        }));
    }
}
