//! Jobs of pushes that were killed: the next push ends them, and no receiver of them goes on later.

use super::*;
use crate::command::Outcome;
use crate::proxy::Proxy;

/// Expects that a push was done without a word, but that it looked for the job of another first: a busy host may tell
/// that, since it takes seconds.
#[track_caller]
fn done_at_last(outcome: Outcome) {
    let outcome = outcome.expect(0);
    let told = outcome.stderr.replace(
        "zmove: first the job of a push that was killed is looked for, and ended\n",
        "",
    );
    assert_eq!(told, "");
}

/// The push cannot end its job itself, and what a receiver still had of it would be written into that of the next.
#[test]
fn the_job_of_a_push_that_was_killed_is_ended_by_the_next() {
    let spread = Spread::new(2);
    spread.paint();
    spread.kill_a_push();
    assert_eq!(spread.noted(), 1);
    spread.push(&[], "source").outcome().done();
    assert_eq!(spread.noted(), 0);
    spread.remove_marks();
    spread.assert_done();
}

/// What a receiver that was stopped still has of it would be written over what the next push has written.
#[test]
fn the_job_of_a_push_that_was_killed_is_ended_by_a_push_to_one_of_its_receivers() {
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    let to_one = |options: &[&str]| {
        let target = format!("{}:t", spread.daemons[1].address);
        spread
            .push_to(target.into(), options, "source")
            .outcome()
            .done();
    };
    to_one(&["--dry-run"]);
    let mut verify = Runner::default().zmove(&spread.home());
    verify
        .0
        .arg("verify")
        .arg(spread.site.path("source").join(""))
        .arg(format!("{}:t", spread.daemons[1].address));
    verify.outcome().expect(6);
    assert_eq!(spread.noted(), 1, "nothing has been changed");
    to_one(&["--inplace", "--durability", "none"]);
    assert_eq!(spread.noted(), 0);
    spread.remove_marks();
    spread.assert_done();
}

/// The note of a killed push does not make a directory of the place that a file is to have.
#[test]
fn a_push_of_one_file_to_where_a_killed_push_had_its_target_goes_there() {
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    let file = spread.site.path("file");
    let push = |number: u64, to: &str| {
        paint(file.clone(), number);
        let mut zmove = Runner::default().zmove(&spread.home());
        zmove
            .0
            .arg("push")
            .arg(&file)
            .arg(format!("{}:t", spread.daemons[1].address));
        zmove.outcome().done();
        assert_eq!(spread.shared().join(to).metadata().unwrap().len(), number);
    };
    spread.remove_target();
    (1..3).for_each(|number| push(number, "t"));
    assert_eq!(
        spread.noted(),
        1,
        "who makes the directory again may find it"
    );
    std::fs::remove_file(spread.target_directory()).unwrap();
    std::fs::create_dir(spread.target_directory()).unwrap();
    push(3, "t/file");
}

/// The one that is asked may have lost the storage, and another may have the job.
#[test]
fn the_job_of_a_push_that_was_killed_is_not_forgotten_on_the_word_of_some_of_its_receivers() {
    let Some(spread) = Spread::with_mount_point() else {
        return;
    };
    spread.mount();
    spread.kill_a_slow_push("t");
    spread.unmount();
    let to_one = |number: usize| {
        let target = format!("{}:t", spread.daemons[number].address);
        spread
            .push_to(target.into(), &[], "source")
            .outcome()
            .done();
    };
    to_one(1);
    assert_eq!(spread.noted(), 1);
    to_one(0);
    assert_eq!(spread.noted(), 0);
    spread.remove_marks();
    spread.assert_done();
}

/// The next push asks first a receiver that does not have the job's directory, and then one that has.
#[test]
fn the_job_of_a_push_that_was_killed_is_ended_where_it_is() {
    let mut spread = Spread::with_one_elsewhere();
    spread.kill_a_slow_push("t");
    spread.daemons[0].kill();
    let target = |spread: &Spread, [first, second]: [usize; 2]| {
        let [first, second] = [first, second].map(|number| spread.daemons[number].address);
        format!("{first},{second}:t").into()
    };
    spread
        .push_to(target(&spread, [1, 0]), &[], "source")
        .outcome()
        .expect(0);
    assert_eq!(spread.noted(), 1, "the one that is away may have it");
    assert_eq!(crate::tree::names(&spread.site.path("elsewhere/t")), ["f"]);
    spread.start("shared");
    spread
        .push_to(target(&spread, [1, 2]), &["--timeout", "1s"], "source")
        .outcome()
        .expect(3);
    assert_eq!(spread.noted(), 1, "its own");
    spread.remove_marks();
}

#[test]
fn the_job_of_a_push_that_was_killed_is_ended_by_the_next_whose_target_is_written_otherwise() {
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    let push_to = |path: &str| {
        let path = spread.shared().canonicalize().unwrap().join(path);
        spread
            .push_to(spread.target(path.to_str().unwrap()), &[], "source")
            .outcome()
            .done();
    };
    push_to("t/");
    assert_eq!(spread.noted(), 0);
    spread.remove_marks();
    spread.assert_done();
}

#[test]
fn the_job_of_a_push_that_was_killed_is_ended_by_the_next_that_writes_to_some_of_its_directories() {
    for path in ["", "t/d"] {
        let spread = Spread::new(2);
        spread.kill_a_slow_push("t");
        spread
            .push_to(spread.target(path), &[], "source")
            .outcome()
            .done();
        assert_eq!(spread.noted(), 0, "{path}");
    }
}

/// Nobody is to have a directory again that he has removed, nor to wait each time for a job that is nowhere.
#[test]
fn the_target_of_a_push_that_was_killed_is_not_made_again_by_one_that_goes_elsewhere() {
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    spread.remove_target();
    spread
        .push_to(spread.target("u"), &[], "source")
        .outcome()
        .done();
    assert_eq!(spread.noted(), 1, "it goes nowhere near");
    let push_above = || done_at_last(spread.push_to(spread.target(""), &[], "source").outcome());
    push_above();
    assert_eq!(spread.noted(), 1, "its opening may be on its way");
    let notes = std::fs::read_dir(spread.home().join("shared-jobs")).unwrap();
    notes.for_each(|note| set_old(note.unwrap().path()));
    push_above();
    assert!(!spread.target_directory().exists() && spread.noted() == 0);
}

#[test]
fn the_target_of_a_push_that_was_killed_may_be_no_directory_any_more() {
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    spread.remove_target();
    paint(spread.target_directory(), 7);
    let note = std::fs::read_dir(spread.home().join("shared-jobs"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let what = "what a push that was killed has left at 't' cannot be ended";
    for (path, code) in [("", 0), ("t", 3)] {
        let outcome = spread
            .push_to(spread.target(path), &[], "source")
            .outcome()
            .expect(code);
        outcome.says(&[what, &format!("remove '{}'", note.display())]);
        assert!(spread.shared().join("f").exists() && spread.noted() == 1);
    }
}

/// An opening of its head may still be on its way.
#[test]
fn the_job_of_a_push_that_has_not_begun_does_not_begin_after_the_next() {
    let spread = Spread::new(2);
    paint(spread.source().join("f"), 7);
    // the keys are known from here on
    spread.push(&[], "source").outcome().done();
    spread
        .daemons
        .iter()
        .for_each(|daemon| daemon.signal(Signal::STOP));
    let mut child = spread.push(&[], "source").start();
    crate::jobs::wait_for("note of the job", || spread.noted() > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    spread
        .daemons
        .iter()
        .for_each(|daemon| daemon.signal(Signal::CONT));
    done_at_last(spread.push(&[], "source").outcome());
    assert_eq!(spread.noted(), 0);
    spread.remove_marks();
}

#[test]
fn a_push_that_ends_the_job_of_a_killed_one_is_interrupted_at_once() {
    let spread = Spread::new(2);
    spread.paint();
    let relays: Vec<_> = spread
        .daemons
        .iter()
        .map(|daemon| Proxy::start(daemon.address, u64::MAX))
        .collect();
    let push = || spread.push_to(spread.target_by(&relays), &[], "source");
    let mut killed = push().start();
    spread.daemons[1].wait_for_log("begun by sender");
    killed.kill().unwrap();
    killed.wait().unwrap();
    spread
        .daemons
        .iter()
        .for_each(|daemon| daemon.signal(Signal::STOP));
    let connections = || relays.iter().map(Proxy::connections).sum::<usize>();
    let before = connections();
    let child = push().start();
    crate::jobs::wait_for("connection of the next push", || connections() > before);
    crate::breakage::interrupt(child).expect(20);
    assert_eq!(spread.noted(), 1, "the job of the killed one has not ended");
    spread
        .daemons
        .iter()
        .for_each(|daemon| daemon.signal(Signal::CONT));
}

/// A refusal for the moment says nothing of the job: nobody would end it later, were its note forgotten by that.
#[test]
fn the_job_of_a_push_that_was_killed_is_ended_also_where_receivers_have_refused_meanwhile() {
    let spread = Spread::new(2);
    spread.paint();
    spread.kill_a_push();
    let lists = [0, 1].map(|number| {
        spread
            .site
            .path(&format!("receiver{number}/authorized_keys"))
    });
    lists
        .iter()
        .for_each(|list| std::fs::rename(list, list.with_extension("away")).unwrap());
    lists
        .iter()
        .for_each(|list| std::fs::create_dir(list).unwrap());
    let [first, second] = [0, 1].map(|number: usize| spread.daemons[number].address.to_string());
    let refused = spread.push(&[], "source").outcome().expect(10).lines(2);
    let refused = [first, second].iter().fold(refused, |refused, address| {
        refused.says(&[
            "cannot read its authorized_keys",
            &format!("see its log (at {address})"),
        ])
    });
    refused.says(&["what a push that was killed has left at 't' cannot be ended: receiver: "]);
    assert_eq!(spread.noted(), 1, "the job has not ended");
    lists
        .iter()
        .for_each(|list| std::fs::remove_dir(list).unwrap());
    lists
        .iter()
        .for_each(|list| std::fs::write(list, "").unwrap());
    let refused = spread.push(&[], "source").outcome().expect(5);
    refused.says(&[
        "what a push that was killed has left at 't' cannot be ended (",
        "remove '",
    ]);
    assert_eq!(spread.noted(), 1, "the job has not ended");
    lists
        .iter()
        .for_each(|list| std::fs::rename(list.with_extension("away"), list).unwrap());
    spread.push(&[], "source").outcome().done();
    assert_eq!(spread.noted(), 0);
    spread.remove_marks();
    spread.assert_done();
}

/// Receivers have become another user's since, say.
#[test]
fn the_job_of_a_push_that_was_killed_and_is_of_another_user_is_told_as_such() {
    if !is_root() {
        return skip("to give a directory to another user needs root");
    }
    let spread = Spread::new(2);
    spread.kill_a_slow_push("t");
    let job = spread.wait_for_job();
    std::os::unix::fs::chown(&job, Some(4711), None).unwrap();
    let name = job.file_name().unwrap().to_str().unwrap();
    let why =
        format!("receiver: '{name}' at the target belongs to another user than this receiver's: ");
    let outcome = spread.push(&[], "source").outcome().expect(3);
    assert_eq!(
        outcome.stderr.matches(&why).count(),
        2,
        "{}",
        outcome.stderr
    );
    // what can be ended is ended, and not looked for each time
    let mut child = spread
        .push_to(spread.target("t/sub"), &["--limit", "1MB"], "source")
        .start();
    crate::jobs::wait_for("another job", || {
        job_in(&spread.target_directory().join("sub")).is_some()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(spread.noted(), 2);
    spread.push(&[], "source").outcome().expect(3);
    assert_eq!(spread.noted(), 1);
    std::fs::remove_dir_all(spread.target_directory().join("sub")).unwrap();
    std::os::unix::fs::chown(&job, Some(0), None).unwrap();
    spread.push(&[], "source").outcome().done();
}

/// A receiver that has no room now has it soon, and the job is to be ended before the next one begins.
#[test]
fn the_job_of_a_push_that_was_killed_is_ended_when_its_receivers_have_room() {
    let mut spread = Spread::new(0);
    (0..2).for_each(|_| spread.start_with("shared", "[limits]\ntransfers_per_identity = 2\n"));
    spread.kill_a_slow_push("t");
    paint(spread.site.path("slow").join("f"), 4 << 20);
    let slow: Vec<_> = (0..4)
        .map(|number| {
            let target = format!("{}:slow{number}", spread.daemons[number % 2].address);
            spread
                .push_to(target.into(), &["--limit", "1MB"], "slow")
                .start()
        })
        .collect();
    let are_begun = || (0..4).all(|number| spread.shared().join(format!("slow{number}")).exists());
    crate::jobs::wait_for("the beginning of four pushes", are_begun);
    spread
        .push(&["--timeout", "60s"], "source")
        .outcome()
        .expect(0);
    assert_eq!(spread.noted(), 0);
    spread.remove_marks();
    spread.assert_done();
    slow.into_iter()
        .for_each(|child| drop(crate::command::finish(child).expect(0)));
}

/// Notes a job at the receivers' `t` that has not begun; returns its id.
fn note_a_job(spread: &Spread) -> String {
    let hosts = spread
        .daemons
        .iter()
        .map(|daemon| (daemon.address.ip(), daemon.address.port()));
    let (job, hosts) = ([7_u8; 16], hosts.collect::<Vec<_>>());
    let note = serde_json::json!({
        "version": 1, "job": job, "epoch": 1, "hosts": hosts, "path": b"t", "cluster": null,
    });
    let notes = spread.home().join("shared-jobs");
    std::fs::create_dir_all(&notes).unwrap();
    let id = "07".repeat(16);
    std::fs::write(notes.join(&id), note.to_string()).unwrap();
    id
}

/// Begun at both of them a job would be two where one has another directory.
#[test]
fn a_job_that_is_begun_to_be_ended_is_begun_at_one_receiver() {
    let spread = Spread::with_one_elsewhere();
    paint(spread.source().join("f"), 7);
    let id = note_a_job(&spread);
    spread
        .push(&["--timeout", "1s"], "source")
        .outcome()
        .expect(3);
    assert!(!spread.home().join("shared-jobs").join(&id).exists());
    let has_mark = |place: &str| {
        spread
            .site
            .path(place)
            .join(format!("t/.zmove-job-{id}"))
            .exists()
    };
    assert_eq!([has_mark("shared"), has_mark("elsewhere")], [true, false]);
}

/// A push opens such a target up, and gives it the mode of its source at the end.
#[test]
fn a_directory_that_is_closed_to_its_owner_is_opened_up_only_by_a_push_to_it() {
    for mode in [0o300, 0o600] {
        let Some(spread) = Spread::unprivileged(2) else {
            return;
        };
        paint(spread.source().join("f"), 7);
        set_old(spread.source());
        std::fs::create_dir(spread.target_directory()).unwrap();
        spread.site.give_away();
        spread.take_home();
        set_mode(spread.target_directory(), mode);
        note_a_job(&spread);
        spread
            .push_to(spread.target(""), &[], "source")
            .outcome()
            .expect(0);
        assert_eq!(
            (
                spread.target_directory().metadata().unwrap().mode() & 0o777,
                spread.noted()
            ),
            (mode, 1)
        );
        spread.push(&[], "source").outcome().expect(0);
        assert_eq!(spread.noted(), 0);
        spread.remove_marks();
        spread.assert_done();
    }
}

/// A receiver that was stopped in the midst of the job would go on later.
#[test]
fn a_job_of_a_killed_push_in_a_directory_that_is_closed_to_its_owner_is_ended_or_in_the_way() {
    let Some(spread) = Spread::unprivileged(2) else {
        return;
    };
    spread.kill_a_slow_push("t");
    spread.site.give_away();
    spread.take_home();
    set_mode(spread.target_directory(), 0o300);
    let to_one = format!("{}:t", spread.daemons[0].address);
    let refused = spread
        .push_to(to_one.into(), &[], "source")
        .outcome()
        .expect(3);
    refused.says(&[
        "what a push that was killed has left at 't' cannot be ended (",
        "Permission denied",
    ]);
    assert_eq!(spread.noted(), 1);
    spread.push(&[], "source").outcome().expect(0);
    assert_eq!(spread.noted(), 0);
    spread.remove_marks();
    spread.assert_done();
}
