//! The Python client: runs its own tests against this program.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::harness::{has_program, skip};
use crate::support::quiet_machine::share_machine;

#[test]
fn the_client_for_python_passes_its_tests() {
    share_machine();
    if !has_program("python3") || !has_program("openssl") {
        return skip("there is no python3, or no openssl");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/python");
    let mut tests = Command::new("python3");
    tests.args([
        "-B",
        "-W",
        "error::ResourceWarning",
        "-m",
        "unittest",
        "discover",
        "-v",
        "-s",
        "tests",
    ]);
    let ran = tests
        .current_dir(root)
        .env("ZMOVE", env!("CARGO_BIN_EXE_zmove"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    // A skipped test has tested nothing.
    assert!(said.contains("OK") && !said.contains("skipped"), "{said}");
}

/// Returns all files and directories below a directory.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in directory.read_dir().unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(tree(&entry.path()));
        }
        found.push(entry.path());
    }
    found.sort();
    found
}

#[test]
fn an_installation_from_a_clone_leaves_no_files_in_it() {
    share_machine();
    let place = tempfile::tempdir().unwrap();
    let clone = place.path().join("python");
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/python");
    let copied = Command::new("cp")
        .arg("-a")
        .arg(python)
        .arg(&clone)
        .status();
    assert!(copied.unwrap().success());
    let before = tree(&clone);
    let pip = |words: &[&str]| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input"]);
        pip.args(words).current_dir(place.path()).output()
    };
    // The build dependencies come from the package index.
    let fetched = pip(&["download", "--no-deps", "-d", "needed", "flit_core>=3.8,<4"]);
    if !fetched.is_ok_and(|fetched| fetched.status.success()) {
        return skip("there is no pip for python3, or no package index");
    }
    let built = pip(&[
        "wheel",
        "--no-deps",
        "-w",
        "wheels",
        "--find-links",
        "needed",
        "./python",
    ]);
    let built = built.unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    assert!(
        place
            .path()
            .join("wheels/zmove-0.1.0-py3-none-any.whl")
            .exists()
    );
    assert_eq!(tree(&clone), before);
}
