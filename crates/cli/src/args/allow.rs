//! The arguments of `zmove allow`: the senders that are let in.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Subcommand;
use zmove_engine::{LocationError, Remote};
use zmove_transport::{Expiry, Fingerprint};
use zmove_types::RateLimit;

use crate::value::age::Age;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "zmove allow [OPTIONS] --name <NAME> --root <DIR> <KEY>\n       zmove allow list|remove"
)]
pub(crate) struct AllowArgs {
    #[command(subcommand)]
    pub(crate) command: Option<AllowCommand>,
    #[command(flatten)]
    pub(crate) grant: Option<GrantArgs>,
}

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct GrantArgs {
    /// The sender's fingerprint, as 'zmove key show' prints it there
    #[arg(value_name = "KEY", required = true)]
    pub(crate) fingerprint: Fingerprint,
    /// A name for the sender, for the log
    #[arg(long, required = true)]
    pub(crate) name: String,
    /// A directory that the sender may use; may be given several times
    #[arg(long = "root", value_name = "DIR", required_unless_present = "read_roots")]
    pub(crate) roots: Vec<PathBuf>,
    /// The sender may write there
    #[arg(long, requires = "roots")]
    pub(crate) write: bool,
    /// The sender may read there, as 'zmove pull' does; without --write this is what it may do anyway
    #[arg(long, requires = "roots")]
    pub(crate) read: bool,
    /// A directory that it may only read, beside those of --root; may be given several times
    #[arg(long = "read-root", value_name = "DIR")]
    pub(crate) read_roots: Vec<PathBuf>,
    /// Another daemon that the sender may have files sent to from here by 'zmove copy': this host then dials that one;
    /// may be given several times
    #[arg(long = "to", value_name = "HOST[:PORT]", value_parser = parse_endpoint)]
    pub(crate) to: Vec<String>,
    /// Files that the sender writes keep their setuid and setgid bits: whoever runs them here has the rights
    /// of the daemon's user
    #[arg(long, requires = "write")]
    pub(crate) set_ids: bool,
    /// What the sender writes may get other owners, and setuid and setgid bits with them, and the sender may make
    /// devices and set capabilities and 'trusted.*' attributes; as far as the daemon's user may
    #[arg(long, requires = "write")]
    pub(crate) set_owner: bool,
    /// What all transfers of the sender together may take per second, for example 10Gbit or 500MB [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub(crate) max_rate: Option<RateLimit>,
    /// When the sender is not let in any more, in UTC or from now: 2027-01-31, 2027-01-31T18:00:00Z, 90d
    /// [default: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    pub(crate) expires: Option<Expiry>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AllowCommand {
    /// Show the senders that are let in, and what they may do
    List {
        /// Print each sender as a JSON object on a line
        #[arg(long)]
        json: bool,
    },
    /// Let a key, or all keys of a name, in no more; what is running goes on to its end
    Remove {
        /// A fingerprint, or a name
        #[arg(value_name = "KEY|NAME")]
        key_or_name: String,
    },
}

/// Checks that the text names a daemon.
fn parse_endpoint(text: &str) -> Result<String, LocationError> {
    Remote::parse_endpoint(text).map(|_| text.to_owned())
}

fn parse_expiry(text: &str) -> Result<Expiry, String> {
    let span = || text.parse::<Age>().ok().and_then(|Age(span)| Expiry::after(SystemTime::now(), span));
    text.parse()
        .or_else(|_| span().ok_or_else(|| format!("'{text}' is no date, time in UTC or span of time as 90d")))
}
