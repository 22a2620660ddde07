//! The FIFO by which a runner is woken, and by which it is seen that there is one.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::io::Errno;

use crate::place::Place;

/// The runner's end, which is there as long as the runner is.
#[derive(Debug)]
pub(super) struct Bell(File);

impl Bell {
    /// Opens the FIFO, which is made if it is not there.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        match mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // It is open for writing too, so that it is not at its end when those who have written close it.
        let options = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).write(true).custom_flags(options).open(path)?;
        Ok(Self(file))
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }

    /// Takes what was written meanwhile.
    pub(super) fn clear(&self) {
        let mut bytes = [0; 4096];
        while matches!(rustix::io::read(&self.0, &mut bytes), Ok(read) if read == bytes.len()) {}
    }
}

/// Wakes the runner of a place; returns whether there is one. Call it after what it is to see has been committed: a
/// runner that is about to end looks once more.
///
/// # Errors
/// The system's error.
pub fn wake(place: &Place) -> io::Result<bool> {
    let Some(file) = writer(place)? else { return Ok(false) };
    match rustix::io::write(file, &[0]) {
        // full: it will wake anyway
        Ok(_) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::PIPE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn writer(place: &Place) -> io::Result<Option<File>> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    match File::options().write(true).custom_flags(flags).open(place.wake()) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}
