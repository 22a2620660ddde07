//! Tests waiting jobs with a clock that may be set.

use super::*;
use crate::schedule::{StartTime, first_time};

#[test]
fn a_clock_that_is_set_back_does_not_hold_up_an_attempt() {
    let mut site = site();
    let id = site.submit(&job("x"));
    site.run(id, &ended(AttemptVerdict::Passing), later(1_000_000));
    assert_eq!(site.release(later(0)).unwrap().queued, 1);
    assert_eq!(site.state(id), State::Queued);
}

/// A host may boot with a clock that is years ahead.
#[test]
fn a_clock_that_is_set_back_puts_off_neither_deadlines_nor_schedules() {
    let mut site = site();
    let (ahead, now) = (later(1_000_000_000), START);
    let schedule = Some("0 * * * *".parse().unwrap());
    let first = site.submit(&NewJob {
        schedule,
        ..job("x")
    });
    let fails = site.submit(&job("y"));
    assert_eq!(
        site.run(first, &ended(AttemptVerdict::Done), ahead),
        State::Done
    );
    assert_eq!(
        site.run(fails, &ended(AttemptVerdict::Passing), ahead),
        State::Waiting
    );
    site.release(now).unwrap();
    let next = site.store.live_run(first).unwrap();
    let due = site.store.job(next).unwrap().not_before.unwrap();
    assert!(due > now && due <= later(3600), "{due:?}");
    assert_eq!(
        site.run(fails, &ended(AttemptVerdict::Passing), now),
        State::Waiting
    );
    site.release(later(3600)).unwrap();
    assert_eq!(
        site.run(fails, &ended(AttemptVerdict::Passing), later(3600)),
        State::Expired
    );
    assert_eq!(site.state(next), State::Queued);
}

#[test]
fn what_was_submitted_while_the_clock_was_ahead_begins_by_the_corrected_clock() {
    let mut site = site();
    let (ahead, now) = (later(1_000_000_000), START);
    let mut submit = |at: Option<&str>, schedule: Option<&str>| {
        let at = at.map(|at| StartTime::parse(at, ahead).unwrap());
        let schedule = schedule.map(|schedule| schedule.parse().unwrap());
        let not_before = first_time(at.as_ref(), schedule.as_ref(), ahead);
        assert!(not_before.unwrap() > ahead);
        let job = NewJob {
            not_before,
            at,
            schedule,
            ..job("x")
        };
        site.store.submit(&job, ahead).unwrap().id
    };
    let hourly = submit(None, Some("0 * * * *"));
    let next_morning = submit(Some("02:00"), None);
    let far = "2199-01-01T00:30:00Z";
    let [on_a_date, hourly_from_then] =
        [None, Some("0 * * * *")].map(|every| submit(Some(far), every));
    site.release(now).unwrap();
    let due = |id| site.store.job(id).unwrap().not_before.unwrap();
    let hour = Duration::from_secs(3600);
    assert!(due(hourly) > now && due(hourly) <= now.after(hour));
    assert!(due(next_morning) > now && due(next_morning) <= now.after(25 * hour));
    let date = StartTime::parse(far, now).unwrap().moment();
    assert_eq!(due(on_a_date), date, "a date is no matter of the clock");
    assert!(due(hourly_from_then) > date && due(hourly_from_then) <= date.after(hour));
    site.release(now.after(hour)).unwrap();
    assert_eq!(site.state(hourly), State::Queued);
}

#[test]
fn the_time_in_which_nothing_ran_here_ends_no_job() {
    let mut site = site();
    let [killed, waiting] = ["x", "y"].map(|label| site.submit(&job(label)));
    site.store.start(killed, START).unwrap();
    assert_eq!(
        site.run(waiting, &ended(AttemptVerdict::Passing), START),
        State::Waiting
    );
    let monday = later(3 * 24 * 3600);
    assert_eq!(
        site.store
            .record_end(killed, 1, &ended(AttemptVerdict::Vanished), monday)
            .unwrap(),
        Some(State::Queued)
    );
    assert_eq!(
        site.release(monday).unwrap(),
        Released {
            queued: 1,
            ended: 0
        }
    );
    assert_eq!(
        site.run(waiting, &ended(AttemptVerdict::Passing), monday),
        State::Expired,
        "it was tried since"
    );
}

#[test]
fn a_job_waits_for_others_and_fails_with_them() {
    let mut site = site();
    let first = site.submit(&job("a"));
    let second = site.submit(&NewJob {
        after: vec![first],
        ..job("b")
    });
    let third = site.submit(&NewJob {
        after: vec![first, second],
        ..job("c")
    });
    let message = |site: &Site, id| site.store.job(id).unwrap().message;
    assert_eq!(
        message(&site, third),
        Some(format!("after job {first}, {second}"))
    );
    assert_eq!(site.release(START).unwrap(), Released::default());
    let late = site.submit(&NewJob {
        after: vec![first],
        not_before: Some(START),
        ..job("d")
    });
    assert_eq!(
        site.store.next_due(later(1)).unwrap(),
        None,
        "nothing but another job is waited for"
    );
    site.store.cancel(late, START).unwrap();
    assert_eq!(
        site.run(first, &ended(AttemptVerdict::Done), START),
        State::Done
    );
    assert_eq!(site.release(START).unwrap().queued, 1);
    assert_eq!(
        site.run(second, &ended(AttemptVerdict::Fatal), START),
        State::Failed
    );
    assert_eq!(
        site.release(START).unwrap(),
        Released {
            queued: 0,
            ended: 1
        }
    );
    let third = site.store.job(third).unwrap();
    assert_eq!(third.state, State::Failed);
    assert_eq!(
        third.message.unwrap(),
        format!("job {second}, which must be done first, has failed")
    );
    let unknown = NewJob {
        after: vec![JobId(99)],
        ..job("d")
    };
    assert!(matches!(
        site.store.submit(&unknown, START),
        Err(StoreError::NoJob(JobId(99)))
    ));
}

#[test]
fn a_job_that_waits_and_comes_no_further_stalls_once() {
    let mut site = site();
    let (stuck, moving) = (site.submit(&job("x")), site.submit(&job("y")));
    let failed = |furthest| Ending {
        furthest,
        message: Some("no route".into()),
        ..ended(AttemptVerdict::Passing)
    };
    for minute in 0..12 {
        let now = later(60 * minute);
        site.release(now).unwrap();
        for (id, furthest) in [(stuck, 0), (moving, minute)] {
            if site.state(id) == State::Queued {
                assert_eq!(site.run(id, &failed(furthest), now), State::Waiting);
            }
        }
        site.store
            .stall_waiting(Duration::from_secs(300), now)
            .unwrap();
        assert_eq!(
            site.notified(stuck).len(),
            usize::from(minute >= 5),
            "after {minute} min"
        );
    }
    assert_eq!(site.notified(moving), [""; 0]);
    let events = site.store.events(stuck, 0, u32::MAX).unwrap();
    let stalled = events.iter().find(|event| event.kind == "stalled").unwrap();
    assert_eq!(
        stalled.message.as_deref(),
        Some("no progress for 300 s: no route")
    );
    site.store.cancel(stuck, later(9000)).unwrap();
    site.store
        .stall_waiting(Duration::ZERO, later(9000))
        .unwrap();
    assert_eq!(site.notified(stuck), ["stalled", "cancelled"]);
}
