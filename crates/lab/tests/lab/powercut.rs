//! Power cuts on a small scale: a few rounds with fixed seeds on each file system. Runs as root.

use std::path::Path;
use std::process::Command;

use crate::{LAB, skip};

/// Returns the reason why this test cannot run here, if there is one.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root mounts".into());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse is missing".into());
    }
    let present = |tool: &str| {
        ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
            .iter()
            .any(|at| Path::new(at).join(tool).exists())
    };
    let tools = ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "losetup"];
    tools
        .into_iter()
        .find(|tool| !present(tool))
        .map(|tool| format!("{tool} is missing"))
}

fn skips() -> bool {
    let Some(reason) = missing() else {
        return false;
    };
    skip(&reason);
    true
}

fn powercut(zmove: &Path, file_systems: &str, rounds: &str) -> (bool, String) {
    let mut command = Command::new(LAB);
    command.args([
        "powercut",
        "--seed",
        "1",
        "--keep-going",
        "--rounds",
        rounds,
        "--fs",
        file_systems,
        "--zmove",
    ]);
    let output = command.arg(zmove).output().expect("the lab starts");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status.success(), said)
}

/// A program that copies nothing and reports success must be detected, on any file system.
#[test]
fn a_program_that_lies_is_found_out() {
    if skips() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let liar = place.path().join("liar");
    let script = "#!/bin/sh\n\
        case $1 in\n\
        key) echo SHA256:x ;;\n\
        serve) echo listening on it; while :; do sleep 0.1; done ;;\n\
        esac\n";
    std::fs::write(&liar, script).unwrap();
    std::fs::set_permissions(&liar, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (well, said) = powercut(&liar, "ext4,ext4-nodelalloc,xfs,btrfs", "2");
    assert!(!well, "{said}");
    for file_system in ["ext4", "ext4-nodelalloc", "xfs", "btrfs"] {
        let line = format!("powercut on {file_system} from seed 1: 2 rounds, ");
        let summary = said
            .lines()
            .find(|told| told.starts_with(&line))
            .unwrap_or_else(|| panic!("{said}"));
        assert!(
            summary.contains(": rounds wrong after the same command 2, "),
            "{said}"
        );
        assert!(summary.contains(", lab 0; "), "{said}");
    }
}
