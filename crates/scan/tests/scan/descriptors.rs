//! Walks with few descriptors. They run in a child process, because the limit applies to a whole process.
//!
//! The parent runs this test binary again under `ulimit`, with an ignored test as the child.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use zmove_scan::{ScanConfig, ScanError, ScanItem, scan};

use crate::support::{root_of, walk};

#[test]
fn few_descriptors_are_enough_for_a_consumer_that_drops_batches() {
    run_limited("descriptors::child_that_drops_batches");
}

#[test]
fn sources_of_one_directory_share_a_descriptor() {
    run_limited("descriptors::child_that_keeps_roots");
}

#[test]
fn a_consumer_that_keeps_all_batches_gets_errors_and_no_hang() {
    run_limited("descriptors::child_that_keeps_batches");
}

#[test]
#[ignore = "run by its parent test with a limit of 40 descriptors"]
fn child_that_drops_batches() {
    let Ok(tree) = std::env::var("ZMOVE_TEST_TREE") else {
        return;
    };
    let found = walk(Path::new(&tree), &ScanConfig::default());
    assert_eq!(found.entries.len(), DIRECTORIES * 2);
    assert!(found.errors.is_empty(), "{:?}", found.errors.first());
}

#[test]
#[ignore = "run by its parent test with a limit of 40 descriptors"]
fn child_that_keeps_batches() {
    let Ok(tree) = std::env::var("ZMOVE_TEST_TREE") else {
        return;
    };
    let kept: Vec<_> = scan(vec![root_of(Path::new(&tree), "")], &ScanConfig::default()).collect();
    let refused = |item: &&ScanItem| match item {
        ScanItem::Error(ScanError::Io { source, .. }) => source.raw_os_error() == Some(24),
        _ => false,
    };
    let refused = kept.iter().filter(refused).count();
    assert!(
        refused > 0 && refused < DIRECTORIES,
        "{refused} directories were refused"
    );
}

/// A consumer that processes entries later keeps their roots instead of their directories.
#[test]
#[ignore = "run by its parent test with a limit of 40 descriptors"]
fn child_that_keeps_roots() {
    let Ok(tree) = std::env::var("ZMOVE_TEST_TREE") else {
        return;
    };
    let path = |number: usize| Path::new(&tree).join(number.to_string());
    let roots = (0..DIRECTORIES).map(|number| match number % 2 {
        0 => root_of(&path(number), &number.to_string()),
        _ => root_of(&path(0).join("file"), &number.to_string()),
    });
    let mut kept = Vec::new();
    for item in scan(roots.collect(), &ScanConfig::default()) {
        match item {
            ScanItem::Batch(batch) => kept.push((
                Arc::clone(batch.directory.root()),
                batch.directory.source_path().clone(),
                batch.entries[0].name.clone(),
            )),
            ScanItem::Root { .. } => {}
            ScanItem::Error(error) => panic!("{error}"),
        }
    }
    assert_eq!(kept.len(), DIRECTORIES);
    for (root, directory, name) in kept {
        root.open_file(&directory.join(&name).unwrap()).unwrap();
    }
}

fn run_limited(child: &str) {
    let tree = tempfile::tempdir().unwrap();
    for number in 0..DIRECTORIES {
        let directory = tree.path().join(format!("{number}"));
        fs::create_dir(&directory).unwrap();
        fs::File::create(directory.join("file")).unwrap();
    }
    let status = Command::new("sh")
        .args(["-c", "ulimit -n 40; exec \"$0\" --exact \"$1\" --ignored"])
        .arg(std::env::current_exe().unwrap())
        .arg(child)
        .env("ZMOVE_TEST_TREE", tree.path())
        .status()
        .unwrap();
    assert!(status.success(), "{child}: {status}");
}

const DIRECTORIES: usize = 500;
