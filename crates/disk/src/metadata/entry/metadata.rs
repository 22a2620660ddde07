//! An entry's metadata as a whole, in an order in which nobody may ever do more with the entry than in the end.
//!
//! ```text
//!  owner ─► mode, narrowed ─► attributes of users ─► access control lists ─► rights ─► mode ─► time
//! ```
//!
//! To give an entry away takes its setuid and setgid bits and its capabilities, and to set an access control list sets
//! a part of its mode; so these come later. What cannot be set is reported and left, and the rest is set.
//!
//! A file system that refuses to set a value, or reports success and ignores it, does not keep that value. Either is a
//! [`Miss`]; [`ProvenKinds`] says when a value is read back. Both times are always set together: some file systems
//! ignore a request that sets one of them alone.
//!
//! **Invariant:** an entry that did not get its owner or its group has no setuid and setgid bits, unless they are to be
//! carried whoever owns it: they would lend the rights of whoever does. One that did not get its access control list
//! gives its group no more than the list does.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Gid, Mode, Stat, Timestamps, Uid};
use rustix::io::Errno;
use zmove_types::{Account, Ids, Kinds, Metadata, Timestamp, Xattr};

use super::proven::ProvenKinds;
use super::xattrs::{Descriptor, HasXattrs, mode_without_acl};
use super::{may_give_away, timespec, timestamp};
use crate::metadata::storable_times::{is_beyond_range, is_held_everywhere, may_be_kept};
use crate::publishing::lease::Permit;

/// The metadata that an entry is to have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Permission bits.
    pub mode: u32,
    /// The modification time; none leaves what there is.
    pub mtime: Option<Timestamp>,
    /// The time of access, where that is set with the other.
    pub atime: Option<Timestamp>,
    /// The owner, where one is to be set; [`Account::NO_ID`] where there is none of its name.
    pub owner: Option<u32>,
    /// The group, likewise.
    pub group: Option<u32>,
    /// All that there is to be of extended attributes; those of other kinds than `kinds` do not count.
    pub xattrs: &'a [Xattr],
    /// The kinds of attributes that are set, and removed where none is wanted.
    pub kinds: Kinds,
    /// Whether owner and group may be set at all; they are told as missed where they may not and differ.
    pub may_own: bool,
    /// Whether setuid and setgid bits depend on the owner.
    pub set_ids_with_owner: bool,
}

/// A part of its metadata that an entry did not get, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The kind of the part.
    pub kind: Kinds,
    /// The system's error; [`Miss::IGNORED`] where the system reported success.
    pub error: Errno,
}

impl Miss {
    /// The error for a value that the file system accepted and did not keep.
    pub const IGNORED: Errno = Errno::OPNOTSUPP;
    /// The error for a time that the file system cannot hold: the entry has the nearest one that it can.
    pub const BEYOND_RANGE: Errno = Errno::OVERFLOW;

    /// Whether this is a mode or a time that only the owner of the entry may set.
    #[must_use]
    pub fn is_of_an_owner(&self) -> bool {
        let is_refused = matches!(self.error, Errno::PERM | Errno::ACCESS);
        is_refused && Kinds::MODE.and(Kinds::TIMES).has_any(self.kind)
    }

    /// Whether an error says that the file system or its rules refuse a value, and not that the storage fails.
    pub(crate) fn is_refusal(error: Errno) -> bool {
        matches!(
            error,
            Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL
        )
    }
}

/// The mode bits by which a program gets the rights of its file's owner and group.
pub(crate) const SET_IDS: u32 = 0o6000;
/// The bits of a mode that a file system which stores no modes never changes: vfat and the like store write permission
/// alone.
const READ_AND_EXECUTE: u32 = 0o555;

impl Wanted<'_> {
    /// Mode and modification time, and nothing else.
    #[must_use]
    pub fn mode_and_time(metadata: &Metadata) -> Self {
        Self {
            mode: metadata.mode,
            mtime: Some(metadata.mtime),
            ..Self::default()
        }
    }

    /// Sets all that the entry does not have, and returns each part that the entry did not get.
    ///
    /// # Errors
    /// The system's error where the storage fails.
    pub fn set(
        &self,
        permit: Permit<'_>,
        entry: Descriptor<'_>,
        proven: &ProvenKinds,
    ) -> io::Result<Vec<Miss>> {
        self.set_from(permit, entry, &entry.stat()?, proven)
    }

    /// The same for an entry that has these properties.
    pub(crate) fn set_from(
        &self,
        permit: Permit<'_>,
        entry: Descriptor<'_>,
        stat: &Stat,
        proven: &ProvenKinds,
    ) -> io::Result<Vec<Miss>> {
        let mut setting = Setting {
            wanted: self,
            permit: &permit,
            entry,
            form: FileType::from_raw_mode(stat.st_mode),
            mode: Some(stat.st_mode & 0o7777),
            misses: Vec::new(),
            device: stat.st_dev,
            kept: proven.of(stat.st_dev),
            proven,
        };
        setting.set_owner(Ids {
            user: stat.st_uid,
            group: stat.st_gid,
        })?;
        setting.set_xattrs()?;
        setting.set_mode()?;
        setting.set_times(stat)?;
        Ok(setting.misses)
    }

    /// Whether an entry that has these owners would get another; then the kernel takes what capabilities it has.
    #[must_use]
    pub fn gives_away(&self, has: Ids) -> bool {
        self.may_own && !self.is_met(has, self.mode)
    }

    /// The owners that an entry which has these ones does not get where none may be set.
    #[must_use]
    pub fn missing_owners(&self, has: Ids) -> Vec<Miss> {
        let user = self
            .owner
            .filter(|user| *user != has.user)
            .map(|_| Kinds::OWNER);
        let group = self
            .group
            .filter(|group| *group != has.group)
            .map(|_| Kinds::GROUP);
        user.into_iter()
            .chain(group)
            .map(|kind| Miss {
                kind,
                error: Errno::PERM,
            })
            .collect()
    }

    /// The owners that an entry which has these ones would not get, found without trying: a process that may not give
    /// entries away gives its own ones to groups that it is in, and does no more.
    #[must_use]
    pub fn owners_out_of_reach(&self, has: Ids) -> Vec<Miss> {
        let mut missing = self.missing_owners(has);
        if missing.is_empty() || !self.may_own {
            return missing;
        }
        if may_give_away() {
            return Vec::new();
        }
        let is_own = has.user == rustix::process::geteuid().as_raw();
        let is_in = |group: Option<u32>| group.is_some_and(is_in_group);
        missing.retain(|miss| miss.kind == Kinds::OWNER || !(is_own && is_in(self.group)));
        missing
    }

    /// Whether an entry that has these owners, this mode and these attributes has all of it, but for its time.
    #[must_use]
    pub fn is_met(&self, ids: Ids, mode: u32) -> bool {
        let has = |wanted: Option<u32>, has| wanted.is_none_or(|wanted| wanted == has);
        mode == self.mode && has(self.owner, ids.user) && has(self.group, ids.group)
    }
}

/// Whether this process is in a group.
fn is_in_group(group: u32) -> bool {
    let others = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group
        || others.iter().any(|other| other.as_raw() == group)
}

/// The setting of one entry.
struct Setting<'a> {
    wanted: &'a Wanted<'a>,
    permit: &'a Permit<'a>,
    entry: Descriptor<'a>,
    form: FileType,
    /// The mode that the entry has now, where that is known.
    mode: Option<u32>,
    misses: Vec<Miss>,
    device: u64,
    /// The kinds that the entry's file system has shown to keep.
    kept: Kinds,
    proven: &'a ProvenKinds,
}

impl Setting<'_> {
    fn set_owner(&mut self, has: Ids) -> io::Result<()> {
        let user = self.wanted.owner.filter(|user| *user != has.user);
        let group = self.wanted.group.filter(|group| *group != has.group);
        if user.is_none() && group.is_none() {
            return Ok(());
        }
        if !self.wanted.may_own {
            self.misses.extend(self.wanted.missing_owners(has));
            return Ok(());
        }
        // what it allows its group now may be more than it allows that in the end
        self.narrow();
        match self.entry.give_to(self.permit, user, group) {
            Ok(()) => {}
            // who may not give it away may give it to another of their groups
            Err(error) if user.is_some() && group.is_some() => {
                self.miss(Kinds::OWNER, error);
                if let Err(error) = self.entry.give_to(self.permit, None, group) {
                    self.miss(Kinds::GROUP, error);
                }
            }
            Err(error) => self.miss(
                if user.is_some() {
                    Kinds::OWNER
                } else {
                    Kinds::GROUP
                },
                error,
            ),
        }
        // the kernel takes bits from what is given away
        self.mode = None;
        if !self.is_kept(Kinds::OWNERSHIP) {
            let stat = self.entry.stat()?;
            self.read_back_owner(Kinds::OWNER, user, stat.st_uid);
            self.read_back_owner(Kinds::GROUP, group, stat.st_gid);
        }
        Ok(())
    }

    fn read_back_owner(&mut self, kind: Kinds, changed_to: Option<u32>, got: u32) {
        let Some(wanted) = changed_to.filter(|_| !self.has_missed(kind)) else {
            return;
        };
        if wanted == got {
            self.prove(kind);
        } else {
            self.miss(kind, Miss::IGNORED);
        }
    }

    fn set_xattrs(&mut self) -> io::Result<()> {
        let Wanted { xattrs, kinds, .. } = *self.wanted;
        if kinds.is_empty() {
            return Ok(());
        }
        let has = self.entry.xattrs(kinds)?.list;
        let of = |kinds: Kinds| {
            move |xattr: &&Xattr| {
                Kinds::of_xattr(&xattr.name).is_some_and(|kind| kinds.has_any(kind))
            }
        };
        if has.iter().eq(xattrs.iter().filter(of(kinds))) {
            return Ok(());
        }
        let is_acl = of(Kinds::ACLS.common(kinds));
        if has.iter().filter(&is_acl).ne(xattrs.iter().filter(&is_acl)) {
            self.narrow();
            self.mode = None;
        }
        for old in has
            .iter()
            .filter(|old| !xattrs.iter().any(|new| new.name == old.name))
        {
            self.change(&old.name, |entry, permit| {
                entry.remove_xattr(permit, &old.name)
            });
        }
        let is_new = |new: &&Xattr| !has.contains(new);
        for kind in [Kinds::XATTRS, Kinds::ACLS, Kinds::PRIVILEGED] {
            for new in xattrs.iter().filter(of(kind.common(kinds))).filter(is_new) {
                self.change(&new.name, |entry, permit| {
                    entry.set_xattr(permit, &new.name, &new.value)
                });
                self.read_back_xattr(new);
            }
        }
        Ok(())
    }

    /// Sets or removes an attribute. Who owns an entry and may not write to it has to allow that first.
    fn change(
        &mut self,
        name: &[u8],
        change: impl Fn(Descriptor<'_>, &Permit<'_>) -> rustix::io::Result<()>,
    ) {
        let mut changed = change(self.entry, self.permit);
        if changed == Err(Errno::ACCESS)
            && self
                .set_mode_to(self.wanted.mode & OWNER_ALL | OWNER_WRITES)
                .is_ok()
        {
            self.mode = None;
            changed = change(self.entry, self.permit);
        }
        if let Err(error) = changed
            && let Some(kind) = Kinds::of_xattr(name)
        {
            self.miss(kind, error);
        }
    }

    fn read_back_xattr(&mut self, set: &Xattr) {
        let Some(kind) = Kinds::of_xattr(&set.name) else {
            return;
        };
        // a server may put a list of its own form in order
        if self.is_kept(kind) || self.has_missed(kind) || *set.name == *NFS4_ACL {
            return;
        }
        match self.entry.value(&set.name) {
            Ok(Some(value)) if *value == *set.value => self.prove(kind),
            // the kernel stores a list that says no more than the mode as that mode
            Ok(None) if kind == Kinds::ACLS && set.value.len() <= PLAIN_ACL_BYTES => {}
            Ok(_) => self.miss(kind, Miss::IGNORED),
            Err(error) => self.miss(kind, error),
        }
    }

    fn set_mode(&mut self) -> io::Result<()> {
        let mut mode = self.wanted.mode;
        if self.has_missed(Kinds::ACLS) {
            mode = mode_without_acl(mode, self.wanted.xattrs);
        }
        // those of directories lend no rights
        let lends = self.form == FileType::RegularFile && self.wanted.set_ids_with_owner;
        if lends && self.has_missed(Kinds::OWNERSHIP) {
            mode &= !SET_IDS;
        }
        if self.mode == Some(mode) || self.form == FileType::Symlink {
            return Ok(());
        }
        match self.set_mode_to(mode) {
            Ok(()) => self.read_back_mode(mode),
            Err(error) if Miss::is_refusal(error) => {
                self.miss(Kinds::MODE, error);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The kernel drops the setgid bit from a file whose group the user is not in, so that bit is always read back.
    fn read_back_mode(&mut self, set: u32) -> io::Result<()> {
        if self.is_kept(Kinds::MODE) && set & SET_IDS == 0 {
            return Ok(());
        }
        let got = self.entry.stat()?.st_mode & 0o7777;
        if got != set {
            self.miss(Kinds::MODE, Miss::IGNORED);
        } else if self
            .mode
            .is_some_and(|before| (before ^ got) & READ_AND_EXECUTE != 0)
        {
            self.prove(Kinds::MODE);
        }
        Ok(())
    }

    fn set_times(&mut self, before: &Stat) -> io::Result<()> {
        let Some(mtime) = self.wanted.mtime else {
            return Ok(());
        };
        let there = FoundTimes::of(before);
        let atime = self.wanted.atime.unwrap_or(there.atime);
        if there == (FoundTimes { mtime, atime }) {
            return Ok(());
        }
        let times = Timestamps {
            last_access: timespec(atime),
            last_modification: timespec(mtime),
        };
        match self.entry.set_times(self.permit, &times) {
            Ok(()) => {}
            Err(error) if Miss::is_refusal(error) => {
                if there.mtime != mtime {
                    self.miss(Kinds::TIMES, error);
                }
                if self.wanted.atime.is_some() {
                    self.miss(Kinds::ATIME, error);
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        let set = if self.wanted.atime.is_some() {
            Kinds::TIMES.and(Kinds::ATIME)
        } else {
            Kinds::TIMES
        };
        let are_held =
            is_held_everywhere(mtime) && self.wanted.atime.is_none_or(is_held_everywhere);
        if are_held && self.is_kept(set) {
            return Ok(());
        }
        let got = FoundTimes::of(&self.entry.stat()?);
        self.read_back_time(Kinds::TIMES, there.mtime, got.mtime, mtime);
        if let Some(atime) = self.wanted.atime {
            self.read_back_time(Kinds::ATIME, there.atime, got.atime, atime);
        }
        Ok(())
    }

    fn read_back_time(&mut self, kind: Kinds, before: Timestamp, got: Timestamp, set: Timestamp) {
        if !may_be_kept(got, set) {
            self.miss(kind, Miss::IGNORED);
        } else if is_beyond_range(got, set) {
            self.miss(kind, Miss::BEYOND_RANGE);
        } else if before != set && got == set || !may_be_kept(before, set) {
            self.prove(kind);
        }
    }

    fn is_kept(&self, kinds: Kinds) -> bool {
        kinds.without(self.kept).is_empty()
    }

    fn prove(&mut self, kind: Kinds) {
        self.kept = self.kept.and(kind);
        self.proven.prove(self.device, kind);
    }

    fn has_missed(&self, kinds: Kinds) -> bool {
        self.misses.iter().any(|miss| kinds.has_any(miss.kind))
    }

    fn set_mode_to(&self, mode: u32) -> rustix::io::Result<()> {
        // links have no mode of their own
        if self.form == FileType::Symlink {
            Ok(())
        } else {
            self.entry.set_mode(self.permit, Mode::from_raw_mode(mode))
        }
    }

    /// Allows nobody but the owner anything, and the owner no more than there is now and in the end.
    fn narrow(&mut self) {
        let narrowed = self.wanted.mode & OWNER_ALL;
        if self.mode != Some(narrowed) && self.set_mode_to(narrowed).is_ok() {
            self.mode = self.is_kept(Kinds::MODE).then_some(narrowed);
        }
    }

    fn miss(&mut self, kind: Kinds, error: Errno) {
        if !self.misses.iter().any(|miss| miss.kind == kind) {
            self.misses.push(Miss { kind, error });
        }
    }
}

pub(crate) const OWNER_ALL: u32 = 0o700;
const OWNER_WRITES: u32 = 0o200;
const NFS4_ACL: &[u8] = b"system.nfs4_acl";
/// The bytes of a list with an owner, a group and all others, and nobody else.
const PLAIN_ACL_BYTES: usize = 4 + 3 * 8;

/// The times that an entry has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FoundTimes {
    mtime: Timestamp,
    atime: Timestamp,
}

impl FoundTimes {
    fn of(stat: &Stat) -> Self {
        Self {
            mtime: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            atime: timestamp(stat.st_atime, stat.st_atime_nsec),
        }
    }
}

/// Sets the mode of an open entry, unless its file system refuses that.
pub(crate) fn set_mode_if_allowed(
    permit: Permit<'_>,
    entry: BorrowedFd<'_>,
    mode: Mode,
) -> io::Result<()> {
    match Descriptor::Open(entry).set_mode(&permit, mode) {
        Err(error) if !Miss::is_refusal(error) => Err(error.into()),
        _set_or_refused => Ok(()),
    }
}

impl Descriptor<'_> {
    pub(crate) fn stat(self) -> rustix::io::Result<Stat> {
        let (Self::Open(file) | Self::PathOnly(file)) = self;
        rustix::fs::fstat(file)
    }

    fn give_to(
        self,
        permit: &Permit<'_>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> rustix::io::Result<()> {
        if [user, group].contains(&Some(Account::NO_ID)) {
            return Err(Errno::INVAL);
        }
        self.set_owner(permit, user.map(Uid::from_raw), group.map(Gid::from_raw))
    }
}

#[cfg(test)]
mod tests;
