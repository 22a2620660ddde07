//! What a push has learnt of its path is where the next begins.

use std::fs::{read_to_string, write};

use crate::harness::Site;
use crate::tree::{assert_same, paint};

/// A round trip that is near that of this host to itself, also of a busy one.
const NEAR: &str = "rtt_us=1000";

fn site() -> Site {
    let site = Site::daemon();
    paint(site.source().join("f"), 1 << 20);
    site
}

/// The line that a push has left behind.
#[track_caller]
fn remembered(site: &Site) -> String {
    let text = read_to_string(site.path("client").join("paths")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "# zmove paths 1"), "{text}");
    assert!(lines[1].starts_with(&format!("{} lanes=", site.the_daemon().address)), "{text}");
    lines[1].to_owned()
}

#[test]
fn the_next_push_starts_with_the_lanes_of_the_last() {
    let site = site();
    site.push_contents();
    let change = |field: &str| match field.split('=').next() {
        Some("lanes") => "lanes=11".to_owned(),
        Some("rtt_us") => NEAR.to_owned(),
        _ => field.to_owned(),
    };
    let line: Vec<_> = remembered(&site).split(' ').map(change).collect();
    let memory = format!("# zmove paths 1\n{}\n", line.join(" "));
    // a host that is busy may take the path to itself for a longer one
    let started_there = (0..9).any(|number| {
        write(site.path("client").join("paths"), &memory).unwrap();
        paint(site.source().join(format!("g{number}")), 1 << 20);
        site.push_contents();
        remembered(&site).contains(" lanes=11 ")
    });
    assert!(started_there, "{}", remembered(&site));
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_number_that_was_asked_for_teaches_nothing() {
    let site = site();
    site.push(&["--streams", "3"], site.contents(), "").done();
    assert!(!site.path("client").join("paths").exists());
}

#[test]
fn a_damaged_memory_costs_a_line() {
    let site = site();
    write(site.path("client").join("paths"), "lanes = many").unwrap();
    let outcome = site.push(&[], site.contents(), "").expect(0);
    outcome.says(&["zmove: ", "paths", "not used"]).lines(1);
    remembered(&site);
    assert_same(&site.source(), &site.target());
}
