//! Torture on a small scale: a few rounds with fixed seeds, with the zmove next to the lab's program.

use std::process::Command;

use crate::{LAB, skip, zmove};

#[test]
fn a_few_rounds_go_well_and_leave_nothing() {
    let zmove = match zmove() {
        Ok(zmove) => zmove,
        Err(reason) => return skip(&reason),
    };
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(LAB);
    command
        .args([
            "torture",
            "--rounds",
            "4",
            "--seed",
            "1",
            "--keep-going",
            "--dir",
        ])
        .arg(place.path());
    let output = command.arg("--zmove").arg(zmove).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.starts_with("torture from seed 1: 4 rounds, "),
        "{said}"
    );
    assert_eq!(place.path().read_dir().unwrap().count(), 0);
}

/// A program that copies nothing and reports success must be detected.
#[test]
fn a_program_that_lies_is_found_out() {
    let place = tempfile::tempdir().unwrap();
    let liar = place.path().join("liar");
    let script = "#!/bin/sh\n\
        case $1 in\n\
        key) echo SHA256:x ;;\n\
        serve) trap 'exit 0' TERM; echo listening on it; while :; do sleep 0.1; done ;;\n\
        esac\n";
    std::fs::write(&liar, script).unwrap();
    std::fs::set_permissions(&liar, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(LAB);
    command
        .args(["torture", "--rounds", "3", "--seed", "1", "--dir"])
        .arg(place.path());
    let output = command.arg("--zmove").arg(&liar).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    let failed = said.lines().next().unwrap();
    assert!(
        failed.starts_with("round failed: --rounds 1 --seed 1: wrong: "),
        "{said}"
    );
    assert!(
        said.lines()
            .last()
            .unwrap()
            .starts_with("torture from seed 1: 1 rounds, "),
        "{said}"
    );
}
