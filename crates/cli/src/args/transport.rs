//! What carries connections, as it is typed.

use clap::ValueEnum;
use zmove_transport::TransportChoice;

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListenArg {
    /// TCP, and UDP for QUIC, at the same port
    #[default]
    Both,
    /// TCP alone
    Tcp,
    /// UDP alone
    Quic,
}

impl ListenArg {
    /// As a listener takes it.
    pub(crate) fn choice(self) -> TransportChoice {
        match self {
            Self::Both => TransportChoice::Auto,
            Self::Tcp => TransportChoice::Tcp,
            Self::Quic => TransportChoice::Quic,
        }
    }
}
