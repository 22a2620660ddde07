//! Compares entries of the source with those at the target.
//!
//! Sessions that write and sessions that inspect use the same [`Comparator`], so a dry run and a verification compare
//! files exactly as a push does. In a push, [`send`] acts on the verdicts: it sets metadata, claims parts of earlier
//! transfers, and remembers files whose contents are compared. In an inspection, [`inspection`] opens directories
//! without changing them.
//!
//! A file at the target is equal if it is a regular file of the same size and modification time. Times are compared
//! with the resolution and range of the target's file system. With `--checksum`, the BLAKE3 hash decides instead of the
//! time, and the sender compares the hashes.
//!
//! With `--update` and `--ignore-existing`, an existing file may be kept regardless of its contents. The receiver
//! applies both options here, to files that were sent without a request, to links and directories, and again when a
//! file is renamed into place.
//!
//! **Invariant:** a [`Comparator`] does not change the target. The only exception is a hidden file with which a
//! transfer tests how a file system stores times.

pub(crate) mod candidate;
pub(crate) mod inspection;
pub(crate) mod listed;
pub(crate) mod send;

use std::os::fd::OwnedFd;

use zmove_chunk::xattr_digest;
use zmove_disk::{
    EntryXattrs, FileIdentity, HasXattrs, MetadataFailure, NameAt, TimeResolutions, WantedMetadata,
    is_foreign_owner, is_out_of_range, is_storable_everywhere,
};
use zmove_types::{Metadata, MetadataKinds, Name, RelPath, Timestamp};
use zmove_wire::{Differences, Verdict, XattrDigest};

use crate::store::target::links::Claims;
use crate::store::target::metadata_policy::{EntryLocation, MetadataPolicy};
use crate::store::target::renamed;

/// The rules for comparing entries with those at the target, and the known properties of the target.
#[derive(Debug)]
pub(crate) struct Comparator {
    /// The name of a single entry at the source and its different name at the target.
    pub(crate) rename: Option<(Name, Name)>,
    pub(crate) times: TimeResolutions,
    pub(crate) policy: MetadataPolicy,
    pub(crate) claims: Claims,
}

/// The reason why entries are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To send the files that are needed. The comparison ends at the first difference that requires data.
    Send,
    /// To report the changes that a transfer would make.
    Report,
    /// To report all differences, including those that a transfer could not change.
    Verify,
}

/// A regular file of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceFile<'a> {
    pub(crate) bytes: u64,
    pub(crate) metadata: &'a Metadata,
    pub(crate) xattrs: SourceXattrs<'a>,
}

impl Comparator {
    /// Returns the name of an entry at the target.
    pub(crate) fn name<'a>(&'a self, directory: &RelPath, name: &'a Name) -> &'a Name {
        renamed(self.rename.as_ref(), directory, name)
    }

    /// Returns whether an existing entry must not be replaced by a source file with this modification time.
    pub(crate) fn must_keep(
        &self,
        directory: &OwnedFd,
        there: &FileIdentity,
        mtime: Timestamp,
    ) -> bool {
        self.policy
            .rules
            .must_keep(there, || self.times.stored_time(directory, mtime))
    }

    /// Returns whether another name in the sender's requests is a hard link to the same file. Call this once for each
    /// name, after all other properties of the file were found to match.
    pub(crate) fn is_claimed(
        &self,
        directory: &OwnedFd,
        name: &Name,
        there: &FileIdentity,
    ) -> bool {
        self.policy.rules.kinds.has_any(MetadataKinds::LINKS)
            && self.claims.is_claimed(directory, name, there)
    }

    /// Compares a source file with the existing regular file of its name. If the sizes are equal, `contents` receives
    /// the metadata differences and returns the verdict. Without `contents`, size and time decide.
    pub(crate) fn file(
        &self,
        purpose: Purpose,
        NameAt { directory, name }: NameAt<'_>,
        there: &FileIdentity,
        source: SourceFile<'_>,
        contents: Option<impl FnOnce(Differences) -> Verdict>,
    ) -> Verdict {
        if self.must_keep(directory, there, source.metadata.mtime) {
            return Verdict::Stays;
        }
        let all = purpose != Purpose::Send;
        // A file with several hard links may be kept only if all its metadata matches.
        let is_shared = there.names > 1;
        let mut differences =
            Differences::default().add_if_unequal(Differences::SIZE, &there.bytes, &source.bytes);
        let is_time_asked = contents.is_none()
            || is_shared && self.policy.rules.kinds.has_any(MetadataKinds::TIMES);
        if all || is_time_asked && differences.is_empty() {
            let has_time = self
                .times
                .stores_as(directory, there.mtime, source.metadata.mtime);
            differences = differences.add_if_unequal(Differences::TIME, &has_time, &true);
        }
        let decisive = if contents.is_some() {
            Differences::SIZE
        } else {
            Differences::SIZE.and(Differences::TIME)
        };
        if !differences.has_any(decisive) && self.is_claimed(directory, name, there) {
            differences = differences.and(Differences::LINKS);
        }
        let is_needed = differences.has_any(decisive.and(Differences::LINKS));
        let entry = NameAt::new(directory, name);
        if all || (contents.is_none() || is_shared) && !is_needed {
            let metadata = self.policy.rules.of_file(source.metadata);
            let beside = self.compare_metadata(purpose, there, &metadata, source.xattrs, entry);
            differences = differences.and(beside);
        }
        match contents {
            _ if is_needed => Verdict::Replace(differences),
            _ if purpose != Purpose::Verify
                && self.needs_new_file(entry, there, source.metadata, differences) =>
            {
                Verdict::Replace(differences)
            }
            Some(contents) => contents(differences),
            None if purpose == Purpose::Report
                && !differences.is_empty()
                && is_foreign_owner(there.ids) =>
            {
                Verdict::Replace(differences)
            }
            None => Verdict::set(differences),
        }
    }

    /// Returns whether a file with differences must be replaced because it has several hard links.
    ///
    /// Another link may belong to a snapshot of the tree, so differences are fixed in a new file. Differences that the
    /// target cannot store are ignored. Otherwise, each transfer would send the file again.
    fn needs_new_file(
        &self,
        entry: NameAt<'_>,
        there: &FileIdentity,
        metadata: &Metadata,
        differences: Differences,
    ) -> bool {
        if there.names < 2 || differences.is_empty() {
            return false;
        }
        let gets_owner = || {
            let wanted = self.policy.wanted(metadata, None);
            wanted.unsettable_owners(there.ids).len() < wanted.ownership_failures(there.ids).len()
        };
        let lacks_xattrs = differences.has_any(Differences::XATTRS);
        let gets_xattrs = lacks_xattrs && entry.may_support(self.policy.rules.xattr_kinds());
        let mut others = Differences::OWNER.and(Differences::XATTRS);
        if !self.policy.rules.kinds.has_any(MetadataKinds::TIMES) {
            others = others.and(Differences::TIME);
        }
        if lacks_xattrs && !gets_xattrs {
            // A file without its access control list has different permission bits, so these are ignored too.
            others = others.and(Differences::MODE);
        }
        !differences.without(others).is_empty()
            || differences.has_any(Differences::OWNER) && gets_owner()
            || gets_xattrs
    }

    /// Counts an entry that is kept although its file system cannot store the source's modification time.
    pub(crate) fn count_unstorable_time(
        &self,
        there: &FileIdentity,
        source: &Metadata,
        at: EntryLocation<'_>,
    ) {
        if self.policy.rules.kinds.has_any(MetadataKinds::TIMES)
            && !is_storable_everywhere(source.mtime)
            && is_out_of_range(there.mtime, source.mtime)
        {
            let misses = [MetadataFailure {
                kind: MetadataKinds::TIMES,
                error: MetadataFailure::OUT_OF_RANGE,
            }];
            self.policy.note(&WantedMetadata::default(), &misses, at);
        }
    }

    /// Returns the differences of an existing entry in everything except contents and time.
    pub(crate) fn compare_metadata(
        &self,
        purpose: Purpose,
        there: &FileIdentity,
        metadata: &Metadata,
        xattrs: SourceXattrs<'_>,
        entry: impl HasXattrs,
    ) -> Differences {
        let wanted = self.policy.wanted(metadata, None);
        let is_owned = wanted.matches(there.ids, wanted.mode)
            || purpose == Purpose::Report && self.keeps_all_owners(there, &wanted);
        let has_xattrs = xattrs.match_entry(entry, metadata, self.policy.rules.kinds);
        let has_mode =
            there.mode == metadata.mode || !self.policy.rules.kinds.has_any(MetadataKinds::MODE);
        Differences::default()
            .add_if_unequal(Differences::MODE, &has_mode, &true)
            .add_if_unequal(Differences::OWNER, &is_owned, &true)
            .add_if_unequal(Differences::XATTRS, &has_xattrs, &true)
    }

    /// Returns whether a transfer would keep the owner and group of an entry, because it is not permitted to change
    /// them. Counts the owners and groups that it cannot set.
    fn keeps_all_owners(&self, there: &FileIdentity, wanted: &WantedMetadata<'_>) -> bool {
        let misses = wanted.unsettable_owners(there.ids);
        self.policy.count_expected(&misses);
        misses.len() == wanted.ownership_failures(there.ids).len()
    }
}

/// The available information about a source's extended attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SourceXattrs<'a> {
    /// The attributes are part of the metadata.
    Known,
    /// Only a digest of the attributes is known. `None` means that the source has no attributes.
    Digest(Option<&'a XattrDigest>),
}

impl SourceXattrs<'_> {
    /// Returns whether an entry has the same attributes.
    pub(crate) fn match_entry(
        self,
        entry: impl HasXattrs,
        metadata: &Metadata,
        kinds: MetadataKinds,
    ) -> bool {
        let kinds = kinds.common(MetadataKinds::ANY_XATTR);
        if kinds.is_empty() {
            return true;
        }
        let Ok(EntryXattrs { list, .. }) = entry.xattrs(kinds) else {
            return false;
        };
        match self {
            Self::Known => list == metadata.xattrs(),
            Self::Digest(None) => list.is_empty(),
            Self::Digest(Some(digest)) => xattr_digest(&list) == *digest,
        }
    }
}
