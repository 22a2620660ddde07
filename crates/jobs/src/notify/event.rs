//! The JSON document of an event, as described by `docs/schema/notification.json`.

use serde_json::json;

use crate::job::{Job, JobEvent};
use crate::moment::Moment;
use crate::program::host_name;

/// An event in the form that the hook and the webhook receive.
#[derive(Clone, Debug)]
pub(super) struct EventDocument {
    /// The id of the event, which is unique among all stores.
    pub(super) id: String,
    /// The document on a single line. JSON escapes control characters, so text from a user cannot add a line break.
    pub(super) json: String,
}

impl EventDocument {
    /// Returns the document of an event, with the state of its job at the time of the attempt.
    pub(super) fn new(event: &JobEvent, job: &Job, store: &str) -> Self {
        let id = format!("{store}-{}", event.number);
        let moved = job.moved.as_ref();
        let document = json!({
            "id": id,
            "event": event.kind,
            "time": event.time,
            "host": host_name(),
            "message": event.message,
            "job": job.id,
            "label": job.label,
            "submission": job.submission,
            "notify": job.notify,
            "state": job.state,
            "source": job.source,
            "target": job.target,
            "attempts": job.attempt,
            "files": moved.map(|moved| moved.files),
            "bytes": moved.map(|moved| moved.bytes),
            "seconds": moved.map(|moved| moved.seconds),
        });
        let json = document.to_string();
        Self { id, json }
    }

    /// Returns a test event, which belongs to no job.
    pub(super) fn test(store: &str, time: Moment) -> Self {
        let id = format!("{store}-test-{}", time.0);
        let document = json!({ "id": id, "event": "test", "time": time, "host": host_name(), "message": null });
        let json = document.to_string();
        Self { id, json }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::job::{JobId, TransferTotals};
    use crate::state::State;

    /// Returns an event of a job whose names may have been chosen to mislead.
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
            moved: Some(TransferTotals {
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
        EventDocument::new(&event, &job, "abc")
    }

    #[test]
    fn a_document_has_the_event_and_its_job_on_one_line() {
        let host = host_name();
        let expected = json!({
            "id": "abc-7", "event": "done", "time": 1_800_000_000, "host": host, "message": null, "job": 12,
            "label": "run\r\nBcc: x@example.org", "submission": null, "notify": "alice@example.org",
            "state": "done", "source": "/data/run7", "target": "dtn:/in\0", "attempts": 2, "files": 3, "bytes": 4,
            "seconds": 0.5,
        });
        let document = document();
        assert_eq!(
            serde_json::from_str::<Value>(&document.json).unwrap(),
            expected
        );
        assert!(!document.json.contains(char::is_control));
        assert_eq!(
            serde_json::from_str::<Value>(&EventDocument::test("abc", Moment(2500)).json).unwrap(),
            json!({ "id": "abc-test-2500", "event": "test", "time": 2, "host": host, "message": null })
        );
    }
}
