//! The answers to inquiries: what a transfer would do with each entry. Only looks, and changes nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use zmove_disk::{
    Descriptor, FileIdentity, HasXattrs, KeptTimes, Named, StoredFile, Task, Turn, Wanted,
    is_special_at,
};
use zmove_types::{GROUP_BYTES, GroupSpan, Ids, Kinds, Name, RelPath};
use zmove_wire::{
    Compare, Differences, FaultCode, Finding, Findings, HashOrder, Hashed, InquiredEntry,
    InquiredKind, InquiredMetadata, Inquiry, Operation, Overwrite,
};

use crate::preview::listed::ListedFiles;
use crate::quota::Quota;
use crate::storage_reader::StorageReader;
use crate::store::failure::failure;
use crate::store::rules::Rules;
use crate::store::target::giving_way::GivingWay;
use crate::store::target::keeper::Keeper;
use crate::store::target::links::Claims;
use crate::store::target::tree::{Xattrs, contents_root, is_one, open_old};
use crate::store::target::{Seen, renamed};

/// The state by which inquiries are answered.
#[derive(Debug)]
pub(crate) struct Previewer {
    pub(crate) seen: Seen,
    pub(crate) rules: Rules,
    pub(crate) keeper: Keeper,
    pub(crate) times: KeptTimes,
    pub(crate) claims: Claims,
    pub(crate) quota: Quota,
    pub(crate) stopping: AtomicBool,
    /// Which directories an entry of their name would replace.
    pub(crate) giving_way: GivingWay,
    /// For a verification: how files are read from the storage.
    pub(crate) storage: Option<StorageReader>,
    /// What stands in the place of the target.
    pub(crate) listed: Option<Arc<ListedFiles>>,
}

/// A directory of the target, as it is found.
enum Place {
    There(Arc<OwnedFd>),
    /// There is no such directory, or something else has its name.
    Missing,
    /// The directory cannot be opened.
    Closed(FaultCode),
}

impl Previewer {
    /// Answers one inquiry; an entry that is not looked at because the session has ended counts as new.
    pub(crate) fn answer(&self, inquiry: &Inquiry) -> Findings {
        if let Some(listed) = &self.listed {
            return listed.answer(inquiry);
        }
        let mut findings = Vec::new();
        let turn = self.quota.turn(Task::Look, &self.stopping);
        for group in &inquiry.groups {
            let place = if turn.is_over() {
                Place::Missing
            } else {
                self.place(&group.directory)
            };
            findings.extend(
                group
                    .itself
                    .as_ref()
                    .map(|wanted| self.look_at_itself(&group.directory, &place, wanted)),
            );
            let found = group.entries.iter().map(|entry| match &place {
                _ if turn.is_over() => Finding::New,
                Place::There(directory) => self.look_at(&turn, directory, &group.directory, entry),
                Place::Missing => Finding::New,
                Place::Closed(code) => Finding::Fails(Operation::OpenDirectory, *code),
            });
            findings.extend(found);
        }
        Findings {
            inquiry: inquiry.inquiry,
            findings,
        }
    }

    fn place(&self, path: &RelPath) -> Place {
        let Some(tree) = &self.seen.tree else {
            return Place::Missing;
        };
        match tree.look_into(path) {
            Ok(Some(directory)) => Place::There(directory),
            // The directory's mode closes it to its owner. A transfer would open it, so what is in it counts as new.
            Ok(None) => Place::Missing,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => Place::Missing,
                Some(Errno::NOTDIR | Errno::LOOP) if self.rules.overwrite != Overwrite::Nothing => {
                    Place::Missing
                }
                _ => Place::Closed(failure(Operation::OpenDirectory, &error).1),
            },
        }
    }

    /// The values of groups of a file, for a verification.
    pub(super) fn hash(&self, order: &HashOrder) -> Hashed {
        let mut values = Vec::new();
        let hashed = self.hash_into(&mut values, order);
        Hashed {
            order: order.order,
            values,
            fault: hashed.err().map(|error| FaultCode::os(&error)),
        }
    }

    /// Adds the values of the groups that are ordered, as far as the file goes.
    fn hash_into(&self, values: &mut Vec<Option<[u8; 32]>>, order: &HashOrder) -> io::Result<()> {
        let turn = self.quota.turn(Task::Look, &self.stopping);
        let file = StoredFile::new(self.open_ordered(&order.path)?)?;
        let storage = self.storage.as_ref().ok_or(Errno::INVAL)?;
        for index in order.first..order.first.saturating_add(order.groups) {
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

    fn open_ordered(&self, path: &RelPath) -> io::Result<File> {
        let (parent, name) = path.parent().zip(path.file_name()).ok_or(Errno::ISDIR)?;
        let Place::There(directory) = self.place(&parent) else {
            return Err(Errno::NOENT.into());
        };
        open_old(
            directory.as_fd(),
            renamed(self.seen.rename.as_ref(), &parent, &name),
        )
    }

    fn look_at_itself(&self, path: &RelPath, place: &Place, wanted: &InquiredMetadata) -> Finding {
        match place {
            Place::There(directory) => match FileIdentity::of(directory) {
                Ok(there) => {
                    let itself = Descriptor::Open(directory.as_fd());
                    let wanted = self.of_directory(wanted, &there);
                    changed(self.metadata_differs(directory, &there, &wanted, itself))
                }
                Err(error) => unreadable(&error),
            },
            Place::Missing => match (
                path.parent().map(|parent| self.place(&parent)),
                path.file_name(),
            ) {
                (Some(Place::There(parent)), Some(name))
                    if FileIdentity::at(&parent, &name).is_ok() =>
                {
                    Finding::Differs(Differences::TYPE)
                }
                _ => Finding::New,
            },
            Place::Closed(code) => Finding::Fails(Operation::OpenDirectory, *code),
        }
    }

    fn look_at(
        &self,
        turn: &Turn<'_>,
        directory: &OwnedFd,
        path: &RelPath,
        entry: &InquiredEntry,
    ) -> Finding {
        let name = renamed(self.seen.rename.as_ref(), path, &entry.name);
        let stat = match rustix::fs::statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)
        {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Finding::New,
            Err(errno) => return unreadable(&errno.into()),
        };
        let there = match FileIdentity::at(directory, name) {
            Ok(there) => there,
            Err(error) => return unreadable(&error),
        };
        let InquiredMetadata(wanted, digest) = &entry.metadata;
        let of_file = || InquiredMetadata(self.rules.of_file(wanted).into_owned(), digest.clone());
        let differs = |wanted: &InquiredMetadata| {
            let entry = Named(directory.as_fd(), name);
            changed(self.metadata_differs(directory, &there, wanted, entry))
        };
        let in_the_way = |operation| match self.storage {
            // a verification compares, and makes nothing
            Some(_) => Finding::Differs(Differences::TYPE),
            None => self.over_directory(operation, path, name),
        };
        match (&entry.kind, FileType::from_raw_mode(stat.st_mode)) {
            (InquiredKind::Directory, FileType::Directory) => {
                differs(&self.of_directory(&entry.metadata, &there))
            }
            (InquiredKind::Directory, _) if self.rules.overwrite == Overwrite::Nothing => {
                Finding::Fails(
                    Operation::MakeDirectory,
                    FaultCode::os(&Errno::NOTDIR.into()),
                )
            }
            (_, _)
                if !matches!(entry.kind, InquiredKind::Directory)
                    && self.rules.overwrite == Overwrite::Nothing =>
            {
                Finding::Stays
            }
            (InquiredKind::File { .. } | InquiredKind::Link { .. }, FileType::Directory) => {
                in_the_way(Operation::Rename)
            }
            (InquiredKind::Special(_), FileType::Directory) => in_the_way(Operation::Create),
            (InquiredKind::Special(special), _)
                if is_special_at(directory.as_fd(), name, *special) =>
            {
                differs(&of_file())
            }
            (InquiredKind::Symlink { .. }, FileType::Directory) => in_the_way(Operation::Symlink),
            (InquiredKind::File { bytes }, FileType::RegularFile) => {
                self.look_at_file(turn, directory, name, &there, *bytes, &of_file())
            }
            (InquiredKind::Link { first, .. }, _) if !self.is_one((directory, name), first) => {
                Finding::Differs(Differences::LINKS)
            }
            (InquiredKind::Link { bytes, .. }, FileType::RegularFile) => {
                let alone = FileIdentity { names: 1, ..there };
                self.look_at_file(turn, directory, name, &alone, *bytes, &of_file())
            }
            (InquiredKind::Link { .. }, _) => Finding::Same,
            (InquiredKind::Symlink { target }, FileType::Symlink) => {
                self.look_at_link(directory, name, &there, target, &entry.metadata)
            }
            _ => Finding::Differs(Differences::TYPE),
        }
    }

    /// The finding for an entry whose name belongs to a directory.
    fn over_directory(&self, operation: Operation, path: &RelPath, name: &Name) -> Finding {
        let looked = match (&self.seen.tree, path.join(name)) {
            (Some(tree), Ok(path)) => self.giving_way.gives_way(tree, &path),
            _ => Ok(false),
        };
        match looked {
            Ok(true) => Finding::Differs(Differences::TYPE),
            Ok(false) => Finding::Fails(operation, FaultCode::DirectoryInTheWay),
            Err(error) => {
                let (operation, code) = failure(Operation::Remove, &error);
                Finding::Fails(operation, code)
            }
        }
    }

    fn look_at_file(
        &self,
        turn: &Turn<'_>,
        directory: &OwnedFd,
        name: &Name,
        there: &FileIdentity,
        bytes: u64,
        wanted: &InquiredMetadata,
    ) -> Finding {
        if self
            .rules
            .spare(there, || self.times.kept(directory, wanted.0.mtime))
        {
            return Finding::Stays;
        }
        let differences =
            self.metadata_differs(directory, there, wanted, Named(directory.as_fd(), name));
        if there.bytes != bytes {
            return Finding::Differs(differences.and(Differences::SIZE));
        }
        let keeps_links = self.rules.kinds.has_any(Kinds::LINKS);
        if keeps_links && self.claims.is_of_another(directory, name, there) {
            return Finding::Differs(differences.and(Differences::LINKS));
        }
        match self.rules.compare {
            Compare::Quick => changed(differences),
            Compare::Checksum => match &self.storage {
                // the groups of a large file are asked for one by one
                Some(_) if bytes > GROUP_BYTES => changed(differences),
                Some(storage) => match storage.root_at(directory, name) {
                    Ok(root) => Finding::Contents(differences, root.0),
                    Err(error) => unreadable(&error),
                },
                None => contents_root((directory.as_fd(), name), bytes, self.rules.kinds, || {
                    turn.is_over()
                })
                .map_or(
                    Finding::Differs(differences.and(Differences::CONTENTS)),
                    |root| Finding::Contents(differences, root),
                ),
            },
        }
    }

    /// Whether a name leads to the same file as the first one of its group.
    fn is_one(&self, name: (&OwnedFd, &Name), first: &RelPath) -> bool {
        let Some((parent, first)) = first.parent().zip(first.file_name()) else {
            return false;
        };
        match self.place(&parent) {
            Place::There(from) => is_one(name, (&from, &first)),
            Place::Missing | Place::Closed(_) => false,
        }
    }

    fn look_at_link(
        &self,
        directory: &OwnedFd,
        name: &Name,
        there: &FileIdentity,
        target: &[u8],
        wanted: &InquiredMetadata,
    ) -> Finding {
        match rustix::fs::readlinkat(directory, name.as_os_str(), Vec::new()) {
            Ok(found) => {
                // Linux has no mode of symbolic links that could differ.
                let there = FileIdentity {
                    mode: wanted.0.mode,
                    ..*there
                };
                let differences = self.metadata_differs(
                    directory,
                    &there,
                    wanted,
                    Named(directory.as_fd(), name),
                );
                changed(differences.and_if(Differences::TARGET, &found.as_bytes(), &target))
            }
            Err(errno) => unreadable(&errno.into()),
        }
    }

    /// Whether a transfer would leave an entry all owners that it has, since it may set no others; counts those. To a
    /// verification they differ nevertheless.
    fn would_stay_owned(&self, there: Ids, wanted: &Wanted<'_>) -> bool {
        if self.storage.is_some() {
            return false;
        }
        let misses = wanted.owners_out_of_reach(there);
        self.keeper.foresee(&self.rules, &misses);
        misses.len() == wanted.missing_owners(there).len()
    }

    fn of_directory(
        &self,
        InquiredMetadata(metadata, digest): &InquiredMetadata,
        there: &FileIdentity,
    ) -> InquiredMetadata {
        let metadata = self.rules.of_directory(metadata, there).into_owned();
        InquiredMetadata(metadata, digest.clone())
    }

    /// How an entry of a directory, or the directory itself, differs in what is kept beside its contents.
    fn metadata_differs(
        &self,
        directory: &OwnedFd,
        there: &FileIdentity,
        InquiredMetadata(metadata, digest): &InquiredMetadata,
        entry: impl HasXattrs,
    ) -> Differences {
        let has_time = self.times.is_kept(directory, there.mtime, metadata.mtime);
        let wanted = self.keeper.wanted(&self.rules, metadata, None);
        let owned =
            wanted.is_met(there.ids, wanted.mode) || self.would_stay_owned(there.ids, &wanted);
        let has_xattrs =
            Xattrs::Digest(digest.as_deref()).are_those_of(entry, metadata, self.rules.kinds);
        let has_mode = there.mode == metadata.mode || !self.rules.kinds.has_any(Kinds::MODE);
        Differences::default()
            .and_if(Differences::TIME, &has_time, &true)
            .and_if(Differences::MODE, &has_mode, &true)
            .and_if(Differences::OWNER, &owned, &true)
            .and_if(Differences::XATTRS, &has_xattrs, &true)
    }
}

fn unreadable(error: &io::Error) -> Finding {
    Finding::Fails(Operation::Read, FaultCode::os(error))
}

fn changed(differences: Differences) -> Finding {
    if differences.is_empty() {
        Finding::Same
    } else {
        Finding::Differs(differences)
    }
}
