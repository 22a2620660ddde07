//! The state shared by all threads of one transfer.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use zmove_disk::{
    Direct, FileIdentity, FileIo, RemovalBudget, StorageReader, Task, Turn, set_file_mtime,
};
use zmove_types::{
    BufferPool, BytesByOrigin, Counters, Cv, DeliveryLog, FileId, GroupSpan, Metadata, Name,
    Origin, RelPath, Root, TransferId,
};
use zmove_wire::{
    Batch, DirectoryGroup, Durability, FileEntry, FileHead, FrameKind, Open, Proof, WireError,
    session::ReceivedItems,
};

use crate::comparison::mirror::aliased::AliasedEntries;
use crate::config::{BUFFER_BYTES, NamedFiles, ReceiverConfig};
use crate::meters::TransferMeter;
use crate::resume::parts::{PartStore, is_overtaken};
use crate::rights::grant::{Allowance, DIRECTORY_BYTES, Fate, PendingId, Received};
use crate::rights::quota::{Charge, Quota};
use crate::rights::top_names::TopNames;
use crate::session::threads::Reporter;
use crate::shared_job::other_jobs::OtherJobs;
use crate::shared_job::session::HeartbeatWriter;
use crate::store::failure::FaultCause;
use crate::store::large_files::delta::OldVersions;
use crate::store::large_files::{Completion, FileTable, LargeFile};
use crate::store::publishing::publisher::{IDLE_MAX, IDLE_MAX_IN_JOB, Publisher};
use crate::store::reports::{ChargedReport, Reports, ThreadReport};
use crate::store::rules::Rules;
use crate::store::spare_parts::SpareParts;
use crate::store::target::Target;
use crate::store::target::metadata_policy::MetadataPolicy;
use crate::store::target::replacement::{ReplacementRules, removals_of};
use crate::store::target::tree::TargetTree;
use zmove_types::Lock;

/// The shared state of one transfer.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) target: TargetTree,
    pub(crate) file_io: Arc<dyn FileIo>,
    /// Reads back stored files.
    pub(crate) storage: StorageReader,
    pub(crate) direct: Direct,
    pub(crate) pool: BufferPool,
    pub(crate) arrivals: Lock<ReceivedItems>,
    pub(crate) files: FileTable,
    /// Parts of failed large files. They may be removed to free space for other files.
    pub(crate) spare_parts: SpareParts,
    pub(crate) parts: PartStore,
    pub(crate) old_versions: OldVersions,
    pub(crate) publisher: Publisher,
    pub(crate) reports: Reports,
    /// The quota that is charged for the transfer's memory, descriptors and threads.
    pub(crate) quota: Quota,
    pub(crate) meter: Arc<TransferMeter>,
    pub(crate) top_names: TopNames,
    pub(crate) allowance: Option<Arc<Allowance>>,
    /// Budget of entries that this transfer may still remove at the target.
    pub(crate) removals: Arc<RemovalBudget>,
    /// Existing entries that must not be removed, because a name of the source refers to them under a different
    /// spelling.
    pub(crate) aliased: AliasedEntries,
    pub(crate) named: Option<Arc<dyn NamedFiles>>,
    delivery_log: Option<Arc<Lock<DeliveryLog>>>,
    /// Charge for the memory of the directory names that count against the allowance.
    directories_allowed: Lock<Charge>,
    other_jobs: OtherJobs,
    pub(crate) stopping: AtomicBool,
}

impl Reporter for Transfer {
    fn reports(&self) -> &Reports {
        &self.reports
    }
}

impl Transfer {
    pub(crate) fn new(
        id: TransferId,
        open: &Open,
        target: Target,
        parts: PartStore,
        config: &ReceiverConfig,
        outcomes: Sender<ChargedReport>,
    ) -> Self {
        let quota = config.quota.clone();
        let rules = Rules::of(open, &config.rights);
        let reports = Reports {
            outcomes,
            quota: quota.clone(),
        };
        let is_kept = open.proof == Proof::Media || config.named.is_some();
        let values = is_kept.then(|| quota.clone());
        let named = open.keeping.named;
        let policy = MetadataPolicy::new(rules, &config.accounts, named.then(|| reports.clone()));
        let whole = if target.shared_job.is_some() {
            Completion::SenderOrder
        } else {
            Completion::AllGroups
        };
        let idle_max = match open.durability {
            Durability::File => Duration::ZERO,
            _ if target.shared_job.is_some() => IDLE_MAX_IN_JOB,
            _ => IDLE_MAX,
        };
        let own = target.shared_job.as_ref().map(|session| session.job);
        let other_jobs = OtherJobs::new(own, target.tree.lease(), None);
        let removals = config.removals.clone().unwrap_or_else(|| removals_of(open));
        let replacement = ReplacementRules::of(open, Arc::clone(&removals));
        Self {
            target: TargetTree::new(
                target,
                rules,
                replacement,
                policy,
                id,
                &quota,
                config.writers,
            ),
            file_io: Arc::clone(&config.file_io),
            storage: StorageReader::new(&config.file_io, config.writers),
            direct: config.direct,
            pool: BufferPool::new(BUFFER_BYTES, config.buffers_max),
            arrivals: Lock::default(),
            files: FileTable::new(&quota, values, whole),
            spare_parts: SpareParts::default(),
            parts,
            old_versions: OldVersions::new(
                config.writers,
                Arc::clone(&config.file_io),
                config.direct,
            ),
            publisher: Publisher::new(idle_max),
            reports,
            aliased: AliasedEntries::new(&quota),
            quota,
            meter: Arc::clone(&config.meter),
            top_names: config.top_names.clone(),
            allowance: config.allowance.clone(),
            named: config.named.clone(),
            delivery_log: config.delivery_log.clone(),
            removals,
            directories_allowed: Lock::new(config.quota.empty_charge()),
            other_jobs,
            stopping: AtomicBool::new(false),
        }
    }

    /// Replaces the state of jobs of other runs with `other_jobs`, which already knows some of these jobs.
    pub(crate) fn with_other_jobs(self, other_jobs: OtherJobs) -> Self {
        Self { other_jobs, ..self }
    }

    /// Records that the target directory was already [entered](Self::enter).
    pub(crate) fn note_entered(&self) {
        let _done = self.publisher.sweep(&RelPath::root(), || Ok(()));
    }

    /// Ends all waits for jobs of other runs, because the session ends.
    pub(crate) fn stop_waiting(&self) {
        self.other_jobs.stop();
    }

    /// Returns the writer of the job's heartbeat, if this receiver writes it.
    pub(crate) fn heartbeat_writer(&self) -> Option<Arc<HeartbeatWriter>> {
        self.target.shared_job.as_ref()?.heartbeat_writer.clone()
    }

    /// [Enters](OtherJobs::enter) a directory: removes the entries of dead processes, and waits for jobs of other runs.
    /// Does nothing if this transfer has already entered the directory.
    pub(crate) fn enter(&self, path: &RelPath, directory: &Arc<OwnedFd>) -> io::Result<()> {
        self.publisher.sweep(path, || {
            let dead = self.other_jobs.enter(&self.target.tree, path, directory)?;
            self.other_jobs.end(dead);
            Ok(())
        })
    }

    /// Returns a turn (permission to run) for a thread that is about to do this task.
    pub(crate) fn turn(&self, task: Task) -> Turn<'_> {
        self.quota.turn(task, &self.stopping)
    }

    /// Runs `work` on this thread, and also on other threads if storage latency is high.
    pub(crate) fn run_parallel<T: Send>(
        &self,
        task: Task,
        name: &str,
        work: impl Fn(&Turn<'_>) -> T + Sync,
    ) -> Vec<T> {
        self.quota.run_parallel(task, name, &self.stopping, work)
    }

    /// Remembers the directory at `path`, or its child `name` if given. Its mode and time are set at the end of the
    /// transfer, when nothing more is added to it. In a shared job, an order of the sender sets them at the end of the
    /// job.
    pub(crate) fn remember_directory(
        &self,
        path: &Arc<RelPath>,
        name: Option<&Name>,
        metadata: Metadata,
    ) {
        if let Err(error) = self.target.directories.remember(path, name, metadata) {
            self.reports.report(ThreadReport::OverLimit(error));
        }
    }

    /// Returns whether an item is received for the first time. The caller must drop a repeated item.
    pub(crate) fn accept_item(&self, item: u64) -> Result<bool, WireError> {
        self.arrivals.lock().insert(item)
    }

    /// Charges the allowance for a received item, if the grant limits the transfer.
    pub(crate) fn charge(&self, what: PendingId, taken: Received) -> Result<(), WireError> {
        self.allowance
            .as_ref()
            .map_or(Ok(()), |allowance| allowance.charge(what, taken))
    }

    /// Charges the allowance for the directories in a batch, if the grant limits the transfer.
    pub(crate) fn charge_directories(&self, batch: &Batch) -> Result<(), WireError> {
        let Some(allowance) = &self.allowance else {
            return Ok(());
        };
        let new = allowance.charge_directories(batch)?;
        self.directories_allowed.lock().grow(new * DIRECTORY_BYTES)
    }

    /// Charges the allowance for the parent directories of a large file, like
    /// [`charge_directories`](Self::charge_directories).
    pub(crate) fn charge_parents(&self, path: &RelPath) -> Result<(), WireError> {
        let directory = path.directory();
        self.charge_directories(&Batch {
            groups: vec![DirectoryGroup {
                directory,
                entries: Vec::new(),
            }],
        })
    }

    /// Records the outcome of a received item in the allowance.
    pub(crate) fn settle(&self, what: PendingId, fate: Fate<'_>) {
        if let Some(allowance) = &self.allowance {
            allowance.settle(what, fate);
        }
    }

    /// Counts a small file that was renamed into place. `path` returns its path at the source.
    pub(crate) fn stored_small(&self, file: &FileEntry, path: impl FnOnce() -> Option<RelPath>) {
        let origins = BytesByOrigin::of(Origin::Sent, file.data_bytes() as u64);
        self.stored(file.bytes.into(), &origins.of_file(), path, Some(file.root));
    }

    /// Counts a hard link that was created at the target.
    pub(crate) fn stored_link(&self, path: impl FnOnce() -> Option<RelPath>) {
        let counters = Counters {
            files: 1,
            hard_links: 1,
            ..Counters::default()
        };
        // No bytes are counted, because they were counted with the first name of the file.
        self.stored(0, &counters, path, None);
    }

    /// Counts a regular file of `bytes` bytes that was renamed into place. `path` returns the path of the file at the
    /// source. Notifies the observer of published files only if `root` is given.
    pub(crate) fn stored(
        &self,
        bytes: u64,
        counters: &Counters,
        path: impl FnOnce() -> Option<RelPath>,
        root: Option<Root>,
    ) {
        self.meter.count_stored(bytes);
        if self.named.is_none() && self.delivery_log.is_none() {
            return;
        }
        let path = path();
        if let Some(delivery_log) = &self.delivery_log {
            let mut delivery_log = delivery_log.lock();
            delivery_log.count(counters);
            path.iter().for_each(|path| delivery_log.note(path));
        }
        if let Some(named) = &self.named
            && let Some((path, root)) = path.zip(root)
        {
            named.named(path, root);
        }
    }

    /// Returns the origins of the bytes in `groups`, which were already at the target when the file was declared.
    pub(crate) fn origins_of_held(&self, head: &FileHead, groups: &[(u32, Cv)]) -> BytesByOrigin {
        let mut origins = BytesByOrigin::default();
        let Some(delivery_log) = &self.delivery_log else {
            return origins;
        };
        let delivery_log = delivery_log.lock();
        let spans = groups
            .iter()
            .filter_map(|(index, _)| GroupSpan::of(head.bytes, *index));
        for span in spans {
            let origin = delivery_log.origin(&head.path, span.index);
            origins += BytesByOrigin::of(origin, head.data_bytes_within(span));
        }
        origins
    }

    /// Records that a group of a large file was stored from a frame of kind `kind`. Returns the origin of its bytes.
    pub(crate) fn note_group(&self, path: &RelPath, index: u32, kind: FrameKind) -> Origin {
        let mut delivery_log = self
            .delivery_log
            .as_ref()
            .map(|delivery_log| delivery_log.lock());
        let origin = match (kind, &delivery_log) {
            (FrameKind::Same, Some(delivery_log)) => delivery_log.origin_of_same(path, index),
            (FrameKind::Same, None) => Origin::Matched,
            _ => Origin::Sent,
        };
        if let Some(delivery_log) = &mut delivery_log {
            delivery_log.note_group(path, index, origin);
        }
        origin
    }

    /// Discards a large file that the sender has abandoned.
    pub(crate) fn abandon_file(&self, id: FileId) {
        if let Some(file) = self.files.retire(id) {
            self.discard_retired(&file);
        }
    }

    /// Discards all data that was written for a retired file.
    pub(crate) fn discard_retired(&self, file: &LargeFile) {
        file.give_up(|staged| self.parts.remove(file.id, staged));
        self.parts.ended(file.id);
    }

    /// Discards each unfinished file if another process has created a file under its final name in the meantime.
    /// Preserves the time of the directory. For each other unfinished file, records the current state of its part
    /// (temporary file) in the journal. Must be called after the last write.
    pub(crate) fn drop_overtaken(&self) {
        // In a shared job, nothing is discarded, because other receivers still use the parts.
        if self.target.shared_job.is_some() {
            return self.parts.finish();
        }
        for file in self.files.living() {
            let Some(directory) = self.overtaken_directory(&file) else {
                if let Some(there) = file.identity() {
                    self.parts.left(file.id, &there);
                }
                continue;
            };
            let before = FileIdentity::of(&directory);
            self.abandon_file(file.id);
            // The last reference is dropped here, which removes the temporary file.
            drop(file);
            if let Ok(before) = before
                && let Ok(permit) = self.target.tree.lease().permit()
            {
                let _best_effort = set_file_mtime(permit, &directory, before.mtime);
            }
        }
        self.parts.finish();
    }

    fn overtaken_directory(&self, file: &LargeFile) -> Option<Arc<OwnedFd>> {
        let path = self.target.final_path(&file.head);
        let directory = self.target.tree.open_directory(&path.parent()?).ok()?;
        is_overtaken(&directory, &path.file_name()?, &file.identity()?).then_some(directory)
    }

    /// Ends a large file with a fault, unless it has already ended. Its written groups are kept for a later transfer.
    pub(crate) fn fail_file(&self, id: FileId, fault: FaultCause) {
        // Threads that look for parts to remove hold the same lock. So such a thread finds the file either unfinished
        // or among the spare parts.
        let _turn = fault.code.is_no_room().then(|| self.spare_parts.turn());
        if let Some(file) = self.files.retire(id) {
            if file.is_blank() || self.target.shared_job.is_some() {
                self.discard_retired(&file);
            } else if fault.code.is_no_room() {
                let dropped = self.spare_parts.keep(&file);
                dropped.iter().for_each(|file| self.discard_retired(file));
            }
            self.report_failed_file(&file, fault);
        }
    }

    /// Reports the fault of a retired file to the session.
    pub(crate) fn report_failed_file(&self, file: &LargeFile, fault: FaultCause) {
        self.failed_at(fault, || Some(file.head.path.clone()));
        self.reports
            .report(ThreadReport::File(fault.of_file(file.id)));
    }

    /// Records the path of an entry that failed.
    pub(crate) fn failed_at(&self, cause: FaultCause, path: impl FnOnce() -> Option<RelPath>) {
        self.meter.failed_at(cause.operation, cause.code, path);
    }
}
