//! `zmove scan` of a tree with known counts.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::harness::Site;
use crate::support::tree::{paint, set_mode};

fn grown() -> Site {
    let site = Site::local();
    let source = site.source();
    for (name, bytes) in [
        ("empty", 0),
        ("one", 1),
        ("a/1023", 1_023),
        ("a/1024", 1_024),
        ("a/b/1025", 1_025),
    ] {
        paint(source.join(name), bytes);
    }
    std::fs::File::create(source.join("a/medium"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    std::fs::File::create(source.join("large"))
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    symlink("a", source.join("link")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(source.join("fifo"))
            .status()
            .unwrap()
            .success()
    );
    site
}

const BYTES: u64 = 1 + 1_023 + 1_024 + 1_025 + (1 << 20) + (1 << 30);

#[test]
fn the_output_as_json_has_all_counts() {
    let said = grown()
        .zmove(&["scan", "--json", "source"])
        .outcome()
        .done()
        .stdout;
    assert_eq!(said.lines().count(), 1);
    let scan: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(scan["files"], json!({ "files": 7, "bytes": BYTES }));
    assert_eq!(scan["losf"], json!({ "files": 5, "bytes": 3_073 }));
    assert_eq!(scan["medium"], json!({ "files": 1, "bytes": 1 << 20 }));
    assert_eq!(scan["large"], json!({ "files": 1, "bytes": 1 << 30 }));
    assert_eq!(
        (&scan["directories"], &scan["symlinks"], &scan["specials"]),
        (&json!(3), &json!(1), &json!(1))
    );
    assert_eq!((&scan["errors"], &scan["vanished"]), (&json!(0), &json!(0)));
    assert_eq!(scan["largest_file"]["value"], 1 << 30);
    assert!(
        scan["largest_file"]["path"]
            .as_str()
            .unwrap()
            .ends_with("source/large")
    );
    assert!(
        scan["deepest_path"]["path"]
            .as_str()
            .unwrap()
            .ends_with("a/b/1025")
    );
}

/// A scan counts what a push of the same path with the same patterns would send.
#[test]
fn a_selection_counts_as_it_does_in_a_push() {
    let site = grown();
    for source in ["source", "source/", "source/a"] {
        for pattern in ["/a", "/source/a", "b/", "1*", "/b"] {
            let options = ["--exclude", pattern, "--json"];
            let json = |said: &str| -> Value {
                serde_json::from_str(said.lines().last().unwrap()).unwrap()
            };
            let scanned = site
                .zmove(&[&["scan"], &options[..], &[source]].concat())
                .outcome()
                .expect(0)
                .stdout;
            let pushed = [&["push", "-n"], &options[..], &[source, "new/"]].concat();
            let pushed = json(&site.zmove(&pushed).outcome().expect(0).stdout);
            assert_eq!(
                json(&scanned)["files"]["files"],
                pushed["files"],
                "{source} {pattern}: {pushed}"
            );
        }
    }
}

#[test]
fn a_pattern_that_no_name_matches_is_reported() {
    let site = grown();
    let patterns = ["--exclude", "*.tpm", "--exclude", "1*", "--include", "/b"];
    for command in [&["scan", "source"][..], &["push", "-n", "source/", "new/"]] {
        let outcome = site
            .zmove(&[command, &patterns].concat())
            .outcome()
            .expect(0);
        let told = &outcome.stderr;
        for pattern in ["'*.tpm'", "'/b'"] {
            assert!(
                told.contains(&format!("no name matched the pattern {pattern}")),
                "{told}"
            );
        }
        assert!(!told.contains("'1*'"), "{told}");
    }
}

#[test]
fn the_text_output_is_a_table() {
    let said = grown().zmove(&["scan", "source"]).outcome().done().stdout;
    let all = said.lines().find(|line| line.starts_with("all "));
    let all = all.unwrap_or_else(|| panic!("{said}"));
    assert!(
        all.contains(" 7 files ") && all.ends_with(" 1.00 GiB"),
        "{said}"
    );
    assert!(said.lines().count() > 7, "{said}");
    assert!(!said.contains('\u{1b}'));
}

#[test]
fn an_empty_directory_and_a_single_file_are_counted() {
    let site = Site::local();
    let scan = |path: &str| -> Value {
        serde_json::from_str(
            &site
                .zmove(&["scan", "--json", path])
                .outcome()
                .done()
                .stdout,
        )
        .unwrap()
    };
    assert_eq!(scan("source")["files"], json!({ "files": 0, "bytes": 0 }));
    paint(site.source().join("f"), 99);
    assert_eq!(
        scan("source/f")["files"],
        json!({ "files": 1, "bytes": 99 })
    );
}

#[test]
fn missing_and_unreadable_directories_are_reported() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    let outcome = site.zmove(&["scan", "nowhere"]).outcome().expect(23);
    outcome
        .says(&["zmove: ", "nowhere", "No such file or directory"])
        .lines(1);
    paint(site.source().join("locked/f"), 1);
    paint(site.source().join("g"), 2);
    site.give_away();
    set_mode(site.source().join("locked"), 0);
    let outcome = site
        .zmove(&["scan", "--json", "source"])
        .outcome()
        .expect(23);
    set_mode(site.source().join("locked"), 0o700);
    let scan: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (&scan["files"]["files"], &scan["errors"]),
        (&json!(1), &json!(1))
    );
    outcome
        .says(&["zmove: ", "locked", "Permission denied"])
        .lines(1);
}

#[test]
fn a_picture_has_two_bars_a_class_and_the_advice() {
    let site = grown();
    let said = site
        .zmove(&["scan", "--svg", "scan.svg", "source"])
        .outcome()
        .done()
        .stdout;
    assert!(
        said.contains("LOSF is 71.4 % of the files and 0.0 % of the bytes"),
        "{said}"
    );
    let drawing = std::fs::read_to_string(site.path("scan.svg")).unwrap();
    for part in [
        "<svg",
        "7 files, 1.00 GiB",
        "LOSF: below 1 MiB",
        "71.4 % of the files: 5",
        "large: from 1 GiB",
        "LOSF is 71.4 % of the files",
    ] {
        assert!(drawing.contains(part), "{part}");
    }
    let outcome = site
        .zmove(&["scan", "--svg", "nowhere/scan.svg", "source"])
        .outcome()
        .expect(11);
    outcome.says(&["write 'nowhere/scan.svg'", "No such file"]);
}
