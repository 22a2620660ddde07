//! The directory of a user's jobs. It holds the database, the runner's lock, and a directory for each job with the lock
//! of the job's process, its events and its log.
//!
//! **Invariant:** only the user can read the directory, because file names can be confidential.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt as _, MetadataExt, OpenOptionsExt, PermissionsExt,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, StatFs, flock};
use rustix::io::Errno;

use crate::error::StoreError;
use crate::job::JobId;

/// The directory of a user's jobs.
#[derive(Clone, Debug)]
pub struct JobsDirectory(PathBuf);

impl JobsDirectory {
    /// Opens the directory and creates it if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created, belongs to another user, is accessible to others, or is on a network file
    /// system.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let create = DirBuilder::new().recursive(true).mode(0o700).create(path);
        create.map_err(StoreError::io("create", path))?;
        let directory = File::open(path).map_err(StoreError::io("open", path))?;
        let status = rustix::fs::fstatfs(&directory).map_err(StoreError::io("look at", path))?;
        refuse_network(path, kind_of(&status))?;
        let metadata = directory
            .metadata()
            .map_err(StoreError::io("look at", path))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(StoreError::Foreign {
                path: path.to_owned(),
            });
        }
        let place = Self(path.to_owned());
        // Refuse a directory to which other users can write: they may have written its files, and the command line of a
        // job comes from such a file. Refuse a directory that other users can read and that is not a directory of jobs:
        // it may hold other files for which this mode is intended.
        let others = metadata.mode() & 0o077;
        let is_for_jobs = || -> io::Result<bool> {
            Ok(place.database().exists() || std::fs::read_dir(path)?.next().is_none())
        };
        if others & 0o022 != 0
            || others != 0 && !is_for_jobs().map_err(StoreError::io("read", path))?
        {
            return Err(StoreError::Open {
                path: path.to_owned(),
            });
        }
        if others != 0 {
            let close = directory.set_permissions(Permissions::from_mode(0o700));
            close.map_err(StoreError::io("close to others", path))?;
        }
        // Other users may have created these files before their access to the directory was removed.
        [
            "jobs.db",
            "jobs.db-wal",
            "jobs.db-shm",
            "runner.lock",
            "runner.log",
            "api.sock",
        ]
        .iter()
        .try_for_each(|name| refuse_foreign(&place.0.join(name)))?;
        Ok(place)
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.0.join("jobs.db")
    }

    /// Returns the path of the lock that the only runner holds.
    pub(crate) fn runner_lock(&self) -> PathBuf {
        self.0.join("runner.lock")
    }

    /// Returns the path of the FIFO that wakes the runner.
    pub(crate) fn wake(&self) -> PathBuf {
        self.0.join("wake")
    }

    /// Returns the path of the log of a runner that was started in the background.
    #[must_use]
    pub fn runner_log(&self) -> PathBuf {
        self.0.join("runner.log")
    }

    /// Returns the directory of a job.
    #[must_use]
    pub fn job(&self, id: JobId) -> PathBuf {
        self.0.join(id.to_string())
    }

    /// Returns the path of the lock that a job's process holds while it lives.
    #[must_use]
    pub fn lock(&self, id: JobId) -> PathBuf {
        self.job(id).join("lock")
    }

    /// Returns the path of the events that the process of an attempt prints.
    #[must_use]
    pub fn events(&self, id: JobId, attempt: u32) -> PathBuf {
        self.job(id).join(format!("events-{attempt}"))
    }

    /// Returns the path of an attempt's progress samples, which are kept after the attempt has ended.
    pub(crate) fn samples(&self, id: JobId, attempt: u32) -> PathBuf {
        self.job(id).join(format!("samples-{attempt}"))
    }

    /// Returns the path of the log to which the processes of a job write messages for the user.
    #[must_use]
    pub fn log(&self, id: JobId) -> PathBuf {
        self.job(id).join("log")
    }
}

fn kind_of(status: &StatFs) -> u64 {
    u64::try_from(status.f_type & 0xffff_ffff).unwrap_or_default()
}

/// Returns whether a directory is on a file system that other hosts can change too.
#[must_use]
pub fn is_shared(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|status| NETWORK.contains(&kind_of(&status)))
}

/// Refuses a directory on a network file system. `kind` is the `f_type` of its file system. On such a file system, a
/// lock may be effective only on one host, and hosts do not share mapped memory.
fn refuse_network(path: &Path, kind: u64) -> Result<(), StoreError> {
    if NETWORK.contains(&kind) {
        Err(StoreError::Network {
            path: path.to_owned(),
        })
    } else {
        Ok(())
    }
}

/// Returns options that open a file of the directory with access for its user only.
pub(crate) fn private_open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).mode(0o600);
    options
}

/// Opens a file, creates it if it does not exist, and locks it. Returns `None` if another process holds the lock.
pub(crate) fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = private_open_options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether `path` still refers to this open file.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    Ok(file_id(&file.metadata()?) == file_id(&path.symlink_metadata()?))
}

/// Returns the device and inode numbers of a file.
pub(crate) fn file_id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Returns the end of a file, at most `bytes_max` bytes, or nothing if the file does not exist.
///
/// # Errors
/// The file cannot be read.
pub fn read_tail(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(bytes_max)))?;
    let mut end = Vec::new();
    file.take(bytes_max).read_to_end(&mut end)?;
    Ok(end)
}

/// Listens on a Unix socket that only this user can open. Replaces a socket that a killed process has left behind.
///
/// The function changes the umask of the process temporarily, so call it while the process has only one thread.
///
/// # Errors
/// The socket cannot be created, or another process listens on it. In the latter case, the message is `is_taken`.
pub fn bind_socket(path: &Path, is_taken: &str) -> io::Result<UnixListener> {
    if path
        .symlink_metadata()
        .is_ok_and(|found| found.file_type().is_socket())
    {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, is_taken));
        }
        std::fs::remove_file(path)?;
    }
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Creates the directory of a job if it does not exist.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    if is_foreign(path)? {
        Err(io::ErrorKind::PermissionDenied.into())
    } else {
        Ok(())
    }
}

/// Refuses a file that another user has put into the directory.
fn refuse_foreign(path: &Path) -> Result<(), StoreError> {
    match is_foreign(path) {
        Ok(true) => Err(StoreError::Foreign {
            path: path.to_owned(),
        }),
        Ok(false) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::io("look at", path)(error)),
    }
}

/// Returns whether another user owns the file, can write to it, or could have put it there. A symbolic link could lead
/// to a file of another user. If the file has a second hard link, another user may be able to open it under that name.
fn is_foreign(path: &Path) -> io::Result<bool> {
    let metadata = path.symlink_metadata()?;
    let has_other_name = metadata.is_file() && metadata.nlink() > 1;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    Ok(!is_own
        || metadata.is_symlink()
        || has_other_name
        || metadata.is_file() && metadata.mode() & 0o022 != 0)
}

/// `f_type` of NFS, SMB, SMB2, CIFS, FUSE, 9P, Ceph, AFS, Lustre, GPFS, BeeGFS, OCFS2, GFS2 and PanFS.
const NETWORK: [u64; 14] = [
    0x6969,
    0x517b,
    0xfe53_4d42,
    0xff53_4d42,
    0x6573_5546,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x0bd0_0bd0,
    0x4750_4653,
    0x1983_0326,
    0x7461_636f,
    0x0116_1970,
    0xaad7_aaea,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused() {
        let refused =
            |kind| refuse_network(Path::new("/home/a"), kind).map_err(|error| error.to_string());
        // The names and numbers come from statfs(2), and from file systems that are not part of Linux.
        let network = [
            ("nfs", 0x6969),
            ("smb", 0x517b),
            ("smb2", 0xfe53_4d42),
            ("cifs", 0xff53_4d42),
            ("fuse", 0x6573_5546),
            ("9p", 0x0102_1997),
            ("ceph", 0x00c3_6400),
            ("afs", 0x5346_414f),
            ("lustre", 0x0bd0_0bd0),
            ("gpfs", 0x4750_4653),
            ("beegfs", 0x1983_0326),
            ("ocfs2", 0x7461_636f),
            ("gfs2", 0x0116_1970),
            ("panfs", 0xaad7_aaea),
        ];
        assert_eq!(network.len(), NETWORK.len());
        for (name, kind) in network {
            let why = refused(kind).unwrap_err();
            assert!(
                why.starts_with("'/home/a' is on a network file system"),
                "{name}: {why}"
            );
        }
        // ext4, XFS, btrfs, overlayfs, ZFS
        for kind in [0xef53, 0x5846_5342, 0x9123_683e, 0x794c_7630, 0x2fc1_2fc1] {
            assert_eq!(refused(kind), Ok(()));
        }
    }

    #[test]
    fn a_place_is_for_its_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/jobs");
        JobsDirectory::open(&path).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        JobsDirectory::open(&path).unwrap();
        assert_eq!(mode(&path), 0o700, "an empty one is closed");
        std::fs::write(path.join("of another program"), "").unwrap();
        for open in [0o755, 0o710, 0o1777] {
            std::fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
            let error = JobsDirectory::open(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 700"), "{error}");
            assert_eq!(mode(&path), open & 0o777, "as it was");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        JobsDirectory::open(&path).unwrap();
        // Files that were created while the directory was open to others.
        for name in ["jobs.db", "jobs.db-wal", "runner.log"] {
            let file = path.join(name);
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
            assert!(
                matches!(JobsDirectory::open(&path), Err(StoreError::Foreign { .. })),
                "{name}"
            );
            std::fs::remove_file(&file).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
            assert!(
                matches!(JobsDirectory::open(&path), Err(StoreError::Foreign { .. })),
                "{name}"
            );
            std::fs::remove_file(&file).unwrap();
        }
        JobsDirectory::open(&path).unwrap();
    }
}
