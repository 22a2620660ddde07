//! Low limits of a process: zmove uses fewer threads and connections, or reports the limit before the work begins. It
//! never panics or aborts.

use std::path::Path;

use zmove_transport::{Access, AuthorizedKeys, Grant, Identity};

use crate::support::command::Outcome;
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::tree::{assert_same, paint};

/// Limits on the number of processes, from too few for the runtime to enough for the whole program.
const PROCESSES: [u32; 14] = [1, 2, 4, 6, 8, 9, 10, 11, 12, 14, 16, 20, 32, 64];
/// Limits on the number of open files, from too few to start the program to enough for the whole program.
const FILES: [u32; 12] = [5, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64];

#[test]
fn a_local_push_within_a_process_limit_completes_or_names_the_limit() {
    if let Some(pair) = Pair::local() {
        check_pushes(pair, "--nproc=", &PROCESSES, "ulimit -u");
    }
}

#[test]
fn a_push_to_a_daemon_within_a_process_limit_completes_or_names_the_limit() {
    if let Some(pair) = Pair::with_daemon() {
        check_pushes(pair, "--nproc=", &PROCESSES, "ulimit -u");
    }
}

#[test]
fn a_local_push_within_an_open_file_limit_completes_or_names_the_limit() {
    if let Some(pair) = Pair::local() {
        check_pushes(pair, "--nofile=", &FILES, "open files");
    }
}

#[test]
fn a_push_to_a_daemon_within_an_open_file_limit_completes_or_names_the_limit() {
    if let Some(pair) = Pair::with_daemon() {
        check_pushes(pair, "--nofile=", &FILES, "open files");
    }
}

#[test]
fn a_push_limited_to_48_open_files_uses_fewer_lanes() {
    let Some(mut pair) = Pair::with_daemon() else {
        return;
    };
    pair.client.runner.limits = vec!["--nofile=48".to_owned()];
    let address = pair.server.as_ref().unwrap().the_daemon().address;
    let options = ["--json", "--streams", "64", "--transport", "tcp"];
    let outcome = pair.client.push_by(&address, &options).outcome().done();
    // A process with this limit cannot have 48 lanes, and has descriptors for at most ten lanes and their files.
    let lanes = outcome.summary()["lanes"].clone();
    assert!((2..10).contains(&lanes.as_u64().unwrap()), "{lanes}");
    pair.check_and_clear();
}

/// Each directory has a separate parent directory. Both walks of a mirror open most directories only while they use
/// them.
#[test]
fn a_mirror_of_many_directories_needs_128_open_files() {
    let Some(mut site) = Site::of_fresh_user() else {
        return;
    };
    for number in 0..300 {
        let file = format!("{number}/d{number}/f{number}");
        paint(site.source().join(file), 10);
    }
    site.give_away();
    site.runner.limits = vec!["--nofile=128".to_owned()];
    for slash in ["", "/"] {
        let source = |number: u32| site.source().join(format!("{number}/d{number}{slash}"));
        let sources: Vec<_> = (0..300).map(source).collect();
        let sources: Vec<_> = sources.iter().map(|path| path.as_os_str()).collect();
        let push = || {
            let push = site.push_command(&["--delete", "--json"], &sources, "in");
            push.outcome().done().summary()
        };
        push();
        let mirrored = site.target().join("in");
        let extra = if slash.is_empty() {
            "d299/extra"
        } else {
            "extra"
        };
        std::fs::write(mirrored.join(extra), "x").unwrap();
        assert_eq!(push()["removed"], 1);
        assert_eq!(std::fs::read_dir(&mirrored).unwrap().count(), 300);
        clear(&site.target());
    }
}

#[test]
fn a_daemon_within_a_process_limit_serves_or_names_the_limit() {
    check_daemons("--nproc=", &PROCESSES, "ulimit -u");
}

#[test]
fn a_daemon_within_an_open_file_limit_serves_or_names_the_limit() {
    check_daemons("--nofile=", &FILES, "open files");
}

#[test]
fn too_little_memory_is_reported_before_the_work_begins() {
    let Some(mut pair) = Pair::local() else {
        return;
    };
    let too_low = [
        ("--stack=65536", "ulimit -s"),
        ("--as=100000000", "ulimit -v"),
        ("--as=500000000", "ulimit -v"),
        ("--data=50000000", "ulimit -d"),
    ];
    for (limit, remedy) in too_low {
        pair.client.runner.limits = vec![limit.to_owned()];
        pair.push().expect(11).says(&["limit", remedy]);
    }
    for limit in ["--stack=1048576", "--as=1073741824", "--data=268435456"] {
        pair.client.runner.limits = vec![limit.to_owned()];
        pair.push().done();
        pair.check_and_clear();
    }
}

/// A client and an optional daemon, each run by a user that has no other processes.
struct Pair {
    client: Site,
    server: Option<Site>,
}

impl Pair {
    fn local() -> Option<Self> {
        Some(Self {
            client: with_files(Site::of_fresh_user()?),
            server: None,
        })
    }

    /// A pair whose daemon runs without low limits.
    fn with_daemon() -> Option<Self> {
        let client = Self::local()?.client;
        let mut server = Site::of_fresh_user()?;
        introduce(&client, &server);
        server.start_daemon();
        client.pin(
            &server.the_daemon().address,
            server.the_daemon().fingerprint,
        );
        client.give_away();
        Some(Self {
            client,
            server: Some(server),
        })
    }

    fn push(&self) -> Outcome {
        match &self.server {
            Some(server) => {
                let address = server.the_daemon().address;
                self.client.push_by(&address, &["--json"]).outcome()
            }
            None => self.client.push(&["--json"], self.client.contents(), ""),
        }
    }

    fn check_and_clear(&self) {
        let target = self.server.as_ref().unwrap_or(&self.client).target();
        assert_same(&self.client.source(), &target);
        clear(&target);
    }
}

fn with_files(site: Site) -> Site {
    for number in 0..20 {
        paint(site.source().join(format!("small/{number}")), 1000);
    }
    // The file has enough data for several lanes.
    paint(site.source().join("large"), 12 << 20);
    site.give_away();
    site
}

/// Authorizes the client for the server's target.
fn introduce(client: &Site, server: &Site) {
    let key = Identity::load_or_create(&client.path("client"))
        .unwrap()
        .fingerprint();
    let roots = vec![server.path("target").canonicalize().unwrap()];
    let grant = Grant::new(key, "limited", roots, Access::WriteOnly);
    AuthorizedKeys::allow(&server.path("server"), grant).unwrap();
    client.give_away();
    server.give_away();
}

fn clear(directory: &Path) {
    let names = std::fs::read_dir(directory).unwrap();
    for entry in names.map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            std::fs::remove_dir_all(entry.path()).unwrap();
        } else {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// Pushes with each of these limits. The lowest limit is refused with the remedy, and the highest limit is enough.
#[track_caller]
fn check_pushes(mut pair: Pair, option: &str, limits: &[u32], cause: &str) {
    let mut codes = Vec::new();
    for limit in limits {
        pair.client.runner.limits = vec![format!("{option}{limit}")];
        let outcome = pair.push();
        check_end(&outcome, *limit, cause);
        if outcome.code == Some(0) {
            pair.check_and_clear();
        }
        codes.push(outcome.code);
    }
    check_codes(option, limits, &codes);
}

/// Runs a daemon with each of these limits. The lowest limit is refused, and the highest limit is enough for a push.
/// With the limits between them, the daemon keeps running whether or not the push succeeds.
#[track_caller]
fn check_daemons(option: &str, limits: &[u32], cause: &str) {
    let mut codes = Vec::new();
    let client = with_files(Site::local());
    for limit in limits {
        let Some(mut server) = Site::of_fresh_user() else {
            return;
        };
        introduce(&client, &server);
        server.runner.limits = vec![format!("{option}{limit}")];
        let command = server.runner.zmove(&server.path("server")).0;
        let daemon = match Daemon::try_run(command, &["--listen", "127.0.0.1:0"]) {
            Ok(daemon) => daemon,
            Err(ended) => {
                check_end(&ended, *limit, cause);
                codes.push(ended.code);
                continue;
            }
        };
        client.pin(&daemon.address, daemon.fingerprint);
        let pushed = client.push_by(&daemon.address, &["--json"]).outcome();
        check_end(&pushed, *limit, cause);
        codes.push(pushed.code);
        if pushed.code == Some(0) {
            assert_same(&client.source(), &server.target());
        }
        assert_eq!(daemon.terminate(), Some(0), "limit {limit}");
    }
    check_codes(option, limits, &codes);
}

/// Asserts that a command succeeds, or that its error names the limit or the system's error.
#[track_caller]
fn check_end(outcome: &Outcome, limit: u32, cause: &str) {
    let Outcome { code, stderr, .. } = outcome;
    let names = [
        cause,
        "Too many open files",
        "Resource temporarily unavailable",
        // If the daemon cannot look up the key, the client does not learn the reason.
        "cannot read its authorized_keys; see its log",
    ];
    let is_reported = names.iter().any(|part| stderr.contains(part));
    // The dynamic linker ends with code 127 if it cannot open a library.
    let is_expected = match code {
        Some(0) => true,
        Some(3 | 10 | 11 | 12 | 13 | 23 | 127) => is_reported,
        _ => false,
    };
    println!("limit {limit}: {code:?}\n{stderr}");
    assert!(is_expected, "limit {limit}: {code:?}\n{stderr}");
    assert!(!stderr.contains("panicked"), "limit {limit}: {stderr}");
}

#[track_caller]
fn check_codes(option: &str, limits: &[u32], codes: &[Option<i32>]) {
    println!("{option}: {limits:?} {codes:?}");
    assert_ne!(codes.first(), Some(&Some(0)), "the lowest limit is enough");
    assert_eq!(codes.last(), Some(&Some(0)), "{codes:?}");
}
