//! Committing a large file.

use zmove_disk::Staged;

use super::*;

/// Creates the temporary file of a large file with two groups and writes both groups.
fn write_part(transfer: &Transfer, head: &FileHead, contents: &[u8]) -> Arc<Staged> {
    transfer
        .files
        .declare(FileId(1), head.clone(), |_| None, |_| None)
        .unwrap();
    let file = transfer.files.find(FileId(1)).unwrap().unwrap();
    let part = open_staged(transfer, &mut Placer::new(transfer), &file).unwrap();
    part.file().write_all_at(contents, 0).unwrap();
    let (first, last) = contents.split_at(contents.len() - 1);
    for (group, data) in [(0, first), (1, last)] {
        transfer
            .parts
            .written(FileId(1), group, group_cv(group, data))
            .unwrap();
    }
    part
}

/// A receiver was suspended before it renamed the temporary file into place. Then another receiver has written to that
/// file.
#[test]
fn a_part_that_was_about_to_be_published_is_committed_with_the_time_of_its_source() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let contents = contents(1, 1);
    let head = head("large", &contents);
    let part = write_part(&transfer, &head, &contents);
    let name = part.hidden_name().unwrap();
    let hidden = parts_directory(home.path()).join(name.as_os_str());
    let there = home.path().join("large");
    let shared = transfer.parts.shared.as_ref().unwrap();
    shared.session.retire_part(name, part.file()).unwrap();
    assert!(hidden.is_symlink() && !there.exists(), "the mark");
    shared.has_written(FileId(1)).unwrap();
    let session = transfer.target.shared_job.as_ref().unwrap();
    let inode = part.file().metadata().unwrap().ino();
    let commit = || session.commit(&transfer, &head).unwrap();
    assert_eq!(commit(), SharedJobResult::Done);
    let found = there.metadata().unwrap();
    assert_eq!((found.ino(), found.mtime()), (inode, 77));
    std::fs::remove_file(&there).unwrap();
    assert_eq!(commit(), SharedJobResult::Done);
    assert!(!there.exists(), "once is enough");
}

/// If these groups were kept, a push of many large files would fill the memory with groups that are not needed any
/// more.
#[test]
fn the_groups_of_a_file_that_has_its_name_are_forgotten() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let contents = contents(1, 1);
    let head = head("large", &contents);
    let part = write_part(&transfer, &head, &contents);
    let session = transfer.target.shared_job.as_ref().unwrap();
    let inode = part.file().metadata().unwrap().ino();
    let key = (part.hidden_name().unwrap().clone(), inode);
    session.flush_parts(&transfer).unwrap();
    session
        .groups
        .lock()
        .read_new_records(session.directory.fd(), &session.session)
        .unwrap();
    assert!(session.groups.lock().of(&key).is_some());
    assert_eq!(
        session.commit(&transfer, &head).unwrap(),
        SharedJobResult::Done
    );
    assert!(session.groups.lock().of(&key).is_none());
}
