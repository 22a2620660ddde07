//! Kinds of what is kept of an entry beside its contents: what was asked for, what a host can, and what was not kept.

use std::fmt;

/// A set of kinds. **Invariant:** the bits travel, so that none ever gets another meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kinds(u32);

impl Kinds {
    /// None at all.
    pub const NONE: Self = Self(0);
    /// Permission bits.
    pub const MODE: Self = Self(1);
    /// Modification times.
    pub const TIMES: Self = Self(1 << 1);
    /// The owner.
    pub const OWNER: Self = Self(1 << 2);
    /// The owning group.
    pub const GROUP: Self = Self(1 << 3);
    /// Extended attributes that users set (`user.*`).
    pub const XATTRS: Self = Self(1 << 4);
    /// Access control lists.
    pub const ACLS: Self = Self(1 << 5);
    /// Extended attributes that take rights: `security.capability` and `trusted.*`.
    pub const PRIVILEGED: Self = Self(1 << 6);
    /// FIFOs and sockets.
    pub const SPECIALS: Self = Self(1 << 7);
    /// Device files.
    pub const DEVICES: Self = Self(1 << 8);
    /// Hard links: files that are one at the source are one at the target.
    pub const LINKS: Self = Self(1 << 9);
    /// Holes: what is one at the source takes no storage at the target.
    pub const HOLES: Self = Self(1 << 10);
    /// Times of access.
    pub const ATIME: Self = Self(1 << 11);

    /// All kinds of extended attributes, access control lists among them.
    pub const ANY_XATTR: Self = Self::XATTRS.and(Self::ACLS).and(Self::PRIVILEGED);
    /// The two kinds of which ownership consists.
    pub const OWNERSHIP: Self = Self::OWNER.and(Self::GROUP);
    /// The kinds that are kept where nothing is asked for.
    pub const USUAL: Self = Self::MODE
        .and(Self::TIMES)
        .and(Self::XATTRS)
        .and(Self::ACLS)
        .and(Self::LINKS)
        .and(Self::HOLES);
    /// All kinds that there are.
    pub const ALL: Self = Self::USUAL
        .and(Self::OWNERSHIP)
        .and(Self::PRIVILEGED)
        .and(Self::SPECIALS)
        .and(Self::DEVICES)
        .and(Self::ATIME);
    /// The kinds that every release has kept.
    pub const ALWAYS: Self = Self::MODE.and(Self::TIMES);

    const NAMED: [(Self, &'static str); 12] = [
        (Self::MODE, "mode"),
        (Self::TIMES, "times"),
        (Self::OWNER, "owner"),
        (Self::GROUP, "group"),
        (Self::XATTRS, "xattr"),
        (Self::ACLS, "acl"),
        (Self::PRIVILEGED, "privileged xattr"),
        (Self::SPECIALS, "special"),
        (Self::DEVICES, "device"),
        (Self::LINKS, "hard link"),
        (Self::HOLES, "holes"),
        (Self::ATIME, "atime"),
    ];

    /// The set with these bits; bits without a meaning here are dropped.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// These and others.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These, but none of `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// The kinds that are in both sets.
    #[must_use]
    pub const fn common(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Whether any of `others` is among these.
    #[must_use]
    pub const fn has_any(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds of the set, each by itself.
    pub fn each(self) -> impl Iterator<Item = Self> {
        Self::NAMED
            .into_iter()
            .map(|(kind, _)| kind)
            .filter(move |kind| self.has_any(*kind))
    }

    /// What an extended attribute of that name is; `None` for one that is not carried, such as what the
    /// system sets by itself (`security.selinux`, and overlayfs's own).
    #[must_use]
    pub fn of_xattr(name: &[u8]) -> Option<Self> {
        match name {
            b"system.posix_acl_access" | b"system.posix_acl_default" | b"system.nfs4_acl" => {
                Some(Self::ACLS)
            }
            b"security.capability" => Some(Self::PRIVILEGED),
            _ if name.starts_with(b"trusted.overlay.") => None,
            // XFS shows its access control lists a second time, in its own form.
            _ if name.starts_with(b"trusted.SGI_ACL_") => None,
            _ if name.starts_with(b"trusted.") => Some(Self::PRIVILEGED),
            _ if name.starts_with(b"user.") => Some(Self::XATTRS),
            _ => None,
        }
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMED.iter().filter(|(kind, _)| self.has_any(*kind));
        names.enumerate().try_for_each(|(place, (_, name))| {
            write!(f, "{}{name}", if place == 0 { "" } else { ", " })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_kind_has_one_bit_and_one_name() {
        let bits: Vec<_> = Kinds::ALL.each().map(Kinds::bits).collect();
        assert_eq!(bits, (0..12).map(|bit| 1 << bit).collect::<Vec<_>>());
        assert_eq!(Kinds::from_bits(u32::MAX), Kinds::ALL);
        let names: HashSet<_> = Kinds::ALL.each().map(|kind| kind.to_string()).collect();
        assert_eq!(names.len(), 12, "{names:?}");
        assert!(names.iter().all(|name| !name.contains(',')), "{names:?}");
        assert_eq!(
            Kinds::OWNERSHIP.and(Kinds::ACLS).to_string(),
            "owner, group, acl"
        );
    }

    #[test]
    fn what_the_system_sets_by_itself_is_not_carried() {
        let of = |name: &str| Kinds::of_xattr(name.as_bytes());
        assert_eq!(["user.a", "user."].map(of), [Some(Kinds::XATTRS); 2]);
        assert_eq!(of("system.posix_acl_access"), Some(Kinds::ACLS));
        assert_eq!(
            ["trusted.a", "security.capability"].map(of),
            [Some(Kinds::PRIVILEGED); 2]
        );
        let left = [
            "security.selinux",
            "system.data",
            "trusted.overlay.opaque",
            "",
            "users.a",
            "btrfs.compression",
        ];
        assert_eq!(left.map(of), [None; 6]);
    }
}
