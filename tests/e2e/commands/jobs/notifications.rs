//! Notifications of jobs arrive at least once, whichever process is killed, and never delay a job.

use std::os::unix::fs::PermissionsExt;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{Yard, number, wait_for};
use crate::commands::schema;
use crate::security::authority::block;
use crate::support::command::Outcome;
use crate::support::harness::write_program;
use crate::support::ports::free_address;
use crate::support::tree::paint;

/// A hook that appends the document to a file.
const ADDS: &str = "cat >> events";

impl Yard {
    /// A yard with a file of 1000 bytes and with this script as the hook.
    fn with_hook(script: &str) -> Self {
        Self::local().hooked("", script)
    }

    fn hooked(self, head: &str, script: &str) -> Self {
        paint(self.site.source().join("f"), 1000);
        self.write_hook(head, script);
        self
    }

    fn write_hook(&self, head: &str, script: &str) {
        let script = format!("cd '{}' && {script}", self.site.path("").display());
        self.configure(&format!(
            "{head}\n[hook]\ncommand = ['/bin/sh', '-c', '''{script}''']\n"
        ));
    }

    fn configure(&self, text: &str) {
        let path = self.site.path("client/notify.toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A runner that reads the file finds either the old or the new text.
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// Returns the documents that the hook has received.
    fn documents(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.site.path("events")).unwrap_or_default();
        let documents: Vec<Value> = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for document in &documents {
            let fault = schema::fault(&schema::schema("notification.json"), document);
            assert_eq!(fault, None, "{document}");
        }
        documents
    }

    fn has_event(&self, event: &str) -> bool {
        self.documents()
            .iter()
            .any(|document| document["event"] == event)
    }

    /// Returns the methods and states of a job's notifications.
    fn sent(&self, id: &str) -> Vec<(String, String)> {
        let sent = self.job(id)["notifications"].as_array().unwrap().clone();
        let word = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
        sent.iter()
            .map(|sent| (word(sent, "method"), word(sent, "state")))
            .collect()
    }

    fn wait_until_delivered(&self, id: &str) {
        wait_for("delivery", || {
            self.sent(id) == [("hook".to_owned(), "delivered".to_owned())]
        });
    }

    fn submit_with(&self, notify: &str) -> Outcome {
        let mut submit = self.site.zmove(&["submit", "--notify", notify, "source/"]);
        submit.0.arg(self.site.address(""));
        submit.outcome()
    }
}

#[track_caller]
fn prints(outcome: &Outcome, text: &str) {
    assert!(outcome.stdout.contains(text), "{}", outcome.stdout);
}

#[test]
fn the_end_of_a_job_is_notified_once_and_shown() {
    let yard = Yard::with_hook(ADDS);
    let id = yard.submit(&["--label", "first"], "");
    yard.assert_done(&id, 1);
    yard.wait_until_delivered(&id);
    let [document] = &yard.documents()[..] else {
        panic!("one event")
    };
    assert_eq!(
        (&document["event"], &document["label"], &document["notify"]),
        (&"done".into(), &"first".into(), &Value::Null)
    );
    prints(&yard.run(&["job", &id]).done(), "hook: 'done' delivered\n");
}

/// The hook kills the runner that started it after it has stored the event, so the result is not recorded.
#[test]
fn a_runner_that_is_killed_before_the_record_sends_the_event_again_with_the_same_id() {
    let yard = Yard::with_hook(&format!(
        "{ADDS}; [ $(wc -l < events) -gt 1 ] || kill -9 $PPID"
    ));
    let id = yard.submit(&[], "");
    wait_for("kill", || {
        yard.documents().len() == 1 && yard.runner().is_none()
    });
    // Each query of the job starts a runner if there is none.
    yard.wait_until_delivered(&id);
    let documents = yard.documents();
    assert!(
        documents.len() == 2 && documents[0] == documents[1],
        "{documents:?}"
    );
}

/// Returns the text after the time of the next attempt of a notification. On a busy machine there may have been several
/// attempts.
#[track_caller]
fn tried_again<'a>(shown: &'a str, notification: &str) -> &'a str {
    let not_delivered = format!("{notification} not delivered yet (");
    let rest = shown.split_once(&not_delivered);
    let (attempts, why) = rest
        .and_then(|(_, rest)| rest.split_once("), next attempt at 20"))
        .unwrap_or_else(|| panic!("no {not_delivered}: {shown}"));
    assert!(
        attempts == "1 attempt" || attempts.ends_with(" attempts"),
        "{shown}"
    );
    why
}

#[test]
fn a_hook_that_hangs_holds_up_neither_jobs_nor_the_webhook() {
    let yard = Yard::with_hook(ADDS);
    // No process listens on this port.
    let webhook = "[webhook]\nurl = 'https://127.0.0.1:1/hook?key=secret'";
    yard.configure(&format!(
        "[hook]\ncommand = ['/bin/sleep', '25']\n{webhook}\n"
    ));
    let ids = ["a", "b"].map(|path| {
        let id = yard.submit(&[], path);
        yard.wait(&id).expect(0);
        id
    });
    let of_webhook = |id: &str| yard.job(id)["notifications"][1].clone();
    wait_for("attempt", || {
        of_webhook(&ids[0])["tries"].as_u64() >= Some(1)
    });
    assert_eq!(of_webhook(&ids[0])["method"], "webhook");
    let shown = yard.run(&["job", &ids[0]]).done().stdout;
    let words: Vec<_> = shown.split_whitespace().collect();
    let words = words.join(" ");
    assert!(words.contains("hook: 'done' waiting"), "{shown}");
    let why = tried_again(&words, "webhook: 'done'");
    assert!(
        why.contains(": https://127.0.0.1:1: connect: Connection refused"),
        "{shown}"
    );
}

#[test]
fn a_hook_that_fails_holds_up_no_job_and_is_shown() {
    let yard = Yard::with_hook("exit 3");
    let ids = ["a", "b"].map(|path| {
        let id = yard.submit(&[], path);
        yard.wait(&id).expect(0);
        id
    });
    wait_for("failure", || {
        yard.job(&ids[0])["notifications"][0]["tries"].as_u64() >= Some(1)
    });
    let shown = yard.run(&["job", &ids[0]]).done().stdout;
    let words: Vec<_> = shown.split_whitespace().collect();
    let words = words.join(" ");
    let why = tried_again(&words, "hook: 'done'");
    assert!(why.contains("'/bin/sh' failed: exit status: 3"), "{shown}");
    assert!(!shown.contains("webhook"), "{shown}");
}

#[test]
fn a_job_that_moves_nothing_is_notified_while_it_runs() {
    let yard = Yard::daemon().hooked("stalled_after_seconds = 10", ADDS);
    let id = yard.submit_slow();
    yard.wait_until_moving(&id);
    let [pid] = yard.processes()[..] else {
        panic!("one process")
    };
    kill_process(pid, Signal::STOP).unwrap();
    wait_for("event", || yard.has_event("stalled"));
    kill_process(pid, Signal::CONT).unwrap();
    yard.assert_done(&id, 1);
    wait_for("end", || yard.has_event("done"));
    let kinds = yard.kinds(&id);
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "stalled").count(),
        1,
        "{kinds:?}"
    );
}

/// If a host is down for long, no process runs, and the user should be notified.
#[test]
fn a_job_that_waits_for_a_host_says_so_and_is_notified() {
    let yard = Yard::local().hooked("stalled_after_seconds = 2", ADDS);
    let nobody = free_address();
    let mut submit = yard
        .site
        .zmove(&["submit", "--accept-new", "--timeout", "0", "source/"]);
    submit.0.arg(format!("{nobody}:x"));
    let id = number(&submit.outcome().done());
    wait_for("event", || yard.has_event("stalled"));
    yard.wait_until(&id, |job| {
        job["state"] == "waiting" && job["attempts"].as_u64() >= Some(2)
    });
    let why = format!("connect to {nobody}: refused");
    let is_line = |line: &str| {
        let told = line
            .strip_prefix("       tries again in ")
            .and_then(|line| line.split_once(": "));
        told.is_some_and(|(_, told)| told.starts_with(&why)) && line.chars().count() <= 80
    };
    // The next attempt may be running during any single query.
    wait_for("the job in the list", || {
        let list = yard.run(&["jobs"]).done().stdout;
        list.lines().any(is_line)
    });
    wait_for("the job with its whole reason, once", || {
        let one = yard.run(&["job", &id]).done().stdout;
        let one = one.replace("\n         ", " ");
        let waits = one.contains("       tries again in ") && one.contains(&format!(": {why}"));
        waits && one.matches(&why).count() == 1
    });
    yard.run(&["job", &id, "cancel"]).done();
    let kinds = yard.kinds(&id);
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "stalled").count(),
        1,
        "{kinds:?}"
    );
}

#[test]
fn a_text_of_a_job_is_in_its_events_and_refused_where_nobody_gets_it() {
    let yard = Yard::with_hook(ADDS);
    let id = number(&yard.submit_with("alice@example.org").done());
    yard.wait_until_delivered(&id);
    assert_eq!(yard.documents()[0]["notify"], "alice@example.org");
    yard.submit_with("alice\nBcc: bob")
        .expect(1)
        .says(&["--notify: write one line of at most 1000 bytes"]);
    yard.configure("stalled_after_seconds = 60\n");
    yard.submit_with("alice@example.org")
        .expect(1)
        .says(&["notify.toml' has neither a hook nor a webhook"]);
}

#[test]
fn a_notification_is_dropped_once_its_method_is_not_configured() {
    let yard = Yard::with_hook("exit 3");
    let id = yard.submit(&["--at", "2100-01-01 00:00"], "");
    yard.run(&["job", &id, "cancel"]).done();
    wait_for("failure", || {
        yard.job(&id)["notifications"][0]["tries"].as_u64() >= Some(1)
    });
    yard.configure("stalled_after_seconds = 60\n");
    wait_for("drop", || {
        yard.sent(&id) == [("hook".to_owned(), "given_up".to_owned())]
    });
}

#[test]
fn a_test_event_is_sent_and_a_failure_is_reported() {
    let yard = Yard::with_hook(ADDS);
    prints(
        &yard.run(&["runner", "notify"]).done(),
        "the hook accepted a test event\n",
    );
    let [document] = &yard.documents()[..] else {
        panic!("one event")
    };
    assert_eq!(
        (&document["event"], document.get("job")),
        (&"test".into(), None)
    );
    yard.write_hook("", "exit 3");
    yard.run(&["runner", "notify"])
        .expect(10)
        .says(&["the hook did not accept a test event: '/bin/sh' failed: exit"]);
    yard.configure("stalled_after_seconds = 60\n");
    yard.run(&["runner", "notify"])
        .expect(1)
        .says(&["notify.toml' has neither a hook nor a webhook"]);
}

#[test]
fn an_invalid_file_holds_up_no_job_and_its_notifications_wait_for_a_valid_one() {
    let yard = Yard::local().hooked("stalled = 'x'", ADDS);
    let submitted = yard.run(&["submit", "source/", "target"]);
    assert!(
        submitted.stderr.contains("no notifications will be sent"),
        "{}",
        submitted.stderr
    );
    let id = submitted.stdout.trim().to_owned();
    yard.assert_done(&id, 1);
    let log = || std::fs::read_to_string(yard.place().join("runner.log")).unwrap_or_default();
    wait_for("warning", || log().contains("unknown field `stalled`"));
    assert_eq!(yard.documents().len(), 0);
    yard.write_hook("", ADDS);
    wait_for("event", || yard.documents().len() == 1);
    assert_eq!(log().matches("unknown field `stalled`").count(), 1);
}

/// Runs the documented hook with a `sendmail` that stores its input.
#[test]
fn the_documented_hook_mails_an_event() {
    let yard = Yard::with_hook(ADDS);
    let file = |name: &str| yard.site.path(&format!("hook/{name}"));
    std::fs::create_dir(file("")).unwrap();
    let sendmail = "#!/bin/sh\ncd \"${0%/*}\" && cat > new && echo \"$*\" >> new && mv new mail\n";
    for (name, text) in [
        ("sendmail", sendmail),
        (
            "mail-event",
            &block("docs/OPERATIONS.md", "file: mail-event"),
        ),
    ] {
        write_program(&file(name), text);
    }
    yard.configure(&format!(
        "[hook]\ncommand = ['{}']\n",
        file("mail-event").display()
    ));
    let path = format!("{}:{}", file("").display(), std::env::var("PATH").unwrap());
    // The hook gets the environment of the runner, which gets that of the command that starts it.
    let submit = |options: &[&str]| {
        let mut submit = yard.site.zmove(&["submit"]);
        submit
            .0
            .args(options)
            .arg("source/")
            .arg(yard.site.address(""));
        submit.0.env("PATH", &path).env("LOGNAME", "operator");
        number(&submit.outcome().done())
    };
    let mail = || {
        wait_for("mail", || file("mail").exists());
        let mail = std::fs::read_to_string(file("mail")).unwrap();
        std::fs::remove_file(file("mail")).unwrap();
        mail
    };
    let label = "run\r\nBcc: \"x\",\"job\":9@example.org \u{fc}";
    let id = submit(&["--notify", "alice@example.org", "--label", label]);
    let text = mail();
    let (head, body) = text.split_once("\n\n").unwrap();
    let event = "zmove on HOST: job 1 (run\\r\\nBcc: \\\"x\\\",\\\"job\\\":9@example.org ??) done";
    let host = rustix::system::uname();
    let host = host.nodename().to_str().unwrap();
    let job = yard.job(&id);
    let number = &job["notifications"][0]["number"];
    let [
        to,
        subject,
        message_id,
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
    ] = head.lines().collect::<Vec<_>>()[..]
    else {
        panic!("{head}")
    };
    assert_eq!(to, "To: alice@example.org");
    assert_eq!(subject, format!("Subject: {}", event.replace("HOST", host)));
    assert!(
        message_id.starts_with("Message-ID: <")
            && message_id.ends_with(&format!("-{number}@{host}>")),
        "{message_id}"
    );
    for line in [
        "event: done",
        "message: ",
        &format!("source: {}/", yard.site.source().display()),
        &format!("target: {}", job["target"].as_str().unwrap()),
        "attempts: 1",
        "files: 1",
        "bytes: 1000",
        "-i -t",
    ] {
        assert!(
            body.lines().any(|found| found == line),
            "no '{line}': {body}"
        );
    }
    let id = submit(&["--at", "2100-01-01 00:00"]);
    yard.run(&["job", &id, "cancel"]).done();
    yard.wait_until_delivered(&id);
    assert!(!file("mail").exists());
    submit(&[]);
    assert!(mail().starts_with("To: operator\n"));
}
