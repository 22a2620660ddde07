//! Tests notifications: their methods, retries and time limits.

use super::*;

#[test]
fn an_event_is_sent_once_by_each_method() {
    let mut site = site();
    let id = site.submit(&NewJob {
        notify: Some("alice".into()),
        ..job("x")
    });
    site.store.cancel(id, START).unwrap();
    assert!(site.store.has_work().unwrap(), "a runner is to stay");
    for method in NotifyMethod::ALL {
        let sent = site.store.next_notification(method, START).unwrap();
        let sent = sent.unwrap();
        assert_eq!(
            (&sent.event.kind[..], sent.event.job, sent.method),
            ("cancelled", id, method)
        );
        site.store.record_attempt(&sent, &Ok(()), START).unwrap();
        let next = site.store.next_notification(method, later(1_000_000));
        assert_eq!(next.unwrap(), None);
    }
    assert!(!site.store.has_work().unwrap());
    let states: Vec<_> = site
        .store
        .notifications(id)
        .unwrap()
        .into_iter()
        .map(|sent| sent.state)
        .collect();
    assert_eq!(states, [NotificationState::Delivered; 2]);
    let again = site.store.rerun(id, START).unwrap();
    assert_eq!(
        site.store.job(again).unwrap().notify.as_deref(),
        Some("alice"),
        "the next run has the same text"
    );
}

/// The server answers with status 500 for more than three days.
#[test]
fn a_failing_notification_is_sent_ever_more_seldom_and_given_up_after_days() {
    let mut site = site();
    let ids = ["x", "y"].map(|label| site.submit(&job(label)));
    for id in ids {
        site.store.cancel(id, START).unwrap();
    }
    let [hook, webhook] = NotifyMethod::ALL;
    let mut tries = 0;
    let mut tries_in_a_day = None;
    let mut waits = Vec::new();
    let mut now = START;
    let last = loop {
        let Some(first) = site.store.next_notification(hook, now).unwrap() else {
            break now;
        };
        site.store
            .record_attempt(&first, &Err("500".into()), now)
            .unwrap();
        tries += 1;
        assert_eq!(
            site.store.next_notification(hook, now).unwrap(),
            None,
            "all notifications of the method wait"
        );
        assert!(
            site.store
                .next_notification(webhook, now)
                .unwrap()
                .is_some(),
            "the other method does not wait"
        );
        let Some(next) = site.store.next_attempt(hook, now).unwrap() else {
            break now;
        };
        waits.push(next.since(now));
        now = next;
        if now > later(24 * 3600) {
            tries_in_a_day.get_or_insert(tries);
        }
    };
    let in_a_day = tries_in_a_day.unwrap();
    assert!((30..40).contains(&in_a_day), "{in_a_day} tries in a day");
    assert!(waits.is_sorted(), "{waits:?}");
    assert!(
        (later(72 * 3600)..later(74 * 3600)).contains(&last),
        "{last:?}"
    );
    for id in ids {
        let [a, b] = &site.store.notifications(id).unwrap()[..] else {
            panic!("a notification by each method")
        };
        assert_eq!(
            (a.method, a.state, a.error.as_deref()),
            (hook, NotificationState::GivenUp, Some("500"))
        );
        assert_eq!(
            (b.method, b.state, b.tries),
            (webhook, NotificationState::Waiting, 0)
        );
    }
    assert!(tries < 120, "{tries} tries for two events");
}

/// The runner was not running for days, so an old event is new to the hook.
#[test]
fn the_time_to_give_up_begins_with_the_first_failure() {
    let mut site = site();
    let id = site.submit(&job("x"));
    site.store.cancel(id, START).unwrap();
    let now = later(10 * 24 * 3600);
    let first = site.store.next_notification(NotifyMethod::Hook, now);
    let first = first.unwrap().unwrap();
    site.store
        .record_attempt(&first, &Err("500".into()), now)
        .unwrap();
    let sent = &site.store.notifications(id).unwrap()[0];
    assert_eq!(
        (sent.state, sent.tries, sent.due),
        (
            NotificationState::Waiting,
            1,
            now.after(Duration::from_secs(10))
        )
    );
}

#[test]
fn notifications_without_a_method_are_dropped_and_failed_ones_stay_visible() {
    let mut site = site();
    let ids = ["x", "y"].map(|label| site.submit(&job(label)));
    for id in ids {
        site.store.cancel(id, START).unwrap();
    }
    let first = site.store.next_notification(NotifyMethod::Hook, START);
    site.store
        .record_attempt(&first.unwrap().unwrap(), &Err("exit 3".into()), START)
        .unwrap();
    site.drop_notifications();
    let [sent] = &site.store.notifications(ids[0]).unwrap()[..] else {
        panic!("the failed one")
    };
    assert_eq!(
        (sent.method, sent.state, sent.error.as_deref()),
        (
            NotifyMethod::Hook,
            NotificationState::GivenUp,
            Some("exit 3")
        )
    );
    assert_eq!(site.store.notifications(ids[1]).unwrap(), []);
    assert!(!site.store.has_work().unwrap());
}

#[test]
fn a_clock_that_is_set_back_does_not_hold_up_notifications() {
    let mut site = site();
    let id = site.submit(&job("x"));
    site.store.cancel(id, START).unwrap();
    let before = Moment(START.0 - 48 * 3600 * 1000);
    let next = site.store.next_notification(NotifyMethod::Hook, before);
    assert!(next.unwrap().is_some());
}
