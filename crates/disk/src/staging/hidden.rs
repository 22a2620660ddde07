//! The names of entries that have no final name yet, and the search for those that a dead process has left.
//!
//! A passing name, `.zmove-PARENT-MACHINE-BOOT-PID-START-MOMENT-NUMBER`, contains the directory that the entry was made
//! in, the process that made it, and when. The next transfer to the directory removes entries of processes that have
//! ended, and, after some days, those of other machines, whose processes cannot be looked up here. Machines made from
//! one image have one machine id: what differs is the host name, and what another boot has made since this one began is
//! another machine's in any case. Manifests are gathered under such names too. A scan for a push skips them in the
//! directory that they were made in. In a directory that only takes new names (`chattr +a`) nothing can be placed. The
//! directories of [shared jobs](crate::SharedJobDirectory) are none of this: they go a long time after their jobs.
//!
//! A lasting name, `.zmove-TRANSFER-NUMBER`, is that of a part of a large file, which outlives its process: another
//! transfer goes on with it. A scan skips these wherever they are, since nobody can tell a part from a copy of one, and
//! neither is a file that anybody has made.
//!
//! **Invariant:** [`remove_abandoned`](crate::remove_abandoned) removes an entry with such a name only when its process
//! has ended, and only where the entry is the one that was made under that name: a copy of it is data like any other.
//! Names can be forged, so a directory only goes from a directory in which nobody else can have given it that name
//! ([`guarded`](crate::staging::guarded)). Only there are directories made to be filled under hidden names. The
//! exception is the moment in which the directory of a shared job is made.
//!
//! An entry in the very directory that its name contains was made there. An entry that was born at the moment in its
//! name is no copy either, since a copy would be younger. Either is enough, for neither can always be known. A
//! directory has other numbers when overlayfs has copied it from a lower layer, and entries of a staging directory may
//! end up in the directory that was in its way. Some file systems store no time of birth, and servers have clocks of
//! their own.
//!
//! No lock shows whether the maker lives, since a lock would cost a descriptor for each name, and there are hundreds of
//! thousands.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, DirEntry, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use zmove_types::{Name, SharedJobId};

use crate::metadata::entry::is_directory;
use crate::opening::by_name::stat_at;
use crate::opening::proc::read_id;
use crate::shared_job::names::job_of;
use crate::staging::guarded::Guarded;

/// The beginning of the names of running transfers; an entry with such a name stays.
const HIDDEN_PREFIX: &str = ".zmove-";

/// Whether a name may belong to a transfer that is running.
#[must_use]
pub fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(HIDDEN_PREFIX.as_bytes())
}

/// Makes names for entries that are to outlive this process, such as no other transfer makes.
#[derive(Debug)]
pub struct LastingNames {
    tag: String,
    given: AtomicU64,
}

/// A directory, as the names made in it contain it: without its device, which may have another number after each boot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parent {
    inode: u64,
    /// Seconds and nanoseconds; 0 on a file system that stores no time of birth.
    born: (i64, u32),
    /// Whether its entries can neither be removed nor renamed (`chattr +a`).
    is_append_only: bool,
    /// The entries that only this user and root can rename.
    guarded: Guarded,
}

/// A process, as no other that has ever run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    /// The machine and its name, with the namespaces of process numbers and of times where they are a container's; a
    /// machine without an id is another after each boot. 0 where it is not known.
    machine: u64,
    /// The identifier of the boot; 0 where it is not known.
    boot: u64,
    pid: u64,
    /// The time at which the process began, in ticks since the boot.
    start: u64,
}

/// The largest difference between the moment in a name and the birth of the entry, unless that is a copy. The kernel's
/// clock for files is a tick behind, and the storage may be slow to make something.
const BIRTH_MS_MAX: u64 = 1_000;
/// The age from which processes of other machines, and those that are not known, count as dead, since they cannot be
/// looked up here.
const FOREIGN_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A start later than that of any process.
const NEVER: u64 = u64::MAX;
/// The number of the namespace that every process is in unless it is in a container (`PROC_PID_INIT_INO` of
/// the kernel).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// The same of times since the boot (`PROC_TIME_INIT_INO`): in another one processes began at other times.
const FIRST_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;

impl LastingNames {
    /// The letters of the id of a transfer that its names contain, which are hexadecimal digits.
    pub const TAG_DIGITS: usize = 12;

    /// Names that contain `tag`, a few letters that distinguish transfers.
    #[must_use]
    pub fn new(tag: &str) -> Self {
        Self {
            tag: tag.to_owned(),
            given: AtomicU64::new(0),
        }
    }

    /// A name that was not given before.
    ///
    /// # Panics
    /// When the tag holds a `/` or is longer than 200 bytes.
    pub fn name(&self) -> Name {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let text = format!("{HIDDEN_PREFIX}{}-{number:x}", self.tag);
        Name::from_bytes(text.as_bytes()).expect("a short tag without a slash")
    }
}

/// Has `make` make something in `directory`, under a name that [`remove_abandoned`](crate::remove_abandoned) removes
/// there when this process has died.
///
/// # Errors
/// The error of `make`. `EPERM` for an append-only directory, from which the hidden name could not be removed again.
pub fn make_hidden<T>(
    directory: BorrowedFd<'_>,
    make: impl Fn(&Name) -> rustix::io::Result<T>,
) -> rustix::io::Result<(Name, T)> {
    make_hidden_beneath(&Parent::of(directory), make)
}

/// Like [`make_hidden`], for a directory that is to be filled under the hidden name.
///
/// # Errors
/// Also `EPERM` for a directory in which others may rename the new one: a leftover could not be told from a directory
/// of theirs.
pub(crate) fn make_hidden_directory(
    directory: BorrowedFd<'_>,
    make: impl Fn(&Name) -> rustix::io::Result<()>,
) -> rustix::io::Result<Name> {
    let parent = Parent::of(directory);
    if parent.guarded == Guarded::None {
        return Err(Errno::PERM);
    }
    Ok(make_hidden_beneath(&parent, make)?.0)
}

/// Like [`make_hidden`], in a directory that has been looked at already.
pub(crate) fn make_hidden_beneath<T>(
    parent: &Parent,
    make: impl Fn(&Name) -> rustix::io::Result<T>,
) -> rustix::io::Result<(Name, T)> {
    if parent.is_append_only {
        return Err(Errno::PERM);
    }
    loop {
        let name = passing(parent);
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return Ok((name, made?)),
        }
    }
}

/// This process, as no other that has ever run on any host: numbers with dashes between them.
#[must_use]
pub fn own_process() -> &'static str {
    static OWN: OnceLock<String> = OnceLock::new();
    OWN.get_or_init(|| Process::own().to_string())
}

/// Whether a process, by its [`own_process`], was one of this machine and boot, and has ended; `false` for any other.
#[must_use]
pub fn has_process_ended(process: &str) -> bool {
    let process = hex_numbers(process).map(Process::of_numbers);
    process.is_some_and(|process| {
        process.is_of_boot(Process::own()) && !process.runs(start_of(process.pid))
    })
}

fn passing(parent: &Parent) -> Name {
    // One counter for the whole process: its transfers may work in the same directory.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = own_process();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let text = format!(
        "{HIDDEN_PREFIX}{parent}-{own}-{:x}-{number:x}",
        since_epoch_ms(SystemTime::now())
    );
    Name::from_bytes(text.as_bytes()).expect("numbers alone are short")
}

impl Parent {
    /// Looks at a directory; what the kernel does not report is 0.
    pub(crate) fn of(directory: BorrowedFd<'_>) -> Self {
        let asked = StatxFlags::INO | StatxFlags::BTIME | Guarded::ASKED;
        let stat = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, asked);
        stat.map_or_else(
            |_unknown| Self::default(),
            |stat| Self {
                inode: stat.stx_ino,
                born: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
                is_append_only: stat.stx_attributes.contains(StatxAttributes::APPEND),
                guarded: Guarded::of(&stat),
            },
        )
    }

    /// The entries that only this user and root can rename.
    pub(crate) const fn guarded(&self) -> Guarded {
        self.guarded
    }
}

impl Display for Parent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = self.born;
        write!(f, "{:x}.{seconds:x}.{nanos:x}", self.inode)
    }
}

/// Whether the entry with this name in `directory` is not finished, or was not when its process ended, and is no copy
/// of such an entry.
#[must_use]
pub fn is_passing(directory: BorrowedFd<'_>, name: &[u8]) -> bool {
    // The prefix first: most names are others, and need no look at the directory.
    is_hidden(name) && maker_of(directory, &Parent::of(directory).to_string(), name).is_some()
}

/// Whether a name is that of a part of a large file that a transfer has begun and not finished.
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

/// The process that has made an entry, and when.
#[derive(Clone, Debug)]
struct Maker {
    process: Process,
    moment_ms: u64,
}

/// The process that has made the entry with this name in `directory`, which names contain as `here`; `None` for a copy.
fn maker_of(directory: BorrowedFd<'_>, here: &str, name: &[u8]) -> Option<(Name, Maker)> {
    let text = std::str::from_utf8(name).ok()?;
    let (parent, made) = text.strip_prefix(HIDDEN_PREFIX)?.split_once('-')?;
    let [machine, boot, pid, start, moment_ms, _number] = hex_numbers(made)?;
    let process = Process::of_numbers([machine, boot, pid, start]);
    let name = Name::from_bytes(name).ok()?;
    let is_no_copy = parent == here || was_born_at(directory, &name, moment_ms);
    is_no_copy.then_some((name, Maker { process, moment_ms }))
}

/// Whether the entry with this name in `directory` was left there by a process that has ended.
pub(crate) fn is_left_over(directory: BorrowedFd<'_>, name: &[u8]) -> bool {
    let maker = maker_of(directory, &Parent::of(directory).to_string(), name);
    maker.is_some_and(|(name, maker)| maker.has_ended(|| age_of(directory, &name)))
}

/// The hidden entries of a directory, without those of processes that run.
#[derive(Debug, Default)]
pub struct Hidden {
    /// The entries that ended processes have left, without directories that others may have given such a name.
    pub left: Vec<Name>,
    /// The parts of large files.
    pub parts: Vec<Name>,
    /// The shared jobs whose directories are there.
    pub jobs: Vec<SharedJobId>,
}

/// The hidden entries of `directory`. `other` gets each entry that is not hidden.
///
/// # Errors
/// The system's error: it cannot be listed.
pub fn hidden_in(
    directory: BorrowedFd<'_>,
    mut other: impl FnMut(&DirEntry),
) -> io::Result<Hidden> {
    let mut hidden = Hidden::default();
    let parent = Parent::of(directory);
    let here = parent.to_string();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !is_hidden(name) {
            other(&entry);
        } else if let Some(job) = job_of(name) {
            hidden.jobs.push(job);
        } else if is_part(name) {
            hidden.parts.extend(Name::from_bytes(name));
        } else if let Some((name, maker)) = maker_of(directory, &here, name)
            && maker.has_ended(|| age_of(directory, &name))
            && (parent.guarded.covers(directory, &name) || !is_directory(directory, &name))
        {
            hidden.left.push(name);
        }
    }
    Ok(hidden)
}

fn was_born_at(directory: BorrowedFd<'_>, name: &Name, moment_ms: u64) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let Ok(stat) = rustix::fs::statx(directory, name.as_os_str(), flags, StatxFlags::BTIME) else {
        return false;
    };
    // A file system that stores no time of birth reports 0.
    let born = Duration::new(
        u64::try_from(stat.stx_btime.tv_sec).unwrap_or(0),
        stat.stx_btime.tv_nsec,
    );
    since_epoch_ms(SystemTime::UNIX_EPOCH + born).abs_diff(moment_ms) <= BIRTH_MS_MAX
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

impl Maker {
    fn has_ended(&self, age: impl FnOnce() -> Option<Duration>) -> bool {
        self.has_ended_for(Process::own(), age)
    }

    fn has_ended_for(&self, own: &Process, age: impl FnOnce() -> Option<Duration>) -> bool {
        let Self { process, moment_ms } = self;
        if process.is_of_boot(own) {
            return !process.runs(start_of(process.pid));
        }
        let was_before_this_boot = process.is_of_machine(own) && *moment_ms < booted_ms();
        was_before_this_boot || age().is_some_and(|age| age > FOREIGN_AGE_MAX)
    }
}

impl Process {
    fn own() -> &'static Self {
        static OWN: OnceLock<Process> = OnceLock::new();
        OWN.get_or_init(|| {
            let pid = u64::from(std::process::id());
            Self {
                machine: machine(),
                boot: boot(),
                pid,
                start: start_of(pid).unwrap_or(0),
            }
        })
    }

    /// The process that is displayed as these numbers.
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

    /// Whether the process runs. `start` is that of the present process with its number; `None` where none can be seen,
    /// as those of other users may be invisible (`hidepid`).
    fn runs(&self, start: Option<u64>) -> bool {
        start.map_or_else(|| exists(self.pid), |start| start == self.start)
    }
}

impl Display for Process {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:x}-{:x}-{:x}-{:x}",
            self.machine, self.boot, self.pid, self.start
        )
    }
}

/// The numbers of a text that has so many, in hexadecimal, with dashes between them.
fn hex_numbers<const COUNT: usize>(text: &str) -> Option<[u64; COUNT]> {
    let numbers = text.split('-').map(|part| u64::from_str_radix(part, 16));
    let numbers: Vec<_> = numbers.collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

/// Whether this host has a process of that number, also one that this process may not see or signal.
fn exists(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// When a process of this host began; `None` when there is none of that number, or none that can be seen; [`NEVER`] for
/// one that has ended, and that its parent has not waited for.
fn start_of(pid: u64) -> Option<u64> {
    started(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The start of a process by a text like that of proc_pid_stat(5).
fn started(stat: &[u8]) -> Option<u64> {
    // The name of the program is in parentheses and may contain anything.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let fields: Vec<_> = std::str::from_utf8(&stat[after_name..])
        .ok()?
        .split_ascii_whitespace()
        .collect();
    // The 3rd, 20th and 22nd field; the first two are cut off.
    let state = fields.first()?;
    let threads = fields.get(17)?;
    let start = fields.get(19)?;
    // While a thread is left, it may be in the middle of a request to storage.
    let has_ended = matches!(*state, "Z" | "X") && matches!(*threads, "0" | "1");
    if has_ended {
        Some(NEVER)
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
        // the first one, or a kernel without such namespaces
        _ => 0,
    };
    let pids = namespace("/proc/self/ns/pid", FIRST_PID_NAMESPACE);
    let times = namespace("/proc/self/ns/time", FIRST_TIME_NAMESPACE);
    let host = rustix::system::uname();
    one_of_a_kind(id, pids ^ (times << 32), host.nodename().to_bytes())
}

/// The number of a machine by its id, which those made from one image share, its namespaces, and its name.
fn one_of_a_kind(id: u64, namespaces: u64, name: &[u8]) -> u64 {
    id ^ namespaces ^ (hash(name) << 32)
}

/// A hash that is the same in each release (FNV-1a, 32 bits).
fn hash(text: &[u8]) -> u64 {
    text.iter().fold(0x811c_9dc5, |hash, byte| {
        ((hash ^ u64::from(*byte)) * 0x0100_0193) & 0xffff_ffff
    })
}

/// When this boot began, by the clock that moments are told by. A clock that is set later moves this with it.
fn booted_ms() -> u64 {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up_ms = u64::try_from(up.tv_sec).unwrap_or(0) * 1000;
    since_epoch_ms(SystemTime::now()).saturating_sub(up_ms)
}

fn boot() -> u64 {
    short_id("/proc/sys/kernel/random/boot_id")
}

/// The first 32 bits of the id in a file; 0 where it is not known.
fn short_id(path: &str) -> u64 {
    let bits = read_id(path).unwrap_or(0) >> 96;
    u64::try_from(bits).expect("32 bits are left")
}

#[cfg(test)]
pub(crate) mod tests;
