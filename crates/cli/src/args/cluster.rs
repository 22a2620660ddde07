//! The arguments of `zmove cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;
use zmove_engine::Remote;

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Name receivers that share a storage, and make the keys of the nodes that send to them
    Init(ClusterInitArgs),
    /// Write what another node needs to take part: whoever reads it may send as one
    Invite {
        /// The cluster
        name: String,
        /// Write it to this new file, which nobody else may read [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Take part in the jobs of a cluster, in the foreground
    Join(ClusterJoinArgs),
    /// Show the nodes that are there, and the jobs that are under way
    Status {
        /// The cluster
        name: String,
        /// Print each as a JSON object on a line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterInitArgs {
    /// How the cluster is called here
    pub(crate) name: String,
    /// The receivers, which have the same target directory
    #[arg(value_name = "HOST[:PORT]", value_parser = Remote::parse_endpoint, required = true)]
    pub(crate) receivers: Vec<Remote>,
    /// Where the broker is to listen that a push starts here: an address of this host that the other nodes reach
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "broker")]
    pub(crate) listen: Option<SocketAddr>,
    /// A broker that runs already (NATS with JetStream): nats://HOST:PORT or tls://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(crate) broker: Option<String>,
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
