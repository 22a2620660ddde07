//! Tests stores in real files.

use std::os::unix::fs::MetadataExt;

use tempfile::TempDir;

use super::*;
use crate::job::{ArgumentList, JobId, JobWork, NewJob, TransferTotals, Wish};
use crate::moment::Moment;
use crate::program::machine_hash;
use crate::state::State;

mod files;
mod notifications;
mod schedules;
mod waiting;

pub(crate) struct Site {
    _directory: TempDir,
    pub(crate) place: JobsDirectory,
    pub(crate) store: Store,
}

pub(crate) fn site() -> Site {
    let directory = tempfile::tempdir().unwrap();
    let place = JobsDirectory::open(&directory.path().join("jobs")).unwrap();
    let store = Store::open(&place).unwrap();
    Site {
        _directory: directory,
        place,
        store,
    }
}

pub(crate) const START: Moment = Moment(1_800_000_000_000);

fn later(seconds: u64) -> Moment {
    START.after(Duration::from_secs(seconds))
}

pub(crate) fn job(label: &str) -> NewJob {
    NewJob {
        submission: None,
        label: label.to_owned(),
        work: JobWork {
            arguments: ArgumentList(vec!["a".into(), label.into()]),
            directory: "/".into(),
            environment: ArgumentList(vec!["A=b".into()]),
        },
        source: "/a".to_owned(),
        target: format!("h:{label}"),
        host: "h".to_owned(),
        priority: 0,
        not_before: None,
        at: None,
        schedule: None,
        after: Vec::new(),
        deadline: Duration::from_secs(3600),
        notify: None,
    }
}

/// Returns a paused job whose copy may still be running.
pub(crate) fn left_copy() -> (Site, JobId) {
    let mut site = site();
    let id = site.submit(&job("a"));
    let change = "UPDATE jobs SET copy = 'ab', state = 'paused'";
    assert_eq!(site.store.connection.execute(change, ()).unwrap(), 1);
    (site, id)
}

fn ended(verdict: AttemptVerdict) -> Ending {
    let exit = match verdict {
        AttemptVerdict::Done => Some(0),
        AttemptVerdict::Fatal => Some(3),
        AttemptVerdict::Passing => Some(10),
        AttemptVerdict::Stopped => Some(20),
        AttemptVerdict::Vanished => None,
    };
    Ending {
        verdict,
        exit,
        message: None,
        moved: None,
        furthest: 0,
        events: Vec::new(),
    }
}

/// The effect of releasing waiting jobs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Released {
    /// Jobs that were queued.
    queued: u64,
    /// Jobs that ended because another job ended.
    ended: u64,
}

impl Site {
    fn release(&mut self, now: Moment) -> Result<Released, StoreError> {
        let before = self.counts();
        self.store.release(now)?;
        let after = self.counts();
        Ok(Released {
            queued: after.queued - before.queued,
            ended: after.ended - before.ended,
        })
    }

    fn counts(&self) -> Released {
        let counts = self.store.counts().unwrap().into_iter();
        counts.fold(Released::default(), |sum, (state, count)| Released {
            queued: sum.queued + count * u64::from(state == State::Queued),
            ended: sum.ended + count * u64::from(state.is_final()),
        })
    }

    pub(crate) fn submit(&mut self, job: &NewJob) -> JobId {
        self.store.submit(job, START).unwrap().id
    }

    fn state(&self, id: JobId) -> State {
        self.store.job(id).unwrap().state
    }

    /// Runs a queued job to this ending.
    fn run(&mut self, id: JobId, ending: &Ending, now: Moment) -> State {
        let started = self.store.start(id, now).unwrap();
        self.store
            .record_end(id, started.attempt, ending, now)
            .unwrap()
            .unwrap()
    }

    /// Returns the kinds of a job's events that the webhook reports.
    fn notified(&self, id: JobId) -> Vec<String> {
        let sent = self.store.notifications(id).unwrap().into_iter();
        sent.filter(|sent| sent.method == NotifyMethod::Webhook)
            .map(|sent| sent.event.kind)
            .collect()
    }

    fn drop_notifications(&mut self) {
        self.store.drop_notifications(&NotifyMethod::ALL).unwrap();
    }

    fn kinds(&self, id: JobId) -> Vec<String> {
        self.store
            .events(id, 0, u32::MAX)
            .unwrap()
            .into_iter()
            .map(|event| event.kind)
            .collect()
    }
}

#[test]
fn a_job_runs_and_ends_once() {
    let mut site = site();
    let id = site.submit(&job("x"));
    let started = site.store.start(id, START).unwrap();
    assert_eq!((started.attempt, &started.work), (1, &job("x").work));
    assert_eq!(site.store.running().unwrap().len(), 1);
    let done = ended(AttemptVerdict::Done);
    assert_eq!(
        site.store.record_end(id, 1, &done, later(1)).unwrap(),
        Some(State::Done)
    );
    assert_eq!(site.store.record_end(id, 1, &done, later(2)).unwrap(), None);
    assert_eq!(site.notified(id), ["done"]);
    assert_eq!(site.kinds(id), ["submitted", "running", "done"]);
    let job = site.store.job(id).unwrap();
    assert_eq!(
        (job.started, job.ended, job.exit),
        (Some(START), Some(later(1)), Some(0))
    );
}

#[test]
fn an_attempt_that_is_not_the_last_is_not_settled() {
    let mut site = site();
    let id = site.submit(&job("x"));
    assert_eq!(
        site.run(id, &ended(AttemptVerdict::Vanished), START),
        State::Queued
    );
    assert_eq!(site.store.start(id, START).unwrap().attempt, 2);
    assert_eq!(
        site.store
            .record_end(id, 1, &ended(AttemptVerdict::Done), START)
            .unwrap(),
        None
    );
    assert_eq!(site.state(id), State::Running);
}

#[test]
fn the_same_submission_is_the_same_job() {
    let mut site = site();
    let named = NewJob {
        submission: Some("s".into()),
        ..job("x")
    };
    let first = site.store.submit(&named, START).unwrap();
    let second = site.store.submit(&named, later(1)).unwrap();
    assert_eq!(
        (first.repeated, second.repeated, second.id),
        (false, true, first.id)
    );
    let other = NewJob {
        submission: Some("s".into()),
        ..job("y")
    };
    assert!(matches!(
        site.store.submit(&other, START),
        Err(StoreError::OtherSubmission { .. })
    ));
    let work = JobWork {
        directory: "/elsewhere".into(),
        ..named.work.clone()
    };
    let elsewhere = NewJob { work, ..named };
    assert!(matches!(
        site.store.submit(&elsewhere, START),
        Err(StoreError::OtherSubmission { .. })
    ));
    assert_eq!(site.store.jobs(Moment::FIRST).unwrap().len(), 1);
}

#[test]
fn what_passes_is_tried_again_later_and_later_until_the_deadline() {
    let mut site = site();
    let id = site.submit(&job("x"));
    let mut now = START;
    let mut waits = Vec::new();
    loop {
        match site.run(id, &ended(AttemptVerdict::Passing), now) {
            State::Waiting => {}
            state => {
                assert_eq!(state, State::Expired);
                break;
            }
        }
        let due = site.store.next_due(now).unwrap().unwrap();
        waits.push(due.since(now).as_secs());
        assert_eq!(
            site.release(Moment(due.0 - 1)).unwrap(),
            Released::default()
        );
        now = due;
        assert_eq!(site.release(now).unwrap().queued, 1);
    }
    assert_eq!(site.state(id), State::Expired);
    assert_eq!(waits[..11], [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600]);
    assert_eq!(now, later(3600));
    assert_eq!(site.notified(id), ["expired"]);
}

#[test]
fn an_attempt_that_comes_further_puts_off_the_deadline() {
    let mut site = site();
    let id = site.submit(&job("x"));
    let further = Ending {
        furthest: 7,
        ..ended(AttemptVerdict::Passing)
    };
    site.store.start(id, START).unwrap();
    assert_eq!(
        site.store.record_end(id, 1, &further, later(3599)).unwrap(),
        Some(State::Waiting)
    );
    site.release(later(3601)).unwrap();
    // More than an hour after the start, but less than an hour after the last progress.
    assert_eq!(site.run(id, &further, later(3601)), State::Waiting);
    site.release(later(3605)).unwrap();
    assert_eq!(site.run(id, &further, later(7199)), State::Expired);
}

#[test]
fn a_process_that_keeps_dying_is_started_ever_more_seldom() {
    let mut site = site();
    let id = site.submit(&job("x"));
    for _ in 0..VANISHED {
        assert_eq!(
            site.run(id, &ended(AttemptVerdict::Vanished), START),
            State::Queued
        );
    }
    let mut now = START;
    let mut waits = Vec::new();
    for _ in 0..6 {
        let state = site.run(id, &ended(AttemptVerdict::Vanished), now);
        assert_eq!(state, State::Waiting);
        let due = site.store.next_due(now).unwrap().unwrap();
        waits.push(due.since(now).as_secs());
        now = due;
        assert_eq!(site.release(now).unwrap().queued, 1);
    }
    assert_eq!(waits, [8, 16, 32, 64, 128, 256]);
}

const VANISHED: u32 = 3;

#[test]
fn a_job_is_held_and_goes_on() {
    let mut site = site();
    let id = site.submit(&job("x"));
    assert_eq!(
        site.store.pause(id, START).unwrap(),
        RequestResult::Now(State::Paused)
    );
    assert!(matches!(
        site.store.start(id, START),
        Err(StoreError::Illegal { .. })
    ));
    assert_eq!(
        site.store.job(id).unwrap().attempt,
        0,
        "what was refused has changed nothing"
    );
    assert_eq!(
        site.store.resume(id, START).unwrap(),
        RequestResult::Now(State::Waiting)
    );
    site.release(START).unwrap();
    site.store.start(id, START).unwrap();
    assert_eq!(site.store.pause(id, START).unwrap(), RequestResult::Asked);
    assert_eq!(site.store.running().unwrap()[0].wish, Some(Wish::Pause));
    let interrupted = Ending {
        exit: Some(20),
        ..ended(AttemptVerdict::Passing)
    };
    assert_eq!(
        site.store
            .record_end(id, 1, &interrupted, later(9000))
            .unwrap(),
        Some(State::Paused)
    );
    // The job was held for longer than its deadline.
    assert_eq!(
        site.store.resume(id, later(9000)).unwrap(),
        RequestResult::Now(State::Waiting)
    );
    assert_eq!(site.release(later(9000)).unwrap().queued, 1);
}

#[test]
fn a_job_that_is_about_to_be_held_may_go_on() {
    let mut site = site();
    let id = site.submit(&job("x"));
    site.store.start(id, START).unwrap();
    assert!(
        matches!(
            site.store.resume(id, START),
            Err(StoreError::Illegal { .. })
        ),
        "nobody holds it"
    );
    site.store.pause(id, START).unwrap();
    assert_eq!(site.store.resume(id, START).unwrap(), RequestResult::Asked);
    assert_eq!(site.store.running().unwrap()[0].wish, None);
    let settled = site
        .store
        .record_end(id, 1, &ended(AttemptVerdict::Stopped), START)
        .unwrap();
    assert_eq!(
        settled,
        Some(State::Queued),
        "at once, for nothing has failed"
    );
    site.store.start(id, START).unwrap();
    site.store.cancel(id, START).unwrap();
    assert!(
        matches!(
            site.store.resume(id, START),
            Err(StoreError::Illegal { .. })
        ),
        "it is being ended"
    );
}

#[test]
fn an_order_that_comes_too_late_changes_nothing() {
    let mut site = site();
    let id = site.submit(&job("x"));
    site.store.start(id, START).unwrap();
    assert_eq!(site.store.cancel(id, START).unwrap(), RequestResult::Asked);
    assert_eq!(site.store.pause(id, START).unwrap(), RequestResult::Asked);
    assert_eq!(
        site.store.running().unwrap()[0].wish,
        Some(Wish::Cancel),
        "which no pause takes back"
    );
    assert_eq!(
        site.store
            .record_end(id, 1, &ended(AttemptVerdict::Done), START)
            .unwrap(),
        Some(State::Done)
    );
    assert!(matches!(
        site.store.cancel(id, START),
        Err(StoreError::Illegal { .. })
    ));
    assert!(matches!(
        site.store.resume(id, START),
        Err(StoreError::Illegal { .. })
    ));
    assert!(matches!(
        site.store.cancel(JobId(9), START),
        Err(StoreError::NoJob(JobId(9)))
    ));
    assert_eq!(site.notified(id), ["done"]);
}

#[test]
fn an_ended_job_is_done_again_as_another() {
    let mut site = site();
    let id = site.submit(&NewJob {
        submission: Some("s".into()),
        ..job("x")
    });
    assert!(matches!(
        site.store.rerun(id, START),
        Err(StoreError::NotEnded(_))
    ));
    site.run(id, &ended(AttemptVerdict::Fatal), START);
    let again = site.store.rerun(id, START).unwrap();
    assert!(again > id);
    assert_eq!(site.store.start(again, START).unwrap().work, job("x").work);
}

#[test]
fn attempts_share_a_run_and_copies_of_a_store_do_not() {
    let mut site = site();
    let id = site.submit(&job("x"));
    let place = tempfile::tempdir().unwrap();
    let place = JobsDirectory::open(&place.path().join("jobs")).unwrap();
    site.store.back_up(&place.database()).unwrap();
    let mut copied = Store::open(&place).unwrap();
    let run = |store: &mut Store| store.start(id, START).unwrap().run;
    let first = run(&mut site.store);
    assert!(first.len() == 32 && first.ends_with(&format!("{:016x}", machine_hash())));
    assert_ne!(run(&mut copied), first);
    let ending = ended(AttemptVerdict::Passing);
    site.store
        .record_end(id, 1, &ending, START)
        .unwrap()
        .unwrap();
    site.store.release(later(1)).unwrap();
    assert_eq!(run(&mut site.store), first);
}

#[test]
fn urgent_jobs_come_first() {
    let mut site = site();
    for (label, priority) in [("a", 0), ("b", 5), ("c", -1), ("d", 5)] {
        site.submit(&NewJob {
            priority,
            ..job(label)
        });
    }
    let mut order = Vec::new();
    site.store
        .queued(Queued::All, |job| order.push(job.target))
        .unwrap();
    assert_eq!(order, ["h:b", "h:d", "h:a", "h:c"]);
    let mut watches = job("w");
    watches.work.arguments.0.push("--watch".into());
    let id = site.submit(&watches);
    let mut found = Vec::new();
    site.store
        .queued(Queued::ToWatch, |job| {
            assert!(job.watches);
            found.push(job.id);
        })
        .unwrap();
    assert_eq!(found, [id]);
}

#[test]
fn each_attempt_s_end_is_kept() {
    let mut site = site();
    let id = site.submit(&job("x"));
    let moved = |files| {
        Some(TransferTotals {
            files,
            bytes: 10 * files,
            seconds: 1.5,
            limited_by: None,
        })
    };
    let passing = Ending {
        message: Some("lost".into()),
        moved: moved(3),
        ..ended(AttemptVerdict::Passing)
    };
    assert_eq!(site.run(id, &passing, START), State::Waiting);
    site.release(later(60)).unwrap();
    assert_eq!(
        site.run(
            id,
            &Ending {
                moved: moved(4),
                ..ended(AttemptVerdict::Done)
            },
            later(60)
        ),
        State::Done
    );
    let ends = site.store.attempts(id).unwrap();
    let recorded: Vec<_> = ends
        .iter()
        .map(|end| {
            (
                end.number,
                end.state,
                end.exit,
                end.message.as_deref(),
                end.files,
                end.bytes,
            )
        })
        .collect();
    let expected = [
        (1, State::Waiting, Some(10), Some("lost"), 3, 30),
        (2, State::Done, Some(0), None, 4, 40),
    ];
    assert_eq!(recorded, expected);
    let all = TransferTotals {
        files: 7,
        bytes: 70,
        seconds: 3.0,
        limited_by: None,
    };
    assert_eq!(
        site.store.job(id).unwrap().moved,
        Some(all),
        "the job has moved what its attempts have"
    );
    site.drop_notifications();
    site.store.forget(later(1_000_000)).unwrap();
    assert_eq!(site.store.attempts(id).unwrap(), []);
}

#[test]
fn an_event_of_an_attempt_is_recorded_once() {
    let mut site = site();
    let id = site.submit(&job("x"));
    site.store.start(id, START).unwrap();
    let events = [AttemptEvent {
        kind: "warning".into(),
        message: Some("w".into()),
    }];
    for read in [10, 10, 5] {
        site.store.record(id, 1, &events, read, START).unwrap();
    }
    assert_eq!(site.kinds(id), ["submitted", "running", "warning"]);
    assert_eq!(site.store.running().unwrap()[0].events_read, 10);
}

#[test]
fn old_jobs_are_forgotten_but_not_those_that_others_need() {
    let mut site = site();
    let [first, second] = ["a", "b"].map(|label| site.submit(&job(label)));
    let third = site.submit(&NewJob {
        after: vec![second],
        ..job("c")
    });
    for id in [first, second] {
        site.run(id, &ended(AttemptVerdict::Done), START);
    }
    assert_eq!(
        site.store.forget(later(1)).unwrap(),
        [],
        "notifications wait"
    );
    site.drop_notifications();
    assert_eq!(site.store.forget(later(1)).unwrap(), [first]);
    assert!(matches!(site.store.job(first), Err(StoreError::NoJob(_))));
    assert_eq!(site.kinds(first), Vec::<String>::new());
    site.release(later(1)).unwrap();
    site.run(third, &ended(AttemptVerdict::Done), later(1));
    site.drop_notifications();
    assert_eq!(site.store.forget(later(2)).unwrap(), [second, third]);
    let next = site.submit(&job("d"));
    assert!(next > third, "a number is never another job's");
}

#[test]
fn a_stall_is_an_event_once_in_an_attempt() {
    let mut site = site();
    let id = site.submit(&job("x"));
    site.store.start(id, START).unwrap();
    (0..2).for_each(|_| site.store.stall(id, 1, "nothing", START).unwrap());
    site.store
        .stall(id, 2, "of an attempt that is not there", START)
        .unwrap();
    assert_eq!(site.notified(id), ["stalled"]);
    site.store
        .record_end(id, 1, &ended(AttemptVerdict::Vanished), START)
        .unwrap();
    assert_eq!(site.store.start(id, START).unwrap().attempt, 2);
    (0..2).for_each(|_| site.store.stall(id, 2, "nothing", START).unwrap());
    assert_eq!(site.notified(id), ["stalled", "stalled"]);
    site.store
        .record_end(id, 2, &ended(AttemptVerdict::Done), START)
        .unwrap();
    site.store.stall(id, 2, "too late", START).unwrap();
    assert_eq!(site.notified(id), ["stalled", "stalled", "done"]);
}

#[test]
fn a_long_history_is_read_in_pieces_the_newest_first() {
    let mut site = site();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
        INSERT INTO jobs (label, state, arguments, directory, environment, source, target, host, priority, submitted,
            ended, deadline)
        SELECT 'l', iif(i % 1000 = 0, 'failed', 'done'), x'', x'', x'', '/a', 'h:b', 'h', 0, i, i, 1 FROM n";
    site.store.connection.execute_batch(fill).unwrap();
    let new = site.store.submit(&job("new"), START).unwrap().id;
    let page = |states: &[State], before| {
        let page = Page {
            states: states.to_vec(),
            before,
            length_max: 3,
        };
        site.store
            .page(&page)
            .unwrap()
            .into_iter()
            .map(|job| job.id.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(page(&[], None), [new.0, 10_000, 9999]);
    assert_eq!(page(&[], Some(JobId(9999))), [9998, 9997, 9996]);
    assert_eq!(page(&[State::Failed], Some(JobId(3000))), [2000, 1000]);
    assert_eq!(
        page(&[State::Done, State::Queued], None),
        [new.0, 9999, 9998]
    );
    let counts = site.store.counts().unwrap();
    assert_eq!(
        counts,
        [(State::Done, 9990), (State::Failed, 10), (State::Queued, 1)]
    );
    // No query may scan the whole table.
    for query in [
        read::newest_sql(),
        read::newest_in_state_sql(),
        read::COUNTS_SQL.into(),
    ] {
        let explain = format!("EXPLAIN QUERY PLAN {query}");
        let mut explain = site.store.connection.prepare(&explain).unwrap();
        let mut steps = explain.raw_query();
        while let Some(step) = steps.next().unwrap() {
            let step: String = step.get(3).unwrap();
            let reads_all = step.starts_with("SCAN") && !step.contains("USING COVERING INDEX");
            assert!(!reads_all, "{step}");
        }
    }
}

#[test]
fn a_change_of_the_store_is_seen_whoever_makes_it() {
    let mut site = site();
    let mut other = Store::open(&site.place).unwrap();
    let before = site.store.changes().unwrap();
    assert_eq!(site.store.changes().unwrap(), before);
    let id = site.submit(&job("x"));
    let own = site.store.changes().unwrap();
    assert_ne!(own, before);
    other.cancel(id, START).unwrap();
    assert_ne!(site.store.changes().unwrap(), own);
}

#[test]
fn events_of_all_jobs_are_read_from_a_number_on() {
    let mut site = site();
    let ids = ["a", "b"].map(|label| site.store.submit(&job(label), START).unwrap().id);
    let last = site.store.last_event().unwrap();
    site.store.pause(ids[1], later(1)).unwrap();
    site.store.pause(ids[0], later(2)).unwrap();
    let read = |length_max| site.store.events_after(last, length_max).unwrap();
    let jobs = |length_max| {
        read(length_max)
            .iter()
            .map(|event| event.job)
            .collect::<Vec<_>>()
    };
    assert_eq!((jobs(9), jobs(1)), (vec![ids[1], ids[0]], vec![ids[1]]));
    assert_eq!(site.store.last_event().unwrap(), read(9)[1].number);
    assert_eq!(site.store.events_after(i64::MAX, 9).unwrap(), []);
}
