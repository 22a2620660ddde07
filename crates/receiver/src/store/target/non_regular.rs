//! Symbolic links and special files. If such an entry has several names, each name is sent as a complete entry. All
//! names except the first also carry the path of the first name. If that path does not lead to the same entry, a
//! separate entry is created.
//!
//! **Invariant:** the metadata of an existing entry with several names is never changed, because the other names may
//! belong to anyone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;
use zmove_disk::{
    Descriptor, FileIdentity, JobSession, Lease, Linked, MetadataFailure, NameAt, NewEntryGroup,
    NonRegular, Replace, WantedMetadata, hold_new, is_special_at, place_link_to_non_regular,
    place_special, place_symlink,
};
use zmove_types::{Metadata, MetadataKinds, Name, Special};
use zmove_wire::Operation;

use crate::comparison::entries::SourceXattrs;
use crate::store::failure::{Failure, with_operation};
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::target::tree::{TargetTree, is_same_entry};

impl TargetTree {
    /// Ensures that a name leads to a symbolic link or special file. Counts the metadata that cannot be preserved. If
    /// `first` is given, tries to create a hard link to the entry in `first`.
    pub(crate) fn place_non_regular(
        &self,
        place: NameAt<'_>,
        (entry, metadata): (NonRegular<'_>, &Metadata),
        first: Option<io::Result<(Arc<OwnedFd>, Name)>>,
        at: EntryLocation<'_>,
    ) -> Result<(), Failure> {
        let may_make = !matches!(entry, NonRegular::Special(special) if !self.view.policy.rules.may_make(special));
        let Some(first) = first
            .filter(|_| may_make && self.view.policy.rules.kinds.has_any(MetadataKinds::LINKS))
        else {
            if !self.stays(place, (entry, metadata), at) {
                self.have_non_regular(place, (entry, metadata), at)?;
            }
            return Ok(());
        };
        let lease = self.tree.lease();
        let replace = self.view.policy.rules.replaces();
        let linked = first.and_then(|(from, first)| {
            let first = NameAt::new(&from, &first);
            match self.job() {
                None => place_link_to_non_regular(lease, first, place, entry, replace),
                Some(_) if is_same_entry(first, place) => Ok(Linked::AlreadyLinked),
                Some(job) => job.place(lease, place, replace, NewEntryGroup::Own, |fresh| {
                    place_link_to_non_regular(
                        &Lease::constant(),
                        first,
                        fresh,
                        entry,
                        Replace::Nothing,
                    )
                }),
            }
        });
        let error = match linked {
            Err(error) if !replace.has_refused(&error) => error,
            _linked_or_kept => return Ok(()),
        };
        let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        if self.have_non_regular(place, (entry, metadata), at)? {
            let misses = [MetadataFailure {
                kind: MetadataKinds::LINKS,
                error,
            }];
            self.view
                .policy
                .note(&WantedMetadata::default(), &misses, at);
        }
        Ok(())
    }

    /// Returns whether the existing entry can stay. This is the case if it has several names, matches the source, and
    /// already has all metadata that this receiver could set.
    fn stays(
        &self,
        NameAt { directory, name }: NameAt<'_>,
        (entry, metadata): (NonRegular<'_>, &Metadata),
        at: EntryLocation<'_>,
    ) -> bool {
        let Ok(there) = FileIdentity::at(directory, name) else {
            return false;
        };
        if there.names < 2
            || !entry.matches_at(directory, name)
            || self.view.is_claimed(directory, name, &there)
        {
            return false;
        }
        let metadata = match entry {
            NonRegular::Symlink(_) => self.view.policy.rules.of_file(metadata),
            NonRegular::Special(_) => self
                .view
                .policy
                .rules
                .metadata_of_replacement(metadata, &there),
        };
        let wanted = self.view.policy.wanted(&metadata, None);
        let (mode, kinds) = match entry {
            // A symbolic link has no mode, and only root may set attributes on it.
            NonRegular::Symlink(_) => (wanted.mode, MetadataKinds::PRIVILEGED),
            NonRegular::Special(_) => (there.mode, MetadataKinds::ANY_XATTR),
        };
        let is_owned = wanted.matches(there.ids, wanted.mode);
        let stays = mode == wanted.mode
            && (is_owned || !wanted.may_set_owner)
            && self
                .view
                .times
                .stores_as(directory, there.mtime, metadata.mtime)
            && SourceXattrs::Known.match_entry(
                NameAt::new(directory, name),
                &metadata,
                self.view.policy.rules.xattr_kinds().common(kinds),
            );
        if stays && !is_owned {
            self.view
                .policy
                .note(&wanted, &wanted.ownership_failures(there.ids), at);
        }
        if stays {
            self.view.count_unstorable_time(&there, &metadata, at);
        }
        stays
    }

    /// Creates a symbolic link or special file under its name. In a job of several receivers, creates it under a
    /// temporary name first. Returns `false` if the entry was not created.
    fn have_non_regular(
        &self,
        place: NameAt<'_>,
        entry: (NonRegular<'_>, &Metadata),
        at: EntryLocation<'_>,
    ) -> Result<bool, Failure> {
        let replace = self.view.policy.rules.replaces();
        let placed = match self.job() {
            None => self.make_non_regular(place, entry, at),
            Some(job) => self.make_in_job(job, place, entry, at),
        };
        match placed {
            Err((_, error)) if replace.has_refused(&error) => Ok(false),
            placed => placed,
        }
    }

    /// Creates a symbolic link or special file for a job of several receivers, and renames it into place.
    fn make_in_job(
        &self,
        job: &JobSession,
        place: NameAt<'_>,
        entry: (NonRegular<'_>, &Metadata),
        at: EntryLocation<'_>,
    ) -> Result<bool, Failure> {
        let mut failed = Operation::Rename;
        let wanted = self.view.policy.wanted(entry.1, None);
        let has_own = wanted.may_set_owner && wanted.group.is_some();
        let group = if has_own {
            NewEntryGroup::Own
        } else {
            NewEntryGroup::OfDirectory
        };
        let replace = self.view.policy.rules.replaces();
        let placed = job.place(self.tree.lease(), place, replace, group, |fresh| {
            let made = self.make_non_regular(fresh, entry, at);
            made.map_err(|(operation, error)| {
                failed = operation;
                error
            })
        });
        placed.map_err(|error| (failed, error))
    }

    /// Creates a symbolic link or special file. Keeps an existing entry that matches and has only this name. Returns
    /// `false` if the entry cannot be created on this host.
    fn make_non_regular(
        &self,
        place: NameAt<'_>,
        (entry, metadata): (NonRegular<'_>, &Metadata),
        at: EntryLocation<'_>,
    ) -> Result<bool, Failure> {
        match entry {
            NonRegular::Symlink(target) => {
                let replace = self.view.policy.rules.replaces();
                let misses = self.place_over_directory(at, || {
                    place_symlink(
                        self.tree.lease(),
                        place.directory.as_fd(),
                        place.name,
                        target,
                        metadata.mtime,
                        replace,
                        &self.proven,
                    )
                    .map_err(with_operation(Operation::Symlink))
                })?;
                self.view
                    .policy
                    .note(&WantedMetadata::default(), &misses, at);
                self.own_link(place, metadata, at)
                    .map_err(with_operation(Operation::SetMetadata))?;
                Ok(true)
            }
            NonRegular::Special(special) => self.place_over_directory(at, || {
                self.make_special(place, (special, metadata), at)
                    .map_err(with_operation(Operation::Create))
            }),
        }
    }

    fn make_special(
        &self,
        NameAt { directory, name }: NameAt<'_>,
        (special, metadata): (Special, &Metadata),
        at: EntryLocation<'_>,
    ) -> io::Result<bool> {
        let metadata = match FileIdentity::at(directory, name) {
            Ok(there) if is_special_at(directory.as_fd(), name, special) => self
                .view
                .policy
                .rules
                .metadata_of_replacement(metadata, &there),
            _another_or_none => self.view.policy.rules.of_file(metadata),
        };
        let wanted = self.view.policy.wanted(&metadata, Some(metadata.mtime));
        let misses = if self.view.policy.rules.may_make(special) {
            let replace = self.view.policy.rules.replaces();
            let lease = self.tree.lease();
            place_special(
                lease,
                directory,
                name,
                special,
                &wanted,
                replace,
                &self.proven,
            )?
        } else {
            vec![MetadataFailure {
                kind: special.kind(),
                error: Errno::PERM,
            }]
        };
        self.view.policy.note(&wanted, &misses, at);
        Ok(!misses.iter().any(|miss| miss.kind == special.kind()))
    }

    /// Sets the owner of a symbolic link and those attributes that only root may set. Counts the metadata that could
    /// not be set.
    fn own_link(
        &self,
        NameAt { directory, name }: NameAt<'_>,
        metadata: &Metadata,
        at: EntryLocation<'_>,
    ) -> io::Result<()> {
        // Set the modification time again only if an access time is set, because the modification time was already set
        // on creation.
        let mtime = metadata
            .extra
            .as_ref()
            .and_then(|extra| extra.atime)
            .map(|_| metadata.mtime);
        let wanted = self.view.policy.wanted(metadata, mtime);
        let wanted = WantedMetadata {
            kinds: wanted.kinds.common(MetadataKinds::PRIVILEGED),
            ..wanted
        };
        if metadata.extra.is_none() && wanted.kinds.is_empty() {
            return Ok(());
        }
        let link = hold_new(directory.as_fd(), name, FileType::Symlink)?;
        let permit = self.tree.lease().permit()?;
        let mut misses = wanted.set(permit, Descriptor::PathOnly(link.as_fd()), &self.proven)?;
        misses.retain(|miss| miss.kind != MetadataKinds::TIMES); // already counted
        self.view.policy.note(&wanted, &misses, at);
        Ok(())
    }
}
