//! The plan: a bounded queue of work that is filled while the scan runs and emptied by the readers.
//!
//! Small files wait in packs. Large files wait in order of size, with the largest first. Readers take them group by
//! group, so that all readers can work on one file at the same time. No work is assigned to a reader in advance.
//!
//! **Invariant:** each group of a file and each pack is taken exactly once. Work that must be repeated is added again.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Condvar, MutexGuard, PoisonError};

use zmove_types::{GroupSpan, Lock};

/// Work waiting to be read. `P` is a pack of small files, `F` identifies a large file.
#[derive(Debug)]
pub struct Plan<P, F> {
    state: Lock<PlanState<P, F>>,
    changed: Condvar,
    entries_max: usize,
    files_max: usize,
    /// Number of times that a caller has waited to add work.
    #[cfg(test)]
    waits: std::sync::atomic::AtomicUsize,
}

/// A unit of work for a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Work<P, F> {
    /// Read these small files into one batch.
    Pack(P),
    /// Read this group of this large file.
    Group(F, GroupSpan),
}

#[derive(Debug)]
struct PlanState<P, F> {
    packs: VecDeque<(usize, P)>,
    packed_entries: usize,
    urgent: VecDeque<Work<P, F>>,
    /// Large files, sorted by size and then by number. Among files of equal size, the file that was added first has the
    /// largest number.
    waiting: BTreeMap<(u64, u64), PendingFile<F>>,
    next_number: u64,
    active: VecDeque<PendingFile<F>>,
    ended: bool,
    packs_last: bool,
}

/// A large file with groups that no reader has taken yet.
#[derive(Debug)]
struct PendingFile<F> {
    bytes: u64,
    groups: Groups,
    file: F,
}

/// Groups of a large file that no reader has taken yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups(
    /// Nonempty ranges of groups, in ascending order.
    pub VecDeque<Range<u32>>,
);

impl Groups {
    /// Returns all groups of a file of `bytes` bytes.
    #[must_use]
    pub fn all(bytes: u64) -> Self {
        let count = GroupSpan::count(bytes).filter(|count| *count > 0);
        Self(count.map(|count| 0..count).into_iter().collect())
    }

    /// Returns the number of these groups.
    #[must_use]
    pub fn count(&self) -> u32 {
        let groups = |range: &Range<u32>| range.end.saturating_sub(range.start);
        self.0.iter().map(groups).sum()
    }

    /// Removes the groups before `index`. Returns how many were removed.
    fn skip_to(&mut self, index: u32) -> u32 {
        let before = self.count();
        while let Some(range) = self.0.front_mut()
            && range.start < index
        {
            if range.end > index {
                range.start = index;
            } else {
                self.0.pop_front();
            }
        }
        before - self.count()
    }

    fn take(&mut self) -> Option<u32> {
        let range = self.0.front_mut()?;
        let index = range.start;
        range.start += 1;
        if range.start >= range.end {
            self.0.pop_front();
        }
        Some(index)
    }
}

/// Number of large files that are read at the same time. With two files, the writers at the target compete less for the
/// lock of an inode.
const FILES_ACTIVE_MAX: usize = 2;

impl<P, F: Clone> Plan<P, F> {
    /// Creates a plan. It accepts packs while it holds fewer than `entries_max` small entries, and large files while
    /// fewer than `files_max` of them wait. Otherwise, a caller that adds work blocks.
    #[must_use]
    pub fn new(entries_max: usize, files_max: usize) -> Self {
        let state = PlanState {
            packs: VecDeque::new(),
            packed_entries: 0,
            urgent: VecDeque::new(),
            waiting: BTreeMap::new(),
            next_number: u64::MAX,
            active: VecDeque::new(),
            ended: false,
            packs_last: false,
        };
        Self {
            state: Lock::new(state),
            changed: Condvar::new(),
            entries_max,
            files_max,
            #[cfg(test)]
            waits: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    /// Adds a pack of `entries` small files. Waits while the plan is full.
    ///
    /// # Errors
    /// Returns the pack if [`end`](Self::end) was called before.
    pub fn push_pack(&self, pack: P, entries: usize) -> Result<(), P> {
        let mut state = self.wait_while(|state| state.packed_entries >= self.entries_max);
        if state.ended {
            return Err(pack);
        }
        state.packs.push_back((entries, pack));
        state.packed_entries += entries;
        self.changed.notify_all();
        Ok(())
    }

    /// Adds groups of a file of `bytes` bytes, which must be larger than one group. Waits while the plan is full.
    ///
    /// # Errors
    /// Returns the file if [`end`](Self::end) was called before.
    pub fn push_file(&self, file: F, bytes: u64, groups: Groups) -> Result<(), F> {
        let mut state = self.wait_while(|state| state.waiting.len() >= self.files_max);
        if state.ended {
            return Err(file);
        }
        state.wait_for_turn(file, bytes, groups);
        self.changed.notify_all();
        Ok(())
    }

    /// Removes and returns the waiting packs for which `which` returns `true`.
    pub fn take_back(&self, which: impl Fn(&P) -> bool) -> Vec<P> {
        let mut state = self.state.lock();
        let (taken, left): (VecDeque<_>, _) = state
            .packs
            .drain(..)
            .partition(|(_entries, pack)| which(pack));
        state.packs = left;
        state.packed_entries -= taken.iter().map(|(entries, _pack)| entries).sum::<usize>();
        self.changed.notify_all();
        taken.into_iter().map(|(_entries, pack)| pack).collect()
    }

    /// Adds work that must be repeated, ahead of all other work. This call never waits, and it is allowed after the end
    /// of the plan.
    pub fn push_again(&self, work: Work<P, F>) {
        self.state.lock().urgent.push_back(work);
        self.changed.notify_all();
    }

    /// Adds a large file that turns out to be needed after all. Does not wait, and is allowed after the end of the
    /// plan.
    pub fn push_file_again(&self, file: F, bytes: u64) {
        let groups = Groups::all(bytes);
        self.state.lock().wait_for_turn(file, bytes, groups);
        self.changed.notify_all();
    }

    /// Removes the groups before `index` of the file for which `which` returns `true`, unless a reader has already
    /// taken them. Returns the number of groups removed. Called when a reader finds a hole.
    pub fn skip_groups(&self, which: impl Fn(&F) -> bool, index: u32) -> u32 {
        let mut state = self.state.lock();
        let file = state.active.iter_mut().find(|active| which(&active.file));
        let skipped = file.map_or(0, |active| active.groups.skip_to(index));
        state.active.retain(|active| !active.groups.0.is_empty());
        self.changed.notify_all();
        skipped
    }

    /// Ends the plan. After that, only work that must be [repeated](Self::push_again) is added.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Drops all waiting work, so that readers, and callers that add work, stop soon.
    pub fn abandon(&self) {
        let mut state = self.state.lock();
        state.packs.clear();
        state.packed_entries = 0;
        state.urgent.clear();
        state.waiting.clear();
        state.active.clear();
        state.ended = true;
        self.changed.notify_all();
    }

    /// Takes the next unit of work. Waits if no work is queued. Returns `None` if no work is queued and `stop` returns
    /// `true`. While waiting, calls `stop` whenever the plan changes. The argument of `stop` says whether the plan has
    /// ended.
    pub fn take(&self, stop: impl Fn(bool) -> bool) -> Option<Work<P, F>> {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.next() {
                self.changed.notify_all();
                return Some(work);
            }
            if stop(state.ended) {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the number of waiting packs.
    pub fn packs_waiting(&self) -> usize {
        self.state.lock().packs.len()
    }

    /// Returns the number of waiting packs if no other work waits and no more work will be added. Returns `None`
    /// otherwise.
    pub fn last_packs(&self) -> Option<usize> {
        let state = self.state.lock();
        let files = !state.waiting.is_empty() || !state.active.is_empty();
        (state.ended && !files && state.urgent.is_empty()).then_some(state.packs.len())
    }

    fn wait_while(
        &self,
        full: impl Fn(&PlanState<P, F>) -> bool,
    ) -> MutexGuard<'_, PlanState<P, F>> {
        let must_wait = |state: &mut PlanState<P, F>| {
            let must_wait = !state.ended && full(state);
            #[cfg(test)]
            self.waits
                .fetch_add(usize::from(must_wait), std::sync::atomic::Ordering::Relaxed);
            must_wait
        };
        self.changed
            .wait_while(self.state.lock(), must_wait)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P, F: Clone> PlanState<P, F> {
    fn wait_for_turn(&mut self, file: F, bytes: u64, groups: Groups) {
        let unread = PendingFile {
            bytes,
            groups,
            file,
        };
        self.waiting.insert((bytes, self.next_number), unread);
        self.next_number -= 1;
    }

    /// Takes the next unit of work. Repeated work goes first. Packs and groups then alternate, so that the target
    /// creates files while the bytes of large files are transferred.
    fn next(&mut self) -> Option<Work<P, F>> {
        if let Some(work) = self.urgent.pop_front() {
            return Some(work);
        }
        self.packs_last = !self.packs_last;
        if self.packs_last {
            self.next_pack().or_else(|| self.next_group())
        } else {
            self.next_group().or_else(|| self.next_pack())
        }
    }

    fn next_pack(&mut self) -> Option<Work<P, F>> {
        let (entries, pack) = self.packs.pop_front()?;
        self.packed_entries -= entries;
        Some(Work::Pack(pack))
    }

    fn next_group(&mut self) -> Option<Work<P, F>> {
        loop {
            while self.active.len() < FILES_ACTIVE_MAX {
                let Some((_, file)) = self.waiting.pop_last() else {
                    break;
                };
                self.active.push_back(file);
            }
            let mut active = self.active.pop_front()?;
            let index = active.groups.take();
            let Some(span) = index.and_then(|index| GroupSpan::of(active.bytes, index)) else {
                continue;
            };
            let file = active.file.clone();
            if !active.groups.0.is_empty() {
                self.active.push_back(active);
            }
            return Some(Work::Group(file, span));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use zmove_types::GROUP_BYTES;

    fn next<P, F: Clone>(plan: &Plan<P, F>) -> Option<Work<P, F>> {
        plan.take(|_| true)
    }

    #[test]
    fn the_end_is_near_when_only_few_packs_are_left() {
        let plan = Plan::<_, &str>::new(100, 2);
        plan.push_pack("first", 1).unwrap();
        plan.push_pack("second", 1).unwrap();
        assert_eq!(plan.last_packs(), None, "more may come");
        plan.push_file("large", 2 * GROUP_BYTES, Groups::all(2 * GROUP_BYTES))
            .unwrap();
        plan.end();
        assert_eq!(plan.last_packs(), None, "a large file waits");
        while !matches!(next(&plan), Some(Work::Group(_, span)) if span.index == 1) {}
        assert_eq!(plan.last_packs(), Some(0));
        plan.push_again(Work::Pack("again"));
        assert_eq!(plan.last_packs(), None);
    }

    #[test]
    fn largest_file_goes_first_and_each_group_once() {
        let plan: Plan<(), &str> = Plan::new(4, 4);
        plan.push_file("small", 2 * GROUP_BYTES, Groups::all(2 * GROUP_BYTES))
            .unwrap();
        plan.push_file(
            "large",
            3 * GROUP_BYTES + 1,
            Groups::all(3 * GROUP_BYTES + 1),
        )
        .unwrap();
        plan.push_file("later", GROUP_BYTES + 1, Groups::all(GROUP_BYTES + 1))
            .unwrap();
        plan.end();
        let taken: Vec<_> = std::iter::from_fn(|| next(&plan)).collect();
        let Work::Group(first, _) = &taken[0] else {
            panic!("a group")
        };
        assert_eq!(*first, "large");
        for (name, groups) in [("small", 2), ("large", 4), ("later", 2)] {
            let mut indices: Vec<_> = taken
                .iter()
                .filter_map(|work| match work {
                    Work::Group(file, span) if *file == name => Some(span.index),
                    _ => None,
                })
                .collect();
            indices.sort_unstable();
            assert_eq!(indices, (0..groups).collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn what_is_taken_back_makes_room_and_is_not_handed_out() {
        let plan: Plan<u8, u8> = Plan::new(6, 4);
        for pack in 1..=3 {
            plan.push_pack(pack, 2).unwrap();
        }
        assert_eq!(next(&plan), Some(Work::Pack(1)));
        assert_eq!(plan.take_back(|&pack| pack < 3), [2]);
        assert_eq!(plan.state.lock().packed_entries, 2);
        assert_eq!([next(&plan), next(&plan)], [Some(Work::Pack(3)), None]);
    }

    #[test]
    fn only_the_groups_that_are_wanted_are_handed_out() {
        let plan: Plan<(), u8> = Plan::new(4, 4);
        let wanted =
            |groups: &[u32]| Groups(groups.iter().map(|group| *group..group + 1).collect());
        assert_eq!(wanted(&[1, 3]).count(), 2);
        plan.push_file(1, 4 * GROUP_BYTES, wanted(&[1, 3])).unwrap();
        plan.push_file(2, 3 * GROUP_BYTES, wanted(&[])).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| next(&plan)).collect();
        let group = |index| Work::Group(1, GroupSpan::of(4 * GROUP_BYTES, index).unwrap());
        assert_eq!(taken, [group(1), group(3)]);
    }

    #[test]
    fn groups_that_are_skipped_are_counted_and_not_handed_out() {
        let plan: Plan<(), u8> = Plan::new(4, 4);
        plan.push_file(1, 9 * GROUP_BYTES, Groups::all(9 * GROUP_BYTES))
            .unwrap();
        plan.push_file(2, 8 * GROUP_BYTES, Groups([1..2, 3..4, 6..7].into()))
            .unwrap();
        plan.end();
        let index = |work| match work {
            Some(Work::Group(file, span)) => (file, span.index),
            other => panic!("{other:?}"),
        };
        assert_eq!([index(next(&plan)), index(next(&plan))], [(1, 0), (2, 1)]);
        assert_eq!(plan.skip_groups(|file| *file == 1, 7), 6);
        assert_eq!(plan.skip_groups(|file| *file == 1, 3), 0, "they have gone");
        assert_eq!(plan.skip_groups(|file| *file == 2, 6), 1);
        assert_eq!([index(next(&plan)), index(next(&plan))], [(1, 7), (2, 6)]);
        assert_eq!(plan.skip_groups(|file| *file == 1, u32::MAX), 1);
        assert_eq!(plan.last_packs(), Some(0), "nothing is left of either");
        assert_eq!(next(&plan), None);
    }

    #[test]
    fn packs_and_groups_take_turns() {
        let plan: Plan<u8, u8> = Plan::new(4, 4);
        plan.push_pack(1, 1).unwrap();
        plan.push_pack(2, 1).unwrap();
        plan.push_file(9, 2 * GROUP_BYTES, Groups::all(2 * GROUP_BYTES))
            .unwrap();
        let packs = |work: &Work<u8, u8>| matches!(work, Work::Pack(_));
        let taken: Vec<_> = (0..4).map(|_| packs(&next(&plan).unwrap())).collect();
        assert_eq!(taken, [true, false, true, false]);
        assert_eq!(next(&plan), None);
    }

    #[test]
    fn a_full_plan_makes_the_pusher_wait_and_an_ended_one_refuses() {
        let plan: Plan<u8, u8> = Plan::new(1, 1);
        plan.push_pack(1, 1).unwrap();
        std::thread::scope(|scope| {
            let pusher = scope.spawn(|| plan.push_pack(2, 1));
            while plan.waits.load(Ordering::Relaxed) == 0 {
                assert!(!pusher.is_finished());
                std::thread::yield_now();
            }
            assert_eq!(plan.packs_waiting(), 1);
            assert_eq!(plan.take(|_| false), Some(Work::Pack(1)));
            assert_eq!(pusher.join().unwrap(), Ok(()));
        });
        plan.end();
        assert_eq!(plan.push_pack(3, 1), Err(3));
        plan.push_again(Work::Pack(4));
        assert_eq!(plan.take(|ended| ended), Some(Work::Pack(4)));
    }
}
