//! Stopped and resumed receivers on a small scale: a few rounds with fixed seeds, with the zmove next to the lab's
//! program.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::{LAB, skip, zmove_at_once};

/// Two rounds for each of the methods with one receiver that this test uses.
const ROUNDS: u64 = 8;

fn wake(place: &Path, zmove: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(LAB);
    command
        .args(["wake", "--seed", "1"])
        .args(options)
        .arg("--dir")
        .arg(place)
        .arg("--zmove")
        .arg(zmove);
    command.output().unwrap()
}

#[test]
fn receivers_that_wake_up_store_nothing_over_what_the_next_push_has_stored() {
    // This case is the longest and mostly waits, so it does not wait for a turn in addition.
    let zmove = match zmove_at_once() {
        Ok(zmove) => zmove,
        Err(reason) => return skip(&reason),
    };
    let place = tempfile::tempdir().unwrap();
    let rounds = ROUNDS.to_string();
    // All rounds run concurrently, because the end of a sender over QUIC is detected only after half a minute.
    let options = [
        "--method",
        "ssh,tcp,clear,quic",
        "--rounds",
        &rounds,
        "--at-once",
        &rounds,
        "--files",
        "2000",
        "--keep-going",
    ];
    let output = wake(place.path(), &zmove, &options);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.starts_with(&format!("wake from seed 1: {ROUNDS} rounds, ")),
        "{said}"
    );
    assert!(!said.contains(" 0 counted"), "{said}");
    assert_eq!(place.path().read_dir().unwrap().count(), 0);
}

/// A program whose pushes store nothing and report success must be detected.
#[test]
fn a_push_that_does_not_store_what_it_should_is_found_out() {
    let place = tempfile::tempdir().unwrap();
    let liar = place.path().join("liar");
    let script = "#!/bin/sh\n\
        case $1 in\n\
        key) echo SHA256:x ;;\n\
        serve) trap 'exit 0' TERM; echo listening on it; while :; do sleep 0.1; done ;;\n\
        esac\n";
    std::fs::write(&liar, script).unwrap();
    std::fs::set_permissions(&liar, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = wake(place.path(), &liar, &["--rounds", "1"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.starts_with("round failed: --rounds 1 --seed 1 --method tcp: "),
        "{said}"
    );
    assert!(said.contains(", 1 failed; "), "{said}");
}
