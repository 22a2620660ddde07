//! A file's metadata: mode, timestamps, ownership, extended attributes and identity.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::entry::kinds::MetadataKinds;
use crate::entry::rel_path::RelPath;
use crate::{bytes, list};

/// A timestamp in nanoseconds before or after 1970, as `stat` returns it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Whole seconds since the epoch, negative before it.
    pub seconds: i64,
    /// Nanoseconds of the second, below 1,000,000,000.
    #[serde(deserialize_with = "nanos")]
    pub nanos: u32,
}

/// The metadata that is preserved for one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Metadata {
    /// Permission bits with setuid, setgid and sticky (`& 0o7777`).
    #[serde(deserialize_with = "mode")]
    pub mode: u32,
    /// Modification time of the contents.
    pub mtime: Timestamp,
    /// Other metadata, if any is preserved. Entries with equal values share one allocation.
    #[serde(serialize_with = "owned", deserialize_with = "shared")]
    pub extra: Option<Arc<ExtraMetadata>>,
}

/// Preserved metadata other than mode and modification time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExtraMetadata {
    /// The owning user, if ownership is preserved.
    pub owner: Option<Account>,
    /// The owning group, if group ownership is preserved.
    pub group: Option<Account>,
    /// Extended attributes, including access control lists, in ascending order of their names.
    #[serde(deserialize_with = "xattrs")]
    pub xattrs: Vec<Xattr>,
    /// Access time, if access times are preserved.
    pub atime: Option<Timestamp>,
    /// Path, relative to the target, of the first name of the same entry. Set only for further names (hard links) of a
    /// symbolic link or a special file.
    #[serde(serialize_with = "path_or_root", deserialize_with = "not_root")]
    pub first_name: Option<RelPath>,
}

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Account {
    /// Numeric id, or [`NO_ID`](Self::NO_ID) if only the name counts.
    pub id: u32,
    /// Name, which takes precedence if the host knows it. Empty if the account has no name or if numeric ids are
    /// requested.
    #[serde(deserialize_with = "account_name")]
    pub name: Box<str>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Xattr {
    /// Full name, such as `user.comment`.
    #[serde(with = "bytes")]
    pub name: Box<[u8]>,
    /// Value.
    #[serde(with = "bytes")]
    pub value: Box<[u8]>,
}

/// Numeric ids of a file's owner and group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ids {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// A special file: an entry without contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket. Only its name is copied.
    Socket,
    /// A character device with this device number.
    Character(u64),
    /// A block device with this device number.
    Block(u64),
}

/// Translates between the names and numeric ids of a host's users and groups.
pub trait Accounts: std::fmt::Debug + Send + Sync {
    /// Returns the name of a user.
    fn user_name(&self, id: u32) -> Option<String>;
    /// Returns the name of a group.
    fn group_name(&self, id: u32) -> Option<String>;
    /// Returns the id of a user.
    fn user_id(&self, name: &str) -> Option<u32>;
    /// Returns the id of a group.
    fn group_id(&self, name: &str) -> Option<u32>;
}

/// A host that knows no account names, so that numeric ids are used.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAccounts;

/// The identity of a file, unique among all files that this host can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileNumber {
    /// Device number of the file system that stores the file.
    pub device: u64,
    /// Inode number on that device.
    pub inode: u64,
}

/// Maximum overhead of the allocator per string, and the size of its smallest allocation, in bytes.
pub const ALLOCATION_BYTES: usize = 32;

impl Metadata {
    /// Creates metadata with only mode and modification time.
    #[must_use]
    pub const fn new(mode: u32, mtime: Timestamp) -> Self {
        Self {
            mode,
            mtime,
            extra: None,
        }
    }

    /// Returns the metadata for a further name of an entry. The entry's first name at the target is `first_name`.
    #[must_use]
    pub fn with_first_name(self, first_name: RelPath) -> Self {
        let extra = self.extra.as_deref().cloned().unwrap_or_default();
        Self {
            extra: Some(Arc::new(ExtraMetadata {
                first_name: Some(first_name),
                ..extra
            })),
            ..self
        }
    }

    /// Returns the first name of the entry if this is a further name.
    #[must_use]
    pub fn first_name(&self) -> Option<&RelPath> {
        self.extra.as_ref()?.first_name.as_ref()
    }

    /// Returns the extended attributes.
    #[must_use]
    pub fn xattrs(&self) -> &[Xattr] {
        self.extra.as_ref().map_or(&[], |extra| &extra.xattrs)
    }

    /// Returns the approximate heap memory of the metadata, in bytes.
    #[must_use]
    pub fn extra_bytes(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.bytes())
    }
}

impl ExtraMetadata {
    /// Returns the approximate memory of the value, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let accounts = [&self.owner, &self.group].into_iter().flatten();
        let names = accounts.map(|account| ALLOCATION_BYTES + account.name.len());
        let xattrs = self
            .xattrs
            .iter()
            .map(|xattr| size_of::<Xattr>() + 2 * ALLOCATION_BYTES + xattr.bytes());
        let first = self
            .first_name
            .iter()
            .map(|path| ALLOCATION_BYTES + path.as_bytes().len());
        size_of::<Self>() + names.chain(xattrs).chain(first).sum::<usize>()
    }

    /// Returns whether no field is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            owner,
            group,
            xattrs,
            atime,
            first_name,
        } = self;
        owner.is_none()
            && group.is_none()
            && xattrs.is_empty()
            && atime.is_none()
            && first_name.is_none()
    }
}

/// Deserializes permission bits and drops other bits.
fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(u32::deserialize(deserializer)? & 0o7777)
}

fn nanos<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let nanos = u32::deserialize(deserializer)?;
    if nanos < 1_000_000_000 {
        Ok(nanos)
    } else {
        Err(D::Error::custom("nanoseconds"))
    }
}

fn owned<S: Serializer>(
    extra: &Option<Arc<ExtraMetadata>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    extra.as_deref().serialize(serializer)
}

fn shared<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Arc<ExtraMetadata>>, D::Error> {
    let extra = Option::<ExtraMetadata>::deserialize(deserializer)?;
    Ok(extra.filter(|extra| !extra.is_empty()).map(Arc::new))
}

/// Serializes a missing path as the root. Each [`ExtraMetadata`] therefore contains a string, for which a receiver
/// reserves memory.
fn path_or_root<S: Serializer>(path: &Option<RelPath>, serializer: S) -> Result<S::Ok, S::Error> {
    let root = RelPath::root();
    path.as_ref().unwrap_or(&root).serialize(serializer)
}

fn not_root<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RelPath>, D::Error> {
    let path = RelPath::deserialize(deserializer)?;
    Ok((!path.is_root()).then_some(path))
}

fn account_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<str>, D::Error> {
    let name = <&str>::deserialize(deserializer)?;
    if name.len() > Account::NAME_BYTES_MAX || name.contains('\0') {
        return Err(D::Error::custom("the name of a user or group"));
    }
    Ok(name.into())
}

fn xattrs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Xattr>, D::Error> {
    let xattrs = list::at_most::<{ Xattr::COUNT_MAX }, Xattr, _>(deserializer)?;
    let ascend = xattrs.is_sorted_by(|one, next| one.name < next.name);
    let bytes: usize = xattrs.iter().map(Xattr::bytes).sum();
    if ascend && bytes <= Xattr::ENTRY_BYTES_MAX && xattrs.iter().all(Xattr::is_valid) {
        Ok(xattrs)
    } else {
        Err(D::Error::custom("extended attributes"))
    }
}

impl Special {
    /// Returns the kind that must be preserved for this special file to be copied.
    #[must_use]
    pub const fn kind(self) -> MetadataKinds {
        match self {
            Self::Fifo | Self::Socket => MetadataKinds::SPECIALS,
            Self::Character(_) | Self::Block(_) => MetadataKinds::DEVICES,
        }
    }
}

impl Account {
    /// The id for "no user or group". `chown` uses the same value for "leave unchanged".
    pub const NO_ID: u32 = u32::MAX;
    /// Maximum length of a name, in bytes.
    pub const NAME_BYTES_MAX: usize = 255;
}

impl Xattr {
    /// Maximum length of a name that Linux accepts, in bytes.
    pub const NAME_BYTES_MAX: usize = 255;
    /// Maximum length of a value that Linux accepts, in bytes.
    pub const VALUE_BYTES_MAX: usize = 64 << 10;
    /// Maximum number of bytes of names and values that are transferred for one entry.
    pub const ENTRY_BYTES_MAX: usize = 1 << 20;
    /// Maximum number of attributes of one entry. Linux lists at most 64 KiB of names.
    pub const COUNT_MAX: usize = (64 << 10) / "user.x\0".len();

    /// Returns the length of name and value together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.name.len() + self.value.len()
    }

    fn is_valid(&self) -> bool {
        self.name.len() <= Self::NAME_BYTES_MAX
            && self.value.len() <= Self::VALUE_BYTES_MAX
            && !self.name.contains(&0)
            && MetadataKinds::of_xattr(&self.name).is_some()
    }
}

impl Accounts for NoAccounts {
    fn user_name(&self, _id: u32) -> Option<String> {
        None
    }
    fn group_name(&self, _id: u32) -> Option<String> {
        None
    }
    fn user_id(&self, _name: &str) -> Option<u32> {
        None
    }
    fn group_id(&self, _name: &str) -> Option<u32> {
        None
    }
}

/// Returns the time since 1970 according to the clock of this host, or zero if the clock is set to an earlier time.
#[must_use]
pub fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl Timestamp {
    /// Returns the timestamp as a `SystemTime`, or `None` if it cannot be represented.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let nanos = Duration::from_nanos(u64::from(self.nanos));
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let whole = if self.seconds < 0 {
            UNIX_EPOCH.checked_sub(seconds)
        } else {
            UNIX_EPOCH.checked_add(seconds)
        };
        whole?.checked_add(nanos)
    }
}
