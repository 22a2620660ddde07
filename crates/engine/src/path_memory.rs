//! Memory of what earlier pushes learnt of the network paths from this host, in the file `paths` beside the keys.
//!
//! The next push to the same host and port dials the remembered number of lanes at once, and sets the
//! remembered congestion control before a lane's first data, if the round trip is of similar size. A
//! loss-tolerant congestion control is remembered for a shorter time, since it finds its rate by causing
//! loss.
//!
//! Each line holds one path, `HOST:PORT lanes=32 congestion=usual rtt_us=90123 bytes_per_second=118000000
//! day=20778`, and the path used last is at the end; the first line names the format version. The file is
//! replaced atomically.
//!
//! **Invariant:** the memory is advice only. If the file cannot be read or parsed, a warning is given and its
//! contents are ignored; the push never fails for it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::location::Remote;
use crate::notice::{Listener, Notice};

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

/// The knowledge of a path that one push has gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The number of lanes that suited the path.
    pub lanes: u16,
    /// Whether a congestion control that ignores loss suited the path.
    pub loss_tolerant: bool,
    /// The round trip at that time; a very different one means another path.
    pub round_trip: Duration,
    /// The rate of that push, in bytes per second.
    pub bytes_per_second: u64,
    /// The day of that push, counted from 1970.
    day: u64,
}

/// The memory of one path: the file, and the path's name in it.
#[derive(Debug)]
pub struct PathMemory {
    file: PathBuf,
    endpoint: String,
}

impl Known {
    /// The knowledge that a push has gained of a path today.
    #[must_use]
    pub fn new(lanes: u16, loss_tolerant: bool, round_trip: Duration, bytes_per_second: u64) -> Self {
        Self { lanes, loss_tolerant, round_trip, bytes_per_second, day: today() }
    }

    /// Whether a path with this round trip can be the same one.
    #[must_use]
    pub fn suits(&self, round_trip: Duration) -> bool {
        let near = |one: Duration, other: Duration| one <= other * 2 + ROUND_TRIP_NOISE;
        near(round_trip, self.round_trip) && near(self.round_trip, round_trip)
    }
}

impl PathMemory {
    /// The memory of the path to `remote`, in this home.
    #[must_use]
    pub fn of(home: &Path, remote: &Remote) -> Self {
        let host = remote.host.to_ascii_lowercase();
        Self { file: home.join(FILE), endpoint: format!("{host}:{}", remote.port) }
    }

    /// The knowledge that the last push has gained, unless it is too old.
    pub fn recall(&self, listener: &dyn Listener) -> Option<Known> {
        let lines = self.read().unwrap_or_else(|source| {
            listener.hear(&Notice::PathsUnread { file: &self.file, source });
            Vec::new()
        });
        self.find(&lines)
    }

    /// The rate of the last push, if one is remembered; a file that cannot be read is not reported.
    #[must_use]
    pub fn last_rate(&self) -> Option<u64> {
        Some(self.find(&self.read().ok()?)?.bytes_per_second)
    }

    /// Stores what this push has learnt.
    pub fn keep(&self, known: Known, listener: &dyn Listener) {
        // A file that cannot be used was reported when it was read first.
        let lines = self.read().unwrap_or_default();
        let day = match self.find(&lines) {
            // The loss-tolerant control was remembered and used without a try of the other one, so its age stays.
            Some(before) if before.loss_tolerant && known.loss_tolerant => before.day,
            _ => known.day,
        };
        let text = with(&lines, &self.endpoint, Known { day, ..known });
        if let Err(source) = zmove_disk::replace_file(&self.file, &text) {
            listener.hear(&Notice::PathsUnwritten { file: &self.file, source });
        }
    }

    /// The knowledge of the path in these lines that is not too old.
    fn find(&self, lines: &[String]) -> Option<Known> {
        let known = find(lines, &self.endpoint)?;
        let days = today().saturating_sub(known.day);
        let loss_tolerant = known.loss_tolerant && days <= LOSS_TOLERANT_DAYS_MAX;
        (days <= DAYS_MAX).then_some(Known { loss_tolerant, ..known })
    }

    /// Reads the lines of the file that hold paths.
    fn read(&self) -> io::Result<Vec<String>> {
        match fs::read_to_string(&self.file) {
            Ok(text) => parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// All lines but the first; `None` unless each of them can be parsed.
fn parse(text: &str) -> Option<Vec<String>> {
    let mut lines = text.lines();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let whole = lines.next()? == HEADER && text.len() <= BYTES_MAX;
    let lines: Vec<_> = lines.map(str::to_owned).collect();
    (whole && lines.iter().all(|line| split(line).is_some())).then_some(lines)
}

fn split(line: &str) -> Option<(&str, Known)> {
    let (endpoint, known) = line.split_once(' ')?;
    Some((endpoint, known.parse().ok()?))
}

fn find(lines: &[String], endpoint: &str) -> Option<Known> {
    lines.iter().filter_map(|line| split(line)).find(|(name, _)| *name == endpoint).map(|(_, known)| known)
}

/// The whole file with this path at its end, without the oldest paths where there would be too many.
fn with(lines: &[String], endpoint: &str, known: Known) -> String {
    let others = lines.iter().filter(|line| split(line).is_none_or(|(name, _)| name != endpoint));
    let others: Vec<_> = others.cloned().collect();
    let surplus = (others.len() + 1).saturating_sub(PATHS_MAX);
    let mut text = format!("{HEADER}\n");
    for line in &others[surplus..] {
        text.push_str(line);
        text.push('\n');
    }
    text + &format!("{endpoint} {known}\n")
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let congestion = if self.loss_tolerant { TOLERANT } else { USUAL };
        let lanes = self.lanes;
        let rate = self.bytes_per_second;
        let day = self.day;
        let micros = self.round_trip.as_micros();
        write!(f, "lanes={lanes} congestion={congestion} rtt_us={micros} bytes_per_second={rate} day={day}")
    }
}

impl FromStr for Known {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let mut field =
            |name: &str| words.next().and_then(|word| word.strip_prefix(name)?.strip_prefix('=')).ok_or(());
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        let lanes = number(field("lanes")?)?;
        let loss_tolerant = match field("congestion")? {
            TOLERANT => true,
            USUAL => false,
            _ => return Err(()),
        };
        let round_trip = Duration::from_micros(number(field("rtt_us")?)?);
        let bytes_per_second = number(field("bytes_per_second")?)?;
        let day = number(field("day")?)?;
        let lanes = u16::try_from(lanes).ok().filter(|lanes| (1..=LANES_MAX).contains(lanes)).ok_or(())?;
        Ok(Self { lanes, loss_tolerant, round_trip, bytes_per_second, day })
    }
}

fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / (24 * 60 * 60))
}

const FILE: &str = "paths";
const HEADER: &str = "# zmove paths 1";
const TOLERANT: &str = "loss-tolerant";
const USUAL: &str = "usual";
const LANES_MAX: u16 = zmove_wire::limits::LANES_MAX;
/// The most paths that are kept; the file then has some 30 KiB.
const PATHS_MAX: usize = 256;
const BYTES_MAX: usize = 1 << 20;
/// How many days a path is remembered: paths change over the months.
const DAYS_MAX: u64 = 30;
/// How many days a loss-tolerant congestion control is remembered: on a full path it cannot be seen that the
/// path is no longer lossy, so the control is chosen anew from time to time.
const LOSS_TOLERANT_DAYS_MAX: u64 = 7;
/// The time that a busy host may add to a round trip.
const ROUND_TRIP_NOISE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::NoListener;

    fn known(lanes: u16) -> Known {
        Known::new(lanes, lanes > 9, Duration::from_micros(90_123), 118_000_000)
    }

    fn paths(home: &Path, host: &str) -> PathMemory {
        PathMemory::of(home, &Remote { host: host.into(), port: 5870, path: Vec::new(), login: None })
    }

    #[test]
    fn what_is_kept_is_recalled() {
        let home = tempfile::tempdir().unwrap();
        let (one, other) = (paths(home.path(), "One"), paths(home.path(), "fd99::2"));
        assert_eq!(one.recall(&NoListener), None);
        one.keep(known(8), &NoListener);
        other.keep(known(32), &NoListener);
        one.keep(known(16), &NoListener);
        assert_eq!((one.recall(&NoListener), other.recall(&NoListener)), (Some(known(16)), Some(known(32))));
        let text = fs::read_to_string(home.path().join("paths")).unwrap();
        assert!(
            text.starts_with("# zmove paths 1\nfd99::2:5870 lanes=32 congestion=loss-tolerant rtt_us=90123 "),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_of_no_use_and_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("paths");
        let line = format!("one:5870 {}", known(8));
        for text in [
            "x".to_owned(),
            format!("# zmove paths 2\n{line}\n"),
            format!("{HEADER}\none:5870 lanes=8\n"),
            format!("{HEADER}\n{}\n", line.replace("lanes=8", "lanes=0")),
            format!("{HEADER}\n{}\n", line.replace("lanes=8", "lanes=65")),
        ] {
            fs::write(&file, &text).unwrap();
            assert_eq!(paths(home.path(), "one").recall(&NoListener), None, "{text}");
        }
        fs::write(&file, [0xff, 0xfe]).unwrap();
        assert_eq!(paths(home.path(), "one").recall(&NoListener), None);
        paths(home.path(), "one").keep(known(8), &NoListener);
        assert_eq!(paths(home.path(), "one").recall(&NoListener), Some(known(8)));
    }

    #[test]
    fn old_and_too_many_paths_are_forgotten() {
        let lines: Vec<_> = (0..PATHS_MAX).map(|number| format!("host{number}:1 {}", known(8))).collect();
        let text = with(&lines, "new:1", known(9));
        assert_eq!(text.lines().count(), PATHS_MAX + 1);
        assert!(!text.contains("host0:1 ") && text.ends_with(&format!("new:1 {}\n", known(9))));
        let home = tempfile::tempdir().unwrap();
        paths(home.path(), "old").keep(Known { day: today() - DAYS_MAX - 1, ..known(8) }, &NoListener);
        assert_eq!(paths(home.path(), "old").recall(&NoListener), None);
    }

    #[test]
    fn a_congestion_control_is_chosen_anew_in_time() {
        let home = tempfile::tempdir().unwrap();
        let path = paths(home.path(), "one");
        let tolerant = |age| Known { day: today() - age, ..known(32) };
        path.keep(tolerant(LOSS_TOLERANT_DAYS_MAX), &NoListener);
        path.keep(tolerant(0), &NoListener);
        assert_eq!(path.recall(&NoListener), Some(tolerant(LOSS_TOLERANT_DAYS_MAX)), "it has only been used");
        path.keep(Known { loss_tolerant: false, ..tolerant(0) }, &NoListener);
        path.keep(tolerant(LOSS_TOLERANT_DAYS_MAX + 1), &NoListener);
        let usual = Known { loss_tolerant: false, ..tolerant(LOSS_TOLERANT_DAYS_MAX + 1) };
        assert_eq!(path.recall(&NoListener), Some(usual));
        path.keep(tolerant(0), &NoListener);
        assert_eq!(path.recall(&NoListener), Some(tolerant(0)));
    }

    #[test]
    fn another_round_trip_is_another_path() {
        assert!(known(8).suits(Duration::from_millis(60)) && known(8).suits(Duration::from_millis(170)));
        assert!(!known(8).suits(Duration::from_millis(1)) && !known(8).suits(Duration::from_millis(300)));
    }
}
