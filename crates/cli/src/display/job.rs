//! Jobs as people and programs read them: a table with two lines for each, or an object of `docs/schema/job.json`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use zmove_api::{EventView, JobView, reached};
use zmove_jobs::{
    AttemptEnd, Delivery, DeliveryState, Job, JobEvent, Moment, Place, Progress, State, Watching, shown,
};
use zmove_types::{ByteCount, ByteRate};

use crate::display::format::{bytes_per_second, counted, wrapped};
use crate::display::terminal::Printable;
use crate::value::age::Age;

/// A job, and how far it is, or was when it was held.
pub(crate) struct Row {
    job: Job,
    progress: Option<Progress>,
    view: JobView,
}

impl Row {
    /// A job as it is now.
    pub(crate) fn of(place: &Place, job: Job) -> Self {
        let progress = reached(place, &job);
        Self::new(job, progress)
    }

    fn new(job: Job, progress: Option<Progress>) -> Self {
        let view = JobView::new(&job, progress.as_ref());
        Self { job, progress, view }
    }

    /// Files and bytes at the target, as far as is known.
    fn moved(&self) -> Option<(u64, u64)> {
        Some((self.view.files?, self.view.bytes?))
    }

    /// How it goes at this moment.
    fn now(&self) -> Option<&Progress> {
        self.progress.as_ref().filter(|_| self.job.state == State::Running)
    }

    /// The object for programs.
    pub(crate) fn as_json(&self) -> Value {
        json!(self.view)
    }

    /// The lines for people.
    fn write(&self, text: &mut String, now: Moment) {
        let unknown = || "-".to_owned();
        let files = self.moved().map_or_else(unknown, |moved| moved.0.to_string());
        let done = self.moved().map_or_else(unknown, |moved| ByteCount(moved.1).to_string());
        let of = self.view.bytes_found.map_or_else(unknown, |bytes| ByteCount(bytes).to_string());
        let rate = self.view.bytes_per_second.map_or_else(unknown, |rate| ByteRate(rate).to_string());
        let left = self.view.eta_seconds.map(Duration::from_secs);
        let left = left.map_or_else(unknown, |left| Age(left).to_string());
        let Job { id, state, attempt, .. } = &self.job;
        // Writing to a string cannot fail.
        let _written = writeln!(
            text,
            "{id:<6} {state:<9} {files:>8} {done:>11} {of:>11} {rate:>11} {left:>6} {attempt:>5}"
        );
        let sentence = Printable(self.sentence(now)).to_string();
        let _written = writeln!(text, "{:INDENT$}{}", "", wrapped(&sentence, INDENT));
    }

    fn sentence(&self, now: Moment) -> String {
        let Job { label, source, target, message, .. } = &self.job;
        let mut sentence = format!("{label}: {source} -> {target}");
        if self.view.limited_by.as_deref() == Some("watching") {
            sentence += ", watching";
        } else if let Some(limit) = &self.view.limited_by {
            sentence += &format!(", limited by {}", limit.replace('_', " "));
        }
        if let (State::Waiting, Some(due)) = (self.job.state, self.job.not_before) {
            sentence += &format!(", begins in {}", Age(due.since(now)));
        }
        if let Some(schedule) = &self.job.schedule {
            sentence += &format!(", each '{schedule}'");
        }
        if let Some(wish) = self.job.wish {
            sentence += &format!(", asked to {}", format!("{wish:?}").to_lowercase());
        }
        if let Some(message) = message {
            sentence += &format!(": {message}");
        }
        sentence
    }

    /// The end of the job, on one line.
    pub(crate) fn end(&self) -> String {
        let Job { id, label, state, message, .. } = &self.job;
        let moved = self.moved().map(|(files, bytes)| {
            let rate = self.view.bytes_per_second;
            let rate = rate.map_or_else(String::new, |rate| format!(", {}", bytes_per_second(rate)));
            format!(": {}, {}{rate}", counted(files, "file"), ByteCount(bytes))
        });
        let why = message.as_ref().map(|message| format!(": {message}"));
        let (moved, why) = (moved.unwrap_or_default(), why.unwrap_or_default());
        Printable(format!("job {id} ({label}) is {state}{moved}{why}")).to_string()
    }

    /// How far it is, behind a bar.
    pub(crate) fn bar(&self) -> String {
        let Some(progress) = &self.progress else {
            let message = self.job.message.as_ref().map(|message| format!(": {message}"));
            return Printable(format!("{}{}", self.job.state, message.unwrap_or_default())).to_string();
        };
        let more = if progress.scan_ended { "" } else { "+" };
        format!(
            "{} of {}{more}, {} of {}{more} files, {}, {}",
            ByteCount(progress.bytes_done),
            ByteCount(progress.bytes_found),
            progress.files_done,
            progress.files_found,
            ByteRate(progress.bytes_per_second),
            progress.limited_by.replace('_', " "),
        )
    }

    /// Bytes at the target and all that there are, as far as is known.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let progress = self.progress.as_ref();
        progress.map_or((0, 1), |progress| (progress.bytes_done, progress.bytes_found.max(1)))
    }

    pub(crate) fn state(&self) -> State {
        self.job.state
    }
}

/// The column of the sentence about a job.
const INDENT: usize = 7;

/// What is told of one job beside its row.
pub(crate) struct Details {
    /// Ends of attempts, the first first.
    pub(crate) ends: Vec<AttemptEnd>,
    /// What has happened.
    pub(crate) events: Vec<JobEvent>,
    /// What channels have told, or have to.
    pub(crate) deliveries: Vec<Delivery>,
    /// Where what its processes say is.
    pub(crate) log: PathBuf,
}

impl Details {
    /// Files and bytes that all attempts together have brought to the target, with what the running one has.
    fn total(&self, row: &Row) -> (u64, u64) {
        let ended =
            self.ends.iter().fold((0, 0), |(files, bytes), end| (files + end.files, bytes + end.bytes));
        let now = row.now().map_or((0, 0), |now| (now.files_done, now.bytes_done));
        (ended.0 + now.0, ended.1 + now.1)
    }

    /// The first files that failed, of the last attempt in which any did.
    fn failed(&self) -> impl Iterator<Item = &str> {
        let failed = || self.events.iter().filter(|event| event.kind == "failed");
        let last = failed().next_back().map(|event| event.attempt);
        let of_last = failed().filter(move |event| Some(event.attempt) == last);
        of_last.filter_map(|event| event.message.as_deref()).take(FAILED_SHOWN)
    }

    /// The last attempt that has not ended well.
    fn last_error(&self) -> Option<&AttemptEnd> {
        self.ends.iter().rev().find(|end| end.message.is_some())
    }

    /// The lines for people, below the job's row.
    pub(crate) fn lines(&self, row: &Row) -> String {
        let Job { submitted, started, ended, attempt, .. } = &row.job;
        let moment =
            |what: &str, moment: Option<Moment>| moment.map(|moment| format!("{what} {}", shown(moment)));
        let moments =
            [moment("submitted", Some(*submitted)), moment("begun", *started), moment("ended", *ended)];
        let mut lines = vec![moments.into_iter().flatten().collect::<Vec<_>>().join(", ")];
        if let Some(watch) = row.progress.as_ref().and_then(|progress| progress.watch.as_ref()) {
            lines.push(watched(watch));
        }
        let (files, bytes) = self.total(row);
        if *attempt > 0 {
            let attempts = counted(u64::from(*attempt), "attempt");
            lines.push(format!("moved by {attempts}: {}, {}", counted(files, "file"), ByteCount(bytes)));
        }
        let hidden = self.ends.len().saturating_sub(ENDS_SHOWN);
        if hidden > 0 {
            lines.push(format!("{hidden} attempts before these: 'zmove job {} log' has them", row.job.id));
        }
        lines.extend(self.ends[hidden..].iter().map(end_of_attempt));
        if let Some(error) = self.last_error() {
            let message = error.message.as_deref().unwrap_or_default();
            lines.push(format!("last error, of attempt {}: {message}", error.number));
        }
        lines.extend(self.failed().map(|failed| format!("failed: {failed}")));
        lines.extend(self.deliveries.iter().map(delivery));
        lines.push(format!("log: {}", self.log.display()));
        let lines = lines.into_iter().map(|line| Printable(line).to_string());
        lines.map(|line| format!("{:INDENT$}{}\n", "", wrapped(&line, INDENT + 2))).collect()
    }

    /// What an object for programs has more than that of a list.
    pub(crate) fn add_to(&self, mut object: Value, row: &Row) -> Value {
        let (files, bytes) = self.total(row);
        let ends = self.ends.iter().map(|end| {
            let mut object = json!(end);
            object["ended"] = end.ended.0.div_euclid(1000).into();
            object
        });
        object["ends"] = ends.collect();
        object["files_total"] = files.into();
        object["bytes_total"] = bytes.into();
        object["last_error"] = self.last_error().and_then(|end| end.message.clone()).into();
        object["failed"] = self.failed().collect();
        object["told"] = self.deliveries.iter().map(delivery_as_json).collect();
        object["log"] = self.log.to_string_lossy().into();
        object
    }
}

fn end_of_attempt(end: &AttemptEnd) -> String {
    let AttemptEnd { number, ended, state, exit, files, bytes, .. } = end;
    let exit = exit.map_or_else(|| "killed".to_owned(), |exit| format!("exit code {exit}"));
    let moved = format!("{}, {}", counted(*files, "file"), ByteCount(*bytes));
    let then = if state.is_final() { format!("the job is {state}") } else { format!("the job was {state}") };
    format!("attempt {number} ended {}: {exit}, {moved}; {then}", shown(*ended))
}

fn watched(Watching { by, why, directories, ready, changing, .. }: &Watching) -> String {
    let how = match why {
        None if by == "events" => format!("the kernel tells of changes ({directories} directories)"),
        _ => format!("the tree is walked at intervals: {}", why.as_deref().unwrap_or_default()),
    };
    format!("watches: {}, {} to be moved, {changing} changing", how, counted(*ready, "file"))
}

/// Ends of attempts that are shown.
const ENDS_SHOWN: usize = 10;
/// Failed files that are shown.
const FAILED_SHOWN: usize = 5;

/// The table for people.
pub(crate) fn table(rows: &[Row], now: Moment) -> String {
    let mut text = "ID     STATE        FILES        DONE          OF        RATE   LEFT   TRY\n".to_owned();
    rows.iter().for_each(|row| row.write(&mut text, now));
    text
}

/// An event, as a line for people.
pub(crate) fn event(JobEvent { time, kind, attempt, message, .. }: &JobEvent) -> String {
    let attempt = if *attempt > 0 { format!(" ({attempt})") } else { String::new() };
    let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    Printable(format!("{} {kind}{attempt}{message}", shown(*time))).to_string()
}

/// An event, as an object for programs.
pub(crate) fn event_as_json(event: &JobEvent) -> Value {
    json!(EventView::from(event.clone()))
}

/// Whether an event was told by a channel, as a line for people.
fn delivery(delivery: &Delivery) -> String {
    let Delivery { event, channel, state, tries, due, error } = delivery;
    let state = match state {
        DeliveryState::Waiting if error.is_none() => "to be told".to_owned(),
        DeliveryState::Waiting => {
            format!("not told yet ({}), again at {}", counted(u64::from(*tries), "attempt"), shown(*due))
        }
        DeliveryState::Delivered => "told".to_owned(),
        DeliveryState::GivenUp => format!("not told, given up ({})", counted(u64::from(*tries), "attempt")),
    };
    let error = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("{channel}: '{}' {state}{error}", event.kind)
}

/// Whether an event was told by a channel, as an object for programs.
fn delivery_as_json(delivery: &Delivery) -> Value {
    let Delivery { event, channel, state, tries, due, error } = delivery;
    let waits = *state == DeliveryState::Waiting;
    json!({
        "channel": channel,
        "event": event.kind,
        "number": event.number,
        "state": state.word(),
        "tries": tries,
        "due": waits.then(|| due.0.div_euclid(1000)),
        "error": error,
    })
}

#[cfg(test)]
mod tests {
    use zmove_jobs::{JobId, Moved};

    use super::*;

    fn job() -> Job {
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
        }
    }

    #[test]
    fn of_one_job_more_is_told() {
        let row = Row::new(Job { state: State::Failed, ended: Some(Moment(9000)), ..job() }, None);
        let end = |number, state, message: &str| AttemptEnd {
            number,
            ended: Moment(1000),
            state,
            exit: Some(12),
            message: Some(message.to_owned()),
            files: 2,
            bytes: 1 << 20,
            seconds: 1.0,
        };
        let event = |number, message: String| JobEvent {
            number,
            job: JobId(12),
            time: Moment(0),
            kind: "failed".into(),
            attempt: 2,
            message: Some(message),
        };
        let details = Details {
            ends: vec![end(1, State::Waiting, "lost"), end(2, State::Failed, "9 failed")],
            events: (0..9).map(|file| event(file, format!("sender: open 'f{file}': no"))).collect(),
            deliveries: Vec::new(),
            log: "/state/12/log".into(),
        };
        let text = details.lines(&row);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        for part in [
            "moved by 2 attempts: 4 files, 2.00 MiB\n",
            "attempt 1 ended ",
            ": exit code 12, 2 files, 1.00 MiB;\n         the job was waiting\n",
            "last error, of attempt 2: 9 failed\n",
            "failed: sender: open 'f4': no\n",
            "log: /state/12/log\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("f5"), "{text}");
        let object = details.add_to(row.as_json(), &row);
        assert_eq!((&object["files_total"], &object["last_error"]), (&4.into(), &"9 failed".into()));
        assert_eq!(object["ends"][0]["state"], "waiting");
    }

    #[test]
    fn a_job_has_two_lines_that_fit_a_terminal() {
        let progress = Progress {
            seconds: 3.0,
            bytes_done: 3 << 30,
            bytes_found: 6 << 30,
            files_done: 12,
            files_found: 24,
            scan_ended: true,
            bytes_per_second: 125_000_000.0,
            lanes: 4,
            limited_by: "source_reads".into(),
            watch: None,
        };
        let runs = Row::new(job(), Some(progress));
        let waits = Job {
            state: State::Waiting,
            not_before: Some(Moment(90_000)),
            message: Some("no answer\n".into()),
            target: format!("dtn:/{}", "long/".repeat(9)),
            ..job()
        };
        let moved = Moved { files: 1, bytes: 1 << 20, seconds: 1.0, limited_by: None };
        let done = Job { state: State::Done, moved: Some(moved), ..job() };
        let held = Row::new(Job { state: State::Paused, ..job() }, runs.progress.clone());
        let rows = [runs, Row::new(waits, None), Row::new(done, None), held];
        let text = table(&rows, Moment(0));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
        assert_eq!(lines.len(), 10, "{text}");
        assert!(lines[1].contains("6.00 GiB") && lines[1].contains(" 25 s"), "{text}");
        assert_eq!(lines[2].trim(), "run7: /data/run7 -> dtn:/in, limited by source reads");
        assert!(lines[4].ends_with("long/,") && lines[5] == "       begins in 1 min: no answer\\n", "{text}");
        let figures = "12     paused          12    3.00 GiB    6.00 GiB           -      -     2";
        assert_eq!(lines[8], figures, "what it has come to, and no rate");
        assert!(rows[2].end().starts_with("job 12 (run7) is done: 1 file, 1.00 MiB, "), "{}", rows[2].end());
    }
}
