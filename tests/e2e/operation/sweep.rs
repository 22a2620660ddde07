//! `zmove sweep`: consistent results, no leftover files in any case, and later commands that use the results.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::connections::breakage::interruption;
use crate::support::command::finish;
use crate::support::harness::{PATIENCE, Site};
use crate::support::tree::{names, paint, set_mode};

/// Options of a sweep that writes enough data for the smaller sizes, and that is fast unless the machine is busy.
const SMALL: [&str; 6] = ["--budget", "24MiB", "--time", "80s", "--threads", "2"];

fn sweep(site: &Site, options: &[&str]) -> Value {
    let command = [
        &["sweep"],
        &SMALL[..],
        &["--json", "sweep.json"],
        options,
        &["target"],
    ]
    .concat();
    site.zmove(&command).outcome().done();
    serde_json::from_slice(&std::fs::read(site.path("sweep.json")).unwrap()).unwrap()
}

#[test]
fn table_and_json_agree_and_nothing_is_left() {
    let site = Site::local();
    paint(site.path("target/precious"), 10);
    let command = [
        "sweep",
        "--json",
        "sweep.json",
        "--svg",
        "sweep.svg",
        "target",
    ];
    let said = site
        .zmove(&[&command[..5], &SMALL, &command[5..]].concat())
        .outcome()
        .done()
        .stdout;
    assert_eq!(names(&site.path("target")), ["precious"]);
    let sweep: Value =
        serde_json::from_slice(&std::fs::read(site.path("sweep.json")).unwrap()).unwrap();
    let sizes = sweep["sizes"].as_array().unwrap();
    assert!(sizes.len() >= 6, "{sweep}");
    let mut written = 0;
    for size in sizes {
        let bytes = size["file_bytes"].as_u64().unwrap();
        for moved in [&size["write"], &size["read"]] {
            assert_eq!(
                moved["bytes"].as_u64().unwrap(),
                moved["files"].as_u64().unwrap() * bytes,
                "{size}"
            );
            let rate = moved["bytes"].as_f64().unwrap() / moved["seconds"].as_f64().unwrap();
            assert!(
                (rate / moved["bytes_per_second"].as_f64().unwrap() - 1.0).abs() < 1e-6,
                "{size}"
            );
        }
        written += size["write"]["bytes"].as_u64().unwrap();
        let label = if bytes < 1 << 20 {
            format!("{} KiB ", bytes >> 10)
        } else {
            format!("{} MiB ", bytes >> 20)
        };
        let line = said
            .lines()
            .find(|line| line.trim_start().starts_with(&label));
        let files = size["write"]["files"].to_string();
        assert!(
            line.is_some_and(|line| line.split_whitespace().any(|word| word == files)),
            "{size} in\n{said}"
        );
    }
    assert!(written > 0 && written <= 24 << 20);
    assert_eq!(sweep["complete"], true);
    assert!(
        said.contains("all LOSF")
            && said.contains("with the flush")
            && said.contains("posix_fadvise"),
        "{said}"
    );
    let drawing = std::fs::read_to_string(site.path("sweep.svg")).unwrap();
    assert!(drawing.starts_with("<svg") && drawing.contains("Files per second"));
}

#[test]
fn an_interrupted_sweep_removes_its_files() {
    let site = Site::local();
    for signal in [interruption(), Signal::TERM] {
        // The budget is too large to be used up before the signal.
        let mut command = site.zmove(&["sweep", "--budget", "1GiB", "--time", "1h", "target"]);
        command.0.args(["--threads", "2"]);
        let child = command.start();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        until(|| first_cell(&site.path("target")).is_some());
        kill_process(pid, signal).unwrap();
        finish(child)
            .expect(20)
            .says(&["zmove: interrupted", "removed"])
            .lines(1);
        assert_eq!(names(&site.path("target")), [""; 0]);
    }
}

#[test]
fn files_of_a_killed_sweep_are_removed_by_the_next_sweep() {
    let site = Site::local();
    // The budget is too large to be used up before the signal.
    let child = site
        .zmove(&["sweep", "--budget", "1GiB", "--time", "1h", "target"])
        .start();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    until(|| first_cell(&site.path("target")).is_some());
    kill_process(pid, Signal::KILL).unwrap();
    finish(child);
    let left = names(&site.path("target"));
    assert!(left[0].starts_with(".zmove-sweep-"), "{left:?}");
    std::fs::create_dir(site.path("target/.zmove-sweep-elsewhere-1")).unwrap();
    let outcome = site
        .zmove(&[&["sweep"], &SMALL[..], &["target"]].concat())
        .outcome()
        .expect(0);
    outcome
        .says(&["earlier sweep", &left[0]])
        .says(&["elsewhere-1", "not removed"])
        .lines(2);
    assert_eq!(names(&site.path("target")), [".zmove-sweep-elsewhere-1"]);
}

#[test]
fn a_directory_that_cannot_be_measured_is_reported() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    let sweep = |options: &[&str]| site.zmove(&[&["sweep"], options].concat()).outcome();
    sweep(&["nowhere"])
        .expect(11)
        .says(&["open", "nowhere", "No such file or directory"])
        .lines(1);
    sweep(&[]).expect(1);
    paint(site.path("file"), 1);
    site.give_away();
    sweep(&[&SMALL[..], &["file"]].concat())
        .expect(11)
        .says(&["file", "Not a directory"])
        .lines(1);
    sweep(&["--budget", "1000TiB", "target"])
        .expect(11)
        .says(&["free", "--budget"])
        .lines(1);
    sweep(&["--budget", "1KiB", "target"])
        .expect(1)
        .says(&["budget of 1.00 KiB"])
        .lines(1);
    set_mode(site.path("target"), 0o500);
    let outcome = sweep(&[&SMALL[..], &["target"]].concat());
    set_mode(site.path("target"), 0o700);
    outcome
        .expect(11)
        .says(&[
            "make the directory",
            "target/.zmove-sweep-",
            "Permission denied",
        ])
        .lines(1);
    assert_eq!(names(&site.path("target")), [""; 0]);
}

#[test]
fn two_sweeps_are_compared() {
    let site = Site::local();
    let here = sweep(&site, &[]);
    let mut there = here.clone();
    for size in there["sizes"].as_array_mut().unwrap() {
        let rate = size["read"]["bytes_per_second"].as_f64().unwrap();
        size["read"]["bytes_per_second"] = (rate * 4.0).into();
    }
    let speed = here["host"]["core_operations_per_second"].as_f64().unwrap();
    there["host"]["core_operations_per_second"] = (speed * 5.0).into();
    std::fs::write(site.path("there.json"), there.to_string()).unwrap();
    let compare = |options: &[&str]| {
        let command = [&["sweep", "--compare", "sweep.json", "there.json"], options].concat();
        site.zmove(&command).outcome().done().stdout
    };
    let said = compare(&[]);
    let line = |said: &str| {
        said.lines()
            .find(|line| line.contains("64 KiB "))
            .unwrap()
            .to_owned()
    };
    assert!(
        said.contains("F_c = 0.20") && said.contains("When to use rsync"),
        "{said}"
    );
    assert!(
        line(&said).ends_with("1.00       0.25     0.25   0.05 x E_1"),
        "{said}"
    );
    assert!(line(&compare(&["--e1", "1Gbit", "--e1", "64KiB=8Gbit"])).ends_with("   400 Mbit/s"));
    std::fs::write(site.path("there.json"), "{\"format\": 9}").unwrap();
    let command = ["sweep", "--compare", "sweep.json", "there.json"];
    site.zmove(&command)
        .outcome()
        .expect(11)
        .says(&["there.json", "format is 9"])
        .lines(1);
}

#[test]
fn later_scans_state_how_long_reading_takes() {
    let site = Site::local();
    (0..20).for_each(|number| paint(site.source().join(number.to_string()), 5_000));
    let before = site.push(&[], site.contents(), "before").done().stdout;
    assert!(!before.contains("measured rate"), "{before}");
    let scanned = site.zmove(&["scan", "source"]).outcome().done().stdout;
    assert!(
        scanned.contains("'zmove sweep source' measures"),
        "{scanned}"
    );
    sweep(&site, &[]);
    assert_eq!(names(&site.path("client/sweeps")).len(), 1);
    let said = site.zmove(&["scan", "source"]).outcome().done().stdout;
    assert!(
        said.contains("LOSF is 100.0 % of the files") && said.contains("reading it takes "),
        "{said}"
    );
}

#[test]
fn a_push_to_a_daemon_states_the_share_of_the_source_only() {
    let site = Site::daemon();
    paint(site.source().join("f"), 100_000);
    sweep(&site, &[]);
    // A push shorter than a second reports no share of the storage speed.
    let slow = ["--limit", "60KB"];
    let said = site.push(&slow, site.contents(), "said").done().stdout;
    let share = said
        .lines()
        .find(|line| line.starts_with("reads: "))
        .unwrap();
    assert!(
        share.contains(" % of the measured rate of this storage (sweep of 20"),
        "{said}"
    );
    let summary = |options: &[&str]| site.push(options, site.contents(), "json").done().summary();
    let moved = summary(&[&slow[..], &["--json"]].concat());
    assert!(
        moved["storage"]["reads"]["share"].as_f64().unwrap() > 0.0,
        "{moved}"
    );
    assert_eq!(moved["storage"]["writes"], Value::Null);
    assert_eq!(
        summary(&["--json"])["storage"]["reads"],
        Value::Null,
        "nothing has moved"
    );
}

/// The first directory of files that a sweep is writing, if it exists.
fn first_cell(target: &Path) -> Option<PathBuf> {
    let place = std::fs::read_dir(target).ok()?.next()?.ok()?.path();
    Some(place.join("c0")).filter(|cell| cell.exists())
}

/// Waits for an event of another process.
#[track_caller]
fn until(event: impl Fn() -> bool) {
    let started = Instant::now();
    while !event() {
        assert!(started.elapsed() < PATIENCE, "it has not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}
