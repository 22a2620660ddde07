//! Passes the commit of the source tree to the program.
//!
//! Only release builds contain the commit. Otherwise each commit would cause a rebuild of every development build.

use std::path::Path;
use std::process::Command;

/// The commit, if `git archive` has exported this tree. `.gitattributes` makes git replace the placeholder.
const ARCHIVED: &str = "$Format:%H$";
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    let commit = if ARCHIVED.contains('$') {
        from_git()
    } else {
        Some(ARCHIVED.to_owned())
    };
    if let Some(commit) = commit.as_deref().and_then(|commit| commit.get(..DIGITS)) {
        println!("cargo::rustc-env=ZMOVE_COMMIT={commit}");
    }
}

/// Asks git for the commit, if this tree is a clone of zmove and not a directory in a clone of another repository.
fn from_git() -> Option<String> {
    if git(&["rev-parse", "--show-prefix"])? != "crates/cli/" {
        return None;
    }
    // The log of HEAD changes with every commit and every checkout.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        // Cargo would treat a missing file as changed in every build.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
