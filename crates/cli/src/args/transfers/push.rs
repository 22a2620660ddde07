//! The arguments of `zmove push`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use zmove_engine::Timeout;
use zmove_receiver::ListedFiles;
use zmove_types::RateLimit;
use zmove_wire::{Open, Overwrite};

use crate::args::habits::{self, Bwlimit};
use crate::args::help;
use crate::args::shared::dial::DialArgs;
use crate::args::shared::keeping::KeepingArgs;
use crate::args::shared::selection::SelectionArgs;
use crate::args::shared::storage::StorageArgs;

#[derive(Debug, Default, clap::Args)]
#[command(override_usage = help::PUSH_USAGE, after_help = help::PUSH_SHORT, after_long_help = help::PUSH_LONG)]
#[command(args_override_self = true, args(habits::no_op_options()), mut_args(|arg| arg.hide_short_help(true)))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct PushArgs {
    /// What to send ('dir' arrives under its name, 'dir/' stands for its contents), followed by the target
    ///
    /// The target is HOST:PATH, HOST:PORT:PATH, zmove://HOST:PORT/PATH, [IPv6]:PORT:PATH, USER@HOST:PATH (over ssh) or
    /// a local directory.
    // Requires at least two paths, which need not be adjacent on the command line. `Args::read` counts the paths.
    #[arg(required = true, num_args = 1.., value_names = ["SRC", "DST"])]
    pub(crate) paths: Vec<OsString>,
    /// Start only if a file system is mounted at DIR on this host, else exit with code 10; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) require_mount: Vec<PathBuf>,
    /// Change nothing, and list what would be done: '+ NEW', '~ CHANGED (WHY)', '- REMOVED'
    #[arg(short = 'n', long, conflicts_with_all = ["manifest", "proofs", "trace"])]
    pub(crate) dry_run: bool,
    /// When data is flushed to stable storage at the target
    #[arg(long, value_enum, default_value_t)]
    pub(crate) durability: DurabilityArg,
    /// How each file is verified before it is renamed into place
    ///
    /// 'wire' checks the BLAKE3 hash of the received data. 'media' also flushes the file, reads it back from the
    /// target's storage past the page cache, and checks the hash again.
    #[arg(
        id = "proof",
        long = "verify",
        value_enum,
        value_name = "BY",
        default_value_t
    )]
    pub(crate) proof: ProofArg,
    /// Write the BLAKE3 hashes of all files, sent or already at the target, for 'b3sum --check' in the target directory
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Write how, by whom and when each file was verified, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) proofs: Option<PathBuf>,
    /// Write the progress of each stage as JSON lines, ten times per second
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print events as JSON lines on stdout instead of a progress bar and a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only errors
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Show no progress, neither on a terminal nor in a log
    #[arg(long)]
    pub(crate) no_progress: bool,
    // Options without a heading must come first, because the heading of a flattened group also applies to all later
    // options.
    #[command(flatten)]
    pub(crate) dial: DialArgs,
    /// Send from all nodes of this cluster to all of its receivers (see 'zmove cluster')
    ///
    /// DST is a path at the receivers. Each SRC is the same path on all nodes.
    #[arg(long, visible_alias = "nodes", value_name = "NAME", help_heading = PATH)]
    pub(crate) cluster: Option<String>,
    /// Number of data connections, 1 to 64 [default: by round-trip time and cores, then raised while that helps]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), help_heading = PATH)]
    pub(crate) streams: Option<u16>,
    /// Compare existing files by contents instead of size and time
    #[arg(short, long, help_heading = REPLACED)]
    pub(crate) checksum: bool,
    /// Send only those parts of large changed files that the target's version does not have
    ///
    /// With 'auto', large files are sent whole if the path is known to be faster than reading the target's version.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = REPLACED)]
    pub(crate) delta: DeltaArg,
    /// Skip files that are newer at the target
    #[arg(short, long, help_heading = REPLACED)]
    pub(crate) update: bool,
    /// Skip entries that exist at the target, but set the mode and time of directories
    #[arg(long, help_heading = REPLACED)]
    pub(crate) ignore_existing: bool,
    /// Update existing files in place
    ///
    /// The files keep their inodes, and no space for a second copy is needed. If the push is interrupted, such a file
    /// is left partly changed.
    #[arg(long, help_heading = REPLACED)]
    pub(crate) inplace: bool,
    /// Remove entries at the target that are not in the directories sent
    ///
    /// Entries are removed at the end of the push. Nothing is removed if any directory or file of the source could not
    /// be read or stored. Nothing is removed from a directory that changed at the source during the push. In both cases
    /// the exit code is 23, and the same command removes the entries.
    #[arg(long, help_heading = MIRROR)]
    pub(crate) delete: bool,
    /// With --delete: remove entries even if something could not be read or stored, but nothing below unread
    /// directories
    #[arg(long, requires = "delete", help_heading = MIRROR)]
    pub(crate) ignore_errors: bool,
    /// With --delete: empty the target even if a source directory is empty
    ///
    /// A source directory is also empty when its file system is not mounted.
    #[arg(long, requires = "delete", help_heading = MIRROR)]
    pub(crate) allow_empty: bool,
    /// With --delete: remove at most N files and directories; the others stay (exit code 25)
    #[arg(long, value_name = "N", requires = "delete", help_heading = MIRROR)]
    pub(crate) max_delete: Option<u64>,
    /// Replace a non-empty directory at the target with a file or link of the same name
    ///
    /// --delete implies this. Empty directories are always replaced.
    #[arg(long, help_heading = REPLACED)]
    pub(crate) force: bool,
    /// Maximum rate of all data connections together, per second, for example 5Gbit, 500Mbit, 100MB or 100MiB
    #[arg(long, value_name = "RATE", help_heading = PATH)]
    pub(crate) limit: Option<RateLimit>,
    /// rsync's form of --limit: KiB per second, or with a unit such as 10M (10 MiB); 0 means no limit
    #[arg(long, value_name = "RATE", conflicts_with = "limit", help_heading = habits::HEADING)]
    pub(crate) bwlimit: Option<Bwlimit>,
    /// rsync's -z: accepted, but nothing is compressed; a warning says so once
    #[arg(short = 'z', long, help_heading = habits::HEADING)]
    pub(crate) compress: bool,
    /// How long to retry a lost connection, and to wait for a busy receiver: 90s, 5min or 1h; 0 means not at all
    #[arg(long, value_name = "TIME", default_value = "5min", help_heading = PATH)]
    pub(crate) timeout: Timeout,
    /// Exit with code 13 instead of waiting for a busy receiver
    #[arg(long, help_heading = PATH)]
    pub(crate) no_wait: bool,
    /// Encryption of the data connections; with 'none', anyone on the path can read the data
    #[arg(long, value_enum, default_value_t, help_heading = PATH)]
    pub(crate) cipher: CipherArg,
    /// Whether this is `zmove verify`.
    #[arg(skip)]
    pub(crate) verify: bool,
    /// The files that `zmove verify --manifest` compares with. The last path has no meaning if this is set.
    #[arg(skip)]
    pub(crate) listed: Option<Arc<ListedFiles>>,
    #[command(flatten)]
    pub(crate) keeping: KeepingArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

const PATH: &str = "Network path";
const REPLACED: &str = "Existing files";
const MIRROR: &str = "Mirroring";

impl PushArgs {
    /// Returns the rate limit for the sum of all data connections.
    pub(crate) fn limit(&self) -> Option<RateLimit> {
        self.limit.or(self.bwlimit.and_then(|Bwlimit(rate)| rate))
    }

    /// Returns the maximum time that a session waits in the queue of a busy host.
    pub(crate) fn busy_timeout(&self) -> Timeout {
        if self.no_wait {
            Timeout::NONE
        } else {
            self.timeout
        }
    }

    /// Returns which existing files the transfer may replace.
    pub(crate) const fn overwrite(&self) -> Overwrite {
        match (self.ignore_existing, self.update) {
            (true, _) => Overwrite::Nothing,
            (false, true) => Overwrite::Older,
            (false, false) => Overwrite::Differing,
        }
    }

    /// Returns whether an interrupted transfer may be repeated without a person who knows about it.
    pub(crate) fn can_be_repeated(&self) -> bool {
        let open = Open {
            inplace: self.inplace,
            overwrite: self.overwrite(),
            ..Open::new(Vec::new(), [0; 16])
        };
        open.can_be_repeated()
    }

    /// Returns the time for which the transfer tries to reconnect after its connections were lost.
    pub(crate) fn retry_timeout(&self) -> Timeout {
        if self.can_be_repeated() {
            self.timeout
        } else {
            Timeout::NONE
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Nothing is flushed
    None,
    /// Everything is on stable storage when the command exits
    #[default]
    End,
    /// Each file is on stable storage before it is renamed into place
    File,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProofArg {
    /// The received data matches the sender's hashes
    #[default]
    Wire,
    /// The data read back from the target's storage matches them too
    Media,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CipherArg {
    /// TLS 1.3
    #[default]
    Tls,
    /// Names and contents are unencrypted but authenticated; the receiver must run with --allow-clear
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeltaArg {
    /// If it is likely to save time: not for a local target, and not if the path was faster than reading storage
    #[default]
    Auto,
    /// Whenever the target has another version of the file
    Always,
    /// Never; changed files are sent whole
    Never,
}
