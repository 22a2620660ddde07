//! Chunks on their way: which lane has taken which, since when, and which are so late that another lane sends them again.
//!
//! At the end of a push lanes run out of work while a slow one still has some. A chunk that takes much longer there than
//! chunks usually do goes again, under the same item, on a lane that is idle; the receiver takes what comes first.
//! **Invariant:** a chunk is sent again at most once for being late, and only while no other work waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zmove_types::{FileId, GroupSpan, ItemId};

/// See the module; `F` is what is needed to read a file again.
#[derive(Debug)]
pub(crate) struct Flights<F> {
    state: Mutex<State<F>>,
    idle: AtomicUsize,
}

#[derive(Debug)]
struct State<F> {
    under_way: HashMap<ItemId, Flight<F>>,
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
pub(crate) struct Flight<F> {
    pub(crate) lane: usize,
    pub(crate) id: FileId,
    pub(crate) file: F,
    pub(crate) span: GroupSpan,
    taken: Instant,
    /// The lane has handed it to what carries the lane.
    sent: bool,
}

impl<F> Default for Flights<F> {
    fn default() -> Self {
        let state = State {
            under_way: HashMap::new(),
            times: VecDeque::new(),
            again: Vec::new(),
            repeated: HashSet::new(),
            twice: HashSet::new(),
        };
        Self { state: Mutex::new(state), idle: AtomicUsize::new(0) }
    }
}

impl<F: Clone> Flights<F> {
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
            state.under_way.insert(item, Flight { lane, id, file, span, taken: now, sent: false });
        }
    }

    /// The lane that took a chunk has nothing more to do with it, but perhaps its kernel has.
    pub(crate) fn sent(&self, item: ItemId, lane: usize) {
        if let Some(flight) = self.lock().under_way.get_mut(&item) {
            flight.sent |= flight.lane == lane;
        }
    }

    /// The receiver has settled an item.
    pub(crate) fn settled(&self, item: ItemId, now: Instant) {
        let mut state = self.lock();
        if let Some(flight) = state.under_way.remove(&item) {
            if state.times.len() == TIMES_MAX {
                state.times.pop_front();
            }
            state.times.push_back(now - flight.taken);
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
    pub(crate) fn late(&self, now: Instant, stuck: impl Fn(usize) -> bool) -> Vec<Flight<F>> {
        let idle = self.idle.load(Ordering::Relaxed);
        let mut state = self.lock();
        let Some(usual) = state.usual_time().filter(|_| idle > 0) else { return Vec::new() };
        let is_late = |flight: &Flight<F>| now - flight.taken > usual.mul_f64(LATE_RATIO) + LATE_MIN;
        let late =
            state.under_way.iter().filter(|(item, flight)| !state.repeated.contains(item) && is_late(flight));
        let mut late: Vec<_> =
            late.filter(|(_, flight)| !flight.sent || stuck(flight.lane)).map(|(item, _)| *item).collect();
        late.sort_unstable_by_key(|item| state.under_way[item].taken);
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
    pub(crate) fn is_under_way(&self, item: ItemId) -> bool {
        self.lock().under_way.contains_key(&item)
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

    fn repeat(&mut self, item: ItemId) -> Option<Flight<F>> {
        let flight = self.under_way.get(&item)?.clone();
        self.repeated.insert(item);
        self.twice.insert(flight.lane);
        self.again.push((flight.id, flight.span.index, item));
        Some(flight)
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
    fn flights(start: Instant) -> Flights<()> {
        let flights = Flights::default();
        for number in 0..9 {
            let taken = start + Duration::from_secs(number);
            flights.taken(ItemId(number), 0, (FileId(1), ()), span(number), taken);
            flights.settled(ItemId(number), taken + Duration::from_secs(1));
        }
        flights.taken(ItemId(9), 1, (FileId(1), ()), span(9), start);
        flights.sent(ItemId(9), 1);
        flights
    }

    fn span(index: u64) -> GroupSpan {
        GroupSpan { index: u32::try_from(index).unwrap(), len: 1 }
    }

    fn late(flights: &Flights<()>, now: Instant, stuck: bool) -> Vec<usize> {
        flights.while_idle(|| flights.late(now, |_| stuck)).iter().map(|flight| flight.lane).collect()
    }

    #[test]
    fn what_is_late_goes_again_once_and_under_its_item() {
        let start = Instant::now();
        let flights = flights(start);
        assert!(late(&flights, start + Duration::from_millis(1500), true).is_empty(), "not late");
        let now = start + Duration::from_secs(3);
        assert!(flights.late(now, |_| true).is_empty(), "no lane is idle");
        assert!(late(&flights, now, false).is_empty(), "it has arrived");
        assert_eq!(late(&flights, now, true), [1]);
        assert!(late(&flights, now, true).is_empty(), "once");
        assert_eq!(flights.item_again(FileId(1), span(9)), Some(ItemId(9)));
        assert_eq!(flights.item_again(FileId(1), span(9)), None);
        assert_eq!(flights.lanes_with_copies(), HashSet::from([1]));
    }

    #[test]
    fn a_chunk_that_its_lane_is_still_sending_has_not_arrived() {
        let start = Instant::now();
        let flights = flights(start);
        flights.taken(ItemId(10), 1, (FileId(1), ()), span(10), start);
        flights.sent(ItemId(10), 0);
        assert_eq!(late(&flights, start + Duration::from_secs(3), false), [1]);
    }

    #[test]
    fn a_chunk_taken_again_stays_late_until_it_is_settled() {
        let start = Instant::now();
        let flights = flights(start);
        let now = start + Duration::from_secs(3);
        assert_eq!(late(&flights, now, true), [1]);
        let again = || flights.taken(ItemId(9), 0, (FileId(1), ()), span(9), now);
        again();
        assert!(flights.is_under_way(ItemId(9)));
        assert_eq!(flights.lanes_with_copies(), HashSet::from([0, 1]), "either may be the slow one");
        flights.settled(ItemId(9), start + Duration::from_secs(10));
        flights.settled(ItemId(9), start + Duration::from_secs(11));
        again();
        assert!(!flights.is_under_way(ItemId(9)), "the copy that comes after the receipt is nobody's");
    }

    #[test]
    fn a_group_that_is_planned_twice_is_read_again_twice() {
        let start = Instant::now();
        let flights = flights(start);
        flights.taken(ItemId(10), 1, (FileId(1), ()), span(9), start);
        let now = start + Duration::from_secs(3);
        let planned: Vec<_> = (0..2).flat_map(|_| late(&flights, now, true)).collect();
        assert_eq!(planned, [1, 1]);
        let mut items: Vec<_> = (0..2).filter_map(|_| flights.item_again(FileId(1), span(9))).collect();
        items.sort_unstable();
        assert_eq!((items, flights.item_again(FileId(1), span(9))), (vec![ItemId(9), ItemId(10)], None));
    }

    #[test]
    fn nothing_is_late_before_anything_has_been_settled() {
        let start = Instant::now();
        let flights = Flights::default();
        flights.taken(ItemId(0), 0, (FileId(1), ()), span(0), start);
        assert!(late(&flights, start + Duration::from_secs(99), true).is_empty());
    }
}
