//! The arguments of `zmove trust`: the keys of hosts.

use zmove_engine::Remote;
use zmove_transport::Fingerprint;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "zmove trust [OPTIONS] <HOST[:PORT]>\n       zmove trust list|remove"
)]
pub(crate) struct TrustArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TrustCommand>,
    #[command(flatten)]
    pub(crate) host: Option<TrustHostArgs>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TrustHostArgs {
    /// The receiver whose key is to be fetched, shown and, if it is the right one, remembered
    #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint, required = true)]
    pub(crate) host: Remote,
    /// Remember its key without asking
    #[arg(long)]
    pub(crate) accept_new: bool,
    /// Remember its key if it is this one, as 'zmove serve' prints it there, without asking
    #[arg(long, value_name = "SHA256:...", conflicts_with = "accept_new")]
    pub(crate) fingerprint: Option<Fingerprint>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TrustCommand {
    /// Show the hosts that are known, with their keys
    List {
        /// Print each host as a JSON object on a line
        #[arg(long)]
        json: bool,
    },
    /// Forget the key of a host
    Remove {
        /// The host
        #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint)]
        host: Remote,
    },
}
