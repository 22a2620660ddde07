//! Pushes with a rate limit.

use std::time::Instant;

use serde_json::Value;

use crate::several::spread::Spread;
use crate::support::harness::Site;
use crate::support::quiet_machine::{calm_machine, quiet_machine};
use crate::support::tree::{assert_same, names, paint};

/// Rate limit of 4 MB per second, which even a busy machine can exceed.
const LIMIT: &str = "32Mbit";
const BYTES_PER_SECOND: f64 = 4e6;
const BYTES: u32 = 6 << 20;
/// Factor for the minimum duration. It allows for data that is sent before the rate limit takes effect, and for the
/// kernel's first burst.
const TOLERANCE: f64 = 0.8;

#[test]
fn a_limit_is_kept_over_all_lanes() {
    for (site, streams) in [
        (Site::daemon(), "1"),
        (Site::daemon(), "4"),
        (Site::clear(), "4"),
        (Site::quic(), "4"),
    ] {
        paint(site.source().join("f"), u64::from(BYTES));
        let started = Instant::now();
        let options = ["--limit", LIMIT, "--streams", streams, "--json"];
        let summary = site.push(&options, site.contents(), "").done().summary();
        let (seconds, least) = (
            started.elapsed().as_secs_f64(),
            f64::from(BYTES) / BYTES_PER_SECOND,
        );
        assert!(
            seconds >= TOLERANCE * least,
            "{seconds} s over {streams} lanes"
        );
        assert_eq!(summary["limited_by"], "own_rate", "{summary}");
        assert_same(&site.source(), &site.target());
    }
}

#[test]
fn the_live_rate_is_right_or_not_shown() {
    let _calm = calm_machine();
    let site = Site::daemon();
    paint(site.source().join("f"), 64 << 20);
    // Many small files are sent first. They must not affect the measured rate.
    for number in 0..200 {
        paint(site.source().join(format!("small/{number}")), 10);
    }
    let options = ["--limit", "80Mbit", "--streams", "1", "--json"];
    let said = site.push(&options, site.contents(), "").done().stdout;
    let events = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rates: Vec<_> = events
        .filter(|event| event["event"] == "progress")
        .map(|event| event["bytes_per_second"].clone())
        .collect();
    assert!(rates.iter().any(Value::is_number), "{rates:?}");
    let is_right = |rate: f64| (0.85..1.15).contains(&(rate / 10e6));
    assert!(
        rates.iter().all(|rate| rate.as_f64().is_none_or(is_right)),
        "{rates:?}"
    );
}

/// With 16 lanes at 2 MB/s each, this took 33 s and sent one chunk twice. A lower rate uses fewer lanes.
#[test]
fn two_chunks_take_no_longer_over_many_lanes() {
    let _quiet = quiet_machine();
    const FEW_BYTES: u32 = 5 << 20;
    for site in [Site::daemon(), Site::clear(), Site::quic()] {
        paint(site.source().join("f"), u64::from(FEW_BYTES));
        let started = Instant::now();
        let options = ["--limit", "4MB", "--streams", "16", "--json"];
        let summary = site.push(&options, site.contents(), "").done().summary();
        let (seconds, ideal) = (started.elapsed().as_secs_f64(), f64::from(FEW_BYTES) / 4e6);
        assert!(
            (TOLERANCE * ideal..3.0 * ideal).contains(&seconds),
            "{seconds} s in the place of {ideal}"
        );
        assert_eq!(
            (&summary["limited_by"], &summary["repeated"]),
            (&"own_rate".into(), &0.into()),
            "{summary}"
        );
        assert_same(&site.source(), &site.target());
    }
}

/// The handshakes of 64 lanes over QUIC use as much data as this rate allows in a second.
#[test]
fn a_low_limit_has_no_more_lanes_than_it_can_use() {
    for site in [Site::daemon(), Site::quic()] {
        paint(site.source().join("f"), 1 << 20);
        let options = ["--limit", "1MB", "--streams", "64", "--json"];
        let summary = site.push(&options, site.contents(), "").done().summary();
        // At most four lanes. On a busy machine the push may end before all of them are connected.
        let lanes = summary["lanes"].as_u64().unwrap();
        assert!((1..=4).contains(&lanes), "{summary}");
        assert_same(&site.source(), &site.target());
    }
}

#[test]
fn a_limit_that_cannot_be_meant_is_a_usage_error() {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let outcome = site
        .push(&["--limit", "100Mb"], site.contents(), "")
        .expect(1);
    assert!(
        outcome.stderr.contains("500Mbit") && outcome.stderr.contains("100MiB"),
        "{}",
        outcome.stderr
    );
    let outcome = site
        .push(&["--limit", "100MB"], site.contents(), "")
        .expect(1);
    outcome.says(&["zmove: ", "--limit", "another host"]);
}

/// At this rate no group is stored for 40 s. Without a rate limit, storage counts as hanging after that time.
#[test]
fn a_low_rate_limit_is_not_reported_as_hanging_storage() {
    let spread = Spread::new(2);
    paint(spread.source().join("f"), 4 << 20);
    let push = spread
        .push(&["--limit", "90kB"], "source")
        .outcome()
        .expect(0);
    assert!(
        !push.stderr.contains("its storage may be hanging"),
        "{}",
        push.stderr
    );
    assert_eq!(
        names(&spread.target_directory()),
        ["f"],
        "no session was lost"
    );
}
