//! Copies in which one or both hosts are reached by ssh, which starts a receiver there.

use std::path::{Path, PathBuf};

use zmove_transport::{Access, AuthorizedKeys, Grant, Identity};

use super::World;
use crate::commands::jobs::wait_for;
use crate::commands::pull::{SMALL_FILES, grow_kinds};
use crate::commands::ssh::Sshd;
use crate::connections::breakage::{end_by, interruption};
use crate::support::command::{Outcome, ZMOVE, Zmove};
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::ports::free_port;
use crate::support::tree::{assert_same, paint};

/// Returns the command `zmove copy --json OPTIONS SOURCE TARGET` with this ssh.
fn copy(site: &Site, sshd: &Sshd, options: &[&str], ends: [String; 2]) -> Zmove {
    between(site, sshd, &[&["copy"], options].concat(), ends)
}

fn between(site: &Site, sshd: &Sshd, words: &[&str], [source, target]: [String; 2]) -> Zmove {
    let mut zmove = site.zmove(words);
    zmove
        .0
        .args([
            "--json",
            "--ssh-command",
            &sshd.command(),
            "--remote-zmove",
            ZMOVE,
        ])
        .args([source, target]);
    zmove
}

fn contents_of(directory: &Path) -> PathBuf {
    directory.join("")
}

fn assert_copied(site: &Site, outcome: Outcome) {
    let summary = outcome.expect(0).summary();
    assert_same(&site.source(), &site.target());
    assert!(summary["files"].as_u64() > Some(SMALL_FILES), "{summary}");
}

#[test]
fn a_tree_goes_from_one_host_behind_ssh_to_another() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    grow_kinds(&site.source());
    let ends = [
        sshd.at(&contents_of(&site.source())),
        sshd.at(&site.target()),
    ];
    assert_copied(&site, copy(&site, &sshd, &[], ends.clone()).outcome());
    let again = copy(&site, &sshd, &[], ends.clone())
        .outcome()
        .expect(0)
        .summary();
    assert_eq!(again["files"], 0, "{again}");
    between(&site, &sshd, &["verify"], ends.clone())
        .outcome()
        .expect(0);
    std::fs::write(site.target().join("more"), "").unwrap();
    between(&site, &sshd, &["verify"], ends).outcome().expect(6);
}

#[test]
fn a_tree_goes_from_a_host_behind_ssh_to_a_daemon() {
    let World { site, receiver, .. } = World::new();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    grow_kinds(&site.source());
    let ends = [
        sshd.at(&contents_of(&site.source())),
        at_daemon(&receiver, &site.target()),
    ];
    assert_copied(&site, copy(&site, &sshd, &[], ends).outcome());
    receiver.wait_for_log("received from the grant of tester");
}

/// The daemon sends only to ports that its operator has allowed, so the receiver behind ssh is given one of them.
#[test]
fn a_tree_goes_from_a_daemon_to_a_host_behind_ssh() {
    let World { site, sender, .. } = World::new();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    grow_kinds(&site.source());
    let ends = [
        at_daemon(&sender, &contents_of(&site.source())),
        sshd.at(&site.target()),
    ];
    let port = free_port();
    let ports = format!("{port}-{port}");
    let options = ["--ssh-ports", ports.as_str()];
    let told = format!("--to 127.0.0.1:{port}");
    copy(&site, &sshd, &options, ends.clone())
        .outcome()
        .expect(3)
        .says(&[&told]);
    // The port is free once the receiver of the refused copy has ended.
    wait_for("the end of the first receiver", || receivers(&site) == 0);
    allow_to(&site, &format!("127.0.0.1:{port}"));
    assert_copied(&site, copy(&site, &sshd, &options, ends).outcome());
}

/// Both receivers end with their ssh, so no transfer continues unobserved.
#[test]
fn a_copy_over_ssh_ends_with_its_command_and_can_be_resumed() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    paint(site.source().join("large"), super::LARGE_BYTES);
    let ends = [
        sshd.at(&contents_of(&site.source())),
        sshd.at(&site.target()),
    ];
    let client = copy(&site, &sshd, &super::SLOWLY, ends.clone()).start();
    crate::connections::resume::wait_for_journal_in(&site.path("server/journal"));
    assert!(receivers(&site) > 0);
    let ended = end_by(client, interruption()).expect(20);
    wait_for("the end of both receivers", || receivers(&site) == 0);
    assert!(!ended.stderr.contains("zmove result"), "{}", ended.stderr);
    let went_on = copy(&site, &sshd, &[], ends).outcome().expect(0).summary();
    assert_same(&site.source(), &site.target());
    assert!(went_on["bytes_resumed"].as_u64() > Some(0), "{went_on}");
}

/// Returns the number of processes that ssh has started for the site. Each has the site's directory in its environment.
fn receivers(site: &Site) -> usize {
    let directory = site.path("");
    let directory = directory.as_os_str().as_encoded_bytes();
    let is_receiver = |process: &Path| {
        let read = |name| std::fs::read(process.join(name)).unwrap_or_default();
        read("cmdline")
            .split(|&byte| byte == 0)
            .any(|word| word == b"receive")
            && read("environ")
                .windows(directory.len())
                .any(|bytes| bytes == directory)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| is_receiver(&process.path()))
        .count()
}

/// The address of a daemon when the other end is a host behind ssh.
fn at_daemon(daemon: &Daemon, path: &Path) -> String {
    format!("zmove://{}{}", daemon.address, path.display())
}

fn allow_to(site: &Site, place: &str) {
    let client = Identity::load_or_create(&site.path("client"))
        .unwrap()
        .fingerprint();
    let read_roots = vec![site.source().canonicalize().unwrap()];
    let grant = Grant::new(client, "tester", Vec::new(), Access::ReadOnly);
    AuthorizedKeys::allow(
        &site.path("sender"),
        Grant {
            read_roots,
            to: vec![place.to_owned()],
            ..grant
        },
    )
    .unwrap();
}
