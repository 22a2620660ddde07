//! rsync, for comparison with zmove on the same trees.

use std::path::Path;
use std::process::Command;

use crate::support::harness::{has_program, skip};

/// Runs `rsync -a OPTIONS source/ target` on this host. Returns `false` and reports the reason if rsync is missing.
pub(crate) fn rsync(options: &[&str], source: &Path, target: &Path) -> bool {
    if !has_program("rsync") {
        skip("rsync is missing: nothing to compare with");
        return false;
    }
    let status = Command::new("rsync")
        .arg("-a")
        .args(options)
        .arg(source.join(""))
        .arg(target)
        .status();
    assert!(status.unwrap().success());
    true
}
