//! Tests of the properties that a broker shares with any queue (see the tests of the local queue), and of the
//! properties that only a broker has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::message::PublishMessage;
use zmove_cluster::jetstream::{JetStream, JobNotice, NodeFailure, Notice, NoticeBoard, Settings};
use zmove_cluster::{NodeRole, WorkItem, WorkQueue};

use crate::lab::{Lab, STREAM, data, key, next, put_all, put_in_order, settings, walk};

#[tokio::test]
async fn items_come_in_their_order() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(LONG_LEASE).await;
    let mover = lab.mover().await;
    let items = [walk(1), data(1), walk(2), data(2)];
    put_in_order(&head, items.clone()).await;
    let mut taken = Vec::new();
    for _ in 0..4 {
        let next = next(&mover).await;
        taken.push(next.item.clone());
        mover.done(next).await.unwrap();
    }
    assert_eq!(taken, items);
    assert!(head.waiting().await.unwrap() == 0);
}

#[tokio::test]
async fn an_item_comes_once_in_a_walk_and_again_in_the_next() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    put_all(&head, [data(1), data(1)]).await;
    let taken = next(&head).await;
    head.done(taken).await.unwrap();
    put_all(&head, [data(1)]).await;
    assert!(head.waiting().await.unwrap() == 0);
    put_all(&head, [WorkItem { pass: 2, ..data(1) }]).await;
    assert_eq!(next(&head).await.item.pass, 2);
}

#[tokio::test]
async fn what_is_not_renewed_comes_again_after_its_lease() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    put_all(&head, [data(1)]).await;
    let began = Instant::now();
    let not_renewed = next(&head).await;
    let again = next(&head).await;
    let lease = settings(NodeRole::Head).lease;
    assert_eq!(again.item, not_renewed.item);
    assert_eq!(head.waiting().await.unwrap(), 1);
    assert!(began.elapsed() >= lease);
    // A mover renews its lease within this time.
    assert_eq!(again.lease, lease);
}

#[tokio::test]
async fn what_is_renewed_stays_taken() {
    // On a busy host, a renewal may be too late, which proves nothing. The test is then repeated with a longer lease.
    for seconds in [1, 4, 16] {
        let Some(lab) = Lab::start().await else {
            return;
        };
        if stays_taken(&lab, Duration::from_secs(seconds)).await {
            return;
        }
    }
    panic!("no renewal came in time");
}

/// Renews an item for two leases. Returns `false` if it was delivered again because a renewal was too late.
async fn stays_taken(lab: &Lab, lease: Duration) -> bool {
    let settings = Settings {
        lease,
        ..settings(NodeRole::Head)
    };
    let head = lab.open(settings).await.unwrap();
    put_all(&head, [data(1)]).await;
    let mut renewed = Instant::now();
    let taken = next(&head).await;
    for _ in 0..8 {
        if let Ok(again) = tokio::time::timeout(lease / 4, head.take()).await {
            assert!(renewed.elapsed() >= lease, "{again:?}");
            return false;
        }
        let began = Instant::now();
        head.renew(&taken).await.unwrap();
        if renewed.elapsed() >= lease {
            return false;
        }
        renewed = began;
    }
    head.done(taken).await.unwrap();
    assert!(head.waiting().await.unwrap() == 0);
    true
}

/// An item is dropped if its session fails, for example.
#[tokio::test]
async fn what_is_dropped_comes_at_once() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(LONG_LEASE).await;
    put_all(&head, [data(1)]).await;
    let began = Instant::now();
    drop(next(&head).await);
    assert_eq!(next(&head).await.item, data(1));
    assert!(began.elapsed() < LONG_LEASE, "{:?}", began.elapsed());
}

/// The last item is held by a task that ends slightly later, and a requested item may arrive when nobody waits for it
/// any more.
#[tokio::test]
async fn a_process_that_ends_when_all_has_been_given_back_leaves_nothing_leased() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(LONG_LEASE).await;
    for turn in 0..20 {
        put_all(&head, [data(turn)]).await;
        let access = lab.access();
        let process = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mover = JetStream::open(&access, settings(NodeRole::Follower))
                    .await
                    .unwrap();
                tokio::select! {
                    taken = mover.take() => drop(tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        drop(taken);
                    })),
                    () = tokio::time::sleep(Duration::from_micros(300) * turn) => {}
                }
                mover.flush_dropped().await;
            });
        });
        tokio::task::spawn_blocking(|| process.join().unwrap())
            .await
            .unwrap();
        let taken = tokio::time::timeout(LONG_LEASE / 2, next(&head)).await;
        head.done(taken.unwrap_or_else(|_leased| panic!("leased in turn {turn}")))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_full_queue_refuses_and_takes_the_same_item_later() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab
        .open(Settings {
            items_max: 300,
            ..settings(NodeRole::Head)
        })
        .await
        .unwrap();
    let announced = head.put((0..301).map(data).collect()).await.unwrap();
    // The broker may store items in another order.
    assert_eq!((announced.put, announced.refused.len()), (300, 1));
    let taken = next(&head).await;
    head.done(taken).await.unwrap();
    put_all(&head, announced.refused).await;
}

#[tokio::test]
async fn an_item_that_the_broker_has_had_is_not_put_in_again() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head().await;
    let mover = lab.mover().await;
    assert_eq!(head.put(vec![data(1), data(2)]).await.unwrap().put, 2);
    assert_eq!(mover.put(vec![data(2), data(3)]).await.unwrap().put, 1);
    assert_eq!(head.waiting().await.unwrap(), 3);
}

#[tokio::test]
async fn a_take_that_is_given_up_costs_no_lease() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(LONG_LEASE).await;
    let began = Instant::now();
    let mut left = 0;
    // Each take is canceled slightly later than the previous one. The first is canceled before the broker is asked, the
    // last after the broker has answered.
    for turns in 0..200 {
        put_all(&head, [data(turns)]).await;
        left += 1;
        tokio::select! {
            biased;
            taken = head.take() => {
                head.done(taken.unwrap().unwrap()).await.unwrap();
                left -= 1;
            }
            () = yield_often(turns) => {}
        }
    }
    for _ in 0..left {
        let taken = next(&head).await;
        head.done(taken).await.unwrap();
    }
    println!("{left} of 200 given up");
    assert!(began.elapsed() < LONG_LEASE, "{:?}", began.elapsed());
    assert!(head.waiting().await.unwrap() == 0);
}

async fn yield_often(turns: u32) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// Puts in two messages that no node of the job has sealed.
async fn put_unreadable(lab: &Lab) {
    let subject = format!("zmove.{}", lab.job_name().await);
    let context = lab.context().await;
    let named = PublishMessage::build().message_id("0".repeat(32));
    for message in [PublishMessage::build(), named] {
        let message = message.payload("no item".into());
        let published = context.send_publish(subject.clone(), message).await;
        published.unwrap().await.unwrap();
    }
}

#[tokio::test]
async fn the_head_removes_messages_that_do_not_open() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(LONG_LEASE).await;
    put_unreadable(&lab).await;
    put_all(&head, [walk(2)]).await;
    let taken = next(&head).await;
    assert_eq!(taken.item, walk(2));
    head.done(taken).await.unwrap();
    assert!(head.waiting().await.unwrap() == 0);
}

/// A mover with a wrong key would otherwise empty the queue.
#[tokio::test]
async fn a_mover_gives_back_messages_that_do_not_open() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(LONG_LEASE).await;
    let mover = lab.mover().await;
    put_unreadable(&lab).await;
    put_all(&head, [walk(2)]).await;
    let taken = next(&mover).await;
    assert_eq!(taken.item, walk(2));
    mover.done(taken).await.unwrap();
    assert_eq!(head.waiting().await.unwrap(), 2);
    let is_idle = async {
        while head.waiting().await.unwrap() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        took = head.take() => panic!("{took:?}"),
        () = is_idle => {}
    }
}

/// A node learns of a job through its head's notice. A node that cannot decrypt the notice takes no work.
#[tokio::test]
async fn who_has_another_key_hears_of_no_job() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let told = Notice::Job(JobNotice {
        job: crate::lab::JOB,
        words: vec![b"push".to_vec()],
        begun: true,
        ..JobNotice::default()
    });
    let [head, node, stranger] = [1, 1, 2].map(key);
    let head = NoticeBoard::open(&lab.access(), &head).await.unwrap();
    let node = NoticeBoard::open(&lab.access(), &node).await.unwrap();
    let stranger = NoticeBoard::open(&lab.access(), &stranger).await.unwrap();
    for _ in 0..5 {
        head.tell(&told).await;
        assert_eq!(node.hear().await, Ok(told.clone()));
    }
    // The first notice that the stranger receives is its own.
    let own = Notice::Absent(NodeFailure {
        job: crate::lab::JOB,
        node: "n".into(),
        message: "of the stranger".into(),
    });
    stranger.tell(&own).await;
    assert_eq!(stranger.hear().await, Ok(own));
}

#[tokio::test]
async fn a_notice_that_is_longer_than_the_broker_takes_costs_the_others_nothing() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let notices = NoticeBoard::open(&lab.access(), &key(1)).await.unwrap();
    let told = |message| {
        Notice::Warned(NodeFailure {
            job: crate::lab::JOB,
            node: "n".into(),
            message,
        })
    };
    for message in ["x".repeat(2 << 20), "short".into()] {
        notices.tell(&told(message)).await;
    }
    assert_eq!(notices.hear().await, Ok(told("short".into())));
}

#[tokio::test]
async fn what_the_broker_loses_leaves_the_rest() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(LONG_LEASE).await;
    put_in_order(&head, (0..100).map(data)).await;
    let taken = next(&head).await;
    let stream = lab.context().await.get_stream(STREAM).await.unwrap();
    for number in (1..=100).step_by(3) {
        assert!(stream.delete_message(number).await.unwrap());
    }
    // This item was also deleted from the stream, which is harmless.
    head.done(taken).await.unwrap();
    let mut left = Vec::new();
    for _ in 0..66 {
        let taken = next(&head).await;
        left.push(taken.item.clone());
        head.done(taken).await.unwrap();
    }
    let expected: Vec<_> = (0..100)
        .filter(|number| number % 3 != 0)
        .map(data)
        .collect();
    assert_eq!(left, expected);
    assert!(head.waiting().await.unwrap() == 0);

    put_all(&head, (100..200).map(data)).await;
    stream.purge().await.unwrap();
    assert!(head.waiting().await.unwrap() == 0);
    put_all(&head, [data(200)]).await;
    assert_eq!(next(&head).await.item, data(200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_takers_lose_nothing() {
    let Some(lab) = Lab::start().await else {
        return;
    };
    let head = lab.head_with_lease(LONG_LEASE).await;
    let items: Vec<_> = (0..2000)
        .map(|number| {
            if number % 16 == 0 {
                walk(number)
            } else {
                data(number)
            }
        })
        .collect();
    let mut takers = Vec::new();
    for _ in 0..4 {
        let mover = Arc::new(lab.mover().await);
        takers.extend((0..4).map(|_| tokio::spawn(take_all(Arc::clone(&mover)))));
    }
    let began = Instant::now();
    put_all(&head, items.clone()).await;
    while head.waiting().await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        began.elapsed() < LONG_LEASE,
        "something waited for the end of a lease"
    );
    head.close().await.unwrap();
    let mut count: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for taker in takers {
        for item in taker.await.unwrap() {
            *count.entry(item.encode()).or_default() += 1;
        }
    }
    let expected: BTreeMap<_, _> = items.iter().map(|item| (item.encode(), 1)).collect();
    assert!(count.keys().eq(expected.keys()));
    println!(
        "{} items came more than once",
        count.values().filter(|times| **times > 1).count()
    );
}

/// A lease that is longer than any test.
const LONG_LEASE: Duration = Duration::from_secs(200);

async fn take_all(mover: Arc<JetStream>) -> Vec<WorkItem> {
    let mut items = Vec::new();
    while let Some(taken) = mover.take().await.unwrap() {
        items.push(taken.item.clone());
        mover.done(taken).await.unwrap();
    }
    items
}
