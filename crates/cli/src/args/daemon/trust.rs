//! The arguments of `zmove trust`, which manages the keys of known hosts.

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
    /// Host whose key is fetched, shown and, after confirmation, pinned
    #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint, required = true)]
    pub(crate) host: Remote,
    /// Pin the key without asking
    #[arg(long)]
    pub(crate) accept_new: bool,
    /// Pin the key without asking if it has this fingerprint, which 'zmove serve' prints on that host
    #[arg(long, value_name = "SHA256:...", conflicts_with = "accept_new")]
    pub(crate) fingerprint: Option<Fingerprint>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TrustCommand {
    /// List the known hosts and their keys
    List {
        /// Print the hosts as JSON, one object per line
        #[arg(long)]
        json: bool,
    },
    /// Forget the key of a host
    Remove {
        /// Host to forget
        #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint)]
        host: Remote,
    },
}
