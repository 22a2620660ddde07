//! Command lines that users type out of habit from rsync and scp. They work, or the message states the correct command
//! line, and no file is stored in an unintended place.

use std::time::{Duration, Instant};

use zmove_transport::KnownHosts;

use crate::support::harness::{Site, both_ways};
use crate::support::ports::free_address;
use crate::support::tree::{assert_same, names, paint};

both_ways!(options_of_rsync_are_taken);

fn options_of_rsync_are_taken(site: &Site) {
    paint(site.source().join("d/f"), 10);
    site.push(
        &[
            "-rvP",
            "--progress",
            "--partial",
            "--stats",
            "--human-readable",
        ],
        site.contents(),
        "",
    )
    .done();
    assert_same(&site.source(), &site.target());
    let outcome = site.push(&["-rvvz"], site.contents(), "").expect(0);
    outcome
        .says(&["zmove: -z: zmove does not compress"])
        .lines(1);
    site.push(&["-qz"], site.contents(), "").done();
}

#[test]
fn a_rate_of_rsync_holds() {
    let site = Site::daemon();
    paint(site.source().join("f"), 4 << 20);
    let started = Instant::now();
    let summary = site
        .push(&["--bwlimit=2M", "--json"], site.contents(), "")
        .done()
        .summary();
    // Data that is sent before the rate limit takes effect needs no time.
    assert!(
        started.elapsed() > Duration::from_millis(1500),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(summary["limited_by"], "own_rate", "{summary}");
    site.push(&["--bwlimit", "10Mbit"], site.contents(), "")
        .expect(1)
        .says(&["'10Mbit'", "--bwlimit"]);
}

#[test]
fn a_host_in_a_wrong_form_becomes_no_directory() {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let before = names(&site.path(""));
    for (target, told) in [
        ("", "a path is empty"),
        (":x", "':x' has no host before the colon: write HOST:PATH"),
        ("10.77.0.2", "write '10.77.0.2:PATH'"),
        ("alice@dtn", "write 'alice@dtn:PATH'"),
        ("::1:x", "[ADDRESS]:PATH"),
        ("fe80::1", "[ADDRESS]:PATH"),
        ("127.0.0.1::x", "write HOST:PATH"),
        ("rsync://127.0.0.1/x", "write HOST:PATH"),
        (
            "s3://bucket/x",
            "'s3://bucket/x': this scheme is not supported",
        ),
        ("ssh://alice@127.0.0.1/x", "USER@HOST:PATH (over ssh)"),
        ("127.0.0.1:~/x", "cannot resolve '~'"),
        ("alice@127.0.0.1:~bob/x", "write the full path"),
    ] {
        for command in ["push", "copy"] {
            site.zmove(&[command, "source", target])
                .outcome()
                .expect(1)
                .says(&[told])
                .lines(1);
        }
    }
    assert_eq!(names(&site.path("")), before);
    site.zmove(&["push", "source", "./10.77.0.2"])
        .outcome()
        .done();
    site.zmove(&["push", "source", "10.77.0.2"])
        .outcome()
        .done();
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
fn a_port_read_as_a_path_is_reported() {
    let site = Site::local();
    let push = |target| site.zmove(&["push", "source", target]).outcome().expect(10);
    push("127.7.7.7:5871")
        .says(&["write 127.7.7.7:5871:PATH"])
        .says(&["refused"])
        .lines(2);
    push("127.7.7.7:run7").says(&["refused"]).lines(1);
}

#[test]
fn a_host_without_a_colon_becomes_no_directory() {
    let mut site = Site::local();
    site.start_daemon();
    let mut known = KnownHosts::open(&site.path("client")).unwrap();
    known
        .pin("dtn7", 5871, site.the_daemon().fingerprint)
        .unwrap();
    site.zmove(&["push", "source", "dtn7"])
        .outcome()
        .expect(1)
        .says(&["write 'dtn7:PATH'"])
        .lines(1);
    site.zmove(&["push", "source", "localhost.localdomain.no-such-name"])
        .outcome()
        .done();
    assert!(!site.path("dtn7").exists());
}

#[test]
fn a_user_at_a_host_without_a_colon_becomes_no_directory() {
    let site = Site::local();
    paint(site.source().join("f"), 5);
    for (target, instead) in [
        ("alice@dtn/data", "write 'alice@dtn:/data'"),
        ("alice@dtn/data/", "write 'alice@dtn:/data/'"),
        ("alice@dtn/", "write 'alice@dtn:PATH'"),
    ] {
        for command in ["push", "copy", "verify", "submit"] {
            let outcome = site.zmove(&[command, "source/", target]).outcome();
            outcome.expect(1).says(&[instead]).lines(1);
        }
    }
    site.zmove(&["pull", "127.0.0.1:x", "alice@dtn/data"])
        .outcome()
        .expect(1)
        .says(&["write 'alice@dtn:/data'"])
        .lines(1);
    assert!(!site.path("alice@dtn").exists());
    let push = |target: &str| site.zmove(&["push", "source/", target]).outcome().done();
    push("./alice@dtn/data");
    push("alice@dtn/data");
    push("alice@dtn/more");
    push(&format!("{}/x/y", site.path("bob@dtn").display()));
    assert!(site.path("alice@dtn/more/f").exists() && site.path("bob@dtn/x/y/f").exists());
}

#[test]
fn a_bare_name_is_a_directory_here_and_the_summary_says_so() {
    let site = Site::local();
    paint(site.source().join("f"), 5);
    let push = |options: &[&str], target| {
        let words = [&["push"], options, &["source/", target]].concat();
        site.zmove(&words).outcome().done().stdout
    };
    let said = "made the local directory 'dtn'\n";
    assert!(!push(&["-n"], "dtn").contains(said));
    let first = push(&[], "dtn");
    assert!(first.ends_with(said), "{first}");
    assert!(!push(&[], "dtn").contains("made"), "it exists");
    assert!(!push(&[], "./dtn2").contains("made"), "a path is meant");
}

/// zmove parses such a name as a host, like rsync and scp. If the host is not reached, the user may have meant the
/// file.
#[test]
fn a_file_whose_name_is_that_of_a_host_is_hinted_at() {
    let site = Site::local();
    let name = format!("127.0.0.1:{}:run", free_address().port());
    let hint = format!("on this host write './{name}'");
    let run = |words: [&str; 3]| site.zmove(&words).outcome();
    for exists in [false, true] {
        for words in [
            ["copy", &name, "copied"],
            ["verify", &name, "source"],
            ["pull", &name, "copied"],
            ["push", "source", &name],
        ] {
            let outcome = run(words).expect(10);
            if exists {
                outcome.says(&[&hint]).lines(2);
            } else {
                outcome.lines(1);
            }
        }
        paint(site.path(&name).join("f"), 10);
    }
    let file = format!("./{name}");
    run(["copy", &file, "copied"]).done();
    run(["verify", &file, "copied"]).done();
}

#[test]
fn no_scheme_is_looked_up_as_a_host() {
    let site = Site::local();
    for [command, source, target] in [
        ["push", "s3://bucket/x", "target"],
        ["push", "source", "s3://bucket/x"],
        ["pull", "s3://bucket/x", "target"],
        ["copy", "gs://bucket/x", "target"],
        ["verify", "source", "gs://bucket"],
        ["submit", "s3://bucket/x", "target"],
    ] {
        site.zmove(&[command, source, target])
            .outcome()
            .expect(1)
            .says(&["this scheme is not supported: write HOST:PATH"])
            .lines(1);
    }
}

#[test]
fn a_selection_that_excludes_everything_is_reported() {
    let site = Site::local();
    paint(site.source().join("a.h5"), 5);
    let push = |options: &[&str]| {
        site.zmove(&[&["push"], options, &["source/", "x"]].concat())
            .outcome()
            .expect(0)
    };
    let outcome = push(&["--include", "*.h5", "--exclude", "*"]);
    assert!(
        outcome.stdout.contains("nothing was sent"),
        "{}",
        outcome.stdout
    );
    outcome
        .says(&["--exclude '*' --include '*/' --include '*.h5'"])
        .lines(1);
    // No pattern is reported as unused.
    push(&["-n", "--include", "*.h5", "--exclude", "*"])
        .says(&["excludes everything"])
        .lines(1);
    push(&["--exclude", "*", "--include", "*/", "--include", "*.h5"]).done();
    assert!(site.path("x/a.h5").exists());
}
