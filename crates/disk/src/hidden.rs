//! The names of what has no final name yet, and the removal of those that a process which died has left.
//!
//! A passing name, `.zmove-PARENT-MACHINE-BOOT-PID-START-NUMBER`, tells the directory that it was made in and the process that
//! made it. **Invariant:** [`sweep`] removes a name only in the very directory that it was made in, and only when its process has
//! ended: a copy of such a name elsewhere is data like any other.
//!
//! No lock tells whether the maker lives, since a lock would cost a descriptor for each name, and there are hundreds of
//! thousands.

use std::fmt::Write as _;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, StatxFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use zmove_types::{Name, RelPath};

use crate::boot::boot_id;
use crate::remove::{HIDDEN_PREFIX, is_hidden, remove_entries};
use crate::tree::Tree;

/// Makes names that no other transfer makes.
#[derive(Debug)]
pub struct TempNames {
    tag: String,
    next: AtomicU64,
}

/// A process, told apart from all others that have been.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    /// The machine, with the namespace of process numbers where that is a container's; one that has no name is another after
    /// each boot. 0 where it is not known.
    machine: u64,
    /// The run of the system. 0 where it is not known.
    boot: u64,
    pid: u64,
    /// When it began, in ticks since the boot.
    start: u64,
}

/// After so long the processes of other machines, and of those that are not known, count as dead: nobody here can ask for them.
const FOREIGN_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The number of the namespace that every process is in unless it is in a container (`PROC_PID_INIT_INO` of the kernel).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

impl TempNames {
    /// Names of which the lasting ones contain `tag`, a few letters that tell transfers apart.
    #[must_use]
    pub fn new(tag: &str) -> Self {
        Self { tag: tag.to_owned(), next: AtomicU64::new(0) }
    }

    /// A name for what is to outlive this process; it was not given before.
    ///
    /// # Panics
    /// When the tag holds a `/` or is longer than 200 bytes.
    pub fn lasting(&self) -> Name {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let text = format!("{HIDDEN_PREFIX}{}-{number:x}", self.tag);
        Name::from_bytes(text.as_bytes()).expect("a short tag without a slash")
    }

    /// A name in `directory` that [`sweep`] removes there when this process has died.
    pub fn passing(&self, directory: BorrowedFd<'_>) -> Name {
        // one counter for the whole process: its transfers may work in the same directory
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let text = format!("{}{}-{number:x}", prefix_in(directory), Process::own().text());
        Name::from_bytes(text.as_bytes()).expect("numbers alone are short")
    }
}

/// What passing names in a directory begin with. Devices may be numbered anew at each boot, so they are not in it.
fn prefix_in(directory: BorrowedFd<'_>) -> String {
    let asked = StatxFlags::INO | StatxFlags::BTIME;
    match rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, asked) {
        // a file system that does not keep the time of birth says 0
        Ok(stat) => {
            format!(
                "{HIDDEN_PREFIX}{:x}.{:x}.{:x}-",
                stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec
            )
        }
        Err(_unknown) => format!("{HIDDEN_PREFIX}0.0.0-"),
    }
}

/// Whether `name` was given in this very directory to what is not finished, or was not when its process ended.
#[must_use]
pub fn is_passing(directory: BorrowedFd<'_>, name: &[u8]) -> bool {
    let text = std::str::from_utf8(name).ok().filter(|_| is_hidden(name));
    let rest = text.and_then(|text| text.strip_prefix(&prefix_in(directory)));
    rest.is_some_and(|rest| Process::parse(rest).is_some())
}

/// Removes what processes that have ended have left in `directory`, which is `path` of `tree`. What cannot be listed or
/// removed stays for another time.
pub fn sweep(tree: &Tree, path: &RelPath, directory: BorrowedFd<'_>) {
    let Ok(entries) = Dir::read_from(directory) else { return };
    let prefix = prefix_in(directory);
    let left = entries.flatten().filter_map(|entry| {
        let text = entry.file_name().to_str().ok()?;
        let maker = Process::parse(text.strip_prefix(&prefix)?)?;
        let name = Name::from_bytes(text.as_bytes()).ok()?;
        maker.has_ended(|| age_of(directory, &name)).then_some(name)
    });
    let left: Vec<_> = left.collect();
    if !left.is_empty() {
        let _counted = remove_entries(tree, path, left.iter(), |_path, _stays_for_another_time| {});
    }
}

fn age_of(directory: BorrowedFd<'_>, name: &Name) -> Option<Duration> {
    let stat = rustix::fs::statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_ctime).ok()?);
    SystemTime::now().duration_since(changed).ok()
}

impl Process {
    fn own() -> &'static Self {
        static OWN: OnceLock<Process> = OnceLock::new();
        OWN.get_or_init(|| {
            let pid = u64::from(std::process::id());
            Self { machine: machine(), boot: boot(), pid, start: start_of(pid).unwrap_or(0) }
        })
    }

    fn text(&self) -> String {
        let mut text = String::with_capacity(64);
        write!(text, "{:x}-{:x}-{:x}-{:x}", self.machine, self.boot, self.pid, self.start)
            .expect("a string takes all");
        text
    }

    /// Reads what [`text`](Self::text) wrote, and a number behind it.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-').map(|part| u64::from_str_radix(part, 16).ok());
        let mut next = || parts.next().flatten();
        let process = Self { machine: next()?, boot: next()?, pid: next()?, start: next()? };
        next()?;
        parts.next().is_none().then_some(process)
    }

    fn has_ended(&self, age: impl FnOnce() -> Option<Duration>) -> bool {
        self.has_ended_for(Self::own(), age)
    }

    fn has_ended_for(&self, own: &Self, age: impl FnOnce() -> Option<Duration>) -> bool {
        let is_known = |process: &Self| process.machine != 0 && process.boot != 0;
        if !is_known(self) || !is_known(own) || self.machine != own.machine {
            return age().is_some_and(|age| age > FOREIGN_AGE_MAX);
        }
        self.boot != own.boot || !self.runs(start_of(self.pid))
    }

    /// Whether it runs, by what is seen of the process of its number. Processes of other users may be invisible (`hidepid`).
    fn runs(&self, start: Option<u64>) -> bool {
        start.map_or_else(|| exists(self.pid), |start| start == self.start)
    }
}

/// Whether this host has a process of that number, also one that this process may not see or signal.
fn exists(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// When a process of this host began; `None` when there is none of that number, or none that can be seen.
fn start_of(pid: u64) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // the name of the program stands in brackets and may hold anything
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after_name..]).ok()?;
    // the 22nd field of proc_pid_stat(5), of which the first two are cut off
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn machine() -> u64 {
    let named = first_hex(std::fs::read("/etc/machine-id").unwrap_or_default());
    let id = if named == 0 { boot() } else { named };
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    if namespace == FIRST_PID_NAMESPACE { id } else { id ^ namespace }
}

/// The first 32 bits of what the kernel says.
fn boot() -> u64 {
    boot_id().and_then(|id| u64::try_from(id >> 96).ok()).unwrap_or(0)
}

/// The first eight digits as a number.
fn first_hex(text: Vec<u8>) -> u64 {
    let digits = text.get(..8).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::Command;

    fn place() -> (tempfile::TempDir, Tree) {
        let home = tempfile::tempdir().unwrap();
        let tree = Tree::open(home.path()).unwrap();
        (home, tree)
    }

    /// A name that a process has made which is no more.
    fn of_a_dead_process(directory: BorrowedFd<'_>) -> Name {
        let mut child = Command::new("true").spawn().unwrap();
        let (pid, start) = (u64::from(child.id()), start_of(u64::from(child.id())).unwrap());
        child.wait().unwrap();
        let dead = Process { pid, start, ..Process::own().clone() };
        Name::from_bytes(format!("{}{}-0", prefix_in(directory), dead.text()).as_bytes()).unwrap()
    }

    fn count(home: &tempfile::TempDir) -> usize {
        std::fs::read_dir(home.path()).unwrap().count()
    }

    #[test]
    fn what_a_dead_process_left_goes_and_what_a_live_one_has_stays() {
        let (home, tree) = place();
        let names = TempNames::new("t");
        let live = names.passing(tree.fd());
        std::fs::write(home.path().join(live.as_os_str()), "x").unwrap();
        std::fs::write(home.path().join(names.lasting().as_os_str()), "a part of a large file").unwrap();
        let dead = home.path().join(of_a_dead_process(tree.fd()).as_os_str());
        std::fs::create_dir_all(dead.join("below")).unwrap();
        std::fs::write(dead.join("below/file"), "x").unwrap();
        std::fs::write(dead.join("below").join(names.passing(tree.fd()).as_os_str()), "x").unwrap();
        sweep(&tree, &RelPath::root(), tree.fd());
        assert!(!dead.exists() && home.path().join(live.as_os_str()).exists());
        assert_eq!(count(&home), 2);
    }

    #[test]
    fn a_copy_in_another_directory_is_data() {
        let ((_elsewhere, other), (home, tree)) = (place(), place());
        let copy = of_a_dead_process(other.fd());
        std::fs::write(home.path().join(copy.as_os_str()), "x").unwrap();
        sweep(&tree, &RelPath::root(), tree.fd());
        assert_eq!(count(&home), 1);
    }

    #[test]
    fn a_passing_name_is_known_in_its_directory_alone() {
        let ((_elsewhere, other), (_home, tree)) = (place(), place());
        let name = TempNames::new("t").passing(tree.fd());
        assert!(is_passing(tree.fd(), name.as_bytes()) && !is_passing(other.fd(), name.as_bytes()));
        let dead = of_a_dead_process(tree.fd());
        assert!(is_passing(tree.fd(), dead.as_bytes()));
        let lasting = TempNames::new("t").lasting();
        for name in [lasting.as_bytes(), b".zmove-", b".zmove-mine", b"f", b"\xff"] {
            assert!(!is_passing(tree.fd(), name));
        }
    }

    #[test]
    fn what_other_machines_have_made_stays_for_a_week() {
        let foreign = Process { machine: Process::own().machine ^ 1, ..Process::own().clone() };
        assert!(!foreign.has_ended(|| Some(FOREIGN_AGE_MAX)));
        assert!(foreign.has_ended(|| Some(FOREIGN_AGE_MAX + Duration::from_secs(1))));
    }

    /// One that sees less of the system, and one that sees more, leave each other's names.
    #[test]
    fn what_comes_from_an_unknown_machine_or_boot_stays_for_a_week_on_both_sides() {
        let known = Process::own();
        let nameless = Process { machine: 0, ..known.clone() };
        let bootless = Process { boot: 0, ..known.clone() };
        let pairs = [(&nameless, known), (known, &nameless), (&bootless, known), (known, &bootless)];
        for (maker, own) in pairs.into_iter().chain([(&bootless, &bootless)]) {
            let maker = Process { pid: u64::MAX, ..maker.clone() };
            assert!(!maker.has_ended_for(own, || Some(FOREIGN_AGE_MAX)), "{maker:?} {own:?}");
            assert!(maker.has_ended_for(own, || Some(FOREIGN_AGE_MAX + Duration::from_secs(1))));
        }
    }

    #[test]
    fn a_process_that_cannot_be_seen_runs_as_long_as_it_exists() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = u64::from(child.id());
        let process = Process { pid, start: start_of(pid).unwrap(), ..Process::own().clone() };
        assert!(process.runs(None) && process.runs(Some(process.start)));
        assert!(!process.runs(Some(process.start + 1)), "another has its number");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.runs(None));
        let nobodys = Process { pid: u64::MAX, ..process };
        assert!(!nobodys.runs(None));
    }

    #[test]
    fn what_was_made_before_the_last_boot_is_left_over() {
        let before = Process { boot: Process::own().boot ^ 1, ..Process::own().clone() };
        assert!(before.has_ended(|| None) && !Process::own().has_ended(|| None));
    }

    #[test]
    fn names_are_read_back_and_others_are_none() {
        let own = Process::own();
        assert_eq!(Process::parse(&format!("{}-2a", own.text())).as_ref(), Some(own));
        for other in ["", "1-2-3-4", "1-2-3-4-5-6", "1-2-3-4-x", "t-0"] {
            assert_eq!(Process::parse(other), None, "{other}");
        }
    }

    #[test]
    fn names_differ() {
        let (_home, tree) = place();
        let names = TempNames::new("t");
        assert_ne!(names.passing(tree.fd()), names.passing(tree.fd().as_fd()));
        assert_ne!(names.lasting(), names.lasting());
        assert!(is_hidden(names.passing(tree.fd()).as_bytes()) && is_hidden(names.lasting().as_bytes()));
    }
}
