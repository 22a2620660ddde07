//! The client for Python, tested by its own tests against this program.

use std::path::Path;
use std::process::Command;

use crate::harness::{has_program, skip};

#[test]
fn the_client_for_python_passes_its_tests() {
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
    // a test that was skipped has shown nothing
    assert!(said.contains("OK") && !said.contains("skipped"), "{said}");
}
