//! The disk of [`super::disk`] as a block device: a loop device over a file that a FUSE session of this process serves.
//!
//! The loop driver with direct I/O passes each write on as it comes and asks for `fsync` where the block
//! layer flushes; it knows no FUA, so the block layer flushes there as well. Writes are answered late, or not
//! well, by [`Faults`]. **Invariant:** a cut is one moment between two requests; nothing after it reaches its
//! image.

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

/// A block device, gone when dropped. What is mounted from it must be unmounted before.
#[derive(Debug)]
pub(crate) struct Device {
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
    clock: Option<JoinHandle<()>>,
    /// The file under the loop device.
    file: PathBuf,
    /// None while the file is changed.
    node: RefCell<Option<PathBuf>>,
}

/// What a device tells while it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The moment of a kill has come.
    Kill,
    /// The power has been cut.
    Cut,
}

/// Whether the power is still on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    On,
    Cut,
}

/// A round's share of the device.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) faults: Faults,
    /// When the device cuts the power by itself.
    pub(crate) cut: Option<Moment>,
    /// When the device asks for a kill.
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

/// A request that is answered later.
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
    /// Makes a device that holds `image`, served below `directory`.
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

    /// The block device, another one after [`Device::insert`].
    pub(crate) fn node(&self) -> Result<PathBuf> {
        self.node
            .borrow()
            .clone()
            .context("the device is not attached")
    }

    /// The contents that the device holds now.
    pub(crate) fn image(&self) -> Image {
        let mut image = self.shared.lock().disk.seen().clone();
        image.trim();
        image
    }

    /// Puts another image in, under a fresh loop device: one that somebody else had open for a moment while
    /// it was unmounted would keep pages of the image before. Nothing may be mounted.
    pub(crate) fn insert(&self, image: Image) -> Result<()> {
        self.detach()?;
        let mut state = self.shared.lock();
        state.answer_all();
        state.disk = Disk::new(image);
        state.script = None;
        drop(state);
        self.attach()
    }

    /// From now on writes may be lost, and what the script says happens. Returns what carries a byte for each
    /// piece of news.
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

    /// From now on it is a disk that never fails and loses nothing.
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

    /// Cuts the power unless that has happened, and returns what is left on the medium.
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
    /// The next one; there must be one.
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

    /// Answers each held request when it is due, until the device ends.
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
    /// Takes a write and answers it, at once or later.
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

    /// Answers after that time; without one, now.
    fn hold(&mut self, delay: Option<Duration>, answer: Answer) {
        match delay {
            Some(delay) => self.held.push(Held {
                due: Instant::now() + delay,
                answer,
            }),
            None => self.answer(answer),
        }
    }

    /// The answer leaves before the disk takes note of it, and both under the lock: so no flush can come
    /// between that was sent after the completion and is taken for an earlier one.
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

    /// From now on the device is one that works and that nobody looks at again.
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

/// The one file.
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

/// Requests that are not here are refused by the trait's own bodies; the block layer then writes zeros where it would
/// discard or punch holes.
impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // without them the kernel has 12 writes under way at a time, and waits for the first
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
/// The loop driver has 128 requests under way at most; with all of them held, nothing would go on beside them.
const HELD_MAX: usize = 64;
/// Without anything held, the clock is woken by what comes.
const IDLE: Duration = Duration::from_secs(1);
