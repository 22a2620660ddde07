//! Where the daemon's meters are served, as it is typed.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Where `/metrics` is served, if it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetricsListen(pub(crate) Option<SocketAddr>);

impl FromStr for MetricsListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let address = text.parse();
        address.map(|address| Self(Some(address))).map_err(|_| "neither ADDRESS:PORT nor off".to_owned())
    }
}

impl Default for MetricsListen {
    fn default() -> Self {
        Self(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 5871))))
    }
}
