//! The arguments of `zmove journal`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::args::help;
use crate::value::age::Age;

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// List unfinished transfers with target, sender, start time and the stored bytes of each large file
    List {
        /// Print the journals as JSON, one object per line
        #[arg(long)]
        json: bool,
        /// Use only this directory; root passes it to a child process
        #[arg(long = "in", value_name = "DIR", hide = true)]
        directory: Option<PathBuf>,
    },
    /// Remove abandoned transfers and their part files
    Clean(JournalCleanArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = help::JOURNAL_CLEAN_LONG)]
pub(crate) struct JournalCleanArgs {
    /// Minimum time since the transfer was last written: 90s, 30min, 12h, 7d, 2w
    #[arg(long, value_name = "AGE", default_value = "7d")]
    pub(crate) older_than: Age,
    /// Remove transfers of any age that are not in use, even if their target cannot be reached
    #[arg(long, conflicts_with = "older_than")]
    pub(crate) all: bool,
    /// List the transfers that would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Use only this directory; root passes it to a child process
    #[arg(long = "in", value_name = "DIR", hide = true)]
    pub(crate) directory: Option<PathBuf>,
    /// Consider only part files below this directory; may be repeated
    #[arg(
        long = "below",
        value_name = "DIR",
        hide = true,
        requires = "directory"
    )]
    pub(crate) roots: Vec<PathBuf>,
}
