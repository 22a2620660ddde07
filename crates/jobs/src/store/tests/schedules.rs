//! Tests the runs of schedules.

use super::*;

#[test]
fn a_schedule_goes_on_after_each_run_and_what_was_missed_is_done_once() {
    let mut site = site();
    let hourly = NewJob {
        schedule: Some("0 * * * *".parse().unwrap()),
        not_before: Some(later(3600)),
        ..job("x")
    };
    let first = site.submit(&hourly);
    // The run is three hours late.
    let now = later(4 * 3600 + 5);
    assert_eq!(site.release(now).unwrap().queued, 1);
    assert_eq!(site.notified(first), ["missed"]);
    assert_eq!(
        site.run(first, &ended(AttemptVerdict::Fatal), now),
        State::Failed
    );
    let live: Vec<_> = site.store.jobs(now).unwrap();
    let [next] = &live[..] else {
        panic!("{live:?}")
    };
    assert_eq!((next.state, next.previous), (State::Waiting, Some(first)));
    assert!(
        next.not_before.unwrap() > now
            && next.not_before.unwrap() <= now.after(Duration::from_secs(3600))
    );
    let next = next.id;
    site.store.cancel(next, now).unwrap();
    assert_eq!(
        site.store.jobs(now).unwrap(),
        [],
        "a schedule ends with its job"
    );
    assert_eq!(site.notified(next), ["cancelled"]);
    let running = site.submit(&hourly);
    site.release(now).unwrap();
    site.store.start(running, now).unwrap();
    site.store.cancel(running, now).unwrap();
    let interrupted = site
        .store
        .record_end(running, 1, &ended(AttemptVerdict::Passing), now)
        .unwrap();
    assert_eq!(interrupted, Some(State::Cancelled));
    assert_eq!(site.store.jobs(now).unwrap(), [], "also while it runs");
}

#[test]
fn a_schedule_goes_on_after_a_run_that_expired_or_waited_in_vain() {
    let mut site = site();
    let hourly = NewJob {
        schedule: Some("0 * * * *".parse().unwrap()),
        ..job("x")
    };
    let expiring = site.submit(&hourly);
    assert_eq!(
        site.run(expiring, &ended(AttemptVerdict::Passing), START),
        State::Waiting
    );
    let now = later(3600);
    site.release(now).unwrap();
    let stopped = Ending {
        message: Some("refused".into()),
        ..ended(AttemptVerdict::Passing)
    };
    assert_eq!(site.run(expiring, &stopped, now), State::Expired);
    assert_eq!(
        site.store.job(expiring).unwrap().message.as_deref(),
        Some("no attempt made progress within the deadline of 3600 s; the last error: refused")
    );
    let needed = site.submit(&job("needed"));
    let vain = site.submit(&NewJob {
        after: vec![needed],
        ..hourly
    });
    site.store.cancel(needed, now).unwrap();
    assert_eq!(site.release(now).unwrap().ended, 1);
    let live = site.store.jobs(now).unwrap();
    let mut before: Vec<_> = live.iter().filter_map(|next| next.previous).collect();
    before.sort_unstable();
    assert_eq!(before, [expiring, vain]);
}

#[test]
fn an_ended_run_of_a_schedule_leads_to_the_one_that_is_to_come() {
    let mut site = site();
    let schedule = Some("* * * * *".parse().unwrap());
    let first = site.submit(&NewJob {
        schedule,
        ..job("x")
    });
    let mut last = first;
    for round in 0..3 {
        let now = later(60 * round + 120);
        site.release(now).unwrap();
        assert_eq!(
            site.run(last, &ended(AttemptVerdict::Done), now),
            State::Done
        );
        last = site.store.live_run(first).unwrap();
        assert!(last > first);
    }
    let again = site.store.rerun(first, later(600)).unwrap();
    assert_eq!(
        site.store.live_run(first).unwrap(),
        last,
        "what was done again by hand is not of the schedule"
    );
    assert_eq!(site.store.live_run(again).unwrap(), again);
    site.store.cancel(last, later(600)).unwrap();
    assert_eq!(site.store.live_run(first).unwrap(), first);
}

#[test]
fn a_run_that_is_done_before_it_can_be_cancelled_is_the_last_of_its_schedule() {
    let mut site = site();
    let id = site.submit(&NewJob {
        schedule: Some("* * * * *".parse().unwrap()),
        ..job("x")
    });
    let attempt = site.store.start(id, START).unwrap().attempt;
    assert_eq!(site.store.cancel(id, START).unwrap(), RequestResult::Asked);
    let done = ended(AttemptVerdict::Done);
    let state = site.store.record_end(id, attempt, &done, later(1)).unwrap();
    assert_eq!(state, Some(State::Done));
    assert_eq!(site.store.live_run(id).unwrap(), id);
}
