//! What becomes of jobs is told, at least once, whoever is killed, and holds up nothing.

use std::path::PathBuf;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{Yard, wait_for};
use crate::command::Outcome;
use crate::tree::paint;

/// What a command has to do to be heard here: it adds what it tells to the file.
const ADDS: &str = "echo \"$ZMOVE_TELL_ID $ZMOVE_TELL_EVENT $ZMOVE_TELL_LABEL\" >> told";

impl Yard {
    /// A yard with a file of 1000 bytes, and with these channels, each of which is a script.
    fn telling(head: &str, channels: &[(&str, &str)]) -> Self {
        Self::local().with_channels(head, channels)
    }

    fn with_channels(self, head: &str, channels: &[(&str, &str)]) -> Self {
        let yard = self;
        paint(yard.site.source().join("f"), 1000);
        yard.write_channels(head, channels);
        yard
    }

    fn write_channels(&self, head: &str, channels: &[(&str, &str)]) {
        let mut text = format!("{head}\n");
        for (name, script) in channels {
            let script = format!("cd '{}' && {script}", self.site.path("").display());
            let command = format!("command = ['/bin/sh', '-c', '''{script}''']");
            text += &format!("[[tell]]\nname = '{name}'\nkind = 'command'\n{command}\n");
        }
        let path = self.site.path("client/tell.toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
    }

    fn file(&self) -> PathBuf {
        self.site.path("told")
    }

    fn told(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn deliveries(&self, id: &str) -> Vec<(String, String)> {
        let told = self.job(id)["told"].as_array().unwrap().clone();
        let word = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
        told.iter()
            .map(|told| (word(told, "channel"), word(told, "state")))
            .collect()
    }
}

#[track_caller]
fn prints(outcome: &Outcome, text: &str) {
    assert!(outcome.stdout.contains(text), "{}", outcome.stdout);
}

#[test]
fn the_end_of_a_job_is_told_once_and_noted() {
    let yard = Yard::telling("", &[("script", ADDS)]);
    let id = yard.submit(&["--label", "first"], "");
    yard.assert_done(&id, 1);
    wait_for("note", || {
        yard.deliveries(&id) == [("script".to_owned(), "delivered".to_owned())]
    });
    let told = yard.told();
    assert!(
        told.len() == 1 && told[0].ends_with(" done first"),
        "{told:?}"
    );
    prints(&yard.run(&["job", &id]).done(), "script: 'done' told\n");
}

/// The command kills the runner that has started it, once it has told: nobody notes that.
#[test]
fn a_runner_that_is_killed_before_the_note_has_it_told_again_with_the_same_id() {
    let kills = format!("{ADDS}; [ $(wc -l < told) -gt 1 ] || kill -9 $PPID");
    let yard = Yard::telling("", &[("script", &kills)]);
    let id = yard.submit(&[], "");
    wait_for("kill", || yard.told().len() == 1 && yard.runner().is_none());
    // whoever looks starts another one
    wait_for("note", || {
        yard.deliveries(&id) == [("script".to_owned(), "delivered".to_owned())]
    });
    let told = yard.told();
    assert!(told.len() == 2 && told[0] == told[1], "{told:?}");
}

#[test]
fn a_channel_that_fails_or_hangs_holds_up_nothing_and_is_told_of() {
    let yard = Yard::telling(
        "",
        &[
            ("fails", "exit 3"),
            ("hangs", "exec sleep 25"),
            ("script", ADDS),
        ],
    );
    let ids = ["a", "b"].map(|path| {
        let id = yard.submit(&[], path);
        yard.wait(&id).expect(0);
        wait_for("note", || {
            yard.deliveries(&id)
                .contains(&("script".to_owned(), "delivered".to_owned()))
        });
        id
    });
    wait_for("failure", || yard.job(&ids[0])["told"][0]["tries"] == 1);
    let said = yard.run(&["job", &ids[0]]).done().stdout;
    assert!(
        said.contains("fails: 'done' not told yet (1 attempt), again at 20"),
        "{said}"
    );
    assert!(
        said.contains("'/bin/sh' ended with exit status: 3"),
        "{said}"
    );
    assert!(said.contains("hangs: 'done' to be told"), "{said}");
    assert_eq!(yard.told().len(), 2);
}

#[test]
fn a_job_that_moves_nothing_is_told_while_it_runs() {
    let yard = Yard::daemon().with_channels("stalled_after_seconds = 5", &[("script", ADDS)]);
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    let [pid] = yard.processes()[..] else {
        panic!("one process")
    };
    kill_process(pid, Signal::STOP).unwrap();
    wait_for("word", || {
        yard.told().iter().any(|line| line.contains(" stalled "))
    });
    kill_process(pid, Signal::CONT).unwrap();
    yard.assert_done(&id, 1);
    wait_for("end", || {
        yard.told().iter().any(|line| line.contains(" done "))
    });
    let kinds = yard.kinds(&id);
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "stalled").count(),
        1,
        "{kinds:?}"
    );
}

/// A host that is down for long has nothing running, and is what somebody wants to hear of.
#[test]
fn a_job_that_waits_for_a_host_says_so_and_is_told() {
    let yard = Yard::local().with_channels("stalled_after_seconds = 2", &[("script", ADDS)]);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut submit = yard
        .site
        .zmove(&["submit", "--accept-new", "--timeout", "0", "source/"]);
    submit.0.arg(format!("{nobody}:x"));
    let id = super::number(&submit.outcome().done());
    wait_for("word", || {
        yard.told().iter().any(|line| line.contains(" stalled "))
    });
    yard.wait_until(&id, |job| {
        job["state"] == "waiting" && job["attempts"].as_u64() >= Some(2)
    });
    let why = format!("connect to {nobody}: refused");
    let list = yard.run(&["jobs"]).done().stdout;
    let is_line = |line: &str| {
        let told = line
            .strip_prefix("       tries again in ")
            .and_then(|line| line.split_once(": "));
        told.is_some_and(|(_, told)| told.starts_with(&why)) && line.chars().count() <= 80
    };
    assert!(list.lines().any(is_line), "{list}");
    // in full, and once
    let one = yard
        .run(&["job", &id])
        .done()
        .stdout
        .replace("\n         ", " ");
    assert!(
        one.contains("       tries again in ") && one.contains(&format!(": {why}")),
        "{one}"
    );
    assert_eq!(one.matches(&why).count(), 1, "{one}");
    yard.run(&["job", &id, "cancel"]).done();
    let kinds = yard.kinds(&id);
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "stalled").count(),
        1,
        "{kinds:?}"
    );
}

#[test]
fn channels_are_chosen_by_job_and_one_that_is_not_there_is_refused() {
    let yard = Yard::telling(
        "",
        &[
            ("any", ADDS),
            ("other", &format!("{ADDS}; echo other >> told")),
        ],
    );
    let target = yard.site.address("");
    let mut submit = yard.site.zmove(&["submit", "--tell", "nobody", "source/"]);
    submit.0.arg(target);
    submit
        .outcome()
        .expect(1)
        .says(&["has no channel 'nobody': it has any, other"]);
    let id = yard.submit(&["--tell", "other"], "");
    wait_for("note", || {
        yard.deliveries(&id) == [("other".to_owned(), "delivered".to_owned())]
    });
    assert_eq!(yard.told().last().unwrap(), "other");
    // it has gone since
    let id = yard.submit(&["--tell", "other", "--at", "2100-01-01 00:00"], "");
    yard.write_channels("", &[("any", ADDS)]);
    yard.run(&["job", &id, "cancel"]).done();
    wait_for("note", || {
        yard.deliveries(&id) == [("other".to_owned(), "given_up".to_owned())]
    });
    let shown = yard.run(&["job", &id]).done().stdout;
    let words: Vec<_> = shown.split_whitespace().collect();
    assert!(
        words
            .join(" ")
            .contains("there is no channel 'other' any more"),
        "{shown}"
    );
}

#[test]
fn a_channel_is_tried_out() {
    let yard = Yard::telling("", &[("good", ADDS), ("bad", "exit 3")]);
    prints(
        &yard.run(&["runner", "tell", "good"]).done(),
        "'good' has told /bin/sh\n",
    );
    assert!(yard.told()[0].contains(" test "), "{:?}", yard.told());
    yard.run(&["runner", "tell", "bad"])
        .expect(10)
        .says(&["'bad' could not tell: '/bin/sh' ended with exit"]);
    yard.run(&["runner", "tell", "none"])
        .expect(1)
        .says(&["has no channel 'none': it has good, bad"]);
}

#[test]
fn a_file_that_is_wrong_holds_up_no_job_and_all_is_told_once_it_is_right() {
    let yard = Yard::telling("stalled = 'x'", &[("script", ADDS)]);
    let submitted = yard.run(&["submit", "source/", "target"]);
    assert!(
        submitted.stderr.contains("nobody will be told"),
        "{}",
        submitted.stderr
    );
    let id = submitted.stdout.trim().to_owned();
    yard.assert_done(&id, 1);
    let log = || std::fs::read_to_string(yard.place().join("runner.log")).unwrap_or_default();
    wait_for("warning", || log().contains("unknown field `stalled`"));
    assert_eq!(yard.told().len(), 0);
    yard.write_channels("", &[("script", ADDS)]);
    wait_for("word", || yard.told().len() == 1);
}
