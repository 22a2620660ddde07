//! The progress of one run over all its sessions: whether a session delivered anything new, which groups of large files
//! the run delivered, and the counters of completed files.
//!
//! **Invariant:** each file counts as new in a bounded number of sessions, regardless of other deliveries. Otherwise, a
//! file that keeps changing, or that the target does not keep, would look like progress in every session.

use std::hash::Hash;
use std::mem;
use std::ops::AddAssign;

use crate::entry::rel_path::RelPath;
use crate::hash_set::HashOnlySet;
use crate::report::counters::Counters;

/// The deliveries of one run's sessions: files by path, and groups of large files by path and number.
#[derive(Debug, Default)]
pub struct DeliveryLog {
    things: BoundedSet,
    groups: BoundedSet,
    /// Groups that a session sent or named before it was lost, and whose outcome is unknown.
    unsettled: HashOnlySet,
    has_new: bool,
    completed_counters: Counters,
}

/// How the bytes of a group reached the target.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Origin {
    /// This run sent the bytes.
    Sent,
    /// Another version of the file at the target contained the bytes.
    Matched,
    /// An earlier run delivered the bytes.
    Resumed,
}

/// Bytes of files by origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesByOrigin {
    /// Bytes sent by this run.
    pub sent: u64,
    /// Bytes found in another version at the target.
    pub matched: u64,
    /// Bytes delivered by an earlier run.
    pub resumed: u64,
}

/// A bounded set of deliveries.
#[derive(Debug, Default)]
struct BoundedSet(HashOnlySet);

/// Maximum number of deliveries to remember, in about 16 bytes each. Beyond this number, only the first new delivery of
/// each session is added.
const THINGS_MAX: usize = 1 << 16;
/// Maximum number of groups to remember, which covers 4 TiB. When a session is lost, further groups that the run
/// delivered count as resumed.
const GROUPS_MAX: usize = 1 << 20;

impl DeliveryLog {
    /// Records a delivery.
    pub fn note(&mut self, thing: &impl Hash) {
        self.has_new |= self.things.note(thing, THINGS_MAX, self.has_new);
    }

    /// Records a group of a large file that is stored at the target.
    pub fn note_group(&mut self, path: &RelPath, index: u32, origin: Origin) {
        let group = (path, index, origin);
        self.has_new |= self.groups.note(&group, GROUPS_MAX, self.has_new);
    }

    /// Records a group that may be at the target, because the session was lost before its outcome was known.
    pub fn note_unsettled(&mut self, path: &RelPath, index: u32, origin: Origin) {
        if self.unsettled.len() < GROUPS_MAX {
            self.unsettled.insert(&(path, index, origin));
        }
    }

    /// Returns the origin of a group that was already at the target when a session began.
    #[must_use]
    pub fn origin(&self, path: &RelPath, index: u32) -> Origin {
        let was_brought = |origin: &Origin| {
            let group = (path, index, *origin);
            self.groups.0.contains(&group) || self.unsettled.contains(&group)
        };
        [Origin::Sent, Origin::Matched]
            .into_iter()
            .find(was_brought)
            .unwrap_or(Origin::Resumed)
    }

    /// Returns the origin of a group whose bytes another version at the target contains. That version may be the file
    /// itself if it is updated in place, in which case this run may have sent the bytes.
    #[must_use]
    pub fn origin_of_same(&self, path: &RelPath, index: u32) -> Origin {
        match self.origin(path, index) {
            Origin::Sent => Origin::Sent,
            Origin::Matched | Origin::Resumed => Origin::Matched,
        }
    }

    /// Adds the counters of a completed file.
    pub fn count(&mut self, file: &Counters) {
        self.completed_counters = self.completed_counters.then(file);
    }

    /// Returns the counters of the files that this run completed.
    #[must_use]
    pub const fn completed_counters(&self) -> Counters {
        self.completed_counters
    }

    /// Returns whether anything new was delivered since the previous call.
    pub fn take_new(&mut self) -> bool {
        mem::take(&mut self.has_new)
    }
}

impl BoundedSet {
    /// Adds a value and returns whether it is new. A full set accepts a new value only if it is the session's first new
    /// delivery.
    fn note(&mut self, thing: &impl Hash, things_max: usize, has_new: bool) -> bool {
        (!has_new || self.0.len() < things_max) && self.0.insert(thing)
    }
}

impl BytesByOrigin {
    /// Creates a count of bytes with one origin.
    #[must_use]
    pub fn of(origin: Origin, bytes: u64) -> Self {
        let mut bytes_by_origin = Self::default();
        *bytes_by_origin.of_origin(origin) = bytes;
        bytes_by_origin
    }

    /// Returns the total number of bytes.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sent + self.matched + self.resumed
    }

    /// Subtracts `others` separately for each origin.
    #[must_use]
    pub const fn without(&self, others: &Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(others.sent),
            matched: self.matched.saturating_sub(others.matched),
            resumed: self.resumed.saturating_sub(others.resumed),
        }
    }

    /// Returns the counters for one file with these byte counts.
    #[must_use]
    pub fn of_file(&self) -> Counters {
        Counters {
            files: 1,
            bytes: self.sent,
            bytes_matched: self.matched,
            bytes_resumed: self.resumed,
            ..Counters::default()
        }
    }

    const fn of_origin(&mut self, origin: Origin) -> &mut u64 {
        match origin {
            Origin::Sent => &mut self.sent,
            Origin::Matched => &mut self.matched,
            Origin::Resumed => &mut self.resumed,
        }
    }
}

impl AddAssign for BytesByOrigin {
    fn add_assign(&mut self, more: Self) {
        self.sent += more.sent;
        self.matched += more.matched;
        self.resumed += more.resumed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_is_not_new() {
        let mut delivery_log = DeliveryLog::default();
        let mut is_new = |things: &[u64]| {
            things.iter().for_each(|thing| delivery_log.note(thing));
            delivery_log.take_new()
        };
        assert!(!is_new(&[]) && is_new(&[1, 2, 3]));
        assert!(!is_new(&[2]) && !is_new(&[1, 3]) && is_new(&[3, 4]) && !is_new(&[4, 3, 2, 1]));
    }

    #[test]
    fn of_things_beyond_the_limit_each_session_makes_one_more_known() {
        let mut delivery_log = DeliveryLog::default();
        let few = 5;
        let mut sessions = 0;
        loop {
            (0..THINGS_MAX + few).for_each(|thing| delivery_log.note(&thing));
            if !delivery_log.take_new() {
                break;
            }
            sessions += 1;
        }
        assert_eq!(
            (sessions, delivery_log.things.0.len()),
            (1 + few, THINGS_MAX + few)
        );
    }

    #[test]
    fn a_group_has_the_origin_that_this_run_knows() {
        let path = |text: &str| RelPath::from_bytes(text.as_bytes()).unwrap();
        let mut delivery_log = DeliveryLog::default();
        delivery_log.note_group(&path("f"), 0, Origin::Sent);
        assert!(delivery_log.take_new());
        delivery_log.note_unsettled(&path("f"), 1, Origin::Sent);
        delivery_log.note_unsettled(&path("f"), 2, Origin::Matched);
        assert!(!delivery_log.take_new(), "it may not be there");
        let origins = [0, 1, 2, 3].map(|index| delivery_log.origin(&path("f"), index));
        let expected = [Origin::Sent, Origin::Sent, Origin::Matched, Origin::Resumed];
        assert_eq!(origins, expected);
        assert_eq!(delivery_log.origin(&path("g"), 0), Origin::Resumed);
        let of_same = [0, 2, 3].map(|index| delivery_log.origin_of_same(&path("f"), index));
        assert_eq!(of_same, [Origin::Sent, Origin::Matched, Origin::Matched]);
        delivery_log.note_group(&path("f"), 1, Origin::Sent);
        assert!(delivery_log.take_new(), "now it is known to be there");
    }

    #[test]
    fn whole_files_count_by_the_origin_of_their_bytes() {
        let mut delivery_log = DeliveryLog::default();
        let mut bytes = BytesByOrigin::of(Origin::Sent, 5);
        bytes += BytesByOrigin::of(Origin::Resumed, 3);
        delivery_log.count(&bytes.of_file());
        delivery_log.count(&BytesByOrigin::of(Origin::Matched, 2).of_file());
        let expected = Counters {
            files: 2,
            bytes: 5,
            bytes_resumed: 3,
            bytes_matched: 2,
            ..Counters::default()
        };
        assert_eq!(delivery_log.completed_counters(), expected);
        assert_eq!(
            bytes.without(&BytesByOrigin::of(Origin::Resumed, 1)).sum(),
            7
        );
    }
}
