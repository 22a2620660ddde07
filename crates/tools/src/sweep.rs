//! The speed of a storage: files of one size after the other, written and read as a transfer would, within a budget of
//! bytes and time.
//!
//! The sizes are those of elbencho's storage sweep, in the classes of "When to use rsync" (Fang, Cottrell,
//! Kissel): LOSF from 1 KiB, medium from 1 MiB, large from 1 GiB.
//!
//! A sweep does what a transfer does, with the same storage engine (`zmove-disk`): small files are made in
//! staging directories, large ones under hidden names, reserved and written group by group, and both are
//! flushed over and over and at the end. It keeps to its time on slow storage too (`pace.rs`).
//!
//! A sweep checks for room, plans, measures one cell after the other, and removes everything.

mod ceiling;
mod cell;
mod compare;
mod error;
mod host;
mod picture;
mod place;
mod plan;
mod result;
mod saved_sweeps;
mod shares;
mod storage;
mod table;
mod target;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zmove_disk::{Direct, FileIo, ProvenKinds, StorageEngine, Tree, cores};
use zmove_types::{ByteCount, Timestamp, unix_now};

pub(crate) use ceiling::Ceiling;
use cell::Bench;
pub use compare::{ReferenceRate, compare};
pub use error::SweepError;
use place::SweepDirectory;
use plan::{Cell, cells_within};
use result::{FORMAT, Measured, Storage, SweptHost};
pub use result::{IoDirection, ReadError, Sweep};
pub use saved_sweeps::SavedSweeps;
pub use shares::{MovedSizes, Shares};
pub use target::measure_target;
pub(crate) use target::swept;

/// The settings of a sweep.
#[derive(Clone, Debug)]
pub struct SweepConfig {
    /// The directory below which the sweep works, in a directory of its own.
    pub path: PathBuf,
    /// The directory at `path`, if it has been opened already: `path` is then used for messages alone.
    /// Default: the directory is opened by `path`.
    pub opened: Option<Tree>,
    /// The most that is written in all, in bytes. Default: 10 GiB. A larger budget gives larger files and steadier
    /// figures.
    pub budget: ByteCount,
    /// How long the sweep may take. Default: two minutes. More time gives steadier figures and, from some
    /// three minutes on, sizes in powers of two.
    pub time: Duration,
    /// Threads that write or read. Default: the number of cores, 2 to 16. Each has a buffer of 4 MiB.
    pub threads: usize,
    /// The storage engine.
    pub file_io: Arc<dyn FileIo>,
    /// Whether files are written past the page cache. Default: where it pays, as for a push.
    pub direct: Direct,
}

/// An event of a running sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SweepEvent {
    /// A directory that an earlier sweep had left has been removed.
    Removed(PathBuf),
    /// A directory that looks like a sweep's stays: it is another user's or host's, or it is not certain to be one.
    Stays(PathBuf),
    /// One size is being measured.
    Measuring {
        /// The number of the size, from 0.
        number: usize,
        /// The number of sizes in all.
        of: usize,
        /// The size of each file, in bytes.
        file_bytes: u64,
        /// Whether files are written or read.
        direction: IoDirection,
    },
    /// Everything that was written is being removed.
    Removing,
}

impl SweepConfig {
    /// The default settings, below this path.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            opened: None,
            budget: ByteCount(10 << 30),
            time: Duration::from_secs(120),
            threads: cores().clamp(2, 16),
            file_io: Arc::new(StorageEngine::Threads),
            direct: Direct::default(),
        }
    }
}

/// Measures the storage at a path, until all sizes are through, time is over, or `stop` is set.
///
/// # Errors
/// [`SweepError`]; the written files have been removed then too, unless the error says otherwise.
pub fn sweep(
    config: &SweepConfig,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(SweepEvent),
) -> Result<Sweep, SweepError> {
    let started = Instant::now();
    let open = || {
        config
            .opened
            .clone()
            .map_or_else(|| Tree::open(&config.path), Ok)
    };
    let directory = open().map_err(SweepError::io("open the directory", &config.path))?;
    let storage =
        Storage::of(directory.fd(), &config.path).map_err(SweepError::io("open", &config.path))?;
    let files_max = room(directory.fd(), config)?;
    let plan = cells_within(config.budget, config.time, files_max);
    if plan.is_empty() {
        return Err(SweepError::NothingFits(config.budget));
    }
    let place = SweepDirectory::make_in(directory, &config.path, tell)?;
    let end = started + config.time.mul_f64(MEASURE_SHARE);
    let measured = measure(config, &plan, &place, end, stop, tell);
    tell(SweepEvent::Removing);
    place.remove(config.threads.max(1))?;
    let sizes = measured?;
    let complete = sizes.len() == plan.len() && sizes.iter().all(|size| size.read.is_some());
    Ok(Sweep {
        format: FORMAT,
        zmove: env!("CARGO_PKG_VERSION").to_owned(),
        unix_seconds: unix_now()
            .as_secs()
            .saturating_sub(started.elapsed().as_secs()),
        storage,
        host: SweptHost::this(),
        threads: config.threads,
        budget_bytes: config.budget.0,
        time_seconds: config.time.as_secs_f64(),
        seconds: started.elapsed().as_secs_f64(),
        complete,
        sizes,
    })
}

/// Measures all cells until `end`, each in an equal share of the time that is left for them.
fn measure(
    config: &SweepConfig,
    plan: &[Cell],
    place: &SweepDirectory,
    end: Instant,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(SweepEvent),
) -> Result<Vec<Measured>, SweepError> {
    let of = plan.len();
    let seconds = i64::try_from(unix_now().as_secs()).unwrap_or(i64::MAX);
    let mtime = Timestamp { seconds, nanos: 0 };
    let mut sizes = Vec::with_capacity(of);
    for (number, cell) in plan.iter().enumerate() {
        let left = u32::try_from(of - number).unwrap_or(u32::MAX);
        let slice = end.saturating_duration_since(Instant::now()) / left;
        if slice < SLICE_MIN {
            break;
        }
        let bench = Bench {
            cell: *cell,
            number,
            place,
            file_io: &config.file_io,
            direct: config.direct,
            threads: config.threads.max(1),
            mtime,
            proven: ProvenKinds::default(),
            stop,
        };
        let file_bytes = cell.file_bytes;
        let begin = |direction| {
            tell(SweepEvent::Measuring {
                number,
                of,
                file_bytes,
                direction,
            })
        };
        sizes.push(bench.measure(slice, begin)?);
        if stop.load(Ordering::Relaxed) {
            return Err(SweepError::Interrupted);
        }
    }
    Ok(sizes)
}

/// Refuses a sweep that would leave others without room; returns the most files that one size may have.
fn room(directory: BorrowedFd<'_>, config: &SweepConfig) -> Result<u64, SweepError> {
    let SweepConfig { path, budget, .. } = config;
    let stat = rustix::fs::fstatvfs(directory).map_err(SweepError::io("open", path))?;
    let free = zmove_disk::free_bytes(&stat);
    let reserve =
        (stat.f_blocks.saturating_mul(stat.f_frsize) / RESERVE_PART).min(RESERVE_BYTES_MAX);
    if free < budget.0.saturating_add(reserve) {
        return Err(SweepError::NoRoom {
            path: path.clone(),
            free: ByteCount(free),
            budget: *budget,
            reserve: ByteCount(reserve),
        });
    }
    // A file system that counts no inodes has no bound.
    let files = if stat.f_files == 0 {
        u64::MAX
    } else {
        stat.f_favail / 2 / SIZES_MAX
    };
    Ok(files.min(FILES_MAX))
}

/// The space that is left to others: this part of the file system, at most `RESERVE_BYTES_MAX`.
const RESERVE_PART: u64 = 20;
const RESERVE_BYTES_MAX: u64 = 10 << 30;
/// The share of the time for measuring. Removing everything has the rest: small files can take longer to remove than to
/// make.
const MEASURE_SHARE: f64 = 0.65;
/// The most sizes of a sweep: all LOSF and medium ones, and some large ones.
const SIZES_MAX: u64 = 32;
/// The most files of one size.
const FILES_MAX: u64 = 1 << 15;
/// The shortest slice in which a size can be measured.
const SLICE_MIN: Duration = Duration::from_millis(5);
