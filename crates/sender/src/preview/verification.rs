//! The comparison of contents in a verification: small files by their roots, those of several groups group by group.
//!
//! An inquiry is judged when it has been answered and the small files of it have been hashed here. A large file that is
//! of the same size at the target is hashed at both ends, some groups at a time, so that many threads share it; groups
//! that differ become ranges of bytes.
//!
//! **Invariant:** questions to the receiver are bounded, and so is what waits here.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use zmove_chunk::sparse_group_cv;
use zmove_types::{Cv, GroupSpan, RelPath, Root};
use zmove_wire::limits::{HASH_ORDERS_OUTSTANDING_MAX, HASHED_GROUPS_MAX};
use zmove_wire::{Differences, Fault, FaultCode, HashOrder, Hashed, Operation, ToReceiver};

use crate::account::failure::FileError;
use crate::preview::hashing::{Done, Hashing, Job, Source};

/// A verification under way.
pub(super) struct Verification {
    pub(super) hashing: Hashing,
    /// The roots of small files, by inquiry and place in it.
    roots: HashMap<u64, HashMap<usize, Result<Root, FileError>>>,
    /// Large files of which not all groups have been asked for; the first one is being asked for.
    waiting: VecDeque<LargeFile>,
    /// Large files of which all groups have been asked for, or some while others were.
    comparing: HashMap<u64, LargeFile>,
    orders: HashMap<u64, Order>,
    /// The number of the next large file, and of the next order.
    next: u64,
}

/// A file of several groups, of the same size at both ends.
pub(super) struct LargeFile {
    pub(super) source: Source,
    pub(super) path: RelPath,
    /// How it differs beside its contents.
    pub(super) differences: Differences,
    number: u64,
    /// The first group that has not been asked for.
    next: u32,
    /// The number of orders that have not been compared.
    open: usize,
    /// The bytes that differ, each range of whole groups.
    pub(super) differing: Vec<Range<u64>>,
    /// The number of groups that differ beside these: what is held of one file is bounded.
    differing_more: usize,
    /// The first failure of an order.
    pub(super) failed: Option<FileError>,
}

/// Groups that are being hashed at both ends.
struct Order {
    file: u64,
    groups: Range<u32>,
    ours: Option<Result<Vec<Option<Cv>>, FileError>>,
    theirs: Option<Hashed>,
}

impl Verification {
    pub(super) fn new(hashing: Hashing) -> Self {
        Self {
            hashing,
            roots: HashMap::new(),
            waiting: VecDeque::new(),
            comparing: HashMap::new(),
            orders: HashMap::new(),
            next: 0,
        }
    }

    /// Has the small files of an inquiry hashed.
    pub(super) fn hash_small(&self, inquiry: u64, files: Vec<(usize, Source)>) {
        self.hashing.hash(Job::Files(inquiry, files));
    }

    /// Whether the small files of an inquiry have been hashed.
    pub(super) fn has_roots(&self, inquiry: u64) -> bool {
        self.roots.contains_key(&inquiry)
    }

    /// The root of a small file of an inquiry; `None` where it was not one of those to be hashed.
    pub(super) fn take_root(&mut self, inquiry: u64, place: usize) -> Option<Result<Root, FileError>> {
        self.roots.get_mut(&inquiry)?.remove(&place)
    }

    /// Forgets an inquiry that has been judged.
    pub(super) fn forget(&mut self, inquiry: u64) {
        self.roots.remove(&inquiry);
    }

    /// Queues a file of several groups.
    pub(super) fn add_large(&mut self, source: Source, path: RelPath, differences: Differences) {
        self.next += 1;
        let (number, next, open) = (self.next, 0, 0);
        let (differing, differing_more, failed) = (Vec::new(), 0, None);
        self.waiting.push_back(LargeFile {
            source,
            path,
            differences,
            number,
            next,
            open,
            differing,
            differing_more,
            failed,
        });
    }

    /// Whether large files wait to be asked about: then the scan does, too.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= LARGE_WAITING_MAX
    }

    /// Whether nothing is left to be compared.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.orders.is_empty()
    }

    /// Asks for groups, as far as orders may be unanswered.
    pub(super) fn order(&mut self, mut tell: impl FnMut(ToReceiver)) {
        while self.orders.len() < HASH_ORDERS_OUTSTANDING_MAX
            && let Some(file) = self.waiting.front_mut()
        {
            let count = GroupSpan::count(file.source.entry.size).unwrap_or(u32::MAX);
            let first = file.next;
            let end = count.min(first.saturating_add(GROUPS_PER_ORDER));
            (file.next, file.open) = (end, file.open + 1);
            self.next += 1;
            let order = self.next;
            tell(ToReceiver::Hash(HashOrder { order, path: file.path.clone(), first, groups: end - first }));
            self.hashing.hash(Job::Groups(order, Box::new(file.source.clone()), first..end));
            let groups = first..end;
            self.orders.insert(order, Order { file: file.number, groups, ours: None, theirs: None });
            if end == count {
                let file = self.waiting.pop_front().expect("it is the first");
                self.comparing.insert(file.number, file);
            }
        }
    }

    /// Takes what this side has hashed; returns a large file that has been compared with that, or an inquiry whose
    /// small files are known.
    pub(super) fn take_ours(&mut self, done: Done) -> Taken {
        match done {
            Done::Files(inquiry, roots) => {
                self.roots.insert(inquiry, roots.into_iter().collect());
                Taken::Inquiry(inquiry)
            }
            Done::Groups(order, values) => {
                if let Some(open) = self.orders.get_mut(&order) {
                    open.ours = Some(values);
                }
                self.compare(order)
            }
        }
    }

    /// Takes what the receiver has hashed.
    pub(super) fn take_theirs(&mut self, hashed: Hashed) -> Taken {
        let order = hashed.order;
        if let Some(open) = self.orders.get_mut(&order) {
            open.theirs = Some(hashed);
        }
        self.compare(order)
    }

    /// Compares the groups of an order that both ends have hashed.
    fn compare(&mut self, number: u64) -> Taken {
        let Some(Order { ours: Some(_), theirs: Some(_), .. }) = self.orders.get(&number) else {
            return Taken::Nothing;
        };
        let Some(Order { file: number, groups, ours: Some(ours), theirs: Some(theirs) }) =
            self.orders.remove(&number)
        else {
            return Taken::Nothing;
        };
        let is_first = self.waiting.front().is_some_and(|file| file.number == number);
        let file = if is_first { self.waiting.front_mut() } else { self.comparing.get_mut(&number) };
        let Some(file) = file else { return Taken::Nothing };
        file.open -= 1;
        match (ours, theirs.fault) {
            (Err(error), _) => file.fail(error),
            (Ok(_), Some(code)) => file.fail(file.receiver_failed(code)),
            (Ok(ours), None) => file.compare(groups, &ours, &theirs.values),
        }
        if is_first || file.open > 0 {
            return Taken::Nothing;
        }
        self.comparing.remove(&number).map_or(Taken::Nothing, |file| Taken::Large(Box::new(file)))
    }
}

/// What is known after something has been hashed.
pub(super) enum Taken {
    Nothing,
    /// All groups of a large file have been compared.
    Large(Box<LargeFile>),
    /// The small files of an inquiry have been hashed here.
    Inquiry(u64),
}

/// The number of groups in one order: 64 MiB, so that several threads share a file.
const GROUPS_PER_ORDER: u32 = 16;

const _: () = assert!(GROUPS_PER_ORDER as usize <= HASHED_GROUPS_MAX);

/// The most large files that wait: the scan goes on meanwhile, and they take a few hundred bytes each.
const LARGE_WAITING_MAX: usize = 4096;

impl LargeFile {
    fn compare(&mut self, groups: Range<u32>, ours: &[Option<Cv>], theirs: &[Option<[u8; 32]>]) {
        let bytes = self.source.entry.size;
        for (index, place) in groups.zip(0..) {
            let Some(span) = GroupSpan::of(bytes, index) else { break };
            // a hole and zeros are the same contents
            let value =
                |value: Option<Cv>| value.unwrap_or_else(|| sparse_group_cv(span, std::iter::empty(), &[]));
            let same = match (ours.get(place), theirs.get(place)) {
                (Some(None), Some(None)) => true,
                (Some(ours), Some(theirs)) => value(*ours) == value(theirs.map(Cv)),
                _ => false,
            };
            if !same {
                self.differs(span.offset()..span.offset() + u64::from(span.len));
            }
        }
    }

    fn differs(&mut self, range: Range<u64>) {
        let is_full = self.differing.len() >= RANGES_HELD_MAX;
        match self.differing.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if is_full => self.differing_more += 1,
            _ => self.differing.push(range),
        }
    }

    fn fail(&mut self, error: FileError) {
        self.failed.get_or_insert(error);
    }

    fn receiver_failed(&self, code: FaultCode) -> FileError {
        FileError::Receiver(Fault { path: self.path.clone(), operation: Operation::Read, code })
    }

    /// The bytes that differ, as words of one line.
    pub(super) fn ranges(&self) -> String {
        let mut ranges = self.differing.clone();
        ranges.sort_by_key(|range| range.start);
        let merged = ranges.chunk_by(|one, next| one.end == next.start);
        let merged: Vec<_> = merged.map(|run| (run[0].start, run[run.len() - 1].end - 1)).collect();
        let merged_count = merged.len() + self.differing_more;
        let shown = merged.iter().take(RANGES_SHOWN_MAX).map(|(first, last)| format!("{first}-{last}"));
        let shown: Vec<_> = shown.collect();
        let more = match merged_count.saturating_sub(RANGES_SHOWN_MAX) {
            0 => String::new(),
            more => format!(" and {more} more ranges"),
        };
        format!("of bytes {}{more}", shown.join(" "))
    }
}

/// The most ranges of one file that are named.
const RANGES_SHOWN_MAX: usize = 64;

/// The most ranges of one file that are held: those of the orders under way may come in any order.
const RANGES_HELD_MAX: usize = 4096;
