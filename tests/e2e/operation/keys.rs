//! Keys before the first push: created, fetched, compared, pinned and removed.

use zmove_transport::{Access, Identity};

use crate::support::command::{Outcome, Runner};
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::tree::{assert_same, names, paint};

/// A site whose client may write, with a daemon that the client does not know.
fn unknown_host() -> (Site, Daemon, String) {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    site.authorize(Access::WriteOnly);
    let daemon = Daemon::start(&site.path("server"), "127.0.0.1:0", &Runner::default());
    let host = daemon.address.to_string();
    (site, daemon, host)
}

fn zmove(site: &Site, words: &[&str]) -> Outcome {
    site.zmove(words).outcome()
}

fn push(site: &Site, options: &[&str], host: &str) -> Outcome {
    zmove(
        site,
        &[&["push"], options, &["source/", &format!("{host}:x")]].concat(),
    )
}

#[test]
fn a_key_is_replaced_only_by_force_and_the_old_one_is_kept() {
    let site = Site::local();
    let first = zmove(&site, &["key", "new"]).done().stdout;
    let text = std::fs::read(site.path("client/key.pem")).unwrap();
    zmove(&site, &["key", "new"])
        .expect(11)
        .says(&["already has a key", "--force"])
        .lines(1);
    assert_eq!(zmove(&site, &["key", "show"]).done().stdout, first);
    let forced = zmove(&site, &["key", "new", "--force"]).expect(0);
    assert_ne!(forced.stdout, first);
    assert_eq!(zmove(&site, &["key", "show"]).done().stdout, forced.stdout);
    assert_eq!(
        std::fs::read(site.path("client/key.pem.old")).unwrap(),
        text
    );
    forced
        .says(&["zmove: the previous key is kept in", "key.pem.old"])
        .lines(1);
}

#[test]
fn a_replaced_key_is_unknown_to_the_daemon() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    zmove(&site, &["key", "new", "--force"]).expect(0);
    site.push(&[], site.contents(), "x")
        .expect(5)
        .says(&["this key is not known here"])
        .lines(1);
    assert!(names(&site.target()).is_empty());
}

#[test]
fn strict_refuses_an_unknown_host_and_pushes_to_a_known_one() {
    let (site, daemon, host) = unknown_host();
    for transport in ["tcp", "quic"] {
        let outcome = push(&site, &["--strict", "--transport", transport], &host).expect(5);
        outcome
            .says(&[
                "zmove: verify the key of",
                &daemon.fingerprint.to_string(),
                "not in known_hosts",
            ])
            .lines(1);
    }
    assert!(!site.path("client/known_hosts").exists() && names(&site.target()).is_empty());
    zmove(&site, &["trust", &host, "--accept-new"]).done();
    push(&site, &["--strict"], &host).done();
    assert_same(&site.source(), &site.target().join("x"));
    push(&site, &["--strict", "--accept-new"], &host).expect(1);
}

#[test]
fn a_host_is_trusted_by_its_fingerprint_and_only_by_that() {
    let (site, daemon, host) = unknown_host();
    let (right, wrong) = (daemon.fingerprint.to_string(), site.client_key());
    zmove(&site, &["trust", &host])
        .expect(5)
        .says(&["zmove: the key of", &right, "--fingerprint"])
        .lines(1);
    let outcome = zmove(&site, &["trust", &host, "--fingerprint", &wrong]).expect(5);
    outcome
        .says(&[
            "zmove: verify the key of",
            &format!("it is {right}, not {wrong}"),
        ])
        .lines(1);
    assert!(!site.path("client/known_hosts").exists());
    let said = zmove(&site, &["trust", &host, "--fingerprint", &right])
        .done()
        .stdout;
    assert_eq!(said, format!("pinned the key of {host}: {right}\n"));
    let said = zmove(&site, &["trust", &host]).done().stdout;
    assert!(
        said.contains("is already known") && said.contains(&right),
        "{said}"
    );
    zmove(&site, &["trust", &host, "--fingerprint", &wrong]).expect(5);
    push(&site, &["--strict"], &host).done();
}

#[test]
fn known_hosts_are_listed_and_forgotten() {
    let (site, daemon, host) = unknown_host();
    assert_eq!(
        zmove(&site, &["trust", "list"]).done().stdout,
        "no known hosts\n"
    );
    zmove(&site, &["trust", &host, "--accept-new"]).done();
    let listed = format!("{host} {}\n", daemon.fingerprint);
    assert_eq!(zmove(&site, &["trust", "list"]).done().stdout, listed);
    let json: serde_json::Value =
        serde_json::from_str(&zmove(&site, &["trust", "list", "--json"]).done().stdout).unwrap();
    assert_eq!(
        (json["host"].as_str(), json["key"].as_str()),
        listed
            .trim_end()
            .split_once(' ')
            .map(|(a, b)| (Some(a), Some(b)))
            .unwrap()
    );
    zmove(&site, &["trust", "remove", "127.0.0.1:1"])
        .expect(1)
        .says(&["no key of 127.0.0.1:1 is pinned"]);
    zmove(&site, &["trust", "remove", &host]).done();
    assert_eq!(
        zmove(&site, &["trust", "list"]).done().stdout,
        "no known hosts\n"
    );
    assert_eq!(
        std::fs::read_to_string(site.path("client/known_hosts.old")).unwrap(),
        listed
    );
    push(&site, &["--strict"], &host).expect(5);
}

#[test]
fn trust_reports_a_host_whose_key_has_changed() {
    let (site, daemon, host) = unknown_host();
    let other = Identity::load_or_create(&site.path("other"))
        .unwrap()
        .fingerprint();
    site.pin(&daemon.address, other);
    for options in [
        &[][..],
        &["--accept-new"],
        &["--fingerprint", &daemon.fingerprint.to_string()],
    ] {
        let outcome = zmove(&site, &[&["trust", host.as_str()], options].concat()).expect(5);
        let advice = format!("zmove trust remove {host}");
        outcome
            .says(&[
                "zmove: verify the key of",
                &other.to_string(),
                &daemon.fingerprint.to_string(),
                &advice,
            ])
            .lines(1);
    }
    zmove(&site, &["trust", "remove", &host]).done();
    zmove(
        &site,
        &[
            "trust",
            &host,
            "--fingerprint",
            &daemon.fingerprint.to_string(),
        ],
    )
    .done();
}

#[test]
fn trust_names_the_wrong_argument() {
    let site = Site::local();
    for (words, part) in [
        (&["trust"][..], "required arguments were not provided"),
        (&["trust", "a", "b"], "'b'"),
        (&["trust", "a:x"], "'x' is not a valid port"),
        (&["trust", "u@a"], "write the host without 'USER@'"),
        (&["trust", "list", "a"], "unexpected argument 'a'"),
        (
            &["trust", "127.0.0.1:1", "--fingerprint", "SHA256:short"],
            "not a key fingerprint",
        ),
    ] {
        zmove(&site, words).expect(1).says(&[part]);
    }
}
