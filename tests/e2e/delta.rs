//! Large files that have changed: only what the target's version does not have is sent, and what comes out is the source.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use zmove_types::GROUP_BYTES;

use crate::harness::Site;
use crate::tree::{assert_same, painted, set_mtime};

const BYTES: usize = 6 * GROUP + 5;
#[expect(clippy::cast_possible_truncation, reason = "4 MiB")]
const GROUP: usize = GROUP_BYTES as usize;

/// A site whose target holds the first version, and the source the second.
fn changed(site: Site, change: impl FnOnce(&mut Vec<u8>)) -> Site {
    let mut contents = painted(BYTES as u64, 0);
    // an older version, as a rule, has an older time
    std::fs::write(site.target().join("large"), &contents).unwrap();
    change(&mut contents);
    let source = site.source().join("large");
    std::fs::write(&source, &contents).unwrap();
    set_mtime(&source, UNIX_EPOCH + Duration::new(1_700_000_000, 5));
    site
}

fn two_groups(contents: &mut [u8]) {
    contents[GROUP + 7] ^= 1;
    contents[4 * GROUP] ^= 1;
}

/// Pushes; returns how many bytes were sent and how many were the same.
#[track_caller]
fn push(site: &Site, options: &[&str]) -> (u64, u64) {
    let options = [&["--json"], options].concat();
    let summary = site.push(&options, site.contents(), "").done().summary();
    assert_same(&site.source(), &site.target());
    let number = |value: &Value| value.as_u64().unwrap();
    (number(&summary["bytes"]), number(&summary["bytes_matched"]))
}

fn groups(count: u64) -> u64 {
    count * GROUP_BYTES
}

#[test]
fn what_is_the_same_is_not_sent() {
    for site in [Site::daemon(), Site::clear(), Site::quic()] {
        let site = changed(site, |contents| two_groups(contents));
        assert_eq!(push(&site, &[]), (groups(2), groups(4) + 5));
        assert_eq!(crate::tree::names(&site.target()), ["large"]);
    }
}

#[test]
fn a_file_that_has_grown_sends_its_end() {
    let site = changed(Site::daemon(), |contents| contents.extend(painted(groups(2), 3)));
    // the last group of the old version was shorter
    assert_eq!(push(&site, &[]), (groups(2) + 5, groups(6)));
}

#[test]
fn a_file_that_has_shrunk_keeps_its_beginning() {
    let site = changed(Site::daemon(), |contents| contents.truncate(3 * GROUP + 9));
    assert_eq!(push(&site, &[]), (0, groups(3) + 9), "also of the last group what is left of it is there");
    let site = changed(Site::daemon(), |contents| contents.truncate(9));
    assert_eq!(push(&site, &[]), (9, 0), "a small file is sent as one");
}

#[test]
fn nothing_in_common_sends_all() {
    let site = changed(Site::daemon(), |contents| *contents = painted(BYTES as u64, 100));
    assert_eq!(push(&site, &[]), (BYTES as u64, 0));
}

#[test]
fn it_can_be_chosen() {
    let all = (BYTES as u64, 0);
    assert_eq!(push(&changed(Site::daemon(), |contents| two_groups(contents)), &["--delta", "never"]), all);
    assert_eq!(
        push(&changed(Site::local(), |contents| two_groups(contents)), &[]),
        all,
        "a local target is as fast"
    );
    let site = changed(Site::local(), |contents| two_groups(contents));
    assert_eq!(push(&site, &["--delta", "always"]), (groups(2), groups(4) + 5));
}

#[test]
fn only_the_time_has_changed() {
    let site = changed(Site::daemon(), |_| ());
    assert_eq!(push(&site, &[]), (0, BYTES as u64));
}
