//! The arguments of `zmove serve`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use zmove_transport::TransportChoice;

use crate::args::shared::storage::{DirectArg, EngineArg};
use crate::value::age::Age;

fn parse_listen(text: &str) -> Result<SocketAddr, &'static str> {
    parse_address(text, Ipv6Addr::UNSPECIFIED.into())
        .ok_or("write ADDRESS:PORT, for example 192.0.2.7:5870 or [::]:5870, or only a port")
}

/// Parses an address with a port. If the text is only a port, combines it with `host`.
pub(crate) fn parse_address(text: &str, host: IpAddr) -> Option<SocketAddr> {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    port.map_or_else(|_| text.parse().ok(), |port| Some((host, port).into()))
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on [default: [::]:5870]
    ///
    /// A port alone listens on all addresses.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub(crate) listen: Option<SocketAddr>,
    /// Protocols to listen for [default: both]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) transport: Option<ListenArg>,
    /// Allow senders to transfer data unencrypted
    ///
    /// Senders request this with 'push --cipher none'. Anyone on the path can then read names and contents.
    #[arg(long)]
    pub(crate) allow_clear: bool,
    /// Age at which abandoned transfers are removed [default: 7d]
    ///
    /// A transfer is abandoned if nobody has resumed it for this time: 90s, 30min, 12h, 7d, 2w.
    #[arg(long, value_name = "AGE")]
    pub(crate) journal_age: Option<Age>,
    /// I/O engine for large files on this host [default: auto]
    #[arg(long, value_enum, value_name = "ENGINE", hide_short_help = true)]
    pub(crate) io_engine: Option<EngineArg>,
    /// Whether large files bypass the page cache on this host (O_DIRECT) [default: auto]
    #[arg(long, value_enum, value_name = "WHEN", hide_short_help = true)]
    pub(crate) direct: Option<DirectArg>,
    /// Time for transfers to end after SIGTERM [default: 0]
    ///
    /// For example 30s or 5min.
    #[arg(long, value_name = "TIME")]
    pub(crate) drain: Option<Age>,
    /// Format of the log on standard error [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Log to this file instead; SIGHUP reopens it after rotation
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) log_file: Option<PathBuf>,
    /// Address of /metrics and /healthz, or 'off' [default: 127.0.0.1:5871]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<MetricsListen>,
    /// Configuration file with these settings and limits
    ///
    /// [default: ZMOVE_HOME/zmove.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Switch to this user after the ports are open
    ///
    /// The switch is permanent, and received files belong to this user. Requires root.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Restrict the daemon to its roots (Landlock)
    ///
    /// The kernel denies the process access to all files except its own and those below the roots that exist at
    /// startup. Restart the daemon after adding a root. [default: off; --confine alone: on]
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, default_missing_value = "on")]
    pub(crate) confine: Option<ConfineArg>,
    /// PID of the process that has the terminal; it starts this process without one
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) apart_from: Option<u32>,
    /// Check the configuration and the keys, and exit
    #[arg(long)]
    pub(crate) check: bool,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One sentence per line
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListenArg {
    /// TCP, and QUIC over UDP at the same port
    #[default]
    Both,
    /// TCP only
    Tcp,
    /// QUIC only, over UDP
    Quic,
}

impl ListenArg {
    /// Returns the transports on which the daemon listens.
    pub(crate) fn choice(self) -> TransportChoice {
        match self {
            Self::Both => TransportChoice::Auto,
            Self::Tcp => TransportChoice::Tcp,
            Self::Quic => TransportChoice::Quic,
        }
    }
}

/// Whether the kernel restricts a daemon to its roots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfineArg {
    /// If the kernel supports it (Landlock, Linux 6.2 or later)
    Auto,
    /// Always; without kernel support the daemon does not start
    On,
    /// Never
    #[default]
    Off,
}

/// The address of `/metrics`, or `None` if it is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetricsListen(pub(crate) Option<SocketAddr>);

impl FromStr for MetricsListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let address = text.parse();
        address
            .map(|address| Self(Some(address)))
            .map_err(|_| "neither ADDRESS:PORT nor off".to_owned())
    }
}

impl Default for MetricsListen {
    fn default() -> Self {
        Self(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 5871))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_all_addresses() {
        let every = |port| Ok(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
        assert_eq!(parse_listen("5871"), every(5871));
        assert_eq!(parse_listen(":0"), every(0));
        assert_eq!(
            parse_listen("127.0.0.1:7"),
            Ok((Ipv4Addr::LOCALHOST, 7).into())
        );
        for text in ["", "70000", "localhost", "::1:x"] {
            assert!(
                parse_listen(text).unwrap_err().contains("ADDRESS:PORT"),
                "{text}"
            );
        }
    }
}
