//! A file's properties beside its bytes: mode, times, identity.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::entry::kinds::Kinds;
use crate::entry::rel_path::RelPath;
use crate::{bytes, list};

/// A moment to the nanosecond, before or after 1970, as `stat` gives it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Whole seconds since the epoch; negative before it.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    #[serde(deserialize_with = "nanos")]
    pub nanos: u32,
}

/// What is kept of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Metadata {
    /// Permission bits with setuid, setgid and sticky (`& 0o7777`).
    #[serde(deserialize_with = "mode")]
    pub mode: u32,
    /// When the contents last changed.
    pub mtime: Timestamp,
    /// The rest that is kept, if anything. Entries that have the same share it.
    #[serde(serialize_with = "owned", deserialize_with = "shared")]
    pub extra: Option<Arc<Extra>>,
}

/// What is kept of an entry beside mode and time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extra {
    /// The user that the entry belongs to, where that is kept.
    pub owner: Option<Account>,
    /// The group that the entry belongs to, where that is kept.
    pub group: Option<Account>,
    /// Extended attributes, access control lists among them, in the ascending order of their names.
    #[serde(deserialize_with = "xattrs")]
    pub xattrs: Vec<Xattr>,
    /// When the entry was last read, where that is kept.
    pub atime: Option<Timestamp>,
    /// The path below the target that leads to the same entry, where this is another name of a symbolic link or a
    /// special file.
    #[serde(serialize_with = "path_or_root", deserialize_with = "not_root")]
    pub first_name: Option<RelPath>,
}

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Account {
    /// The number; [`NO_ID`](Self::NO_ID) where only the name counts.
    pub id: u32,
    /// The name, which counts where it is known; empty where it has none or numbers are to count.
    #[serde(deserialize_with = "account_name")]
    pub name: Box<str>,
}

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Xattr {
    /// The whole name, such as `user.comment`.
    #[serde(with = "bytes")]
    pub name: Box<[u8]>,
    /// The value, byte for byte.
    #[serde(with = "bytes")]
    pub value: Box<[u8]>,
}

/// The numbers of a file's owner and group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ids {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// An entry that holds nothing by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
    /// A character device of that number.
    Character(u64),
    /// A block device of that number.
    Block(u64),
}

/// What names and numbers of users and groups mean on a host.
pub trait Accounts: std::fmt::Debug + Send + Sync {
    /// The name of a user.
    fn user_name(&self, id: u32) -> Option<String>;
    /// The name of a group.
    fn group_name(&self, id: u32) -> Option<String>;
    /// The number of a user.
    fn user_id(&self, name: &str) -> Option<u32>;
    /// The number of a group.
    fn group_id(&self, name: &str) -> Option<u32>;
}

/// No names: numbers count.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAccounts;

/// The number of a file, which no other has of all that this host can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileNumber {
    /// The number of the device that the file is stored on.
    pub device: u64,
    /// The file's inode number on that device.
    pub inode: u64,
}

/// The most that the allocator adds to a string, or takes for the shortest.
pub const ALLOCATION_BYTES: usize = 32;

impl Metadata {
    /// Mode and time, and nothing else.
    #[must_use]
    pub const fn new(mode: u32, mtime: Timestamp) -> Self {
        Self {
            mode,
            mtime,
            extra: None,
        }
    }

    /// The same of another name of the entry that is at the target under its first one.
    #[must_use]
    pub fn with_first_name(self, first_name: RelPath) -> Self {
        let extra = self.extra.as_deref().cloned().unwrap_or_default();
        Self {
            extra: Some(Arc::new(Extra {
                first_name: Some(first_name),
                ..extra
            })),
            ..self
        }
    }

    /// The first name of the entry, where this is another one.
    #[must_use]
    pub fn first_name(&self) -> Option<&RelPath> {
        self.extra.as_ref()?.first_name.as_ref()
    }

    /// The extended attributes.
    #[must_use]
    pub fn xattrs(&self) -> &[Xattr] {
        self.extra.as_ref().map_or(&[], |extra| &extra.xattrs)
    }

    /// About how much memory there is behind it.
    #[must_use]
    pub fn extra_bytes(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.bytes())
    }
}

impl Extra {
    /// About how much memory the value takes.
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

    /// Whether nothing is said.
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

/// Reads permission bits. Other bits are dropped.
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

fn owned<S: Serializer>(extra: &Option<Arc<Extra>>, serializer: S) -> Result<S::Ok, S::Error> {
    extra.as_deref().serialize(serializer)
}

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Extra>>, D::Error> {
    let extra = Option::<Extra>::deserialize(deserializer)?;
    Ok(extra.filter(|extra| !extra.is_empty()).map(Arc::new))
}

/// Writes the root in place of no path. So each [`Extra`] has a string, and a receiver books memory for it.
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
    /// The kinds with which such a file is kept.
    #[must_use]
    pub const fn kind(self) -> Kinds {
        match self {
            Self::Fifo | Self::Socket => Kinds::SPECIALS,
            Self::Character(_) | Self::Block(_) => Kinds::DEVICES,
        }
    }
}

impl Account {
    /// The number of no user and no group (that of `chown` for "leave it").
    pub const NO_ID: u32 = u32::MAX;
    /// The longest name, in bytes.
    pub const NAME_BYTES_MAX: usize = 255;
}

impl Xattr {
    /// The longest name that Linux takes, in bytes.
    pub const NAME_BYTES_MAX: usize = 255;
    /// The longest value that Linux takes, in bytes.
    pub const VALUE_BYTES_MAX: usize = 64 << 10;
    /// The most bytes of names and values that are carried of one entry.
    pub const ENTRY_BYTES_MAX: usize = 1 << 20;
    /// The most attributes of one entry: Linux lists no more than 64 KiB of names.
    pub const COUNT_MAX: usize = (64 << 10) / "user.x\0".len();

    /// The bytes of name and value together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.name.len() + self.value.len()
    }

    fn is_valid(&self) -> bool {
        self.name.len() <= Self::NAME_BYTES_MAX
            && self.value.len() <= Self::VALUE_BYTES_MAX
            && !self.name.contains(&0)
            && Kinds::of_xattr(&self.name).is_some()
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

/// The time since 1970 by the clock of this host; zero if the clock is before that.
#[must_use]
pub fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl Timestamp {
    /// The system time, or `None` where it cannot be represented.
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
