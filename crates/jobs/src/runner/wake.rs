//! The FIFO that wakes the runner and shows whether a runner is active.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::io::Errno;

use crate::place::{JobsDirectory, is_at};

/// The reading end of the FIFO. The runner keeps it open while it runs.
#[derive(Debug)]
pub(super) struct WakeFifo(File);

impl WakeFifo {
    /// Opens the FIFO, and creates it if it does not exist. A file of another type at its path, for example from a
    /// restored backup, is moved away because it cannot wake the runner.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if let Some(other) = path
            .symlink_metadata()
            .ok()
            .filter(|there| !there.file_type().is_fifo())
        {
            remove_obstacle(path, &other)?;
        }
        match mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // The runner also keeps the FIFO open for writing. Otherwise, the FIFO would report end of file after the last
        // writer closes it.
        let options = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(options)
            .open(path)?;
        // Another process may have replaced the FIFO since it was created.
        if file.metadata()?.file_type().is_fifo() {
            Ok(Self(file))
        } else {
            Err(Errno::EXIST.into())
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }

    /// Returns whether the FIFO still exists at its path, where other processes look for it.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        is_at(&self.0, path).unwrap_or(false)
    }

    /// Discards the bytes that wakers have written.
    pub(super) fn clear(&self) {
        let mut bytes = [0; 4096];
        while matches!(rustix::io::read(&self.0, &mut bytes), Ok(read) if read == bytes.len()) {}
    }
}

/// Removes the file at the path of the FIFO. A directory that is not empty is renamed instead.
fn remove_obstacle(path: &Path, other: &Metadata) -> io::Result<()> {
    if !other.is_dir() {
        return std::fs::remove_file(path);
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            std::fs::rename(path, path.with_extension(format!("was-{}", other.ino())))
        }
        removed => removed,
    }
}

/// Wakes the runner of a directory of jobs. Returns whether there is a runner. Call this after the change of the store
/// is committed, because a runner that is about to end checks the store once more.
///
/// # Errors
/// The FIFO cannot be opened or written.
pub fn wake(place: &JobsDirectory) -> io::Result<bool> {
    let Some(file) = writer(place)? else {
        return Ok(false);
    };
    match rustix::io::write(file, &[0]) {
        // The FIFO is full, so the runner will wake anyway.
        Ok(_) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::PIPE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Opens the FIFO for writing. Returns `None` if the FIFO has no reader or the file is not a FIFO, because no runner
/// would read the byte.
fn writer(place: &JobsDirectory) -> io::Result<Option<File>> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    match File::options()
        .write(true)
        .custom_flags(flags)
        .open(place.wake())
    {
        Ok(file) => Ok(file.metadata()?.file_type().is_fifo().then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => match Errno::from_io_error(&error) {
            // The FIFO has no reader, or the path is a directory, a symbolic link or a socket.
            Some(Errno::NXIO | Errno::ISDIR | Errno::LOOP) => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A restored backup or a mistake in a shell may create such files.
    #[test]
    fn what_is_no_fifo_makes_room_for_one() {
        let directory = tempfile::tempdir().unwrap();
        let place = JobsDirectory::open(directory.path()).unwrap();
        let path = place.wake();
        let is_up = || wake(&place).unwrap();
        let makers: [&dyn Fn(); 5] = [
            &|| std::fs::write(&path, "").unwrap(),
            &|| std::fs::create_dir(&path).unwrap(),
            &|| {
                std::fs::create_dir(&path).unwrap();
                std::fs::write(path.join("kept"), "").unwrap();
            },
            &|| std::os::unix::fs::symlink("elsewhere", &path).unwrap(),
            &|| std::os::unix::fs::symlink("/dev/null", &path).unwrap(),
        ];
        for make in makers {
            make();
            assert!(!is_up(), "nobody reads there");
            let bell = WakeFifo::open(&path).unwrap();
            assert!(is_up() && bell.is_at(&path));
            drop(bell);
            // A child that another test has just forked holds the file until it executes its program.
            let until = Instant::now() + Duration::from_secs(60);
            while is_up() {
                assert!(Instant::now() < until, "it is read still");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::remove_file(&path).unwrap();
        }
        assert!(
            !directory.path().join("elsewhere").exists(),
            "no link is followed"
        );
        let entries = std::fs::read_dir(directory.path()).unwrap();
        let kept = entries.filter(|entry| entry.as_ref().unwrap().path().join("kept").exists());
        assert_eq!(
            kept.count(),
            1,
            "what a directory holds is nobody's to remove"
        );
    }

    #[test]
    fn a_fifo_that_has_lost_its_name_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wake");
        let bell = WakeFifo::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!bell.is_at(&path));
        std::fs::write(&path, "").unwrap();
        assert!(!bell.is_at(&path));
    }
}
