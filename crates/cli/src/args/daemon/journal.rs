//! The arguments of `zmove journal`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::args::help;
use crate::value::age::Age;

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Show the unfinished transfers: to where, by whom, since when, and how much of each large file is here
    List {
        /// Print each journal as a JSON object on a line
        #[arg(long)]
        json: bool,
        /// The only directory; root gives it to a child process
        #[arg(long = "in", value_name = "DIR", hide = true)]
        directory: Option<PathBuf>,
    },
    /// Remove unfinished transfers that nobody has come back for, with their part files
    Clean(JournalCleanArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = help::JOURNAL_CLEAN_LONG)]
pub(crate) struct JournalCleanArgs {
    /// Transfers that were last written so long ago: 90s, 30min, 12h, 7d, 2w
    #[arg(long, value_name = "AGE", default_value = "7d")]
    pub(crate) older_than: Age,
    /// All that are not in use, of any age, also those whose target cannot be reached now
    #[arg(long, conflicts_with = "older_than")]
    pub(crate) all: bool,
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The only directory; root gives it to a child process
    #[arg(long = "in", value_name = "DIR", hide = true)]
    pub(crate) directory: Option<PathBuf>,
    /// Only part files below this directory; may be repeated
    #[arg(
        long = "below",
        value_name = "DIR",
        hide = true,
        requires = "directory"
    )]
    pub(crate) roots: Vec<PathBuf>,
}
