//! `zmove-lab late`: a directory on storage that answers late, as Lustre, GPFS and NFS do, for a command to
//! copy from or to.
//!
//! The mount is a FUSE file system over a directory of this machine. Each metadata operation and each flush
//! sleeps before it is done, and where that is asked for each read and write too; many may be under way at once.
//! All reads and writes together may be held to a rate. Beside the delays the kernel's own rules hold: it takes
//! creates, renames and removals in one directory one after the other, and what is written behind the end of a file.

pub(crate) mod bare;
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

/// What answers how late.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delays {
    /// How long each metadata operation and each flush takes, in milliseconds.
    #[arg(long, default_value = "1")]
    delay: RoundTrip,
    /// How long each read and each write takes beside that, in milliseconds; they are of 1 MiB at most.
    #[arg(long, default_value = "0")]
    data_delay: RoundTrip,
    /// What all reads and writes move together at most, such as 600MB/s. Default: no limit.
    #[arg(long)]
    rate: Option<ByteRate>,
    /// How many operations may be under way at once.
    #[arg(long, default_value_t = DEPTH)]
    depth: u16,
    /// Bytes that are stored in all. What is written beyond them is accepted and lost, and the error comes when the
    /// file is flushed or closed, as NFS answers at the end of a quota. Default: no limit.
    #[arg(long)]
    room: Option<ByteCount>,
    /// What the file system does otherwise than POSIX says. Default: nothing.
    #[arg(long, value_enum)]
    deviation: Option<Deviation>,
}

/// What a file system does otherwise than POSIX says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deviation {
    /// A request that sets one of the two times alone is ignored, as by bindfs and encfs.
    SingleTimesIgnored,
    /// Times are not set.
    TimesIgnored,
    /// Modes are not set: each file has 0777, as with ntfs-3g.
    ModesIgnored,
    /// A request that sets a mode is refused.
    ModesRefused,
    /// Owners are not set.
    OwnersIgnored,
    /// Files have the length 0 whatever they contain, as documents of a web service do.
    LengthsHidden,
}

/// A mount, and what to do with it.
#[derive(Args, Debug)]
pub(crate) struct LateArgs {
    #[command(flatten)]
    delays: Delays,
    /// Directory that is served. Default: an empty one, on a file system in memory.
    #[arg(long)]
    over: Option<PathBuf>,
    /// While there is such a file, no flush is answered, as where a server does not answer.
    #[arg(long, value_name = "FILE")]
    stall: Option<PathBuf>,
    /// While there is such a file, every operation fails with ESTALE, as where a file server has lost its state.
    #[arg(long, value_name = "FILE")]
    stale: Option<PathBuf>,
    /// Size of that file system.
    #[arg(long, default_value = "2GiB")]
    image: ByteCount,
    /// Command to run with ZMOVE_LAB_LATE set to the mount and ZMOVE_LAB_OVER to what is below it, without
    /// delays. Default: wait for the end of standard input.
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// A directory that answers late; unmounted when dropped.
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

    /// Mounts `over`, which others have mounted too, at `root` for one of them.
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
        // each file that the kernel knows holds a descriptor here
        let maximum = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, limit).context("failed to raise the limit of descriptors")?;
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

    /// Lets the kernel forget a name in the root, which is no longer there, and all below it: a file that it knows is
    /// held open here, and keeps its room.
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

/// Mounts, runs the command, and prints how many operations of each kind came, and how many at once.
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

/// More than any tool here has under way.
const DEPTH: u16 = 300;
/// Of each client, of which there may be many: more than a receiver's threads for writing.
const SHARED_DEPTH: u16 = 64;
