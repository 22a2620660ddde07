//! The same failure has the same exit code in every command, as listed in the table "Exit codes" of the guide.

use std::net::UdpSocket;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::commands::jobs::Yard;
use crate::support::command::{LinesOf, Outcome, ZMOVE, Zmove, finish};
use crate::support::harness::{Site, skip};
use crate::support::ports::free_address;
use crate::support::tree::paint;
use crate::targets::faults::can_inject;

/// Number of the first job of a yard, which succeeds.
const BEFORE: &str = "1";

/// A daemon from whose `source` the client may read, and to whose `target` it may write.
fn yard() -> Yard {
    let mut site = Site::local();
    site.let_read("source");
    site.start_daemon();
    paint(site.source().join("f"), 10);
    let yard = Yard { site };
    assert_eq!(yard.submit(&[], "before"), BEFORE);
    yard
}

impl Yard {
    fn says(&self, command: &str, options: &[&str], source: &str, target: &str) -> Outcome {
        let words = [&[command], options, &[source, target]].concat();
        self.run(&words)
    }

    /// Asserts the exit code of each command that sends `source` to `target`, and of the process of such a job.
    #[track_caller]
    fn assert_pushed(&self, options: &[&str], source: &str, target: &str, code: i32) {
        for command in ["push", "copy", "verify"] {
            self.says(command, options, source, target).expect(code);
        }
        self.assert_job(options, source, target, code);
    }

    #[track_caller]
    fn assert_pulled(&self, options: &[&str], source: &str, target: &str, code: i32) {
        for command in ["pull", "copy", "verify"] {
            self.says(command, options, source, target).expect(code);
        }
        self.assert_job(options, source, target, code);
    }

    /// The job waits for another job, so nothing is checked at submission.
    #[track_caller]
    fn assert_job(&self, options: &[&str], source: &str, target: &str, code: i32) {
        let options = [&["--after", BEFORE], options].concat();
        let submitted = self.says("submit", &options, source, target).expect(0);
        let id = submitted.stdout.trim();
        let job = self.wait_until(id, |job| !job["exit"].is_null());
        assert_eq!(job["exit"], code, "{job}");
        self.run(&["job", id, "cancel"]);
    }
}

fn nobody() -> String {
    free_address().to_string()
}

#[test]
fn a_missing_source_exits_with_23() {
    let yard = yard();
    let daemon = yard.site.the_daemon().address;
    yard.assert_pushed(&[], "none", "target", 23);
    yard.assert_pushed(&[], "none", &format!("{daemon}:x"), 23);
    let said = yard.says("submit", &[], "none", "target").expect(23).stderr;
    assert_eq!(
        said,
        "zmove: sender: open 'none': No such file or directory (os error 2)\n\
         zmove: nothing to send: no source exists (check the paths)\n"
    );
    yard.says("submit", &[], "none", &format!("{daemon}:x"))
        .expect(23);
    yard.says("submit", &["--watch"], "none", "target")
        .expect(23);
    let none = yard.site.source().join("none");
    yard.assert_pulled(&[], &format!("{daemon}:{}", none.display()), "target", 23);
}

#[test]
fn an_unreachable_host_exits_with_10() {
    let yard = yard();
    let options = ["--accept-new", "--timeout", "0"];
    yard.assert_pushed(&options, "source/", &format!("{}:x", nobody()), 10);
    yard.assert_pulled(&options, &format!("{}:x", nobody()), "target", 10);
    yard.says(
        "submit",
        &["--timeout", "0"],
        "source/",
        &format!("{}:x", nobody()),
    )
    .expect(10);
    yard.run(&["clean", "--accept-new", &format!("{}:x", nobody())])
        .expect(10);
}

/// A thread that dials by QUIC may request its first random numbers after the command has ended.
#[test]
fn an_interrupted_command_exits_with_20_although_a_thread_still_dials() {
    if !can_inject() {
        return skip("strace cannot run here: nothing delays a system call");
    }
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    // With `-D`, the traced program keeps the process id of the child.
    let mut command = Command::new("strace");
    command
        .args(["-D", "-f", "-qq", "-o", "/dev/stdout"])
        .args(["-e", "trace=connect,getrandom,exit_group"])
        .args(["-e", "inject=getrandom:delay_enter=300000"])
        .args(["-e", "inject=exit_group:delay_enter=4000000"])
        .args([ZMOVE, "push", "--accept-new", "--transport", "quic"])
        .arg(site.contents())
        .arg(format!("{}:x", silent.local_addr().unwrap()))
        .env("ZMOVE_HOME", site.path("client"));
    let mut push = Zmove(command).start();
    let calls = LinesOf::new(&mut push);
    calls.wait_for(|call| call.contains("connect("));
    let pid = Pid::from_raw(i32::try_from(push.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    finish(push).expect(20);
}

#[test]
fn an_unknown_host_key_exits_with_5() {
    let yard = yard();
    std::fs::remove_file(yard.site.path("client/known_hosts")).unwrap();
    let daemon = yard.site.the_daemon().address;
    for strict in [&[][..], &["--strict"]] {
        for command in ["push", "copy", "verify", "submit"] {
            yard.says(command, strict, "source/", &format!("{daemon}:x"))
                .expect(5);
        }
        for command in ["pull", "copy", "verify", "submit"] {
            yard.says(command, strict, &format!("{daemon}:x"), "target")
                .expect(5);
        }
        let there = format!("{daemon}:x");
        yard.run(&[&["clean"], strict, &[&there]].concat())
            .expect(5);
    }
}

#[test]
fn a_forbidden_directory_exits_with_3() {
    let yard = yard();
    let daemon = yard.site.the_daemon().address;
    yard.assert_pushed(&[], "source/", &format!("{daemon}:/nowhere"), 3);
    yard.assert_pulled(&[], &format!("{daemon}:/nowhere/"), "target", 3);
    yard.run(&["clean", &format!("{daemon}:/nowhere")])
        .expect(3);
}

#[test]
fn invalid_arguments_exit_with_1() {
    let yard = yard();
    for command in ["push", "copy", "verify", "submit"] {
        yard.says(command, &["--files-from", "a"], "source", "h:0:x")
            .expect(1);
        yard.run(&[command, "--no-such-option"]).expect(1);
    }
    yard.says("pull", &[], "h:0:x", "target").expect(1);
    yard.run(&["job", "99"]).expect(1);
    yard.run(&["job", "99", "wait"]).expect(1);
}
