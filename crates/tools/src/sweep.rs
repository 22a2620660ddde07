//! Measures the speed of storage. A sweep writes and reads files in the same way as a transfer, one file size after the
//! other. It stays within a budget of bytes and time.
//!
//! The sizes are those of elbencho's storage sweep, in the classes of "When to use rsync" (Fang, Cottrell, Kissel):
//! LOSF from 1 KiB, medium from 1 MiB, large from 1 GiB.
//!
//! A sweep uses the storage engine of transfers (`zmove-disk`). As in a transfer, small files are created in staging
//! directories. Large files have hidden names, and their space is reserved before they are written group by group. Both
//! kinds are flushed repeatedly and at the end. A sweep keeps its time limit on slow storage too (`pace.rs`).
//!
//! A sweep checks the free space, plans the sizes, measures one size after the other, and removes all its files.

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
use result::{FORMAT, Measured, Storage, SweepHost};
pub use result::{IoDirection, ReadError, Sweep};
pub use saved_sweeps::SavedSweeps;
pub use shares::{MovedSizes, Shares};
pub use target::measure_target;
pub(crate) use target::swept;

/// The settings of a sweep.
#[derive(Clone, Debug)]
pub struct SweepConfig {
    /// The directory in which the sweep creates its own directory.
    pub path: PathBuf,
    /// The directory at `path`, if the caller has already opened it. `path` is then used only for messages. Default:
    /// the sweep opens `path`.
    pub opened: Option<Tree>,
    /// Maximum number of bytes to write. Default: 10 GiB. A larger budget allows larger files and makes the results
    /// more stable.
    pub budget: ByteCount,
    /// Maximum duration of the sweep. Default: two minutes. A longer sweep has more stable results. If the duration is
    /// about three minutes or more, sizes in powers of two are measured.
    pub time: Duration,
    /// Number of threads that write or read. Default: the number of cores, between 2 and 16. Each thread has a buffer
    /// of 4 MiB.
    pub threads: usize,
    /// The storage engine.
    pub file_io: Arc<dyn FileIo>,
    /// Whether writes bypass the page cache. Default: the faster of both ways, as for a push.
    pub direct: Direct,
}

/// An event of a running sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SweepEvent {
    /// A directory that an earlier sweep left behind was removed.
    Removed(PathBuf),
    /// A directory with the name of a sweep's directory was not removed. The directory belongs to another user or host,
    /// or may not have been created by a sweep.
    Stays(PathBuf),
    /// The measurement of a size has started.
    Measuring {
        /// The index of the size, starting at 0.
        number: usize,
        /// The number of sizes.
        of: usize,
        /// The size of each file, in bytes.
        file_bytes: u64,
        /// Whether the files are being written or read.
        direction: IoDirection,
    },
    /// The files of the sweep are being removed.
    Removing,
}

impl SweepConfig {
    /// Returns the default settings for a sweep in `path`.
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

/// Measures the storage at a path. Stops when all sizes are measured, the time is over, or `stop` is set.
///
/// # Errors
/// The sweep failed. The written files have been removed unless the error states otherwise.
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
        host: SweepHost::this(),
        threads: config.threads,
        budget_bytes: config.budget.0,
        time_seconds: config.time.as_secs_f64(),
        seconds: started.elapsed().as_secs_f64(),
        complete,
        sizes,
    })
}

/// Measures all cells until `end`. The remaining time is divided equally among the remaining cells.
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

/// Checks that the sweep leaves enough free space. Returns the maximum number of files per size.
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
    // A file system that reports no inode count has no limit of inodes.
    let files = if stat.f_files == 0 {
        u64::MAX
    } else {
        stat.f_favail / 2 / SIZES_MAX
    };
    Ok(files.min(FILES_MAX))
}

/// The reserve that a sweep leaves free is the size of the file system divided by this number, but at most
/// `RESERVE_BYTES_MAX`.
const RESERVE_PART: u64 = 20;
const RESERVE_BYTES_MAX: u64 = 10 << 30;
/// The fraction of the time for measurements. The rest is for the removal of the files. The removal of small files can
/// take longer than their creation.
const MEASURE_SHARE: f64 = 0.65;
/// Maximum number of sizes of a sweep: all LOSF and medium sizes, and some large ones.
const SIZES_MAX: u64 = 32;
/// Maximum number of files per size.
const FILES_MAX: u64 = 1 << 15;
/// Minimum time to measure a size.
const SLICE_MIN: Duration = Duration::from_millis(5);
