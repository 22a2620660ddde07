//! Changed large files: only data that the old version at the target lacks is sent, and the result equals the source.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use zmove_types::GROUP_BYTES;

use crate::connections::resume::{journals_of, wait_for_journal};
use crate::support::harness::Site;
use crate::support::namespace::Image;
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, names, painted, set_mtime};

const BYTES: usize = 6 * GROUP + 5;
#[expect(clippy::cast_possible_truncation, reason = "4 MiB")]
const GROUP: usize = GROUP_BYTES as usize;

/// A site whose target holds the first version and whose source holds the second.
fn changed(site: Site, change: impl FnOnce(&mut Vec<u8>)) -> Site {
    let mut contents = painted(BYTES as u64, 0);
    // An older version usually has an older modification time.
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

/// Pushes, and returns the number of bytes sent and of bytes matched.
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
fn equal_groups_are_not_sent() {
    for site in [Site::daemon(), Site::clear(), Site::quic()] {
        let site = changed(site, |contents| two_groups(contents));
        assert_eq!(push(&site, &[]), (groups(2), groups(4) + 5));
        assert_eq!(names(&site.target()), ["large"]);
    }
}

#[test]
fn a_file_that_has_grown_sends_its_end() {
    let site = changed(Site::daemon(), |contents| {
        contents.extend(painted(groups(2), 3))
    });
    // The last group of the old version was shorter.
    assert_eq!(push(&site, &[]), (groups(2) + 5, groups(6)));
}

#[test]
fn a_file_that_has_shrunk_keeps_its_beginning() {
    let site = changed(Site::daemon(), |contents| contents.truncate(3 * GROUP + 9));
    assert_eq!(
        push(&site, &[]),
        (0, groups(3) + 9),
        "also of the last group what is left of it is there"
    );
    let site = changed(Site::daemon(), |contents| contents.truncate(9));
    assert_eq!(push(&site, &[]), (9, 0), "a small file is sent as one");
}

#[test]
fn a_file_without_equal_groups_is_sent_whole() {
    let site = changed(Site::daemon(), |contents| {
        *contents = painted(BYTES as u64, 100)
    });
    assert_eq!(push(&site, &[]), (BYTES as u64, 0));
}

#[test]
fn the_delta_option_decides_and_local_pushes_send_all_by_default() {
    let all = (BYTES as u64, 0);
    assert_eq!(
        push(
            &changed(Site::daemon(), |contents| two_groups(contents)),
            &["--delta", "never"]
        ),
        all
    );
    assert_eq!(
        push(
            &changed(Site::local(), |contents| two_groups(contents)),
            &[]
        ),
        all,
        "a local target is as fast"
    );
    let site = changed(Site::local(), |contents| two_groups(contents));
    assert_eq!(
        push(&site, &["--delta", "always"]),
        (groups(2), groups(4) + 5)
    );
}

#[test]
fn a_change_of_time_sends_no_data() {
    let site = changed(Site::daemon(), |_| ());
    assert_eq!(push(&site, &[]), (0, BYTES as u64));
}

const XFS: Image = Image {
    bytes: 400 << 20,
    make: "mkfs.xfs -q -f -m reflink=1",
    options: "loop",
};
/// Length of a file whose first groups differ.
const LONG_BYTES: u64 = 10 * GROUP_BYTES + 5;
const CHANGED: u64 = 6;
/// Number of bytes after which the connection stalls.
const BYTES_BEFORE_STALL: u64 = 3 * GROUP_BYTES;

/// A site whose target holds the old version of a large file and a part of the new one, because the daemon was killed.
fn delta_broken_off(mut site: Site) -> Site {
    let mut contents = painted(LONG_BYTES, 0);
    std::fs::write(site.target().join("large"), &contents).unwrap();
    contents[..usize::try_from(groups(CHANGED)).unwrap()]
        .iter_mut()
        .for_each(|byte| *byte ^= 1);
    let source = site.source().join("large");
    std::fs::write(&source, &contents).unwrap();
    set_mtime(&source, UNIX_EPOCH + Duration::new(1_700_000_000, 5));
    let proxy = Proxy::start(site.the_daemon().address, BYTES_BEFORE_STALL);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let mut client = site
        .push_by(&proxy.address, &["--streams", "1", "--delta", "always"])
        .start();
    proxy.wait_for_stall();
    wait_for_journal(&site);
    site.take_daemon().kill();
    client.kill().unwrap();
    client.wait().unwrap();
    site.start_daemon();
    assert_eq!(names(&site.target()).len(), 2, "the old version and a part");
    site
}

/// Pushes again, and returns the number of bytes sent, stored before, and matched.
#[track_caller]
fn go_on(site: &Site, delta: &str) -> [u64; 3] {
    let summary = site
        .push(&["--json", "--delta", delta], site.contents(), "")
        .done()
        .summary();
    assert_same(&site.source(), &site.target());
    assert_eq!(
        (names(&site.target()), journals_of(site)),
        (vec!["large".to_owned()], Vec::new())
    );
    let told =
        ["bytes", "bytes_resumed", "bytes_matched"].map(|key| summary[key].as_u64().unwrap());
    assert_eq!(
        told.iter().sum::<u64>(),
        LONG_BYTES,
        "each byte counts once: {summary}"
    );
    assert!(told[1] >= GROUP_BYTES, "{summary}");
    told
}

#[track_caller]
fn goes_on_as_a_delta(site: Site) {
    let [moved, _, matched] = go_on(&delta_broken_off(site), "always");
    assert!(
        moved <= groups(CHANGED),
        "what is the same was sent: {moved}"
    );
    assert!(matched > 0, "no group of the old version was used");
}

#[test]
fn an_interrupted_delta_resumes_as_a_delta() {
    goes_on_as_a_delta(Site::daemon());
}

#[test]
fn an_interrupted_delta_with_shared_blocks_resumes_as_a_delta() {
    let Some(mut site) = Site::within_image(&XFS) else {
        return;
    };
    site.start_daemon();
    goes_on_as_a_delta(site);
}

#[test]
fn an_interrupted_delta_resumes_without_the_old_version() {
    let site = delta_broken_off(Site::daemon());
    assert_eq!(go_on(&site, "never")[2], 0, "asked for");
    let site = delta_broken_off(Site::daemon());
    std::fs::remove_file(site.target().join("large")).unwrap();
    assert_eq!(go_on(&site, "always")[2], 0, "gone");
    let Some(mut site) = Site::within_image(&XFS) else {
        return;
    };
    site.start_daemon();
    let site = delta_broken_off(site);
    // The two versions now have nothing in common except data that the part copied from the previous version.
    std::fs::write(site.target().join("large"), painted(LONG_BYTES, 100)).unwrap();
    assert_eq!(go_on(&site, "always")[2], 0, "replaced");
}
