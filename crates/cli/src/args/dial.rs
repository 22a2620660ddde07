//! What can be typed about the way to another host.

use clap::ValueEnum;
use zmove_engine::PortRange;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// TCP, and QUIC where TCP cannot be connected
    #[default]
    Auto,
    /// TCP alone
    Tcp,
    /// QUIC alone, over UDP at the same port
    Quic,
}

/// How ssh starts a receiver on a host that runs no daemon.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SshArgs {
    /// Start the receiver over ssh, as the user there; USER@HOST:PATH means this too, and HOST:PORT:PATH then
    /// the port of ssh. Data takes connections of its own
    #[arg(long)]
    pub(crate) ssh: bool,
    /// The ssh to start, with its options, for example 'ssh -i KEY -J GATE'
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub(crate) ssh_command: String,
    /// Where the receiver that ssh starts may listen, for firewalls, for example 50000-50100 [default: any free port]
    #[arg(long, value_name = "FROM-TO")]
    pub(crate) ssh_ports: Option<PortRange>,
    /// The zmove to start on that host
    #[arg(long, value_name = "PATH", default_value = "zmove")]
    pub(crate) remote_zmove: String,
}
