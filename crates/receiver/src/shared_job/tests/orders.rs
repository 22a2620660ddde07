//! Orders that are not done, or not at once.

use std::time::Instant;

use zmove_wire::Overwrite;
use zmove_wire::limits::BATCH_ENTRIES_MAX;

use super::*;
use crate::top_names::TopNames;

/// The file has come since the sender asked for what is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_does_not_replace_what_is_kept_there() {
    let home = tempfile::tempdir().unwrap();
    let contents = contents(1, 1);
    let head = head("large", &contents);
    let there = home.path().join("large");
    for (overwrite, keeps) in [(Overwrite::Differing, false), (Overwrite::Older, true)] {
        let epoch = 1 + u64::from(keeps);
        let mut mover = Mover::try_open(
            home.path(),
            Open {
                overwrite,
                ..open(Some(part(epoch)))
            },
        )
        .await
        .unwrap();
        mover.declare(1, &head);
        (0..2).for_each(|group| mover.chunk(1, group, &contents));
        mover.stored(2).await;
        std::fs::write(&there, "newer").unwrap();
        let committed = mover.commit(&head, &contents).await;
        let is_kept = SharedJobResult::Failed(Operation::Create, FaultCode::AlreadyThere);
        assert_eq!(committed == is_kept, keeps, "{committed:?}");
        assert_eq!(std::fs::read(&there).unwrap() == b"newer", keeps);
        mover.finish().await;
    }
}

/// Nobody else could give these directories mode and time.
#[test]
fn no_work_ends_after_directories_that_cannot_be_recorded() {
    let home = tempfile::tempdir().unwrap();
    let limits = Limits {
        journal_bytes_per_identity: ByteCount(2000),
        ..Limits::default()
    };
    let transfer = transfer_within(
        home.path(),
        &Quotas::default().of(Fingerprint([1; 32]), &limits),
    );
    let end = || {
        let work = WorkId([1; 16]);
        let end = WorkEnd {
            work,
            parent: work,
            pass: 1,
            ..WorkEnd::default()
        };
        transfer
            .target
            .shared_job
            .as_ref()
            .unwrap()
            .end(&transfer, end)
    };
    end().unwrap();
    for number in 0..200 {
        let directory = Arc::new(path(&format!("directory-{number}")));
        transfer
            .target
            .directories
            .remember(&directory, None, Metadata::default())
            .unwrap();
    }
    end().unwrap_err();
    end().unwrap_err();
}

#[test]
fn no_more_directories_are_listed_at_once_than_a_batch_has() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let session = transfer.target.shared_job.as_ref().unwrap();
    const EACH: usize = BATCH_ENTRIES_MAX / 2 + 1;
    for batch in 0..3 {
        let group = |number| DirectoryGroup {
            directory: path(&format!("{batch}-{number}")),
            entries: vec![BatchEntry::Itself(Metadata::default())],
        };
        let head = Batch {
            groups: (0..EACH).map(group).collect(),
        }
        .encode();
        transfer
            .parts
            .record_work(|journal| journal.directories(head))
            .unwrap();
    }
    let listed = || match session.list_directories().unwrap() {
        head if head.is_empty() => 0,
        head => Batch::decode(&head, 0).unwrap().groups.len(),
    };
    assert_eq!([(); 4].map(|()| listed()), [EACH, EACH, EACH, 0]);
}

/// A node may write what its head's push sends, and nothing beside.
#[test]
fn orders_about_names_that_the_sender_may_not_bring_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut transfer = transfer(home.path());
    transfer.top_names = TopNames::only(|name| name == b"mine");
    std::fs::create_dir(home.path().join("mine")).unwrap();
    let is_obeyed = |order| {
        transfer
            .target
            .shared_job
            .as_ref()
            .unwrap()
            .obey(&transfer, order)
            .is_ok()
    };
    let commit = |to| {
        is_obeyed(SharedJobOrder::Commit {
            head: head(to, b"x").encode(),
            root: None,
        })
    };
    let set = |directory| {
        let entries = vec![BatchEntry::Itself(Metadata::default())];
        let groups = vec![DirectoryGroup {
            directory: path(directory),
            entries,
        }];
        is_obeyed(SharedJobOrder::SetDirectories {
            head: Batch { groups }.encode(),
        })
    };
    assert!(commit("mine/f") && set("mine"));
    for other in ["other", "other/mine", &format!("mine/.zmove-job-{JOB}/f")] {
        assert!(!commit(other) && !set(other), "{other}");
    }
}

/// The session is over, the job as well, and somebody has set the directories otherwise since.
#[test]
fn an_order_that_takes_long_sets_no_directory_when_another_epoch_has_begun() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let entries = || {
        vec![BatchEntry::Itself(Metadata::new(
            0o750,
            Timestamp::default(),
        ))]
    };
    let group = |number: usize| DirectoryGroup {
        directory: path(&format!("d{number}")),
        entries: entries(),
    };
    let groups: Vec<_> = (0..BATCH_ENTRIES_MAX).map(group).collect();
    let paths: Vec<_> = (0..groups.len())
        .map(|number| home.path().join(format!("d{number}")))
        .collect();
    paths
        .iter()
        .for_each(|path| std::fs::create_dir(path).unwrap());
    let are_set = || {
        paths
            .iter()
            .filter(|path| path.metadata().unwrap().mode() & 0o777 == 0o750)
            .count()
    };
    let order = SharedJobOrder::SetDirectories {
        head: Batch { groups }.encode(),
    };
    std::thread::scope(|scope| {
        let setting = scope.spawn(|| {
            let session = transfer.target.shared_job.as_ref().unwrap();
            let result = session.obey(&transfer, order).unwrap();
            (result, Instant::now())
        });
        while are_set() == 0 {}
        let job = job(&root(home.path()));
        let _newer = job.begin(2, "n", PATIENCE).unwrap();
        let begun = Instant::now();
        let (result, at) = setting.join().unwrap();
        let is_fenced =
            result == SharedJobResult::Failed(Operation::SetMetadata, FaultCode::Fenced);
        assert!(
            is_fenced && are_set() < BATCH_ENTRIES_MAX || at <= begun,
            "{result:?}"
        );
    });
}
