//! Examines a file before it is read, at a time when nobody is writing to the file.
//!
//! A second examination after the read detects changes by the file's timestamps. However, timestamps are set when a
//! write begins, no matter how long the write takes. On kernels before 6.13 and on many file systems, the resolution of
//! timestamps is a clock tick.
//!
//! **Invariant:** when the first examination has returned, all writes that began before it have ended, if the file
//! system supports waiting for them. A write that begins later changes the file's timestamps, unless the file has been
//! changed in every tick for [`PATIENCE`].

use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use rustix::time::{ClockId, clock_gettime};
use zmove_disk::FileIdentity;
use zmove_types::Timestamp;

/// Returns the identity of a file at a time when no write to the file is in progress. `made` returns whether the
/// contents of a file are generated when they are read. This function does not wait for such a file.
pub(super) fn settled_identity(
    file: &File,
    made: impl Fn(&FileIdentity) -> bool,
) -> io::Result<FileIdentity> {
    let started = Instant::now();
    loop {
        let now = now();
        let identity = FileIdentity::of(file)?;
        if !identity.regular || is_distant(identity.ctime, now) || made(&identity) {
            return Ok(identity);
        }
        let patience = if has_seconds_only(identity.ctime) {
            PATIENCE_SECONDS
        } else {
            PATIENCE
        };
        if shows_later_changes(identity.ctime, now) || started.elapsed() > patience {
            wait_for_write(file, identity.bytes)?;
            return Ok(identity);
        }
        thread::sleep(PAUSE);
    }
}

/// Returns whether a write that changed a file at the time `changed` must have ended by now.
fn is_distant(changed: Timestamp, now: Timestamp) -> bool {
    changed.seconds < now.seconds - WRITE_SECONDS_MAX
}

/// Returns whether any change after `now` would give the file a timestamp that differs from `seen`.
fn shows_later_changes(seen: Timestamp, now: Timestamp) -> bool {
    // The file's timestamp is in the future, because the clock was ahead when the file was changed.
    let is_ahead = seen.seconds > now.seconds + 1;
    is_ahead
        || if has_seconds_only(seen) {
            seen.seconds != now.seconds
        } else {
            seen < now
        }
}

/// Returns whether a timestamp has no fraction of a second, as on file systems that store whole seconds only.
fn has_seconds_only(time: Timestamp) -> bool {
    time.nanos == 0
}

/// Waits until a write in progress has ended, by searching the file for data. File systems take the lock that writers
/// hold for a search at any offset. Then resets the file position to the start.
fn wait_for_write(file: &File, bytes: u64) -> io::Result<()> {
    let _no_data = rustix::fs::seek(file, SeekFrom::Data(bytes.saturating_sub(1)));
    rustix::fs::seek(file, SeekFrom::Start(0))?;
    Ok(())
}

fn now() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp {
        seconds: now.tv_sec,
        nanos: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}

/// Maximum duration of one write, in seconds. One write transfers at most 2 GiB.
const WRITE_SECONDS_MAX: i64 = 3600;
/// Maximum wait for a clock tick that passes without a change to the file. The wait spans several ticks.
const PATIENCE: Duration = Duration::from_millis(60);
/// Maximum wait for a full second that passes without a change to the file. It applies if the file's timestamps have
/// whole seconds only.
const PATIENCE_SECONDS: Duration = Duration::from_millis(1100);
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::SystemTime;

    use super::*;

    fn at(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp { seconds, nanos }
    }

    #[test]
    fn a_change_in_the_same_tick_is_not_seen() {
        let tells = |seen| shows_later_changes(seen, at(7, 500));
        let seen = [
            at(7, 499),
            at(7, 500),
            at(7, 600),
            at(9, 1),
            at(6, 0),
            at(7, 0),
            at(8, 0),
        ];
        assert_eq!(
            seen.map(tells),
            [true, false, false, true, true, false, true]
        );
    }

    #[test]
    fn what_was_changed_long_ago_is_at_rest() {
        let distant = |seconds| is_distant(at(seconds, 0), at(10_000, 0));
        assert_eq!(
            [6_399, 6_400, 10_000, 20_000].map(distant),
            [true, false, false, false]
        );
    }

    /// The last byte is written last.
    #[test]
    fn a_write_that_is_under_way_is_waited_for() {
        const BYTES: usize = 128 << 20;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        std::fs::write(&path, vec![b'A'; BYTES]).unwrap();
        let (writing, reading) = (
            File::options().write(true).open(&path).unwrap(),
            File::open(&path).unwrap(),
        );
        writing.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let new = vec![b'B'; BYTES];
        thread::scope(|scope| {
            let write = scope.spawn(|| assert_eq!(writing.write_at(&new, 0).unwrap(), BYTES));
            loop {
                let has_ended = write.is_finished();
                if FileIdentity::of(&reading).unwrap().mtime != at(0, 0) {
                    break;
                }
                assert!(!has_ended, "nothing is written");
                std::hint::spin_loop();
            }
            let seen = settled_identity(&reading, |_| false).unwrap();
            let mut last = [0];
            reading.read_exact_at(&mut last, BYTES as u64 - 1).unwrap();
            assert_eq!((last, seen.bytes), ([b'B'], BYTES as u64));
            assert_eq!(FileIdentity::of(&reading).unwrap(), seen);
        });
    }
}
