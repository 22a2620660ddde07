//! The release before protocol 4 at one end and this one at the other: TLS agrees on what both speak, and all
//! goes on as it did.
//!
//! `ZMOVE_OLD_BINARY` says where that release is; `.ci/old` builds it from the history.

use std::path::PathBuf;

use crate::command::ZMOVE;
use crate::harness::{Site, skip};
use crate::tree::{assert_same, paint};

/// The side that is of the release before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Older {
    Client,
    Daemon,
}

pub(crate) fn old_binary() -> Option<PathBuf> {
    let binary = std::env::var_os("ZMOVE_OLD_BINARY").map(PathBuf::from);
    if binary.is_none() {
        skip(
            "ZMOVE_OLD_BINARY is not set: there is no zmove from before protocol 4, which .ci/old builds",
        );
    }
    binary
}

/// Files of each kind: small ones in several batches, a link, a directory without anything, and a large file.
fn grow(site: &Site) {
    for number in 0..300 {
        paint(
            site.source().join(format!("d{}/f{number}", number % 7)),
            100 + number,
        );
    }
    paint(site.source().join("large"), 9 << 20);
    paint(site.source().join("nothing"), 0);
    std::fs::create_dir(site.source().join("empty")).unwrap();
    std::os::unix::fs::symlink("d1/f1", site.source().join("link")).unwrap();
}

fn mixed(older: Older, transport: &str) {
    let Some(old) = old_binary() else { return };
    let (client, daemon) = match older {
        Older::Client => (old, ZMOVE.into()),
        Older::Daemon => (ZMOVE.into(), old),
    };
    let mut site = Site::local();
    site.run_by(daemon);
    site.start_daemon_with(&["--transport", transport]);
    site.run_by(client);
    grow(&site);
    let push = |options: &[&str]| {
        let options = [&["--json", "--transport", transport], options].concat();
        site.push(&options, site.contents(), "").done().summary()
    };
    let manifest = site.path("manifest");
    let first = push(&["--manifest", manifest.to_str().unwrap()]);
    assert_same(&site.source(), &site.target());
    assert_eq!(
        (&first["files"], &first["skipped"], &first["failed"]),
        (&302.into(), &0.into(), &0.into())
    );
    assert_eq!(
        std::fs::read_to_string(manifest).unwrap().lines().count(),
        302
    );
    // what has changed, what is gone, and a group of a large file
    paint(site.source().join("d3/f3"), 5000);
    std::fs::remove_file(site.source().join("d4/f4")).unwrap();
    paint(site.source().join("large"), 10 << 20);
    let second = push(&["--delete", "--delta", "always"]);
    assert_same(&site.source(), &site.target());
    assert_eq!(
        (&second["files"], &second["skipped"], &second["failed"]),
        (&2.into(), &299.into(), &0.into())
    );
    assert!(push(&["--checksum", "--dry-run"])["failed"] == 0);
}

#[test]
fn an_older_client_over_tcp() {
    mixed(Older::Client, "tcp");
}

#[test]
fn an_older_client_over_quic() {
    mixed(Older::Client, "quic");
}

#[test]
fn an_older_daemon_over_tcp() {
    mixed(Older::Daemon, "tcp");
}

#[test]
fn an_older_daemon_over_quic() {
    mixed(Older::Daemon, "quic");
}

/// The older daemon is asked what it knows, and answers with its versions.
#[test]
fn an_older_daemon_is_examined() {
    let Some(old) = old_binary() else { return };
    let mut site = Site::local();
    site.run_by(old);
    site.start_daemon();
    site.run_by(ZMOVE.into());
    let address = site.the_daemon().address.to_string();
    let outcome = site.zmove(&["doctor", &address]).outcome();
    assert!(
        outcome.stdout.contains("protocol versions 1 to 3"),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
}
