//! The daemon as a service: its configuration, its log, and its protocol with systemd.

use std::io::BufRead;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::command::{Outcome, Running, ZMOVE, Zmove, wait_within_patience};
use crate::support::harness::{PATIENCE, Site, has_program, skip};
use crate::support::ports::free_address;
use crate::support::tree::{assert_same, paint};

fn check(site: &Site) -> Outcome {
    let mut zmove = Command::new(ZMOVE);
    zmove
        .env("ZMOVE_HOME", site.path("server"))
        .args(["serve", "--check"]);
    Zmove(zmove).outcome()
}

#[test]
fn a_check_says_ok_and_changes_nothing() {
    let site = Site::local();
    check(&site).done();
    assert_eq!(std::fs::read_dir(site.path("server")).unwrap().count(), 0);
    // The package creates this user.
    let settings = std::fs::read_to_string(shipped("zmove.toml")).unwrap();
    assert!(settings.contains("\nuser = \"zmove\"\n"));
    let settings = settings.replace("\nuser = \"zmove\"\n", "\n");
    std::fs::write(site.path("server").join("zmove.toml"), settings).unwrap();
    assert_eq!(check(&site).done().stdout, "ok\n");
}

#[test]
fn a_check_reports_all_faults() {
    let site = Site::local();
    let home = site.path("server");
    std::fs::write(home.join("zmove.toml"), "colour = 1\n[limits]\nlanes = 0\n").unwrap();
    std::fs::write(home.join("key.pem"), "no key").unwrap();
    std::fs::write(home.join("authorized_keys"), "no grant\n").unwrap();
    let outcome = check(&site).expect(1);
    let stderr = outcome.lines(4).stderr;
    for part in [
        "line 1: colour: ",
        "line 3: limits.lanes: 0 is not a number from 8 to ",
        "key.pem",
        "authorized_keys",
    ] {
        assert!(stderr.contains(part), "no {part} in: {stderr}");
    }
}

#[test]
fn a_daemon_with_wrong_or_missing_settings_does_not_start() {
    let site = Site::local();
    let missing = site.path("none.toml");
    let serve = |options: &[&str]| {
        let mut zmove = Command::new(ZMOVE);
        zmove
            .env("ZMOVE_HOME", site.path("server"))
            .arg("serve")
            .args(options);
        Zmove(zmove).outcome()
    };
    serve(&["--config", missing.to_str().unwrap()])
        .expect(1)
        .says(&["none.toml"])
        .lines(1);
    std::fs::write(site.path("server/zmove.toml"), "transport = \"udp\"\n").unwrap();
    let wrong = "zmove.toml: line 1: transport: \"udp\" is not one of \"both\", \"tcp\", \"quic\"";
    serve(&[]).expect(1).says(&[wrong]).lines(1);
}

#[test]
fn options_override_settings() {
    let mut site = Site::local();
    // No process can listen on this address.
    std::fs::write(
        site.path("server/zmove.toml"),
        "listen = \"192.0.2.1:1\"\nallow_clear = true\n",
    )
    .unwrap();
    site.start_daemon();
    site.the_daemon().wait_for_log("in clear (--allow-clear)");
}

#[test]
fn the_log_as_json_names_the_key_the_address_and_the_amounts() {
    let mut site = Site::local();
    site.start_daemon_with(&["--log-format", "json", "--metrics", "off"]);
    paint(site.source().join("f"), 1000);
    site.push_contents();
    let line = site.the_daemon().wait_for_log("received from tester");
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["event"], "received");
    assert_eq!(
        (&line["audit"], &line["result"]),
        (&Value::Bool(true), &Value::from("complete"))
    );
    assert_eq!(
        (&line["bytes"], &line["files"]),
        (&Value::from(1000), &Value::from(1))
    );
    assert_eq!(
        (&line["name"], &line["faults"]),
        (&Value::from("tester"), &Value::from(0))
    );
    assert!(line["key"].as_str().unwrap().starts_with("SHA256:"));
    assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(line["seconds"].is_number());
    site.push(&[], site.contents(), "a\u{1b}[2Jb").done();
    let line = site.the_daemon().wait_for_log("[2Jb");
    assert!(!line.contains('\u{1b}'), "{line}");
}

#[test]
fn the_log_as_text_has_times_and_escapes_names() {
    let site = Site::daemon();
    paint(site.source().join("f"), 1000);
    site.push(&[], site.contents(), "a\u{1b}[2Jb").done();
    let line = site.the_daemon().wait_for_log("received from tester");
    assert!(line.contains("into 'a\\u{1b}[2Jb' in "), "{line}");
    assert!(
        line.contains(" s, 0 faults; 1 file, 1000 bytes; key SHA256:"),
        "{line}"
    );
    assert!(line.split(' ').next().unwrap().ends_with('Z'), "{line}");
}

/// util-linux and this test act as systemd: the test binds the sockets and receives the notifications.
#[test]
fn a_daemon_takes_sockets_and_reports_readiness() {
    takes_sockets_and_reports_readiness("off");
}

#[test]
fn a_confined_daemon_takes_sockets_and_reports_readiness() {
    takes_sockets_and_reports_readiness("auto");
}

fn takes_sockets_and_reports_readiness(confine: &str) {
    let site = Site::local();
    site.authorize(zmove_transport::Access::ReadWrite);
    paint(site.source().join("f"), 100_000);
    let manager = UnixDatagram::bind(site.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = free_address();
    let tcp = TcpListener::bind(address).unwrap();
    let udp = UdpSocket::bind(address).unwrap();
    let script = "exec 3<&0 4<&1 >&2 </dev/null; WATCHDOG_PID=$$ LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" serve --metrics off --confine \"$1\"";
    let daemon = Command::new("sh")
        .args(["-c", script, ZMOVE, confine])
        .env("ZMOVE_HOME", site.path("server"))
        .env("STATE_DIRECTORY", site.path("state"))
        .env("NOTIFY_SOCKET", site.path("notify"))
        .env("WATCHDOG_USEC", "200000")
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(tcp)))
        .stdout(Stdio::from(std::os::fd::OwnedFd::from(udp)))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut daemon = Running(daemon);
    let mut ready = String::new();
    let mut stderr = std::io::BufReader::new(daemon.0.stderr.take().unwrap());
    while !ready.contains("listening on") {
        ready.clear();
        assert!(stderr.read_line(&mut ready).unwrap() > 0, "it ended");
    }
    assert!(
        ready.contains(&format!("listening on {address}, key ")),
        "{ready}"
    );
    let told = |manager: &UnixDatagram, wanted: &str| {
        let mut bytes = [0; 200];
        loop {
            let length = manager.recv(&mut bytes).unwrap();
            if String::from_utf8_lossy(&bytes[..length]).contains(wanted) {
                return;
            }
        }
    };
    told(&manager, "READY=1");
    told(&manager, "WATCHDOG=1");
    told(&manager, "WATCHDOG=1");
    // A manager that stops reading must not delay a transfer.
    fill_socket(&site.path("notify"));
    let key = ready
        .trim_end()
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    site.pin(&address, key);
    for transport in ["tcp", "quic"] {
        let mut push = site.zmove(&["push", "--transport", transport]);
        push.0
            .arg(site.source())
            .arg(format!("{address}:{transport}"));
        push.outcome().done();
        let received = site.target().join(transport).join("source");
        assert_same(&site.source(), &received);
    }
    let pid = rustix::process::Pid::from_child(&daemon.0);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    told(&manager, "RELOADING=1");
    told(&manager, "READY=1");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    told(&manager, "STOPPING=1");
    assert_eq!(wait_within_patience(&mut daemon.0), Some(0));
    drop(stderr);
}

/// Fills a socket with messages until it is full.
fn fill_socket(path: &Path) {
    let socket = UnixDatagram::unbound().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.send_to(b"FILLER=1", path).is_ok() {}
}

fn shipped(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/systemd")
        .join(name)
}

/// Without the boot id, zmove could not tell immediately that the owner of a hidden name has ended.
#[test]
fn the_unit_does_not_restrict_proc_to_processes() {
    let text = std::fs::read_to_string(shipped("zmove.service")).unwrap();
    assert!(!text.lines().any(|line| line.starts_with("ProcSubset=")));
}

/// Maximum exposure level of `systemd-analyze security`. docs/OPERATIONS.md states the actual level.
const EXPOSURE_MAX: f64 = 2.0;

#[test]
fn the_shipped_units_pass_systemd_analyze() {
    if !has_program("systemd-analyze") {
        skip("systemd-analyze is missing");
        return;
    }
    let site = Site::local();
    let units = site.path("units");
    std::fs::create_dir(&units).unwrap();
    for name in ["zmove.service", "zmove.socket"] {
        let text = std::fs::read_to_string(shipped(name)).unwrap();
        // systemd-analyze requires that the program exists.
        std::fs::write(
            units.join(name),
            text.replace("ExecStart=zmove", &format!("ExecStart={ZMOVE}")),
        )
        .unwrap();
    }
    let run = |words: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        command
            .args(words)
            .args(["zmove.service", "zmove.socket"].map(|name| units.join(name)));
        Zmove(command).outcome()
    };
    run(&["verify", "--man=no"]).expect(0).lines(0);
    let unit = units.join("zmove.service");
    let security = Command::new("systemd-analyze")
        .args(["security", "--no-pager", "--offline=true"])
        .arg(&unit)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&security.stdout).into_owned();
    let overall = text
        .lines()
        .find(|line| line.contains("Overall exposure level"))
        .expect("a figure");
    let figure = overall
        .split(':')
        .next_back()
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap();
    assert!(figure.parse::<f64>().unwrap() <= EXPOSURE_MAX, "{overall}");
}
