//! The output of `--json` matches the schemas in docs/schema exactly.

use serde_json::Value;

use crate::support::command::Outcome;
use crate::support::harness::Site;
use crate::support::ports::free_address;
use crate::support::tree::paint;

/// Reads a schema from docs/schema.
pub(crate) fn schema(name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/schema")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns why a value violates a schema. Supports the part of JSON Schema that the schemas here use. Unknown fields
/// are violations.
pub(crate) fn fault(schema: &Value, value: &Value) -> Option<String> {
    if let Some(constant) = schema.get("const") {
        return (constant != value).then(|| format!("{value} is not {constant}"));
    }
    if let Some(words) = schema["enum"].as_array() {
        return (!words.contains(value)).then(|| format!("{value} is none of {words:?}"));
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.clone(),
        kind => vec![kind.clone()],
    };
    let is = |kind: &Value| match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    if !kinds.iter().any(is) {
        return Some(format!("{value} is none of {kinds:?}"));
    }
    if let (Some(items), Some(found)) = (schema.get("items"), value.as_array()) {
        return found.iter().find_map(|item| fault(items, item));
    }
    let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object())
    else {
        return None;
    };
    let required = schema["required"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap());
    if let Some(missing) = required
        .into_iter()
        .find(|name| !fields.contains_key(*name))
    {
        return Some(format!("no {missing} in {value}"));
    }
    fields
        .iter()
        .find_map(|(name, field)| match properties.get(name) {
            Some(property) => fault(property, field).map(|fault| format!("{name}: {fault}")),
            None => Some(format!("{name} is not in the schema: {value}")),
        })
}

/// Returns the events of a command after checking each against the schema. Only the last event has an exit code, which
/// equals the command's.
pub(crate) fn events(outcome: &Outcome, exit: u64) -> Vec<Value> {
    let kinds = schema("events.json")["$defs"].as_object().unwrap().clone();
    let events: Vec<Value> = outcome
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for event in &events {
        let name = &event["event"];
        let is_kind = |kind: &&Value| fault(&kind["properties"]["event"], name).is_none();
        let kind = kinds
            .values()
            .find(is_kind)
            .unwrap_or_else(|| panic!("{event}"));
        assert_eq!(fault(kind, event), None);
    }
    let exits: Vec<_> = events.iter().map(|event| event["exit"].as_u64()).collect();
    assert_eq!(exits.last(), Some(&Some(exit)), "{}", outcome.stdout);
    assert!(
        exits.iter().rev().skip(1).all(Option::is_none),
        "{}",
        outcome.stdout
    );
    events
}

#[test]
fn a_push_and_a_failure_are_as_the_schema_says() {
    let site = Site::daemon();
    for number in 0..3 {
        paint(site.source().join(format!("f{number}")), 1000);
    }
    paint(site.target().join("f1/in the way"), 1);
    let outcome = site.push(&["--json"], site.contents(), "").expect(23);
    let events = events(&outcome, 23);
    let failed = events
        .iter()
        .find(|event| event["event"] == "failed")
        .unwrap();
    assert_eq!(
        (&failed["side"], &failed["path"]),
        (&"receiver".into(), &"f1".into()),
        "{failed}"
    );
    assert!(
        failed["operation"].is_string() && failed["cause"].is_string(),
        "{failed}"
    );
    let id = events.last().unwrap()["transfer"].as_str().unwrap();
    assert_eq!(id.len(), 32);
}

#[test]
fn progress_events_match_the_schema() {
    let site = Site::daemon();
    paint(site.source().join("f"), 6 << 20);
    let outcome = site
        .push(&["--json", "--limit", "20Mbit"], site.contents(), "")
        .done();
    let events = events(&outcome, 0);
    let progress: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "progress")
        .collect();
    assert!(!progress.is_empty());
    assert!(
        progress
            .iter()
            .all(|event| event["transfer"] == events.last().unwrap()["transfer"])
    );
}

#[test]
fn events_of_preview_pull_and_verify_match_the_schema() {
    let site = Site::reading(&[], &[]);
    paint(site.source().join("f"), 1000);
    let source = site.source().join("f");
    let pull = |options: &[&str]| {
        site.pull(
            &[&["--json"], options].concat(),
            &[source.to_str().unwrap()],
            "",
        )
    };
    assert!(
        events(&pull(&["-n"]).done(), 0)
            .iter()
            .any(|event| event["event"] == "added")
    );
    events(&pull(&[]).done(), 0);
    let local = Site::local();
    paint(local.source().join("f"), 1000);
    let mut verify = local.zmove(&["verify", "--json"]);
    verify.0.arg(local.contents()).arg(local.path("target"));
    assert!(
        events(&verify.outcome().expect(6), 6)
            .iter()
            .any(|event| event["event"] == "added")
    );
}

#[test]
fn an_end_without_a_summary_has_its_exit_code_too() {
    let site = Site::local();
    let nobody = free_address();
    let push = |source: &str, target: &str| {
        let mut push = site.zmove(&["push", "--json", "--accept-new"]);
        push.0.args([source, target]);
        push.outcome()
    };
    let events_of = |outcome: Outcome, exit| events(&outcome, exit).pop().unwrap();
    paint(site.source().join("f"), 10);
    let refused = events_of(push("source", &format!("{nobody}:x")).expect(10), 10);
    assert_eq!(refused["event"], "error");
    let missing = push("none", "target").expect(23);
    let events = events(&missing, 23);
    let failed = &events[0];
    assert_eq!(
        (&failed["event"], &failed["errno"]),
        (&"failed".into(), &"ENOENT".into()),
        "{failed}"
    );
    assert!(
        failed["path"].as_str().unwrap().ends_with("none"),
        "{failed}"
    );
}
