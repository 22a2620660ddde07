//! The details that `zmove job ID` shows below the row of a job: attempts, failures and notifications.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use zmove_jobs::{
    AttemptEnd, Job, JobEvent, Moment, Node, Nodes, Notification, NotificationState, State,
    Watching, format_local,
};
use zmove_types::{ByteCount, ByteRate};

use super::{INDENT, Row, after_colon};
use crate::display::format::{counted, wrapped};
use crate::display::progress::TOOK_PART;
use crate::display::terminal::Printable;

/// The details of one job, in addition to its row.
pub(crate) struct Details {
    /// Ended attempts, oldest first.
    pub(crate) ends: Vec<AttemptEnd>,
    /// The job's events.
    pub(crate) events: Vec<JobEvent>,
    /// Notifications that were delivered or are still due.
    pub(crate) notifications: Vec<Notification>,
    /// Path of the log with the output of the job's processes.
    pub(crate) log: PathBuf,
}

impl Details {
    /// Returns the first failed files of the last attempt that had failed files.
    fn failed(&self) -> impl Iterator<Item = &str> {
        let failed = || self.events.iter().filter(|event| event.kind == "failed");
        let last = failed().next_back().map(|event| event.attempt);
        let of_last = failed().filter(move |event| Some(event.attempt) == last);
        // The final error of the job is also recorded as an event of this kind. It names no failed file, so it is left
        // out.
        let end = self.last_error().and_then(|end| end.message.as_deref());
        let messages = of_last.filter_map(|event| event.message.as_deref());
        messages
            .filter(move |message| Some(*message) != end)
            .take(FAILED_SHOWN)
    }

    /// Returns the files and bytes that each node moved in the last attempt. The attempt must have ended. If the job
    /// had several attempts, this is not the total of the job.
    fn took_part(&self, last: u32) -> Option<String> {
        let is_wanted = |event: &&JobEvent| event.kind == TOOK_PART && event.attempt == last;
        let message = self.events.iter().rfind(is_wanted)?.message.clone()?;
        Some(if last > 1 {
            format!("attempt {last}: {message}")
        } else {
            message
        })
    }

    /// Returns the last attempt that ended with an error.
    fn last_error(&self) -> Option<&AttemptEnd> {
        self.ends.iter().rev().find(|end| end.message.is_some())
    }

    /// Returns whether the text of the details contains the job's final error.
    pub(super) fn shows_error_of(&self, row: &Row) -> bool {
        row.job.message.is_some()
            && self.last_error().map(|end| &end.message) == Some(&row.job.message)
    }

    /// Returns the details as text. This text follows the row of the job.
    pub(super) fn lines(&self, row: &Row) -> String {
        let Job {
            submitted,
            started,
            ended,
            attempt,
            ..
        } = &row.job;
        let moment = |what: &str, moment: Option<Moment>| {
            moment.map(|moment| format!("{what} {}", format_local(moment)))
        };
        let moments = [
            moment("submitted", Some(*submitted)),
            moment("begun", *started),
            moment("ended", *ended),
        ];
        let mut lines = vec![moments.into_iter().flatten().collect::<Vec<_>>().join(", ")];
        if let Some(watch) = row
            .progress
            .as_ref()
            .and_then(|progress| progress.watch.as_ref())
        {
            lines.push(watched(watch));
        }
        let nodes = row
            .progress
            .as_ref()
            .and_then(|progress| progress.nodes.as_ref());
        match nodes.filter(|_| row.job.state == State::Running) {
            Some(nodes) => lines.extend(taking_part(nodes)),
            None => lines.extend(self.took_part(*attempt)),
        }
        if *attempt > 0 {
            let (files, bytes) = row.moved().unwrap_or_default();
            let attempts = counted(u64::from(*attempt), "attempt");
            lines.push(format!(
                "moved by {attempts}: {}, {}",
                counted(files, "file"),
                ByteCount(bytes)
            ));
        }
        let hidden = self.ends.len().saturating_sub(ENDS_SHOWN);
        if hidden > 0 {
            lines.push(format!(
                "{hidden} earlier attempts: see 'zmove job {} log'",
                row.job.id
            ));
        }
        lines.extend(self.ends[hidden..].iter().map(end_of_attempt));
        if let Some(error) = self.last_error() {
            let message = error.message.as_deref().unwrap_or_default();
            lines.push(format!(
                "last error, of attempt {}: {message}",
                error.number
            ));
        }
        lines.extend(self.failed().map(|failed| format!("failed: {failed}")));
        lines.extend(self.notifications.iter().map(notification));
        lines.push(format!("log: {}", self.log.display()));
        let lines = lines.into_iter().map(|line| Printable(line).to_string());
        lines
            .map(|line| format!("{:INDENT$}{}\n", "", wrapped(&line, INDENT + 2)))
            .collect()
    }

    /// Adds the details to the JSON object of a job. Without the details, the object is the same as in a list of jobs.
    pub(crate) fn add_to(&self, mut object: Value) -> Value {
        object["ends"] = json!(self.ends);
        object["last_error"] = self.last_error().and_then(|end| end.message.clone()).into();
        object["failed"] = self.failed().collect();
        object["notifications"] = self
            .notifications
            .iter()
            .map(notification_as_json)
            .collect();
        object["log"] = self.log.to_string_lossy().into();
        object
    }
}

fn end_of_attempt(end: &AttemptEnd) -> String {
    let AttemptEnd {
        number,
        ended,
        state,
        exit,
        files,
        bytes,
        ..
    } = end;
    let exit = exit.map_or_else(|| "killed".to_owned(), |exit| format!("exit code {exit}"));
    let moved = format!("{}, {}", counted(*files, "file"), ByteCount(*bytes));
    let then = if state.is_final() {
        state.phrase().to_owned()
    } else {
        format!("was {state}")
    };
    format!(
        "attempt {number} ended {}: {exit}, {moved}; the job {then}",
        format_local(*ended)
    )
}

fn watched(
    Watching {
        by,
        why,
        directories,
        ready,
        changing,
        ..
    }: &Watching,
) -> String {
    let how = match (why, directories) {
        (None, 1) if by == "events" => "the kernel reports changes (1 directory)".to_owned(),
        (None, _) if by == "events" => {
            format!("the kernel reports changes ({directories} directories)")
        }
        _ => format!(
            "the tree is scanned at intervals: {}",
            why.as_deref().unwrap_or_default()
        ),
    };
    format!(
        "watches: {}, {} to move, {changing} changing",
        how,
        counted(*ready, "file")
    )
}

/// Returns the nodes and the receivers as small tables with one line for each participant.
pub(crate) fn taking_part(
    Nodes {
        kind,
        count,
        items_waiting,
        nodes,
        receivers,
    }: &Nodes,
) -> Vec<String> {
    let waiting = match items_waiting {
        Some(items) => format!("{} waiting", counted(*items, "item")),
        None => "the queue does not answer".to_owned(),
    };
    let width = nodes
        .iter()
        .chain(receivers)
        .map(|node| node.name.chars().count())
        .max()
        .unwrap_or_default();
    let line = |Node {
                    name,
                    state,
                    files,
                    bytes,
                    bytes_per_second,
                    percent_of_others,
                }: &Node| {
        let rate = ByteRate::new(*bytes_per_second, Duration::from_secs(1));
        let bytes = ByteCount(*bytes);
        let of_others = percent_of_others.map_or_else(String::new, |percent| {
            format!(", {percent} % of the median")
        });
        let state = state.as_ref();
        format!(
            "  {name:width$}  {state}: {}, {bytes}, {rate}{of_others}",
            counted(*files, "file")
        )
    };
    let more =
        (*count > nodes.len() as u64).then(|| format!("  and {} more", count - nodes.len() as u64));
    let first = format!("{}, {waiting}:", counted(*count, kind.as_ref()));
    let receivers_head = (!receivers.is_empty()).then(|| "their receivers:".to_owned());
    std::iter::once(first)
        .chain(nodes.iter().map(line))
        .chain(more)
        .chain(receivers_head)
        .chain(receivers.iter().map(line))
        .collect()
}

/// Returns a notification and its result as a line of text.
fn notification(notification: &Notification) -> String {
    let Notification {
        event,
        method,
        state,
        tries,
        due,
        error,
    } = notification;
    let attempts = counted(u64::from(*tries), "attempt");
    let state = match state {
        NotificationState::Waiting if error.is_none() => "waiting".to_owned(),
        NotificationState::Waiting => {
            format!(
                "not delivered yet ({attempts}), next attempt at {}",
                format_local(*due)
            )
        }
        NotificationState::Delivered => "delivered".to_owned(),
        NotificationState::GivenUp => format!("not delivered, gave up ({attempts})"),
    };
    let error = after_colon(error.as_ref());
    format!("{method}: '{}' {state}{error}", event.kind)
}

/// Returns a notification and its result as a JSON object.
fn notification_as_json(notification: &Notification) -> Value {
    let Notification {
        event,
        method,
        state,
        tries,
        due,
        error,
    } = notification;
    let waits = *state == NotificationState::Waiting;
    json!({
        "method": method.as_ref(),
        "event": event.kind,
        "number": event.number,
        "state": state.as_ref(),
        "tries": tries,
        "due": waits.then_some(due),
        "error": error,
    })
}

/// Maximum number of ended attempts to show.
const ENDS_SHOWN: usize = 10;
/// Maximum number of failed files to show.
const FAILED_SHOWN: usize = 5;

#[cfg(test)]
mod tests {
    use zmove_jobs::{AttemptProgress, JobId, TransferTotals};

    use super::super::one;
    use super::super::tests::job;
    use zmove_jobs::Party;

    use super::*;

    #[test]
    fn of_one_job_more_is_told() {
        let moved = Some(TransferTotals {
            files: 4,
            bytes: 2 << 20,
            seconds: 2.0,
            limited_by: None,
        });
        let message = Some("9 failed".to_owned());
        let ended = Some(Moment(9000));
        let row = Row::new(
            Job {
                state: State::Failed,
                ended,
                moved,
                message,
                ..job()
            },
            None,
        );
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
            ends: vec![
                end(1, State::Waiting, "lost"),
                end(2, State::Failed, "9 failed"),
            ],
            events: std::iter::once(event(9, "9 failed".into()))
                .chain((0..9).map(|file| event(file, format!("sender: open 'f{file}': no"))))
                .collect(),
            notifications: Vec::new(),
            log: "/state/12/log".into(),
        };
        let text = one(&row, &details, Moment(0));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        for part in [
            "moved by 2 attempts: 4 files, 2.00 MiB\n",
            "attempt 1 ended ",
            ": exit code 12, 2 files, 1.00 MiB;\n         the job was waiting\n",
            "the job has failed\n",
            "last error, of attempt 2: 9 failed\n",
            "failed: sender: open 'f4': no\n",
            "log: /state/12/log\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("f5"), "{text}");
        assert_eq!(text.matches("9 failed").count(), 1, "{text}");
        let object = details.add_to(row.as_json());
        assert_eq!(
            (&object["files"], &object["last_error"]),
            (&4.into(), &"9 failed".into())
        );
        assert_eq!(object["ends"][0]["state"], "waiting");
    }

    #[test]
    fn those_that_take_part_are_shown_with_their_rates_while_they_do_and_with_what_they_have_moved_later()
     {
        let node = Node {
            name: "dtn1:1".into(),
            ..Node::default()
        };
        let nodes = Nodes {
            kind: Party::Receiver,
            count: 2,
            items_waiting: Some(3),
            nodes: vec![node],
            receivers: Vec::new(),
        };
        let progress = AttemptProgress {
            nodes: Some(nodes),
            ..AttemptProgress::default()
        };
        let event = |attempt, message: &str| JobEvent {
            number: i64::from(attempt),
            job: JobId(12),
            time: Moment(0),
            kind: TOOK_PART.into(),
            attempt,
            message: Some(message.into()),
        };
        let events = vec![
            event(1, "an attempt before"),
            event(2, "moved by 2 receivers: x"),
        ];
        let (ends, notifications) = (Vec::new(), Vec::new());
        let details = Details {
            ends,
            events,
            notifications,
            log: PathBuf::new(),
        };
        let lines = |state, progress| details.lines(&Row::new(Job { state, ..job() }, progress));
        let runs = lines(State::Running, Some(progress.clone()));
        assert!(
            runs.contains("2 receivers, 3 items waiting:\n") && runs.contains("dtn1:1  works: "),
            "{runs}"
        );
        assert!(!runs.contains("moved by 2 receivers"), "{runs}");
        for (state, progress) in [(State::Paused, Some(progress)), (State::Done, None)] {
            let over = lines(state, progress);
            assert!(
                over.contains(" attempt 2: moved by 2 receivers: x\n") && !over.contains("works"),
                "{over}"
            );
            assert!(!over.contains("before"), "{over}");
        }
        let first = details.lines(&Row::new(
            Job {
                state: State::Done,
                attempt: 1,
                ..job()
            },
            None,
        ));
        assert!(first.contains("       an attempt before\n"), "{first}");
    }
}
