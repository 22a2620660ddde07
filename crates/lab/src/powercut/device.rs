//! The disk of [`super::disk`] as a block device: a loop device over a file that a FUSE session of this process serves.
//!
//! The loop driver with direct I/O passes on each write as it arrives, and calls `fsync` when the block layer flushes.
//! It does not support FUA, so the block layer flushes in that case too. [`Faults`] delays writes or makes them fail.
//! **Invariant:** a power cut happens at one point between two requests, and no later request changes its image.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};

use super::disk::{Disk, FlushStart, Loss, WriteId, WriteKind};
use super::faults::{Counts, Faults, Moment};
use super::image::Image;
use crate::processes::run;
use crate::torture::dice::Dice;

/// A block device, which is removed when dropped. All its mounts must have been unmounted before.
#[derive(Debug)]
pub(crate) struct Device {
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
    clock: Option<JoinHandle<()>>,
    /// The file behind the loop device.
    file: PathBuf,
    /// The loop device. `None` while the file is being replaced.
    node: RefCell<Option<PathBuf>>,
}

/// A notification from a device in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The time of a kill was reached.
    Kill,
    /// The power was cut.
    Cut,
}

/// Whether the power is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    On,
    Cut,
}

/// The part of a round's plan that concerns the device.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) faults: Faults,
    /// When the device cuts the power, if it does so.
    pub(crate) cut: Option<Moment>,
    /// When the device requests a kill.
    pub(crate) kill: Option<Moment>,
    pub(crate) loss: Loss,
    pub(crate) dice: Dice,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    disk: Disk,
    script: Option<Script>,
    counts: Counts,
    cut: Option<Image>,
    held: Vec<Held>,
    telling: Option<PipeWriter>,
    ending: bool,
}

/// A request whose answer is delayed.
#[derive(Debug)]
struct Held {
    due: Instant,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    Write {
        write: WriteId,
        bytes: u32,
        reply: ReplyWrite,
    },
    Flush {
        start: FlushStart,
        reply: ReplyEmpty,
    },
}

impl Device {
    /// Creates a device with the contents `image`, which is served below `directory`.
    pub(crate) fn open(directory: &Path, image: Image) -> Result<Self> {
        std::fs::create_dir(directory)
            .with_context(|| format!("failed to create {}", directory.display()))?;
        let state = State {
            disk: Disk::new(image),
            script: None,
            counts: Counts::default(),
            cut: None,
            held: Vec::new(),
            telling: None,
            ending: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("zmove-lab".into())];
        let session = Session::new(
            Server {
                shared: Arc::clone(&shared),
            },
            directory,
            &config,
        )
        .and_then(Session::spawn)
        .context("failed to mount by /dev/fuse")?;
        let answering = Arc::clone(&shared);
        let clock = thread::spawn(move || answering.answer_what_is_due());
        let file = directory.join(FILE_NAME);
        let node = RefCell::new(None);
        let device = Self {
            shared,
            session: Some(session),
            clock: Some(clock),
            file,
            node,
        };
        device.attach()?;
        Ok(device)
    }

    fn attach(&self) -> Result<()> {
        let command = "losetup --find --show --direct-io=on --sector-size=4096";
        let node = run::line(&format!("{command} {}", self.file.display()))?;
        self.node.replace(Some(PathBuf::from(node.trim())));
        Ok(())
    }

    fn detach(&self) -> Result<()> {
        let Some(node) = self.node.take() else {
            return Ok(());
        };
        run::line(&format!("losetup --detach {}", node.display())).map(drop)
    }

    /// Returns the path of the block device. It changes with [`Device::insert`].
    pub(crate) fn node(&self) -> Result<PathBuf> {
        self.node
            .borrow()
            .clone()
            .context("the device is not attached")
    }

    /// Returns the current contents of the device.
    pub(crate) fn image(&self) -> Image {
        let mut image = self.shared.lock().disk.seen().clone();
        image.trim();
        image
    }

    /// Replaces the contents of the device and creates a new loop device for them. If another process had opened the
    /// old loop device while it was unmounted, pages of the old image could still be cached. Nothing may be mounted.
    pub(crate) fn insert(&self, image: Image) -> Result<()> {
        self.detach()?;
        let mut state = self.shared.lock();
        state.answer_all();
        state.disk = Disk::new(image);
        state.script = None;
        drop(state);
        self.attach()
    }

    /// Starts a script: from now on writes may be lost, and the faults of the script occur. Returns a pipe with one
    /// byte per notification.
    pub(crate) fn begin(&self, script: Script) -> Result<PipeReader> {
        let (news, telling) = pipe().context("failed to make a pipe")?;
        let mut state = self.shared.lock();
        state.telling = Some(telling);
        state.disk.begin_caching();
        state.counts = Counts::default();
        state.cut = None;
        state.script = Some(script);
        Ok(news)
    }

    /// Makes the device reliable: it never fails and loses nothing from now on.
    pub(crate) fn mend(&self) {
        let mut state = self.shared.lock();
        state.script = None;
        state.disk.end_caching();
        state.answer_all();
    }

    pub(crate) fn power(&self) -> Power {
        if self.shared.lock().cut.is_some() {
            Power::Cut
        } else {
            Power::On
        }
    }

    /// Cuts the power, unless that has happened already, and returns the contents of the medium.
    pub(crate) fn cut(&self) -> Result<Image> {
        let mut state = self.shared.lock();
        state.cut_power();
        state.cut.clone().context("the power is cut in a round")
    }

    pub(crate) fn counts(&self) -> Counts {
        self.shared.lock().counts
    }
}

impl News {
    /// Reads the next notification. There must be one.
    pub(crate) fn read(mut pipe: &PipeReader) -> Result<Self> {
        let mut byte = [0];
        std::io::Read::read_exact(&mut pipe, &mut byte)
            .context("failed to read the device's news")?;
        Ok(if byte[0] == KILL_BYTE {
            Self::Kill
        } else {
            Self::Cut
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.mend();
        if let Err(error) = self.detach() {
            eprintln!("zmove-lab: {error:#}");
        }
        self.shared.lock().ending = true;
        self.shared.changed.notify_all();
        if self.clock.take().is_some_and(|clock| clock.join().is_err()) {
            eprintln!("zmove-lab: the device's clock panicked");
        }
        if let Some(Err(error)) = self.session.take().map(BackgroundSession::umount_and_join) {
            eprintln!("zmove-lab: failed to unmount the device's file: {error}");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers each delayed request when it is due, until the device is removed.
    fn answer_what_is_due(&self) {
        let mut state = self.lock();
        while !state.ending {
            let now = Instant::now();
            for place in (0..state.held.len()).rev() {
                if state.held[place].due <= now {
                    let held = state.held.swap_remove(place);
                    state.answer(held.answer);
                }
            }
            let due = state.held.iter().map(|held| held.due).min();
            let pause = due.map_or(IDLE, |due| due.saturating_duration_since(now));
            let waited = self.changed.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.answer_all();
    }
}

impl State {
    /// Processes a write and answers it, immediately or after a delay.
    fn write(&mut self, offset: usize, data: &[u8], reply: ReplyWrite) {
        let bytes = u32::try_from(data.len()).expect("a request is smaller than 4 GiB");
        let mut delay = None;
        let mut flipped = None;
        if let Some(script) = &mut self.script {
            self.counts.writes += 1;
            if WriteKind::of(data) == WriteKind::Data {
                self.counts.data_writes += 1;
                script.cut = script.cut.map(|moment| moment.at_data(self.counts));
                script.kill = script.kill.map(|moment| moment.at_data(self.counts));
                if script.faults.data_fails(self.counts.data_writes) {
                    self.counts.failed += 1;
                    return reply.error(Errno::EIO);
                }
                if script.faults.data_flips(self.counts.data_writes) {
                    self.counts.failed += 1;
                    let mut other = data.to_vec();
                    other[script.dice.index(data.len())] ^= 1 << script.dice.within(0..=7);
                    flipped = Some(other);
                }
                delay = script
                    .faults
                    .data_delay(&mut script.dice)
                    .filter(|_| self.held.len() < HELD_MAX);
            }
        }
        let write = self.disk.write(offset, flipped.as_deref().unwrap_or(data));
        self.hold(
            delay,
            Answer::Write {
                write,
                bytes,
                reply,
            },
        );
        self.follow_script(Moment::Write(self.counts.writes));
    }

    fn flush(&mut self, reply: ReplyEmpty) {
        let mut delay = None;
        if let Some(script) = &mut self.script {
            self.counts.flushes += 1;
            if script.faults.flush_fails(self.counts.flushes) {
                self.counts.failed += 1;
                return reply.error(Errno::EIO);
            }
            delay = script.faults.flush_delay(&mut script.dice);
        }
        let start = self.disk.begin_flush();
        self.hold(delay, Answer::Flush { start, reply });
        self.follow_script(Moment::Flush(self.counts.flushes));
    }

    /// Sends the answer after `delay`, or immediately if there is none.
    fn hold(&mut self, delay: Option<Duration>, answer: Answer) {
        match delay {
            Some(delay) => self.held.push(Held {
                due: Instant::now() + delay,
                answer,
            }),
            None => self.answer(answer),
        }
    }

    /// Sends the answer, then marks the write as complete on the disk. Both happen under the lock. Otherwise a flush
    /// that was sent after the completion could be processed in between and would be mistaken for an earlier flush.
    fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Write {
                write,
                bytes,
                reply,
            } => {
                reply.written(bytes);
                self.disk.complete(write);
            }
            Answer::Flush { start, reply } => {
                self.disk.complete_flush(start);
                reply.ok();
            }
        }
    }

    fn answer_all(&mut self) {
        for held in std::mem::take(&mut self.held) {
            self.answer(held.answer);
        }
    }

    fn follow_script(&mut self, now: Moment) {
        let Some(script) = &mut self.script else {
            return;
        };
        if script.kill == Some(now) {
            script.kill = None;
            self.tell(KILL_BYTE);
        }
        if self
            .script
            .as_ref()
            .is_some_and(|script| script.cut == Some(now))
        {
            self.cut_power();
        }
    }

    /// Cuts the power. From now on the device works, but its contents no longer matter.
    fn cut_power(&mut self) {
        let Some(mut script) = self.script.take() else {
            return;
        };
        self.counts.pending = self.disk.pending() as u64;
        self.cut = Some(self.disk.cut(script.loss, &mut script.dice));
        self.disk.end_caching();
        self.answer_all();
        self.tell(CUT_BYTE);
    }

    fn tell(&mut self, byte: u8) {
        if let Some(telling) = &mut self.telling {
            let _nobody_listens_at_the_end = telling.write_all(&[byte]);
        }
    }
}

/// The FUSE file system with its single file.
struct Server {
    shared: Arc<Shared>,
}

impl Server {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let directory = inode == INodeNo::ROOT;
        let bytes = if directory {
            0
        } else {
            self.shared.lock().disk.seen().bytes()
        };
        FileAttr {
            ino: inode,
            size: bytes,
            blocks: bytes / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if directory {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if directory { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// The default methods of the trait reject all other requests. As a result, the block layer writes zeros instead of
/// discarding blocks or punching holes.
impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without this, the kernel has at most 12 writes in flight and waits for the first of them.
        let needed = InitFlags::FUSE_ASYNC_DIO;
        let refused = |_| std::io::Error::other("the kernel's FUSE has no asynchronous direct I/O");
        config.add_capabilities(needed).map_err(refused)?;
        let _a_smaller_one_serves_too = config.set_max_background(u16::MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == FILE_NAME {
            reply.entry(&FOREVER, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&FOREVER, &self.attributes(inode));
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut room = Vec::with_capacity(size as usize);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.shared
            .lock()
            .disk
            .seen()
            .read(offset, size as usize, &mut room);
        reply.data(&room);
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.shared.lock().write(offset, data, reply);
        self.shared.changed.notify_all();
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.shared.lock().flush(reply);
        self.shared.changed.notify_all();
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

const FILE_NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
const FOREVER: Duration = Duration::from_secs(1 << 20);
const KILL_BYTE: u8 = b'k';
const CUT_BYTE: u8 = b'c';
/// Maximum number of delayed requests. The loop driver has at most 128 requests in flight. If all of them were delayed,
/// no other request could proceed.
const HELD_MAX: usize = 64;
/// The maximum wait without delayed requests. A new request wakes the thread.
const IDLE: Duration = Duration::from_secs(1);
