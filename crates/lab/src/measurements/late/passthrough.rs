//! The file system. Each request is counted and delayed, and is then executed on the directory that is served.
//!
//! If the directory has several clients (`shared.rs`), the kernel must not cache anything, so that changes by other
//! clients are visible immediately.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, Gid, Mode, OFlags, Timestamps, Uid, chmodat, chownat,
    fallocate, fstatvfs, fsync, ftruncate, linkat, mkdirat, mknodat, open, openat, readlinkat,
    renameat_with, symlinkat, unlinkat, utimensat,
};

use super::nodes::{Nodes, file_type};
use super::open_files::{Handles, OpenFile};
use super::operations::Operations;
use super::pace::Pace;
use super::shared::Client;
use super::times::timespec;
use super::{Delays, Deviation};

/// A FUSE file system that passes through a directory and delays its operations.
#[derive(Debug)]
pub(super) struct Passthrough {
    nodes: Nodes,
    delays: Delays,
    pace: Option<Pace>,
    special: Special,
    operations: Arc<Operations>,
    files: Handles<OpenFile>,
    /// Number of bytes that can still be stored, if that is limited.
    room: Option<AtomicU64>,
    listings: Handles<Vec<Listed>>,
}

/// Special behavior of some mounts.
#[derive(Debug, Default)]
pub(super) struct Special {
    /// The client for which the directory is mounted, if there are several.
    pub(super) client: Option<Client>,
    /// While this file exists, flushes are not answered.
    pub(super) stall: Option<PathBuf>,
    /// While this file exists, no file or directory is found.
    pub(super) stale: Option<PathBuf>,
}

/// An entry in the listing of an open directory.
#[derive(Debug)]
struct Listed {
    inode: INodeNo,
    kind: FileType,
    name: Box<OsStr>,
}

impl Passthrough {
    pub(super) fn new(
        over: &Path,
        delays: Delays,
        special: Special,
        operations: Arc<Operations>,
    ) -> io::Result<Self> {
        let nodes = Nodes::new(over, special.stale.clone())?;
        let pace = delays.rate.map(Pace::new);
        let (files, listings) = (Handles::new(), Handles::new());
        Ok(Self {
            nodes,
            room: delays.room.map(|room| AtomicU64::new(room.0)),
            delays,
            pace,
            special,
            operations,
            files,
            listings,
        })
    }

    /// Counts a metadata operation and waits for its duration.
    fn metadata(&self, name: &'static str) {
        let _under_way = self.operations.begin(name);
        sleep(self.delays.delay.0);
    }

    /// Counts a metadata operation that changes entries of directories, and waits for its duration.
    fn change(&self, name: &'static str, directories: &[INodeNo]) {
        let _under_way = self.operations.begin(name);
        let now = Instant::now();
        let turn = |client: &Client| {
            directories
                .iter()
                .map(|inode| client.change(inode.0, now))
                .max()
        };
        sleep(
            self.delays.delay.0
                + self
                    .special
                    .client
                    .as_ref()
                    .and_then(turn)
                    .unwrap_or_default(),
        );
    }

    /// Counts a read or write and waits for its turn and its delay.
    fn data(&self, name: &'static str, bytes: usize) {
        let _under_way = self.operations.begin(name);
        let turn = self
            .pace
            .as_ref()
            .map_or(Duration::ZERO, |pace| pace.wait_for(bytes, Instant::now()));
        sleep(turn + self.delays.data_delay.0);
    }

    /// Waits while flushes are not answered.
    fn stall(&self) {
        while self
            .special
            .stall
            .as_ref()
            .is_some_and(|file| file.exists())
        {
            sleep(STALL_POLL);
        }
    }

    fn look_up(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        self.nodes
            .look_up(self.nodes.descriptor(parent)?.as_fd(), name)
    }

    /// Creates an entry in a directory and replies with its attributes.
    fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        make: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
        reply: ReplyEntry,
    ) {
        let made = self
            .nodes
            .descriptor(parent)
            .and_then(|directory| Ok(make(&directory)?));
        self.entry(made.and_then(|()| self.look_up(parent, name)), reply);
    }

    fn create_file(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> io::Result<(FileAttr, File)> {
        let directory = self.nodes.descriptor(parent)?;
        let flags = kept_flags(flags) | OFlags::CREATE;
        let file = openat(&directory, name, flags, Mode::from_raw_mode(mode))?;
        Ok((
            self.nodes.look_up(directory.as_fd(), name)?,
            File::from(file),
        ))
    }

    fn open_file(&self, inode: INodeNo, flags: OpenFlags) -> io::Result<File> {
        let (_held, path) = self.nodes.path(inode)?;
        Ok(File::from(open(path, kept_flags(flags.0), Mode::empty())?))
    }

    /// Returns how long the kernel may cache entries and attributes.
    fn kept_for(&self) -> Duration {
        if self.special.client.is_some() {
            Duration::ZERO
        } else {
            KEPT_FOR
        }
    }

    /// Stores written data, or discards it if no space is left.
    fn store(&self, handle: FileHandle, data: &[u8], offset: u64) -> io::Result<usize> {
        let opened = self.files.get(handle)?;
        let take = |room: u64| room.checked_sub(data.len() as u64);
        let has_room = self.room.as_ref().is_none_or(|room| {
            room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
        });
        if has_room {
            return opened.file.write_at(data, offset);
        }
        opened.loses();
        Ok(data.len())
    }

    /// Returns the flags that tell the kernel how to handle an open file.
    fn open_flags(&self) -> FopenFlags {
        // The page cache would contain no data beyond the reported length.
        let is_direct = self.special.client.is_some() || self.deviates(Deviation::LengthsHidden);
        let direct = if is_direct {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::empty()
        };
        FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | direct
    }

    fn entry(&self, looked_up: io::Result<FileAttr>, reply: ReplyEntry) {
        match looked_up.map(|attributes| self.shown(attributes)) {
            Ok(attributes) => reply.entry(&self.kept_for(), &attributes, Generation(0)),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn attributes(&self, got: io::Result<FileAttr>, reply: ReplyAttr) {
        match got.map(|attributes| self.shown(attributes)) {
            Ok(attributes) => reply.attr(&self.kept_for(), &attributes),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    /// Returns the attributes as the kernel sees them.
    fn shown(&self, attributes: FileAttr) -> FileAttr {
        let perm = if self.deviates(Deviation::ModesIgnored) {
            0o777
        } else {
            attributes.perm
        };
        let is_hidden =
            self.deviates(Deviation::LengthsHidden) && attributes.kind == FileType::RegularFile;
        let size = if is_hidden { 0 } else { attributes.size };
        FileAttr {
            perm,
            size,
            ..attributes
        }
    }

    fn deviates(&self, deviation: Deviation) -> bool {
        self.delays.deviation == Some(deviation)
    }

    fn list(&self, inode: INodeNo) -> io::Result<Vec<Listed>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(self.nodes.descriptor(inode)?, ".", flags, Mode::empty())?;
        let entries = Dir::read_from(directory)?.map(|entry| {
            let entry = entry?;
            Ok(Listed {
                inode: INodeNo(entry.ino()),
                kind: file_type(entry.file_type().as_raw_mode()),
                name: OsStr::from_bytes(entry.file_name().to_bytes()).into(),
            })
        });
        entries.collect()
    }

    fn set(&self, inode: INodeNo, change: &Change) -> io::Result<FileAttr> {
        let (_held, path) = self.nodes.path(inode)?;
        if change.mode.is_some() && self.deviates(Deviation::ModesRefused) {
            return Err(rustix::io::Errno::PERM.into());
        }
        if let Some(mode) = change
            .mode
            .filter(|_| !self.deviates(Deviation::ModesIgnored))
        {
            chmodat(CWD, &path, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        let is_given = change.owner.is_some() || change.group.is_some();
        if is_given && !self.deviates(Deviation::OwnersIgnored) {
            let descriptor = self.nodes.descriptor(inode)?;
            let owner = change.owner.map(Uid::from_raw);
            chownat(
                descriptor,
                "",
                owner,
                change.group.map(Gid::from_raw),
                AtFlags::EMPTY_PATH,
            )?;
        }
        if let Some(size) = change.size {
            ftruncate(
                open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?,
                size,
            )?;
        }
        let sets = [change.accessed.is_some(), change.modified.is_some()];
        let is_ignored = self.deviates(Deviation::TimesIgnored)
            || self.deviates(Deviation::SingleTimesIgnored) && sets != [true, true];
        if sets != [false, false] && !is_ignored {
            let times = Timestamps {
                last_access: timespec(change.accessed),
                last_modification: timespec(change.modified),
            };
            utimensat(
                self.nodes.descriptor(inode)?,
                "",
                &times,
                AtFlags::EMPTY_PATH,
            )?;
        }
        self.nodes.attributes(inode)
    }
}

/// The attributes to set on a file.
struct Change {
    mode: Option<u32>,
    owner: Option<u32>,
    group: Option<u32>,
    size: Option<u64>,
    accessed: Option<TimeOrNow>,
    modified: Option<TimeOrNow>,
}

impl Filesystem for Passthrough {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _a_smaller_one_serves_too = config.set_max_background(self.delays.depth);
        // Without this, read-ahead stops when three quarters of the requests are in flight.
        let _a_smaller_one_serves_too = config.set_congestion_threshold(self.delays.depth);
        // NFS and Lustre look up names of one directory concurrently, and also process the parts of direct I/O
        // concurrently.
        let side_by_side = InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_ASYNC_DIO;
        let _an_old_kernel = config.add_capabilities(side_by_side);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.metadata("lookup");
        self.entry(self.look_up(parent, name), reply);
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        self.nodes.forget(inode, lookups);
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.metadata("getattr");
        self.attributes(self.nodes.attributes(inode), reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _attributes_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.metadata("setattr");
        self.attributes(
            self.set(
                inode,
                &Change {
                    mode,
                    owner,
                    group,
                    size,
                    accessed,
                    modified,
                },
            ),
            reply,
        );
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        self.metadata("readlink");
        let target = self
            .nodes
            .descriptor(inode)
            .and_then(|node| Ok(readlinkat(node, "", Vec::new())?));
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn mknod(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        self.change("mknod", &[parent]);
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.make(
            parent,
            name,
            |directory| mknodat(directory, name, kind, mode, u64::from(device)),
            reply,
        );
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.change("mkdir", &[parent]);
        self.make(
            parent,
            name,
            |directory| mkdirat(directory, name, Mode::from_raw_mode(mode)),
            reply,
        );
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.change("unlink", &[parent]);
        let removed = self.nodes.descriptor(parent);
        done(
            removed.and_then(|parent| Ok(unlinkat(parent, name, AtFlags::empty())?)),
            reply,
        );
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.change("rmdir", &[parent]);
        let removed = self.nodes.descriptor(parent);
        done(
            removed.and_then(|parent| Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)),
            reply,
        );
    }

    fn symlink(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.change("symlink", &[parent]);
        self.make(
            parent,
            name,
            |directory| symlinkat(target, directory, name),
            reply,
        );
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let across = [parent, new_parent];
        self.change(
            "rename",
            if parent == new_parent {
                &across[1..]
            } else {
                &across
            },
        );
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let renamed = || {
            let (from, to) = (
                self.nodes.descriptor(parent)?,
                self.nodes.descriptor(new_parent)?,
            );
            Ok(renameat_with(from, name, to, new_name, flags)?)
        };
        done(renamed(), reply);
    }

    fn link(
        &self,
        _request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.change("link", &[new_parent]);
        match self.nodes.path(inode) {
            Ok((_held, path)) => self.make(
                new_parent,
                new_name,
                |directory| linkat(CWD, &path, directory, new_name, AtFlags::SYMLINK_FOLLOW),
                reply,
            ),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.metadata("open");
        match self.open_file(inode, flags) {
            Ok(file) => reply.opened(self.files.add(OpenFile::new(file)), self.open_flags()),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.data("read", size as usize);
        let mut room = vec![0; size as usize];
        match self
            .files
            .get(handle)
            .and_then(|opened| opened.file.read_at(&mut room, offset))
        {
            Ok(bytes) => reply.data(&room[..bytes]),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.data("write", data.len());
        if let Some(client) = &self.special.client {
            sleep(client.write(inode.0, offset, data.len(), Instant::now()));
        }
        match self.store(handle, data, offset) {
            Ok(bytes) => reply.written(u32::try_from(bytes).unwrap_or(u32::MAX)),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Without a limit there is no error to report. The kernel does not send flush requests again after this error.
        if self.room.is_none() {
            return reply.error(Errno::ENOSYS);
        }
        self.metadata("flush");
        done(
            self.files.get(handle).and_then(|opened| opened.check()),
            reply,
        );
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.remove(handle);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.metadata("fsync");
        self.stall();
        let flush = |opened: Arc<OpenFile>| {
            opened.check()?;
            if data_only {
                opened.file.sync_data()
            } else {
                opened.file.sync_all()
            }
        };
        done(self.files.get(handle).and_then(flush), reply);
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.metadata("opendir");
        match self.list(inode) {
            Ok(listing) => reply.opened(self.listings.add(listing), FopenFlags::empty()),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.metadata("readdir");
        let listing = match self.listings.get(handle) {
            Ok(listing) => listing,
            Err(error) => return reply.error(Errno::from(error)),
        };
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, listed) in (offset + 1..).zip(listing.iter().skip(first)) {
            if reply.add(listed.inode, at, listed.kind, &listed.name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.remove(handle);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.metadata("fsyncdir");
        let flushed = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = openat(self.nodes.descriptor(inode)?, ".", flags, Mode::empty())?;
            Ok(fsync(directory)?)
        };
        done(flushed(), reply);
    }

    fn statfs(&self, _request: &Request, inode: INodeNo, reply: ReplyStatfs) {
        self.metadata("statfs");
        match self
            .nodes
            .descriptor(inode)
            .and_then(|node| Ok(fstatvfs(node)?))
        {
            Ok(of) => {
                let block = u32::try_from(of.f_bsize).unwrap_or(u32::MAX);
                let fragment = u32::try_from(of.f_frsize).unwrap_or(u32::MAX);
                let name = u32::try_from(of.f_namemax).unwrap_or(u32::MAX);
                reply.statfs(
                    of.f_blocks,
                    of.f_bfree,
                    of.f_bavail,
                    of.f_files,
                    of.f_ffree,
                    block,
                    name,
                    fragment,
                );
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.metadata("fallocate");
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        done(
            self.files
                .get(handle)
                .and_then(|opened| Ok(fallocate(&opened.file, mode, offset, length)?)),
            reply,
        );
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.change("create", &[parent]);
        match self.create_file(parent, name, mode, flags) {
            Ok((attributes, file)) => {
                let handle = self.files.add(OpenFile::new(file));
                let attributes = self.shown(attributes);
                reply.created(
                    &self.kept_for(),
                    &attributes,
                    Generation(0),
                    handle,
                    self.open_flags(),
                );
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }
}

fn sleep(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

fn done(result: io::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from(error)),
    }
}

/// Returns the open flags that apply below the mount. The kernel handles direct I/O above it, and appending writes have
/// explicit offsets.
fn kept_flags(flags: i32) -> OFlags {
    let dropped = OFlags::DIRECT | OFlags::APPEND | OFlags::NOFOLLOW;
    (OFlags::from_bits_retain(flags.cast_unsigned()) - dropped) | OFlags::CLOEXEC
}

/// How long the kernel may cache entries and attributes. This is the default of libfuse.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// Interval between checks whether flushes are answered again.
const STALL_POLL: Duration = Duration::from_millis(20);
