//! Files of proc and similar file systems, whose contents are generated when they are read. Their length is not known
//! in advance, and each reader gets different contents. Such a file is therefore read once, into a memory file that
//! replaces it.
//!
//! A file may have no end, and reading it may block, on some file systems even with `O_NONBLOCK`.
//!
//! **Invariant:** a file of more than [`BYTES_MAX`] bytes fails, and no caller waits longer than [`PATIENCE`].

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{Gid, MemfdFlags, Uid, fchown, memfd_create};
use zmove_disk::{FileIdentity, Permit, set_file_mtime};

/// Copies a file to memory, with its mode, modification time and owner.
pub(super) fn copy(file: File, seen: &FileIdentity) -> io::Result<(File, FileIdentity)> {
    let contents = read_within(file, PATIENCE)?;
    let mut copy = File::from(memfd_create("zmove", MemfdFlags::CLOEXEC)?);
    copy.write_all(&contents)?;
    copy.rewind()?;
    // Only root may change the owner. For any other user, the copy is owned by the user who runs this process.
    let _own = fchown(
        &copy,
        Some(Uid::from_raw(seen.ids.user)),
        Some(Gid::from_raw(seen.ids.group)),
    );
    copy.set_permissions(Permissions::from_mode(seen.mode))?;
    set_file_mtime(Permit::for_hidden(), &copy, seen.mtime)?;
    let identity = FileIdentity::of(&copy)?;
    Ok((copy, identity))
}

/// Reads a file in a separate thread, which is abandoned if it blocks.
fn read_within(file: File, patience: Duration) -> io::Result<Vec<u8>> {
    let (done, result) = sync_channel(1);
    thread::Builder::new()
        .name("zmove-generated".to_owned())
        .spawn(move || {
            // After the timeout nobody waits for the result.
            drop(done.send(read(&file)));
        })?;
    match result.recv_timeout(patience) {
        Ok(contents) => contents,
        Err(RecvTimeoutError::Timeout) => {
            let seconds = patience.as_secs();
            let why = format!("reading it blocks (stopped after {seconds} s)");
            Err(io::Error::new(ErrorKind::TimedOut, why))
        }
        Err(RecvTimeoutError::Disconnected) => Err(ErrorKind::BrokenPipe.into()),
    }
}

/// Reads a file to its end. All reads request the same number of bytes, because some files can be read only in
/// multiples of their record size.
fn read(mut file: &File) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    while contents.len() as u64 <= BYTES_MAX {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(contents),
            Ok(bytes) => contents.extend_from_slice(&buffer[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(io::Error::new(error.kind(), "reading it blocks"));
            }
            Err(error) => return Err(error),
        }
    }
    let mib = BYTES_MAX >> 20;
    Err(io::Error::other(format!("it is longer than {mib} MiB")))
}

/// Maximum length of a file, in bytes.
const BYTES_MAX: u64 = 16 << 20;
/// Length of one read, in bytes.
const READ_BYTES: usize = 64 << 10;
/// Timeout for reading a file.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_file_that_blocks_is_given_up() {
        for (flags, patience, expected) in [
            (PipeFlags::NONBLOCK, LONG, ErrorKind::WouldBlock),
            (PipeFlags::empty(), Duration::ZERO, ErrorKind::TimedOut),
        ] {
            let (reading, mut writing) = pipe_with(flags | PipeFlags::CLOEXEC)
                .map(|(reading, writing)| (File::from(reading), File::from(writing)))
                .unwrap();
            writing.write_all(b"begin").unwrap();
            let error = read_within(reading, patience).unwrap_err();
            assert_eq!(error.kind(), expected, "{error}");
            assert!(
                error.to_string().starts_with("reading it blocks"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = read_within(File::open("/dev/zero").unwrap(), LONG).unwrap_err();
        assert_eq!(error.to_string(), "it is longer than 16 MiB");
        let mut longest = File::from(memfd_create("longest", MemfdFlags::CLOEXEC).unwrap());
        longest.set_len(BYTES_MAX).unwrap();
        longest.rewind().unwrap();
        assert_eq!(read_within(longest, LONG).unwrap().len() as u64, BYTES_MAX);
    }

    #[test]
    fn a_copy_has_what_the_file_has() {
        let file = File::open("/proc/version").unwrap();
        let seen = FileIdentity::of(&file).unwrap();
        let (mut copy, identity) = copy(file, &seen).unwrap();
        let mut contents = Vec::new();
        copy.read_to_end(&mut contents).unwrap();
        assert_eq!(contents, std::fs::read("/proc/version").unwrap());
        assert_eq!(
            (identity.bytes, identity.mode, identity.mtime),
            (contents.len() as u64, seen.mode, seen.mtime)
        );
        assert_eq!(FileIdentity::of(&copy).unwrap(), identity);
    }
}
