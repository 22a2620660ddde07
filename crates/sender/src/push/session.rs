//! The state that all stages of one session share.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use zmove_disk::{Direct, FileIdentity};
use zmove_scan::{Directory, Entry, EntryKind, ScanItem};
use zmove_types::{FileId, Lock, Observer};
use zmove_wire::limits::FRAME_HEAD_BYTES_MAX;
use zmove_wire::{Batch, BatchEntry, DirectoryGroup, FileHead, ToReceiver, directory_batches};

use crate::account::PushAccount;
use crate::account::failure::FileError;
use crate::account::timeline::Timeline;
use crate::control::relay::PeerQuota;
use crate::plan::queue::Queue;
use crate::read::extras::{Extras, drop_xattrs};
use crate::read::read_ahead::ReadAhead;
use crate::read::source::{LargeSource, SourceDirectory};
use crate::send::in_flight::InFlight;
use crate::send::push_rate::PushRate;

/// The state that all stages of one session share.
pub(crate) struct Session {
    pub(crate) account: PushAccount,
    pub(crate) timeline: Timeline,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) queue: Queue,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) extras: Extras,
    pub(crate) rate: PushRate,
    /// Locked while a message from the receiver is processed. If a thread takes this lock and finds nothing in flight,
    /// all effects of the receiver's messages are visible to the thread.
    pub(crate) entering: Lock<()>,
    /// The quota for the receiver's use of this host's memory and threads.
    pub(crate) quota: Arc<dyn PeerQuota>,
}

impl Session {
    /// Creates a session that began at `started`. Messages to the receiver are sent through `outgoing`.
    pub(crate) fn new(
        observer: Arc<dyn Observer>,
        extras: Extras,
        started: Instant,
        outgoing: UnboundedSender<ToReceiver>,
        quota: Arc<dyn PeerQuota>,
    ) -> Self {
        let in_flight = Arc::new(InFlight::new(Arc::clone(&observer), outgoing));
        Self {
            account: PushAccount::new(observer),
            extras,
            timeline: Timeline::new(started),
            queue: Queue::new(Arc::clone(&in_flight)),
            in_flight,
            read_ahead: ReadAhead::new(),
            rate: PushRate::default(),
            entering: Lock::default(),
            quota,
        }
    }

    /// Returns the declaration of a large file in its current state.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be read, or a message that the file has changed since the scan found it.
    pub(crate) fn declare(
        &self,
        directory: &Arc<Directory>,
        entry: Entry,
        direct: Direct,
    ) -> Result<FileHead, String> {
        let source = LargeSource::new(FileId(0), &SourceDirectory::held_open(directory), entry);
        let carry = |opened: &File, identity: &FileIdentity| {
            self.extras.file_metadata(opened, identity, &source.entry).0
        };
        let opened = source.open(
            direct,
            self.extras.holes(),
            || self.in_flight.is_stopping(),
            carry,
        );
        opened.map_err(|error| error.to_string())?;
        let head = source.head().expect("it has been opened");
        Ok(head)
    }

    /// Returns the heads of orders that set the modes and times of these directories.
    pub(crate) fn directory_batches(&self, found: &[ScanItem]) -> Vec<Batch> {
        let groups = found.iter().flat_map(|item| self.directories_of(item));
        directory_batches(groups)
            .map(with_fitting_attributes)
            .collect()
    }

    fn directories_of(&self, item: &ScanItem) -> Vec<DirectoryGroup> {
        let itself = |directory, metadata| DirectoryGroup {
            directory,
            entries: vec![BatchEntry::Itself(metadata)],
        };
        match item {
            ScanItem::Root {
                directory,
                metadata,
                properties,
            } => {
                let source = SourceDirectory::held_open(directory);
                let (metadata, _told_before) = self
                    .extras
                    .directory_metadata(&source, metadata, properties);
                vec![itself(source.target_path().clone(), metadata)]
            }
            ScanItem::Batch(batch) => {
                let source = SourceDirectory::held_open(&batch.directory);
                let directories = batch
                    .entries
                    .iter()
                    .filter(|entry| entry.kind == EntryKind::Directory);
                let group = |entry: &Entry| {
                    let path = source.target_path().join(&entry.name).ok()?;
                    Some(itself(path, self.extras.entry_metadata(&source, entry).0))
                };
                directories.filter_map(group).collect()
            }
            ScanItem::Error(_) => Vec::new(),
        }
    }

    /// Fails a large file on this side, so that no part of the file appears at the target. If the file has already
    /// ended, its reported result stays unchanged.
    pub(crate) fn fail_large(&self, file: &LargeSource, error: &FileError) {
        if let Some(counted) = self.in_flight.abandon_large(file.id) {
            self.account.fail_large(file, counted, error);
        }
    }
}

/// Removes the extended attributes of a single directory if they exceed the maximum size of an order. A batch of
/// several directories always fits.
fn with_fitting_attributes(mut batch: Batch) -> Batch {
    if let [_alone] = &*batch.groups
        && let Some(excess) = batch.encode().len().checked_sub(FRAME_HEAD_BYTES_MAX)
    {
        let _told_when_it_was_made = drop_xattrs(&mut batch, excess);
    }
    batch
}
