//! Parts of large files: flushing them, and the memory for their groups.

use super::*;

/// A writer opens the part, and then another receiver commits the file.
#[test]
fn a_write_after_the_commit_gives_the_file_its_time_once_more() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    transfer
        .files
        .declare(
            FileId(1),
            head("large", &contents(1, 1)),
            |_| None,
            |_| None,
        )
        .unwrap();
    let file = transfer.files.find(FileId(1)).unwrap().unwrap();
    let part = open_staged(&transfer, &mut Placer::new(&transfer), &file).unwrap();
    let shared = transfer.parts.shared.as_ref().unwrap();
    assert!(!shared.is_gone(&part).unwrap());
    let root = OwnedFd::from(std::fs::File::open(home.path()).unwrap());
    let large = name("large");
    let place = NameAt::new(&root, &large);
    let hidden = part.hidden_name().unwrap();
    shared
        .session
        .publish_part(
            &Lease::constant(),
            hidden,
            part.file(),
            place,
            Replace::Existing,
        )
        .unwrap();
    let there = || home.path().join("large").metadata().unwrap().mtime();
    let write = || {
        part.file().write_all_at(b"x", 0).unwrap();
        assert_ne!(there(), 77);
    };
    write();
    shared.has_written(FileId(1)).unwrap();
    assert_eq!(there(), 77);
    // The client of a network file system may send the write only at the flush.
    write();
    transfer.parts.written(FileId(1), 0, Cv([1; 32])).unwrap();
    transfer.parts.flush_shared(shared).unwrap();
    assert_eq!(there(), 77);
}

#[test]
fn a_part_is_flushed_again_only_when_it_has_been_written_to() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    transfer
        .files
        .declare(
            FileId(1),
            head("large", &contents(1, 1)),
            |_| None,
            |_| None,
        )
        .unwrap();
    let file = transfer.files.find(FileId(1)).unwrap().unwrap();
    let _part = open_staged(&transfer, &mut Placer::new(&transfer), &file).unwrap();
    let shared = transfer.parts.shared.as_ref().unwrap();
    transfer.parts.written(FileId(1), 0, Cv([1; 32])).unwrap();
    transfer.parts.flush_shared(shared).unwrap();
    shared.spoil(FileId(1));
    transfer.parts.flush_shared(shared).unwrap();
    transfer.parts.written(FileId(1), 1, Cv([2; 32])).unwrap();
    transfer.parts.flush_shared(shared).unwrap_err();
    transfer.parts.flush_shared(shared).unwrap_err();
}

/// A flush must cover the file system to which the groups were written.
#[test]
fn a_session_that_brings_groups_alone_flushes_the_file_system_that_they_are_in() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let contents = contents(1, 1);
    transfer
        .files
        .declare(FileId(1), head("large", &contents), |_| None, |_| None)
        .unwrap();
    let file = transfer.files.find(FileId(1)).unwrap().unwrap();
    let part = open_staged(&transfer, &mut Placer::new(&transfer), &file).unwrap();
    assert!(transfer.target.file_systems.knows_any());
    let shared = transfer.parts.shared.as_ref().unwrap();
    assert!(shared.holds(FileId(1)));
    let key = (
        part.hidden_name().unwrap().clone(),
        part.file().metadata().unwrap().ino(),
    );
    transfer.parts.written(FileId(1), 0, Cv([1; 32])).unwrap();
    drop(part);
    transfer.abandon_file(FileId(1));
    assert!(
        !shared.holds(FileId(1)),
        "a sender that abandons files without end keeps none open"
    );
    let parts = std::fs::read_dir(parts_directory(home.path())).unwrap();
    assert_eq!(parts.count(), 1, "others may write the part");
    // This simulates a writer that has not finished yet.
    transfer.parts.written(FileId(1), 1, Cv([2; 32])).unwrap();
    transfer.parts.flush_shared(shared).unwrap();
    let groups = flushed_groups(&job_directory(home.path()), key);
    assert_eq!(groups, BTreeMap::from([(0, Cv([1; 32]))]));
}

/// Creates the temporary file of a large file with `record_groups` flushed groups, and records them in the journal.
fn flushed_part(
    session: &JobSession,
    journal: &Journal,
    number: u64,
    groups: usize,
) -> (Staged, PartKey) {
    let part = name(&format!("part-{number}"));
    let bytes = groups as u64 * GROUP_BYTES;
    let staged = session
        .open_part(&Lease::constant(), &part, bytes, Direct::Off)
        .unwrap();
    let inode = staged.file().metadata().unwrap().ino();
    let source = SourceVersion {
        bytes,
        ..SourceVersion::default()
    };
    let told = PartFile {
        path: path("f"),
        part: part.clone(),
        source,
        inode,
        born: Timestamp::default(),
    };
    journal.record_part(number, &told).unwrap();
    journal
        .record_groups(number, 0, &vec![Cv([1; 32]); groups])
        .unwrap();
    journal.record_flushed(journal.mark()).unwrap();
    (staged, (part, inode))
}

/// Another receiver commits or gives up each file, so the sender does not order this receiver to commit it.
#[test]
fn where_memory_is_used_up_the_groups_of_parts_that_are_no_more_are_forgotten() {
    const GROUPS: usize = 80;
    let home = tempfile::tempdir().unwrap();
    let root = root(home.path());
    let job = job(&root);
    let session = job.begin("n").unwrap();
    let begin = begin(
        TransferId([7; 16]),
        String::new(),
        &Tree::open(home.path()).unwrap(),
    );
    let journal = Journal::create_in_job(
        job.fd(),
        &journals::name_of(begin.transfer),
        &begin,
        u64::MAX,
    )
    .unwrap();
    let write = |number| flushed_part(&session, &journal, number, GROUPS);
    let limits = Limits {
        memory_per_identity: ByteCount(10_000),
        ..Limits::default()
    };
    let mut groups = FlushedGroups::new(&Quotas::default().of(Fingerprint([1; 32]), &limits));
    let (first, first_key) = write(1);
    groups.read_new_records(job.fd(), &session).unwrap();
    let (second, second_key) = write(2);
    assert!(
        groups.read_new_records(job.fd(), &session).is_err(),
        "no memory is left"
    );
    assert!(
        groups.of(&first_key).is_some(),
        "its commit may be asked for"
    );
    session
        .publish_part(
            &Lease::constant(),
            &first_key.0,
            first.file(),
            NameAt::new(&root, &name("f")),
            Replace::Existing,
        )
        .unwrap();
    groups.read_new_records(job.fd(), &session).unwrap();
    assert_eq!(groups.of(&second_key).unwrap().values.len(), GROUPS);
    session
        .give_up_part(&second_key.0, second.file(), Errno::NOSPC)
        .unwrap();
    let (_third, third_key) = write(3);
    groups.read_new_records(job.fd(), &session).unwrap();
    assert_eq!(groups.of(&third_key).unwrap().values.len(), GROUPS);
    assert!(
        [first_key, second_key]
            .iter()
            .all(|key| groups.of(key).is_none())
    );
}
