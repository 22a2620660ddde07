//! `zmove probe` measures a real path to a real daemon, leaves no files there, and requires permission.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use zmove_transport::Access;
use zmove_wire::{FrameHeader, FrameKind, SampleTime, SweepOrder, ToReceiver};

use crate::connections::breakage::{Appearance, interrupt, kill};
use crate::security::intruder::{Deed, Intruder, frame, message};
use crate::support::command::{Outcome, Runner};
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::quiet_machine::calm_machine;
use crate::support::tree::{names, paint};

/// Short rounds with few lanes.
const SHORT: [&str; 4] = ["--time", "1s", "--streams", "1,3"];

fn probe(site: &Site, options: &[&str], path: &str) -> Outcome {
    let mut zmove = site.zmove(&["probe"]);
    zmove.0.args(options).arg(site.address(path));
    zmove.outcome()
}

#[track_caller]
fn measured(site: &Site, options: &[&str], path: &str) -> Value {
    let outcome = probe(site, &[&["--json"], options].concat(), path).done();
    assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.stdout);
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[track_caller]
fn positive(value: &Value) -> f64 {
    let number = value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"));
    assert!(number > 0.0 && number.is_finite(), "{number}");
    number
}

#[test]
fn each_transport_is_measured_and_no_file_is_left() {
    let site = Site::daemon();
    for (number, transport) in (1..).zip(["tcp", "quic"]) {
        let found = measured(
            &site,
            &[&SHORT[..], &["--transport", transport]].concat(),
            "",
        );
        assert_eq!(found["transport"], transport);
        let rounds = found["rounds"].as_array().unwrap();
        assert_eq!(
            rounds
                .iter()
                .map(|round| round["lanes"].as_u64())
                .collect::<Vec<_>>(),
            [Some(1), Some(3)]
        );
        for round in rounds {
            let rate = positive(&round["bits_per_second"]);
            let counted = positive(&round["bytes"]) * 8.0 / positive(&round["seconds"]);
            assert!((rate / counted - 1.0).abs() < 1e-6, "{round}");
            positive(&round["first_bits_per_second"]);
            positive(&round["control_round_trip_mean_seconds"]);
            positive(&round["sender_cpu_seconds_per_gib"]);
            positive(&round["receiver_cpu_seconds_per_gib"]);
            assert!(
                positive(&round["bytes_sent"]) >= positive(&round["bytes"]),
                "{round}"
            );
            let shares = [
                "retransmitted_share",
                "receive_window_limited_share",
                "send_buffer_limited_share",
            ];
            assert!(
                shares
                    .iter()
                    .all(|share| (0.0..=1.0).contains(&round[share].as_f64().unwrap())),
                "{round}"
            );
        }
        assert!(
            positive(&found["round_trip_min_seconds"])
                <= positive(&found["round_trip_mean_seconds"])
        );
        positive(&found["first_byte_seconds"]);
        assert_eq!(
            (&found["prediction"], &found["target_storage"]),
            (&Value::Null, &Value::Null)
        );
        let lines = site.the_daemon().wait_for_logs("probed by tester", number);
        let line = lines.last().unwrap();
        assert!(line.contains("bytes of filler"), "{line}");
    }
    assert!(names(&site.target()).is_empty());
}

#[test]
fn both_storages_are_measured_and_the_time_for_a_tree_is_predicted() {
    // A sweep lasts only a few seconds.
    let _calm = calm_machine();
    let site = Site::daemon();
    std::fs::create_dir(site.target().join("in")).unwrap();
    (0..20).for_each(|number| paint(site.source().join(format!("f{number}")), 3_000));
    paint(site.source().join("large"), 2 << 20);
    let options = [
        "--time",
        "3s",
        "--streams",
        "2",
        "--for",
        "source",
        "--source",
        "source",
    ];
    let found = measured(&site, &options, "in");
    for storage in ["source_storage", "target_storage"] {
        let storage = &found[storage];
        assert_eq!(storage["fault"], Value::Null, "{storage}");
        let sizes = storage["sizes"].as_array().unwrap();
        // A busy disk may leave no time for some of the sizes.
        let written = |size: &Value| {
            size["write_bytes_per_second"]
                .as_f64()
                .is_some_and(|rate| rate > 0.0)
        };
        assert!(sizes.iter().any(written), "{storage}");
    }
    let predicted = &found["prediction"];
    let classes = predicted["classes"].as_array().unwrap();
    assert_eq!(
        classes
            .iter()
            .map(|class| &class["class"])
            .collect::<Vec<_>>(),
        ["losf", "medium"]
    );
    assert_eq!(
        (&classes[0]["files"], &classes[0]["bytes"]),
        (&20.into(), &60_000.into())
    );
    let sum: f64 = classes
        .iter()
        .map(|class| positive(&class["seconds"]))
        .sum();
    let all = positive(&predicted["seconds"]);
    assert!(
        (sum + predicted["start_seconds"].as_f64().unwrap() - all).abs() < 1e-6,
        "{predicted}"
    );
    assert!(predicted["limited_by"].is_string());
    assert!(names(&site.target().join("in")).is_empty());
    assert_eq!(names(&site.source()).len(), 21);
}

#[test]
fn the_text_output_is_a_table() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let options = [&SHORT[..], &["--no-sweep", "--for", "source"]].concat();
    let text = probe(&site, &options, "not/there").done().stdout;
    let address = site.the_daemon().address;
    assert!(
        text.starts_with(&format!("{address} over TCP: round trip ")),
        "{text}"
    );
    for part in [
        "\n    1 ",
        "\n    3 ",
        "bit/s",
        "source: a push of it takes about ",
        "target storage is not known",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(names(&site.target()).is_empty());
}

#[test]
fn a_missing_target_is_not_created() {
    let site = Site::daemon();
    let found = measured(&site, &["--time", "1s", "--streams", "1"], "not/there");
    let fault = found["target_storage"]["fault"].as_str().unwrap();
    assert!(fault.contains("No such file or directory"), "{fault}");
    assert!(names(&site.target()).is_empty());
}

/// A site with a daemon that grants the client `access`, or does not know the client.
fn acquainted(access: Option<Access>) -> (Site, Daemon) {
    let site = Site::local();
    if let Some(access) = access {
        site.authorize(access);
    }
    let daemon = Daemon::start(&site.path("server"), "127.0.0.1:0", &Runner::default());
    site.pin(&daemon.address, daemon.fingerprint);
    (site, daemon)
}

#[test]
fn a_key_without_write_permission_may_not_probe() {
    for (access, code, said) in [
        (None, 5, "this key is not known here"),
        (Some(Access::ReadOnly), 3, "this key may not write here"),
    ] {
        let (site, daemon) = acquainted(access);
        let outcome = site
            .zmove(&["probe", &format!("{}:", daemon.address)])
            .outcome()
            .expect(code);
        outcome.says(&["zmove: receiver: ", said]).lines(1);
    }
}

#[test]
fn a_place_outside_the_roots_is_refused() {
    let site = Site::daemon();
    probe(&site, &SHORT, "/etc")
        .expect(3)
        .says(&["lies in none of the roots"])
        .lines(1);
}

#[test]
fn an_unknown_receiver_is_not_measured() {
    let (site, daemon) = acquainted(Some(Access::ReadWrite));
    std::fs::remove_file(site.path("client/known_hosts")).unwrap();
    site.zmove(&["probe", "--strict", &format!("{}:", daemon.address)])
        .outcome()
        .expect(5)
        .lines(1);
    assert!(!site.path("client/known_hosts").exists());
    let log = daemon.end_and_read_log();
    assert!(!log.iter().any(|line| line.contains("begun")), "{log:?}");
}

/// The receiver reads no faster than the grant allows, so the measured rate is no higher.
#[test]
fn the_rate_of_a_grant_limits_a_probe() {
    let site = Site::daemon();
    let list = site.path("server/authorized_keys");
    let line = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, format!("{} max-rate=80Mbit\n", line.trim_end())).unwrap();
    let found = measured(&site, &["--time", "2s", "--streams", "2"], "");
    let rate = positive(&found["rounds"][0]["bits_per_second"]);
    assert!(rate < 120e6, "{rate}");
}

#[test]
fn an_interrupted_probe_ends_at_once_and_leaves_nothing() {
    let site = Site::daemon();
    std::fs::create_dir(site.target().join("in")).unwrap();
    let mut zmove = site.zmove(&["probe", "--time", "20s"]);
    zmove.0.arg(site.address("in"));
    let running = zmove.start();
    site.the_daemon().wait_for_log("begun by tester");
    let since = Instant::now();
    interrupt(running)
        .expect(20)
        .says(&["interrupted"])
        .lines(1);
    // The first of three rounds alone takes 20 s.
    assert!(
        since.elapsed() < Duration::from_secs(15),
        "{:?}",
        since.elapsed()
    );
    assert!(
        site.the_daemon()
            .wait_for_log("broken off by tester")
            .contains("tester")
    );
    assert!(names(&site.target().join("in")).is_empty());
}

#[test]
fn no_file_of_a_sweep_is_left_if_its_client_is_killed() {
    let site = Site::daemon();
    std::fs::create_dir(site.target().join("in")).unwrap();
    let begun = Appearance::of_beginning(".zmove-sweep-", &site.target().join("in"));
    let mut zmove = site.zmove(&["probe", "--time", "1s", "--streams", "1"]);
    zmove.0.arg(site.address("in"));
    let running = zmove.start();
    begun.wait();
    kill(running);
    site.the_daemon().wait_for_log("broken off by tester");
    assert!(names(&site.target().join("in")).is_empty());
}

#[test]
fn messages_of_probes_end_a_transfer() {
    let header = FrameHeader {
        kind: FrameKind::Filler,
        data_bytes: 1,
        ..FrameHeader::default()
    };
    let filler = Deed::Frame(frame(
        header,
        Vec::new(),
        blake3::hash(b"x").as_bytes(),
        b"x",
    ));
    let sample = message(&ToReceiver::Sample {
        sample: 1,
        when: SampleTime::Now,
    });
    let sweep = message(&ToReceiver::Sweep(SweepOrder {
        bytes: 1 << 20,
        millis: 1_000,
    }));
    for deed in [filler, sample, sweep] {
        let site = Site::local();
        let intruded = Intruder::new(&site.target()).does(vec![deed]);
        assert!(intruded.ended.unwrap_err().contains("is out of order"));
        assert!(names(&site.target()).is_empty());
    }
}

#[test]
fn a_wrong_argument_is_named() {
    let site = Site::local();
    let nonsense: [(&[&str], &str); 6] = [
        (&["dtn:99"], "'dtn:99:'"),
        (&["/data"], "'/data'"),
        (&["./x"], "'./x'"),
        (&["--streams", "0", "dtn:"], "--streams"),
        (&["--time", "1h", "dtn:"], "--time"),
        (&["--for", "nowhere", "dtn:"], "--for"),
    ];
    for (words, part) in nonsense {
        let outcome = site.zmove(&[&["probe"], words].concat()).outcome();
        let said = outcome.expect(1).stderr;
        assert!(said.contains(part), "{words:?}: {said}");
    }
    assert!(
        names(Path::new(&site.path("client"))).is_empty(),
        "no key was needed"
    );
}
