//! What all threads of one transfer share.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use tokio::sync::mpsc::Sender;
use zmove_disk::{
    Direct, Disk, FileIdentity, KeptTimes, Replace, TempNames, retouch, set_directory_metadata,
    set_new_file_metadata,
};
use zmove_types::{BufferPool, FileId, ItemId, Metadata, Name, RelPath};
use zmove_wire::{
    Durability, EntryFault, Extraneous, FaultCode, FileDone, FileHead, Operation, Overwrite, StoredItem,
    WireError, session::Arrivals,
};

use crate::account::{Account, Held as Booked};
use crate::meters::TransferMeter;
use crate::resume::parts::{Parts, is_overtaken};
use crate::store::failure::Failure;
use crate::store::large_files::delta::Bases;
use crate::store::large_files::{FileTable, LargeFile};
use crate::store::outcome::{Outcome, Told};
use crate::store::publishing::publisher::Publisher;
use crate::store::set_ids::SetIds;
use crate::store::target::Target;
use crate::store::target::directories::Directories;
use crate::store::target::file_systems::{FileSystems, Flush};

/// See the module.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) target: Target,
    pub(crate) durability: Durability,
    pub(crate) overwrite: Overwrite,
    pub(crate) extraneous: Extraneous,
    /// Whether files that are there are to be changed in their place.
    pub(crate) in_place: bool,
    pub(crate) set_ids: SetIds,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) direct: Direct,
    pub(crate) pool: BufferPool,
    pub(crate) files: FileTable,
    pub(crate) parts: Parts,
    pub(crate) bases: Bases,
    pub(crate) arrivals: Mutex<Arrivals>,
    pub(crate) temp_names: TempNames,
    pub(crate) times: KeptTimes,
    /// How many files have another time than the source's, since their file system does not have that.
    pub(crate) times_beyond_range: AtomicU64,
    pub(crate) file_systems: FileSystems,
    pub(crate) publisher: Publisher,
    /// Whether what is written is to be published without waiting for more: the sender goes on only then, or wants each file
    /// durable by itself.
    pub(crate) promptly: bool,
    pub(crate) directories: Directories,
    /// How many directories each writer may keep open.
    pub(crate) directories_each: usize,
    pub(crate) outcomes: Sender<Told>,
    /// What the transfer holds is booked there.
    pub(crate) account: Account,
    pub(crate) meter: Arc<TransferMeter>,
    pub(crate) stopping: AtomicBool,
}

impl Context {
    /// Directories get their mode and time at the end, when nothing is put into them any more: this one, or that of the name
    /// in it.
    pub(crate) fn remember_directory(&self, path: &Arc<RelPath>, name: Option<&Name>, metadata: Metadata) {
        if let Err(error) = self.directories.remember(path, name, metadata) {
            self.tell(Outcome::OverLimit(error));
        }
    }

    /// Whether a new name takes the place of what has it already.
    pub(crate) const fn replaces(&self) -> Replace {
        match self.overwrite {
            Overwrite::Differing | Overwrite::Older => Replace::Existing,
            Overwrite::Nothing => Replace::Nothing,
        }
    }

    /// What a new file gets before its name.
    pub(crate) fn set_metadata(&self, file: &File, metadata: &Metadata) -> Result<(), Failure> {
        set_new_file_metadata(file, metadata).map_err(|error| (Operation::SetMetadata, error))?;
        self.count_beyond_range(metadata.mtime, || FileIdentity::of(file));
        Ok(())
    }

    /// Sets mode and time of a file that is there.
    pub(crate) fn retouch(&self, directory: &OwnedFd, name: &Name, metadata: &Metadata) -> io::Result<()> {
        self.file_systems.note(directory)?;
        retouch(directory.as_fd(), name, metadata)?;
        self.flush_if_each(directory, |directory| {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty())?;
            Ok(rustix::fs::fsync(file)?)
        })
    }

    /// Flushes what has been changed at once, where the end of the transfer flushes nothing as a whole.
    pub(crate) fn flush_if_each<F: AsFd>(
        &self,
        changed: &F,
        flush: impl FnOnce(&F) -> io::Result<()>,
    ) -> io::Result<()> {
        let each = self.durability != Durability::None && self.file_systems.note(changed)? == Flush::Each;
        if each { flush(changed) } else { Ok(()) }
    }

    /// Tells the session; waits while it has much to tell the peer. For threads only.
    pub(crate) fn tell(&self, outcome: Outcome) {
        // nobody listens any more only when the session is over
        let _session_over = self.outcomes.blocking_send(Told::new(outcome, &self.account));
    }

    /// The same with what the outcome takes, which is booked already.
    pub(crate) fn tell_booked(&self, outcome: Outcome, held: Booked) {
        // as above
        let _session_over = self.outcomes.blocking_send(Told { outcome, held });
    }

    /// Whether an item has come for the first time; it is dropped otherwise.
    pub(crate) fn let_in(&self, item: u64) -> Result<bool, WireError> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).insert(item)
    }

    pub(crate) fn settle(&self, item: ItemId, faults: Vec<EntryFault>) {
        self.tell(Outcome::Item(StoredItem { item: item.0, mismatch: false, faults }));
    }

    /// Where a large file goes in the end.
    pub(crate) fn final_path(&self, head: &FileHead) -> RelPath {
        let parent = head.path.parent().unwrap_or_else(RelPath::root);
        let Some(name) = head.path.file_name() else { return head.path.clone() };
        parent.join(self.target.name(&parent, &name)).unwrap_or_else(|_| head.path.clone())
    }

    /// The sender has given a large file up: nothing is left of it.
    pub(crate) fn abandon_file(&self, id: FileId) {
        if let Some(file) = self.files.retire(id) {
            self.discard_retired(&file);
        }
    }

    /// Nothing is left of a file that has been retired.
    pub(crate) fn discard_retired(&self, file: &LargeFile) {
        file.discard();
        self.parts.ended(file.id);
    }

    /// Drops what has come of files that somebody else has put there since, whose directory keeps its times; of the others it
    /// tells how they are left. To be called when nothing is written any more.
    pub(crate) fn drop_overtaken(&self) {
        for file in self.files.living() {
            let Some(directory) = self.where_overtaken(&file) else {
                if let Some(there) = file.identity() {
                    self.parts.left(file.id, &there);
                }
                continue;
            };
            let before = FileIdentity::of(&directory);
            self.abandon_file(file.id);
            // the last who holds it: now it goes
            drop(file);
            if let Ok(before) = before {
                let _best_effort = set_directory_metadata(directory.as_fd(), &before.metadata());
            }
        }
        self.parts.finish();
    }

    fn where_overtaken(&self, file: &LargeFile) -> Option<Arc<OwnedFd>> {
        let path = self.final_path(&file.head);
        let directory = self.target.tree.open_directory(&path.parent()?).ok()?;
        is_overtaken(&directory, &path.file_name()?, &file.identity()?).then_some(directory)
    }

    /// Ends a large file badly, unless it has ended before. What has come of it stays for another transfer, if anything has.
    pub(crate) fn fail_file(&self, id: FileId, fault: (Operation, FaultCode)) {
        if let Some(file) = self.files.retire(id) {
            if file.is_blank() {
                file.discard();
                self.parts.ended(id);
            }
            self.tell(Outcome::File(FileDone { file: id.0, fault: Some(fault) }));
        }
    }
}
