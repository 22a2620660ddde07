//! Jobs as people and programs read them: a table with two lines for each, or an object of `docs/schema/job.json`.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use zmove_api::{EventView, JobView};
use zmove_jobs::{
    Delivery, DeliveryState, Job, JobEvent, Moment, Place, Progress, State, progress_of, shown,
};
use zmove_types::{ByteCount, ByteRate};

use crate::display::format::{bytes_per_second, counted};
use crate::display::terminal::Printable;
use crate::value::age::Age;

/// A job, and how far it is if it runs.
pub(crate) struct Row {
    job: Job,
    progress: Option<Progress>,
}

impl Row {
    /// A job as it is now.
    pub(crate) fn of(place: &Place, job: Job) -> Self {
        let runs = job.state == State::Running;
        let progress = runs.then(|| progress_of(place, job.id, job.attempt)).flatten();
        Self { job, progress }
    }

    /// Files and bytes at the target, as far as is known.
    fn moved(&self) -> Option<(u64, u64)> {
        let now = self.progress.as_ref().map(|progress| (progress.files_done, progress.bytes_done));
        now.or(self.job.moved.as_ref().map(|moved| (moved.files, moved.bytes)))
    }

    fn rate(&self) -> Option<f64> {
        if let Some(progress) = &self.progress {
            return Some(progress.bytes_per_second);
        }
        let moved = self.job.moved.as_ref().filter(|moved| moved.seconds > 0.0)?;
        Some(ByteRate::new(moved.bytes, Duration::try_from_secs_f64(moved.seconds).ok()?).0)
    }

    /// The time that is left at the present rate.
    fn left(&self) -> Option<Duration> {
        let progress = self.progress.as_ref()?;
        if !progress.scan_ended || progress.bytes_per_second < 1.0 {
            return None;
        }
        let left = ByteCount(progress.bytes_found.saturating_sub(progress.bytes_done));
        Duration::try_from_secs_f64(left.as_f64() / progress.bytes_per_second).ok()
    }

    fn limited_by(&self) -> Option<&str> {
        match &self.progress {
            Some(progress) => Some(&progress.limited_by),
            None => self.job.moved.as_ref()?.limited_by.as_deref(),
        }
    }

    /// The object for programs.
    pub(crate) fn as_json(&self) -> Value {
        json!(JobView::new(&self.job, self.progress.as_ref()))
    }

    /// The lines for people.
    fn write(&self, text: &mut String, now: Moment) {
        let unknown = || "-".to_owned();
        let files = self.moved().map_or_else(unknown, |moved| moved.0.to_string());
        let done = self.moved().map_or_else(unknown, |moved| ByteCount(moved.1).to_string());
        let of = self.progress.as_ref();
        let of = of.map_or_else(unknown, |progress| ByteCount(progress.bytes_found).to_string());
        let rate = self.rate().map_or_else(unknown, |rate| ByteRate(rate).to_string());
        let left = self.left().map_or_else(unknown, |left| Age(left).to_string());
        let Job { id, state, attempt, .. } = &self.job;
        // Writing to a string cannot fail.
        let _written = writeln!(
            text,
            "{id:<6} {state:<9} {files:>8} {done:>11} {of:>11} {rate:>11} {left:>6} {attempt:>5}"
        );
        let _written = writeln!(text, "       {}", Printable(self.sentence(now)));
    }

    fn sentence(&self, now: Moment) -> String {
        let Job { label, source, target, message, .. } = &self.job;
        let mut sentence = format!("{label}: {source} -> {target}");
        if let Some(limit) = self.limited_by() {
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
            let rate = self.rate().map_or_else(String::new, |rate| format!(", {}", bytes_per_second(rate)));
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
pub(crate) fn delivery(delivery: &Delivery) -> String {
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
    Printable(format!("       {channel}: '{}' {state}{error}", event.kind)).to_string()
}

/// Whether an event was told by a channel, as an object for programs.
pub(crate) fn delivery_as_json(delivery: &Delivery) -> Value {
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
        };
        let runs = Row { job: job(), progress: Some(progress) };
        let waits = Job {
            state: State::Waiting,
            not_before: Some(Moment(90_000)),
            message: Some("no answer\n".into()),
            ..job()
        };
        let moved = Moved { files: 1, bytes: 1 << 20, seconds: 1.0, limited_by: None };
        let done = Job { state: State::Done, moved: Some(moved), ..job() };
        let rows = [runs, Row { job: waits, progress: None }, Row { job: done, progress: None }];
        let text = table(&rows, Moment(0));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[1].contains("6.00 GiB") && lines[1].contains(" 25 s"), "{text}");
        assert_eq!(lines[2].trim(), "run7: /data/run7 -> dtn:/in, limited by source reads");
        assert_eq!(lines[4].trim(), "run7: /data/run7 -> dtn:/in, begins in 1 min: no answer\\n");
        assert!(rows[2].end().starts_with("job 12 (run7) is done: 1 file, 1.00 MiB, "), "{}", rows[2].end());
    }
}
