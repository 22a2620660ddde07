//! Commands of root in directories that a hostile user can change: the daemon's user, after the daemon was taken over
//! (docs/decisions/0011-roots-directories.md).
//!
//! The names that a command accesses are taken from its system calls, which strace reports. The user replaces each of
//! these names with each kind of trap. **Invariant:** root's file behind the trap stays unchanged, none of its contents
//! are shown, and the command ends.

mod answers;
mod terminal;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use rustix::process::{Pid, Signal, kill_process};
use zmove_receiver::journal::{Begin, Journal, PartFile, SourceVersion};
use zmove_transport::Identity;
use zmove_types::{GROUP_BYTES, Name, RelPath, Timestamp, TransferId};

use crate::support::command::{LinesOf, NOBODY, Outcome, ZMOVE, Zmove, finish};
use crate::support::harness::{has_program, is_root, own_all, skip};

/// Contents of root's file that no other user may see or change.
const SECRET: &str = "root:secret:line\n";
const KEY: &str = "SHA256:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE";

/// The directories of a host whose daemon runs as another user.
struct Host {
    directory: tempfile::TempDir,
    settings: Settings,
}

/// Owner of the directory of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settings {
    /// Root, as docs/OPERATIONS.md recommends.
    OfRoot,
    /// The daemon's user.
    OfUser,
}

impl Host {
    /// Returns `None` if this process cannot act as two users.
    fn new(settings: Settings) -> Option<Self> {
        if !is_root() {
            skip("not root: cannot act as another user");
            return None;
        }
        let host = Self {
            directory: tempfile::tempdir().unwrap(),
            settings,
        };
        fs::set_permissions(host.path(""), Permissions::from_mode(0o755)).unwrap();
        for name in ["home", "state", "run", "jobs", "data", "secret"] {
            fs::create_dir(host.path(name)).unwrap();
        }
        Identity::load_or_create(&host.path("key")).unwrap();
        host.reset();
        Some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the directories that the user can change.
    fn of_user(&self) -> Vec<PathBuf> {
        let names: &[&str] = match self.settings {
            Settings::OfRoot => &["state", "run", "jobs"],
            Settings::OfUser => &["home", "state", "run", "jobs"],
        };
        names.iter().map(|name| self.path(name)).collect()
    }

    /// Recreates all directories, with a list of keys, a job, a journal and the secret.
    fn reset(&self) {
        for name in ["home", "state", "run", "jobs", "secret"] {
            fs::remove_dir_all(self.path(name)).unwrap();
            fs::create_dir(self.path(name)).unwrap();
        }
        fs::set_permissions(self.path("secret"), Permissions::from_mode(0o700)).unwrap();
        fs::write(self.secret(), SECRET).unwrap();
        fs::set_permissions(self.secret(), Permissions::from_mode(0o600)).unwrap();
        let line = format!(
            "{KEY} name=alice root={} write\n",
            self.path("data").display()
        );
        fs::write(self.path("home/authorized_keys"), line).unwrap();
        for copy in ["home/key.pem", "state/key.pem"] {
            fs::copy(self.path("key/key.pem"), self.path(copy)).unwrap();
        }
        fs::write(self.path("home/known_hosts"), format!("h:5870 {KEY}\n")).unwrap();
        fs::write(
            self.path("home/zmove.toml"),
            "user = \"nobody\"\n[metrics]\nlisten = \"off\"\n",
        )
        .unwrap();
        drop(self.journal(&self.path("data"), "gone", 7));
        for directory in self.of_user() {
            own_all(&directory);
        }
    }

    fn secret(&self) -> PathBuf {
        self.path("secret/shadow")
    }

    /// Creates a journal of the daemon's user that lists one part file.
    fn journal(&self, target: &Path, part: &str, inode: u64) -> Journal {
        let stat = target.metadata().unwrap();
        let begin = Begin {
            transfer: TransferId([7; 16]),
            owner: KEY.into(),
            target: target.as_os_str().as_encoded_bytes().to_vec(),
            device: stat.dev(),
            inode: stat.ino(),
            begun: 1_700_000_000,
        };
        let journal = Journal::create(&self.path("state/journal"), &begin).unwrap();
        let part = PartFile {
            path: RelPath::from_bytes(b"file").unwrap(),
            part: Name::from_bytes(part.as_bytes()).unwrap(),
            source: SourceVersion {
                bytes: 2 * GROUP_BYTES,
                ..SourceVersion::default()
            },
            inode,
            born: Timestamp::default(),
        };
        journal.record_part(1, &part).unwrap();
        journal
    }

    /// Returns the command `zmove WORDS` as root, with these directories. `before` is a command prefix.
    fn command(&self, before: &[&str], words: &[&str]) -> Command {
        let all: Vec<_> = before.iter().chain(&[ZMOVE]).chain(words).collect();
        let mut command = Command::new(all[0]);
        command
            .args(&all[1..])
            .env("HOME", self.path("root"))
            .env("ZMOVE_HOME", self.path("home"))
            .env("STATE_DIRECTORY", self.path("state"))
            .env("RUNTIME_DIRECTORY", self.path("run"))
            .env("ZMOVE_JOBS", self.path("jobs"));
        command
    }

    /// Runs a command to its end. A daemon is stopped once it listens.
    fn run(&self, before: &[&str], words: &[&str]) -> Outcome {
        let mut child = Zmove(self.command(before, words)).start();
        if words[0] == "serve" && !words.contains(&"--check") {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
            // A daemon that refuses to start closes its output.
            let lines = LinesOf::new(&mut child);
            if lines.next_is(|line| line.contains("listening on")) {
                kill_process(pid, Signal::TERM).unwrap();
            }
        }
        finish(child)
    }

    fn zmove(&self, words: &[&str]) -> Outcome {
        self.run(&[], words)
    }

    /// Returns the metadata and contents of the secret and its directory.
    fn seal(&self) -> Seal {
        let found = self.secret().symlink_metadata().unwrap();
        let mut names: Vec<_> = fs::read_dir(self.path("secret"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        Seal {
            contents: fs::read_to_string(self.secret()).unwrap(),
            identity: [found.ino(), found.size()],
            owner: [found.uid(), found.gid(), found.mode()],
            names,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Seal {
    contents: String,
    identity: [u64; 2],
    owner: [u32; 3],
    names: Vec<std::ffi::OsString>,
}

/// The commands that root runs on such a host. Commands that send or receive with root's privileges are refused if the
/// home belongs to another user.
const COMMANDS: [&[&str]; 32] = [
    &["allow", KEY, "--name", "bob", "--root", "/usr", "--write"],
    &["allow", "list"],
    &["allow", "remove", "alice"],
    &["allow", "remove", "alice", "--now"],
    &["key", "show"],
    &["key", "show", "--daemon"],
    &["key", "new", "--force"],
    &["trust", "list"],
    &["trust", "remove", "h:5870"],
    &["jobs"],
    &["jobs", "backup", "/dev/null"],
    &["job", "1"],
    &["status"],
    &["stop", "01234567"],
    &["drain"],
    &["journal", "list"],
    &["journal", "clean", "--all"],
    &["doctor"],
    &["serve", "--check"],
    &["serve", "--listen", "127.0.0.1:0", "--log-file", "LOG"],
    &["push", "-q", "/dev/null", "LOCAL"],
    &["pull", "-q", "127.0.0.1:1:x", "LOCAL"],
    &["copy", "-q", "/dev/null", "LOCAL"],
    &["verify", "/dev/null", "LOCAL"],
    &["clean", "LOCAL"],
    &["result", "0123456789abcdef0123456789abcdef", "127.0.0.1:1"],
    &["scan", "LOCAL"],
    &["sweep", "--budget", "1MiB", "--time", "1s", "LOCAL"],
    &["probe", "127.0.0.1:1"],
    &["submit", "/dev/null", "LOCAL"],
    &["runner", "--until-idle", "0s"],
    &["cluster", "status", "x"],
];

/// Commands that open no file of zmove.
const WITHOUT_FILES: [&str; 2] = ["completions", "trace"];

impl Host {
    fn words<'a>(&self, words: &[&'a str], places: &'a [String; 2]) -> Vec<&'a str> {
        words
            .iter()
            .map(|word| match *word {
                "LOG" => places[0].as_str(),
                "LOCAL" => places[1].as_str(),
                word => word,
            })
            .collect()
    }

    fn places(&self) -> [String; 2] {
        ["state/zmove.log", "data"].map(|name| self.path(name).to_str().unwrap().to_owned())
    }
}

/// The system calls of a command: names below the user's directories that were accessed by a process of root, and names
/// accessed by a process that had switched to the user.
#[derive(Debug, Default)]
struct Touched {
    by_root: BTreeSet<PathBuf>,
    by_user: BTreeSet<PathBuf>,
}

/// Runs a command under strace.
fn trace(host: &Host, words: &[&str]) -> Touched {
    let log = host.path("strace");
    // With -D, the started process is the command itself and receives its signals. strace keeps the command's output
    // open until it has written its log.
    let before = [
        "strace",
        "-D",
        "-f",
        "-y",
        "-qq",
        "-s",
        "4096",
        "-o",
        log.to_str().unwrap(),
        "-e",
        "trace=%file,%process,setuid,bind,connect",
    ];
    host.run(&before, words);
    let log = fs::read_to_string(&log).unwrap();
    let calls: Vec<_> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(process, call)| (process, call.trim_start().trim_start_matches("<... ")))
        .collect();
    let mut users = descendants_of_users(&calls);
    let directories = host.of_user();
    let is_below = |path: &PathBuf| {
        directories
            .iter()
            .any(|directory| path.starts_with(directory) && path != directory)
    };
    let mut touched = Touched::default();
    for (process, call) in calls.iter().filter(|(_, call)| !call.starts_with("exec")) {
        if call.starts_with(&becomes_user()) {
            users.insert(process);
        }
        let names = if users.contains(process) {
            &mut touched.by_user
        } else {
            &mut touched.by_root
        };
        names.extend(paths(call).into_iter().filter(is_below));
    }
    touched
}

fn becomes_user() -> String {
    format!("setuid({NOBODY})")
}

/// Returns the descendants of a process that has switched to the user. The process has no descendants before the
/// switch.
fn descendants_of_users<'a>(calls: &[(&'a str, &'a str)]) -> BTreeSet<&'a str> {
    let mut users: BTreeSet<_> = calls
        .iter()
        .filter(|(_, call)| call.starts_with(&becomes_user()))
        .map(|(process, _)| *process)
        .collect();
    let themselves = users.clone();
    let is_start = |call: &str| {
        ["clone", "fork", "vfork"]
            .iter()
            .any(|name| call.starts_with(name))
    };
    for (process, call) in calls {
        if users.contains(process)
            && is_start(call)
            && let Some((_, child)) = call.rsplit_once("= ")
        {
            users.insert(child);
        }
    }
    &users - &themselves
}

/// Returns the paths of a system call: each string, relative to the directory of its descriptor.
fn paths(call: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut directory = PathBuf::new();
    let mut rest = call;
    while let Some(at) = rest.find(['<', '"']) {
        let end = if rest[at..].starts_with('<') {
            '>'
        } else {
            '"'
        };
        let text = &rest[at + 1..];
        let Some(length) = text.find(end) else { break };
        let name = &text[..length];
        if end == '>' {
            directory = PathBuf::from(name);
        } else {
            paths.push(directory.join(name));
        }
        rest = &text[length + 1..];
    }
    paths
}

/// The kind of entry with which the user replaces a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trap {
    Link,
    HardLink,
    Fifo,
    Directory,
    DanglingLink,
    Exchange,
}

const TRAPS: [Trap; 6] = [
    Trap::Link,
    Trap::HardLink,
    Trap::Fifo,
    Trap::Directory,
    Trap::DanglingLink,
    Trap::Exchange,
];

impl Trap {
    /// Replaces any entry at `path` with the trap.
    fn set(self, host: &Host, path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        host.of_user()
            .iter()
            .for_each(|directory| own_all(directory));
        let beside = path.with_file_name("trap");
        match self {
            Self::Link | Self::Exchange => symlink(host.secret(), &beside).unwrap(),
            // As on a host without `fs.protected_hardlinks`.
            Self::HardLink => fs::hard_link(host.secret(), &beside).unwrap(),
            Self::Fifo => {
                mknodat(CWD, &beside, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
            }
            Self::Directory => fs::create_dir(&beside).unwrap(),
            Self::DanglingLink => symlink(host.path("secret/new"), &beside).unwrap(),
        }
        if self == Self::Exchange {
            if path.symlink_metadata().is_err() {
                fs::write(path, "").unwrap();
            }
            return;
        }
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
            Ok(_) => fs::remove_file(path).unwrap(),
            Err(_) => {}
        }
        fs::rename(&beside, path).unwrap();
        if self != Self::HardLink {
            std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    /// Runs `run`. For the race, another thread exchanges the trap and the original name meanwhile.
    fn around<T>(self, path: &Path, run: impl FnOnce() -> T) -> T {
        if self != Self::Exchange {
            return run();
        }
        let ends = AtomicBool::new(false);
        let beside = path.with_file_name("trap");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    // A command may have removed one of the two.
                    let _gone = renameat_with(CWD, &beside, CWD, path, RenameFlags::EXCHANGE);
                }
            });
            let done = run();
            ends.store(true, Ordering::Relaxed);
            done
        })
    }
}

/// Whether the name is random. The user cannot predict such a name.
fn is_random(path: &Path) -> bool {
    let Some(name) = path.file_name() else {
        return true;
    };
    let name = name.to_string_lossy();
    let end = name.rsplit('.').next().unwrap_or_default();
    end.len() == 16 && end.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Runs each of these commands with each trap at each name that it accesses. These names must include `expected`.
fn set_traps(settings: Settings, commands: &[&[&str]], expected: &[&str]) {
    if !has_program("strace") {
        return skip("strace is missing");
    }
    let Some(host) = Host::new(settings) else {
        return;
    };
    let places = host.places();
    let mut names = BTreeSet::new();
    for words in commands {
        let words = host.words(words, &places);
        host.reset();
        let touched = trace(&host, &words);
        assert_eq!(
            touched.by_root,
            BTreeSet::new(),
            "root used names of the user's: {words:?}"
        );
        for path in touched.by_user.iter().filter(|path| !is_random(path)) {
            for trap in TRAPS {
                host.check_with(trap, path, &words);
            }
        }
        names.extend(touched.by_user);
    }
    for name in expected {
        assert!(names.contains(&host.path(name)), "{name} in {names:?}");
    }
}

impl Host {
    /// Runs a command with a trap at a name.
    fn check_with(&self, trap: Trap, path: &Path, words: &[&str]) {
        self.reset();
        trap.set(self, path);
        let before = self.seal();
        let outcome = trap.around(path, || self.zmove(words));
        let shown = format!("{words:?} with {trap:?} at {}", path.display());
        assert_eq!(self.seal(), before, "{shown}");
        for said in [&outcome.stdout, &outcome.stderr] {
            assert!(!said.contains(SECRET.trim()), "{shown}: {said}");
        }
    }
}

#[test]
fn every_command_has_a_row() {
    let pages = tempfile::tempdir().unwrap();
    let made = Command::new(ZMOVE).arg("man").arg(pages.path()).status();
    assert!(made.unwrap().success());
    let pages = fs::read_dir(pages.path()).unwrap();
    let commands: BTreeSet<_> = pages
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .filter_map(|page| {
            Some(
                page.strip_prefix("zmove-")?
                    .split(['-', '.'])
                    .next()?
                    .to_owned(),
            )
        })
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        let has_row = COMMANDS.iter().any(|words| words[0] == command);
        assert!(has_row || WITHOUT_FILES.contains(&&*command), "{command}");
    }
}

#[test]
fn no_trap_at_a_name_of_a_list_or_key_leads_root_away() {
    let names = [
        "home/authorized_keys",
        "home/authorized_keys.lock",
        "home/key.pem",
        "home/key.pem.old",
        "home/cert.pem",
        "home/known_hosts",
        "state/key.pem",
    ];
    set_traps(Settings::OfUser, &COMMANDS[..9], &names);
}

#[test]
fn no_trap_at_a_name_of_jobs_leads_root_away() {
    set_traps(Settings::OfUser, &COMMANDS[9..12], &["jobs/jobs.db"]);
}

#[test]
fn no_trap_at_a_name_of_state_leads_root_away() {
    let names = ["run/control.sock", "state/journal"];
    set_traps(Settings::OfUser, &COMMANDS[12..18], &names);
    set_traps(Settings::OfRoot, &COMMANDS[3..4], &names[..1]);
    set_traps(Settings::OfRoot, &COMMANDS[12..18], &names);
}

#[test]
fn no_trap_at_a_name_of_a_daemon_leads_root_away() {
    let names = [
        "run/control.sock",
        "state/copies/grants",
        "state/journal",
        "state/key.pem",
        "state/zmove.log",
    ];
    set_traps(Settings::OfRoot, &COMMANDS[18..20], &names);
}

#[test]
fn commands_that_need_the_rights_of_root_are_refused_in_a_home_of_another_user() {
    set_traps(Settings::OfUser, &COMMANDS[18..], &[]);
    let Some(host) = Host::new(Settings::OfUser) else {
        return;
    };
    let places = host.places();
    for words in &COMMANDS[18..] {
        let outcome = host.zmove(&host.words(words, &places));
        assert!(matches!(outcome.code, Some(1 | 11)), "{words:?}");
        let home = host.path("home");
        outcome
            .says(&[
                &format!("root does not use '{}'", home.display()),
                "belongs to the user 'nobody'",
                &format!("run: chown -h root {}", home.display()),
            ])
            .lines(1);
    }
}

/// If the lock of the list was a link, the file behind it was given to the user. If the list was a link, its first line
/// was shown.
#[test]
fn the_list_of_another_user_is_changed_and_read_as_that_user() {
    let Some(host) = Host::new(Settings::OfUser) else {
        return;
    };
    let data = host.path("data");
    let allow = [
        "allow",
        KEY,
        "--name",
        "bob",
        "--root",
        data.to_str().unwrap(),
    ];
    host.zmove(&allow).done();
    let list = host.path("home/authorized_keys");
    assert_eq!(list.metadata().unwrap().uid(), NOBODY);
    assert!(fs::read_to_string(&list).unwrap().contains("name=bob"));
    for (name, words) in [
        ("authorized_keys.lock", &allow[..]),
        ("authorized_keys", &["allow", "list"]),
    ] {
        host.reset();
        Trap::Link.set(&host, &host.path("home").join(name));
        let before = host.seal();
        let outcome = host.zmove(words).expect(11);
        assert_eq!(host.seal(), before);
        assert!(
            !outcome.stderr.contains(SECRET.trim()),
            "{}",
            outcome.stderr
        );
    }
}

/// The daemon's user could make root open any file as the log and change the owner of any file as the control socket.
#[test]
fn a_daemon_opens_its_log_and_its_socket_as_its_user() {
    let Some(host) = Host::new(Settings::OfRoot) else {
        return;
    };
    let log = host.path("state/zmove.log");
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--log-file",
        log.to_str().unwrap(),
    ];
    host.zmove(&serve).expect(0);
    for (path, is_socket) in [(&log, false), (&host.path("run/control.sock"), true)] {
        let found = path.symlink_metadata().unwrap();
        assert_eq!(found.uid(), NOBODY, "{}", path.display());
        assert_eq!(found.is_file(), !is_socket);
    }
    host.reset();
    Trap::Link.set(&host, &log);
    let before = host.seal();
    host.zmove(&serve)
        .expect(11)
        .says(&["open the log", "Permission denied"])
        .lines(1);
    assert_eq!(host.seal(), before);
}

/// A forged journal could make root remove any file of the host.
#[test]
fn a_forged_journal_removes_nothing_outside_of_the_roots() {
    const PART: &str = ".zmove-0123456789ab-0";
    let Some(host) = Host::new(Settings::OfRoot) else {
        return;
    };
    let inside = host.path("data/inside");
    let outside = host.path("outside");
    for directory in [&inside, &outside] {
        fs::create_dir(directory).unwrap();
    }
    for (target, part, owner, is_removed) in [
        // A file of root, with an ordinary name and with the name of a part.
        (&host.path("secret"), "shadow", 0, false),
        (&host.path("secret"), PART, 0, false),
        // A file of the user outside the roots, and below them with another name.
        (&outside, PART, NOBODY, false),
        (&inside, "file", NOBODY, false),
        (&inside, PART, NOBODY, true),
    ] {
        host.reset();
        fs::remove_dir_all(host.path("state/journal")).unwrap();
        let path = target.join(part);
        fs::write(&path, SECRET).unwrap();
        for entry in [target, &path] {
            std::os::unix::fs::chown(entry, Some(owner), None).unwrap();
        }
        drop(host.journal(target, part, path.metadata().unwrap().ino()));
        own_all(&host.path("state"));
        // If the home belongs to the user, root has no settings and no roots.
        let mut command = host.command(&[], &["journal", "clean", "--all"]);
        command
            .env("ZMOVE_HOME", host.path("state"))
            .env_remove("STATE_DIRECTORY");
        Zmove(command)
            .outcome()
            .expect(11)
            .says(&["the roots below which it cleans the journals of other users"]);
        assert!(path.exists());
        let outcome = host.zmove(&["journal", "clean", "--all"]);
        let shown = format!("{}: {}{}", path.display(), outcome.stdout, outcome.stderr);
        assert_eq!(path.exists(), !is_removed, "{shown}");
        assert!(shown.contains("left '") != is_removed, "{shown}");
    }
}

/// Asserts that a daemon does not start because of a directory of the user, and that the message names the remedy.
#[track_caller]
fn assert_serves_nothing(host: &Host, remedy: &str) {
    for words in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["serve", "--check"],
    ] {
        let outcome = host.zmove(words);
        assert_ne!(outcome.code, Some(0));
        outcome
            .says(&["belongs to the user 'nobody'", remedy])
            .lines(1);
    }
}

#[test]
fn a_setup_that_breaks_the_rule_is_named() {
    let Some(host) = Host::new(Settings::OfUser) else {
        return;
    };
    let home = host.path("home");
    let mend = format!("run: chown -h root {}", home.display());
    assert_serves_nothing(&host, &mend);
    // The text output wraps lines.
    let said = host.zmove(&["doctor", "--json"]).expect(4).stdout;
    let line = format!("'{}' belongs to the user 'nobody'", home.display());
    assert!(said.contains(&line), "{said}");
    // A daemon that stays root keeps no state in a directory of another user.
    let Some(host) = Host::new(Settings::OfRoot) else {
        return;
    };
    fs::write(host.path("home/zmove.toml"), "").unwrap();
    assert_serves_nothing(&host, "--user");
    // Other users may write, and a file has another owner.
    fs::set_permissions(host.path("home"), Permissions::from_mode(0o777)).unwrap();
    host.zmove(&["allow", "list"])
        .expect(11)
        .says(&["has mode 0777", "run: chmod go-w"]);
    // A shared directory such as /tmp must stay writable.
    fs::set_permissions(host.path("home"), Permissions::from_mode(0o1777)).unwrap();
    let shared = ["has mode 1777; use a directory that is not shared"];
    let said = host.zmove(&["allow", "list"]).expect(11).says(&shared);
    assert!(!said.stderr.contains("chmod"), "{}", said.stderr);
    let said = host.zmove(&["doctor", "--json"]).expect(4).stdout;
    assert!(said.contains(shared[0]), "{said}");
    assert!(!said.contains("chmod go-w"), "{said}");
    fs::set_permissions(host.path("home"), Permissions::from_mode(0o755)).unwrap();
    own_all(&host.path("home/authorized_keys"));
    host.zmove(&["allow", "list"])
        .expect(11)
        .says(&["authorized_keys' belongs to the user 'nobody'"]);
}

/// The operator's commands reach a daemon whose socket is in a directory of the daemon's user.
#[test]
fn root_asks_a_daemon_of_another_user() {
    let Some(host) = Host::new(Settings::OfRoot) else {
        return;
    };
    let mut daemon = Zmove(host.command(&[], &["serve", "--listen", "127.0.0.1:0"])).start();
    LinesOf::new(&mut daemon).wait_for(|line| line.contains("listening on"));
    let said = host.zmove(&["status", "--json"]).done().stdout;
    let key = host.zmove(&["key", "show", "--daemon"]).done().stdout;
    assert!(said.contains(key.trim()), "{said}");
    host.zmove(&["allow", "remove", "alice", "--now"]).done();
    host.zmove(&["drain"]).done();
    finish(daemon).expect(0);
    host.zmove(&["status"])
        .expect(10)
        .says(&["no daemon answers on this host"]);
    assert_eq!(
        host.path("home/authorized_keys").metadata().unwrap().uid(),
        0
    );
}
