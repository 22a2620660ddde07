//! The arguments of `zmove clean`.

use std::ffi::OsString;

use crate::args::help;
use crate::args::shared::dial::DialArgs;

#[derive(Debug, clap::Args)]
#[command(after_long_help = help::CLEAN_LONG)]
pub(crate) struct CleanArgs {
    /// Tree to clean: a local directory, HOST:PATH or USER@HOST:PATH, as for the target of 'push'
    #[arg(value_name = "TARGET")]
    pub(crate) target: OsString,
    /// List the entries that would be removed, and remove nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Print events as JSON lines on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dial: DialArgs,
}
