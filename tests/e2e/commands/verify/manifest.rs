//! Verifications of a tree against a manifest, on this host and at a daemon.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::process::Command;

use zmove_types::GROUP_BYTES;

use super::{EXT4, LARGE, grow, grow_by, list, spoil, strike};
use crate::commands::dry_run::snapshot;
use crate::support::command::Outcome;
use crate::support::harness::{Site, has_program, skip};
use crate::support::tree::{paint, painted};

/// Size of the large files in tests that concern only names.
const SMALL: u64 = 1000;

/// Location of the tree.
enum At {
    Here(Site),
    Daemon(Site),
}

/// Runs each case with a local tree and with a tree at a daemon.
macro_rules! at_both {
    ($($case:ident),+ $(,)?) => {
        mod here {
            $(#[test] fn $case() { super::$case(&super::At::here()); })+
        }
        mod daemon {
            $(#[test] fn $case() { super::$case(&super::At::daemon()); })+
        }
    };
}

at_both!(
    a_tree_equals_the_manifest_of_its_push,
    each_difference_is_named,
    entries_that_are_not_listed_can_be_ignored,
    excluded_entries_are_not_missed,
);

impl At {
    fn here() -> Self {
        Self::Here(Site::local())
    }

    /// A daemon that allows the client to read the target of its push.
    fn daemon() -> Self {
        let mut site = Site::local();
        site.let_read("target");
        site.start_daemon();
        Self::Daemon(site)
    }

    fn site(&self) -> &Site {
        let (Self::Here(site) | Self::Daemon(site)) = self;
        site
    }

    fn tree(&self) -> OsString {
        let target = self.site().path("target").join("");
        match self {
            Self::Here(_) => target.into(),
            Self::Daemon(site) => site.address(target.to_str().unwrap()),
        }
    }

    /// Pushes a tree with all kinds of entries, with the manifest `m`. The large files have this size.
    fn fill(&self, large_bytes: u64) {
        let site = self.site();
        grow_by(site, large_bytes);
        for name in ["back\\slash", "new\nline", "d/\\\n\\n", "größe"] {
            paint(site.source().join(name), 77);
        }
        site.push(&["--manifest", "m"], site.contents(), "").done();
    }

    fn verify(&self, options: &[&str]) -> Outcome {
        let mut zmove = self.site().zmove(&["verify", "--manifest", "m"]);
        zmove.0.args(options).arg(self.tree());
        zmove.outcome()
    }
}

fn a_tree_equals_the_manifest_of_its_push(at: &At) {
    at.fill(LARGE);
    let before = snapshot(&at.site().target());
    let outcome = at
        .verify(&[])
        .done()
        .sums_up("all the same: 12 files compared by hash with the manifest");
    assert!(list(&outcome).is_empty());
    let summary = at.verify(&["--json"]).done().summary();
    assert_eq!(
        (&summary["verify"], &summary["skipped"]),
        (&true.into(), &12.into())
    );
    assert_eq!(snapshot(&at.site().target()), before);
}

fn each_difference_is_named(at: &At) {
    at.fill(LARGE);
    let target = at.site().target();
    spoil(&target.join("d/c"), 500);
    spoil(&target.join("sparse"), 3 * GROUP_BYTES);
    for name in ["b", "nothing", "d/\\\n\\n"] {
        std::fs::remove_file(target.join(name)).unwrap();
    }
    symlink("a", target.join("nothing")).unwrap();
    paint(target.join("more/than listed"), 10);
    paint(target.join("larger"), GROUP_BYTES + 1);
    let outcome = at
        .verify(&[])
        .expect(6)
        .sums_up("3 differ, 2 not listed, 2 listed and not there");
    let expected = [
        "+ larger",
        "+ more/than listed",
        "- b",
        "- d/\\\\\\n\\\\n",
        "~ d/c (contents)",
        "~ nothing -> a (type)",
        "~ sparse (contents)",
    ];
    assert_eq!(list(&outcome), expected);
    let json = at.verify(&["--json"]).expect(6);
    let summary = json.summary();
    let counts = ["added", "changed", "removed"].map(|name| summary[name].as_u64());
    assert_eq!(
        (counts, &summary["verify"]),
        ([Some(2), Some(3), Some(2)], &false.into())
    );
    for event in [
        r#""event":"added","#,
        r#""event":"changed","#,
        r#""event":"removed","#,
    ] {
        assert!(json.stdout.contains(event), "{event} in {}", json.stdout);
    }
}

fn entries_that_are_not_listed_can_be_ignored(at: &At) {
    at.fill(SMALL);
    paint(at.site().target().join("d/more"), 10);
    assert_eq!(list(&at.verify(&[]).expect(6)), ["+ d/more"]);
    at.verify(&["--one-way"])
        .done()
        .sums_up("all the same: 12 files ");
    std::fs::remove_file(at.site().target().join("d/c")).unwrap();
    assert_eq!(
        list(&at.verify(&["--one-way"]).expect(6)),
        ["- d/c"],
        "what is listed is missed anyway"
    );
}

fn excluded_entries_are_not_missed(at: &At) {
    at.fill(SMALL);
    std::fs::remove_dir_all(at.site().target().join("d")).unwrap();
    at.verify(&["--exclude", "d/"]).done();
    let outcome = at.verify(&["--exclude", "link"]).expect(6);
    assert_eq!(list(&outcome), ["- d/\\\\\\n\\\\n", "- d/c", "- d/large"]);
}

#[test]
fn an_invalid_line_is_named_and_nothing_is_read() {
    let at = At::here();
    at.fill(SMALL);
    let manifest = at.site().path("m");
    let lines = std::fs::read_to_string(&manifest).unwrap();
    for (more, why) in [
        ("# what is this\n", "no BLAKE3 hash"),
        (&format!("{}  ../up\n", "0".repeat(64)), "no relative path"),
    ] {
        std::fs::write(&manifest, format!("{lines}{more}")).unwrap();
        let said = ["read the manifest 'm'", "line 13: ", why];
        let outcome = at.verify(&[]).expect(11).says(&said).lines(1);
        assert_eq!(outcome.stdout, "");
    }
    std::fs::remove_file(&manifest).unwrap();
    at.verify(&[])
        .expect(11)
        .says(&["read the manifest 'm'", "No such file"]);
}

#[test]
fn contradicting_options_are_refused() {
    let site = Site::local();
    std::fs::write(site.path("m"), "").unwrap();
    let verify = |words: &[&str]| {
        site.zmove(&[&["verify"], words].concat())
            .outcome()
            .expect(1)
    };
    verify(&["source"]).says(&["--manifest"]);
    verify(&["--manifest", "m", "--files-from", "m", "source"]).says(&["--files-from"]);
    verify(&["--manifest", "m", "--max-size", "1", "source"]).says(&["--max-size"]);
}

#[test]
fn a_manifest_written_by_b3sum_is_accepted() {
    if !has_program("b3sum") {
        return skip("b3sum is missing");
    }
    let site = Site::local();
    grow(&site);
    let mut find = Command::new("sh");
    let output = find
        .args(["-c", "find . -type f -exec b3sum {} +"])
        .current_dir(site.source())
        .output();
    std::fs::write(site.path("m"), output.unwrap().stdout).unwrap();
    let mut zmove = site.zmove(&["verify", "--manifest", "m"]);
    zmove.0.arg(site.contents());
    zmove.outcome().done().sums_up("all the same: 8 files ");
}

#[test]
fn a_bit_that_has_changed_on_the_disk_is_found_past_the_page_cache() {
    let Some(site) = Site::within_image(&EXT4) else {
        return;
    };
    let mark = b"a small file whose contents are found nowhere else in the image";
    std::fs::write(site.source().join("small"), mark).unwrap();
    std::fs::write(site.source().join("other"), painted(GROUP_BYTES * 2, 1)).unwrap();
    site.push(&["--manifest", "m"], site.contents(), "").done();
    strike(&site, mark);
    let mut zmove = site.zmove(&["verify", "--one-way", "--manifest", "m"]);
    zmove.0.arg(site.path("target").join(""));
    assert_eq!(list(&zmove.outcome().expect(6)), ["~ small (contents)"]);
}
