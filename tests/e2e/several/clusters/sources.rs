//! Nodes whose view of the sources differs from that of the head.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{
    Lab, Node, Outcome, Zmove, assert_both_took_part, assert_done_by, finish, is_root, paint, skip,
};
use crate::commands::jobs::wait_for;

impl Lab {
    /// Creates enough entries for all nodes. A node takes a thousand at a time.
    fn paint_many(&self) {
        for directory in (0..DIRECTORIES).map(|number| self.source().join(format!("d{number}"))) {
            std::fs::create_dir_all(directory.join("below")).unwrap();
            (0..100_u64).for_each(|file| paint(directory.join(format!("f{file}")), 7_000 + file));
            (0..10_u64)
                .for_each(|file| paint(directory.join(format!("below/g{file}")), 7_000 + file));
        }
        for directory in [self.source(), self.site.path("copies")] {
            std::fs::create_dir_all(directory).unwrap();
        }
    }

    /// Starts a push of these entries, which takes some seconds.
    fn push_many(&self, options: &[&str]) -> Zmove {
        self.push_at("7MB", "t", options)
    }

    /// Starts a node after running `mounts` in its mount namespace, with the sources as `$S` and another directory as
    /// `$C`.
    fn join_seeing(&self, mounts: &str) -> Node {
        let (source, copies) = (self.source(), self.site.path("copies"));
        let script = format!(
            "set -e; S='{}'; C='{}'; {mounts}; exec \"$@\"",
            source.display(),
            copies.display()
        );
        let node = self.join("other", &["unshare", "--mount", "sh", "-c", &script, "sh"]);
        node.wait_for("waiting for the broker");
        node
    }
}

/// Pushes with one node that sees other sources because of these mounts.
fn push_with_another(mounts: &str) -> Option<(Lab, Outcome)> {
    if !is_root() {
        skip("to mount in one process takes root");
        return None;
    }
    let lab = Lab::new(2)?;
    lab.init_with_own_broker();
    lab.paint_many();
    let _node = lab.join_seeing(mounts);
    let outcome = lab.push_many(&[]).outcome().expect(0);
    assert!(outcome.stdout.contains(", by 1 node\n") || outcome.stdout.contains(", by 2 nodes\n"));
    lab.assert_done();
    Some((lab, outcome))
}

/// Returns mounts of modified copies over the directories, one by one, so that the top directory is the same.
fn copies_changed_by(change: &str) -> String {
    format!(
        "cp -a \"$S/.\" \"$C\"; {change}; for d in \"$S\"/*; do mount --bind \"$C/${{d##*/}}\" \"$d\"; done"
    )
}

const AS_FOUND: [&str; 2] = [
    "takes no part: this node does not see the same sources",
    "as another node found it",
];

#[test]
fn a_node_with_empty_directories_below_leaves_and_nothing_is_missing() {
    let empty = "mkdir \"$C/empty\"; for d in \"$S\"/*; do mount --bind \"$C/empty\" \"$d\"; done";
    let Some((_lab, outcome)) = push_with_another(empty) else {
        return;
    };
    outcome.says(&AS_FOUND);
}

#[test]
fn a_node_with_older_files_in_directories_of_the_same_time_leaves_and_none_is_sent() {
    let older = "for d in \"$C\"/*; do echo older > \"$d/f7\"; touch -d 2001-01-01 \"$d/f7\"; done";
    let Some((_lab, outcome)) = push_with_another(&copies_changed_by(older)) else {
        return;
    };
    outcome.says(&AS_FOUND);
}

#[test]
fn a_node_that_lacks_what_is_below_leaves_and_nothing_is_missing() {
    let lacking = "rm -r \"$C\"/*/below";
    let Some((_lab, outcome)) = push_with_another(&copies_changed_by(lacking)) else {
        return;
    };
    outcome.says(&AS_FOUND);
}

/// Mounts over files cannot be seen in the metadata of a directory.
#[test]
fn a_node_with_another_file_over_one_leaves() {
    let over =
        "echo other > \"$C/file\"; for d in \"$S\"/*; do mount --bind \"$C/file\" \"$d/f7\"; done";
    let Some((_lab, outcome)) = push_with_another(over) else {
        return;
    };
    outcome.says(&[AS_FOUND[0], "it is a mount point here"]);
}

/// The way in which the copy was made does not matter, since any copy may be out of date.
#[test]
fn a_node_with_a_copy_of_the_source_takes_no_part() {
    let copy = "cp -a \"$S/.\" \"$C\"; mount --bind \"$C\" \"$S\"";
    let Some((_lab, outcome)) = push_with_another(copy) else {
        return;
    };
    let outcome = outcome.says(&["takes no part", "is not the same here", "possibly a copy"]);
    assert_done_by(&outcome, "1 node");
}

/// The umask and the clock of the head apply to every node.
#[test]
fn the_umask_and_the_clock_of_the_head_apply_to_all_nodes() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint_many();
    let node = lab.join("other", &["sh", "-c", "umask 077; exec \"$@\"", "sh"]);
    node.wait_for("waiting for the broker");
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let outcome = lab
        .push_many(&["--no-perms", "--no-times"])
        .outcome()
        .expect(0);
    assert_done_by(&outcome, "2 nodes");
    let mut seen = BTreeSet::new();
    let target = lab.site.path("shared/t");
    let directories =
        (0..DIRECTORIES).flat_map(|number| [format!("d{number}"), format!("d{number}/below")]);
    for directory in directories {
        for entry in std::fs::read_dir(target.join(directory)).unwrap() {
            let found = entry.unwrap().metadata().unwrap();
            if found.is_file() {
                seen.insert((found.mode() & 0o7777, found.mtime(), found.mtime_nsec()));
            }
        }
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    let (mode, seconds, _) = seen.pop_first().unwrap();
    // A file that this process creates has the mode that its umask allows.
    let own = lab.site.path("own");
    std::fs::write(&own, "").unwrap();
    assert_eq!(mode, own.metadata().unwrap().mode() & 0o7777);
    assert!(u64::try_from(seconds).unwrap() >= started.as_secs());
}

/// Entries are counted whichever node sends them.
#[test]
fn metadata_that_is_not_kept_is_counted_for_all_nodes() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint_many();
    let mut given = 0;
    for number in 0..DIRECTORIES {
        let directory = lab.source().join(format!("d{number}"));
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            std::os::unix::fs::lchown(path, Some(1234), None).unwrap();
            given += 1;
        }
    }
    let node = lab.join("other", &[]);
    node.wait_for("waiting for the broker");
    let options = ["-a", "--numeric-ids", "--strict-metadata"];
    let outcome = lab.push_many(&options).outcome().expect(23);
    let lack = format!("not kept: owner of {given} (the key's grant does not allow it)");
    let told = &outcome.stdout;
    assert!(
        told.contains(&lack) && told.contains(", by 2 nodes\n"),
        "{told}"
    );
}

#[test]
fn owners_by_name_are_refused() {
    let Some(lab) = Lab::new(1) else { return };
    lab.init_with_own_broker();
    paint(lab.source().join("f"), 10);
    lab.push(&["-a"])
        .outcome()
        .expect(1)
        .says(&["--cluster", "add --numeric-ids"]);
    lab.push(&["-a", "--numeric-ids"]).outcome().expect(0);
}

/// The names of directories change and directories are replaced continuously, and all nodes see the same tree.
#[test]
fn a_tree_that_changes_is_no_difference() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint_many();
    let directories = (0..DIRECTORIES)
        .map(|number| lab.source().join(format!("d{number}")))
        .collect::<Vec<_>>();
    for name in ["turning", "over"] {
        directories
            .iter()
            .for_each(|directory| std::fs::create_dir(directory.join(name)).unwrap());
    }
    let node = lab.join("other", &[]);
    node.wait_for("waiting for the broker");
    let is_over = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                for directory in &directories {
                    change(directory, number);
                }
            }
        });
        // The thread must end even if the push panics.
        let outcome = catch_unwind(AssertUnwindSafe(|| finish(lab.push_many(&[]).start())));
        is_over.store(true, Ordering::Relaxed);
        outcome
    });
    let outcome = outcome.unwrap_or_else(|panic| resume_unwind(panic));
    let outcome = outcome.expect(0);
    assert_both_took_part(&outcome);
    lab.push_many(&[]).outcome().expect(0);
    lab.assert_done();
}

/// Both nodes look up the entries found below the original directory in the directory that has replaced it.
#[test]
fn a_directory_with_much_below_that_is_exchanged_is_sent_as_it_is_then() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    let tops = [lab.source().join("cur"), lab.site.path("new")];
    let [cur, new] = tops.each_ref().map(|top| top.join("x"));
    let files: Vec<_> = (0..DIRECTORIES)
        .flat_map(|directory| (0..3).map(move |file| format!("d{directory}/e/f{file}")))
        .collect();
    let paint_all = |tree: &Path, bytes: u64| {
        files
            .iter()
            .zip(bytes..)
            .for_each(|(file, bytes)| paint(tree.join(file), bytes));
    };
    // This tree is created first, so that only the exchange itself changes timestamps later.
    paint_all(&new, 260_000);
    paint_all(&cur, 250_000);
    let node = lab.join("other", &[]);
    node.wait_for("waiting for the broker");
    let push = lab.push(&[]).start();
    let target = lab.site.path("shared/t/cur/x");
    let has_come = |file: &String| target.join(file).exists();
    wait_for("file at the target", || files.iter().any(has_come));
    // Like `mv cur old; mv new cur`, without a moment in which the name is missing.
    renameat_with(CWD, &tops[0], CWD, &tops[1], RenameFlags::EXCHANGE).unwrap();
    let outcome = finish(push).expect(0);
    assert_both_took_part(&outcome);
    let read = |tree: &Path, file: &String| std::fs::read(tree.join(file)).unwrap();
    let (mut from_old, mut from_cur) = (0, 0);
    for file in &files {
        let there = read(&target, file);
        from_old += u32::from(there == read(&new, file));
        from_cur += u32::from(there == read(&cur, file));
    }
    assert_eq!(
        from_old + from_cur,
        3 * DIRECTORIES,
        "{from_old} and {from_cur} files"
    );
    assert!(from_cur > 0, "the push had ended before");
    lab.push(&[]).outcome().expect(0);
    lab.assert_done();
}

/// Exchanges two empty directories, and now and then creates an empty file.
fn change(directory: &Path, number: u32) {
    if number.is_multiple_of(16) {
        std::fs::write(directory.join(format!("new{number}")), "").unwrap();
    }
    renameat_with(
        CWD,
        directory.join("turning"),
        CWD,
        directory.join("over"),
        RenameFlags::EXCHANGE,
    )
    .unwrap();
    std::thread::sleep(Duration::from_micros(100));
}

const DIRECTORIES: u32 = 64;
