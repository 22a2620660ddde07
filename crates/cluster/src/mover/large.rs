//! Large files that several movers send: finds the missing groups, sends groups, and commits the file when all groups
//! have arrived.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use zmove_scan::{Directory, Entry, PortionSize, ScanItem};
use zmove_sender::{self as sender, Settled};
use zmove_types::{Counters, GROUP_BYTES, GroupSpan};
use zmove_wire::limits::MISSING_RANGES_MAX;
use zmove_wire::{FaultCode, FileHead, GroupRange, Operation, SharedJobOrder, SharedJobResult};

use super::{AssignedItem, CHECK_INTERVAL, Mover, one_failure};
use crate::error::{SessionEnd, refused};
use crate::job::ITEM;
use crate::queue::{LEASE, SplitFile, WorkItem, WorkQueue};

impl<W: WorkQueue> Mover<W> {
    /// Returns the groups of a large file that are missing at the target, and the number of bytes that exist there. An
    /// earlier job may have left some of these bytes.
    pub(super) async fn missing(
        &self,
        assigned: &AssignedItem<'_>,
        file: &SplitFile,
    ) -> Result<(Vec<GroupRange>, u64), SessionEnd> {
        let groups = GroupSpan::count(file.bytes).unwrap_or(0);
        let all = || vec![GroupRange::new(0, groups)];
        let Ok(FoundFile { directory, entry }) = self.find(assigned, file).await? else {
            return Ok((all(), 0));
        };
        let Ok(declared) = self.feeder.declaration(directory, entry).await? else {
            return Ok((all(), 0));
        };
        let has_holes = declared.data.is_some();
        let head = declared.encode();
        let order = SharedJobOrder::Commit { head };
        let missing = match self.feeder.order(order, None).await? {
            SharedJobResult::Missing(ranges) => missing_groups(file.bytes, ranges),
            SharedJobResult::Done => Some(Vec::new()),
            _ => None,
        };
        // After another answer, treat all groups as missing. The item that commits this file will report the cause.
        let Some(missing) = missing else {
            return Ok((all(), 0));
        };
        let offset = |group: u32| file.bytes.min(u64::from(group) * GROUP_BYTES);
        let bytes = |range: &GroupRange| offset(range.end()) - offset(range.first);
        let there = file.bytes.saturating_sub(missing.iter().map(bytes).sum());
        Ok((missing, if has_holes { 0 } else { there }))
    }

    /// Commits a file. The inner error is the list of missing groups.
    pub(super) async fn commit(
        &self,
        file: &FileHead,
    ) -> Result<Result<Counters, Vec<GroupRange>>, SessionEnd> {
        let head = file.encode();
        let order = SharedJobOrder::Commit { head };
        let answer = self.feeder.order(order, Some(file.bytes)).await?;
        self.committed(file, answer)
    }

    /// Interprets the receiver's answer to a commit.
    fn committed(
        &self,
        file: &FileHead,
        answer: SharedJobResult,
    ) -> Result<Result<Counters, Vec<GroupRange>>, SessionEnd> {
        let path = file.path.as_path();
        Ok(match answer {
            SharedJobResult::Done => Ok(Counters {
                files: 1,
                bytes: file.bytes,
                ..Counters::default()
            }),
            SharedJobResult::Missing(ranges) => {
                Err(missing_groups(file.bytes, ranges).ok_or(NO_GROUPS)?)
            }
            // A newer file at the target is kept.
            SharedJobResult::Failed(_, FaultCode::AlreadyThere) => Ok(Counters::default()),
            SharedJobResult::Failed(operation, code)
                if operation != Operation::Flush && code != FaultCode::JobEnded =>
            {
                Ok(self.fail(format!(
                    "receiver: {operation} '{}': {code}",
                    path.display()
                )))
            }
            other => return Err(refused(other)),
        })
    }

    /// Sends groups of a large file. The file is committed by a separate item.
    pub(super) async fn send_range(
        &self,
        assigned: &AssignedItem<'_>,
        FoundFile { directory, entry }: FoundFile,
        range: GroupRange,
    ) -> Result<Settled, SessionEnd> {
        let sending = self
            .feeder
            .send_range(directory, entry, range.first..range.end())?;
        self.settle(assigned, sending, &HashMap::new()).await
    }

    /// Opens a large file and checks that it still has the state in which it was announced. The inner error is the
    /// reason why the state differs.
    pub(super) async fn find(
        &self,
        assigned: &AssignedItem<'_>,
        file: &SplitFile,
    ) -> Result<Result<FoundFile, String>, SessionEnd> {
        let size = PortionSize {
            large_bytes: u64::MAX,
            ..ITEM
        };
        let names = vec![file.name.clone()];
        let portion = self.look_up(assigned, &file.directory, names, size).await?;
        let is_it = |entry: &Entry| {
            entry.name == file.name
                && entry.size == file.bytes
                && entry.metadata.mtime == file.mtime
        };
        for item in portion.items {
            match item {
                ScanItem::Batch(batch) => {
                    if let Some(entry) = batch.entries.into_iter().find(is_it) {
                        return Ok(Ok(FoundFile {
                            directory: batch.directory,
                            entry,
                        }));
                    }
                }
                ScanItem::Error(error) => return Ok(Err(format!("sender: {error}"))),
                ScanItem::Root { .. } => {}
            }
        }
        let root = self.job.root_of(assigned.item.source);
        let root = root.map(|root| root.source.clone()).unwrap_or_default();
        let path = root.join(file.directory.path.as_path());
        Ok(Err(sender::file_changed(path.join(file.name.as_os_str()))))
    }

    /// Commits a large file once all groups have arrived from other movers. If the missing groups stop arriving, this
    /// mover sends them once.
    pub(super) async fn commit_large(
        &self,
        assigned: &AssignedItem<'_>,
        file: &SplitFile,
    ) -> Result<Counters, SessionEnd> {
        let found = match self.find(assigned, file).await? {
            Ok(found) => found,
            Err(why) => return Ok(self.fail(why)),
        };
        let FoundFile { directory, entry } = found.clone();
        let unnamed = match self.feeder.declaration(directory, entry).await? {
            Ok(unnamed) => unnamed,
            Err(why) => return Ok(self.fail(why)),
        };
        let _waiting = Arc::clone(&self.waiting);
        self.changed.notify_one();
        let mut awaited = AwaitedGroups::default();
        let mut looked = Instant::now();
        loop {
            let missing = match self.commit(&unnamed).await? {
                Ok(counts) => {
                    // Only a committed file is counted as found in this session.
                    self.feeder.count_committed()?;
                    return Ok(counts);
                }
                Err(missing) => missing,
            };
            // An answer shows that the receiver's storage does not hang.
            assigned.made_step();
            match awaited.next_step(&missing, self.stuck_after(&assigned.item)) {
                GroupWait::InProgress => {}
                GroupWait::Stuck => {
                    let sent = self.send_ranges(assigned, &found, &missing).await?;
                    if sent.failed > 0 {
                        return Ok(sent);
                    }
                    awaited.have_resent(missing);
                    continue;
                }
                GroupWait::Lost => {
                    return Ok(self.fail(format!(
                        "receiver: write '{}': {LOST}",
                        unnamed.path.as_path().display()
                    )));
                }
            }
            self.until_next_look(awaited.pause).await;
            awaited.pause = (2 * awaited.pause).min(LOOK_AT_LEAST_EVERY);
            if looked.elapsed() >= LOOK_AT_LEAST_EVERY {
                looked = Instant::now();
                if let Err(why) = self.find(assigned, file).await? {
                    // The file has changed, so no mover can send the rest of the old version.
                    return Ok(self.fail(why));
                }
            }
        }
    }

    /// Sends groups of a large file until one fails, and reports the failure.
    async fn send_ranges(
        &self,
        assigned: &AssignedItem<'_>,
        found: &FoundFile,
        ranges: &[GroupRange],
    ) -> Result<Counters, SessionEnd> {
        for &range in ranges {
            let Settled {
                counts,
                range_error: why,
                ..
            } = self.send_range(assigned, found.clone(), range).await?;
            if counts.failed > 0 {
                return Ok(why.map_or_else(one_failure, |why| self.fail(why)));
            }
        }
        Ok(Counters::default())
    }

    /// Waits before the next check for missing groups of a large file. The receiver flushes data for each answer, and
    /// the answer is not urgent while other data can be sent. If there is no other data, the wait is `idle`.
    async fn until_next_look(&self, idle: Duration) {
        let since = Instant::now();
        while since.elapsed() < LOOK_AT_LEAST_EVERY {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if self.turns.available_permits() > 0 && since.elapsed() >= idle {
                return;
            }
        }
    }

    /// Returns how long to wait without a new group before this mover concludes that no mover is sending the missing
    /// groups.
    fn stuck_after(&self, large: &WorkItem) -> Duration {
        if self.events.has_failed_range(large.id()) {
            FAILED_RANGE_AFTER
        } else {
            STUCK_AFTER
        }
    }
}

/// A large file in the state in which it was announced.
#[derive(Clone)]
pub(super) struct FoundFile {
    directory: Arc<Directory>,
    entry: Entry,
}

/// The groups of a large file that a mover waits for.
///
/// Only a new minimum of missing groups counts as progress. Otherwise, a receiver that reports different groups each
/// time could make the mover wait forever.
struct AwaitedGroups {
    /// Minimum number of missing groups so far.
    fewest: u64,
    /// When the minimum was reached, or when this mover sent the missing groups itself.
    since: Instant,
    /// Wait before the next check.
    pause: Duration,
    /// Ranges that this mover has sent itself since `since`, or `None` if it has sent none.
    resent: Option<Vec<GroupRange>>,
}

/// The action to take for missing groups.
#[derive(Debug, PartialEq, Eq)]
enum GroupWait {
    /// Wait, because groups have arrived or are in flight.
    InProgress,
    /// No mover seems to be sending the missing groups.
    Stuck,
    /// Groups that this mover has sent are still missing.
    Lost,
}

impl Default for AwaitedGroups {
    fn default() -> Self {
        Self {
            fewest: u64::MAX,
            since: Instant::now(),
            pause: CHECK_INTERVAL,
            resent: None,
        }
    }
}

impl AwaitedGroups {
    fn next_step(&mut self, missing: &[GroupRange], stuck_after: Duration) -> GroupWait {
        let many = missing.iter().map(|range| u64::from(range.count)).sum();
        let is_stuck = self.since.elapsed() >= stuck_after;
        match &self.resent {
            _ if many < self.fewest => {
                self.fewest = many;
                self.since = Instant::now();
                self.pause = CHECK_INTERVAL;
                self.resent = None;
                GroupWait::InProgress
            }
            Some(resent) if is_stuck || resent == missing => GroupWait::Lost,
            None if is_stuck => GroupWait::Stuck,
            // A group that another mover sends again counts as missing until it is flushed.
            Some(_) | None => GroupWait::InProgress,
        }
    }

    fn have_resent(&mut self, missing: Vec<GroupRange>) {
        self.since = Instant::now();
        self.resent = Some(missing);
    }
}

/// Returns the groups that may be missing in a file of `bytes` bytes, according to a receiver's answer. An answer has a
/// maximum number of ranges. If it is reached, all groups after the last range may be missing too. Returns `None` if
/// these are not ranges of the file: at least one, in ascending order, and inside the file.
fn missing_groups(bytes: u64, mut ranges: Vec<GroupRange>) -> Option<Vec<GroupRange>> {
    let count = GroupSpan::count(bytes).unwrap_or(0);
    let end = ranges.iter().try_fold(0, |end, range| {
        let next = range.first.checked_add(range.count)?;
        (range.first >= end && range.count > 0 && next <= count).then_some(next)
    })?;
    if ranges.len() >= MISSING_RANGES_MAX && end < count {
        ranges.push(GroupRange::new(end, count - end));
    }
    (!ranges.is_empty()).then_some(ranges)
}

const NO_GROUPS: SessionEnd =
    SessionEnd::PeerMisbehaved("the receiver requested groups that the file does not have");
const LOST: &str = "groups that the receiver has stored are missing";
/// Maximum time between checks whether all groups have arrived and the file is unchanged.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(2);
/// Time without a new group after which no mover seems to be sending the missing groups. It is somewhat longer than the
/// lease of an item.
const STUCK_AFTER: Duration = LEASE.saturating_add(Duration::from_secs(10));
/// Value of `STUCK_AFTER` after a range has failed on this node. Groups that other movers are sending will still
/// arrive.
const FAILED_RANGE_AFTER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use zmove_types::{Metadata, Name, RelPath, Timestamp};

    use super::*;
    use crate::lab::{item_of, mover, root};
    use crate::queue::ItemWork;

    #[test]
    fn a_file_of_which_a_range_has_failed_here_is_not_waited_for_as_long() {
        let mover = mover();
        let [failed, other] = [b"failed", b"other."].map(|name| {
            let name = Name::from_bytes(name).unwrap();
            let mtime = Timestamp::default();
            let file = SplitFile {
                directory: root(),
                name,
                bytes: GROUP_BYTES,
                mtime,
            };
            item_of(0, ItemWork::Large(file))
        });
        mover.events.note_failed_range(failed.id());
        assert_eq!(
            [failed, other].map(|file| mover.stuck_after(&file)),
            [FAILED_RANGE_AFTER, STUCK_AFTER]
        );
    }

    fn ranges_of(ranges: &[(u32, u32)]) -> Vec<GroupRange> {
        ranges
            .iter()
            .map(|&(first, count)| GroupRange::new(first, count))
            .collect()
    }

    #[test]
    fn what_is_said_to_be_missing_has_to_be_of_the_file() {
        let bytes = 9 * GROUP_BYTES + 1;
        let are = |ranges: &[(u32, u32)]| missing_groups(bytes, ranges_of(ranges)).is_some();
        assert!(are(&[(0, 10)]) && are(&[(0, 1), (1, 1), (9, 1)]));
        let others: [&[(u32, u32)]; 8] = [
            &[],
            &[(3, 0)],
            &[(9, 2)],
            &[(10, 1)],
            &[(u32::MAX - 2, u32::MAX)],
            &[(1, 1), (0, 1)],
            &[(0, 2), (1, 1)],
            &[(1, 1), (1, 1)],
        ];
        for ranges in others {
            assert!(!are(ranges), "{ranges:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_tells_of_other_groups_each_time_is_not_waited_for_without_end() {
        let mut awaited = AwaitedGroups::default();
        let mut told = Vec::new();
        for number in 0..100 {
            let missing = [GroupRange::new(number, 2)];
            match awaited.next_step(&missing, STUCK_AFTER) {
                GroupWait::Stuck => awaited.have_resent(missing.to_vec()),
                GroupWait::Lost => break,
                GroupWait::InProgress => {}
            }
            told.push(number);
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(told.len(), 80);
        assert_eq!(
            awaited.next_step(&ranges_of(&[(7, 1)]), STUCK_AFTER),
            GroupWait::InProgress
        );
    }

    #[tokio::test(start_paused = true)]
    async fn groups_that_are_missing_as_before_although_they_were_sent_again_are_lost() {
        let mut awaited = AwaitedGroups::default();
        assert_eq!(
            awaited.next_step(&ranges_of(&[(0, 2)]), STUCK_AFTER),
            GroupWait::InProgress
        );
        advance(STUCK_AFTER).await;
        assert_eq!(
            awaited.next_step(&ranges_of(&[(0, 2)]), STUCK_AFTER),
            GroupWait::Stuck
        );
        awaited.have_resent(ranges_of(&[(0, 2)]));
        assert_eq!(
            awaited.next_step(&ranges_of(&[(0, 2), (5, 7)]), STUCK_AFTER),
            GroupWait::InProgress,
            "of others"
        );
        assert_eq!(
            awaited.next_step(&ranges_of(&[(0, 2)]), STUCK_AFTER),
            GroupWait::Lost
        );
    }

    #[test]
    fn a_truncated_list_of_missing_groups_counts_the_rest_as_missing() {
        let every_other = |ranges: u32| {
            let ranges: Vec<_> = (0..ranges).map(|number| (2 * number, 1)).collect();
            missing_groups(10_000 * GROUP_BYTES, ranges_of(&ranges)).unwrap()
        };
        let max = u32::try_from(MISSING_RANGES_MAX).unwrap();
        assert_eq!(every_other(max - 1).len(), MISSING_RANGES_MAX - 1);
        let end = 2 * max - 1;
        let rest = GroupRange::new(end, 10_000 - end);
        assert_eq!(every_other(max).last(), Some(&rest));
    }

    #[test]
    fn a_receiver_that_lacks_groups_that_the_file_does_not_have_is_not_heeded() {
        let file = FileHead {
            path: RelPath::from_bytes(b"f").unwrap(),
            metadata: Metadata::default(),
            bytes: 2 * GROUP_BYTES,
            ctime: Timestamp::default(),
            inode: 0,
            data: None,
        };
        let answer = |count| {
            let missing = vec![GroupRange::new(1, count)];
            mover().committed(&file, SharedJobResult::Missing(missing))
        };
        assert_eq!(answer(1).unwrap().unwrap_err().len(), 1);
        assert!(matches!(
            answer(2).unwrap_err(),
            SessionEnd::PeerMisbehaved(_)
        ));
    }
}
