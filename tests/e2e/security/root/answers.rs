//! A compromised daemon whose answers to root's `zmove status` never end.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Signal, kill_process};

use super::{Host, Settings};
use crate::commands::jobs::wait_for;
use crate::support::harness::own_all;

/// Answers each connection to a socket with `answer`.
fn answer_at(path: &Path, answer: fn(UnixStream)) {
    let socket = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in socket.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
}

/// Sends one byte per second and no newline.
fn trickle(mut stream: UnixStream) {
    while stream.write_all(b" ").is_ok() {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Sends 100 MiB and no newline.
fn flood(mut stream: UnixStream) {
    let bytes = vec![b' '; 1 << 20];
    // The reader closes the connection before the end.
    let _ended = (0..100).try_for_each(|_| stream.write_all(&bytes));
}

/// Id of the process that [`stop`] has stopped.
static STOPPED: AtomicI32 = AtomicI32::new(0);

/// Stops the requesting process, as its user may, and keeps the connection open.
fn stop(stream: UnixStream) {
    let asks = socket_peercred(&stream).unwrap().pid;
    STOPPED.store(asks.as_raw_nonzero().get(), Ordering::Relaxed);
    kill_process(asks, Signal::STOP).unwrap();
    std::thread::park();
}

/// A host with such a daemon. Its socket is in the user's directory or in root's.
fn host(answer: fn(UnixStream), is_of_root: bool) -> Option<Host> {
    let host = Host::new(Settings::OfRoot)?;
    answer_at(&host.path("run/control.sock"), answer);
    if is_of_root {
        std::os::unix::fs::chown(host.path("run"), Some(0), Some(0)).unwrap();
    } else {
        own_all(&host.path("run"));
    }
    Some(host)
}

/// Asserts that a command fails and names the socket and the cause.
fn fails(host: &Host, words: &[&str], code: i32, cause: &[&str]) {
    let outcome = host.zmove(words).expect(code);
    let socket = format!(
        "the daemon at '{}'",
        host.path("run/control.sock").display()
    );
    let parts = [&[socket.as_str()], cause].concat();
    outcome.says(&parts).lines(1);
}

const LATE: &str = "no answer within 10 s";

/// The timeout must limit the whole answer. A timeout for each read would never expire while a byte arrives now and
/// then.
#[test]
fn an_answer_that_trickles_holds_no_command_of_root_up() {
    let Some(host) = host(trickle, false) else {
        return;
    };
    let Some(of_root) = self::host(trickle, true) else {
        return;
    };
    let list = fs::read(host.path("home/authorized_keys")).unwrap();
    std::thread::scope(|scope| {
        for (words, operation) in [
            (&["status"][..], "for its status"),
            (&["stop", "01234567"], "to stop a transfer"),
            (&["drain"], "to drain"),
            (
                &["allow", "remove", "alice", "--now"],
                "to stop the transfers of removed keys",
            ),
        ] {
            let host = &host;
            scope.spawn(move || fails(host, words, 12, &[operation, LATE]));
        }
        scope.spawn(|| fails(&of_root, &["status"], 12, &["for its status", LATE]));
    });
    assert_ne!(fs::read(host.path("home/authorized_keys")).unwrap(), list);
}

/// The answer must not be collected in memory without a limit.
#[test]
fn an_answer_without_end_is_read_to_a_limit() {
    for is_of_root in [false, true] {
        let Some(host) = host(flood, is_of_root) else {
            return;
        };
        let cause = ["for its status", "the answer is longer than 4.00 MiB"];
        fails(&host, &["status"], 12, &cause);
    }
}

#[test]
fn a_process_that_asks_and_was_stopped_by_its_user_is_killed() {
    let Some(host) = host(stop, false) else {
        return;
    };
    fails(&host, &["status"], 12, &["for its status", LATE]);
    let stopped = STOPPED.load(Ordering::Relaxed);
    assert_ne!(stopped, 0);
    wait_for("end of the process that asked", || {
        let stat = fs::read_to_string(format!("/proc/{stopped}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default();
        state.is_empty() || state.starts_with(" Z")
    });
}
