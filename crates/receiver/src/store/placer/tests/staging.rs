//! New directories under hidden names, and merging them into directories that appear meanwhile.

use super::*;

/// Entries below an unpublished directory are placed without a flush.
#[test]
fn what_is_below_a_staging_directory_appears_with_it() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let (mut one, mut other) = (Placer::new(&transfer), Placer::new(&transfer));
    let mut batches = vec![begin(&mut one, files("d", "f", 8))];
    for (directory, count) in [("d/few", 2), ("d/many", 9), ("d/many/deep/est", 3)] {
        batches.push(begin(&mut other, files(directory, "g", count)));
    }
    assert_eq!(names(&home.path().join("d")), [""; 0]);
    publish_all(&transfer);
    let count = |directory: &str| names(&home.path().join(directory)).len();
    assert_eq!(
        ["d", "d/few", "d/many", "d/many/deep/est"].map(count),
        [10, 2, 10, 3]
    );
    assert!(batches.iter().all(|batch| batch.faults().is_empty()));
    assert_eq!(
        place(&mut other, files("d/few", "h", 1)),
        [],
        "the same directory as before"
    );
    assert_eq!(
        (count("d/few"), names(home.path())),
        (3, vec!["d".to_owned()])
    );
}

#[test]
fn what_comes_while_a_directory_gets_its_name_is_published_later() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let early = begin(&mut placer, files("d", "f", 8));
    let publishing = transfer.publisher.take_generation();
    let later = begin(&mut placer, files("d", "g", 8));
    publishing
        .publish(&transfer, None)
        .into_iter()
        .filter_map(PendingBatch::release)
        .for_each(|told| transfer.reports.report(told));
    assert_eq!(visible(&home.path().join("d")).len(), 8);
    publish_all(&transfer);
    assert_eq!(visible(&home.path().join("d")).len(), 16);
    assert_eq!([early.faults(), later.faults()], [vec![], vec![]]);
}

#[test]
fn a_directory_takes_the_place_of_a_file_only_when_what_is_in_it_is_published() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("a"), "old").unwrap();
    std::os::unix::fs::symlink("nowhere", home.path().join("b")).unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = [
        begin(&mut placer, files("a/x", "f", 2)),
        begin(&mut placer, directory_entry("", "b")),
        begin(&mut placer, files("b", "f", 9)),
    ];
    assert_eq!(std::fs::read(home.path().join("a")).unwrap(), b"old");
    assert!(home.path().join("b").is_symlink());
    publish_all(&transfer);
    assert!(batches.iter().all(|batch| batch.faults().is_empty()));
    assert_eq!(names(home.path()), ["a", "b"]);
    assert_eq!(
        (
            names(&home.path().join("a/x")).len(),
            names(&home.path().join("b")).len()
        ),
        (2, 9)
    );
}

/// After a thread has created a directory, another thread may add a file to it, directly or far below, before the first
/// thread reports the new directory.
#[test]
fn a_directory_that_is_used_is_not_fresh() {
    for below in ["d", "d/x/y/z"] {
        let home = tempfile::tempdir().unwrap();
        let transfer = transfer(home.path());
        let (mut placer, mut other) = (Placer::new(&transfer), Placer::new(&transfer));
        let mut few = None;
        let make = || {
            std::fs::create_dir(home.path().join("d"))?;
            few = Some(begin(&mut other, files(below, "f", 1)));
            Ok(true)
        };
        assert!(transfer.publisher.make(&path("d"), make).unwrap());
        let made = begin(&mut placer, directory_entry("", "e"));
        let later = begin(&mut other, files(&below.replace('d', "e"), "f", 1));
        let many = ["d", "e"].map(|directory| begin(&mut placer, files(directory, "g", 9)));
        publish_all(&transfer);
        let all = [few.unwrap(), made, later].into_iter().chain(many);
        assert!(
            all.into_iter().all(|batch| batch.faults().is_empty()),
            "{below}"
        );
    }
}

#[test]
fn files_whose_directory_was_filled_meanwhile_go_there_one_by_one() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = [
        begin(&mut placer, files("d", "f", 8)),
        begin(&mut placer, files("d", "g", 2)),
    ];
    let filled = home.path().join("d");
    std::fs::write(filled.join("f3"), "of somebody else").unwrap();
    std::fs::create_dir(filled.join("g1")).unwrap();
    publish_all(&transfer);
    assert_eq!(
        std::fs::read(filled.join("f3")).unwrap(),
        b"x",
        "replaced, as any file"
    );
    assert_eq!(names(&filled).len(), 10);
    assert_eq!(names(home.path()), ["d"]);
    let (operation, code) = (Operation::Rename, FaultCode::DirectoryInTheWay);
    assert_eq!(batches[0].faults(), []);
    assert_eq!(
        batches[1].faults(),
        [EntryFault {
            entry: 1,
            operation,
            code
        }]
    );
}

/// Entries below the directory already have their final names, but the directory itself cannot be renamed.
#[test]
fn what_is_below_a_directory_that_cannot_go_where_it_should_has_failed() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = [
        begin(&mut placer, files("d", "f", 8)),
        begin(&mut placer, files("d/few", "g", 2)),
        begin(&mut placer, files("d/many", "h", 9)),
        begin(&mut placer, files("d/many/deep", "i", 1)),
        begin(&mut placer, files("d/other", "j", 9)),
    ];
    for taken in ["few", "many"] {
        std::fs::write(home.path().join("d").join(taken), "of somebody else").unwrap();
    }
    publish_all(&transfer);
    let failed = batches.map(|batch| batch.faults().len());
    assert_eq!(failed, [0, 2, 9, 1, 0]);
    assert_eq!(names(&home.path().join("d")).len(), 8 + 3);
    assert_eq!(names(&home.path().join("d/other")).len(), 9);
}

struct ClearOnDrop<'a>(&'a AtomicBool);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A writer has the staging directory open while the directory is merged.
#[test]
fn links_and_directories_that_come_while_a_directory_is_merged_arrive() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let first = begin(&mut placer, files("d", "f", 8));
    std::fs::write(home.path().join("d/foreign"), "of somebody else").unwrap();
    let (publishing, links) = (AtomicBool::new(true), AtomicU32::new(0));
    std::thread::scope(|scope| {
        // The guard clears the flag even if an assertion fails, so that the thread ends.
        let _guard = ClearOnDrop(&publishing);
        let linking = scope.spawn(|| {
            let mut placer = Placer::new(&transfer);
            while publishing.load(Ordering::Relaxed) {
                let number = links.load(Ordering::Relaxed);
                let link = BatchEntry::Symlink(
                    name(&format!("l{number}")),
                    metadata(0o777),
                    Box::from(*b"x"),
                );
                let below = BatchEntry::Directory(name(&format!("e{number}")), metadata(0o755));
                let group = DirectoryGroup {
                    directory: path("d"),
                    entries: vec![link, below],
                };
                assert_eq!(begin(&mut placer, group).faults(), []);
                links.store(number + 1, Ordering::Relaxed);
            }
        });
        while links.load(Ordering::Relaxed) < 50 {
            assert!(!linking.is_finished());
            std::thread::yield_now();
        }
        publish_all(&transfer);
    });
    assert_eq!(first.faults(), []);
    let there = names(&home.path().join("d"));
    assert_eq!(
        there.len(),
        8 + 1 + 2 * links.into_inner() as usize,
        "{there:?}"
    );
    assert_eq!(names(home.path()), ["d"]);
}

/// The staging directory is created while its parent directory is being published and merged.
#[test]
fn a_staging_directory_below_one_that_is_merged_gets_its_name_too() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let above = begin(&mut placer, files("d", "f", 8));
    let first = transfer.publisher.take_generation();
    let batches = [
        begin(&mut placer, files("d/x", "g", 8)),
        begin(&mut placer, files("d/x/y", "h", 3)),
    ];
    std::fs::write(home.path().join("d/foreign"), "of somebody else").unwrap();
    first
        .publish(&transfer, None)
        .into_iter()
        .filter_map(PendingBatch::release)
        .for_each(|told| transfer.reports.report(told));
    publish_all(&transfer);
    assert_eq!(above.faults(), []);
    assert!(batches.iter().all(|batch| batch.faults().is_empty()));
    let there = |directory: &str| names(&home.path().join(directory)).len();
    assert_eq!(["d", "d/x", "d/x/y"].map(there), [8 + 2, 8 + 1, 3]);
}

#[test]
fn what_is_below_a_staging_directory_that_somebody_has_moved_has_failed() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = [
        begin(&mut placer, files("d", "f", 8)),
        begin(&mut placer, files("d/x", "g", 2)),
    ];
    let hidden = names(home.path())
        .into_iter()
        .find(|name| name.starts_with(".zmove-"))
        .unwrap();
    std::fs::rename(home.path().join(hidden), home.path().join("elsewhere")).unwrap();
    publish_all(&transfer);
    assert_eq!(batches.map(|batch| batch.faults().len()), [8, 2]);
}

#[test]
fn what_appears_below_a_new_directory_stays_if_nothing_is_to_be_replaced() {
    for overwrite in [Overwrite::Nothing, Overwrite::Older] {
        let home = tempfile::tempdir().unwrap();
        let mut transfer = transfer(home.path());
        transfer.target.view.policy.rules.overwrite = overwrite;
        let mut placer = Placer::new(&transfer);
        let batches = [
            begin(&mut placer, files("d", "f", 8)),
            begin(&mut placer, files("d/few", "g", 2)),
        ];
        std::fs::create_dir(home.path().join("d/few")).unwrap();
        // The existing file is newer than the new one.
        std::fs::write(home.path().join("d/few/g1"), "y").unwrap();
        publish_all(&transfer);
        assert_eq!(std::fs::read(home.path().join("d/few/g1")).unwrap(), b"y");
        let FaultCause { operation, code } = KEPT_EXISTING;
        assert_eq!(batches[0].faults(), []);
        assert_eq!(
            batches[1].faults(),
            [EntryFault {
                entry: 1,
                operation,
                code
            }]
        );
        assert_eq!(names(&home.path().join("d/few")), ["g0", "g1"]);
    }
}

#[test]
fn a_directory_takes_the_place_of_a_file_also_when_no_more_can_be_staged() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("a"), "old").unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let full = (0..).map(|number| begin(&mut placer, files(&format!("n{number}"), "f", 8)));
    let mut batches: Vec<_> = full.take(STAGING_MAX + 1).collect();
    let mut may_stage = false;
    let another = transfer.publisher.begin(&path("another"), || {
        may_stage = true;
        None
    });
    assert!(another.is_none() && !may_stage, "no more can be staged");
    batches.push(begin(&mut placer, files("a/x", "f", 2)));
    publish_all(&transfer);
    assert!(batches.iter().all(|batch| batch.faults().is_empty()));
    assert_eq!(names(&home.path().join("a/x")), ["f0", "f1"]);
}
