//! The arguments of `zmove clean`.

use std::ffi::OsString;

use crate::args::help;
use crate::args::shared::dial::DialArgs;

#[derive(Debug, clap::Args)]
#[command(after_long_help = help::CLEAN_LONG)]
pub(crate) struct CleanArgs {
    /// The tree to clean, written like the target of 'push': a directory here, HOST:PATH or USER@HOST:PATH
    #[arg(value_name = "TARGET")]
    pub(crate) target: OsString,
    /// List what would be removed, and remove nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Print events as JSON lines on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dial: DialArgs,
}
