//! Standard output. It carries the result of a command (`push -n`, `--json`, `verify`, `key show`), so the command
//! fails if the result cannot be written.
//!
//! **Invariant:** only this module writes to standard output, so that [`end`] learns of every failure. The lint
//! `print_stdout` forbids `println!`.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Stdout, Write as _};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;

use rustix::fs::FileType;
use zmove_disk::close;

/// The first failure. It is global because the stream belongs to the whole process.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Writes text unchanged.
pub(crate) fn write(text: impl Display) {
    let mut stdout = io::stdout();
    note(write!(stdout, "{text}").and_then(|()| stdout.flush()));
}

/// Records the failure of a write if it is the first one.
pub(crate) fn note(written: io::Result<()>) {
    if let Err(error) = written {
        let _not_the_first = FAILURE.set(error);
    }
}

/// Returns whether an earlier write has failed, because the reader has closed the stream or the storage is full.
pub(crate) fn has_failed() -> bool {
    FAILURE.get().is_some()
}

/// Flushes standard output and closes a duplicate of it, because some file systems report a lack of space only on
/// close.
///
/// # Errors
/// Returns the first write error. If the reader has closed the stream, this is not an error, because the reader needs
/// no further output.
pub(crate) fn end() -> io::Result<()> {
    let mut stdout = io::stdout();
    note(stdout.flush().and_then(|()| closed(&stdout)));
    match FAILURE.get() {
        Some(error) if !is_reader_gone(error, &stdout) => Err(again(error)),
        _ => Ok(()),
    }
}

fn closed(stdout: &Stdout) -> io::Result<()> {
    close(File::from(stdout.as_fd().try_clone_to_owned()?))
}

/// Returns whether the error means that the reader of a pipe has closed it, or that a terminal was hung up.
fn is_reader_gone(error: &io::Error, stdout: &Stdout) -> bool {
    let is_device = || {
        rustix::fs::fstat(stdout)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
    };
    let is_hung_up = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    error.kind() == ErrorKind::BrokenPipe || is_hung_up && is_device()
}

fn again(error: &io::Error) -> io::Error {
    error
        .raw_os_error()
        .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}
