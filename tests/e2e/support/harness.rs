//! The environment of a case: a directory with a source, a target and keys, and possibly a daemon.
//!
//! **Invariant:** nothing outlives its [`Site`]. Daemons are killed by their process id, and directories are removed.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::fs::IFlags;
use serde_json::Value;
use tempfile::TempDir;
use zmove_disk::{Mount, mounts};
use zmove_transport::{Access, AuthorizedKeys, Fingerprint, Grant, Identity, KnownHosts};

use crate::support::command::{NOBODY, Outcome, Runner, User, ZMOVE, Zmove};
use crate::support::daemon::Daemon;
use crate::support::namespace::{Image, Namespace};
use crate::support::ports::free_address;
use crate::support::quiet_machine::share_machine;
use crate::support::tree::set_mode;

/// Maximum duration of an expected event on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// Maximum duration of an end that waits for no timeout, on a busy machine. Each timeout that such an end must not wait
/// for is longer.
pub(crate) const PROMPT: Duration = Duration::from_secs(20);

/// Runs each case of a theme locally and against a daemon.
macro_rules! both_ways {
    ($($case:ident),+ $(,)?) => {
        mod local {
            $(#[test] fn $case() { super::$case(&crate::support::harness::Site::local()); })+
        }
        mod daemon {
            $(#[test] fn $case() { super::$case(&crate::support::harness::Site::daemon()); })+
        }
    };
}
pub(crate) use both_ways;

/// Like [`both_ways`], with a target on a file system in an image.
macro_rules! both_ways_within {
    ($image:ident, $($case:ident),+ $(,)?) => {
        mod local {
            $(#[test] fn $case() {
                if let Some(site) = crate::support::harness::Site::within_image(&super::$image) {
                    super::$case(&site);
                }
            })+
        }
        mod daemon {
            $(#[test] fn $case() {
                if let Some(mut site) = crate::support::harness::Site::within_image(&super::$image) {
                    site.start_daemon();
                    super::$case(&site);
                }
            })+
        }
    };
}
pub(crate) use both_ways_within;

/// Like [`both_ways`], and also against a daemon with cleartext lanes and with QUIC.
macro_rules! every_way {
    ($($case:ident),+ $(,)?) => {
        crate::support::harness::both_ways!($($case),+);
        mod clear {
            $(#[test] fn $case() { super::$case(&crate::support::harness::Site::clear()); })+
        }
        mod quic {
            $(#[test] fn $case() { super::$case(&crate::support::harness::Site::quic()); })+
        }
    };
}
pub(crate) use every_way;

/// The files, programs and daemon of one case.
pub(crate) struct Site {
    directory: TempDir,
    pub(crate) runner: Runner,
    daemon: Option<Daemon>,
    /// Options of every push.
    push_options: &'static [&'static str],
}

impl Site {
    /// A site whose target is a directory of this host.
    pub(crate) fn local() -> Self {
        Self::bare(Runner::default())
    }

    /// A site whose target is behind a daemon. The client and the daemon have each other's keys.
    pub(crate) fn daemon() -> Self {
        let mut site = Self::local();
        site.start_daemon();
        site
    }

    /// A site whose daemon allows cleartext lanes, and whose client requests them.
    pub(crate) fn clear() -> Self {
        let mut site = Self {
            push_options: &["--cipher", "none"],
            ..Self::local()
        };
        site.start_daemon_with(&["--allow-clear"]);
        site
    }

    /// A site whose daemon and client use only QUIC.
    pub(crate) fn quic() -> Self {
        let mut site = Self {
            push_options: &["--transport", "quic"],
            ..Self::local()
        };
        site.start_daemon_with(&["--transport", "quic"]);
        site
    }

    /// A site whose daemon allows the client to read `source`, with any transport or cipher.
    pub(crate) fn reading(push_options: &'static [&'static str], serve_options: &[&str]) -> Self {
        let mut site = Self {
            push_options,
            ..Self::local()
        };
        site.let_read("source");
        let listen = free_address().to_string();
        let options = [&["--listen", listen.as_str()], serve_options].concat();
        let daemon = Daemon::start_with(&site.path("server"), &options, &site.runner);
        site.pin(&daemon.address, daemon.fingerprint);
        site.daemon = Some(daemon);
        site
    }

    /// A site where everything runs as an unprivileged user. Returns `None` if this host cannot provide it.
    pub(crate) fn unprivileged() -> Option<Self> {
        if !is_root() {
            return Some(Self::local());
        }
        if !has_program("setpriv") {
            skip("setpriv is missing: cannot become another user");
            return None;
        }
        Some(Self::of(User::Nobody))
    }

    /// A site where everything runs as a user without other processes, so that the user's process limit counts only
    /// those of the case. Returns `None` if this host cannot provide it.
    pub(crate) fn of_fresh_user() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !is_root() || !has_program("setpriv") || !has_program("prlimit") {
            skip("cannot become a new user within limits: this needs root, setpriv and prlimit");
            return None;
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        assert!(count < 64, "no two sites have the same user");
        let number = 1_000_000 + std::process::id() * 64 + count;
        Some(Self::of(User::Fresh(number)))
    }

    fn of(user: User) -> Self {
        let mut site = Self::bare(Runner {
            user,
            ..Runner::default()
        });
        let program = site.path("zmove");
        if std::fs::hard_link(ZMOVE, &program).is_err() {
            copy_program(Path::new(ZMOVE), &program);
        }
        site.runner.program = Some(program);
        site.give_away();
        site
    }

    /// Runs another program instead of zmove.
    pub(crate) fn run_by(&mut self, program: PathBuf) {
        self.runner.program = Some(program);
    }

    /// Runs a shell script with these lines instead of zmove.
    pub(crate) fn run_by_script(&mut self, lines: &str) {
        let script = self.path("script");
        write_program(&script, &format!("#!/bin/sh\n{lines}\n"));
        self.run_by(script);
    }

    /// A site whose target is a small separate file system.
    pub(crate) fn within(namespace: impl FnOnce(&Path) -> Option<Namespace>) -> Option<Self> {
        let mut site = Self::local();
        site.runner.namespace = Some(Arc::new(namespace(&site.target())?));
        Some(site)
    }

    /// A site whose target is a file system in an image. Returns `None` if this host cannot provide it.
    pub(crate) fn within_image(image: &Image) -> Option<Self> {
        Self::within(|target| Namespace::with_image(target, image))
    }

    /// The mount namespace of the target's file system.
    pub(crate) fn namespace(&self) -> &Namespace {
        self.runner.namespace.as_deref().unwrap()
    }

    fn bare(runner: Runner) -> Self {
        share_machine();
        let site = Self {
            directory: TempDir::new_in(directory_of_sites()).unwrap(),
            runner,
            daemon: None,
            push_options: &[],
        };
        for name in ["source", "target", "client", "server"] {
            std::fs::create_dir(site.path(name)).unwrap();
        }
        site
    }

    /// Starts a daemon. The client learns its key and may write to the target.
    pub(crate) fn start_daemon(&mut self) {
        self.start_daemon_with(&[]);
    }

    /// A site whose daemon has these lines in the section `limits` of its settings.
    pub(crate) fn limited(limits: &str) -> Self {
        let mut site = Self::local();
        site.limit(limits);
        site.start_daemon();
        site
    }

    /// Replaces the daemon's settings by these lines in the section `limits`.
    pub(crate) fn limit(&self, limits: &str) {
        let settings = format!("[limits]\n{limits}\n");
        std::fs::write(self.path("server/zmove.toml"), settings).unwrap();
    }

    /// Starts a daemon with more options of `zmove serve`.
    pub(crate) fn start_daemon_with(&mut self, options: &[&str]) {
        self.start_daemon_at(&free_address().to_string(), options);
    }

    /// Starts a daemon at a given address of this host.
    pub(crate) fn start_daemon_at(&mut self, listen: &str, options: &[&str]) {
        self.authorize(Access::WriteOnly);
        self.start_authorized(listen, options);
    }

    /// Starts a daemon. The client may write only to the directory `root` of the site.
    pub(crate) fn start_daemon_for(&mut self, root: &str, options: &[&str]) {
        self.authorize_for(root, Access::WriteOnly);
        self.start_authorized(&free_address().to_string(), options);
    }

    fn start_authorized(&mut self, listen: &str, options: &[&str]) {
        self.give_away();
        let options = [&["--listen", listen], options].concat();
        let daemon = Daemon::start_with(&self.path("server"), &options, &self.runner);
        self.pin(&daemon.address, daemon.fingerprint);
        self.daemon = Some(daemon);
        self.give_away();
    }

    /// Authorizes the client's key for the target.
    pub(crate) fn authorize(&self, access: Access) {
        self.authorize_for("target", access);
    }

    fn authorize_for(&self, root: &str, access: Access) {
        let identity = Identity::load_or_create(&self.path("client")).unwrap();
        let (fingerprint, name) = (identity.fingerprint(), "tester".to_owned());
        let grant = Grant::new(
            fingerprint,
            &name,
            vec![self.path(root).canonicalize().unwrap()],
            access,
        );
        AuthorizedKeys::allow(&self.path("server"), grant).unwrap();
    }

    /// Allows the client's key to lead jobs of several receivers.
    pub(crate) fn let_lead(&self) {
        let key = Identity::load_or_create(&self.path("client"))
            .unwrap()
            .fingerprint();
        let roots = vec![self.path("target").canonicalize().unwrap()];
        let grant = Grant::new(key, "tester", roots, Access::WriteOnly);
        allow_to_lead(&self.path("server"), grant);
    }

    /// Allows the client's key to read `directory` of the site, in addition to its other permissions.
    pub(crate) fn let_read(&self, directory: &str) {
        let identity = Identity::load_or_create(&self.path("client")).unwrap();
        let read_roots = vec![self.path(directory).canonicalize().unwrap()];
        let grant = Grant::new(
            identity.fingerprint(),
            "tester",
            Vec::new(),
            Access::ReadOnly,
        );
        AuthorizedKeys::allow(
            &self.path("server"),
            Grant {
                read_roots,
                ..grant
            },
        )
        .unwrap();
    }

    /// `zmove pull OPTIONS ADDRESS:SOURCE... target/PATH` of sources in the daemon's `source`.
    pub(crate) fn pull_command(&self, options: &[&str], sources: &[&str], path: &str) -> Zmove {
        let mut zmove = self.zmove(&["pull"]);
        zmove.0.args(self.push_options).args(options);
        zmove
            .0
            .args(sources.iter().map(|source| self.address(source)))
            .arg(self.path("target").join(path));
        zmove
    }

    /// Runs a pull, as [`Self::pull_command`] describes.
    pub(crate) fn pull(&self, options: &[&str], sources: &[&str], path: &str) -> Outcome {
        self.pull_command(options, sources, path).outcome()
    }

    /// Runs `zmove allow WORDS` on the daemon's host.
    pub(crate) fn allow(&self, words: &[&str]) -> Outcome {
        let mut zmove = self.zmove(&["allow"]);
        zmove.0.args(words).env("ZMOVE_HOME", self.path("server"));
        zmove.outcome()
    }

    /// Returns the fingerprint of the client's key as `zmove key show` prints it.
    pub(crate) fn client_key(&self) -> String {
        let shown = self.zmove(&["key", "show"]).outcome().done().stdout;
        shown.trim_end().to_owned()
    }

    /// Pins `fingerprint` as the key of `address` for the client.
    pub(crate) fn pin(&self, address: &SocketAddr, fingerprint: Fingerprint) {
        let mut known_hosts = KnownHosts::open(&self.path("client")).unwrap();
        known_hosts
            .pin(&address.ip().to_string(), address.port(), fingerprint)
            .unwrap();
    }

    /// Gives all files to the user that runs programs.
    pub(crate) fn give_away(&self) {
        if let Some(number) = self.runner.user.number() {
            give_all(self.directory.path(), number);
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.path("source")
    }

    /// The path of the target directory as seen by this process.
    pub(crate) fn target(&self) -> PathBuf {
        let path = self.path("target");
        self.runner
            .namespace
            .as_ref()
            .map_or(path.clone(), |namespace| namespace.outside(&path))
    }

    /// Returns the running daemon.
    pub(crate) fn the_daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// Takes the daemon out of the site, so that the case can end it.
    pub(crate) fn take_daemon(&mut self) -> Daemon {
        self.daemon.take().unwrap()
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.daemon.is_some()
    }

    /// Returns the command-line address of a path below the target.
    pub(crate) fn address(&self, path: &str) -> OsString {
        match &self.daemon {
            Some(daemon) => format!("{}:{path}", daemon.address).into(),
            None => self.path("target").join(path).into(),
        }
    }

    /// `zmove push OPTIONS SOURCE ADDRESS(path)`.
    pub(crate) fn push(&self, options: &[&str], source: impl AsRef<OsStr>, path: &str) -> Outcome {
        self.push_command(options, &[source.as_ref()], path)
            .outcome()
    }

    /// `zmove push OPTIONS SOURCE/ ADDRESS:` through a relay.
    pub(crate) fn push_by(&self, relay: &SocketAddr, options: &[&str]) -> Zmove {
        let mut zmove = self.zmove(&["push"]);
        zmove
            .0
            .args(self.push_options)
            .args(options)
            .arg(self.contents())
            .arg(format!("{relay}:"));
        zmove
    }

    pub(crate) fn push_command(&self, options: &[&str], sources: &[&OsStr], path: &str) -> Zmove {
        let mut zmove = self.zmove(&["push"]);
        zmove
            .0
            .args(self.push_options)
            .args(options)
            .args(sources)
            .arg(self.address(path));
        zmove
    }

    /// `source/` with a trailing slash, which pushes its contents into the target.
    pub(crate) fn contents(&self) -> OsString {
        self.source().join("").into()
    }

    /// Pushes the contents of the source to the target root and expects success.
    pub(crate) fn push_contents(&self) -> Value {
        self.push(&["--json"], self.contents(), "").done().summary()
    }

    /// A command of the client.
    pub(crate) fn zmove(&self, args: &[&str]) -> Zmove {
        let mut zmove = self.runner.zmove(&self.path("client"));
        zmove.0.current_dir(self.directory.path()).args(args);
        zmove
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Copies a program in another process. If this process wrote the file, processes that other cases start concurrently
/// would inherit the open descriptor, and the kernel refuses to run a program that is open for writing.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("install")
        .args(["-m", "755"])
        .args([from, to])
        .status();
    assert!(copied.unwrap().success());
}

/// Writes a program in the same way as [`copy_program`].
pub(crate) fn write_program(path: &Path, text: &str) {
    let source = path.with_extension("text");
    std::fs::write(&source, text).unwrap();
    copy_program(&source, path);
    std::fs::remove_file(source).unwrap();
}

/// Allows the holder of this grant to lead jobs of several receivers at the daemon with this home.
pub(crate) fn allow_to_lead(home: &Path, grant: Grant) {
    let grant = Grant {
        lead: true,
        ..grant
    };
    AuthorizedKeys::allow(home, grant).unwrap();
}

/// A runtime with two threads for a case that implements a peer.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Reports why a case is skipped. Fails if `ZMOVE_REQUIRE_LAB` is set, since every case must run in the lab.
#[track_caller]
pub(crate) fn skip(reason: &str) {
    let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
    assert!(!required, "ZMOVE_REQUIRE_LAB=1, but {reason}");
    eprintln!("skipped: {reason}");
}

/// Gives a tree to the unprivileged user of the tests.
pub(crate) fn own_all(path: &Path) {
    give_all(path, NOBODY);
}

/// Gives a tree to the user and group with this id.
fn give_all(path: &Path, number: u32) {
    std::os::unix::fs::lchown(path, Some(number), Some(number)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give_all(&entry.unwrap().path(), number);
        }
    }
}

/// The parent directory of the sites of the calling case.
///
/// Cases about processes, connections, hosts and screens keep their files in memory, where creating and removing a file
/// costs a fraction of the CPU time. Cases about sources, targets and security need a file system on a disk.
fn directory_of_sites() -> &'static Path {
    static IN_MEMORY: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let memory = Path::new("/dev/shm");
        let status = rustix::fs::statvfs(memory).ok()?;
        let has_space = status.f_bavail * status.f_frsize >= 4 << 30;
        (has_space && is_tmpfs(memory)).then(|| parent_of_sites(memory))
    });
    static ON_DISK: LazyLock<PathBuf> = LazyLock::new(|| parent_of_sites(&std::env::temp_dir()));
    let is_about_files = std::thread::current()
        .name()
        .and_then(|case| case.split("::").next())
        .is_none_or(|theme| ["sources", "targets", "security"].contains(&theme));
    match &*IN_MEMORY {
        Some(path) if !is_about_files => path,
        _ => &ON_DISK,
    }
}

fn is_tmpfs(path: &Path) -> bool {
    Mount::containing(&mounts(), path).is_some_and(|mount| mount.kind == "tmpfs")
}

/// Creates a directory for sites below `directory`.
///
/// Ext4 spreads the subdirectories of this directory over the whole file system. Without a journal, ext4 checks every
/// recently deleted inode nearby before it creates a file, which took a quarter of the processor time of all cases.
fn parent_of_sites(directory: &Path) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let path = directory.join(format!("zmove-e2e-{user}"));
    std::fs::create_dir_all(&path).unwrap();
    set_mode(&path, 0o755);
    let directory = std::fs::File::open(&path).unwrap();
    if let Ok(flags) = rustix::fs::ioctl_getflags(&directory) {
        // Only ext4 supports and needs the flag.
        let _refused = rustix::fs::ioctl_setflags(&directory, flags | IFlags::TOPDIR);
    }
    path
}
