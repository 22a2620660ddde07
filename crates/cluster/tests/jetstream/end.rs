//! Tests of how movers learn that the job is over, and of events that do not mean its end.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream;
use zmove_cluster::jetstream::Settings;
use zmove_cluster::{NodeRole, WorkError, WorkQueue};
use zmove_types::SharedJobId;

use crate::lab::{LOOK_FOR_END, Lab, PULL, STREAM, data, next, put_all, settings};

#[tokio::test]
async fn a_waiting_take_returns_on_an_item_and_on_the_end() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(Duration::from_secs(3600)).await;
    let mover = lab.mover().await;
    let mut requests = lab.requests().await;
    let waiting = tokio::spawn(async move {
        let taken = next(&mover).await;
        (taken.item.clone(), mover.take().await.unwrap().is_none())
    });
    requests.wait_for(1, PULL).await;
    put_all(&head, [data(1)]).await;
    requests.wait_for(1, PULL).await;
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
    // A mover that was working rather than waiting when the job ended.
    mover.done(taken).await.unwrap();
    assert!(mover.take().await.unwrap().is_none());
    assert!(lab.mover().await.take().await.unwrap().is_none());
    lab.kill();
    lab.start_again().await;
    assert!(lab.mover().await.take().await.unwrap().is_none());
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
async fn a_stream_that_is_missing_is_no_end() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let mover = Arc::new(lab.mover().await);
    let mut requests = lab.requests().await;
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { next(&mover).await.item.clone() }
    });
    requests.wait_for(1, LOOK_FOR_END).await;
    let head = lab.head().await;
    put_all(&head, [data(1)]).await;
    assert_eq!(taker.await.unwrap(), data(1));
}

#[tokio::test]
async fn an_end_that_nobody_of_the_job_has_sealed_is_none() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    let mover = Arc::new(lab.mover().await);
    put_all(&head, [data(1)]).await;
    let context = lab.context().await;
    let bucket = stream::Config {
        name: "KV_zmove-ended".to_owned(),
        subjects: vec!["$KV.zmove-ended.>".to_owned()],
        max_messages_per_subject: 1,
        ..stream::Config::default()
    };
    context.create_stream(bucket).await.unwrap();
    let ended = context.get_key_value("zmove-ended").await.unwrap();
    ended
        .put(lab.job_name().await, "ended".into())
        .await
        .unwrap();
    lab.delete_consumers().await;
    let mut requests = lab.requests().await;
    let taker = tokio::spawn({
        let mover = Arc::clone(&mover);
        async move { next(&mover).await.item.clone() }
    });
    // The mover looks again after it has read the record.
    requests.wait_for(2, LOOK_FOR_END).await;
    assert_eq!(head.waiting().await.unwrap(), 1);
    assert_eq!(taker.await.unwrap(), data(1));
    head.close().await.unwrap();
    assert!(mover.take().await.unwrap().is_none());
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
            ..settings(NodeRole::Head)
        })
        .await
        .unwrap();
    put_all(&head, [data(1)]).await;
    assert!(other.waiting().await.unwrap() == 0);
    other.close().await.unwrap();
    assert_eq!(next(&head).await.item, data(1));
    let mut streams = Vec::new();
    let mut names = lab.context().await.stream_names();
    while let Some(name) = futures_util::StreamExt::next(&mut names).await {
        streams.push(name.unwrap());
    }
    streams.sort();
    assert_eq!(streams, ["KV_zmove-ended", STREAM]);
}

/// Items of a push that was killed and that no other push continues are removed after a week.
#[tokio::test]
async fn what_a_queue_holds_goes_after_a_week() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let _head = lab.head().await;
    let stream = lab.context().await.get_stream(STREAM).await.unwrap();
    assert_eq!(
        stream.cached_info().config.max_age,
        Duration::from_secs(7 * 24 * 3600)
    );
}
