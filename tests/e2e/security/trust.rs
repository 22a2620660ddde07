//! Authorization of connections and of target paths.

use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use zmove_transport::{Access, Identity};

use crate::support::command::{NOBODY, Outcome, Runner};
use crate::support::daemon::Daemon;
use crate::support::harness::{Site, has_program, is_root, skip};
use crate::support::tree::{assert_pictures, assert_same, names, paint, picture};

const TRANSPORTS: [&str; 2] = ["tcp", "quic"];

/// A site whose daemon and client do not know each other.
fn strangers() -> (Site, Daemon) {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let daemon = Daemon::start(&site.path("server"), "127.0.0.1:0", &Runner::default());
    (site, daemon)
}

fn push(site: &Site, options: &[&str], target: &str) -> Outcome {
    site.zmove(&[&["push"], options, &["source/", target]].concat())
        .outcome()
}

#[test]
fn the_key_is_one_line_and_stays() {
    let site = Site::local();
    let shown = site.zmove(&["key", "show"]).outcome().done().stdout;
    assert_eq!(shown.lines().count(), 1);
    assert!(
        shown.starts_with("SHA256:") && shown.ends_with('\n'),
        "{shown}"
    );
    assert_eq!(site.zmove(&["key", "show"]).outcome().done().stdout, shown);
    let mode =
        std::os::unix::fs::MetadataExt::mode(&site.path("client/key.pem").metadata().unwrap());
    assert_eq!(mode & 0o077, 0);
}

/// Runs the commands exactly as the messages print them.
#[test]
fn an_unknown_key_is_told_what_to_run() {
    let (site, daemon) = strangers();
    let target = format!("{}:x", daemon.address);
    let outcome = push(&site, &["--accept-new"], &target).expect(5);
    let key = site.client_key();
    let advice = format!("zmove allow {key} --name NAME --root DIR --write");
    let outcome = outcome.says(&["zmove: receiver: this key is not known here", &advice]);
    outcome
        .says(&["zmove: pinned the key of", &daemon.fingerprint.to_string()])
        .lines(2);
    daemon.wait_for_log(&format!("unknown key {key}"));
    let root = site.target();
    let said = site.allow(&[
        &key,
        "--name",
        "alice",
        "--root",
        root.to_str().unwrap(),
        "--write",
    ]);
    assert!(said.done().stdout.contains("alice"));
    // The key takes effect immediately, and the host is now known.
    push(&site, &["--json"], &target).done();
    assert_same(&site.source(), &site.target().join("x"));
    daemon.wait_for_log("received from alice");
}

#[test]
fn an_unknown_host_is_not_trusted_without_a_word() {
    let (site, daemon) = strangers();
    site.authorize(Access::WriteOnly);
    for _ in 0..2 {
        let outcome = push(&site, &[], &format!("{}:x", daemon.address)).expect(5);
        outcome
            .says(&[
                "zmove: ",
                "is not known",
                &daemon.fingerprint.to_string(),
                "--accept-new",
            ])
            .lines(1);
    }
    assert!(names(&site.target()).is_empty());
}

#[test]
fn a_changed_host_key_is_refused_even_with_accept_new() {
    let (site, daemon) = strangers();
    site.authorize(Access::WriteOnly);
    let other = Identity::load_or_create(&site.path("other"))
        .unwrap()
        .fingerprint();
    site.pin(&daemon.address, other);
    for transport in TRANSPORTS {
        for options in [&[][..], &["--accept-new"]] {
            let options = [&["--transport", transport], options].concat();
            let outcome = push(&site, &options, &format!("{}:x", daemon.address)).expect(5);
            let keys = [daemon.fingerprint.to_string(), other.to_string()];
            outcome
                .says(&[
                    "zmove: verify the key of",
                    &keys[0],
                    &keys[1],
                    "known_hosts",
                ])
                .lines(1);
        }
    }
    daemon.wait_for_log("does not trust this host's key");
    assert!(names(&site.target()).is_empty());
}

#[test]
fn targets_outside_the_roots_are_refused() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let (root, beside) = (site.target(), site.path("targets"));
    std::fs::create_dir(&beside).unwrap();
    for target in [
        "/",
        "/etc",
        site.path("").to_str().unwrap(),
        beside.to_str().unwrap(),
    ] {
        let outcome = site.push(&[], site.contents(), target).expect(3);
        outcome
            .says(&[
                "zmove: receiver: ",
                "lies in none of the roots",
                root.to_str().unwrap(),
            ])
            .lines(1);
    }
    let dotted = root.join("../targets");
    for target in [
        "..",
        "../targets",
        "a/../../targets",
        "a/../b",
        dotted.to_str().unwrap(),
    ] {
        let outcome = site.push(&[], site.contents(), target).expect(3);
        outcome.says(&["zmove: receiver: target"]).lines(1);
    }
    assert!(names(&root).is_empty() && names(&beside).is_empty());
}

#[test]
fn a_link_that_leads_out_of_the_root_is_not_followed() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let outside = site.path("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, site.target().join("absolute")).unwrap();
    symlink("../outside", site.target().join("relative")).unwrap();
    let before = picture(&site.target());
    for target in [
        "absolute",
        "relative",
        "absolute/",
        "relative/deeper",
        "absolute/./x",
    ] {
        let outcome = site.push(&[], site.contents(), target).expect(3);
        outcome
            .says(&["zmove: receiver: target", "symbolic link", "not followed"])
            .lines(1);
    }
    assert!(names(&outside).is_empty());
    assert_pictures(&before, &picture(&site.target()));
}

/// Selects each root in turn. The names of the roots need quoting in a list of words.
#[test]
fn a_target_path_selects_its_root() {
    let (site, daemon) = strangers();
    let key = site.client_key();
    let roots = ["first root", "second%20"].map(|name| site.path(name));
    roots
        .iter()
        .for_each(|root| std::fs::create_dir(root).unwrap());
    let [first, second] = roots.each_ref().map(|root| root.to_str().unwrap());
    site.allow(&[
        &key, "--name", "bob b.", "--root", first, "--root", second, "--write",
    ])
    .done();
    site.pin(&daemon.address, daemon.fingerprint);
    let expect_at = |target: &str, at: &Path| {
        push(&site, &[], &format!("{}:{target}", daemon.address)).done();
        assert_same(&site.source(), at);
    };
    expect_at("in/x", &roots[0].join("in/x"));
    expect_at(&format!("{first}//z/."), &roots[0].join("z"));
    expect_at(second, &roots[1]);
    expect_at(&format!("{second}/y"), &roots[1].join("y"));
    assert!(names(&site.target()).is_empty());
}

#[test]
fn allow_refuses_missing_roots_and_files() {
    let (site, _daemon) = strangers();
    let key = site.client_key();
    paint(site.path("file"), 1);
    site.allow(&[&key, "--name", "x", "--root", "nowhere", "--write"])
        .expect(11)
        .says(&[
            "zmove: receiver: open root",
            "nowhere",
            "No such file or directory",
        ])
        .lines(1);
    site.allow(&[&key, "--name", "x", "--root", "file", "--write"])
        .expect(1)
        .says(&["zmove: root", "file", "is not a directory"])
        .lines(1);
    site.allow(&["SHA256:short", "--name", "x", "--root", "source"])
        .expect(1);
    assert!(!site.path("server/authorized_keys").exists());
}

#[test]
fn a_missing_root_is_reported_and_not_created() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    std::fs::remove_dir(site.target()).unwrap();
    let outcome = site.push(&[], site.contents(), "x").expect(3);
    let root = site.target();
    outcome
        .says(&[
            "zmove: receiver: open root",
            root.to_str().unwrap(),
            "No such file or directory",
        ])
        .lines(1);
    assert!(!site.target().exists());
}

#[test]
fn an_unreadable_list_of_keys_lets_nobody_in() {
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let list = site.path("server/authorized_keys");
    let text = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, format!("{text}what is this\n")).unwrap();
    let outcome = site.push(&[], site.contents(), "x").expect(10);
    outcome
        .says(&["zmove: receiver: ", "authorized_keys"])
        .lines(1);
    site.the_daemon().wait_for_log("authorized_keys");
    std::fs::write(&list, text).unwrap();
    site.push_contents();
}

/// Another user who owns a file, or can replace it, controls its contents.
#[test]
fn lists_and_keys_that_others_can_change_are_refused_with_the_command_that_mends_it() {
    if !is_root() {
        return skip("only root can give files to others");
    }
    let site = Site::daemon();
    paint(site.source().join("f"), 10);
    let give = |file: &Path, to: u32| std::os::unix::fs::chown(file, Some(to), None).unwrap();
    let open = |file: &Path, mode: u32| {
        std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap()
    };
    let serve = || {
        let mut serve = site.zmove(&["serve", "--listen", "127.0.0.1:0", "--check"]);
        serve.0.env("ZMOVE_HOME", site.path("server"));
        serve.outcome()
    };
    for file in ["authorized_keys", "key.pem"] {
        let file = site.path("server").join(file).canonicalize().unwrap();
        give(&file, NOBODY);
        let shown = file.display();
        serve().expect(1).says(&[
            &format!("'{shown}' belongs to the user 'nobody'"),
            &format!("run: chown -h root {shown}"),
        ]);
        let mut serve = site.zmove(&["serve", "--listen", "127.0.0.1:0"]);
        serve.0.env("ZMOVE_HOME", site.path("server"));
        serve
            .outcome()
            .expect(11)
            .says(&[&format!("run: chown -h root {shown}")])
            .lines(1);
        give(&file, 0);
    }
    let home = site.path("server").canonicalize().unwrap();
    open(&home, 0o777);
    serve().expect(1).says(&[
        &format!("'{}' has mode 0777", home.display()),
        "run: chmod go-w",
    ]);
    // A running daemon notices the change.
    let outcome = site.push(&[], site.contents(), "x").expect(10);
    outcome
        .says(&["zmove: receiver: ", "authorized_keys"])
        .lines(1);
    site.the_daemon()
        .wait_for_log(&format!("run: chmod go-w {}", home.display()));
    open(&home, 0o700);
    give(&home.join("authorized_keys"), NOBODY);
    site.push(&[], site.contents(), "x").expect(10);
    site.the_daemon().wait_for_log("run: chown -h 0 ");
    give(&home.join("authorized_keys"), 0);
    assert!(names(&site.target()).is_empty());
    site.push_contents();
}

#[test]
fn a_target_may_be_a_url_or_host_port_path() {
    let (site, daemon) = strangers();
    site.authorize(Access::WriteOnly);
    site.pin(&daemon.address, daemon.fingerprint);
    let (port, root) = (daemon.address.port(), site.target());
    let root = root.to_str().unwrap();
    push(&site, &[], &format!("zmove://127.0.0.1:{port}{root}/url")).done();
    push(&site, &[], &format!("127.0.0.1:{port}:{root}/absolute")).done();
    push(&site, &[], &format!("127.0.0.1:{port}:relative")).done();
    push(&site, &["--accept-new"], &format!("localhost:{port}:name")).expect(0);
    for name in ["url", "absolute", "relative", "name"] {
        assert_same(&site.source(), &site.target().join(name));
    }
}

#[test]
fn a_host_may_be_an_ipv6_address_in_brackets() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip("this host has no IPv6");
    }
    let site = Site::local();
    paint(site.source().join("f"), 10);
    site.authorize(Access::WriteOnly);
    let daemon = Daemon::start(&site.path("server"), "[::1]:0", &Runner::default());
    let (port, root) = (daemon.address.port(), site.target());
    push(&site, &["--accept-new"], &format!("[::1]:{port}:x")).expect(0);
    push(
        &site,
        &[],
        &format!("zmove://[::1]:{port}{}/y", root.display()),
    )
    .done();
    assert_same(&site.source(), &root.join("x"));
    assert_same(&site.source(), &root.join("y"));
}

/// One socket for both address families: `[::]` accepts IPv4 clients as well.
#[test]
fn the_ipv6_wildcard_accepts_both_address_families() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip("this host has no IPv6");
    }
    let site = Site::local();
    paint(site.source().join("f"), 10);
    site.authorize(Access::WriteOnly);
    let daemon = Daemon::start(&site.path("server"), "[::]:0", &Runner::default());
    for (host, name) in [("127.0.0.1", "four"), ("[::1]", "six")] {
        let target = format!("{host}:{}:{name}", daemon.address.port());
        push(&site, &["--accept-new"], &target).expect(0);
        assert_same(&site.source(), &site.target().join(name));
    }
}

#[test]
fn the_time_in_which_a_user_answers_is_no_transfer_time() {
    const THINKS: Duration = Duration::from_millis(1_500);
    if !has_program("script") {
        return skip("a terminal needs script");
    }
    let (site, daemon) = strangers();
    site.authorize(Access::WriteOnly);
    let target = format!("{}:in", daemon.address);
    let zmove = site.zmove(&["push", "--json", "source/", &target]).0;
    let words = std::iter::once(zmove.get_program()).chain(zmove.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
    let environment = zmove.get_envs();
    let mut script = Command::new("script");
    script.args(["-qec", &words.join(" "), "/dev/null"]);
    script.envs(environment.filter_map(|(name, value)| Some((name, value?))));
    script.current_dir(site.path(""));
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let began = Instant::now();
    let mut script = script.spawn().unwrap();
    let mut screen = script.stdout.take().unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"(yes/no)? ") {
        let mut byte = [0];
        screen.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    std::thread::sleep(THINKS);
    let mut keyboard = script.stdin.take().unwrap();
    keyboard.write_all(b"yes\n").unwrap();
    let mut said = String::new();
    screen.read_to_string(&mut said).unwrap();
    assert!(script.wait().unwrap().success(), "{said}");
    let took = began.elapsed();
    let summary: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    for time in ["seconds", "first_byte_seconds"] {
        let seconds = summary[time].as_f64().unwrap();
        assert!(
            seconds + THINKS.as_secs_f64() <= took.as_secs_f64(),
            "{time}: {seconds} of {took:?}"
        );
    }
}
