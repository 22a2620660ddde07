//! The directory that a transfer writes to, and its rules. This module inspects existing entries and makes the changes
//! that do not wait for the publisher.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zmove_chunk::{contents_digest, read_root};
use zmove_disk::{
    Descriptor, FileIdentity, HasXattrs, JobSession, LastingNames, Lease, Linked, MetadataFailure,
    NameAt, NewEntryGroup, NewFiles, Permit, ProvenKinds, READ, Replace, Staged, TimeResolutions,
    Tree, WantedMetadata, is_foreign_owner_failure, next_data_offset, number_at, open_at,
    open_beneath, place_link, set_metadata_if_unchanged,
};
use zmove_types::{
    AtomicCounters, GROUP_BYTES, Metadata, MetadataKinds, Name, RelPath, Timestamp, TransferId,
};
use zmove_wire::{
    Compare, Differences, FileEntry, FileHead, LinkEntry, Operation, Overwrite, TargetState,
    Verdict,
};

use crate::comparison::entries::{Comparator, Purpose, SourceFile, SourceXattrs};
use crate::rights::quota::Quota;
use crate::shared_job::session::SharedJobSession;
use crate::store::failure::{Failure, with_operation};
use crate::store::rules::Rules;
use crate::store::target::Target;
use crate::store::target::compared::ComparedFiles;
use crate::store::target::directories::Directories;
use crate::store::target::file_systems::{FileSystems, Flush};
use crate::store::target::links::Claims;
use crate::store::target::metadata_policy::{EntryLocation, MetadataPolicy};
use crate::store::target::replacement::ReplacementRules;

/// The opened target of one transfer, shared by its threads.
#[derive(Debug)]
pub(crate) struct TargetTree {
    /// The rules of the transfer, and the properties of the target that were found so far.
    pub(crate) view: Comparator,
    /// The target directory. All paths are relative to it.
    pub(crate) tree: Tree,
    /// Whether any of the entries to write existed when the target was opened.
    pub(crate) state: TargetState,
    /// Whether this session created the directory with access for its owner only. The final mode has not been received
    /// yet.
    pub(crate) is_closed: bool,
    /// The previous mode of the directory, if this session changed the mode to give the owner access. The final mode
    /// has not been received yet.
    pub(crate) mode_before: Option<Mode>,
    pub(crate) part_names: LastingNames,
    /// Kinds of metadata that each file system has preserved so far when they were set.
    pub(crate) proven: ProvenKinds,
    /// The files whose contents were compared.
    pub(crate) compared: ComparedFiles,
    /// Counters of the receiver for the final report.
    pub(crate) counters: AtomicCounters,
    pub(crate) file_systems: FileSystems,
    /// Directories whose mode and time are set at the end of the transfer.
    pub(crate) directories: Directories,
    /// Maximum number of directories that each writer may keep open.
    pub(crate) directories_each: usize,
    /// The session in a job of several receivers, if the transfer belongs to one.
    pub(crate) shared_job: Option<SharedJobSession>,
    /// The rules for replacing a directory by another entry of the same name.
    pub(super) replacement: ReplacementRules,
}

/// A file that has just been created in a directory.
#[derive(Clone, Copy)]
pub(crate) struct NewFile<'a> {
    pub(crate) file: &'a File,
    pub(crate) new_files: &'a NewFiles,
    pub(crate) directory: &'a OwnedFd,
}

impl TargetTree {
    pub(crate) fn new(
        target: Target,
        rules: Rules,
        replacement: ReplacementRules,
        policy: MetadataPolicy,
        transfer: TransferId,
        quota: &Quota,
        writers: usize,
    ) -> Self {
        let Target {
            tree,
            rename,
            state,
            is_closed,
            mode_before,
            shared_job,
        } = target;
        let tag = &transfer.to_string()[..LastingNames::TAG_DIGITS];
        let tree = tree.with_modes(rules.directory_modes());
        Self {
            view: Comparator {
                rename,
                times: TimeResolutions::under(tree.lease().clone()),
                policy,
                claims: Claims::new(quota),
            },
            file_systems: FileSystems::under(tree.lease().clone()),
            tree,
            state,
            is_closed,
            mode_before,
            part_names: LastingNames::new(tag),
            proven: ProvenKinds::default(),
            compared: ComparedFiles::new(quota),
            counters: AtomicCounters::default(),
            directories: Directories::new(quota),
            directories_each: quota.directories_each(writers),
            shared_job,
            replacement,
        }
    }

    /// Returns the session in a job of several receivers, if the transfer belongs to one.
    pub(crate) fn job(&self) -> Option<&Arc<JobSession>> {
        Some(&self.shared_job.as_ref()?.session)
    }

    /// Returns the directory in which an entry of `directory` is created under a hidden name before it is renamed into
    /// place.
    pub(crate) fn staging_parent<'a>(&'a self, directory: &'a Arc<OwnedFd>) -> &'a Arc<OwnedFd> {
        self.job().map_or(directory, |job| job.own())
    }

    /// Returns the metadata to set on a file that will be stored under this name. If modes are not preserved, the mode
    /// of an existing file under this name is used.
    pub(crate) fn of_file<'a>(
        &self,
        NameAt { directory, name }: NameAt<'_>,
        metadata: &'a Metadata,
    ) -> Cow<'a, Metadata> {
        if self.view.policy.rules.kinds.has_any(MetadataKinds::MODE) {
            return self.view.policy.rules.of_file(metadata);
        }
        match FileIdentity::at(directory, name) {
            Ok(there) if there.regular => self
                .view
                .policy
                .rules
                .metadata_of_replacement(metadata, &there),
            _another_or_none => self.view.policy.rules.of_file(metadata),
        }
    }

    /// Returns the final path of a large file.
    pub(crate) fn final_path(&self, head: &FileHead) -> RelPath {
        let parent = head.path.directory();
        let Some(name) = head.path.file_name() else {
            return head.path.clone();
        };
        parent
            .join(self.view.name(&parent, &name))
            .unwrap_or_else(|_| head.path.clone())
    }

    /// Opens the existing entry at the final path of a file that is about to be stored. See [`open_old`].
    ///
    /// # Errors
    /// Returns an I/O error if the entry cannot be opened.
    pub(crate) fn open_old_at(&self, path: &RelPath) -> io::Result<File> {
        let Some((parent, name)) = path.split() else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        open_old(self.tree.open_directory(&parent)?.as_fd(), &name)
    }

    /// Sets the metadata of a file before it is renamed into place, or after it was changed in place.
    pub(crate) fn set_metadata(
        &self,
        permit: Permit<'_>,
        file: &File,
        metadata: &Metadata,
        at: EntryLocation<'_>,
    ) -> Result<(), Failure> {
        self.set_whole(permit, Descriptor::Open(file.as_fd()), metadata, at)
            .map_err(with_operation(Operation::SetMetadata))?;
        Ok(())
    }

    /// Sets the metadata of a file that has just been created in a directory.
    pub(crate) fn set_new_metadata(
        &self,
        permit: Permit<'_>,
        NewFile {
            file,
            new_files,
            directory,
        }: NewFile<'_>,
        metadata: &Metadata,
        at: EntryLocation<'_>,
    ) -> Result<(), Failure> {
        let cannot = with_operation(Operation::SetMetadata);
        let is_elsewhere = self.shared_job.is_some();
        let was_given = is_elsewhere
            && new_files
                .apply_to(&permit, file, directory.as_fd())
                .map_err(cannot)?;
        if metadata.extra.is_some() || was_given || self.has_default_acl(new_files, directory) {
            return self.set_metadata(permit, file, metadata, at);
        }
        let misses = new_files
            .set_metadata(permit, file, metadata, &self.proven)
            .map_err(cannot)?;
        self.view
            .policy
            .note(&WantedMetadata::default(), &misses, at);
        Ok(())
    }

    /// Returns the mode with which to create a file. The mode excludes the rights of group and others until the owner,
    /// group and access control list are set, because these rights would apply to the wrong group until then.
    pub(crate) fn first_mode(
        &self,
        metadata: &Metadata,
        new_files: &NewFiles,
        directory: &OwnedFd,
    ) -> u32 {
        let is_alone = metadata.extra.is_some() || self.has_default_acl(new_files, directory);
        if is_alone {
            metadata.mode & 0o700
        } else {
            metadata.mode
        }
    }

    /// Returns whether new files in a directory inherit an access control list that must be replaced.
    fn has_default_acl(&self, new_files: &NewFiles, directory: &OwnedFd) -> bool {
        self.view.policy.rules.kinds.has_any(MetadataKinds::ACLS)
            && new_files.has_default_acl(directory.as_fd())
    }

    /// Sets all metadata of a file or directory. Counts and returns the metadata that could not be set.
    fn set_whole(
        &self,
        permit: Permit<'_>,
        entry: Descriptor<'_>,
        metadata: &Metadata,
        at: EntryLocation<'_>,
    ) -> io::Result<Vec<MetadataFailure>> {
        let wanted = self.view.policy.wanted(metadata, Some(metadata.mtime));
        let misses = wanted.set(permit, entry, &self.proven)?;
        self.view.policy.note(&wanted, &misses, at);
        Ok(misses)
    }

    /// Sets the metadata of a file that was changed in place. Fails if the file belongs to another user, because only
    /// that user may set its mode and time.
    pub(crate) fn set_metadata_in_place(
        &self,
        file: &File,
        metadata: &Metadata,
        at: EntryLocation<'_>,
    ) -> Result<(), Failure> {
        let cannot = with_operation(Operation::SetMetadata);
        let there = FileIdentity::of(file).map_err(cannot)?;
        let permit = self.tree.lease().permit();
        let misses = permit
            .map_err(io::Error::from)
            .and_then(|permit| self.set_whole(permit, Descriptor::Open(file.as_fd()), metadata, at))
            .map_err(cannot)?;
        if is_foreign_owner_failure(there.ids, &misses) {
            return Err(cannot(Errno::PERM.into()));
        }
        Ok(())
    }

    /// Sets the metadata of a directory. Call this function when nothing more is added to the directory.
    pub(crate) fn set_directory(
        &self,
        directory: &OwnedFd,
        metadata: &Metadata,
        at: EntryLocation<'_>,
    ) -> io::Result<()> {
        let there = FileIdentity::of(directory)?;
        let metadata = self.view.policy.rules.of_directory(metadata, &there);
        let entry = Descriptor::of_directory(directory.as_fd());
        let misses = self.set_whole(self.tree.lease().permit()?, entry, &metadata, at)?;
        if is_foreign_owner_failure(there.ids, &misses) {
            self.counters.foreign_directories.add(1);
        }
        Ok(())
    }

    /// Sets the mode and time of a file whose contents were compared and are correct.
    pub(crate) fn set_compared_metadata(
        &self,
        directory: &OwnedFd,
        name: &Name,
        metadata: &Metadata,
        at: EntryLocation<'_>,
    ) -> Result<(), Failure> {
        let cannot = with_operation(Operation::SetMetadata);
        let there = FileIdentity::at(directory, name).map_err(cannot)?;
        let is_as_compared = self.compared.is_as_compared(directory, name, &there);
        let set = if is_as_compared {
            let wanted = self.view.policy.wanted(metadata, Some(metadata.mtime));
            self.set_existing_metadata(NameAt::new(directory, name), &there, &wanted, at)
        } else {
            Err(Errno::BUSY.into())
        };
        set.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => (Operation::Verify, error),
            _ => (Operation::SetMetadata, error),
        })?;
        self.compared.record_update(directory, name).map_err(cannot)
    }

    /// Sets the metadata of an existing file if the file has not changed since it was compared.
    fn set_existing_metadata(
        &self,
        NameAt { directory, name }: NameAt<'_>,
        compared: &FileIdentity,
        wanted: &WantedMetadata<'_>,
        at: EntryLocation<'_>,
    ) -> io::Result<()> {
        // In a job, another session may rename a file into place between the comparison and this change. Fail, so that
        // the file is sent and created again.
        if self.shared_job.is_some() {
            return Err(Errno::BUSY.into());
        }
        self.file_systems.note(directory)?;
        let lease = self.tree.lease();
        let misses = set_metadata_if_unchanged(
            lease,
            directory.as_fd(),
            name,
            compared,
            wanted,
            &self.proven,
        )?;
        self.view.policy.note(wanted, &misses, at);
        if self.is_flushed_per_file(directory)? {
            self.file_systems
                .flush_entry(open_at(directory, name, READ)?)?;
        }
        Ok(())
    }

    /// Flushes a file or directory that was changed under its final name. Does nothing if the whole file system is
    /// flushed at the end of the transfer.
    pub(crate) fn flush_if_per_file(&self, changed: impl AsFd) -> io::Result<()> {
        if self.is_flushed_per_file(&changed)? {
            self.file_systems.flush_entry(changed)
        } else {
            Ok(())
        }
    }

    fn is_flushed_per_file(&self, changed: impl AsFd) -> io::Result<bool> {
        Ok(self.view.policy.rules.flushes() && self.file_systems.note(changed)? == Flush::PerFile)
    }

    /// Returns whether a file does not need to be stored. This is the case if an existing entry of the same name must
    /// not be replaced, or if it is a file with the same size and time.
    pub(crate) fn has(&self, directory: &OwnedFd, path: &RelPath, file: &FileEntry) -> bool {
        let place = NameAt::new(directory, self.view.name(path, &file.name));
        let Ok(there) = FileIdentity::at(directory, place.name) else {
            return false;
        };
        let metadata = self.of_file(place, &file.metadata);
        if !there.regular {
            return self.view.must_keep(directory, &there, metadata.mtime);
        }
        let source = SourceFile {
            bytes: file.bytes.into(),
            metadata: &metadata,
            xattrs: SourceXattrs::Known,
        };
        let by_contents = None::<fn(Differences) -> Verdict>;
        let at = EntryLocation(path, Some(place.name));
        let verdict = self.compare(place, &there, source, by_contents, at);
        matches!(verdict, Verdict::Same | Verdict::Stays)
    }

    /// Returns whether the existing file at `place` matches the complete new file at `whole` in all preserved metadata.
    /// The new file is about to be renamed to `place`.
    pub(crate) fn looks_like(
        &self,
        place @ NameAt { directory, name }: NameAt<'_>,
        whole: NameAt<'_>,
    ) -> bool {
        self.is_alike(place, whole)
            && FileIdentity::at(directory, name)
                .is_ok_and(|there| !self.view.is_claimed(directory, name, &there))
    }

    /// Returns whether two files match in all preserved metadata.
    fn is_alike(
        &self,
        NameAt { directory, name }: NameAt<'_>,
        NameAt {
            directory: elsewhere,
            name: whole,
        }: NameAt<'_>,
    ) -> bool {
        let look = |directory: &OwnedFd, name| {
            let there = FileIdentity::at(directory, name)
                .ok()
                .filter(|there| there.regular)?;
            let kinds = self
                .view
                .policy
                .rules
                .kinds
                .common(MetadataKinds::ANY_XATTR);
            Some((there, NameAt::new(directory, name).xattrs(kinds).ok()?.list))
        };
        let Some((there, xattrs)) = look(directory, name) else {
            return false;
        };
        let Some((whole, wanted_xattrs)) = look(elsewhere, whole) else {
            return false;
        };
        there.bytes == whole.bytes
            && there.mtime == whole.mtime
            && there.mode == whole.mode
            && there.ids == whole.ids
            && xattrs == wanted_xattrs
    }

    /// [Compares](Comparator::file) a file with its source to decide what must be sent. If only metadata differs, sets
    /// the metadata that is known here. If that fails, the file counts as different. The sender then sends the file
    /// again, and the failure is reported at that time.
    pub(crate) fn compare(
        &self,
        place: NameAt<'_>,
        there: &FileIdentity,
        source: SourceFile<'_>,
        contents: Option<impl FnOnce(Differences) -> Verdict>,
        at: EntryLocation<'_>,
    ) -> Verdict {
        let verdict = self
            .view
            .file(Purpose::Send, place, there, source, contents);
        let verdict = match verdict {
            Verdict::Set(differences) => {
                self.set_differences(place, there, source, differences, at)
            }
            verdict => verdict,
        };
        if matches!(verdict, Verdict::Same | Verdict::Contents(..)) {
            self.file_systems.note_equal_file();
        }
        if verdict == Verdict::Same {
            self.view.count_unstorable_time(there, source.metadata, at);
        }
        verdict
    }

    /// Sets the metadata that differs. If the differing metadata is not known here, returns a verdict that makes the
    /// sender send it.
    fn set_differences(
        &self,
        place: NameAt<'_>,
        there: &FileIdentity,
        SourceFile {
            metadata, xattrs, ..
        }: SourceFile<'_>,
        differences: Differences,
        at: EntryLocation<'_>,
    ) -> Verdict {
        let metadata = self.view.policy.rules.metadata_of_kept(metadata, there);
        let mut wanted = self.view.policy.wanted(&metadata, None);
        // If the owner changes, the extended attributes must be set too, because the kernel then removes the
        // capabilities of the file.
        let keeps_xattrs =
            !differences.has_any(Differences::XATTRS) && !wanted.changes_owner(there.ids);
        if keeps_xattrs {
            wanted.kinds = MetadataKinds::NONE;
        } else if matches!(xattrs, SourceXattrs::Digest(Some(_))) && self.shared_job.is_none() {
            // The receiver has only a digest of the extended attributes, so the sender must send them.
            return Verdict::Set(differences);
        }
        match self.set_existing_metadata(place, there, &wanted, at) {
            Ok(()) => Verdict::Same,
            Err(_sent_again) => Verdict::Replace(differences),
        }
    }

    /// Returns whether an existing entry must be kept because of `--update` or `--ignore-existing`. The entry may have
    /// been created after the sender received the answer for this name.
    pub(crate) fn may_not_be_replaced(
        &self,
        directory: &OwnedFd,
        name: &Name,
        mtime: Timestamp,
    ) -> bool {
        self.view.policy.rules.overwrite != Overwrite::Differing
            && FileIdentity::at(directory, name)
                .is_ok_and(|there| self.view.must_keep(directory, &there, mtime))
    }

    /// Creates a hard link. If the link cannot be created, keeps an existing complete copy and counts the missing link.
    /// If files are compared by contents, returns the error instead, and the sender decides.
    pub(crate) fn place_link(
        &self,
        NameAt {
            directory: from,
            name: first,
        }: NameAt<'_>,
        place: NameAt<'_>,
        LinkEntry {
            metadata, bytes, ..
        }: &LinkEntry,
        at: EntryLocation<'_>,
    ) -> Result<Linked, Failure> {
        let is_first_file = |there: &FileIdentity| {
            there.regular
                && there.bytes == *bytes
                && self.view.times.stores_as(from, there.mtime, metadata.mtime)
        };
        let replace = self.view.policy.rules.replaces();
        let cannot = with_operation(Operation::Link);
        let lease = self.tree.lease();
        let linked = match self.job() {
            None => self.place_over_directory(at, || {
                place_link(
                    lease,
                    NameAt::new(from, first),
                    place,
                    is_first_file,
                    replace,
                )
                .map_err(cannot)
            }),
            Some(_) if is_same_entry(NameAt::new(from, first), place) => Ok(Linked::AlreadyLinked),
            Some(job) => job
                .place(lease, place, replace, NewEntryGroup::Own, |fresh| {
                    let hidden = Lease::constant();
                    place_link(
                        &hidden,
                        NameAt::new(from, first),
                        fresh,
                        is_first_file,
                        Replace::Nothing,
                    )
                })
                .map_err(cannot),
        };
        let refusal = linked
            .as_ref()
            .err()
            .and_then(|(_, error)| Errno::from_io_error(error))
            .filter(|error| is_link_unsupported(*error));
        if let Some(error) = refusal
            && self.view.policy.rules.compare == Compare::Quick
            && FileIdentity::at(from, first).is_ok_and(|there| is_first_file(&there))
            && self.is_alike(place, NameAt::new(from, first))
        {
            let misses = [MetadataFailure {
                kind: MetadataKinds::LINKS,
                error,
            }];
            self.view
                .policy
                .note(&WantedMetadata::default(), &misses, at);
            return Ok(Linked::AlreadyLinked);
        }
        let linked = linked?;
        self.flush_if_per_file(place.directory)
            .map_err(with_operation(Operation::Flush))?;
        Ok(linked)
    }

    /// Places an entry that is not a directory by calling `place`. If a directory of that name exists and may be
    /// replaced, removes the directory and calls `place` again.
    pub(crate) fn place_over_directory<T>(
        &self,
        EntryLocation(directory, name): EntryLocation<'_>,
        mut place: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let placed = place();
        let is_in_the_way = placed
            .as_ref()
            .is_err_and(|(_, error)| Errno::from_io_error(error) == Some(Errno::ISDIR));
        let Some(name) = name.filter(|_| is_in_the_way) else {
            return placed;
        };
        let cleared = self.clear(directory, name);
        if cleared.map_err(with_operation(Operation::Remove))? {
            place()
        } else {
            placed
        }
    }

    /// Removes a directory if the rules allow its replacement. Returns whether the directory was removed.
    fn clear(&self, directory: &RelPath, name: &Name) -> io::Result<bool> {
        // In a job, keep the directory, because another session may have created entries in it.
        if self.shared_job.is_some() {
            return Ok(false);
        }
        let path = directory
            .join(name)
            .map_err(|_too_long| Errno::NAMETOOLONG)?;
        if !self.replacement.may_replace(&self.tree, &path)? {
            return Ok(false);
        }
        let removed = self.replacement.remove(&self.tree, directory, name)?;
        self.counters.replaced_below.add(removed);
        Ok(true)
    }
}

/// Returns whether the error means that the system cannot create this hard link, or cannot create any hard link.
fn is_link_unsupported(error: Errno) -> bool {
    matches!(
        error,
        Errno::MLINK | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV
    )
}

/// Returns whether two names lead to the same entry.
pub(crate) fn is_same_entry(one: NameAt<'_>, other: NameAt<'_>) -> bool {
    let number = |NameAt { directory, name }: NameAt<'_>| number_at(directory, name);
    matches!((number(one), number(other)), (Ok(one), Ok(other)) if one == other)
}

/// Flushes the data of a file, if `now` is `true`.
pub(crate) fn flush_now(file: &File, now: bool) -> Result<(), Failure> {
    if now {
        file.sync_data().map_err(with_operation(Operation::Flush))?;
    }
    Ok(())
}

/// Checks that a written file can be closed without an error. Must be called before the file looks finished.
pub(crate) fn check_close(staged: &Staged) -> Result<(), Failure> {
    staged
        .check_close()
        .map_err(with_operation(Operation::Write))
}

/// Opens the existing entry that has the name of a file that is about to be stored. The entry may be of any kind.
/// Symbolic links are not followed, and opening does not block.
///
/// # Errors
/// Returns an I/O error if the entry cannot be opened, `ELOOP` for a symbolic link.
pub(crate) fn open_old(directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(open_beneath(directory, &RelPath::from(name), flags)?.into())
}

/// Returns the root hash of the contents of an existing file of `bytes` bytes, for a comparison. Returns `None` if the
/// file cannot be read or if `stop` has returned `true`. If holes are preserved, the holes of a large file are skipped.
pub(crate) fn contents_root(
    (directory, name): (BorrowedFd<'_>, &Name),
    bytes: u64,
    kinds: MetadataKinds,
    stop: impl Fn() -> bool,
) -> Option<[u8; 32]> {
    let file = open_old(directory, name).ok()?;
    let may_have_holes = bytes > GROUP_BYTES && kinds.has_any(MetadataKinds::HOLES);
    let root = if may_have_holes {
        contents_digest(&file, next_data_offset, stop)
    } else {
        read_root(&file, stop)
    };
    Some(root.ok()??.0)
}
