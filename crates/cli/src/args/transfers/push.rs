//! The arguments of `zmove push`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use zmove_engine::Timeout;
use zmove_receiver::ListedFiles;
use zmove_types::RateLimit;

use crate::args::habits::{self, Bwlimit};
use crate::args::help;
use crate::args::shared::dial::DialArgs;
use crate::args::shared::keeping::KeepingArgs;
use crate::args::shared::selection::SelectionArgs;
use crate::args::shared::storage::StorageArgs;

#[derive(Debug, Default, clap::Args)]
#[command(override_usage = help::PUSH_USAGE, after_help = help::PUSH_SHORT, after_long_help = help::PUSH_LONG)]
#[command(args_override_self = true, args(habits::without_meaning()), mut_args(|arg| arg.hide_short_help(true)))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct PushArgs {
    /// What to send ('dir' arrives under its name, 'dir/' means what is in it), and last where to: HOST:PATH,
    /// HOST:PORT:PATH, zmove://HOST:PORT/PATH, [IPv6]:PORT:PATH, USER@HOST:PATH (over ssh) or a local directory
    // Two at least, which may stand apart: `Args::read` counts them.
    #[arg(required = true, num_args = 1.., value_names = ["SRC", "DST"])]
    pub(crate) paths: Vec<OsString>,
    /// Begin only if a file system is mounted at DIR of this host; may be repeated (exit code 10)
    #[arg(long, value_name = "DIR")]
    pub(crate) require_mount: Vec<PathBuf>,
    /// Change nothing, and list what would be done: '+ NEW', '~ CHANGED (WHY)', '- REMOVED'
    #[arg(short = 'n', long, conflicts_with_all = ["manifest", "proofs", "trace"])]
    pub(crate) dry_run: bool,
    /// What exit code 0 promises: nothing is flushed, all is, or each file is before it gets its name
    #[arg(long, value_enum, default_value_t)]
    pub(crate) durability: DurabilityArg,
    /// What each file is proven by before it gets its name: the BLAKE3 of what arrived, or also of what the target's
    /// storage gives back, flushed and past the page cache
    #[arg(
        id = "proof",
        long = "verify",
        value_enum,
        value_name = "BY",
        default_value_t
    )]
    pub(crate) proof: ProofArg,
    /// Write the BLAKE3 of each file, sent now or there already, as 'b3sum --check' reads it in the target directory
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Write what each file was proven by, by whom and when, as lines of JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) proofs: Option<PathBuf>,
    /// Write how far each stage is, ten times a second, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print events as JSON lines on stdout instead of a bar and a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    // Options without a heading stand above: a heading of a part holds for what follows it.
    #[command(flatten)]
    pub(crate) dial: DialArgs,
    /// Send by all nodes of this cluster ('zmove cluster') to all of its receivers; DST is a path there, and SRC are
    /// the same paths on all nodes
    #[arg(long, visible_alias = "nodes", value_name = "NAME", help_heading = PATH)]
    pub(crate) cluster: Option<String>,
    /// Data connections, 1 to 64 [default: by round trip time and cores, then as many as help]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), help_heading = PATH)]
    pub(crate) streams: Option<u16>,
    /// Compare files that are there already by contents, not by size and time
    #[arg(short, long, help_heading = REPLACED)]
    pub(crate) checksum: bool,
    /// Send of large files that have changed only what the target's version does not have [auto: unless the
    /// path is known to be faster than reading that]
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = REPLACED)]
    pub(crate) delta: DeltaArg,
    /// Leave files that are newer at the target than here
    #[arg(short, long, help_heading = REPLACED)]
    pub(crate) update: bool,
    /// Leave what is at the target already, but for mode and time of directories
    #[arg(long, help_heading = REPLACED)]
    pub(crate) ignore_existing: bool,
    /// Change files that are there in their place, so that they keep their inode and need no second copy's room; a
    /// push that breaks off leaves such a file partly changed
    #[arg(long, help_heading = REPLACED)]
    pub(crate) inplace: bool,
    /// At the end remove what is at the target below the directories sent and not in them; nothing is removed when
    /// any directory or file of the source could not be read, or not be stored at the target, and nothing from
    /// directories that changed at the source meanwhile (exit code 23; the same command removes it)
    #[arg(long, help_heading = MIRROR)]
    pub(crate) delete: bool,
    /// With --delete: remove also when something could not be read or stored, but nothing below what was not read
    #[arg(long, requires = "delete", help_heading = MIRROR)]
    pub(crate) ignore_errors: bool,
    /// With --delete: empty the target also where a source directory is empty, as it is when its file system is not
    /// mounted
    #[arg(long, requires = "delete", help_heading = MIRROR)]
    pub(crate) allow_empty: bool,
    /// With --delete: remove no more than N files and directories; what is over stays (exit code 25)
    #[arg(long, value_name = "N", requires = "delete", help_heading = MIRROR)]
    pub(crate) max_delete: Option<u64>,
    /// Replace a directory that has the name of a file or link sent, with all that is in it; --delete does so too, and
    /// an empty directory is always replaced
    #[arg(long, help_heading = REPLACED)]
    pub(crate) force: bool,
    /// Send no faster than this per second over all data connections, for example 5Gbit, 500Mbit, 100MB or 100MiB
    #[arg(long, value_name = "RATE", help_heading = PATH)]
    pub(crate) limit: Option<RateLimit>,
    /// rsync's --limit: in KiB per second, or with a unit as 10M, which is 10MiB; 0 is no limit
    #[arg(long, value_name = "RATE", conflicts_with = "limit", help_heading = habits::HEADING)]
    pub(crate) bwlimit: Option<Bwlimit>,
    /// rsync's letter: nothing is compressed, which is said once
    #[arg(short = 'z', long, help_heading = habits::HEADING)]
    pub(crate) compress: bool,
    /// How long to go on without a connection once it is lost, and to wait for a receiver that is busy, for
    /// example 90s, 5min or 1h; 0: not at all
    #[arg(long, value_name = "TIME", default_value = "5min", help_heading = PATH)]
    pub(crate) timeout: Timeout,
    /// Do not wait for a receiver that is busy, but end with 13 at once
    #[arg(long, help_heading = PATH)]
    pub(crate) no_wait: bool,
    /// Encryption of the data connections; with 'none' whoever is on the path can read what is sent
    #[arg(long, value_enum, default_value_t, help_heading = PATH)]
    pub(crate) cipher: CipherArg,
    /// Whether this is `zmove verify`.
    #[arg(skip)]
    pub(crate) verify: bool,
    /// What `zmove verify --manifest` compares with; the last path has no meaning then.
    #[arg(skip)]
    pub(crate) listed: Option<Arc<ListedFiles>>,
    #[command(flatten)]
    pub(crate) keeping: KeepingArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

const PATH: &str = "The path";
const REPLACED: &str = "What is replaced";
const MIRROR: &str = "Mirrors";

impl PushArgs {
    /// The rate that all data connections together keep below.
    pub(crate) fn limit(&self) -> Option<RateLimit> {
        self.limit.or(self.bwlimit.and_then(|Bwlimit(rate)| rate))
    }

    /// How long one session waits in the queue of a host that is busy.
    pub(crate) fn busy_timeout(&self) -> Timeout {
        if self.no_wait {
            Timeout::NONE
        } else {
            self.timeout
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Nothing is flushed
    None,
    /// Everything is on stable storage at exit
    #[default]
    End,
    /// Each file is on stable storage before it gets its name
    File,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProofArg {
    /// What arrived has the sender's hashes
    #[default]
    Wire,
    /// So has what is read back from the target's storage
    Media,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CipherArg {
    /// TLS 1.3
    #[default]
    Tls,
    /// Names and contents in clear, still authenticated; the receiver must run with --allow-clear
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeltaArg {
    /// Where it is likely to pay: not for a local target, nor on a path that was faster than storage is read
    #[default]
    Auto,
    /// Wherever there is another version
    Always,
    /// Never: files that have changed are sent as a whole
    Never,
}
