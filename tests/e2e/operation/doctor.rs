//! The results of `zmove doctor` for this host and for daemons. The suggested commands are run and must fix the
//! problem.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use serde_json::Value;
use zmove_transport::{Access, Identity};

use crate::support::command::{Outcome, Runner, Zmove};
use crate::support::daemon::Daemon;
use crate::support::harness::{Site, has_program, is_root, skip};
use crate::support::tree::names;

const LEVELS: [&str; 4] = ["ok", "note", "slow", "bad"];

/// The results of `doctor --json`.
pub(crate) struct Findings(Value);

impl Findings {
    #[track_caller]
    pub(crate) fn of(outcome: &Outcome) -> Self {
        assert_eq!(outcome.stderr, "");
        assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.stdout);
        Self(serde_json::from_str(&outcome.stdout).unwrap())
    }

    fn all(&self) -> impl Iterator<Item = &Value> {
        let sections = self.0["sections"].as_array().unwrap().iter();
        sections.flat_map(|section| section["findings"].as_array().unwrap())
    }

    #[track_caller]
    pub(crate) fn the(&self, check: &str) -> &Value {
        let mut found = self.all().filter(|finding| finding["check"] == check);
        let finding = found
            .next()
            .unwrap_or_else(|| panic!("nothing on {check}: {}", self.0));
        assert!(found.next().is_none(), "{check} twice: {}", self.0);
        finding
    }

    #[track_caller]
    pub(crate) fn assert_level(&self, check: &str, level: &str) {
        assert_eq!(self.the(check)["level"], level, "{}", self.the(check));
    }

    /// Returns the command that fixes the problem.
    #[track_caller]
    fn mend(&self, check: &str) -> &str {
        self.the(check)["mend"][0]["run"].as_str().unwrap()
    }

    fn bad(&self) -> Vec<&str> {
        let bad = self.all().filter(|finding| finding["level"] == "bad");
        bad.map(|finding| finding["check"].as_str().unwrap())
            .collect()
    }
}

#[track_caller]
fn examine(site: &Site, address: &SocketAddr, code: i32) -> Findings {
    Findings::of(
        &site
            .zmove(&["doctor", "--json", &address.to_string()])
            .outcome()
            .expect(code),
    )
}

/// A site whose daemon may know the client and whose client may know the daemon.
fn acquainted(access: Option<Access>, pinned: bool) -> (Site, Daemon) {
    let site = Site::local();
    if let Some(access) = access {
        site.authorize(access);
    }
    let daemon = Daemon::start(&site.path("server"), "127.0.0.1:0", &Runner::default());
    if pinned {
        site.pin(&daemon.address, daemon.fingerprint);
    }
    (site, daemon)
}

#[test]
fn this_host_has_a_line_for_each_check() {
    let site = Site::local();
    let text = site.zmove(&["doctor"]).outcome().done().stdout;
    assert!(
        text.starts_with("this host\n  ok   zmove          0."),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    let json = Findings::of(&site.zmove(&["doctor", "--json"]).outcome().expect(0));
    for check in [
        "kernel",
        "io_uring",
        "open files",
        "AES",
        "clock",
        "disk",
        "tcp_wmem",
        "tcp_rmem",
        "congestion",
    ] {
        let level = json.the(check)["level"].as_str().unwrap();
        let line = format!("  {level:<4} {check:<14} ");
        assert!(
            LEVELS.contains(&level) && text.contains(&line),
            "{line} in:\n{text}"
        );
    }
    let counts: u64 = LEVELS
        .iter()
        .map(|level| json.0["counts"][level].as_u64().unwrap())
        .sum();
    assert_eq!(counts, json.all().count() as u64);
    assert!(
        text.ends_with(" notes\n") || text.ends_with(" note\n"),
        "{text}"
    );
    assert!(names(&site.path("client")).is_empty(), "no key was needed");
}

#[test]
fn a_missing_directory_is_bad() {
    let site = Site::local();
    let outcome = site
        .zmove(&["doctor", "--json", "--path", "nowhere"])
        .outcome()
        .expect(4);
    let findings = Findings::of(&outcome);
    assert_eq!(findings.bad(), ["disk"]);
    assert!(
        findings.the("disk")["text"]
            .as_str()
            .unwrap()
            .contains("No such file or directory")
    );
}

#[test]
fn a_receiver_that_authorizes_the_key_passes_all_checks() {
    let (site, daemon) = acquainted(Some(Access::WriteOnly), true);
    let before = std::fs::read(site.path("client/known_hosts")).unwrap();
    let findings = examine(&site, &daemon.address, 0);
    for check in [
        "name",
        "TCP",
        "QUIC",
        "round trip",
        "path MTU",
        "its key",
        "our key",
    ] {
        findings.assert_level(check, "ok");
    }
    assert!(
        findings.the("our key")["text"]
            .as_str()
            .unwrap()
            .contains("protocol version 1")
    );
    assert!(
        findings.the("lanes")["details"]
            .as_array()
            .unwrap()
            .is_empty(),
        "the round trip is known"
    );
    assert_eq!(
        std::fs::read(site.path("client/known_hosts")).unwrap(),
        before
    );
    // The session ended gracefully and left no entries.
    daemon.wait_for_log("previewed by tester");
    assert!(names(&site.target()).is_empty());
}

#[test]
fn the_text_report_shows_address_and_pinned_key() {
    let (site, daemon) = acquainted(Some(Access::WriteOnly), true);
    let text = site
        .zmove(&["doctor", &daemon.address.to_string()])
        .outcome()
        .done()
        .stdout;
    assert!(
        text.contains(&format!(
            "\nthe receiver at {}\n  ok   name           127.0.0.1",
            daemon.address
        )),
        "{text}"
    );
    assert!(
        text.contains(&format!(
            "\n  ok   its key        {}, pinned\n",
            daemon.fingerprint
        )),
        "{text}"
    );
}

/// The suggested command is run unchanged, except for the placeholders in capitals.
#[test]
fn the_suggested_command_authorizes_an_unknown_key() {
    let (site, daemon) = acquainted(None, true);
    let findings = examine(&site, &daemon.address, 4);
    assert_eq!(findings.bad(), ["our key"]);
    assert_eq!(findings.the("our key")["mend"][0]["at"], "there");
    let line = findings
        .mend("our key")
        .replace("NAME", "alice")
        .replace("DIR", site.target().to_str().unwrap());
    let words: Vec<_> = line.strip_prefix("zmove ").unwrap().split(' ').collect();
    let Zmove(mut allow) = site.zmove(&words);
    allow.env("ZMOVE_HOME", site.path("server"));
    Zmove(allow).outcome().done();
    assert!(examine(&site, &daemon.address, 0).bad().is_empty());
}

#[test]
fn a_key_without_write_permission_is_bad() {
    let (site, daemon) = acquainted(Some(Access::ReadOnly), true);
    let findings = examine(&site, &daemon.address, 4);
    assert_eq!(findings.bad(), ["our key"]);
    assert!(
        findings.the("our key")["text"]
            .as_str()
            .unwrap()
            .contains("may not write")
    );
    assert!(findings.mend("our key").ends_with("--write"));
}

#[test]
fn an_unknown_receiver_is_not_pinned() {
    let (site, daemon) = acquainted(Some(Access::WriteOnly), false);
    for _ in 0..2 {
        let findings = examine(&site, &daemon.address, 4);
        assert_eq!(findings.bad(), ["its key"]);
        assert_eq!(
            findings.mend("its key"),
            format!("zmove trust {}", daemon.address)
        );
        assert!(
            findings.the("its key")["text"]
                .as_str()
                .unwrap()
                .contains(&daemon.fingerprint.to_string())
        );
        // The other checks are still reported.
        findings.assert_level("our key", "ok");
    }
    assert!(!site.path("client/known_hosts").exists());
}

#[test]
fn a_receiver_with_another_key_than_the_pinned_one_is_bad() {
    let (site, daemon) = acquainted(Some(Access::WriteOnly), false);
    let other = Identity::load_or_create(&site.path("other"))
        .unwrap()
        .fingerprint();
    site.pin(&daemon.address, other);
    let findings = examine(&site, &daemon.address, 4);
    assert_eq!(findings.bad(), ["TCP"]);
    let text = findings.the("TCP")["text"].as_str().unwrap();
    assert!(
        text.contains(&other.to_string()) && text.contains(&daemon.fingerprint.to_string()),
        "{text}"
    );
    let address = daemon.address;
    assert_eq!(
        findings.mend("TCP"),
        format!("zmove trust remove {address} && zmove trust {address}")
    );
}

#[test]
fn a_refused_connection_is_reported_with_the_serve_command() {
    let site = Site::local();
    // This port is free and stays free, since the test binds it without listening.
    let held = socket_that_does_not_listen();
    let findings = examine(&site, &held.1, 4);
    assert_eq!(findings.bad(), ["TCP"]);
    assert!(
        findings.the("TCP")["text"]
            .as_str()
            .unwrap()
            .contains("refused")
    );
    assert_eq!(
        findings.mend("TCP"),
        format!("zmove serve --listen 0.0.0.0:{}", held.1.port())
    );
    findings.assert_level("QUIC", "note");
}

fn socket_that_does_not_listen() -> (rustix::fd::OwnedFd, SocketAddr) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&held, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&held).unwrap()).unwrap();
    (held, address)
}

#[test]
fn a_service_that_is_not_zmove_is_reported() {
    use std::io::Write;
    let site = Site::local();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream.unwrap().write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n"));
        }
    });
    let findings = examine(&site, &address, 4);
    assert_eq!(findings.bad(), ["TCP"]);
    let text = findings.the("TCP")["text"].as_str().unwrap();
    assert!(text.contains("the program there is not zmove"), "{text}");
    assert!(text.ends_with("is the port right?"), "{text}");
    let on_quic = findings.all().find(|finding| finding["check"] == "QUIC");
    assert_eq!(on_quic, None, "the wrong port is told once");
}

/// A hanging program holds the port, so no other program can listen on it.
#[test]
fn a_listener_that_never_answers_is_reported() {
    let site = Site::local();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let findings = examine(&site, &listener.local_addr().unwrap(), 4);
    assert_eq!(findings.bad(), ["TCP"]);
    let tcp = findings.the("TCP");
    let text = tcp["text"].as_str().unwrap();
    assert!(text.contains("no answer"), "{text}");
    assert_eq!(tcp["mend"].as_array().unwrap().len(), 0, "{tcp}");
    assert_eq!(findings.the("QUIC")["text"], "fails as TCP does");
}

#[test]
fn a_name_without_an_address_is_bad() {
    let site = Site::local();
    let findings = Findings::of(
        &site
            .zmove(&["doctor", "--json", "no-such-host.invalid"])
            .outcome()
            .expect(4),
    );
    assert_eq!(findings.bad(), ["name"]);
}

#[test]
fn a_transport_that_does_not_answer_is_reported() {
    for (transport, slower, level) in [("quic", "TCP", "slow"), ("tcp", "QUIC", "note")] {
        let site = Site::local();
        site.authorize(Access::WriteOnly);
        let options = ["--listen", "127.0.0.1:0", "--transport", transport];
        let daemon = Daemon::start_with(&site.path("server"), &options, &Runner::default());
        site.pin(&daemon.address, daemon.fingerprint);
        let findings = examine(&site, &daemon.address, 0);
        findings.assert_level(slower, level);
        findings.assert_level("our key", "ok");
    }
}

#[test]
fn the_suggested_command_enlarges_small_send_buffers() {
    if !is_root() || !has_program("unshare") {
        return skip("a network of its own needs root and unshare");
    }
    if !has_program("sysctl") {
        return skip("sysctl is missing");
    }
    let site = Site::local();
    let examine = |also: &str| {
        let Zmove(doctor) = site.zmove(&["doctor", "--json", "--rate", "10Gbit"]);
        let script =
            format!("echo 4096 16384 131072 >/proc/sys/net/ipv4/tcp_wmem; {also} >&2; exec \"$@\"");
        let mut inside = Command::new("unshare");
        inside
            .args(["--net", "sh", "-c", &script, "sh"])
            .arg(doctor.get_program())
            .args(doctor.get_args())
            .envs(
                doctor
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
        let outcome = Zmove(inside).outcome().expect(0);
        serde_json::from_str(&outcome.stdout).map(Findings).unwrap()
    };
    let small = examine("true");
    small.assert_level("tcp_wmem", "slow");
    let line = small.mend("tcp_wmem");
    assert_eq!(line, "sysctl -w net.ipv4.tcp_wmem=\"4096 16384 134217728\"");
    examine(line).assert_level("tcp_wmem", "ok");
}
