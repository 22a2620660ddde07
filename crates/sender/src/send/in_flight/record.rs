//! The record of each item in flight: its work, which lanes have taken it and when, and whether it is sent twice.
//!
//! At the end of a push, lanes run out of work while a slow lane still has some. A chunk is late if it has been in
//! flight for 1.5 times the usual time plus 100 ms. The usual time is the median of the most recent chunks. If the lane
//! is still sending the late chunk, or the lane's kernel still holds data, the chunk is read again and sent under the
//! same item on an idle lane. The receiver counts an item once, whichever copy arrives first. At the very end, the
//! lanes that took either copy are cut, because one of them may still hold the second copy.
//!
//! **Invariant:** a chunk is sent again at most once for being late, and only while no other work waits. An item is
//! lost when every lane that has taken it is lost, and it is reported as lost once.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use zmove_types::{FileId, ItemId};
use zmove_wire::WireError;
use zmove_wire::session::{FinalReport, ItemReceipt, Resend, SenderTransfer};

/// All items in flight. `W` is the work, with everything needed to send it again.
#[derive(Debug)]
pub(super) struct Record<W> {
    pub(super) transfer: SenderTransfer<Item<W>>,
    /// Number of items that at least one lane has taken.
    on_lanes: usize,
    /// The time of the latest progress. Progress is made when an item settles, when lanes wait for a rate limit, or
    /// when a lane takes an item while no other item is on a lane. The time is also reset when a lane is reported as
    /// doubtful.
    last: Option<Instant>,
    /// The durations of the most recent chunks, each from the time at which a lane took the chunk to its receipt.
    times: VecDeque<Duration>,
    /// Groups to be read again, each with the item under which it is sent. There is one element for each planned
    /// repetition.
    again: Vec<PendingRepeat>,
    /// Lanes that have taken a chunk that was sent twice.
    twice: HashSet<usize>,
}

/// One item in flight.
#[derive(Debug)]
pub(super) struct Item<W> {
    pub(super) work: W,
    /// The group that the item carries. `None` if the item is not a chunk.
    group: Option<GroupId>,
    /// The lanes that have taken the item while it has no receipt. There are two lanes if the first lane was slow.
    lanes: Vec<usize>,
    /// The first copy of a chunk. `None` if the item is not a chunk or no lane has taken it.
    first: Option<FirstCopy>,
    /// Whether the item was sent again because it was late, or will be.
    repeated: bool,
    /// Whether all lanes that have taken the item are lost.
    lost: bool,
}

/// The first copy of a chunk. A second copy is sent if the first copy is late.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstCopy {
    pub(super) lane: usize,
    taken: Instant,
    /// Whether the lane has passed the copy to its kernel or to QUIC.
    pub(super) handed_on: bool,
}

#[derive(Debug)]
struct PendingRepeat {
    group: GroupId,
    item: ItemId,
}

/// A group, identified by its file and its index in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupId {
    pub(super) file: FileId,
    pub(super) index: u32,
}

impl<W> Default for Record<W> {
    fn default() -> Self {
        Self {
            transfer: SenderTransfer::default(),
            on_lanes: 0,
            last: None,
            times: VecDeque::new(),
            again: Vec::new(),
            twice: HashSet::new(),
        }
    }
}

impl<W> Record<W> {
    /// Records work as in flight. `group` is set if the work is a chunk.
    pub(super) fn issue(
        &mut self,
        work: W,
        group: Option<GroupId>,
        tries: u8,
        last_word: FinalReport,
    ) -> ItemId {
        let item = Item {
            work,
            group,
            lanes: Vec::new(),
            first: None,
            repeated: false,
            lost: false,
        };
        self.transfer.issue(item, tries, last_word)
    }

    /// Records that a lane has taken an item. A repeated chunk remains recorded under its first lane. Returns whether
    /// the item is still in flight. A copy of a settled item must not be sent, because it would get no receipt.
    pub(super) fn note_taken(&mut self, item: ItemId, lane: usize, now: Instant) -> bool {
        let Some(item) = self.transfer.outstanding_mut(item) else {
            self.last = Some(now);
            return false;
        };
        if self.on_lanes == 0 {
            self.last = Some(now);
        }
        self.on_lanes += usize::from(item.lanes.is_empty());
        item.lanes.push(lane);
        if item.repeated {
            self.twice.insert(lane);
        } else if item.group.is_some() {
            item.first = Some(FirstCopy {
                lane,
                taken: now,
                handed_on: false,
            });
        }
        true
    }

    /// Records that a lane has passed a chunk to its kernel. The kernel may still hold the chunk.
    pub(super) fn note_handed_on(&mut self, item: ItemId, lane: usize) {
        let first = self
            .transfer
            .outstanding_mut(item)
            .and_then(|item| item.first.as_mut());
        if let Some(first) = first.filter(|first| first.lane == lane) {
            first.handed_on = true;
        }
    }

    /// Settles an item that the receiver has stored.
    pub(super) fn stored(
        &mut self,
        item: ItemId,
        now: Instant,
    ) -> Result<ItemReceipt<'_, Item<W>>, WireError> {
        self.settle(item, now);
        self.transfer.stored(item)
    }

    /// Settles an item that the receiver found damaged, or that the receiver confirmed as lost after the sender had
    /// reported the loss of its lane.
    pub(super) fn mismatch(
        &mut self,
        item: ItemId,
        now: Instant,
    ) -> Result<Mismatch<W>, WireError> {
        let lost = self.settle(item, now);
        let resend = if lost {
            self.transfer.lost(item)?
        } else {
            self.transfer.mismatch(item)?
        };
        let resend = match resend {
            Resend::Again { work: item, tries } => Resend::Again {
                work: item.work,
                tries,
            },
            Resend::GiveUp(item) => Resend::GiveUp(item.work),
        };
        Ok(Mismatch { lost, resend })
    }

    /// Records that the receiver has reported on an item. Returns whether the item was lost with its lane.
    fn settle(&mut self, item: ItemId, now: Instant) -> bool {
        self.last = Some(now);
        let Some(item) = self.transfer.outstanding_mut(item) else {
            return false;
        };
        self.on_lanes -= usize::from(!item.lanes.is_empty());
        item.lanes.clear();
        if let Some(first) = item.first.take() {
            if self.times.len() == TIMES_MAX {
                self.times.pop_front();
            }
            self.times.push_back(now - first.taken);
        }
        item.lost
    }

    /// Records that lanes send as fast as the rate limit allows. Work that the rate limit delays is neither late nor
    /// lost.
    pub(super) fn note_progress(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Returns the lane with the oldest item in flight if nothing has settled for `DOUBT_AFTER`. Frames of this lane
    /// may be lost, so that the receiver waits for bytes that nobody will send. If the lane is only slow, giving it up
    /// merely costs a connection.
    pub(super) fn doubtful(&mut self, now: Instant) -> Option<usize> {
        if now.saturating_duration_since(self.last?) < DOUBT_AFTER {
            return None;
        }
        let on_lanes = self
            .transfer
            .outstanding_items()
            .filter(|(_, item)| !item.lanes.is_empty());
        let (_, oldest) = on_lanes.min_by_key(|(number, _)| *number)?;
        let lane = oldest.lanes.first().copied()?;
        self.last = Some(now);
        Some(lane)
    }

    /// Records that a lane is lost. Returns the items that no other lane has taken.
    pub(super) fn lose_lane(&mut self, lane: usize) -> Vec<ItemId> {
        let mut lost = Vec::new();
        for (number, item) in self.transfer.outstanding_items_mut() {
            if !item.lanes.contains(&lane) {
                continue;
            }
            item.lanes.retain(|other| *other != lane);
            if item.lanes.is_empty() {
                item.lost = true;
                lost.push(number);
            }
        }
        self.on_lanes -= lost.len();
        lost
    }

    /// Returns the late chunks that have not been sent again. The chunk that has been late for longest is first.
    pub(super) fn late(&self, now: Instant) -> Vec<(ItemId, FirstCopy)> {
        let Some(usual) = self.usual_time() else {
            return Vec::new();
        };
        let is_late = |first: &FirstCopy| now - first.taken > usual.mul_f64(LATE_RATIO) + LATE_MIN;
        let once = self
            .transfer
            .outstanding_items()
            .filter(|(_, item)| !item.repeated);
        let chunks = once.filter_map(|(number, item)| Some((number, item.first?)));
        let mut late: Vec<_> = chunks.filter(|(_, first)| is_late(first)).collect();
        late.sort_unstable_by_key(|(_, first)| first.taken);
        late
    }

    /// Plans to send a late chunk again, when its group is next taken from the plan. Returns the chunk's work, or
    /// `None` if the chunk is no longer in flight.
    pub(super) fn repeat(&mut self, item: ItemId) -> Option<&W> {
        let record = self.transfer.outstanding_mut(item)?;
        let lane = record.first?.lane;
        let group = record.group?;
        record.repeated = true;
        self.twice.insert(lane);
        self.again.push(PendingRepeat { group, item });
        Some(&record.work)
    }

    /// Returns the item under which this group is to be read again. Each planned repetition is returned once.
    pub(super) fn item_to_repeat(&mut self, group: GroupId) -> Option<ItemId> {
        let planned = self.again.iter().position(|again| again.group == group)?;
        Some(self.again.swap_remove(planned).item)
    }

    /// Returns the lanes that have taken a chunk which another lane has taken as well. At the end, the data that these
    /// lanes still hold is not needed. It may be the second copy of a chunk, which gets no receipt.
    pub(super) fn lanes_with_copies(&self) -> HashSet<usize> {
        self.twice.clone()
    }

    /// Returns the median duration of recent chunks. A slow lane contributes only a few durations, which do not affect
    /// the median.
    fn usual_time(&self) -> Option<Duration> {
        let mut times: Vec<_> = self.times.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }
}

/// An item that has arrived damaged or was lost, with the information needed to send it again.
#[derive(Debug)]
pub(crate) struct Mismatch<W> {
    /// Whether the item was lost with its lane.
    pub(crate) lost: bool,
    pub(crate) resend: Resend<W>,
}

const TIMES_MAX: usize = 32;
/// Factor by which a chunk must exceed the usual duration to be late. `LATE_MIN` is added to the result.
const LATE_RATIO: f64 = 1.5;
/// Minimum time by which a late chunk exceeds `LATE_RATIO` times the usual duration.
const LATE_MIN: Duration = Duration::from_millis(100);
/// Time without any receipt after which a lane is reported as doubtful. Storage rarely takes this long.
const DOUBT_AFTER: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a record of `count` items. The work of each item is its group.
    fn issued(count: u32) -> Record<GroupId> {
        let mut record = Record::default();
        for index in 0..count {
            let chunk = Some(group(index));
            assert_eq!(
                record.issue(group(index), chunk, 0, FinalReport::Stored),
                ItemId(u64::from(index))
            );
        }
        record
    }

    fn group(index: u32) -> GroupId {
        GroupId {
            file: FileId(1),
            index,
        }
    }

    fn settle(record: &mut Record<GroupId>, item: u64, now: Instant) {
        // A settled item gets no second receipt.
        let _settled = record.stored(ItemId(item), now);
    }

    /// Returns a record with two lanes. The first lane takes a second per chunk. The second lane has taken chunk 9 at
    /// `start`.
    fn stragglers(start: Instant) -> Record<GroupId> {
        let mut record = issued(11);
        for number in 0..9 {
            let taken = start + Duration::from_secs(number);
            record.note_taken(ItemId(number), 0, taken);
            settle(&mut record, number, taken + Duration::from_secs(1));
        }
        record.note_taken(ItemId(9), 1, start);
        record.note_handed_on(ItemId(9), 1);
        record
    }

    /// Repeats one late chunk and returns its lane. If the lane has handed on the chunk, the chunk is late only if
    /// `stuck` is set.
    fn late(record: &mut Record<GroupId>, now: Instant, stuck: bool) -> Vec<usize> {
        let late = record
            .late(now)
            .into_iter()
            .filter(|(_, first)| !first.handed_on || stuck)
            .take(1);
        late.filter_map(|(item, first)| record.repeat(item).map(|_| first.lane))
            .collect()
    }

    #[test]
    fn what_is_late_goes_again_once_and_under_its_item() {
        let start = Instant::now();
        let mut record = stragglers(start);
        assert!(
            late(&mut record, start + Duration::from_millis(1500), true).is_empty(),
            "not late"
        );
        let now = start + Duration::from_secs(3);
        assert!(late(&mut record, now, false).is_empty(), "it has arrived");
        assert_eq!(late(&mut record, now, true), [1]);
        assert!(late(&mut record, now, true).is_empty(), "once");
        assert_eq!(record.item_to_repeat(group(9)), Some(ItemId(9)));
        assert_eq!(record.item_to_repeat(group(9)), None);
        assert_eq!(record.lanes_with_copies(), HashSet::from([1]));
    }

    #[test]
    fn a_chunk_that_its_lane_is_still_sending_has_not_arrived() {
        let start = Instant::now();
        let mut record = stragglers(start);
        record.note_taken(ItemId(10), 1, start);
        record.note_handed_on(ItemId(10), 0);
        assert_eq!(
            late(&mut record, start + Duration::from_secs(3), false),
            [1]
        );
    }

    #[test]
    fn a_chunk_taken_again_stays_late_until_it_is_settled() {
        let start = Instant::now();
        let mut record = stragglers(start);
        let now = start + Duration::from_secs(3);
        assert_eq!(late(&mut record, now, true), [1]);
        assert!(record.note_taken(ItemId(9), 0, now));
        assert_eq!(
            record.lanes_with_copies(),
            HashSet::from([0, 1]),
            "either may be the slow one"
        );
        settle(&mut record, 9, start + Duration::from_secs(10));
        settle(&mut record, 9, start + Duration::from_secs(11));
        let again = record.note_taken(ItemId(9), 0, now);
        assert!(!again, "the copy that comes after the receipt is nobody's");
    }

    #[test]
    fn a_group_that_is_planned_twice_is_read_again_twice() {
        let start = Instant::now();
        let mut record = issued(9);
        for number in 0..9 {
            let taken = start + Duration::from_secs(number);
            record.note_taken(ItemId(number), 0, taken);
            settle(&mut record, number, taken + Duration::from_secs(1));
        }
        for item in [9, 10] {
            assert_eq!(
                record.issue(group(9), Some(group(9)), 0, FinalReport::Stored),
                ItemId(item)
            );
            record.note_taken(ItemId(item), 1, start);
        }
        let now = start + Duration::from_secs(3);
        let planned: Vec<_> = (0..2).flat_map(|_| late(&mut record, now, true)).collect();
        assert_eq!(planned, [1, 1]);
        let mut items: Vec<_> = (0..2)
            .filter_map(|_| record.item_to_repeat(group(9)))
            .collect();
        items.sort_unstable();
        assert_eq!(
            (items, record.item_to_repeat(group(9))),
            (vec![ItemId(9), ItemId(10)], None)
        );
    }

    #[test]
    fn nothing_is_late_before_anything_has_been_settled() {
        let start = Instant::now();
        let mut record = issued(1);
        record.note_taken(ItemId(0), 0, start);
        assert!(late(&mut record, start + Duration::from_secs(99), true).is_empty());
    }

    #[test]
    fn a_lane_is_doubted_when_nothing_is_settled_for_long() {
        let mut record = issued(8);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(record.doubtful(at(99)), None, "no lane has anything");
        record.note_taken(ItemId(5), 1, at(100));
        record.note_taken(ItemId(6), 2, at(110));
        settle(&mut record, 7, at(111));
        assert_eq!(record.doubtful(at(140)), None);
        assert_eq!(record.doubtful(at(141)), Some(1));
        assert_eq!(record.doubtful(at(142)), None, "one after the other");
        record.lose_lane(1);
        assert_eq!(record.doubtful(at(171)), Some(2));
    }

    /// At 100 kB per second a chunk takes 42 s.
    #[test]
    fn a_lane_that_waits_for_a_rate_is_not_doubted() {
        let mut record = issued(1);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        record.note_taken(ItemId(0), 0, start);
        record.note_progress(at(20));
        assert_eq!(record.doubtful(at(49)), None);
        assert_eq!(record.doubtful(at(50)), Some(0));
    }

    #[test]
    fn what_two_lanes_have_is_lost_with_the_second() {
        let mut record = issued(5);
        let now = Instant::now();
        for (item, lane) in [(1, 0), (2, 0), (2, 1), (3, 1), (4, 0)] {
            record.note_taken(ItemId(item), lane, now);
        }
        assert!(!record.mismatch(ItemId(4), now).unwrap().lost);
        assert_eq!(record.lose_lane(0), [ItemId(1)]);
        let mut lost = record.lose_lane(1);
        lost.sort_unstable();
        assert_eq!(lost, [ItemId(2), ItemId(3)]);
        assert_eq!(record.lose_lane(1), []);
        assert!(record.mismatch(ItemId(2), now).unwrap().lost);
        assert!(record.mismatch(ItemId(2), now).is_err(), "it is told once");
    }
}
