//! A journal that is truncated at any byte, as after a crash of its writer.

use super::*;

/// A node and its storage client may die after any byte of its journal.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_torn_journal_a_beginning_counts() {
    let home = tempfile::tempdir().unwrap();
    let contents = contents(3, 7);
    let head = head("large", &contents);
    let mut mover = Mover::open(home.path()).await;
    mover.declare(1, &head);
    for group in 0..4 {
        mover.chunk(1, group, &contents);
        mover.stored(1).await;
        assert_eq!(mover.settle().await, SETTLED);
    }
    let [journal] = &journals_of(home.path())[..] else {
        panic!("one session, one journal")
    };
    let whole = std::fs::read(journal).unwrap();
    let name = shared_name(&head.path, &source_of(&head));
    let part = parts_directory(home.path()).join(name.as_os_str());
    let part = (name, part.metadata().unwrap().ino());
    let torn = tempfile::tempdir().unwrap();
    let copy = torn.path().join(journal.file_name().unwrap());
    let expected = [0, 1, 2, 3].map(|index| (index, cv_of(index, &contents)));
    let mut last = 0;
    for length in 0..=whole.len() {
        std::fs::write(&copy, &whole[..length]).unwrap();
        let counted = flushed_groups(torn.path(), part.clone());
        assert!(
            counted
                .iter()
                .all(|(index, cv)| expected.contains(&(*index, *cv))),
            "{length}"
        );
        assert!(counted.len() >= last, "{length}");
        last = counted.len();
    }
    assert_eq!(last, 4);
    mover.finish().await;
}

fn cv_of(index: u32, contents: &[u8]) -> Cv {
    let bytes = usize::try_from(GROUP_BYTES).unwrap();
    let group = contents.chunks(bytes).nth(index as usize).unwrap();
    Cv(group_cv(index, group).0)
}
