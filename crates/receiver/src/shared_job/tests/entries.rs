//! Small files, links and directories of a shared job.

use super::*;

/// The files have hidden names in the session's directory. Later they are renamed into the directory that then has the
/// final path.
#[test]
fn a_directory_that_goes_before_its_files_are_named_is_made_again() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    for prefix in ["f", "g"] {
        let batch = place(&mut placer, files("a/b", prefix, 5));
        std::fs::remove_dir_all(home.path().join("a")).unwrap();
        publish_all(&transfer);
        assert_eq!(batch.faults(), [], "{prefix}");
        assert_eq!(
            std::fs::read_dir(home.path().join("a/b")).unwrap().count(),
            5,
            "{prefix}"
        );
    }
}

/// Creates a directory whose entries inherit a group and an access control list, if the file system supports such
/// lists.
fn make_heritable(directory: &Path) -> rustix::io::Result<()> {
    std::fs::create_dir(directory).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(directory, None, Some(4711)).unwrap();
    }
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o2775)).unwrap();
    let entries = [(1, 7), (2, 6), (4, 5), (0x10, 7), (0x20, 0)];
    let entry = |(tag, may): (u16, u16)| {
        let user: u32 = if tag == 2 { 65_534 } else { u32::MAX };
        [
            &tag.to_le_bytes()[..],
            &may.to_le_bytes(),
            &user.to_le_bytes(),
        ]
        .concat()
    };
    let acl = [2_u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
    rustix::fs::setxattr(
        directory,
        "system.posix_acl_default",
        &acl,
        rustix::fs::XattrFlags::empty(),
    )
}

/// Returns files and symbolic links. One of the links has its own group.
fn small_entries() -> Vec<BatchEntry> {
    let target = || b"to".as_slice().into();
    let group = Account {
        id: 4712,
        name: "".into(),
    };
    let extra = ExtraMetadata {
        group: Some(group),
        ..ExtraMetadata::default()
    };
    let own_group = Metadata {
        extra: Some(Arc::new(extra)),
        ..Metadata::default()
    };
    vec![
        file("a", 0o640, b"1"),
        file("b", 0o777, b"2"),
        file("c", 0o2604, b"3"),
        BatchEntry::Symlink(name("link"), Metadata::default(), target()),
        BatchEntry::Symlink(name("own group"), own_group, target()),
    ]
}

/// Entries inherit nothing from the job's directory, but they inherit a group and an access control list from the
/// directories of the target.
#[tokio::test(flavor = "multi_thread")]
async fn entries_have_what_an_ordinary_push_would_give_them() {
    let keeping = |kinds| PreserveOptions {
        kinds,
        ..PreserveOptions::default()
    };
    for keeping in [
        PreserveOptions::LEAST,
        keeping(MetadataKinds::USUAL),
        keeping(MetadataKinds::ALL),
    ] {
        let [plain, jobs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for home in [&plain, &jobs] {
            if make_heritable(&home.path().join("d")).is_err() {
                return eprintln!(
                    "skipped: no access control lists at {}",
                    home.path().display()
                );
            }
        }
        let contents = contents(1, 9);
        let head = FileHead {
            metadata: Metadata::new(
                0o664,
                Timestamp {
                    seconds: 3,
                    nanos: 0,
                },
            ),
            ..head("d/large", &contents)
        };
        for (home, job) in [(&plain, None), (&jobs, Some(part()))] {
            let in_a_job = job.is_some();
            let mut mover = Mover::try_open(
                home.path(),
                Open {
                    keeping,
                    ..open(job)
                },
            )
            .await
            .unwrap();
            mover.batch("d", small_entries(), b"123");
            mover.declare(1, &head);
            (0..2).for_each(|group| mover.chunk(1, group, &contents));
            mover.stored(3).await;
            if in_a_job {
                assert_eq!(mover.settle().await, SETTLED);
                assert_eq!(mover.commit(&head).await, SharedJobResult::Done);
            }
            assert!(mover.faults.is_empty(), "{:?}", mover.faults);
            mover.finish().await;
        }
        let (plain, jobs) = (tree(plain.path()), tree(jobs.path()));
        assert_eq!(
            plain.keys().collect::<Vec<_>>(),
            jobs.keys().collect::<Vec<_>>()
        );
        for (path, expected) in plain {
            let shown =
                |(mode, gid, mtime, _, acl): &Shown| format!("{mode:o} {gid} {mtime:?} {acl:?}");
            let (found, expected) = (shown(&jobs[&path]), shown(&expected));
            assert_eq!(found, expected, "{} {keeping:?}", path.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_get_mode_and_time_when_that_is_ordered_and_not_before() {
    let home = tempfile::tempdir().unwrap();
    let mut mover = Mover::open(home.path()).await;
    let old = Metadata::new(
        0o555,
        Timestamp {
            seconds: 3,
            nanos: 0,
        },
    );
    mover.batch("", vec![BatchEntry::Directory(name("d"), old.clone())], &[]);
    mover.batch("d", vec![BatchEntry::Itself(old.clone())], &[]);
    mover.stored(2).await;
    assert_eq!(mover.settle().await, SETTLED);
    mover.batch("", vec![BatchEntry::Directory(name("e"), old.clone())], &[]);
    mover.stored(1).await;
    mover.finish().await;
    let look = |directory| {
        let there = home.path().join(directory).metadata().unwrap();
        (there.mode() & 0o7777, there.mtime() == 3)
    };
    assert_eq!(
        ["d", "e"].map(look),
        [(0o700, false); 2],
        "others may still write there"
    );
    let mut mover = Mover::open(home.path()).await;
    let group = |directory| DirectoryGroup {
        directory: path(directory),
        entries: vec![BatchEntry::Itself(old.clone())],
    };
    let head = Batch {
        groups: vec![group("d"), group("gone")],
    }
    .encode();
    let SharedJobResult::DirectoriesSet(faults) =
        mover.order(SharedJobOrder::SetDirectories { head }).await
    else {
        panic!("not set")
    };
    assert_eq!(
        faults.iter().map(|fault| fault.entry).collect::<Vec<_>>(),
        [1]
    );
    assert_eq!(look("d"), (0o555, true));
    std::fs::set_permissions(
        home.path().join("d"),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    mover.finish().await;
}
