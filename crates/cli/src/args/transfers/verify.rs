//! The arguments of `zmove verify`.

use std::ffi::OsString;
use std::path::PathBuf;

use zmove_engine::Timeout;

use crate::args::help;
use crate::args::shared::dial::DialArgs;
use crate::args::shared::keeping::KeepingArgs;
use crate::args::shared::selection::SelectionArgs;
use crate::args::shared::storage::StorageArgs;
use crate::args::transfers::push::{DeltaArg, DurabilityArg, PushArgs};

#[derive(Debug, clap::Args)]
#[command(override_usage = help::VERIFY_USAGE, after_help = help::VERIFY_SHORT, after_long_help = help::VERIFY_LONG)]
#[command(args_override_self = true, mut_args(|arg| arg.hide_short_help(true)))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct VerifyArgs {
    /// Sources, followed by the copy to compare with, as for 'push', 'pull' and 'copy'
    ///
    /// 'zmove verify run7/ HOST:/data/x' checks whether the target of 'zmove push run7/ HOST:/data/x' equals the
    /// contents of run7. Either side, or both, may be on another host.
    #[arg(required = true, num_args = 1.., value_names = ["SRC", "DST"])]
    pub(crate) paths: Vec<OsString>,
    /// Compare with the hashes in FILE instead of DST; '-' reads stdin
    ///
    /// 'push --manifest' and b3sum write such a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Ignore entries that exist only at the target, or with --manifest, files that it does not list
    #[arg(long)]
    pub(crate) one_way: bool,
    /// How long to wait for a busy receiver: 90s, 5min or 1h; 0 means not at all
    #[arg(long, value_name = "TIME", default_value = "5min")]
    timeout: Timeout,
    /// Print events as JSON lines on stdout instead of a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only errors
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Show no progress, neither on a terminal nor in a log
    #[arg(long)]
    no_progress: bool,
    #[command(flatten)]
    dial: DialArgs,
    #[command(flatten)]
    keeping: KeepingArgs,
    #[command(flatten)]
    storage: StorageArgs,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
}

impl From<VerifyArgs> for PushArgs {
    /// Converts a verification to a dry run that compares contents. Both sides read the contents from storage.
    fn from(args: VerifyArgs) -> Self {
        let VerifyArgs {
            paths,
            manifest,
            one_way,
            dial,
            timeout,
            keeping,
            storage,
            selection,
            json,
            quiet,
            no_progress,
        } = args;
        // A list or a manifest already defines the entries to compare.
        let delete = !one_way && selection.files_from.is_none() && manifest.is_none();
        Self {
            verify: true,
            dry_run: true,
            checksum: true,
            delete,
            // Without this setting, entries that exist only at the target would not be reported after a read error.
            ignore_errors: true,
            // Without this setting, an empty source would be refused. Even then, entries that exist only at the target
            // must be reported.
            allow_empty: true,
            delta: DeltaArg::Never,
            durability: DurabilityArg::None,
            paths,
            dial,
            timeout,
            keeping,
            storage,
            selection,
            json,
            quiet,
            no_progress,
            ..Self::default()
        }
    }
}
