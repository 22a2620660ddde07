//! The arguments of `zmove push`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use zmove_engine::Timeout;
use zmove_types::RateLimit;

use super::dial::DialArgs;
use super::keeping::KeepingArgs;
use super::selection::SelectionArgs;
use super::storage::StorageArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = PUSH_HELP, override_usage = "zmove push [OPTIONS] <SRC>... <DST>")]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct PushArgs {
    /// What to send ('dir' arrives under its name, 'dir/' means what is in it), and last where to: HOST:PATH,
    /// HOST:PORT:PATH, zmove://HOST:PORT/PATH, [IPv6]:PORT:PATH, USER@HOST:PATH (over ssh) or a local directory
    #[arg(required = true, num_args = 2.., value_names = ["SRC", "DST"])]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) dial: DialArgs,
    /// Data connections, 1 to 64 [default: by round trip time and cores, then as many as help]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) streams: Option<u16>,
    /// Compare files that are there already by contents, not by size and time
    #[arg(short, long)]
    pub(crate) checksum: bool,
    /// Send of large files that have changed only what the target's version does not have [auto: unless the
    /// path is known to be faster than reading that]
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) delta: DeltaArg,
    /// Leave files that are newer at the target than here
    #[arg(short, long)]
    pub(crate) update: bool,
    /// Leave what is at the target already, but for mode and time of directories
    #[arg(long)]
    pub(crate) ignore_existing: bool,
    /// Change files that are there in their place, so that they keep their inode and need no second copy's room; a
    /// push that breaks off leaves such a file partly changed
    #[arg(long)]
    pub(crate) inplace: bool,
    /// At the end remove what is at the target below the directories sent and not in them; nothing is removed when
    /// any directory or file of the source could not be read, or not be stored at the target, and nothing from
    /// directories that changed at the source meanwhile (exit code 23; the same command removes it)
    #[arg(long)]
    pub(crate) delete: bool,
    /// With --delete: remove also when something could not be read or stored, but nothing below what was not read
    #[arg(long, requires = "delete")]
    pub(crate) ignore_errors: bool,
    /// With --delete: remove no more than N files and directories; what is over stays (exit code 25)
    #[arg(long, value_name = "N", requires = "delete")]
    pub(crate) max_delete: Option<u64>,
    /// Change nothing, and list what would be done: '+ NEW', '~ CHANGED (WHY)', '- REMOVED'
    #[arg(short = 'n', long, conflicts_with_all = ["manifest", "trace"])]
    pub(crate) dry_run: bool,
    /// What exit code 0 promises: nothing is flushed, all is, or each file is before it gets its name
    #[arg(long, value_enum, default_value_t = DurabilityArg::End)]
    pub(crate) durability: DurabilityArg,
    /// Write the BLAKE3 of each file sent, as 'b3sum --check' reads it in the target directory
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Send no faster than this per second over all data connections, for example 5Gbit, 500Mbit, 100MB or 100MiB
    #[arg(long, value_name = "RATE")]
    pub(crate) limit: Option<RateLimit>,
    /// How long to go on without a connection once it is lost, and to wait for a receiver that is busy, for
    /// example 90s, 5min or 1h; 0: not at all
    #[arg(long, value_name = "TIME", default_value = "5min")]
    pub(crate) timeout: Timeout,
    /// Encryption of the data connections; with 'none' whoever is on the path can read what is sent
    #[arg(long, value_enum, default_value_t)]
    pub(crate) cipher: CipherArg,
    /// Write how far each stage is, ten times a second, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Whether this is `zmove verify`.
    #[arg(skip)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) keeping: KeepingArgs,
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Print events as JSON lines on stdout instead of a bar and a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

const PUSH_HELP: &str = "\
A path on the receiver that starts with '/' must lie in one of your roots there; another is below
the first of them. Missing directories are made. Running the same command again sends only what is
missing or differs. Every byte is hashed when read and again before it is stored; a file gets its
name only when it is whole, but for what --inplace changes.";

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Nothing is flushed
    None,
    /// Everything is on stable storage at exit
    End,
    /// Each file is on stable storage before it gets its name
    File,
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
