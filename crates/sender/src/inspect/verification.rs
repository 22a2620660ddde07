//! Compares contents in a verification: small files by their roots, and files of several groups group by group.
//!
//! A request is judged when it has been answered and this side has hashed its small files. A large file that has the
//! same size at the target is hashed on both sides, some groups at a time, so that many threads share the work. Groups
//! that differ are reported as ranges of bytes. If the receiver has only the root of a large file, for example from a
//! manifest, all groups are hashed on this side alone.
//!
//! **Invariant:** the number of outstanding requests to the receiver is bounded, and so is the number of files that
//! wait here.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use zmove_chunk::RootMerger;
use zmove_disk::value_or_zeros;
use zmove_types::{Cv, GroupSpan, RelPath, Root};
use zmove_wire::limits::{HASHED_GROUPS_MAX, HASHES_OUTSTANDING_MAX};
use zmove_wire::{
    Differences, Fault, FaultCode, FileGroups, GroupHashes, Operation, Question, Request,
    ToReceiver,
};

use crate::account::failure::FileError;
use crate::inspect::hashing::{HashJob, HashedSource, Hashing, HoleHashing, OwnValues};

/// A running verification.
pub(super) struct Verification {
    pub(super) hashing: Hashing,
    /// Large files of which some groups have not been requested. The groups of the first file are being requested.
    waiting: VecDeque<ComparedFile>,
    /// Large files whose groups have all been requested, and some of whose groups have not been compared.
    comparing: HashMap<u64, ComparedFile>,
    orders: HashMap<u64, GroupOrder>,
    /// The number most recently given to a large file or an order.
    next: u64,
}

/// A file of several groups that has the same size on both sides.
pub(super) struct ComparedFile {
    pub(super) source: HashedSource,
    pub(super) path: RelPath,
    /// Differences of the file other than differing contents.
    pub(super) differences: Differences,
    number: u64,
    /// Index of the first group that has not been requested.
    next: u32,
    /// Number of orders for this file whose groups have not been compared.
    open: usize,
    /// Bytes that differ, in ranges of whole groups.
    pub(super) differing: DifferingRanges,
    /// Set if the receiver knows only the root of the file.
    whole: Option<WholeFileComparison>,
    /// The first error of an order for this file.
    pub(super) failed: Option<FileError>,
}

/// A large file that is compared as a whole.
struct WholeFileComparison {
    theirs: Root,
    ours: RootMerger,
    /// Values that cannot be merged yet because values of earlier groups are missing. The key is the index of the first
    /// group. The number of values is at most the number of groups in outstanding orders.
    ahead: BTreeMap<u32, Vec<Cv>>,
}

/// Groups that both sides are hashing at the moment.
struct GroupOrder {
    file: u64,
    groups: Range<u32>,
    ours: Option<OwnValues>,
    theirs: Option<GroupHashes>,
}

impl Verification {
    pub(super) fn new(hashing: Hashing) -> Self {
        Self {
            hashing,
            waiting: VecDeque::new(),
            comparing: HashMap::new(),
            orders: HashMap::new(),
            next: 0,
        }
    }

    /// Queues a file of several groups. `root` is set if the receiver knows only the root of the file.
    pub(super) fn add_large(
        &mut self,
        source: HashedSource,
        path: RelPath,
        differences: Differences,
        root: Option<Root>,
    ) {
        self.next += 1;
        let whole = root.map(|theirs| WholeFileComparison {
            theirs,
            ours: RootMerger::default(),
            ahead: BTreeMap::new(),
        });
        self.waiting.push_back(ComparedFile {
            source,
            path,
            differences,
            number: self.next,
            next: 0,
            open: 0,
            differing: DifferingRanges::default(),
            whole,
            failed: None,
        });
    }

    /// Returns whether the maximum number of large files is waiting, so that the scan must pause.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= LARGE_WAITING_MAX
    }

    /// Returns whether all files have been compared.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.orders.is_empty()
    }

    /// Asks the receiver and this side's threads to hash groups, up to the limit of outstanding orders.
    pub(super) fn order(&mut self, mut tell: impl FnMut(ToReceiver)) {
        while self.orders.len() < HASHES_OUTSTANDING_MAX
            && let Some(file) = self.waiting.front_mut()
        {
            let count = GroupSpan::count(file.source.entry.size).unwrap_or(u32::MAX);
            let first = file.next;
            let end = count.min(first.saturating_add(GROUPS_PER_ORDER));
            file.next = end;
            file.open += 1;
            self.next += 1;
            let order = self.next;
            let (holes, theirs) = if file.whole.is_some() {
                (HoleHashing::Hashed, Some(GroupHashes::default()))
            } else {
                let path = file.path.clone();
                let groups = FileGroups {
                    path,
                    first,
                    count: end - first,
                };
                tell(ToReceiver::Request(Request {
                    number: order,
                    question: Question::Hash(groups),
                }));
                (HoleHashing::Marked, None)
            };
            self.hashing.hash(HashJob::Groups(
                order,
                Box::new(file.source.clone()),
                first..end,
                holes,
            ));
            let groups = first..end;
            self.orders.insert(
                order,
                GroupOrder {
                    file: file.number,
                    groups,
                    ours: None,
                    theirs,
                },
            );
            if end == count {
                let file = self.waiting.pop_front().expect("it is the first");
                self.comparing.insert(file.number, file);
            }
        }
    }

    /// Stores the values that this side has hashed for an order. Returns a large file once it has been compared
    /// completely.
    pub(super) fn add_own_hashes(&mut self, order: u64, values: OwnValues) -> Option<ComparedFile> {
        self.orders.get_mut(&order)?.ours = Some(values);
        self.compare(order)
    }

    /// Stores the values that the receiver has hashed for an order. Returns a large file once it has been compared
    /// completely.
    pub(super) fn add_receiver_hashes(
        &mut self,
        order: u64,
        hashes: GroupHashes,
    ) -> Option<ComparedFile> {
        self.orders.get_mut(&order)?.theirs = Some(hashes);
        self.compare(order)
    }

    /// Compares the groups of an order once both sides have hashed them.
    fn compare(&mut self, number: u64) -> Option<ComparedFile> {
        let is_hashed = |order: &GroupOrder| order.ours.is_some() && order.theirs.is_some();
        self.orders.get(&number).filter(|order| is_hashed(order))?;
        let order = self.orders.remove(&number)?;
        let number = order.file;
        let is_first = self
            .waiting
            .front()
            .is_some_and(|file| file.number == number);
        let file = if is_first {
            self.waiting.front_mut()
        } else {
            self.comparing.get_mut(&number)
        }?;
        file.open -= 1;
        let theirs = order.theirs?;
        match (order.ours?, theirs.fault) {
            (Err(error), _) => file.fail(error),
            (Ok(_), Some(code)) => file.fail(file.receiver_failed(code)),
            (Ok(ours), None) => file.compare(order.groups, &ours, &theirs.values),
        }
        if is_first || file.open > 0 {
            return None;
        }
        self.comparing.remove(&number)
    }
}

/// Number of groups in one order: 64 MiB, so that several threads share a file.
const GROUPS_PER_ORDER: u32 = 16;

const _: () = assert!(GROUPS_PER_ORDER as usize <= HASHED_GROUPS_MAX);

/// Maximum number of waiting large files. The scan continues while they wait, and each takes a few hundred bytes of
/// memory.
const LARGE_WAITING_MAX: usize = 4096;

impl WholeFileComparison {
    /// Adds the values of consecutive groups of a file of `bytes` bytes.
    fn take(&mut self, bytes: u64, first: u32, values: &[Option<Cv>]) {
        let spans = (first..).map_while(|index| GroupSpan::of(bytes, index));
        let values = spans
            .zip(values)
            .map(|(span, value)| value_or_zeros(span, *value))
            .collect();
        self.ahead.insert(first, values);
        while let Some(next) = self.ahead.remove(&self.ours.groups()) {
            next.into_iter().for_each(|cv| self.ours.push(cv));
        }
    }

    fn is_same(&self, bytes: u64) -> bool {
        GroupSpan::count(bytes) == Some(self.ours.groups())
            && self.ours.clone().finish() == self.theirs
    }
}

impl ComparedFile {
    /// Returns whether the contents are equal. Valid once all groups have been compared.
    pub(super) fn is_same(&self) -> bool {
        let whole = self.whole.as_ref();
        self.differing.is_empty() && whole.is_none_or(|whole| whole.is_same(self.source.entry.size))
    }

    fn compare(&mut self, groups: Range<u32>, ours: &[Option<Cv>], theirs: &[Option<[u8; 32]>]) {
        let bytes = self.source.entry.size;
        if let Some(whole) = &mut self.whole {
            return whole.take(bytes, groups.start, ours);
        }
        for (index, place) in groups.zip(0..) {
            let Some(span) = GroupSpan::of(bytes, index) else {
                break;
            };
            let value = |value: Option<Cv>| value_or_zeros(span, value);
            let same = match (ours.get(place), theirs.get(place)) {
                (Some(None), Some(None)) => true,
                (Some(ours), Some(theirs)) => value(*ours) == value(theirs.map(Cv)),
                _ => false,
            };
            if !same {
                self.differing
                    .add(span.offset()..span.offset() + u64::from(span.len));
            }
        }
    }

    fn fail(&mut self, error: FileError) {
        self.failed.get_or_insert(error);
    }

    fn receiver_failed(&self, code: FaultCode) -> FileError {
        FileError::Receiver(Fault {
            path: self.path.clone(),
            operation: Operation::Read,
            code,
        })
    }
}

/// Byte ranges of one file, which may be added in any order.
#[derive(Default)]
pub(super) struct DifferingRanges {
    held: Vec<Range<u64>>,
    /// Number of ranges that are counted but not stored, which keeps the memory per file bounded.
    more: usize,
}

impl DifferingRanges {
    fn add(&mut self, range: Range<u64>) {
        let is_full = self.held.len() >= RANGES_HELD_MAX;
        match self.held.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if is_full => self.more += 1,
            _ => self.held.push(range),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the ranges as text for a line of output.
    pub(super) fn shown(&self) -> String {
        let mut ranges = self.held.clone();
        ranges.sort_by_key(|range| range.start);
        let merged = ranges.chunk_by(|one, next| one.end == next.start);
        let merged: Vec<_> = merged
            .map(|run| (run[0].start, run[run.len() - 1].end - 1))
            .collect();
        let shown = merged
            .iter()
            .take(RANGES_SHOWN_MAX)
            .map(|(first, last)| format!("{first}-{last}"));
        let shown: Vec<_> = shown.collect();
        let more = match (merged.len() + self.more).saturating_sub(RANGES_SHOWN_MAX) {
            0 => String::new(),
            more => format!(" and {more} more ranges"),
        };
        format!("of bytes {}{more}", shown.join(" "))
    }
}

/// Maximum number of ranges of one file that are shown.
const RANGES_SHOWN_MAX: usize = 64;

/// Maximum number of ranges of one file that are held. The ranges of outstanding orders may arrive in any order.
const RANGES_HELD_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_of_bytes_that_differ_is_bounded() {
        let mut ranges = DifferingRanges::default();
        [2..4, 0..2, 6..7, 7..9]
            .into_iter()
            .for_each(|range| ranges.add(range));
        assert_eq!(ranges.shown(), "of bytes 0-3 6-8");
        let groups = 4 * RANGES_HELD_MAX;
        (10..groups as u64)
            .map(|group| 2 * group..2 * group + 1)
            .for_each(|range| ranges.add(range));
        assert!(ranges.held.len() <= RANGES_HELD_MAX);
        let named = ranges.shown();
        assert!(
            named.ends_with(&format!(" and {} more ranges", 2 + groups - 10 - 64)),
            "{named}"
        );
    }
}
