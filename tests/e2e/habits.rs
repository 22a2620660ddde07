//! What users type from habit with rsync and scp: it works, or says what to type instead, and nothing lands where it
//! was not meant to.

use crate::harness::{Site, both_ways};
use crate::tree::{assert_same, names, paint};

both_ways!(options_of_rsync_are_taken);

fn options_of_rsync_are_taken(site: &Site) {
    paint(site.source().join("d/f"), 10);
    site.push(&["-rvP", "--progress", "--partial", "--stats", "--human-readable"], site.contents(), "")
        .done();
    assert_same(&site.source(), &site.target());
    let outcome = site.push(&["-rvvz"], site.contents(), "").expect(0);
    outcome.says(&["zmove: -z: zmove does not compress"]).lines(1);
    site.push(&["-qz"], site.contents(), "").done();
}

#[test]
fn a_rate_of_rsync_holds() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    site.push(&["--bwlimit=10M"], site.contents(), "").done();
    site.push(&["--bwlimit", "10Mbit"], site.contents(), "").expect(1).says(&["'10Mbit'", "--bwlimit"]);
}

#[test]
fn a_host_that_is_written_wrong_is_not_taken_for_a_name() {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let before = names(&site.path(""));
    for (target, told) in [
        ("10.77.0.2", "write '10.77.0.2:PATH'"),
        ("alice@dtn", "write 'alice@dtn:PATH'"),
        ("::1:x", "[ADDRESS]:PATH"),
        ("fe80::1", "[ADDRESS]:PATH"),
        ("127.0.0.1::x", "write HOST:PATH"),
        ("127.0.0.1:~/x", "leave '~' out"),
        ("alice@127.0.0.1:~bob/x", "write the whole path"),
    ] {
        for command in ["push", "copy"] {
            site.zmove(&[command, "source", target]).outcome().expect(1).says(&[told]).lines(1);
        }
    }
    assert_eq!(names(&site.path("")), before);
    site.zmove(&["push", "source", "./10.77.0.2"]).outcome().done();
    site.zmove(&["push", "source", "10.77.0.2"]).outcome().done();
    site.zmove(&["push", "source", "./::1:x"]).outcome().done();
}

#[test]
fn a_word_of_another_program_gets_a_hint() {
    let site = Site::local();
    for (words, told) in [
        (&["cp", "source", "x"][..], "tip: 'zmove copy SRC... DST'"),
        (&["push", "--delete-after", "source", "x"], "tip: --delete"),
    ] {
        site.zmove(words).outcome().expect(1).says(&[told]);
    }
}

#[test]
fn a_port_that_is_taken_for_a_path_is_told() {
    let site = Site::local();
    let push = |target| site.zmove(&["push", "source", target]).outcome().expect(10);
    push("127.7.7.7:5871").says(&["write 127.7.7.7:5871:PATH"]).says(&["refused"]).lines(2);
    push("127.7.7.7:run7").says(&["refused"]).lines(1);
}
