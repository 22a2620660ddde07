//! The permissions, rate limit and expiry of a key at a daemon.

use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use serde_json::Value;
use zmove_transport::Access;
use zmove_types::GROUP_BYTES;

use crate::connections::breakage::{Appearance, interrupt};
use crate::support::command::finish;
use crate::support::harness::Site;
use crate::support::quiet_machine::calm_machine;
use crate::support::tree::{assert_same, names, paint, set_mode};

const TRANSPORTS: [&str; 2] = ["tcp", "quic"];
/// A key that no identity of the test has.
const OTHER: &str = "SHA256:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE";

fn list_file(site: &Site) -> String {
    std::fs::read_to_string(site.path("server/authorized_keys")).unwrap()
}

/// Rewrites the client's line, as an administrator would do by hand.
fn rewrite(site: &Site, change: impl Fn(&str) -> String) {
    std::fs::write(
        site.path("server/authorized_keys"),
        change(list_file(site).trim_end()) + "\n",
    )
    .unwrap();
}

#[test]
fn grants_are_listed_and_removed() {
    let site = Site::local();
    let (key, root) = (site.client_key(), site.target().canonicalize().unwrap());
    let root = root.to_str().unwrap();
    let list = || site.allow(&["list"]).done().stdout;
    assert_eq!(list(), "no keys are allowed\n");
    let limits = [
        "--set-ids",
        "--max-rate",
        "10Gbit",
        "--expires",
        "2099-01-31",
    ];
    let said = site.allow(
        &[
            &[&key, "--name", "alice", "--root", root, "--write"],
            &limits[..],
        ]
        .concat(),
    );
    let expected = format!(
        "alice ({key}) may write below {root}, and set setuid and setgid bits, at up to 10Gbit/s, until \
         2099-01-31T00:00:00Z\n"
    );
    assert_eq!(said.done().stdout, expected);
    let bob = [OTHER, "--name", "bob", "--root", root];
    site.allow(&[&bob[..], &["--expires", "2026-01-01"]].concat())
        .done();
    let listed = list();
    assert!(
        listed.starts_with(&expected) && listed.ends_with("expired at 2026-01-01T00:00:00Z\n"),
        "{listed}"
    );
    let json = site.allow(&["list", "--json"]).done().stdout;
    let json: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (
            json[0]["key"].as_str(),
            json[0]["max_bytes_per_second"].as_u64()
        ),
        (Some(&key[..]), Some(1_250_000_000))
    );
    assert_eq!(
        (json[0]["expired"].as_bool(), json[1]["expired"].as_bool()),
        (Some(false), Some(true))
    );
    site.allow(&["remove", "eve"])
        .expect(1)
        .says(&["no allowed key has the name or fingerprint 'eve'"])
        .lines(1);
    assert_eq!(
        site.allow(&["remove", "bob"]).done().stdout,
        format!("bob ({OTHER}) is no longer allowed\n")
    );
    site.allow(&["remove", &key]).done();
    assert_eq!(list(), "no keys are allowed\n");
}

#[test]
fn setting_an_expiry_keeps_the_other_rights() {
    let site = Site::local();
    let (key, root) = (site.client_key(), site.target().canonicalize().unwrap());
    let of_alice = |words: &[&str]| {
        let words = [
            &[&key, "--name", "alice", "--root", root.to_str().unwrap()],
            words,
        ]
        .concat();
        site.allow(&words).done().stdout
    };
    assert!(of_alice(&["--write"]).contains("may write below"));
    let said = of_alice(&["--expires", "2099-01-31"]);
    assert!(
        said.contains("may write below") && said.contains("until 2099"),
        "{said}"
    );
    assert!(of_alice(&["--read"]).contains("may read and write below"));
}

/// Tests small files in an existing and in a new directory, and a large file. A second push finds everything unchanged.
#[test]
fn setuid_and_setgid_are_set_only_where_the_grant_says_so() {
    for carried in [false, true] {
        let site = Site::daemon();
        if carried {
            rewrite(&site, |line| format!("{line} set-ids"));
        }
        std::fs::create_dir(site.source().join("new")).unwrap();
        let files = [
            ("small", 10, 0o4755),
            ("new/small", 10, 0o2755),
            ("large", 2 * GROUP_BYTES + 1, 0o6750),
        ];
        for (name, bytes, mode) in files {
            paint(site.source().join(name), bytes);
            set_mode(site.source().join(name), mode);
        }
        let mask = if carried { 0o7777 } else { 0o1777 };
        for stored in [3, 0] {
            let said = site.push(&["--json"], site.contents(), "").done().stdout;
            let summary: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
            assert_eq!(summary["files"].as_u64(), Some(stored), "{summary}");
            for (name, _, mode) in files {
                let there = site.target().join(name).metadata().unwrap();
                assert_eq!(there.mode() & 0o7777, mode & mask, "{name}");
            }
        }
    }
}

#[test]
fn allow_names_the_wrong_argument() {
    let site = Site::local();
    let allowing = [OTHER, "--name", "x", "--root", "source"];
    let with = |options: &[&'static str]| [&allowing, options].concat();
    for (words, part) in [
        (vec![], "required arguments were not provided"),
        (vec![OTHER], "  --name <NAME>"),
        (vec![OTHER, "--name", "x"], "  --root <DIR>"),
        (with(&["--max-rate", "10"]), "'10' is not a rate"),
        (with(&["--expires", "soon"]), "'soon' is not a date"),
        (with(&["--set-ids"]), "  --write"),
        (vec!["remove"], "required arguments were not provided"),
        (vec!["list", "--name", "x"], "unexpected argument '--name'"),
    ] {
        site.allow(&words).expect(1).says(&[part]);
    }
    assert!(!site.path("server/authorized_keys").exists());
}

/// Both sides report the expiry date. After the date in the line is changed, the next connection succeeds.
#[test]
fn an_expired_grant_is_refused_and_reported_on_both_sides() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let (line, key) = (list_file(&site), site.client_key());
    rewrite(&site, |line| format!("{line} expires=2026-01-31T12:00:00Z"));
    for transport in TRANSPORTS {
        let outcome = site
            .push(&["--transport", transport], site.contents(), "")
            .expect(5);
        let said = [
            "zmove: receiver: ",
            "expired at 2026-01-31T12:00:00Z",
            "zmove allow",
            "--expires",
        ];
        outcome.says(&said).lines(1);
    }
    let logged = format!("the permission of tester ({key}) expired at 2026-01-31T12:00:00Z");
    site.the_daemon().wait_for_log(&logged);
    assert!(names(&site.target()).is_empty());
    std::fs::write(site.path("server/authorized_keys"), line).unwrap();
    rewrite(&site, |line| format!("{line} expires=2099-01-31"));
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

/// Starts a push that does not end.
fn endless(site: &Site) -> std::process::Child {
    paint(site.source().join("small"), 1_000);
    std::fs::File::create(site.source().join("endless"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let appeared = Appearance::of("small", &site.target());
    let client = site
        .push_command(
            &["--timeout", "0", "--sparse", "never", "--limit", "80Mbit"],
            &[&site.contents()],
            "",
        )
        .start();
    appeared.wait();
    client
}

#[test]
fn a_removed_key_is_refused_and_its_running_push_continues() {
    let site = Site::daemon();
    let running = endless(&site);
    site.allow(&["remove", "tester"]).done();
    site.push(&[], site.path("client"), "x")
        .expect(5)
        .says(&["this key is not known here"])
        .lines(1);
    let stopped = interrupt(running);
    stopped.expect(20);
    site.the_daemon().wait_for_log("broken off by tester");
}

const LIMIT: &str = "max-rate=80Mbit";
const BYTES_PER_SECOND: f64 = 1e7;
const BYTES: u32 = 16 << 20;
/// Factor for the minimum duration. It allows for the initial burst and for clock differences between two processes.
const TOLERANCE: f64 = 0.9;

#[test]
fn a_key_keeps_its_rate_over_all_lanes() {
    let _calm = calm_machine();
    // Low enough that even a busy machine can send faster.
    const BYTES_PER_SECOND: f64 = 4e6;
    const BYTES: u32 = 6 << 20;
    for site in [Site::daemon(), Site::clear(), Site::quic()] {
        paint(site.source().join("f"), u64::from(BYTES));
        rewrite(&site, |line| format!("{line} max-rate=32Mbit"));
        let started = Instant::now();
        let summary = site
            .push(&["--streams", "4", "--json"], site.contents(), "")
            .done()
            .summary();
        let (seconds, least) = (
            started.elapsed().as_secs_f64(),
            f64::from(BYTES) / BYTES_PER_SECOND,
        );
        assert!(seconds >= TOLERANCE * least, "{seconds} s");
        assert_eq!(summary["limited_by"], "allowed_rate", "{summary}");
        assert_same(&site.source(), &site.target());
    }
}

/// Otherwise all data would be in socket buffers, and chunks that are read late would be considered late and sent
/// again.
#[test]
fn a_sender_limits_itself_to_the_rate_of_its_key() {
    let _calm = calm_machine();
    for site in [Site::daemon(), Site::clear(), Site::quic()] {
        paint(site.source().join("f"), u64::from(BYTES));
        rewrite(&site, |line| format!("{line} {LIMIT}"));
        let trace = site.path("trace");
        let options = [
            "--streams",
            "16",
            "--json",
            "--trace",
            trace.to_str().unwrap(),
        ];
        let summary = site.push(&options, site.contents(), "").done().summary();
        assert_eq!(
            (&summary["limited_by"], &summary["repeated"]),
            (&"allowed_rate".into(), &0.into())
        );
        let trace = std::fs::read_to_string(&trace).unwrap();
        assert!(trace.lines().count() > 1, "{trace}");
        for line in trace.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let at = |key: &str| {
                line[key]
                    .as_f64()
                    .unwrap_or_else(|| panic!("{key} in {line}"))
            };
            let rate = at("bytes_handed_over") / at("seconds");
            assert!(TOLERANCE * rate <= BYTES_PER_SECOND, "{line}");
        }
    }
}

#[test]
fn a_key_is_not_held_back_by_the_rate_of_another() {
    let site = Site::daemon();
    // At this rate the transfer takes hours.
    rewrite(&site, |line| format!("{line} max-rate=8kbit"));
    crate::operation::busy::befriend(&site);
    paint(site.source().join("f"), 8 << 20);
    let mut slow = site
        .push_command(&["--timeout", "0"], &[&site.contents()], "slow")
        .start();
    site.the_daemon().wait_for_log("begun by tester");
    let mut friend = site.push_command(&[], &[&site.contents()], "friend");
    friend.0.env("ZMOVE_HOME", site.path("friend"));
    friend.outcome().done();
    assert_same(&site.source(), &site.target().join("friend"));
    assert_eq!(slow.try_wait().unwrap(), None, "the other push goes on");
    slow.kill().unwrap();
    slow.wait().unwrap();
}

#[test]
fn transfers_of_one_key_share_its_rate() {
    let site = Site::daemon();
    paint(site.source().join("f"), u64::from(BYTES / 2));
    rewrite(&site, |line| format!("{line} {LIMIT}"));
    let started = Instant::now();
    let pushes = ["a", "b"].map(|name| {
        site.push_command(&["--streams", "2"], &[&site.contents()], name)
            .start()
    });
    for push in pushes {
        finish(push).done();
    }
    let (seconds, least) = (
        started.elapsed().as_secs_f64(),
        f64::from(BYTES) / BYTES_PER_SECOND,
    );
    assert!(seconds >= TOLERANCE * least, "{seconds} s");
    for name in ["a", "b"] {
        assert_same(&site.source(), &site.target().join(name));
    }
}

/// A lane that waits for its turn must notice the interruption.
#[test]
fn a_push_that_is_held_back_can_be_interrupted() {
    let site = Site::daemon();
    rewrite(&site, |line| format!("{line} max-rate=8Mbit"));
    let running = endless(&site);
    interrupt(running).expect(20);
    site.the_daemon().wait_for_log("broken off by tester");
}

#[test]
fn a_read_only_key_may_not_write_over_any_transport() {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    site.authorize(Access::ReadOnly);
    let daemon = crate::support::daemon::Daemon::start(
        &site.path("server"),
        "127.0.0.1:0",
        &crate::support::command::Runner::default(),
    );
    site.pin(&daemon.address, daemon.fingerprint);
    for options in [
        &["--transport", "tcp"][..],
        &["--transport", "quic"],
        &["--dry-run"],
        &["--delete"],
    ] {
        let target = format!("{}:", daemon.address);
        let words = [&["push"], options, &["source/", &target]].concat();
        site.zmove(&words)
            .outcome()
            .expect(3)
            .says(&["this key may not write"])
            .lines(1);
    }
    assert!(names(&site.target()).is_empty());
}
