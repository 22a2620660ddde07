//! Remembers properties of network paths from this host, measured by earlier pushes. They are stored in the file
//! `paths`, in the directory of the keys.
//!
//! The next push to the same host and port dials the remembered number of lanes immediately. It sets the remembered
//! congestion control before a lane's first data, if the round trip time is similar. A loss-tolerant congestion control
//! is remembered for a shorter time, because it finds its rate by causing loss.
//!
//! The bytes that the path carried within one round trip are remembered for a day, together with the addresses of both
//! ends. QUIC starts with half of that window (`zmove-transport: quic/resume.rs`), and
//! [`dial`](crate::connecting::dial) uses it to choose between TCP and QUIC.
//!
//! Each line of the file contains one path: `HOST:PORT` and its properties in JSON.
//!
//! **Invariant:** only one push at a time uses a window. A push removes the window from the file, and stores a new
//! window when it succeeds. All other contents of the file are only advice: if the file cannot be read or parsed, a
//! warning is issued and the contents are ignored. A push never fails because of the file.

use std::path::{Path, PathBuf};

use zmove_disk::{CacheFile, today};

use crate::connecting::location::Remote;
use crate::notice::{Listener, Notice};

pub(crate) use known::PathMeasurement;
pub use known::{PathRecord, Rates, Window};

mod known;

pub(crate) mod fuzzing;

/// The memory of one path: the file and the path's key in it.
#[derive(Debug)]
pub struct PathMemory {
    paths: CacheFile<PathRecord>,
    endpoint: String,
}

impl PathMemory {
    /// Returns the memory of the path to `remote` in the directory `home`.
    #[must_use]
    pub fn of(home: &Path, remote: &Remote) -> Self {
        let host = remote.host.to_ascii_lowercase();
        Self {
            paths: paths(home.join(FILE)),
            endpoint: format!("{host}:{}", remote.port),
        }
    }

    /// Returns the properties measured by the last push, unless they are too old.
    pub fn recall(&self, listener: &dyn Listener) -> Option<PathRecord> {
        let known = self.paths.get(&self.endpoint).unwrap_or_else(|source| {
            listener.hear(&Notice::PathsUnread {
                file: self.paths.file(),
                source,
            });
            None
        });
        known.and_then(PathRecord::if_recent)
    }

    /// Returns the rate of the last push, in bytes per second. Does not report an unreadable file.
    #[must_use]
    pub fn last_rate(&self) -> Option<u64> {
        Some(self.known()?.bytes_per_second)
    }

    /// Returns the current properties. Does not report an unreadable file.
    pub(crate) fn known(&self) -> Option<PathRecord> {
        self.paths
            .get(&self.endpoint)
            .ok()?
            .and_then(PathRecord::if_recent)
    }

    /// Removes the window from the file, so that no concurrent push uses it.
    pub(crate) fn take_window(&self, known: PathRecord, listener: &dyn Listener) {
        self.write(
            PathRecord {
                window: None,
                ..known
            },
            listener,
        );
    }

    /// Stores the properties measured by this push.
    pub fn keep(&self, known: PathRecord, listener: &dyn Listener) {
        // The first read has already reported an unusable file.
        let day = match self.known() {
            // The remembered loss-tolerant control was used again without a comparison with the default control. Its
            // age is therefore kept.
            Some(before) if before.loss_tolerant && known.loss_tolerant => before.day,
            _ => known.day,
        };
        self.write(PathRecord { day, ..known }, listener);
    }

    fn write(&self, known: PathRecord, listener: &dyn Listener) {
        if let Err(source) = self.paths.put(&self.endpoint, Some(known)) {
            listener.hear(&Notice::PathsUnwritten {
                file: self.paths.file(),
                source,
            });
        }
    }
}

impl PathRecord {
    /// Returns the properties that are recent enough to be used, or `None` if there are none.
    fn if_recent(self) -> Option<Self> {
        let days = today().saturating_sub(self.day);
        let loss_tolerant = self.loss_tolerant && days <= LOSS_TOLERANT_DAYS_MAX;
        (days <= DAYS_MAX).then_some(
            Self {
                loss_tolerant,
                ..self
            }
            .without_old_window(),
        )
    }
}

const fn paths(file: PathBuf) -> CacheFile<PathRecord> {
    CacheFile::new(file, HEADER, PATHS_MAX)
}

const FILE: &str = "paths";
const HEADER: &str = "# zmove paths 2";
/// Maximum number of paths in the file, which then has about 30 KiB.
const PATHS_MAX: usize = 256;
/// Number of days that a path is remembered. Paths change over months.
const DAYS_MAX: u64 = 30;
/// Number of days that a loss-tolerant congestion control is remembered. The limit makes a push choose the control
/// again from time to time. While the path is saturated, a push cannot detect that the path has stopped losing packets.
const LOSS_TOLERANT_DAYS_MAX: u64 = 7;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use zmove_sender::BestRate;
    use zmove_transport::{PathEnds, Transport};

    use super::*;
    use crate::notice::NoListener;

    fn known(lanes: u16) -> PathRecord {
        PathRecord::new(lanes, lanes > 9, Duration::from_micros(90_123), 118_000_000)
    }

    fn json(known: PathRecord) -> String {
        serde_json::to_string(&known).unwrap()
    }

    fn paths(home: &Path, host: &str) -> PathMemory {
        PathMemory::of(
            home,
            &Remote {
                host: host.into(),
                port: 5870,
                path: Vec::new(),
                login: None,
            },
        )
    }

    #[test]
    fn what_is_kept_is_recalled() {
        let home = tempfile::tempdir().unwrap();
        let (one, other) = (paths(home.path(), "One"), paths(home.path(), "fd99::2"));
        assert_eq!(one.recall(&NoListener), None);
        one.keep(known(8), &NoListener);
        other.keep(known(32), &NoListener);
        one.keep(known(16), &NoListener);
        assert_eq!(
            (one.recall(&NoListener), other.recall(&NoListener)),
            (Some(known(16)), Some(known(32)))
        );
        let text = fs::read_to_string(home.path().join("paths")).unwrap();
        assert!(
            text.starts_with("# zmove paths 2\nfd99::2:5870 {\"lanes\":32,\"loss_tolerant\":true,"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_of_no_use_and_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("paths");
        let line = format!("one:5870 {}", json(known(8)));
        for text in [
            "x".to_owned(),
            format!("# zmove paths 1\n{line}\n"),
            format!("{HEADER}\none:5870 {{\"lanes\":8}}\n"),
            format!("{HEADER}\n{}\n", line.replace(":8,", ":0,")),
            format!("{HEADER}\n{}\n", line.replace(":8,", ":65,")),
        ] {
            fs::write(&file, &text).unwrap();
            assert_eq!(
                paths(home.path(), "one").recall(&NoListener),
                None,
                "{text}"
            );
        }
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert_eq!(paths(home.path(), "one").recall(&NoListener), None);
        paths(home.path(), "one").keep(known(8), &NoListener);
        assert_eq!(
            paths(home.path(), "one").recall(&NoListener),
            Some(known(8))
        );
    }

    #[test]
    fn old_and_too_many_paths_are_forgotten() {
        let lines = (0..PATHS_MAX)
            .map(|number| (format!("host{number}:1"), known(8)))
            .collect();
        let text = super::paths(PathBuf::new()).with(lines, "new:1", Some(known(9)));
        assert_eq!(text.lines().count(), PATHS_MAX + 1);
        assert!(
            !text.contains("host0:1 ") && text.ends_with(&format!("new:1 {}\n", json(known(9))))
        );
        let home = tempfile::tempdir().unwrap();
        paths(home.path(), "old").keep(
            PathRecord {
                day: today() - DAYS_MAX - 1,
                ..known(8)
            },
            &NoListener,
        );
        assert_eq!(paths(home.path(), "old").recall(&NoListener), None);
    }

    #[test]
    fn a_congestion_control_is_chosen_anew_in_time() {
        let home = tempfile::tempdir().unwrap();
        let path = paths(home.path(), "one");
        let tolerant = |age| PathRecord {
            day: today() - age,
            ..known(32)
        };
        path.keep(tolerant(LOSS_TOLERANT_DAYS_MAX), &NoListener);
        path.keep(tolerant(0), &NoListener);
        assert_eq!(
            path.recall(&NoListener),
            Some(tolerant(LOSS_TOLERANT_DAYS_MAX)),
            "it has only been used"
        );
        path.keep(
            PathRecord {
                loss_tolerant: false,
                ..tolerant(0)
            },
            &NoListener,
        );
        path.keep(tolerant(LOSS_TOLERANT_DAYS_MAX + 1), &NoListener);
        let usual = PathRecord {
            loss_tolerant: false,
            ..tolerant(LOSS_TOLERANT_DAYS_MAX + 1)
        };
        assert_eq!(path.recall(&NoListener), Some(usual));
        path.keep(tolerant(0), &NoListener);
        assert_eq!(path.recall(&NoListener), Some(tolerant(0)));
    }

    #[test]
    fn another_round_trip_is_another_path() {
        assert!(
            known(8).matches_rtt(Duration::from_millis(60))
                && known(8).matches_rtt(Duration::from_millis(170))
        );
        assert!(
            !known(8).matches_rtt(Duration::from_millis(1))
                && !known(8).matches_rtt(Duration::from_millis(300))
        );
    }

    #[test]
    fn a_window_is_used_by_one_push_at_a_time() {
        let home = tempfile::tempdir().unwrap();
        let path = paths(home.path(), "one");
        let ends = PathEnds {
            here: [192, 0, 2, 1].into(),
            there: [192, 0, 2, 9].into(),
        };
        let at_best = Some(BestRate {
            bytes_per_second: 100_000_000,
            round_trip: Duration::from_millis(90),
        });
        let found = PathMeasurement {
            transport: Transport::Quic,
            at_best,
            ends: Some(ends),
            has_lost: false,
        };
        let whole = known(8).updated_with(&found);
        path.keep(whole, &NoListener);
        assert_eq!(path.recall(&NoListener), Some(whole));
        path.take_window(whole, &NoListener);
        assert_eq!(
            path.recall(&NoListener),
            Some(PathRecord {
                window: None,
                ..whole
            })
        );
    }
}
