//! How movers learn that the job is over, and from what they do not conclude it.

use std::sync::Arc;
use std::time::Duration;

use zmove_cluster::jetstream::{BrokerState, JetStream, Role, Settings};
use zmove_cluster::{WorkError, WorkQueue};
use zmove_types::SharedJobId;

use crate::lab::{EPOCH, JOB, Lab, PULL, data, key, next, put_all, settings, stream, until};

#[tokio::test]
async fn who_waits_is_woken_by_an_item_and_by_the_end() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(Duration::from_secs(3600)).await;
    let mover = lab
        .open(Settings {
            ask_again_after: Duration::from_secs(3600),
            ..settings(Role::Mover)
        })
        .await
        .unwrap();
    let mut requests = lab.requests().await;
    let waiting = tokio::spawn(async move {
        let taken = next(&mover).await;
        (taken.item.clone(), mover.take().await.unwrap().is_none())
    });
    // Both consumers have been asked, so the mover waits for news.
    requests.wait_for(2, PULL).await;
    put_all(&head, [data(1)]).await;
    // The item, and both consumers again.
    requests.wait_for(3, PULL).await;
    head.close().await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    assert_eq!(woken.unwrap().unwrap(), (data(1), true));
}

#[tokio::test]
async fn an_end_is_seen_by_who_comes_later_and_after_a_restart_of_the_broker() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    put_all(&head, [data(1)]).await;
    let mover = lab.mover().await;
    let taken = next(&mover).await;
    head.close().await.unwrap();
    head.close().await.unwrap();
    // one that has been at work, and not waited
    mover.done(taken).await.unwrap();
    assert!(mover.take().await.unwrap().is_none());
    assert!(lab.mover().await.take().await.unwrap().is_none());
    lab.kill();
    lab.start_again().await;
    let mover = lab.mover().await;
    assert!(mover.take().await.unwrap().is_none());
    let put = mover.put(vec![data(2)]).await;
    assert!(matches!(put, Err(WorkError::Over)), "{put:?}");
    let begun_again = lab.open(settings(Role::Head)).await;
    assert!(
        matches!(begun_again, Err(WorkError::Over)),
        "{begun_again:?}"
    );
}

#[tokio::test]
async fn a_head_knows_that_it_has_ended_the_job_also_where_the_broker_has_lost_it() {
    let Some(mut lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    head.close().await.unwrap();
    lab.kill();
    lab.empty();
    lab.start_again().await;
    let taken = tokio::time::timeout(Duration::from_secs(60), head.take()).await;
    assert!(taken.expect("nobody waits for ever").unwrap().is_none());
    let put = head.put(vec![data(1)]).await;
    assert!(matches!(put, Err(WorkError::Over)), "{put:?}");
}

#[tokio::test]
async fn the_queue_of_another_job_is_found_in_its_own_cluster_alone_and_removed() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let cluster = key(9);
    let of_job = |job: SharedJobId| Settings {
        job,
        key: cluster.of_job(job),
        ..settings(Role::Head)
    };
    let head = lab.open(of_job(JOB)).await.unwrap();
    put_all(&head, [data(1)]).await;
    drop(head);
    let other = || of_job(SharedJobId([99; 16]));
    let access = lab.access();
    let found = JetStream::other_queues(&access, other(), &cluster).await;
    let found = found.unwrap();
    assert_eq!(
        found.iter().map(|queue| queue.job).collect::<Vec<_>>(),
        [JOB]
    );
    for (settings, cluster) in [(of_job(JOB), &cluster), (other(), &key(8))] {
        let none = JetStream::other_queues(&access, settings, cluster).await;
        assert_eq!(none.unwrap(), []);
    }
    for _ in 0..2 {
        JetStream::remove_queues(&access, other(), &found)
            .await
            .unwrap();
    }
    let left = lab.context().await.get_stream(stream()).await;
    assert!(left.is_err(), "{left:?}");
}

#[tokio::test]
async fn a_stream_that_is_missing_is_no_end() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let mover = Arc::new(lab.mover().await);
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { next(&mover).await.item.clone() }
    });
    until(&mover, BrokerState::Empty).await;
    let head = lab.head().await;
    put_all(&head, [data(1)]).await;
    assert_eq!(taker.await.unwrap(), data(1));
    until(&mover, BrokerState::Ready).await;
}

#[tokio::test]
async fn who_finds_nothing_for_too_long_is_told_so() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let settings = Settings {
        empty_max: Duration::from_millis(700),
        ..settings(Role::Mover)
    };
    let error = lab.open(settings).await.unwrap().take().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "take work from the queue: the broker knows nothing of the job"
    );
}

#[tokio::test]
async fn an_end_that_another_key_has_sealed_is_none() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let stranger = lab
        .open(Settings {
            key: key(2),
            ..settings(Role::Head)
        })
        .await
        .unwrap();
    stranger.close().await.unwrap();
    let mover = Arc::new(lab.mover().await);
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { next(&mover).await.item.clone() }
    });
    // The mover has read the stranger's end, and waits for a queue.
    until(&mover, BrokerState::Empty).await;
    let head = lab.head().await;
    put_all(&head, [data(1)]).await;
    assert_eq!(taker.await.unwrap(), data(1));
    head.close().await.unwrap();
    assert!(mover.take().await.unwrap().is_none());
}

#[tokio::test]
async fn a_head_ends_the_epochs_before_its_own() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let (old_head, old_mover) = (lab.head().await, lab.mover().await);
    put_all(&old_head, [data(1), data(2)]).await;
    let taken = next(&old_mover).await;
    let head = lab
        .open(Settings {
            epoch: EPOCH + 2,
            ..settings(Role::Head)
        })
        .await
        .unwrap();
    assert!(
        head.waiting().await.unwrap().is_idle(),
        "what an older epoch had is gone"
    );
    put_all(&head, [data(1)]).await;
    // what was taken in the older epoch takes nothing out of this one
    old_mover.done(taken).await.unwrap();
    assert!(old_mover.take().await.unwrap().is_none());
    let put = old_head.put(vec![data(3)]).await;
    assert!(matches!(put, Err(WorkError::Over)), "{put:?}");
    let waiting = old_head.waiting().await;
    assert!(matches!(waiting, Err(WorkError::Over)), "{waiting:?}");
    // an older end does not take back a newer one
    old_head.close().await.unwrap();
    for epoch in [EPOCH, EPOCH + 1] {
        let begun_again = lab
            .open(Settings {
                epoch,
                ..settings(Role::Head)
            })
            .await;
        assert!(
            matches!(begun_again, Err(WorkError::Over)),
            "{begun_again:?}"
        );
    }
    assert_eq!(next(&head).await.item, data(1));
}

#[tokio::test]
async fn a_head_that_is_started_again_finds_what_was_left() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    put_all(&lab.head().await, [data(1)]).await;
    let head = lab.head().await;
    assert_eq!(next(&head).await.item, data(1));
}

#[tokio::test]
async fn jobs_do_not_meet() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    let other_job = SharedJobId([8; 16]);
    let other = lab
        .open(Settings {
            job: other_job,
            ..settings(Role::Head)
        })
        .await
        .unwrap();
    put_all(&head, [data(1)]).await;
    assert!(other.waiting().await.unwrap().is_idle());
    other.close().await.unwrap();
    assert_eq!(next(&head).await.item, data(1));
    let mut streams = Vec::new();
    let mut names = lab.context().await.stream_names();
    while let Some(name) = futures_util::StreamExt::next(&mut names).await {
        streams.push(name.unwrap());
    }
    streams.sort();
    assert_eq!(streams, [stream(), "zmove-ended".to_owned()], "{JOB}");
}

/// Of a push that was killed, and of which nobody knows at this broker any more.
#[tokio::test]
async fn what_a_queue_holds_goes_after_a_week() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let _head = lab.head().await;
    let stream = lab.context().await.get_stream(stream()).await.unwrap();
    assert_eq!(
        stream.cached_info().config.max_age,
        Duration::from_secs(7 * 24 * 3600)
    );
}
