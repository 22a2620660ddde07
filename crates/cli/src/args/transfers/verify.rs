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
pub(crate) struct VerifyArgs {
    /// What to compare, and last what with, as for 'push', 'pull' and 'copy': 'zmove verify run7/ HOST:/data/x' says
    /// whether the target of 'zmove push run7/ HOST:/data/x' is what is in run7. Either may be on another host, or both
    #[arg(required = true, num_args = 1.., value_names = ["SRC", "DST"])]
    pub(crate) paths: Vec<OsString>,
    /// Compare with the hashes in FILE, as 'push --manifest' or b3sum has written it, in the place of DST; '-' reads
    /// from stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Say nothing of what is at the target alone; with --manifest, of files that it does not list
    #[arg(long)]
    pub(crate) one_way: bool,
    /// How long to wait for a receiver that is busy, for example 90s, 5min or 1h; 0: not at all
    #[arg(long, value_name = "TIME", default_value = "5min")]
    timeout: Timeout,
    /// Print events as JSON lines on stdout instead of a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
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
    /// A verification is a dry run that compares contents, on both sides by what the storage holds.
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
        } = args;
        // what is at the target alone, the list says itself
        let delete = !one_way && selection.files_from.is_none() && manifest.is_none();
        Self {
            verify: true,
            dry_run: true,
            checksum: true,
            delete,
            // what could not be read is told, and so is what is at the target alone
            ignore_errors: true,
            // what would be removed is told in any case
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
            ..Self::default()
        }
    }
}
