//! The arguments of `zmove cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;
use zmove_engine::Remote;

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Define receivers with shared storage, and the broker of the nodes
    Init(ClusterInitArgs),
    /// Write an invitation for other nodes; anyone who reads it may send as a node
    Invite {
        /// Name of the cluster
        name: String,
        /// Write it to this new file, readable only by its owner [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Take part in the jobs of a cluster, in the foreground
    Join(ClusterJoinArgs),
    /// Show nodes and receivers with their rates, and the queues of running jobs
    Status(ClusterStatusArgs),
    /// Run the broker of a push; the push starts this
    #[command(hide = true)]
    Broker {
        /// PID of the parent process; the broker exits when it does
        parent: u32,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterInitArgs {
    /// Local name of the cluster
    pub(crate) name: String,
    /// Receivers that share the same target directory
    #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint, required = true)]
    pub(crate) receivers: Vec<Remote>,
    /// Broker URLs, comma-separated: nats://HOST:PORT or tls://HOST:PORT
    #[arg(long, value_name = "URL", required_unless_present = "local")]
    pub(crate) nats: Option<String>,
    /// Credentials for the broker: a NATS credentials file, or an nkey seed
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub(crate) nats_credentials: Option<PathBuf>,
    /// CA certificates (PEM) for the broker [default: those of each host]
    #[arg(long, value_name = "FILE", requires = "nats")]
    pub(crate) nats_ca: Option<PathBuf>,
    /// Have each push start a 'nats-server' at this local address, reachable from all nodes [default: towards the first
    /// receiver, port 4222]
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, conflicts_with = "nats")]
    #[expect(
        clippy::option_option,
        reason = "clap reads an option with an optional value so"
    )]
    pub(crate) local: Option<Option<SocketAddr>>,
    /// Pin the receivers' keys without asking
    #[arg(long)]
    pub(crate) accept_new: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterJoinArgs {
    /// Invitation from 'zmove cluster invite' on another node ('-' reads stdin), or the name of a cluster that this
    /// node has joined before
    #[arg(value_name = "FILE|NAME")]
    pub(crate) invitation: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterStatusArgs {
    /// Name of the cluster
    pub(crate) name: String,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print metrics in the Prometheus text format
    #[arg(long, conflicts_with = "json")]
    pub(crate) metrics: bool,
}
