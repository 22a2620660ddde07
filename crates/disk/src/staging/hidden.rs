//! Names of entries that have no final name yet, and the search for such entries left by dead processes.
//!
//! A passing name, `.zmove-PARENT-MACHINE-BOOT-PID-START-MOMENT-NUMBER`, identifies the directory in which the entry
//! was created, the process that created it, and the time of creation. The next transfer to the directory removes
//! entries of processes that have ended. Processes of other machines cannot be looked up here, so their entries are
//! removed after some days. Machines that were cloned from one image share a machine ID, so the host name is part of
//! MACHINE. An entry that was created after this boot began, but has another boot ID, belongs to another machine.
//! Manifests are also written under passing names. A scan for a push skips these entries in the directory in which they
//! were created. No hidden entry is created in an append-only directory (`chattr +a`), because it could not be renamed
//! or removed. The directories of [shared jobs](crate::SharedJobDirectory) follow other rules: they are removed long
//! after their jobs.
//!
//! A lasting name, `.zmove-TRANSFER-NUMBER`, is the name of a part, the temporary file of a large file. A part outlives
//! its process, so that another transfer can resume it. A scan skips entries with lasting names in every directory,
//! because a part cannot be distinguished from a copy of a part.
//!
//! **Invariant:** [`remove_abandoned`](crate::remove_abandoned) removes an entry with a passing name only if its
//! process has ended and the entry is not a copy. A copy of such an entry is ordinary data. Names can be forged, so a
//! directory is removed recursively only if no other user can have given it that name
//! ([`guarded`](crate::staging::guarded)). Directories with hidden names are only filled in parents for which that is
//! true. The only exception is the creation of the directory of a shared job.
//!
//! An entry is not a copy if it is in the directory that its name identifies. It is not a copy either if its time of
//! birth matches the time in its name, because a copy would be younger. One of the two conditions is enough, because
//! each of them can be impossible to check. A directory gets another inode when overlayfs copies it from a lower layer.
//! Entries of a staging directory may be moved into an existing directory. Some file systems store no time of birth,
//! and servers have their own clocks.
//!
//! A lock cannot show whether the creator is alive, because it would need a descriptor for each of hundreds of
//! thousands of entries.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, DirEntry, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use zmove_types::{Name, SharedJobId};

use crate::metadata::entry::is_directory;
use crate::opening::by_name::{list_directory, stat_at};
use crate::opening::proc::read_id;
use crate::shared_job::names::job_of;
use crate::staging::guarded::GuardedEntries;

/// The prefix of all hidden names. An entry with such a name is not removed while its transfer may be running.
const HIDDEN_PREFIX: &str = ".zmove-";

/// Returns whether a name may belong to a running transfer.
#[must_use]
pub fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(HIDDEN_PREFIX.as_bytes())
}

/// Generates names for entries that outlive this process. No other transfer generates the same names.
#[derive(Debug)]
pub struct LastingNames {
    tag: String,
    given: AtomicU64,
}

/// The identity of a directory that hidden names contain. It omits the device number, which may change at each boot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ParentIdentity {
    inode: u64,
    /// Time of birth in seconds and nanoseconds, or 0 if the file system does not store it.
    born: (i64, u32),
    /// Whether the directory is append-only (`chattr +a`), so that entries can be neither removed nor renamed.
    is_append_only: bool,
    /// The entries that only this user and root can rename.
    guarded: GuardedEntries,
}

/// A process, identified uniquely across hosts and boots, even if process IDs are reused.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProcessIdentity {
    /// A hash of the machine ID, the host name and, in a container, the PID and time namespaces. If a machine has no
    /// ID, the hash changes at each boot. The value is 0 if the machine is unknown.
    machine: u64,
    /// The boot ID, or 0 if it is unknown.
    boot: u64,
    pid: u64,
    /// The time at which the process started, in ticks since boot.
    start: u64,
}

/// The maximum difference in milliseconds between the time in a name and the time of birth of the entry, if the entry
/// is not a copy. The kernel's clock for file times is up to a tick late, and storage may be slow to create an entry.
const BIRTH_MS_MAX: u64 = 1_000;
/// The age after which an entry of another or unknown machine counts as abandoned, because the process cannot be looked
/// up here.
const FOREIGN_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The start time of a process that has ended. It is later than any real start time.
const ENDED_START: u64 = u64::MAX;
/// The inode of the initial PID namespace (`PROC_PID_INIT_INO` in the kernel). Every process outside containers runs in
/// this namespace.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// The inode of the initial time namespace (`PROC_TIME_INIT_INO`). In other namespaces, processes have other start
/// times.
const FIRST_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;

impl LastingNames {
    /// The number of hexadecimal digits of a transfer's ID in hidden names.
    pub const TAG_DIGITS: usize = 12;

    /// Creates names that contain `tag`, a short text that distinguishes transfers.
    #[must_use]
    pub fn new(tag: &str) -> Self {
        Self {
            tag: tag.to_owned(),
            given: AtomicU64::new(0),
        }
    }

    /// Returns a name that this value has not returned before.
    ///
    /// # Panics
    /// Panics if the tag contains a `/` or is longer than 200 bytes.
    pub fn name(&self) -> Name {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let text = format!("{HIDDEN_PREFIX}{}-{number:x}", self.tag);
        Name::from_bytes(text.as_bytes()).expect("a short tag without a slash")
    }
}

/// Calls `make` to create an entry in `directory` under a hidden name. If this process dies,
/// [`remove_abandoned`](crate::remove_abandoned) removes the entry.
///
/// # Errors
/// Returns the error of `make`, or `EPERM` for an append-only directory, from which the hidden entry could not be
/// removed.
pub fn make_hidden<T>(
    directory: BorrowedFd<'_>,
    make: impl Fn(&Name) -> rustix::io::Result<T>,
) -> rustix::io::Result<(Name, T)> {
    make_hidden_beneath(&ParentIdentity::of(directory), make)
}

/// Creates a directory like [`make_hidden`], in which the caller will create entries while it has its hidden name.
///
/// # Errors
/// Also returns `EPERM` if other users may rename entries of `directory`. In such a directory, cleanup could not
/// distinguish this directory from another user's directory.
pub(crate) fn make_hidden_directory(
    directory: BorrowedFd<'_>,
    make: impl Fn(&Name) -> rustix::io::Result<()>,
) -> rustix::io::Result<Name> {
    let parent = ParentIdentity::of(directory);
    if parent.guarded == GuardedEntries::None {
        return Err(Errno::PERM);
    }
    Ok(make_hidden_beneath(&parent, make)?.0)
}

/// Creates an entry like [`make_hidden`], in a directory whose identity has already been read.
pub(crate) fn make_hidden_beneath<T>(
    parent: &ParentIdentity,
    make: impl Fn(&Name) -> rustix::io::Result<T>,
) -> rustix::io::Result<(Name, T)> {
    if parent.is_append_only {
        return Err(Errno::PERM);
    }
    loop {
        let name = temporary_name(parent);
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return Ok((name, made?)),
        }
    }
}

/// Returns numbers separated by dashes that identify this process uniquely across all hosts.
#[must_use]
pub fn own_process() -> &'static str {
    static OWN: OnceLock<String> = OnceLock::new();
    OWN.get_or_init(|| ProcessIdentity::own().to_string())
}

/// Returns whether a process, given by its [`own_process`] text, ran in this boot of this machine and has ended.
/// Returns `false` for any other process.
#[must_use]
pub fn has_process_ended(process: &str) -> bool {
    let process = parse_hex_numbers(process).map(ProcessIdentity::of_numbers);
    process.is_some_and(|process| {
        process.is_of_boot(ProcessIdentity::own())
            && !process.is_running(process_start(process.pid))
    })
}

fn temporary_name(parent: &ParentIdentity) -> Name {
    // One counter serves the whole process, because several of its transfers may use the same directory.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = own_process();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let text = format!(
        "{HIDDEN_PREFIX}{parent}-{own}-{:x}-{number:x}",
        since_epoch_ms(SystemTime::now())
    );
    Name::from_bytes(text.as_bytes()).expect("numbers alone are short")
}

impl ParentIdentity {
    /// Reads the identity of a directory. Values that the kernel does not report are 0.
    pub(crate) fn of(directory: BorrowedFd<'_>) -> Self {
        let asked = StatxFlags::INO | StatxFlags::BTIME | GuardedEntries::STATX_FIELDS;
        let stat = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, asked);
        stat.map_or_else(
            |_unknown| Self::default(),
            |stat| Self {
                inode: stat.stx_ino,
                born: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
                is_append_only: stat.stx_attributes.contains(StatxAttributes::APPEND),
                guarded: GuardedEntries::of(&stat),
            },
        )
    }

    /// Returns the entries that only this user and root can rename.
    pub(crate) const fn guarded(&self) -> GuardedEntries {
        self.guarded
    }
}

impl Display for ParentIdentity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = self.born;
        write!(f, "{:x}.{seconds:x}.{nanos:x}", self.inode)
    }
}

/// Returns whether the entry `name` of `directory` is an unfinished entry of a running or ended process. Returns
/// `false` for a copy of such an entry.
#[must_use]
pub fn is_temporary(directory: BorrowedFd<'_>, name: &[u8]) -> bool {
    // The prefix is checked first, because most names do not have it and then the directory need not be read.
    is_hidden(name)
        && creator_of(directory, &ParentIdentity::of(directory).to_string(), name).is_some()
}

/// Returns whether a name has the form of the name of a large file's part.
#[must_use]
pub fn is_part(name: &[u8]) -> bool {
    let behind_prefix = name.strip_prefix(HIDDEN_PREFIX.as_bytes());
    let Some((tag, number)) =
        behind_prefix.and_then(|rest| rest.split_at_checked(LastingNames::TAG_DIGITS))
    else {
        return false;
    };
    let are_digits = |text: &[u8]| {
        !text.is_empty()
            && text
                .iter()
                .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    };
    are_digits(tag) && number.strip_prefix(b"-").is_some_and(are_digits)
}

/// The process that created an entry, and the time.
#[derive(Clone, Debug)]
struct EntryCreator {
    process: ProcessIdentity,
    created_ms: u64,
}

/// Returns the creator of the entry `name` of `directory`, or `None` if the entry is a copy. `here` is the text of the
/// [`ParentIdentity`] of `directory`.
fn creator_of(directory: BorrowedFd<'_>, here: &str, name: &[u8]) -> Option<(Name, EntryCreator)> {
    let text = std::str::from_utf8(name).ok()?;
    let (parent, made) = text.strip_prefix(HIDDEN_PREFIX)?.split_once('-')?;
    let [machine, boot, pid, start, created_ms, _number] = parse_hex_numbers(made)?;
    let process = ProcessIdentity::of_numbers([machine, boot, pid, start]);
    let name = Name::from_bytes(name).ok()?;
    let is_no_copy = parent == here || was_born_at(directory, &name, created_ms);
    is_no_copy.then_some((
        name,
        EntryCreator {
            process,
            created_ms,
        },
    ))
}

/// Returns whether a process that has ended left the entry `name` in `directory`.
pub(crate) fn is_leftover(directory: BorrowedFd<'_>, name: &[u8]) -> bool {
    let creator = creator_of(directory, &ParentIdentity::of(directory).to_string(), name);
    creator.is_some_and(|(name, creator)| creator.has_ended(|| age_of(directory, &name)))
}

/// The hidden entries of a directory, except those of running processes.
#[derive(Debug, Default)]
pub struct HiddenEntries {
    /// Entries left by ended processes, except directories that other users may have given such a name.
    pub left: Vec<Name>,
    /// Parts of large files.
    pub parts: Vec<Name>,
    /// Shared jobs whose directories are in this directory.
    pub jobs: Vec<SharedJobId>,
}

/// Returns the hidden entries of `directory`. `other` receives each entry that is not hidden.
///
/// # Errors
/// Returns the system's error if the directory cannot be listed.
pub fn list_hidden(
    directory: BorrowedFd<'_>,
    mut other: impl FnMut(&DirEntry),
) -> io::Result<HiddenEntries> {
    let mut hidden = HiddenEntries::default();
    let parent = ParentIdentity::of(directory);
    let here = parent.to_string();
    for entry in list_directory(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !is_hidden(name) {
            other(&entry);
        } else if let Some(job) = job_of(name) {
            hidden.jobs.push(job);
        } else if is_part(name) {
            hidden.parts.extend(Name::from_bytes(name));
        } else if let Some((name, creator)) = creator_of(directory, &here, name)
            && creator.has_ended(|| age_of(directory, &name))
            && (parent.guarded.covers(directory, &name) || !is_directory(directory, &name))
        {
            hidden.left.push(name);
        }
    }
    Ok(hidden)
}

fn was_born_at(directory: BorrowedFd<'_>, name: &Name, created_ms: u64) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let Ok(stat) = rustix::fs::statx(directory, name.as_os_str(), flags, StatxFlags::BTIME) else {
        return false;
    };
    // File systems without times of birth report 0.
    let born = Duration::new(
        u64::try_from(stat.stx_btime.tv_sec).unwrap_or(0),
        stat.stx_btime.tv_nsec,
    );
    since_epoch_ms(SystemTime::UNIX_EPOCH + born).abs_diff(created_ms) <= BIRTH_MS_MAX
}

fn since_epoch_ms(time: SystemTime) -> u64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn age_of(directory: BorrowedFd<'_>, name: &Name) -> Option<Duration> {
    let stat = stat_at(directory, name).ok()?;
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_ctime).ok()?);
    SystemTime::now().duration_since(changed).ok()
}

impl EntryCreator {
    fn has_ended(&self, age: impl FnOnce() -> Option<Duration>) -> bool {
        self.has_ended_for(ProcessIdentity::own(), age)
    }

    fn has_ended_for(&self, own: &ProcessIdentity, age: impl FnOnce() -> Option<Duration>) -> bool {
        let Self {
            process,
            created_ms,
        } = self;
        if process.is_of_boot(own) {
            return !process.is_running(process_start(process.pid));
        }
        let was_before_this_boot = process.is_of_machine(own) && *created_ms < booted_ms();
        was_before_this_boot || age().is_some_and(|age| age > FOREIGN_AGE_MAX)
    }
}

impl ProcessIdentity {
    fn own() -> &'static Self {
        static OWN: OnceLock<ProcessIdentity> = OnceLock::new();
        OWN.get_or_init(|| {
            let pid = u64::from(std::process::id());
            Self {
                machine: machine(),
                boot: boot(),
                pid,
                start: process_start(pid).unwrap_or(0),
            }
        })
    }

    /// Returns the process whose text form consists of these numbers.
    const fn of_numbers([machine, boot, pid, start]: [u64; 4]) -> Self {
        Self {
            machine,
            boot,
            pid,
            start,
        }
    }

    fn is_of_machine(&self, own: &Self) -> bool {
        let is_known = |process: &Self| process.machine != 0 && process.boot != 0;
        is_known(self) && is_known(own) && self.machine == own.machine
    }

    fn is_of_boot(&self, own: &Self) -> bool {
        self.is_of_machine(own) && self.boot == own.boot
    }

    /// Returns whether the process is running. `start` is the start time of the process that now has its process ID, or
    /// `None` if that process cannot be seen. Processes of other users may be invisible (`hidepid`).
    fn is_running(&self, start: Option<u64>) -> bool {
        start.map_or_else(|| process_exists(self.pid), |start| start == self.start)
    }
}

impl Display for ProcessIdentity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:x}-{:x}-{:x}-{:x}",
            self.machine, self.boot, self.pid, self.start
        )
    }
}

/// Parses exactly `COUNT` hexadecimal numbers separated by dashes.
fn parse_hex_numbers<const COUNT: usize>(text: &str) -> Option<[u64; COUNT]> {
    let numbers = text.split('-').map(|part| u64::from_str_radix(part, 16));
    let numbers: Vec<_> = numbers.collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

/// Returns whether a process with this ID exists, even if this process may not see or signal it.
fn process_exists(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Returns the start time of a process of this host. Returns `None` if it does not exist or cannot be seen, and
/// [`ENDED_START`] if it has ended but its parent has not reaped it.
fn process_start(pid: u64) -> Option<u64> {
    parse_process_start(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the start time of a process from text in the format of proc_pid_stat(5).
fn parse_process_start(stat: &[u8]) -> Option<u64> {
    // The program name is in parentheses and may contain any characters.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let fields: Vec<_> = std::str::from_utf8(&stat[after_name..])
        .ok()?
        .split_ascii_whitespace()
        .collect();
    // The 3rd, 20th and 22nd fields of the line. The first two fields were cut off.
    let state = fields.first()?;
    let threads = fields.get(17)?;
    let start = fields.get(19)?;
    // A remaining thread of the process may still be executing an I/O request.
    let has_ended = matches!(*state, "Z" | "X") && matches!(*threads, "0" | "1");
    if has_ended {
        Some(ENDED_START)
    } else {
        start.parse().ok()
    }
}

fn machine() -> u64 {
    let named = short_id("/etc/machine-id");
    let id = if named == 0 { boot() } else { named };
    if id == 0 {
        return 0;
    }
    let namespace = |path, first| match std::fs::metadata(path).map(|namespace| namespace.ino()) {
        Ok(number) if number != first => number,
        // This is the initial namespace, or the kernel does not support such namespaces.
        _ => 0,
    };
    let pids = namespace("/proc/self/ns/pid", FIRST_PID_NAMESPACE);
    let times = namespace("/proc/self/ns/time", FIRST_TIME_NAMESPACE);
    let host = rustix::system::uname();
    machine_hash(id, pids ^ (times << 32), host.nodename().to_bytes())
}

/// Returns a hash of the machine ID, the namespaces and the host name. Clones of one image share the machine ID.
fn machine_hash(id: u64, namespaces: u64, name: &[u8]) -> u64 {
    id ^ namespaces ^ (hash(name) << 32)
}

/// A hash that never changes between releases (FNV-1a, 32 bits).
fn hash(text: &[u8]) -> u64 {
    text.iter().fold(0x811c_9dc5, |hash, byte| {
        ((hash ^ u64::from(*byte)) * 0x0100_0193) & 0xffff_ffff
    })
}

/// Returns the time at which this boot began, in milliseconds since the Unix epoch. The result changes if the system
/// clock is set.
fn booted_ms() -> u64 {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up_ms = u64::try_from(up.tv_sec).unwrap_or(0) * 1000;
    since_epoch_ms(SystemTime::now()).saturating_sub(up_ms)
}

fn boot() -> u64 {
    short_id("/proc/sys/kernel/random/boot_id")
}

/// Returns the first 32 bits of the ID in a file, or 0 if the ID cannot be read.
fn short_id(path: &str) -> u64 {
    let bits = read_id(path).unwrap_or(0) >> 96;
    u64::try_from(bits).expect("32 bits are left")
}

#[cfg(test)]
pub(crate) mod tests;
