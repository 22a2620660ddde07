//! Copies between two daemons, ordered by a client on a third host. Data flows directly between the daemons.

mod growth;
mod hostile;
mod others;
mod outliving;
mod over_ssh;
mod rights;
mod verifying;

use std::path::PathBuf;
use std::process::Child;

use serde_json::Value;
use zmove_transport::{Access, AuthorizedKeys, Grant, Identity};
use zmove_types::GROUP_BYTES;

use crate::commands::pull::{SMALL_FILES, assert_counts, assert_counts_as, grow_kinds};
use crate::connections::resume::wait_for_journal_in;
use crate::support::command::{Outcome, Runner, Zmove};
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::ports::free_address;
use crate::support::tree::{assert_same, names, paint, paint_interesting_sizes};

pub(crate) const LARGE_BYTES: u64 = 12 * GROUP_BYTES + 5;
/// Options that limit the rate, so that there is time for events in mid-transfer.
pub(crate) const SLOWLY: [&str; 2] = ["--limit", "8MB"];

/// A client, a daemon `sender` with the source, and a daemon `server` with the target.
pub(crate) struct World {
    pub(crate) site: Site,
    pub(crate) sender: Daemon,
    pub(crate) receiver: Daemon,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// Starts both daemons with these options.
    fn with(options: &[&str]) -> Self {
        let site = Site::local();
        site.authorize(Access::WriteOnly);
        let start = |home: &str| {
            let listen = free_address().to_string();
            let options = [&["--listen", listen.as_str()], options].concat();
            Daemon::start_with(&site.path(home), &options, &Runner::default())
        };
        let receiver = start("server");
        let sender_home = site.path("sender");
        let client = Identity::load_or_create(&site.path("client"))
            .unwrap()
            .fingerprint();
        let grant = Grant::new(client, "tester", Vec::new(), Access::ReadOnly);
        let read_roots = vec![site.source().canonicalize().unwrap()];
        let to = vec![receiver.address.to_string()];
        AuthorizedKeys::allow(
            &sender_home,
            Grant {
                read_roots,
                to,
                ..grant
            },
        )
        .unwrap();
        let sender = start("sender");
        site.pin(&sender.address, sender.fingerprint);
        site.pin(&receiver.address, receiver.fingerprint);
        Self {
            site,
            sender,
            receiver,
        }
    }

    /// Returns the command `zmove copy OPTIONS SENDER:SOURCE... RECEIVER:TARGET`.
    fn command(&self, options: &[&str], sources: &[&str], target: &str) -> Zmove {
        let mut zmove = self.site.zmove(&["copy"]);
        zmove.0.args(options);
        zmove.0.args(
            sources
                .iter()
                .map(|source| format!("{}:{source}", self.sender.address)),
        );
        zmove.0.arg(format!("{}:{target}", self.receiver.address));
        zmove
    }

    fn copy(&self, options: &[&str], sources: &[&str], target: &str) -> Outcome {
        self.command(options, sources, target).outcome()
    }

    fn copied(&self, options: &[&str], sources: &[&str]) -> Value {
        self.copy(&[&["--json"], options].concat(), sources, "")
            .expect(0)
            .summary()
    }

    fn journals(&self) -> PathBuf {
        self.site.path("server/journal")
    }

    /// Starts a copy of a large file and waits until a part of it has arrived.
    fn under_way(&self, options: &[&str]) -> Child {
        paint(self.site.source().join("large"), LARGE_BYTES);
        let options = [&["--json"], &SLOWLY[..], options].concat();
        let client = self.command(&options, &[""], "").start();
        wait_for_journal_in(&self.journals());
        client
    }

    fn result(&self, options: &[&str], id: &str, daemon: &Daemon) -> Outcome {
        let address = daemon.address.to_string();
        self.site
            .zmove(&[&["result"], options, &[id, &address]].concat())
            .outcome()
    }
}

/// Restarts a daemon with its keys in `home`.
fn again(home: &str, world: &World, daemon: &Daemon) -> Daemon {
    Daemon::start(
        &world.site.path(home),
        &daemon.address.to_string(),
        &Runner::default(),
    )
}

/// Returns the id of the copy in a client's output.
pub(crate) fn id_in(said: &str) -> String {
    let rest = said
        .split("zmove result ")
        .nth(1)
        .unwrap_or_else(|| panic!("no id in {said:?}"));
    rest.split(' ').next().unwrap().to_owned()
}

fn a_tree_arrives_and_the_next_copy_moves_nothing(world: &World, options: &[&str]) {
    let World {
        site,
        sender,
        receiver,
    } = world;
    grow_kinds(&site.source());
    let first = world.copied(options, &[""]);
    assert_same(&site.source(), &site.target());
    let files = first["files"].as_u64().unwrap();
    assert_counts(&first, &[("skipped", 0), ("failed", 0), ("reconnects", 0)]);
    assert!(
        first["lanes"].as_u64() > Some(0) && files > SMALL_FILES,
        "{first}"
    );
    assert_counts(
        &world.copied(options, &[""]),
        &[("files", 0), ("skipped", files), ("failed", 0)],
    );
    sender.wait_for_log("copied for tester");
    receiver.wait_for_log("received from the grant of tester");
}

#[test]
fn a_tree_arrives_over_tcp() {
    let world = World::new();
    paint_interesting_sizes(&world.site.source());
    a_tree_arrives_and_the_next_copy_moves_nothing(&world, &[]);
}

#[test]
fn a_tree_arrives_over_quic() {
    let quic = ["--transport", "quic"];
    a_tree_arrives_and_the_next_copy_moves_nothing(&World::with(&quic), &quic);
}

#[test]
fn a_tree_arrives_over_lanes_in_clear() {
    a_tree_arrives_and_the_next_copy_moves_nothing(
        &World::with(&["--allow-clear"]),
        &["--cipher", "none"],
    );
}

/// Landlock allows the daemon to connect to the ports of the daemons to which its clients may send.
#[test]
fn a_tree_arrives_between_confined_daemons() {
    let world = World::with(&["--confine"]);
    world
        .sender
        .wait_for_log("confined to its roots by Landlock");
    // Landlock does not restrict UDP, so QUIC would succeed in any case.
    a_tree_arrives_and_the_next_copy_moves_nothing(&world, &["--transport", "tcp"]);
}

/// A copy of the same trees has the same counts as a push.
#[test]
fn a_copy_counts_as_a_push_does() {
    let world = World::new();
    let site = &world.site;
    grow_kinds(&site.source());
    let copied = world.copied(&[], &[""]);
    let mut push = site.zmove(&["push", "--json", "source/"]);
    push.0.arg(site.path("pushed"));
    let pushed = push.outcome().done().summary();
    assert_counts_as(&copied, &pushed);
    assert_same(&site.path("pushed"), &site.target());
}

#[test]
fn the_reported_result_is_signed_by_the_receiver() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        paint(world.site.source().join(name), 1000);
    }
    let outcome = world.copy(&[], &[""], "x").expect(0);
    let signed = format!(
        "signed by {}: 3 files, 2.93 KiB received into 'x', 0 faults",
        world.receiver.address
    );
    assert!(outcome.stdout.contains(&signed), "{}", outcome.stdout);
    outcome
        .says(&["the copy continues without this command; for its result run: zmove result "])
        .lines(1);
}

#[test]
fn only_what_is_selected_or_listed_arrives() {
    let world = World::new();
    let site = &world.site;
    for path in ["a/x.o", "a/x.c", "a/keep.o", "b/y"] {
        paint(site.source().join(path), 10);
    }
    let rules = ["--exclude", "*.o", "--include", "keep.o", "--exclude", "b/"];
    assert_counts(
        &world.copied(&rules, &[""]),
        &[("files", 2), ("left_out", 2)],
    );
    assert_eq!(names(&site.target().join("a")), ["keep.o", "x.c"]);
    let list = site.path("list");
    std::fs::write(&list, "b/y\nnone\n").unwrap();
    world
        .copy(&["--files-from", list.to_str().unwrap()], &[""], "listed")
        .expect(23)
        .says(&["'none'"]);
    assert_eq!(names(&site.target().join("listed")), ["b"]);
    for (sources, target, expected) in [
        (&["a/*.o", "b"][..], "globs", &["b", "keep.o", "x.o"][..]),
        (&["a"], "one", &["a"]),
    ] {
        world.copy(&[], sources, target).expect(0);
        assert_eq!(names(&site.target().join(target)), expected);
    }
    world.copy(&[], &["b/y"], "renamed").expect(0);
    assert!(site.target().join("renamed").is_file());
}

#[test]
fn extraneous_entries_are_removed_and_a_dry_run_lists_them() {
    let world = World::new();
    let site = &world.site;
    paint(site.source().join("d/kept"), 10);
    for path in ["d/old", "d/older/deep", "beside"] {
        paint(site.target().join(path), 10);
    }
    let listed = world
        .copy(&["--dry-run", "--delete"], &["d"], "")
        .expect(0)
        .stdout;
    for line in ["- d/old\n", "- d/older/\n", "+ d/kept\n"] {
        assert!(listed.contains(line), "{listed}");
    }
    assert_eq!(names(&site.target().join("d")), ["old", "older"]);
    world
        .copy(&["--delete", "--max-delete", "1"], &["d"], "")
        .expect(25);
    assert_counts(&world.copied(&["--delete"], &["d"]), &[("failed", 0)]);
    assert_eq!(names(&site.target().join("d")), ["kept"]);
    assert_eq!(
        names(&site.target()),
        ["beside", "d"],
        "what was not asked for stays"
    );
    world.copied(&["--delete"], &[""]);
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_source_that_is_missing_is_named_and_the_others_arrive() {
    let world = World::new();
    paint(world.site.source().join("f"), 10);
    world
        .copy(&[], &["f", "none"], "")
        .expect(23)
        .says(&["sender: open '", "/none'"]);
    assert_eq!(names(&world.site.target()), ["f"]);
    world
        .copy(&[], &["none"], "")
        .expect(23)
        .says(&["nothing to send", "none"])
        .lines(1);
}
