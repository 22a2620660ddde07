//! The answers to openings of a job.

use super::*;

/// The answers to an opening of epoch 2 that may begin the job, and to one that finds it under way.
fn answers(before: impl Fn(&Arc<OwnedFd>)) -> [Option<RefusalCode>; 2] {
    [Beginning::Allowed, Beginning::UnderWay].map(|beginning| {
        let home = tempfile::tempdir().unwrap();
        let root = root(home.path());
        before(&root);
        let tree = Tree::at(root);
        let begin = begin(TransferId([7; 16]), String::new(), &tree);
        let opening = SharedJobOpening { beginning, ..part(2) };
        let opened = SharedJobSession::begin(&tree, &opening, &begin, &Quota::default());
        opened.err().map(|refusal| refusal.code)
    })
}

#[test]
fn the_answer_to_an_opening_depends_on_what_there_is_of_the_job_and_on_whether_it_may_begin() {
    let in_epoch = |epoch| move |root: &Arc<OwnedFd>| drop(job(root).begin(epoch, "a", PATIENCE).unwrap());
    let ended = |root: &Arc<OwnedFd>| job(root).close(2, PATIENCE).unwrap();
    let [absent, fenced, over] =
        [RefusalCode::NotUnderWay, RefusalCode::Denied, RefusalCode::Ended].map(Some);
    assert_eq!(answers(|_| ()), [None, absent]);
    assert_eq!(answers(|root| drop(job(root))), [None, None], "its directory, which has just been made");
    assert_eq!(answers(in_epoch(1)), [None, None], "an older epoch");
    assert_eq!(answers(in_epoch(2)), [None, None], "this epoch");
    assert_eq!(answers(in_epoch(3)), [fenced, fenced], "a newer epoch");
    assert_eq!(answers(ended), [over, over], "the mark of its end");
    let forgotten = |root: &Arc<OwnedFd>| {
        ended(root);
        job(root).forget(root, JOB).unwrap();
    };
    assert_eq!(answers(forgotten), [None, absent], "no mark either");
    let [may_have_begun, cannot] = [RefusalCode::Failed, RefusalCode::Target].map(Some);
    let is_no_directory = |root: &Arc<OwnedFd>| {
        let name = format!(".zmove-job-{JOB}");
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        rustix::fs::openat(root, name, flags, rustix::fs::Mode::RUSR).unwrap();
    };
    assert_eq!(answers(is_no_directory), [may_have_begun, cannot], "what is left there");
}
