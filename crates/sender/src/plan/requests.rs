//! The files that a push asks the receiver about, and which of their groups the target holds.

use std::collections::HashMap;

use zmove_scan::Entry;
use zmove_types::{Cv, GROUP_BYTES, GroupSpan};
use zmove_wire::limits::REQUESTS_OUTSTANDING_MAX;
use zmove_wire::{EntryGroup, Held, Verdict};

use crate::control::relay::Reservation;
use crate::plan::asked::{AskedEntry, entry_groups};
use crate::plan::gathered::RequestBacklog;
use crate::plan::pack::PackEntry;
use crate::read::extras::Extras;
use crate::read::group_values::GroupValues;
use crate::read::source::SourceDirectory;

/// The files that a push asks the receiver about.
#[derive(Default)]
pub(crate) struct Requests {
    gathered: RequestBacklog,
    outstanding: HashMap<u64, OpenQuestion>,
    /// Files whose old version the receiver is still examining, by request number and index in the request.
    awaited: HashMap<(u64, u32), AnsweredFile>,
}

/// A file with the receiver's answer.
#[derive(Debug)]
pub(crate) struct AnsweredFile {
    pub(crate) directory: SourceDirectory,
    pub(crate) entry: Entry,
    pub(crate) verdict: Verdict,
    /// Values of the groups that were received in an earlier transfer.
    pub(crate) held: GroupValues,
    /// Values of the groups of an old version at the target, as far as the receiver has sent them.
    pub(crate) there: GroupValues,
}

struct OpenQuestion {
    files: Vec<AskedEntry>,
    /// Values of the groups that the target holds, by the file's index in the request.
    held: HashMap<u32, GroupValues>,
}

impl Requests {
    /// Adds a file.
    pub(crate) fn add(&mut self, directory: &SourceDirectory, entry: Entry) {
        self.gathered
            .add(AskedEntry::new(directory, PackEntry::Within(entry)));
    }

    /// Takes gathered files for a request. Returns the number of the request and its files. Returns `None` if no files
    /// are gathered or the limit of outstanding requests is reached.
    pub(crate) fn next_request(&mut self, extras: &Extras) -> Option<(u64, Vec<EntryGroup>)> {
        if self.gathered.is_empty() || !self.may_ask() {
            return None;
        }
        let (number, files) = self.gathered.take();
        let groups = entry_groups(&files, extras);
        let held = HashMap::new();
        self.outstanding
            .insert(number, OpenQuestion { files, held });
        Some((number, groups))
    }

    /// Returns whether the number of outstanding requests is below the limit.
    pub(crate) fn may_ask(&self) -> bool {
        self.outstanding.len() + self.awaited.len() < REQUESTS_OUTSTANDING_MAX
    }

    /// Stores the values of a file's groups that the target holds, together with the reservation of their memory.
    /// Values beyond the end of the file are ignored. Returns the file if it was waiting for this message and the
    /// message was the last one about it.
    pub(crate) fn take_held(&mut self, held: &Held, booked: Reservation) -> Option<AnsweredFile> {
        let key = (held.request, held.file);
        if let Some(file) = self.awaited.get_mut(&key) {
            fill(&mut file.there, &file.entry, held, booked);
            return held.end.then(|| self.awaited.remove(&key)).flatten();
        }
        let OpenQuestion {
            files,
            held: by_file,
        } = self.outstanding.get_mut(&held.request)?;
        let entry = files.get(held.file as usize)?.what.entry()?;
        fill(by_file.entry(held.file).or_default(), entry, held, booked);
        None
    }

    /// Processes the answer to a request. Returns its files, each with the verdict. Files that are missing from the
    /// result follow when [all their values](Self::take_held) have been received.
    pub(crate) fn take_answer(
        &mut self,
        request: u64,
        verdicts: Vec<Verdict>,
    ) -> Vec<AnsweredFile> {
        let Some(OpenQuestion { files, mut held }) = self.outstanding.remove(&request) else {
            return Vec::new();
        };
        // A missing verdict must not lose a file.
        let verdicts = verdicts.into_iter().chain(std::iter::repeat(Verdict::New));
        let mut answered = Vec::with_capacity(files.len());
        for ((number, AskedEntry { directory, what }), verdict) in (0..).zip(files).zip(verdicts) {
            let PackEntry::Within(entry) = what else {
                continue;
            };
            // A file of one group is sent whole.
            let is_awaited = verdict == Verdict::Delta && entry.size > GROUP_BYTES;
            let file = AnsweredFile {
                directory,
                entry,
                verdict,
                held: held.remove(&number).unwrap_or_default(),
                there: GroupValues::default(),
            };
            if is_awaited {
                self.awaited.insert((request, number), file);
            } else {
                answered.push(file);
            }
        }
        answered
    }

    /// Returns whether enough files have been gathered for a request.
    pub(crate) fn is_full(&self) -> bool {
        self.gathered.is_full()
    }

    /// Returns whether the receiver has been asked about every file and has answered every request.
    pub(crate) fn is_done(&self) -> bool {
        self.gathered.is_empty() && self.outstanding.is_empty() && self.awaited.is_empty()
    }
}

/// Adds the values from a message about a large file's groups.
fn fill(values: &mut GroupValues, entry: &Entry, held: &Held, booked: Reservation) {
    let groups = GroupSpan::count(entry.size)
        .filter(|count| *count > 1)
        .unwrap_or(0);
    (held.first..groups)
        .zip(&held.cvs)
        .for_each(|(index, cv)| values.insert(index, Cv(*cv)));
    if held.first < groups {
        values.hold(booked);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zmove_chunk::Groups;
    use zmove_types::BytesByOrigin;
    use zmove_types::FileId;

    use super::*;
    use crate::read::source::LargeSource;
    use crate::send::in_flight::tests::vanished;

    /// A file of 16 PiB that is a single hole takes no storage, and a receiver that has dialed may report thousands of
    /// such files.
    #[test]
    fn held_groups_of_a_huge_file_take_memory_only_for_themselves() {
        let file = vanished(1).remove(0);
        let entry = Entry {
            size: u64::from(u32::MAX) * GROUP_BYTES,
            ..file.entry.clone()
        };
        let mut requests = Requests::default();
        (0..2).for_each(|_| requests.add(&file.directory, entry.clone()));
        let request = requests.next_request(&Extras::default()).unwrap().0;
        let booked = Arc::new(());
        let mut tell = |file, first, end| {
            let held = Held {
                request,
                file,
                first,
                cvs: vec![[7; 32]; 2],
                end,
            };
            requests.take_held(&held, Box::new(Arc::clone(&booked)))
        };
        assert!(tell(0, 5, true).is_none());
        assert!(tell(0, u32::MAX, true).is_none(), "there is no such group");
        assert_eq!(Arc::strong_count(&booked), 2, "of what is kept");
        let verdicts = vec![Verdict::Resume, Verdict::Delta];
        let mut answered = requests.take_answer(request, verdicts);
        let AnsweredFile {
            directory,
            entry,
            held,
            there,
            ..
        } = answered.remove(0);
        assert_eq!((held.count(), there.count()), (2, 0));
        let source =
            LargeSource::new(FileId(1), &directory, entry).resuming(held, BytesByOrigin::default());
        assert_eq!(source.groups(), Groups([0..5, 7..u32::MAX].into()));
        drop(source);
        assert_eq!(Arc::strong_count(&booked), 1, "given back with the values");
        let held = Held {
            request,
            file: 1,
            first: u32::MAX - 1,
            cvs: vec![[7; 32]; 2],
            end: true,
        };
        let AnsweredFile { there, .. } = requests.take_held(&held, Box::new(())).unwrap();
        assert_eq!(there.known().collect::<Vec<_>>(), [u32::MAX - 1]);
    }
}
