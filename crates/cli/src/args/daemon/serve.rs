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
        .ok_or("write ADDRESS:PORT, as 192.0.2.7:5870 or [::]:5870, or a port alone")
}

/// Reads an address with its port, or a port of `host` alone.
pub(crate) fn parse_address(text: &str, host: IpAddr) -> Option<SocketAddr> {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    port.map_or_else(|_| text.parse().ok(), |port| Some((host, port).into()))
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on [default: [::]:5870]
    ///
    /// A port alone is one of all addresses.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub(crate) listen: Option<SocketAddr>,
    /// What to listen for there [default: both]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) transport: Option<ListenArg>,
    /// Let those who ask for it send in clear
    ///
    /// They do so by 'push --cipher none': names and contents then travel in clear.
    #[arg(long)]
    pub(crate) allow_clear: bool,
    /// Age at which what broken transfers left goes [default: 7d]
    ///
    /// It is removed when nobody has come back for it in so long: 90s, 30min, 12h, 7d, 2w.
    #[arg(long, value_name = "AGE")]
    pub(crate) journal_age: Option<Age>,
    /// How large files are written on this host [default: auto]
    #[arg(long, value_enum, value_name = "ENGINE", hide_short_help = true)]
    pub(crate) io_engine: Option<EngineArg>,
    /// Whether large files are written past the page cache on this host (O_DIRECT) [default: auto]
    #[arg(long, value_enum, value_name = "WHEN", hide_short_help = true)]
    pub(crate) direct: Option<DirectArg>,
    /// On SIGTERM let transfers go on for so long [default: 0]
    ///
    /// For example 30s or 5min.
    #[arg(long, value_name = "TIME")]
    pub(crate) drain: Option<Age>,
    /// How the log on standard error looks [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Log to this file instead, which SIGHUP opens again once it has been rotated
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) log_file: Option<PathBuf>,
    /// Where /metrics and /healthz are served, or 'off' [default: 127.0.0.1:5871]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<MetricsListen>,
    /// The file with these settings and the limits
    ///
    /// [default: ZMOVE_HOME/zmove.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Once the ports are open, become this user, for good
    ///
    /// Files will be theirs. Only root can.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Have the kernel keep it to its roots (Landlock)
    ///
    /// The process is refused all files but those below the roots that there are now, and its own: a root that is new
    /// takes a restart. [default: off; --confine alone: on]
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, default_missing_value = "on")]
    pub(crate) confine: Option<ConfineArg>,
    /// The process that has the terminal; it starts this one without
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) apart_from: Option<u32>,
    /// Only check the configuration and the keys
    #[arg(long)]
    pub(crate) check: bool,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A sentence a line
    #[default]
    Text,
    /// A JSON object a line
    Json,
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
    /// The transports to listen on.
    pub(crate) fn choice(self) -> TransportChoice {
        match self {
            Self::Both => TransportChoice::Auto,
            Self::Tcp => TransportChoice::Tcp,
            Self::Quic => TransportChoice::Quic,
        }
    }
}

/// Whether the kernel is to keep a daemon to its roots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfineArg {
    /// Where the kernel can (Landlock, in Linux 6.2 or later)
    Auto,
    /// Always: without it the daemon does not start
    On,
    /// Never
    #[default]
    Off,
}

/// The address at which `/metrics` is served, if it is.
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
