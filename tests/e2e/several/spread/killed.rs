//! Killed pushes to several receivers. The next session at the target, above it or below it waits until their job is
//! known to be dead, and removes its leftovers.

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

/// Pushes into a directory of this host from another home.
fn push_here(spread: &Spread, source: &str, target: &Path) -> Zmove {
    let mut zmove = Runner::default().zmove(&spread.site.path("another"));
    zmove
        .0
        .arg("push")
        .arg(spread.site.path(source).join(""))
        .arg(target);
    zmove
}

#[test]
fn the_job_of_a_killed_push_is_removed_by_the_next_to_several_receivers() {
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    // A push without changes does not wait.
    let target = format!("{}:t", spread.daemons[0].address).into();
    let looked = spread.push_to(target, &["--dry-run"], "source").outcome();
    looked.expect(0).lines(0);
    spread
        .push(&[], "source")
        .outcome()
        .expect(0)
        .says(&[WAITS]);
    spread.assert_done();
}

/// The session that begins the next job takes over the part, with the groups that the receivers have flushed.
#[test]
fn the_same_command_sends_the_rest_of_a_large_file_of_a_killed_push() {
    let spread = Spread::new(2);
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(spread.source().join("huge"), 80 << 20);
    set_old(spread.source());
    let mut child = spread.push(&["--limit", "10MB"], "source").start();
    let parts = job_in(&spread.wait_for_job()).unwrap();
    crate::commands::jobs::wait_for("half of the file", || {
        let entries = std::fs::read_dir(&parts).into_iter().flatten().flatten();
        let parts = entries.filter_map(|entry| entry.metadata().ok());
        parts.map(|part| part.blocks() * 512).sum::<u64>() > 40 << 20
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let outcome = spread.push(&["--json"], "source").outcome().expect(0);
    let summary = outcome.summary();
    let [moved, resumed] = ["bytes", "bytes_resumed"].map(|key| summary[key].as_u64().unwrap());
    assert!(resumed > 0 && moved + resumed == 80 << 20, "{summary}");
    spread.assert_done();
}

#[test]
fn the_job_of_a_killed_push_is_removed_by_a_local_push_into_a_directory_below() {
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    let below = spread.target_directory().join("new/below");
    let pushed = push_here(&spread, "source", &below).outcome().expect(0);
    pushed.says(&[WAITS]);
    assert_same(&spread.source(), &below);
    assert_eq!(job_in(&spread.target_directory()), None);
}

/// The receiver finds the job when it enters the job's parent directory.
#[test]
fn the_job_of_a_killed_push_is_removed_by_a_push_to_a_directory_above() {
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    paint(spread.site.path("above").join("t/g"), 7);
    let target = format!("{}:", spread.daemons[0].address);
    let pushed = spread.push_to(target.into(), &[], "above").outcome();
    pushed.expect(0).says(&[WAITS]);
    assert!(spread.target_directory().join("g").exists());
    assert_eq!(job_in(&spread.target_directory()), None);
}

/// This also holds if all files are already at the target.
#[test]
fn nothing_is_compared_before_the_job_of_a_killed_push_is_removed() {
    let spread = Spread::new(2);
    paint(spread.site.path("above").join("t/g"), 7);
    let target = || format!("{}:", spread.daemons[0].address).into();
    spread.push_to(target(), &[], "above").outcome().done();
    spread.kill_a_slow_push("t");
    let pushed = spread.push_to(target(), &[], "above").outcome();
    pushed.expect(0).says(&[WAITS]);
    assert_eq!(job_in(&spread.target_directory()), None);
}

#[test]
fn a_push_completes_beside_a_running_job() {
    let spread = Spread::new(2);
    paint(spread.source().join("f"), 80 << 20);
    let mut alive = spread.push(&["--limit", "1MB"], "source").start();
    let job = spread.wait_for_job();
    paint(spread.site.path("small").join("g"), 7);
    let target = format!("{}:t", spread.daemons[0].address);
    spread
        .push_to(target.into(), &[], "small")
        .outcome()
        .expect(0)
        .says(&[WAITS]);
    assert!(alive.try_wait().unwrap().is_none() && job.exists());
    assert!(spread.target_directory().join("g").exists());
    alive.kill().unwrap();
    alive.wait().unwrap();
}

/// A user with permission to rename entries in a target must not be able to make the receiver remove its user's data.
#[test]
fn a_directory_that_was_renamed_to_the_name_of_a_job_stays() {
    let site = Site::local();
    paint(site.source().join("g"), 7);
    let victims = [
        ".zmove-job-00112233445566778899aabbccddeeff",
        ".zmove-job-ff112233445566778899aabbccddeeff",
    ]
    .map(|name| site.target().join(name));
    for (victim, mode) in victims.iter().zip([0o755, 0o700]) {
        paint(victim.join("parts/data"), 10);
        paint(victim.join("journal-1-a"), 10);
        set_mode(victim, mode);
    }
    let pushed = site.push(&[], site.contents(), "");
    pushed.expect(0).lines(0);
    for victim in victims {
        assert!(victim.join("parts/data").exists() && victim.join("journal-1-a").exists());
    }
    assert!(site.target().join("g").exists());
}

/// A user with permission to create names in a target must not be able to block all pushes to it.
#[test]
fn an_entry_that_only_has_the_name_of_a_job_delays_no_push() {
    let site = Site::local();
    paint(site.source().join("d/g"), 7);
    std::fs::create_dir(site.target().join("d")).unwrap();
    for (number, place) in [".", "d", ".."].into_iter().enumerate() {
        let name = |kind: u8| format!(".zmove-job-{number:031x}{kind}");
        let at = |kind| site.target().join(place).join(name(kind));
        paint(at(1), 10);
        std::os::unix::fs::symlink("nowhere", at(2)).unwrap();
        std::os::unix::fs::symlink("/", at(3)).unwrap();
        mknodat(CWD, at(4), FileType::Fifo, Mode::RWXU, 0).unwrap();
    }
    let pushed = site.push(&[], site.contents(), "");
    pushed.expect(0).lines(0);
    assert!(site.target().join("d/g").exists());
}

#[test]
fn a_job_that_belongs_to_another_user_is_waited_for_and_stays() {
    if !is_root() {
        return skip("to give a directory to another user needs root");
    }
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    let job = spread.wait_for_job();
    std::os::unix::fs::chown(&job, Some(4711), None).unwrap();
    spread
        .push(&[], "source")
        .outcome()
        .expect(0)
        .says(&[WAITS]);
    assert!(job.exists() && spread.target_directory().join("f").exists());
}

#[test]
fn a_push_that_is_interrupted_ends_its_job() {
    let spread = Spread::new(2);
    paint(spread.source().join("f"), 9 << 20);
    set_old(spread.source());
    let child = spread.push(&["--limit", "1MB"], "source").start();
    spread.wait_for_job();
    spread.daemons[1].wait_for_log("begun by sender");
    crate::connections::breakage::interrupt(child).expect(20);
    assert_eq!(job_in(&spread.target_directory()), None);
    spread.push(&[], "source").outcome().done();
    spread.assert_done();
}

/// Both receivers of a push are stopped, and its sender is killed. They resume after another receiver has stored other
/// contents.
#[test]
fn receivers_of_a_killed_push_that_wake_up_store_nothing() {
    const FILES: usize = 4000;
    let spread = Spread::new(3);
    let fill = |contents: &[u8]| {
        std::fs::create_dir_all(spread.source().join("d")).unwrap();
        for number in 0..FILES {
            std::fs::write(spread.source().join(format!("d/{number}")), contents).unwrap();
        }
    };
    fill(b"old");
    let [first, second, third] = [0, 1, 2].map(|number: usize| spread.daemons[number].address);
    let target = format!("{first},{second}:t").into();
    let mut child = spread
        .push_to(target, &["--limit", "100kB"], "source")
        .start();
    spread.daemons[1].wait_for_log("begun by sender");
    spread.wait_for_job();
    for stopped in &spread.daemons[..2] {
        stopped.signal(Signal::STOP);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    fill(b"new");
    spread
        .push_to(format!("{third}:t").into(), &[], "source")
        .outcome()
        .expect(0)
        .says(&[WAITS]);
    for woken in &spread.daemons[..2] {
        woken.signal(Signal::CONT);
        woken.wait_for_log("broken off");
    }
    for number in 0..FILES {
        let path = spread.target_directory().join(format!("d/{number}"));
        assert_eq!(std::fs::read(&path).unwrap(), b"new", "{}", path.display());
    }
    assert_eq!(job_in(&spread.target_directory()), None);
}
