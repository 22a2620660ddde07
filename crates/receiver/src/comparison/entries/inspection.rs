//! Answers the requests of a session that inspects. It reports the changes that a transfer would make, or all
//! differences.
//!
//! **Invariant:** this module does not change the target. It opens directories without changing their modes, and
//! creates no entries.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::FileType;
use rustix::io::Errno;
use zmove_disk::{
    Descriptor, FileIdentity, HasXattrs, MetadataFailure, NameAt, StorageReader, StoredFile, Task,
    TimeResolutions, Tree, Turn, is_foreign_owner, is_special_at, stat_at,
};
use zmove_types::{GROUP_BYTES, GroupSpan, Metadata, MetadataKinds, Name, RelPath, Root};
use zmove_wire::{
    Compare, Differences, EntryGroup, ExtraneousNames, FaultCode, FileGroups, GroupHashes,
    NameRange, Open, Operation, Overwrite, SourceEntry, SourceKind, SourceMetadata, Verdict,
};

use crate::comparison::entries::listed::ListedFiles;
use crate::comparison::entries::{Comparator, Purpose, SourceFile, SourceXattrs};
use crate::comparison::mirror::aliased::AliasedEntries;
use crate::comparison::mirror::{WorkBudget, extraneous};
use crate::config::ReceiverConfig;
use crate::rights::quota::Charge;
use crate::session::threads::Reporter;
use crate::store::failure::failure;
use crate::store::reports::Reports;
use crate::store::rules::Rules;
use crate::store::target::InspectedTarget;
use crate::store::target::links::Claims;
use crate::store::target::metadata_policy::MetadataPolicy;
use crate::store::target::replacement::{ReplacementRules, removals_of};
use crate::store::target::tree::{contents_root, is_same_entry, open_old};

/// A target that is inspected and not changed.
#[derive(Debug)]
pub(crate) struct Inspection {
    pub(crate) view: Comparator,
    /// The directory to which paths are relative, if it exists.
    tree: Option<Tree>,
    /// Whether the target exists but its mode denies access to its owner.
    is_closed: bool,
    /// The rules that decide which directories a source entry of the same name would replace.
    replacement: ReplacementRules,
    /// Entries of the target whose names the file system treats as equal to a name of the source.
    aliased: AliasedEntries,
    /// The reader for reading files from the storage. Set only for a verification.
    storage: Option<StorageReader>,
    /// A list of files to compare with the source instead of the target.
    listed: Option<Arc<ListedFiles>>,
    reports: Reports,
    pub(crate) stopping: AtomicBool,
}

impl Reporter for Inspection {
    fn reports(&self) -> &Reports {
        &self.reports
    }
}

impl Inspection {
    pub(crate) fn new(
        open: &Open,
        seen: InspectedTarget,
        config: &ReceiverConfig,
        reports: Reports,
    ) -> Self {
        let rules = Rules::of(open, &config.rights);
        let view = Comparator {
            rename: seen.rename,
            times: TimeResolutions::for_inspection(),
            policy: MetadataPolicy::new(rules, &config.accounts, None),
            claims: Claims::new(&config.quota),
        };
        let storage = || StorageReader::new(&config.file_io, config.buffers_max);
        Self {
            view,
            tree: seen.tree,
            is_closed: seen.is_closed,
            replacement: ReplacementRules::of(open, removals_of(open)),
            aliased: AliasedEntries::new(&config.quota),
            storage: open.verify.then(storage),
            listed: config.listed.clone(),
            reports,
            stopping: AtomicBool::new(false),
        }
    }

    /// Returns whether the session verifies.
    pub(crate) fn verifies(&self) -> bool {
        self.storage.is_some()
    }

    fn purpose(&self) -> Purpose {
        if self.verifies() {
            Purpose::Verify
        } else {
            Purpose::Report
        }
    }

    /// Returns the verdicts on entries. If the session ends first, the remaining entries count as new.
    pub(crate) fn verdicts(&self, groups: &[EntryGroup]) -> Vec<Verdict> {
        if let Some(listed) = &self.listed {
            return listed.verdicts(groups);
        }
        let mut verdicts = Vec::new();
        let turn = self.reports.quota.turn(Task::Read, &self.stopping);
        for group in groups {
            let place = if turn.is_over() {
                Ok(None)
            } else {
                self.open_directory(&group.directory)
            };
            verdicts.extend(
                group
                    .itself
                    .as_ref()
                    .map(|wanted| self.compare_listed_directory(&group.directory, &place, wanted)),
            );
            let found = group.entries.iter().map(|entry| match &place {
                _ if turn.is_over() => Verdict::New,
                Ok(Some(directory)) => {
                    self.compare_entry(&turn, directory, &group.directory, entry)
                }
                Ok(None) => self.judge_new(&entry.kind),
                Err(code) => Verdict::Fails(Operation::OpenDirectory, *code),
            });
            verdicts.extend(found);
        }
        verdicts
    }

    /// Opens a directory of the target. Returns `None` if the directory does not exist or if another kind of entry has
    /// its name. Returns an error if the directory cannot be opened.
    fn open_directory(&self, path: &RelPath) -> Result<Option<Arc<OwnedFd>>, FaultCode> {
        let Some(tree) = &self.tree else {
            return Ok(None);
        };
        let rules = &self.view.policy.rules;
        match tree.open_for_inspection(path) {
            Ok(Some(directory)) => Ok(Some(directory)),
            // A transfer that sets modes would make this directory accessible, so its entries count as new.
            Ok(None) if rules.kinds.has_any(MetadataKinds::MODE) => Ok(None),
            Ok(None) => Err(FaultCode::os(&Errno::ACCESS.into())),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => Ok(None),
                Some(Errno::NOTDIR | Errno::LOOP) if rules.overwrite != Overwrite::Nothing => {
                    Ok(None)
                }
                _ => Err(failure(Operation::OpenDirectory, &error).code),
            },
        }
    }

    /// Returns the hashes of groups of a file, as read from the storage.
    pub(crate) fn hashes(&self, groups: &FileGroups) -> GroupHashes {
        let mut values = Vec::new();
        let hashed = self.hash_into(&mut values, groups);
        GroupHashes {
            values,
            fault: hashed.err().map(|error| FaultCode::os(&error)),
        }
    }

    /// Appends the values of the requested groups, up to the end of the file.
    fn hash_into(&self, values: &mut Vec<Option<[u8; 32]>>, groups: &FileGroups) -> io::Result<()> {
        let turn = self.reports.quota.turn(Task::Read, &self.stopping);
        let file = StoredFile::new(self.open(&groups.path)?)?;
        let storage = self.storage.as_ref().ok_or(Errno::INVAL)?;
        for index in groups.first..groups.first.saturating_add(groups.count) {
            let Some(span) = GroupSpan::of(file.bytes(), index) else {
                break;
            };
            if turn.is_over() {
                break;
            }
            values.push(storage.value_of(&file, span)?.map(|cv| cv.0));
        }
        Ok(())
    }

    fn open(&self, path: &RelPath) -> io::Result<File> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        let Ok(Some(directory)) = self.open_directory(&parent) else {
            return Err(Errno::NOENT.into());
        };
        open_old(directory.as_fd(), self.view.name(&parent, &name))
    }

    /// Returns the names in these ranges that exist only at the target. `held` is charged for their memory.
    pub(crate) fn extraneous(&self, ranges: &[NameRange], held: &mut Charge) -> ExtraneousNames {
        if self.is_closed {
            let denied = FaultCode::os(&Errno::ACCESS.into());
            return ExtraneousNames {
                faults: (0..)
                    .zip(ranges)
                    .map(|(range, _)| (range, denied))
                    .collect(),
                ..ExtraneousNames::default()
            };
        }
        let turn = self.reports.quota.turn(Task::Read, &self.stopping);
        let mut budget = WorkBudget::new(turn, held);
        extraneous(self.tree.as_ref(), ranges, &self.aliased, &mut budget)
    }

    fn compare_listed_directory(
        &self,
        path: &RelPath,
        place: &Result<Option<Arc<OwnedFd>>, FaultCode>,
        wanted: &SourceMetadata,
    ) -> Verdict {
        match place {
            Ok(Some(directory)) => match FileIdentity::of(directory) {
                Ok(there) => {
                    let itself = Descriptor::of_directory(directory.as_fd());
                    self.compare_directory(directory, &there, wanted, itself)
                }
                Err(error) => unreadable(&error),
            },
            Ok(None) => match (
                path.parent().map(|parent| self.open_directory(&parent)),
                path.file_name(),
            ) {
                (Some(Ok(Some(parent))), Some(name))
                    if FileIdentity::at(&parent, &name).is_ok() =>
                {
                    Verdict::Replace(Differences::TYPE)
                }
                _ => Verdict::New,
            },
            Err(code) => Verdict::Fails(Operation::OpenDirectory, *code),
        }
    }

    /// Returns the verdict on an entry that does not exist at the target.
    fn judge_new(&self, kind: &SourceKind) -> Verdict {
        if self.is_creation_denied(kind) {
            Verdict::Stays
        } else {
            Verdict::New
        }
    }

    /// Returns whether a transfer is not permitted to create an entry because it is a special file. Counts such
    /// entries.
    fn is_creation_denied(&self, kind: &SourceKind) -> bool {
        let SourceKind::Special(special) = kind else {
            return false;
        };
        let rules = &self.view.policy.rules;
        if self.verifies() || rules.may_make(*special) {
            return false;
        }
        let error = Errno::PERM;
        let kind = special.kind();
        self.view
            .policy
            .count_expected(&[MetadataFailure { kind, error }]);
        true
    }

    fn compare_entry(
        &self,
        turn: &Turn<'_>,
        directory: &OwnedFd,
        path: &RelPath,
        entry: &SourceEntry,
    ) -> Verdict {
        let name = self.view.name(path, &entry.name);
        let stat = match stat_at(directory, name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return self.judge_new(&entry.kind),
            Err(errno) => return unreadable(&errno.into()),
        };
        let there = FileIdentity::from_stat(&stat);
        let place = NameAt::new(directory, name);
        let keeps_all = self.view.policy.rules.overwrite == Overwrite::Nothing;
        let in_the_way = |operation| self.judge_over_directory(operation, path, name);
        match (&entry.kind, FileType::from_raw_mode(stat.st_mode)) {
            (SourceKind::Directory, FileType::Directory) => {
                self.compare_directory(directory, &there, &entry.metadata, place)
            }
            (SourceKind::Directory, _) if keeps_all => Verdict::Fails(
                Operation::MakeDirectory,
                FaultCode::os(&Errno::NOTDIR.into()),
            ),
            (SourceKind::Directory, _) => Verdict::Replace(Differences::TYPE),
            (kind, _) if keeps_all || self.is_creation_denied(kind) => Verdict::Stays,
            (SourceKind::File { .. } | SourceKind::Link { .. }, FileType::Directory) => {
                in_the_way(Operation::Rename)
            }
            (SourceKind::Special(_), FileType::Directory) => in_the_way(Operation::Create),
            (SourceKind::Symlink { .. }, FileType::Directory) => in_the_way(Operation::Symlink),
            (SourceKind::Special(special), _)
                if is_special_at(directory.as_fd(), name, *special) =>
            {
                self.compare_special(place, &there, &entry.metadata)
            }
            (SourceKind::File { bytes, .. }, FileType::RegularFile) => {
                self.compare_file(turn, place, &there, *bytes, &entry.metadata)
            }
            (SourceKind::Link { .. }, _)
                if self
                    .view
                    .must_keep(directory, &there, entry.metadata.metadata.mtime) =>
            {
                Verdict::Stays
            }
            (SourceKind::Link { first, .. }, _) if !self.is_hard_link_of(place, first) => {
                Verdict::Replace(Differences::LINKS)
            }
            (SourceKind::Link { bytes, .. }, FileType::RegularFile) => {
                let alone = FileIdentity { names: 1, ..there };
                self.compare_file(turn, place, &alone, *bytes, &entry.metadata)
            }
            (SourceKind::Link { .. }, _) => Verdict::Same,
            (SourceKind::Symlink { target }, FileType::Symlink) => {
                self.compare_symlink(place, &there, target, &entry.metadata)
            }
            _ => Verdict::Replace(Differences::TYPE),
        }
    }

    /// Returns the verdict on an entry whose name belongs to a directory at the target.
    fn judge_over_directory(&self, operation: Operation, path: &RelPath, name: &Name) -> Verdict {
        if self.verifies() {
            return Verdict::Replace(Differences::TYPE);
        }
        let looked = match (&self.tree, path.join(name)) {
            (Some(tree), Ok(path)) => self.replacement.may_replace(tree, &path),
            _ => Ok(false),
        };
        match looked {
            Ok(true) => Verdict::Replace(Differences::TYPE),
            Ok(false) => Verdict::Fails(operation, FaultCode::DirectoryInTheWay),
            Err(error) => {
                let cause = failure(Operation::Remove, &error);
                Verdict::Fails(cause.operation, cause.code)
            }
        }
    }

    /// Returns the verdict on a directory. `directory` is the directory itself or its parent. It identifies the file
    /// system that stores the directory's times.
    fn compare_directory(
        &self,
        directory: &OwnedFd,
        there: &FileIdentity,
        SourceMetadata { metadata, xattrs }: &SourceMetadata,
        itself: impl HasXattrs,
    ) -> Verdict {
        let metadata = self.view.policy.rules.of_directory(metadata, there);
        let differences = self.compare_with_time(
            directory,
            there,
            &metadata,
            SourceXattrs::Digest(xattrs.as_deref()),
            itself,
        );
        let is_foreign = !self.verifies() && is_foreign_owner(there.ids);
        if is_foreign {
            // A transfer does not change these properties of another user's directory.
            let refused = Differences::MODE.and(Differences::TIME);
            return Verdict::set(differences.without(refused));
        }
        Verdict::set(differences)
    }

    fn compare_special(
        &self,
        place: NameAt<'_>,
        there: &FileIdentity,
        SourceMetadata { metadata, xattrs }: &SourceMetadata,
    ) -> Verdict {
        if self.has_claimed_name(place, there) {
            return Verdict::Replace(Differences::LINKS);
        }
        let metadata = self.view.policy.rules.of_file(metadata);
        Verdict::set(self.compare_with_time(
            place.directory,
            there,
            &metadata,
            SourceXattrs::Digest(xattrs.as_deref()),
            place,
        ))
    }

    fn compare_file(
        &self,
        turn: &Turn<'_>,
        place @ NameAt { directory, name }: NameAt<'_>,
        there: &FileIdentity,
        bytes: u64,
        SourceMetadata { metadata, xattrs }: &SourceMetadata,
    ) -> Verdict {
        let source = SourceFile {
            bytes,
            metadata,
            xattrs: SourceXattrs::Digest(xattrs.as_deref()),
        };
        let contents = |differences: Differences| match &self.storage {
            // The sender requests the groups of a large file separately.
            Some(_) if bytes > GROUP_BYTES => Verdict::set(differences),
            Some(storage) => match root_at(storage, directory, name) {
                Ok(root) => Verdict::Contents(differences, root.0),
                Err(error) => unreadable(&error),
            },
            None => {
                let kinds = self.view.policy.rules.kinds;
                let root =
                    contents_root((directory.as_fd(), name), bytes, kinds, || turn.is_over());
                let differs = Verdict::Replace(differences.and(Differences::CONTENTS));
                root.map_or(differs, |root| Verdict::Contents(differences, root))
            }
        };
        let by_contents = self.view.policy.rules.compare == Compare::Checksum;
        let contents = by_contents.then_some(contents);
        self.view
            .file(self.purpose(), place, there, source, contents)
    }

    /// Returns whether a name is a hard link to the file with the first name.
    fn is_hard_link_of(&self, name: NameAt<'_>, first: &RelPath) -> bool {
        let Some((parent, first)) = first.split() else {
            return false;
        };
        match self.open_directory(&parent) {
            Ok(Some(from)) => is_same_entry(name, NameAt::new(&from, &first)),
            Ok(None) | Err(_) => false,
        }
    }

    /// Returns whether a symbolic link or special file has a hard link that belongs to a different entry of the source.
    fn has_claimed_name(
        &self,
        NameAt { directory, name }: NameAt<'_>,
        there: &FileIdentity,
    ) -> bool {
        there.names > 1 && self.view.is_claimed(directory, name, there)
    }

    fn compare_symlink(
        &self,
        place @ NameAt { directory, name }: NameAt<'_>,
        there: &FileIdentity,
        target: &[u8],
        SourceMetadata { metadata, xattrs }: &SourceMetadata,
    ) -> Verdict {
        let found = match rustix::fs::readlinkat(directory, name.as_os_str(), Vec::new()) {
            Ok(found) => found,
            Err(errno) => return unreadable(&errno.into()),
        };
        let is_same = found.as_bytes() == target;
        if is_same && self.has_claimed_name(place, there) {
            return Verdict::Replace(Differences::LINKS);
        }
        // Symbolic links on Linux have no mode of their own, so modes cannot differ.
        let there = FileIdentity {
            mode: metadata.mode,
            ..*there
        };
        let differences = self.compare_with_time(
            directory,
            &there,
            metadata,
            SourceXattrs::Digest(xattrs.as_deref()),
            place,
        );
        if is_same {
            Verdict::set(differences)
        } else {
            Verdict::Replace(differences.and(Differences::TARGET))
        }
    }

    /// Returns all differences of an entry except those in its contents. `directory` is the parent of the entry, or the
    /// entry itself if it is a directory.
    fn compare_with_time(
        &self,
        directory: &OwnedFd,
        there: &FileIdentity,
        metadata: &Metadata,
        xattrs: SourceXattrs<'_>,
        entry: impl HasXattrs,
    ) -> Differences {
        let times = &self.view.times;
        let has_time = times.stores_as(directory, there.mtime, metadata.mtime);
        self.view
            .compare_metadata(self.purpose(), there, metadata, xattrs, entry)
            .add_if_unequal(Differences::TIME, &has_time, &true)
    }
}

fn unreadable(error: &io::Error) -> Verdict {
    Verdict::Fails(Operation::Read, FaultCode::os(error))
}

/// Returns the root hash of a file of at most one group, as read from the storage.
fn root_at(storage: &StorageReader, directory: &OwnedFd, name: &Name) -> io::Result<Root> {
    let file = StoredFile::new(open_old(directory.as_fd(), name)?)?;
    storage.root_of(&file, file.bytes())
}
