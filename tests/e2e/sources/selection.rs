//! Selection of sources: rules, sizes and lists of paths.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::command::{Outcome, wait_within_patience};
use crate::support::harness::{Site, both_ways, has_program, skip};
use crate::support::namespace::Namespace;
use crate::support::tree::{assert_pictures, paint, picture, set_own_mtime};

both_ways!(
    rules_choose_in_their_order,
    a_file_of_rules_counts_where_it_stands,
    sizes_choose_files_alone,
    a_source_that_is_left_out_sends_nothing,
    a_list_names_what_is_sent,
    a_list_may_come_from_stdin_with_nul_bytes,
    wrong_paths_of_a_list_are_named,
    a_long_list_is_sent_whole,
);

/// Returns the paths of the files and directories below the target.
fn arrived(site: &Site) -> Vec<String> {
    let mut paths = Vec::new();
    collect(&site.target(), "", &mut paths);
    paths.sort();
    paths
}

fn collect(directory: &Path, below: &str, paths: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{below}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{name}/"), paths);
            paths.push(name + "/");
        } else {
            paths.push(name);
        }
    }
}

fn grow(site: &Site) {
    for (name, bytes) in [
        ("main.c", 10),
        ("main.o", 20),
        ("lib/a.c", 30),
        ("lib/a.o", 40),
        ("lib/keep.o", 50),
        ("lib/build/x", 60),
        ("build/y", 70),
        ("docs/build", 80),
        ("big", 2 << 20),
    ] {
        paint(site.source().join(name), bytes);
    }
    for name in ["lib/build", "lib", "build", "docs", ""] {
        set_own_mtime(&site.source().join(name), 1_000_000_000, 5);
    }
}

fn rules_choose_in_their_order(site: &Site) {
    grow(site);
    let options = [
        "--json",
        "--exclude",
        "*.o",
        "--include",
        "keep.o",
        "--exclude",
        "build/",
        "--exclude",
        "/big",
    ];
    let summary = site.push(&options, site.contents(), "").done().summary();
    let expected = [
        "docs/",
        "docs/build",
        "lib/",
        "lib/a.c",
        "lib/keep.o",
        "main.c",
    ];
    assert_eq!(arrived(site), expected);
    assert_eq!(
        (&summary["files"], &summary["left_out"], &summary["failed"]),
        (&json!(4), &json!(5), &json!(0))
    );
    // A second push has nothing to do. If the include rule comes first, the later exclude rule excludes the file again.
    let again = site.push(&options, site.contents(), "").done();
    assert_eq!(again.summary()["skipped"], 4);
    site.push(
        &[
            "--include",
            "keep.o",
            "--exclude",
            "*.o",
            "--exclude",
            "big",
        ],
        site.source(),
        "other",
    )
    .done();
    assert!(!site.target().join("other/source/lib/keep.o").exists());
    assert!(site.target().join("other/source/build/y").exists());
}

fn a_file_of_rules_counts_where_it_stands(site: &Site) {
    grow(site);
    let rules = site.path("rules");
    std::fs::write(&rules, "# all but C\r\n*\n!*/\n\n!*.c\n").unwrap();
    let rules = rules.to_str().unwrap();
    site.push(
        &["--exclude", "lib", "--filter-from", rules, "--include", "y"],
        site.source(),
        "",
    )
    .done();
    let expected = [
        "build/",
        "build/y",
        "docs/",
        "lib/",
        "lib/a.c",
        "lib/build/",
        "main.c",
    ]
    .map(|name| format!("source/{name}"));
    assert_eq!(arrived(site)[1..], expected);
}

fn sizes_choose_files_alone(site: &Site) {
    grow(site);
    let options = [
        "--min-size",
        "30",
        "--max-size",
        "1MiB",
        "--exclude",
        "build",
    ];
    let said = site.push(&options, site.contents(), "").done().stdout;
    assert!(said.contains("6 left out by the selection"), "{said}");
    assert_eq!(
        arrived(site),
        ["docs/", "lib/", "lib/a.c", "lib/a.o", "lib/keep.o"]
    );
}

fn a_source_that_is_left_out_sends_nothing(site: &Site) {
    grow(site);
    let file = site.source().join("main.o");
    let summary = site
        .push(&["--json", "--exclude", "/main.o"], &file, "")
        .expect(0)
        .says(&["excludes everything"])
        .summary();
    assert_eq!(
        (&summary["files"], &summary["left_out"]),
        (&json!(0), &json!(1))
    );
    let summary = site
        .push(&["--json", "--exclude", "source"], site.source(), "")
        .expect(0)
        .says(&["excludes everything"])
        .summary();
    assert_eq!(
        (&summary["files"], &summary["left_out"]),
        (&json!(0), &json!(1))
    );
    assert!(arrived(site).is_empty());
}

fn push_list(site: &Site, options: &[&str], list: &[u8]) -> Outcome {
    let path = site.path("list");
    std::fs::write(&path, list).unwrap();
    let options = [&["--files-from", path.to_str().unwrap()], options].concat();
    site.push(&options, site.source(), "")
}

fn a_list_names_what_is_sent(site: &Site) {
    grow(site);
    let list = b"lib/build/x\n\nlib/a.c\nlib/build/x\n./docs\nmain.o\n";
    let summary = push_list(site, &["--json", "--exclude", "*.o"], list)
        .done()
        .summary();
    assert_eq!(
        arrived(site),
        ["docs/", "lib/", "lib/a.c", "lib/build/", "lib/build/x"]
    );
    assert_eq!(
        (&summary["files"], &summary["left_out"]),
        (&json!(2), &json!(1))
    );
    let modified = |path: &Path| path.metadata().unwrap().modified().unwrap();
    for directory in ["docs", "lib", "lib/build"] {
        assert_eq!(
            modified(&site.target().join(directory)),
            modified(&site.source().join(directory))
        );
    }
}

fn a_list_may_come_from_stdin_with_nul_bytes(site: &Site) {
    let odd = OsStr::from_bytes(b"d/caf\xe9\nx");
    paint(site.source().join(odd), 9);
    paint(site.source().join("d/other"), 9);
    let mut push = site.push_command(
        &["--files-from", "-", "--from0"],
        &[site.source().as_ref()],
        "",
    );
    let mut child = push
        .0
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"d/caf\xe9\nx\0")
        .unwrap();
    assert_eq!(wait_within_patience(&mut child), Some(0));
    let names: Vec<_> = std::fs::read_dir(site.target().join("d"))
        .unwrap()
        .collect();
    assert_eq!(names.len(), 1);
    assert_eq!(
        std::fs::read(site.target().join(odd)).unwrap(),
        std::fs::read(site.source().join(odd)).unwrap()
    );
}

#[test]
fn of_many_wrong_paths_some_are_named_and_the_others_counted() {
    let site = Site::local();
    grow(&site);
    let list: String = (0..30).map(|number| format!("nope{number}\n")).collect();
    let outcome = push_list(&site, &[], list.as_bytes()).expect(23).lines(11);
    outcome.says(&["zmove: sender: ", "no such file", ": 20 more"]);
    push_list(&site, &["-v"], list.as_bytes())
        .expect(23)
        .lines(30);
}

fn wrong_paths_of_a_list_are_named(site: &Site) {
    grow(site);
    let outcome = push_list(
        site,
        &["--json"],
        b"nope\n../main.c\n/main.c\nmain.c/x\nmain.c\n",
    )
    .expect(23);
    assert_eq!(arrived(site), ["main.c"]);
    let summary = outcome.summary();
    assert_eq!(
        (&summary["files"], &summary["failed"], &summary["vanished"]),
        (&json!(1), &json!(4), &json!(0))
    );
    let failed = |path: &str, why: &str| {
        let events = outcome
            .stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let count = events.filter(|event| {
            let text = event.to_string();
            text.contains(&format!("find the listed path '{path}'")) && text.contains(why)
        });
        assert_eq!(count.count(), 1, "{path}: {why} in\n{}", outcome.stdout);
    };
    failed("nope", "no such file");
    failed("../main.c", "it has a '..'");
    failed("/main.c", "it is absolute");
    failed("main.c/x", "is not a directory");
}

fn a_long_list_is_sent_whole(site: &Site) {
    let mut list = Vec::new();
    for number in 0..5_000_u32 {
        let name = format!("{}/{number}", number % 17);
        paint(site.source().join(&name), u64::from(number % 50));
        list.extend(format!("{name}\n").into_bytes());
    }
    let summary = push_list(site, &["--json"], &list).done().summary();
    assert_eq!(summary["files"], 5_000);
    // The target itself gets no mode and time from a list.
    let without_top = |root: &Path| {
        let mut picture = picture(root);
        picture.remove(&b""[..]);
        picture
    };
    assert_pictures(&without_top(&site.source()), &without_top(&site.target()));
}

/// Rules with the same result for gitignore and rsync. (A pattern with an inner slash is anchored only for gitignore.)
const RULES_OF_BOTH: [&[&str]; 9] = [
    &["--exclude=*.o", "--include=keep.o"],
    &["--include=keep.o", "--exclude=*.o"],
    &["--exclude=build/"],
    &["--exclude=build"],
    &["--exclude=/build", "--exclude=big"],
    &["--exclude=*", "--include=*/", "--include=*.c"],
    &["--exclude=/lib/*", "--include=/lib/a.*"],
    &["--exclude=/source/lib/**", "--include=/source/lib/keep.o"],
    &["--exclude=[a-m]*", "--include=l*/", "--include=*.?"],
];

#[test]
fn rsync_chooses_the_same() {
    if !has_program("rsync") {
        return skip("rsync is missing");
    }
    let site = Site::local();
    grow(&site);
    for (number, rules) in RULES_OF_BOTH.into_iter().enumerate() {
        for source in ["source", "source/"] {
            let [ours, theirs] = ["ours", "theirs"]
                .map(|name| site.path(&format!("{name}{number}-{}", source.len())));
            let mut push = site.zmove(&["push", "--quiet"]);
            push.0.args(rules).arg(source).arg(&ours);
            push.outcome().done();
            // For rsync the first match takes precedence, here the last one does.
            let mut rsync = Command::new("rsync");
            rsync
                .args(["-a", "--mkpath"])
                .args(rules.iter().rev())
                .arg(source)
                .arg(&theirs);
            assert!(rsync.current_dir(site.path("")).status().unwrap().success());
            let [mut ours, mut theirs] = [ours, theirs].map(|target| picture(&target));
            if source == "source" {
                // The target root keeps the metadata with which it was created.
                for picture in [&mut ours, &mut theirs] {
                    picture.remove(&b""[..]);
                }
            }
            assert_pictures(&theirs, &ours);
        }
    }
}

#[test]
fn rsync_sends_the_same_of_a_list() {
    if !has_program("rsync") {
        return skip("rsync is missing");
    }
    let site = Site::local();
    grow(&site);
    std::fs::write(
        site.path("list"),
        "lib/build/x\ndocs\n\nmain.c\n./build/y\n",
    )
    .unwrap();
    let (ours, theirs) = (site.path("ours"), site.path("theirs"));
    site.zmove(&["push", "--quiet", "--files-from", "list", "source", "ours"])
        .outcome()
        .done();
    let rsync = |program: &mut Command| {
        program
            .current_dir(site.path(""))
            .status()
            .unwrap()
            .success()
    };
    assert!(rsync(Command::new("rsync").args([
        "-a",
        "--files-from=list",
        "source",
        "theirs"
    ])));
    let paths = |top: &Path| {
        let mut paths = Vec::new();
        collect(top, "", &mut paths);
        paths.sort();
        paths
    };
    assert_eq!(paths(&ours), paths(&theirs));
}

#[test]
fn invalid_selections_are_usage_errors() {
    let site = Site::local();
    grow(&site);
    std::fs::write(site.path("rules"), "*.o\n[z-a]\n").unwrap();
    let refused = |options: &[&str], says: &[&str]| {
        let outcome = site.push(options, site.source(), "").expect(1);
        outcome.says(says).lines(1);
    };
    refused(
        &["--exclude", "a["],
        &["zmove: --exclude: pattern 'a[': a '[' is not closed"],
    );
    refused(
        &["--include", "!a"],
        &["zmove: --include: pattern '!a': a '!' at its start"],
    );
    refused(
        &["--filter-from", "rules"],
        &["zmove: --filter-from 'rules' line 2: pattern '[z-a]': the range 'z-a'"],
    );
    std::fs::write(site.path("rsync"), "# temporary files\n- *.o\n").unwrap();
    refused(
        &["--filter-from", "rsync"],
        &[
            "zmove: --filter-from 'rsync' line 2: pattern '- *.o': it is a rule of rsync: write '*.o'",
        ],
    );
    refused(
        &["--exclude", "+ *.c"],
        &["zmove: --exclude: pattern '+ *.c': it is a rule of rsync: write '!*.c'"],
    );
    refused(
        &["--filter-from", "-", "--files-from", "-"],
        &["stdin ('-') can be only one"],
    );
    refused(
        &["--min-size", "2", "--max-size", "1"],
        &["--min-size is larger than --max-size"],
    );
    let two = [site.source(), site.source().join("lib")];
    let two = two.each_ref().map(|path| path.as_os_str());
    site.push_command(&["--files-from", "rules"], &two, "")
        .outcome()
        .expect(1)
        .says(&["needs exactly one SRC"])
        .lines(1);
    for option in ["--filter-from", "--files-from"] {
        let outcome = site
            .push(&[option, "nowhere"], site.source(), "")
            .expect(11);
        outcome
            .says(&["zmove: ", option, "'nowhere'", "No such file"])
            .lines(1);
    }
    assert!(arrived(&site).is_empty());
}

#[test]
fn a_name_like_a_rule_of_rsync_is_escaped() {
    let site = Site::local();
    for name in ["- *.o", "main.o", "P x"] {
        paint(site.source().join(name), 3);
    }
    std::fs::write(site.path("rules"), "\\- *.o\n\\P x\n").unwrap();
    site.push(&["--filter-from", "rules"], site.contents(), "")
        .done();
    assert_eq!(arrived(&site), ["main.o"]);
}

#[test]
fn two_sources_may_share_a_name_that_is_left_out() {
    let site = Site::local();
    for name in ["one/f", "one/.DS_Store", "two/g", "two/.DS_Store"] {
        paint(site.source().join(name), 3);
    }
    let sources = ["one/", "two/"].map(|name| site.source().join(name).into_os_string());
    let sources = sources.each_ref().map(|name| name.as_os_str());
    site.push_command(&[], &sources, "")
        .outcome()
        .expect(1)
        .says(&["would both become '.DS_Store'"]);
    site.push_command(&["--exclude", ".DS_Store"], &sources, "")
        .outcome()
        .done();
    assert_eq!(arrived(&site), ["f", "g"]);
}

#[test]
fn a_scan_counts_selected_entries() {
    let site = Site::local();
    grow(&site);
    std::fs::write(site.path("list"), "lib/a.c\nlib/a.o\n").unwrap();
    let count = |options: &[&str]| -> (Value, Value) {
        let said = site
            .zmove(&[&["scan", "--json"], options].concat())
            .outcome()
            .done()
            .stdout;
        let scan: Value = serde_json::from_str(&said).unwrap();
        (scan["files"]["files"].clone(), scan["directories"].clone())
    };
    assert_eq!(
        count(&["--exclude", "/source/lib", "source"]),
        (json!(5), json!(3))
    );
    assert_eq!(count(&["--max-size", "40", "source"]), (json!(4), json!(5)));
    assert_eq!(
        count(&["--exclude", "main.o", "source/main.o"]),
        (json!(0), json!(0))
    );
    assert_eq!(
        count(&["--files-from", "list", "--exclude", "*.o", "source"]),
        (json!(1), json!(1))
    );
}

/// A site whose source contains `mounted`, a separate file system.
fn with_a_mount() -> Option<Site> {
    let site = Site::within(|target| {
        let source = target.parent().unwrap().join("source");
        std::fs::create_dir_all(source.join("mounted")).unwrap();
        Namespace::with_small_disk(&source.join("mounted"), 1 << 20)
    })?;
    for name in ["f", "d/g", "mounted/inside"] {
        paint(site.namespace().outside(&site.source()).join(name), 10);
    }
    for name in ["alone", "d/alone", "mounted/below", "mounted/d/f"] {
        paint(site.target().join(name), 10);
    }
    Some(site)
}

/// The entries below the target after the source has been pushed with `-x --delete`.
const WITHOUT_THE_MOUNT: [&str; 7] = [
    "d/",
    "d/g",
    "f",
    "mounted/",
    "mounted/below",
    "mounted/d/",
    "mounted/d/f",
];

fn mounts_are_left_out(site: &Site) {
    let preview = site
        .push(&["-n", "-x", "--delete"], site.contents(), "")
        .done();
    let mut lines: Vec<_> = preview
        .stdout
        .lines()
        .filter(|line| line.starts_with(['+', '-']))
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, ["+ d/g", "+ f", "- alone", "- d/alone"]);
    let summary = site
        .push(&["--json", "-x", "--delete"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(
        (&summary["files"], &summary["removed"]),
        (&2.into(), &2.into())
    );
    assert_eq!(arrived(site), WITHOUT_THE_MOUNT);
    let summary = site
        .push(&["--json", "--delete"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(
        (&summary["files"], &summary["removed"]),
        (&1.into(), &3.into())
    );
    assert_eq!(
        arrived(site),
        ["d/", "d/g", "f", "mounted/", "mounted/inside"]
    );
}

#[test]
fn mounts_in_a_source_are_left_out_locally() {
    if let Some(site) = with_a_mount() {
        mounts_are_left_out(&site);
    }
}

#[test]
fn mounts_in_a_source_are_left_out_to_a_daemon() {
    if let Some(mut site) = with_a_mount() {
        site.start_daemon();
        mounts_are_left_out(&site);
    }
}

#[test]
fn rsync_stays_in_the_same_file_system() {
    let Some(site) = with_a_mount() else { return };
    if !has_program("rsync") {
        return skip("rsync is missing: nothing to compare with");
    }
    let (source, target) = (site.contents(), site.path("target"));
    let words = ["rsync", "-ax", "--delete"].map(OsStr::new);
    assert!(
        site.namespace()
            .run(&[&words[..], &[&source, target.as_os_str()]].concat())
    );
    assert_eq!(arrived(&site), WITHOUT_THE_MOUNT);
}

#[test]
fn each_source_is_walked_in_its_own_file_system_and_counted_there() {
    let Some(site) = with_a_mount() else { return };
    let scan = |path: &Path, options: &[&str]| -> Value {
        let mut scan = site.zmove(&["scan", "--json"]);
        scan.0.args(options).arg(path);
        serde_json::from_str(&scan.outcome().done().stdout).unwrap()
    };
    let mounted = site.source().join("mounted");
    assert_eq!(
        scan(&site.source(), &["-x"])["files"],
        json!({ "files": 2, "bytes": 20 })
    );
    assert_eq!(
        scan(&site.source(), &["-x"])["directories"],
        scan(&site.source(), &[])["directories"]
    );
    assert_eq!(
        scan(&site.source(), &[])["files"],
        json!({ "files": 3, "bytes": 30 })
    );
    assert_eq!(
        scan(&mounted, &["-x"])["files"],
        json!({ "files": 1, "bytes": 10 })
    );
    let sources = [site.source().join("d"), mounted];
    site.push_command(
        &["-x"],
        &sources.each_ref().map(|path| path.as_os_str()),
        "",
    )
    .outcome()
    .done();
    assert!(site.target().join("mounted/inside").exists() && site.target().join("d/g").exists());
}
