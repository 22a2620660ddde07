//! The manifest that a push writes is what the stock `b3sum --check` accepts in the target directory.

use std::path::Path;
use std::process::Command;

use crate::command::Outcome;
use crate::harness::{Site, both_ways, has_program, skip};
use crate::tree::{paint, paint_interesting_sizes, painted, set_old};

both_ways!(
    it_passes_the_stock_check,
    it_finds_what_was_changed,
    names_with_backslash_and_newline,
    names_that_are_not_utf8_are_left_out_and_counted,
    files_that_were_there_are_listed_when_they_were_read,
);

fn push(site: &Site, options: &[&str]) -> Outcome {
    let manifest = site.path("manifest");
    let options = [&["--json", "--manifest", manifest.to_str().unwrap()], options].concat();
    site.push(&options, site.contents(), "").expect(0)
}

/// Runs the check; `None` where there is no b3sum.
fn check(site: &Site) -> Option<(bool, String)> {
    if !has_program("b3sum") {
        skip("b3sum is missing");
        return None;
    }
    let mut command = Command::new("b3sum");
    let output =
        command.arg("--check").arg(site.path("manifest")).current_dir(site.target()).output().unwrap();
    Some((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn lines(manifest: &Path) -> usize {
    std::fs::read_to_string(manifest).unwrap().lines().count()
}

#[track_caller]
fn expect_all_right(site: &Site, files: usize) {
    assert_eq!(lines(&site.path("manifest")), files);
    if let Some((passed, said)) = check(site) {
        assert!(passed, "{said}");
        assert_eq!(said.lines().filter(|line| line.ends_with(": OK")).count(), files, "{said}");
    }
}

fn it_passes_the_stock_check(site: &Site) {
    paint_interesting_sizes(&site.source());
    for number in 0..300 {
        paint(site.source().join(format!("d/{number}/file with spaces")), number * 31);
    }
    push(site, &[]).done();
    expect_all_right(site, 317);
}

fn it_finds_what_was_changed(site: &Site) {
    paint(site.source().join("small"), 1_000);
    paint(site.source().join("large"), 2 * zmove_types::GROUP_BYTES + 1);
    push(site, &[]).done();
    for (name, bytes) in [("small", 1_000), ("large", 2 * zmove_types::GROUP_BYTES + 1)] {
        let mut changed = painted(bytes, 0);
        changed[999] ^= 1;
        std::fs::write(site.target().join(name), changed).unwrap();
        if let Some((passed, said)) = check(site) {
            assert!(!passed && said.contains(&format!("{name}: FAILED")), "{said}");
        }
    }
}

fn names_with_backslash_and_newline(site: &Site) {
    for name in ["back\\slash", "new\nline", "\\\n\\n", "plain", "größe"] {
        paint(site.source().join("d").join(name), 77);
    }
    push(site, &[]).done();
    expect_all_right(site, 5);
}

fn names_that_are_not_utf8_are_left_out_and_counted(site: &Site) {
    use std::os::unix::ffi::OsStrExt;
    paint(site.source().join(std::ffi::OsStr::from_bytes(b"caf\xe9")), 10);
    paint(site.source().join("plain"), 10);
    push(site, &[]).says(&["zmove: 1 names are not UTF-8", "left out of the manifest"]).lines(1);
    expect_all_right(site, 1);
}

fn files_that_were_there_are_listed_when_they_were_read(site: &Site) {
    for (name, bytes) in [("small", 1_000), ("large", 2 * zmove_types::GROUP_BYTES + 1)] {
        paint(site.source().join(name), bytes);
        set_old(site.source().join(name));
    }
    site.push_contents();
    push(site, &[]).says(&["zmove: 2 files were there already", "left out of the manifest", "-c"]).lines(1);
    expect_all_right(site, 0);
    push(site, &["--checksum"]).done();
    expect_all_right(site, 2);
}
