//! Tests of a broker that is killed, restarted, or loses its data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::sync::watch;
use zmove_cluster::jetstream::{BrokerState, JetStream, Settings};
use zmove_cluster::{NodeRole, WorkQueue};

use crate::lab::{
    LOOK_FOR_END, Lab, PULL, data, do_until, next, put_all, put_in_order, settings, until, walk,
};

#[tokio::test]
async fn items_outlive_a_broker_that_is_killed() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(Duration::from_secs(60)).await;
    let mover = lab.mover().await;
    put_in_order(&head, (0..300).map(data)).await;
    for number in 0..99 {
        let taken = next(&mover).await;
        assert_eq!(taken.item, data(number));
        mover.done(taken).await.unwrap();
    }
    let leased = next(&mover).await;
    assert_eq!(leased.item, data(99));
    lab.kill();
    until(&mover, BrokerState::Lost).await;
    lab.start_again().await;
    // This call lets the head detect that consumers are missing.
    assert!(head.waiting().await.unwrap() > 200);
    let mut left: Vec<_> = (99..300).map(data).collect();
    while !left.is_empty() {
        let taken = next(&mover).await;
        left.retain(|item| *item != taken.item);
        mover.done(taken).await.unwrap();
    }
    // Work that was completed shortly before the server was killed may not have reached its files.
    while head.waiting().await.unwrap() > 0 {
        mover.done(next(&mover).await).await.unwrap();
    }
}

#[tokio::test]
async fn an_outage_keeps_items_that_are_put_in_and_may_repeat_those_that_are_done() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let lease = Duration::from_secs(60);
    let head = lab.head_with_lease(lease).await;
    let mover = Arc::new(lab.mover().await);
    put_in_order(&head, [data(1), data(2)]).await;
    let done = next(&mover).await;
    lab.kill();
    until(&mover, BrokerState::Lost).await;
    let tasks = [
        tokio::spawn({
            let mover = Arc::clone(&mover);
            async move { _ = mover.done(done).await.unwrap() }
        }),
        tokio::spawn({
            let mover = Arc::clone(&mover);
            async move { put_all(&mover, [walk(1)]).await }
        }),
    ];
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(tasks.iter().all(|task| !task.is_finished()));
    lab.start_again().await;
    for task in tasks {
        task.await.unwrap();
    }
    // The broker has lost its consumers and delivers the completed item again.
    assert_eq!(head.waiting().await.unwrap(), 3);
    for expected in [data(1), data(2), walk(1)] {
        let taken = next(&mover).await;
        assert_eq!(taken.item, expected);
        mover.done(taken).await.unwrap();
    }
    assert!(head.waiting().await.unwrap() == 0);
}

#[tokio::test]
async fn a_broker_that_comes_back_empty_is_filled_again() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(Duration::from_secs(60)).await;
    let mover = Arc::new(lab.mover().await);
    put_all(&head, [data(1), data(2)]).await;
    assert_eq!(head.losses().await.unwrap(), 0);
    let old = next(&mover).await;
    let mut requests = lab.requests().await;
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { [next(&mover).await, next(&mover).await] }
    });
    requests.wait_for(2, PULL).await;
    lab.kill();
    lab.empty();
    lab.start_again().await;
    lab.requests().await.wait_for(1, LOOK_FOR_END).await;
    assert!(!taker.is_finished(), "an empty broker is no end");
    // This call lets the head detect that another pass is needed.
    assert!(head.waiting().await.unwrap() == 0);
    assert_eq!(head.losses().await.unwrap(), 1);
    mover_reports(&head, &mover);
    assert_eq!(head.losses().await.unwrap(), 1, "a loss is counted once");
    put_all(&head, [data(3), data(4), data(5)]).await;
    // This delivery has the same sequence number as `data(3)` now has, but must not acknowledge that item.
    mover.done(old).await.unwrap();
    let [first, second] = taker.await.unwrap();
    assert_eq!([&first.item, &second.item], [&data(2), &data(3)]);
    mover.done(first).await.unwrap();
    mover.done(second).await.unwrap();
    let mut left = vec![data(4), data(5)];
    while !left.is_empty() {
        let taken = next(&mover).await;
        left.retain(|item| *item != taken.item);
        mover.done(taken).await.unwrap();
    }
    assert!(head.waiting().await.unwrap() == 0);
    head.close().await.unwrap();
    assert!(mover.take().await.unwrap().is_none());
}

/// Reports the mover's acknowledged sequence number to the head, as a notice of a node would.
fn mover_reports(head: &JetStream, mover: &JetStream) {
    head.note_stored(mover.stored());
}

/// A server that loses power may forget its most recent acknowledged items, and accept more items before any client
/// asks.
#[tokio::test]
async fn a_server_that_was_started_again_may_have_lost_items() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    let mover = lab.mover().await;
    put_in_order(&mover, (0..10).map(data)).await;
    mover_reports(&head, &mover);
    assert_eq!(head.losses().await.unwrap(), 0);
    lab.kill();
    lab.cut_to(50);
    lab.start_again().await;
    put_in_order(&mover, (10..30).map(data)).await;
    mover_reports(&head, &mover);
    for _ in 0..2 {
        assert_eq!(head.losses().await.unwrap(), 1, "a loss is counted once");
    }
}

/// The servers of a cluster keep the consumers, and may all lose power at the same time.
#[tokio::test]
async fn a_broker_that_has_less_than_it_has_acknowledged_has_lost_items() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    put_all(&head, [data(1)]).await;
    assert_eq!(head.losses().await.unwrap(), 0);
    head.note_stored(2);
    for _ in 0..2 {
        assert_eq!(head.losses().await.unwrap(), 1);
    }
}

/// A server whose file was truncated within the completed items counts later items but delivers none of them.
#[tokio::test]
async fn items_that_a_damaged_broker_does_not_deliver_are_reported_and_count_as_lost() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let settings = Settings {
        silence: Duration::from_millis(300),
        ..settings(NodeRole::Head)
    };
    let head = lab.open(settings).await.unwrap();
    let mover = Arc::new(lab.mover().await);
    put_in_order(&head, (0..10).map(data)).await;
    assert_eq!(head.losses().await.unwrap(), 0);
    for _ in 0..5 {
        let taken = next(&mover).await;
        mover.done(taken).await.unwrap();
    }
    lab.server.stop().unwrap();
    lab.cut_to(30);
    lab.start_again().await;
    put_in_order(&head, (10..20).map(data)).await;
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { do_until(0, &mut vec![data(20)], &mover).await }
    });
    let waiting = async {
        while head.waiting().await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::join!(waiting, until(&head, BrokerState::Silent));
    assert!(head.losses().await.unwrap() > 0);
    put_all(&head, [data(20)]).await;
    head.waiting().await.unwrap();
    taker.await.unwrap();
    assert_eq!(*head.state().borrow(), BrokerState::Ready);
}

#[tokio::test]
async fn who_waits_for_a_broker_that_stays_away_is_told_which_and_for_how_long() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let patience = Duration::from_secs(2);
    let head = lab
        .open(Settings {
            patience,
            ..settings(NodeRole::Head)
        })
        .await
        .unwrap();
    lab.kill();
    until(&head, BrokerState::Lost).await;
    let began = Instant::now();
    let error = head.waiting().await.unwrap_err().to_string();
    let waited = began.elapsed();
    let expected = format!("the broker {} has been unreachable for ", lab.server.url());
    let (_, away) = error.split_once(&expected).unwrap();
    let seconds: u64 = away.split_once(" s: ").unwrap().0.parse().unwrap();
    assert!(
        (patience.as_secs()..=waited.as_secs()).contains(&seconds),
        "{error} after {waited:?}"
    );
}

/// A broker accepts only one consumer per subject, and all tasks of a head detect simultaneously that there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_broker_is_filled_again_by_whoever_asks_first() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    for _ in 0..3 {
        let head = Arc::new(lab.head().await);
        lab.kill();
        lab.empty();
        lab.start_again().await;
        let asking = (0..8).map(|number| {
            let head = Arc::clone(&head);
            tokio::spawn(async move {
                put_all(&head, [data(number)]).await;
                head.waiting().await.unwrap();
            })
        });
        for asked in asking.collect::<Vec<_>>() {
            asked.await.unwrap();
        }
        assert_eq!(head.waiting().await.unwrap(), 8);
    }
}

#[tokio::test]
async fn a_put_makes_an_empty_broker_anew_too() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let (head, mover) = (lab.head().await, lab.mover().await);
    lab.kill();
    lab.empty();
    lab.start_again().await;
    put_all(&head, [data(1)]).await;
    assert_eq!(next(&mover).await.item, data(1));
}

#[tokio::test]
async fn consumers_that_are_gone_are_made_anew() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let (head, mover) = (lab.head().await, Arc::new(lab.mover().await));
    put_all(&head, [data(1)]).await;
    let old = next(&mover).await;
    lab.delete_consumers().await;
    let mut requests = lab.requests().await;
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { next(&mover).await }
    });
    requests.wait_for(1, LOOK_FOR_END).await;
    assert_eq!(head.waiting().await.unwrap(), 1);
    mover.done(old).await.unwrap();
    assert_eq!(taker.await.unwrap().item, data(1));
}

/// A server that was killed may have lost some of its items, and its consumers would still count them.
#[tokio::test]
async fn the_consumers_of_a_broker_that_was_killed_are_made_anew() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let lease = Duration::from_secs(600);
    let head = lab.head_with_lease(lease).await;
    let mover = lab.mover().await;
    put_all(&head, [data(1)]).await;
    let old = next(&mover).await;
    lab.kill();
    lab.start_again().await;
    assert_eq!(head.waiting().await.unwrap(), 1);
    let again = next(&mover).await;
    assert_eq!(again.item, old.item);
    mover.done(again).await.unwrap();
    assert!(head.waiting().await.unwrap() == 0);
}

#[tokio::test]
async fn a_broker_that_stands_still_is_told_and_waited_for() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let lease = Duration::from_secs(60);
    let head = lab.head_with_lease(lease).await;
    let mover = Arc::new(lab.mover().await);
    put_all(&head, [data(1)]).await;
    let pid = Pid::from_raw(i32::try_from(lab.server.id()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { next(&mover).await.item }
    });
    let stopped = Instant::now();
    until(&mover, BrokerState::Lost).await;
    println!("noticed after {:?}", stopped.elapsed());
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(taker.await.unwrap(), data(1));
}

/// If the process exited earlier, the item would stay leased.
#[tokio::test]
async fn all_has_been_given_back_when_the_broker_has_answered_and_not_before() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(Duration::from_secs(60)).await;
    put_all(&head, [data(1)]).await;
    let taken = next(&head).await;
    let pid = Pid::from_raw(i32::try_from(lab.server.id()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    waitpid(Some(pid), WaitOptions::UNTRACED)
        .unwrap()
        .expect("it has stopped");
    drop(taken);
    let told = tokio::time::timeout(Duration::from_millis(50), head.flush_dropped()).await;
    assert!(told.is_err(), "nobody knows it");
    kill_process(pid, Signal::CONT).unwrap();
    head.flush_dropped().await;
    assert_eq!(next(&head).await.item, data(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_by_a_broker_that_is_killed_again_and_again() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let head = Arc::new(lab.head().await);
    let mover = Arc::new(lab.mover().await);
    let items = 1600;
    let taken_count = watch::Sender::new(0);
    let kill_count = watch::Sender::new(0);
    let takers: Vec<_> = (0..4)
        .map(|number| {
            let mover = Arc::clone(&mover);
            let taken_count = taken_count.clone();
            let mut kills = kill_count.subscribe();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while let Some(taken) = mover.take().await.unwrap() {
                    seen.push(taken.item.encode());
                    taken_count.send_modify(|count| *count += 1);
                    // One taker holds an item at each kill, so that some work is always in progress.
                    let due = (*taken_count.borrow() / KILL_EVERY).min(KILLS);
                    if number == 0 {
                        kills.wait_for(|kills| *kills >= due).await.unwrap();
                    }
                    mover.done(taken).await.unwrap();
                }
                seen
            })
        })
        .collect();
    let looking = tokio::spawn({
        let head = Arc::clone(&head);
        async move {
            loop {
                head.waiting().await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    let putting = tokio::spawn({
        let head = Arc::clone(&head);
        async move {
            for first in (0..items).step_by(100) {
                put_all(&head, (first..first + 100).map(data)).await;
            }
        }
    });
    for kill in 1..=KILLS {
        let mut taken = taken_count.subscribe();
        taken
            .wait_for(|count| *count >= kill * KILL_EVERY)
            .await
            .unwrap();
        lab.kill();
        kill_count.send_replace(kill);
        lab.start_again().await;
    }
    putting.await.unwrap();
    looking.abort();
    while head.waiting().await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    head.close().await.unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let mut count = 0;
    for taker in takers {
        let items = taker.await.unwrap();
        count += items.len();
        seen.extend(items);
    }
    println!("{} items came again", count - seen.len());
    assert_eq!(seen.len(), usize::try_from(items).unwrap());
}

/// Number of times that the broker is killed, and the number of items before each kill.
const KILLS: usize = 5;
const KILL_EVERY: usize = 200;

/// An earlier version, or an administrator, has created a stream that does not accept the items.
#[tokio::test]
async fn a_stream_with_other_subjects_is_named() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let client = async_nats::connect(lab.server.url()).await.unwrap();
    let stream = async_nats::jetstream::stream::Config {
        name: "zmove".to_owned(),
        subjects: vec!["zmove.old.*".to_owned()],
        ..async_nats::jetstream::stream::Config::default()
    };
    let context = async_nats::jetstream::new(client);
    context.create_stream(stream).await.unwrap();
    let error = lab.open(settings(NodeRole::Head)).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("'zmove.old.*' instead of 'zmove.*'"),
        "{text}"
    );
}

/// The first item of a pass must not be lost: a queue without it looks like that of a complete pass.
#[tokio::test]
async fn a_server_that_has_lost_the_files_of_the_stream_gets_a_new_one() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let silence = Duration::from_millis(100);
    let head = lab.open(Settings {
        silence,
        ..settings(NodeRole::Head)
    });
    let head = head.await.unwrap();
    lab.remove_files_of_stream().await;
    let refused = head.put(vec![walk(0)]).await.unwrap();
    assert_eq!(refused.refused, [walk(0)]);
    assert_eq!(head.waiting().await.unwrap(), 0);
    while !head.put(vec![walk(0)]).await.unwrap().refused.is_empty() {
        tokio::time::sleep(silence).await;
    }
    assert_eq!(head.waiting().await.unwrap(), 1);
}
