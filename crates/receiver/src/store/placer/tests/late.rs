//! Storage with high latency, and flushes that fail.

use super::*;

/// Creates a transfer on storage with high latency, to a target with a directory `d`.
fn late_transfer(home: &Path, durability: Durability) -> Transfer {
    std::fs::create_dir(home.join("d")).unwrap();
    let mut transfer = transfer(home);
    transfer.target.view.policy.rules.durability = durability;
    transfer.quota.begin_to_write_late();
    assert!(transfer.quota.has_slow_writes());
    transfer
}

#[test]
fn on_late_storage_files_that_are_flushed_by_themselves_get_their_names_at_once() {
    let home = tempfile::tempdir().unwrap();
    let transfer = late_transfer(home.path(), Durability::File);
    let batch = begin(&mut Placer::new(&transfer), files("d", "f", 40));
    let directory = home.path().join("d");
    assert_eq!(
        (visible(&directory).len(), names(&directory).len()),
        (40, 40),
        "and no side directory stays"
    );
    assert_eq!(std::fs::read(directory.join("f7")).unwrap(), b"x");
    publish_all(&transfer);
    assert_eq!((names(&directory).len(), batch.faults()), (40, vec![]));
}

#[test]
fn on_late_storage_no_file_has_its_name_before_the_flush_of_all() {
    let home = tempfile::tempdir().unwrap();
    let transfer = late_transfer(home.path(), Durability::End);
    let batch = begin(&mut Placer::new(&transfer), files("d", "f", 40));
    assert_eq!(visible(&home.path().join("d")), [""; 0]);
    publish_all(&transfer);
    assert_eq!(
        (visible(&home.path().join("d")).len(), batch.faults()),
        (40, vec![])
    );
}

#[test]
fn on_late_storage_files_that_are_there_are_replaced_or_stay_as_always() {
    for (overwrite, found) in [
        (Overwrite::Differing, b"x".to_vec()),
        (Overwrite::Nothing, b"old".to_vec()),
    ] {
        let home = tempfile::tempdir().unwrap();
        let mut transfer = late_transfer(home.path(), Durability::File);
        transfer.target.view.policy.rules.overwrite = overwrite;
        let directory = home.path().join("d");
        std::fs::write(directory.join("f3"), "old").unwrap();
        let batch = begin(&mut Placer::new(&transfer), files("d", "f", 40));
        assert_eq!(
            std::fs::read(directory.join("f3")).unwrap(),
            b"old",
            "until it is published"
        );
        publish_all(&transfer);
        assert_eq!(std::fs::read(directory.join("f3")).unwrap(), found);
        assert_eq!(names(&directory).len(), 40);
        let stays = EntryFault {
            entry: 3,
            operation: Operation::Create,
            code: FaultCode::AlreadyThere,
        };
        assert!(batch.faults().iter().all(|fault| *fault == stays));
        assert_eq!(
            batch.faults().len(),
            usize::from(overwrite == Overwrite::Nothing)
        );
    }
}

#[test]
fn what_a_writer_that_panics_was_filling_gets_no_name() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let whole = begin(&mut placer, files("d", "f", 8));
    // The guard is dropped without a call of `leave`, as if the writer had panicked.
    drop(
        placer
            .staging(
                &path("d"),
                DirectoryFiles {
                    count: 1,
                    may_continue: false,
                },
            )
            .unwrap(),
    );
    publish_all(&transfer);
    assert_eq!(names(&home.path().join("d")), [""; 0]);
    assert_eq!(whole.faults().len(), 8);
    assert_eq!(names(home.path()), ["d"]);
}

/// The kernel reports a failed flush only once and then treats the pages as clean.
#[test]
fn after_a_flush_that_failed_only_what_is_on_the_storage_gets_its_name() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("there")).unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = ["there", "new"].map(|directory| begin(&mut placer, files(directory, "f", 8)));
    let hidden = |directory: &str| {
        let directory = home.path().join(directory);
        let name = names(&directory)
            .into_iter()
            .find(|name| name.starts_with(".zmove-"))
            .unwrap();
        directory.join(name)
    };
    // The data is changed as if it had not reached the storage.
    std::fs::write(hidden("there"), "0").unwrap();
    std::fs::write(hidden("").join("f5"), "0").unwrap();
    transfer.publisher.suspect();
    publish_all(&transfer);
    for (batch, directory) in batches.iter().zip(["there", "new"]) {
        let faults = batch.faults();
        assert_eq!(
            (faults.len(), faults[0].operation),
            (1, Operation::Flush),
            "{directory}"
        );
        assert_eq!(names(&home.path().join(directory)).len(), 7);
    }
}

/// The flush may have failed for data of this file that was already written.
#[test]
fn a_file_that_was_written_while_a_flush_failed_gets_no_name_if_it_is_not_on_the_storage() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("there")).unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batch = begin(&mut placer, files("there", "f", 1));
    let written = transfer.publisher.take_generation().files;
    let failed_flushes = transfer.publisher.failed_flushes();
    transfer.publisher.suspect();
    // The generation is taken and dropped, as if all of its files had been checked.
    drop(transfer.publisher.take_generation());
    let hidden = names(&home.path().join("there")).remove(0);
    std::fs::write(home.path().join("there").join(hidden), "0").unwrap();
    written
        .into_iter()
        .for_each(|file| transfer.publisher.add_file(file, failed_flushes));
    publish_all(&transfer);
    let faults = batch.faults();
    assert_eq!((faults.len(), faults[0].operation), (1, Operation::Flush));
}

#[test]
fn while_a_flush_is_late_files_are_flushed_one_by_one() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("there")).unwrap();
    let file_systems = FileSystems::that_are_late();
    let mut transfer = transfer(home.path());
    transfer.target.view.policy.rules.durability = Durability::End;
    transfer.target.file_systems = file_systems;
    let mut placer = Placer::new(&transfer);
    let batches = ["there", "new"].map(|directory| begin(&mut placer, files(directory, "f", 8)));
    let hidden = names(home.path())
        .into_iter()
        .find(|name| name.starts_with(".zmove-"))
        .unwrap();
    // The data is changed as if it had not reached the storage.
    std::fs::write(home.path().join(hidden).join("f5"), "0").unwrap();
    publish_all(&transfer);
    assert_eq!(batches.map(|batch| batch.faults().len()), [0, 1]);
    assert_eq!(
        ["there", "new"].map(|directory| names(&home.path().join(directory)).len()),
        [8, 7]
    );
}
