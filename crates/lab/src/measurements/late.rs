//! `zmove-lab late` mounts a directory on storage with high latency, similar to Lustre, GPFS and NFS, for a command to
//! copy from or to.
//!
//! The mount is a FUSE file system over a directory of this machine. Each metadata operation and each flush waits
//! before it is executed, and optionally each read and write does too. Many operations may be in flight at the same
//! time. The total rate of reads and writes may be limited. In addition to the delays, the restrictions of the kernel
//! apply: it serializes creates, renames and removals in the same directory, and writes beyond the end of the same
//! file.

pub(crate) mod bare;
mod memory;
mod nodes;
mod open_files;
mod operations;
mod pace;
mod passthrough;
pub(crate) mod place;
pub(crate) mod shared;
mod times;

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use fuser::{BackgroundSession, Config, INodeNo, MountOption};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::operations::Operations;
use self::passthrough::{Passthrough, Special};
use self::shared::Client;
use crate::data::volume::Volume;
use crate::session::Session;
use crate::units::{ByteCount, ByteRate, RoundTrip};

/// The latency and the limits of the storage.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delays {
    /// Duration of each metadata operation and each flush, in milliseconds.
    #[arg(long, default_value = "1")]
    delay: RoundTrip,
    /// Additional duration of each read and each write, in milliseconds. Each has at most 1 MiB.
    #[arg(long, default_value = "0")]
    data_delay: RoundTrip,
    /// Rate limit of all reads and writes together, such as 600MB/s. Default: no limit.
    #[arg(long)]
    rate: Option<ByteRate>,
    /// Maximum number of operations in flight.
    #[arg(long, default_value_t = DEPTH)]
    depth: u16,
    /// Total number of bytes that can be stored. Writes beyond that are accepted and lost. The error is returned when
    /// the file is flushed or closed, as NFS does at the end of a quota. Default: no limit.
    #[arg(long)]
    room: Option<ByteCount>,
    /// A deviation from POSIX. Default: none.
    #[arg(long, value_enum)]
    deviation: Option<Deviation>,
}

/// A deviation of a file system from POSIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deviation {
    /// A request that sets only one of the two times is ignored, as by bindfs and encfs.
    SingleTimesIgnored,
    /// Times cannot be set. The request is ignored.
    TimesIgnored,
    /// Modes cannot be set. Each file has mode 0777, as with ntfs-3g.
    ModesIgnored,
    /// A request that sets a mode is rejected.
    ModesRefused,
    /// Owners cannot be set. The request is ignored.
    OwnersIgnored,
    /// Files have length 0 whatever they contain, like documents of a web service.
    LengthsHidden,
}

/// A mount and the command that uses it.
#[derive(Args, Debug)]
pub(crate) struct LateArgs {
    #[command(flatten)]
    delays: Delays,
    /// Directory to serve. Default: an empty directory on a file system in memory.
    #[arg(long)]
    over: Option<PathBuf>,
    /// While this file exists, flushes are not answered, as if the server did not respond.
    #[arg(long, value_name = "FILE")]
    stall: Option<PathBuf>,
    /// While this file exists, every operation fails with ESTALE, as if the file server had lost its state.
    #[arg(long, value_name = "FILE")]
    stale: Option<PathBuf>,
    /// Size of the file system in memory.
    #[arg(long, default_value = "2GiB")]
    image: ByteCount,
    /// Command to run. ZMOVE_LAB_LATE is set to the mount, and ZMOVE_LAB_OVER to the directory below it, which has no
    /// delays. Default: wait for the end of standard input.
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// A directory with high latency, which is unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Late {
    root: PathBuf,
    operations: Arc<Operations>,
    session: Option<BackgroundSession>,
}

impl Late {
    /// Mounts `over` at `root`.
    pub(crate) fn mount(root: PathBuf, over: &Path, delays: Delays) -> Result<Self> {
        Self::serve(root, over, delays, Special::default())
    }

    /// Mounts `over` at `root` for one of several clients.
    pub(crate) fn mount_shared(root: PathBuf, over: &Path, client: Client) -> Result<Self> {
        let none = RoundTrip(Duration::ZERO);
        let delays = Delays {
            delay: none,
            data_delay: none,
            rate: None,
            depth: SHARED_DEPTH,
            room: None,
            deviation: None,
        };
        let client = Some(client);
        let special = Special {
            client,
            ..Special::default()
        };
        Self::serve(root, over, delays, special)
    }

    fn serve(root: PathBuf, over: &Path, delays: Delays, special: Special) -> Result<Self> {
        // This process holds a descriptor for each file that the kernel knows.
        let maximum = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, limit).context("failed to raise the limit of descriptors")?;
        memory::map_large_buffers();
        let operations = Arc::new(Operations::default());
        let served = Passthrough::new(over, delays, special, Arc::clone(&operations))
            .with_context(|| format!("failed to open {}", over.display()))?;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("zmove-lab".into()),
            MountOption::Subtype("late".into()),
        ];
        config.n_threads = Some(usize::from(delays.depth));
        let session = fuser::Session::new(served, &root, &config)
            .and_then(fuser::Session::spawn)
            .context("failed to mount by /dev/fuse")?;
        Ok(Self {
            root,
            operations,
            session: Some(session),
        })
    }

    /// Makes the kernel forget a removed name in the root and everything below it. Otherwise this process would keep
    /// the files open, and their space would not be freed.
    pub(crate) fn forget(&self, name: &OsStr) -> Result<()> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        match session.notifier().inval_entry(INodeNo::ROOT, name) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("failed to forget {}", name.display()))
            }
            _done_or_not_known => Ok(()),
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.session.take().map(BackgroundSession::umount_and_join) {
            eprintln!(
                "zmove-lab: failed to unmount {}: {error}",
                self.root.display()
            );
        }
    }
}

/// Mounts the directory and runs the command. Prints the number of operations of each kind and how many were in flight
/// at the same time.
pub(crate) fn late(arguments: &LateArgs) -> Result<ExitCode> {
    let session = Session::open()?;
    let volume = match arguments.over {
        Some(_) => None,
        None => Some(Volume::create(&session, arguments.image)?),
    };
    let over = match (&arguments.over, &volume) {
        (Some(over), _) => over.clone(),
        (None, Some(volume)) => volume.fresh_directory()?,
        (None, None) => bail!("there is nothing to serve"),
    };
    let special = Special {
        stall: arguments.stall.clone(),
        stale: arguments.stale.clone(),
        ..Special::default()
    };
    let root = session.subdirectory("late")?;
    let late = Late::serve(root, &over, arguments.delays, special)?;
    let code = match arguments.command.split_first() {
        Some((program, rest)) => {
            let mut command = Command::new(program);
            command
                .args(rest)
                .env("ZMOVE_LAB_LATE", &late.root)
                .env("ZMOVE_LAB_OVER", &over);
            let status = command.status();
            let status = status.with_context(|| format!("failed to run {}", program.display()))?;
            status.code().map_or(ExitCode::FAILURE, |code| {
                ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
            })
        }
        None => {
            eprintln!(
                "zmove-lab: {} answers late; the end of standard input ends it",
                late.root.display()
            );
            std::io::stdin()
                .read_to_end(&mut Vec::new())
                .context("failed to wait")?;
            ExitCode::SUCCESS
        }
    };
    eprintln!("{}", late.operations);
    Ok(code)
}

/// Default limit of operations in flight. No tool in this lab has more.
const DEPTH: u16 = 300;
/// Maximum number of operations in flight per client. It is larger than the number of a receiver's writing threads, and
/// there may be many clients.
const SHARED_DEPTH: u16 = 64;
