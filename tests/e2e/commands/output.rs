//! The output: no progress without a terminal, JSON for programs, and examples in the help.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::command::Zmove;
use crate::support::harness::{Site, both_ways, has_program, skip};
use crate::support::quiet_machine::{quiet_machine, share_machine};
use crate::support::tree::{assert_same, paint};

both_ways!(
    no_bar_without_a_terminal,
    json_is_one_object_a_line_and_ends_with_a_summary,
    failures_are_json_events_too,
    quiet_says_nothing,
    the_summary_says_whether_files_were_flushed,
    a_trace_ends_with_everything_stored,
    a_trace_is_summed_up_and_drawn,
);

fn grow(site: &Site) {
    paint(site.source().join("f"), 1_000);
    paint(site.source().join("g"), 2 * zmove_types::GROUP_BYTES + 1);
}

fn no_bar_without_a_terminal(site: &Site) {
    grow(site);
    let outcome = site.push(&[], site.contents(), "").done();
    assert!(
        outcome.stdout.starts_with("2 files, 8.00 MiB in "),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome.stdout.contains("verified") && outcome.stdout.contains("lanes"),
        "{}",
        outcome.stdout
    );
    assert!(!outcome.stdout.contains('\u{1b}') && !outcome.stdout.contains('\r'));
    assert!(outcome.stdout.lines().count() <= 4);
}

/// Returns the output of a command on a terminal with 80 columns.
fn at_terminal(site: &Site, variables: &[(&str, &str)], words: &[&str]) -> String {
    let zmove = site.zmove(words).0;
    let words = std::iter::once(zmove.get_program()).chain(zmove.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
    let mut script = Command::new("script");
    script
        .args(["-qefc", &format!("stty cols 80; {}", words.join(" "))])
        .arg("/dev/null")
        .current_dir(site.path(""))
        .env("ZMOVE_HOME", site.path("client"))
        .env_remove("NO_COLOR")
        .envs(variables.iter().copied());
    Zmove(script).outcome().done().stdout
}

#[test]
fn a_terminal_shows_progress_and_styles_unless_they_are_turned_off() {
    if !has_program("script") {
        return skip("a terminal needs script");
    }
    let site = Site::daemon();
    paint(site.source().join("f"), 2 << 20);
    let push = |options: &[&str], path: &str| {
        let target = format!("{}:{path}", site.the_daemon().address);
        let limit = &["push", "--limit", "16Mbit"][..];
        at_terminal(
            &site,
            &[],
            &[limit, options, &["source/", &target]].concat(),
        )
    };
    let bar = push(&[], "a");
    assert!(bar.contains("% ") && bar.contains('\r'), "{bar}");
    let plain = push(&["--no-progress"], "b");
    assert!(plain.starts_with("1 file, 2.00 MiB in "), "{plain}");
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let help = |variables: &[(&str, &str)]| at_terminal(&site, variables, &["push", "-h"]);
    assert!(help(&[]).contains('\u{1b}'));
    assert!(!help(&[("NO_COLOR", "1")]).contains('\u{1b}'));
}

fn json_is_one_object_a_line_and_ends_with_a_summary(site: &Site) {
    grow(site);
    let outcome = site.push(&["--json"], site.contents(), "").done();
    let events: Vec<Value> = outcome
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(events.iter().all(|event| event["event"].is_string()));
    let summary = outcome.summary();
    for key in [
        "files", "bytes", "skipped", "specials", "failed", "vanished", "resent", "lanes",
    ] {
        assert!(summary[key].is_u64(), "{key} in {summary}");
    }
    for key in [
        "seconds",
        "bytes_per_second",
        "first_byte_seconds",
        "flush_seconds",
        "sender_cpu_seconds",
    ] {
        assert!(summary[key].is_f64(), "{key} in {summary}");
    }
    assert!(summary["limited_by"].is_string());
    let shares = summary["shares_percent"].as_object().unwrap();
    assert_eq!(
        shares[summary["limited_by"].as_str().unwrap()],
        summary["limited_percent"]
    );
    assert_eq!(summary["path"].is_object(), site.is_remote(), "{summary}");
    if site.is_remote() {
        assert!(
            summary["path"]["bytes_sent"].as_u64() > summary["bytes"].as_u64(),
            "{summary}"
        );
        assert!(
            summary["path"]["lane_bytes_per_second_max"].is_f64(),
            "{summary}"
        );
    }
    assert!(summary["lanes"].as_u64() > Some(0));
}

fn failures_are_json_events_too(site: &Site) {
    grow(site);
    paint(site.target().join("f/keep"), 1);
    let outcome = site.push(&["--json"], site.contents(), "").expect(23);
    let events: Vec<Value> = outcome
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let failed: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "failed")
        .collect();
    assert_eq!(failed.len(), 1);
    assert!(failed[0]["message"].as_str().unwrap().contains("'f'"));
    outcome.says(&["zmove: receiver:", "'f'"]).lines(1);
}

fn quiet_says_nothing(site: &Site) {
    grow(site);
    for options in [["--quiet"], ["-q"]] {
        assert_eq!(site.push(&options, site.contents(), "").done().stdout, "");
    }
    paint(site.source().join("h"), 1);
    paint(site.target().join("h/keep"), 1);
    let outcome = site
        .push(&["-q"], site.contents(), "")
        .expect(23)
        .says(&["'h'"])
        .lines(1);
    assert_eq!(outcome.stdout, "");
}

fn the_summary_says_whether_files_were_flushed(site: &Site) {
    for (durability, said) in [
        ("none", "not flushed"),
        ("end", "flushed in"),
        ("file", "flushed in"),
    ] {
        paint(site.source().join(durability), 2 * zmove_types::GROUP_BYTES);
        paint(site.source().join(format!("small-{durability}")), 10);
        let outcome = site
            .push(&["--durability", durability], site.contents(), "")
            .done();
        assert!(outcome.stdout.contains(said), "{}", outcome.stdout);
        assert_same(&site.source(), &site.target());
    }
}

#[test]
fn streams_are_a_choice() {
    let _quiet = quiet_machine();
    let site = Site::daemon();
    // All lanes connect while these zeros are sent.
    File::create(site.source().join("zeros"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    for streams in ["1", "3"] {
        let options = ["--json", "--sparse", "never", "--streams", streams];
        let summary = site.push(&options, site.contents(), streams).done();
        assert_eq!(summary.summary()["lanes"].to_string(), streams);
        std::fs::remove_dir_all(site.target().join(streams)).unwrap();
    }
    paint(site.source().join("f"), 10);
    site.push(&["--streams", "64"], site.contents(), "").done();
    assert_same(&site.source(), &site.target());
}

fn a_trace_ends_with_everything_stored(site: &Site) {
    grow(site);
    let trace = site.path("trace");
    let summary = site
        .push(
            &["--json", "--trace", trace.to_str().unwrap()],
            site.contents(),
            "",
        )
        .done()
        .summary();
    let text = std::fs::read_to_string(trace).unwrap();
    let samples: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let last = samples.last().unwrap();
    for key in ["bytes_read", "bytes_handed_over", "bytes_stored"] {
        assert_eq!(last[key], summary["bytes"], "{key} in {last}");
    }
    for key in ["packs_waiting", "frames_waiting", "items_outstanding"] {
        assert_eq!(last[key], 0, "{key} in {last}");
    }
    assert_eq!(last["lanes"], summary["lanes"]);
    assert_eq!(last["bytes_acked"].is_u64(), site.is_remote(), "{last}");
    assert!(samples.is_sorted_by_key(|sample| sample["bytes_stored"].as_u64()));
}

fn a_trace_is_summed_up_and_drawn(site: &Site) {
    grow(site);
    let trace = site.path("trace");
    site.push(&["--trace", trace.to_str().unwrap()], site.contents(), "")
        .done();
    let text = site.zmove(&["trace", "trace"]).outcome().done().stdout;
    assert!(text.starts_with("8.00 MiB in "), "{text}");
    for row in [
        "read",
        "given to lanes",
        "stored",
        "batches to read",
        "frames for lanes",
        "without receipt",
    ] {
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with(&format!("{row} ")))
                .count(),
            1,
            "{row} in {text}"
        );
    }
    assert_eq!(text.contains("acknowledged"), site.is_remote(), "{text}");

    let quiet = site
        .zmove(&["trace", "trace", "--svg", "trace.svg"])
        .outcome()
        .done();
    assert_eq!(quiet.stdout, "");
    let picture = std::fs::read_to_string(site.path("trace.svg")).unwrap();
    assert!(
        picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"),
        "{picture}"
    );
    for part in [
        "8.00 MiB in ",
        "Stored and verified, MiB",
        "Connected lanes",
        "time since the command started, s",
    ] {
        assert!(picture.contains(part), "{part} in {picture}");
    }
    assert_eq!(picture.contains("Retransmitted segments"), site.is_remote());
}

#[test]
fn an_invalid_trace_is_reported_with_line_and_cause() {
    let site = Site::local();
    grow(&site);
    site.push(
        &["--trace", site.path("trace").to_str().unwrap()],
        site.contents(),
        "",
    )
    .done();
    let whole = std::fs::read_to_string(site.path("trace")).unwrap();
    let cases = [
        (
            format!("{whole}{{\"seconds\":1}}\n"),
            vec!["line ", "missing field `bytes_read`"],
        ),
        (format!("{whole}{whole}"), vec!["line ", "decreases from"]),
        (
            whole[..whole.len() - 5].to_owned(),
            vec!["line ", "has no end"],
        ),
        (
            "# a table\n".to_owned(),
            vec!["line 1", "not a trace of 'zmove push --trace'"],
        ),
        (String::new(), vec!["the file is empty"]),
    ];
    for (content, causes) in cases {
        std::fs::write(site.path("damaged"), &content).unwrap();
        let outcome = site
            .zmove(&["trace", "damaged", "--svg", "p.svg"])
            .outcome()
            .expect(11)
            .lines(1);
        outcome.says(&[&["zmove: ", "'damaged'"][..], &causes].concat());
    }
    assert!(!site.path("p.svg").exists());
    site.zmove(&["trace", "nowhere"])
        .outcome()
        .expect(11)
        .says(&["'nowhere'", "No such file"])
        .lines(1);
    site.zmove(&["trace", "trace", "--svg", "trace"])
        .outcome()
        .expect(1)
        .says(&["would replace the trace"])
        .lines(1);
    assert_eq!(std::fs::read_to_string(site.path("trace")).unwrap(), whole);
}

/// Returns the exit code and the messages of a command with this standard output.
fn writes_to(site: &Site, words: &[&str], output: impl Into<Stdio>) -> (Option<i32>, String) {
    share_machine();
    let mut command = site.zmove(words).0;
    command.stdin(Stdio::null()).stdout(output);
    let done = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    (done.status.code(), said)
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let mut site = Site::local();
    site.let_read("source");
    site.start_daemon();
    paint(site.source().join("f"), 1_000);
    site.zmove(&["push", "source/", "same"]).outcome().done();
    let remote = format!("{}:{}/", site.the_daemon().address, site.source().display());
    let commands: &[&[&str]] = &[
        &["push", "-n", "source/", "new"],
        &["push", "--json", "source/", "new"],
        &["push", "source/", "newer"],
        &["pull", "--json", &remote, "newest"],
        &["verify", "source/", "same"],
        &["scan", "source"],
        &["scan", "--json", "source"],
        &["key", "show"],
        &["jobs"],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
    ];
    for words in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (code, said) = writes_to(&site, words, full);
        assert_eq!(code, Some(11), "{words:?}: {said}");
        let expected = "zmove: write the output: No space left on device (os error 28)\n";
        assert!(said.ends_with(expected), "{words:?}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = writes_to(&site, words, writer);
        assert_eq!(done, (Some(0), String::new()), "nobody reads: {words:?}");
    }
    // The exit code for a difference takes precedence.
    paint(site.source().join("g"), 1);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (code, said) = writes_to(&site, &["verify", "source/", "same"], full);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("write the output"), "{said}");
}

#[test]
fn help_teaches_by_example() {
    let site = Site::local();
    let help = site.zmove(&["--help"]).outcome().done().stdout;
    for line in [
        "Examples:",
        "zmove push run7",
        "zmove allow SHA256:",
        "zmove serve --listen",
        "Exit codes:",
    ] {
        assert!(help.contains(line), "{line} in:\n{help}");
    }
    for command in ["push", "serve", "key", "allow", "scan", "trace"] {
        assert!(
            help.contains(&format!(" {command} ")),
            "{command} in:\n{help}"
        );
        let own = site.zmove(&[command, "--help"]).outcome().done().stdout;
        assert!(own.contains("Usage:"), "{own}");
    }
    let version = site.zmove(&["--version"]).outcome().done().stdout;
    assert!(version.starts_with("zmove "), "{version}");
}

#[test]
fn usage_errors_exit_with_one() {
    let site = Site::local();
    grow(&site);
    let cases: [&[&str]; 14] = [
        &[],
        &["fly"],
        &["push"],
        &["push", "source"],
        &["push", "--no-such-option", "source", "x"],
        &["push", "--streams", "0", "source", "x"],
        &["push", "--streams", "65", "source", "x"],
        &["push", "--json", "--quiet", "source", "x"],
        &["push", "--durability", "maybe", "source", "x"],
        &["push", "source", "host:0:x"],
        &["push", "source", "host:65536:x"],
        &["push", "source", "@host:x"],
        &["push", "source", "zmove://host"],
        &["serve", "--listen", "nonsense"],
    ];
    for case in cases {
        let outcome = site.zmove(case).outcome().expect(1);
        assert!(
            !outcome.stderr.is_empty() && outcome.stdout.is_empty() != case.contains(&"--json"),
            "{case:?}"
        );
    }
    assert!(!site.path("x").exists());
}

#[test]
fn a_port_in_use_is_reported() {
    let site = Site::daemon();
    let address = site.the_daemon().address.to_string();
    let serve = site.zmove(&["serve", "--listen", &address]);
    serve
        .outcome()
        .expect(11)
        .says(&["zmove: listen on", &address, "in use"]);
}

/// A program that misspells an option gets the error in the same format as all other output.
#[test]
fn a_command_line_that_cannot_be_parsed_is_an_object_too() {
    let site = Site::local();
    for command in ["push", "pull", "copy", "verify"] {
        let words = [command, "--json", "--no-such-option", "a", "b"];
        let outcome = site.zmove(&words).outcome().expect(1);
        let object: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(
            (&object["event"], &object["exit"]),
            (&"error".into(), &1.into())
        );
        let message = object["message"].as_str().unwrap();
        assert!(
            message.starts_with("unexpected argument '--no-such-option'"),
            "{message}"
        );
    }
    let outcome = site
        .zmove(&["push", "--json", "--help"])
        .outcome()
        .expect(0);
    assert!(!outcome.stdout.contains("\"event\""), "{}", outcome.stdout);
    let outcome = site
        .zmove(&["push", "--no-such-option"])
        .outcome()
        .expect(1);
    assert_eq!(outcome.stdout, "");
}
