//! A mount whose server has lost its state: every operation fails with ESTALE. The zmove next to the lab's program must
//! name the mount.

use std::path::Path;
use std::process::Output;

use crate::{on_mount, zmove_and_mounts};

/// The paths of the source and the target, and the exit code.
const PUSHES: [(&str, &str, i32); 6] = [
    ("source/", "$ZMOVE_LAB_LATE", 3),
    ("source/", "$ZMOVE_LAB_LATE/sub/x", 3),
    ("source/f", "$ZMOVE_LAB_LATE/sub/x", 3),
    ("$ZMOVE_LAB_LATE/", "new", 23),
    ("$ZMOVE_LAB_LATE/sub", "new", 23),
    ("$ZMOVE_LAB_LATE/sub/f", "new", 23),
];

/// Runs a script while `over` is mounted from a server that has lost its state.
fn on_stale_mount(home: &Path, script: &str) -> Output {
    on_mount(home, "over", &["--delay", "0", "--stale", "stale"], script)
}

#[test]
fn a_path_on_a_mount_whose_server_has_lost_its_state_is_shown_with_the_mount() {
    let Some(zmove) = zmove_and_mounts() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    std::fs::create_dir_all(at("source")).unwrap();
    std::fs::create_dir_all(at("over/sub")).unwrap();
    for file in ["source/f", "over/sub/f", "stale"] {
        std::fs::write(at(file), "f").unwrap();
    }
    for (source, target, code) in PUSHES {
        let script = format!(
            "echo \"$ZMOVE_LAB_LATE\"; exec {} push {source} {target}",
            zmove.display()
        );
        let output = on_stale_mount(home.path(), &script);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{source} {target}: {said}"
        );
        let mount = String::from_utf8_lossy(&output.stdout);
        let named = format!(
            "Stale file handle (os error 116) (the fuse file system mounted at '{}' does not answer; mount it again)",
            mount.lines().next().unwrap()
        );
        assert!(said.contains(&named), "{source} {target}: {said}");
        assert!(!at("new").exists(), "{source} {target}");
    }
}

#[test]
fn a_lost_mount_below_a_target_fails_alone_and_the_message_says_what_to_do() {
    let Some(zmove) = zmove_and_mounts() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    std::fs::create_dir_all(at("source/late")).unwrap();
    std::fs::create_dir(at("over")).unwrap();
    for file in ["source/late/f", "source/beside", "stale"] {
        std::fs::write(at(file), "f").unwrap();
    }
    let script = format!(
        "above=\"$(dirname \"$ZMOVE_LAB_LATE\")\"; {} push source/ \"$above\"; code=$?; cat \"$above/beside\"; exit $code",
        zmove.display()
    );
    let output = on_stale_mount(home.path(), &script);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(23), "{said}");
    assert!(output.stdout.ends_with(b"f"), "{said}");
    assert!(
        said.contains("'late': Stale file handle (os error 116) (another program moved it, or the file system mounted \
            there lost it"),
        "{said}"
    );
}
