//! An entry's metadata as a whole, in an order in which nobody may ever do more with the entry than in the end.
//!
//! ```text
//!  owner ─► mode, narrowed ─► attributes of users ─► access control lists ─► rights ─► mode ─► time
//! ```
//!
//! To give an entry away takes its setuid and setgid bits and its capabilities, and to set an access control list sets
//! a part of its mode; so these come later. What cannot be set is told and left, and the rest is set.
//!
//! **Invariant:** an entry that did not get its owner or its group has no setuid and setgid bits, unless they are to be
//! carried whoever owns it: they would lend the rights of whoever does. One that did not get its access control list
//! gives its group no more than the list does.

use std::io;

use rustix::fs::{AtFlags, FileType, Gid, Mode, Timespec, Uid};
use rustix::io::Errno;
use zmove_types::{Account, Ids, Kinds, Timestamp, Xattr};

use super::xattrs::{Descriptor, HasXattrs, by_descriptor, mode_without_acl};
use super::{may_give_away, only_mtime};

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
    /// The system's error.
    pub error: Errno,
}

const SET_IDS: u32 = 0o6000;

impl Wanted<'_> {
    /// Sets all that the entry does not have.
    ///
    /// # Errors
    /// The system's error where mode or time cannot be set. Every other part that the entry did not get is returned.
    pub fn set(&self, entry: Descriptor<'_>) -> io::Result<Vec<Miss>> {
        let stat = entry.stat()?;
        let (form, mode) = (
            FileType::from_raw_mode(stat.st_mode),
            Some(stat.st_mode & 0o7777),
        );
        let mut setting = Setting {
            wanted: self,
            entry,
            form,
            mode,
            misses: Vec::new(),
        };
        setting.set_owner(Ids {
            user: stat.st_uid,
            group: stat.st_gid,
        });
        setting.set_xattrs()?;
        setting.set_mode()?;
        if let Some(mtime) = self.mtime {
            entry.set_times(mtime, self.atime)?;
        }
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
    entry: Descriptor<'a>,
    form: FileType,
    /// The mode that the entry has now, where that is known.
    mode: Option<u32>,
    misses: Vec<Miss>,
}

impl Setting<'_> {
    fn set_owner(&mut self, has: Ids) {
        let user = self.wanted.owner.filter(|user| *user != has.user);
        let group = self.wanted.group.filter(|group| *group != has.group);
        if user.is_none() && group.is_none() {
            return;
        }
        if !self.wanted.may_own {
            self.misses.extend(self.wanted.missing_owners(has));
            return;
        }
        // what it allows its group now may be more than it allows that in the end
        self.narrow();
        match self.entry.give_to(user, group) {
            Ok(()) => {}
            // who may not give it away may give it to another of their groups
            Err(error) if user.is_some() && group.is_some() => {
                self.miss(Kinds::OWNER, error);
                if let Err(error) = self.entry.give_to(None, group) {
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
            self.change(&old.name, |entry| entry.remove_xattr(&old.name));
        }
        let is_new = |new: &&Xattr| !has.contains(new);
        for kind in [Kinds::XATTRS, Kinds::ACLS, Kinds::PRIVILEGED] {
            for new in xattrs.iter().filter(of(kind.common(kinds))).filter(is_new) {
                self.change(&new.name, |entry| entry.set_xattr(&new.name, &new.value));
            }
        }
        Ok(())
    }

    /// Sets or removes an attribute. Who owns an entry and may not write to it has to allow that first.
    fn change(&mut self, name: &[u8], change: impl Fn(Descriptor<'_>) -> rustix::io::Result<()>) {
        let mut changed = change(self.entry);
        if changed == Err(Errno::ACCESS)
            && self
                .set_mode_to(self.wanted.mode & OWNER_ALL | OWNER_WRITES)
                .is_ok()
        {
            self.mode = None;
            changed = change(self.entry);
        }
        if let (Err(error), Some(kind)) = (changed, Kinds::of_xattr(name)) {
            self.miss(kind, error);
        }
    }

    fn set_mode(&mut self) -> io::Result<()> {
        let has_missed = |kinds: Kinds| self.misses.iter().any(|miss| kinds.has_any(miss.kind));
        let mut mode = self.wanted.mode;
        if has_missed(Kinds::ACLS) {
            mode = mode_without_acl(mode, self.wanted.xattrs);
        }
        // those of directories lend no rights
        let lends = self.form == FileType::RegularFile && self.wanted.set_ids_with_owner;
        if lends && has_missed(Kinds::OWNERSHIP) {
            mode &= !SET_IDS;
        }
        if self.mode == Some(mode) {
            Ok(())
        } else {
            Ok(self.set_mode_to(mode)?)
        }
    }

    fn set_mode_to(&self, mode: u32) -> rustix::io::Result<()> {
        // links have no mode of their own
        if self.form == FileType::Symlink {
            Ok(())
        } else {
            self.entry.set_mode(mode)
        }
    }

    /// Allows nobody but the owner anything, and the owner no more than there is now and in the end.
    fn narrow(&mut self) {
        let narrowed = self.wanted.mode & OWNER_ALL;
        if self.mode != Some(narrowed) && self.set_mode_to(narrowed).is_ok() {
            self.mode = Some(narrowed);
        }
    }

    fn miss(&mut self, kind: Kinds, error: Errno) {
        if !self.misses.iter().any(|miss| miss.kind == kind) {
            self.misses.push(Miss { kind, error });
        }
    }
}

const OWNER_ALL: u32 = 0o700;
const OWNER_WRITES: u32 = 0o200;

impl Descriptor<'_> {
    fn stat(self) -> rustix::io::Result<rustix::fs::Stat> {
        let (Self::Open(file) | Self::PathOnly(file)) = self;
        rustix::fs::fstat(file)
    }

    fn give_to(self, user: Option<u32>, group: Option<u32>) -> rustix::io::Result<()> {
        if [user, group].contains(&Some(Account::NO_ID)) {
            return Err(Errno::INVAL);
        }
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        match self {
            Self::Open(file) => rustix::fs::fchown(file, user, group),
            Self::PathOnly(file) => {
                rustix::fs::chownat(file, c"", user, group, AtFlags::EMPTY_PATH)
            }
        }
    }

    fn set_mode(self, mode: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(file) => rustix::fs::fchmod(file, mode),
            Self::PathOnly(file) => rustix::fs::chmod(by_descriptor(file), mode),
        }
    }

    fn set_times(self, mtime: Timestamp, atime: Option<Timestamp>) -> rustix::io::Result<()> {
        let mut times = only_mtime(mtime);
        if let Some(Timestamp { seconds, nanos }) = atime {
            times.last_access = Timespec {
                tv_sec: seconds,
                tv_nsec: nanos.into(),
            };
        }
        match self {
            Self::Open(file) => rustix::fs::futimens(file, &times),
            Self::PathOnly(file) => rustix::fs::utimensat(
                rustix::fs::CWD,
                by_descriptor(file),
                &times,
                AtFlags::empty(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    const WANTED: Wanted<'_> = Wanted {
        mode: 0o640,
        mtime: Some(Timestamp {
            seconds: 5,
            nanos: 6,
        }),
        atime: None,
        owner: None,
        group: None,
        xattrs: &[],
        kinds: Kinds::ANY_XATTR,
        may_own: true,
        set_ids_with_owner: true,
    };

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    fn mode(file: &File) -> u32 {
        file.metadata().unwrap().mode() & 0o7777
    }

    fn xattr(name: &str, value: &[u8]) -> Xattr {
        Xattr {
            name: name.as_bytes().into(),
            value: value.into(),
        }
    }

    /// An access control list in which user 7 may read and write, the group may read, and the mask lets all through.
    fn acl(group: u8, mask: u8) -> Xattr {
        let entry = |tag: u8, may: u8, id: u32| [&[tag, 0, may, 0][..], &id.to_le_bytes()].concat();
        let none = u32::MAX;
        let entries = [
            entry(1, 6, none),
            entry(2, 6, 7),
            entry(4, group, none),
            entry(0x10, mask, none),
            entry(0x20, 0, none),
        ];
        xattr(
            "system.posix_acl_access",
            &[&[2, 0, 0, 0][..], &entries.concat()].concat(),
        )
    }

    fn set(file: &File, wanted: &Wanted<'_>) -> Vec<Miss> {
        wanted.set(Descriptor::Open(file.as_fd())).unwrap()
    }

    fn has_xattrs(file: &File) -> bool {
        let usable = Descriptor::Open(file.as_fd())
            .set_xattr(&acl(4, 6).name, &acl(4, 6).value)
            .is_ok();
        if !usable {
            eprintln!("skipped: no access control lists here");
        }
        usable
    }

    #[test]
    fn a_file_gets_what_it_lacks_and_loses_what_it_is_not_to_have() {
        let file = file();
        if !has_xattrs(&file) {
            return;
        }
        Descriptor::Open(file.as_fd())
            .set_xattr(b"user.old", b"x")
            .unwrap();
        let xattrs = [acl(4, 6), xattr("user.new", b"y")];
        assert!(
            set(
                &file,
                &Wanted {
                    mode: 0o660,
                    xattrs: &xattrs,
                    ..WANTED
                }
            )
            .is_empty()
        );
        let found = Descriptor::Open(file.as_fd())
            .xattrs(Kinds::ALL)
            .unwrap()
            .list;
        assert_eq!((&found[..], mode(&file)), (&xattrs[..], 0o660));
        assert!(set(&file, &WANTED).is_empty());
        let found = Descriptor::Open(file.as_fd())
            .xattrs(Kinds::ALL)
            .unwrap()
            .list;
        let stat = file.metadata().unwrap();
        assert_eq!(
            (found.len(), mode(&file), stat.mtime(), stat.mtime_nsec()),
            (0, 0o640, 5, 6)
        );
    }

    /// A mode of 0660 with the list says that the group may read; without it, that the group may write.
    #[test]
    fn a_list_that_makes_no_sense_gives_the_group_no_more_than_it_says() {
        let file = file();
        if !has_xattrs(&file) {
            return;
        }
        let mut bad = acl(4, 6);
        bad.value[5] = 0x40;
        let misses = set(
            &file,
            &Wanted {
                mode: 0o660,
                xattrs: &[bad],
                ..WANTED
            },
        );
        assert_eq!(
            misses,
            [Miss {
                kind: Kinds::ACLS,
                error: Errno::INVAL
            }]
        );
        assert_eq!(mode(&file), 0o640);
        let unknown = [Xattr {
            name: b"system.nfs4_acl".as_slice().into(),
            value: b"x".as_slice().into(),
        }];
        let misses = set(
            &file,
            &Wanted {
                xattrs: &unknown,
                ..WANTED
            },
        );
        assert_eq!(
            (misses[0].kind, misses[0].error, mode(&file)),
            (Kinds::ACLS, Errno::OPNOTSUPP, 0o640)
        );
    }

    #[test]
    fn what_a_file_system_cannot_hold_is_told_and_the_rest_is_set() {
        let file = file();
        if !has_xattrs(&file) {
            return;
        }
        let many: Vec<_> = (0..30)
            .map(|n| xattr(&format!("user.{n:02}"), &[n; 60_000]))
            .collect();
        let misses = set(
            &file,
            &Wanted {
                xattrs: &many,
                ..WANTED
            },
        );
        assert!(
            misses.iter().all(|miss| miss.kind == Kinds::XATTRS) && misses.len() <= 1,
            "{misses:?}"
        );
        let mut found = 0;
        for n in 0..30 {
            let mut value = Vec::with_capacity(60_000);
            let name = format!("user.{n:02}");
            match rustix::fs::fgetxattr(&file, name, rustix::buffer::spare_capacity(&mut value)) {
                Ok(_) => {
                    assert_eq!(value, [n; 60_000]);
                    found += 1;
                }
                Err(error) => assert_eq!(error, Errno::NODATA),
            }
        }
        assert_eq!(found == many.len(), misses.is_empty(), "{found} are set");
        assert_eq!(mode(&file), 0o640);
    }

    #[test]
    fn an_owner_is_set_and_without_it_nobody_s_rights_are_lent() {
        let file = file();
        let owned = Wanted {
            mode: 0o6755,
            owner: Some(12_345),
            group: Some(23_456),
            kinds: Kinds::NONE,
            ..WANTED
        };
        let misses = set(&file, &owned);
        if rustix::process::geteuid().is_root() {
            let stat = file.metadata().unwrap();
            assert_eq!(
                (stat.uid(), stat.gid(), mode(&file), misses.len()),
                (12_345, 23_456, 0o6755, 0)
            );
        } else {
            assert_eq!((misses[0].kind, mode(&file)), (Kinds::OWNER, 0o755));
        }
        let nobody = Wanted {
            owner: Some(Account::NO_ID),
            group: None,
            ..owned
        };
        assert_eq!(
            set(&file, &nobody),
            [Miss {
                kind: Kinds::OWNER,
                error: Errno::INVAL
            }]
        );
        assert_eq!(mode(&file), 0o755);
        set(
            &file,
            &Wanted {
                set_ids_with_owner: false,
                ..nobody
            },
        );
        assert_eq!(mode(&file), 0o6755);
        let denied = Wanted {
            may_own: false,
            owner: Some(54_321),
            ..owned
        };
        let misses = set(&file, &denied);
        assert_eq!(
            (misses[0].kind, misses[0].error, mode(&file)),
            (Kinds::OWNER, Errno::PERM, 0o755)
        );
    }

    /// The group of a file may be another one, which may do more with it now than in the end.
    #[test]
    fn what_has_just_been_given_away_is_open_to_nobody_but_its_owner() {
        let file = file();
        file.set_permissions(PermissionsExt::from_mode(0o666))
            .unwrap();
        let owned = Wanted {
            owner: Some(12_345),
            group: Some(23_456),
            ..WANTED
        };
        let entry = Descriptor::Open(file.as_fd());
        let form = FileType::RegularFile;
        let mut setting = Setting {
            wanted: &owned,
            entry,
            form,
            mode: Some(0o666),
            misses: Vec::new(),
        };
        setting.set_owner(Ids { user: 0, group: 0 });
        assert_eq!(mode(&file), 0o600);
        setting.set_mode().unwrap();
        assert_eq!(mode(&file), 0o640);
    }

    /// Root may write to it anyway.
    #[test]
    fn a_read_only_file_gets_attributes() {
        let file = file();
        if !has_xattrs(&file) {
            return;
        }
        file.set_permissions(PermissionsExt::from_mode(0o400))
            .unwrap();
        let xattrs = [xattr("user.a", b"x")];
        assert!(
            set(
                &file,
                &Wanted {
                    mode: 0o400,
                    xattrs: &xattrs,
                    ..WANTED
                }
            )
            .is_empty()
        );
        assert_eq!(mode(&file), 0o400);
    }
}
