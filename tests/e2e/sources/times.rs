//! Modification times: a file counts as equal only if it has the source's time as the target's file system represents
//! it. Times that it cannot represent are reported and do not cause another transfer.

use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::support::harness::{Site, both_ways};
use crate::support::namespace::Image;
use crate::support::tree::{names, paint, painted, set_own_mtime, wait_for_another_time};

both_ways!(a_time_without_its_fraction_is_another_time);

/// A file system that stores whole seconds from 1901 to 2038.
const OF_SECONDS: Image = Image {
    bytes: 16 << 20,
    make: "mkfs.ext4 -q -F -I 128",
    options: "loop",
};

mod of_seconds {
    use super::{
        OF_SECONDS, a_rounded_time_does_not_make_a_file_newer,
        each_entry_whose_time_is_beyond_the_range_counts,
        times_that_a_file_system_cannot_store_are_counted_and_cause_no_transfer,
    };

    crate::support::harness::both_ways_within!(
        OF_SECONDS,
        times_that_a_file_system_cannot_store_are_counted_and_cause_no_transfer,
        a_rounded_time_does_not_make_a_file_newer,
        each_entry_whose_time_is_beyond_the_range_counts,
    );
}

const NOW: i64 = 1_600_000_000;
const IN_2100: i64 = 4_102_444_800;
const LATEST_OF_32_BITS: i64 = 0x7fff_ffff;

/// The file has other contents of the same length, and a time that differs from the source's only in the fraction.
fn a_time_without_its_fraction_is_another_time(site: &Site) {
    for (name, nanos) in [
        ("second", 0),
        ("tenth", 700_000_000),
        ("microsecond", 734_567_000),
    ] {
        paint(site.source().join(name), 9);
        set_own_mtime(&site.source().join(name), NOW, 734_567_891);
        std::fs::write(site.target().join(name), painted(9, 1)).unwrap();
        set_own_mtime(&site.target().join(name), NOW, nanos);
    }
    let told = site.push(&["-n"], site.contents(), "").done().stdout;
    assert!(
        told.contains("; 3 files of 27 B to send, 0 there already"),
        "{told}"
    );
    assert_eq!(site.push_contents()["files"], 3);
    for name in names(&site.target()) {
        assert_eq!(
            std::fs::read(site.target().join(&name)).unwrap(),
            painted(9, 0),
            "{name}"
        );
    }
}

/// Returns the numbers of sent files, of skipped files, and of entries whose times the target cannot represent.
fn counts(summary: &Value) -> [u64; 3] {
    let [files, skipped] = ["files", "skipped"].map(|key| summary[key].as_u64().unwrap());
    let lacks = summary["not_kept"].as_array().unwrap();
    assert!(lacks.len() < 2, "{lacks:?}");
    let lacking = lacks.iter().map(|lack| {
        assert_eq!(
            (&lack["what"], &lack["why"]),
            (&"times".into(), &WHY.into())
        );
        lack["entries"].as_u64().unwrap()
    });
    [files, skipped, lacking.sum()]
}

const WHY: &str = "beyond the range of the file system there";

fn times_that_a_file_system_cannot_store_are_counted_and_cause_no_transfer(site: &Site) {
    std::fs::create_dir(site.target().join("in")).unwrap();
    for (name, seconds) in [
        ("late", IN_2100),
        ("usual", NOW),
        ("last", LATEST_OF_32_BITS),
    ] {
        paint(site.source().join(name), 9);
        set_own_mtime(&site.source().join(name), seconds, 734_567_891);
    }
    let line = format!("\nnot kept: times of 1 ({WHY}); -v names the entries\n");
    let push = |options: &[&str]| site.push(options, site.contents(), "in").done();
    assert_eq!(counts(&push(&["--json"]).summary()), [3, 0, 1]);
    for name in names(&site.target().join("in")) {
        wait_for_another_time(&site.target().join("in").join(name));
    }
    for options in [
        &["--json"][..],
        &["--json", "--checksum"],
        &["--json", "--update"],
        &["--json", "--inplace"],
    ] {
        assert_eq!(counts(&push(options).summary()), [0, 3, 1], "{options:?}");
    }
    let told = push(&[]).stdout;
    assert!(told.contains(&line), "{told}");
    site.push(&["--strict-metadata"], site.contents(), "in")
        .expect(23);
    let told = push(&["-n"]).stdout;
    assert!(told.starts_with("dry run: 0 to add, 0 to change"), "{told}");
    assert_eq!(names(&site.target().join("in")).len(), 3);
    // An earlier second is a different time even near the end of the range.
    set_own_mtime(&site.source().join("last"), LATEST_OF_32_BITS - 1, 0);
    assert_eq!(counts(&push(&["--json"]).summary()), [1, 2, 1]);
}

/// Directories and links are counted like files, at each push.
fn each_entry_whose_time_is_beyond_the_range_counts(site: &Site) {
    std::fs::create_dir(site.target().join("in")).unwrap();
    let source = site.source();
    std::fs::create_dir(source.join("d")).unwrap();
    symlink("nowhere", source.join("link")).unwrap();
    paint(source.join("d/f"), 9);
    for path in ["d/f", "d", "link"] {
        set_own_mtime(&source.join(path), IN_2100, 0);
    }
    let push = |options: &[&str]| site.push(options, site.contents(), "in");
    assert_eq!(counts(&push(&["--json"]).done().summary())[2], 3);
    assert_eq!(counts(&push(&["--json"]).done().summary())[2], 3);
    push(&["--strict-metadata"]).expect(23);
    push(&["--strict-metadata", "--no-t"]).done();
}

/// The target's time is a rounded version of the source's, or the limit of the file system. Neither counts as newer.
fn a_rounded_time_does_not_make_a_file_newer(site: &Site) {
    std::fs::create_dir(site.target().join("in")).unwrap();
    for (name, source, target) in [
        ("late", IN_2100, LATEST_OF_32_BITS),
        ("same", NOW, NOW),
        ("newer", NOW, NOW + 1),
    ] {
        paint(site.source().join(name), 9);
        set_own_mtime(&site.source().join(name), source, 734_567_891);
        std::fs::write(site.target().join("in").join(name), "other").unwrap();
        set_own_mtime(&site.target().join("in").join(name), target, 0);
    }
    let summary = site
        .push(&["--json", "--update"], site.contents(), "in")
        .done()
        .summary();
    assert_eq!(counts(&summary), [2, 1, 1]);
    assert_eq!(
        std::fs::read(site.target().join("in/newer")).unwrap(),
        b"other"
    );
}
