//! Sets of metadata kinds: the kinds that a user requested, that a host supports, or that could not be preserved.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// A set of metadata kinds. **Invariant:** the bits are sent over the wire, so a bit is never reused for another
/// meaning.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct MetadataKinds(#[serde(deserialize_with = "known_bits")] u32);

/// Deserializes a set and drops unknown bits.
fn known_bits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(u32::deserialize(deserializer)? & MetadataKinds::ALL.0)
}

impl MetadataKinds {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Permission bits.
    pub const MODE: Self = Self(1);
    /// Modification times.
    pub const TIMES: Self = Self(1 << 1);
    /// The owner.
    pub const OWNER: Self = Self(1 << 2);
    /// The owning group.
    pub const GROUP: Self = Self(1 << 3);
    /// User extended attributes (`user.*`).
    pub const XATTRS: Self = Self(1 << 4);
    /// Access control lists.
    pub const ACLS: Self = Self(1 << 5);
    /// Extended attributes of the namespace `trusted`, which need privileges.
    pub const TRUSTED: Self = Self(1 << 6);
    /// FIFOs and sockets.
    pub const SPECIALS: Self = Self(1 << 7);
    /// Device files.
    pub const DEVICES: Self = Self(1 << 8);
    /// Hard links: names of one file at the source are also names of one file at the target.
    pub const LINKS: Self = Self(1 << 9);
    /// Holes: a hole at the source takes no storage at the target.
    pub const HOLES: Self = Self(1 << 10);
    /// Access times.
    pub const ATIME: Self = Self(1 << 11);
    /// Modification times of directories. They are preserved only if `TIMES` is too.
    pub const DIRECTORY_TIMES: Self = Self(1 << 12);
    /// Extended attributes of the namespace `security`, such as capabilities, which need privileges.
    pub const SECURITY: Self = Self(1 << 13);

    /// Extended attributes that need privileges.
    pub const PRIVILEGED: Self = Self::TRUSTED.and(Self::SECURITY);
    /// All kinds of extended attributes, including access control lists.
    pub const ANY_XATTR: Self = Self::XATTRS.and(Self::ACLS).and(Self::PRIVILEGED);
    /// Owner and group.
    pub const OWNERSHIP: Self = Self::OWNER.and(Self::GROUP);
    /// The kinds that are preserved by default.
    pub const USUAL: Self = Self::MODE
        .and(Self::TIMES)
        .and(Self::DIRECTORY_TIMES)
        .and(Self::XATTRS)
        .and(Self::ACLS)
        .and(Self::LINKS)
        .and(Self::HOLES);
    /// All kinds.
    pub const ALL: Self = Self::USUAL
        .and(Self::OWNERSHIP)
        .and(Self::PRIVILEGED)
        .and(Self::SPECIALS)
        .and(Self::DEVICES)
        .and(Self::ATIME);
    /// The kinds that every release has preserved.
    pub const ALWAYS: Self = Self::MODE.and(Self::TIMES).and(Self::DIRECTORY_TIMES);

    const NAMED: [(Self, &'static str); 14] = [
        (Self::MODE, "mode"),
        (Self::TIMES, "times"),
        (Self::OWNER, "owner"),
        (Self::GROUP, "group"),
        (Self::XATTRS, "xattr"),
        (Self::ACLS, "acl"),
        (Self::TRUSTED, "trusted xattr"),
        (Self::SPECIALS, "special"),
        (Self::DEVICES, "device"),
        (Self::LINKS, "hard link"),
        (Self::HOLES, "holes"),
        (Self::ATIME, "atime"),
        (Self::DIRECTORY_TIMES, "directory times"),
        (Self::SECURITY, "security xattr"),
    ];

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns this set without the kinds of `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub const fn common(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Returns whether the sets have a kind in common.
    #[must_use]
    pub const fn has_any(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns each kind of the set as a set with one element.
    pub fn each(self) -> impl Iterator<Item = Self> {
        Self::NAMED
            .into_iter()
            .map(|(kind, _)| kind)
            .filter(move |kind| self.has_any(*kind))
    }

    /// Returns the kind of the extended attribute `name`. Returns `None` for attributes of other namespaces and for
    /// attributes that are [never copied](NeverCopied).
    #[must_use]
    pub fn of_xattr(name: &[u8]) -> Option<Self> {
        match name {
            b"system.posix_acl_access" | b"system.posix_acl_default" | b"system.nfs4_acl" => {
                Some(Self::ACLS)
            }
            _ if NeverCopied::of(name).is_some() => None,
            _ if name.starts_with(b"security.") => Some(Self::SECURITY),
            _ if name.starts_with(b"trusted.") => Some(Self::TRUSTED),
            _ if name.starts_with(b"user.") => Some(Self::XATTRS),
            _ => None,
        }
    }
}

/// A set of extended attributes that are never copied, because they have no meaning outside their system or file
/// system: kernel labels and measurements, and the layouts of Lustre, CephFS and btrfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeverCopied(u16);

impl NeverCopied {
    /// All names. A name that ends with `.` is a prefix.
    pub const NAMES: [&'static str; 10] = [
        "security.selinux",
        "security.ima",
        "security.evm",
        "trusted.lov",
        "trusted.lma",
        "trusted.lmv",
        "trusted.link",
        "lustre.",
        "ceph.",
        "btrfs.",
    ];

    /// Returns the set that contains only this attribute, or `None` if the attribute may be copied.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        let is_named = |listed: &str| {
            let listed = listed.as_bytes();
            name == listed || listed.ends_with(b".") && name.starts_with(listed)
        };
        let place = Self::NAMES.iter().position(|listed| is_named(listed))?;
        Some(Self(1 << place))
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for NeverCopied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().enumerate();
        let names: Vec<_> = names
            .filter(|(place, _)| self.0 & 1 << place != 0)
            .map(|(_, name)| name.to_string() + if name.ends_with('.') { "*" } else { "" })
            .collect();
        f.write_str(&names.join(", "))
    }
}

impl fmt::Display for MetadataKinds {
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
        let bits: Vec<_> = MetadataKinds::ALL.each().map(|kind| kind.0).collect();
        assert_eq!(bits, (0..14).map(|bit| 1 << bit).collect::<Vec<_>>());
        let names: HashSet<_> = MetadataKinds::ALL
            .each()
            .map(|kind| kind.to_string())
            .collect();
        assert_eq!(names.len(), 14, "{names:?}");
        assert!(names.iter().all(|name| !name.contains(',')), "{names:?}");
        assert_eq!(
            MetadataKinds::OWNERSHIP
                .and(MetadataKinds::ACLS)
                .to_string(),
            "owner, group, acl"
        );
    }

    #[test]
    fn attributes_of_one_system_are_not_copied_and_all_others_are() {
        let of = |name: &str| MetadataKinds::of_xattr(name.as_bytes());
        assert_eq!(
            ["user.a", "user."].map(of),
            [Some(MetadataKinds::XATTRS); 2]
        );
        assert_eq!(of("system.posix_acl_access"), Some(MetadataKinds::ACLS));
        let trusted = [
            "trusted.a",
            "trusted.overlay.opaque",
            "trusted.SGI_ACL_FILE",
        ];
        assert_eq!(trusted.map(of), [Some(MetadataKinds::TRUSTED); 3]);
        let security = [
            "security.capability",
            "security.SMACK64",
            "security.selinux2",
        ];
        assert_eq!(security.map(of), [Some(MetadataKinds::SECURITY); 3]);
        let left = [
            "security.selinux",
            "system.data",
            "trusted.lov",
            "lustre.lov",
            "ceph.dir.layout",
            "",
            "users.a",
            "btrfs.compression",
        ];
        assert_eq!(left.map(of), [None; 8]);
        let of = |name: &str| NeverCopied::of(name.as_bytes());
        let (one, other) = (of("btrfs.compression"), of("security.ima"));
        let both = one.unwrap().and(other.unwrap());
        assert_eq!(both.to_string(), "security.ima, btrfs.*");
        assert_eq!(["security.ima2", "trusted.a"].map(of), [None; 2]);
    }
}
