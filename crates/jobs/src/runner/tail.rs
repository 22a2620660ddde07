//! Reads the events that the process of an attempt has printed so far, one per line, as in `docs/schema/events.json`.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job::{JobId, TransferTotals};
use crate::nodes::Nodes;
use crate::place::JobsDirectory;
use crate::store::AttemptEvent;

/// The progress of a running attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptProgress {
    /// Time since the first session of the attempt began, in seconds.
    pub seconds: f64,
    /// Bytes at the target.
    pub bytes_done: u64,
    /// Bytes found at the source.
    pub bytes_found: u64,
    /// Files at the target.
    pub files_done: u64,
    /// Files found at the source.
    pub files_found: u64,
    /// Whether the scan of the source has ended.
    pub scan_ended: bool,
    /// Bytes that the attempt has moved. The rest of `bytes_done` was at the target before.
    pub bytes_moved: u64,
    /// Files that the attempt has moved.
    pub files_moved: u64,
    /// The current rate in bytes per second, or `None` if it is not known yet.
    pub bytes_per_second: Option<f64>,
    /// Connections that carry data.
    pub lanes: u32,
    /// The current bottleneck.
    pub limited_by: String,
    /// The state of the watch, if the job watches its source.
    pub watch: Option<Watching>,
    /// The nodes that share the work, if there are several.
    pub nodes: Option<Nodes>,
}

impl AttemptProgress {
    /// Returns the totals of the attempt so far.
    #[must_use]
    pub fn moved(&self) -> TransferTotals {
        TransferTotals {
            files: self.files_moved,
            bytes: self.bytes_moved,
            seconds: self.seconds,
            limited_by: Some(self.limited_by.clone()),
        }
    }
}

/// The state of a job that watches its source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Watching {
    /// `events` if the kernel reports changes, or `walks` if the source is only scanned periodically.
    pub by: String,
    /// The reason why the kernel does not report changes.
    pub why: Option<String>,
    /// Directories that the kernel watches.
    pub directories: u64,
    /// Files ready to be moved.
    pub ready: u64,
    /// Files that are still changing, or changed too recently.
    pub changing: u64,
    /// Whether the source exists.
    pub there: bool,
    /// Whether there is nothing to move.
    pub idle: bool,
}

/// The final event of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FinalEvent {
    pub(super) exit: i32,
    pub(super) message: Option<String>,
    pub(super) moved: Option<TransferTotals>,
}

/// The reader of an attempt's events.
#[derive(Debug)]
pub(super) struct EventReader {
    /// Offset of the end of the last complete line that was read.
    pub(super) read: u64,
    /// Events that are not recorded yet.
    pub(super) unrecorded: Vec<AttemptEvent>,
    pub(super) last: Option<FinalEvent>,
    /// The best progress of this attempt, as the sum of files and bytes at the target.
    pub(super) furthest: u64,
    /// When the counts last changed.
    pub(super) moved_at: Instant,
    counts: [u64; 4],
    failures: usize,
    /// The best progress of all earlier attempts.
    before: u64,
    /// Whether the job watches its source and has nothing to do.
    pub(super) is_idle: bool,
    /// The totals in the latest progress event.
    reported: Option<TransferTotals>,
}

/// A line of events. Each kind of event has some of the fields.
#[derive(Deserialize)]
struct Line {
    event: String,
    message: Option<String>,
    /// The id of a copy between two other hosts.
    id: Option<String>,
    exit: Option<i32>,
    files: Option<u64>,
    bytes: Option<u64>,
    failed: Option<u64>,
    seconds: Option<f64>,
    limited_by: Option<String>,
}

impl EventReader {
    /// Returns a reader that starts at the offset `read`. `before` is the best progress of all earlier attempts.
    pub(super) fn new(read: u64, before: u64) -> Self {
        Self {
            read,
            unrecorded: Vec::new(),
            last: None,
            furthest: 0,
            moved_at: Instant::now(),
            counts: [0; 4],
            failures: 0,
            before,
            is_idle: false,
            reported: None,
        }
    }

    /// Returns the totals of the attempt from its final event, or else from its latest progress event.
    pub(super) fn moved(&self) -> Option<TransferTotals> {
        self.last
            .as_ref()
            .and_then(|last| last.moved.clone())
            .or_else(|| self.reported.clone())
    }

    /// Reads the events that were printed since the last call. A file that does not exist has no events.
    pub(super) fn read_new_events(&mut self, path: &Path) -> io::Result<()> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        loop {
            file.seek(SeekFrom::Start(self.read))?;
            let mut bytes = Vec::new();
            (&mut file).take(PIECE_BYTES).read_to_end(&mut bytes)?;
            let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else {
                // Skip a line that is too long to be an event.
                self.read += if bytes.len() as u64 == PIECE_BYTES {
                    PIECE_BYTES
                } else {
                    0
                };
                return Ok(());
            };
            bytes[..end]
                .split(|&byte| byte == b'\n')
                .for_each(|line| self.process_line(line));
            self.read += end as u64 + 1;
            if (bytes.len() as u64) < PIECE_BYTES {
                return Ok(());
            }
        }
    }

    fn note_progress(&mut self, now: AttemptProgress) {
        let counts = [
            now.bytes_done,
            now.bytes_found,
            now.files_done,
            now.files_found,
        ];
        if counts != self.counts {
            self.counts = counts;
            self.moved_at = Instant::now();
        }
        self.furthest = self
            .furthest
            .max(now.bytes_done.saturating_add(now.files_done));
        self.is_idle = now.watch.as_ref().is_some_and(|watch| watch.idle);
        if self.is_idle {
            // An attempt that has nothing left to do has progressed further than any earlier attempt.
            self.furthest = self.furthest.max(self.before.saturating_add(1));
            self.moved_at = Instant::now();
        }
        self.reported = Some(now.moved());
    }

    fn process_line(&mut self, text: &[u8]) {
        // After a power failure, the file may contain arbitrary data.
        let Ok(line) = serde_json::from_slice::<Line>(text) else {
            return;
        };
        if let Some(exit) = line.exit {
            self.last = Some(last(exit, line));
            return;
        }
        match line.event.as_str() {
            "progress" => serde_json::from_slice(text).map_or((), |now| self.note_progress(now)),
            "added" | "changed" | "removed" => {}
            kind => {
                self.failures += usize::from(kind == "failed");
                if kind != "failed" || self.failures <= FAILURES_MAX {
                    self.unrecorded.push(AttemptEvent {
                        kind: kind.to_owned(),
                        message: line.message.or(line.id),
                    });
                }
            }
        }
    }
}

fn last(exit: i32, line: Line) -> FinalEvent {
    let failed = line
        .failed
        .filter(|failed| *failed > 0)
        .map(|failed| format!("{failed} failed"));
    let moved = line
        .files
        .zip(line.bytes)
        .map(|(files, bytes)| TransferTotals {
            files,
            bytes,
            seconds: line.seconds.unwrap_or_default(),
            limited_by: line.limited_by,
        });
    FinalEvent {
        exit,
        message: line.message.or(failed),
        moved,
    }
}

/// Returns the progress of a job's running attempt, or `None` before its first progress event.
#[must_use]
pub fn progress_of(place: &JobsDirectory, id: JobId, attempt: u32) -> Option<AttemptProgress> {
    Follower::new(place, id, attempt).poll()
}

/// Reads the progress of a running attempt repeatedly.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
}

impl Follower {
    /// Returns a reader for an attempt.
    #[must_use]
    pub fn new(place: &JobsDirectory, id: JobId, attempt: u32) -> Self {
        Self {
            path: place.events(id, attempt),
            file: None,
            bytes: 0,
        }
    }

    /// Returns the progress of the attempt if its process has printed an event since the last call.
    pub fn poll(&mut self) -> Option<AttemptProgress> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path).ok()?),
        };
        let bytes = file.metadata().ok()?.len();
        if bytes == self.bytes {
            return None;
        }
        self.bytes = bytes;
        last_progress(file, bytes)
    }
}

/// Returns the last progress event. It is usually near the end of the file.
fn last_progress(file: &File, bytes: u64) -> Option<AttemptProgress> {
    [NEAR_BYTES, LAST_BYTES].into_iter().find_map(|looked| {
        let mut end = vec![0; usize::try_from(looked.min(bytes)).ok()?];
        let length = file.read_at(&mut end, bytes.saturating_sub(looked)).ok()?;
        end[..length]
            .rsplit(|&byte| byte == b'\n')
            .find_map(|line| serde_json::from_slice(line).ok())
    })
}

/// Maximum number of bytes to read at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Number of bytes at the end of the file that are searched first for the last progress event.
const NEAR_BYTES: u64 = 2 << 10;
/// Number of bytes at the end of the file that are searched if the first search finds no progress event.
const LAST_BYTES: u64 = 64 << 10;
/// Maximum number of failed entries of an attempt that are recorded as events. The job's log has all of them.
const FAILURES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn lines_are_read_when_they_are_whole_and_each_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tail = EventReader::new(0, 0);
        let write = |text: &str| file.as_file().write_all(text.as_bytes()).unwrap();
        tail.read_new_events(file.path()).unwrap();
        write("{\"event\":\"warning\",\"message\":\"w\"}\n\0\0\nnonsense\n{\"event\":\"prog");
        tail.read_new_events(file.path()).unwrap();
        let events = vec![AttemptEvent {
            kind: "warning".into(),
            message: Some("w".into()),
        }];
        assert_eq!((&tail.unrecorded, tail.furthest), (&events, 0));
        let now = AttemptProgress {
            bytes_done: 7,
            files_done: 1,
            bytes_moved: 3,
            limited_by: "path".into(),
            ..AttemptProgress::default()
        };
        let rest = serde_json::to_string(&now).unwrap();
        write(&format!("ress\",{}\n", &rest[1..]));
        tail.read_new_events(file.path()).unwrap();
        assert_eq!(
            (&tail.unrecorded, tail.furthest, &tail.last),
            (&events, 8, &None)
        );
        let moved = Some(TransferTotals {
            files: 0,
            bytes: 3,
            seconds: 0.0,
            limited_by: Some("path".into()),
        });
        assert_eq!(tail.moved(), moved, "what was there was not moved");
        write(
            "{\"event\":\"summary\",\"exit\":23,\"files\":2,\"bytes\":3,\"failed\":4,\"seconds\":0.5,\"limited_by\":\"scan\"}\n",
        );
        tail.read_new_events(file.path()).unwrap();
        let moved = TransferTotals {
            files: 2,
            bytes: 3,
            seconds: 0.5,
            limited_by: Some("scan".into()),
        };
        let expected = FinalEvent {
            exit: 23,
            message: Some("4 failed".into()),
            moved: Some(moved),
        };
        assert_eq!(tail.last, Some(expected));
        assert_eq!(tail.read, file.path().metadata().unwrap().len());
    }

    #[test]
    fn the_last_report_is_found_once_also_before_much_else() {
        let directory = tempfile::tempdir().unwrap();
        let place = JobsDirectory::open(&directory.path().join("jobs")).unwrap();
        std::fs::create_dir(place.job(JobId(1))).unwrap();
        let mut follower = Follower::new(&place, JobId(1), 1);
        assert_eq!(follower.poll(), None);
        let progress = |bytes_done| AttemptProgress {
            bytes_done,
            ..AttemptProgress::default()
        };
        let line = |bytes_done| serde_json::to_string(&progress(bytes_done)).unwrap() + "\n";
        let warnings = "{\"event\":\"failed\"}\n".repeat(500);
        let mut text = String::new();
        for bytes_done in 1..3 {
            text += &(line(bytes_done) + &warnings);
            std::fs::write(place.events(JobId(1), 1), &text).unwrap();
            assert_eq!(follower.poll(), Some(progress(bytes_done)));
            assert_eq!(progress_of(&place, JobId(1), 1), Some(progress(bytes_done)));
            assert_eq!(follower.poll(), None);
        }
    }

    #[test]
    fn who_watches_and_has_nothing_to_do_has_come_further() {
        let mut tail = EventReader::new(0, 1 << 40);
        let mut take = |idle: bool| {
            let watch = Watching {
                idle,
                ..Watching::default()
            };
            let progress = AttemptProgress {
                bytes_done: 7,
                watch: Some(watch),
                ..AttemptProgress::default()
            };
            let mut line = serde_json::json!(progress);
            line["event"] = "progress".into();
            let line = line.to_string();
            tail.process_line(line.as_bytes());
            (tail.is_idle, tail.furthest)
        };
        assert_eq!(take(false), (false, 7));
        assert_eq!(take(true), (true, (1 << 40) + 1));
        assert_eq!(take(false), (false, (1 << 40) + 1));
    }

    #[test]
    fn failures_without_end_do_not_fill_the_store() {
        let mut tail = EventReader::new(0, 0);
        (0..1000).for_each(|_| tail.process_line(b"{\"event\":\"failed\",\"message\":\"f\"}"));
        assert_eq!(tail.unrecorded.len(), FAILURES_MAX);
    }
}
