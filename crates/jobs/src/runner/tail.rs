//! What the process of an attempt prints, read as far as it has come: events of `docs/schema/events.json`, a line each.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job::{JobId, Moved};
use crate::nodes::Nodes;
use crate::place::Place;
use crate::store::AttemptEvent;

/// How far a running attempt is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptProgress {
    /// Seconds since its first session began.
    pub seconds: f64,
    /// Bytes at the target.
    pub bytes_done: u64,
    /// Bytes found.
    pub bytes_found: u64,
    /// Files at the target.
    pub files_done: u64,
    /// Files found.
    pub files_found: u64,
    /// Whether all has been found.
    pub scan_ended: bool,
    /// Bytes that the attempt has moved: the rest of `bytes_done` was there.
    pub bytes_moved: u64,
    /// Files that the attempt has moved.
    pub files_moved: u64,
    /// The present rate of what moves, once it is known.
    pub bytes_per_second: Option<f64>,
    /// Connections that carry data.
    pub lanes: u32,
    /// What limits it.
    pub limited_by: String,
    /// How it watches its source, if it does.
    pub watch: Option<Watching>,
    /// The nodes that take part, where there are several.
    pub nodes: Option<Nodes>,
}

impl AttemptProgress {
    /// What the attempt has moved so far.
    #[must_use]
    pub fn moved(&self) -> Moved {
        Moved {
            files: self.files_moved,
            bytes: self.bytes_moved,
            seconds: self.seconds,
            limited_by: Some(self.limited_by.clone()),
        }
    }
}

/// How a job watches its source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Watching {
    /// `events` of the kernel, or `walks` alone.
    pub by: String,
    /// The reason for walks alone.
    pub why: Option<String>,
    /// Directories that the kernel watches.
    pub directories: u64,
    /// Files that are to be moved now.
    pub ready: u64,
    /// Files that change, or rest.
    pub changing: u64,
    /// Whether the source is there.
    pub there: bool,
    /// Whether there is nothing to be moved.
    pub idle: bool,
}

/// The last object of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Last {
    pub(super) exit: i32,
    pub(super) message: Option<String>,
    pub(super) moved: Option<Moved>,
}

/// The reader of an attempt's events.
#[derive(Debug)]
pub(super) struct Tail {
    /// How far whole lines have been read.
    pub(super) read: u64,
    /// Events that are not recorded yet.
    pub(super) unrecorded: Vec<AttemptEvent>,
    pub(super) last: Option<Last>,
    /// The furthest that it has come, in files and bytes.
    pub(super) furthest: u64,
    /// The moment when its counts last changed.
    pub(super) moved_at: Instant,
    counts: [u64; 4],
    failures: usize,
    /// The furthest that any attempt before has come.
    before: u64,
    /// Whether it watches and has nothing to do.
    pub(super) is_idle: bool,
    /// What it has moved by its last report.
    reported: Option<Moved>,
}

/// A line, of which each event has a part.
#[derive(Deserialize)]
struct Line {
    event: String,
    message: Option<String>,
    /// Of a copy between two other hosts.
    id: Option<String>,
    exit: Option<i32>,
    files: Option<u64>,
    bytes: Option<u64>,
    failed: Option<u64>,
    seconds: Option<f64>,
    limited_by: Option<String>,
}

impl Tail {
    /// A reader that begins here; attempts before have come so far.
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

    /// What the attempt has moved: by its last word, else by its last report.
    pub(super) fn moved(&self) -> Option<Moved> {
        self.last
            .as_ref()
            .and_then(|last| last.moved.clone())
            .or_else(|| self.reported.clone())
    }

    /// Reads what has come since. A file that is not there has nothing to tell.
    pub(super) fn read_on(&mut self, path: &Path) -> io::Result<()> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        loop {
            file.seek(SeekFrom::Start(self.read))?;
            let mut bytes = Vec::new();
            (&mut file).take(PIECE_BYTES).read_to_end(&mut bytes)?;
            let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else {
                // a line without end is none of ours
                self.read += if bytes.len() as u64 == PIECE_BYTES {
                    PIECE_BYTES
                } else {
                    0
                };
                return Ok(());
            };
            bytes[..end]
                .split(|&byte| byte == b'\n')
                .for_each(|line| self.take(line));
            self.read += end as u64 + 1;
            if (bytes.len() as u64) < PIECE_BYTES {
                return Ok(());
            }
        }
    }

    fn progress(&mut self, now: AttemptProgress) {
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
            // What has nothing left to do is further than whatever went before.
            self.furthest = self.furthest.max(self.before.saturating_add(1));
            self.moved_at = Instant::now();
        }
        self.reported = Some(now.moved());
    }

    fn take(&mut self, text: &[u8]) {
        // What a cut of the power has left in the file may be anything.
        let Ok(line) = serde_json::from_slice::<Line>(text) else {
            return;
        };
        if let Some(exit) = line.exit {
            self.last = Some(last(exit, line));
            return;
        }
        match line.event.as_str() {
            "progress" => serde_json::from_slice(text).map_or((), |now| self.progress(now)),
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

fn last(exit: i32, line: Line) -> Last {
    let failed = line
        .failed
        .filter(|failed| *failed > 0)
        .map(|failed| format!("{failed} failed"));
    let moved = line.files.zip(line.bytes).map(|(files, bytes)| Moved {
        files,
        bytes,
        seconds: line.seconds.unwrap_or_default(),
        limited_by: line.limited_by,
    });
    Last {
        exit,
        message: line.message.or(failed),
        moved,
    }
}

/// How far the running attempt of a job is, by the last word of its process; none before its first.
#[must_use]
pub fn progress_of(place: &Place, id: JobId, attempt: u32) -> Option<AttemptProgress> {
    Follower::new(place, id, attempt).look()
}

/// The reader of how far a running attempt is, again and again.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
}

impl Follower {
    /// A reader for an attempt.
    #[must_use]
    pub fn new(place: &Place, id: JobId, attempt: u32) -> Self {
        Self {
            path: place.events(id, attempt),
            file: None,
            bytes: 0,
        }
    }

    /// How far the attempt is, if it has printed more since the last call.
    pub fn look(&mut self) -> Option<AttemptProgress> {
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

/// The last report of progress: mostly it is near the end.
fn last_progress(file: &File, bytes: u64) -> Option<AttemptProgress> {
    [NEAR_BYTES, LAST_BYTES].into_iter().find_map(|looked| {
        let mut end = vec![0; usize::try_from(looked.min(bytes)).ok()?];
        let length = file.read_at(&mut end, bytes.saturating_sub(looked)).ok()?;
        end[..length]
            .rsplit(|&byte| byte == b'\n')
            .find_map(|line| serde_json::from_slice(line).ok())
    })
}

/// How much is read at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Where the last report of progress is looked for first.
const NEAR_BYTES: u64 = 2 << 10;
/// Where it is looked for then.
const LAST_BYTES: u64 = 64 << 10;
/// Failed entries of an attempt that become events: its log names all.
const FAILURES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn lines_are_read_when_they_are_whole_and_each_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tail = Tail::new(0, 0);
        let write = |text: &str| file.as_file().write_all(text.as_bytes()).unwrap();
        tail.read_on(file.path()).unwrap();
        write("{\"event\":\"warning\",\"message\":\"w\"}\n\0\0\nnonsense\n{\"event\":\"prog");
        tail.read_on(file.path()).unwrap();
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
        tail.read_on(file.path()).unwrap();
        assert_eq!(
            (&tail.unrecorded, tail.furthest, &tail.last),
            (&events, 8, &None)
        );
        let moved = Some(Moved {
            files: 0,
            bytes: 3,
            seconds: 0.0,
            limited_by: Some("path".into()),
        });
        assert_eq!(tail.moved(), moved, "what was there was not moved");
        write(
            "{\"event\":\"summary\",\"exit\":23,\"files\":2,\"bytes\":3,\"failed\":4,\"seconds\":0.5,\"limited_by\":\"scan\"}\n",
        );
        tail.read_on(file.path()).unwrap();
        let moved = Moved {
            files: 2,
            bytes: 3,
            seconds: 0.5,
            limited_by: Some("scan".into()),
        };
        let expected = Last {
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
        let place = Place::open(&directory.path().join("jobs")).unwrap();
        std::fs::create_dir(place.job(JobId(1))).unwrap();
        let mut follower = Follower::new(&place, JobId(1), 1);
        assert_eq!(follower.look(), None);
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
            assert_eq!(follower.look(), Some(progress(bytes_done)));
            assert_eq!(progress_of(&place, JobId(1), 1), Some(progress(bytes_done)));
            assert_eq!(follower.look(), None);
        }
    }

    #[test]
    fn who_watches_and_has_nothing_to_do_has_come_further() {
        let mut tail = Tail::new(0, 1 << 40);
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
            tail.take(line.as_bytes());
            (tail.is_idle, tail.furthest)
        };
        assert_eq!(take(false), (false, 7));
        assert_eq!(take(true), (true, (1 << 40) + 1));
        assert_eq!(take(false), (false, (1 << 40) + 1));
    }

    #[test]
    fn failures_without_end_do_not_fill_the_store() {
        let mut tail = Tail::new(0, 0);
        (0..1000).for_each(|_| tail.take(b"{\"event\":\"failed\",\"message\":\"f\"}"));
        assert_eq!(tail.unrecorded.len(), FAILURES_MAX);
    }
}
