//! Metadata other than mode and time: owners, extended attributes, access control lists, capabilities.
//!
//! Metadata is drawn only if the file systems of both ends support it, this user may set it, and the push is asked to
//! preserve it. Therefore all of it must arrive.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, XattrFlags, chownat};

use crate::torture::dice::Dice;

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Link,
    /// A FIFO, a socket or a device.
    Special,
}

/// The kinds of metadata that a tree may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// `user.*`.
    pub(crate) xattrs: bool,
    /// POSIX access control lists.
    pub(crate) acls: bool,
    /// Metadata that only root can set: owners, setuid bits, `trusted.*`, capabilities, and special files.
    pub(crate) privileged: bool,
}

/// The value of an attribute.
#[derive(PartialEq, Eq)]
pub(crate) struct Value(Vec<u8>);

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes {:02x?}…",
            self.0.len(),
            &self.0[..self.0.len().min(VALUE_BYTES_SHOWN)]
        )
    }
}

impl Features {
    /// Detects the features that are available in a directory.
    pub(crate) fn of(directory: &Path) -> Result<Self> {
        let probe = directory.join(".zmove-torture-probe");
        let failed = || format!("failed to try what {} holds", directory.display());
        File::create(&probe).with_context(failed)?;
        let takes = |name: &str, value: &[u8]| set(&probe, name, value).is_ok();
        let features = Self {
            xattrs: takes("user.a", b"x"),
            acls: takes(ACCESS, &acl(&mut Dice::new(1))),
            privileged: give(&probe, 1, 1).is_ok()
                && takes("trusted.a", b"x")
                && takes(CAPABILITY, &RIGHTS[0]),
        };
        fs::remove_file(&probe).with_context(failed)?;
        Ok(features)
    }

    /// Returns the features that `self` and `other` have in common.
    pub(crate) fn common(self, other: Self) -> Self {
        Self {
            xattrs: self.xattrs && other.xattrs,
            acls: self.acls && other.acls,
            privileged: self.privileged && other.privileged,
        }
    }

    /// Sets random metadata on an entry. Must be called before the mode is set, because an access control list changes
    /// it, and before the time is set.
    pub(crate) fn dress(self, path: &Path, kind: Kind, dice: &mut Dice) -> Result<()> {
        let failed = || format!("failed to set metadata of {}", path.display());
        if self.privileged && dice.one_in(2) {
            give(path, *dice.pick(&OWNERS), *dice.pick(&OWNERS)).with_context(failed)?;
        }
        for (name, value) in self.draw(kind, dice) {
            set(path, &name, &value).with_context(|| format!("{name}: {}", failed()))?;
        }
        Ok(())
    }

    fn draw(self, kind: Kind, dice: &mut Dice) -> Vec<(String, Vec<u8>)> {
        let mut drawn = Vec::new();
        let holds_data = matches!(kind, Kind::File | Kind::Directory);
        if self.xattrs && holds_data && dice.one_in(4) {
            for _ in 0..dice.within(1..=3) {
                drawn.push((name("user", dice), value(dice)));
            }
        }
        if self.acls && kind != Kind::Link && dice.one_in(5) {
            drawn.push((ACCESS.into(), acl(dice)));
        }
        if self.acls && kind == Kind::Directory && dice.one_in(5) {
            drawn.push((DEFAULT.into(), acl(dice)));
        }
        if self.privileged && dice.one_in(10) {
            drawn.push((name("trusted", dice), value(dice)));
        }
        if self.privileged && kind == Kind::File && dice.one_in(10) {
            drawn.push((CAPABILITY.into(), dice.pick(&RIGHTS).to_vec()));
        }
        drawn
    }
}

/// Returns all attributes of an entry that a transfer must preserve. Symbolic links are not followed. Empty if the file
/// system does not support attributes.
pub(crate) fn xattrs(path: &Path) -> Result<BTreeMap<String, Value>> {
    let failed = || format!("failed to read attributes of {}", path.display());
    let mut names = vec![0; LIST_BYTES_MAX];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error).with_context(failed),
    };
    let mut found = BTreeMap::new();
    for name in names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| is_kept(name))
    {
        let mut value = vec![0; VALUE_BYTES_MAX];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).with_context(failed)?;
        value.truncate(length);
        found.insert(String::from_utf8_lossy(name).into_owned(), Value(value));
    }
    Ok(found)
}

/// Removes all attributes of an entry.
pub(crate) fn strip(path: &Path) -> Result<()> {
    for name in xattrs(path)?.keys() {
        let removed = rustix::fs::lremovexattr(path, name.as_str());
        removed.with_context(|| format!("failed to remove {name} of {}", path.display()))?;
    }
    Ok(())
}

/// Creates a FIFO, a socket or a device.
pub(crate) fn make_special(path: &Path, dice: &mut Dice) -> Result<()> {
    let (form, device) = *dice.pick(&[
        (FileType::Fifo, 0),
        (FileType::Socket, 0),
        (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        (FileType::BlockDevice, rustix::fs::makedev(7, 250)),
    ]);
    rustix::fs::mknodat(CWD, path, form, Mode::RUSR, device)
        .with_context(|| format!("failed to make {}", path.display()))
}

fn is_kept(name: &[u8]) -> bool {
    let kept = [ACCESS, DEFAULT, CAPABILITY]
        .iter()
        .any(|kept| kept.as_bytes() == name);
    // XFS exposes its access control lists a second time, in its own format.
    let is_list = name.starts_with(b"trusted.SGI_ACL_");
    kept || name.starts_with(b"user.") || name.starts_with(b"trusted.") && !is_list
}

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

fn give(path: &Path, user: u32, group: u32) -> rustix::io::Result<()> {
    chownat(
        CWD,
        path,
        Some(Uid::from_raw(user)),
        Some(Gid::from_raw(group)),
        AtFlags::SYMLINK_NOFOLLOW,
    )
}

fn name(class: &str, dice: &mut Dice) -> String {
    let name = match dice.within(0..=4) {
        0 => "n".repeat(NAME_BYTES_MAX - class.len() - 1),
        1 => "Grüße line\nbreak = \u{1F5C4}".to_owned(),
        2 => ".".to_owned(),
        _ => format!("name{}", dice.within(0..=9)),
    };
    format!("{class}.{name}")
}

/// Draws a value that is small enough for all attributes of an entry to fit into the block that ext4 has for them.
fn value(dice: &mut Dice) -> Vec<u8> {
    let bytes = *dice.pick(&[0, 1, 20, 100, 511, 513]);
    let mut value = vec![0; bytes];
    dice.fill(&mut value);
    value
}

/// Draws an access control list in the format of the kernel (acl(5)), with users, groups and a mask.
fn acl(dice: &mut Dice) -> Vec<u8> {
    let mut list = vec![2, 0, 0, 0];
    let mut entry = |tag: u16, id: u32, dice: &mut Dice| {
        // The owner must be able to read the file.
        let least = if tag == USER_OBJ { 7 } else { 0 };
        let may = u16::try_from(dice.within(least..=7)).unwrap_or(0);
        list.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    };
    let ids = |dice: &mut Dice| 1..=u32::try_from(dice.within(0..=3)).unwrap_or(0);
    entry(USER_OBJ, NO_ID, dice);
    ids(dice).for_each(|id| entry(USER, id * 7, dice));
    entry(GROUP_OBJ, NO_ID, dice);
    ids(dice).for_each(|id| entry(GROUP, id * 9, dice));
    entry(MASK, NO_ID, dice);
    entry(OTHER, NO_ID, dice);
    list
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";
/// Values of file capabilities (revision 2), each with one capability: to bind to low ports, or to change owners.
const RIGHTS: [[u8; 20]; 2] = [
    [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];
/// User and group ids. Some have a name on most hosts, and some have none.
const OWNERS: [u32; 6] = [0, 1, 2_000, 2_001, 65_534, 4_000_000_000];

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

const NAME_BYTES_MAX: usize = 255;
const VALUE_BYTES_SHOWN: usize = 8;
const LIST_BYTES_MAX: usize = 64 << 10;
const VALUE_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_can_be_set_are_drawn_and_read_and_taken_away_again() {
        let home = tempfile::tempdir().unwrap();
        let features = Features::of(home.path()).unwrap();
        let path = home.path().join("f");
        fs::write(&path, "").unwrap();
        let mut dice = Dice::new(3);
        let mut most = 0;
        for _ in 0..50 {
            features.dress(&path, Kind::File, &mut dice).unwrap();
            most = most.max(xattrs(&path).unwrap().len());
            strip(&path).unwrap();
            assert!(xattrs(&path).unwrap().is_empty());
        }
        assert_eq!(most > 1, features.xattrs || features.acls);
    }

    #[test]
    fn nothing_is_drawn_where_nothing_can_be_kept() {
        let mut dice = Dice::new(3);
        let none = Features::default();
        assert!((0..100).all(|_| none.draw(Kind::Directory, &mut dice).is_empty()));
    }
}
