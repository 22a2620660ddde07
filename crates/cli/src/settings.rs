//! The settings of a command: the paths of keys and state, the storage engine, how to connect to other hosts, and the
//! process's limits.

mod clean;
pub(crate) mod cluster;
mod copy;
mod dial;
mod keeping;
mod mistyped_paths;
mod probe;
mod pull;
mod push;
mod replacement_policy;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit};
use tokio::runtime::Builder;
use zmove_disk::{
    Direct, FileIo, OwnPaths, Ring, RingConfig, StorageEngine, ThreadCountCache, Unavailable,
};

use zmove_engine::{DialSettings, UnknownHost};
use zmove_far::runtime;
use zmove_jobs::{NotifyConfig, NotifyMethod};
use zmove_scan::ScanConfig;

use crate::args::{DirectArg, EngineArg, StorageArgs};
use crate::commands::serve::config::Config;
use crate::display::prompt::Prompt;
use crate::ownership;
use crate::value::exit::usage_error;

pub(crate) use clean::clean;
pub(crate) use copy::{Copy, CopySettings};
pub(crate) use dial::start;
pub(crate) use mistyped_paths::hosts_that_are_files;
pub(crate) use probe::probe;
pub(crate) use pull::PullSettings;
pub(crate) use push::{PushSettings, refuse_same_key, refuse_twice};

/// The identity whose keys are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The keys of the user who runs this process.
    Client,
    /// The keys of a receiver. A receiver that runs as root uses the keys of the host.
    Daemon,
}

/// Returns the path in an environment variable. Returns `None` if the variable is unset or empty.
pub(crate) fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}

/// Returns the directory of `known_hosts`, `authorized_keys` and `key.pem`. If a daemon's [`state`] is in another
/// directory, `key.pem` is there instead.
pub(crate) fn home(role: Role) -> Result<PathBuf> {
    if let Some(home) = named("ZMOVE_HOME") {
        return Ok(home);
    }
    if role == Role::Daemon && rustix::process::geteuid().is_root() {
        return Ok(SERVICE_HOME.into());
    }
    let home = std::env::home_dir().context("no home directory: set HOME or ZMOVE_HOME")?;
    Ok(home.join(".config/zmove"))
}

/// Returns the directory in which a receiver keeps the journals of unfinished transfers.
pub(crate) fn journals(home: &Path) -> PathBuf {
    home.join("journal")
}

/// Returns the cache of the numbers of storage threads that were useful in the user's earlier transfers. The cache is
/// empty if the user has no home directory.
pub(crate) fn thread_counts() -> ThreadCountCache {
    let home = home(Role::Client).ok();
    home.as_deref()
        .map(ThreadCountCache::in_home)
        .unwrap_or_default()
}

/// Returns the directory of a daemon's state: its key, journals, copies and records. By default this is the daemon's
/// home. The system service uses another directory, because its settings belong to root.
pub(crate) fn state(home: &Path) -> PathBuf {
    match named("STATE_DIRECTORY") {
        Some(given) => given,
        None if home == Path::new(SERVICE_HOME) => SERVICE_STATE.into(),
        None => home.to_owned(),
    }
}

/// Returns the socket on which a daemon accepts requests from the operator of the host. The socket is in the service
/// manager's runtime directory. Without a service manager, it is in the daemon's [`state`] directory.
pub(crate) fn control_socket(home: &Path) -> PathBuf {
    let directory = named("RUNTIME_DIRECTORY").unwrap_or_else(|| state(home));
    directory.join("control.sock")
}

/// Returns the directory of a daemon's journals.
pub(crate) fn daemon_journals(home: &Path) -> PathBuf {
    journals(&state(home))
}

/// Returns the files and directories of a daemon, including its `config` and its `log`.
pub(crate) fn own_paths(home: &Path, config: &Path, log: Option<&Path>) -> OwnPaths {
    let journals = daemon_journals(home);
    let files = [
        config.to_owned(),
        home.join("authorized_keys"),
        control_socket(home),
    ];
    let directories = [
        home.to_owned(),
        state(home),
        copies(&journals),
        storage_records(&journals),
        journals,
    ];
    let log = log.map(Path::to_owned);
    OwnPaths::find(files.into_iter().chain(directories).chain(log))
}

/// Returns the paths of a daemon that was started without options. If this process is root, it inspects only the
/// settings. The other paths may be in directories of the daemon's user, and the daemon checks them itself.
pub(crate) fn usual_own_paths(home: &Path) -> OwnPaths {
    if ownership::is_root() {
        return OwnPaths::find([home.to_owned()]);
    }
    let config = Config::read(None, home).unwrap_or_default();
    own_paths(home, &Config::usual(home), config.log.file.as_deref())
}

/// Returns the directory, next to the journals, in which a daemon keeps the records of copies between hosts.
pub(crate) fn copies(journals: &Path) -> PathBuf {
    journals.with_file_name("copies")
}

/// Returns the directory, next to the journals, in which a daemon records the properties of local storage.
pub(crate) fn storage_records(journals: &Path) -> PathBuf {
    journals.with_file_name("learnt")
}

/// Returns the path of the file that configures job notifications.
pub(crate) fn notify() -> Result<PathBuf> {
    let file = home(Role::Client)?.join("notify.toml");
    std::path::absolute(&file).with_context(|| format!("find '{}'", file.display()))
}

/// Reads the configuration of job notifications, which must name a hook or a webhook.
pub(crate) fn notify_config() -> Result<NotifyConfig> {
    let file = notify()?;
    let config = NotifyConfig::read(&file)?;
    if NotifyMethod::ALL.iter().any(|method| config.has(*method)) {
        return Ok(config);
    }
    Err(usage_error(format!(
        "'{}' has neither a hook nor a webhook: add [hook] or [webhook]",
        file.display()
    )))
}

/// Returns the directory of the user's jobs, which must be on a file system of this host. The directory is below
/// `ZMOVE_HOME` if that variable is set. Otherwise, it is in the user's state directory.
pub(crate) fn jobs() -> Result<PathBuf> {
    if let Some(jobs) = named("ZMOVE_JOBS").or_else(|| Some(named("ZMOVE_HOME")?.join("jobs"))) {
        // The path must be absolute, because a runner starts in another directory.
        return std::path::absolute(&jobs).with_context(|| format!("find '{}'", jobs.display()));
    }
    // The XDG specification requires that relative paths in this variable are ignored.
    if let Some(state) = named("XDG_STATE_HOME").filter(|state| state.is_absolute()) {
        return Ok(state.join("zmove/jobs"));
    }
    let home = std::env::home_dir().context("no home directory: set HOME or ZMOVE_JOBS")?;
    Ok(home.join(".local/state/zmove/jobs"))
}

/// Directory of the settings of this host's daemon. It belongs to root.
pub(crate) const SERVICE_HOME: &str = "/etc/zmove";

/// Directory of the state of this host's daemon. It belongs to the daemon's user.
pub(crate) const SERVICE_STATE: &str = "/var/lib/zmove";

/// Directory of the socket of a daemon that was started with `docs/systemd/zmove.service`.
pub(crate) const SERVICE_RUNTIME: &str = "/run/zmove";

/// Returns the maximum number of batches of a walk that wait for the sender. Each keeps a directory open, so a low
/// limit on open files reduces the number.
pub(crate) fn walked_batches_max() -> usize {
    let usual = ScanConfig::default().queue_batches_max;
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 16).map_or(usual, |share| share.clamp(4, usual))
}

/// Returns the settings of a connection that carries only a short request.
pub(crate) fn ask_dial() -> DialSettings {
    DialSettings {
        unknown_host: UnknownHost::Ask(Arc::new(Prompt)),
        ..DialSettings::default()
    }
}

/// Raises the limit on open files, and sets the name of the process.
pub(crate) fn prepare_process() {
    runtime::raise_file_limit();
    // By default, the process has the name of the executed file, which may be `/proc/self/exe`. This call sets the name
    // `zmove`.
    let _a_mere_name = rustix::thread::set_name(c"zmove");
}

/// Runs work that waits for a few connections, on this number of threads. When the work is done, the function does not
/// wait for tasks that block a thread.
pub(crate) fn block_on<T>(threads: usize, work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime::build(&mut Builder::new_multi_thread(), threads)?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// The way in which storage is accessed.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) file_io: Arc<dyn FileIo>,
    pub(crate) direct: Direct,
}

/// Returns the requested storage engine. If it does not work on this host, returns another engine and passes the reason
/// to `tell`.
pub(crate) fn storage(args: StorageArgs, tell: impl Fn(&str)) -> Storage {
    storage_with(args, tell, || Ring::start(RingConfig::default()))
}

fn storage_with(
    args: StorageArgs,
    tell: impl Fn(&str),
    start_uring: impl FnOnce() -> Result<Ring, Unavailable>,
) -> Storage {
    let direct = match args.direct {
        DirectArg::Auto => Direct::Auto,
        DirectArg::On => Direct::On,
        DirectArg::Off => Direct::Off,
    };
    let engine = match args.io_engine {
        EngineArg::Auto => StorageEngine::default(),
        EngineArg::Threads => StorageEngine::Threads,
        EngineArg::Uring => match start_uring() {
            Ok(ring) => StorageEngine::Uring(ring),
            Err(error) => {
                tell(&format!(
                    "{:#}: using threads instead",
                    anyhow::Error::new(error)
                ));
                StorageEngine::Threads
            }
        },
    };
    Storage {
        file_io: Arc::new(engine),
        direct,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn an_engine_that_is_asked_for_and_refused_is_replaced_and_told() {
        let args = |io_engine| StorageArgs {
            io_engine,
            direct: DirectArg::On,
        };
        let refused = || {
            let source = std::io::Error::from_raw_os_error(rustix::io::Errno::PERM.raw_os_error());
            Err(Unavailable::Setup { source })
        };
        let told = RefCell::new(Vec::new());
        let tell = |notice: &str| told.borrow_mut().push(notice.to_owned());
        for engine in [EngineArg::Auto, EngineArg::Threads] {
            storage_with(args(engine), tell, refused);
        }
        assert_eq!(told.borrow().len(), 0);
        let storage = storage_with(args(EngineArg::Uring), tell, refused);
        assert_eq!(
            (format!("{:?}", storage.file_io).as_str(), storage.direct),
            ("Threads", Direct::On)
        );
        let told = told.borrow();
        let [notice] = &told[..] else {
            panic!("{told:?}")
        };
        assert!(
            notice.starts_with("io_uring_setup is refused: Operation not permitted"),
            "{notice}"
        );
    }
}
