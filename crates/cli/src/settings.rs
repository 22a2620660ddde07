//! The settings that will run: where keys are, how storage and other hosts are reached, and the process's own limits.

mod clean;
pub(crate) mod cluster;
mod copy;
mod dial;
mod giving_way;
mod keeping;
mod mistaken;
mod probe;
mod pull;
mod push;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;
use zmove_disk::{Direct, FileIo, OwnPaths, Ring, RingConfig, StorageEngine, Unavailable};

use zmove_engine::{DialSettings, UnknownHost};
use zmove_jobs::{NotifyConfig, NotifyMethod};

use crate::args::{DirectArg, EngineArg, StorageArgs};
use crate::commands::serve::config::Config;
use crate::display::prompt::Prompt;
use crate::ownership;
use crate::runtime;
use crate::value::exit::usage_error;

pub(crate) use clean::clean;
pub(crate) use copy::{Copy, CopySettings};
pub(crate) use dial::start;
pub(crate) use probe::probe;
pub(crate) use pull::PullSettings;
pub(crate) use push::{PushSettings, refuse_same_key, refuse_twice};

/// The owner of the keys that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The user.
    Client,
    /// The receiver, whose keys are those of the host when it runs as root.
    Daemon,
}

/// The path that a variable of the environment names.
pub(crate) fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}

/// The directory with `known_hosts`, `authorized_keys` and, but for a daemon whose [`state`] is elsewhere, `key.pem`.
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

/// The directory in which a receiver keeps the journals of unfinished transfers.
pub(crate) fn journals(home: &Path) -> PathBuf {
    home.join("journal")
}

/// The directory of a daemon's state: its key, journals, copies and records. By default that is its home, but for the
/// service, whose settings belong to root.
pub(crate) fn state(home: &Path) -> PathBuf {
    match named("STATE_DIRECTORY") {
        Some(given) => given,
        None if home == Path::new(SERVICE_HOME) => SERVICE_STATE.into(),
        None => home.to_owned(),
    }
}

/// The socket by which the operator of the host asks a daemon and gives it orders: in the service manager's directory
/// for that, else in the daemon's [`state`].
pub(crate) fn control_socket(home: &Path) -> PathBuf {
    let directory = named("RUNTIME_DIRECTORY").unwrap_or_else(|| state(home));
    directory.join("control.sock")
}

/// The directory of a daemon's journals.
pub(crate) fn daemon_journals(home: &Path) -> PathBuf {
    journals(&state(home))
}

/// The files and directories of a daemon, beside its `config` and its `log`.
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
        learnt(&journals),
        journals,
    ];
    let log = log.map(Path::to_owned);
    OwnPaths::find(files.into_iter().chain(directories).chain(log))
}

/// The same of a daemon that is started without options. Root looks at its settings alone: the rest may be in
/// directories of the daemon's user, and the daemon looks at that itself.
pub(crate) fn usual_own_paths(home: &Path) -> OwnPaths {
    if ownership::is_root() {
        return OwnPaths::find([home.to_owned()]);
    }
    let config = Config::read(None, home).unwrap_or_default();
    own_paths(home, &Config::usual(home), config.log.file.as_deref())
}

/// The directory in which a daemon keeps what it has to remember of copies between hosts, beside its journals.
pub(crate) fn copies(journals: &Path) -> PathBuf {
    journals.with_file_name("copies")
}

/// The directory of what a daemon has learnt of the storage here, beside its journals.
pub(crate) fn learnt(journals: &Path) -> PathBuf {
    journals.with_file_name("learnt")
}

/// The file that configures notifications of jobs.
pub(crate) fn notify() -> Result<PathBuf> {
    let file = home(Role::Client)?.join("notify.toml");
    std::path::absolute(&file).with_context(|| format!("find '{}'", file.display()))
}

/// The configuration of notifications, which has to name a hook or a webhook.
pub(crate) fn notify_config() -> Result<NotifyConfig> {
    let file = notify()?;
    let config = NotifyConfig::read(&file)?;
    if NotifyMethod::ALL.iter().any(|method| config.has(*method)) {
        return Ok(config);
    }
    Err(usage_error(format!(
        "'{}' has neither a hook nor a webhook",
        file.display()
    )))
}

/// The directory of the user's jobs, which must be on this host: below the home of zmove where one is named, else in
/// the user's directory for state.
pub(crate) fn jobs() -> Result<PathBuf> {
    if let Some(jobs) = named("ZMOVE_JOBS").or_else(|| Some(named("ZMOVE_HOME")?.join("jobs"))) {
        // a runner begins in another directory
        return std::path::absolute(&jobs).with_context(|| format!("find '{}'", jobs.display()));
    }
    // a relative path there is to be ignored, as its specification says
    if let Some(state) = named("XDG_STATE_HOME").filter(|state| state.is_absolute()) {
        return Ok(state.join("zmove/jobs"));
    }
    let home = std::env::home_dir().context("no home directory: set HOME or ZMOVE_JOBS")?;
    Ok(home.join(".local/state/zmove/jobs"))
}

/// The settings of the daemon of this host, which belong to root.
pub(crate) const SERVICE_HOME: &str = "/etc/zmove";

/// The state of that daemon, which belongs to the daemon's user.
pub(crate) const SERVICE_STATE: &str = "/var/lib/zmove";

/// The directory of the socket of a daemon that runs by `docs/systemd/zmove.service`.
pub(crate) const SERVICE_RUNTIME: &str = "/run/zmove";

/// The settings by which a host is asked something in a few words.
pub(crate) fn ask_dial() -> DialSettings {
    DialSettings {
        unknown_host: UnknownHost::Ask(Arc::new(Prompt)),
        ..DialSettings::default()
    }
}

/// Raises the limit of open files as far as it goes: descriptors are held for directories, files and lanes.
pub(crate) fn prepare_process() {
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves the limit as it was, which is handled where descriptors run out.
    let _refused = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    // The kernel names a process after the file that it executes, which may be `/proc/self/exe`.
    let _a_mere_name = rustix::thread::set_name(c"zmove");
}

/// Runs work that waits for few connections, on so many threads. Tasks that block a thread are not waited for at the
/// end.
pub(crate) fn block_on<T>(threads: usize, work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime::build(&mut Builder::new_multi_thread(), threads)?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// The way in which storage is reached.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) file_io: Arc<dyn FileIo>,
    pub(crate) direct: Direct,
}

/// The storage engine that was asked for, or the one that works here; `tell` gets the reason then.
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
