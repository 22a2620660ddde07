//! Large files resume after an interrupted transfer: stored data is not sent again, no matter which side died and how
//! the next transfer connects. Untrusted data is sent again.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use serde_json::Value;
use zmove_types::GROUP_BYTES;

use crate::commands::dry_run::snapshot;
use crate::support::command::{Runner, Zmove, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, Site};
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, names, paint, painted};

const BYTES: u64 = 12 * GROUP_BYTES + 5;
/// Number of bytes after which the relay stalls.
const BYTES_BEFORE_STALL: u64 = 8 * GROUP_BYTES;
/// Minimum length of a journal with some groups.
const JOURNAL_BYTES_MIN: u64 = 300;

/// A site whose target holds a part of `source/large` and a journal of the part, because the sender was killed.
pub(crate) fn broken_off() -> Site {
    let site = Site::daemon();
    break_off(&site, |relay| site.push_by(relay, &["--json"]));
    assert_eq!(hidden(&site).len(), 1, "the part stays");
    site
}

/// Starts a push of `source/large` through a relay, and kills it after a part has arrived.
fn break_off(site: &Site, push: impl FnOnce(&SocketAddr) -> Zmove) {
    make_large(site);
    break_off_after(BYTES_BEFORE_STALL, site, push);
}

/// Starts a push through a relay, and kills it when `bytes` bytes have passed.
pub(crate) fn break_off_after(bytes: u64, site: &Site, push: impl FnOnce(&SocketAddr) -> Zmove) {
    let (proxy, mut client) = stalled_after(bytes, site, push);
    client.kill().unwrap();
    client.wait().unwrap();
    proxy.reset(site.the_daemon().address);
    site.the_daemon().wait_for_log("broken off by tester");
}

/// Starts a push of `source/large` through a relay, which stalls after a part has arrived.
pub(crate) fn stalled(site: &Site, push: impl FnOnce(&SocketAddr) -> Zmove) -> (Proxy, Child) {
    make_large(site);
    stalled_after(BYTES_BEFORE_STALL, site, push)
}

fn make_large(site: &Site) {
    std::fs::write(site.source().join("large"), painted(BYTES, 0)).unwrap();
}

fn stalled_after(
    bytes: u64,
    site: &Site,
    push: impl FnOnce(&SocketAddr) -> Zmove,
) -> (Proxy, Child) {
    let proxy = Proxy::start(site.the_daemon().address, bytes);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let client = push(&proxy.address).start();
    proxy.wait_for_stall();
    wait_for_journal(site);
    (proxy, client)
}

fn journals(site: &Site) -> PathBuf {
    site.path("server").join("journal")
}

/// Returns the journals of the site's daemon with their lengths.
pub(crate) fn journals_of(site: &Site) -> Vec<(PathBuf, u64)> {
    journals_in(&journals(site))
}

/// Returns the journals in a directory with their lengths.
pub(crate) fn journals_in(directory: &Path) -> Vec<(PathBuf, u64)> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let entries = entries.map(Result::unwrap);
    // A journal may be removed while the directory is read.
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len())))
        .collect()
}

/// Waits until the daemon has recorded some groups in its journal.
pub(crate) fn wait_for_journal(site: &Site) {
    wait_for_journal_in(&journals(site));
}

/// Waits for a journal with some groups in this directory.
pub(crate) fn wait_for_journal_in(directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, directory, inotify::WatchFlags::MODIFY).unwrap();
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut room);
    while !journals_in(directory)
        .iter()
        .any(|(_, bytes)| *bytes >= JOURNAL_BYTES_MIN)
    {
        let mut poll_fds = [PollFd::new(&watch, PollFlags::IN)];
        let patience = PATIENCE.try_into().unwrap();
        assert_eq!(
            poll(&mut poll_fds, Some(&patience)).unwrap(),
            1,
            "no journal"
        );
        events.next().unwrap();
    }
}

fn hidden(site: &Site) -> Vec<PathBuf> {
    let names = names(&site.target())
        .into_iter()
        .filter(|name| name.starts_with(".zmove-"));
    names.map(|name| site.target().join(name)).collect()
}

/// Asserts that target and source are equal. Returns the number of bytes that were stored before this push.
#[track_caller]
pub(crate) fn assert_done(site: &Site, summary: &Value) -> u64 {
    assert_same(&site.source(), &site.target());
    assert_eq!(journals_of(site), [], "no unfinished transfers");
    let [moved, resumed] = ["bytes", "bytes_resumed"].map(|key| summary[key].as_u64().unwrap());
    assert_eq!(moved + resumed, BYTES);
    resumed
}

#[test]
fn a_resumed_push_sends_only_the_missing_groups() {
    let site = broken_off();
    let summary = site.push_contents();
    assert!(assert_done(&site, &summary) >= GROUP_BYTES, "{summary}");
}

#[test]
fn a_preview_changes_no_unfinished_part() {
    let site = broken_off();
    let before = (snapshot(&site.target()), snapshot(&journals(&site)));
    for options in [
        &["-n", "--delete"][..],
        &["-n", "--delete", "--delta", "always"],
    ] {
        let told = site.push(options, site.contents(), "").done().stdout;
        assert!(told.lines().any(|line| line == "+ large"), "{told}");
        assert!(
            !told.contains(".zmove-") && !told.lines().any(|line| line.starts_with("- ")),
            "{told}"
        );
        assert_eq!(
            (snapshot(&site.target()), snapshot(&journals(&site))),
            before,
            "{options:?}"
        );
    }
    let summary = site.push_contents();
    assert!(assert_done(&site, &summary) >= GROUP_BYTES, "{summary}");
}

/// A part is useful only at its target. A copy of it would never be removed elsewhere.
#[test]
fn parts_are_left_out_of_other_transfers_and_that_is_reported() {
    let site = broken_off();
    site.let_read("target");
    std::fs::write(site.target().join("whole"), "x").unwrap();
    let target = site.target();
    let there = site.address(target.to_str().unwrap());
    for (command, source, copy) in [
        ("push", target.as_os_str(), "pushed"),
        ("pull", &there, "pulled"),
    ] {
        let mut zmove = site.zmove(&[command]);
        zmove.0.args([source, copy.as_ref()]);
        zmove
            .outcome()
            .expect(0)
            .says(&["a part of an unfinished transfer", "is left out"])
            .lines(1);
        assert_eq!(
            names(&site.path(copy).join("target")),
            ["whole"],
            "{command}"
        );
    }
    let part = names(&site.target())
        .into_iter()
        .find(|name| name.starts_with(".zmove-"))
        .unwrap();
    std::fs::write(site.path("list"), format!("whole\n{part}\n")).unwrap();
    let listed = site
        .zmove(&["push", "--files-from", "list", "target", "listed"])
        .outcome()
        .expect(23);
    listed
        .says(&[
            "zmove: sender: find the listed path '",
            &part,
            "a part of an unfinished transfer",
        ])
        .lines(1);
    assert_eq!(names(&site.path("listed")), ["whole"]);
    let mut verify = site.zmove(&["verify"]);
    verify.0.args([target.as_os_str(), "pushed".as_ref()]);
    verify.outcome().expect(0).says(&["is left out"]);
    let counted = site
        .zmove(&["scan", "--json", "target"])
        .outcome()
        .done()
        .stdout;
    assert!(counted.starts_with(r#"{"files":{"files":1,"#), "{counted}");
    std::fs::remove_file(site.target().join("whole")).unwrap();
    let summary = site.push_contents();
    assert!(assert_done(&site, &summary) >= GROUP_BYTES, "{summary}");
}

#[test]
fn delete_keeps_unfinished_parts() {
    let site = broken_off();
    let parts = hidden(&site);
    std::fs::create_dir(site.path("other")).unwrap();
    std::fs::write(site.path("other/small"), "x").unwrap();
    std::fs::write(site.target().join("alone"), "x").unwrap();
    site.push(&["--delete"], site.path("other").join(""), "")
        .done();
    assert_eq!(hidden(&site), parts);
    assert!(!site.target().join("alone").exists());
    let summary = site
        .push(&["--json", "--delete"], site.contents(), "")
        .done()
        .summary();
    assert!(assert_done(&site, &summary) >= GROUP_BYTES, "{summary}");
}

#[test]
fn a_file_that_is_newer_at_the_target_by_now_stays() {
    let site = broken_off();
    std::fs::write(site.target().join("large"), "newer").unwrap();
    let newer = SystemTime::now() + Duration::from_secs(9);
    File::options()
        .append(true)
        .open(site.target().join("large"))
        .unwrap()
        .set_modified(newer)
        .unwrap();
    for option in ["--update", "--ignore-existing"] {
        let summary = site
            .push(&["--json", option], site.contents(), "")
            .done()
            .summary();
        assert_eq!(
            (&summary["skipped"], &summary["bytes_resumed"]),
            (&1.into(), &0.into())
        );
        assert_eq!(
            std::fs::read(site.target().join("large")).unwrap(),
            b"newer"
        );
    }
}

#[test]
fn a_push_resumes_after_daemon_and_client_were_killed() {
    let mut site = Site::daemon();
    let (proxy, mut client) = stalled(&site, |relay| site.push_by(relay, &["--json"]));
    site.take_daemon().kill();
    client.kill().unwrap();
    client.wait().unwrap();
    let again = Daemon::start(&site.path("server"), "127.0.0.1:0", &Runner::default());
    proxy.reset(again.address);
    let summary = finish(site.push_by(&proxy.address, &["--json"]).start())
        .done()
        .summary();
    assert!(assert_done(&site, &summary) >= GROUP_BYTES, "{summary}");
}

/// The receiver has not noticed that the process of a job was killed, and its session keeps the journal locked.
#[test]
fn the_next_attempt_of_a_job_ends_the_last_one_and_resumes() {
    let site = Site::daemon();
    let of_run = |mut push: Zmove| {
        push.0.env("ZMOVE_JOB_RUN", "07".repeat(16));
        push
    };
    let (_relay, mut killed) = stalled(&site, |relay| of_run(site.push_by(relay, &["--json"])));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let next = of_run(site.push_command(&["--json"], &[&site.contents()], ""));
    let summary = next.outcome().done().summary();
    assert!(assert_done(&site, &summary) >= GROUP_BYTES, "{summary}");
}

#[test]
fn a_push_resumes_over_other_lanes() {
    for options in [
        &["--json", "--streams", "1"][..],
        &["--json", "--transport", "quic"],
    ] {
        let site = broken_off();
        let summary = site.push(options, site.contents(), "").done().summary();
        assert!(
            assert_done(&site, &summary) >= GROUP_BYTES,
            "{options:?}: {summary}"
        );
    }
}

#[test]
fn a_single_file_keeps_its_other_name() {
    let site = Site::daemon();
    break_off(&site, |relay| {
        let mut push = site.zmove(&["push", "--json", "source/large"]);
        push.0.arg(format!("{relay}:renamed"));
        push
    });
    let summary = site
        .push(&["--json"], site.source().join("large"), "renamed")
        .done()
        .summary();
    assert!(
        summary["bytes_resumed"].as_u64().unwrap() >= GROUP_BYTES,
        "{summary}"
    );
    assert_eq!(names(&site.target()), ["renamed"]);
    assert_eq!(
        std::fs::read(site.target().join("renamed")).unwrap(),
        painted(BYTES, 0)
    );
}

/// The part of the large file is removed when the small file has been renamed into place, at the end of the push.
#[test]
fn a_part_is_removed_when_its_file_has_become_small() {
    let site = broken_off();
    paint(site.source().join("large"), 1000);
    site.push_contents();
    assert_same(&site.source(), &site.target());
    assert_eq!((hidden(&site), journals_of(&site)), (vec![], vec![]));
}

#[test]
fn a_changed_source_is_sent_from_the_start() {
    let site = broken_off();
    // The new file has the same size, with different timestamps and contents.
    std::fs::write(site.source().join("large"), painted(BYTES, 7)).unwrap();
    let summary = site.push_contents();
    assert_eq!(assert_done(&site, &summary), 0);
}

#[test]
fn a_part_that_somebody_has_written_to_is_read_again() {
    let site = broken_off();
    let [part] = &hidden(&site)[..] else {
        panic!("one part")
    };
    File::options()
        .write(true)
        .open(part)
        .unwrap()
        .write_all_at(b"alien", 3)
        .unwrap();
    // Backdates the journal, as if it had not been written for a while when the part was modified.
    let [(journal, _)] = &journals_of(&site)[..] else {
        panic!("one journal")
    };
    let journal = File::options().write(true).open(journal).unwrap();
    journal
        .set_modified(SystemTime::now() - Duration::from_secs(60))
        .unwrap();
    let summary = site.push_contents();
    assert!(
        assert_done(&site, &summary) > 0,
        "what is whole stays: {summary}"
    );
}

#[test]
fn a_missing_or_replaced_part_is_not_used() {
    let site = broken_off();
    let [part] = &hidden(&site)[..] else {
        panic!("one part")
    };
    std::fs::remove_file(part).unwrap();
    std::fs::write(part, "somebody's").unwrap();
    let summary = site.push(&["--json"], site.contents(), "").done().summary();
    assert_eq!(summary["bytes_resumed"], 0);
    assert_eq!(std::fs::read(part).unwrap(), b"somebody's");
    assert_whole(&site.target().join("large"));
    assert_eq!(journals_of(&site), []);
}

#[test]
fn an_unreadable_journal_is_left_alone() {
    let site = broken_off();
    let [(journal, bytes)] = &journals_of(&site)[..] else {
        panic!("one journal")
    };
    File::options()
        .write(true)
        .open(journal)
        .unwrap()
        .write_all_at(b"?", 9)
        .unwrap();
    let summary = site.push_contents();
    assert_eq!(summary["bytes_resumed"], 0);
    assert_eq!(journals_of(&site), [(journal.clone(), *bytes)]);
    assert_eq!(hidden(&site).len(), 1, "whose part is not known");
    assert_whole(&site.target().join("large"));
}

#[test]
fn the_complete_records_of_a_torn_journal_are_used() {
    let site = broken_off();
    let [(journal, bytes)] = &journals_of(&site)[..] else {
        panic!("one journal")
    };
    File::options()
        .write(true)
        .open(journal)
        .unwrap()
        .set_len(bytes - 7)
        .unwrap();
    let summary = site.push_contents();
    assert!(assert_done(&site, &summary) > 0, "{summary}");
}

#[test]
fn a_push_that_compares_contents_resumes() {
    let site = Site::daemon();
    std::fs::write(site.target().join("large"), painted(BYTES, 7)).unwrap();
    break_off(&site, |relay| site.push_by(relay, &["--json"]));
    let summary = site
        .push(&["--json", "--checksum"], site.contents(), "")
        .done()
        .summary();
    assert!(assert_done(&site, &summary) >= GROUP_BYTES, "{summary}");
}

#[test]
fn two_pushes_at_once_do_not_share_a_part() {
    let site = broken_off();
    let pushes = [(); 2].map(|()| {
        site.push_command(&["--json"], &[&site.contents()], "")
            .start()
    });
    let summaries = pushes.map(|push| finish(push).done().summary());
    assert_same(&site.source(), &site.target());
    assert_eq!(journals_of(&site), []);
    let resumed = summaries.map(|summary| summary["bytes_resumed"].as_u64().unwrap());
    let using = resumed.iter().filter(|bytes| **bytes > 0);
    assert_eq!(using.count(), 1, "{resumed:?}");
}

/// A daemon may learn late that a sender has ended.
#[test]
fn a_part_is_not_kept_where_another_push_has_finished_the_file() {
    let site = Site::daemon();
    let (proxy, mut client) = stalled(&site, |relay| site.push_by(relay, &["--json"]));
    assert_eq!(hidden(&site).len(), 1);
    site.push_contents();
    assert_eq!(hidden(&site).len(), 1, "the other session has it still");
    client.kill().unwrap();
    client.wait().unwrap();
    proxy.reset(site.the_daemon().address);
    site.the_daemon().wait_for_log("broken off by tester");
    // Removing the part changes the timestamp of the directory.
    assert_eq!(names(&site.target()), ["large"]);
    assert_whole(&site.target().join("large"));
    assert_eq!(journals_of(&site), []);
}

#[track_caller]
fn assert_whole(path: &Path) {
    assert_eq!(std::fs::read(path).unwrap(), painted(BYTES, 0));
}
