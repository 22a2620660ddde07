//! Copies that outlive their client, a connection, or a daemon.

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{LARGE_BYTES, World, again, id_in};
use crate::commands::pull::assert_counts;
use crate::connections::breakage::{interrupt, kill};
use crate::support::command::{Runner, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, PROMPT, is_root, skip};
use crate::support::ports::free_address;
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, paint};

/// Waits until the receiver has recorded `files` files.
fn wait_for_tally(world: &World, files: u64) {
    let tallies = world.site.path("server/copies/tallies");
    let noted = || {
        let tally = std::fs::read_dir(&tallies).ok()?.next()?.ok()?;
        let bytes = std::fs::read(tally.path()).ok()?;
        Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
    };
    let since = Instant::now();
    while noted() != Some(files) {
        assert!(since.elapsed() < PATIENCE, "noted: {:?}", noted());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Kills the client and returns the id of its copy.
fn leave(mut client: Child) -> String {
    client.kill().unwrap();
    let output = client.wait_with_output().unwrap();
    id_in(&String::from_utf8_lossy(&output.stderr))
}

/// `zmove result` exits with the same code as the copy, which could not keep everything that it was asked to keep.
#[test]
fn a_result_says_what_was_not_kept() {
    if !is_root() {
        return skip("only root can make files of another user");
    }
    for (strict, exit) in [(&["-a"][..], 0), (&["-a", "--strict-metadata"], 23)] {
        let world = World::new();
        std::os::unix::fs::chown(world.site.source(), Some(1234), None).unwrap();
        let id = id_in(&world.copy(strict, &[""], "").expect(exit).stderr);
        let told = world.result(&[], &id, &world.sender).expect(exit).stdout;
        let lack = "not kept: owner of 1 (the key's grant does not allow it)";
        assert!(told.contains(lack), "{told}");
        let told = world.result(&["--json"], &id, &world.sender).expect(exit);
        let told: Value = serde_json::from_str(&told.stdout).unwrap();
        assert_eq!(told["not_kept"][0]["what"], "owner", "{told}");
        assert_eq!(told["exit"], exit, "{told}");
    }
}

#[test]
fn a_copy_ends_without_its_client_and_both_hosts_have_the_result() {
    let mut world = World::new();
    let id = leave(world.under_way(&[]));
    world.result(&[], &id, &world.sender).expect(0);
    world.sender.wait_for_log("copied for tester");
    assert_same(&world.site.source(), &world.site.target());
    let check = |world: &World| {
        let receipt = format!(
            "1 file, {} received into '', 0 faults",
            zmove_types::ByteCount(LARGE_BYTES)
        );
        let told: Value = serde_json::from_str(
            &world
                .result(&["--json"], &id, &world.sender)
                .expect(0)
                .stdout,
        )
        .unwrap();
        assert_eq!(told["exit"], 0, "{told}");
        let sent = world.result(&[], &id, &world.sender).expect(0).stdout;
        let signed = format!("signed by {}: {receipt}", world.receiver.address);
        assert!(
            sent.contains("0 failed") && sent.contains(&signed),
            "{sent}"
        );
        assert_eq!(
            world.result(&[], &id, &world.receiver).expect(0).stdout,
            format!("{receipt}\n")
        );
    };
    check(&world);
    // The result still exists after both daemons have been restarted.
    world.sender.kill();
    world.receiver.kill();
    world.sender = again("sender", &world, &world.sender);
    world.receiver = again("server", &world, &world.receiver);
    check(&world);
    let other = id
        .replace(|c: char| c.is_ascii_digit(), "0")
        .replace('a', "b");
    world
        .result(&[], &other, &world.sender)
        .expect(3)
        .says(&["no copy with this key and id is known here"]);
}

#[test]
fn a_host_that_is_stopped_while_it_sends_goes_on_when_it_is_back() {
    let world = World::new();
    let client = world.under_way(&[]);
    let World {
        site,
        sender,
        receiver,
    } = world;
    let address = sender.address.to_string();
    assert_eq!(sender.terminate(), Some(0));
    let sender = Daemon::start(&site.path("sender"), &address, &Runner::default());
    let world = World {
        site,
        sender,
        receiver,
    };
    let outcome = finish(client).expect(0);
    assert!(
        outcome.summary()["bytes_resumed"].as_u64() > Some(0),
        "{}",
        outcome.stdout
    );
    assert_same(&world.site.source(), &world.site.target());
    world.sender.wait_for_log("copied for tester");
}

/// Over QUIC, a killed client does not close its connection, so its host waits for it until a timeout.
#[test]
fn a_copy_whose_client_was_killed_runs_no_longer_than_it_takes() {
    let quic = ["--transport", "quic"];
    let world = World::with(&quic);
    let id = leave(world.under_way(&quic));
    world.receiver.wait_for_log("received from");
    let since = Instant::now();
    while !world
        .result(&[], &id, &world.sender)
        .expect(0)
        .stdout
        .contains("signed by")
    {
        assert!(since.elapsed() < PROMPT, "it has no result");
        std::thread::sleep(Duration::from_millis(50));
    }
    let options = [&["--timeout", "0"], &quic[..]].concat();
    world.copy(&options, &[""], "").expect(0);
}

#[test]
fn another_key_does_not_get_the_result() {
    let world = World::new();
    paint(world.site.source().join("f"), 10);
    let id = id_in(&world.copy(&[], &[""], "").expect(0).stderr);
    for (home, daemon) in [("sender", &world.sender), ("server", &world.receiver)] {
        let stranger =
            zmove_transport::Identity::load_or_create(&world.site.path("stranger")).unwrap();
        let grant = zmove_transport::Grant::new(
            stranger.fingerprint(),
            "stranger",
            vec![world.site.target().canonicalize().unwrap()],
            zmove_transport::Access::ReadWrite,
        );
        zmove_transport::AuthorizedKeys::allow(&world.site.path(home), grant).unwrap();
        let mut known = zmove_transport::KnownHosts::open(&world.site.path("stranger")).unwrap();
        known
            .pin("127.0.0.1", daemon.address.port(), daemon.fingerprint)
            .unwrap();
        let mut ask = world
            .site
            .zmove(&["result", &id, &daemon.address.to_string()]);
        ask.0.env("ZMOVE_HOME", world.site.path("stranger"));
        ask.outcome()
            .expect(3)
            .says(&["no copy with this key and id is known here"])
            .lines(1);
    }
}

#[test]
fn the_same_command_listens_to_the_copy_that_runs() {
    let world = World::new();
    kill(world.under_way(&[]));
    let options = [&["--json"], &super::SLOWLY[..]].concat();
    let summary = world.copy(&options, &[""], "").expect(0).summary();
    assert_counts(
        &summary,
        &[("files", 1), ("bytes", LARGE_BYTES), ("bytes_resumed", 0)],
    );
    assert_same(&world.site.source(), &world.site.target());
    // The daemons log it after the command has ended.
    assert_eq!(world.sender.wait_for_logs("copied for tester", 1).len(), 1);
    assert_eq!(world.receiver.wait_for_logs("received from", 1).len(), 1);
}

#[test]
fn a_client_that_is_interrupted_leaves_the_copy_to_itself() {
    let world = World::new();
    let address = world.sender.address.to_string();
    let outcome = interrupt(world.under_way(&[]))
        .expect(20)
        .says(&["without this command", "zmove result "]);
    let goes_on = format!(
        "the copy continues on the hosts: 'zmove result {} {address}'",
        id_in(&outcome.stderr)
    );
    outcome
        .says(&["zmove: interrupted", &goes_on, "--stop"])
        .lines(2);
    world.sender.wait_for_log("copied for tester");
    assert_same(&world.site.source(), &world.site.target());
}

#[test]
fn a_copy_is_stopped_by_its_client_s_word() {
    let world = World::new();
    let id = leave(world.under_way(&[]));
    let told = world
        .result(&["--stop"], &id, &world.sender)
        .expect(0)
        .stdout;
    assert!(told.contains("was asked to end"), "{told}");
    world.sender.wait_for_log("broken off");
    world.receiver.wait_for_log("broken off");
    world.result(&["--json"], &id, &world.sender).expect(12);
}

#[test]
fn a_copy_goes_on_when_the_receiver_is_killed_and_comes_back() {
    let mut world = World::new();
    for number in 0..50 {
        paint(world.site.source().join(format!("small/{number}")), 1_000);
    }
    let client = world.under_way(&[]);
    wait_for_tally(&world, 50);
    world.receiver.kill();
    world.receiver = again("server", &world, &world.receiver);
    let outcome = finish(client).expect(0).says(&[
        "sender: connection to ",
        "lost: ",
        "reconnecting for up to",
    ]);
    let id = id_in(&outcome.stderr);
    let received = world.result(&[], &id, &world.receiver).expect(0).stdout;
    let bytes = zmove_types::ByteCount(LARGE_BYTES + 50 * 1_000);
    assert_eq!(
        received,
        format!("51 files, {bytes} received into '', 0 faults\n"),
        "a killed daemon counts too"
    );
    let sent = world.result(&[], &id, &world.sender).expect(0).stdout;
    let lines: Vec<_> = sent.lines().collect();
    assert!(
        lines.len() == 2 && lines[1].starts_with("signed by ") && !sent.contains("\\n"),
        "{sent}"
    );
    assert_counts(
        &outcome.summary(),
        &[
            ("reconnects", 1),
            ("files", 51),
            ("failed", 0),
            ("skipped", 0),
        ],
    );
    assert_same(&world.site.source(), &world.site.target());
}

/// A killed host may have left a partly changed file that is newer than the source and would be skipped.
#[test]
fn a_copy_that_updates_in_place_is_not_begun_again() {
    for kills_receiver in [false, true] {
        let mut world = World::new();
        let client = world.under_way(&["--inplace", "--update"]);
        if kills_receiver {
            world.receiver.kill();
            world.receiver = again("server", &world, &world.receiver);
        } else {
            world.sender.kill();
            world.sender = again("sender", &world, &world.sender);
        }
        finish(client).expect(12);
    }
}

/// Only the client's connection is lost: the copy itself continues, or ends while the client is away.
#[test]
fn a_client_follows_a_copy_that_updates_in_place_again() {
    for ends_meanwhile in [false, true] {
        let mut world = World::new();
        let sender = world.sender.address;
        let proxy = Proxy::start(sender, u64::MAX);
        world.site.pin(&proxy.address, world.sender.fingerprint);
        world.sender.address = proxy.address;
        let client = world.under_way(&["--inplace", "--update"]);
        if ends_meanwhile {
            proxy.reset(free_address());
            world.receiver.wait_for_log("received from ");
        }
        proxy.reset(sender);
        finish(client).expect(0).says(&["lost: ", "reconnecting"]);
        assert_same(&world.site.source(), &world.site.target());
    }
}

#[test]
fn a_copy_whose_sender_is_killed_goes_on_when_that_is_back() {
    let mut world = World::new();
    let client = world.under_way(&[]);
    world.sender.kill();
    world
        .receiver
        .wait_for_log("broken off by the grant of tester");
    world.sender = again("sender", &world, &world.sender);
    let summary = finish(client).expect(0).summary();
    let [moved, resumed] = ["bytes", "bytes_resumed"].map(|key| summary[key].as_u64().unwrap());
    assert!(resumed > 0 && moved + resumed == LARGE_BYTES, "{summary}");
    assert_same(&world.site.source(), &world.site.target());
}

#[test]
fn the_same_command_goes_on_where_a_killed_sender_was() {
    let mut world = World::new();
    let client = world.under_way(&[]);
    kill(client);
    world.sender.kill();
    world
        .receiver
        .wait_for_log("broken off by the grant of tester");
    world.sender = again("sender", &world, &world.sender);
    let summary = world.copied(&[], &[""]);
    let [moved, resumed] = ["bytes", "bytes_resumed"].map(|key| summary[key].as_u64().unwrap());
    assert!(resumed > 0 && moved + resumed == LARGE_BYTES, "{summary}");
    assert_same(&world.site.source(), &world.site.target());
}
