//! Runs sender and receiver in virtual time, over a seeded path that delays, reorders and damages data and loses lanes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::{Strategy, any, proptest};
use zmove_types::ItemId;

use super::{
    FinalReport, ItemReceipt, ReceivedItems, ReceiverAction, ReceiverTransfer, Resend,
    SenderTransfer, UnpublishedLoad,
};
use crate::error::WireError;
use crate::limits::{
    ITEMS_OUTSTANDING_MAX, RESENDS_MAX, UNPUBLISHED_ENTRIES_MAX, UNPUBLISHED_ITEMS_MAX,
    UNPUBLISHED_NAME_BYTES_MAX,
};
use crate::message::{Finished, StoredItem, ToReceiver, ToSender};

/// A packet in either direction, or an event of the path.
#[derive(Clone, Debug)]
enum Packet {
    Data {
        item: ItemId,
        damaged: bool,
    },
    /// The sender notices that the lane of this item was lost.
    LossSeen {
        item: ItemId,
    },
    /// The receiver has flushed the files of this item.
    Flushed {
        item: u64,
    },
    ToReceiver(ToReceiver),
    ToSender(ToSender),
}

/// A job to transfer, and the number of times that the path damages or loses it.
#[derive(Clone, Copy, Debug)]
struct Job {
    id: usize,
    damages: u8,
    delay: u64,
    losses: u8,
    /// Delay after which an item of a lost lane is still received, or `None` if it is lost.
    straggles: Option<u64>,
    /// For a batch: time from storing it to its flush.
    flush: Option<u64>,
}

impl Job {
    const EASY: Self = Self {
        id: 0,
        damages: 0,
        delay: 2,
        losses: 0,
        straggles: None,
        flush: None,
    };
    const BATCH: Self = Self {
        flush: Some(30),
        ..Self::EASY
    };

    fn final_report(&self) -> FinalReport {
        self.flush.map_or(FinalReport::Stored, |_| {
            FinalReport::Published(UnpublishedLoad {
                entries: 1,
                name_bytes: 2,
            })
        })
    }
}

/// Both ends and the path between them. The clock jumps to the time of the next packet.
#[derive(Default)]
struct Pair {
    now: u64,
    path: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    sender: SenderTransfer<Job>,
    receiver: ReceiverTransfer,
    arrivals: ReceivedItems,
    losses: BTreeMap<usize, u8>,
    lost: BTreeSet<ItemId>,
    /// Jobs by item number, which the receiver uses to look up an item's job.
    jobs: BTreeMap<u64, Job>,
    unflushed: BTreeSet<u64>,
    stored: Vec<usize>,
    delivered: Vec<usize>,
    given_up: Vec<usize>,
    finished_at: Option<u64>,
}

impl Pair {
    fn put(&mut self, delay: u64, packet: Packet) {
        self.sent += 1;
        self.path.insert((self.now + delay, self.sent), packet);
    }

    fn send_job(&mut self, job: Job, tries: u8) {
        let item = self.sender.issue(job, tries, job.final_report());
        self.jobs.insert(item.0, job);
        let data = Packet::Data {
            item,
            damaged: tries < job.damages,
        };
        let losses = self.losses.entry(job.id).or_default();
        if *losses < job.losses {
            *losses += 1;
            self.put(job.delay, Packet::LossSeen { item });
            if let Some(delay) = job.straggles {
                self.put(delay, data);
            }
        } else {
            self.put(job.delay, data);
        }
        self.sender.end();
    }

    fn announce(&mut self) {
        if let Some(message) = self.sender.announcement() {
            self.put(1, Packet::ToReceiver(message));
        }
    }

    fn drive(&mut self) {
        while let Some(((due, _), packet)) = self.path.pop_first() {
            self.now = due;
            match packet {
                Packet::Data { item, damaged } => {
                    self.arrive(item.0, damaged);
                }
                Packet::LossSeen { item } if self.sender.is_outstanding(item) => {
                    self.lost.insert(item);
                    self.put(
                        1,
                        Packet::ToReceiver(ToReceiver::LaneLost {
                            items: vec![item.0],
                        }),
                    );
                }
                Packet::LossSeen { .. } => {}
                Packet::ToReceiver(ToReceiver::LaneLost { items }) => {
                    items.into_iter().for_each(|item| self.arrive(item, true));
                }
                Packet::ToReceiver(ToReceiver::Announce { items, mismatches }) => {
                    self.receiver.announced(items, mismatches).unwrap();
                }
                Packet::Flushed { item } => self.publish(item),
                Packet::ToSender(ToSender::Stored(stored)) => {
                    stored.items.into_iter().for_each(|item| self.settle(&item));
                    self.announce();
                }
                Packet::ToSender(ToSender::Published { items }) => {
                    let published = items
                        .iter()
                        .map(|item| self.sender.published(ItemId(item.item)).unwrap().id);
                    self.delivered.extend(published);
                }
                Packet::ToSender(ToSender::Finished(_)) => {
                    assert!(self.sender.is_settled(), "the end before that")
                }
                other => panic!("{other:?} is not part of this test"),
            }
            self.drain_receiver();
        }
    }

    fn arrive(&mut self, item: u64, mismatch: bool) {
        if self.arrivals.insert(item).unwrap() {
            assert_eq!(self.finished_at, None, "data after the end");
            assert!(
                self.receiver
                    .settled(StoredItem {
                        item,
                        mismatch,
                        faults: vec![]
                    })
                    .unwrap()
            );
            if let Some(delay) = self.jobs[&item].flush.filter(|_| !mismatch) {
                self.unflushed.insert(item);
                self.put(delay, Packet::Flushed { item });
            }
        }
    }

    fn publish(&mut self, item: u64) {
        if self.unflushed.remove(&item) {
            self.receiver.published(item, vec![]);
        }
    }

    fn settle(&mut self, stored: &StoredItem) {
        let item = ItemId(stored.item);
        if !stored.mismatch {
            match self.sender.stored(item).unwrap() {
                ItemReceipt::Settled(job) => self.delivered.push(job.id),
                ItemReceipt::Unpublished(job) => self.stored.push(job.id),
            }
            return;
        }
        let lost = self.lost.remove(&item);
        let again = if lost {
            self.sender.lost(item)
        } else {
            self.sender.mismatch(item)
        };
        match again.unwrap() {
            Resend::Again { work, tries } => self.send_job(work, tries),
            Resend::GiveUp(work) => self.given_up.push(work.id),
        }
    }

    fn drain_receiver(&mut self) {
        while let Some(action) = self.receiver.poll().unwrap() {
            match action {
                ReceiverAction::Send(message) => self.put(3, Packet::ToSender(message)),
                ReceiverAction::Finish => {
                    self.finished_at = Some(self.now);
                    std::mem::take(&mut self.unflushed)
                        .into_iter()
                        .for_each(|item| self.receiver.published(item, vec![]));
                    while let Some(ReceiverAction::Send(message)) = self.receiver.poll().unwrap() {
                        self.put(3, Packet::ToSender(message));
                    }
                    self.put(3, Packet::ToSender(ToSender::Finished(Finished::default())));
                }
            }
        }
    }
}

fn run(jobs: &[Job], plan_ends_after: usize) -> Pair {
    let mut pair = Pair::default();
    for (index, &job) in jobs.iter().enumerate() {
        if index == plan_ends_after {
            pair.drive();
        }
        pair.sender.begin(1);
        pair.send_job(job, 0);
        pair.announce();
    }
    pair.sender.plan_ended();
    pair.announce();
    pair.drive();
    pair
}

#[test]
fn an_empty_transfer_finishes() {
    let pair = run(&[], 0);
    assert_eq!(pair.finished_at, Some(1));
    assert!(pair.sender.is_settled());
}

#[test]
fn announcement_may_arrive_before_the_data() {
    let pair = run(
        &[Job {
            delay: 50,
            ..Job::EASY
        }],
        1,
    );
    assert_eq!(pair.finished_at, Some(50));
}

#[test]
fn data_damaged_every_time_is_given_up() {
    let pair = run(
        &[
            Job {
                damages: u8::MAX,
                ..Job::EASY
            },
            Job {
                id: 1,
                damages: 1,
                ..Job::EASY
            },
        ],
        2,
    );
    assert_eq!(pair.given_up, [0]);
    assert_eq!(pair.delivered, [1]);
    assert!(pair.finished_at.is_some());
}

#[test]
fn what_is_lost_with_its_lane_is_never_given_up_for_that() {
    let lost = Job {
        losses: 9,
        ..Job::EASY
    };
    let both = Job {
        id: 1,
        straggles: Some(50),
        ..lost
    };
    let pair = run(&[lost, both], 2);
    assert_eq!((pair.delivered.len(), pair.given_up.len()), (2, 0));
}

#[test]
fn what_came_before_its_lane_was_lost_is_not_sent_again() {
    let pair = run(
        &[Job {
            delay: 9,
            losses: 1,
            straggles: Some(8),
            ..Job::EASY
        }],
        1,
    );
    assert_eq!(pair.jobs.len(), 1);
    assert_eq!((pair.delivered, pair.losses[&0]), (vec![0], 1));
}

#[test]
fn a_receipt_for_nothing_is_out_of_order() {
    let mut sender = SenderTransfer::<Job>::default();
    let error = WireError::OutOfOrder { what: "a receipt" };
    assert_eq!(sender.stored(ItemId(0)).unwrap_err(), error);
    assert_eq!(sender.mismatch(ItemId(5)).unwrap_err(), error);
}

#[test]
fn a_batch_is_settled_when_it_has_its_names_and_not_before() {
    let mut sender = SenderTransfer::<Job>::default();
    sender.begin(2);
    let batch = sender.issue(Job::BATCH, 0, Job::BATCH.final_report());
    let chunk = sender.issue(Job::EASY, 0, Job::EASY.final_report());
    let error = WireError::OutOfOrder { what: "a name" };
    assert_eq!(
        sender.published(batch).unwrap_err(),
        error,
        "it is not stored"
    );
    assert!(matches!(
        sender.stored(batch),
        Ok(ItemReceipt::Unpublished(_))
    ));
    assert!(matches!(sender.stored(chunk), Ok(ItemReceipt::Settled(_))));
    assert_eq!(
        sender.published(chunk).unwrap_err(),
        error,
        "nothing of it is published"
    );
    assert!(
        sender.stored(batch).is_err()
            && sender.mismatch(batch).is_err()
            && sender.lost(batch).is_err()
    );
    sender.end();
    sender.end();
    sender.plan_ended();
    assert_eq!(
        (
            sender.outstanding(),
            sender.unsettled().count(),
            sender.is_settled()
        ),
        (0, 1, false)
    );
    assert!(
        sender.announcement().is_some(),
        "the receiver is not waited for before the end is announced"
    );
    assert_eq!(sender.published(batch).unwrap().id, 0);
    assert!(sender.is_settled());
    assert_eq!(
        sender.published(batch).unwrap_err(),
        error,
        "it is published already"
    );
}

#[test]
fn what_is_stored_makes_room_on_the_way_and_what_is_published_in_memory() {
    let mut sender = SenderTransfer::<u64>::default();
    let fill = |sender: &mut SenderTransfer<u64>, load| {
        let mut items = Vec::new();
        while !sender.is_full() {
            items.push(sender.issue(0, 0, FinalReport::Published(load)));
            drop(sender.stored(*items.last().unwrap()).unwrap());
        }
        assert_eq!(sender.outstanding(), 0);
        let count = items.len() as u64;
        items
            .into_iter()
            .for_each(|item| assert_eq!(sender.published(item), Ok(0)));
        assert!(!sender.is_full());
        count
    };
    let (entries, name_bytes) = (
        UNPUBLISHED_ENTRIES_MAX / 100,
        UNPUBLISHED_NAME_BYTES_MAX / 100,
    );
    assert_eq!(
        fill(
            &mut sender,
            UnpublishedLoad {
                entries: entries + 1,
                name_bytes: 1
            }
        ),
        100
    );
    assert_eq!(
        fill(
            &mut sender,
            UnpublishedLoad {
                entries: 1,
                name_bytes: name_bytes + 1
            }
        ),
        100
    );
    assert_eq!(
        fill(
            &mut sender,
            UnpublishedLoad {
                entries: 1,
                name_bytes: 1
            }
        ),
        UNPUBLISHED_ITEMS_MAX
    );
    let sent: Vec<_> = (0..ITEMS_OUTSTANDING_MAX)
        .map(|_| sender.issue(0, 0, FinalReport::Stored))
        .collect();
    assert!(sender.is_full());
    assert!(matches!(
        sender.stored(sent[0]),
        Ok(ItemReceipt::Settled(0))
    ));
    assert!(!sender.is_full());
}

#[test]
fn what_does_not_come_is_not_remembered() {
    let mut sender = SenderTransfer::<u64>::default();
    let all = FinalReport::Published(UnpublishedLoad {
        entries: UNPUBLISHED_ENTRIES_MAX,
        name_bytes: 0,
    });
    for end in [SenderTransfer::mismatch, SenderTransfer::lost] {
        let item = sender.issue(0, 0, all);
        assert!(sender.is_full());
        drop(end(&mut sender, item).unwrap());
        assert!(!sender.is_full());
    }
}

#[test]
fn names_are_told_after_what_they_are_of_and_not_too_many_at_once() {
    let mut receiver = ReceiverTransfer::default();
    for item in 0..200 {
        receiver.published(item, vec![]);
        receiver
            .settled(StoredItem {
                item,
                mismatch: false,
                faults: vec![],
            })
            .unwrap();
    }
    let mut told = Vec::new();
    while let Some(ReceiverAction::Send(message)) = receiver.poll().unwrap() {
        told.push(match message {
            ToSender::Stored(stored) => ("stored", stored.items.len()),
            ToSender::Published { items } => ("published", items.len()),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(
        told,
        [
            ("stored", 128),
            ("stored", 72),
            ("published", 128),
            ("published", 72)
        ]
    );
}

#[test]
fn the_end_waits_for_no_names_but_comes_after_them() {
    let pair = run(
        &[
            Job::BATCH,
            Job {
                id: 1,
                flush: Some(9999),
                ..Job::EASY
            },
            Job { id: 2, ..Job::EASY },
        ],
        3,
    );
    assert_eq!(
        (pair.finished_at, pair.stored, pair.delivered),
        (Some(2), vec![0, 1], vec![2, 0, 1])
    );
}

#[test]
fn announcements_are_not_taken_back() {
    let mut receiver = ReceiverTransfer::default();
    receiver.announced(5, 0).unwrap();
    let error = Err(WireError::OutOfOrder {
        what: "an announcement",
    });
    assert_eq!(receiver.announced(4, 0), error);
    assert_eq!(receiver.announced(5, 1), error);
}

#[test]
fn more_items_than_announced_is_an_error() {
    let mut receiver = ReceiverTransfer::default();
    receiver
        .settled(StoredItem {
            item: 0,
            mismatch: false,
            faults: vec![],
        })
        .unwrap();
    receiver.announced(0, 0).unwrap();
    assert!(matches!(receiver.poll(), Ok(Some(ReceiverAction::Send(_)))));
    assert_eq!(
        receiver.poll(),
        Err(WireError::OutOfOrder {
            what: "an item after the last"
        })
    );
}

#[test]
fn an_item_that_comes_again_counts_once() {
    let mut receiver = ReceiverTransfer::default();
    let mut settle = |item, mismatch| {
        receiver.settled(StoredItem {
            item,
            mismatch,
            faults: vec![],
        })
    };
    let news: Vec<_> = [3, 1, 1, 2, 0, 3, 2, 5, 4, 0]
        .map(|item| settle(item, false).unwrap())
        .into();
    assert_eq!(
        news,
        [
            true, true, false, true, true, false, false, true, true, false
        ]
    );
    assert_eq!((settle(6, true), settle(6, false)), (Ok(true), Ok(false)));
    assert!(settle(u64::MAX, false).is_err());
    receiver.announced(7, 1).unwrap();
    let Ok(Some(ReceiverAction::Send(ToSender::Stored(stored)))) = receiver.poll() else {
        panic!("receipts")
    };
    assert_eq!(stored.items.len(), 7);
    assert_eq!(receiver.poll(), Ok(Some(ReceiverAction::Finish)));
}

#[test]
fn items_with_too_many_gaps_are_refused() {
    let mut receiver = ReceiverTransfer::default();
    let refused = (0..9999).find(|number| {
        receiver
            .settled(StoredItem {
                item: number * 2,
                mismatch: false,
                faults: vec![],
            })
            .is_err()
    });
    assert_eq!(refused, Some(ITEMS_OUTSTANDING_MAX as u64 + 1));
}

fn any_job() -> impl Strategy<Value = Job> {
    let straggles = proptest::option::of(1..200_u64);
    let flush = proptest::option::of(1..300_u64);
    (0..6_u8, 1..200_u64, 0..6_u8, straggles, flush).prop_map(
        |(damages, delay, losses, straggles, flush)| Job {
            id: 0,
            damages,
            delay,
            losses,
            straggles,
            flush,
        },
    )
}

proptest! {
    /// Regardless of the path's faults, each job is delivered or given up exactly once, and the transfer ends after all
    /// of them.
    #[test]
    fn every_job_ends_once(jobs in proptest::collection::vec(any_job(), 0..40), ends in any::<u8>()) {
        let jobs: Vec<_> = jobs.into_iter().enumerate()
            .map(|(id, job)| Job { id, ..job }).collect();
        let pair = run(&jobs, usize::from(ends) % (jobs.len() + 1));
        assert!(pair.finished_at.is_some() && pair.sender.is_settled());
        let mut ended = [pair.delivered.clone(), pair.given_up.clone()].concat();
        ended.sort_unstable();
        assert_eq!(ended, (0..jobs.len()).collect::<Vec<_>>());
        // If an item is damaged and its lane is lost too, the damage does not use up a try.
        assert!(jobs.iter().all(|job| !pair.given_up.contains(&job.id) || job.damages > RESENDS_MAX));
        let sure = jobs.iter().filter(|job| job.damages > RESENDS_MAX && job.straggles.is_none());
        assert!(sure.into_iter().all(|job| pair.given_up.contains(&job.id)));
    }
}
