//! What will run: where keys are, how many lanes, how storage is reached, and the process's own limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zmove_disk::{Direct, Disk, RingConfig, Threads, Unavailable, Uring};

use crate::args::{DirectArg, EngineArg, StorageArgs};

/// Whose keys are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The user's.
    Client,
    /// The receiver's: those of the host when it runs as root.
    Daemon,
}

/// The directory with `key.pem`, `known_hosts` and `authorized_keys`.
pub(crate) fn home(role: Role) -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("ZMOVE_HOME").filter(|home| !home.is_empty()) {
        return Ok(home.into());
    }
    if role == Role::Daemon && rustix::process::geteuid().is_root() {
        return Ok("/etc/zmove".into());
    }
    let home = std::env::home_dir().context("no home directory: set HOME or ZMOVE_HOME")?;
    Ok(home.join(".config/zmove"))
}

/// Where a receiver keeps the journals of what is unfinished.
pub(crate) fn journals(home: &Path) -> PathBuf {
    home.join("journal")
}

/// Where receivers that ssh has started tell each other which of their sessions are ending.
pub(crate) fn ending(home: &Path) -> PathBuf {
    home.join("ending")
}

/// Where a daemon keeps its journals: where the service manager says, else in its home.
pub(crate) fn daemon_journals(home: &Path) -> PathBuf {
    let given = std::env::var_os("STATE_DIRECTORY").filter(|given| !given.is_empty());
    journals(given.as_deref().map_or(home, Path::new))
}

/// Where a daemon that is run as a service keeps them by `docs/systemd/zmove.service`.
pub(crate) const SERVICE_JOURNALS: &str = "/var/lib/zmove/journal";

/// Raises the limit of open files as far as it goes: descriptors are held for directories, files and lanes.
pub(crate) fn prepare_process() {
    let limit = getrlimit(Resource::Nofile);
    // a refusal leaves the limit as it was, which is handled where descriptors run out
    let _refused = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// How storage is reached.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) direct: Direct,
    /// What the user should know: that another engine runs than was asked for.
    notice: Option<String>,
}

/// The storage that was asked for, or what there is; in that case the user is told.
pub(crate) fn storage(args: StorageArgs, tell: impl Fn(&str)) -> Storage {
    let storage = storage_with(args, || Uring::start(RingConfig::default()));
    if let Some(notice) = &storage.notice {
        tell(notice);
    }
    storage
}

fn storage_with(args: StorageArgs, start_uring: impl FnOnce() -> Result<Uring, Unavailable>) -> Storage {
    let direct = match args.direct {
        DirectArg::Auto => Direct::Auto,
        DirectArg::On => Direct::On,
        DirectArg::Off => Direct::Off,
    };
    let (disk, notice): (Arc<dyn Disk>, _) = match args.io_engine {
        // io_uring was not faster where it was measured: docs/PERFORMANCE.md
        EngineArg::Auto | EngineArg::Threads => (Arc::new(Threads), None),
        EngineArg::Uring => match start_uring() {
            Ok(uring) => (Arc::new(uring), None),
            Err(error) => {
                let reason = anyhow::Error::new(error);
                (Arc::new(Threads), Some(format!("{reason:#}: using threads instead")))
            }
        },
    };
    Storage { disk, direct, notice }
}

/// Lanes that are dialled before the round trip time is known.
pub(crate) const LANES_AT_ONCE: u16 = 12;
/// The rate that the lanes' windows together should be able to fill, in bytes per second: 10 Gbit/s.
pub(crate) const RATE_TARGET: f64 = 1.25e9;
/// Below this the path is local: windows are no matter, and each lane costs CPU.
pub(crate) const LOCAL_RTT: Duration = Duration::from_millis(2);

/// How many lanes suit a path: enough for the kernel's send windows to fill it, few where they are no limit.
pub(crate) fn lanes_for(rtt: Duration) -> u16 {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    lanes_for_machine(rtt, cores, send_window_max())
}

/// The same, where a connection may have so much in flight.
pub(crate) fn lanes_for_machine(rtt: Duration, cores: usize, window_bytes: f64) -> u16 {
    let by_cores = u16::try_from(cores.clamp(2, 16)).expect("clamped");
    if rtt < LOCAL_RTT {
        return by_cores;
    }
    let windows = (RATE_TARGET * rtt.as_secs_f64() / window_bytes).ceil().clamp(0.0, 32.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 32")]
    let by_window = windows as u16;
    by_window.max(by_cores).max(LANES_AT_ONCE)
}

/// How many connections suit QUIC: each has a thread here, and no window of the kernel's bounds it.
pub(crate) fn quic_lanes() -> u16 {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    u16::try_from((2 * cores).clamp(4, 8)).expect("clamped")
}

/// What the kernel's autotuning lets one connection have in flight, in bytes.
fn send_window_max() -> f64 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
    let bytes = text.split_whitespace().nth(2).and_then(|max| max.parse().ok());
    bytes.unwrap_or(4_194_304.0)
}

/// The congestion control that takes loss for no sign of a full path.
pub(crate) const LOSS_TOLERANT: &str = "bbr";

/// What this host's kernel has for users to choose.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Controls {
    /// The one that connections get.
    pub(crate) usual: String,
    /// Whether [`LOSS_TOLERANT`] is there and allowed.
    pub(crate) tolerant: bool,
}

/// The congestion controls of this host, if the kernel tells. What its administrator has not allowed to users is not used, also
/// by root, and nothing is loaded.
pub(crate) fn congestion_controls() -> Option<Controls> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok();
    let usual = read("tcp_congestion_control")?.trim().to_owned();
    let lists = ["tcp_available_congestion_control", "tcp_allowed_congestion_control"].map(read);
    let has = |list: &Option<String>| {
        list.as_ref().is_some_and(|list| list.split_whitespace().any(|word| word == LOSS_TOLERANT))
    };
    Some(Controls { usual, tolerant: lists.iter().all(has) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_engine_is_replaced_and_told_once() {
        let args = |io_engine| StorageArgs { io_engine, direct: DirectArg::On };
        let refused = || {
            let source = std::io::Error::from_raw_os_error(rustix::io::Errno::PERM.raw_os_error());
            Err(Unavailable::Setup { source })
        };
        let storage = storage_with(args(EngineArg::Uring), refused);
        assert_eq!((format!("{:?}", storage.disk).as_str(), storage.direct), ("Threads", Direct::On));
        let notice = storage.notice.unwrap();
        assert!(notice.starts_with("io_uring_setup is refused: Operation not permitted"), "{notice}");
        for engine in [EngineArg::Auto, EngineArg::Threads] {
            assert_eq!(storage_with(args(engine), refused).notice, None);
        }
    }

    #[test]
    fn lanes_follow_the_path_and_the_window() {
        let lanes = |ms, cores, mib: u32| {
            lanes_for_machine(Duration::from_micros(ms), cores, f64::from(mib) * 1_048_576.0)
        };
        assert_eq!(lanes(200, 2, 4), 2);
        assert_eq!(lanes(200, 64, 4), 16);
        assert_eq!(lanes(10_000, 2, 4), 12);
        assert_eq!(lanes(90_000, 2, 4), 27);
        assert_eq!(lanes(90_000, 2, 128), 12);
        assert_eq!(lanes(260_000, 2, 4), 32);
    }
}
