//! The arguments of `zmove allow`, which grants access to senders.

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
    /// The sender's fingerprint; run 'zmove key show' on the sender
    #[arg(value_name = "KEY", required = true)]
    pub(crate) fingerprint: Fingerprint,
    /// Name of the sender in the log
    #[arg(long, required = true)]
    pub(crate) name: String,
    /// Directory that it may use; may be repeated
    #[arg(
        long = "root",
        value_name = "DIR",
        required_unless_present = "read_roots"
    )]
    pub(crate) roots: Vec<PathBuf>,
    /// Allow the sender to write below --root
    #[arg(long, requires = "roots")]
    pub(crate) write: bool,
    /// Allow the sender to read below --root ('zmove pull')
    ///
    /// This is the default for a new key without --write.
    #[arg(long, requires = "roots")]
    pub(crate) read: bool,
    /// Directory that it may only read; may be repeated
    #[arg(long = "read-root", value_name = "DIR")]
    pub(crate) read_roots: Vec<PathBuf>,
    /// Daemon to which the sender may copy files from here
    ///
    /// 'zmove copy' uses this permission. This host connects to that daemon. May be repeated.
    #[arg(long = "to", value_name = "HOST[:PORT]", value_parser = parse_endpoint)]
    pub(crate) to: Vec<String>,
    /// Preserve the setuid and setgid bits of files
    ///
    /// Anyone who runs such a file on this host gets the privileges of the daemon's user.
    #[arg(long, requires = "write", hide_short_help = true)]
    pub(crate) set_ids: bool,
    /// Allow setting owners and creating devices
    ///
    /// Files whose owners are preserved also keep their setuid and setgid bits, and the sender may set capabilities and
    /// 'trusted.*' attributes. The privileges of the daemon's user limit all of this.
    #[arg(long, requires = "write")]
    pub(crate) set_owner: bool,
    /// Allow the sender to lead jobs with several receivers
    ///
    /// Required for 'zmove push SRC host1,host2:DST', and for the cluster node that starts pushes. The sender can then
    /// end and replace other senders' jobs below the same directories.
    #[arg(long, requires = "write", hide_short_help = true)]
    pub(crate) lead: bool,
    /// Rate limit for all its transfers together, say 10Gbit
    ///
    /// Per second, for example 10Gbit or 500MB. [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub(crate) max_rate: Option<RateLimit>,
    /// Expiry date (2027-01-31, in UTC) or time span (90d)
    ///
    /// A time such as 2027-01-31T18:00:00Z is also accepted. [default: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    pub(crate) expires: Option<Expiry>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AllowCommand {
    /// List the allowed senders and their permissions
    List {
        /// Print the senders as JSON, one object per line
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key, or all keys with a name
    ///
    /// Running transfers continue to their end unless --now is given.
    Remove {
        /// Fingerprint or name
        #[arg(value_name = "KEY|NAME")]
        key_or_name: String,
        /// Also end its running transfers at this host's daemon
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        control: ControlArgs,
    },
}

/// Checks that the text is a valid address of a daemon.
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
        span()
            .ok_or_else(|| format!("'{text}' is not a date, a UTC time or a duration such as 90d"))
    })
}
