//! The pair in virtual time: a seeded path that delays, reorders and damages what it carries.

use std::collections::BTreeMap;

use proptest::prelude::{Strategy, any, proptest};
use zmove_types::ItemId;

use super::{ReceiverAction, ReceiverTransfer, Resend, SenderTransfer};
use crate::error::WireError;
use crate::limits::RESENDS_MAX;
use crate::message::{StoredItem, ToReceiver, ToSender};

/// What travels, either way.
#[derive(Clone, Debug)]
enum Packet {
    Data { item: ItemId, damaged: bool },
    ToReceiver(ToReceiver),
    ToSender(ToSender),
}

/// One job to move, and how often the path damages it.
#[derive(Clone, Copy, Debug)]
struct Job {
    id: usize,
    damages: u8,
    delay: u64,
}

/// Both ends and the path between, with a clock that only jumps to the next arrival.
#[derive(Default)]
struct Pair {
    now: u64,
    path: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    sender: SenderTransfer<Job>,
    receiver: ReceiverTransfer,
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
        let item = self.sender.issue(job, tries);
        self.put(job.delay, Packet::Data { item, damaged: tries < job.damages });
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
                    assert_eq!(self.finished_at, None, "data after the end");
                    let item = item.0;
                    self.receiver.settled(StoredItem { item, mismatch: damaged, faults: vec![] }).unwrap();
                }
                Packet::ToReceiver(ToReceiver::Announce { items, mismatches }) => {
                    self.receiver.announced(items, mismatches).unwrap();
                }
                Packet::ToSender(ToSender::Stored(stored)) => {
                    stored.items.into_iter().for_each(|item| self.settle(&item));
                    self.announce();
                }
                other => panic!("{other:?} is not part of this test"),
            }
            self.drain_receiver();
        }
    }

    fn settle(&mut self, stored: &StoredItem) {
        let item = ItemId(stored.item);
        if !stored.mismatch {
            self.delivered.push(self.sender.stored(item).unwrap().id);
            return;
        }
        match self.sender.mismatch(item).unwrap() {
            Resend::Again { work, tries } => self.send_job(work, tries),
            Resend::GiveUp(work) => self.given_up.push(work.id),
        }
    }

    fn drain_receiver(&mut self) {
        while let Some(action) = self.receiver.poll().unwrap() {
            match action {
                ReceiverAction::Send(message) => self.put(3, Packet::ToSender(message)),
                ReceiverAction::Finish => self.finished_at = Some(self.now),
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
    let pair = run(&[Job { id: 0, damages: 0, delay: 50 }], 1);
    assert_eq!(pair.finished_at, Some(50));
}

#[test]
fn data_damaged_every_time_is_given_up() {
    let pair = run(&[Job { id: 0, damages: u8::MAX, delay: 2 }, Job { id: 1, damages: 1, delay: 2 }], 2);
    assert_eq!(pair.given_up, [0]);
    assert_eq!(pair.delivered, [1]);
    assert!(pair.finished_at.is_some());
}

#[test]
fn a_receipt_for_nothing_is_out_of_order() {
    let mut sender = SenderTransfer::<Job>::default();
    let error = WireError::OutOfOrder { what: "a receipt" };
    assert_eq!(sender.stored(ItemId(0)).unwrap_err(), error);
    assert_eq!(sender.mismatch(ItemId(5)).unwrap_err(), error);
}

#[test]
fn announcements_are_not_taken_back() {
    let mut receiver = ReceiverTransfer::default();
    receiver.announced(5, 0).unwrap();
    let error = Err(WireError::OutOfOrder { what: "an announcement" });
    assert_eq!(receiver.announced(4, 0), error);
    assert_eq!(receiver.announced(5, 1), error);
}

#[test]
fn more_items_than_announced_is_an_error() {
    let mut receiver = ReceiverTransfer::default();
    receiver.settled(StoredItem { item: 0, mismatch: false, faults: vec![] }).unwrap();
    receiver.announced(0, 0).unwrap();
    assert!(matches!(receiver.poll(), Ok(Some(ReceiverAction::Send(_)))));
    assert_eq!(receiver.poll(), Err(WireError::OutOfOrder { what: "an item after the last" }));
}

#[test]
fn an_item_that_comes_again_counts_once() {
    let mut receiver = ReceiverTransfer::default();
    let mut settle = |item, mismatch| receiver.settled(StoredItem { item, mismatch, faults: vec![] });
    let news: Vec<_> = [3, 1, 1, 2, 0, 3, 2, 5, 4, 0].map(|item| settle(item, false).unwrap()).into();
    assert_eq!(news, [true, true, false, true, true, false, false, true, true, false]);
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
        receiver.settled(StoredItem { item: number * 2, mismatch: false, faults: vec![] }).is_err()
    });
    assert_eq!(refused, Some(crate::limits::ITEMS_OUTSTANDING_MAX as u64 + 1));
}

fn any_job() -> impl Strategy<Value = (u8, u64)> {
    (0..6_u8, 1..200_u64)
}

proptest! {
    /// Whatever the path does, each job is delivered once or given up, and the end comes after all of them.
    #[test]
    fn every_job_ends_once(jobs in proptest::collection::vec(any_job(), 0..40), ends in any::<u8>()) {
        let jobs: Vec<_> = jobs.into_iter().enumerate()
            .map(|(id, (damages, delay))| Job { id, damages, delay }).collect();
        let pair = run(&jobs, usize::from(ends) % (jobs.len() + 1));
        assert!(pair.finished_at.is_some() && pair.sender.is_settled());
        let mut ended = [pair.delivered.clone(), pair.given_up.clone()].concat();
        ended.sort_unstable();
        assert_eq!(ended, (0..jobs.len()).collect::<Vec<_>>());
        assert!(jobs.iter().all(|job| pair.given_up.contains(&job.id) == (job.damages > RESENDS_MAX)));
    }
}
