//! Walks of real trees: every entry is emitted exactly once, for any shape of the tree, any consumer and any concurrent
//! changes.
//!
//! The reference is a slow recursion over `std::fs::read_dir`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use zmove_scan::{EntryKind, ScanConfig, ScanError, ScanItem, ScanRoot, histogram, scan};
use zmove_types::RelPath;

use crate::support::{self, Deep, Found, one_thread, root_of, small_batches, walk, walk_root};

/// Returns the entries that the reference finds: the path below the tree, with length, permissions and modification
/// time.
fn reference(tree: &Path) -> BTreeMap<Vec<u8>, (u64, u32, i64, i64)> {
    fn descend(tree: &Path, directory: &Path, found: &mut BTreeMap<Vec<u8>, (u64, u32, i64, i64)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let key = path
                .strip_prefix(tree)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec();
            found.insert(
                key,
                (
                    stat.len(),
                    stat.mode() & 0o7777,
                    stat.mtime(),
                    stat.mtime_nsec(),
                ),
            );
            if stat.is_dir() {
                descend(tree, &path, found);
            }
        }
    }
    let mut found = BTreeMap::new();
    descend(tree, tree, &mut found);
    found
}

fn attributes(found: &Found) -> BTreeMap<Vec<u8>, (u64, u32, i64, i64)> {
    let attributes = |(path, entry): (&Vec<u8>, &zmove_scan::Entry)| {
        let (mode, mtime) = (entry.metadata.mode, entry.metadata.mtime);
        (
            path.clone(),
            (entry.size, mode, mtime.seconds, i64::from(mtime.nanos)),
        )
    };
    found.entries.iter().map(attributes).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_entry_is_found_exactly_once(
        paths in prop::collection::vec(prop::collection::vec(0..6_u8, 1..6), 0..60),
        threads in 1..5_usize,
        batch_entries_max in 1..5_usize,
        queue_batches_max in 1..4_usize,
    ) {
        let tree = tempfile::tempdir().unwrap();
        for (number, path) in paths.iter().enumerate() {
            let path = path.iter().fold(tree.path().to_owned(), |path, step| path.join(format!("{step}")));
            // Skips a path below an existing file.
            if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.exists() {
                match number % 3 {
                    0 => fs::write(&path, vec![0; number * 100]).unwrap(),
                    1 => fs::create_dir(&path).unwrap(),
                    _ => symlink(".", &path).unwrap(),
                }
            }
        }
        let config = ScanConfig { threads, batch_entries_max, queue_batches_max, ..ScanConfig::default() };
        let found = walk(tree.path(), &config);
        prop_assert_eq!(attributes(&found), reference(tree.path()));
        prop_assert!(found.errors.is_empty());
        prop_assert!(found.batch_entries_most <= batch_entries_max);
    }
}

#[test]
fn names_are_bytes_and_links_are_not_followed() {
    let tree = tempfile::tempdir().unwrap();
    let odd = tree.path().join(OsStr::from_bytes(b"caf\xe9\n*"));
    fs::create_dir(&odd).unwrap();
    symlink("../\u{e9}", odd.join("dangling")).unwrap();
    symlink(".", odd.join("loop")).unwrap();
    symlink("/", odd.join("out")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(odd.join("socket")).unwrap();
    let found = walk(tree.path(), &ScanConfig::default());
    drop(socket);
    let kind = |name: &str| {
        found.entries[&[b"caf\xe9\n*/", name.as_bytes()].concat()]
            .kind
            .clone()
    };
    assert_eq!(found.entries.len(), 5);
    assert_eq!(
        kind("dangling"),
        EntryKind::Symlink("../\u{e9}".as_bytes().into())
    );
    assert_eq!(kind("loop"), EntryKind::Symlink((*b".").into()));
    assert_eq!(kind("out"), EntryKind::Symlink((*b"/").into()));
    assert_eq!(
        kind("socket"),
        EntryKind::Special(zmove_types::Special::Socket)
    );
}

#[test]
fn a_root_is_announced_with_its_own_mode_and_may_be_renamed() {
    let tree = tempfile::tempdir().unwrap();
    fs::set_permissions(tree.path(), fs::Permissions::from_mode(0o750)).unwrap();
    File::create(tree.path().join("file")).unwrap();
    let found = walk_root(root_of(tree.path(), "new/name"), &ScanConfig::default());
    assert_eq!(found.roots, [(b"new/name".to_vec(), 0o750)]);
    assert_eq!(found.targets, [b"new/name/file".to_vec()]);
}

#[test]
fn a_root_that_is_a_file_goes_to_its_prefix() {
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("file"), "12345").unwrap();
    let found = walk_root(
        root_of(&tree.path().join("file"), "d/other"),
        &ScanConfig::default(),
    );
    assert!(found.roots.is_empty());
    assert_eq!(found.targets, [b"d/other".to_vec()]);
    assert_eq!(found.entries[&b"file".to_vec()].size, 5);
}

#[test]
fn a_root_that_is_a_link_is_followed_only_with_a_slash() {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("real")).unwrap();
    File::create(tree.path().join("real/file")).unwrap();
    let link = tree.path().join("link");
    symlink("real", &link).unwrap();
    let as_link = walk_root(root_of(&link, "link"), &ScanConfig::default());
    assert_eq!(
        as_link.entries[&b"link".to_vec()].kind,
        EntryKind::Symlink((*b"real").into())
    );
    let slash = tree.path().join("link/");
    let followed = walk_root(root_of(&slash, ""), &ScanConfig::default());
    assert_eq!(followed.targets, [b"file".to_vec()]);
    assert_eq!(followed.roots.len(), 1);
}

#[test]
fn many_roots_share_a_walk_and_a_missing_one_is_an_error() {
    let tree = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        File::create(tree.path().join(name)).unwrap();
    }
    let roots = ["a", "missing", "b", "a/"].map(|name| root_of(&tree.path().join(name), "x"));
    let found = Found::collect(scan(roots.to_vec(), &one_thread()));
    assert_eq!(found.targets.len(), 2);
    let paths: Vec<_> = found
        .errors
        .iter()
        .map(|error| error.path().unwrap().to_owned())
        .collect();
    assert_eq!(paths, [tree.path().join("missing"), tree.path().join("a/")]);
    assert!(
        found
            .errors
            .iter()
            .all(|error| matches!(error, ScanError::Io { .. }))
    );
}

#[test]
fn a_tree_deeper_than_any_path_is_walked() {
    let deep = Deep::new("a_name_of_some_length", 2000);
    for config in [one_thread(), ScanConfig::default()] {
        let found = walk(deep.path(), &config);
        assert!(found.errors.is_empty(), "{:?}", found.errors.first());
        assert_eq!(found.entries.len(), 2000);
    }
}

#[test]
fn what_passes_the_longest_path_is_an_error() {
    let deep = Deep::new(&"n".repeat(250), 263);
    let found = walk(deep.path(), &ScanConfig::default());
    assert_eq!(found.entries.len(), 261);
    assert!(
        matches!(found.errors[..], [ScanError::Path { .. }]),
        "{:?}",
        found.errors
    );
}

#[test]
fn a_large_directory_comes_in_batches_before_it_is_listed() {
    let tree = tempfile::tempdir().unwrap();
    (0..20_000)
        .for_each(|number| drop(File::create(tree.path().join(format!("{number}"))).unwrap()));
    let mut stream = scan(
        vec![root_of(tree.path(), "")],
        &ScanConfig {
            queue_batches_max: 2,
            ..one_thread()
        },
    );
    assert!(matches!(stream.next(), Some(ScanItem::Root { .. })));
    let Some(ScanItem::Batch(first)) = stream.next() else {
        panic!("no batch")
    };
    assert!(
        first.directory.entries_found() < 10_000,
        "the walk ran ahead of its consumer"
    );
    let rest = Found::collect(stream);
    assert_eq!(rest.entries.len() + first.entries.len(), 20_000);
    assert_eq!(first.directory.entries_found(), 20_000);
}

#[test]
fn several_threads_consume_one_scan() {
    let tree = tempfile::tempdir().unwrap();
    (0..500).for_each(|number| drop(File::create(tree.path().join(format!("{number}"))).unwrap()));
    let stream = scan(vec![root_of(tree.path(), "")], &small_batches());
    let count = |stream: zmove_scan::Scan| {
        stream
            .map(|item| {
                if let ScanItem::Batch(batch) = item {
                    batch.entries.len()
                } else {
                    0
                }
            })
            .sum::<usize>()
    };
    let total = std::thread::scope(|scope| {
        let others =
            [stream.clone(), stream.clone()].map(|stream| scope.spawn(move || count(stream)));
        count(stream)
            + others
                .into_iter()
                .map(|other| other.join().unwrap())
                .sum::<usize>()
    });
    assert_eq!(total, 500);
}

#[test]
fn a_scan_that_is_dropped_lets_go_of_its_root() {
    let tree = tempfile::tempdir().unwrap();
    for directory in 0..50 {
        let path = tree.path().join(format!("{directory}"));
        fs::create_dir(&path).unwrap();
        (0..50).for_each(|number| drop(File::create(path.join(format!("{number}"))).unwrap()));
    }
    for taken in [1, 5] {
        let mut stream = scan(vec![root_of(tree.path(), "")], &small_batches());
        let items: Vec<_> = stream.by_ref().take(taken).collect();
        let root = items.iter().find_map(|item| match item {
            ScanItem::Root { directory, .. } => Some(std::sync::Arc::downgrade(directory.root())),
            _ => None,
        });
        let root = root.expect("the root comes first");
        drop((items, stream));
        // The walk has ended when no job holds its root any more.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while root.strong_count() > 0 {
            assert!(
                std::time::Instant::now() < end,
                "the walk goes on without a consumer"
            );
            std::thread::yield_now();
        }
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_directory_swapped_for_a_link_is_not_followed() {
    let tree = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    File::create(outside.path().join("secret")).unwrap();
    fs::create_dir_all(tree.path().join("top/swapped")).unwrap();
    symlink(outside.path(), tree.path().join("top/link")).unwrap();
    let (top, done) = (
        File::open(tree.path().join("top")).unwrap(),
        AtomicBool::new(false),
    );
    std::thread::scope(|scope| {
        // Stops the thread even if an assertion fails.
        let _guard = SetOnDrop(&done);
        scope.spawn(|| {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            while !done.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(&top, "swapped", &top, "link", exchange).unwrap();
            }
        });
        for _ in 0..500 {
            let found = walk(tree.path(), &small_batches());
            assert!(!found.entries.keys().any(|path| path.ends_with(b"secret")));
        }
    });
}

#[test]
fn files_that_go_during_the_walk_are_vanished_not_fatal() {
    let tree = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..2000)
        .map(|number| tree.path().join(format!("{number}")))
        .collect();
    names
        .iter()
        .for_each(|name| drop(File::create(name).unwrap()));
    let mut stream = scan(vec![root_of(tree.path(), "")], &small_batches());
    assert!(matches!(stream.next(), Some(ScanItem::Root { .. })));
    names.iter().for_each(|name| fs::remove_file(name).unwrap());
    let found = Found::collect(stream);
    assert!(
        found
            .errors
            .iter()
            .all(|error| matches!(error, ScanError::Vanished { .. }))
    );
    assert!(
        !found.errors.is_empty(),
        "all were looked up before the consumer took the second item"
    );
}

#[test]
fn an_unreadable_directory_is_an_error_and_the_rest_goes_on() {
    let tree = tempfile::tempdir().unwrap();
    fs::set_permissions(tree.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["closed", "open"] {
        fs::create_dir(tree.path().join(name)).unwrap();
    }
    File::create(tree.path().join("open/file")).unwrap();
    fs::set_permissions(
        tree.path().join("closed"),
        fs::Permissions::from_mode(0o000),
    )
    .unwrap();
    let path = tree.path().to_owned();
    let found = support::as_nobody(move || walk(&path, &ScanConfig::default()));
    assert_eq!(found.entries.len(), 3);
    let [ScanError::Io { path, source, .. }] = &found.errors[..] else {
        panic!("{:?}", found.errors)
    };
    assert_eq!(*path, tree.path().join("closed"));
    assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn the_histogram_counts_what_the_scan_finds() {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("d")).unwrap();
    fs::write(tree.path().join("d/large"), [7; 5000]).unwrap();
    File::create(tree.path().join("empty")).unwrap();
    symlink("d", tree.path().join("link")).unwrap();
    let root = ScanRoot::new(tree.path(), RelPath::root());
    let counted = histogram(scan(vec![root], &one_thread()), |error| panic!("{error}"));
    assert_eq!((counted.files.files, counted.files.bytes), (2, 5000));
    assert_eq!(
        (counted.directories, counted.symlinks, counted.errors),
        (2, 1, 0)
    );
    assert_eq!(
        counted.largest_file.unwrap().path,
        tree.path().join("d/large").to_str().unwrap()
    );
    assert_eq!(counted.deepest_path.unwrap().value, 2);
    assert_eq!(counted.largest_directory.unwrap().value, 3);
}
