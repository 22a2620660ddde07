//! Walks of listed paths.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use zmove_scan::{PathList, Rule, ScanConfig, Selection, Separator, scan_list};

use crate::support::{Found, one_thread, root_of, small_batches};

fn visit(tree: &Path, list: &str, config: &ScanConfig) -> Found {
    let reader = Cursor::new(list.as_bytes().to_vec());
    Found::collect(scan_list(
        PathList::new(root_of(tree, ""), reader, "list".into(), Separator::Newline),
        config,
    ))
}

fn paths(found: &Found) -> Vec<&str> {
    found
        .entries
        .keys()
        .map(|path| std::str::from_utf8(path).unwrap())
        .collect()
}

fn grown() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir_all(tree.path().join("a/b/c")).unwrap();
    for file in ["top", "a/1", "a/2", "a/b/3", "a/b/c/4"] {
        fs::write(tree.path().join(file), file).unwrap();
    }
    symlink("a", tree.path().join("link")).unwrap();
    tree
}

#[test]
fn directories_on_the_way_come_first_and_none_is_filled() {
    let tree = grown();
    for config in [one_thread(), small_batches(), ScanConfig::default()] {
        let found = visit(tree.path(), "a/b/c/4\na\ntop\nlink\n", &config);
        assert_eq!(
            paths(&found),
            ["a", "a/b", "a/b/c", "a/b/c/4", "link", "top"]
        );
        assert!(found.errors.is_empty() && found.roots.is_empty());
        let found = visit(tree.path(), "a/b\n.\n", &config);
        assert_eq!((paths(&found), found.roots.len()), (vec!["a", "a/b"], 1));
    }
}

#[test]
fn what_is_listed_twice_comes_once() {
    let tree = grown();
    let twice = "a/1\n./a//1\na\na/\n.\n.\na/b/3\na/b\n".repeat(3);
    let found = visit(tree.path(), &twice, &small_batches());
    assert_eq!(paths(&found), ["a", "a/1", "a/b", "a/b/3"]);
    assert_eq!(found.roots.len(), 1);
}

#[test]
fn each_path_that_cannot_be_is_told_and_the_others_come() {
    let tree = grown();
    let list = "nope\nno/where\nno/there\ntop/x\nlink/1\n/top\na/../top\na/1\n";
    let found = visit(tree.path(), list, &ScanConfig::default());
    assert_eq!(paths(&found), ["a", "a/1"]);
    let mut said: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
    said.sort();
    let below = |name: &str| tree.path().join(name).display().to_string();
    let of = |path: &str, why: &str| format!("find the listed path '{path}': {why}");
    let missing = "no such file or directory";
    assert_eq!(
        said,
        [
            of(
                "/top",
                "it is absolute, but paths must be relative to the source"
            ),
            of("a/../top", "it has a '..'"),
            of("link/1", &format!("'{}' is not a directory", below("link"))),
            of("no/there", missing),
            of("no/where", missing),
            of("nope", missing),
            of("top/x", &format!("'{}' is not a directory", below("top"))),
        ]
    );
}

/// A walk of a tree skips such a part silently. For a listed path, it reports an error.
#[test]
fn a_listed_part_of_a_transfer_is_told() {
    let tree = grown();
    let part = "a/.zmove-afb0ba00fd92-1";
    fs::write(tree.path().join(part), "x").unwrap();
    let config = ScanConfig {
        skip_filter: Some(zmove_scan::unfinished),
        ..ScanConfig::default()
    };
    let found = visit(tree.path(), &format!("{part}\na/1\n"), &config);
    assert_eq!(paths(&found), ["a", "a/1"]);
    let said: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
    let why = "it is a part of an unfinished transfer, which is never sent";
    assert_eq!(said, [format!("find the listed path '{part}': {why}")]);
}

#[test]
fn rules_and_sizes_hold_for_listed_paths() {
    let tree = grown();
    let rules = ["b/", "2"].map(|line| Rule::from_line(line.as_bytes()).unwrap().unwrap());
    let selection = Some(Arc::new(Selection::new(&rules, 0..=3).unwrap()));
    let config = ScanConfig {
        selection,
        ..ScanConfig::default()
    };
    let reader = Cursor::new(b"a/1\na/2\na/b\na/b/3\na/b/c/4\ntop\n".to_vec());
    let stream = scan_list(
        PathList::new(
            root_of(tree.path(), ""),
            reader,
            "list".into(),
            Separator::Newline,
        ),
        &config,
    );
    let count = stream.clone();
    let found = Found::collect(stream);
    assert_eq!(paths(&found), ["a", "a/1", "top"]);
    assert!(found.errors.is_empty());
    assert_eq!(count.left_out(), 4);
}

#[test]
fn a_long_list_in_no_order_is_all_found() {
    let tree = tempfile::tempdir().unwrap();
    let mut list = String::new();
    for number in 0..3_000_u32 {
        let path = format!("{}/{}/{number}", number % 7, number % 13);
        fs::create_dir_all(tree.path().join(&path).parent().unwrap()).unwrap();
        fs::write(tree.path().join(&path), "").unwrap();
        list += &format!("{path}\n");
    }
    for config in [one_thread(), small_batches(), ScanConfig::default()] {
        let found = visit(tree.path(), &list, &config);
        assert!(found.errors.is_empty());
        assert_eq!(found.entries.len(), 3_000 + 7 + 7 * 13);
    }
}
