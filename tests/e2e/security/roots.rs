//! Roots inside other roots: a client that may write to the outer root could replace the inner one with a link.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use zmove_transport::{Access, AuthorizedKeys, Grant, Identity};

use crate::support::command::{Outcome, Runner, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::{Site, own_all, skip};
use crate::support::namespace::Namespace;
use crate::support::tree::{names, paint};

/// A site with a directory outside all roots, and with these directories below the target.
fn yard(inner: &[&str]) -> Site {
    let site = Site::local();
    paint(site.path("outside/precious"), 10);
    paint(site.source().join("evil"), 10);
    for name in inner {
        std::fs::create_dir(site.target().join(name)).unwrap();
        std::fs::create_dir_all(site.path("links")).unwrap();
        symlink(site.path("outside"), site.path("links").join(name)).unwrap();
    }
    site
}

/// Returns the canonical path of a directory of the site.
fn real(site: &Site, name: &str) -> PathBuf {
    site.path(name).canonicalize().unwrap()
}

/// Authorizes the key in `home` to write below `roots` and read below `read_roots`.
fn allow(site: &Site, home: &str, roots: &[&str], read_roots: &[&str]) {
    let key = Identity::load_or_create(&site.path(home))
        .unwrap()
        .fingerprint();
    let real = |names: &[&str]| {
        names
            .iter()
            .map(|name| real(site, name))
            .collect::<Vec<_>>()
    };
    let grant = Grant {
        read_roots: real(read_roots),
        ..Grant::new(key, home, real(roots), Access::WriteOnly)
    };
    AuthorizedKeys::allow(&site.path("server"), grant).unwrap();
}

fn start(site: &Site, options: &[&str]) -> Daemon {
    let options = [&["--listen", "127.0.0.1:0"], options].concat();
    let daemon = Daemon::start_with(&site.path("server"), &options, &Runner::default());
    site.pin(&daemon.address, daemon.fingerprint);
    let known = std::fs::read(site.path("client/known_hosts")).unwrap();
    std::fs::create_dir_all(site.path("other")).unwrap();
    std::fs::write(site.path("other/known_hosts"), known).unwrap();
    daemon
}

/// Runs a command of the client whose key is in `home`.
fn client(site: &Site, home: &str, words: &[&str]) -> Outcome {
    let mut zmove = Runner::default().zmove(&site.path(home));
    zmove.0.current_dir(site.path("")).args(words);
    zmove.outcome()
}

/// Replaces the inner roots with links to the outside, as a client that may write to the target.
fn push_links(site: &Site, daemon: &Daemon) {
    let target = format!("{}:", daemon.address);
    client(site, "client", &["push", "--force", "links/", &target]).done();
}

fn check(site: &Site, options: &[&str]) -> Outcome {
    let mut zmove = Runner::default().zmove(&site.path("server"));
    zmove.0.args(["serve", "--check"]).args(options);
    zmove.outcome()
}

#[track_caller]
fn assert_outside_is_as_it_was(site: &Site) {
    assert_eq!(names(&site.path("outside")), ["precious"]);
}

#[track_caller]
fn assert_refused(outcome: &Outcome) {
    let said = &outcome.stderr;
    assert_ne!(outcome.code, Some(0), "{said}");
    assert!(said.contains("lies in the root"), "{said}");
}

/// Pulls, pushes and cleans through the roots `out` and `in`, which are links.
fn assert_links_lead_nowhere(site: &Site, daemon: &Daemon) {
    let at = |name: &str| {
        format!(
            "{}:{}/",
            daemon.address,
            real(site, "target").join(name).display()
        )
    };
    let [out, into] = ["out", "in"].map(at);
    for words in [
        &["pull", &out, "got"][..],
        &["push", "source/", &into],
        &["push", "--delete", "source/", &into],
        &["push", "--dry-run", "source/", &into],
        &["verify", "source/", &into],
        &["clean", &into],
    ] {
        let outcome = client(site, "client", words);
        assert_refused(&outcome);
        assert_outside_is_as_it_was(site);
        assert!(!site.path("got/precious").exists());
    }
}

#[test]
fn an_inner_root_that_its_client_has_made_a_link_leads_nowhere() {
    let site = yard(&["in", "out"]);
    allow(&site, "client", &["target", "target/in"], &["target/out"]);
    check(&site, &[]).done();
    let daemon = start(&site, &[]);
    push_links(&site, &daemon);
    assert_links_lead_nowhere(&site, &daemon);
    check(&site, &[])
        .expect(1)
        .says(&["target/in' of client", "lies in the root"])
        .says(&["target/out' of client", "lies in the root"]);
    // The operator turns them into directories again.
    for name in ["in", "out"] {
        std::fs::remove_file(site.target().join(name)).unwrap();
        std::fs::create_dir(site.target().join(name)).unwrap();
    }
    let into = format!("{}:{}/", daemon.address, real(&site, "target/in").display());
    client(&site, "client", &["push", "source/", &into]).done();
    assert_eq!(names(&site.target().join("in")), ["evil"]);
}

/// After a restart, the kernel's rules apply to the roots as they are then.
#[test]
fn an_inner_root_that_is_a_link_stays_closed_with_and_without_confinement() {
    for confine in ["on", "off"] {
        let site = yard(&["in", "out"]);
        allow(&site, "client", &["target", "target/in"], &["target/out"]);
        let options = ["--confine", confine];
        if check(&site, &options).stderr.contains("Landlock") {
            return skip("this kernel has no Landlock, or an old one");
        }
        push_links(&site, &start(&site, &options));
        let daemon = start(&site, &options);
        assert_links_lead_nowhere(&site, &daemon);
        if confine == "on" {
            daemon.wait_for_log("lies in the root");
        }
    }
}

#[test]
fn a_root_that_another_client_has_made_a_link_is_not_emptied() {
    let site = yard(&["a"]);
    allow(&site, "client", &["target"], &[]);
    allow(&site, "other", &["target/a"], &["target/a"]);
    let daemon = start(&site, &[]);
    let target = format!("{}:", daemon.address);
    client(&site, "other", &["push", "--delete", "source/", &target]).done();
    push_links(&site, &daemon);
    for words in [
        &["push", "--delete", "source/", &target][..],
        &["pull", &target, "got"],
    ] {
        assert_refused(&client(&site, "other", words));
        assert_outside_is_as_it_was(&site);
        assert!(!site.path("got/precious").exists());
    }
    let root = site.target().join("a").display().to_string();
    let key = key(&site);
    let words = ["allow", &key, "--name", "other", "--root", &root];
    assert_refused(&client(&site, "server", &words));
    // Without the line of the client that created the link, its owner is unknown.
    client(&site, "server", &["allow", "remove", "client"])
        .expect(0)
        .says(&["target/a' of other", "lies in the root"]);
}

/// The server of a root's file system takes requests and does not answer. Commands of the operator end nevertheless,
/// and name the mount.
#[test]
fn a_root_that_does_not_answer_is_named_and_holds_no_command_up() {
    let Some(site) = Site::within(Namespace::with_silent_mount) else {
        return;
    };
    let home = site.path("server");
    let silent = real(&site, "target");
    let inside = silent.join("d");
    let roots = vec![silent.clone(), inside.clone(), real(&site, "source")];
    let other = Identity::load_or_create(&site.path("other")).unwrap();
    let grant = Grant::new(other.fingerprint(), "client", roots, Access::WriteOnly);
    AuthorizedKeys::allow(&home, grant).unwrap();
    let link = site.path("link");
    symlink(&inside, &link).unwrap();
    let root = link.to_str().unwrap();
    let key = key(&site);
    let start = |words: &[&str]| {
        let mut zmove = site.runner.zmove(&home);
        zmove.0.args(words);
        zmove.start()
    };
    let check = start(&["serve", "--check"]);
    let doctor = start(&["doctor", "--json", "--path", silent.to_str().unwrap()]);
    let allow = start(&["allow", &key, "--name", "new", "--root", root, "--write"]);
    let mount = format!(
        "no answer within 10 s (the fuse.mergerfs file system mounted at '{}' does not answer; mount it again)",
        silent.display()
    );
    let of = |root: &Path| format!("the root '{}' of client: {mount}", root.display());
    let check = finish(check).expect(1);
    check.says(&[&of(&silent)]).says(&[&of(&inside)]).lines(2);
    let doctor = finish(doctor).expect(4).stdout;
    for fault in [&of(&inside), &format!("'{}': {mount}", silent.display())] {
        assert!(doctor.contains(fault), "{doctor}");
    }
    let allow = finish(allow).expect(11);
    allow.says(&["open root", root, &mount]).lines(1);
}

/// The daemon looks at its roots before it is ready, to confine itself and to check the permissions of its user.
#[test]
fn a_root_that_does_not_answer_keeps_no_other_root_from_being_served() {
    let Some(site) = Site::within(Namespace::with_silent_mount) else {
        return;
    };
    for name in ["state", "open"] {
        std::fs::create_dir(site.path(name)).unwrap();
        own_all(&site.path(name));
    }
    allow(&site, "client", &["open"], &[]);
    let list = site.path("server/authorized_keys");
    let text = std::fs::read_to_string(&list).unwrap();
    let silent = real(&site, "target");
    let text = format!("{} root={}\n", text.trim_end(), silent.display());
    std::fs::write(&list, text).unwrap();
    let mut zmove = site.runner.zmove(&site.path("server"));
    zmove.0.env("STATE_DIRECTORY", site.path("state"));
    let options = [
        "--listen",
        "127.0.0.1:0",
        "--user",
        "nobody",
        "--confine",
        "auto",
    ];
    let daemon = Daemon::run(zmove.0, &options);
    daemon.wait_for_log(&format!("'{}': no answer within 10 s", silent.display()));
    site.pin(&daemon.address, daemon.fingerprint);
    paint(site.source().join("f"), 10);
    let target = format!("{}:", daemon.address);
    client(&site, "client", &["push", "source/", &target]).done();
    assert_eq!(names(&site.path("open")), ["f"]);
}

fn key(site: &Site) -> String {
    Identity::load_or_create(&site.path("other"))
        .unwrap()
        .fingerprint()
        .to_string()
}

/// Both roots are given as links that the operator created outside all roots.
#[test]
fn roots_are_reached_through_links_of_the_operator() {
    let site = yard(&[]);
    symlink(site.target(), site.path("to target")).unwrap();
    symlink("to target", site.path("again")).unwrap();
    allow(&site, "client", &["target"], &["target"]);
    let list = site.path("server/authorized_keys");
    let text = std::fs::read_to_string(&list).unwrap();
    let given = site.path("again").display().to_string();
    let text = text.replace(&real(&site, "target").display().to_string(), &given);
    std::fs::write(&list, text).unwrap();
    check(&site, &[]).done();
    let daemon = start(&site, &[]);
    let target = format!("{}:", daemon.address);
    client(&site, "client", &["push", "source/", &target]).done();
    client(&site, "client", &["pull", &format!("{target}evil"), "got"]).done();
    assert!(site.path("got").exists());
    assert_eq!(names(&site.target()), ["evil"]);
}

/// With write access a client could add lines to the list of keys, and with read access it could copy the key.
#[test]
fn no_client_is_let_into_a_root_with_the_files_of_the_daemon() {
    let site = yard(&[]);
    let home = site.path("server");
    for (roots, read_roots) in [
        (&["."][..], &[][..]),
        (&["server"], &[]),
        (&["target"], &["."]),
    ] {
        drop(std::fs::remove_file(home.join("authorized_keys")));
        allow(&site, "client", roots, read_roots);
        let list = std::fs::read(home.join("authorized_keys")).unwrap();
        check(&site, &[])
            .expect(1)
            .says(&["of client: ", "belongs to the daemon itself"]);
        let daemon = start(&site, &[]);
        let (words, files) = if read_roots.is_empty() {
            let server = format!("{}:{}/", daemon.address, real(&site, "server").display());
            (vec!["push", "source/", "--delete", "--force"], server)
        } else {
            let key = format!("{}:server/key.pem", daemon.address);
            (vec!["pull"], key)
        };
        let last = if read_roots.is_empty() {
            vec![files]
        } else {
            vec![files, "got".into()]
        };
        let words: Vec<_> = words
            .into_iter()
            .chain(last.iter().map(String::as_str))
            .collect();
        let outcome = client(&site, "client", &words);
        let said = &outcome.stderr;
        assert!(
            outcome.code != Some(0) && said.contains("belongs to the daemon itself"),
            "{said}"
        );
        assert_eq!(std::fs::read(home.join("authorized_keys")).unwrap(), list);
        assert!(!site.path("got").exists());
        allow_by_command(&site, site.path("").to_str().unwrap());
    }
}

/// `zmove allow` with a root that contains the daemon's home.
fn allow_by_command(site: &Site, root: &str) {
    let key = key(site);
    let words = ["allow", &key, "--name", "other", "--read-root", root];
    let outcome = client(site, "server", &words);
    let said = &outcome.stderr;
    assert!(
        outcome.code != Some(0) && said.contains("belongs to the daemon itself"),
        "{said}"
    );
}
