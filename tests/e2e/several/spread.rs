//! `zmove push SRC HOST,HOST:PATH`: daemons in separate processes that share a directory, like receivers on different
//! hosts that share a file system.

mod killed;
mod queue;
mod trouble;

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use zmove_transport::{Access, Grant, Identity, KnownHosts};
use zmove_types::{CounterScope, Counters};

use crate::support::command::{Runner, Zmove};
use crate::support::daemon::Daemon;
use crate::support::harness::{Site, allow_to_lead, is_root, skip};
use crate::support::namespace::Namespace;
use crate::support::ports::free_address;
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, paint, paint_interesting_sizes, set_mode, set_old};

/// The message of a push that finds the directory of another job.
const WAITS: &str = "waiting: another push to several receivers uses '.zmove-job-";

/// Receivers that share a directory, and a sender who may write there.
pub(crate) struct Spread {
    site: Site,
    daemons: Vec<Daemon>,
    runner: Runner,
}

impl Spread {
    pub(crate) fn new(receivers: usize) -> Self {
        Self::within(receivers, |_shared| Some(None)).expect("a directory as any")
    }

    /// Creates receivers whose shared directory may be on a separate file system. Returns `None` if this host cannot
    /// provide it.
    fn within(
        receivers: usize,
        namespace: impl FnOnce(&Path) -> Option<Option<Namespace>>,
    ) -> Option<Self> {
        let site = Site::local();
        let shared = site.path("shared");
        std::fs::create_dir_all(&shared).unwrap();
        let runner = Runner {
            namespace: namespace(&shared)?.map(Arc::new),
            ..Runner::default()
        };
        let mut spread = Self {
            site,
            daemons: Vec::new(),
            runner,
        };
        for _ in 0..receivers {
            spread.start("shared");
        }
        Some(spread)
    }

    /// Creates receivers that run as an unprivileged user. Returns `None` if this host cannot provide it.
    fn unprivileged(receivers: usize) -> Option<Self> {
        let site = Site::unprivileged()?;
        std::fs::create_dir_all(site.path("shared")).unwrap();
        let mut spread = Self {
            runner: site.runner.clone(),
            site,
            daemons: Vec::new(),
        };
        (0..receivers).for_each(|_| spread.start("shared"));
        spread.take_home();
        Some(spread)
    }

    fn home(&self) -> PathBuf {
        self.site.path("sender")
    }

    /// Gives the sender's directory back to the user of the test, so that no other user can change a name in its path.
    fn take_home(&self) {
        let top = self.site.path("");
        std::os::unix::fs::lchown(&top, Some(0), Some(0)).unwrap();
        set_mode(&top, 0o755);
        let mut chown = std::process::Command::new("chown");
        let chown = chown.args(["-R", "root"]).arg(self.home());
        assert!(chown.status().unwrap().success());
    }

    /// Two receivers with different directories.
    fn with_one_elsewhere() -> Self {
        let mut spread = Self::new(1);
        std::fs::create_dir_all(spread.site.path("elsewhere")).unwrap();
        spread.start("elsewhere");
        spread
    }

    /// Starts another receiver with `directory`.
    fn start(&mut self, directory: &str) {
        self.start_with(directory, "");
    }

    /// Starts another receiver with these settings.
    fn start_with(&mut self, directory: &str, settings: &str) {
        let identity = Identity::load_or_create(&self.home()).unwrap();
        let home = self.site.path(&format!("receiver{}", self.daemons.len()));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("zmove.toml"), settings).unwrap();
        let roots = vec![self.site.path(directory).canonicalize().unwrap()];
        let grant = Grant::new(identity.fingerprint(), "sender", roots, Access::ReadWrite);
        allow_to_lead(&home, grant);
        self.site.give_away();
        // A case may restart a receiver at its address.
        let listen = free_address().to_string();
        let daemon = Daemon::start_with(&home, &["--listen", &listen], &self.runner);
        let (host, port) = (daemon.address.ip().to_string(), daemon.address.port());
        KnownHosts::open(&self.home())
            .unwrap()
            .pin(&host, port, daemon.fingerprint)
            .unwrap();
        self.daemons.push(daemon);
    }

    /// Two receivers. The second one has the mount point of the shared directory, with nothing mounted on it. Returns
    /// `None` if this host cannot provide it.
    fn with_mount_point() -> Option<Self> {
        let mut spread = Self::within(1, |_shared| Namespace::with_binds(&[]).map(Some))?;
        std::fs::create_dir_all(spread.mount_point()).unwrap();
        spread.start("mounted");
        Some(spread)
    }

    fn mount_point(&self) -> PathBuf {
        self.site.path("mounted")
    }

    fn mount(&self) {
        let (from, to) = (self.site.path("shared"), self.mount_point());
        let words = [
            "mount".as_ref(),
            "--bind".as_ref(),
            from.as_os_str(),
            to.as_os_str(),
        ];
        assert!(self.runner.namespace.as_ref().unwrap().run(&words));
    }

    /// Unmounts the shared directory at the second receiver, which then sees the mount point.
    fn unmount(&self) {
        let at = self.mount_point();
        let words = ["umount".as_ref(), "--lazy".as_ref(), at.as_os_str()];
        assert!(self.runner.namespace.as_ref().unwrap().run(&words));
    }

    /// The target with all receivers.
    fn target(&self, path: &str) -> OsString {
        let hosts: Vec<_> = self
            .daemons
            .iter()
            .map(|daemon| daemon.address.to_string())
            .collect();
        format!("{}:{path}", hosts.join(",")).into()
    }

    pub(crate) fn push(&self, options: &[&str], source: &str) -> Zmove {
        self.push_to(self.target("t"), options, source)
    }

    fn push_to(&self, target: OsString, options: &[&str], source: &str) -> Zmove {
        let mut zmove = Runner::default().zmove(&self.home());
        zmove
            .0
            .args(["push"])
            .args(options)
            .arg(self.site.path(source).join(""))
            .arg(target);
        zmove
    }

    /// The target through relays in front of the receivers.
    fn target_by(&self, relays: &[Proxy]) -> OsString {
        for (daemon, relay) in self.daemons.iter().zip(relays) {
            let (host, port) = (relay.address.ip().to_string(), relay.address.port());
            KnownHosts::open(&self.home())
                .unwrap()
                .pin(&host, port, daemon.fingerprint)
                .unwrap();
        }
        let hosts: Vec<_> = relays
            .iter()
            .map(|relay| relay.address.to_string())
            .collect();
        format!("{}:t", hosts.join(",")).into()
    }

    /// The target with a relay for the first receiver, which begins a job and loses its connections before it can
    /// report this.
    fn target_that_loses_the_beginning(&self) -> OsString {
        let there = self.target_directory();
        let has_job = move || job_in(&there).is_some();
        let relays = self
            .daemons
            .iter()
            .enumerate()
            .map(|(number, daemon)| match number {
                0 => Proxy::cutting_when(daemon.address, has_job.clone()),
                _ => Proxy::start(daemon.address, u64::MAX),
            });
        self.target_by(&relays.collect::<Vec<_>>())
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.site.path("source")
    }

    pub(crate) fn target_directory(&self) -> PathBuf {
        self.shared().join("t")
    }

    /// The shared directory as seen by this process.
    fn shared(&self) -> PathBuf {
        let shared = self.site.path("shared");
        self.runner
            .namespace
            .as_ref()
            .map_or(shared.clone(), |namespace| namespace.outside(&shared))
    }

    /// Creates a tree that is divided into many items: a wide directory, deep directories, and a file that is just
    /// large enough to be split between receivers.
    fn paint(&self) {
        let source = self.source();
        for directory in 0..20 {
            let directory = source.join(format!("d{directory}/e"));
            std::fs::create_dir_all(&directory).unwrap();
            (0..40_u64).for_each(|file| paint(directory.join(format!("f{file}")), file * 17));
        }
        std::fs::create_dir_all(source.join("wide")).unwrap();
        (0..2500_u64).for_each(|file| paint(source.join(format!("wide/{file}")), file % 5));
        paint(source.join("large"), (64 << 20) + 1);
        std::os::unix::fs::symlink("wide/1", source.join("link")).unwrap();
        std::fs::create_dir(source.join("empty")).unwrap();
        set_mode(source.join("d3"), 0o551);
        set_old(source.join("d4"));
        set_old(&source);
    }

    /// Kills a push of one file after its job has begun. The push would take seconds.
    fn kill_a_slow_push(&self, path: &str) {
        paint(self.source().join("f"), 9 << 20);
        set_old(self.source());
        let mut child = self
            .push_to(self.target(path), &["--limit", "1MB"], "source")
            .start();
        self.wait_for_job();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Creates a directory whose removal takes much longer than detecting that the removal has begun.
    fn paint_busy(&self) -> PathBuf {
        let busy = self.site.path("busy");
        for number in 0..20_000 {
            std::fs::create_dir_all(busy.join(number.to_string())).unwrap();
        }
        busy
    }

    /// Moves `busy` into the job directory of a push. Kills the first receiver once it has begun to remove `busy`,
    /// before it can answer.
    fn kill_at_the_end(&self, busy: &Path) {
        let there = self.wait_for_job().join("busy");
        std::fs::rename(busy, &there).unwrap();
        let begun = || {
            let mut some = (0..20_000).step_by(1000);
            some.any(|number| !there.join(number.to_string()).exists())
        };
        crate::commands::jobs::wait_for("the end of the job", begun);
        self.daemons[0].signal(Signal::KILL);
    }

    /// Waits for a job and returns its directory.
    fn wait_for_job(&self) -> PathBuf {
        let find = || job_in(&self.target_directory());
        crate::commands::jobs::wait_for("the beginning of a job", || find().is_some());
        find().expect("it has just been there")
    }

    /// Asserts that several receivers have received data, whichever they are.
    fn assert_several_have_received(&self) {
        // The first receiver also has a session of the head.
        let told = self
            .daemons
            .iter()
            .zip([2, 1, 1])
            .map(|(daemon, sessions)| daemon.wait_for_logs("received from sender", sessions));
        let told: Vec<_> = told.collect();
        let has_received = |told: &&Vec<String>| told.iter().any(|told| !told.contains(" 0 bytes"));
        assert!(told.iter().filter(has_received).count() > 1, "{told:?}");
    }

    fn assert_done(&self) {
        assert_same(&self.source(), &self.target_directory());
        let left: Vec<_> = std::fs::read_dir(self.target_directory())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_string_lossy().starts_with(".zmove"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Returns the directory of a job in a target, if there is one.
fn job_in(target: &Path) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(target).into_iter().flatten().flatten();
    let is_job = |entry: &std::fs::DirEntry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(".zmove-job-")
    };
    Some(entries.find(is_job)?.path())
}

#[test]
fn a_tree_comes_whole_by_several_receivers_and_is_equal_the_next_time() {
    let spread = Spread::new(3);
    paint_interesting_sizes(&spread.source().join("sizes"));
    spread.paint();
    // At this rate each receiver has time to take some items.
    let summary = spread
        .push(&["--json", "--limit", "40MB"], "source")
        .outcome()
        .done()
        .summary();
    spread.assert_done();
    let files = summary["files"].as_u64().unwrap();
    assert!(
        files > 3300 && summary["failed"] == 0 && summary["skipped"] == 0,
        "{summary}"
    );
    assert_eq!(summary["inexact"], false);
    spread.assert_several_have_received();
    let again = spread
        .push(&["--json"], "source")
        .outcome()
        .done()
        .summary();
    assert_eq!(
        (again["files"].as_u64(), again["skipped"].as_u64()),
        (Some(0), Some(files)),
        "{again}"
    );
    spread.assert_done();
}

#[test]
fn a_receiver_that_is_killed_costs_time_and_nothing_else() {
    let mut spread = Spread::new(2);
    spread.paint();
    let child = spread.push(&["--json"], "source").start();
    spread.daemons[1].wait_for_log("begun by sender");
    spread.daemons[1].signal(Signal::KILL);
    let summary = crate::support::command::finish(child).expect(0).summary();
    assert!(summary["files"].as_u64() > Some(3300), "{summary}");
    spread.assert_done();
    spread.daemons.remove(1);
}

/// The key of the receiver cannot be confirmed, now or when the receiver returns.
#[test]
fn a_receiver_that_is_away_and_not_known_is_left_out() {
    let mut spread = Spread::new(2);
    paint(spread.source().join("f"), 7);
    let address = spread.daemons[1].address;
    let (host, port) = (address.ip().to_string(), address.port());
    KnownHosts::open(&spread.home())
        .unwrap()
        .remove(&host, port)
        .unwrap();
    spread.daemons[1].kill();
    let away = [
        &*address.to_string(),
        "is unreachable and its key is not known yet: skipping it",
    ];
    spread
        .push(&[], "source")
        .outcome()
        .expect(0)
        .says(&away)
        .lines(1);
    assert_eq!(
        KnownHosts::open(&spread.home())
            .unwrap()
            .lookup(&host, port),
        None
    );
    spread.assert_done();
    spread.push(&["--strict"], "source").outcome().expect(5);
    let nameless = format!("{},nowhere.invalid:u", spread.daemons[0].address);
    let left_out = [
        "nowhere.invalid:5870 is unreachable",
        "skipping it (find the address of 'nowhere.invalid' (is the name right?)",
    ];
    spread
        .push_to(nameless.into(), &[], "source")
        .outcome()
        .expect(0)
        .says(&left_out)
        .lines(1);
    assert!(spread.shared().join("u/f").exists());
    let none_else = format!("{address},localhost:{port}:t");
    spread
        .push_to(none_else.into(), &[], "source")
        .outcome()
        .expect(10);
}

#[test]
fn the_last_of_two_sources_sets_mode_and_time_of_the_target() {
    let spread = Spread::new(2);
    let sources = [("source", 0o755), ("second", 0o700)].map(|(name, mode)| {
        let source = spread.site.path(name);
        std::fs::create_dir_all(source.join(name)).unwrap();
        paint(source.join(name).join("f"), 7);
        set_mode(&source, mode);
        source
    });
    set_old(&sources[1]);
    let mut zmove = Runner::default().zmove(&spread.home());
    zmove
        .0
        .arg("push")
        .args(sources.map(|source| source.join("")))
        .arg(spread.target("t"));
    zmove.outcome().done();
    let found = spread.target_directory().metadata().unwrap();
    assert_eq!(
        (found.mode() & 0o7777, found.modified().unwrap()),
        (0o700, crate::support::tree::old())
    );
}

/// The receiver is killed between the end of the job and its answer.
#[test]
fn a_closed_job_has_ended_well_even_if_the_answer_is_lost() {
    let spread = Spread::new(2);
    // Slow, so that the job does not end before the directory that delays its end is in place.
    paint(spread.source().join("f"), 4 << 20);
    let busy = spread.paint_busy();
    let child = spread.push(&["--limit", "1MB"], "source").start();
    spread.kill_at_the_end(&busy);
    crate::support::command::finish(child).expect(0);
    assert_eq!(job_in(&spread.target_directory()), None);
    set_old(spread.source());
    set_old(spread.target_directory());
    assert_same(&spread.source(), &spread.target_directory());
}

#[test]
fn without_any_receiver_the_push_ends_and_the_same_command_completes_it_later() {
    let mut spread = Spread::new(2);
    spread.paint();
    let child = spread
        .push(&["--timeout", "2s", "--limit", "5MB"], "source")
        .start();
    spread.daemons[0].wait_for_logs("begun by sender", 2);
    spread
        .daemons
        .iter()
        .for_each(|daemon| daemon.signal(Signal::KILL));
    // One line for each unreachable receiver, and the final error.
    let outcome = crate::support::command::finish(child).expect(12);
    let outcome = outcome
        .lines(3)
        .says(&["; no receiver is left: trying again for up to 2 s"]);
    outcome.says(&["no receiver can continue: "]);
    spread.daemons.clear();
    spread.start("shared");
    spread.start("shared");
    spread
        .push(&[], "source")
        .outcome()
        .expect(0)
        .says(&[WAITS]);
    spread.assert_done();
}

#[test]
fn a_push_that_no_receiver_lets_begin_leaves_nothing() {
    let spread = Spread::new(2);
    paint(spread.source().join("f"), 7);
    let lists = [0, 1].map(|number| {
        spread
            .site
            .path(&format!("receiver{number}/authorized_keys"))
    });
    lists
        .iter()
        .for_each(|list| std::fs::rename(list, list.with_extension("away")).unwrap());
    spread.push(&[], "source").outcome().expect(5);
    lists
        .iter()
        .for_each(|list| std::fs::rename(list.with_extension("away"), list).unwrap());
    spread.push(&[], "source").outcome().done();
    spread.assert_done();
}

#[test]
fn a_push_interrupted_before_any_answer_leaves_no_job() {
    let spread = Spread::new(2);
    paint(spread.source().join("f"), 7);
    spread
        .daemons
        .iter()
        .for_each(|daemon| daemon.signal(Signal::STOP));
    let relays: Vec<_> = spread
        .daemons
        .iter()
        .map(|daemon| Proxy::start(daemon.address, u64::MAX))
        .collect();
    let child = spread
        .push_to(spread.target_by(&relays), &[], "source")
        .start();
    relays[0].wait_for_connections(1);
    crate::connections::breakage::interrupt(child).expect(20);
    for daemon in &spread.daemons {
        daemon.signal(Signal::CONT);
    }
    // The next push finds no job for which it would have to wait.
    spread.push(&[], "source").outcome().done();
    spread.assert_done();
}

/// For example, the storage with that directory is not mounted. No session that may still write has begun there, so no
/// mark of the job stays.
#[test]
fn a_receiver_without_its_root_is_skipped_with_the_reason() {
    let mut spread = Spread::new(1);
    std::fs::create_dir(spread.site.path("gone")).unwrap();
    spread.start("gone");
    std::fs::remove_dir(spread.site.path("gone")).unwrap();
    spread.paint();
    let outcome = spread.push(&[], "source").outcome().expect(0);
    let outcome = outcome.says(&["open root '", "/gone': No such file or directory"]);
    assert!(
        !outcome
            .stderr
            .contains("the session with the receiver has ended"),
        "{}",
        outcome.stderr
    );
    spread.assert_done();
}

#[test]
fn an_unreachable_receiver_is_not_counted() {
    let spread = Spread::new(2);
    spread.paint();
    spread.daemons[1].signal(Signal::KILL);
    let first = spread.daemons[0].address.to_string();
    let outcome = spread.push(&[], "source").outcome().expect(0);
    assert!(
        outcome.stdout.contains(", by 1 receiver\n"),
        "{}",
        outcome.stdout
    );
    outcome.says(&[&format!("; {first} is tried next")]);
    // No session that may still write has begun there.
    spread.assert_done();
}

#[test]
fn receivers_that_do_not_share_the_target_end_the_push() {
    let spread = Spread::with_one_elsewhere();
    spread.paint();
    let [there, elsewhere] = [0, 1].map(|number: usize| spread.daemons[number].address.to_string());
    let began = Instant::now();
    // The push would take more than a minute.
    let outcome = spread
        .push(&["--timeout", "10s", "--limit", "1MB"], "source")
        .outcome()
        .expect(3);
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    outcome.says(&[&format!(
        "{elsewhere} does not see the push that is running on {there}"
    )]);
    assert!(!spread.site.path("elsewhere/t").exists());
    // The result is the same if the job ends before the second receiver has a mover.
    let small = ["--timeout", "5s", "--include", "empty/", "--exclude", "*"];
    spread.push(&small, "source").outcome().expect(3);
}

/// The first receiver has begun the job, and its answer is lost. The job is also visible at the second receiver.
#[test]
fn a_job_that_may_have_begun_continues_if_another_receiver_sees_it() {
    let spread = Spread::new(2);
    spread.paint();
    spread
        .push_to(spread.target_that_loses_the_beginning(), &[], "source")
        .outcome()
        .expect(0);
    spread.assert_done();
}

/// If the same job were begun at the second receiver, each receiver would have a separate directory for it, and the two
/// jobs would not be detected.
#[test]
fn a_job_that_may_have_begun_does_not_begin_again_elsewhere() {
    let spread = Spread::with_one_elsewhere();
    spread.paint();
    let target = spread.target_that_loses_the_beginning();
    let outcome = spread
        .push_to(target, &["--timeout", "10s", "--limit", "1MB"], "source")
        .outcome();
    outcome
        .expect(3)
        .says(&["does not see the push that is running"]);
}

/// An NFS client may cache for a minute that a directory does not exist.
#[test]
fn a_receiver_that_sees_the_target_late_lets_the_push_in() {
    let Some(spread) = Spread::with_mount_point() else {
        return;
    };
    // The push takes some seconds at this rate, during which the second receiver is asked again.
    (0..60).for_each(|file| paint(spread.source().join(format!("f{file}")), 1 << 20));
    set_old(spread.source());
    let push = spread.push(&["--limit", "4MB"], "source").start();
    spread.daemons[1].wait_for_log("is not under way");
    spread.mount();
    crate::support::command::finish(push)
        .expect(0)
        .says(&["is not under way at this target"]);
    // A refused receiver would log an aborted session.
    spread.daemons[1].wait_for_log("received from sender");
    assert_same(&spread.source(), &spread.target_directory());
}

/// The receiver with the job in progress is unreachable, and the other one has an empty directory there. The job is not
/// restarted in it.
#[test]
fn a_job_that_is_under_way_does_not_begin_where_a_receiver_has_lost_the_storage() {
    let Some(spread) = Spread::with_mount_point() else {
        return;
    };
    spread.mount();
    spread.paint();
    let push = spread
        .push(&["--limit", "1MB", "--timeout", "2s"], "source")
        .start();
    spread.daemons[0].wait_for_logs("begun by sender", 2);
    spread.daemons[1].wait_for_log("begun by sender");
    spread.unmount();
    spread
        .daemons
        .iter()
        .for_each(|daemon| daemon.signal(Signal::STOP));
    spread.daemons[0].signal(Signal::KILL);
    spread.daemons[1].signal(Signal::CONT);
    crate::support::command::finish(push).expect(12);
    let left = std::fs::read_dir(spread.mount_point().join("t"))
        .into_iter()
        .flatten();
    assert_eq!(left.count(), 0);
}

#[test]
fn one_file_that_fails_stops_nothing_and_is_counted() {
    let spread = Spread::new(2);
    spread.paint();
    let there = spread.target_directory();
    std::fs::create_dir_all(there.join("wide/7/below")).unwrap();
    std::fs::create_dir_all(there.join("large/below")).unwrap();
    let summary = spread
        .push(&["--json"], "source")
        .outcome()
        .expect(23)
        .summary();
    assert_eq!(summary["failed"], 2, "{summary}");
    std::fs::remove_dir_all(there.join("wide/7")).unwrap();
    std::fs::remove_dir_all(there.join("large")).unwrap();
    spread.push(&[], "source").outcome().done();
    spread.assert_done();
}

/// The mark of the job is in the target, whose mode is set before the mark is removed.
#[test]
fn nothing_is_left_in_a_target_that_its_owner_may_not_change() {
    let Some(spread) = Spread::unprivileged(2) else {
        return;
    };
    paint(spread.source().join("d/f"), 7);
    set_mode(spread.source(), 0o555);
    set_old(spread.source());
    for _ in 0..2 {
        spread.push(&[], "source").outcome().done();
        spread.assert_done();
    }
    set_mode(spread.source(), 0o755);
}

#[test]
fn one_large_file_is_written_by_several_receivers() {
    let spread = Spread::new(2);
    std::fs::create_dir_all(spread.source()).unwrap();
    paint(spread.source().join("huge"), 100 << 20);
    spread.push(&["--limit", "33MB"], "source").outcome().done();
    spread.assert_done();
    spread.assert_several_have_received();
}

/// The directory gets no mode from the source. It has the default mode, as with a single receiver.
#[test]
fn a_directory_that_is_made_for_one_file_is_open_to_others() {
    let spread = Spread::new(2);
    paint(spread.site.path("file"), 1000);
    std::fs::create_dir(spread.site.path("usual")).unwrap();
    let usual = spread.site.path("usual").metadata().unwrap().mode() & 0o7777;
    for target in ["new/", "other/new/"] {
        let mut push = Runner::default().zmove(&spread.home());
        push.0
            .arg("push")
            .arg(spread.site.path("file"))
            .arg(spread.target(target));
        push.outcome().done();
        let made = spread.shared().join(target);
        assert_eq!(made.metadata().unwrap().mode() & 0o7777, usual);
        assert_eq!(
            std::fs::read(made.join("file")).unwrap(),
            std::fs::read(spread.site.path("file")).unwrap()
        );
    }
}

/// Tests small files, large files and directories, whichever receiver stores them.
#[test]
fn metadata_that_several_receivers_did_not_keep_is_counted() {
    if !is_root() {
        return skip("only root can make files of another user");
    }
    let spread = Spread::new(2);
    let source = spread.source();
    std::fs::create_dir(source.join("d")).unwrap();
    for name in ["small", "d/small"] {
        paint(source.join(name), 10);
    }
    paint(source.join("large"), 40 << 20);
    for name in ["small", "d/small", "d", "large"] {
        std::os::unix::fs::chown(source.join(name), Some(1234), None).unwrap();
    }
    let lack = "not kept: owner of 4 (the key's grant does not allow it)";
    for (options, exit) in [(&["-a"][..], 0), (&["-a", "--strict-metadata"], 23)] {
        let outcome = spread.push(options, "source").outcome().expect(exit);
        assert!(outcome.stdout.contains(lack), "{}", outcome.stdout);
    }
    let json = spread.push(&["-a", "--json"], "source").outcome();
    assert_eq!(json.summary()["not_kept"][0]["entries"], 4);
}

#[test]
fn a_key_that_may_not_lead_pushes_to_one_receiver_alone() {
    let mut spread = Spread::new(2);
    paint(spread.source().join("f"), 7);
    let daemons = spread.daemons.len();
    for number in 0..daemons {
        let list = spread
            .site
            .path(&format!("receiver{number}/authorized_keys"));
        let lines = std::fs::read_to_string(&list).unwrap();
        assert!(lines.contains(" lead"), "{lines}");
        std::fs::write(&list, lines.replace(" lead", "")).unwrap();
    }
    let refused = spread
        .push_to(spread.target("in"), &[], "source/")
        .outcome();
    let said = refused.expect(3).stderr;
    let why = "this key may not lead a job of several receivers here";
    assert!(said.contains(why) && said.contains("--lead"), "{said}");
    spread.daemons.truncate(1);
    spread
        .push_to(spread.target("in"), &[], "source/")
        .outcome()
        .done();
}

#[test]
fn options_that_several_receivers_do_not_support_are_refused() {
    let spread = Spread::new(2);
    std::fs::create_dir_all(spread.source()).unwrap();
    for option in [
        "--delete",
        "--dry-run",
        "--checksum",
        "--inplace",
        "--verify=media",
        "--durability=none",
    ] {
        spread
            .push(&[option], "source")
            .outcome()
            .expect(1)
            .says(&["several receivers"]);
    }
    let push_to = |target: &str| {
        let mut zmove = Runner::default().zmove(&spread.home());
        zmove.0.arg("push").arg(spread.source()).arg(target);
        zmove.outcome().expect(1)
    };
    push_to("a,u@b:t").says(&["must be a daemon"]);
    let port = spread.daemons[0].address.port();
    push_to(&format!("127.0.0.1:{port},127.0.0.1:{port}:t")).says(&["is named twice"]);
    let key = spread.daemons[0].fingerprint;
    KnownHosts::open(&spread.home())
        .unwrap()
        .pin("localhost", port, key)
        .unwrap();
    push_to(&format!("127.0.0.1:{port},localhost:{port}:t")).says(&["they are the same receiver"]);
    spread
        .push(&["-H"], "source")
        .outcome()
        .expect(1)
        .says(&["hard links"]);
}

/// All receivers together report the same counts as a single one.
#[test]
fn several_receivers_count_what_one_does() {
    let spread = Spread::new(2);
    let source = spread.site.source();
    paint_interesting_sizes(&source);
    for number in 0..50 {
        paint(source.join(format!("d{}/f{number}", number % 5)), 100);
        paint(source.join(format!("d{}/f{number}.tmp", number % 5)), 100);
    }
    for name in ["fifo", "d1/fifo"] {
        mknodat(CWD, source.join(name), FileType::Fifo, Mode::RUSR, 0).unwrap();
    }
    let options = ["--json", "--exclude", "*.tmp"];
    let push = |target: OsString| {
        spread
            .push_to(target, &options, "source")
            .outcome()
            .expect(0)
    };
    let one = push(format!("{}:one", spread.daemons[0].address).into()).summary();
    let several = push(spread.target("several")).summary();
    for row in Counters::TABLE {
        match row.scope {
            CounterScope::Any => {
                assert_eq!(one[row.name], several[row.name], "{}: {several}", row.name);
            }
            CounterScope::Preview | CounterScope::OneSession => {
                assert!(several[row.name].is_null(), "{}: {several}", row.name);
            }
        }
    }
    assert_eq!(
        (&several["specials"], &several["left_out"]),
        (&2.into(), &50.into())
    );
    let text = spread.push_to(spread.target("text"), &options[1..], "source");
    let text = text.outcome().expect(0).stdout;
    for words in ["2 special files not copied", "50 left out by the selection"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
