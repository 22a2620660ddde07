//! The report counters, row by row of their table: an interrupted transfer counts the same as one that keeps its
//! connections.

use std::fs::{File, FileTimes};
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use zmove_types::{Counters, GROUP_BYTES};

use crate::support::harness::Site;
use crate::support::proxy::{Proxy, Way};
use crate::support::tree::{paint, painted};

/// Counters about the connections themselves.
const ABOUT_CONNECTIONS: [&str; 4] = ["lanes", "resent", "repeated", "reconnects"];
const LARGE_BYTES: u64 = 2 * GROUP_BYTES + 5;
/// Positions of the cuts, in bytes since the previous cut.
const CUTS: [&[u64]; 3] = [&[2 << 20], &[13 << 20], &[7 << 20, 14 << 20, 9 << 20]];

/// Creates a source that makes each counter of a healthy transfer nonzero.
fn grow(site: &Site) {
    let source = site.source();
    for number in 0..150 {
        let path = source.join(format!("d{}/f{number}", number % 7));
        paint(&path, 1_000 + 100 * number);
        if number < 7 {
            std::fs::hard_link(&path, source.join(format!("d{number}/g{number}"))).unwrap();
        }
    }
    for number in 0..3 {
        paint(source.join(format!("large/{number}")), LARGE_BYTES);
    }
    std::fs::hard_link(source.join("large/0"), source.join("large/link")).unwrap();
    for (name, bytes) in [("small", 1 << 20), ("large", 3 * GROUP_BYTES)] {
        let holes = File::create(source.join(format!("holes-{name}"))).unwrap();
        holes.set_len(bytes).unwrap();
        holes.write_all_at(b"data", bytes / 2).unwrap();
    }
    std::fs::write(source.join("changed"), changed(1)).unwrap();
    paint(source.join("equal"), LARGE_BYTES);
    paint(source.join("left-out.tmp"), 5);
    mknodat(CWD, source.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
}

/// Returns a version of a large file. Two of its groups differ from the groups of any other version.
fn changed(version: u8) -> Vec<u8> {
    let mut contents = painted(4 * GROUP_BYTES + 5, 0);
    contents[7] ^= version;
    *contents.last_mut().unwrap() ^= version;
    contents
}

/// Resets the target: an old version, an equal file, and entries that are to be removed.
fn prepare(site: &Site) {
    let target = site.target();
    for entry in std::fs::read_dir(&target).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    std::fs::write(target.join("changed"), changed(0)).unwrap();
    let old = FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    let there = File::options().write(true).open(target.join("changed"));
    there.unwrap().set_times(old).unwrap();
    paint(target.join("equal"), LARGE_BYTES);
    let time = site.source().join("equal").metadata().unwrap().modified();
    let equal = File::options().write(true).open(target.join("equal"));
    let time = FileTimes::new().set_modified(time.unwrap());
    equal.unwrap().set_times(time).unwrap();
    for name in ["extra/one", "extra/two", "other"] {
        paint(target.join(name), 5);
    }
}

/// Runs the transfer through a relay that cuts all connections at these positions. Returns its summary and its proofs.
fn run(site: &Site, way: Way, cuts: &[u64]) -> (Value, String) {
    prepare(site);
    let proxy = Proxy::cutting_at(site.the_daemon().address, way, cuts);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let options = [
        "--json",
        "--delete",
        "--exclude",
        "*.tmp",
        "--delta",
        "always",
        "--proofs",
        "proofs",
    ];
    let mut zmove = match way {
        Way::Up => site.push_by(&proxy.address, &options),
        Way::Down => site.zmove(&[&["pull"], &options[..]].concat()),
    };
    if way == Way::Down {
        zmove
            .0
            .arg(format!("{}:", proxy.address))
            .arg(site.target());
    }
    let summary = zmove.outcome().expect(0).summary();
    let proofs = std::fs::read_to_string(site.path("proofs")).unwrap();
    (summary, proofs)
}

fn cuts_change_no_counter(site: &Site, way: Way) {
    grow(site);
    let (expected, proofs) = run(site, way, &[]);
    for name in [
        "files",
        "bytes",
        "skipped",
        "hard_links",
        "removed",
        "specials",
        "left_out",
        "bytes_matched",
    ] {
        assert!(expected[name].as_u64() > Some(0), "{name}: {expected}");
    }
    for cuts in CUTS {
        let (summary, proofs_of_cut) = run(site, way, cuts);
        assert!(
            summary["reconnects"].as_u64() >= Some(cuts.len() as u64),
            "{cuts:?}: {summary}"
        );
        for row in Counters::TABLE {
            if !ABOUT_CONNECTIONS.contains(&row.name) {
                let [expected, found] = [&expected, &summary].map(|summary| &summary[row.name]);
                assert_eq!(
                    expected, found,
                    "{} after cuts at {cuts:?}: {summary}",
                    row.name
                );
            }
        }
        let [mut expected, mut found] =
            [&proofs, &proofs_of_cut].map(|proofs| without_times(proofs));
        // A hard link to a file that an earlier session sent is proven by the data that the next session reads.
        for lines in [&mut expected, &mut found] {
            lines.retain(|line| !is_of_linked(line));
        }
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected, found, "after cuts at {cuts:?}");
        }
        assert_eq!(expected.len(), found.len(), "after cuts at {cuts:?}");
    }
}

/// Whether a line of proofs is about a file with several names.
fn is_of_linked(line: &str) -> bool {
    let names =
        (0..7).flat_map(|number| ['f', 'g'].map(|name| format!("d{number}/{name}{number}")));
    let mut names = names.chain(["large/0", "large/link"].map(str::to_owned));
    names.any(|name| line.contains(&format!(r#""{name}""#)))
}

/// Returns the sorted lines of proofs without their timestamps.
fn without_times(proofs: &str) -> Vec<&str> {
    let lines = proofs.lines().map(|line| line.split(r#","at":"#).next());
    let mut lines: Vec<_> = lines.map(Option::unwrap).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn cuts_change_no_counter_of_a_push() {
    cuts_change_no_counter(&Site::daemon(), Way::Up);
}

#[test]
fn cuts_change_no_counter_of_a_pull() {
    cuts_change_no_counter(&Site::reading(&[], &[]), Way::Down);
}

/// Rows of the table that only a preview has.
const OF_A_PREVIEW: [&str; 2] = ["added", "changed"];

fn preview_counts_what_the_transfer_does(site: &Site, way: Way) {
    grow(site);
    prepare(site);
    let run = |more: &[&str]| {
        let options = [
            "--json",
            "--delete",
            "--exclude",
            "*.tmp",
            "--delta",
            "never",
        ];
        let options = [&options, more].concat();
        let ended = match way {
            Way::Up => site.push(&options, site.contents(), ""),
            Way::Down => site.pull(&options, &[""], ""),
        };
        ended.expect(0).summary()
    };
    let preview = run(&["--dry-run"]);
    let transfer = run(&[]);
    for row in Counters::TABLE {
        if !ABOUT_CONNECTIONS.contains(&row.name) && !OF_A_PREVIEW.contains(&row.name) {
            assert_eq!(
                preview[row.name], transfer[row.name],
                "{}: {preview}",
                row.name
            );
        }
    }
    assert!(
        preview["removed"] == 4,
        "a directory, and what is in it: {preview}"
    );
}

#[test]
fn a_preview_of_a_push_counts_what_the_push_does() {
    preview_counts_what_the_transfer_does(&Site::daemon(), Way::Up);
    preview_counts_what_the_transfer_does(&Site::local(), Way::Up);
}

#[test]
fn a_preview_of_a_pull_counts_what_the_pull_does() {
    preview_counts_what_the_transfer_does(&Site::reading(&[], &[]), Way::Down);
}

/// An inspection that loses its connections after the target was opened may have reported some of its results. Another
/// session would report them again or omit them.
fn inspection_that_is_cut_ends(site: &Site, way: Way, command: &[&str]) {
    // With long names, a few files need many messages.
    let long = "n".repeat(200);
    for number in 0..1000 {
        let name = format!("{long}{number}");
        std::fs::write(site.source().join(name), "new").unwrap();
    }
    // The cut comes after both handshakes and before all names have been sent.
    let proxy = Proxy::cutting_at(site.the_daemon().address, way, &[64 << 10]);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let mut zmove = site.zmove(&[command, &["--json", "--transport", "tcp"]].concat());
    let remote = format!("{}:", proxy.address);
    match way {
        Way::Up => zmove.0.arg(site.contents()).arg(remote),
        Way::Down => zmove.0.arg(remote).arg(site.target()),
    };
    let outcome = zmove.outcome().expect(12);
    let mut listed: Vec<_> = outcome
        .stdout
        .lines()
        .filter(|line| line.contains(r#""event":"added""#))
        .collect();
    let lines = listed.len();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), lines, "nothing is reported twice");
    let last = outcome.stdout.lines().last().unwrap();
    assert!(last.contains(r#""event":"error""#), "{last}");
}

#[test]
fn a_preview_that_loses_its_connections_ends() {
    inspection_that_is_cut_ends(&Site::daemon(), Way::Up, &["push", "--dry-run"]);
    inspection_that_is_cut_ends(&Site::reading(&[], &[]), Way::Down, &["pull", "--dry-run"]);
}

#[test]
fn a_verification_that_loses_its_connections_ends_in_either_direction() {
    inspection_that_is_cut_ends(&Site::daemon(), Way::Up, &["verify"]);
    inspection_that_is_cut_ends(&Site::reading(&[], &[]), Way::Down, &["verify"]);
}
