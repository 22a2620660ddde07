//! Determines how a file system stores times, by setting a time on a file and reading it back.
//!
//! File systems differ in the resolution of stored times (1 ns, 1 µs, 1 s or 2 s) and in the earliest and latest time.
//! The kernel silently replaces a time outside that range with the nearest time inside it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use zmove_types::{Lock, Name, Timestamp};

use crate::metadata::entry::{FileIdentity, set_file_mtime};
use crate::metadata::storable_times::{UNIT_SECONDS_MAX, may_be_stored_as};
use crate::opening::by_name::{create_at, unlink_at};
use crate::publishing::lease::{Lease, Permit};
use crate::staging::hidden::make_hidden;

/// How each file system stores times. Each file system is tested once, when an existing time differs from the wanted
/// time and rounding may be the reason.
#[derive(Debug, Default)]
pub struct TimeResolutions {
    probed: Lock<HashMap<u64, Arc<Lock<Option<TimeLimits>>>>>,
    /// The lease under which a test may create a hidden file, which changes the time of the directory. `None` for an
    /// inspection, which must not change the directory.
    lease: Option<Lease>,
}

/// The resolution and range of the times that one file system stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeLimits {
    /// The resolution in nanoseconds.
    unit_ns: u64,
    /// The earliest time, or `None` if no limit was found.
    earliest: Option<Timestamp>,
    /// The latest time, or `None` if no limit was found.
    latest: Option<Timestamp>,
}

impl TimeResolutions {
    /// Returns an instance for an inspection, which changes nothing. It tests a file system only with an unnamed file
    /// (`O_TMPFILE`). If the file system does not support such files, the resolution is derived from the ctime of the
    /// directory and the range is unknown.
    #[must_use]
    pub fn for_inspection() -> Self {
        Self::default()
    }

    /// Returns an instance for a transfer, which may change its target under this lease.
    #[must_use]
    pub fn under(lease: Lease) -> Self {
        Self {
            lease: Some(lease),
            ..Self::default()
        }
    }

    /// Returns whether the file system of `directory` would store the time `source` as `there`. If the file system
    /// cannot be tested because no file can be created in the directory, times are assumed to be stored exactly.
    #[must_use]
    pub fn stores_as(&self, directory: impl AsFd, there: Timestamp, source: Timestamp) -> bool {
        there == source
            || may_be_stored_as(there, source) && self.stored_time(directory, source) == there
    }

    /// Returns the time that the file system of a directory would store for `time`, or `time` itself if the file system
    /// cannot be tested.
    #[must_use]
    pub fn stored_time(&self, directory: impl AsFd, time: Timestamp) -> Timestamp {
        self.limits(directory.as_fd())
            .map_or(time, |limits| limits.stored_time(time))
    }

    fn limits(&self, directory: BorrowedFd<'_>) -> io::Result<TimeLimits> {
        let file_system = self.file_system(rustix::fs::fstat(directory)?.st_dev);
        let mut known = file_system.lock();
        if let Some(limits) = *known {
            return Ok(limits);
        }
        // A failure is not remembered, because the probe may succeed in another directory of the same file system.
        let probe = match Probe::unnamed(directory) {
            Ok(probe) => probe,
            Err(_) => match &self.lease {
                Some(lease) => Probe::named(lease, directory)?,
                None => return TimeLimits::infer_from_ctime(directory),
            },
        };
        let limits = TimeLimits::probe(&probe)?;
        *known = Some(limits);
        Ok(limits)
    }

    /// Returns the result for one file system. Each result has its own lock, so a file system that hangs while it is
    /// probed does not block the others.
    fn file_system(&self, device: u64) -> Arc<Lock<Option<TimeLimits>>> {
        let mut probed = self.probed.lock();
        Arc::clone(probed.entry(device).or_default())
    }
}

impl TimeLimits {
    /// Determines the resolution and range by setting times on a probe file and reading them back.
    fn probe(probe: &Probe<'_>) -> io::Result<Self> {
        let usual = probe.store_and_read_back(PROBE_TIME)?;
        let Some(unit_ns) = units_ns().find(|unit| truncate(PROBE_TIME, *unit) == usual) else {
            // The file system ignores times or rounds them in an unknown way, so only identical times count as equal.
            return Ok(Self {
                unit_ns: 1,
                earliest: None,
                latest: None,
            });
        };
        let limit = |far: Timestamp| {
            let between = far.min(PROBE_TIME)..=far.max(PROBE_TIME);
            let kept = probe.store_and_read_back(far).ok()?;
            (kept != truncate(far, unit_ns) && between.contains(&kept)).then_some(kept)
        };
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        Ok(Self {
            unit_ns,
            earliest: limit(at(-FAR_SECONDS)),
            latest: limit(at(FAR_SECONDS)),
        })
    }

    /// Infers the resolution from the ctime of the directory. The kernel sets that time and truncates it to the
    /// resolution of the file system.
    fn infer_from_ctime(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let changed = FileIdentity::of(directory)?.ctime;
        let unit_ns = units_ns()
            .rev()
            .find(|unit| truncate(changed, *unit) == changed);
        Ok(Self {
            unit_ns: unit_ns.unwrap_or(1),
            earliest: None,
            latest: None,
        })
    }

    fn stored_time(self, time: Timestamp) -> Timestamp {
        match (self.earliest, self.latest) {
            (Some(earliest), _) if time.seconds <= earliest.seconds => earliest,
            (_, Some(latest)) if time.seconds >= latest.seconds => latest,
            _ => truncate(time, self.unit_ns),
        }
    }
}

/// Truncates a time to a multiple of the unit.
fn truncate(time: Timestamp, unit_ns: u64) -> Timestamp {
    let Timestamp { seconds, nanos } = time;
    let unit_seconds =
        i64::try_from(unit_ns / NANOS_PER_SECOND).expect("a unit is a few seconds at most");
    if unit_seconds > 0 {
        return Timestamp {
            seconds: seconds - seconds.rem_euclid(unit_seconds),
            nanos: 0,
        };
    }
    let unit = u32::try_from(unit_ns).expect("a unit below a second");
    Timestamp {
        seconds,
        nanos: nanos - nanos % unit,
    }
}

/// An empty file on which times are set. It has no name, or a hidden name that is removed on drop.
struct Probe<'a> {
    file: File,
    named: Option<HiddenProbe<'a>>,
}

/// The hidden name of a test file, with the earlier properties of the directory that contains the file.
struct HiddenProbe<'a> {
    lease: &'a Lease,
    directory: BorrowedFd<'a>,
    name: Name,
    before: FileIdentity,
}

impl<'a> Probe<'a> {
    fn unnamed(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, c".", flags, MODE)?;
        Ok(Self {
            file: file.into(),
            named: None,
        })
    }

    fn named(lease: &'a Lease, directory: BorrowedFd<'a>) -> io::Result<Self> {
        let before = FileIdentity::of(directory)?;
        let make = |name: &Name| create_at(directory, name, MODE);
        let (name, file) = make_hidden(directory, make)?;
        Ok(Self {
            file,
            named: Some(HiddenProbe {
                lease,
                directory,
                name,
                before,
            }),
        })
    }

    fn store_and_read_back(&self, time: Timestamp) -> io::Result<Timestamp> {
        set_file_mtime(Permit::for_hidden(), self.file.as_fd(), time)?;
        Ok(FileIdentity::of(&self.file)?.mtime)
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let Some(named) = &self.named else {
            return;
        };
        let _best_effort = unlink_at(named.directory, &named.name);
        // Restore the modification time of the directory.
        if let Ok(permit) = named.lease.permit() {
            let _best_effort = set_file_mtime(permit, named.directory, named.before.mtime);
        }
    }
}

const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// A time that every file system can store. Its seconds are odd and its fraction has no digit 0, so any rounding is
/// visible.
const PROBE_TIME: Timestamp = Timestamp {
    seconds: 1_000_000_001,
    nanos: 987_654_321,
};
/// About 35,000 years, in seconds. This is outside the range of every file system that has a limit. A larger value
/// could overflow on a server that counts nanoseconds.
const FAR_SECONDS: i64 = 1 << 40;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The resolutions of file systems in nanoseconds, in ascending order: powers of ten up to 1 s, and 2 s.
fn units_ns() -> impl DoubleEndedIterator<Item = u64> {
    (0..10)
        .map(|zeros| 10_u64.pow(zeros))
        .chain([UNIT_SECONDS_MAX * NANOS_PER_SECOND])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp { seconds, nanos }
    }

    #[test]
    fn each_unit_is_told_from_the_others() {
        for (number, unit) in units_ns().enumerate() {
            let found = units_ns()
                .position(|other| truncate(PROBE_TIME, other) == truncate(PROBE_TIME, unit));
            assert_eq!(found, Some(number));
        }
    }

    #[test]
    fn times_are_cut_off_downwards_also_before_1970() {
        let both_ways = [
            (1, 734_000_001),
            (1_000, 734_000_000),
            (NANOS_PER_SECOND, 0),
        ];
        for (unit, nanos) in both_ways {
            assert_eq!(truncate(at(7, 734_000_001), unit), at(7, nanos));
            assert_eq!(truncate(at(-7, 734_000_001), unit), at(-7, nanos));
        }
        assert_eq!(truncate(at(7, 1), 2 * NANOS_PER_SECOND), at(6, 0));
        assert_eq!(truncate(at(-7, 1), 2 * NANOS_PER_SECOND), at(-8, 0));
    }

    #[test]
    fn what_is_beyond_the_range_becomes_its_end() {
        let limits = TimeLimits {
            unit_ns: 1_000,
            earliest: Some(at(-10, 0)),
            latest: Some(at(10, 0)),
        };
        let pairs = [
            (at(-11, 5_000), at(-10, 0)),
            (at(-10, 5_000), at(-10, 0)),
            (at(-9, 5_001), at(-9, 5_000)),
            (at(9, 5_001), at(9, 5_000)),
            (at(10, 5_000), at(10, 0)),
            (at(11, 5_000), at(10, 0)),
        ];
        pairs
            .into_iter()
            .for_each(|(source, kept)| assert_eq!(limits.stored_time(source), kept));
        let none = TimeLimits {
            unit_ns: 1,
            earliest: None,
            latest: None,
        };
        assert_eq!(none.stored_time(at(i64::MIN, 7)), at(i64::MIN, 7));
    }

    /// The measured limits match the file system, and the probe file is removed.
    #[test]
    fn a_file_system_is_believed() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        let before = FileIdentity::of(&directory).unwrap();
        let times = TimeResolutions::under(Lease::constant());
        let year = 31_556_952;
        let sources = [
            -120 * year,
            -year,
            year,
            40 * year,
            70 * year,
            530 * year,
            FAR_SECONDS,
        ];
        let probed: Vec<_> = sources
            .map(|seconds| times.stored_time(&directory, at(seconds, 734_567_891)))
            .into();
        assert_eq!(FileIdentity::of(&directory).unwrap(), before);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
        let file = File::create(home.path().join("f")).unwrap();
        for (seconds, kept) in sources.into_iter().zip(probed) {
            let source = at(seconds, 734_567_891);
            set_file_mtime(Permit::for_hidden(), file.as_fd(), source).unwrap();
            assert_eq!(FileIdentity::of(&file).unwrap().mtime, kept);
            assert!(times.stores_as(&directory, kept, source));
            assert!(!times.stores_as(&directory, at(kept.seconds - 1, kept.nanos), source));
        }
        if times.stored_time(&directory, at(7, 1)) == at(7, 1) {
            assert!(!times.stores_as(
                &directory,
                at(seconds_of_2001(), 0),
                at(seconds_of_2001(), 734_000_000)
            ));
        }
    }

    fn seconds_of_2001() -> i64 {
        PROBE_TIME.seconds
    }

    #[test]
    fn a_file_system_that_hangs_while_it_is_asked_holds_up_no_other() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        let device = rustix::fs::fstat(&directory).unwrap().st_dev;
        let times = TimeResolutions::under(Lease::constant());
        let (told, answer) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let hanging = times.file_system(device);
            let hangs = hanging.lock();
            scope.spawn(|| times.stored_time(&directory, at(7, 1)));
            // The table holds one reference, this test holds one, and the thread that is about to probe holds one.
            while Arc::strong_count(&hanging) < 3 {
                std::thread::yield_now();
            }
            scope.spawn(|| told.send(times.file_system(device + 1).lock().is_none()));
            assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(true));
            drop(hangs);
        });
    }

    #[test]
    fn a_probe_with_a_name_goes_and_the_directory_keeps_its_time() {
        let home = tempfile::tempdir().unwrap();
        let directory = File::open(home.path()).unwrap();
        set_file_mtime(Permit::for_hidden(), directory.as_fd(), at(9, 8)).unwrap();
        let before = FileIdentity::of(&directory).unwrap();
        let name = crate::LastingNames::new("t").name();
        let file = File::create(home.path().join(name.as_os_str())).unwrap();
        drop(Probe {
            file,
            named: Some(HiddenProbe {
                lease: &Lease::constant(),
                directory: directory.as_fd(),
                name,
                before,
            }),
        });
        assert_eq!(FileIdentity::of(&directory).unwrap().mtime, at(9, 8));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
