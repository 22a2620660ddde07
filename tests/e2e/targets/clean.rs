//! `zmove clean` removes the leftovers of a killed push in directories that no later push enters, and nothing else.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use zmove_disk::{SharedJobDirectory, Tree};
use zmove_types::{Beginning, GROUP_BYTES, RelPath, SharedJobId};

use crate::commands::dry_run::snapshot;
use crate::commands::schema::events;
use crate::commands::ssh::{Sshd, push_by};
use crate::connections::one_writer::receiver_over_ssh;
use crate::connections::resume::{assert_done, broken_off, stalled};
use crate::support::command::{NOBODY, Outcome, ZMOVE, Zmove, finish, wait_within_patience};
use crate::support::harness::{PATIENCE, Site, is_root, skip};
use crate::support::tree::{assert_same, names, old, set_mode, set_old};

/// Directory with the leftovers of a killed push.
const DEEP: &str = "a/b/c";
const FILES: usize = 4_000;

/// Creates a source with many files in [`DEEP`], and a target with that directory.
fn prepare(site: &Site) {
    for root in [site.source(), site.target()] {
        fs::create_dir_all(root.join(DEEP)).unwrap();
        fs::write(root.join(DEEP).join("whole"), "whole").unwrap();
    }
    for number in 0..FILES {
        let path = site.source().join(DEEP).join(format!("{number:05}"));
        fs::write(path, [7; 3_000]).unwrap();
    }
    site.give_away();
}

/// Returns the relative paths of the hidden entries below a directory. Hidden directories are not searched.
fn hidden_below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(".zmove-") {
                found.push(entry.path().strip_prefix(root).unwrap().to_owned());
            } else if entry.file_type().is_ok_and(|form| form.is_dir()) {
                waiting.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Whether several entries in [`DEEP`] still have hidden names.
fn has_begun(site: &Site) -> bool {
    let hidden = hidden_below(&site.target());
    hidden.iter().filter(|path| path.starts_with(DEEP)).count() >= 20
}

/// Stops a process with SIGSTOP and waits until all of its threads are stopped.
fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" T") || rest.starts_with(" Z"))
    };
    while !fs::read_dir(&tasks).unwrap().flatten().all(is_stopped) {
        assert!(Instant::now() < deadline, "it does not stop");
    }
}

/// Starts a push and stops its receiver while entries in [`DEEP`] have hidden names.
fn stop_in_the_midst(
    site: &Site,
    push: impl Fn() -> Child,
    receiver: impl Fn(&Child) -> Pid,
) -> (Child, Pid) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut child = push();
        let pid = receiver(&child);
        while child.try_wait().unwrap().is_none() {
            if !has_begun(site) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            stop(pid);
            if has_begun(site) {
                return (child, pid);
            }
            kill_process(pid, Signal::CONT).unwrap();
        }
        assert!(Instant::now() < deadline, "no push leaves anything");
        for name in names(&site.target().join(DEEP)) {
            if name != "whole" {
                fs::remove_file(site.target().join(DEEP).join(name)).unwrap();
            }
        }
    }
}

/// Kills both ends of a push.
fn kill(mut child: Child, receiver: Pid) {
    child.kill().unwrap();
    wait_within_patience(&mut child);
    // Both ends of a local push are the same process.
    let _has_ended = kill_process(receiver, Signal::KILL);
    let process = format!("/proc/{}/exe", receiver.as_raw_nonzero());
    let deadline = Instant::now() + PATIENCE;
    while fs::read_link(&process).is_ok() {
        assert!(Instant::now() < deadline, "the receiver does not end");
    }
}

/// A local site with the leftovers of a local push.
fn left_here() -> Site {
    let site = Site::local();
    leave_here(&site);
    site
}

fn leave_here(site: &Site) {
    prepare(site);
    let contents = site.contents();
    let push = || site.push_command(&[], &[contents.as_os_str()], "").start();
    let (child, receiver) = stop_in_the_midst(site, push, Pid::from_child);
    kill(child, receiver);
}

fn clean_at(site: &Site, options: &[&str], target: OsString) -> Outcome {
    let mut clean = site.zmove(&["clean"]);
    clean.0.args(options).arg(target);
    clean.outcome()
}

fn clean(site: &Site, options: &[&str]) -> Outcome {
    clean_at(site, options, site.address(""))
}

/// Runs a push that does not enter [`DEEP`], then cleans: first with a listing only, then with removal.
fn assert_cleaned(site: &Site, push_beside: Zmove, clean: impl Fn(&[&str]) -> Outcome) {
    let target = site.target();
    let left = hidden_below(&target);
    fs::create_dir(site.path("beside")).unwrap();
    fs::write(site.path("beside/new"), "new").unwrap();
    push_beside.outcome().expect(0);
    let left: Vec<_> = left
        .into_iter()
        .filter(|path| path.starts_with(DEEP))
        .collect();
    let still = hidden_below(&target);
    assert!(still == left, "a push beside it enters no deep directory");

    let deep = target.join(DEEP);
    set_mode(&deep, 0o555);
    set_old(&deep);
    let before = snapshot(&target);
    let listed = clean(&["-n"]).done().stdout;
    for path in &left {
        let path = format!("'{}'", path.display());
        let of_it: Vec<_> = listed.lines().filter(|line| line.contains(&path)).collect();
        assert_eq!(of_it.len(), 1, "{listed}");
        assert!(
            of_it[0].starts_with("would be removed: unfinished "),
            "{listed}"
        );
    }
    assert_eq!(listed.lines().count(), left.len() + 1, "{listed}");
    assert!(!listed.ends_with(" 0 B\n"), "{listed}");
    assert_eq!(snapshot(&target), before, "a dry run changes nothing");

    let removed = clean(&[]).done().stdout;
    let [removed, listed] = [removed, listed.replace("would be removed", "removed")].map(|said| {
        let mut lines: Vec<_> = said.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    });
    assert!(removed == listed, "{removed:?}");
    assert!(hidden_below(&target).is_empty());
    let metadata = fs::metadata(&deep).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o555);
    assert_eq!(metadata.modified().unwrap(), old());
    assert_eq!(fs::read_to_string(deep.join("whole")).unwrap(), "whole");
    assert_eq!(
        fs::read_to_string(target.join("beside/new")).unwrap(),
        "new"
    );
    assert_eq!(clean(&[]).done().stdout, "nothing to remove\n");
}

#[test]
fn leftovers_of_a_killed_push_are_removed_locally() {
    let site = left_here();
    let beside = site.path("beside");
    let push = site.push_command(&[], &[beside.as_os_str()], "");
    assert_cleaned(&site, push, |options| clean(&site, options));
}

#[test]
fn leftovers_of_a_killed_push_are_removed_at_a_daemon() {
    let mut site = Site::daemon();
    prepare(&site);
    let contents = site.contents();
    let push = || site.push_command(&[], &[contents.as_os_str()], "").start();
    let daemon = site.the_daemon().pid();
    let (child, _) = stop_in_the_midst(&site, push, |_| daemon);
    kill_process(daemon, Signal::KILL).unwrap();
    site.take_daemon().wait();
    kill(child, daemon);
    site.start_daemon();
    let beside = site.path("beside");
    let push = site.push_command(&[], &[beside.as_os_str()], "");
    assert_cleaned(&site, push, |options| clean(&site, options));
    let said = site.the_daemon().wait_for_log("cleaned by tester");
    assert!(said.contains(" leftovers, 0 faults; key "), "{said}");
}

#[test]
fn leftovers_of_a_killed_push_are_removed_over_ssh() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    prepare(&site);
    let target = sshd.at(&site.target());
    let push = || push_by(&site, &sshd.command(), Path::new(ZMOVE), &[], &target);
    let (child, receiver) =
        stop_in_the_midst(&site, || push().start(), |_| receiver_over_ssh(&site));
    kill(child, receiver);
    let mut beside = site.zmove(&["push", "--ssh-command", &sshd.command(), "--remote-zmove"]);
    beside.0.args([ZMOVE, "beside", &target]);
    let command = sshd.command();
    let ssh = ["--ssh-command", &command, "--remote-zmove", ZMOVE];
    assert_cleaned(&site, beside, |options| {
        clean_at(&site, &[&ssh, options].concat(), target.clone().into())
    });
}

#[test]
fn entries_of_a_running_push_stay() {
    let site = Site::local();
    prepare(&site);
    let contents = site.contents();
    let push = || site.push_command(&[], &[contents.as_os_str()], "").start();
    let (child, receiver) = stop_in_the_midst(&site, push, Pid::from_child);
    let hidden = hidden_below(&site.target());
    assert_eq!(clean(&site, &[]).done().stdout, "nothing to remove\n");
    let after = hidden_below(&site.target());
    assert!(after == hidden, "{} of {} stay", after.len(), hidden.len());
    kill_process(receiver, Signal::CONT).unwrap();
    finish(child).expect(0);
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_part_is_listed_and_stays_and_the_next_push_resumes_from_it() {
    let site = broken_off();
    let listed = clean(&site, &[]).done().stdout;
    let part = hidden_below(&site.target()).remove(0);
    let kept = format!("part of a large file '{}'", part.display());
    assert!(
        listed.starts_with("kept until 20") && listed.contains(&kept),
        "{listed}"
    );
    let said = clean(&site, &["--json"]);
    let found = events(&said, 0);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let days = (found[0]["kept_until"].as_u64().unwrap() - now.as_secs()) / (24 * 60 * 60);
    assert!((6..=7).contains(&days), "{found:?}");
    assert_eq!(
        (&found[0]["kind"], &found[0]["fate"]),
        (&"part".into(), &"kept".into())
    );
    assert_eq!(
        (&found[1]["removed"], &found[1]["kept"]),
        (&0.into(), &1.into())
    );
    assert!(
        found[1]["kept_bytes"].as_u64().unwrap() >= GROUP_BYTES,
        "{found:?}"
    );
    let summary = site.push_contents();
    assert!(assert_done(&site, &summary) >= GROUP_BYTES, "{summary}");
}

#[test]
fn an_old_part_is_removed_unless_a_transfer_writes_to_it() {
    let mut site = Site::local();
    site.start_daemon_with(&["--journal-age", "1s"]);
    let (proxy, mut client) = stalled(&site, |relay| site.push_by(relay, &[]));
    let part = site.target().join(hidden_below(&site.target()).remove(0));
    fs::create_dir(site.target().join("sub")).unwrap();
    let other = site.target().join("sub/.zmove-0123456789ab-0");
    fs::write(&other, "part").unwrap();
    let clean_until_gone = |path: &Path| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = clean(&site, &[]).done().stdout;
            if !path.exists() {
                return said;
            }
            assert!(Instant::now() < deadline, "it stays: {said}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let said = clean_until_gone(&other);
    let line = "removed: part of a large file 'sub/.zmove-0123456789ab-0'";
    assert!(said.contains(line) && said.lines().count() == 2, "{said}");
    assert!(part.exists(), "a transfer that runs has it");
    client.kill().unwrap();
    client.wait().unwrap();
    proxy.reset(site.the_daemon().address);
    site.the_daemon().wait_for_log("broken off by tester");
    clean_until_gone(&part);
}

/// Creates the directory of a job with a file in it.
fn make_job(site: &Site, directory: &str, job: SharedJobId) -> (SharedJobDirectory, PathBuf) {
    let parent = site.target().join(directory);
    fs::create_dir_all(&parent).unwrap();
    let root = Tree::open(&parent)
        .unwrap()
        .open_directory(&RelPath::root())
        .unwrap();
    let made = SharedJobDirectory::open(&root, job, Beginning::Allowed).unwrap();
    let path = parent.join(SharedJobDirectory::name(job).as_os_str());
    fs::create_dir_all(path.join(".zmove-1-own/sub")).unwrap();
    fs::write(path.join(".zmove-1-own/sub/f"), [7; 10_000]).unwrap();
    (made, path)
}

#[test]
fn the_directories_of_dead_jobs_are_removed_and_that_of_a_live_one_stays() {
    let site = Site::local();
    let [(_, first), (_, second)] = [("a", 1), ("b/c", 2)]
        .map(|(directory, id)| make_job(&site, directory, SharedJobId([id; 16])));
    let (live, of_live) = make_job(&site, "b", SharedJobId([3; 16]));
    let (_, of_other) = make_job(&site, "d", SharedJobId([4; 16]));
    let (_, with_data) = make_job(&site, "e", SharedJobId([5; 16]));
    fs::rename(&with_data, site.path("made")).unwrap();
    fs::create_dir_all(with_data.join("parts")).unwrap();
    fs::write(with_data.join("parts/data"), "data").unwrap();
    set_mode(&with_data, 0o700);
    if is_root() {
        lchown(&of_other, Some(NOBODY), Some(NOBODY)).unwrap();
    } else {
        fs::remove_dir_all(&of_other).unwrap();
    }
    let is_over = Arc::<AtomicBool>::default();
    let beats = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        let mut heartbeat = live.heartbeat("x");
        move || {
            while !is_over.load(Ordering::Relaxed) {
                heartbeat.beat(Some(Duration::ZERO)).unwrap();
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    });
    for (options, fate, stays) in [
        (&["-n"][..], "would be removed", true),
        (&[], "removed", false),
    ] {
        let began = Instant::now();
        let outcome = clean(&site, options).expect(0);
        assert!(
            began.elapsed() < Duration::from_secs(45),
            "jobs are watched side by side"
        );
        let said = outcome.says(&["waiting: ", "for up to 25 s"]).stdout;
        for path in ["a", "b/c"] {
            let line =
                format!("{fate}: directory of a push to several receivers '{path}/.zmove-job-");
            assert!(said.contains(&line) && !said.contains("0 B"), "{said}");
        }
        assert!(!said.contains("'b/.zmove-job-"), "{said}");
        let kept = "kept, belongs to another user or was not created by zmove: directory of a push to \
                    several receivers";
        assert!(said.contains(&format!("{kept} 'e/")), "{said}");
        assert!(with_data.join("parts/data").exists());
        assert!(
            !is_root() || said.contains(&format!("{kept} 'd/")) && of_other.exists(),
            "{said}"
        );
        assert_eq!([first.exists(), second.exists()], [stays; 2]);
        assert!(of_live.join(".zmove-1-own/sub/f").exists());
    }
    is_over.store(true, Ordering::Relaxed);
    beats.join().unwrap();
}

#[test]
fn a_key_that_may_not_write_there_is_refused() {
    let site = Site::reading(&[], &[]);
    let source = site.source();
    let planted = source.join(".zmove-0123456789ab-0");
    fs::write(&planted, "part").unwrap();
    for options in [&["-n"][..], &[]] {
        let there = site.address(source.to_str().unwrap());
        clean_at(&site, options, there)
            .expect(3)
            .says(&["this key may not write here"]);
    }
    let site = Site::daemon();
    for options in [&["-n"][..], &[]] {
        let there = site.address(site.source().to_str().unwrap());
        clean_at(&site, options, there)
            .expect(3)
            .says(&["none of the roots that this key may write to"]);
    }
    assert!(planted.exists());
}

#[test]
fn no_link_at_a_hidden_name_or_elsewhere_is_followed() {
    let site = left_here();
    let outside = site.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    let before = snapshot(&outside);
    let left = site.target().join(hidden_below(&site.target()).remove(0));
    let remove = |path: &Path| {
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    };
    // A symbolic link to a directory with leftovers is not followed.
    fs::create_dir(site.path("other")).unwrap();
    symlink(site.target().join(DEEP), site.path("other/link")).unwrap();
    let said = clean_at(&site, &[], site.path("other").into())
        .done()
        .stdout;
    assert_eq!(said, "nothing to remove\n");
    assert!(left.exists());
    // A link that replaces a leftover is removed, and so is a link inside a leftover.
    remove(&left);
    symlink(&outside, &left).unwrap();
    clean(&site, &[]).done();
    assert!(left.symlink_metadata().is_err(), "the link itself has gone");
    fs::create_dir(&left).unwrap();
    symlink(&outside, left.join("link")).unwrap();
    clean(&site, &[]).done();
    assert!(left.symlink_metadata().is_err());
    // A link with the name of a part or a job was not created by zmove.
    let planted = [
        ".zmove-0123456789ab-0",
        ".zmove-job-07070707070707070707070707070707",
    ]
    .map(|name| site.target().join(name));
    planted
        .iter()
        .for_each(|path| symlink(&outside, path).unwrap());
    assert_eq!(clean(&site, &[]).done().stdout, "nothing to remove\n");
    assert!(planted.iter().all(|path| path.symlink_metadata().is_ok()));
    assert_eq!(snapshot(&outside), before);
}

#[test]
fn a_leftover_that_cannot_be_removed_is_named() {
    if !is_root() {
        return skip("cannot give a directory to another user: this needs root");
    }
    let Some(site) = Site::unprivileged() else {
        return;
    };
    leave_here(&site);
    let deep = site.target().join(DEEP);
    let left = hidden_below(&site.target());
    let left = left.iter().filter(|path| path.starts_with(DEEP));
    let left: Vec<_> = left.map(|path| path.to_str().unwrap()).collect();
    fs::create_dir(deep.join("closed")).unwrap();
    fs::set_permissions(deep.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    lchown(&deep, Some(0), Some(0)).unwrap();
    set_mode(&deep, 0o755);
    let mut outcome = clean(&site, &[]).expect(23);
    for path in &left {
        outcome = outcome.says(&[&format!("receiver: remove '{path}': Permission denied")]);
    }
    let outcome = outcome.says(&["receiver: open directory 'a/b/c/closed': Permission denied"]);
    let failed = left.len() + 1;
    assert!(
        outcome.stdout.contains(&format!("; {failed} failed")),
        "{}",
        outcome.stdout
    );
    let found = events(&clean(&site, &["--json"]), 23);
    let named = found
        .iter()
        .filter(|event| event["event"] == "failed" && event["errno"] == "EACCES");
    assert_eq!(named.count(), failed, "{found:?}");
    for path in left {
        assert_eq!(
            fs::symlink_metadata(site.target().join(path))
                .unwrap()
                .uid(),
            NOBODY
        );
    }
}

#[test]
fn a_target_that_is_no_directory_of_one_receiver_is_an_error() {
    let site = Site::local();
    fs::write(site.path("file"), "x").unwrap();
    for (target, code, part) in [
        ("missing", 3, "clean 'missing': no such directory"),
        ("file", 3, "'file' is a file and not a directory"),
        ("", 1, "a path is empty"),
        ("one,two:/data", 1, "name only one receiver to clean"),
        ("alice@host", 1, "'alice@host' is a host without a path"),
    ] {
        clean_at(&site, &[], target.into())
            .expect(code)
            .says(&[part]);
    }
    assert!(!site.path("missing").exists());
    let said = clean_at(&site, &["--json"], "missing".into());
    assert_eq!(events(&said, 3).len(), 1);
}
