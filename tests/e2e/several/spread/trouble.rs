//! Full targets and changing sources: each failure is reported once and counted once.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Spread;
use crate::support::command::{Outcome, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::PROMPT;
use crate::support::namespace::{Image, Namespace};
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_part_of, names, paint, set_mode, set_old};

const EXT4: Image = Image {
    bytes: 96 << 20,
    make: "mkfs.ext4 -q -F",
    options: "loop",
};
const NO_ROOM: &str = "No space left on device (os error 28)";
/// Maximum duration of the push to the full storage, if no receiver waits.
const SOON: Duration = Duration::from_secs(40);

/// Includes files that a session has tried to read before it knew whether they exist at the target. No work waits for
/// them.
#[test]
fn files_that_may_not_be_read_hold_up_nothing() {
    let Some(spread) = Spread::unprivileged(2) else {
        return;
    };
    let files: Vec<_> = (0..40)
        .map(|file| spread.source().join(format!("d{}/f{file}", file / 2)))
        .collect();
    files.iter().for_each(|file| paint(file, 20_000));
    spread.site.give_away();
    files.iter().step_by(2).for_each(|file| set_mode(file, 0));
    for run in 0..4 {
        let mut push = spread.site.runner.zmove(&spread.home());
        push.0
            .args(["push", "--json"])
            .arg(spread.source().join(""))
            .arg(spread.target(&format!("t{run}")));
        let outcome = push.outcome().expect(23).lines(20);
        let summary = outcome.summary();
        assert_eq!(
            (&summary["files"], &summary["failed"]),
            (&20.into(), &20.into()),
            "{summary}"
        );
    }
}

/// Otherwise all movers would end up at one receiver, and the push would hang if that receiver hung.
#[test]
fn a_receiver_that_comes_back_is_used_again() {
    let mut spread = Spread::new(2);
    std::fs::create_dir_all(spread.source()).unwrap();
    (0..40).for_each(|file| paint(spread.source().join(format!("f{file}")), 1 << 20));
    set_old(spread.source());
    let push = spread.push(&["--limit", "2MB"], "source").start();
    spread
        .daemons
        .iter()
        .for_each(|daemon| drop(daemon.wait_for_log("begun by sender")));
    let address = spread.daemons[1].address.to_string();
    spread.daemons[1].kill();
    let home = spread.site.path("receiver1");
    spread.daemons[1] = Daemon::start_with(&home, &["--listen", &address], &spread.runner);
    // One session is for queries, and the other belongs to the mover.
    spread.daemons[1].wait_for_logs("begun by sender", 2);
    finish(push).expect(0).says(&["is tried next"]);
    spread.assert_done();
}

/// Asserts that each line names the operation, the path, the cause and the receiver.
#[track_caller]
fn assert_no_room_is_told(spread: &Spread, outcome: &Outcome) {
    let is_advice = |line: &&str| {
        line.contains("; one receiver alone keeps")
            || line.contains(" free, less than the push needs")
    };
    let told: Vec<_> = outcome
        .stderr
        .lines()
        .filter(|line| !is_advice(line))
        .collect();
    assert!(!told.is_empty());
    for line in told {
        let at = |number: usize| line.contains(&format!("(at {})", spread.daemons[number].address));
        let is_whole =
            line.starts_with("zmove: receiver: ") && line.contains(" '") && line.contains(NO_ROOM);
        assert!(is_whole && (at(0) || at(1)), "{line}");
    }
}

fn fill(file: &Path) {
    let mut filler = std::fs::File::create(file).unwrap();
    while filler.write_all(&[7; 64 << 10]).is_ok() {}
    while filler.write_all(&[7]).is_ok() {}
}

/// Receivers that share a small file system: first one in an image, then one of `bytes` bytes in memory. A file system
/// that this host cannot provide is left out.
fn on_small_storages(bytes: u64) -> impl Iterator<Item = Spread> {
    [Some(&EXT4), None].into_iter().filter_map(move |image| {
        let storage = |shared: &Path| match image {
            Some(image) => Namespace::with_image(shared, image),
            None => Namespace::with_small_disk(shared, bytes),
        };
        Spread::within(2, |shared| storage(shared).map(Some))
    })
}

/// Files that are too large for the storage are sent in two ways: in ranges, and by one session.
#[test]
fn a_full_storage_fails_only_files_without_room() {
    for spread in on_small_storages(90 << 20) {
        let source = spread.source();
        let is_large = |name: &str| name == "huge" || name.starts_with("large");
        std::fs::create_dir_all(source.join("small")).unwrap();
        (0..60_u64).for_each(|file| paint(source.join(format!("small/{file}")), 50_000 + file));
        (0..4).for_each(|file| paint(source.join(format!("large{file}")), 20 << 20));
        paint(source.join("huge"), 100 << 20);
        let began = Instant::now();
        let outcome = spread
            .push(&["--json", "-v"], "source")
            .outcome()
            .expect(23);
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert_no_room_is_told(&spread, &outcome);
        assert_eq!(
            outcome.stderr.matches("huge'").count(),
            1,
            "{}",
            outcome.stderr
        );
        let there = spread.target_directory();
        assert_part_of(&source, &there);
        let whole = names(&there).iter().filter(|name| is_large(name)).count()
            + names(&there.join("small")).len();
        let summary = outcome.summary();
        assert_eq!(
            (&summary["failed"], &summary["files"]),
            (&(65 - whole).into(), &whole.into()),
            "{summary}"
        );
        std::fs::remove_file(source.join("huge")).unwrap();
        (1..4).for_each(|file| std::fs::remove_file(source.join(format!("large{file}"))).unwrap());
        (1..4).for_each(|file| drop(std::fs::remove_file(there.join(format!("large{file}")))));
        spread.push(&[], "source").outcome().expect(0);
        assert_part_of(&source, &there);
        assert!(there.join("large0").exists() && names(&there.join("small")).len() == 60);
    }
}

/// The stored part of a file that is too large for the storage is removed in favor of files that fit, so each run makes
/// progress.
#[test]
fn a_file_that_is_too_large_for_the_storage_leaves_its_room_to_others() {
    for spread in on_small_storages(90 << 20) {
        // The walk finds this file first.
        paint(spread.source().join("a/huge"), 300 << 20);
        paint_small(&spread, 60, 40);
        let all_fit = || {
            let outcome = spread
                .push(&["--json", "-v"], "source")
                .outcome()
                .expect(23);
            assert_no_room_is_told(&spread, &outcome);
            small_there(&spread, 60) == 60 * 40
        };
        let mut there = 0;
        for run in 0..5 {
            let have_come = all_fit();
            let now = small_there(&spread, 60);
            assert!(now > there, "run {run}: {now} of {}", 60 * 40);
            there = now;
            if have_come {
                break;
            }
        }
        assert_eq!(there, 60 * 40);
        assert_part_of(&spread.source(), &spread.target_directory());
    }
}

/// The journals of all sessions use little of the remaining space.
#[test]
fn a_nearly_full_storage_gets_the_files_that_fit() {
    for spread in on_small_storages(8 << 20) {
        paint_small(&spread, 10, 20);
        let filler = spread.shared().join("filler");
        fill(&filler);
        let filler = std::fs::File::options().write(true).open(filler).unwrap();
        filler
            .set_len(filler.metadata().unwrap().len() - (500 << 10))
            .unwrap();
        filler.sync_all().unwrap();
        let before = spread
            .push(&["--json", "-v"], "source")
            .outcome()
            .expect(23);
        assert_no_room_is_told(&spread, &before);
        let there = small_there(&spread, 10);
        assert!(there > 40, "{there} files of {}", 10 * 20);
        assert_part_of(&spread.source(), &spread.target_directory());
        filler.set_len(0).unwrap();
        let after = spread.push(&["--json"], "source").outcome().expect(0);
        assert_eq!(
            (&before.summary()["files"], &after.summary()["skipped"]),
            (&there.into(), &there.into())
        );
    }
}

fn paint_small(spread: &Spread, directories: u64, files: u64) {
    for file in (0..directories).flat_map(|directory| (0..files).map(move |file| (directory, file)))
    {
        paint(
            spread.source().join(format!("d{}/{}", file.0, file.1)),
            5_000 + file.1,
        );
    }
}

/// Returns the number of small files at the target.
fn small_there(spread: &Spread, directories: u64) -> usize {
    let in_directory =
        |number: u64| std::fs::read_dir(spread.target_directory().join(format!("d{number}")));
    (0..directories)
        .map(|number| in_directory(number).map_or(0, Iterator::count))
        .sum()
}

#[test]
fn a_storage_without_any_room_is_reported_in_one_line_with_its_code() {
    let disk = |shared: &Path| Namespace::with_small_disk(shared, 4 << 20).map(Some);
    let Some(spread) = Spread::within(2, disk) else {
        return;
    };
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(spread.source().join("f"), 70_000);
    let filler = spread.shared().join("filler");
    fill(&filler);
    let outcome = spread
        .push(&["--json"], "source")
        .outcome()
        .expect(23)
        .lines(1);
    assert_no_room_is_told(&spread, &outcome);
    let end: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&end["errno"], &end["exit"], &end["path"]),
        (&"ENOSPC".into(), &23.into(), &"t".into()),
        "{end}"
    );
    std::fs::remove_file(filler).unwrap();
    spread.push(&[], "source").outcome().expect(0);
    assert!(spread.target_directory().join("f").exists());
}

/// Each receiver answers each time, and its connection is lost before a group of the file is stored.
#[test]
fn sessions_that_begin_and_are_lost_end_the_push() {
    let spread = Spread::new(2);
    paint(spread.source().join("huge"), 70 << 20);
    let relays: Vec<_> = spread
        .daemons
        .iter()
        .map(|daemon| Proxy::cutting(daemon.address, 3 << 20))
        .collect();
    let push = spread.push_to(spread.target_by(&relays), &["--timeout", "6s"], "source");
    push.outcome()
        .expect(12)
        .says(&["no receiver can continue: "]);
    for daemon in &spread.daemons {
        daemon.wait_for_log("begun by sender");
        daemon.wait_for_log("broken off by sender");
    }
}

#[test]
fn a_large_file_that_changes_is_reported_and_counted_once() {
    let spread = Spread::new(2);
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(spread.source().join("huge"), 120 << 20);
    paint(spread.source().join("other"), 7);
    // Half of the file passes through the relays before the rest is allowed.
    let relays: Vec<_> = spread
        .daemons
        .iter()
        .map(|daemon| Proxy::start(daemon.address, 24 << 20))
        .collect();
    let push = spread
        .push_to(spread.target_by(&relays), &["--json"], "source")
        .start();
    relays.iter().for_each(Proxy::wait_for_stall);
    let mut huge = std::fs::File::options()
        .append(true)
        .open(spread.source().join("huge"))
        .unwrap();
    huge.write_all(b"more").unwrap();
    relays
        .iter()
        .for_each(|relay| relay.resume_without_busiest(0));
    let outcome = finish(push)
        .expect(23)
        .lines(1)
        .says(&["sender: read '", "huge': the file changed while"]);
    let summary = outcome.summary();
    assert_eq!(
        (&summary["failed"], &summary["files"]),
        (&1.into(), &1.into()),
        "{summary}"
    );
    assert!(!spread.target_directory().join("huge").exists());
}

#[test]
fn working_receivers_are_shown_and_only_those_that_stored_something_are_counted() {
    let spread = Spread::new(2);
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(spread.source().join("huge"), 70 << 20);
    let outcome = spread
        .push(&["--json", "--limit", "14MB"], "source")
        .outcome()
        .done();
    let events = crate::commands::schema::events(&outcome, 0);
    let mut shown = events
        .iter()
        .filter(|event| event["event"] == "progress")
        .map(|event| event["nodes"].clone());
    let names = |nodes: &Value| {
        let nodes = nodes["nodes"].as_array().unwrap().iter();
        let have_moved = nodes.filter(|node| node["bytes"].as_u64() > Some(0));
        have_moved
            .map(|node| node["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let last = shown
        .rfind(|nodes| !nodes.is_null())
        .expect("receivers are shown");
    assert_eq!(
        (&last["count"], names(&last).len()),
        (&2.into(), 2),
        "{last}"
    );
    assert_eq!(last["kind"], "receiver");
    let took_part = events
        .iter()
        .find(|event| event["event"] == "took_part")
        .expect("it is told at the end");
    let told = took_part["message"].as_str().unwrap();
    assert!(
        told.starts_with("moved by 2 receivers: ") && told.contains("1 file, "),
        "{told}"
    );
    assert!(
        names(&last).contains(&spread.daemons[1].address.to_string()),
        "{last}"
    );
    // The other receiver may have walked a directory, but has stored nothing.
    std::fs::remove_file(spread.source().join("huge")).unwrap();
    paint(spread.source().join("one"), 7);
    let outcome = spread.push(&[], "source").outcome().done();
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert!(lines[0].ends_with(", by 1 receiver"), "{lines:?}");
    let took_part = lines[1]
        .strip_prefix("moved by 1 receiver: ")
        .expect("it is told which");
    let is_told = |daemon: &Daemon| took_part == format!("{} (1 file, 7 B)", daemon.address);
    assert!(spread.daemons.iter().any(is_told), "{lines:?}");
}

/// A session in the receiver's queue may begin after its push has left, and would then have to be ended.
#[test]
fn busy_receivers_are_skipped_and_leave_nothing() {
    let mut spread = Spread::new(0);
    let limited = "[limits]\ntransfers_per_identity = 1\n";
    [limited, limited, ""]
        .into_iter()
        .for_each(|settings| spread.start_with("shared", settings));
    paint(spread.source().join("f"), 7);
    set_old(spread.source());
    paint(spread.site.path("slow").join("f"), 60 << 20);
    let [one, other, free] = [0, 1, 2].map(|number: usize| spread.daemons[number].address);
    let slow = [one, other].map(|address| {
        let target = format!("{address}:{}", address.port()).into();
        spread.push_to(target, &["--limit", "1MB"], "slow").start()
    });
    [0, 1]
        .into_iter()
        .for_each(|number| drop(spread.daemons[number].wait_for_log("begun by sender")));
    let push = |by: String, transport| {
        let options = ["--timeout", "60s", "--transport", transport];
        spread
            .push_to(format!("{by}:t").into(), &options, "source")
            .outcome()
    };
    for transport in ["tcp", "quic"] {
        let began = Instant::now();
        let refused = push(format!("{one},{other}"), transport).expect(13);
        refused
            .says(&["limits.transfers_per_identity = 1", "is tried next"])
            .lines(2);
        assert!(began.elapsed() < PROMPT, "nobody waits in line");
    }
    assert!(!spread.target_directory().exists());
    push(format!("{one},{other},{free}"), "quic").expect(0);
    spread.assert_done();
    for mut child in slow {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
