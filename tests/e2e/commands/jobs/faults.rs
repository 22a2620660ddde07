//! Faults that a runner must survive: unexpected entries in its directory, another runner that is ending, orphaned
//! child processes, a target that is not mounted, and a host with a changed key.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock, inotify};

use super::*;
use crate::support::namespace::Namespace;
use crate::support::tree::names;

#[test]
fn an_entry_at_the_name_of_the_fifo_does_not_stop_jobs() {
    let makers: [fn(&Path); 4] = [
        |path| std::fs::write(path, "").unwrap(),
        |path| std::fs::create_dir(path).unwrap(),
        |path| {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("kept"), "").unwrap();
        },
        |path| std::os::unix::fs::symlink("/dev/null", path).unwrap(),
    ];
    for make in makers {
        let yard = Yard::local();
        paint(yard.site.source().join("f"), 1000);
        yard.run(&["jobs"]).done();
        make(&yard.place().join("wake"));
        let id = yard.submit(&[], "");
        yard.assert_done(&id, 1);
    }
}

/// The ending runner has looked for jobs for the last time and still holds its lock when the next runner starts.
#[test]
fn a_job_that_is_submitted_while_a_runner_ends_is_done() {
    let yard = Yard::local();
    paint(yard.site.source().join("f"), 1000);
    yard.run(&["jobs"]).done();
    let lock = yard.place().join("runner.lock");
    let leaves = File::create(&lock).unwrap();
    flock(&leaves, FlockOperation::LockExclusive).unwrap();
    let tries = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&tries, &lock, inotify::WatchFlags::OPEN).unwrap();
    let submit = yard.site.zmove(&["submit", "source/", "target"]);
    submit.outcome().done();
    // A runner that gives up opens the lock file only once.
    wait_for_tries(&tries, 5);
    drop(leaves);
    // No further command follows that would start a runner.
    wait_for("the file", || yard.site.target().join("f").is_file());
}

/// No command can find such a runner, so no user could end it.
#[test]
fn a_runner_whose_directory_is_moved_away_ends() {
    let yard = Yard::daemon();
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    let runner = yard.runner().unwrap();
    let processes = yard.processes();
    std::fs::rename(yard.place(), yard.site.path("away")).unwrap();
    wait_for("the runner's end", || !is_runner(runner));
    processes.into_iter().for_each(kill);
}

/// Waits until the watched file has been opened `count` times.
#[track_caller]
fn wait_for_tries(watch: &OwnedFd, count: usize) {
    let patience = Timespec::try_from(PATIENCE).unwrap();
    let mut room = [MaybeUninit::uninit(); 512];
    let mut events = inotify::Reader::new(watch, &mut room);
    for seen in 0..count {
        let mut ready = [PollFd::new(watch, PollFlags::IN)];
        let is_buffered = !events.is_buffer_empty();
        assert!(
            is_buffered || poll(&mut ready, Some(&patience)).unwrap() > 0,
            "{seen} of {count} tries"
        );
        events.next().unwrap();
    }
}

fn zombies_of(parent: u32) -> usize {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let is_zombie = |stat: &String| {
        let mut words = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        words.next() == Some("Z") && words.next().and_then(|pid| pid.parse().ok()) == Some(parent)
    };
    stats.filter(is_zombie).count()
}

#[test]
fn job_wait_reaps_the_runners_that_it_started() {
    let yard = Yard::local();
    let id = yard.submit(&["--at", "2100-01-01 00:00"], "");
    wait_for("a runner", || yard.runner().is_some());
    yard.kill_runner();
    let waits = Held(yard.site.zmove(&["job", &id, "wait"]).start());
    for _ in 0..2 {
        wait_for("another runner", || yard.runner().is_some());
        yard.kill_runner();
    }
    wait_for("a third runner without zombies", || {
        yard.runner().is_some() && zombies_of(waits.0.id()) == 0
    });
}

/// The first process of a container inherits the orphans of a job's ssh.
#[test]
fn a_runner_reaps_the_orphans_of_its_jobs() {
    let yard = Yard::local();
    if !crate::support::harness::is_root() || !crate::support::harness::has_program("unshare") {
        return crate::support::harness::skip("a container's first process needs root and unshare");
    }
    let runner = yard.site.zmove(&["runner"]).0;
    let mut contained = Command::new("unshare");
    contained.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    contained.arg(runner.get_program()).args(runner.get_args());
    for (name, value) in runner.get_envs() {
        contained.env(name, value.unwrap_or_default());
    }
    contained
        .current_dir(yard.site.path(""))
        .stdout(Stdio::null());
    let contained = Held(contained.spawn().unwrap());
    wait_for("the runner", || yard.place().join("wake").exists());
    let ssh = "sh -c 'sleep 1 </dev/null >/dev/null 2>&1 & exit 1'";
    let submit = yard.site.zmove(&[
        "submit",
        "--ssh-command",
        ssh,
        "source/",
        "alice@127.0.0.1:x",
    ]);
    let id = number(&submit.outcome().done());
    yard.wait_until(&id, |job| {
        job["attempts"]
            .as_u64()
            .is_some_and(|attempts| attempts >= 3)
    });
    let children = format!("/proc/{0}/task/{0}/children", contained.0.id());
    let runner: u32 = std::fs::read_to_string(children)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    wait_for("no zombies", || zombies_of(runner) == 0);
    yard.run(&["job", &id, "cancel"]).done();
}

#[test]
fn a_target_that_is_not_mounted_any_more_is_not_written_to() {
    let Some(site) = Site::within(|target| Namespace::with_small_disk(target, 8 << 20)) else {
        return;
    };
    let yard = Yard { site };
    paint(yard.site.source().join("f"), 1000);
    let mut submit = yard.site.zmove(&["submit", "--at", "2100-01-01 00:00"]);
    submit
        .0
        .arg(yard.site.source().join(""))
        .arg(yard.site.target().join("new"));
    let id = number(&submit.outcome().done());
    yard.run(&["job", &id, "cancel"]).done();
    let (namespace, target) = (yard.site.namespace(), yard.site.target());
    assert!(namespace.run(&["umount".as_ref(), target.as_os_str()]));
    let id = number(&yard.run(&["job", &id, "rerun"]).done());
    let job = yard.wait_until(&id, |job| job["state"] == "waiting");
    let why = job["message"].as_str().unwrap();
    assert!(
        why.contains("(tmpfs), where the target was when the job was submitted, is not mounted"),
        "{why}"
    );
    assert_eq!(names(&namespace.outside(&target)), [""; 0]);
    let mount = ["mount", "-t", "tmpfs", "none"].map(std::ffi::OsStr::new);
    assert!(namespace.run(&[&mount[..], &[target.as_os_str()]].concat()));
    yard.wait(&id).expect(0);
    assert!(namespace.outside(&target).join("new/f").is_file());
}

/// The source and a directory in it are mount points.
#[test]
fn a_source_that_is_not_mounted_any_more_empties_no_mirror() {
    let Some(site) = Site::within(|target| Namespace::with_small_disk(target, 8 << 20)) else {
        return;
    };
    let yard = Yard { site };
    let namespace = yard.site.namespace();
    let (source, mirror) = (yard.site.path("target"), yard.site.path("mirror"));
    let below = source.join("below");
    let mount = |point: &Path| {
        std::fs::create_dir_all(namespace.outside(point)).unwrap();
        let mount = ["mount", "-t", "tmpfs", "none"].map(std::ffi::OsStr::new);
        assert!(namespace.run(&[&mount[..], &[point.as_os_str()]].concat()));
    };
    let fill = || {
        mount(&below);
        paint(namespace.outside(&source).join("f"), 1000);
        paint(namespace.outside(&below).join("g"), 1000);
    };
    let assert_kept = || {
        assert!(mirror.join("f").is_file() && mirror.join("below/g").is_file());
    };
    let push = |options: &[&str]| {
        let mut push = yard.site.zmove(&["push", "--delete"]);
        push.0.args(options).arg(source.join("")).arg(&mirror);
        push.outcome()
    };
    let require = ["--require-mount", source.to_str().unwrap()];
    fill();
    let mut submit = yard.site.zmove(&["submit", "--delete"]);
    submit.0.arg(source.join("")).arg(&mirror);
    let id = number(&submit.outcome().done());
    yard.wait(&id).expect(0);
    push(&require).done();
    assert_kept();
    for gone in [&below, &source] {
        assert!(namespace.run(&["umount".as_ref(), gone.as_os_str()]));
        let id = number(&yard.run(&["job", &id, "rerun"]).done());
        let job = yard.wait_until(&id, |job| job["state"] == "waiting");
        let why = job["message"].as_str().unwrap();
        let missing = format!("'{}' (tmpfs), which belonged to the source", gone.display());
        assert!(
            why.contains(&missing) && why.contains("is not mounted"),
            "{why}"
        );
        assert_kept();
        yard.run(&["job", &id, "cancel"]).done();
    }
    push(&require)
        .expect(10)
        .says(&["nothing is mounted there"]);
    push(&[])
        .expect(23)
        .says(&["is empty and its mirror is not"]);
    assert_kept();
    mount(&source);
    fill();
    let id = number(&yard.run(&["job", &id, "rerun"]).done());
    yard.wait(&id).expect(0);
    assert_kept();
}

#[test]
fn a_host_whose_key_has_changed_ends_the_job_at_once() {
    let yard = Yard::daemon();
    let id = yard.submit(&["--at", "2100-01-01 00:00"], "");
    yard.run(&["job", &id, "cancel"]).done();
    let pins = yard.site.path("client/known_hosts");
    let text = std::fs::read_to_string(&pins).unwrap();
    let (host, key) = text.split_once("SHA256:").unwrap();
    let other = if key.starts_with('A') { "B" } else { "A" };
    std::fs::write(&pins, format!("{host}SHA256:{other}{}", &key[1..])).unwrap();
    let id = number(&yard.run(&["job", &id, "rerun"]).done());
    yard.wait(&id).expect(30);
    let job = yard.job(&id);
    assert_eq!(
        (&job["attempts"], &job["exit"]),
        (&1.into(), &5.into()),
        "{job}"
    );
    let why = job["message"].as_str().unwrap();
    assert!(
        why.contains("it shows SHA256:") && why.contains("is pinned"),
        "{why}"
    );
    let shown = yard.run(&["job", &id]).done().stdout;
    let shown = shown.replace("\n         ", " ");
    assert!(shown.contains("it shows SHA256:"), "{shown}");
}

#[test]
fn the_error_of_ssh_decides_whether_a_job_is_retried() {
    let yard = Yard::local();
    let submit = |words: &str, code: i32| {
        let ssh = format!("sh -c 'echo \"{words}\" >&2; exit {code}'");
        let submit = yard.site.zmove(&[
            "submit",
            "--ssh-command",
            &ssh,
            "source/",
            "alice@127.0.0.1:x",
        ]);
        number(&submit.outcome().done())
    };
    let id = submit("Host key verification failed.", 255);
    yard.wait(&id).expect(30);
    let job = yard.job(&id);
    assert_eq!(
        (&job["attempts"], &job["exit"]),
        (&1.into(), &5.into()),
        "{job}"
    );
    assert!(
        job["message"]
            .as_str()
            .unwrap()
            .ends_with(": Host key verification failed."),
        "{job}"
    );
    // The host's shell prints the second message, after the login.
    for (words, code) in [
        ("connect to host 127.0.0.1 port 22: Connection refused", 255),
        ("fatal: unrecognized command", 128),
    ] {
        let id = submit(words, code);
        let job = yard.wait_until(&id, |job| job["state"] == "waiting");
        assert!(job["message"].as_str().unwrap().ends_with(words), "{job}");
        yard.run(&["job", &id, "cancel"]).done();
    }
}
