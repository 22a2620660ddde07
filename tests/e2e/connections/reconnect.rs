//! Connections are lost in mid-transfer and restored: the push continues without user action and completes.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::Child;

use serde_json::Value;
use zmove_types::GROUP_BYTES;

use crate::connections::breakage::{Appearance, interrupt};
use crate::support::command::{Outcome, Runner, Zmove, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::ports::free_address;
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, names, paint};

/// Number of bytes after which the relay stalls: more than the handshakes and the small files need, and less than the
/// whole transfer.
const BYTES_BEFORE_STALL: u64 = 9 << 20;
const SMALL: u64 = 50;
const LARGE: u64 = 3;
/// Number of files of a stalled push.
pub(crate) const FILES: u64 = SMALL + LARGE;
const LARGE_BYTES: u64 = 2 * GROUP_BYTES + 5;

/// A push stalled in mid-transfer by a relay.
pub(crate) struct HalfWay {
    pub(crate) site: Site,
    pub(crate) proxy: Proxy,
    pub(crate) client: Child,
}

pub(crate) fn half_way(site: Site, options: &[&str]) -> HalfWay {
    half_way_by(site, options, |push| push)
}

/// Like [`half_way`], but with the command that `run` builds from the push.
pub(crate) fn half_way_by(
    site: Site,
    options: &[&str],
    run: impl FnOnce(Zmove) -> Zmove,
) -> HalfWay {
    for number in 0..SMALL {
        paint(
            site.source().join(format!("small/{number}")),
            1_000 + number,
        );
    }
    for number in 0..LARGE {
        paint(site.source().join(format!("large{number}")), LARGE_BYTES);
    }
    let proxy = Proxy::start(site.the_daemon().address, BYTES_BEFORE_STALL);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let push = site.push_by(&proxy.address, &[&["--json"], options].concat());
    let client = run(push).start();
    proxy.wait_for_stall();
    HalfWay {
        site,
        proxy,
        client,
    }
}

fn restart(site: &Site, daemon: &Daemon) -> Daemon {
    Daemon::start(
        &site.path("server"),
        &daemon.address.to_string(),
        &Runner::default(),
    )
}

/// Asserts that one outage was reported and that everything arrived once.
#[track_caller]
fn assert_went_on(site: &Site, proxy: &Proxy, outcome: Outcome) -> Value {
    let lost = format!("zmove: connection to {} lost: ", proxy.address);
    let outcome = outcome
        .expect(0)
        .says(&[&lost, "; reconnecting for up to 5 min"]);
    let summary = outcome
        .says(&["zmove: reconnected after ", " s"])
        .lines(2)
        .summary();
    assert_eq!(summary["reconnects"], 1);
    assert_same(&site.source(), &site.target());
    summary
}

fn small_bytes() -> u64 {
    (0..SMALL).map(|number| 1_000 + number).sum()
}

#[track_caller]
fn assert_all_was_moved_once(summary: &Value) {
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!(
        (count("files"), count("skipped"), count("failed")),
        (FILES, 0, 0)
    );
    assert_eq!(count("bytes"), small_bytes() + LARGE * LARGE_BYTES);
}

#[test]
fn a_push_reconnects_after_the_daemon_was_killed_and_restarted() {
    let HalfWay {
        mut site,
        proxy,
        client,
    } = half_way(Site::daemon(), &[]);
    let mut daemon = site.take_daemon();
    daemon.kill();
    let _again = restart(&site, &daemon);
    proxy.reset(daemon.address);
    assert_all_was_moved_once(&assert_went_on(&site, &proxy, finish(client)));
}

#[test]
fn a_push_reconnects_after_the_daemon_was_stopped_and_restarted() {
    let HalfWay {
        mut site,
        proxy,
        client,
    } = half_way(Site::daemon(), &[]);
    let daemon = site.take_daemon();
    let address = daemon.address;
    assert_eq!(daemon.terminate(), Some(0));
    proxy.wait_for_refused(1);
    let _again = Daemon::start(
        &site.path("server"),
        &address.to_string(),
        &Runner::default(),
    );
    proxy.reset(address);
    assert_all_was_moved_once(&assert_went_on(&site, &proxy, finish(client)));
}

/// A web server, such as that of a captive portal, and a daemon with another key.
#[test]
fn a_push_reconnects_after_other_servers_have_answered() {
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(Site::daemon(), &[]);
    let other = Daemon::start(&site.path("other"), "127.0.0.1:0", &Runner::default());
    let portal = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.reset(portal.local_addr().unwrap());
    let (mut visitor, _) = portal.accept().unwrap();
    visitor.write_all(b"HTTP/1.1 302 Found\r\n\r\n").unwrap();
    drop(visitor);
    // The portal listens until the proxy no longer uses it, so that no other program gets its port.
    proxy.reset(other.address);
    drop(portal);
    other.wait_for_log("rejected");
    proxy.reset(site.the_daemon().address);
    assert_all_was_moved_once(&assert_went_on(&site, &proxy, finish(client)));
}

#[test]
fn a_push_reconnects_after_all_connections_were_lost() {
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(Site::daemon(), &[]);
    proxy.reset(site.the_daemon().address);
    assert_all_was_moved_once(&assert_went_on(&site, &proxy, finish(client)));
}

#[test]
fn a_mirror_is_made_by_the_last_session() {
    let site = Site::daemon();
    for name in ["alone", "small/alone", "tree/alone"] {
        paint(site.target().join(name), 5);
    }
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(site, &["--delete"]);
    assert!(
        site.target().join("alone").exists(),
        "nothing goes before all has come"
    );
    proxy.reset(site.the_daemon().address);
    let summary = assert_went_on(&site, &proxy, finish(client));
    assert_all_was_moved_once(&summary);
    assert_eq!(summary["removed"], 4);
}

#[test]
fn a_push_reconnects_after_all_lanes_in_clear_were_lost() {
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(Site::clear(), &[]);
    proxy.reset(site.the_daemon().address);
    assert_all_was_moved_once(&assert_went_on(&site, &proxy, finish(client)));
}

#[test]
fn a_push_reconnects_after_many_refused_attempts() {
    let HalfWay {
        mut site,
        proxy,
        client,
    } = half_way(Site::daemon(), &[]);
    let mut daemon = site.take_daemon();
    daemon.kill();
    proxy.reset(daemon.address);
    proxy.wait_for_refused(20);
    let _again = restart(&site, &daemon);
    let lost = format!("zmove: connection to {} lost: ", proxy.address);
    let outcome = finish(client)
        .expect(0)
        .says(&[&lost, "; reconnecting for up to 5 min"]);
    let summary = outcome.says(&["zmove: reconnected after ", " s"]).summary();
    // In one attempt, all lanes may connect before control, and control may then fail. A second attempt follows.
    assert!(
        (1..=2).contains(&summary["reconnects"].as_u64().unwrap()),
        "{summary}"
    );
    assert_all_was_moved_once(&summary);
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_push_reconnects_after_each_of_several_losses() {
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(Site::daemon(), &[]);
    for _ in 0..3 {
        proxy.reset_for(site.the_daemon().address, 5 << 20);
        proxy.wait_for_stall();
    }
    proxy.reset(site.the_daemon().address);
    let outcome = finish(client).expect(0);
    assert!((2..=4).contains(&outcome.summary()["reconnects"].as_u64().unwrap()));
    assert_all_was_moved_once(&outcome.summary());
    assert_same(&site.source(), &site.target());
}

/// Asserts that other lanes send the data of lost lanes, and that no message reports this.
#[track_caller]
fn assert_lanes_are_done_without(site: Site, count: usize, options: &[&str]) {
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(site, options);
    proxy.wait_for_busy(count);
    proxy.resume_without_busiest(count);
    let summary = finish(client).done().summary();
    assert_eq!(summary["reconnects"], 0);
    assert_all_was_moved_once(&summary);
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_push_completes_after_one_lane_was_cut() {
    assert_lanes_are_done_without(Site::daemon(), 1, &["--streams", "4"]);
}

#[test]
fn a_push_completes_after_one_lane_in_clear_was_cut() {
    assert_lanes_are_done_without(Site::clear(), 1, &["--streams", "4"]);
}

#[test]
fn a_push_completes_after_all_lanes_but_one_were_cut() {
    assert_lanes_are_done_without(Site::daemon(), 3, &["--streams", "4"]);
}

#[test]
fn a_lane_that_is_cut_is_dialled_again() {
    for options in [&["--streams", "4"][..], &["--limit", "10Gbit"], &[]] {
        let options = &[options, &["--sparse", "never"]].concat();
        let site = Site::daemon();
        // The file is larger than the socket buffers.
        std::fs::File::create(site.source().join("zeros"))
            .unwrap()
            .set_len(100 << 20)
            .unwrap();
        let HalfWay {
            site,
            proxy,
            client,
        } = half_way(site, options);
        if options.contains(&"4") {
            // The control connection and four lanes. A lane that connects later would be mistaken for the new one.
            proxy.wait_for_connections(5);
        }
        let connections = proxy.connections();
        proxy.resume_without(1, 1);
        proxy.wait_for_connections(connections + 1);
        proxy.resume_without_busiest(0);
        assert_eq!(
            finish(client).done().summary()["reconnects"],
            0,
            "{options:?}"
        );
        assert_same(&site.source(), &site.target());
    }
}

#[test]
fn files_that_were_at_the_target_before_count_as_skipped() {
    let site = Site::daemon();
    for number in 0..50 {
        paint(
            site.source().join(format!("there/{number}")),
            1_000 + number,
        );
    }
    site.push_contents();
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(site, &[]);
    proxy.reset(site.the_daemon().address);
    let summary = assert_went_on(&site, &proxy, finish(client));
    let files = [&summary["skipped"], &summary["files"]].map(|count| count.as_u64().unwrap());
    assert_eq!(files, [50, FILES]);
}

#[test]
fn the_manifest_has_each_file_once() {
    for options in [&[][..], &["--checksum"]] {
        let HalfWay {
            site,
            proxy,
            client,
        } = half_way(
            Site::daemon(),
            &[&["--manifest", "manifest"], options].concat(),
        );
        proxy.reset(site.the_daemon().address);
        assert_went_on(&site, &proxy, finish(client));
        let mut expected: Vec<_> = (0..SMALL).map(|number| format!("small/{number}")).collect();
        expected.extend((0..LARGE).map(|number| format!("large{number}")));
        expected.sort();
        let lines = std::fs::read_to_string(site.path("manifest")).unwrap();
        let line = |line: &str| {
            let (root, name) = line.split_once("  ").unwrap();
            let contents = std::fs::read(site.source().join(name)).unwrap();
            assert_eq!(root, blake3::hash(&contents).to_string(), "{name}");
            name.to_owned()
        };
        let mut names: Vec<_> = lines.lines().map(line).collect();
        names.sort();
        assert_eq!(names, expected);
    }
}

#[test]
fn a_failure_is_reported_once() {
    let site = Site::daemon();
    paint(site.target().join("small/7/in the way"), 1);
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(site, &[]);
    proxy.reset(site.the_daemon().address);
    let outcome = finish(client)
        .expect(23)
        .says(&["small/7", "a directory of that name is in the way"]);
    let summary = outcome.summary();
    assert_eq!(
        (&summary["failed"], &summary["files"]),
        (&1.into(), &(FILES - 1).into())
    );
    assert_eq!(summary["reconnects"], 1);
}

#[test]
fn a_push_gives_up_at_its_timeout_and_names_the_cause() {
    let HalfWay {
        mut site,
        proxy,
        client,
    } = half_way(Site::daemon(), &["--timeout", "1s"]);
    let mut daemon = site.take_daemon();
    daemon.kill();
    proxy.reset(daemon.address);
    let outcome = finish(client).expect(12);
    let address = proxy.address.to_string();
    let outcome = outcome.says(&[
        "zmove: connection to",
        &address,
        "reconnecting for up to 1 s",
    ]);
    let end = format!("zmove: the connection to {address} was lost and not restored within 1 s: ");
    outcome.says(&[&end]).lines(2);
}

/// The receiver answers each time, and all connections are lost before a group of the file is stored.
#[test]
fn sessions_without_progress_end_the_push() {
    let site = Site::daemon();
    paint(site.source().join("large"), LARGE_BYTES);
    let proxy = Proxy::cutting(site.the_daemon().address, 1 << 20);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let outcome = site
        .push_by(&proxy.address, &["--timeout", "6s"])
        .outcome()
        .expect(12);
    let address = proxy.address.to_string();
    let end = [
        " consecutive sessions with ",
        &address,
        " were lost without any progress: ",
    ];
    outcome.says(&end);
}

#[test]
fn a_push_that_makes_progress_reconnects_without_limit() {
    let site = Site::daemon();
    for number in 0..65 {
        paint(
            site.source().join(format!("small/{number}")),
            500_000 + number,
        );
    }
    paint(site.source().join("large"), 5 * GROUP_BYTES);
    // The cuts allow a few batches and groups in each session. Small files are renamed into place within a second, and
    // those without final names are sent again.
    let proxy = Proxy::cutting(site.the_daemon().address, 15 << 20);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let outcome = site
        .push_by(
            &proxy.address,
            &["--json", "--timeout", "10s", "--limit", "10MB"],
        )
        .outcome()
        .expect(0);
    assert!(
        outcome.summary()["reconnects"].as_u64() > Some(2),
        "{}",
        outcome.stdout
    );
    assert_same(&site.source(), &site.target());
}

#[test]
fn an_interrupt_is_heard_while_there_is_no_connection() {
    let HalfWay {
        mut site,
        proxy,
        client,
    } = half_way(Site::daemon(), &[]);
    let mut daemon = site.take_daemon();
    daemon.kill();
    proxy.reset(daemon.address);
    proxy.wait_for_refused(20);
    interrupt(client)
        .expect(20)
        .says(&["zmove: interrupted"])
        .says(&["reconnecting"])
        .lines(2);
}

#[test]
fn a_key_that_was_withdrawn_meanwhile_ends_the_push() {
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(Site::daemon(), &[]);
    std::fs::remove_file(site.path("server").join("authorized_keys")).unwrap();
    proxy.reset(site.the_daemon().address);
    finish(client)
        .expect(5)
        .says(&["this key is not known here"])
        .says(&["reconnecting"])
        .lines(2);
}

#[test]
fn a_push_does_not_retry_its_first_connection() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let nobody = free_address();
    site.pin(&nobody, site.the_daemon().fingerprint);
    site.push_by(&nobody, &[])
        .outcome()
        .expect(10)
        .says(&["refused"])
        .lines(1);
}

/// The restarted daemon does not know the connections and resets them.
#[test]
fn a_push_over_quic_reconnects_after_the_daemon_was_killed_and_restarted() {
    let mut site = Site::quic();
    paint(site.source().join("small"), 1_000);
    let endless = site.source().join("endless");
    std::fs::File::create(&endless)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let appeared = Appearance::of("small", &site.target());
    let client = site
        .push_command(
            &["--json", "--sparse", "never", "--limit", "40MB"],
            &[&site.contents()],
            "",
        )
        .start();
    appeared.wait();
    let mut daemon = site.take_daemon();
    daemon.kill();
    // After the restart, the source can be transferred completely.
    std::fs::remove_file(&endless).unwrap();
    let options = [
        "--listen",
        &daemon.address.to_string(),
        "--transport",
        "quic",
    ];
    let _again = Daemon::start_with(&site.path("server"), &options, &Runner::default());
    // A third line reports the missing file if the sender was slow to open it.
    let outcome = finish(client)
        .expect(0)
        .says(&["reconnecting"])
        .says(&["reconnected"]);
    assert_eq!(
        (
            &outcome.summary()["reconnects"],
            &outcome.summary()["files"]
        ),
        (&1.into(), &1.into())
    );
    // If the large file had been started, its part stays at the target, since its source is gone.
    let shown = names(&site.target())
        .into_iter()
        .filter(|name| !name.starts_with(".zmove-"));
    assert_eq!(shown.collect::<Vec<_>>(), ["small"]);
    let [sent, come] = [site.source(), site.target()].map(|tree| {
        let (small, bytes) = (
            tree.join("small"),
            std::fs::read(tree.join("small")).unwrap(),
        );
        let metadata = std::fs::metadata(small).unwrap();
        (bytes, metadata.permissions(), metadata.modified().unwrap())
    });
    assert!(sent == come);
}
