//! The directories that a key may read at a daemon.

use std::os::unix::fs::{PermissionsExt, symlink};

use zmove_transport::Access;
use zmove_types::GROUP_BYTES;

use super::{assert_counts, pulled, site};
use crate::support::command::Runner;
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::tree::{assert_same, names, paint};

#[test]
fn a_key_that_may_only_write_is_refused_with_the_command_that_lets_it_read() {
    let site = Site::daemon();
    paint(site.target().join("f"), 10);
    for options in [
        &["--transport", "tcp"][..],
        &["--transport", "quic"],
        &["--dry-run"],
    ] {
        let outcome = site.zmove(&[&["pull"], options].concat());
        let mut pull = outcome;
        pull.0.arg(site.address("f")).arg(site.path("pulled"));
        let said = [
            "this key may not read here",
            "zmove allow SHA256:",
            "--read-root",
        ];
        pull.outcome().expect(3).says(&said).lines(1);
    }
    assert!(!site.path("pulled").exists());
}

#[test]
fn a_key_that_may_only_read_is_refused_where_it_writes() {
    let site = site();
    paint(site.source().join("f"), 10);
    site.push(&[], site.source().join("f"), "g")
        .expect(3)
        .says(&["this key may not write"])
        .lines(1);
    assert_eq!(names(&site.source()), ["f"]);
}

#[test]
fn each_right_has_its_root() {
    let mut site = Site::local();
    site.let_read("source");
    site.start_daemon();
    paint(site.source().join("f"), 10);
    site.push(&[], site.source().join("f"), "").expect(0);
    let mut pull = site.zmove(&["pull"]);
    pull.0.arg(site.address("f")).arg(site.path("pulled"));
    pull.outcome().expect(0);
    let target = site.target().canonicalize().unwrap();
    let mut pull = site.zmove(&["pull"]);
    pull.0
        .arg(site.address(target.join("f").to_str().unwrap()))
        .arg(site.path("pulled"));
    pull.outcome()
        .expect(3)
        .says(&["lies in none of the roots that this key may read"])
        .lines(1);
    let source = site.source().canonicalize().unwrap();
    site.push(&[], source.join("f"), source.join("g").to_str().unwrap())
        .expect(3)
        .lines(1);
    assert_eq!(names(&site.source()), ["f"]);
}

#[test]
fn a_key_with_both_rights_reads_what_it_has_written() {
    let site = Site::local();
    site.authorize(Access::ReadWrite);
    let daemon = Daemon::start(&site.path("server"), "127.0.0.1:0", &Runner::default());
    site.pin(&daemon.address, daemon.fingerprint);
    paint(site.source().join("f"), 10);
    let address = |path: &str| format!("{}:{path}", daemon.address);
    site.zmove(&["push", "source/f", &address("")])
        .outcome()
        .expect(0);
    site.zmove(&["pull", &address("f"), "pulled/"])
        .outcome()
        .expect(0);
    assert_eq!(names(&site.path("pulled")), ["f"]);
}

/// A root is sent as a directory, and with a trailing slash as its contents, like any directory.
#[test]
fn a_whole_root_arrives_under_its_name() {
    let mut site = Site::local();
    site.let_read("source");
    site.start_daemon();
    paint(site.source().join("d/f"), 10);
    paint(site.source().join("g"), 10);
    std::fs::set_permissions(site.source(), PermissionsExt::from_mode(0o750)).unwrap();
    let root = site.source().canonicalize().unwrap();
    let pull = |path: &str, target: &str| {
        let mut pull = site.zmove(&["pull"]);
        pull.0.arg(site.address(path)).arg(site.path(target));
        pull.outcome().expect(0);
    };
    pull(root.to_str().unwrap(), "named");
    assert_eq!(names(&site.path("named")), ["source"]);
    assert_same(&site.source(), &site.path("named/source"));
    pull(&format!("{}/", root.display()), "contents");
    pull("", "all");
    for target in ["contents", "all"] {
        assert_eq!(names(&site.path(target)), ["d", "g"]);
    }
}

/// A link below the root is sent as a link. Its target is never sent, even if the link is a requested source.
#[test]
fn nothing_outside_of_the_root_is_read() {
    let site = site();
    paint(site.path("secret/f"), 10);
    paint(site.source().join("f"), 10);
    symlink("../secret", site.source().join("link")).unwrap();
    for source in ["..", "../secret/f", "f/../../secret/f", "/etc/passwd"] {
        site.pull(&[], &[source], "").expect(3).lines(1);
    }
    for source in ["link/", "link/f", "link/*"] {
        site.pull(&[], &[source], "")
            .expect(23)
            .says(&["nothing to send"])
            .lines(1);
    }
    assert!(names(&site.target()).is_empty());
    let list = site.path("list");
    std::fs::write(&list, "link/f\n../secret/f\nf\n").unwrap();
    site.pull(&["--files-from", list.to_str().unwrap()], &[""], "")
        .expect(23)
        .lines(2);
    assert_eq!(names(&site.target()), ["f"]);
    site.pull(&[], &[""], "").expect(0);
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_key_s_rate_holds_for_what_it_reads() {
    let site = site();
    paint(site.source().join("f"), 4 * GROUP_BYTES);
    let list = site.path("server/authorized_keys");
    let line = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, format!("{} max-rate=80Mbit\n", line.trim_end())).unwrap();
    let summary = pulled(&site, &[], &["f"]);
    assert_counts(&summary, &[("files", 1)]);
    assert!(summary["seconds"].as_f64().unwrap() > 1.2, "{summary}");
}
