//! The comparison of entries of the source with those at the target.
//!
//! A session that writes and one that inspects hold the same [`View`], so a dry run and a verification judge a file as
//! a push does. What a push does with a verdict is in [`send`]: it sets metadata, claims parts of earlier transfers,
//! and remembers the files whose contents it compares. [`inspection`] opens directories as they are.
//!
//! Equal means: a regular file of the same size and, by default, the time that the target's file system makes of the
//! source's modification time; with `--checksum` the same BLAKE3, which the sender compares with its own.
//!
//! With `--update` and `--ignore-existing` a file may stay whatever it holds. The receiver obeys both: here, where
//! guessed files come, where links and directories are placed, and once more when a name is given.
//!
//! **Invariant:** nothing in a view changes the target, except that a transfer may learn by a hidden file how a file
//! system stores times.

pub(crate) mod candidate;
pub(crate) mod inspection;
pub(crate) mod listed;
pub(crate) mod send;

use std::os::fd::OwnedFd;

use zmove_chunk::xattr_digest;
use zmove_disk::{
    FileIdentity, FoundXattrs, HasXattrs, KeptTimes, Miss, NameAt, Wanted, is_beyond_range,
    is_held_everywhere, is_of_another_user,
};
use zmove_types::{Kinds, Metadata, Name, RelPath, Timestamp};
use zmove_wire::{Differences, Verdict, XattrDigest};

use crate::store::target::keeper::{At, Keeper};
use crate::store::target::links::Claims;
use crate::store::target::renamed;

/// The rules by which entries are compared with those at the target, and what has been learned of the target.
#[derive(Debug)]
pub(crate) struct View {
    /// For a single entry: its name at the source and the name that it gets.
    pub(crate) rename: Option<(Name, Name)>,
    pub(crate) times: KeptTimes,
    pub(crate) keeper: Keeper,
    pub(crate) claims: Claims,
}

/// Why entries are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To send what is needed: the first difference for which data are sent ends the comparison.
    Send,
    /// To report what a transfer would change.
    Report,
    /// To report what differs, whether a transfer could change it or not.
    Verify,
}

/// A regular file of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceFile<'a> {
    pub(crate) bytes: u64,
    pub(crate) metadata: &'a Metadata,
    pub(crate) xattrs: Xattrs<'a>,
}

impl View {
    /// The name that an entry gets.
    pub(crate) fn name<'a>(&'a self, directory: &RelPath, name: &'a Name) -> &'a Name {
        renamed(self.rename.as_ref(), directory, name)
    }

    /// Whether an existing entry may not be replaced by a file with that time at the source.
    pub(crate) fn spares(
        &self,
        directory: &OwnedFd,
        there: &FileIdentity,
        mtime: Timestamp,
    ) -> bool {
        self.keeper
            .rules
            .spare(there, || self.times.kept(directory, mtime))
    }

    /// Whether another name that the sender has asked about leads to the same file as this one. To be asked once for
    /// each name, when all else is as it should be.
    pub(crate) fn is_of_another(
        &self,
        directory: &OwnedFd,
        name: &Name,
        there: &FileIdentity,
    ) -> bool {
        self.keeper.rules.kinds.has_any(Kinds::LINKS)
            && self.claims.is_of_another(directory, name, there)
    }

    /// The verdict on a file in the place of which there is a regular one. `contents` gives it, from the other
    /// differences, where contents decide and sizes are equal; without it, size and time decide.
    pub(crate) fn file(
        &self,
        purpose: Purpose,
        NameAt { directory, name }: NameAt<'_>,
        there: &FileIdentity,
        source: SourceFile<'_>,
        contents: Option<impl FnOnce(Differences) -> Verdict>,
    ) -> Verdict {
        if self.spares(directory, there, source.metadata.mtime) {
            return Verdict::Stays;
        }
        let all = purpose != Purpose::Send;
        // All metadata decide whether a file with other names can stay.
        let is_shared = there.names > 1;
        let mut differences =
            Differences::default().and_if(Differences::SIZE, &there.bytes, &source.bytes);
        let is_time_asked =
            contents.is_none() || is_shared && self.keeper.rules.kinds.has_any(Kinds::TIMES);
        if all || is_time_asked && differences.is_empty() {
            let has_time = self
                .times
                .is_kept(directory, there.mtime, source.metadata.mtime);
            differences = differences.and_if(Differences::TIME, &has_time, &true);
        }
        let decisive = if contents.is_some() {
            Differences::SIZE
        } else {
            Differences::SIZE.and(Differences::TIME)
        };
        if !differences.has_any(decisive) && self.is_of_another(directory, name, there) {
            differences = differences.and(Differences::LINKS);
        }
        let is_needed = differences.has_any(decisive.and(Differences::LINKS));
        let entry = NameAt::new(directory, name);
        if all || (contents.is_none() || is_shared) && !is_needed {
            let metadata = self.keeper.rules.of_file(source.metadata);
            let beside = self.beside(purpose, there, &metadata, source.xattrs, entry);
            differences = differences.and(beside);
        }
        match contents {
            _ if is_needed => Verdict::Replace(differences),
            _ if purpose != Purpose::Verify
                && self.lacks_for_its_names(entry, there, source.metadata, differences) =>
            {
                Verdict::Replace(differences)
            }
            Some(contents) => contents(differences),
            None if purpose == Purpose::Report
                && !differences.is_empty()
                && is_of_another_user(there.ids) =>
            {
                Verdict::Replace(differences)
            }
            None => Verdict::set(differences),
        }
    }

    /// Whether a file has other names, which may be those of older states of the tree, and one of these differences
    /// can be set: then a new file takes its place. A difference that stays in any case is none, or each transfer would
    /// send the file again.
    fn lacks_for_its_names(
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
            let wanted = self.keeper.wanted(metadata, None);
            wanted.owners_out_of_reach(there.ids).len() < wanted.missing_owners(there.ids).len()
        };
        let lacks_xattrs = differences.has_any(Differences::XATTRS);
        let gets_xattrs = lacks_xattrs && entry.may_have(self.keeper.rules.xattr_kinds());
        let mut others = Differences::OWNER.and(Differences::XATTRS);
        if !self.keeper.rules.kinds.has_any(Kinds::TIMES) {
            others = others.and(Differences::TIME);
        }
        if lacks_xattrs && !gets_xattrs {
            // A file without its access control list has another mode.
            others = others.and(Differences::MODE);
        }
        !differences.without(others).is_empty()
            || differences.has_any(Differences::OWNER) && gets_owner()
            || gets_xattrs
    }

    /// Counts an entry that stays, and whose file system cannot hold the time of its source.
    pub(crate) fn note_time(&self, there: &FileIdentity, source: &Metadata, at: At<'_>) {
        if self.keeper.rules.kinds.has_any(Kinds::TIMES)
            && !is_held_everywhere(source.mtime)
            && is_beyond_range(there.mtime, source.mtime)
        {
            let misses = [Miss {
                kind: Kinds::TIMES,
                error: Miss::BEYOND_RANGE,
            }];
            self.keeper.note(&Wanted::default(), &misses, at);
        }
    }

    /// How an existing entry differs in what is kept of it beside its contents and its time.
    pub(crate) fn beside(
        &self,
        purpose: Purpose,
        there: &FileIdentity,
        metadata: &Metadata,
        xattrs: Xattrs<'_>,
        entry: impl HasXattrs,
    ) -> Differences {
        let wanted = self.keeper.wanted(metadata, None);
        let is_owned = wanted.is_met(there.ids, wanted.mode)
            || purpose == Purpose::Report && self.would_stay_owned(there, &wanted);
        let has_xattrs = xattrs.are_those_of(entry, metadata, self.keeper.rules.kinds);
        let has_mode = there.mode == metadata.mode || !self.keeper.rules.kinds.has_any(Kinds::MODE);
        Differences::default()
            .and_if(Differences::MODE, &has_mode, &true)
            .and_if(Differences::OWNER, &is_owned, &true)
            .and_if(Differences::XATTRS, &has_xattrs, &true)
    }

    /// Whether a transfer would leave an entry all owners that it has, since it may set no others; counts those.
    fn would_stay_owned(&self, there: &FileIdentity, wanted: &Wanted<'_>) -> bool {
        let misses = wanted.owners_out_of_reach(there.ids);
        self.keeper.foresee(&misses);
        misses.len() == wanted.missing_owners(there.ids).len()
    }
}

/// What is known of a source's extended attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Xattrs<'a> {
    /// The attributes are among the metadata.
    Known,
    /// A digest, if there are any.
    Digest(Option<&'a XattrDigest>),
}

impl Xattrs<'_> {
    /// Whether an entry has the same.
    pub(crate) fn are_those_of(
        self,
        entry: impl HasXattrs,
        metadata: &Metadata,
        kinds: Kinds,
    ) -> bool {
        let kinds = kinds.common(Kinds::ANY_XATTR);
        if kinds.is_empty() {
            return true;
        }
        let Ok(FoundXattrs { list, .. }) = entry.xattrs(kinds) else {
            return false;
        };
        match self {
            Self::Known => list == metadata.xattrs(),
            Self::Digest(None) => list.is_empty(),
            Self::Digest(Some(digest)) => xattr_digest(&list) == *digest,
        }
    }
}
