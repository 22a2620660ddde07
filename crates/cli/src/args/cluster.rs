//! The arguments of `zmove cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;
use zmove_engine::Remote;

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Name receivers that share a storage, and the broker of the nodes
    Init(ClusterInitArgs),
    /// Write what other nodes need to take part: whoever reads it may send as a node
    Invite {
        /// The cluster
        name: String,
        /// Write it to this new file, which nobody else may read [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Take part in the jobs of a cluster, in the foreground
    Join(ClusterJoinArgs),
    /// Show nodes and receivers with their rates, and the queues of the jobs that are under way
    Status(ClusterStatusArgs),
    /// Become the broker of a push; a push starts this
    #[command(hide = true)]
    Broker {
        /// The process with which this one ends
        parent: u32,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterInitArgs {
    /// How the cluster is called here
    pub(crate) name: String,
    /// The receivers, which have the same target directory
    #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint, required = true)]
    pub(crate) receivers: Vec<Remote>,
    /// The broker: nats://HOST:PORT or tls://HOST:PORT, several with commas
    #[arg(long, value_name = "URL", required_unless_present = "local")]
    pub(crate) nats: Option<String>,
    /// Credentials for it: a NATS credentials file, or the seed of an nkey
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub(crate) nats_credentials: Option<PathBuf>,
    /// Certificates (PEM) of its authorities [default: those of each host]
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub(crate) nats_ca: Option<PathBuf>,
    /// Have each push start a 'nats-server' at an address of this host that the other nodes reach [default: towards
    /// the first receiver, port 4222]
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, conflicts_with = "nats")]
    #[expect(
        clippy::option_option,
        reason = "clap reads an option with an optional value so"
    )]
    pub(crate) local: Option<Option<SocketAddr>>,
    /// Remember the receivers' keys without asking
    #[arg(long)]
    pub(crate) accept_new: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterJoinArgs {
    /// What 'zmove cluster invite' has printed on another node ('-': from standard input), or the name of a cluster
    /// that this node has joined before
    #[arg(value_name = "FILE|NAME")]
    pub(crate) invitation: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterStatusArgs {
    /// The cluster
    pub(crate) name: String,
    /// Print each as a JSON object on a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    pub(crate) metrics: bool,
}
