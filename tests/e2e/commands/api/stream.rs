//! The stream of events reports each event exactly once, wherever a client resumes.

use std::cell::Cell;

use serde_json::{Value, json};

use super::client::Served;

/// Number of bytes that a Unix socket holds by default.
const SOCKET_BYTES: usize = 212_992;

fn kinds_until_end(events: &mut super::client::Events) -> Vec<(i64, String)> {
    let mut kinds = Vec::new();
    loop {
        let (name, id, data) = events.next();
        if let ("job", Some(id)) = (name.as_str(), id) {
            kinds.push((id, data["event"]["event"].as_str().unwrap().to_owned()));
            if !data["job"]["ended"].is_null() && data["event"]["event"] == data["job"]["state"] {
                return kinds;
            }
        }
    }
}

#[test]
fn a_stream_reports_all_events_and_the_progress_of_jobs() {
    let served = Served::daemon();
    served.yard.paint_slow();
    let mut events = served.client.events(None);
    assert_eq!(
        events.next(),
        (
            "hello".to_owned(),
            Some(0),
            json!({ "last": 0, "reset": true })
        )
    );
    let id = served.submit(&json!({ "limit": "20Mbit" }));
    let moving =
        events.find(|event, data| event == "progress" && data[0]["bytes"].as_u64() > Some(0));
    assert_eq!(
        (&moving[0]["id"], moving[0]["lanes"].is_u64()),
        (&id.into(), true),
        "{moving}"
    );
    events.find(|event, data| event == "counts" && data["done"] == 1);
    let mut again = served.client.events(Some(0));
    assert_eq!(again.next().2, json!({ "last": 3, "reset": false }));
    let kinds = kinds_until_end(&mut again);
    let expected =
        [(1, "submitted"), (2, "running"), (3, "done")].map(|(id, kind)| (id, kind.to_owned()));
    assert_eq!(kinds, expected);
}

#[test]
fn each_stream_reports_the_state_of_the_daemon() {
    // No daemon listens at that socket, so its state does not change.
    let served = Served::local();
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut events = served.client.events(None);
        let daemon = events.find(|event, _| event == "daemon");
        assert!(
            daemon["status"].is_null() && daemon["why"].is_string(),
            "{daemon}"
        );
        streams.push(events);
    }
}

#[test]
fn a_client_goes_on_where_it_was_after_the_runner_was_killed() {
    let mut served = Served::daemon();
    served.yard.paint_slow();
    let mut events = served.client.events(None);
    let id = served.submit(&json!({ "limit": "5Mbit" }));
    events.find(|event, _| event == "progress");
    let seen = events.id.unwrap();
    assert_eq!(seen, 2, "submitted and running");
    served.restart();
    let mut events = served.client.events(Some(seen));
    assert_eq!(events.next().2["reset"], false);
    // The process continues, the new runner has adopted it, and progress is reported as before.
    events.find(|event, data| event == "progress" && data[0]["id"] == id);
    served
        .client
        .post(&format!("/api/v1/jobs/{id}/pause"), &Value::Null)
        .ok();
    // The pausing state is reported first, unless the job was already paused when the runner looked.
    let paused = events.find(|event, data| event == "job" && data["job"]["state"] == "paused");
    assert_eq!(paused["event"]["number"], 3);
}

#[test]
fn an_event_number_that_does_not_exist_yet_resets_the_stream() {
    let served = Served::local();
    served.wait_for_end(served.submit(&json!({})));
    for seen in [4, i64::MAX] {
        let hello = served.client.events(Some(seen)).next();
        assert_eq!(hello.2, json!({ "last": 3, "reset": true }), "{seen}");
        assert_eq!(hello.1, Some(3));
    }
    let nonsense = "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nLast-Event-ID: x\r\n\r\n";
    assert_eq!(served.client.say(nonsense).status, 400);
}

/// Each stream gets more events than its socket holds. One client reads them, and the others do not.
#[test]
fn streams_that_nobody_reads_delay_no_others() {
    let served = Served::local();
    let hanging: Vec<_> = (0..31).map(|_| served.client.events(None)).collect();
    let mut read = served.client.events(None);
    let full = served.client.get("/api/v1/events");
    assert!(
        full.status == 503 && full.head.contains("retry-after: 5"),
        "{full:?}"
    );
    let id = served.submit(&json!({ "at": "2100-01-01 00:00" }));
    for order in ["pause", "resume"].iter().cycle().take(400) {
        let path = format!("/api/v1/jobs/{id}/{order}");
        served.client.post(&path, &Value::Null).ok();
    }
    let id = served.submit(&json!({}));
    let bytes = Cell::new(0);
    read.find(|event, data| {
        bytes.set(bytes.get() + data.to_string().len());
        event == "job" && data["job"]["id"] == id && data["job"]["state"] == "done"
    });
    assert!(bytes.get() > SOCKET_BYTES, "{bytes:?}");
    drop((hanging, read));
    crate::commands::jobs::wait_for("room", || served.client.try_events().is_some());
}

#[test]
fn samples_of_an_ended_attempt_are_kept() {
    let served = Served::daemon();
    served.yard.paint_slow();
    let id = served.submit(&json!({ "limit": "20Mbit" }));
    assert_eq!(served.wait_for_end(id)["state"], "done");
    let samples = served
        .client
        .get(&format!("/api/v1/jobs/{id}/samples"))
        .ok();
    let samples = samples["samples"].as_array().unwrap();
    assert!(samples.len() >= 3, "{samples:?}");
    let bytes: Vec<_> = samples
        .iter()
        .map(|sample| sample["bytes"].as_u64().unwrap())
        .collect();
    assert!(bytes.is_sorted() && bytes.last() > Some(&0), "{bytes:?}");
}
