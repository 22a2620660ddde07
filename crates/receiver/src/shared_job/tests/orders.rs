//! Orders (requests of the sender in a job) that are refused or delayed.

use std::cell::Cell;

use zmove_disk::{FileIdentity, boot_clock};
use zmove_wire::Overwrite;

use super::*;
use crate::rights::top_names::TopNames;

/// The existing file was created after the sender had asked about existing entries.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_does_not_replace_what_is_kept_there() {
    let contents = contents(1, 1);
    let head = head("large", &contents);
    for (overwrite, keeps) in [(Overwrite::Differing, false), (Overwrite::Older, true)] {
        let home = tempfile::tempdir().unwrap();
        let there = home.path().join("large");
        let mut mover = Mover::try_open(
            home.path(),
            Open {
                overwrite,
                ..open(Some(part()))
            },
        )
        .await
        .unwrap();
        mover.declare(1, &head);
        (0..2).for_each(|group| mover.chunk(1, group, &contents));
        mover.stored(2).await;
        std::fs::write(&there, "newer").unwrap();
        let committed = mover.commit(&head).await;
        let is_kept = SharedJobResult::Failed(Operation::Create, FaultCode::AlreadyThere);
        assert_eq!(committed == is_kept, keeps, "{committed:?}");
        assert_eq!(std::fs::read(&there).unwrap() == b"newer", keeps);
        mover.finish().await;
    }
}

#[test]
fn a_part_gets_no_attributes_once_the_sender_has_gone() {
    let home = tempfile::tempdir().unwrap();
    let mut transfer = transfer(home.path());
    let head = head("large", &contents(1, 1));
    transfer
        .files
        .declare(FileId(1), head.clone(), |_| None, |_| None)
        .unwrap();
    let file = transfer.files.find(FileId(1)).unwrap().unwrap();
    let part = open_staged(&transfer, &mut Placer::new(&transfer), &file).unwrap();
    for group in 0..2 {
        transfer
            .parts
            .written(FileId(1), group, Cv([1; 32]))
            .unwrap();
    }
    let before = FileIdentity::of(part.file()).unwrap();
    let lease = Lease::timed(boot_clock(), |_ping| {}, None);
    lease.end();
    transfer.target.tree = transfer.target.tree.under(lease);
    let session = transfer.target.shared_job.as_ref().unwrap();
    let failed = session.commit(&transfer, &head).unwrap_err();
    assert_eq!(failed.0, Operation::SetMetadata);
    assert_eq!(Errno::from_io_error(&failed.1), Some(Errno::CONNABORTED));
    assert_eq!(FileIdentity::of(part.file()).unwrap(), before);
}

/// A node may write only entries that belong to the push of the head (the node that leads the job).
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
            .execute(&transfer, order)
            .is_ok()
    };
    let commit = |to| {
        is_obeyed(SharedJobOrder::Commit {
            head: head(to, b"x").encode(),
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

/// The session and the job have ended, and then a user has changed the directories.
#[test]
fn an_order_that_takes_long_sets_no_more_directories_when_the_job_has_ended() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let session = transfer.target.shared_job.as_ref().unwrap();
    let metadata = || Metadata::new(0o750, Timestamp::default());
    let names = ["d0", "d1", "d2", "d3"];
    let directories = names.iter().zip(0..).map(|(name, entry)| {
        std::fs::create_dir(home.path().join(name)).unwrap();
        DirectoryMetadata {
            entry,
            path: path(name),
            metadata: metadata(),
        }
    });
    let checks = Cell::new(0);
    let check = || {
        checks.set(checks.get() + 1);
        if checks.get() == 3 {
            close(home.path());
        }
        session.check(Operation::SetMetadata)
    };
    let result = set_directories(&transfer, directories.collect(), check);
    let (operation, error) = result.unwrap_err();
    let failed = failure(operation, &error);
    assert_eq!(
        failed,
        FaultCause::new(Operation::SetMetadata, FaultCode::JobEnded)
    );
    let modes = names.map(|name| home.path().join(name).metadata().unwrap().mode() & 0o777);
    let are_set = modes.map(|mode| mode == 0o750);
    assert_eq!(are_set, [true, true, false, false]);

    // The order must fail for this entry too, because each directory requires the same check.
    let groups = vec![DirectoryGroup {
        directory: path("d3"),
        entries: vec![BatchEntry::Itself(metadata())],
    }];
    let order = SharedJobOrder::SetDirectories {
        head: Batch { groups }.encode(),
    };
    let result = session.execute(&transfer, order).unwrap();
    let ended = SharedJobResult::Failed(Operation::SetMetadata, FaultCode::JobEnded);
    assert_eq!(result, ended);
}
