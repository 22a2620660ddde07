//! The files and directories that the kernel knows, by inode number. Each has a descriptor opened with `O_PATH`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;

/// All nodes of one mount. **Invariant:** the root, and no other node, is node 1, whatever its inode number is.
#[derive(Debug)]
pub(super) struct Nodes {
    root_inode: u64,
    known: Mutex<HashMap<u64, Node>>,
    /// While this file exists, no node is found.
    stale: Option<PathBuf>,
}

#[derive(Debug)]
struct Node {
    descriptor: Arc<OwnedFd>,
    /// The kernel's lookup count of the node.
    lookups: u64,
}

impl Nodes {
    pub(super) fn new(root: &Path, stale: Option<PathBuf>) -> io::Result<Self> {
        let descriptor = Arc::new(openat(
            CWD,
            root,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )?);
        let root_inode = statat(&descriptor, "", AtFlags::EMPTY_PATH)?.st_ino;
        let known = HashMap::from([(
            INodeNo::ROOT.0,
            Node {
                descriptor,
                lookups: 1,
            },
        )]);
        Ok(Self {
            root_inode,
            known: Mutex::new(known),
            stale,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptor of a node.
    ///
    /// # Errors
    /// `ESTALE` while the simulated server has lost its state.
    pub(super) fn descriptor(&self, inode: INodeNo) -> io::Result<Arc<OwnedFd>> {
        if self.stale.as_ref().is_some_and(|file| file.exists()) {
            return Err(Errno::STALE.into());
        }
        let known = self.lock();
        let node = known.get(&inode.0).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::clone(&node.descriptor))
    }

    /// Returns a path to the node, for system calls that do not accept `O_PATH` descriptors.
    pub(super) fn path(&self, inode: INodeNo) -> io::Result<(Arc<OwnedFd>, PathBuf)> {
        let descriptor = self.descriptor(inode)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        Ok((descriptor, path))
    }

    pub(super) fn attributes(&self, inode: INodeNo) -> io::Result<FileAttr> {
        let stat = statat(self.descriptor(inode)?, "", AtFlags::EMPTY_PATH)?;
        Ok(self.attributes_of(&stat))
    }

    /// Looks up a name and increments the lookup count.
    pub(super) fn look_up(&self, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<FileAttr> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(parent, name, flags, Mode::empty())?;
        let attributes = self.attributes_of(&statat(&descriptor, "", AtFlags::EMPTY_PATH)?);
        let mut known = self.lock();
        let node = known.entry(attributes.ino.0);
        node.or_insert_with(|| Node {
            descriptor: Arc::new(descriptor),
            lookups: 0,
        })
        .lookups += 1;
        Ok(attributes)
    }

    pub(super) fn forget(&self, inode: INodeNo, lookups: u64) {
        let mut known = self.lock();
        let Some(node) = known.get_mut(&inode.0) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && inode != INodeNo::ROOT {
            known.remove(&inode.0);
        }
    }

    fn attributes_of(&self, stat: &Stat) -> FileAttr {
        let inode = if stat.st_ino == self.root_inode {
            INodeNo::ROOT
        } else {
            INodeNo(stat.st_ino)
        };
        FileAttr {
            ino: inode,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            atime: moment(stat.st_atime, stat.st_atime_nsec),
            mtime: moment(stat.st_mtime, stat.st_mtime_nsec),
            ctime: moment(stat.st_ctime, stat.st_ctime_nsec),
            crtime: UNIX_EPOCH,
            kind: file_type(stat.st_mode),
            perm: u16::try_from(stat.st_mode & 0o7777).unwrap_or(0),
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: u32::try_from(stat.st_rdev).unwrap_or(0),
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }
}

/// Returns the file type in the highest bits of a mode.
pub(super) fn file_type(mode: u32) -> FileType {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::Fifo => FileType::NamedPipe,
        rustix::fs::FileType::Socket => FileType::Socket,
        rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
        rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn moment(seconds: i64, nanos: u64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let seconds = if seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    seconds
        .and_then(|moment| moment.checked_add(Duration::from_nanos(nanos)))
        .unwrap_or(UNIX_EPOCH)
}

const BLOCK_BYTES: u32 = 4096;
