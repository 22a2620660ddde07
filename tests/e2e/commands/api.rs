//! The API of a runner, as used by programs and by pages of other sites.

mod browser;
mod client;
mod hostile;
mod page;
mod proxied;
mod stream;

use serde_json::{Value, json};

use crate::commands::jobs::{Yard, wait_for};
use crate::support::command::finish;
use crate::support::tree::{assert_same, paint};

use client::{Answer, Served};

#[test]
fn the_description_is_the_one_in_the_documentation() {
    let served = Served::local();
    let described = served.client.get("/api/v1/openapi.json").ok();
    let kept = crate::commands::schema::schema("openapi.json");
    assert!(
        described == kept,
        "write it anew: curl --unix-socket api.sock http://localhost/api/v1/openapi.json"
    );
}

#[test]
fn a_job_is_submitted_and_seen_to_its_end() {
    for served in [Served::local(), Served::daemon()] {
        let site = &served.yard.site;
        paint(site.source().join("d/f"), 100_000);
        let id = served.submit(&json!({ "label": "by hand", "submission_id": "one" }));
        assert_eq!(
            served.submit(&json!({ "label": "by hand", "submission_id": "one" })),
            id
        );
        let job = served.wait_for_end(id);
        assert_same(&site.source(), &site.target());
        assert_eq!(
            (&job["state"], &job["bytes"]),
            (&"done".into(), &100_000.into()),
            "{job}"
        );
        let printed = served.yard.job(&id.to_string());
        for (name, value) in job.as_object().unwrap() {
            assert_eq!(
                *value, printed[name],
                "'{name}' as 'zmove job ID --json' prints it"
            );
        }
        let events = served.client.get(&format!("/api/v1/jobs/{id}/events")).ok();
        let kinds: Vec<_> = events["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| &event["event"])
            .collect();
        assert_eq!(kinds, ["submitted", "running", "done"]);
        let status = served.client.get("/api/v1/status").ok();
        assert_eq!(status["jobs"], json!({ "done": 1 }), "{status}");
    }
}

#[test]
fn a_plan_lists_the_changes_and_does_nothing() {
    let served = Served::daemon();
    paint(served.yard.site.source().join("d/f"), 1000);
    let plan = served
        .client
        .post("/api/v1/plans", &served.submission(&json!({})))
        .ok();
    assert_eq!(
        (&plan["files"], &plan["bytes"]),
        (&1.into(), &1000.into()),
        "{plan}"
    );
    assert!(
        plan["sample"]
            .as_array()
            .unwrap()
            .iter()
            .any(|change| change["path"] == "d/f"),
        "{plan}"
    );
    assert!(!served.yard.site.target().join("d").exists());
    assert_eq!(served.client.get("/api/v1/jobs").ok()["jobs"], json!([]));
}

#[test]
fn a_job_is_paused_resumed_and_cancelled() {
    let served = Served::daemon();
    served.yard.paint_slow();
    let id = served.submit(&json!({ "limit": "10Mbit" }));
    served.yard.wait_until_moving(&id.to_string());
    let order = |order: &str| {
        served
            .client
            .post(&format!("/api/v1/jobs/{id}/{order}"), &Value::Null)
    };
    assert_eq!(order("pause").ok()["asked"], "pause");
    served.wait_until(id, |job| job["state"] == "paused");
    assert_eq!(order("rerun").status, 409);
    assert_eq!(order("resume").status, 200);
    served.wait_until(id, |job| job["state"] == "running");
    assert_eq!(order("cancel").status, 200);
    assert_eq!(served.wait_for_end(id)["state"], "cancelled");
    assert_eq!(order("resume").status, 409);
    let again = order("rerun").ok();
    assert_eq!(
        (&again["previous"], again["id"].as_i64()),
        (&id.into(), Some(id + 1)),
        "{again}"
    );
    let cancelled = served
        .client
        .post(&format!("/api/v1/jobs/{}/cancel", id + 1), &Value::Null);
    assert_eq!(cancelled.status, 200);
    served.wait_for_end(id + 1);
}

#[test]
fn invalid_requests_are_refused_with_their_reason() {
    let served = Served::local();
    let refused = |answer: Answer, status: u16, part: &str| {
        let error = answer.body["error"].as_str().unwrap_or_default();
        assert!(
            answer.status == status && error.contains(part),
            "{answer:?}"
        );
    };
    let post = |body: Value| served.client.post("/api/v1/jobs", &body);
    refused(post(json!({})), 422, "no source given");
    refused(
        post(json!({ "sources": ["a"], "target": "/b" })),
        422,
        "neither",
    );
    refused(
        post(served.submission(&json!({ "limit": "fast" }))),
        422,
        "'fast' is not a rate",
    );
    refused(
        post(served.submission(&json!({ "every": "daily" }))),
        422,
        "is not a valid schedule",
    );
    refused(
        post(served.submission(&json!({ "rsh": "sh" }))),
        422,
        "unknown field `rsh`",
    );
    refused(
        post(json!({ "sources": [served.yard.site.source()], "target": "nowhere.invalid:b" })),
        422,
        "is not known",
    );
    served.submit(&json!({ "submission_id": "x" }));
    refused(
        post(served.submission(&json!({ "submission_id": "x", "delete": true }))),
        422,
        "other arguments",
    );
    refused(
        served.client.get("/api/v1/jobs/99"),
        404,
        "there is no job 99",
    );
    refused(served.client.get("/api/v1/jobs/x"), 400, "Cannot parse");
    refused(
        served.client.get("/api/v1/jobs?state=gone"),
        422,
        "is not a job state",
    );
    refused(served.client.get("/api/v2/jobs"), 404, "no such resource");
}

#[test]
fn the_options_of_a_submission_are_accepted_and_no_others() {
    let served = Served::local();
    let site = &served.yard.site;
    ["a.h5", "b.tmp", "c.tmp"]
        .iter()
        .for_each(|name| paint(site.source().join(name), 1000));
    let selected =
        json!({ "exclude": ["*.tmp"], "include": ["c.tmp"], "max_size": "2000", "archive": true });
    let id = served.submit(&selected);
    assert_eq!(served.wait_for_end(id)["state"], "done");
    let there = |name: &str| site.target().join(name).exists();
    assert_eq!(
        (there("a.h5"), there("b.tmp"), there("c.tmp")),
        (true, false, true)
    );
    let watches = served
        .submit(&json!({ "watch": true, "rest": "1s", "priority": 3, "after": [id] }))
        .to_string();
    wait_for("watching", || {
        !served.yard.job(&watches)["watch"].is_null() && there("b.tmp")
    });
    served
        .client
        .post(&format!("/api/v1/jobs/{watches}/cancel"), &Value::Null)
        .ok();
    for (field, value) in [
        ("ssh_command", json!("sh")),
        ("accept_new", json!(true)),
        ("dry_run", json!(true)),
    ] {
        let answer = served
            .client
            .post("/api/v1/jobs", &served.submission(&json!({ field: value })));
        let unknown = format!("unknown field `{field}`");
        assert_eq!(
            (answer.status, &answer.body["error"]),
            (422, &unknown.into()),
            "{answer:?}"
        );
    }
}

/// The events of a job may exceed one response.
#[test]
fn events_come_in_pieces() {
    let served = Served::local();
    let id = served.submit(&json!({}));
    served.wait_for_end(id);
    let mut kinds = Vec::new();
    let mut after = 0;
    loop {
        let piece = served
            .client
            .get(&format!("/api/v1/jobs/{id}/events?limit=1&after={after}"))
            .ok();
        let [event] = &piece["events"].as_array().unwrap()[..] else {
            panic!("one event: {piece}")
        };
        kinds.push(event["event"].clone());
        let Some(next) = piece["next"].as_i64() else {
            break;
        };
        after = next;
    }
    assert_eq!(
        (kinds.len(), &kinds[..2]),
        (3, &["submitted".into(), "running".into()][..]),
        "{kinds:?}"
    );
}

#[test]
fn history_comes_in_pieces() {
    let served = Served::local();
    let ids: Vec<_> = (0..5).map(|_| served.submit(&json!({}))).collect();
    ids.iter().for_each(|id| drop(served.wait_for_end(*id)));
    let mut seen = Vec::new();
    let mut path = "/api/v1/jobs?state=done,failed&limit=2".to_owned();
    loop {
        let page = served.client.get(&path).ok();
        seen.extend(
            page["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|job| job["id"].as_i64().unwrap()),
        );
        let Some(next) = page["next"].as_i64() else {
            break;
        };
        path = format!("/api/v1/jobs?state=done,failed&limit=2&before={next}");
    }
    assert_eq!(seen, ids.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn transfers_of_the_daemon_are_seen_where_its_socket_is_open() {
    let served = Served::daemon();
    // The runner connects to the daemon whose control socket is in its own home directory.
    std::os::unix::fs::symlink(
        served.yard.site.path("server/control.sock"),
        served.yard.site.path("client/control.sock"),
    )
    .unwrap();
    let id = served.yard.submit_slow();
    let status = || served.client.get("/api/v1/daemon").ok()["status"].take();
    let is_seen = |status: &Value| status["transfers"][0]["bytes"].as_u64() > Some(0);
    wait_for("a transfer of the daemon", || is_seen(&status()));
    assert_eq!(status()["transfers"][0]["name"], "tester");
    served.yard.run(&["job", &id, "cancel"]).done();
}

#[test]
fn without_a_daemon_the_api_says_why() {
    let served = Served::local();
    let daemon = served.client.get("/api/v1/daemon").ok();
    assert!(
        daemon["status"].is_null()
            && daemon["why"]
                .as_str()
                .unwrap()
                .contains("no daemon answers"),
        "{daemon}"
    );
}

#[test]
fn a_runner_with_a_page_takes_over_from_one_without() {
    let yard = Yard::local();
    let id = yard.submit(&[], "");
    yard.wait(&id).expect(0);
    let first = yard.runner().unwrap();
    let served = Served::of(yard);
    assert_eq!(served.yard.runner(), Some(first));
    assert_eq!(
        served.client.get("/api/v1/status").ok()["jobs"],
        json!({ "done": 1 })
    );
    served.yard.kill_runner();
    wait_for("the other runner", || served.yard.runner().is_some());
    served.wait_for_end(served.submit(&json!({})));
}

#[test]
fn two_runners_do_not_share_a_socket() {
    let served = Served::local();
    let second = served.yard.site.zmove(&["runner", "--http"]).start();
    finish(second)
        .expect(11)
        .says(&["another runner is listening there"]);
}
