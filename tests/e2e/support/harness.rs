//! Where a case runs: a directory with a source, a target and keys, and perhaps a daemon.
//!
//! **Invariant:** nothing outlives its [`Site`]: daemons are killed by their process id, directories are removed.

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
use zmove_transport::{Access, AuthorizedKeys, Fingerprint, Grant, Identity, KnownHosts};

use crate::support::command::{NOBODY, Outcome, Runner, User, ZMOVE, Zmove};
use crate::support::daemon::Daemon;
use crate::support::namespace::{Image, Namespace};
use crate::support::ports::free_address;
use crate::support::quiet_machine::share_machine;
use crate::support::tree::set_mode;

/// How long an event may take before it counts as not coming, on a machine that has much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// Maximum duration of an end that waits for nothing, on a machine that has much else to do. Each timeout that such an
/// end must not wait for is longer.
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

/// The same, where the target is a file system in an image.
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

/// The same as [`both_ways`], and against a daemon over lanes in clear and over QUIC.
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

/// One case's world.
pub(crate) struct Site {
    directory: TempDir,
    pub(crate) runner: Runner,
    daemon: Option<Daemon>,
    /// Said on every push.
    push_options: &'static [&'static str],
}

impl Site {
    /// A site whose target is a directory of this host.
    pub(crate) fn local() -> Self {
        Self::bare(Runner::default())
    }

    /// A site whose target is behind a daemon that knows the client, and the other way round.
    pub(crate) fn daemon() -> Self {
        let mut site = Self::local();
        site.start_daemon();
        site
    }

    /// A site whose daemon takes lanes in clear, and whose client asks for them.
    pub(crate) fn clear() -> Self {
        let mut site = Self {
            push_options: &["--cipher", "none"],
            ..Self::local()
        };
        site.start_daemon_with(&["--allow-clear"]);
        site
    }

    /// A site whose daemon and client speak QUIC alone.
    pub(crate) fn quic() -> Self {
        let mut site = Self {
            push_options: &["--transport", "quic"],
            ..Self::local()
        };
        site.start_daemon_with(&["--transport", "quic"]);
        site
    }

    /// A site whose daemon lets the client read what is in `source`, by each way to carry it.
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

    /// A site where everything runs as a user who is not root; `None` where that is not possible.
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

    /// A site where everything runs as a user who runs no other process, so that its limit on processes counts those of
    /// the case alone; `None` if that is impossible here.
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

    /// Has another program stand for zmove.
    pub(crate) fn run_by(&mut self, program: PathBuf) {
        self.runner.program = Some(program);
    }

    /// Has a shell script with these lines stand for zmove.
    pub(crate) fn run_by_script(&mut self, lines: &str) {
        let script = self.path("script");
        write_program(&script, &format!("#!/bin/sh\n{lines}\n"));
        self.run_by(script);
    }

    /// A site whose target is a small file system of its own.
    pub(crate) fn within(namespace: impl FnOnce(&Path) -> Option<Namespace>) -> Option<Self> {
        let mut site = Self::local();
        site.runner.namespace = Some(Arc::new(namespace(&site.target())?));
        Some(site)
    }

    /// A site whose target is a file system in an image; `None` where that is not possible.
    pub(crate) fn within_image(image: &Image) -> Option<Self> {
        Self::within(|target| Namespace::with_image(target, image))
    }

    /// The file system of its own that the target is.
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

    /// Starts a daemon; the client gets to know it and may write into the target.
    pub(crate) fn start_daemon(&mut self) {
        self.start_daemon_with(&[]);
    }

    /// The same, with more words for `zmove serve`.
    pub(crate) fn start_daemon_with(&mut self, options: &[&str]) {
        self.start_daemon_at(&free_address().to_string(), options);
    }

    /// The same, at another address of this host.
    pub(crate) fn start_daemon_at(&mut self, listen: &str, options: &[&str]) {
        self.authorize(Access::WriteOnly);
        self.start_authorized(listen, options);
    }

    /// The same; the client may write into this directory of the site alone.
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

    /// Lets the client's key into the target.
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

    /// Lets the client's key lead jobs of several receivers.
    pub(crate) fn let_lead(&self) {
        let key = Identity::load_or_create(&self.path("client"))
            .unwrap()
            .fingerprint();
        let roots = vec![self.path("target").canonicalize().unwrap()];
        let grant = Grant::new(key, "tester", roots, Access::WriteOnly);
        allow_to_lead(&self.path("server"), grant);
    }

    /// Lets the client's key read what is in `directory` of the site, beside what it may do already.
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

    /// `zmove pull OPTIONS ADDRESS:SOURCE... target/PATH` of what the daemon has in `source`.
    pub(crate) fn pull_command(&self, options: &[&str], sources: &[&str], path: &str) -> Zmove {
        let mut zmove = self.zmove(&["pull"]);
        zmove.0.args(self.push_options).args(options);
        zmove
            .0
            .args(sources.iter().map(|source| self.address(source)))
            .arg(self.path("target").join(path));
        zmove
    }

    /// Runs such a pull.
    pub(crate) fn pull(&self, options: &[&str], sources: &[&str], path: &str) -> Outcome {
        self.pull_command(options, sources, path).outcome()
    }

    /// Makes the client take `fingerprint` for the key of `address`.
    pub(crate) fn pin(&self, address: &SocketAddr, fingerprint: Fingerprint) {
        let mut known_hosts = KnownHosts::open(&self.path("client")).unwrap();
        known_hosts
            .pin(&address.ip().to_string(), address.port(), fingerprint)
            .unwrap();
    }

    /// Hands all files to the user that programs run as.
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

    /// The target directory as it is reached from here.
    pub(crate) fn target(&self) -> PathBuf {
        let path = self.path("target");
        self.runner
            .namespace
            .as_ref()
            .map_or(path.clone(), |namespace| namespace.outside(&path))
    }

    /// The running daemon.
    pub(crate) fn the_daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// The daemon, to be stopped.
    pub(crate) fn take_daemon(&mut self) -> Daemon {
        self.daemon.take().unwrap()
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.daemon.is_some()
    }

    /// How a path below the target is written on the command line.
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

    /// `zmove push OPTIONS SOURCE/ ADDRESS:` by way of a relay.
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

    /// `source/`, whose contents go into the target.
    pub(crate) fn contents(&self) -> OsString {
        self.source().join("").into()
    }

    /// Pushes the contents of the source to the target itself and expects that all is well.
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

/// Copies a program by another process. The processes that other cases start at this moment would inherit a descriptor
/// that is open for writing here, and the kernel runs no program that is open for writing.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("install")
        .args(["-m", "755"])
        .args([from, to])
        .status();
    assert!(copied.unwrap().success());
}

/// Writes a program, as [`copy_program`] copies one.
pub(crate) fn write_program(path: &Path, text: &str) {
    let source = path.with_extension("text");
    std::fs::write(&source, text).unwrap();
    copy_program(&source, path);
    std::fs::remove_file(source).unwrap();
}

/// Lets the holder of this grant lead jobs of several receivers, too, at the daemon with this home.
pub(crate) fn allow_to_lead(home: &Path, grant: Grant) {
    let grant = Grant {
        lead: true,
        ..grant
    };
    AuthorizedKeys::allow(home, grant).unwrap();
}

/// A runtime with two threads, for a case that is a peer itself.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Says why a case does not run here; in the lab, where every case must, that is a failure.
#[track_caller]
pub(crate) fn skip(reason: &str) {
    let required = std::env::var_os("ZMOVE_REQUIRE_LAB").is_some_and(|value| value == "1");
    assert!(!required, "ZMOVE_REQUIRE_LAB=1, but {reason}");
    eprintln!("skipped: {reason}");
}

/// Gives a tree to the user that tests become.
pub(crate) fn own_all(path: &Path) {
    give_all(path, NOBODY);
}

/// Gives a tree to the user and group with this number.
fn give_all(path: &Path, number: u32) {
    std::os::unix::fs::lchown(path, Some(number), Some(number)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give_all(&entry.unwrap().path(), number);
        }
    }
}

/// The parent directory of all sites.
///
/// Ext4 spreads the directories in it over the whole file system. Without a journal, ext4 checks every recently deleted
/// inode nearby before it creates a file, which took a quarter of the processor time of all cases.
fn directory_of_sites() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let user = rustix::process::geteuid().as_raw();
        let path = std::env::temp_dir().join(format!("zmove-e2e-{user}"));
        std::fs::create_dir_all(&path).unwrap();
        set_mode(&path, 0o755);
        let directory = std::fs::File::open(&path).unwrap();
        if let Ok(flags) = rustix::fs::ioctl_getflags(&directory) {
            // Only ext4 knows and needs the flag.
            let _refused = rustix::fs::ioctl_setflags(&directory, flags | IFlags::TOPDIR);
        }
        path
    });
    &PATH
}
