//! The arguments of `zmove allow`: the senders that are let in.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Subcommand;
use zmove_engine::{LocationError, Remote};
use zmove_transport::{Expiry, Fingerprint};
use zmove_types::RateLimit;

use crate::args::daemon::operate::ControlArgs;
use crate::value::age::Age;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    override_usage = "zmove allow [OPTIONS] --name <NAME> --root <DIR> <KEY>\n       zmove allow list|remove"
)]
pub(crate) struct AllowArgs {
    #[command(subcommand)]
    pub(crate) command: Option<AllowCommand>,
    #[command(flatten)]
    pub(crate) grant: Option<GrantArgs>,
}

#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct GrantArgs {
    /// The sender's fingerprint, as 'zmove key show' prints it there
    #[arg(value_name = "KEY", required = true)]
    pub(crate) fingerprint: Fingerprint,
    /// A name for the sender, for the log
    #[arg(long, required = true)]
    pub(crate) name: String,
    /// A directory that it may use; may be repeated
    #[arg(
        long = "root",
        value_name = "DIR",
        required_unless_present = "read_roots"
    )]
    pub(crate) roots: Vec<PathBuf>,
    /// The sender may write there
    #[arg(long, requires = "roots")]
    pub(crate) write: bool,
    /// The sender may read there, as 'zmove pull' does
    ///
    /// Without --write this is what it may do anyway.
    #[arg(long, requires = "roots")]
    pub(crate) read: bool,
    /// A directory that it may only read; may be repeated
    #[arg(long = "read-root", value_name = "DIR")]
    pub(crate) read_roots: Vec<PathBuf>,
    /// A daemon that it may have files sent to from here
    ///
    /// 'zmove copy' does so: this host then dials that one. May be repeated.
    #[arg(long = "to", value_name = "HOST[:PORT]", value_parser = parse_endpoint)]
    pub(crate) to: Vec<String>,
    /// Files keep their setuid and setgid bits
    ///
    /// Whoever runs them here has the rights of the daemon's user.
    #[arg(long, requires = "write", hide_short_help = true)]
    pub(crate) set_ids: bool,
    /// Files may get other owners, and devices be made
    ///
    /// With other owners setuid and setgid bits are kept, and the sender may set capabilities and 'trusted.*'
    /// attributes; all as far as the daemon's user may.
    #[arg(long, requires = "write")]
    pub(crate) set_owner: bool,
    /// The sender may lead jobs of several receivers
    ///
    /// Needed for 'zmove push SRC host1,host2:DST' and for the node of a cluster that begins pushes. Whoever has this
    /// can end and replace the jobs of others below the same directories.
    #[arg(long, requires = "write", hide_short_help = true)]
    pub(crate) lead: bool,
    /// The rate of all its transfers together, say 10Gbit
    ///
    /// Per second, for example 10Gbit or 500MB. [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub(crate) max_rate: Option<RateLimit>,
    /// Until when: 2027-01-31 in UTC, or 90d from now
    ///
    /// Also 2027-01-31T18:00:00Z. [default: never]
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
    /// Let a key, or all keys of a name, in no more
    ///
    /// What is running goes on to its end, unless you say --now.
    Remove {
        /// A fingerprint, or a name
        #[arg(value_name = "KEY|NAME")]
        key_or_name: String,
        /// End what it has under way at this host's daemon, too
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        control: ControlArgs,
    },
}

/// Checks that the text names a daemon.
fn parse_endpoint(text: &str) -> Result<String, LocationError> {
    Remote::parse_endpoint(text).map(|_| text.to_owned())
}

fn parse_expiry(text: &str) -> Result<Expiry, String> {
    let span = || {
        text.parse::<Age>()
            .ok()
            .and_then(|Age(span)| Expiry::after(SystemTime::now(), span))
    };
    text.parse().or_else(|_| {
        span().ok_or_else(|| format!("'{text}' is no date, time in UTC or span of time as 90d"))
    })
}
