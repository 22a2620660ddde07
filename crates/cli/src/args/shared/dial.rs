//! The options for reaching another host.

use clap::ValueEnum;
use zmove_engine::PortRange;

/// How another host is reached.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "The other host")]
pub(crate) struct DialArgs {
    /// Pin the key of an unknown host without asking
    #[arg(long)]
    pub(crate) accept_new: bool,
    /// Refuse a host whose key is not known, without asking
    #[arg(long, hide_short_help = true, conflicts_with = "accept_new")]
    pub(crate) strict: bool,
    /// What carries the connections
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t,
        hide_short_help = true
    )]
    pub(crate) transport: TransportArg,
    /// Congestion control of the data connections, for example bbr or cubic [default: the system's, and for a push
    /// bbr where loss slows them and the kernel lets users choose it; over QUIC 'tolerant', which is cubic that takes
    /// single lost packets for noise]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub(crate) congestion: Option<String>,
    /// Start the receiver over ssh, as the user there
    ///
    /// USER@HOST:PATH and -e mean this too, and HOST:PORT:PATH then the port of ssh. Data takes connections of its own.
    #[arg(long)]
    pub(crate) ssh: bool,
    /// The ssh to start it with [default: ssh]
    ///
    /// With its options, for example 'ssh -i KEY -J GATE'; --rsh is the same.
    #[arg(short = 'e', long, alias = "rsh", value_name = "COMMAND")]
    pub(crate) ssh_command: Option<String>,
    /// Where the receiver that ssh starts may listen, for firewalls, for example 50000-50100 [default: any free port]
    #[arg(long, value_name = "FROM-TO", hide_short_help = true)]
    pub(crate) ssh_ports: Option<PortRange>,
    /// The zmove to start on that host
    #[arg(
        long,
        value_name = "PATH",
        default_value = "zmove",
        hide_short_help = true
    )]
    pub(crate) remote_zmove: String,
}

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
