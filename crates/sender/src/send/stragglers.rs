//! Chunks in flight: which lane has taken which, since when, and which are so late that another lane sends them again.
//!
//! At the end of a push lanes run out of work while a slow one still has some. A chunk that takes much longer there than
//! chunks usually do goes again, under the same item, on a lane that is idle; the receiver takes what comes first.
//! **Invariant:** a chunk is sent again at most once for being late, and only while no other work waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zmove_types::{FileId, GroupSpan, ItemId};

/// The chunks in flight with the time that each has taken so far; `F` is what is needed to read a file again.
#[derive(Debug)]
pub(crate) struct Stragglers<F> {
    state: Mutex<State<F>>,
    idle: AtomicUsize,
}

#[derive(Debug)]
struct State<F> {
    in_flight: HashMap<ItemId, ChunkInFlight<F>>,
    /// How long the last ones took, to their receipt.
    times: VecDeque<Duration>,
    /// What is to be read again, and under which item: one entry for each time that it was planned.
    again: Vec<(FileId, u32, ItemId)>,
    /// Items that have been sent again, or will be.
    repeated: HashSet<ItemId>,
    /// Lanes that have had a chunk of which there are two copies.
    twice: HashSet<usize>,
}

/// One chunk on a lane.
#[derive(Clone, Debug)]
pub(crate) struct ChunkInFlight<F> {
    pub(crate) lane: usize,
    pub(crate) id: FileId,
    pub(crate) file: F,
    pub(crate) span: GroupSpan,
    taken: Instant,
    /// The lane has handed it to what carries the lane.
    sent: bool,
}

impl<F> Default for Stragglers<F> {
    fn default() -> Self {
        let state = State {
            in_flight: HashMap::new(),
            times: VecDeque::new(),
            again: Vec::new(),
            repeated: HashSet::new(),
            twice: HashSet::new(),
        };
        Self { state: Mutex::new(state), idle: AtomicUsize::new(0) }
    }
}

impl<F: Clone> Stragglers<F> {
    /// A lane has taken a chunk; taken again by another lane it stays with the first, also when that has been settled.
    pub(crate) fn taken(
        &self,
        item: ItemId,
        lane: usize,
        (id, file): (FileId, F),
        span: GroupSpan,
        now: Instant,
    ) {
        let mut state = self.lock();
        if state.repeated.contains(&item) {
            state.twice.insert(lane);
        } else {
            state.in_flight.insert(item, ChunkInFlight { lane, id, file, span, taken: now, sent: false });
        }
    }

    /// The lane that took a chunk has nothing more to do with it, but perhaps its kernel has.
    pub(crate) fn sent(&self, item: ItemId, lane: usize) {
        if let Some(chunk) = self.lock().in_flight.get_mut(&item) {
            chunk.sent |= chunk.lane == lane;
        }
    }

    /// The receiver has settled an item.
    pub(crate) fn settled(&self, item: ItemId, now: Instant) {
        let mut state = self.lock();
        if let Some(chunk) = state.in_flight.remove(&item) {
            if state.times.len() == TIMES_MAX {
                state.times.pop_front();
            }
            state.times.push_back(now - chunk.taken);
        }
    }

    /// Waits as an idle lane.
    pub(crate) fn while_idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.idle.fetch_add(1, Ordering::Relaxed);
        let waited = wait();
        self.idle.fetch_sub(1, Ordering::Relaxed);
        waited
    }

    /// Chooses what idle lanes should send again, the latest first; `stuck` says of a lane whether something that
    /// it has sent has not arrived.
    pub(crate) fn late(&self, now: Instant, stuck: impl Fn(usize) -> bool) -> Vec<ChunkInFlight<F>> {
        let idle = self.idle.load(Ordering::Relaxed);
        let mut state = self.lock();
        let Some(usual) = state.usual_time().filter(|_| idle > 0) else { return Vec::new() };
        let is_late = |chunk: &ChunkInFlight<F>| now - chunk.taken > usual.mul_f64(LATE_RATIO) + LATE_MIN;
        let late =
            state.in_flight.iter().filter(|(item, chunk)| !state.repeated.contains(item) && is_late(chunk));
        let mut late: Vec<_> =
            late.filter(|(_, chunk)| !chunk.sent || stuck(chunk.lane)).map(|(item, _)| *item).collect();
        late.sort_unstable_by_key(|item| state.in_flight[item].taken);
        late.truncate(idle);
        late.into_iter().filter_map(|item| state.repeat(item)).collect()
    }

    /// The item under which this group was to be read again, as often as that was planned.
    pub(crate) fn item_again(&self, id: FileId, span: GroupSpan) -> Option<ItemId> {
        let mut state = self.lock();
        let planned = state.again.iter().position(|(file, index, _)| (*file, *index) == (id, span.index))?;
        let (.., item) = state.again.swap_remove(planned);
        Some(item)
    }

    /// Whether a chunk has no receipt yet.
    pub(crate) fn is_in_flight(&self, item: ItemId) -> bool {
        self.lock().in_flight.contains_key(&item)
    }

    /// Lanes that have had a chunk which another had as well. In the end what they still hold is not needed: it may be the copy
    /// that did not come first, of which the receiver says nothing.
    pub(crate) fn lanes_with_copies(&self) -> HashSet<usize> {
        self.lock().twice.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Clone> State<F> {
    /// The median of the last times; a slow lane's few do not change it.
    fn usual_time(&self) -> Option<Duration> {
        let mut times: Vec<_> = self.times.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    fn repeat(&mut self, item: ItemId) -> Option<ChunkInFlight<F>> {
        let chunk = self.in_flight.get(&item)?.clone();
        self.repeated.insert(item);
        self.twice.insert(chunk.lane);
        self.again.push((chunk.id, chunk.span.index, item));
        Some(chunk)
    }
}

const TIMES_MAX: usize = 32;
/// A chunk is late when it takes so many times as long as usual,
const LATE_RATIO: f64 = 1.5;
/// and this much more.
const LATE_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// Two lanes; the first needs a second for a chunk. The other has taken chunk 9 when this begins.
    fn stragglers(start: Instant) -> Stragglers<()> {
        let stragglers = Stragglers::default();
        for number in 0..9 {
            let taken = start + Duration::from_secs(number);
            stragglers.taken(ItemId(number), 0, (FileId(1), ()), span(number), taken);
            stragglers.settled(ItemId(number), taken + Duration::from_secs(1));
        }
        stragglers.taken(ItemId(9), 1, (FileId(1), ()), span(9), start);
        stragglers.sent(ItemId(9), 1);
        stragglers
    }

    fn span(index: u64) -> GroupSpan {
        GroupSpan { index: u32::try_from(index).unwrap(), len: 1 }
    }

    fn late(stragglers: &Stragglers<()>, now: Instant, stuck: bool) -> Vec<usize> {
        stragglers.while_idle(|| stragglers.late(now, |_| stuck)).iter().map(|chunk| chunk.lane).collect()
    }

    #[test]
    fn what_is_late_goes_again_once_and_under_its_item() {
        let start = Instant::now();
        let stragglers = stragglers(start);
        assert!(late(&stragglers, start + Duration::from_millis(1500), true).is_empty(), "not late");
        let now = start + Duration::from_secs(3);
        assert!(stragglers.late(now, |_| true).is_empty(), "no lane is idle");
        assert!(late(&stragglers, now, false).is_empty(), "it has arrived");
        assert_eq!(late(&stragglers, now, true), [1]);
        assert!(late(&stragglers, now, true).is_empty(), "once");
        assert_eq!(stragglers.item_again(FileId(1), span(9)), Some(ItemId(9)));
        assert_eq!(stragglers.item_again(FileId(1), span(9)), None);
        assert_eq!(stragglers.lanes_with_copies(), HashSet::from([1]));
    }

    #[test]
    fn a_chunk_that_its_lane_is_still_sending_has_not_arrived() {
        let start = Instant::now();
        let stragglers = stragglers(start);
        stragglers.taken(ItemId(10), 1, (FileId(1), ()), span(10), start);
        stragglers.sent(ItemId(10), 0);
        assert_eq!(late(&stragglers, start + Duration::from_secs(3), false), [1]);
    }

    #[test]
    fn a_chunk_taken_again_stays_late_until_it_is_settled() {
        let start = Instant::now();
        let stragglers = stragglers(start);
        let now = start + Duration::from_secs(3);
        assert_eq!(late(&stragglers, now, true), [1]);
        let again = || stragglers.taken(ItemId(9), 0, (FileId(1), ()), span(9), now);
        again();
        assert!(stragglers.is_in_flight(ItemId(9)));
        assert_eq!(stragglers.lanes_with_copies(), HashSet::from([0, 1]), "either may be the slow one");
        stragglers.settled(ItemId(9), start + Duration::from_secs(10));
        stragglers.settled(ItemId(9), start + Duration::from_secs(11));
        again();
        assert!(!stragglers.is_in_flight(ItemId(9)), "the copy that comes after the receipt is nobody's");
    }

    #[test]
    fn a_group_that_is_planned_twice_is_read_again_twice() {
        let start = Instant::now();
        let stragglers = stragglers(start);
        stragglers.taken(ItemId(10), 1, (FileId(1), ()), span(9), start);
        let now = start + Duration::from_secs(3);
        let planned: Vec<_> = (0..2).flat_map(|_| late(&stragglers, now, true)).collect();
        assert_eq!(planned, [1, 1]);
        let mut items: Vec<_> = (0..2).filter_map(|_| stragglers.item_again(FileId(1), span(9))).collect();
        items.sort_unstable();
        assert_eq!((items, stragglers.item_again(FileId(1), span(9))), (vec![ItemId(9), ItemId(10)], None));
    }

    #[test]
    fn nothing_is_late_before_anything_has_been_settled() {
        let start = Instant::now();
        let stragglers = Stragglers::default();
        stragglers.taken(ItemId(0), 0, (FileId(1), ()), span(0), start);
        assert!(late(&stragglers, start + Duration::from_secs(99), true).is_empty());
    }
}
