//! Options for connecting to another host.

use clap::ValueEnum;
use zmove_engine::PortRange;

/// Options for connecting to another host.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Remote host")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct DialArgs {
    /// Pin the key of an unknown host without asking
    #[arg(long)]
    pub(crate) accept_new: bool,
    /// Refuse a host with an unknown key instead of asking
    #[arg(long, hide_short_help = true, conflicts_with = "accept_new")]
    pub(crate) strict: bool,
    /// Transport protocol of the connections
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t,
        hide_short_help = true
    )]
    pub(crate) transport: TransportArg,
    /// Congestion control of the data connections, for example bbr or cubic [default: the system's]
    ///
    /// By default, a push uses bbr if losses slow its connections down and the kernel lets users choose bbr. Over QUIC
    /// the default is 'tolerant', a variant of cubic that treats single lost packets as noise.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub(crate) congestion: Option<String>,
    /// Start the receiver over ssh, as the remote user
    ///
    /// USER@HOST:PATH, -e and --via ssh imply this option. In HOST:PORT:PATH, PORT is then the port of ssh.
    #[arg(long)]
    pub(crate) ssh: bool,
    /// The ssh command to use [default: ssh]
    ///
    /// It may include options, for example 'ssh -i KEY -J GATE'. --rsh is an alias.
    #[arg(short = 'e', long, alias = "rsh", value_name = "COMMAND")]
    pub(crate) ssh_command: Option<String>,
    /// Ports for a receiver started over ssh, for example 50000-50100, to suit firewalls [default: any free port]
    #[arg(long, value_name = "FROM-TO", hide_short_help = true)]
    pub(crate) ssh_ports: Option<PortRange>,
    /// The way of the data to a receiver started over ssh
    #[arg(
        long,
        value_enum,
        value_name = "WAY",
        default_value_t,
        hide_short_help = true
    )]
    pub(crate) via: ViaArg,
    /// The zmove program on the remote host [default: zmove in its search path, or the helper program]
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    pub(crate) remote_zmove: Option<String>,
    /// Send a helper program to a host without zmove, without asking
    ///
    /// It is stored in ~/.cache/zmove there. ZMOVE_BOOTSTRAP=yes in the environment has the same effect.
    #[arg(long, hide_short_help = true, conflicts_with = "remote_zmove")]
    pub(crate) bootstrap: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// TCP, or QUIC if TCP cannot connect
    #[default]
    Auto,
    /// TCP only
    Tcp,
    /// QUIC only, over UDP at the same port
    Quic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViaArg {
    /// Directly to a port of the receiver, or through ssh if the port does not answer
    #[default]
    Auto,
    /// Only directly
    Direct,
    /// Only through ssh, which needs no open port but is slower
    Ssh,
}
