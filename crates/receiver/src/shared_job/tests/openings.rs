//! A receiver's answers to the opening of a session in a job.

use std::io::Write;

use super::*;

#[test]
fn a_session_of_a_job_that_is_under_way_makes_nothing_and_opens_nothing_up() {
    use std::os::unix::fs::PermissionsExt;

    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("a/t");
    let resolve = |beginning| {
        let part = SharedJobOpening {
            beginning,
            ..part()
        };
        let open = Open {
            target: target.to_str().unwrap().into(),
            ..open(Some(part))
        };
        Target::resolve(&open, &WriteAccess::Anywhere, &Lease::constant())
            .map_err(|refusal| refusal.code)
    };
    let of_one = || WriteAccess::Beneath(vec![home.path().to_path_buf()].into());
    let part = SharedJobOpening {
        beginning: Beginning::UnderWay,
        ..part()
    };
    let relative = Open {
        target: b"a/t".to_vec(),
        ..open(Some(part))
    };
    assert_eq!(
        resolve(Beginning::UnderWay).err(),
        Some(RefusalCode::NotUnderWay)
    );
    assert_eq!(
        Target::resolve(&relative, &of_one(), &Lease::constant())
            .unwrap_err()
            .code,
        RefusalCode::NotUnderWay
    );
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    resolve(Beginning::Allowed).unwrap();
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o555)).unwrap();
    let mode = || target.metadata().unwrap().permissions().mode() & 0o777;
    resolve(Beginning::UnderWay).unwrap();
    Target::resolve(&relative, &of_one(), &Lease::constant()).unwrap();
    assert_eq!(mode(), 0o555);
    Target::resolve(
        &Open {
            shared_job: None,
            ..relative
        },
        &of_one(),
        &Lease::constant(),
    )
    .unwrap();
    assert_eq!(mode(), 0o755, "another transfer sets it at its end");
}

/// Returns the answers to two openings: one that may begin the job, and one that requires the job to be running.
fn answers(before: impl Fn(&Arc<OwnedFd>)) -> [Option<RefusalCode>; 2] {
    [Beginning::Allowed, Beginning::UnderWay].map(|beginning| {
        let home = tempfile::tempdir().unwrap();
        let root = root(home.path());
        before(&root);
        let tree = Tree::at(root);
        let begin = begin(TransferId([7; 16]), String::new(), &tree);
        let opening = SharedJobOpening {
            beginning,
            ..part()
        };
        let opened = SharedJobSession::begin(&tree, &opening, &begin, &Quota::default());
        opened.err().map(|refusal| refusal.code)
    })
}

#[test]
fn the_answer_to_an_opening_depends_on_what_there_is_of_the_job_and_on_whether_it_may_begin() {
    let absent = Some(RefusalCode::NotUnderWay);
    assert_eq!(answers(|_| ()), [None, absent]);
    assert_eq!(
        answers(|root| drop(job(root))),
        [None, None],
        "its directory, which has just been made"
    );
    let other = |root: &Arc<OwnedFd>| drop(job(root).begin("a").unwrap());
    assert_eq!(answers(other), [None, None], "another session");
    let closed = |root: &Arc<OwnedFd>| {
        job(root).close(&Lease::constant(), root, JOB).unwrap();
    };
    assert_eq!(answers(closed), [None, absent], "its directory has gone");
    let [may_have_begun, cannot] = [RefusalCode::Failed, RefusalCode::Target].map(Some);
    let is_no_directory = |root: &Arc<OwnedFd>| {
        let name = format!(".zmove-job-{JOB}");
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        rustix::fs::openat(root, name, flags, rustix::fs::Mode::RUSR).unwrap();
    };
    assert_eq!(
        answers(is_no_directory),
        [may_have_begun, cannot],
        "what is left there"
    );
}

#[test]
fn a_session_that_records_nothing_leaves_no_journal() {
    let home = tempfile::tempdir().unwrap();
    let tree = Tree::at(root(home.path()));
    let journals = || {
        let entries = std::fs::read_dir(home.path().join(format!(".zmove-job-{JOB}"))).unwrap();
        let is_journal = |path: &PathBuf| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("journal-")
        };
        entries
            .map(|entry| entry.unwrap().path())
            .filter(is_journal)
            .collect::<Vec<_>>()
    };
    for (records, left) in [("", 0), ("x", 1)] {
        let begin = begin(TransferId([7; 16]), String::new(), &tree);
        let session = SharedJobSession::begin(&tree, &part(), &begin, &Quota::default()).unwrap();
        let [path] = &journals()[..] else {
            panic!("{:?}", journals())
        };
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(records.as_bytes()).unwrap();
        drop(session);
        assert_eq!(journals().len(), left, "{records:?}");
    }
}
