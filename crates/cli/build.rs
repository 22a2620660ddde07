//! Tells the program which commit it is built from.
//!
//! Only a release knows it: a development build would be compiled anew after each commit.

use std::path::Path;
use std::process::Command;

/// The commit, in a tree that `git archive` has written: `.gitattributes` has that fill it in.
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

/// Asks git, where this is a clone of zmove and not a directory in a clone of something else.
fn from_git() -> Option<String> {
    if git(&["rev-parse", "--show-prefix"])? != "crates/cli/" {
        return None;
    }
    // the log of HEAD gets a line whenever another commit is checked out or made
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        // what is not there would count as changed each time
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
