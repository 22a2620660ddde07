//! Displays jobs, either as a table with two lines for each job, or as JSON objects as described in
//! `docs/schema/job.json`.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use zmove_api::{EventView, Figures, JobView, current_progress};
use zmove_jobs::{AttemptProgress, Job, JobEvent, JobsDirectory, Moment, State, format_local};
use zmove_types::{ByteCount, ByteRate};

use crate::display::format::{counted, cut, wrapped};
use crate::display::nodes;
use crate::display::terminal::Printable;
use crate::value::age::Age;

pub(crate) use details::{Details, taking_part};

mod details;

/// A job with its progress. For a paused job, this is the progress before the pause.
pub(crate) struct Row {
    job: Job,
    progress: Option<AttemptProgress>,
    view: JobView,
}

impl Row {
    /// Reads the current progress of a job.
    pub(crate) fn of(place: &JobsDirectory, job: Job) -> Self {
        let progress = current_progress(place, &job);
        Self::new(job, progress)
    }

    fn new(job: Job, progress: Option<AttemptProgress>) -> Self {
        let view = JobView::new(&job, progress.as_ref());
        Self {
            job,
            progress,
            view,
        }
    }

    /// Returns the files and bytes moved by all attempts of the job together.
    fn moved(&self) -> Option<(u64, u64)> {
        Some((self.view.figures.files?, self.view.figures.bytes?))
    }

    /// Returns the files and bytes already at the target. If the job has ended, returns the files and bytes that it
    /// moved.
    fn done(&self) -> Option<(u64, u64)> {
        let figures = &self.view.figures;
        let done = figures.files_done.zip(figures.bytes_done);
        done.or_else(|| self.moved())
    }

    /// Returns the job as a JSON object.
    pub(crate) fn as_json(&self) -> Value {
        json!(self.view)
    }

    /// Writes the lines of the job in the table.
    fn write(&self, text: &mut String, now: Moment, error: LastError) {
        let unknown = || "-".to_owned();
        let Figures {
            bytes_found,
            bytes_per_second,
            eta_seconds,
            ..
        } = self.view.figures;
        let (files, done) = self.done().unzip();
        let files = files.map_or_else(unknown, |files| files.to_string());
        let done = done.map_or_else(unknown, |bytes| ByteCount(bytes).to_string());
        let of = bytes_found.map_or_else(unknown, |bytes| ByteCount(bytes).to_string());
        let rate = bytes_per_second.map_or_else(unknown, |rate| ByteRate(rate).to_string());
        let left = eta_seconds.map(Duration::from_secs);
        let left = left.map_or_else(unknown, |left| Age(left).to_string());
        let Job {
            id, state, attempt, ..
        } = &self.job;
        // Writing to a string cannot fail.
        let _written = writeln!(
            text,
            "{id:<6} {state:<9} {files:>8} {done:>11} {of:>11} {rate:>11} {left:>6} {attempt:>5}"
        );
        let sentence = Printable(self.sentence(now, error)).to_string();
        let _written = writeln!(text, "{:INDENT$}{}", "", wrapped(&sentence, INDENT));
        if let Some(waits) = self.waits(now, error) {
            let _written = writeln!(
                text,
                "{:INDENT$}{}",
                "",
                cut(&Printable(waits).to_string(), INDENT)
            );
        }
    }

    /// Returns the reason why a job waits for its next attempt, and the duration of the wait.
    fn waits(&self, now: Moment, error: LastError) -> Option<String> {
        let Job {
            state: State::Waiting,
            attempt: 1..,
            not_before: Some(due),
            message,
            ..
        } = &self.job
        else {
            return None;
        };
        let why = after_colon(message.as_ref().filter(|_| error == LastError::Here));
        Some(format!("tries again in {}{why}", Age(due.since(now))))
    }

    fn sentence(&self, now: Moment, error: LastError) -> String {
        let Job {
            label,
            source,
            target,
            host,
            message,
            ..
        } = &self.job;
        let is_tried_again = self.waits(now, error).is_some();
        let mut sentence = format!("{label}: {source} -> {target}");
        let limited_by = &self.view.figures.limited_by;
        if limited_by.as_deref() == Some("watching") {
            sentence += ", watching";
        } else if limited_by.as_deref() == Some("connection") && !host.is_empty() {
            sentence += &format!(", without a connection to {host}");
        } else if let Some(limit) = limited_by {
            sentence += &format!(", limited by {}", limit.replace('_', " "));
        }
        if let (State::Waiting, Some(due), false) =
            (self.job.state, self.job.not_before, is_tried_again)
        {
            sentence += &format!(", begins in {}", Age(due.since(now)));
        }
        if let Some(schedule) = &self.job.schedule {
            sentence += &format!(", each '{schedule}'");
        }
        if let Some(wish) = self.job.wish {
            sentence += &format!(", asked to {}", wish.as_ref());
        }
        let is_here = !is_tried_again && error == LastError::Here;
        sentence + &after_colon(message.as_ref().filter(|_| is_here))
    }

    /// Returns a line that describes how the job ended.
    pub(crate) fn end(&self) -> String {
        let Job {
            id,
            label,
            state,
            message,
            ..
        } = &self.job;
        let moved = self.moved().map(|(files, bytes)| {
            let rate = self.view.figures.bytes_per_second;
            let rate = rate.map_or_else(String::new, |rate| format!(", {}", ByteRate(rate)));
            format!(": {}, {}{rate}", counted(files, "file"), ByteCount(bytes))
        });
        let moved = moved.unwrap_or_default();
        let why = after_colon(message.as_ref());
        Printable(format!("job {id} ({label}) {}{moved}{why}", state.phrase())).to_string()
    }

    /// Returns the text that follows the progress bar. If the job is not running, the text contains no rate.
    pub(crate) fn bar(&self) -> String {
        let message = after_colon(self.job.message.as_ref());
        let line = match &self.progress {
            None => format!("{}{message}", self.job.state),
            Some(progress) => {
                let AttemptProgress {
                    bytes_done,
                    bytes_found,
                    files_done,
                    files_found,
                    ..
                } = progress;
                let more = if progress.scan_ended { "" } else { "+" };
                let bytes = format!(
                    "{} of {}{more}",
                    ByteCount(*bytes_done),
                    ByteCount(*bytes_found)
                );
                let files = format!("{files_done} of {files_found}{more} files");
                match self.job.state {
                    State::Running => running(progress, &bytes, &files),
                    state => format!("{state}, {bytes}, {files}{message}"),
                }
            }
        };
        Printable(line).to_string()
    }

    /// Returns the bytes at the target and the total bytes found so far.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let progress = self.progress.as_ref();
        progress.map_or((0, 1), |progress| {
            (progress.bytes_done, progress.bytes_found.max(1))
        })
    }

    pub(crate) fn state(&self) -> State {
        self.job.state
    }
}

/// Returns a text with the progress and rate of a running job, and with the nodes that take part.
fn running(progress: &AttemptProgress, bytes: &str, files: &str) -> String {
    let nodes = progress.nodes.as_ref();
    let rate = nodes::rate_and_nodes(progress.bytes_per_second, nodes);
    let limit = progress.limited_by.replace('_', " ");
    let which = nodes.map(nodes::waiting_and_slow);
    format!(
        "{bytes}{rate}, {limit}, {files}{}",
        which.unwrap_or_default()
    )
}

/// Formats a message as a suffix after a colon.
fn after_colon(message: Option<&String>) -> String {
    message.map_or_else(String::new, |message| format!(": {message}"))
}

/// The place where the error of a job's last attempt is displayed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastError {
    /// In the row of the job.
    Here,
    /// Below the row, among the details.
    Below,
}

/// The column at which the sentence about a job starts.
const INDENT: usize = 7;

/// Returns the table of jobs as text.
pub(crate) fn table(rows: &[Row], now: Moment) -> String {
    let mut text = HEADING.to_owned();
    rows.iter()
        .for_each(|row| row.write(&mut text, now, LastError::Here));
    text
}

/// Returns one job with its details as text.
pub(crate) fn one(row: &Row, details: &Details, now: Moment) -> String {
    let mut text = HEADING.to_owned();
    row.write(
        &mut text,
        now,
        if details.shows_error_of(row) {
            LastError::Below
        } else {
            LastError::Here
        },
    );
    text + &details.lines(row)
}

const HEADING: &str =
    "ID     STATE        FILES        DONE          OF        RATE   LEFT   TRY\n";

/// Returns an event as a line of text.
pub(crate) fn event(
    JobEvent {
        time,
        kind,
        attempt,
        message,
        ..
    }: &JobEvent,
) -> String {
    let attempt = if *attempt > 0 {
        format!(" ({attempt})")
    } else {
        String::new()
    };
    let message = after_colon(message.as_ref());
    Printable(format!("{} {kind}{attempt}{message}", format_local(*time))).to_string()
}

/// Returns an event as a JSON object.
pub(crate) fn event_as_json(event: &JobEvent) -> Value {
    json!(EventView::from(event.clone()))
}

#[cfg(test)]
pub(super) mod tests {
    use zmove_jobs::{JobId, TransferTotals};

    use super::*;

    pub(in crate::display::job) fn job() -> Job {
        Job {
            id: JobId(12),
            submission: None,
            label: "run7".into(),
            state: State::Running,
            wish: None,
            source: "/data/run7".into(),
            target: "dtn:/in".into(),
            host: "dtn:5870".into(),
            priority: 0,
            submitted: Moment(0),
            not_before: None,
            started: Some(Moment(0)),
            ended: None,
            schedule: None,
            deadline: Duration::from_secs(86_400),
            attempt: 2,
            exit: None,
            message: None,
            moved: None,
            previous: None,
            notify: None,
        }
    }

    #[test]
    fn the_bar_of_a_job_says_who_shares_its_work_and_who_holds_up_the_others() {
        let slow = zmove_jobs::Node {
            name: "node3".into(),
            state: zmove_jobs::Pace::Slow,
            percent_of_others: Some(31),
            ..zmove_jobs::Node::default()
        };
        let nodes = zmove_jobs::Nodes {
            kind: zmove_jobs::Party::Node,
            count: 3,
            items_waiting: Some(12),
            nodes: vec![slow],
            receivers: Vec::new(),
        };
        let progress = AttemptProgress {
            limited_by: "path".into(),
            nodes: Some(nodes),
            ..AttemptProgress::default()
        };
        let bar = Row::new(job(), Some(progress.clone())).bar();
        assert!(bar.contains(" by 3 nodes (1 slow), path, "), "{bar}");
        assert!(
            bar.ends_with(" files; 12 items waiting; slow: node3 (0.3 of the median)"),
            "{bar}"
        );
        let progress = AttemptProgress {
            files_found: 9,
            ..progress
        };
        let held = |message: Option<&str>| {
            let job = Job {
                state: State::Paused,
                message: message.map(str::to_owned),
                ..job()
            };
            Row::new(job, Some(progress.clone())).bar()
        };
        assert_eq!(
            held(None),
            "paused, 0 B of 0 B+, 0 of 9+ files",
            "nobody moves anything"
        );
        assert!(held(Some("why")).ends_with(" files: why"));
    }

    fn half_done() -> AttemptProgress {
        AttemptProgress {
            seconds: 3.0,
            bytes_done: 3 << 30,
            bytes_found: 6 << 30,
            files_done: 12,
            files_found: 24,
            scan_ended: true,
            bytes_moved: 1 << 30,
            files_moved: 4,
            bytes_per_second: Some(125_000_000.0),
            lanes: 4,
            limited_by: "source_reads".into(),
            watch: None,
            nodes: None,
        }
    }

    #[test]
    fn a_job_has_two_lines_that_fit_a_terminal() {
        let runs = Row::new(job(), Some(half_done()));
        let waits = Job {
            state: State::Waiting,
            not_before: Some(Moment(90_000)),
            message: Some("connect to dtn:5870: no answer\n".to_owned() + &"and more ".repeat(9)),
            target: format!("dtn:/{}", "long/".repeat(9)),
            ..job()
        };
        let moved = Some(TransferTotals {
            files: 1,
            bytes: 1 << 20,
            seconds: 1.0,
            limited_by: None,
        });
        let done = Job {
            state: State::Done,
            moved: moved.clone(),
            ..job()
        };
        let held = Row::new(
            Job {
                state: State::Paused,
                moved: moved.clone(),
                ..job()
            },
            runs.progress.clone(),
        );
        let again = Row::new(Job { moved, ..job() }, runs.progress.clone()).as_json();
        assert_eq!(
            (&again["files"], &again["files_done"]),
            (&5.into(), &12.into()),
            "{again}"
        );
        let rows = [runs, Row::new(waits, None), Row::new(done, None), held];
        let text = table(&rows, Moment(0));
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines.iter().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(lines.len(), 10, "{text}");
        assert!(
            lines[1].contains("6.00 GiB") && lines[1].contains(" 25 s"),
            "{text}"
        );
        assert_eq!(
            lines[2].trim(),
            "run7: /data/run7 -> dtn:/in, limited by source reads"
        );
        assert!(lines[4].ends_with("long/"), "{text}");
        let waits =
            "       tries again in 1 min: connect to dtn:5870: no answer\\nand more and more";
        assert!(
            lines[5].starts_with(waits) && lines[5].ends_with('…'),
            "{text}"
        );
        let figures = "12     paused          12    3.00 GiB    6.00 GiB           -      -     2";
        assert_eq!(lines[8], figures, "what it has come to, and no rate");
        assert!(
            rows[2]
                .end()
                .starts_with("job 12 (run7) is done: 1 file, 1.00 MiB, "),
            "{}",
            rows[2].end()
        );
    }
}
