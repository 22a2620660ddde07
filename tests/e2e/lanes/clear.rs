//! Cleartext lanes: both ends must agree to them, anyone on the path can read them, and nobody can modify them
//! undetected.

use std::fs::write;

use crate::support::command::{Outcome, finish};
use crate::support::harness::Site;
use crate::support::proxy::{Proxy, Strike};
use crate::support::tree::{assert_same, names, paint};

const CONTENTS: &[u8] = b"what stands in the file";
const NAME: &str = "the-name-of-the-file";
/// Distance from a name in a batch's header back to the authentication code of the header.
const NAME_TO_MAC: usize = 35;

/// Pushes one file through a relay that flips a bit.
fn push_struck(site: &Site, strike: Strike) -> (Outcome, Proxy) {
    write(site.source().join(NAME), CONTENTS.repeat(100)).unwrap();
    let daemon = site.the_daemon();
    let proxy = Proxy::striking(daemon.address, strike);
    site.pin(&proxy.address, daemon.fingerprint);
    (
        finish(site.push_by(&proxy.address, &["--json"]).start()),
        proxy,
    )
}

#[test]
fn clear_lanes_need_the_permission_of_the_receiver() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let outcome = site
        .push(&["--cipher", "none"], site.contents(), "")
        .expect(3);
    outcome
        .says(&[
            "zmove: receiver:",
            "'--cipher none'",
            "'zmove serve --allow-clear'",
        ])
        .lines(1);
    assert!(names(&site.target()).is_empty());
    site.the_daemon()
        .wait_for_log("asked for unencrypted lanes");
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

/// Both ends report the agreed cipher. Inside one process there is no cipher.
#[test]
fn the_summary_names_the_cipher() {
    let cases = [
        (Site::daemon(), Some("tls")),
        (Site::clear(), Some("none")),
        (Site::local(), None),
    ];
    for (site, cipher) in cases {
        paint(site.source().join("f"), 10);
        // The second push has nothing to transfer.
        for _ in 0..2 {
            let text = site.push(&[], site.contents(), "").done().stdout;
            let told = text
                .lines()
                .find_map(|line| line.split_once("cipher: "))
                .map(|(_, told)| told);
            assert_eq!(
                told.and_then(|told| told.split(',').next()),
                cipher,
                "{text}"
            );
        }
        assert_eq!(site.push_contents()["cipher"].as_str(), cipher);
        if cipher == Some("none") {
            site.the_daemon().wait_for_log("0 faults, in clear");
        }
    }
}

#[test]
fn contents_that_are_changed_on_the_path_are_sent_again() {
    let site = Site::clear();
    let (outcome, proxy) = push_struck(
        &site,
        Strike {
            seen: CONTENTS,
            before: 0,
        },
    );
    assert!(proxy.has_struck(), "the contents were not in clear");
    let summary = outcome.expect(0).summary();
    assert_eq!(
        (&summary["resent"], &summary["failed"]),
        (&1.into(), &0.into())
    );
    assert_same(&site.source(), &site.target());
}

#[test]
fn names_that_are_changed_on_the_path_are_sent_again() {
    let site = Site::clear();
    let (outcome, proxy) = push_struck(
        &site,
        Strike {
            seen: NAME.as_bytes(),
            before: 0,
        },
    );
    assert!(proxy.has_struck(), "the name was not in clear");
    assert_eq!(outcome.expect(0).summary()["resent"], 1);
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_header_that_is_changed_on_the_path_ends_the_push() {
    let site = Site::clear();
    let (outcome, proxy) = push_struck(
        &site,
        Strike {
            seen: NAME.as_bytes(),
            before: NAME_TO_MAC,
        },
    );
    assert!(proxy.has_struck());
    outcome
        .expect(12)
        .says(&["zmove: receiver: data lane: a frame failed authentication"])
        .lines(1);
    assert!(names(&site.target()).is_empty());
    site.the_daemon()
        .wait_for_log("a frame failed authentication");
}

#[test]
fn nothing_is_read_on_the_path_by_default() {
    for seen in [CONTENTS, NAME.as_bytes()] {
        let site = Site::daemon();
        let (outcome, proxy) = push_struck(&site, Strike { seen, before: 0 });
        assert_eq!(outcome.done().summary()["cipher"], "tls");
        assert!(!proxy.has_struck());
        assert_same(&site.source(), &site.target());
    }
}
