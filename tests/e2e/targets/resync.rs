//! The second run: equal entries are not sent, changed entries are, and conflicting entries are replaced as with rsync.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::support::harness::{Site, both_ways};
use crate::support::tree::{
    assert_same, names, paint, painted, picture, set_mode, set_old, set_own_mtime,
    wait_for_another_time,
};

both_ways!(
    nothing_moves_the_second_time,
    files_read_before_the_target_is_known_are_sent_once,
    an_equal_file_is_no_fault,
    a_change_of_time_sends_a_file_again,
    equal_size_and_time_counts_as_equal_unless_checked,
    equal_contents_of_another_time_move_no_data,
    a_change_of_mode_is_corrected_without_data,
    files_links_and_directories_replace_each_other,
    a_directory_in_the_way_of_a_file_stays,
    entries_only_at_the_target_stay,
    links_at_the_target_are_replaced_and_not_followed,
);

const LARGE: u64 = 2 * zmove_types::GROUP_BYTES + 1;

fn grow(site: &Site) {
    paint(site.source().join("small"), 1_000);
    paint(site.source().join("d/large"), LARGE);
    set_old(site.source().join("small"));
    set_old(site.source().join("d/large"));
}

fn counts(summary: &Value) -> [u64; 3] {
    ["files", "skipped", "bytes"].map(|key| summary[key].as_u64().unwrap())
}

/// Writes different contents of the same length and restores the modification time.
fn repaint(path: &Path) {
    let bytes = path.metadata().unwrap().len();
    std::fs::write(path, painted(bytes, 1)).unwrap();
    set_old(path);
}

fn nothing_moves_the_second_time(site: &Site) {
    grow(site);
    assert_eq!(counts(&site.push_contents()), [2, 0, LARGE + 1_000]);
    assert_eq!(counts(&site.push_contents()), [0, 2, 0]);
    let text = site.push(&[], site.contents(), "").done().stdout;
    assert!(
        text.starts_with("no files to move: 2 compared equal in "),
        "{text}"
    );
    assert_same(&site.source(), &site.target());
}

fn an_equal_file_is_no_fault(site: &Site) {
    for place in [site.source(), site.target()] {
        paint(place.join("small"), 1_000);
        set_old(place.join("small"));
    }
    assert_eq!(counts(&site.push_contents()), [0, 1, 0]);
    if site.is_remote() {
        site.the_daemon().wait_for_log(" s, 0 faults");
    }
}

/// There are several times as many files as the sender sends speculatively. The sender reads some of the other files
/// before the target is known, and the rest later.
fn files_read_before_the_target_is_known_are_sent_once(site: &Site) {
    const FILES: u64 = 8_000;
    let path = |number: u64| site.source().join(format!("d{}/f{number}", number % 30));
    for number in 0..FILES {
        std::fs::create_dir_all(path(number).parent().unwrap()).unwrap();
        std::fs::write(path(number), number.to_le_bytes()).unwrap();
    }
    assert_eq!(counts(&site.push_contents()), [FILES, 0, 8 * FILES]);
    let changed = [0, 2_000, 5_000, FILES - 1];
    for number in changed {
        std::fs::write(path(number), "longer than it was").unwrap();
    }
    let again = counts(&site.push_contents());
    assert_eq!(
        again[..2],
        [changed.len() as u64, FILES - changed.len() as u64]
    );
    assert_same(&site.source(), &site.target());
}

fn a_change_of_time_sends_a_file_again(site: &Site) {
    grow(site);
    site.push_contents();
    set_own_mtime(&site.source().join("small"), 1_000_000_000, 987_654_322);
    assert_eq!(counts(&site.push_contents()), [1, 1, 1_000]);
    set_own_mtime(&site.source().join("d/large"), 1_000_000_001, 987_654_321);
    let again = site.push_contents();
    assert_eq!(counts(&again)[..2], [1, 1]);
    // Equal data is not sent if the path may be slow.
    assert_eq!(
        counts(&again)[2] + again["bytes_matched"].as_u64().unwrap(),
        LARGE
    );
    assert_same(&site.source(), &site.target());
}

fn equal_size_and_time_counts_as_equal_unless_checked(site: &Site) {
    grow(site);
    site.push_contents();
    repaint(&site.source().join("small"));
    repaint(&site.source().join("d/large"));
    assert_eq!(counts(&site.push_contents()), [0, 2, 0]);
    assert_eq!(
        std::fs::read(site.target().join("small")).unwrap(),
        painted(1_000, 0)
    );
    let checked = site
        .push(&["--json", "--checksum"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(counts(&checked), [2, 0, LARGE + 1_000]);
    assert_same(&site.source(), &site.target());
}

fn equal_contents_of_another_time_move_no_data(site: &Site) {
    grow(site);
    site.push_contents();
    set_own_mtime(&site.source().join("small"), 5, 6);
    set_own_mtime(&site.source().join("d/large"), -5, 6);
    set_mode(site.source().join("small"), 0o640);
    // A file that has just been written could be changed again within the same timestamp, so it would be sent.
    wait_for_another_time(&site.target().join("small"));
    wait_for_another_time(&site.target().join("d/large"));
    let checked = site
        .push(&["--json", "-c"], site.contents(), "")
        .done()
        .summary();
    assert_eq!(counts(&checked), [0, 2, 0]);
    assert_same(&site.source(), &site.target());
}

fn a_change_of_mode_is_corrected_without_data(site: &Site) {
    grow(site);
    site.push_contents();
    set_mode(site.source().join("small"), 0o600);
    set_mode(site.source().join("d/large"), 0o751);
    set_mode(site.source().join("d"), 0o700);
    assert_eq!(counts(&site.push_contents()), [0, 2, 0]);
    assert_same(&site.source(), &site.target());
}

/// Each of the three kinds replaces each other kind, small and large. Only a non-empty directory stays.
fn files_links_and_directories_replace_each_other(site: &Site) {
    type Make = fn(&Path);
    let kinds: [(&str, Make); 4] = [
        ("small", |path| paint(path, 20)),
        ("large", |path| paint(path, LARGE)),
        ("link", |path| symlink("elsewhere", path).unwrap()),
        ("directory", |path| paint(path.join("inner"), 5)),
    ];
    for (old, make_old) in kinds {
        for (new, make_new) in kinds.iter().filter(|_| old != "directory") {
            make_old(&site.target().join(format!("{old}-{new}")));
            make_new(&site.source().join(format!("{old}-{new}")));
        }
    }
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

fn a_directory_in_the_way_of_a_file_stays(site: &Site) {
    for (name, bytes) in [("small", 10), ("large", LARGE)] {
        paint(site.source().join(name), bytes);
        paint(site.target().join(name).join("keep"), 3);
    }
    symlink("elsewhere", site.source().join("link")).unwrap();
    paint(site.target().join("link/keep"), 3);
    paint(site.source().join("other"), 30);
    let outcome = site.push(&["--json"], site.contents(), "").expect(23);
    let summary = outcome.summary();
    assert_eq!(
        (&summary["failed"], &summary["files"]),
        (&3.into(), &1.into())
    );
    let outcome = ["small", "large", "link"]
        .into_iter()
        .fold(outcome, |outcome, name| {
            outcome.says(&[
                "zmove: receiver:",
                &format!("'{name}'"),
                "a directory of that name is in the way",
            ])
        });
    outcome.lines(3);
    assert_eq!(names(&site.target()), ["large", "link", "other", "small"]);
    for name in ["small", "large", "link"] {
        assert_eq!(names(&site.target().join(name)), ["keep"]);
    }
}

fn entries_only_at_the_target_stay(site: &Site) {
    grow(site);
    paint(site.target().join("d/extra"), 4);
    assert_eq!(site.push_contents()["removed"], 0);
    let mut found = picture(&site.target());
    assert!(found.remove(&b"d/extra"[..]).is_some());
    crate::support::tree::assert_pictures(&picture(&site.source()), &found);
}

fn links_at_the_target_are_replaced_and_not_followed(site: &Site) {
    let outside = site.path("outside");
    paint(outside.join("precious"), 9);
    paint(site.source().join("small"), 10);
    paint(site.source().join("large"), LARGE);
    paint(site.source().join("directory/inner"), 10);
    symlink(outside.join("precious"), site.target().join("small")).unwrap();
    symlink(outside.join("new"), site.target().join("large")).unwrap();
    symlink(&outside, site.target().join("directory")).unwrap();
    let before = picture(&outside);
    for options in [&["--json"][..], &["--json", "--checksum"]] {
        site.push(options, site.contents(), "").done();
        crate::support::tree::assert_pictures(&before, &picture(&outside));
        assert_same(&site.source(), &site.target());
    }
}
