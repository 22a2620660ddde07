//! Tests of watches on real directories.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn config(rest: Duration) -> WatchConfig {
    WatchConfig {
        rest,
        rescan: Some(Duration::from_secs(3600)),
        is_shared: |_| false,
        is_unfinished: |name| name == ".part",
    }
}

/// Returns a watch that has walked the tree once and has found no rested files.
fn watched(root: &Path, config: WatchConfig) -> Watch {
    let watch = Watch::begin(root, config).unwrap();
    wait_for(|| watch.state().has_walked);
    watch
}

#[track_caller]
fn wait_for(holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes batches until each of these files has been handed out, exactly once.
#[track_caller]
fn assert_come(watch: &Watch, paths: &[&str]) {
    let wanted: BTreeSet<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let mut come = BTreeSet::new();
    while come.len() < wanted.len() {
        let batch = watch
            .take(9, PATIENCE)
            .unwrap_or_else(|| panic!("{wanted:?}, only {come:?}"));
        for path in batch.paths() {
            assert!(come.insert(path.to_owned()), "{path:?} came twice");
        }
        watch.settle(batch, |_| false);
    }
    assert_eq!(come, wanted);
}

/// Renames a complete file to `path`.
fn put(path: PathBuf) {
    let outside = tempfile::tempdir().unwrap();
    let whole = outside.path().join("whole");
    fs::write(&whole, "x").unwrap();
    fs::rename(whole, path).unwrap();
}

/// Renames a file with this name into the tree. Files that are not handed out before it are not ready.
#[track_caller]
fn assert_only_comes(watch: &Watch, name: &str) {
    put(watch.root.join(name));
    assert_come(watch, &[name]);
}

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn what_is_unfinished_comes_when_it_has_its_name() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(".part"), "met").unwrap();
    let watch = watched(root.path(), config(Duration::ZERO));
    assert_only_comes(&watch, "first");
    fs::write(root.path().join(".part"), "told of").unwrap();
    assert_only_comes(&watch, "second");
    fs::rename(root.path().join(".part"), root.path().join("whole")).unwrap();
    assert_come(&watch, &["whole"]);
}

#[test]
fn files_come_when_they_are_closed() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("d")).unwrap();
    let watch = watched(root.path(), config(LONG));
    let mut file = File::create(root.path().join("d/f")).unwrap();
    file.write_all(b"x").unwrap();
    // The file is still open.
    assert_only_comes(&watch, "first");
    drop(file);
    assert_come(&watch, &["d/f"]);
    fs::write(root.path().join("d/f"), "more").unwrap();
    assert_come(&watch, &["d/f"]);
    std::os::unix::fs::symlink("d", root.path().join("l")).unwrap();
    // A link is never closed, so it must rest.
    assert_only_comes(&watch, "second");
}

/// A directory that this user cannot read is reported once, and the rest of the tree is watched.
#[test]
fn a_directory_that_cannot_be_read_leaves_the_others_watched() {
    let root = tempfile::tempdir().unwrap();
    let closed = root.path().join("closed");
    for directory in [&closed, &root.path().join("open")] {
        fs::create_dir(directory).unwrap();
    }
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o311)).unwrap();
    // The watch's thread inherits the capabilities of this thread. Root can read any directory.
    let watch_as_any_user = || {
        let mut own = capabilities(None).unwrap();
        let reading = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        own.effective.remove(reading);
        set_capabilities(None, own).unwrap();
        watched(root.path(), config(LONG))
    };
    let watch = std::thread::scope(|scope| scope.spawn(watch_as_any_user).join().unwrap());
    assert!(matches!(watch.state().detection, ChangeDetection::Events));
    assert_eq!(watch.state().directories, 2);
    put(root.path().join("open/f"));
    assert_come(&watch, &["open/f"]);
    let notes = watch.notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("closed' cannot be read"), "{notes:?}");
}

#[test]
fn names_count_that_are_there_at_the_end() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let watch = watched(root.path(), config(LONG));
    fs::write(outside.path().join("in"), "x").unwrap();
    fs::rename(outside.path().join("in"), root.path().join("in")).unwrap();
    fs::write(root.path().join("out"), "x").unwrap();
    fs::rename(root.path().join("out"), outside.path().join("out")).unwrap();
    fs::write(root.path().join("part"), "x").unwrap();
    fs::rename(root.path().join("part"), root.path().join("whole")).unwrap();
    fs::write(root.path().join("removed"), "x").unwrap();
    fs::remove_file(root.path().join("removed")).unwrap();
    put(root.path().join("last"));
    assert_come(&watch, &["in", "last", "whole"]);
}

#[test]
fn a_file_that_nobody_closes_comes_when_it_has_rested() {
    let root = tempfile::tempdir().unwrap();
    let watch = watched(root.path(), config(SHORT));
    let begun = Instant::now();
    let mut file = File::create(root.path().join("f")).unwrap();
    file.write_all(b"x").unwrap();
    assert_come(&watch, &["f"]);
    assert!(begun.elapsed() >= SHORT);
    file.write_all(b"y").unwrap();
    assert_come(&watch, &["f"]);
}

#[test]
fn directories_are_watched_that_come_later() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let watch = watched(root.path(), config(SHORT));
    fs::create_dir_all(root.path().join("a/b/c")).unwrap();
    put(root.path().join("a/b/c/f"));
    fs::create_dir_all(outside.path().join("whole/d")).unwrap();
    fs::write(outside.path().join("whole/d/g"), "x").unwrap();
    fs::rename(outside.path().join("whole"), root.path().join("whole")).unwrap();
    assert_come(&watch, &["a/b/c/f", "whole/d/g"]);
    wait_for(|| watch.state().directories == 6);
    fs::rename(root.path().join("whole"), root.path().join("a/moved")).unwrap();
    assert_come(&watch, &["a/moved/d/g"]);
    put(root.path().join("a/moved/d/h"));
    assert_come(&watch, &["a/moved/d/h"]);
    fs::rename(root.path().join("a"), outside.path().join("a")).unwrap();
    wait_for(|| {
        put(root.path().join("k"));
        let batch = watch.take(9, PATIENCE).unwrap();
        batch.paths().all(|path| path == Path::new("k"))
    });
    fs::write(outside.path().join("a/b/c/f"), "no more ours").unwrap();
    assert_only_comes(&watch, "last");
}

#[test]
fn what_no_event_tells_a_walk_finds() {
    let root = tempfile::tempdir().unwrap();
    for directory in ["a", "b", "c"] {
        fs::create_dir(root.path().join(directory)).unwrap();
    }
    let config = WatchConfig {
        rescan: Some(SHORT),
        ..config(SHORT)
    };
    let watch = Watch::begin_with(root.path(), config, 1).unwrap();
    wait_for(|| watch.state().has_walked);
    let ChangeDetection::Walks(why) = watch.state().detection else {
        panic!("{:?}", watch.state())
    };
    assert!(why.contains("sysctl fs.inotify.max_user_watches"), "{why}");
    assert_eq!(watch.notes().len(), 1);
    put(root.path().join("c/f"));
    assert_come(&watch, &["c/f"]);
    put(root.path().join("c/f"));
    put(root.path().join("b/f"));
    assert_come(&watch, &["b/f", "c/f"]);
    // Each of these files is found by a later walk, which finds the other files unchanged.
    assert_only_comes(&watch, "first");
    assert_only_comes(&watch, "second");
    assert!(watch.notes().is_empty(), "each is told once");
}

#[test]
fn on_a_network_file_system_the_tree_is_walked_alone() {
    let root = tempfile::tempdir().unwrap();
    let config = WatchConfig {
        rescan: Some(SHORT),
        is_shared: |_| true,
        ..config(SHORT)
    };
    let watch = watched(root.path(), config);
    assert!(
        matches!(watch.state().detection, ChangeDetection::Walks(why) if why.contains("network file system"))
    );
    assert_eq!(watch.state().directories, 0);
    let begun = Instant::now();
    put(root.path().join("f"));
    assert_come(&watch, &["f"]);
    assert!(begun.elapsed() >= SHORT, "it has to rest");
}

#[test]
fn the_queue_may_overflow() {
    let root = tempfile::tempdir().unwrap();
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let watch = watched(root.path(), config(SHORT));
    // No events are read in the meantime, because reading requires this lock.
    let held = watch.shared.account();
    fs::write(root.path().join("first"), "x").unwrap();
    let names: Vec<_> = (0..most / 2).map(|number| format!("f{number}")).collect();
    for name in &names {
        fs::write(root.path().join(name), "x").unwrap();
    }
    fs::write(root.path().join("last"), "x").unwrap();
    drop(held);
    let mut come = BTreeSet::new();
    while come.len() < names.len() + 2 {
        let batch = watch.take(100_000, PATIENCE).unwrap();
        come.extend(batch.paths().map(Path::to_owned));
        watch.settle(batch, |_| false);
    }
    assert!(
        watch
            .notes()
            .iter()
            .any(|note| note.contains("fs.inotify.max_queued_events"))
    );
}

#[test]
fn the_root_may_go_and_come_back() {
    let above = tempfile::tempdir().unwrap();
    let root = above.path().join("root");
    let watch = Watch::begin(&root, config(SHORT)).unwrap();
    fs::create_dir(&root).unwrap();
    wait_for(|| watch.state().has_walked);
    put(root.join("f"));
    assert_come(&watch, &["f"]);
    fs::rename(&root, above.path().join("elsewhere")).unwrap();
    wait_for(|| !watch.state().exists);
    fs::create_dir(&root).unwrap();
    put(root.join("g"));
    assert_come(&watch, &["g"]);
    fs::remove_dir_all(&root).unwrap();
    wait_for(|| !watch.state().exists);
    fs::rename(above.path().join("elsewhere"), &root).unwrap();
    wait_for(|| watch.state().exists);
    // The walk of the other directory has not found the file, so it is handed out again. The transfer finds it at the
    // target.
    assert_come(&watch, &["f"]);
    assert!(
        watch
            .notes()
            .iter()
            .any(|note| note.ends_with("exists again")),
        "{:?}",
        watch.notes()
    );
}

#[test]
fn what_was_not_moved_comes_again() {
    let root = tempfile::tempdir().unwrap();
    let watch = watched(root.path(), config(SHORT));
    put(root.path().join("f"));
    let batch = watch.take(9, PATIENCE).unwrap();
    watch.put_back(batch);
    let batch = watch.take(9, PATIENCE).unwrap();
    put(root.path().join("f"));
    watch.settle(batch, |_| false);
    assert_come(&watch, &["f"]);
}
