//! The JSON document of an event, `docs/schema/notification.json`.

use serde::Serialize;

use crate::job::{Job, JobEvent, JobId};
use crate::moment::Moment;
use crate::program::host_name;
use crate::state::State;

/// An event as the hook and the webhook get it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EventDocument {
    /// The id of the event, which no other event of any store has.
    pub(super) id: String,
    event: String,
    time: Moment,
    host: String,
    message: Option<String>,
    /// `None` for a test.
    #[serde(flatten)]
    job: Option<JobDocument>,
}

/// The job at the time of the attempt.
#[derive(Clone, Debug, Serialize)]
struct JobDocument {
    job: JobId,
    label: String,
    submission: Option<String>,
    notify: Option<String>,
    state: State,
    source: String,
    target: String,
    attempts: u32,
    files: Option<u64>,
    bytes: Option<u64>,
    seconds: Option<f64>,
}

impl EventDocument {
    pub(super) fn new(event: &JobEvent, job: Job, store: &str) -> Self {
        let moved = job.moved.as_ref();
        let job = JobDocument {
            files: moved.map(|moved| moved.files),
            bytes: moved.map(|moved| moved.bytes),
            seconds: moved.map(|moved| moved.seconds),
            job: job.id,
            label: job.label,
            submission: job.submission,
            notify: job.notify,
            state: job.state,
            source: job.source,
            target: job.target,
            attempts: job.attempt,
        };
        Self {
            id: format!("{store}-{}", event.number),
            event: event.kind.clone(),
            time: event.time,
            host: host_name(),
            message: event.message.clone(),
            job: Some(job),
        }
    }

    /// An event without a job, to try whether events arrive.
    pub(super) fn test(store: &str, time: Moment) -> Self {
        Self {
            id: format!("{store}-test-{}", time.0),
            event: "test".to_owned(),
            time,
            host: host_name(),
            message: None,
            job: None,
        }
    }

    /// The document on one line: JSON escapes control characters, so that no text of a user makes another line.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("all keys are strings")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::Moved;

    /// An event of a job with names that somebody may have chosen to mislead.
    pub(in crate::notify) fn document() -> EventDocument {
        document_with_message(None)
    }

    pub(in crate::notify) fn document_with_message(message: Option<String>) -> EventDocument {
        let job = Job {
            id: JobId(12),
            submission: None,
            label: "run\r\nBcc: x@example.org".into(),
            notify: Some("alice@example.org".into()),
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
            message,
        };
        EventDocument::new(&event, job, "abc")
    }

    #[test]
    fn a_document_has_the_event_and_its_job_on_one_line() {
        let expected = format!(
            r#"{{"id":"abc-7","event":"done","time":1800000000,"host":"{}","message":null,"job":12,"#,
            host_name()
        ) + r#""label":"run\r\nBcc: x@example.org","submission":null,"notify":"alice@example.org","#
            + r#""state":"done","source":"/data/run7","target":"dtn:/in\u0000","attempts":2,"files":3,"bytes":4,"#
            + r#""seconds":0.5}"#;
        assert_eq!(document().to_json(), expected);
        assert_eq!(
            EventDocument::test("abc", Moment(2500)).to_json(),
            format!(
                r#"{{"id":"abc-test-2500","event":"test","time":2,"host":"{}","message":null}}"#,
                host_name()
            )
        );
    }
}
