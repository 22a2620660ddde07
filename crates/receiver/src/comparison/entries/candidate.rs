//! Large files that have changed. Hashes the groups of the old version at the target and sends the values to the
//! sender; see [`delta`](crate::store::large_files::delta).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;

use zmove_disk::{DataFile, FileIdentity, Task};
use zmove_types::{Cv, GROUP_BYTES, Name, RelPath};
use zmove_wire::limits::HELD_GROUPS_MAX;
use zmove_wire::{Held, ToSender};

use crate::resume::runs_of;
use crate::rights::quota::Charge;
use crate::session::requests::PendingRequest;
use crate::store::large_files::delta::groups_with_data;
use crate::store::large_files::received_hashes::GROUP_KEPT_BYTES;
use crate::store::transfer::Transfer;

/// A large file at the target that has changed at the source.
///
/// The full path is built only when the file is processed, because one request may contain thousands of candidates in a
/// directory with a long path.
#[derive(Debug)]
pub(crate) struct DeltaCandidate<'r> {
    pub(crate) request: u64,
    /// The index of the file in the request.
    pub(crate) file: u32,
    pub(crate) directory: &'r RelPath,
    pub(crate) name: &'r Name,
    pub(crate) bytes: u64,
    /// Indexes of the groups that an earlier transfer has already stored.
    pub(crate) held: BTreeSet<u32>,
}

impl DeltaCandidate<'_> {
    /// Returns whether a file of `bytes` is large and the existing file with its name is large too.
    pub(crate) fn has_large_version(directory: &OwnedFd, name: &Name, bytes: u64) -> bool {
        let large = |there: FileIdentity| there.regular && there.bytes > GROUP_BYTES;
        bytes > GROUP_BYTES && FileIdentity::at(directory, name).is_ok_and(large)
    }

    /// Hashes the groups of the old version and sends the chaining values in several messages. If `answers` is set, the
    /// last message completes the request.
    pub(crate) fn send_hashes(self, transfer: &Transfer, mut answers: Option<PendingRequest>) {
        // If there is not enough memory for the values, none are sent. The sender then sends the whole file.
        let path = self
            .directory
            .join(self.name)
            .expect("it was put together when the file was looked at");
        let mut held = transfer.quota.charge_memory(path.as_bytes().len()).ok();
        let old = held.as_mut().zip(transfer.target.open_old_at(&path).ok());
        let cvs = old
            .map(|(held, old)| self.hash(transfer, old, held))
            .unwrap_or_default();
        let mut pieces = runs(&cvs).peekable();
        let Self { request, file, .. } = self;
        if held.is_some() {
            // The values are stored before they are sent, because the sender may declare the file as soon as it has
            // received them.
            transfer.old_versions.add(path, cvs, held);
        }
        loop {
            let (first, cvs) = pieces.next().unwrap_or_default();
            let end = pieces.peek().is_none();
            let held = Held {
                request,
                file,
                first,
                cvs,
                end,
            };
            let answers = answers.take_if(|_| end);
            transfer.reports.send(ToSender::Held(held), answers);
            if end {
                return;
            }
        }
    }

    fn hash(&self, transfer: &Transfer, old: File, held: &mut Charge) -> BTreeMap<u32, Cv> {
        let old = DataFile::new(old);
        let mut cvs = BTreeMap::new();
        let turn = transfer.turn(Task::Read);
        let mut groups = groups_with_data(old.file(), self.bytes);
        while !turn.is_over()
            && let Some(span) = groups.next()
        {
            if self.held.contains(&span.index) {
                continue;
            }
            if held.grow(GROUP_KEPT_BYTES).is_err() {
                break;
            }
            // If the old version is shorter or unreadable, it has no further groups.
            let Some(cv) = transfer.old_versions.hash_group(&old, span) else {
                break;
            };
            cvs.insert(span.index, cv);
        }
        cvs
    }
}

/// Splits groups into runs of consecutive numbers that fit into one message, each with its first number.
pub(crate) fn runs(
    groups: &BTreeMap<u32, Cv>,
) -> impl Iterator<Item = (u32, Vec<[u8; 32]>)> + use<> {
    let groups = groups.iter().map(|(index, cv)| (*index, cv.0));
    runs_of(groups, HELD_GROUPS_MAX).into_iter()
}
