//! Sets all metadata of an entry, in an order that never grants more access than the final state does.
//!
//! ```text
//!  owner ─► mode, narrowed ─► attributes of users ─► access control lists ─► rights ─► mode ─► time
//! ```
//!
//! Changing the owner clears the setuid and setgid bits and the file capabilities. Setting an access control list
//! changes part of the mode. So the capabilities and the mode are set later. A value that cannot be set is reported
//! and skipped, and the remaining values are still set.
//!
//! A file system may refuse to set a value, or report success and ignore the value. Both cases are a
//! [`MetadataFailure`]. [`ProvenKinds`] decides when a value is read back. Both times are always set together, because
//! some file systems ignore a request that sets only one of them.
//!
//! **Invariant:** an entry whose owner or group could not be set has no setuid and setgid bits, because they would
//! grant the privileges of the wrong owner. The only exception is a transfer that copies these bits regardless of the
//! owner. If the access control list could not be set, the mode of the entry grants its group no more than the list
//! does.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Gid, Mode, Stat, Timestamps, Uid};
use rustix::io::Errno;
use zmove_types::{Account, Ids, Metadata, MetadataKinds, Timestamp, Xattr};

use super::proven::ProvenKinds;
use super::xattrs::{Descriptor, HasXattrs, mode_without_acl};
use super::{can_change_owner, timespec, timestamp};
use crate::metadata::storable_times::{is_out_of_range, is_storable_everywhere, may_be_stored_as};
use crate::publishing::lease::Permit;

/// The metadata to set on an entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedMetadata<'a> {
    /// Permission bits.
    pub mode: u32,
    /// The modification time. `None` leaves both times unchanged.
    pub mtime: Option<Timestamp>,
    /// The access time. `None` leaves the access time unchanged if `mtime` is set.
    pub atime: Option<Timestamp>,
    /// The user ID of the owner. `None` keeps the current owner. [`Account::NO_ID`] means that no user with the wanted
    /// name exists.
    pub owner: Option<u32>,
    /// The group ID, with the same special values as `owner`.
    pub group: Option<u32>,
    /// The complete list of extended attributes. Attributes whose kind is not in `kinds` are ignored.
    pub xattrs: &'a [Xattr],
    /// The kinds of extended attributes to set. Attributes of these kinds that are not in `xattrs` are removed.
    pub kinds: MetadataKinds,
    /// Whether the owner and group may be set at all. If not, a difference in owner or group is reported as a
    /// [`MetadataFailure`].
    pub may_set_owner: bool,
    /// Whether setuid and setgid bits are dropped when the owner or group could not be set.
    pub set_ids_need_owner: bool,
}

/// A value of the metadata that could not be set, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataFailure {
    /// The kind of the metadata.
    pub kind: MetadataKinds,
    /// The system's error, or [`MetadataFailure::NOT_STORED`] if the system reported success but did not store the
    /// value.
    pub error: Errno,
}

impl MetadataFailure {
    /// The error for a value that the file system accepted but did not store.
    pub const NOT_STORED: Errno = Errno::OPNOTSUPP;
    /// The error for a time outside the range of the file system. The entry was given the nearest time that can be
    /// stored.
    pub const OUT_OF_RANGE: Errno = Errno::OVERFLOW;

    /// Returns whether the value is a mode or time that only the owner of the entry may set.
    #[must_use]
    pub fn needs_entry_owner(&self) -> bool {
        let is_refused = matches!(self.error, Errno::PERM | Errno::ACCESS);
        is_refused
            && MetadataKinds::MODE
                .and(MetadataKinds::TIMES)
                .has_any(self.kind)
    }

    /// Returns whether an error means that the file system or its rules refuse a value. Other errors mean that the
    /// storage failed.
    pub(crate) fn is_refusal(error: Errno) -> bool {
        matches!(
            error,
            Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL
        )
    }
}

/// The setuid and setgid bits, which let a program run with the privileges of its file's owner and group.
pub(crate) const SET_IDS: u32 = 0o6000;
/// The mode bits that a file system without modes never changes. vfat and similar file systems store only the write
/// permission.
const READ_AND_EXECUTE: u32 = 0o555;

impl WantedMetadata<'_> {
    /// Returns metadata that consists of the mode and the modification time only.
    #[must_use]
    pub fn mode_and_time(metadata: &Metadata) -> Self {
        Self {
            mode: metadata.mode,
            mtime: Some(metadata.mtime),
            ..Self::default()
        }
    }

    /// Sets every value that differs from the entry's current one, and returns the values that could not be set.
    ///
    /// # Errors
    /// Returns the system's error if the storage fails.
    pub fn set(
        &self,
        permit: Permit<'_>,
        entry: Descriptor<'_>,
        proven: &ProvenKinds,
    ) -> io::Result<Vec<MetadataFailure>> {
        self.set_from(permit, entry, &entry.stat()?, proven)
    }

    /// Sets the metadata like [`Self::set`], for an entry whose current properties are `stat`.
    pub(crate) fn set_from(
        &self,
        permit: Permit<'_>,
        entry: Descriptor<'_>,
        stat: &Stat,
        proven: &ProvenKinds,
    ) -> io::Result<Vec<MetadataFailure>> {
        let mut setting = MetadataSetter {
            wanted: self,
            permit: &permit,
            entry,
            file_type: FileType::from_raw_mode(stat.st_mode),
            mode: Some(stat.st_mode & 0o7777),
            misses: Vec::new(),
            device: stat.st_dev,
            stored_kinds: proven.of(stat.st_dev),
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

    /// Returns whether [`Self::set`] would change the owner or group of an entry whose current owner and group are
    /// `has`. If so, the kernel removes the file's capabilities.
    #[must_use]
    pub fn changes_owner(&self, has: Ids) -> bool {
        self.may_set_owner && !self.matches(has, self.mode)
    }

    /// Returns a [`MetadataFailure`] for the owner and for the group if they differ from `has`. Used if ownership
    /// cannot be set.
    #[must_use]
    pub fn ownership_failures(&self, has: Ids) -> Vec<MetadataFailure> {
        let user = self
            .owner
            .filter(|user| *user != has.user)
            .map(|_| MetadataKinds::OWNER);
        let group = self
            .group
            .filter(|group| *group != has.group)
            .map(|_| MetadataKinds::GROUP);
        user.into_iter()
            .chain(group)
            .map(|kind| MetadataFailure {
                kind,
                error: Errno::PERM,
            })
            .collect()
    }

    /// Returns the changes of owner and group that this process is not allowed to make. An unprivileged process can
    /// only change the group of its own entries, and only to a group of which the process is a member.
    #[must_use]
    pub fn unsettable_owners(&self, has: Ids) -> Vec<MetadataFailure> {
        let mut missing = self.ownership_failures(has);
        if missing.is_empty() || !self.may_set_owner {
            return missing;
        }
        if can_change_owner() {
            return Vec::new();
        }
        let is_own = has.user == rustix::process::geteuid().as_raw();
        let is_in = |group: Option<u32>| group.is_some_and(is_in_group);
        missing.retain(|miss| miss.kind == MetadataKinds::OWNER || !(is_own && is_in(self.group)));
        missing
    }

    /// Returns whether an entry with these owners and this mode needs no change. Times and extended attributes are not
    /// compared.
    #[must_use]
    pub fn matches(&self, ids: Ids, mode: u32) -> bool {
        let has = |wanted: Option<u32>, has| wanted.is_none_or(|wanted| wanted == has);
        mode == self.mode && has(self.owner, ids.user) && has(self.group, ids.group)
    }
}

/// Returns whether this process belongs to a group.
fn is_in_group(group: u32) -> bool {
    let others = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group
        || others.iter().any(|other| other.as_raw() == group)
}

/// The progress of setting the metadata of one entry.
struct MetadataSetter<'a> {
    wanted: &'a WantedMetadata<'a>,
    permit: &'a Permit<'a>,
    entry: Descriptor<'a>,
    file_type: FileType,
    /// The current mode of the entry, or `None` if it is unknown.
    mode: Option<u32>,
    misses: Vec<MetadataFailure>,
    device: u64,
    /// The kinds of metadata that the entry's file system is known to store.
    stored_kinds: MetadataKinds,
    proven: &'a ProvenKinds,
}

impl MetadataSetter<'_> {
    fn set_owner(&mut self, has: Ids) -> io::Result<()> {
        let user = self.wanted.owner.filter(|user| *user != has.user);
        let group = self.wanted.group.filter(|group| *group != has.group);
        if user.is_none() && group.is_none() {
            return Ok(());
        }
        if !self.wanted.may_set_owner {
            self.misses.extend(self.wanted.ownership_failures(has));
            return Ok(());
        }
        // The current mode may grant the new group more access than the final mode.
        self.restrict_mode();
        match self.entry.change_owner(self.permit, user, group) {
            Ok(()) => {}
            // A process that may not change the owner may still change the group to another group of which it is a
            // member.
            Err(error) if user.is_some() && group.is_some() => {
                self.add_failure(MetadataKinds::OWNER, error);
                if let Err(error) = self.entry.change_owner(self.permit, None, group) {
                    self.add_failure(MetadataKinds::GROUP, error);
                }
            }
            Err(error) => self.add_failure(
                if user.is_some() {
                    MetadataKinds::OWNER
                } else {
                    MetadataKinds::GROUP
                },
                error,
            ),
        }
        // The kernel clears mode bits when the owner changes.
        self.mode = None;
        if !self.is_known_to_store(MetadataKinds::OWNERSHIP) {
            let stat = self.entry.stat()?;
            self.read_back_owner(MetadataKinds::OWNER, user, stat.st_uid);
            self.read_back_owner(MetadataKinds::GROUP, group, stat.st_gid);
        }
        Ok(())
    }

    fn read_back_owner(&mut self, kind: MetadataKinds, changed_to: Option<u32>, got: u32) {
        let Some(wanted) = changed_to.filter(|_| !self.has_failed(kind)) else {
            return;
        };
        if wanted == got {
            self.prove(kind);
        } else {
            self.add_failure(kind, MetadataFailure::NOT_STORED);
        }
    }

    fn set_xattrs(&mut self) -> io::Result<()> {
        let WantedMetadata { xattrs, kinds, .. } = *self.wanted;
        if kinds.is_empty() {
            return Ok(());
        }
        let has = self.entry.xattrs(kinds)?.list;
        let of = |kinds: MetadataKinds| {
            move |xattr: &&Xattr| {
                MetadataKinds::of_xattr(&xattr.name).is_some_and(|kind| kinds.has_any(kind))
            }
        };
        if has.iter().eq(xattrs.iter().filter(of(kinds))) {
            return Ok(());
        }
        let is_acl = of(MetadataKinds::ACLS.common(kinds));
        if has.iter().filter(&is_acl).ne(xattrs.iter().filter(&is_acl)) {
            self.restrict_mode();
            self.mode = None;
        }
        for old in has
            .iter()
            .filter(|old| !xattrs.iter().any(|new| new.name == old.name))
        {
            self.change_xattr(&old.name, |entry, permit| {
                entry.remove_xattr(permit, &old.name)
            });
        }
        let is_new = |new: &&Xattr| !has.contains(new);
        for kind in [
            MetadataKinds::XATTRS,
            MetadataKinds::ACLS,
            MetadataKinds::PRIVILEGED,
        ] {
            for new in xattrs.iter().filter(of(kind.common(kinds))).filter(is_new) {
                self.change_xattr(&new.name, |entry, permit| {
                    entry.set_xattr(permit, &new.name, &new.value)
                });
                self.read_back_xattr(new);
            }
        }
        Ok(())
    }

    /// Sets or removes an attribute. If the mode denies the owner write access, grants that access first.
    fn change_xattr(
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
            && let Some(kind) = MetadataKinds::of_xattr(name)
        {
            self.add_failure(kind, error);
        }
    }

    fn read_back_xattr(&mut self, set: &Xattr) {
        let Some(kind) = MetadataKinds::of_xattr(&set.name) else {
            return;
        };
        // A server may normalize an NFSv4 access control list, so the stored value may differ.
        if self.is_known_to_store(kind) || self.has_failed(kind) || *set.name == *NFS4_ACL {
            return;
        }
        match self.entry.value(&set.name) {
            Ok(Some(value)) if *value == *set.value => self.prove(kind),
            // If a list is equivalent to a mode, the kernel stores only the mode.
            Ok(None) if kind == MetadataKinds::ACLS && set.value.len() <= PLAIN_ACL_BYTES => {}
            Ok(_) => self.add_failure(kind, MetadataFailure::NOT_STORED),
            Err(error) => self.add_failure(kind, error),
        }
    }

    fn set_mode(&mut self) -> io::Result<()> {
        let mut mode = self.wanted.mode;
        if self.has_failed(MetadataKinds::ACLS) {
            mode = mode_without_acl(mode, self.wanted.xattrs);
        }
        // On a directory, these bits do not grant privileges.
        let lends = self.file_type == FileType::RegularFile && self.wanted.set_ids_need_owner;
        if lends && self.has_failed(MetadataKinds::OWNERSHIP) {
            mode &= !SET_IDS;
        }
        if self.mode == Some(mode) || self.file_type == FileType::Symlink {
            return Ok(());
        }
        match self.set_mode_to(mode) {
            Ok(()) => self.read_back_mode(mode),
            Err(error) if MetadataFailure::is_refusal(error) => {
                self.add_failure(MetadataKinds::MODE, error);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads back the mode that was set. If the user is not a member of the file's group, the kernel clears the setgid
    /// bit. So a mode with setuid or setgid bits is always read back.
    fn read_back_mode(&mut self, set: u32) -> io::Result<()> {
        if self.is_known_to_store(MetadataKinds::MODE) && set & SET_IDS == 0 {
            return Ok(());
        }
        let got = self.entry.stat()?.st_mode & 0o7777;
        if got != set {
            self.add_failure(MetadataKinds::MODE, MetadataFailure::NOT_STORED);
        } else if self
            .mode
            .is_some_and(|before| (before ^ got) & READ_AND_EXECUTE != 0)
        {
            self.prove(MetadataKinds::MODE);
        }
        Ok(())
    }

    fn set_times(&mut self, before: &Stat) -> io::Result<()> {
        let Some(mtime) = self.wanted.mtime else {
            return Ok(());
        };
        let there = EntryTimes::of(before);
        let atime = self.wanted.atime.unwrap_or(there.atime);
        if there == (EntryTimes { mtime, atime }) {
            return Ok(());
        }
        let times = Timestamps {
            last_access: timespec(atime),
            last_modification: timespec(mtime),
        };
        match self.entry.set_times(self.permit, &times) {
            Ok(()) => {}
            Err(error) if MetadataFailure::is_refusal(error) => {
                if there.mtime != mtime {
                    self.add_failure(MetadataKinds::TIMES, error);
                }
                if self.wanted.atime.is_some() {
                    self.add_failure(MetadataKinds::ATIME, error);
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        let set = if self.wanted.atime.is_some() {
            MetadataKinds::TIMES.and(MetadataKinds::ATIME)
        } else {
            MetadataKinds::TIMES
        };
        let are_held =
            is_storable_everywhere(mtime) && self.wanted.atime.is_none_or(is_storable_everywhere);
        if are_held && self.is_known_to_store(set) {
            return Ok(());
        }
        let got = EntryTimes::of(&self.entry.stat()?);
        self.read_back_time(MetadataKinds::TIMES, there.mtime, got.mtime, mtime);
        if let Some(atime) = self.wanted.atime {
            self.read_back_time(MetadataKinds::ATIME, there.atime, got.atime, atime);
        }
        Ok(())
    }

    fn read_back_time(
        &mut self,
        kind: MetadataKinds,
        before: Timestamp,
        got: Timestamp,
        set: Timestamp,
    ) {
        if !may_be_stored_as(got, set) {
            self.add_failure(kind, MetadataFailure::NOT_STORED);
        } else if is_out_of_range(got, set) {
            self.add_failure(kind, MetadataFailure::OUT_OF_RANGE);
        } else if before != set && got == set || !may_be_stored_as(before, set) {
            self.prove(kind);
        }
    }

    fn is_known_to_store(&self, kinds: MetadataKinds) -> bool {
        kinds.without(self.stored_kinds).is_empty()
    }

    fn prove(&mut self, kind: MetadataKinds) {
        self.stored_kinds = self.stored_kinds.and(kind);
        self.proven.prove(self.device, kind);
    }

    fn has_failed(&self, kinds: MetadataKinds) -> bool {
        self.misses.iter().any(|miss| kinds.has_any(miss.kind))
    }

    fn set_mode_to(&self, mode: u32) -> rustix::io::Result<()> {
        // Symbolic links have no mode of their own.
        if self.file_type == FileType::Symlink {
            Ok(())
        } else {
            self.entry.set_mode(self.permit, Mode::from_raw_mode(mode))
        }
    }

    /// Removes all access except the owner's, and limits the owner's access to that of the final mode.
    fn restrict_mode(&mut self) {
        let narrowed = self.wanted.mode & OWNER_ALL;
        if self.mode != Some(narrowed) && self.set_mode_to(narrowed).is_ok() {
            self.mode = self
                .is_known_to_store(MetadataKinds::MODE)
                .then_some(narrowed);
        }
    }

    fn add_failure(&mut self, kind: MetadataKinds, error: Errno) {
        if !self.misses.iter().any(|miss| miss.kind == kind) {
            self.misses.push(MetadataFailure { kind, error });
        }
    }
}

pub(crate) const OWNER_ALL: u32 = 0o700;
const OWNER_WRITES: u32 = 0o200;
const NFS4_ACL: &[u8] = b"system.nfs4_acl";
/// The size in bytes of an access control list with only an owner, an owning group and others.
const PLAIN_ACL_BYTES: usize = 4 + 3 * 8;

/// The current times of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryTimes {
    mtime: Timestamp,
    atime: Timestamp,
}

impl EntryTimes {
    fn of(stat: &Stat) -> Self {
        Self {
            mtime: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            atime: timestamp(stat.st_atime, stat.st_atime_nsec),
        }
    }
}

/// Sets the mode of an open entry. Ignores a refusal by the file system.
pub(crate) fn set_mode_if_allowed(
    permit: Permit<'_>,
    entry: BorrowedFd<'_>,
    mode: Mode,
) -> io::Result<()> {
    match Descriptor::Open(entry).set_mode(&permit, mode) {
        Err(error) if !MetadataFailure::is_refusal(error) => Err(error.into()),
        _set_or_refused => Ok(()),
    }
}

impl Descriptor<'_> {
    pub(crate) fn stat(self) -> rustix::io::Result<Stat> {
        let (Self::Open(file) | Self::PathOnly(file)) = self;
        rustix::fs::fstat(file)
    }

    fn change_owner(
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
