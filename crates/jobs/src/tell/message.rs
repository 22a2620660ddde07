//! What is told of an event: an object for programs, variables for a command, and text for people.

use std::fmt::Write as _;

use chrono::{DateTime, SecondsFormat};
use serde_json::{Value, json};

use crate::job::{Job, JobEvent};
use crate::moment::Moment;
use crate::state::State;

/// An event, for who is to be told.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The event's id, the same each time that it is told, and no other event's of any store.
    pub(super) id: String,
    /// What has happened.
    pub(super) kind: String,
    time: Moment,
    host: String,
    why: Option<String>,
    /// The job as it is now; none for a test.
    job: Option<Job>,
}

impl Message {
    pub(super) fn of(event: &JobEvent, job: Job, store: &str) -> Self {
        let JobEvent {
            number,
            time,
            kind,
            message,
            ..
        } = event;
        let (kind, why) = (kind.clone(), message.clone());
        Self {
            id: format!("{store}-{number}"),
            kind,
            time: *time,
            host: host(),
            why,
            job: Some(job),
        }
    }

    /// One that tells nothing, to see whether it arrives.
    pub(super) fn test(store: &str, time: Moment) -> Self {
        let id = format!("{store}-test-{}", time.0);
        Self {
            id,
            kind: "test".into(),
            time,
            host: host(),
            why: None,
            job: None,
        }
    }

    /// The object for programs.
    pub(super) fn as_json(&self) -> Value {
        let Self {
            id,
            kind,
            time,
            host,
            why,
            job,
        } = self;
        let time = DateTime::from_timestamp_millis(time.0).unwrap_or_default();
        json!({
            "id": id,
            "type": format!("job.{kind}"),
            "timestamp": time.to_rfc3339_opts(SecondsFormat::Millis, true),
            "host": host,
            "message": why,
            "data": job.as_ref().map(|job| json!({
                "job": job.id,
                "label": job.label,
                "submission": job.submission,
                "state": job.state.word(),
                "source": job.source,
                "target": job.target,
                "attempts": job.attempt,
                "files": job.moved.as_ref().map(|moved| moved.files),
                "bytes": job.moved.as_ref().map(|moved| moved.bytes),
                "seconds": job.moved.as_ref().map(|moved| moved.seconds),
                "message": job.message,
            })),
        })
    }

    /// The variables for a command.
    pub(super) fn variables(&self) -> Vec<(&'static str, String)> {
        let Self {
            id,
            kind,
            host,
            why,
            job,
            ..
        } = self;
        let mut variables = vec![
            ("ZMOVE_TELL_ID", id.clone()),
            ("ZMOVE_TELL_EVENT", kind.clone()),
            ("ZMOVE_TELL_HOST", host.clone()),
            ("ZMOVE_TELL_MESSAGE", why.clone().unwrap_or_default()),
            ("ZMOVE_TELL_JSON", self.as_json().to_string()),
        ];
        if let Some(job) = job {
            let (files, bytes) = job
                .moved
                .as_ref()
                .map_or((0, 0), |moved| (moved.files, moved.bytes));
            variables.extend([
                ("ZMOVE_TELL_JOB", job.id.to_string()),
                ("ZMOVE_TELL_LABEL", job.label.clone()),
                ("ZMOVE_TELL_STATE", job.state.to_string()),
                ("ZMOVE_TELL_SOURCE", job.source.clone()),
                ("ZMOVE_TELL_TARGET", job.target.clone()),
                ("ZMOVE_TELL_ATTEMPTS", job.attempt.to_string()),
                ("ZMOVE_TELL_FILES", files.to_string()),
                ("ZMOVE_TELL_BYTES", bytes.to_string()),
            ]);
        }
        // the system takes none in a variable
        variables
            .iter_mut()
            .for_each(|(_, value)| value.retain(|letter| letter != '\0'));
        variables
    }

    /// One line for people.
    pub(super) fn subject(&self) -> String {
        let Self {
            kind, host, job, ..
        } = self;
        let subject = match job {
            None => format!("zmove on {host}: a test"),
            Some(job) => format!(
                "zmove on {host}: job {} ({}) {}",
                job.id,
                job.label,
                sentence(kind)
            ),
        };
        printable(&subject)
    }

    /// The text for people.
    pub(super) fn text(&self) -> String {
        let Self {
            id, why, job, time, ..
        } = self;
        let mut text = format!("{}\n\n", self.subject());
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _written = writeln!(text, "{:<10}{}", format!("{name}:"), printable(value));
        };
        if let Some(why) = why {
            line("message", why);
        }
        if let Some(job) = job {
            line("source", &job.source);
            line("target", &job.target);
            line("attempts", &job.attempt.to_string());
            if let Some(moved) = &job.moved {
                line("files", &moved.files.to_string());
                line("bytes", &moved.bytes.to_string());
                line("seconds", &format!("{:.1}", moved.seconds));
            }
        }
        line("time", &crate::schedule::shown(*time));
        line("id", id);
        text
    }
}

fn sentence(kind: &str) -> String {
    match kind {
        "stalled" => "moves nothing".to_owned(),
        "missed" => "begins late".to_owned(),
        state => state.parse().map_or_else(
            |_| format!("is {state}"),
            |state: State| state.phrase().to_owned(),
        ),
    }
}

/// The text on one line, whatever names of files it has.
pub(super) fn printable(text: &str) -> String {
    let letters = text.chars().map(|letter| {
        if letter.is_control() {
            letter.escape_default().to_string()
        } else {
            letter.to_string()
        }
    });
    letters.collect()
}

fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::{JobId, Moved};
    use crate::state::State;

    /// An event of a job with names that somebody may have chosen to mislead.
    pub(in crate::tell) fn message() -> Message {
        let job = Job {
            id: JobId(12),
            submission: None,
            label: "run\r\nBcc: x@example.org".into(),
            state: State::Done,
            wish: None,
            source: "/data/run7".into(),
            target: "dtn:/in\0".into(),
            host: "dtn:5870".into(),
            priority: 0,
            submitted: Moment(0),
            not_before: None,
            started: Some(Moment(0)),
            ended: Some(Moment(1000)),
            schedule: None,
            deadline: Duration::from_secs(86_400),
            attempt: 2,
            exit: Some(0),
            message: None,
            moved: Some(Moved {
                files: 3,
                bytes: 4,
                seconds: 0.5,
                limited_by: None,
            }),
            previous: None,
        };
        let event = JobEvent {
            number: 7,
            job: JobId(12),
            time: Moment(1_800_000_000_000),
            kind: "done".into(),
            attempt: 2,
            message: None,
        };
        Message::of(&event, job, "abc")
    }

    #[test]
    fn an_event_has_all_that_a_program_needs() {
        let value = message().as_json();
        let expected = json!({
            "id": "abc-7",
            "type": "job.done",
            "timestamp": "2027-01-15T08:00:00.000Z",
            "host": host(),
            "message": null,
            "data": {
                "job": 12,
                "label": "run\r\nBcc: x@example.org",
                "submission": null,
                "state": "done",
                "source": "/data/run7",
                "target": "dtn:/in\0",
                "attempts": 2,
                "files": 3,
                "bytes": 4,
                "seconds": 0.5,
                "message": null,
            },
        });
        assert_eq!(value, expected);
        let expected = [
            ("ZMOVE_TELL_ID", "abc-7"),
            ("ZMOVE_TELL_EVENT", "done"),
            ("ZMOVE_TELL_HOST", &host()),
            ("ZMOVE_TELL_MESSAGE", ""),
            ("ZMOVE_TELL_JSON", &value.to_string()),
            ("ZMOVE_TELL_JOB", "12"),
            ("ZMOVE_TELL_LABEL", "run\r\nBcc: x@example.org"),
            ("ZMOVE_TELL_STATE", "done"),
            ("ZMOVE_TELL_SOURCE", "/data/run7"),
            ("ZMOVE_TELL_TARGET", "dtn:/in"),
            ("ZMOVE_TELL_ATTEMPTS", "2"),
            ("ZMOVE_TELL_FILES", "3"),
            ("ZMOVE_TELL_BYTES", "4"),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        assert_eq!(message().variables(), expected);
    }

    #[test]
    fn names_cannot_make_lines() {
        let message = message();
        assert!(
            !message.subject().contains(['\r', '\n']),
            "{}",
            message.subject()
        );
        assert!(
            message
                .text()
                .contains("(run\\r\\nBcc: x@example.org) is done"),
            "{}",
            message.text()
        );
    }
}
