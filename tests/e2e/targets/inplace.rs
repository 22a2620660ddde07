//! `--inplace`: existing files keep their inode and hard links, even if their size changes. An interrupted file does
//! not look finished, and the same command finishes it.

use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, inotify};
use serde_json::Value;
use zmove_types::GROUP_BYTES;

use crate::commands::dry_run::snapshot;
use crate::support::command::{Runner, finish, wait_within_patience};
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, Site, every_way, is_root, skip};
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, names, paint, painted, set_mode, set_mtime};

every_way!(only_what_differs_is_written);

// The receiver does the same work over each transport.
mod receiver {
    use super::{
        a_preview_changes_nothing, an_equal_file_stays_equal_if_its_other_name_changes,
        entries_that_are_no_files_are_replaced, files_of_all_sizes_keep_their_inode,
        other_names_of_a_file_keep_what_they_had,
        two_names_of_one_file_become_the_two_files_of_the_source,
        update_and_ignore_existing_keep_files_that_are_there,
    };

    crate::support::harness::both_ways!(
        files_of_all_sizes_keep_their_inode,
        other_names_of_a_file_keep_what_they_had,
        entries_that_are_no_files_are_replaced,
        update_and_ignore_existing_keep_files_that_are_there,
        two_names_of_one_file_become_the_two_files_of_the_source,
        an_equal_file_stays_equal_if_its_other_name_changes,
        a_preview_changes_nothing,
    );
}

const LARGE: u64 = 6 * GROUP_BYTES + 5;
/// Size of a large file whose transfer is not interrupted.
const TWO_GROUPS: u64 = GROUP_BYTES + 5;
/// Number of bytes after which the relay stalls: more than the handshakes need, and less than the whole transfer.
const BYTES_BEFORE_STALL: u64 = 3 * GROUP_BYTES;

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().unwrap().ino()
}

/// A time that no write of this test sets.
fn back_then() -> SystemTime {
    UNIX_EPOCH + Duration::new(1_700_000_000, 5)
}

#[track_caller]
fn push(site: &Site, options: &[&str]) -> Value {
    let options = [&["--json", "--inplace"], options].concat();
    let summary = site.push(&options, site.contents(), "").done().summary();
    assert_same(&site.source(), &site.target());
    summary
}

/// Files of each size become files of each other size: empty, small, one group, large. Each size also changes only its
/// contents.
fn files_of_all_sizes_keep_their_inode(site: &Site) {
    let sizes = [
        0,
        5,
        300_000,
        GROUP_BYTES,
        GROUP_BYTES + 1,
        2 * GROUP_BYTES + 5,
    ];
    for (old, new) in sizes.iter().flat_map(|old| sizes.map(|new| (*old, new))) {
        let name = format!("{old}-{new}");
        paint(site.source().join(&name), new);
        std::fs::write(site.target().join(&name), painted(old, 1)).unwrap();
        // Both files may have been written in one tick of the clock.
        set_mtime(site.target().join(&name), back_then());
    }
    let changed = names(&site.target());
    paint(site.source().join("new"), 9);
    let before: Vec<_> = changed
        .iter()
        .map(|name| inode(&site.target().join(name)))
        .collect();
    for delta in ["always", "never"] {
        push(site, &["--delta", delta]);
        for (name, before) in changed.iter().zip(&before) {
            assert_eq!(inode(&site.target().join(name)), *before, "{name}");
        }
        for name in &changed {
            let bytes = site.source().join(name).metadata().unwrap().len();
            std::fs::write(site.source().join(name), painted(bytes, 7)).unwrap();
            set_mtime(site.source().join(name), back_then());
        }
    }
}

/// Otherwise, the other names would look finished as soon as the changed name does.
fn other_names_of_a_file_keep_what_they_had(site: &Site) {
    for bytes in [5, TWO_GROUPS] {
        let (name, other) = (
            format!("changed-{bytes}"),
            site.path(&format!("other-{bytes}")),
        );
        paint(site.source().join(&name), bytes);
        std::fs::write(&other, "old").unwrap();
        std::fs::hard_link(&other, site.target().join(&name)).unwrap();
        push(site, &["--delta", "always"]);
        assert_eq!(std::fs::read(&other).unwrap(), b"old");
        assert_same(&site.source(), &site.target());
    }
}

/// Writing a hole, even with zeros, allocates its blocks.
fn only_what_differs_is_written(site: &Site) {
    let there = std::fs::File::create(site.target().join("large")).unwrap();
    there.set_len(LARGE).unwrap();
    // Groups that consist only of a hole are not compared, so each group gets some data.
    (0..LARGE.div_ceil(GROUP_BYTES))
        .for_each(|group| there.write_all_at(&[0], group * GROUP_BYTES).unwrap());
    let mut contents = vec![0; usize::try_from(LARGE).unwrap()];
    contents[usize::try_from(GROUP_BYTES).unwrap() + 7] = 1;
    std::fs::write(site.source().join("large"), contents).unwrap();
    set_mtime(site.source().join("large"), back_then());
    let before = inode(&site.target().join("large"));
    let summary = push(site, &[]);
    assert_eq!(
        (&summary["bytes"], &summary["bytes_matched"]),
        (&GROUP_BYTES.into(), &(LARGE - GROUP_BYTES).into())
    );
    let stat = site.target().join("large").metadata().unwrap();
    assert_eq!(stat.ino(), before);
    assert!(
        stat.blocks() * 512 < 2 * GROUP_BYTES,
        "{} blocks",
        stat.blocks()
    );
}

fn entries_that_are_no_files_are_replaced(site: &Site) {
    let outside = site.path("outside");
    for (number, bytes) in [5, TWO_GROUPS].into_iter().enumerate() {
        paint(site.source().join(format!("link{number}")), bytes);
        paint(site.source().join(format!("fifo{number}")), bytes);
        paint(site.source().join(format!("directory{number}")), bytes);
        std::fs::write(&outside, "outside").unwrap();
        symlink(&outside, site.target().join(format!("link{number}"))).unwrap();
        let fifo = site.target().join(format!("fifo{number}"));
        rustix::fs::mknodat(CWD, fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::create_dir(site.target().join(format!("directory{number}"))).unwrap();
    }
    push(site, &[]);
    assert_eq!(std::fs::read(outside).unwrap(), b"outside");
}

fn update_and_ignore_existing_keep_files_that_are_there(site: &Site) {
    for (number, bytes) in [5, TWO_GROUPS].into_iter().enumerate() {
        for (age, seconds) in [("older", -9), ("newer", 9)] {
            let name = format!("{age}{number}");
            paint(site.source().join(&name), bytes);
            set_mtime(site.source().join(&name), back_then());
            std::fs::write(site.target().join(&name), "kept").unwrap();
            let there =
                UNIX_EPOCH + Duration::from_secs(1_700_000_000_u64.saturating_add_signed(seconds));
            set_mtime(site.target().join(&name), there);
        }
    }
    site.push(&["--inplace", "--ignore-existing"], site.contents(), "")
        .done();
    for name in names(&site.target()) {
        assert_eq!(std::fs::read(site.target().join(name)).unwrap(), b"kept");
    }
    let inodes = ["older0", "older1"].map(|name| inode(&site.target().join(name)));
    site.push(&["--inplace", "--update"], site.contents(), "")
        .done();
    for (number, before) in inodes.into_iter().enumerate() {
        let [older, newer] = ["older", "newer"].map(|age| format!("{age}{number}"));
        let read = |root: &Path, name: &str| std::fs::read(root.join(name)).unwrap();
        assert!(read(&site.target(), &older) == read(&site.source(), &older));
        assert_eq!(read(&site.target(), &newer), b"kept");
        assert_eq!(inode(&site.target().join(&older)), before);
    }
}

/// One name is correct, and writing the other name in place would change it too.
fn an_equal_file_stays_equal_if_its_other_name_changes(site: &Site) {
    for bytes in [5, TWO_GROUPS] {
        for (name, shift) in [("changed", 1), ("kept", 2)] {
            let name = format!("{name}-{bytes}");
            std::fs::write(site.source().join(&name), painted(bytes, shift)).unwrap();
            set_mtime(
                site.source().join(&name),
                back_then() + Duration::from_secs(shift),
            );
        }
        let [changed, kept] =
            ["changed", "kept"].map(|name| site.target().join(format!("{name}-{bytes}")));
        std::fs::write(&kept, painted(bytes, 2)).unwrap();
        set_mtime(&kept, back_then() + Duration::from_secs(2));
        std::fs::hard_link(&kept, &changed).unwrap();
    }
    push(site, &[]);
    assert_eq!(push(site, &[])["skipped"], 4);
}

/// Writing in place could give both names only one of the two contents.
fn two_names_of_one_file_become_the_two_files_of_the_source(site: &Site) {
    for bytes in [5, TWO_GROUPS] {
        for (name, shift) in [("one", 1), ("two", 2)] {
            std::fs::write(
                site.source().join(format!("{name}-{bytes}")),
                painted(bytes, shift),
            )
            .unwrap();
        }
        let [one, two] = ["one", "two"].map(|name| site.target().join(format!("{name}-{bytes}")));
        std::fs::write(&one, "old").unwrap();
        std::fs::hard_link(&one, &two).unwrap();
    }
    push(site, &[]);
    assert_eq!(push(site, &[])["skipped"], 4);
}

fn a_preview_changes_nothing(site: &Site) {
    for (name, bytes) in [("small", 5), ("large", TWO_GROUPS)] {
        paint(site.source().join(name), bytes);
        std::fs::write(site.target().join(name), "old").unwrap();
    }
    let before = snapshot(&site.target());
    let told = site
        .push(&["--inplace", "-n"], site.contents(), "")
        .done()
        .stdout;
    assert!(
        told.contains("~ small") && told.contains("~ large"),
        "{told}"
    );
    assert_eq!(snapshot(&site.target()), before);
}

/// A push to an existing file, stalled in mid-transfer.
struct HalfWay {
    site: Site,
    proxy: Proxy,
    client: std::process::Child,
    /// Inode number of the existing file.
    inode: u64,
}

impl HalfWay {
    /// Starts a push whose new version shares no data with the old file, and waits until a part of it has been written.
    fn start(options: &[&str], there: SystemTime) -> Self {
        let site = Site::daemon();
        let (source, target) = (site.source().join("large"), site.target().join("large"));
        std::fs::write(&source, painted(LARGE, 0)).unwrap();
        set_mtime(&source, back_then());
        std::fs::write(&target, painted(LARGE, 3)).unwrap();
        set_mtime(&target, there);
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, &target, inotify::WatchFlags::MODIFY).unwrap();
        let proxy = Proxy::start(site.the_daemon().address, BYTES_BEFORE_STALL);
        site.pin(&proxy.address, site.the_daemon().fingerprint);
        let client = site
            .push_by(
                &proxy.address,
                &[&["--json", "--inplace", "--streams", "1"], options].concat(),
            )
            .start();
        proxy.wait_for_stall();
        wait_until(&watch, || has_a_whole_group(&target));
        let inode = inode(&target);
        Self {
            site,
            proxy,
            client,
            inode,
        }
    }

    #[track_caller]
    fn assert_whole(&self) {
        assert_same(&self.site.source(), &self.site.target());
        assert_eq!(inode(&self.site.target().join("large")), self.inode);
    }

    /// Asserts that the size or the time differs from that of the source.
    #[track_caller]
    fn assert_looks_unfinished(&self) {
        let stat = self.site.target().join("large").metadata().unwrap();
        assert_eq!(stat.len(), LARGE + 1);
        assert_ne!(stat.modified().unwrap(), back_then());
        assert_eq!(names(&self.site.target()), ["large"], "no part beside it");
    }

    fn kill_both(&mut self) -> Daemon {
        let mut daemon = self.site.take_daemon();
        daemon.kill();
        self.client.kill().unwrap();
        wait_within_patience(&mut self.client);
        self.assert_looks_unfinished();
        let again = Daemon::start(&self.site.path("server"), "127.0.0.1:0", &Runner::default());
        self.proxy.reset(again.address);
        again
    }
}

/// Whether the file holds any complete group of the new version. On one lane, some groups are complete before the relay
/// stalls.
fn has_a_whole_group(path: &Path) -> bool {
    let (there, new) = (std::fs::read(path).unwrap(), painted(LARGE, 0));
    let group = usize::try_from(GROUP_BYTES).unwrap();
    there
        .chunks_exact(group)
        .zip(new.chunks_exact(group))
        .any(|(there, new)| there == new)
}

pub(crate) fn wait_until(watch: &std::os::fd::OwnedFd, is_so: impl Fn() -> bool) {
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut room);
    while !is_so() {
        let mut poll_fds = [PollFd::new(watch, PollFlags::IN)];
        let patience = PATIENCE.try_into().unwrap();
        assert_eq!(
            poll(&mut poll_fds, Some(&patience)).unwrap(),
            1,
            "nothing is written"
        );
        events.next().unwrap();
    }
}

#[test]
fn a_killed_daemon_leaves_a_file_that_the_same_command_finishes() {
    let mut half_way = HalfWay::start(&[], UNIX_EPOCH);
    let _again = half_way.kill_both();
    let HalfWay { site, proxy, .. } = &half_way;
    let summary = finish(
        site.push_by(&proxy.address, &["--json", "--inplace"])
            .start(),
    )
    .done()
    .summary();
    half_way.assert_whole();
    let [moved, matched] = ["bytes", "bytes_matched"].map(|key| summary[key].as_u64().unwrap());
    assert!(
        moved + matched == LARGE && matched >= GROUP_BYTES,
        "what has come does not come again: {summary}"
    );
}

/// The old file has the final size and time.
#[test]
fn a_file_that_differs_in_contents_alone_is_not_taken_for_finished() {
    let mut half_way = HalfWay::start(&["--checksum"], back_then());
    let _again = half_way.kill_both();
    let HalfWay { site, proxy, .. } = &half_way;
    finish(site.push_by(&proxy.address, &["--inplace"]).start()).done();
    half_way.assert_whole();
}

#[test]
fn a_push_continues_after_a_lost_connection() {
    let half_way = HalfWay::start(&[], UNIX_EPOCH);
    half_way.proxy.reset(half_way.site.the_daemon().address);
    let HalfWay { client, .. } = half_way;
    let outcome = finish(client).expect(0).says(&["reconnected"]);
    assert_eq!(outcome.summary()["reconnects"], 1);
    assert_same(&half_way.site.source(), &half_way.site.target());
    assert_eq!(inode(&half_way.site.target().join("large")), half_way.inode);
}

/// The last write of an interrupted push would make the file newer than the source.
#[test]
fn a_lost_connection_does_not_make_a_file_newer() {
    let mut half_way = HalfWay::start(&["--update"], UNIX_EPOCH);
    half_way.proxy.reset(half_way.site.the_daemon().address);
    assert_eq!(
        wait_within_patience(&mut half_way.client),
        Some(12),
        "it is not begun again"
    );
    half_way
        .site
        .the_daemon()
        .wait_for_log("broken off by tester");
    half_way.assert_looks_unfinished();
    half_way
        .site
        .push(&["--inplace", "--update"], half_way.site.contents(), "")
        .done();
    half_way.assert_whole();
}

#[test]
fn the_second_of_two_concurrent_pushes_fails() {
    let half_way = HalfWay::start(&[], UNIX_EPOCH);
    let outcome = half_way
        .site
        .push(&["--inplace"], half_way.site.contents(), "")
        .expect(23);
    outcome
        .says(&[
            "zmove: receiver: open for an in-place update",
            "large'",
            "has locked it",
        ])
        .lines(1);
    half_way.proxy.resume_without(0, u64::MAX);
    let HalfWay {
        client,
        site,
        inode: before,
        ..
    } = half_way;
    finish(client).done();
    assert_same(&site.source(), &site.target());
    assert_eq!(inode(&site.target().join("large")), before);
}

#[test]
fn a_file_that_is_replaced_meanwhile_is_reported() {
    let half_way = HalfWay::start(&[], UNIX_EPOCH);
    half_way.site.push(&[], half_way.site.contents(), "").done();
    half_way.proxy.resume_without(0, u64::MAX);
    let outcome = finish(half_way.client).expect(23);
    outcome
        .says(&[
            "zmove: receiver: verify",
            "large'",
            "another file replaced it",
        ])
        .lines(1);
    assert_same(&half_way.site.source(), &half_way.site.target());
}

/// The other program overwrites data that has already arrived, or truncates the file before the rest arrives.
#[test]
fn a_change_by_another_program_is_reported() {
    type Change = fn(&std::fs::File);
    let writes: Change = |file| file.write_all_at(b"another's", 0).unwrap();
    let cuts_off: Change = |file| file.set_len(LARGE - 7).unwrap();
    for change in [writes, cuts_off] {
        let half_way = HalfWay::start(&[], UNIX_EPOCH);
        let target = half_way.site.target().join("large");
        change(&std::fs::File::options().write(true).open(&target).unwrap());
        half_way.proxy.resume_without(0, u64::MAX);
        let HalfWay {
            client,
            site,
            inode: before,
            ..
        } = half_way;
        let outcome = finish(client).expect(23);
        outcome
            .says(&[
                "zmove: receiver: verify",
                "large'",
                "another program changed it during the transfer",
            ])
            .lines(1);
        assert_ne!(target.metadata().unwrap().modified().unwrap(), back_then());
        site.push(&["--inplace"], site.contents(), "").done();
        assert_same(&site.source(), &site.target());
        assert_eq!(inode(&target), before);
    }
}

#[test]
fn the_part_of_an_earlier_push_is_removed() {
    let site = Site::daemon();
    std::fs::write(site.source().join("large"), painted(LARGE, 0)).unwrap();
    let target = site.target().join("large");
    std::fs::write(&target, painted(LARGE, 3)).unwrap();
    let before = inode(&target);
    let proxy = Proxy::start(site.the_daemon().address, BYTES_BEFORE_STALL);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let mut client = site.push_by(&proxy.address, &["--json"]).start();
    proxy.wait_for_stall();
    client.kill().unwrap();
    wait_within_patience(&mut client);
    proxy.reset(site.the_daemon().address);
    site.the_daemon().wait_for_log("broken off by tester");
    push(&site, &[]);
    assert_eq!(inode(&target), before);
    assert_eq!(names(&site.target()), ["large"]);
}

#[test]
fn a_file_that_may_not_be_written_is_named_and_the_rest_goes_on() {
    let Some(mut site) = Site::unprivileged() else {
        return;
    };
    site.start_daemon();
    for (name, bytes) in [("closed-small", 5), ("closed-large", LARGE), ("open", 5)] {
        paint(site.source().join(name), bytes);
        std::fs::write(site.target().join(name), "old").unwrap();
    }
    site.give_away();
    for name in ["closed-small", "closed-large"] {
        set_mode(site.target().join(name), 0o444);
    }
    let outcome = site.push(&["--inplace"], site.contents(), "").expect(23);
    let said = "zmove: receiver: open for an in-place update";
    let outcome = outcome.says(&[said, "closed-small'", "Permission denied"]);
    outcome
        .says(&[said, "closed-large'", "Permission denied"])
        .says(&[
            "zmove: receiver: Permission denied. ",
            "run the same command again",
        ])
        .lines(3);
    assert_eq!(
        std::fs::read(site.target().join("open")).unwrap(),
        painted(5, 0)
    );
    assert_eq!(
        std::fs::read(site.target().join("closed-large")).unwrap(),
        b"old"
    );
}

/// A file of another owner can be written if its mode allows it, but only the owner can set its time.
#[test]
fn a_time_that_cannot_be_set_is_reported() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    if !is_root() {
        return skip("only root can make files of another user");
    }
    paint(site.source().join("f"), 10);
    std::fs::write(site.target().join("f"), "old").unwrap();
    site.give_away();
    std::os::unix::fs::chown(site.target().join("f"), Some(0), Some(0)).unwrap();
    set_mode(site.target().join("f"), 0o666);
    set_mode(site.source().join("f"), 0o644);
    let outcome = site.push(&["--inplace"], site.contents(), "").expect(23);
    outcome
        .says(&[
            "zmove: receiver: open for an in-place update 'f'",
            "not permitted",
        ])
        .lines(1);
    assert_eq!(
        std::fs::read(site.target().join("f")).unwrap(),
        b"old",
        "more could read it than may in the end"
    );
    set_mode(site.source().join("f"), 0o666);
    let outcome = site.push(&["--inplace"], site.contents(), "").expect(23);
    outcome
        .says(&[
            "zmove: receiver: set mode and times of",
            "f'",
            "not permitted",
        ])
        .lines(1);
    assert_eq!(
        std::fs::read(site.target().join("f")).unwrap(),
        painted(10, 0)
    );
}
