//! Jobs that watch their source: each new file arrives, whichever process is killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::support::command::ZMOVE;
use crate::support::harness::copy_program;
use crate::support::tree::set_old;

impl Yard {
    fn watch(&self, options: &[&str], path: &str) -> String {
        let mut submit = self.site.zmove(&["submit", "--watch", "--rest", "1s"]);
        submit
            .0
            .args(options)
            .arg("source")
            .arg(self.site.address(path));
        number(&submit.outcome().done())
    }

    fn wait_until_idle(&self, id: &str) -> Value {
        self.wait_until(id, |job| job["watch"]["idle"] == true)
    }

    fn cancel(&self, id: &str) {
        self.run(&["job", id, "cancel"]).done();
        self.wait(id).expect(31);
        assert_eq!(self.processes(), []);
    }
}

#[test]
fn a_watching_job_sends_existing_and_new_files_until_it_is_cancelled() {
    for yard in [Yard::local(), Yard::daemon()] {
        let (source, target) = (yard.site.source(), yard.site.target());
        paint(source.join("d/first"), 100_000);
        let id = yard.watch(&[], "");
        wait_for("what was there", || target.join("d/first").is_file());
        let open = File::create(source.join("open")).unwrap();
        paint(source.join("d/second"), 1000);
        wait_for("what came", || target.join("d/second").is_file());
        paint(source.join("new/deep/third"), 1000);
        (&open).write_all(b"rested").unwrap();
        wait_for("a new directory", || {
            target.join("new/deep/third").is_file()
        });
        wait_for("what has rested", || target.join("open").is_file());
        std::fs::write(source.join("open"), "written anew").unwrap();
        wait_for("the new version", || {
            std::fs::read(target.join("open")).unwrap() == b"written anew"
        });
        let job = yard.wait_until_idle(&id);
        assert_eq!(
            (&job["state"], &job["watch"]["by"]),
            (&"running".into(), &"events".into()),
            "{job}"
        );
        assert!(job["files"].as_u64().unwrap() >= 4, "{job}");
        assert_eq!(files(&target), files(&source));
        let shown = yard
            .run(&["job", &id])
            .done()
            .stdout
            .replace("\n         ", " ");
        assert!(
            shown.contains("watches: the kernel reports changes (4 directories)"),
            "{shown}"
        );
        yard.cancel(&id);
    }
}

/// The runner, the watcher and the process of a batch are killed at random times.
#[test]
fn no_file_is_missed_whatever_is_killed() {
    let yard = Yard::daemon();
    let (source, target) = (yard.site.source(), yard.site.target());
    let id = yard.watch(&[], "");
    let mut made = 0;
    for round in 0..6 {
        let mut make = || {
            paint(source.join(format!("d{round}/f{made}")), 1000 + made);
            made += 1;
            std::thread::sleep(Duration::from_millis(5));
        };
        (0..40).for_each(|_| make());
        // A batch runs only briefly, after the files have settled.
        let until = Instant::now() + PATIENCE;
        let mut again = Instant::now() + Duration::from_secs(5);
        let found = loop {
            let found = match round % 3 {
                0 => yard.processes(),
                1 => yard.runner().into_iter().collect(),
                _ => batches_of(&yard),
            };
            if !found.is_empty() {
                break found;
            }
            assert!(Instant::now() < until, "nothing to kill in round {round}");
            if Instant::now() > again {
                make();
                again = Instant::now() + Duration::from_secs(5);
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        found.into_iter().for_each(kill);
        yard.run(&["jobs"]).done();
    }
    wait_for("all files", || {
        yard.run(&["jobs"]).done();
        files(&target).len() as u64 == made
    });
    assert!(files(&source) == files(&target));
    yard.cancel(&id);
    assert_eq!(batches_of(&yard), []);
}

/// Returns the files below a directory with their contents. Directories that still change have different timestamps,
/// and killed processes may have left hidden files.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
        for entry in
            entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".zmove-"))
        {
            if entry.path().is_dir() {
                left.push(entry.path());
            } else {
                let below = entry.path().strip_prefix(directory).unwrap().to_owned();
                found.insert(below, std::fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

/// Returns the processes that move a batch of this yard.
fn batches_of(yard: &Yard) -> Vec<Pid> {
    let home = format!("ZMOVE_HOME={}", yard.site.path("client").display());
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let is_batch = |path: &Path| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        let mut words = environment.split(|&byte| byte == 0);
        words
            .clone()
            .any(|word| word.starts_with(b"ZMOVE_JOB_BATCH="))
            && words.any(|word| word == home.as_bytes())
    };
    let found = entries.filter(|entry| is_batch(&entry.path()));
    found
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// The second version has the same size and time as the first one, which is already at the target.
#[test]
fn a_file_that_is_written_again_while_its_batch_runs_arrives_in_its_last_version() {
    let yard = Yard::daemon();
    let (source, target) = (yard.site.source(), yard.site.target());
    std::fs::write(source.join("a"), "first").unwrap();
    paint(source.join("b"), 12 << 20);
    set_old(&source);
    let modified = source.join("a").metadata().unwrap().modified().unwrap();
    let id = yard.watch(&["--limit", "20Mbit"], "");
    wait_for("the first version", || target.join("a").is_file());
    assert!(!target.join("b").exists(), "the batch has ended");
    std::fs::write(source.join("a"), "again").unwrap();
    let opened = File::options().write(true).open(source.join("a"));
    opened.unwrap().set_modified(modified).unwrap();
    wait_for("the second version", || {
        std::fs::read(target.join("a")).unwrap() == b"again"
    });
    yard.cancel(&id);
}

#[test]
fn a_watching_job_can_be_paused_and_resumed() {
    let yard = Yard::daemon();
    let (source, target) = (yard.site.source(), yard.site.target());
    let id = yard.watch(&[], "");
    yard.wait_until_idle(&id);
    yard.run(&["job", &id, "pause"]).done();
    yard.wait_until(&id, |job| job["state"] == "paused");
    paint(source.join("f"), 1000);
    yard.run(&["job", &id, "resume"]).done();
    wait_for("what came meanwhile", || target.join("f").is_file());
    yard.cancel(&id);
}

#[test]
fn a_watching_job_reconnects_after_a_lost_connection() {
    let mut yard = Yard::daemon();
    let (source, target) = (yard.site.source(), yard.site.target());
    let id = yard.watch(&["--timeout", "0"], "");
    yard.wait_until_idle(&id);
    let address = yard.site.the_daemon().address;
    drop(yard.site.take_daemon());
    paint(source.join("f"), 1000);
    let job = yard.wait_until(&id, |job| job["state"] == "waiting");
    assert!(
        job["message"]
            .as_str()
            .is_some_and(|why| why.contains("refused")),
        "{job}"
    );
    yard.site.start_daemon_at(&address.to_string(), &[]);
    wait_for("the file", || target.join("f").is_file());
    yard.cancel(&id);
}

fn inode(path: impl AsRef<Path>) -> u64 {
    path.as_ref().metadata().unwrap().ino()
}

/// An upgrade replaces the program by renaming a new one over it.
#[test]
fn a_job_that_watches_and_its_runner_outlive_their_program() {
    let mut yard = Yard::local();
    let program = yard.site.path("zmove");
    copy_program(Path::new(ZMOVE), &program);
    yard.site.run_by(program.clone());
    let (source, target) = (yard.site.source(), yard.site.target());
    let id = yard.watch(&[], "");
    let arrives = |name: &str| {
        paint(source.join(name), 1000);
        wait_for(name, || target.join(name).is_file());
    };
    arrives("before");
    yard.wait_until_idle(&id);
    let watcher = yard.processes();
    let runner = yard.runner().unwrap();
    let of_runner = format!("/proc/{}/exe", runner.as_raw_nonzero());
    assert_eq!(inode(&of_runner), inode(&program));
    std::fs::remove_file(&program).unwrap();
    arrives("removed");
    let new = yard.site.path("zmove.new");
    copy_program(Path::new(ZMOVE), &new);
    std::fs::rename(&new, &program).unwrap();
    wait_for("the new program in the runner's process", || {
        inode(&of_runner) == inode(&program)
    });
    arrives("replaced");
    assert_eq!(yard.processes(), watcher, "it keeps its version");
    let [watcher] = watcher[..] else {
        panic!("{watcher:?}")
    };
    assert_ne!(
        inode(format!("/proc/{}/exe", watcher.as_raw_nonzero())),
        inode(&program)
    );
    wait_for("the lock of the runner", || yard.runner() == Some(runner));
    let job = yard.job(&id);
    assert_eq!(
        (&job["state"], &job["attempts"]),
        (&"running".into(), &1.into()),
        "{job}"
    );
    let once = yard.submit(&["--ignore-existing"], "once");
    yard.wait(&once).expect(0);
    yard.cancel(&id);
}

/// A failed file is transferred once the cause is removed, and it does not delay other files.
#[test]
fn a_file_that_cannot_be_moved_does_not_hold_up_others() {
    let yard = Yard::local();
    let (source, target) = (yard.site.source(), yard.site.target());
    std::fs::create_dir(target.join("in_the_way")).unwrap();
    paint(target.join("in_the_way/f"), 1);
    let id = yard.watch(&[], "");
    std::fs::write(source.join("in_the_way"), "x").unwrap();
    std::fs::write(source.join("other"), "x").unwrap();
    wait_for("the other", || target.join("other").is_file());
    wait_for("the failure", || {
        yard.kinds(&id).contains(&"failed".to_owned())
    });
    let shown = yard.run(&["job", &id]).done().stdout;
    assert!(
        shown.contains("failed: receiver: ") && shown.contains("in_the_way"),
        "{shown}"
    );
    std::fs::remove_dir_all(target.join("in_the_way")).unwrap();
    wait_for("the one", || target.join("in_the_way").is_file());
    yard.cancel(&id);
}

#[test]
fn the_watched_directory_may_go_and_come_back() {
    let yard = Yard::local();
    let (source, target) = (yard.site.source(), yard.site.target());
    let id = yard.watch(&[], "");
    yard.wait_until_idle(&id);
    std::fs::rename(&source, yard.site.path("elsewhere")).unwrap();
    let log = || yard.run(&["job", &id, "log"]).done().stdout;
    wait_for("word that it is gone", || {
        log().contains("source' does not exist any more")
    });
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("f"), "x").unwrap();
    wait_for("the file", || target.join("f").is_file());
    assert_eq!(yard.job(&id)["attempts"], 1);
    yard.cancel(&id);
}

/// The deadline applies to a job that makes no progress, not to an idle job.
#[test]
fn a_job_without_anything_to_do_does_not_expire() {
    let yard = Yard::local();
    let id = yard.watch(&["--deadline", "2s"], "");
    yard.wait_until_idle(&id);
    // A job that is submitted later and makes no progress expires, so this job's deadline has passed as well.
    let until_another_expires = || yard.wait(&yard.submit_to_nobody("2s")).expect(32);
    until_another_expires();
    assert_eq!(yard.job(&id)["state"], "running");
    // The new runner has not observed when the job became idle.
    yard.kill_runner();
    until_another_expires();
    let job = yard.job(&id);
    assert_eq!(
        (&job["state"], &job["attempts"]),
        (&"running".into(), &1.into()),
        "{job}"
    );
    yard.cancel(&id);
}

#[test]
fn options_that_contradict_watching_are_refused() {
    let yard = Yard::local();
    let refused = |words: &[&str], code, part: &str| {
        let words = [&["submit", "--watch"], words].concat();
        yard.run(&words).expect(code).says(&[part]);
    };
    refused(
        &["--delete", "source", "target"],
        1,
        "--watch cannot be used with --delete",
    );
    refused(
        &["source", "source", "target"],
        1,
        "--watch needs exactly one source directory",
    );
    refused(&["none", "target"], 23, "open 'none': No such file");
    refused(&["h:x", "target"], 1, "is not a directory on this host");
    yard.run(&["submit", "--rest", "1s", "source", "target"])
        .expect(1)
        .says(&["--watch"]);
    assert!(yard.runner().is_none());
}

/// Jobs that watch do not count against the limit of running jobs.
#[test]
fn a_job_is_done_beside_many_that_watch() {
    let yard = Yard::daemon();
    paint(yard.site.source().join("f"), 1000);
    let ids: Vec<_> = (0..9)
        .map(|number| yard.watch(&[], &format!("w{number}")))
        .collect();
    let id = yard.submit(&[], "once");
    yard.wait(&id).expect(0);
    for id in ids {
        yard.wait_until_idle(&id);
        yard.run(&["job", &id, "cancel"]).done();
        yard.wait(&id).expect(31);
    }
    assert_eq!(yard.processes(), []);
}

/// If the kernel's limit of watches per user is reached, the remaining directories are walked.
#[test]
fn beyond_the_kernel_s_limit_of_watches_the_tree_is_walked() {
    let yard = Yard::local();
    if !crate::support::harness::is_root() || !crate::support::harness::has_program("unshare") {
        return crate::support::harness::skip("a limit of its own needs root and unshare");
    }
    let (source, target) = (yard.site.source(), yard.site.target());
    (0..9).for_each(|number| paint(source.join(format!("d{number}/f")), 1000));
    let runner = yard.site.zmove(&["runner"]).0;
    let mut limited = std::process::Command::new("unshare");
    limited.args(["--user", "--map-root-user", "sh", "-c"]);
    limited.arg("echo 3 > /proc/sys/user/max_inotify_watches && exec \"$0\" \"$@\"");
    limited.arg(runner.get_program()).args(runner.get_args());
    for (name, value) in runner.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    limited
        .current_dir(yard.site.path(""))
        .stdout(std::process::Stdio::null());
    let _limited = Held(limited.spawn().unwrap());
    wait_for("the runner", || yard.place().join("wake").exists());
    let id = yard.watch(&[], "");
    let job = yard.wait_until(&id, |job| job["watch"]["by"] == "walks");
    assert!(
        job["watch"]["why"]
            .as_str()
            .unwrap()
            .contains("fs.inotify.max_user_watches"),
        "{job}"
    );
    (0..9).for_each(|number| paint(source.join(format!("d{number}/g")), 1000));
    wait_for("what no event has told", || {
        (0..9).all(|number| target.join(format!("d{number}/g")).is_file())
    });
    let log = yard.run(&["job", &id, "log"]).done().stdout;
    assert!(log.contains("fs.inotify.max_user_watches"), "{log}");
    yard.cancel(&id);
}
